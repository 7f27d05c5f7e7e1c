import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components as by_scipy

from fcjax.cluster import connected_components


def graph(rng, count, density):
    edges = np.triu(rng.random((count, count)) < density, 1)
    return edges | edges.T


@pytest.mark.parametrize("density", [0.0, 0.01, 0.03, 0.2])
def test_components_are_scipys(density):
    rng = np.random.default_rng(0)
    for _ in range(5):
        edges = graph(rng, 60, density)
        found = np.asarray(connected_components(jnp.asarray(edges)))
        count, expected = by_scipy(edges, directed=False)
        assert len(np.unique(found)) == count
        assert len(np.unique(found * 60 + expected)) == count  # one to one
        first = [np.flatnonzero(expected == c)[0] for c in expected]
        np.testing.assert_array_equal(found, first)


def test_a_path_in_a_random_order_is_one_component():
    order = np.random.default_rng(1).permutation(50)
    edges = np.zeros((50, 50), bool)
    edges[order[:-1], order[1:]] = edges[order[1:], order[:-1]] = True
    found = jax.jit(connected_components)(jnp.asarray(edges))
    np.testing.assert_array_equal(found, np.zeros(50))


def test_many_graphs_at_once_are_each_their_own():
    rng = np.random.default_rng(2)
    edges = np.stack([graph(rng, 20, d) for d in (0.0, 0.05, 0.3)])
    found = jax.vmap(connected_components)(jnp.asarray(edges))
    for one, own in zip(found, edges, strict=True):
        np.testing.assert_array_equal(one, connected_components(jnp.asarray(own)))
    np.testing.assert_array_equal(found[0], np.arange(20))
