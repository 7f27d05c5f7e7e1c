"""DCN and DEC against their steps written out in NumPy, for linear networks."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.cluster import KMeans

from fcjax.algorithms.autoencoders import by_codes, by_dcn, by_dec
from fcjax.cluster import used_clusters
from fcjax.methods import DCN, DEC, DCNDisjoint
from fcjax.nn.autoencoders import AutoEncoder
from fcjax.types import Now
from tests.algorithms.plain import epochs, matrix

RATE, MOMENTUM, WEIGHT, BATCH, K = 0.02, 0.9, 3.0, 4, 3
OPTIMIZER = optax.sgd(RATE, momentum=MOMENTUM)
AUTOENCODER = AutoEncoder(matrix(2), matrix(5))
KEY = jax.random.key(4)

# Ten examples of images [5, 1]; others are no number.
OWN = np.array([True] * 6 + [False] + [True, False, True, True, True, False, False])
X = np.random.default_rng(0).normal(size=(14, 5, 1)).astype(np.float32)
X[~OWN] = np.nan
ROWS = X.reshape(14, 5).astype(np.float64)
DATA = jnp.asarray(X), jnp.asarray(OWN)
FIRST = Now(jnp.int32(0), jnp.int32(0), jnp.array(True))


def clustering(**options):
    own = {"batch_size": BATCH, "cluster_weight": WEIGHT, "num_init": 3}
    settings = DCN().plain(**own | options)
    return by_dcn(settings, AUTOENCODER, OPTIMIZER, num_clusters=K)


DEC_RATE = 0.3


def dec(num_clusters=K, num_used=None, **options):
    settings = DEC().plain(**{"dec_batch_size": BATCH} | options)
    return by_dec(
        *(settings, AUTOENCODER, OPTIMIZER),
        num_clusters=num_clusters,
        num_used=num_used,
        joint_optimizer=optax.sgd(DEC_RATE, momentum=MOMENTUM),
    )


BEGUN, ENDED = 5, 6
"""Of the joint phase in the states of `trained`."""


class Trained(NamedTuple):
    states: list  # before and after every phase, of one round each
    losses: list
    steps: list  # the compiled rounds


def fit(found, key, x, mask) -> Trained:
    states, losses, steps = [found.init(jax.random.key(0), x[:1])], [], []
    for phase in found.phases:
        states.append(phase.begin(key, states[-1], x, mask))
        steps.append(jax.jit(phase.round))
        state, loss = steps[-1](key, states[-1], x, mask, FIRST)
        states.append(state)
        losses.append(loss)
    return Trained(states, losses, steps)


@pytest.fixture(scope="module")
def dcn_trained():
    return fit(clustering(), KEY, *DATA)


@pytest.fixture(scope="module")
def dec_trained():
    return fit(dec(), KEY, *DATA)


def kernels(tree):
    """Of the encoder and the decoder, or what an optimiser keeps of them."""
    names = AUTOENCODER._fields
    return [np.asarray(tree[n]["kernel"], np.float64) for n in names if n in tree]


def centroids_of(state):
    return np.asarray(state.centroids, np.float64)


def weights(state):
    return kernels(state.variables["params"])


def trace(state):
    (momentum,) = (s.trace for s in state.opt_state if hasattr(s, "trace"))
    return kernels(momentum)


def nearest(z, centroids):
    return ((z[:, None] - centroids[None]) ** 2).sum(axis=-1).argmin(axis=1)


def descend(w, momentum, rows, own, weight):
    """A step down Eq. 3: |x - x'|^2 + weight / 2 |z - c|^2, the mean of a batch."""
    encoder, decoder = w
    z = rows @ encoder
    out, off = z @ decoder - rows, z - own
    loss = ((out**2).sum(axis=1) + weight / 2 * (off**2).sum(axis=1)).mean()
    to_out, n = 2 * out / len(rows), len(rows)
    to_z = to_out @ decoder.T + weight * off / n
    gradients = (rows.T @ to_z, z.T @ to_out)
    momentum = [g + MOMENTUM * m for g, m in zip(gradients, momentum, strict=True)]
    return [a - RATE * m for a, m in zip(w, momentum, strict=True)], momentum, loss


def batches(num_epochs=1):
    """The true slots of epochs in their order: batches of 4, 4 and 2 each."""
    drawn = epochs(KEY, OWN, num_epochs=num_epochs, batch_size=BATCH)
    return [slots for slots, _ in drawn]


def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


# --- what DCN and DEC do alike


@pytest.fixture(scope="module", params=["dcn", "dec"])
def alike(request):
    """Training by the one or the other, and the function that builds its clustering."""
    build = {"dcn": clustering, "dec": dec}[request.param]
    return request.getfixturevalue(f"{request.param}_trained"), build


