"""A round of named parts, with hand values: one part is a point that is drawn to the
mean of a client's examples."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.algorithms import averaging as module
from fcjax.algorithms import parts
from fcjax.algorithms.averaging import Local, Pass, Personal
from fcjax.types import Network
from tests.algorithms.federations import federate
from tests.algorithms.plain import matrix, noisy, views

# Client 0 has examples of mean 2, client 1 of mean -1, client 2 of mean 8.
POOL = np.array([[1.0], [3.0], [-1.0], [-3.0], [-2.0], [2.0], [8.0]])
ROWS = (np.arange(2), np.arange(2, 6), np.arange(6, 7))


def apply(variables, x, *, train, mask=None):
    return x - variables["params"]["point"][None], variables


POINT = Network(lambda key, x: {"params": {"point": x[0]}}, apply)


def pull(online, target, views, mask):
    """Half the squared distance of the mean example: its step goes to the mean."""
    h, _ = apply(online["encoder"], views[0], train=True)
    return 0.5 * jnp.sum(h**2, where=mask[:, None]) / mask.sum(), online


ONE_PASS = (Pass(pull),)


def stage_of(local=None, *, passes=ONE_PASS, num_rounds=4, **options):
    def begin(key, state, federation):
        return state

    return module.averaging(
        *("pull", num_rounds, begin, passes, local or local_of()),
        encoder=POINT,
        trains=("encoder",),
        **options,
    )


def local_of(optimizer=None, **options):
    options = {"num_epochs": 1, "batch_size": 8} | options
    return Local(optimizer or optax.sgd(0.5), lambda key, x: x, **options)


def start(federation, local=None, point=0.0, others=(), **options):
    online = {"encoder": {"params": {"point": jnp.array([point])}}}
    online |= {name: {"params": {"w": jnp.ones(5)}} for name in others}
    return module.start(
        online, local or local_of(), federation, trains=("encoder",), **options
    )


def run(stage, state, federation, num_rounds):
    """Returns the state after each round, and its metrics."""
    found, round = [], jax.jit(stage.round)
    for number in range(num_rounds):
        state, metrics = round(jax.random.key(number), state, federation)
        found.append((state, metrics))
    return found


def point(state):
    return float(state.online["encoder"]["params"]["point"][0])


@pytest.fixture(scope="module")
def federation():
    return federate(POOL, ROWS[:2])


def test_the_schedule_scales_the_step_of_a_round_from_the_stage_on(federation):
    local = local_of(schedule=lambda number: 1.0 / (1 + number))
    stage = stage_of(local, rounds_before=3)
    found = run(stage, start(federation, point=4.0, num_rounds=3), federation, 2)
    # Half the way to 2 and -1, of 2 and 4 examples: to 3 and 1.5. Then a quarter of the
    # way from 2: to 2 and 1.25.
    assert point(found[0][0]) == pytest.approx((2 * 3 + 4 * 1.5) / 6)
    assert point(found[1][0]) == pytest.approx((2 * 2 + 4 * 1.25) / 6)
    assert int(found[1][0].num_rounds) == 5
    values = [0.5 * (9 + 1) / 2, 0.5 * (25 + 49 + 36 + 4) / 4]
    assert float(found[0][1]["loss"]) == pytest.approx(np.mean(values))


def test_the_spread_is_of_examples_from_all_over_a_client():
    """Two at a time of those that come class by class, the first and the middle one,
    also of a client that is padded to twice its size."""
    rows = np.array([[1.0], [2.0], [-1.0], [-2.0], [1.0], [2.0], [-1.0], [-2.0]])
    local = local_of(optax.sgd(0.0), batch_size=2)
    federation = federate(rows, (np.arange(4), np.array([0, 1, 4, 5, 2, 3, 6, 7])))
    ((_, metrics),) = run(stage_of(local), start(federation, local), federation, 1)
    assert float(metrics["embedding_spread"]) == pytest.approx(1)


@pytest.mark.parametrize(("drop_last", "steps"), [(False, [3, 1]), (True, [2, 1])])
def test_a_local_drops_its_last_batch(drop_last, steps):
    """Adam counts: 5 examples in batches of 2, and one example, which is no batch."""
    local = local_of(
        optax.adam(0.1), batch_size=2, keep_optimizer=True, drop_last=drop_last
    )
    federation = federate(POOL, (np.arange(5), np.arange(6, 7)))
    ((state, _),) = run(stage_of(local), start(federation, local), federation, 1)
    ((adam, *_), _) = state.opt_state
    np.testing.assert_array_equal(adam.count, steps)


@pytest.mark.parametrize(("keep", "second"), [(False, 1.0), (True, 0.0)])
def test_an_optimizer_starts_anew_in_every_round_unless_it_is_kept(
    federation, keep, second
):
    """From 4, gradients are 2 and 5, 4 on average: to 2 without a memory of its own.
    Then they are 0 and 3, 2 on average, and half of what was, 2, comes to it."""
    local = local_of(optax.sgd(0.5, momentum=0.5), keep_optimizer=keep)
    state = start(federation, local, point=4.0)
    found = run(stage_of(local), state, federation, 2)
    assert point(found[0][0]) == pytest.approx(2.0)
    assert point(found[1][0]) == pytest.approx(second)
    assert bool(jax.tree.leaves(found[1][0].opt_state)) == keep


@pytest.mark.parametrize("average_target", [False, True])
def test_targets_follow_every_step_and_stay_unless_they_are_averaged(
    federation, average_target
):
    """Two epochs of one step of 0.5 from p: to (p + mean) / 2, (p + 3 mean) / 4."""
    stage = stage_of(
        local_of(num_epochs=2), momentum=0.8, average_target=average_target
    )
    state = start(federation, point=4.0, tracks=("encoder",))
    expected, p = np.array([4.0, 4.0]), 4.0
    for new, metrics in run(stage, state, federation, 2):
        means = np.array([2.0, -1.0])
        one, two = (p + means) / 2, (p + 3 * means) / 4
        expected = 0.8 * (0.8 * expected + 0.2 * one) + 0.2 * two
        if average_target:
            expected = np.full(2, (2 * expected[0] + 4 * expected[1]) / 6)
        p = (2 * two[0] + 4 * two[1]) / 6
        targets = np.asarray(new.target["encoder"]["point"])[:, 0]
        np.testing.assert_allclose(targets, expected, rtol=1e-6)
        assert point(new) == pytest.approx(p, abs=1e-6)
        names = ["down_encoder", "up_encoder"]
        if average_target:
            names = ["down_encoder", "down_target", "up_encoder", "up_target"]
        assert [n for n in sorted(metrics) if n[:3] in ("up_", "dow")] == names
        for name in names:
            np.testing.assert_array_equal(metrics[name], [2, 4])


# A client remembers how often it trained and begins that much to the right.
COUNTED = Personal(
    begin=lambda sent: jnp.float32(0),
    take_over=lambda sent, memory, number: jax.tree.map(lambda w: w + memory, sent),
    remember=lambda began, trained, memory, number: memory + 1,
)


def test_an_absent_client_keeps_what_is_its_own_and_moves_nothing():
    local = local_of(optax.sgd(0.5, momentum=0.5), keep_optimizer=True)
    federation = federate(POOL, ROWS)
    present = jnp.array([[True, True, True], [True, True, False]])
    everyone = federation._replace(present=present)
    spoilt = everyone._replace(pool=everyone.pool.at[6].set(jnp.nan))
    stage = stage_of(local, momentum=0.8, personal=COUNTED)
    state = start(everyone, local, tracks=("encoder",), personal=COUNTED)
    round = jax.jit(stage.round)
    first, metrics = round(jax.random.key(0), state, everyone)
    assert int(metrics["participants"]) == 3
    second, metrics = round(jax.random.key(1), first, spoilt)
    assert int(metrics["participants"]) == 2
    stays = [(s.target, s.memory, s.opt_state) for s in (first, second)]
    for before, after in zip(*map(jax.tree.leaves, stays), strict=True):
        np.testing.assert_array_equal(before[2], after[2])
        assert np.all(before[:2] != after[:2])
    np.testing.assert_array_equal(second.memory, [2, 2, 1])
    # From 0 to 1, -0.5 and 4 of 2, 4 and 1 examples. Then from 1 more than 4/7 with
    # velocities of half the first gradients, -2 and 1.
    assert point(first) == pytest.approx(4 / 7)
    began = 11 / 7
    ends = [began - 0.5 * (began - 2 - 1), began - 0.5 * (began + 1 + 0.5)]
    assert point(second) == pytest.approx((2 * ends[0] + 4 * ends[1]) / 6)
    assert np.isfinite(metrics["loss"])


def test_frozen_parts_are_sent_to_each_client_once_and_never_come_back(federation):
    """In rounds 1 to 4 of all; client 1 was there in round 0 too, of another stage."""
    answers = [[False, True], [True, False], [False, True], [True, True], [True, True]]
    federation = federation._replace(present=jnp.array(answers))
    state = start(federation, others=("frozen",), num_rounds=1)
    found = run(stage_of(rounds_before=1), state, federation, 4)
    for number, (state, metrics) in enumerate(found):
        np.testing.assert_array_equal(
            metrics["down_frozen"], [(1, 1, 0, 0)[number], 20]
        )
        np.testing.assert_array_equal(
            metrics["down_encoder"], [(1, 1, 2, 2)[number], 4]
        )
        assert "up_frozen" not in metrics
        np.testing.assert_array_equal(state.online["frozen"]["params"]["w"], np.ones(5))


def test_passes_follow_one_another_over_the_rows_that_they_choose():
    """First the rows 4 and 6, of means -2 and 8, then those below 4, of means 0 and 1.
    Row 5 is trained on by neither pass, and counts in no weight."""
    passes = (
        Pass(pull, lambda rows: (rows == 4) | (rows == 6)),
        Pass(pull, lambda rows: rows < 4),
    )
    federation = federate(POOL, (np.arange(6), np.array([6, 0])))
    found = run(stage_of(passes=passes), start(federation), federation, 1)
    ends = [-1 / 2, (8 / 2 + 1) / 2]
    assert point(found[0][0]) == pytest.approx((5 * ends[0] + 2 * ends[1]) / 7)
    # From -1 the rows 1, 3, -1, -3; from 4 the row 1.
    losses = [0.5 * (4 + 16 + 0 + 4) / 4, 0.5 * 9]
    assert float(found[0][1]["loss"]) == pytest.approx(np.mean(losses))


def test_a_client_with_nothing_to_train_on_does_not_answer(federation):
    stage = stage_of(passes=(Pass(pull, lambda rows: rows < 2),))
    ((state, metrics),) = run(stage, start(federation), federation, 1)
    assert point(state) == pytest.approx(1)
    assert float(metrics["loss"]) == pytest.approx(0.5 * (1 + 9) / 2)
    np.testing.assert_array_equal(metrics["up_encoder"], [1, 4])


@pytest.mark.parametrize("microbatch", [None, 2])
def test_each_example_has_two_views_of_its_own(microbatch):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    local = local_of()._replace(augment=noisy, microbatch=microbatch)
    found = module.two_views(jax.random.key(1), x, local)
    for view, expected in zip(found, views(jax.random.key(1), x), strict=True):
        np.testing.assert_allclose(view, expected, rtol=1e-6)


def test_each_part_is_fed_by_the_one_before():
    networks = {"encoder": matrix(5, centre=True), "projector": matrix(2)}
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    variables = parts.initialize(jax.random.key(0), networks, jnp.asarray(x[:1]))
    mask = jnp.array([True, True, True, False, True, False])
    z, new = parts.forward(
        parts.Networks(networks),
        variables,
        ("encoder", "projector"),
        jnp.asarray(x),
        mask,
    )
    encoder, projector = (
        np.asarray(variables[name]["params"]["kernel"]) for name in networks
    )
    h = x @ encoder
    mean = h[np.asarray(mask)].mean(axis=0)
    np.testing.assert_allclose(z, (h - mean) @ projector, rtol=1e-4, atol=1e-5)
    statistics = new["encoder"]["batch_stats"]
    np.testing.assert_allclose(statistics["mean"], 0.1 * mean, rtol=1e-4, atol=1e-6)
    swapped = parts.swap(new)
    assert set(swapped) == {"params", "batch_stats"}
    assert set(swapped["batch_stats"]) == {"encoder"}
    back = parts.swap(swapped)
    jax.tree.map(np.testing.assert_array_equal, back, new)
