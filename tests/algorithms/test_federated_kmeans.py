"""Federated k-means against scikit-learn's of the pooled examples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans as Central
from sklearn.datasets import load_digits

from fcjax.federated.kmeans import (
    cluster_means,
    federated_kmeans,
    find_whitening,
    heterogeneity,
    lloyd_step,
    seed_centroids,
)
from fcjax.ragged import Ragged

X = (load_digits().data[:400] / 16).astype(np.float32)
CLIENTS = np.split(np.arange(400), [5, 90, 250])  # client 0 has fewer than K examples
K, EVERYONE = 10, jnp.ones(4, bool)
PRESENT = jnp.array([True, True, False, True])


def padded(clients=CLIENTS, width=160):
    """The clients' examples and their mask; padding and client 2 hold NaN."""
    z = np.full((len(clients), width, X.shape[1]), np.nan, np.float32)
    mask = np.zeros(z.shape[:2], bool)
    for client, rows in enumerate(clients):
        z[client, : len(rows)] = X[rows]
        mask[client, : len(rows)] = True
    return jnp.asarray(z), jnp.asarray(mask)


def ragged():
    """The same in two size classes: a group has a large client, then a small one."""
    large, small = (
        padded([CLIENTS[i] for i in (0, 2)]),
        padded([CLIENTS[i] for i in (1, 3)]),
    )
    return tuple(
        Ragged([a, b], counts=(1, 1)) for a, b in zip(large, small, strict=True)
    )


@pytest.mark.parametrize("present", [EVERYONE, PRESENT])
def test_from_the_same_start_it_is_k_means_of_the_pooled_examples(present):
    z, mask = padded()
    z = jnp.where(present[:, None, None], z, jnp.nan)  # absent clients are not read
    found = X[np.concatenate([c for c, p in zip(CLIENTS, present, strict=True) if p])]
    start = centroids = jnp.asarray(X[::40])
    for _ in range(100):
        step = lloyd_step(z, mask, present, centroids)
        if (step.centroids == centroids).all():
            break
        centroids = step.centroids
    central = Central(K, init=start, n_init=1, tol=0, max_iter=100).fit(found)
    np.testing.assert_allclose(centroids, central.cluster_centers_, atol=1e-5)
    assert step.counts.sum() == len(found)
    np.testing.assert_array_equal(step.counts.sum(axis=1) > 0, present)
    np.testing.assert_allclose(step.inertia, central.inertia_ / len(found), rtol=1e-5)


@pytest.mark.parametrize("present", [EVERYONE, PRESENT])
def test_means_of_clusters_are_those_of_the_pooled_examples(present):
    z, mask = padded()
    z = jnp.where(present[:, None, None], z, jnp.nan)
    labels = np.arange(mask.size).reshape(mask.shape) % 3
    labels[labels == 2] = 4  # clusters 2 and 3 have no examples
    before = jnp.full((5, X.shape[1]), 7.0)
    found = cluster_means(z, jnp.asarray(labels), mask, present, before)
    read = np.asarray(mask) & np.asarray(present)[:, None]
    expected = [np.asarray(z)[read & (labels == k)].mean(axis=0) for k in (0, 1, 4)]
    np.testing.assert_allclose(found[jnp.array([0, 1, 4])], expected, atol=1e-6)
    assert (found[2:4] == 7).all()


def test_size_classes_change_nothing():
    start = jnp.asarray(X[::40])
    plain = lloyd_step(*padded(), EVERYONE, start)
    classes = lloyd_step(*ragged(), EVERYONE, start)
    for one, other in zip(plain, classes, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_seeds_are_nearly_as_good_as_the_best_of_many_central_runs():
    z, mask = padded()
    central = Central(K, n_init=50, random_state=0).fit(X).inertia_ / len(X)
    for seed in range(3):
        found = federated_kmeans(jax.random.key(seed), z, mask, K)
        assert found.inertia < 1.02 * central


def test_absent_clients_have_no_part_in_the_seeds():
    z, mask = padded()
    spoilt = jnp.where(PRESENT[:, None, None], z, jnp.nan)
    both = [
        seed_centroids(jax.random.key(0), x, mask, PRESENT, K, num_init=2)
        for x in (z, spoilt)
    ]
    assert jnp.isfinite(both[1]).all()
    np.testing.assert_array_equal(*both)


def test_cosine_centroids_are_directions():
    x = np.array([[[1.0, 0.0], [0.6, 0.8]], [[-1.0, 0.0], [-1.0, 0.0]]])
    start = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    step = lloyd_step(
        jnp.asarray(x), jnp.ones((2, 2), bool), jnp.ones(2, bool), start, cosine=True
    )
    length = np.hypot(1.6, 0.8)
    expected = [[1.6 / length, 0.8 / length], [-1, 0]]
    np.testing.assert_allclose(step.centroids, expected, atol=1e-6)


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_whitening_is_that_of_the_pooled_examples(exponent):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(300, 6)) @ rng.normal(size=(6, 6)) + 3).astype(np.float32)
    z, mask = jnp.asarray(x).reshape(3, 100, 6), jnp.ones((3, 100), bool)
    found = find_whitening(z, mask, jnp.ones(3, bool), exponent=exponent)
    variances, vectors = np.linalg.eigh(np.cov(x.T.astype(float), bias=True))
    scaled = (x - x.mean(axis=0)) @ (vectors / variances ** (exponent / 2))
    expected = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
    found = np.asarray(found.apply(jnp.asarray(x)))
    # Directions have no sign and no order: products have neither.
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-3)


def test_whitening_is_undone():
    z, mask = padded()
    found = find_whitening(z, mask, EVERYONE)
    shift = X[:9] - np.asarray(found.mean)
    whitened = jnp.asarray(shift @ np.asarray(found.directions))
    np.testing.assert_allclose(found.undo(whitened), X[:9], atol=1e-4)


def test_whitening_of_few_examples_scales_no_noise():
    z = jnp.array([[[1.0, 0, 0], [0, 1.0, 0]]])
    found = find_whitening(z, jnp.ones((1, 2), bool), jnp.ones(1, bool), exponent=1.0)
    used = jnp.abs(found.directions).sum(axis=0) > 0
    assert used.tolist() == [True, False, False]  # two examples span one direction


@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 1.0])
def test_heterogeneity_of_the_true_classes_is_p(p):
    """Ten clients of 100 examples: a share p of one class, the rest of any."""
    rng = np.random.default_rng(0)
    own = round(100 * p)
    counts = [
        own * np.eye(10)[client] + rng.multinomial(100 - own, [0.1] * 10)
        for client in range(10)
    ]
    assert abs(float(heterogeneity(jnp.asarray(counts))) - p) < 0.06


def test_heterogeneity_by_hand():
    """chi^2 of [[30, 10], [10, 30]] is 4 * 100 / 20 = 20, less one of 80 - 1."""
    counts = jnp.array([[30.0, 10.0], [10.0, 30.0], [0.0, 0.0]])
    np.testing.assert_allclose(heterogeneity(counts), np.sqrt(19 / 79), rtol=1e-6)


@pytest.mark.parametrize(
    "counts", [[[3.0, 4.0]], [[3.0], [4.0]], [[1.0, 0.0], [1.0, 0.0]]]
)
def test_heterogeneity_of_too_little_is_zero(counts):
    assert heterogeneity(jnp.array(counts)) == 0
