"""SDA-FDC: what is sent and when, and that no example leaves its client."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.algorithms.central import by_kmeans
from fcjax.algorithms.dcn import by_dcn
from fcjax.algorithms.gan import Adversarial, synthesise, train_gan
from fcjax.algorithms.pooling import Clustering, Phase
from fcjax.algorithms.sda import sda
from fcjax.models.autoencoder import AutoEncoder
from fcjax.models.gan import mlp_gan
from tests.algorithms.federations import federate
from tests.algorithms.plain import matrix

SIZES = (6, 9, 5, 7, 4)
K, NUM_FEATURES = 3, 3
ADVERSARIAL = Adversarial(
    mlp_gan(NUM_FEATURES, widths=(4,)),
    optax.sgd(0.5),
    optax.sgd(0.5),
    num_rounds=2,
    batch_size=4,
    decay=0.5,
    num_categories=K,
    noise_size=2,
)
DCN = by_dcn(
    AutoEncoder(matrix(2), matrix(NUM_FEATURES)),
    optax.sgd(0.05),
    num_clusters=K,
    pretrain_rounds=2,
    joint_rounds=2,
    batch_size=8,
    num_init=2,
)
#: Of two rounds of GANs, two of the auto-encoder, k-means, two of both by turns, and
#: k-means again.
PRESENT = np.array(
    [
        [1, 1, 1, 1, 1, 1, 1, 1],
        [0, 0, 1, 1, 1, 1, 1, 1],  # is sent no GAN
        [
            0,
            1,
            0,
            0,
            0,
            1,
            0,
            0,
        ],  # is sent one late, answers late, is not there in the end
        [1, 0, 0, 0, 0, 0, 0, 0],  # is sent one and never answers
        [1, 1, 0, 1, 0, 1, 1, 1],
    ],
    bool,
).T
LATE, LOST, NEVER = 2, 3, 1


class Method(NamedTuple):
    init: Callable
    stages: list[tuple[Callable, Callable, int]]  # begin, round, number of rounds

    def run(self, federation, *, seed=0, from_stage=0, state=None):
        """States after every stage, the metrics of every round."""
        states, metrics = [], []
        if state is None:
            state = self.init(jax.random.key(seed), federation)
        for number, (begin, round, num_rounds) in list(enumerate(self.stages))[
            from_stage:
        ]:
            key = jax.random.fold_in(jax.random.key(seed), number)
            state = begin(key, state, federation)
            for i in range(num_rounds):
                state, measured = round(jax.random.fold_in(key, i), state, federation)
                metrics.append(jax.device_get(measured))
            states.append(jax.device_get(state))
        return states, metrics

    def begin(self, federation):
        """The state before the first round."""
        key = jax.random.key(0)
        begin, _, _ = self.stages[0]
        return begin(jax.random.fold_in(key, 0), self.init(key, federation), federation)


def compiled(method) -> Method:
    stages = [(jax.jit(s.begin), jax.jit(s.round), s.num_rounds) for s in method.stages]
    return Method(jax.jit(method.init), stages)


def federation(present=PRESENT, sizes=SIZES):
    pool = np.random.default_rng(0).uniform(size=(sum(sizes), NUM_FEATURES))
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return federate(pool, rows)._replace(present=jnp.asarray(present))


def without(client, first=0):
    """Who is present if one is not from a round on."""
    present = PRESENT.copy()
    present[first:, client] = False
    return present


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def part(tree, client):
    return jax.tree.map(lambda x: np.asarray(x[client]), tree)


def spoil(state, clients):
    """The GANs of some clients are no numbers."""
    chosen = np.isin(np.arange(len(SIZES)), clients)

    def nan(x):
        return jnp.where(chosen.reshape(-1, *(1,) * (x.ndim - 1)), jnp.nan, x)

    return state._replace(gans=jax.tree.map(nan, state.gans))


@pytest.fixture(scope="module")
def method():
    return compiled(sda(ADVERSARIAL, DCN))


@pytest.fixture(scope="module")
def trained(method):
    return method.run(federation())


# --- what crosses the boundary


def test_a_client_sends_one_generator_and_one_size_and_nothing_else(trained):
    _, metrics = trained
    # Of float32: 5 -> 4, a scale, shift, mean and variance each, 4 -> 3 with biases.
    generator = 4 * (5 * 4 + 4 * 4 + 4 * 3 + 3)
    discriminator = 4 * (3 * 4 + 4 * 4 + 4 + 1)
    size = 4
    sent = {
        "down_gan": ([3, 1, 0, 0, 0, 0, 0, 0], generator + discriminator),
        "up_generator": ([0, 0, 1, 1, 0, 1, 0, 0], generator),
        "up_size": ([0, 0, 1, 1, 0, 1, 0, 0], size),
        "down_encoder": ([0, 0, 0, 0, 0, 0, 0, 3], 4 * 3 * 2),
        "down_centroids": ([0, 0, 0, 0, 0, 0, 0, 3], 4 * 3 * 2),
    }
    found = {
        name for row in metrics for name in row if name.startswith(("up_", "down_"))
    }
    assert found == set(sent)
    for name, (senders, message) in sent.items():
        for number, (count, row) in enumerate(zip(senders, metrics, strict=True)):
            found = row.get(name, [0, 0])
            assert int(found[0]) == count, (name, number)
            assert not count or int(found[1]) == message
    assert [int(row["participants"]) for row in metrics] == [3, 3, 2, 3, 2, 4, 3, 3]


def test_the_server_sees_no_example(method, trained):
    """What comes after the clients' stage is the same with another pool."""
    states, metrics = trained
    real = federation()
    other = real._replace(pool=jnp.full_like(real.pool, jnp.nan))
    again, measured = method.run(other, from_stage=1, state=states[0])
    assert_same(again, states[1:])
    assert_same(measured, metrics[2:])


