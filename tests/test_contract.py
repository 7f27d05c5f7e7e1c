"""What every method promises, whatever it does. No method gets an `if`."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import engine
from fcjax.backends import Grid, over_runs
from fcjax.checkpoints import Checkpoints
from fcjax.types import Federation
from tests.methods import METHODS, NUM_CLUSTERS

SIZES = (7, 11, 4, 8)  # the true examples of four clients; no batch of one


@pytest.fixture(params=METHODS, scope="module")
def method(request):
    return METHODS[request.param]


def federation(*, sizes=SIZES, padding=0, absent=(), spoil=()) -> Federation:
    """Three blobs on ragged clients; the rows of `spoil` are not a number."""
    rng = np.random.default_rng(0)
    centres = 4 * rng.normal(size=(NUM_CLUSTERS, 5))
    total = sum(sizes)
    pool = centres[rng.integers(NUM_CLUSTERS, size=total)] + rng.normal(size=(total, 5))
    bounds = np.cumsum((0, *sizes))
    rows = [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
    for client in spoil:
        pool[rows[client]] = np.nan
    width = max(sizes) + padding
    return Federation(
        pool=jnp.asarray(pool, jnp.float32),
        indices=jnp.array([np.resize(r, width) for r in rows], jnp.int32),
        mask=jnp.array([np.arange(width) < len(r) for r in rows]),
        present=jnp.array([[client not in absent for client in range(len(sizes))]]),
        local_clusters=jnp.full(len(sizes), NUM_CLUSTERS, jnp.int32),
    )


def grid(weights=(0.1, 0.7), seeds=(0,), **options) -> Grid:
    one = federation(**options)
    runs = [jnp.stack([x] * len(weights)) for x in one[1:]]
    keys = jax.vmap(jax.random.key)(jnp.resize(jnp.array(seeds), len(weights)))
    return Grid(jnp.array(weights), keys, Federation(one.pool, *runs))


def train(method, grid, *, num_rounds=None, **options):
    """Runs a method; with `num_rounds`, so many rounds of each stage."""

    def build(weight):
        built = method(weight)
        if num_rounds is None:
            return built
        stages = tuple(s._replace(num_rounds=num_rounds) for s in built.stages)
        return built._replace(stages=stages)

    return engine.run(build, grid, **options)


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_close(a, b, atol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), a, b)


def first_round(method, grid, **options):
    """The state after one round of the first stage."""
    states = []

    def on_round(round):
        states.append(jax.device_get(round.state))
        raise StopIteration

    with pytest.raises(StopIteration):
        train(method, grid, on_round=on_round, **options)
    return states[0]


def test_every_example_gets_a_cluster_and_an_embedding(method):
    one = jax.tree.map(lambda x: x[0], train(method, grid()))
    built = method(0.1)
    clusters = np.asarray(jax.jit(built.assign)(one, federation()))
    assert clusters.shape == (len(SIZES), max(SIZES))
    assert clusters.min() >= 0
    assert clusters.max() < NUM_CLUSTERS
    z = np.asarray(jax.jit(built.embed)(one, federation()))
    assert z.shape[:2] == clusters.shape
    assert np.isfinite(z).all()


def test_rounds_report_metrics_of_every_run(method):
    rounds = []
    train(method, grid(), on_round=rounds.append)
    stages = method(0.1).stages
    assert len(rounds) == sum(stage.num_rounds for stage in stages)
    for round in rounds:
        assert {"loss", "participants"} <= set(round.metrics)
        for value in round.metrics.values():
            assert value.shape[0] == 2
            assert np.isfinite(value).all()


def test_a_further_round_value_or_seed_traces_nothing(method):
    calls = []

    def counted(weight):
        calls.append(1)
        return method(weight)

    train(counted, grid(), num_rounds=1)
    few = len(calls)
    calls.clear()
    train(counted, grid((0.5, 0.9), seeds=(1, 2)), num_rounds=4)
    assert len(calls) == few


def test_a_second_grid_through_one_program_traces_nothing(method, tmp_path):
    calls = []

    def counted(weight):
        calls.append(1)
        return method(weight)

    def whole(grid, folder):
        state = program.run(grid, checkpoints=Checkpoints(tmp_path / folder))
        return state, program.assign(grid, state), program.embed(grid, state)

    program = engine.Program(counted)
    whole(grid(), "one")
    few = len(calls)
    state, clusters, z = whole(grid((0.5, 0.9), seeds=(1, 2)), "two")
    assert len(calls) == few
    assert_same(state, train(method, grid((0.5, 0.9), seeds=(1, 2))))
    assert clusters.shape == z.shape[:3] == (2, len(SIZES), max(SIZES))


def test_a_scalar_can_be_swept(method):
    weights = (0.0, 2.0)
    swept = first_round(method, grid(weights))
    for run, weight in enumerate(weights):
        alone = first_round(method, grid((weight,)))
        assert_close(
            jax.tree.map(lambda x, run=run: x[run], swept),
            jax.tree.map(lambda x: x[0], alone),
        )
    params = jax.tree.leaves(swept)[0]
    assert not np.allclose(params[0], params[1])


def test_backends_agree(method):
    looped = first_round(method, grid(), backend="loop")
    assert_close(first_round(method, grid()), looped, atol=1e-5)


def test_runs_are_deterministic_in_their_key(method):
    state = train(method, grid())
    assert_same(state, train(method, grid()))
    other = train(method, grid(seeds=(1,)))
    leaves = zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True)
    assert any(not np.array_equal(a, b) for a, b in leaves)


def test_what_an_absent_client_holds_changes_nothing(method):
    def others(state):
        # Where a state keeps a part for each client, that of client 1 is its own.
        def part(x):
            return np.delete(x, 1, axis=1) if x.shape[1:2] == (len(SIZES),) else x

        return jax.tree.map(part, jax.device_get(state))

    whole = train(method, grid(absent=(1,)))
    spoilt = train(method, grid(absent=(1,), spoil=(1,)))
    assert_same(others(whole), others(spoilt))
    present = train(method, grid())
    leaves = zip(
        jax.tree.leaves(others(present)), jax.tree.leaves(others(whole)), strict=True
    )
    assert all(np.isfinite(a).all() and np.isfinite(b).all() for a, b in leaves)


def test_padding_changes_nothing(method):
    assert_close(first_round(method, grid()), first_round(method, grid(padding=3)))


def test_a_resumed_run_ends_with_the_same_bits(method, tmp_path):
    whole = train(method, grid())

    class Killed(Exception):
        pass

    def kill(round):
        if round.position == (1, 2):
            raise Killed

    with pytest.raises(Killed):
        train(
            method,
            grid(),
            on_round=kill,
            checkpoints=Checkpoints(tmp_path, interval=0.0),
        )
    rounds = []
    resumed = train(
        method,
        grid(),
        on_round=lambda round: rounds.append(round.position),
        checkpoints=Checkpoints(tmp_path, interval=0.0),
    )
    assert rounds == [(1, 2)]
    assert_same(whole, resumed)


def test_rows_outside_the_federation_get_a_cluster_of_a_global_model():
    method = METHODS["ccfc"]
    assign = jax.jit(method(0.1).assign)
    one = jax.tree.map(lambda x: x[0], train(method, grid()))
    everyone = federation()
    rows = everyone.indices[everyone.mask][None]
    as_one = everyone._replace(indices=rows, mask=jnp.ones(rows.shape, bool))
    expected = np.asarray(assign(one, everyone))[np.asarray(everyone.mask)]
    np.testing.assert_array_equal(assign(one, as_one)[0], expected)
    program = engine.Program(method)
    trained = grid()
    state = program.run(trained)
    left_out = Federation(*jax.tree.map(lambda x: jnp.stack([x] * 2), as_one))
    left_out = left_out._replace(pool=as_one.pool)
    found = program.assign(trained._replace(federations=left_out), state)
    np.testing.assert_array_equal(found[0, 0], expected)


def test_a_run_that_is_done_stands_still_while_others_go_on():
    """Counters that stop at 2, 5 and 3: the stage ends when all have."""
    from fcjax.types import FederatedClustering, Stage

    def build(limit):
        return FederatedClustering(
            init=lambda key, federation: {"count": jnp.int32(0)},
            stages=(
                Stage(
                    "count",
                    begin=lambda key, state, federation: state,
                    round=lambda key, state, federation: (
                        {"count": state["count"] + 1},
                        {"loss": 0.0 * limit},
                    ),
                    num_rounds=9,
                    done=lambda state: state["count"] >= limit,
                ),
            ),
            embed=lambda state, federation: jnp.zeros((1, 1, 1)),
            assign=lambda state, federation: jnp.zeros((1, 1), jnp.int32),
        )

    rounds = []
    state = engine.run(build, grid((2.0, 5.0, 3.0)), on_round=rounds.append)
    np.testing.assert_array_equal(state["count"], [2, 5, 3])
    assert [round.is_last for round in rounds] == [False] * 4 + [True]
    calls = over_runs(lambda hyper, *_: hyper * 2, "shard_map")
    np.testing.assert_array_equal(calls(grid((1.0, 2.0))), [2.0, 4.0])
