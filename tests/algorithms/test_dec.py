"""DEC against its equations written out in NumPy, for linear networks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.algorithms.autoencoders import by_dec
from fcjax.cluster import used_clusters
from fcjax.methods import DEC
from tests.algorithms import test_dcn as dcn

RATE = 0.3


def clustering(num_clusters=dcn.K, num_used=None, **options):
    settings = DEC().plain(**{"dec_batch_size": dcn.BATCH} | options)
    return by_dec(
        *(dcn.AUTOENCODER, dcn.OPTIMIZER, settings),
        num_clusters=num_clusters,
        num_used=num_used,
        joint_optimizer=optax.sgd(RATE, momentum=dcn.MOMENTUM),
    )


@pytest.fixture(scope="module")
def trained():
    return dcn.fit(clustering(), dcn.KEY, *dcn.DATA)


def student_t(z, centroids):
    weights = 1 / (1 + ((z[:, None] - centroids[None]) ** 2).sum(axis=-1))
    return weights / weights.sum(axis=1, keepdims=True), weights


def centroids_of(state):
    return np.asarray(state.centroids, np.float64)


def test_first_the_auto_encoder_alone(trained):
    dcn.assert_trains_the_autoencoder_alone(trained)


def test_then_k_means_of_the_codes_that_count(trained):
    before, ended = trained.states[2], trained.states[4]
    centroids, loss = centroids_of(ended), trained.losses[1]
    dcn.assert_is_kmeans_of_codes_that_count(before, ended, centroids, loss)


def test_a_round_is_the_paper_s_gradient_descent(trained):
    """Equations 1 to 5: the target once, then an epoch of batches."""
    begun, ended = trained.states[-2:]
    (w,), mu, kept = dcn.weights(begun), centroids_of(begun), dcn.MOMENTUM
    q, _ = student_t(dcn.ROWS @ w, mu)
    sharp = q**2 / q[dcn.OWN].sum(axis=0)
    p = sharp / sharp.sum(axis=1, keepdims=True)
    momentum, values = [np.zeros_like(w), np.zeros_like(mu)], []
    for slots in dcn.batches():
        z = dcn.ROWS[slots] @ w
        q, near = student_t(z, mu)
        values.append((p[slots] * np.log(p[slots] / q)).sum() / len(slots))
        pull = near * (p[slots] - q) / len(slots)  # alpha = 1: (a + 1) / a = 2
        apart = z[:, None] - mu[None]
        to_z = 2 * (pull[..., None] * apart).sum(axis=1)
        to_mu = -2 * (pull[..., None] * apart).sum(axis=0)
        gradients = (dcn.ROWS[slots].T @ to_z, to_mu)
        momentum = [g + kept * m for g, m in zip(gradients, momentum, strict=True)]
        w, mu = w - RATE * momentum[0], mu - RATE * momentum[1]
    dcn.assert_close((dcn.weights(ended)[0], centroids_of(ended)), (w, mu))
    assert float(trained.losses[-1]) == pytest.approx(np.mean(values), rel=1e-4)
    assert np.abs(w - dcn.weights(begun)[0]).max() > 0.01
    assert np.abs(mu - centroids_of(begun)).max() > 0.01


def test_clients_with_fewer_clusters_are_as_if_there_were_no_more():
    """A round of every phase, the numbers of clusters traced."""
    x = np.random.default_rng(1).normal(size=(2, 12, 5)).astype(np.float32)
    mask = np.arange(12)[None] < np.array([12, 9])[:, None]
    x[~mask] = np.nan
    keys, used = jax.random.split(jax.random.key(2), 2), jnp.array([2, 3])

    def client(key, x, mask, num_used, num_clusters=5):
        found = clustering(num_clusters=num_clusters, num_used=num_used)
        states, values, _ = dcn.fit(found, key, x, mask)
        clusters = found.assign(states[-1], found.embed(states[-1], x))
        return states[-2:], values, clusters

    args = (keys, jnp.asarray(x), jnp.asarray(mask))
    found = jax.jit(jax.vmap(client))(*args, used)
    for m, k in enumerate(used.tolist()):
        (begun, ended), values, clusters = jax.tree.map(lambda a, m=m: a[m], found)
        own = jax.tree.map(lambda a, m=m: a[m], args)
        expected = jax.jit(partial(client, num_used=None, num_clusters=k))(*own)
        (_, alone), alone_values, alone_clusters = expected
        mu = centroids_of(ended)
        w, own = dcn.weights(ended)[0], dcn.weights(alone)[0]
        np.testing.assert_allclose(w, own, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(mu[:k], centroids_of(alone), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(values, alone_values, rtol=1e-3)
        np.testing.assert_array_equal(clusters[mask[m]], alone_clusters[mask[m]])
        # No step moves the others.
        np.testing.assert_array_equal(used_clusters(jnp.asarray(mu)), np.arange(5) < k)
        np.testing.assert_array_equal(mu[k:], centroids_of(begun)[k:])
        np.testing.assert_array_equal(
            np.asarray(ended.opt_state[0].trace["centroids"])[k:], 0
        )


def test_what_is_returned(trained):
    start, last = trained.states[1], trained.states[-1]
    dcn.assert_returns_encoder_and_nearest_centroids(clustering(), start, last)


def test_without_joint_rounds_the_clusters_are_those_of_the_first_codes():
    phases = clustering(pretrain_rounds=7, joint_rounds=0).phases
    found = [(phase.name, phase.num_rounds) for phase in phases]
    assert found == [("autoencoder", 7), ("k-means", 1)]
