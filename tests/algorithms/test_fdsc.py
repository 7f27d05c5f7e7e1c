"""FDSC: rounds against Algorithm 1 written out, and what crosses the boundary."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.neighbors import kneighbors_graph

from fcjax.algorithms.fdsc import FDSCState, fdsc
from fcjax.algorithms.subspace import SubspaceNetwork, dense
from fcjax.models.autoencoder import AutoEncoder
from tests.algorithms.federations import federate
from tests.algorithms.plain import matrix
from tests.algorithms.subspaces import (
    NUM_CLUSTERS,
    descend,
    equation_8,
    plain_affinity,
    wide_network,
    worst_accuracies,
)

ENDS = np.cumsum((6, 9, 5, 8, 7, 6))  # examples of six clients
ROWS = np.split(np.arange(ENDS[-1]), ENDS[:-1])
POOL = np.random.default_rng(0).normal(size=(ENDS[-1], 4)).astype(np.float32)
FEDERATION = federate(POOL, ROWS)
MASK = np.asarray(FEDERATION.mask)
M, COUNT, CODE = len(ROWS), 3, 3
RATE, MOMENTUM = 1e-3, 0.9
PRETRAIN, TRAIN, LOCAL_STEPS, FIT_STEPS = 2, 12, 3, 4
BEFORE = PRETRAIN + 1
#: Of two rounds of the auto-encoder, one of the decoders, twelve of all, and again one.
PRESENT = np.ones((BEFORE + TRAIN + 1, M), bool)
PRESENT[PRETRAIN, 5] = False
PRESENT[BEFORE + 8 :, 2] = False
PRESENT[BEFORE + 9] = [False, True, False, False, True, False]
PRESENT[BEFORE + 10 :, 0] = False
EIGHT = {"penalty": 0.7, "expression": 1.3, "alpha": 0.5, "beta": 1.5}
SUM, MEAN = 0.4, 11.0  # lambda_3 by its reading
BYTES = 4 * 4 * CODE  # of the encoder: a matrix of floats


class Round(NamedTuple):
    stage: str
    before: FDSCState
    after: FDSCState
    metrics: dict


class History(NamedTuple):
    begun: dict[str, FDSCState]
    rounds: list[Round]

    def of(self, stage):
        return [round for round in self.rounds if round.stage == stage]


def build(mean_locality=False, **options):
    network = SubspaceNetwork(
        AutoEncoder(matrix(CODE), matrix(4)),
        dense(),
        penalty_weight=EIGHT["penalty"],
        expression_weight=EIGHT["expression"],
    )
    return fdsc(
        network,
        optax.sgd(RATE, momentum=MOMENTUM),
        num_clusters=2,
        affinity=plain_affinity,
        **{
            "num_rounds": TRAIN,
            "num_participants": COUNT,
            "local_steps": LOCAL_STEPS,
            "locality_weight": MEAN if mean_locality else SUM,
            "mean_locality": mean_locality,
            "adjacency_weight": EIGHT["alpha"],
            "coefficient_weight": EIGHT["beta"],
            "num_neighbors": 2,
            "pretrain_rounds": PRETRAIN,
            "fit_steps": FIT_STEPS,
            **options,
        },
    )


def follow(method, federation, seed=0) -> History:
    key = jax.random.key(seed)
    state, begun, history = jax.jit(method.init)(key, federation), {}, []
    for number, stage in enumerate(method.stages):
        stage_key = jax.random.fold_in(key, number)
        state = jax.jit(stage.begin)(stage_key, state, federation)
        begun[stage.name] = jax.device_get(state)
        round = jax.jit(stage.round)
        for i in range(stage.num_rounds):
            old = state
            state, metrics = round(jax.random.fold_in(stage_key, i), old, federation)
            history.append(Round(stage.name, *jax.device_get((old, state, metrics))))
    return History(begun, history)


@pytest.fixture(scope="module", params=[False, True], ids=["sum", "mean"])
def trained(request):
    federation = FEDERATION._replace(present=jnp.asarray(PRESENT))
    return request.param, follow(build(request.param), federation)


@pytest.fixture(scope="module")
def history(trained):
    return trained[1]


def changed(round) -> np.ndarray:
    """Which clients hold other bits than before the round."""
    stay = [(s.private, s.opt_state) for s in (round.before, round.after)]
    pairs = zip(*map(jax.tree.leaves, stay), strict=True)
    return np.any([(a != b).reshape(M, -1).any(axis=1) for a, b in pairs], axis=0)


def parts_of(state, client):
    """What a client trains from: arrays without what its padding holds."""
    size = len(ROWS[client])
    private = state.private
    return {
        "encoder": state.encoder["params"]["kernel"],
        "decoder": private["decoder"]["params"]["kernel"][client],
        "coefficients": private["coefficients"]["params"][client, :size, :size],
    }


def velocity_of(state, client):
    size = len(ROWS[client])
    (trace, *_) = [s.trace for s in state.opt_state if hasattr(s, "trace")]
    found = {}
    for name, own in trace.items():
        leaf = jax.tree.leaves(own)[0][client]
        found[name] = leaf[:size, :size] if name == "coefficients" else leaf
    return found


def neighbours(x):
    graph = kneighbors_graph(x, 2, include_self=False).toarray()
    return np.maximum(graph, graph.T).astype(np.float32)


def assert_close(found, expected):
    """To a hundred thousandth of the largest entry."""
    for name, value in expected.items():
        bound = 1e-5 * float(np.abs(value).max())
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=bound)


# --- Algorithm 1


def test_rounds_are_algorithm_1(trained):
    """Client after client, with nothing but its own examples: the first two rounds, of
    which the second goes on with the momentum of who was there before, and later ones
    in which fewer are present."""
    mean_locality, history = trained
    rounds = history.of("train")
    for number in (0, 1, 9, 11):
        _, before, after, metrics = rounds[number]
        chosen = np.flatnonzero(changed(rounds[number]))
        encoders, losses, norms = [], [], []
        for client in chosen:
            x = POOL[ROWS[client]]
            graph = neighbours(x)
            locality = MEAN / len(x) ** 2 if mean_locality else SUM

            def loss(parts, x=x, graph=graph, locality=locality):
                return equation_8(parts, x, graph, locality=locality, **EIGHT)

            parts, velocity, value = descend(
                parts_of(before, client),
                velocity_of(before, client),
                loss,
                rate=RATE,
                momentum=MOMENTUM,
                num_steps=LOCAL_STEPS,
            )
            encoder = parts.pop("encoder")
            assert_close(parts_of(after, client), parts)
            assert_close(velocity_of(after, client), velocity)
            encoders.append(encoder)
            losses.append(value)
            norms.append(np.linalg.norm(x @ encoder, axis=1).mean())
        sizes = [len(ROWS[client]) for client in chosen]
        mean = np.average(encoders, axis=0, weights=sizes)
        assert_close({"kernel": after.encoder["params"]["kernel"]}, {"kernel": mean})
        assert np.ptp(encoders, axis=0).max() > 1e-3  # of different ones
        assert float(metrics["loss"]) == pytest.approx(np.mean(losses), rel=1e-5)
        assert float(metrics["code_norm"]) == pytest.approx(np.mean(norms), rel=1e-5)


def test_who_is_near_is_found_among_a_clients_own_examples(history):
    adjacency = history.rounds[0].before.adjacency
    for client, rows in enumerate(ROWS):
        expected = np.zeros(adjacency.shape[1:])
        expected[: len(rows), : len(rows)] = neighbours(POOL[rows])
        np.testing.assert_array_equal(adjacency[client], expected)


# --- who takes part, and what crosses


def test_only_the_encoder_crosses_the_boundary(history):
    for stage, sent in (
        ("pretrain", {"up_encoder", "down_encoder"}),
        ("start", {"down_encoder"}),
        ("train", {"up_encoder", "down_encoder"}),
        ("fit", {"down_encoder"}),
    ):
        for round in history.of(stage):
            traffic = {k for k in round.metrics if k.startswith(("up_", "down_"))}
            assert traffic == sent
            for name in sent:
                expected = [changed(round).sum(), BYTES]
                np.testing.assert_array_equal(round.metrics[name], expected)
    leaves = jax.tree.leaves(history.rounds[0].before.encoder)
    assert sum(leaf.nbytes for leaf in leaves) == BYTES


def test_as_many_as_asked_for_take_part_of_those_that_are_present(history):
    """Whoever does not keeps decoder, coefficients and optimiser to the bit."""
    drawn = []
    for present, round in zip(PRESENT, history.rounds, strict=True):
        took_part = changed(round)
        are_all = round.stage in ("start", "fit")
        expected = present.sum() if are_all else min(COUNT, present.sum())
        assert took_part.sum() == expected
        assert int(round.metrics["participants"]) == expected
        assert not (took_part & ~present).any()
        drawn.append(tuple(took_part))
    np.testing.assert_array_equal(drawn[BEFORE + 9], PRESENT[BEFORE + 9])
    of_training = drawn[BEFORE : BEFORE + 8]
    assert np.any(of_training, axis=0).all()
    assert len(set(of_training)) > 3


def test_the_draw_depends_on_the_key(history):
    federation = FEDERATION._replace(present=jnp.asarray(PRESENT))
    other = follow(build(pretrain_rounds=0, fit_steps=0), federation, seed=1)
    draws = [[tuple(changed(r)) for r in h.of("train")[:8]] for h in (history, other)]
    assert draws[0] != draws[1]


def test_more_participants_than_clients_are_all_of_them():
    method = build(pretrain_rounds=0, fit_steps=0, num_rounds=1, num_participants=9)
    (round,) = follow(method, FEDERATION).rounds
    assert changed(round).all()
    np.testing.assert_array_equal(round.metrics["up_encoder"], [M, BYTES])


def test_what_others_hold_is_nothing_to_a_client(history):
    """But through the encoder: one round again, with other examples at one client."""
    first = history.of("train")[0]
    spoilt = np.flatnonzero(changed(first))[0]
    pool = FEDERATION.pool.at[ROWS[spoilt]].multiply(2.0)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), 2), 0)
    round = jax.jit(build().stages[2].round)
    one, other = (
        jax.device_get(round(key, first.before, data)[0])
        for data in (FEDERATION, FEDERATION._replace(pool=pool))
    )
    differ = changed(Round("train", one, other, {}))
    np.testing.assert_array_equal(np.flatnonzero(differ), [spoilt])
    encoders = [state.encoder["params"]["kernel"] for state in (one, other)]
    assert (encoders[0] != encoders[1]).any()


# --- the outer stages


def test_pretraining_is_of_the_auto_encoder_alone(history):
    for round in history.of("pretrain"):
        coefficients = round.after.private["coefficients"]["params"]
        np.testing.assert_array_equal(coefficients, np.float32(1e-8))
    _, before, after, metrics = history.of("pretrain")[0]
    chosen = np.flatnonzero(changed(history.of("pretrain")[0]))
    encoders, losses = [], []
    for client in chosen:
        x = POOL[ROWS[client]]

        def loss(parts, x=x):
            return jnp.sum((x - x @ parts["encoder"] @ parts["decoder"]) ** 2)

        parts = parts_of(before, client)
        del parts["coefficients"]
        parts, _, value = descend(
            parts,
            {name: np.zeros_like(part) for name, part in parts.items()},
            loss,
            rate=RATE,
            momentum=MOMENTUM,
            num_steps=LOCAL_STEPS,
        )
        encoders.append(parts.pop("encoder"))
        losses.append(value)
        assert_close(parts_of(after, client), parts)
    mean = np.average(encoders, axis=0, weights=[len(ROWS[i]) for i in chosen])
    assert_close({"kernel": after.encoder["params"]["kernel"]}, {"kernel": mean})
    assert float(metrics["loss"]) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize(
    ("stage", "present"), [("start", PRESENT[PRETRAIN]), ("fit", PRESENT[-1])]
)
def test_all_that_are_present_fit_to_the_encoder(trained, stage, present):
    mean_locality, history = trained
    (round,) = history.of(stage)
    _, before, after, metrics = round
    jax.tree.map(np.testing.assert_array_equal, before.encoder, after.encoder)
    np.testing.assert_array_equal(changed(round), present)
    losses = []
    for client in np.flatnonzero(present):
        x = POOL[ROWS[client]]
        graph = neighbours(x)
        locality = MEAN / len(x) ** 2 if mean_locality else SUM
        private = parts_of(before, client)
        encoder = private.pop("encoder")

        def loss(private, x=x, graph=graph, locality=locality, encoder=encoder):
            parts = {"encoder": encoder, **private}
            return equation_8(parts, x, graph, locality=locality, **EIGHT)

        private, _, value = descend(
            private,
            {name: np.zeros_like(part) for name, part in private.items()},
            loss,
            rate=RATE,
            momentum=MOMENTUM,
            num_steps=FIT_STEPS,
        )
        assert_close(parts_of(after, client), private)
        losses.append(value)
    assert float(metrics["loss"]) == pytest.approx(np.mean(losses), rel=1e-5)


def test_optimisers_begin_anew_with_what_a_stage_trains(history):
    for stage, trained in (
        ("pretrain", {"encoder", "decoder"}),
        ("start", {"decoder", "coefficients"}),
        ("train", {"encoder", "decoder", "coefficients"}),
        ("fit", {"decoder", "coefficients"}),
    ):
        begun = history.begun[stage]
        assert set(velocity_of(begun, 0)) == trained
        for leaf in jax.tree.leaves(begun.opt_state):
            assert not leaf.any()
    ended = history.of("train")[-1].after
    jax.tree.map(
        np.testing.assert_array_equal, history.begun["fit"].private, ended.private
    )


def test_stages_are_there_where_they_are_asked_for():
    def rounds(**options):
        return {stage.name: stage.num_rounds for stage in build(**options).stages}

    assert rounds() == {
        "pretrain": PRETRAIN,
        "start": 1,
        "train": TRAIN,
        "fit": 1,
    }
    assert rounds(pretrain_rounds=0, fit_steps=0, num_rounds=4) == {"train": 4}


# --- what is returned


def test_codes_are_of_the_shared_encoder_and_clusters_of_the_own_coefficients(history):
    state, method = history.rounds[-1].after, build()
    z = np.asarray(method.embed(state, FEDERATION))
    kernel = state.encoder["params"]["kernel"]
    expected = POOL[np.asarray(FEDERATION.indices)] @ kernel
    np.testing.assert_allclose(z, expected, atol=1e-5)

    # Two groups each, which take turns; what is on the diagonal does not count.
    turns = np.arange(MASK.shape[1]) % 2
    c = (turns[:, None] == turns) + 100 * np.eye(len(turns))
    everyone = jnp.broadcast_to(c.astype(np.float32), (M, *c.shape))
    private = {**state.private, "coefficients": {"params": everyone}}
    found = np.asarray(method.assign(state._replace(private=private), FEDERATION))
    assert found.shape == MASK.shape
    for client, own in enumerate(MASK):
        same = found[client][own][:, None] == found[client][own]
        np.testing.assert_array_equal(same, (turns[:, None] == turns)[own][:, own])


def test_independent_subspaces_are_recovered_with_locality_and_without():
    """By SGD: from coefficients near zero it ends at those of least norm, which are
    zero between independent subspaces."""

    def with_weight(affinity, locality_weight):
        return fdsc(
            wide_network(),
            optax.sgd(1e-6, momentum=0.9),
            num_clusters=NUM_CLUSTERS,
            affinity=affinity,
            num_rounds=30,
            num_participants=2,
            local_steps=10,
            locality_weight=locality_weight,
            adjacency_weight=0.1,
            num_neighbors=3,
            pretrain_rounds=20,
            fit_steps=600,
        )

    worst = worst_accuracies(with_weight, (0.0, 1.0))
    assert min(worst.values()) >= 0.98, worst
