import jax
import jax.numpy as jnp
import numpy as np

from fcjax.cluster import kmeans
from fcjax.cluster.kmeans import farthest_first, plus_plus


def drawn(x, weights, num_clusters):
    """The seeds of ten keys."""
    keys = jax.random.split(jax.random.key(0), 10)
    draw = jax.vmap(lambda key: plus_plus(key, x, weights, num_clusters))
    return np.sort(jax.jit(draw)(keys))


def test_seeds_are_one_of_each_far_group():
    rows = jnp.repeat(100.0 * jnp.eye(5), 8, axis=0)
    rows += jax.random.normal(jax.random.key(0), rows.shape)
    for found in drawn(rows, jnp.ones(40), 5):
        np.testing.assert_array_equal(found // 8, [0, 1, 2, 3, 4])


def test_the_farthest_row_comes_next_by_hand():
    # From 0 and 1 the farthest is 10; then 5 is 4 from 1, and 9 only 1 from 10.
    rows = jnp.array([[0.0], [1.0], [10.0], [5.0], [9.0], [100.0]])
    weights = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    for chosen, expected in (((0, 1), [0, 1, 2, 3]), ((0, 1, 3, 4), [0, 1, 3, 4])):
        chosen = jnp.zeros(6, bool).at[jnp.array(chosen)].set(True)
        found = farthest_first(rows, weights, chosen, 4)
        np.testing.assert_array_equal(found, expected)


def test_rounding_does_not_choose_between_seeds_that_help_alike():
    """Of three rows far apart and one beside the second: after that pair, either of the
    two others leaves their distance over."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 4, 24)).astype(np.float32)
    rows[:, 3] = rows[:, 1] + 0.1 * rng.normal(size=(200, 24))
    rounded = rows * (1 + 6e-8 * rng.choice([-1, 0, 1], size=rows.shape))
    keys = jax.random.split(jax.random.key(1), 200)
    clusters = jax.vmap(lambda key, x: kmeans(key, x, 3, num_init=4).centroids)
    np.testing.assert_allclose(
        clusters(keys, rows), clusters(keys, rounded.astype(np.float32)), atol=1e-4
    )
