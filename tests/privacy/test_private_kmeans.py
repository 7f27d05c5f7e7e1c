"""Private k-means: bounds of its sums, its noise, and an audit of its epsilon."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import beta

from fcjax.algorithms.baselines import Server
from fcjax.federated.kmeans import no_clusters
from fcjax.privacy.accounting import noise_of
from fcjax.privacy.kmeans import PrivateKMeans, clip_rows, difference_sums, parts_of
from fcjax.types import Now, State
from tests.algorithms.federations import federate

DELTA = 1e-3


def kmeans_of(num_clusters=3, noise=0.0, *, whitens=False, steps=4, **options):
    def points(_, federation):
        return federation.pool[federation.indices], federation.mask

    parts = parts_of(steps, whitens=whitens)
    return PrivateKMeans(points, num_clusters, noise, parts, **options)


@partial(jax.jit, static_argnums=0)
def run(stage_of, noise, federation, key):
    """All rounds of a stage; the clusters after them and the last metrics."""
    kmeans = stage_of(noise)
    stage, features = kmeans.stage(), federation.pool.shape[1]
    state = State(Server(no_clusters(kmeans.num_clusters, features)))
    state = stage.begin(key, state, federation)
    for number in range(stage.num_rounds):
        now = Now(jnp.int32(number), jnp.int32(number), jnp.array(True))
        round_key = jax.random.fold_in(key, number)
        state, metrics = stage.round(round_key, state, federation._replace(now=now))
    return state.server.clusters, metrics


# --- One example, or one client, moves the sums by at most the bound


@pytest.mark.parametrize("fuzzifier", [None, 1.1, 2.0])
def test_one_example_moves_a_step_by_at_most_its_bound(fuzzifier):
    draw = np.random.default_rng(0)
    scales = 10 ** draw.uniform(-2, 2, size=(100, 1, 1))
    x = jnp.asarray(draw.normal(size=(100, 5, 3)) * scales)
    centroids = jnp.asarray(draw.normal(size=(100, 4, 3)))

    @jax.jit
    @jax.vmap
    def change(x, centroids):
        full = difference_sums(x, jnp.ones(5), centroids, 0.5, fuzzifier)
        weights = jnp.array([1.0, 1.0, 1.0, 1.0, 0.0])
        fewer = difference_sums(x, weights, centroids, 0.5, fuzzifier)
        return jax.tree.map(lambda a, b: jnp.linalg.norm(a - b), full, fewer)

    sums, counts = change(x, centroids)
    assert sums.max() <= 0.5 + 1e-4
    assert 0 < counts.max() <= 1 + 1e-5


class Recorded(PrivateKMeans):
    """Private k-means that adds no noise, and keeps its sums and their scale."""

    def noisy_sum(self, key, sums, scale, z, mask, federation):
        total = super().noisy_sum(key, sums, 0.0, z, mask, federation)
        RECORD.append((total, scale))
        return total


RECORD: list = []


def distance(a, b):
    squares = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), a, b)
    return np.sqrt(sum(jax.tree.leaves(squares)))


@pytest.mark.parametrize("sum_of", ["mean", "moments", "steps"])
@pytest.mark.parametrize("per_client", [False, True])
def test_neighbours_differ_by_at_most_the_sensitivity(sum_of, per_client):
    """Each sum by itself: the others are released, so both neighbours use the same."""
    kmeans = kmeans_of(whitens=sum_of == "moments", per_client=per_client, noise=1.0)
    draw, clients = np.random.default_rng(1), [[0, 1, 2], [3, 4], [5]]
    every = federate(np.zeros((6, 3)), [np.array(x) for x in clients])
    if per_client:
        fewer = every._replace(present=jnp.array([[True, False, True]]))
    else:
        fewer = every._replace(mask=every.mask.at[1, 1].set(False))
    centroids = jnp.asarray(draw.normal(size=(3, 3)))

    @jax.jit
    def sums(pool, federation):
        RECORD.clear()
        federation = federation._replace(pool=pool)
        recorded, key = Recorded(*kmeans), jax.random.key(0)
        z, mask = recorded.points(None, federation)
        if sum_of == "steps":
            space = partial(clip_rows, radius=1.0)
            recorded.step(key, z, mask, space, centroids, jnp.float32(0.4), federation)
        else:
            recorded.begin(key, State(Server(no_clusters(3, 3))), federation)
        return RECORD[0]

    for _ in range(20):
        pool = draw.normal(size=(6, 3)) * 10 ** draw.uniform(-1, 1, size=(6, 1))
        pool = jnp.asarray(pool, jnp.float32)
        (total, scale), (other, _) = sums(pool, every), sums(pool, fewer)
        bound = scale / kmeans.part(sum_of).noise_multiplier(1.0)
        assert 0 < distance(total, other) <= bound * (1 + 1e-5)


# --- The noise


@pytest.mark.parametrize("noise_at", ["server", "clients"])
def test_the_noise_of_a_sum_has_the_given_scale(noise_at):
    kmeans = kmeans_of(noise_at=noise_at)
    federation = federate(np.zeros((6, 2)), [np.arange(3), np.arange(3, 6)])

    def nothing(z, mask):
        del z, mask
        return jnp.zeros(20_000)

    z, mask = kmeans.points(None, federation)
    found = kmeans.noisy_sum(jax.random.key(0), nothing, 3.0, z, mask, federation)
    np.testing.assert_allclose(found.std(), 3, rtol=4 / np.sqrt(2 * 20_000))


def test_without_noise_it_is_lloyd_of_the_differences():
    """Examples far inside the clip: each step moves to the mean of the cluster."""
    x = jnp.array([[0.1, 0.0], [0.2, 0.0], [0.0, 0.4]])
    centroids = jnp.array([[0.12, 0.0], [0.0, 0.3]])
    sums, counts = difference_sums(x, jnp.ones(3), centroids, 1.0)
    moved = centroids + sums / counts[:, None]
    np.testing.assert_allclose(moved, [[0.15, 0.0], [0.0, 0.4]], atol=1e-6)


@pytest.mark.parametrize("noise_at", ["server", "clients"])
@pytest.mark.parametrize("whitens", [False, True])
def test_with_little_noise_the_clusters_are_those_of_the_data(whitens, noise_at):
    draw = np.random.default_rng(0)
    corners = np.array([[1.0, 0, 0], [0, 1.0, 0]])
    labels = np.repeat([0, 1], 200)
    x = corners[labels] + 0.05 * draw.normal(size=(400, 3))
    federation = federate(x, np.array_split(draw.permutation(400), 4))
    noise = noise_of(parts_of(4, whitens=whitens), 20.0, 1e-5)
    stage_of = partial(kmeans_of, 2, whitens=whitens, noise_at=noise_at)
    clusters, metrics = run(stage_of, noise, federation, jax.random.key(0))
    found = clusters.nearest(clip_rows(jnp.asarray(x, jnp.float32), 1.0))
    agreement = np.mean(np.asarray(found) == labels)
    assert max(agreement, 1 - agreement) > 0.97
    assert np.isfinite(metrics["loss"])


# --- An audit: can an attacker tell whether one example was there?


class Watched(PrivateKMeans):
    """Private k-means whose released sums are compared with both hypotheses.

    The attacker knows all other examples. So they know each sum with and without the
    canary, and compute the log-likelihood ratio of the released sum.
    """

    def noisy_sum(self, key, sums, scale, z, mask, federation):
        released = super().noisy_sum(key, sums, scale, z, mask, federation)
        there, away = (
            super(Watched, self).noisy_sum(
                key, sums, 0.0, z, mask.at[1, 20].set(is_there), federation
            )
            for is_there in (True, False)
        )
        differences = jax.tree.map(
            lambda x, a, b: jnp.sum((x - b) * (a - b)), released, there, away
        )
        RECORD.append(sum(jax.tree.leaves(differences)) / scale**2)
        return released


def canaries(noise, runs):
    """The attacker's statistic of runs with a canary, and of runs without it."""
    draw = np.random.default_rng(0)
    x = np.abs(draw.normal(size=(40, 2))) * [1.0, 0.1]
    x = np.concatenate([x / np.linalg.norm(x, axis=1, keepdims=True), [[-1.0, 0.0]]])
    both = federate(x, [np.arange(20), np.arange(20, 41)])

    def statistic(key, mask):
        RECORD.clear()
        run.__wrapped__(audited, noise, both._replace(mask=mask), key)
        return sum(RECORD)

    keys = jax.random.split(jax.random.key(0), (2, runs))
    without = both.mask.at[1, 20].set(False)
    each = jax.jit(jax.vmap(statistic, in_axes=(0, None)))
    return np.asarray(each(keys[0], both.mask)), np.asarray(each(keys[1], without))


