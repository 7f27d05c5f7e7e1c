import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse.csgraph import connected_components as by_scipy

from fcjax.cluster import connected_components


def test_components_are_scipys():
    """Of graphs of many densities, and of a path in a random order, all at once."""
    rng = np.random.default_rng(0)
    order = rng.permutation(60)
    path = np.zeros((60, 60), bool)
    path[order[:-1], order[1:]] = True
    graphs = [
        np.triu(rng.random((60, 60)) < density, 1)
        for density in (0.0, 0.01, 0.03, 0.2)
        for _ in range(5)
    ]
    graphs = np.stack([graph | graph.T for graph in [path, *graphs]])
    found = jax.jit(jax.vmap(connected_components))(jnp.asarray(graphs))
    for own, graph in zip(found, graphs, strict=True):
        _, expected = by_scipy(graph, directed=False)
        first = [np.flatnonzero(expected == c)[0] for c in expected]
        np.testing.assert_array_equal(own, first)