def test_first_the_autoencoder_alone(alike):
    trained, _ = alike
    start, begun, ended, *_ = trained.states
    assert_same(start, begun)
    w, momentum, values = weights(begun), trace(begun), []
    for slots in batches():
        w, momentum, value = descend(w, momentum, ROWS[slots], 0.0, 0.0)
        values.append(value)
    assert_close(weights(ended), w)
    assert_close(trace(ended), momentum)
    assert float(trained.losses[0]) == pytest.approx(np.mean(values), rel=1e-5)
    assert ended.centroids == ended.joint == ()


def assert_is_kmeans_of_codes_that_count(before, ended, loss):
    z, centroids = X[OWN].reshape(-1, 5) @ weights(before)[0], centroids_of(ended)
    own = nearest(z, centroids)
    means = [z[own == k].mean(axis=0) for k in range(K)]
    np.testing.assert_allclose(centroids, means, atol=1e-5)
    inertia = ((z - centroids[own]) ** 2).sum()
    assert float(loss) == pytest.approx(inertia / len(z), rel=1e-4)
    best = KMeans(K, n_init=50, random_state=0).fit(z).inertia_
    assert inertia <= 1.5 * best
    np.testing.assert_array_equal(weights(before)[0], weights(ended)[0])


def test_then_k_means_of_the_codes_that_count(alike):
    trained, _ = alike
    _, _, before, _, ended, *_ = trained.states
    assert_is_kmeans_of_codes_that_count(before, ended, trained.losses[1])


def test_what_is_returned(alike):
    (states, *_), build = alike
    found, start, state = build(), states[1], states[-1]
    sent = found.results(state)
    assert set(sent) == {"encoder", "centroids"}
    assert jax.tree.map(jnp.shape, sent["encoder"]) == {"params": {"kernel": (5, 2)}}
    assert found.results(start)["centroids"] == ()
    z = ROWS[:6] @ weights(state)[0]
    codes = found.embed(state, jnp.asarray(X[:6]))
    np.testing.assert_allclose(codes, z, atol=1e-5)
    own = nearest(z, np.asarray(sent["centroids"]))
    np.testing.assert_array_equal(found.assign(state, codes), own)
    np.testing.assert_array_equal(found.assign(start, codes), -1)


def test_without_joint_rounds_the_clusters_are_those_of_the_first_codes():
    """SDA-FDC (disjoint)."""
    settings = DCNDisjoint().plain(pretrain_rounds=7)
    disjoint = by_codes(settings, AUTOENCODER, OPTIMIZER, num_clusters=K)
    few = {"pretrain_rounds": 7, "joint_rounds": 0}
    for phases in (clustering(**few), dec(**few), disjoint):
        found = [(phase.name, phase.num_rounds) for phase in phases.phases]
        assert found == [("autoencoder", 7), ("k-means", 1)]


# --- DCN


def test_then_networks_and_clusters_by_turns(dcn_trained):
    """The networks with what is stored; then codes, assignments and centroids anew, one
    example after another."""
    begun = dcn_trained.states[BEGUN]
    w, momentum = weights(begun), trace(begun)
    centroids, counts = np.asarray(begun.centroids, np.float64), np.full(K, 100.0)
    first = np.where(OWN, nearest(ROWS @ w[0], centroids), -1)
    np.testing.assert_array_equal(begun.joint.assignments, first)
    np.testing.assert_array_equal(begun.joint.counts, counts)

    stored = np.where(OWN, (first + 1) % K, -1)  # as if long ago: not what it would be
    stored[9:12] = -1  # three that come only now
    joint = begun.joint._replace(assignments=jnp.asarray(stored))
    begun = begun._replace(joint=joint)
    ended, loss = dcn_trained.steps[2](KEY, begun, *DATA, FIRST)
    values, drawn_to = [], []
    for slots in batches():
        new = nearest(ROWS[slots] @ w[0], centroids)
        is_late = stored[slots] < 0
        drawn_to.extend(new[is_late])
        own = centroids[np.where(is_late, new, stored[slots])]
        w, momentum, value = descend(w, momentum, ROWS[slots], own, WEIGHT)
        values.append(value)
        z = ROWS[slots] @ w[0]
        assert (stored[slots] != nearest(z, centroids)).any()
        stored[slots] = nearest(z, centroids)
        for code, k in zip(z, stored[slots], strict=True):
            counts[k] += 1
            centroids[k] += (code - centroids[k]) / counts[k]
    assert len(drawn_to) == 3
    assert min(drawn_to) < K - 1  # not always the centroid at -1
    assert_close(weights(ended), w)
    assert_close(trace(ended), momentum)
    assert_close([ended.centroids, ended.joint.counts], [centroids, counts])
    assert counts.sum() == 310
    np.testing.assert_array_equal(ended.joint.assignments, stored)
    assert float(loss) == pytest.approx(np.mean(values), rel=1e-4)


