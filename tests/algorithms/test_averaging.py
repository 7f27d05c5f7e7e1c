"""A round of named parts, with hand values: one part is a point that is drawn to the
mean of a client's examples."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.algorithms import averaging as module
from fcjax.algorithms.averaging import Local, Networks, Pass, Personal, Setup, part
from fcjax.types import Network
from tests.algorithms.federations import federate, in_round, traffic

# Client 0 has examples of mean 2, client 1 of mean -1, client 2 of mean 8.
POOL = np.array([[1.0], [3.0], [-1.0], [-3.0], [-2.0], [2.0], [8.0]])
ROWS = (np.arange(2), np.arange(2, 6), np.arange(6, 7))


def apply(variables, x, *, train, mask=None):
    return x - variables["params"]["point"][None], variables


POINT = Network(lambda key, x: {"params": {"point": x[0]}}, apply)


def pull(online, target, views, mask):
    """Half the squared distance of the mean example: its step goes to the mean."""
    h, _ = apply(part(online, "encoder"), views[0], train=True)
    return 0.5 * jnp.sum(h**2, where=mask[:, None]) / mask.sum(), online


ONE_PASS = (Pass(pull),)


def setup_of(local=None, *, passes=ONE_PASS, num_rounds=4, **options):
    networks = Networks({"encoder": POINT})
    return Setup(
        *(networks, ("encoder",), passes, local or local_of(), num_rounds), **options
    )


def local_of(optimizer=None, **options):
    options = {"num_epochs": 1, "batch_size": 8} | options
    return Local(optimizer or optax.sgd(0.5), lambda key, x: x, **options)


def start(setup, federation, point=0.0, others=()):
    params = {"encoder": {"point": jnp.array([point])}}
    params |= {name: {"w": jnp.ones(5)} for name in others}
    return module.start(setup, {"params": params}, federation)


def run(setup, state, federation, num_rounds, before=0):
    """Returns the state after each round, and its metrics."""
    found, round = [], jax.jit(module.averaging("pull", setup).round)
    for number in range(num_rounds):
        now = in_round(federation, number, before=before)
        state, metrics = round(jax.random.key(number), state, now)
        found.append((state, metrics))
    return found


def point(state):
    return float(state.server.online["params"]["encoder"]["point"][0])


@pytest.fixture(scope="module")
def federation():
    return federate(POOL, ROWS[:2])


def test_the_schedule_scales_the_step_of_a_round_from_the_stage_on(federation):
    local = local_of(schedule=lambda number: 1.0 / (1 + number))
    setup = setup_of(local)
    state = start(setup, federation, point=4.0)
    found = run(setup, state, federation, 2, before=3)
    # Half the way to 2 and -1, of 2 and 4 examples: to 3 and 1.5. Then a quarter of the
    # way from 2: to 2 and 1.25.
    assert point(found[0][0]) == pytest.approx((2 * 3 + 4 * 1.5) / 6)
    assert point(found[1][0]) == pytest.approx((2 * 2 + 4 * 1.25) / 6)
    values = [0.5 * (9 + 1) / 2, 0.5 * (25 + 49 + 36 + 4) / 4]
    assert float(found[0][1]["loss"]) == pytest.approx(np.mean(values))


def test_the_spread_is_of_examples_from_all_over_a_client():
    """Two at a time of those that come class by class, the first and the middle one,
    also of a client that is padded to twice its size."""
    rows = np.array([[1.0], [2.0], [-1.0], [-2.0], [1.0], [2.0], [-1.0], [-2.0]])
    setup = setup_of(local_of(optax.sgd(0.0), batch_size=2))
    federation = federate(rows, (np.arange(4), np.array([0, 1, 4, 5, 2, 3, 6, 7])))
    ((_, metrics),) = run(setup, start(setup, federation), federation, 1)
    assert float(metrics["embedding_spread"]) == pytest.approx(1)


def test_a_local_keeps_its_optimizer_and_drops_a_last_batch():
    """Adam counts: 5 examples in batches of 2, and one example, which is no batch, of a
    client that is absent the second time."""
    options = {"batch_size": 2, "keep_optimizer": True, "drop_last": True}
    setup = setup_of(local_of(optax.adam(0.1), **options))
    federation = federate(POOL, (np.arange(5), np.arange(6, 7)))
    federation = federation._replace(present=jnp.array([[True, True], [True, False]]))
    found = run(setup, start(setup, federation), federation, 2)
    counts = [state.clients.opt_state[0].count for state, _ in found]
    np.testing.assert_array_equal(counts, [[2, 1], [4, 1]])


def test_targets_follow_every_step_and_may_be_averaged(federation):
    """Two epochs of one step of 0.5 from p: to (p + mean) / 2, (p + 3 mean) / 4."""
    options = {"tracks": ("encoder",), "momentum": 0.8, "average_target": True}
    setup = setup_of(local_of(num_epochs=2), **options)
    state = start(setup, federation, point=4.0)
    expected, p = 4.0, 4.0
    for new, metrics in run(setup, state, federation, 2):
        means = np.array([2.0, -1.0])
        one, two = (p + means) / 2, (p + 3 * means) / 4
        ends = 0.8 * (0.8 * expected + 0.2 * one) + 0.2 * two
        expected, p = (2 * ends[0] + 4 * ends[1]) / 6, (2 * two[0] + 4 * two[1]) / 6
        targets = np.asarray(new.clients.target["encoder"]["point"])[:, 0]
        np.testing.assert_allclose(targets, [expected, expected], rtol=1e-6)
        assert point(new) == pytest.approx(p, abs=1e-6)
        names = ("down_encoder", "down_target", "up_encoder", "up_target")
        assert traffic(metrics) == {name: [2, 4] for name in names}


def test_who_first_answers_later_has_the_target_of_what_it_is_sent_then(federation):
    """Client 1 in the second round: the first has moved the point from 4 to 3."""
    answers = jnp.array([[True, False], [True, True]])
    federation = federation._replace(present=answers)
    setup = setup_of(tracks=("encoder",), momentum=1.0)
    state = start(setup, federation, point=4.0)
    (first, _), (second, _) = run(setup, state, federation, 2)
    assert point(first) == 3.0
    targets = second.clients.target["encoder"]["point"]
    np.testing.assert_array_equal(targets, [[4.0], [3.0]])


def test_frozen_parts_are_sent_to_each_client_once_and_never_come_back(federation):
    """In rounds 1 to 4 of all; client 1 was there in round 0 too, of another stage."""
    answers = [[False, True], [True, False], [False, True], [True, True], [True, True]]
    federation = federation._replace(present=jnp.array(answers))
    setup = setup_of()
    state = start(setup, federation, others=("frozen",))
    found = run(setup, state, federation, 4, before=1)
    counts = zip((1, 1, 0, 0), (1, 1, 2, 2), strict=True)
    for (state, metrics), (new, all_there) in zip(found, counts, strict=True):
        encoder = {"down_encoder": [all_there, 4], "up_encoder": [all_there, 4]}
        assert traffic(metrics) == encoder | {"down_frozen": [new, 20]}
        kept = state.server.online["params"]["frozen"]["w"]
        np.testing.assert_array_equal(kept, np.ones(5))


def test_passes_follow_one_another_over_the_rows_that_they_choose():
    """First the rows 4 and 6, of means -2 and 8, then those below 4, of means 0 and 1.
    Row 5 is trained on by neither pass, and counts in no weight; who has no other does
    not answer."""
    passes = (
        Pass(pull, lambda rows: (rows == 4) | (rows == 6)),
        Pass(pull, lambda rows: rows < 4),
    )
    rows = (np.arange(6), np.array([6, 0]), np.array([5]), np.array([6]))
    federation = federate(POOL, rows)
    setup = setup_of(passes=passes)
    ((state, metrics),) = run(setup, start(setup, federation), federation, 1)
    ends = [-1 / 2, (8 / 2 + 1) / 2, 8 / 2]
    assert point(state) == pytest.approx((5 * ends[0] + 2 * ends[1] + ends[2]) / 8)
    # From -1 the rows 1, 3, -1, -3; from 4 the row 1. Who has no row for the second
    # pass has the loss of the first.
    losses = [0.5 * (4 + 16 + 0 + 4) / 4, 0.5 * 9, 0.5 * 64]
    assert float(metrics["loss"]) == pytest.approx(np.mean(losses))
    assert int(metrics["participants"]) == 3
    np.testing.assert_array_equal(metrics["up_encoder"], [3, 4])


def test_a_client_begins_with_what_it_mixes_in_of_its_own(federation):
    """The mean of what it is sent and what it remembers: in the second round from
    (2 + 3) / 2 half the way to 2, and from (2 + 1.5) / 2 half the way to -1."""

    def halfway(sent, memory, _):
        return jax.tree.map(lambda a, b: (a + b) / 2, sent, memory)

    def last(began, trained, memory, number):
        return trained

    personal = Personal(lambda sent: sent, halfway, last)
    setup = setup_of(personal=personal)
    state = start(setup, federation, point=4.0)
    (first, _), (second, _) = run(setup, state, federation, 2)
    assert point(first) == pytest.approx((2 * 3 + 4 * 1.5) / 6)
    assert point(second) == pytest.approx((2 * 2.25 + 4 * 0.375) / 6)
