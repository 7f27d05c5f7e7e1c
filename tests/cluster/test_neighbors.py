import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.neighbors import kneighbors_graph

from fcjax.cluster import neighbor_graph


def rows(seed, n, d=5):
    return np.random.default_rng(seed).random((n, d)).astype(np.float32)


def sklearn_graph(x, num_neighbors):
    chosen = kneighbors_graph(x, num_neighbors, include_self=False).toarray() > 0
    return chosen | chosen.T


def test_by_hand():
    # On a line: 0 and 1 choose each other, 3 chooses 1, 7 chooses 3.
    x = jnp.array([[0.0], [7.0], [1.0], [3.0]])
    expected = np.zeros((4, 4), bool)
    for i, j in [(0, 2), (3, 2), (1, 3)]:
        expected[i, j] = expected[j, i] = True
    graph = neighbor_graph(x, 1)
    np.testing.assert_array_equal(graph, expected)
    assert graph.dtype == bool


@pytest.mark.parametrize("num_neighbors", [1, 5, 49])
def test_equals_sklearn(num_neighbors):
    x = rows(0, 50)
    graph = neighbor_graph(jnp.array(x), num_neighbors)
    np.testing.assert_array_equal(graph, sklearn_graph(x, num_neighbors))


def test_far_from_the_origin():
    x = np.round(rows(1, 40) * 64) / 64
    graph = neighbor_graph(jnp.array(x), 3)
    # Exact in float32, and far beyond it by inner products.
    np.testing.assert_array_equal(neighbor_graph(jnp.array(x + 4096), 3), graph)


def test_ties_go_to_the_smaller_index():
    # All four are equally near the middle one, which chooses 0 and 1.
    x = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    graph = np.array(neighbor_graph(jnp.concatenate([x, 9 * x[3:4]]), 1))
    # Each of the four chooses the middle one: only its own choice must be told apart.
    np.testing.assert_array_equal(graph[2, :5], [True, True, False, True, True])
    repeated = jnp.zeros((4, 3))
    expected = np.zeros((4, 4), bool)
    expected[0, 1:] = expected[1:, 0] = True
    # All coincide: 0 chooses 1, and all others choose 0.
    np.testing.assert_array_equal(neighbor_graph(repeated, 1), expected)


def test_masked_equals_the_rest():
    counted = np.random.default_rng(0).permutation(40)[:25]
    x = np.full((40, 5), np.nan, np.float32)
    x[counted] = rows(2, 25)
    mask = jnp.array(np.isin(np.arange(40), counted))
    expected = np.zeros((40, 40), bool)
    expected[np.ix_(counted, counted)] = sklearn_graph(rows(2, 25), 4)
    graph = neighbor_graph(jnp.array(x), 4, mask=mask)
    np.testing.assert_array_equal(graph, expected)


def test_fewer_others_than_neighbors():
    x = jnp.array(rows(3, 6))
    everyone = ~np.eye(6, dtype=bool)
    np.testing.assert_array_equal(neighbor_graph(x, 20), everyone)
    mask = np.array([True, False, True, True, False, False])
    graph = neighbor_graph(x, 4, mask=jnp.array(mask))
    np.testing.assert_array_equal(graph, everyone & mask & mask[:, None])
    assert not neighbor_graph(x, 3, mask=jnp.arange(6) < 1).any()
    assert not neighbor_graph(x[:1], 3).any()


def test_vmapped_and_jitted():
    x = np.stack([rows(seed, 30) for seed in range(3)])
    sizes = jnp.array([30, 12, 3])

    @jax.jit
    @jax.vmap
    def graphs(x, size):
        return neighbor_graph(x, 4, mask=jnp.arange(30) < size)

    results = np.array(graphs(jnp.array(x), sizes))
    for i, size in enumerate(sizes.tolist()):
        expected = np.zeros((30, 30), bool)
        expected[:size, :size] = sklearn_graph(x[i, :size], min(4, size - 1))
        np.testing.assert_array_equal(results[i], expected)


@pytest.mark.parametrize("num_neighbors", [0, -1])
def test_number_of_neighbors_out_of_range(num_neighbors):
    with pytest.raises(ValueError, match=rf"at least 1, got {num_neighbors}$"):
        neighbor_graph(jnp.ones((5, 2)), num_neighbors)
