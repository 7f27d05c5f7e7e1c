"""SDA-FDC: what is sent and when, and that no example leaves its client."""

import itertools
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.algorithms.autoencoders import by_dcn
from fcjax.algorithms.central import by_kmeans
from fcjax.algorithms.sda import Pair, Setup, sda, synthesise, train_gan
from fcjax.methods import SDAFDC, KMeans
from fcjax.nn.autoencoders import AutoEncoder
from fcjax.nn.generative import mlp_gan
from tests.algorithms.federations import federate, follow, in_round
from tests.algorithms.plain import matrix

SIZES = (6, 9, 5, 7, 4)
K, NUM_FEATURES = 3, 3
SETTINGS = SDAFDC().plain(
    **{"gan_rounds": 2, "gan_batch_size": 4, "gan_decay": 0.5, "noise_size": 2},
    **{"pretrain_rounds": 2, "joint_rounds": 2, "batch_size": 8, "num_init": 2},
)
GAN = mlp_gan(NUM_FEATURES, widths=(4,)), Pair(optax.sgd(0.5), optax.sgd(0.5))
SETUP = Setup(*GAN, SETTINGS, num_categories=K)
DCN = by_dcn(
    *(SETTINGS, AutoEncoder(matrix(2), matrix(NUM_FEATURES)), optax.sgd(0.05)),
    num_clusters=K,
)


def build(clustering=DCN, num_synthetic=None):
    settings = vars(SETTINGS) | {"num_synthetic": num_synthetic}
    return sda(SimpleNamespace(**settings), *GAN, clustering, num_clusters=K)


#: Of two rounds of GANs, two of the auto-encoder, k-means, two of both by turns, and
#: k-means again.
PRESENT = np.array(
    [
        [1, 1, 1, 1, 1, 1, 1, 1],
        [0, 0, 1, 1, 1, 1, 1, 1],  # is sent no GAN
        # Is sent one late, answers late, is not there in the end.
        [0, 1, 0, 0, 0, 0, 1, 0],
        [1, 0, 0, 0, 0, 0, 0, 0],  # is sent one and never answers
        [1, 1, 0, 1, 0, 1, 1, 1],
    ],
    bool,
).T
LATE, LOST, NEVER = 2, 3, 1
POOL = np.random.default_rng(0).uniform(size=(sum(SIZES), NUM_FEATURES))
FEDERATION = federate(
    POOL, np.split(np.arange(len(POOL)), np.cumsum(SIZES)[:-1])
)._replace(present=jnp.asarray(PRESENT))


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def of_stage(number):
    return jax.random.fold_in(jax.random.key(0), number)


def part(tree, client):
    return jax.tree.map(lambda x: np.asarray(x[client]), tree)


METHOD = build()


@pytest.fixture(scope="module")
def trained():
    return follow(METHOD, FEDERATION)


@pytest.fixture(scope="module")
def gans(trained):
    """What the clients end with."""
    return trained[1].after.clients


# --- what crosses the boundary


def test_a_client_sends_one_generator_and_one_size_and_nothing_else(trained):
    # Of float32: 5 -> 4, a scale, shift, mean and variance each, 4 -> 3 with biases.
    generator = 4 * (5 * 4 + 4 * 4 + 4 * 3 + 3)
    discriminator = 4 * (3 * 4 + 4 * 4 + 4 + 1)
    sent = {
        "down_gan": ([3, 1, 0, 0, 0, 0, 0, 0], generator + discriminator),
        "up_generator": ([0, 0, 1, 1, 0, 0, 1, 0], generator),
        "up_size": ([0, 0, 1, 1, 0, 0, 1, 0], 4),
        "down_encoder": ([0, 0, 0, 0, 0, 0, 0, 3], 4 * 3 * 2),
        "down_centroids": ([0, 0, 0, 0, 0, 0, 0, 3], 4 * 3 * 2),
    }
    for number, (_, _, _, metrics) in enumerate(trained):
        assert {x for x in metrics if x.startswith(("up_", "down_"))} <= set(sent)
        for name, (senders, message) in sent.items():
            count, size = metrics.get(name, [0, 0])
            assert count == senders[number], (name, number)
            assert not count or size == message
    participants = [int(round.metrics["participants"]) for round in trained]
    assert participants == [3, 3, 2, 3, 2, 3, 4, 3]


def test_the_server_sees_no_example_and_nothing_of_who_never_comes(trained, gans):
    """What comes after the clients' stage is the same with another pool, and whatever
    a GAN is that was not sent, or was trained and is lost."""
    hidden = np.isin(np.arange(len(SIZES)), (NEVER, LOST))

    def spoil(x):
        return np.where(hidden.reshape(-1, *(1,) * (x.ndim - 1)), np.float32("nan"), x)

    own = gans._replace(gans=jax.tree.map(spoil, gans.gans))
    spoilt = trained[1].after._replace(clients=own)
    other = FEDERATION._replace(pool=jnp.full_like(FEDERATION.pool, jnp.nan))
    again = follow(METHOD, other, first=1, state=spoilt)
    for one, expected in zip(again, trained[2:], strict=True):
        found, made = (x.after.server.source.examples[~hidden] for x in (one, expected))
        np.testing.assert_array_equal(found, made)
        # All but the source.
        assert_same(*((x.after.server[1:], x.after.clients) for x in (one, expected)))
        assert_same(one.metrics, expected.metrics)
    for leaf in jax.tree.leaves((again[-1].after.server.clustering, again[-1].metrics)):
        assert np.isfinite(leaf).all()


