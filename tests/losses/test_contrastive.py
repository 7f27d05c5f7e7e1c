import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from fcjax.losses import (
    cluster_contrastive,
    model_contrastive,
    negative_cosine,
    normalize,
)

NUM_CLUSTERS = 4


@pytest.fixture
def batch(key):
    """Twelve rows; cluster 2 has one example and cluster 3 none."""
    p_key, z_key = jax.random.split(key)
    labels = jnp.array([0, 0, 1, 0, 1, 1, 0, 2, 1, 0, 1, 1])
    return jax.random.normal(p_key, (12, 5)), jax.random.normal(z_key, (12, 5)), labels


def assert_gradients(f, x):
    """Compares derivatives with differences; check_grads itself passes NumPy arrays."""
    check_grads(
        lambda x: f(jnp.asarray(x)), (x,), order=1, modes=["rev"], atol=1e-2, rtol=1e-2
    )


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
    x = jnp.array([[3.0, 4.0], [0.0, 0.0], [0.0, -2e-6]])
    expected = [[0.6, 0.8], [0.0, 0.0], [0.0, -1.0]]
    np.testing.assert_allclose(normalize(x), expected, rtol=1e-6)


def test_normalize_divides_short_rows_by_eps():
    x = jnp.array([[3e-3, 4e-3], [6.0, 8.0]])
    expected = [[0.3, 0.4], [0.6, 0.8]]
    np.testing.assert_allclose(normalize(x, eps=1e-2), expected, rtol=1e-6)


def test_normalize_takes_any_leading_axes(key):
    x = jax.random.normal(key, (2, 3, 4))
    np.testing.assert_allclose(jnp.linalg.norm(normalize(x), axis=-1), 1, rtol=1e-6)
    np.testing.assert_allclose(normalize(x)[1, 2], normalize(x[1, 2]), rtol=1e-6)


def test_normalize_gradients(key):
    assert_gradients(normalize, jax.random.normal(key, (3, 4)))


def test_normalize_passes_no_gradient_at_a_zero_row():
    x = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    gradient = jax.grad(lambda x: normalize(x)[:, 0].sum())(x)
    np.testing.assert_array_equal(gradient[0], 0)
    # d (x / |x|) / dx = 1 / |x| - x^2 / |x|^3 = 1/5 - 9/125.
    np.testing.assert_allclose(gradient[1, 0], 0.128, rtol=1e-5)


def test_negative_cosine_by_hand():
    p = jnp.array([[1.0, 0.0], [1.0, 1.0], [3.0, 0.0], [0.0, 0.0]])
    z = jnp.array([[2.0, 0.0], [1.0, 0.0], [0.0, 7.0], [1.0, 0.0]])
    expected = [-1.0, -(0.5**0.5), 0.0, 0.0]
    np.testing.assert_allclose(negative_cosine(p, z), expected, atol=1e-6)


def test_negative_cosine_equals_the_formula(batch):
    p, z, _ = batch
    expected = [-cosine(a, b) for a, b in zip(np.array(p), np.array(z), strict=True)]
    np.testing.assert_allclose(negative_cosine(p, z), expected, atol=1e-6)


def test_negative_cosine_of_a_zero_row_has_zero_gradient():
    p, z = jnp.zeros((1, 3)), jnp.ones((1, 3))
    for a, b in [(p, z), (z, p), (p, p)]:
        gradient = jax.grad(lambda p, z=b: negative_cosine(p, z).sum())(a)
        np.testing.assert_array_equal(gradient, 0)


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


@pytest.mark.parametrize("include_self", [True, False])
def test_cluster_contrastive_equals_the_formula(batch, include_self):
    loss = cluster_contrastive(
        *batch, num_clusters=NUM_CLUSTERS, include_self=include_self
    )
    expected = naive_cluster_contrastive(*batch, include_self)
    np.testing.assert_allclose(loss, expected, atol=1e-6)


def test_a_label_outside_the_range_counts_nowhere(batch):
    p, z, labels = batch
    loss = cluster_contrastive(
        p, z, jnp.where(labels == 1, -1, labels), num_clusters=NUM_CLUSTERS
    )
    kept = np.asarray(labels) != 1
    expected = naive_cluster_contrastive(p[kept], z[kept], labels[kept], True)
    np.testing.assert_allclose(loss, expected, atol=1e-6)


