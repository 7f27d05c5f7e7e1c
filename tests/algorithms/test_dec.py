"""DEC against its equations written out in NumPy, for linear networks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from fcjax import losses, training
from fcjax.algorithms.dec import by_dec
from fcjax.clients import Client
from fcjax.cluster import used_clusters
from fcjax.cluster.seeding import UNUSED
from fcjax.models.autoencoder import AutoEncoder, autoencoder
from tests.algorithms.plain import matrix

RATE, MOMENTUM, BATCH, K = 0.3, 0.9, 4, 3
MASK = np.array([[True] * 6 + [False], [True, False, True, True, True, False, False]])
AUTOENCODER = AutoEncoder(matrix(2), matrix(5))


def clustering(**options):
    return by_dec(
        AUTOENCODER,
        optax.sgd(0.02, momentum=MOMENTUM),
        **{"num_clusters": K, **options},
        pretrain_rounds=2,
        joint_rounds=2,
        joint_epochs=2,
        batch_size=BATCH,
        num_init=3,
        joint_optimizer=optax.sgd(RATE, momentum=MOMENTUM),
    )


@pytest.fixture(scope="module")
def x():
    """Ten examples of images [5, 1], stacked on two clients; others are no number."""
    x = np.random.default_rng(0).normal(size=(2, 7, 5, 1)).astype(np.float32)
    x[~MASK] = np.nan
    return x


def fit(found, key, x, mask, rounds=1):
    """States before and after every phase of some rounds, and their last losses."""
    example = x.reshape(-1, *x.shape[mask.ndim :])[:1]
    states, values = [found.init(jax.random.key(0), example)], []
    for phase in found.phases:
        state = phase.begin(key, states[-1], x, mask)
        states.append(state)
        step = jax.jit(phase.round)
        for number in range(rounds):
            state, loss = step(jax.random.fold_in(key, number), state, x, mask)
        states.append(state)
        values.append(loss)
    return states, values


@pytest.fixture(scope="module")
def trained(x):
    return fit(clustering(), jax.random.key(4), jnp.asarray(x), jnp.asarray(MASK))


def student_t(z, centroids):
    weights = 1 / (1 + ((z[:, None] - centroids[None]) ** 2).sum(axis=-1))
    return weights / weights.sum(axis=1, keepdims=True), weights


def batches(key, epoch):
    """The true slots of an epoch in their order."""
    order_key, _ = jax.random.split(jax.random.fold_in(key, epoch))
    order = np.asarray(training.shuffle(order_key, jnp.asarray(MASK.ravel())))[:10]
    return [order[i : i + BATCH] for i in range(0, 10, BATCH)]


def kernel(state: Client, part: str):
    return np.asarray(state.variables["params"][part]["kernel"], np.float64)


def centroids_of(state: Client):
    return np.asarray(state.variables["params"]["centroids"], np.float64)


def test_a_round_is_the_paper_s_gradient_descent(trained, x):
    """Equations 1 to 5: the target once, then two epochs of batches."""
    begun, ended = trained[0][-2:]
    key = jax.random.fold_in(jax.random.key(4), 0)
    w, mu = kernel(begun, "encoder"), centroids_of(begun)
    rows = x.reshape(14, 5).astype(np.float64)
    q, _ = student_t(rows @ w, mu)
    sharp = q**2 / q[MASK.ravel()].sum(axis=0)
    p = sharp / sharp.sum(axis=1, keepdims=True)
    momentum, values = [np.zeros_like(w), np.zeros_like(mu)], []
    for epoch in range(2):
        for slots in batches(key, epoch):
            z = rows[slots] @ w
            q, weights = student_t(z, mu)
            values.append((p[slots] * np.log(p[slots] / q)).sum() / len(slots))
            pull = weights * (p[slots] - q) / len(slots)  # alpha = 1: (a + 1) / a = 2
            apart = z[:, None] - mu[None]
            to_z = 2 * (pull[..., None] * apart).sum(axis=1)
            to_mu = -2 * (pull[..., None] * apart).sum(axis=0)
            gradients = (rows[slots].T @ to_z, to_mu)
            momentum = [
                g + MOMENTUM * m for g, m in zip(gradients, momentum, strict=True)
            ]
            w, mu = w - RATE * momentum[0], mu - RATE * momentum[1]
    np.testing.assert_allclose(kernel(ended, "encoder"), w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(centroids_of(ended), mu, rtol=1e-4, atol=1e-5)
    assert float(trained[1][-1]) == pytest.approx(np.mean(values), rel=1e-4)
    assert np.abs(w - kernel(begun, "encoder")).max() > 0.01
    assert np.abs(mu - centroids_of(begun)).max() > 0.01


def test_first_the_auto_encoder_alone(trained, x):
    (start, begun, ended, *_), (value, *_) = trained
    jax.tree.map(np.testing.assert_array_equal, start, begun)
    key = jax.random.fold_in(jax.random.key(4), 0)
    w = [kernel(begun, part) for part in ("encoder", "decoder")]
    momentum, values = [np.zeros_like(a) for a in w], []
    rows = x.reshape(14, 5).astype(np.float64)
    for slots in batches(key, 0):
        z = rows[slots] @ w[0]
        off = z @ w[1] - rows[slots]
        values.append((off**2).sum() / len(slots))
        to_out = 2 * off / len(slots)
        gradients = (rows[slots].T @ (to_out @ w[1].T), z.T @ to_out)
        momentum = [g + MOMENTUM * m for g, m in zip(gradients, momentum, strict=True)]
        w = [a - 0.02 * m for a, m in zip(w, momentum, strict=True)]
    for part, expected in zip(("encoder", "decoder"), w, strict=True):
        np.testing.assert_allclose(kernel(ended, part), expected, rtol=1e-4, atol=1e-5)
    assert float(value) == pytest.approx(np.mean(values), rel=1e-5)


def test_then_k_means_of_the_codes_that_count(trained, x):
    _, _, before, _, ended, *_ = trained[0]
    z = x[MASK].reshape(-1, 5) @ kernel(before, "encoder")
    mu = centroids_of(ended)
    squares = ((z[:, None] - mu[None]) ** 2).sum(axis=-1)
    own = squares.argmin(axis=1)
    means = [z[own == k].mean(axis=0) for k in range(K)]
    np.testing.assert_allclose(mu, means, atol=1e-5)
    assert float(trained[1][1]) == pytest.approx(squares.min(axis=1).mean(), rel=1e-4)
    np.testing.assert_array_equal(kernel(before, "encoder"), kernel(ended, "encoder"))


def test_what_does_not_count_changes_nothing(trained, x):
    """Whether it is a number or not."""
    finite = jnp.asarray(np.where(np.isnan(x), 7.0, x))
    again = fit(clustering(), jax.random.key(4), finite, jnp.asarray(MASK))
    jax.tree.map(np.testing.assert_array_equal, again, trained)
    for leaf in jax.tree.leaves(trained):
        assert np.isfinite(leaf).all()


def test_clients_with_fewer_clusters_are_as_if_there_were_no_more():
    """A round of every phase, the numbers of clusters traced."""
    x = np.random.default_rng(1).normal(size=(2, 12, 5)).astype(np.float32)
    mask = np.arange(12)[None] < np.array([12, 9])[:, None]
    x[~mask] = np.nan
    keys, used = jax.random.split(jax.random.key(2), 2), jnp.array([2, 3])

    def client(key, x, mask, num_used, num_clusters=5):
        found = clustering(num_clusters=num_clusters, num_used=num_used)
        states, values = fit(found, key, x, mask)
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
        np.testing.assert_allclose(mu[:k], centroids_of(alone), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(
            kernel(ended, "encoder"), kernel(alone, "encoder"), rtol=1e-3, atol=1e-4
        )
        np.testing.assert_allclose(values, alone_values, rtol=1e-3)
        np.testing.assert_array_equal(clusters[mask[m]], alone_clusters[mask[m]])
        # No step moves the others.
        np.testing.assert_array_equal(used_clusters(jnp.asarray(mu)), np.arange(5) < k)
        np.testing.assert_array_equal(mu[k:], centroids_of(begun)[k:])
        np.testing.assert_array_equal(
            np.asarray(ended.opt_state[0].trace["centroids"])[k:], 0
        )


def test_unused_centroids_attract_nothing():
    z = jax.random.normal(jax.random.key(0), (6, 10))
    used = jax.random.normal(jax.random.key(1), (2, 10))
    centroids = jnp.concatenate([used, jnp.full((3, 10), UNUSED)])
    q = losses.student_t(z, centroids)
    np.testing.assert_allclose(q[:, 2:], 0, atol=1e-28)
    np.testing.assert_allclose(q[:, :2], losses.student_t(z, used), rtol=1e-6)
    p = losses.target_distribution(q)
    np.testing.assert_allclose(p[:, 2:], 0, atol=1e-28)
    alone = losses.target_distribution(q[:, :2])
    np.testing.assert_allclose(p[:, :2], alone, rtol=1e-6)

    def divergence(p, z, centroids):
        return losses.assignment_kl(p, losses.student_t(z, centroids))

    gradients = jax.value_and_grad(divergence, (1, 2))
    value, (to_z, to_centroids) = gradients(p, z, centroids)
    expected, (to_z_alone, to_used) = gradients(alone, z, used)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(to_z, to_z_alone, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(to_centroids[:2], to_used, rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(to_centroids[2:], 0)


def test_blobs_are_found(key):
    x, classes = make_blobs(120, 20, centers=4, cluster_std=2.0, random_state=0)
    found = by_dec(
        autoencoder(20, widths=(16,), latent_size=4),
        optax.adam(1e-3),
        num_clusters=6,
        num_used=4,
        pretrain_rounds=5,
        joint_rounds=5,
        batch_size=16,
        num_init=5,
    )
    x, mask = jnp.asarray(x, jnp.float32), jnp.ones(120, bool)
    states, values = fit(found, key, x, mask, rounds=5)
    z = found.embed(states[-1], x)
    assert z.shape == (120, 4)
    assert adjusted_rand_score(classes, found.assign(states[-1], z)) == 1
    assert np.isfinite(values).all()


# --- what is returned


def test_an_example_goes_to_the_largest_of_its_soft_assignments(trained, x):
    state, found = trained[0][-1], clustering()
    rows = jnp.asarray(x[0, :6])
    z = x[0, :6].reshape(6, 5) @ kernel(state, "encoder")
    np.testing.assert_allclose(found.embed(state, rows), z, atol=1e-5)
    np.testing.assert_array_equal(
        found.assign(state, found.embed(state, rows)),
        student_t(z, centroids_of(state))[0].argmax(axis=1),
    )
    np.testing.assert_array_equal(found.assign(trained[0][1], jnp.zeros((2, 2))), -1)


def test_down_come_the_encoder_and_the_centroids(trained):
    state = trained[0][-1]
    sent = clustering().results(state)
    assert set(sent) == {"encoder", "centroids"}
    np.testing.assert_array_equal(sent["centroids"], centroids_of(state))
    assert jax.tree.map(jnp.shape, sent["encoder"]) == {"params": {"kernel": (5, 2)}}
    assert clustering().results(trained[0][0])["centroids"] == ()


def test_the_phases_and_their_rounds():
    def rounds(**options):
        found = by_dec(AUTOENCODER, optax.sgd(0.1), num_clusters=K, **options)
        return [(phase.name, phase.num_rounds) for phase in found.phases]

    first = [("autoencoder", 7), ("k-means", 1)]
    assert rounds(pretrain_rounds=7, joint_rounds=3) == [*first, ("dec", 3)]
    # The clusters are those of the codes of the auto-encoder.
    assert rounds(pretrain_rounds=7, joint_rounds=0) == first