def audited(noise):
    return Watched(*kmeans_of(2, noise, steps=2))


def lower_bound(present, absent, confidence=0.95):
    """A lower bound of epsilon: thresholds are chosen on the first half of the runs,
    and error rates with Clopper-Pearson intervals are taken from the second half."""
    half = len(present) // 2
    risk = (1 - confidence) / 2

    def rates(threshold, there, away):
        hits, alarms = np.sum(there > threshold), np.sum(away > threshold)
        least = beta.ppf(risk, hits, len(there) - hits + 1) if hits else 0.0
        most = beta.ppf(1 - risk, alarms + 1, len(away) - alarms)
        return least, most

    def epsilon(threshold, there, away):
        least, most = rates(threshold, there, away)
        return np.log(max(least - DELTA, 1e-12) / most)

    choices = np.quantile(
        np.concatenate([present, absent]), np.linspace(0.01, 0.99, 99)
    )
    first = [epsilon(t, present[:half], absent[:half]) for t in choices]
    best = choices[int(np.argmax(first))]
    return epsilon(best, present[half:], absent[half:])


def test_an_audit_finds_no_more_than_the_stated_epsilon():
    epsilon = 1.0
    noise = noise_of(parts_of(2), epsilon, DELTA)
    assert 0 < lower_bound(*canaries(noise, 1000)) <= epsilon
    # The same audit sees that a tenth of the noise does not keep the budget.
    assert lower_bound(*canaries(noise / 10, 1000)) > 2 * epsilon
