import jax
import jax.numpy as jnp
import numpy as np

from fcjax.cluster.seeding import farthest_first, plus_plus


def test_seeds_are_one_of_each_far_group():
    centres = 100.0 * jnp.eye(5)
    rows = jnp.repeat(centres, 8, axis=0)
    rows += jax.random.normal(jax.random.key(0), rows.shape)
    for seed in range(10):
        found = plus_plus(jax.random.key(seed), rows, jnp.ones(40), 5)
        assert sorted(np.asarray(found) // 8) == [0, 1, 2, 3, 4]


def test_rows_without_weight_are_no_seeds():
    rows = jnp.array([[0.0], [1.0], [1000.0], [2.0]])
    weights = jnp.array([1.0, 1.0, 0.0, 1.0])
    for seed in range(10):
        found = plus_plus(jax.random.key(seed), rows, weights, 3)
        assert sorted(np.asarray(found)) == [0, 1, 3]


def test_the_farthest_row_comes_next_by_hand():
    # From 0 and 1 the farthest is 10; then 5 is 4 from 1, and 9 only 1 from 10.
    rows = jnp.array([[0.0], [1.0], [10.0], [5.0], [9.0], [100.0]])
    weights = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    chosen = jnp.array([True, True, False, False, False, False])
    np.testing.assert_array_equal(
        farthest_first(rows, weights, chosen, 4), [0, 1, 2, 3]
    )


def test_as_many_as_are_chosen_stay_as_they_are():
    rows = jnp.array([[0.0], [1.0], [10.0]])
    chosen = jnp.array([False, True, True])
    np.testing.assert_array_equal(farthest_first(rows, jnp.ones(3), chosen, 2), [1, 2])
