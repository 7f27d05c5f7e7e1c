import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.neighbors import kneighbors_graph

from fcjax.cluster import neighbor_graph


@pytest.mark.parametrize("num_neighbors", [1, 5, 49])
def test_equals_sklearn(num_neighbors):
    """Also far from the origin: exact in float32, and far beyond it by products."""
    x = np.round(np.random.default_rng(0).random((50, 5)) * 1024) / 1024
    chosen = kneighbors_graph(x, num_neighbors, include_self=False).toarray() > 0
    for offset in (0, 4096):
        graph = neighbor_graph(jnp.array(x + offset, jnp.float32), num_neighbors)
        np.testing.assert_array_equal(graph, chosen | chosen.T)


def test_ties_go_to_the_smaller_index():
    # All four are equally near the middle one, which chooses 0 and 1.
    x = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    graph = np.array(neighbor_graph(jnp.concatenate([x, 9 * x[3:4]]), 1))
    # Each of the four chooses the middle one: only its own choice must be told apart.
    np.testing.assert_array_equal(graph[2, :5], [True, True, False, True, True])
    repeated = jnp.zeros((6, 2))
    expected = np.zeros((6, 6), bool)
    expected[0, 1:] = expected[1:, 0] = True
    # All coincide: 0 chooses 1, and all others choose 0.
    np.testing.assert_array_equal(neighbor_graph(repeated, 1), expected)


def test_fewer_others_than_neighbors():
    x = jnp.array(np.random.default_rng(0).random((6, 5)), jnp.float32)
    everyone = ~np.eye(6, dtype=bool)
    np.testing.assert_array_equal(neighbor_graph(x, 20), everyone)
    for mask in (np.array([1, 0, 1, 1, 0, 0], bool), np.arange(6) < 1):
        graph = neighbor_graph(x, 5, mask=jnp.array(mask))
        np.testing.assert_array_equal(graph, everyone & mask & mask[:, None])
    assert not neighbor_graph(x[:1], 3).any()
