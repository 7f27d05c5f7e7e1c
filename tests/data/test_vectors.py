"""The laws of the views of feature vectors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fcjax.data import vectors


def test_noise_is_normal(key):
    x = jnp.full(20000, 0.5)
    noise = np.asarray(vectors.jitter(key, x, scale=0.1)) - 0.5
    assert abs(noise.mean()) < 0.003
    assert abs(noise.std() - 0.1) < 0.003
    # 68.3 % lie within one deviation and 95.4 % within two.
    assert abs((np.abs(noise) < 0.1).mean() - 0.683) < 0.015
    assert abs((np.abs(noise) < 0.2).mean() - 0.954) < 0.01


def test_noise_ends_at_0_and_1(key):
    ends = jnp.tile(jnp.array([0.0, 1.0]), 500)
    noisy = vectors.jitter(key, ends, scale=0.3)
    assert abs((noisy == ends).mean() - 0.5) < 0.05
    assert noisy.min() == 0
    assert noisy.max() == 1


def test_dropped_features_are_0_and_the_others_as_they_were(key):
    x = jnp.linspace(0.1, 1.0, 50)
    drop = partial(vectors.feature_dropout, probability=0.3)
    views = np.asarray(jax.vmap(drop, (0, None))(jax.random.split(key, 2000), x))
    dropped = views == 0
    np.testing.assert_array_equal(views, np.where(dropped, 0, x))
    np.testing.assert_allclose(dropped.mean(axis=0), 0.3, atol=0.05)
    # Independent of each other: the count has the binomial's variance.
    assert abs(dropped.sum(axis=1).var() - 50 * 0.3 * 0.7) < 1.5


def test_neutral_parameters_give_the_vector_back(key):
    x = jax.random.uniform(key, (9,))
    for result in (
        vectors.jitter(key, x, scale=0),
        vectors.feature_dropout(key, x, probability=0),
        vectors.vector_view(key, x, scale=0.0, probability=0.0),
    ):
        np.testing.assert_array_equal(result, x)
    np.testing.assert_array_equal(vectors.vector_view(key, x, probability=1), 0 * x)


def test_a_view_is_both_drawn_apart(key):
    x = jnp.full(20000, 0.5)
    view = np.asarray(vectors.vector_view(key, x))
    dropped = view == 0
    assert abs(dropped.mean() - 0.2) < 0.015
    assert abs(view[~dropped].mean() - 0.5) < 0.005
    assert abs(view[~dropped].std() - 0.1) < 0.005


def test_a_view_depends_on_its_key_alone_and_may_be_traced(key):
    keys, xs = jax.random.split(key, 4), jax.random.uniform(key, (4, 9))

    def views(keys, xs, scale, probability):
        view = partial(vectors.vector_view, scale=scale, probability=probability)
        return jax.vmap(view)(keys, xs)

    together = jax.jit(views)(keys, xs, 0.2, 0.3)
    assert together.shape == xs.shape
    alone = vectors.vector_view(keys[3], xs[3], scale=0.2, probability=0.3)
    np.testing.assert_allclose(together[3], alone, atol=1e-6)
    same = jax.jit(views)(keys, jnp.tile(xs[:1], (4, 1)), 0.2, 0.3)
    assert len(np.unique(same, axis=0)) == 4