# --- the clients


def test_a_client_trains_from_when_it_is_sent_its_gan(method, trained):
    """Round by round, a decay slower; who is sent none keeps what it had."""
    data, states = federation(), trained[0]
    start = method.begin(data).gans
    for client in range(1, len(SIZES)):
        assert_same(part(start, client), part(start, 0))  # sent by the server
    key = jax.random.fold_in(jax.random.key(0), 0)
    train = jax.jit(
        lambda key, gan, client, number: train_gan(
            key,
            gan,
            data.pool,
            data.indices[client],
            data.mask[client],
            ADVERSARIAL,
            number=number,
        )[0]
    )
    first_rounds = (0, 2, 1, 0, 0)
    for client, first in enumerate(first_rounds):
        gan = part(start, client)
        for number in range(first, 2):
            of_round = jax.random.fold_in(jax.random.fold_in(key, number), client)
            gan = train(of_round, gan, client, number)
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
            part(states[0].gans, client),
            jax.device_get(gan),
        )
    np.testing.assert_array_equal(states[0].received, [1, 0, 1, 1, 1])


def test_losses_are_means_over_those_that_train(trained):
    """At first a discriminator cannot tell: all logits are near 0."""
    for row in trained[1][:2]:
        assert float(row["loss"]) == pytest.approx(2 * np.log(2), abs=0.2)
        assert float(row["generator_loss"]) == pytest.approx(np.log(2), abs=0.2)
        assert 0 < row["weight_size"] < 1


def test_a_client_repeated_to_fill_the_devices_counts_nowhere(method, trained):
    """As where clients are spread: the last one again, with its state, absent."""
    data, key = federation(), jax.random.fold_in(jax.random.key(0), 0)
    rows = np.r_[: len(SIZES), len(SIZES) - 1]
    present = jnp.asarray(PRESENT[:, rows]).at[:, -1].set(False)
    filled = data._replace(
        indices=data.indices[rows], mask=data.mask[rows], present=present
    )
    _, round, _ = method.stages[0]
    state, _ = round(jax.random.fold_in(key, 0), method.begin(data), data)
    state = state._replace(
        gans=jax.tree.map(lambda x: x[rows], state.gans), received=state.received[rows]
    )
    _, metrics = round(jax.random.fold_in(key, 1), state, filled)
    assert_close = partial(np.testing.assert_allclose, rtol=1e-6)
    jax.tree.map(assert_close, jax.device_get(metrics), trained[1][1])


def test_methods_that_share_their_gans_begin_alike(method):
    """Whatever follows."""
    data = federation()
    kmeans = compiled(sda(ADVERSARIAL, by_kmeans(num_clusters=3)))
    other = kmeans.init(jax.random.key(0), data)
    begun = kmeans.stages[0][0](jax.random.fold_in(jax.random.key(0), 0), other, data)
    assert_same(begun, method.begin(data))


# --- late and lost clients


def test_a_late_client_is_added_to_what_the_others_sent(method, trained):
    states, _ = trained
    never, unmet = method.run(federation(without(LATE, first=2)))
    assert_same(never[0], states[0])
    # The same generators and examples, whether one comes later or not.
    assert_same(never[1].source, states[1].source)
    for stage in (1, 2):  # before it comes
        assert_same(never[stage], states[stage])
    assert int(unmet[5]["up_generator"][0]) == 0
    late = states[3].clustering, never[3].clustering
    assert np.abs(late[0].centroids - late[1].centroids).max() > 1e-5
    # Each example that counts is seen once an epoch: 6 + 4, then the late one's 5 too.
    assert [c.counts.sum() - 3 * 100 for c in late] == [2 * (6 + 4 + 5), 2 * (6 + 4)]