# --- the clients


def test_a_client_trains_from_when_it_is_sent_its_gan(trained, gans):
    """Round by round, a decay slower; who is sent none keeps what it had. Metrics are
    means over those that train."""
    start = trained[0].before.clients.gans
    for client in range(1, len(SIZES)):
        assert_same(part(start, client), part(start, 0))  # sent by the server

    @jax.jit
    def train(key, gan, client, number):
        rows, mask = FEDERATION.indices[client], FEDERATION.mask[client]
        return train_gan(key, gan, FEDERATION.pool, rows, mask, SETUP, number=number)

    measured = [[], []]
    for client, first in enumerate((0, 2, 1, 0, 0)):
        gan = part(start, client)
        for number in range(first, 2):
            key = jax.random.fold_in(jax.random.fold_in(of_stage(0), number), client)
            gan, losses = train(key, gan, client, number)
            leaves = jax.tree.leaves([network["params"] for network in gan])
            weights = np.concatenate([np.ravel(x) for x in leaves])
            measured[number].append([*losses, np.sqrt(np.mean(weights**2))])
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
            part(gans.gans, client),
            jax.device_get(gan),
        )
    np.testing.assert_array_equal(gans.received, [1, 0, 1, 1, 1])
    for round, of_round in zip(trained[:2], measured, strict=True):
        names = ("loss", "generator_loss", "weight_size")
        found = [round.metrics[name] for name in names]
        np.testing.assert_allclose(found, np.mean(of_round, axis=0), rtol=1e-5)


def test_a_client_repeated_to_fill_the_devices_counts_nowhere(trained):
    """As where clients are spread: the last one again, with its state, absent."""
    rows = np.r_[: len(SIZES), len(SIZES) - 1]
    present = jnp.asarray(PRESENT[:, rows]).at[:, -1].set(False)
    filled = FEDERATION._replace(
        indices=FEDERATION.indices[rows], mask=FEDERATION.mask[rows], present=present
    )
    _, state, _, expected = trained[1]
    state = state._replace(clients=jax.tree.map(lambda x: x[rows], state.clients))
    key = jax.random.fold_in(of_stage(0), 1)
    _, metrics = jax.jit(METHOD.stages[0].round)(key, state, in_round(filled, 1))
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-6),
        jax.device_get(metrics),
        expected,
    )


# --- the synthetic data


@pytest.mark.parametrize("num_synthetic", [None, 4])
def test_as_many_examples_as_a_client_holds_or_as_it_is_told(num_synthetic, trained):
    """Each client's by its own generator, with noise of its own."""
    method = build(by_kmeans(KMeans().plain(), num_clusters=K), num_synthetic)
    state, begin = trained[1].after, jax.jit(method.stages[1].begin)
    begun = begin(of_stage(1), state, FEDERATION)
    sizes = [num_synthetic or n for n in SIZES]
    x, found = begun.server.source
    np.testing.assert_array_equal(found, np.where(state.clients.received, sizes, 0))
    assert x.shape == (len(SIZES), max(sizes), NUM_FEATURES)
    key, _ = jax.random.split(jax.random.split(of_stage(1))[0])
    for client in (0, LATE, 4):
        made = synthesise(
            jax.random.fold_in(key, client),
            part(state.clients.gans.generator, client),
            sizes[client],
            SETUP,
            dtype=np.dtype("float32"),
        )
        np.testing.assert_allclose(x[client, : sizes[client]], made, atol=1e-6)


def test_a_late_client_is_added_to_what_the_others_sent(trained):
    """Each example that counts is seen once an epoch."""
    servers = [round.after.server for round in trained]
    for one, other in itertools.pairwise(servers[2:]):
        assert_same(one.source, other.source)
    counts = [x.clustering.joint.counts.sum() for x in servers[5:7]]
    assert counts == [300 + 6 + 4, 300 + 2 * (6 + 4) + 5]


def test_before_there_are_clusters_nobody_has_one(trained):
    states = [jax.tree.map(jnp.asarray, round.after) for round in trained]
    for state in states[1:4]:
        np.testing.assert_array_equal(METHOD.assign(state, FEDERATION), -1)
    last = states[-1]
    assert (np.asarray(METHOD.assign(last, FEDERATION)) >= 0).all()
    encoder = last.server.clustering.variables["params"]["encoder"]["kernel"]
    expected = np.asarray(FEDERATION.pool[FEDERATION.indices]) @ encoder
    np.testing.assert_allclose(METHOD.embed(last, FEDERATION), expected, atol=1e-5)