@pytest.mark.parametrize("include_self", [True, False])
def test_cluster_contrastive_without_a_pair_is_zero(batch, include_self):
    p, z, _ = batch
    loss, gradient = jax.value_and_grad(cluster_contrastive)(
        p, z, jnp.arange(12), num_clusters=12, include_self=include_self
    )
    assert loss == 0
    np.testing.assert_array_equal(gradient, 0)


def test_model_contrastive_by_hand():
    p = jnp.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [3.0, 3.0]])
    anchors = jnp.array([[3.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1.0, 1.0]])
    np.testing.assert_allclose(model_contrastive(p, anchors), -0.25, atol=1e-6)
    mask = jnp.array([True, True, False, True])
    loss = model_contrastive(p, anchors, mask=mask)
    np.testing.assert_allclose(loss, -2 / 3, atol=1e-6)


def test_model_contrastive_equals_the_formula(batch):
    p, anchors, _ = batch
    pairs = zip(np.array(p), np.array(anchors), strict=True)
    expected = np.mean([-cosine(a, b) for a, b in pairs])
    np.testing.assert_allclose(model_contrastive(p, anchors), expected, atol=1e-6)


def losses_of(labels, mask=None):
    """All losses as functions of two arrays, by name."""

    def cluster(p, z, include_self):
        return cluster_contrastive(
            p,
            z,
            labels,
            num_clusters=NUM_CLUSTERS,
            include_self=include_self,
            mask=mask,
        )

    return {
        "negative_cosine": lambda p, z: negative_cosine(p, z).mean(),
        "cluster_contrastive": lambda p, z: cluster(p, z, True),
        "cluster_contrastive_of_others": lambda p, z: cluster(p, z, False),
        "model_contrastive": lambda p, z: model_contrastive(p, z, mask=mask),
    }


NAMES = list(losses_of(None))
MASKED_NAMES = NAMES[1:]


@pytest.mark.parametrize("name", NAMES)
def test_gradients(batch, name):
    p, z, labels = batch
    loss = losses_of(labels)[name]
    assert_gradients(lambda p: loss(p, z), p)
    np.testing.assert_array_equal(jax.grad(loss, argnums=1)(p, z), 0)


@pytest.mark.parametrize("name", NAMES)
def test_same_under_jit_and_vmap(batch, name):
    p, z, labels = batch
    loss = losses_of(labels)[name]
    np.testing.assert_allclose(jax.jit(loss)(p, z), loss(p, z), atol=1e-6)
    stacked = jax.jit(jax.vmap(loss))(jnp.stack([p, z]), jnp.stack([z, p * 2]))
    np.testing.assert_allclose(stacked, [loss(p, z), loss(z, p)], atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_lower_precision_is_computed_in_float32(batch, name):
    p, z, labels = batch
    p, z = p.astype(jnp.bfloat16), z.astype(jnp.bfloat16)
    loss = losses_of(labels)[name]
    expected = loss(p.astype(jnp.float32), z.astype(jnp.float32))
    assert loss(p, z).dtype == jnp.float32
    np.testing.assert_allclose(loss(p, z), expected, atol=1e-6)


@pytest.mark.parametrize("name", MASKED_NAMES)
def test_masked_equals_subset(batch, name):
    p, z, labels = batch
    mask = np.array([1, 1, 1, 0, 1, 1, 0, 1, 0, 1, 0, 1], bool)
    p = p.at[3].set(jnp.nan)
    value, gradient = jax.value_and_grad(losses_of(labels, jnp.array(mask))[name])(p, z)
    subset = jax.value_and_grad(losses_of(labels[mask])[name])
    expected_value, expected_gradient = subset(p[mask], z[mask])
    np.testing.assert_allclose(value, expected_value, atol=1e-6)
    np.testing.assert_allclose(gradient[mask], expected_gradient, atol=1e-6)
    np.testing.assert_array_equal(gradient[~mask], 0)


@pytest.mark.parametrize("name", MASKED_NAMES)
def test_nothing_left_is_zero(batch, name):
    p, z, labels = batch
    loss = losses_of(labels, jnp.zeros(12, bool))[name]
    value, gradient = jax.value_and_grad(loss)(p, z)
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("module", ["fcjax.losses", "fcjax.cluster"])
def test_import_is_light(module):
    heavy = ["flax", "optax", "orbax", "tensorflow_datasets"]
    code = f"""
import sys, {module}
loaded = {{name.split(".")[0] for name in sys.modules}}
print(*sorted(loaded.intersection({heavy})))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == []
