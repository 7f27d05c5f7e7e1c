from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.losses import (
    cluster_contrastive,
    negative_cosine,
    normalize,
)


@pytest.fixture
def batch(key):
    """Twelve rows; cluster 2 has one example and cluster 3 none."""
    p_key, z_key = jax.random.split(key)
    labels = jnp.array([0, 0, 1, 0, 1, 1, 0, 2, 1, 0, 1, 1])
    return jax.random.normal(p_key, (12, 5)), jax.random.normal(z_key, (12, 5)), labels


def cosine(a, b):
    return float(np.dot(a, b) / (np.linalg.norm(a) * np.linalg.norm(b)))


def naive_cluster_contrastive(p, z, labels, include_self):
    """Equations 1 and 2 of CCFC, averaged over the clusters of two or more."""
    p, z, labels = np.asarray(p, np.float64), np.asarray(z, np.float64), labels.tolist()
    losses = []
    for c in set(labels):
        members = [i for i, label in enumerate(labels) if label == c]
        if len(members) < 2:
            continue
        pairs = [
            cosine(p[i], z[j])
            for i in members
            for j in members
            if include_self or i != j
        ]
        losses.append(-sum(pairs) / len(pairs))
    return sum(losses) / len(losses)


def test_normalize_by_hand():
    """Of rows on any leading axes; those shorter than eps are divided by it."""
    x = jnp.array([[[3.0, 4.0], [0.0, 0.0]], [[-6.0, 8.0], [0.0, -2e-6]]])
    expected = [[[0.6, 0.8], [0.0, 0.0]], [[-0.6, 0.8], [0.0, -1.0]]]
    np.testing.assert_allclose(normalize(x), expected, rtol=1e-6)
    expected[1][1] = [0.0, -2e-4]
    np.testing.assert_allclose(normalize(x, eps=1e-2), expected, rtol=1e-6)


def test_normalize_passes_no_gradient_at_a_zero_row():
    x = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    gradient = jax.grad(lambda x: normalize(x)[:, 0].sum())(x)
    np.testing.assert_array_equal(gradient[0], 0)
    # d (x / |x|) / dx = 1 / |x| - x^2 / |x|^3 = 1/5 - 9/125.
    np.testing.assert_allclose(gradient[1, 0], 0.128, rtol=1e-5)


def test_the_cosine_of_a_zero_row_is_zero_and_has_no_slope():
    zero, ones = jnp.zeros(3), jnp.ones(3)
    p, z = jnp.stack([zero, ones, zero]), jnp.stack([ones, zero, zero])
    cosines, backwards = jax.vjp(lambda p: negative_cosine(p, z), p)
    np.testing.assert_array_equal(cosines, 0)
    np.testing.assert_array_equal(backwards(jnp.ones(3))[0], 0)


def test_cluster_contrastive_by_hand():
    z = jnp.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, -3.0], [5.0, 5.0]])
    labels = jnp.array([0, 0, 1, 1, 2])
    # Cluster 0: four ordered pairs, all 1. Cluster 1: 1, 1, -1, -1, mean 0.
    # Cluster 2 has one example and does not count. -(1 + 0) / 2.
    loss = cluster_contrastive(z, z, labels, num_clusters=4)
    np.testing.assert_allclose(loss, -0.5, atol=1e-6)
    # Without the pairs i = j, cluster 1 has -1, -1. -(1 - 1) / 2.
    loss = cluster_contrastive(z, z, labels, num_clusters=4, include_self=False)
    np.testing.assert_allclose(loss, 0, atol=1e-6)
    # A masked row is in no cluster.
    loss = cluster_contrastive(
        z, z, labels.at[4].set(0), num_clusters=4, mask=jnp.arange(5) < 4
    )
    np.testing.assert_allclose(loss, -0.5, atol=1e-6)


@pytest.mark.parametrize("include_self", [True, False])
def test_cluster_contrastive_equals_the_formula(batch, include_self):
    """A label outside the range counts nowhere, and z has no gradient."""
    p, z, labels = batch
    step = jax.jit(
        jax.value_and_grad(
            partial(cluster_contrastive, num_clusters=4, include_self=include_self),
            argnums=1,
        )
    )
    for kept in (np.ones(12, bool), np.asarray(labels) != 1):
        loss, gradient = step(p, z, jnp.where(kept, labels, -1))
        expected = naive_cluster_contrastive(
            p[kept], z[kept], labels[kept], include_self
        )
        np.testing.assert_allclose(loss, expected, atol=1e-6)
        np.testing.assert_array_equal(gradient, 0)


def test_cluster_contrastive_without_a_pair_is_zero(batch):
    p, z, _ = batch
    options = {"num_clusters": 12, "include_self": False}
    step = jax.jit(jax.value_and_grad(partial(cluster_contrastive, **options)))
    loss, gradient = step(p, z, jnp.arange(12))
    assert loss == 0
    np.testing.assert_array_equal(gradient, 0)