def test_who_never_comes_may_hold_anything(method, trained):
    """One that was sent no GAN, and one that trained it and was lost."""
    states, metrics = trained
    spoilt = spoil(states[0], (NEVER, LOST))
    again, measured = method.run(federation(), from_stage=1, state=spoilt)
    for one, other in zip(again, states[1:], strict=True):
        assert_same(one._replace(source=()), other._replace(source=()))
    assert_same(measured, metrics[2:])
    for leaf in jax.tree.leaves((again[-1].clustering, measured)):
        assert np.isfinite(leaf).all()


def test_what_one_client_holds_is_nothing_to_the_gans_of_the_others(method, trained):
    data = federation()
    rows = np.asarray(data.indices)[LATE]
    other = data._replace(pool=data.pool.at[rows].multiply(0.5))
    state = method.begin(other)
    for i in range(2):
        key = jax.random.fold_in(jax.random.key(0), 0)
        state, _ = method.stages[0][1](jax.random.fold_in(key, i), state, other)
    for client in range(len(SIZES)):
        apart = jax.tree.map(
            lambda x, y: np.abs(x - y).max(),
            part(state.gans, client),
            part(trained[0][0].gans, client),
        )
        assert (max(jax.tree.leaves(apart)) > 0) == (client == LATE)


def test_a_seed_decides(method, trained):
    other, _ = method.run(federation(), seed=1)
    for stage in (0, 3):
        pairs = zip(
            jax.tree.leaves(trained[0][stage]),
            jax.tree.leaves(other[stage]),
            strict=True,
        )
        assert any(not np.allclose(a, b) for a, b in pairs)


# --- the synthetic data


class Seen(NamedTuple):
    x: jax.Array
    mask: jax.Array


def remembering() -> Clustering:
    """What keeps the examples that it is given."""

    def keep(key, state, x, mask):
        del key, state
        return Seen(x, mask)

    def round(key, state, x, mask):
        return keep(key, state, x, mask), jnp.float32(0)

    def init(key, x):
        del key
        assert x.shape == (1, NUM_FEATURES)
        return Seen(x, jnp.zeros(1, bool))

    return Clustering(
        init,
        (Phase("one", keep, round, 3), Phase("two", keep, round, 2)),
        embed=lambda state, x: x,
        assign=lambda state, z: jnp.zeros(len(z), jnp.int32),
        results=lambda state: {},
    )


@pytest.mark.parametrize("num_synthetic", [None, 4])
def test_as_many_examples_as_a_client_holds_or_as_it_is_told(num_synthetic, trained):
    method = compiled(sda(ADVERSARIAL, remembering(), num_synthetic=num_synthetic))
    start, data = trained[0][0], federation()
    seen, metrics = method.run(data, from_stage=1, state=start)
    sizes = [num_synthetic or n for n in SIZES]
    arrived = ([0, 4], [0, LATE, 4])  # after three of the server's rounds, and after 5
    for state, clients in zip(seen, arrived, strict=True):
        x, mask = state.clustering
        width = num_synthetic or max(SIZES)
        assert x.shape == (len(SIZES), width, NUM_FEATURES)
        expected = np.zeros((len(SIZES), width), bool)
        for client in clients:
            expected[client, : sizes[client]] = True
        np.testing.assert_array_equal(mask, expected)
    assert_same(seen[0].clustering.x, seen[1].clustering.x)

    # Each client's by its own generator, with noise of its own.
    key, _ = jax.random.split(jax.random.fold_in(jax.random.key(0), 1))
    key, _ = jax.random.split(key)
    for client in (0, 4):
        made = synthesise(
            jax.random.fold_in(key, client),
            part(start.gans.generator, client),
            sizes[client],
            ADVERSARIAL,
            dtype=np.dtype("float32"),
        )
        found = seen[0].clustering.x[client, : sizes[client]]
        np.testing.assert_allclose(found, made, atol=1e-6)
    if num_synthetic is None:
        assert [int(row["up_size"][0]) for row in metrics] == [1, 1, 0, 1, 0]


def test_before_there_are_clusters_nobody_has_one(method, trained):
    built, data = sda(ADVERSARIAL, DCN), federation()
    *others, last = jax.tree.map(jnp.asarray, trained[0])
    for state in others[:2]:
        np.testing.assert_array_equal(built.assign(state, data), -1)
    clusters = np.asarray(built.assign(last, data))
    assert clusters.shape == data.indices.shape
    assert clusters.min() >= 0
    assert clusters.max() < K
    codes = built.embed(last, data)
    encoder = last.clustering.variables["params"]["encoder"]["kernel"]
    expected = np.asarray(data.pool)[np.asarray(data.indices)] @ encoder
    np.testing.assert_allclose(codes, expected, atol=1e-5)
