"""FDSC: rounds against Algorithm 1 written out, and what crosses the boundary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.neighbors import kneighbors_graph

from fcjax.algorithms.fdsc import fdsc
from tests.algorithms import subspaces
from tests.algorithms.federations import federate, follow, traffic
from tests.algorithms.subspaces import assert_close, velocity_of

ENDS = np.cumsum((6, 9, 5, 8, 7, 6))  # examples of six clients
ROWS = np.split(np.arange(ENDS[-1]), ENDS[:-1])
POOL = np.random.default_rng(0).normal(size=(ENDS[-1], 4)).astype(np.float32)
FEDERATION = federate(POOL, ROWS)
M, COUNT = len(ROWS), 3
PRETRAIN, TRAIN = 2, 12
BEFORE = PRETRAIN + 1
#: Of two rounds of the auto-encoder, one of the decoders, twelve of all, and again one.
PRESENT = np.ones((BEFORE + TRAIN + 1, M), bool)
PRESENT[PRETRAIN, 5] = False
PRESENT[BEFORE + 8 :, 2] = False
PRESENT[BEFORE + 9] = [False, True, False, False, True, False]
PRESENT[BEFORE + 10 :, 0] = False
SUM, MEAN = 0.4, 11.0  # lambda_3 by its reading
BYTES = 4 * 4 * 3  # of the encoder: a matrix of floats


def build(**options):
    settings = {
        **{"adjacency_weight": 0.5, "coefficient_weight": 1.5, "num_neighbors": 2},
        **{"num_rounds": TRAIN, "num_participants": COUNT},
        **{"locality_weight": MEAN, "locality": "mean"},
        **{"pretrain_rounds": PRETRAIN, "fit_steps": subspaces.FIT_STEPS},
    }
    return subspaces.build(fdsc, **settings | options)


@pytest.fixture(scope="module")
def history():
    return follow(build(), FEDERATION._replace(present=jnp.asarray(PRESENT)))


def of(history, stage):
    return [round for round in history if round.stage == stage]


def changed(round) -> np.ndarray:
    """Which clients hold other bits than before the round."""
    stay = [s.clients[:2] for s in (round.before, round.after)]
    pairs = zip(*map(jax.tree.leaves, stay), strict=True)
    return np.any([(a != b).reshape(M, -1).any(axis=1) for a, b in pairs], axis=0)


def neighbours(x):
    graph = kneighbors_graph(x, 2, include_self=False).toarray()
    return np.maximum(graph, graph.T).astype(np.float32)


def objective(parts, x, graph, locality):
    return subspaces.equation_8(parts, x, graph, locality, alpha=0.5, beta=1.5)


def assert_is_algorithm_1(round, *, mean_locality=True):
    _, before, after, _ = round
    chosen, own = np.flatnonzero(changed(round)), {}
    for client in chosen:
        x = POOL[ROWS[client]]
        locality = MEAN / len(x) ** 2 if mean_locality else SUM
        own[client] = (x, neighbours(x), locality)
    encoders = subspaces.assert_descend(round, own, objective=objective)
    found = after.server["params"]["kernel"]
    if "encoder" in subspaces.TRAINED[round.stage]:
        sizes = [len(ROWS[client]) for client in chosen]
        mean = np.average(encoders, axis=0, weights=sizes)
        assert_close({"kernel": found}, {"kernel": mean})
        assert np.ptp(encoders, axis=0).max() > 1e-3  # of different ones
    else:
        np.testing.assert_array_equal(found, before.server["params"]["kernel"])


# --- Algorithm 1


@pytest.mark.parametrize(
    ("stage", "numbers"),
    [
        ("pretrain", (0,)),
        ("start", (0,)),
        # The second goes on with the momentum of who was there before; then fewer are
        # present.
        ("train", (0, 1, 9, 11)),
        ("fit", (0,)),
    ],
)
def test_rounds_are_algorithm_1(history, stage, numbers):
    for number in numbers:
        assert_is_algorithm_1(of(history, stage)[number])


def test_more_participants_than_clients_are_all_of_them_and_locality_may_be_a_sum():
    (round,) = follow(
        build(
            **{"pretrain_rounds": 0, "fit_steps": 0, "num_rounds": 1},
            num_participants=9,
            locality_weight=SUM * 255**2,  # of pixels of 0 to 255
            locality="sum",
        ),
        FEDERATION,
    )
    assert changed(round).all()
    np.testing.assert_array_equal(round.metrics["up_encoder"], [M, BYTES])
    assert_is_algorithm_1(round, mean_locality=False)


# --- who takes part, and what crosses


def test_only_the_encoder_crosses_the_boundary(history):
    both, down = {"up_encoder", "down_encoder"}, {"down_encoder"}
    sent = {"pretrain": both, "start": down, "train": both, "fit": down}
    for round in history:
        each = [changed(round).sum(), BYTES]
        assert traffic(round.metrics) == dict.fromkeys(sent[round.stage], each)


def test_as_many_as_asked_for_take_part_of_those_that_are_present(history):
    """Whoever does not keeps decoder, coefficients and optimiser to the bit."""
    drawn = []
    for present, round in zip(PRESENT, history, strict=True):
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


# --- the stages


def test_optimisers_begin_anew_with_what_a_stage_trains(history):
    for stage, trained in subspaces.TRAINED.items():
        begun = of(history, stage)[0].before
        assert set(velocity_of(begun, 0, 6)) == set(trained)
        for leaf in jax.tree.leaves(begun.clients.opt_state):
            assert not leaf.any()
    for round in of(history, "pretrain"):  # which leaves the coefficients alone
        coefficients = round.after.clients.parts["coefficients"]
        np.testing.assert_array_equal(coefficients, np.float32(1e-8))
    jax.tree.map(
        np.testing.assert_array_equal,
        of(history, "fit")[0].before.clients.parts,
        of(history, "train")[-1].after.clients.parts,
    )


def test_stages_are_there_where_they_are_asked_for(history):
    asked = [round.stage for round in history]
    expected = ["pretrain"] * PRETRAIN + ["start"] + ["train"] * TRAIN + ["fit"]
    assert asked == expected
    few = build(pretrain_rounds=0, fit_steps=0, num_rounds=4)
    assert [(stage.name, stage.num_rounds) for stage in few.stages] == [("train", 4)]


# --- what is returned


def test_codes_are_of_the_shared_encoder_and_clusters_of_the_own_coefficients(history):
    state, method = history[-1].after, build()
    z = np.asarray(method.embed(state, FEDERATION))
    kernel = state.server["params"]["kernel"]
    expected = POOL[np.asarray(FEDERATION.indices)] @ kernel
    np.testing.assert_allclose(z, expected, atol=1e-5)
    subspaces.assert_clusters_are_of_the_coefficients(method, state, FEDERATION)