def descended(z, centroids):
    """Lloyd's steps from these centroids to where they stand still."""
    while True:
        own = nearest(z, centroids)
        means = [z[own == k].mean(axis=0) for k in range(K) if (own == k).any()]
        moved = centroids.copy()
        moved[np.unique(own)] = means
        if np.allclose(moved, centroids, atol=1e-12):
            return centroids, own
        centroids = moved


def test_every_so_many_epochs_k_means_goes_on_from_the_centroids(dcn_trained):
    """Every second of four: of all codes that count, with the networks as they are."""
    refreshed = jax.jit(clustering(refresh_every=2).phases[2].round)
    state = dcn_trained.states[BEGUN]
    # As if they had run far along: k-means has something to do.
    state = state._replace(centroids=state.centroids[::-1] + 0.5)
    for number, key in enumerate(jax.random.split(KEY, 4), start=1):
        now = FIRST._replace(stage_round=jnp.int32(number - 1))
        along, loss_along = dcn_trained.steps[2](key, state, *DATA, now)
        state, loss = refreshed(key, state, *DATA, now)
        assert float(loss) == float(loss_along)
        if number % 2:
            assert_same(state, along)
            continue
        assert_same(state.variables, along.variables)
        assert_same(state.joint.counts, along.joint.counts)
        z = X[OWN].reshape(-1, 5) @ weights(state)[0]
        centroids, own = descended(z, np.asarray(along.centroids, np.float64))
        np.testing.assert_allclose(state.centroids, centroids, atol=1e-4)
        assignments = np.asarray(state.joint.assignments)
        np.testing.assert_array_equal(assignments[OWN], own)
        np.testing.assert_array_equal(assignments[~OWN], -1)
        assert np.abs(centroids - np.asarray(along.centroids)).max() > 1e-2


def test_in_the_end_k_means_is_begun_anew(dcn_trained):
    """From new seeds: centroids that have all run far away are no hindrance."""
    ended = dcn_trained.states[ENDED]
    far = ended._replace(centroids=ended.centroids + 100)
    begun = clustering().phases[3].begin(KEY, far, *DATA)
    state, loss = dcn_trained.steps[3](KEY, begun, *DATA, FIRST)
    assert_is_kmeans_of_codes_that_count(ended, state, loss)


# --- DEC


def student_t(z, centroids):
    weights = 1 / (1 + ((z[:, None] - centroids[None]) ** 2).sum(axis=-1))
    return weights / weights.sum(axis=1, keepdims=True), weights


def test_a_round_is_the_paper_s_gradient_descent(dec_trained):
    """Equations 1 to 5: the target once, then an epoch of batches."""
    begun, ended = dec_trained.states[-2:]
    (w,), mu, kept = weights(begun), centroids_of(begun), MOMENTUM
    q, _ = student_t(ROWS @ w, mu)
    sharp = q**2 / q[OWN].sum(axis=0)
    p = sharp / sharp.sum(axis=1, keepdims=True)
    momentum, values = [np.zeros_like(w), np.zeros_like(mu)], []
    for slots in batches():
        z = ROWS[slots] @ w
        q, near = student_t(z, mu)
        values.append((p[slots] * np.log(p[slots] / q)).sum() / len(slots))
        pull = near * (p[slots] - q) / len(slots)  # alpha = 1: (a + 1) / a = 2
        apart = z[:, None] - mu[None]
        to_z = 2 * (pull[..., None] * apart).sum(axis=1)
        to_mu = -2 * (pull[..., None] * apart).sum(axis=0)
        gradients = (ROWS[slots].T @ to_z, to_mu)
        momentum = [g + kept * m for g, m in zip(gradients, momentum, strict=True)]
        w, mu = w - DEC_RATE * momentum[0], mu - DEC_RATE * momentum[1]
    assert_close((weights(ended)[0], centroids_of(ended)), (w, mu))
    assert float(dec_trained.losses[-1]) == pytest.approx(np.mean(values), rel=1e-4)
    assert np.abs(w - weights(begun)[0]).max() > 0.01
    assert np.abs(mu - centroids_of(begun)).max() > 0.01


def test_clients_with_fewer_clusters_are_as_if_there_were_no_more():
    """A round of every phase, the numbers of clusters traced."""
    x = np.random.default_rng(1).normal(size=(2, 12, 5)).astype(np.float32)
    mask = np.arange(12)[None] < np.array([12, 9])[:, None]
    x[~mask] = np.nan
    keys, used = jax.random.split(jax.random.key(2), 2), jnp.array([2, 3])

    def client(key, x, mask, num_used, num_clusters=5):
        found = dec(num_clusters=num_clusters, num_used=num_used)
        states, values, _ = fit(found, key, x, mask)
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
        w, own = weights(ended)[0], weights(alone)[0]
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
