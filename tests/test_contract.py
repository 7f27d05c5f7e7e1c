"""What every method promises, whatever it does. No method gets an `if`.

python -m pytest tests/test_contract.py --method FILE
"""

import itertools
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import engine
from fcjax.engine import Position
from fcjax.parallel.mesh import over_runs
from fcjax.sweep.checkpoints import Checkpoints
from fcjax.types import FederatedClustering, Federation, Grid, Stage, State
from tests.methods import (
    CENTROIDS,
    DIFFERENT,
    DRAWN,
    GENERATORS,
    METHODS,
    NUM_CLUSTERS,
    SWEPT,
    of_file,
)

UPLOADING = (*CENTROIDS, *GENERATORS)
SIZES = (7, 11, 4, 8, 7)  # the true examples of five clients; no batch of one or two


def pytest_generate_tests(metafunc):
    """Takes all methods, or those of a mark, or in place of either that of --method."""
    if "method" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("methods")
    builds = {name: METHODS[name] for name in (marker.args[0] if marker else METHODS)}
    file = metafunc.config.option.method
    if file is not None:
        builds = {file.stem: of_file(file)}
    of_a_group = [
        pytest.param(build, id=name, marks=pytest.mark.xdist_group(name))
        for name, build in builds.items()
        # A method of a file decides by its `uploads` whether it has upload tests.
        if not marker or marker.args[0] != UPLOADING or build(0.1).uploads is not None
    ]
    metafunc.parametrize("method", of_a_group, indirect=True, scope="module")


@pytest.fixture(scope="module")
def method(request):
    yield request.param
    # Those of all methods together are more than a process holds.
    jax.clear_caches()


@pytest.fixture
def kind(request):
    """The uploads that a library method must have; "any" for the method of a file."""
    if request.config.option.method is not None:
        return "any"
    name = request.node.callspec.id
    return "synthetic" if name in GENERATORS else "centroids"


def federation(*, padding=0, absent=(), spoil=()) -> Federation:
    """Three blobs on ragged clients; the rows of `spoil` are not a number."""
    rng = np.random.default_rng(0)
    centres = 4 * rng.normal(size=(NUM_CLUSTERS, 5))
    total = sum(SIZES)
    pool = centres[rng.integers(NUM_CLUSTERS, size=total)] + rng.normal(size=(total, 5))
    bounds = np.cumsum((0, *SIZES))
    rows = [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
    for client in spoil:
        pool[rows[client]] = np.nan
    width = max(SIZES) + padding
    return Federation(
        pool=jnp.asarray(pool, jnp.float32),
        indices=jnp.array([np.resize(r, width) for r in rows], jnp.int32),
        mask=jnp.array([np.arange(width) < len(r) for r in rows]),
        present=jnp.array([[client not in absent for client in range(len(SIZES))]]),
        local_clusters=jnp.full(len(SIZES), NUM_CLUSTERS, jnp.int32),
    )


def grid(weights=(0.1, 0.7), seeds=(0,), **options) -> Grid:
    one = federation(**options)
    runs = jax.tree.map(lambda x: jnp.stack([x] * len(weights)), one[1:])
    keys = jax.vmap(jax.random.key)(jnp.resize(jnp.array(seeds), len(weights)))
    return Grid(jnp.array(weights), keys, Federation(one.pool, *runs))


def assert_same(a, b):
    compare(np.testing.assert_array_equal, a, b)


def assert_close(a, b, rtol=1e-7, atol=1e-5):
    compare(partial(np.testing.assert_allclose, rtol=rtol, atol=atol), a, b)


def compare(check, a, b):
    """Names the part of the state where a check fails."""

    def part(path, x, y):
        check(x, y, err_msg=jax.tree_util.keystr(path))

    jax.tree_util.tree_map_with_path(part, a, b)


class Rounded(NamedTuple):
    position: Position
    metrics: dict[str, np.ndarray]
    num_calls: int


class Trained(NamedTuple):
    """One program of a method, with the grid that it has trained first."""

    program: engine.Program
    calls: list[None]
    """Grows whenever the method is built: whatever is traced builds it."""
    state: State
    rounds: tuple[Rounded, ...]


@pytest.fixture(scope="module")
def trained(method):
    calls, rounds = [], []

    def build(weight):
        calls.append(None)
        return method(weight)

    def on_round(round):
        rounds.append(Rounded(round.position, round.metrics, len(calls)))

    program = engine.Program(build)
    state = program.run(grid(), on_round=on_round)
    return Trained(program, calls, jax.device_get(state), tuple(rounds))


class Stopped(Exception):
    pass


def first_round(program, grid):
    """The state after one round of the first stage."""
    states = []

    def on_round(round):
        states.append(jax.device_get(round.state))
        raise Stopped

    with pytest.raises(Stopped):
        program.run(grid, on_round=on_round)
    return states[0]


def test_every_example_gets_a_cluster_and_an_embedding(trained):
    clusters = np.asarray(trained.program.assign(grid(), trained.state))
    assert clusters.shape == (2, len(SIZES), max(SIZES))
    assert clusters.min() >= 0
    assert clusters.max() < NUM_CLUSTERS
    z = np.asarray(trained.program.embed(grid(), trained.state))
    assert z.shape[:3] == clusters.shape
    assert np.isfinite(z).all()


def test_what_clients_keep_is_theirs(trained):
    for leaf in jax.tree.leaves(trained.state.clients):
        assert leaf.shape[:2] == (2, len(SIZES))


def test_rounds_report_metrics_of_every_run(method, trained):
    stages = method(0.1).stages
    last = {x.position.stage: x.position.round for x in trained.rounds}
    assert list(last) == list(range(len(stages)))
    assert all(last[i] <= stage.num_rounds for i, stage in enumerate(stages))
    for _, metrics, _ in trained.rounds:
        assert {"loss", "participants"} <= set(metrics)
        for name, value in metrics.items():
            assert value.shape[0] == 2
            assert np.isfinite(value).all(), f"the metric {name} is not finite: {value}"


def test_a_further_round_traces_nothing(trained):
    for stage in range(trained.rounds[-1].position.stage + 1):
        calls = [r.num_calls for r in trained.rounds if r.position.stage == stage]
        assert set(calls) == {calls[0]}


def test_a_second_grid_through_one_program_traces_nothing(method, trained):
    program, calls, first, _ = trained
    for ask in (program.assign, program.embed):
        ask(grid(), first)
    few = len(calls)
    other = grid((0.5, 0.9), seeds=(1, 2))
    state = program.run(other)
    clusters, z = program.assign(other, state), program.embed(other, state)
    assert len(calls) == few
    assert clusters.shape == z.shape[:3] == (2, len(SIZES), max(SIZES))

    leaves = zip(jax.tree.leaves(state), jax.tree.leaves(first), strict=True)
    assert any(not np.array_equal(a, b) for a, b in leaves)


@pytest.mark.methods(DIFFERENT)
def test_what_a_program_has_run_before_changes_nothing(method, trained):
    """The other way round: first another grid."""
    fresh, other = engine.Program(method), grid((0.5, 0.9), seeds=(1, 2))
    assert_same(trained.program.run(other), fresh.run(other))
    assert_same(trained.state, fresh.run(grid()))


@pytest.mark.methods(DRAWN)
def test_a_run_depends_on_its_key(trained):
    other = first_round(trained.program, grid(seeds=(1,)))
    leaves = zip(
        jax.tree.leaves(first_round(trained.program, grid())),
        jax.tree.leaves(other),
        strict=True,
    )
    assert any(not np.array_equal(a, b) for a, b in leaves), "the key changes nothing"


@pytest.mark.methods(SWEPT)
def test_a_scalar_can_be_swept(trained):
    swept = first_round(trained.program, grid((0.0, 2.0)))
    differ = (not np.allclose(x[0], x[1]) for x in jax.tree.leaves(swept))
    assert any(differ), "the scalar changes nothing"


def test_spread_over_devices_a_run_is_what_it_is_alone(method, trained):
    """Alone, one after another, on one device, and with more padding."""
    spread = first_round(trained.program, grid((0.0, 2.0)))
    leaves = jax.tree.leaves(trained.program.run(grid((0.0, 2.0))))
    assert {len(x.sharding.device_set) for x in leaves} == {min(4, jax.device_count())}
    looping = engine.Program(method, backend="loop")
    alone = first_round(looping, grid((0.0, 2.0), padding=3))
    # Of what a state keeps for each slot of a client, those beyond mean nothing.
    own = jax.tree.map(lambda x, y: y[tuple(map(slice, x.shape))], spread, alone)
    assert_close(spread, own, rtol=1e-5)


def test_what_an_absent_client_holds_changes_nothing(trained):
    def others(state):
        def but_one(x):
            return np.delete(x, 1, axis=1)

        server, clients = jax.device_get(state)
        return server, jax.tree.map(but_one, clients)

    whole = trained.program.run(grid(absent=(1,)))
    spoilt = trained.program.run(grid(absent=(1,), spoil=(1,)))
    assert_same(others(whole), others(spoilt))
    for state in map(others, (trained.state, whole)):
        for path, x in jax.tree_util.tree_leaves_with_path(state):
            name = jax.tree_util.keystr(path)
            assert np.isfinite(x).all(), f"state{name} is not finite"


@pytest.mark.methods(UPLOADING)
def test_uploads_are_those_of_the_clients_that_participate(method, trained):
    """On four devices as on one; of an absent client there is no point."""
    runs = grid(absent=(1,))
    state = trained.program.run(runs)
    uploads = jax.device_get(trained.program.uploads(runs, state))
    uploaded = np.isfinite(uploads.points).all(axis=-1)
    assert uploads.points.shape[:2] == uploads.members.shape[:2] == (2, len(SIZES))
    assert uploaded.any(axis=2).tolist() == [[True, False, True, True, True]] * 2
    alone = engine.Program(method, backend="loop").uploads(runs, state)
    assert_close(uploads, jax.device_get(alone))


@pytest.mark.methods(UPLOADING)
def test_every_example_is_uploaded_in_one_centroid_or_as_one_synthetic(trained, kind):
    """Members are counts of examples, or -1 for all synthetic examples."""
    points, members = jax.device_get(trained.program.uploads(grid(), trained.state))
    synthetic = (members == -1).all()
    assert kind in ("any", "synthetic" if synthetic else "centroids")
    if synthetic:
        # A client uploads as many synthetic examples as it has examples.
        members = np.isfinite(points).all(axis=-1)
    assert members.sum(axis=2).tolist() == [[*SIZES]] * 2


def test_other_methods_have_no_uploads():
    uploading = {x for x, build in METHODS.items() if build(0.1).uploads is not None}
    assert uploading == {*UPLOADING, "ccfc-paper-equations", "ccfc++"}


def test_a_resumed_run_ends_with_the_same_bits(trained, tmp_path):
    last = trained.rounds[-1].position

    def kill(round):
        if round.position == last:
            raise Stopped
        states.save(round)

    with pytest.raises(Stopped), Checkpoints(tmp_path, interval=0.0) as states:
        trained.program.run(grid(), on_round=kill)
    rounds = []
    resumed = trained.program.run(
        grid(),
        start=Checkpoints(tmp_path).restore,
        on_round=lambda round: rounds.append(round.position),
    )
    assert rounds == [last]
    assert_same(trained.state, resumed)


def test_rows_outside_the_federation_get_a_cluster_of_a_global_model():
    program, runs = engine.Program(METHODS["exact-fcm"]), grid()
    state, everyone = program.run(runs), federation()
    mask = np.asarray(everyone.mask)
    expected = np.asarray(program.assign(runs, state))[:, mask]
    rows = everyone.indices[everyone.mask][None]
    as_one = everyone._replace(indices=rows, mask=jnp.ones(rows.shape, bool))
    left_out = Federation(*jax.tree.map(lambda x: jnp.stack([x] * 2), as_one))
    left_out = left_out._replace(pool=as_one.pool)
    found = program.assign(runs._replace(federations=left_out), state)
    np.testing.assert_array_equal(found[:, 0], expected)


def test_a_run_that_is_done_stands_still_while_others_go_on():
    """Counters that stop at 2, 5 and 3: the stage ends when all have."""

    def build(limit):
        return FederatedClustering(
            init=lambda key, federation: State({"count": jnp.int32(0)}),
            stages=(
                Stage(
                    "count",
                    begin=lambda key, state, federation: state,
                    round=lambda key, state, federation: (
                        State({"count": state.server["count"] + 1}),
                        {"loss": 0.0 * limit},
                    ),
                    num_rounds=9,
                    done=lambda state: state.server["count"] >= limit,
                ),
            ),
            embed=lambda state, federation: jnp.zeros((1, 1, 1)),
            assign=lambda state, federation: jnp.zeros((1, 1), jnp.int32),
        )

    rounds = []
    state = engine.run(build, grid((2.0, 5.0, 3.0)), on_round=rounds.append)
    np.testing.assert_array_equal(state.server["count"], [2, 5, 3])
    assert [round.is_last for round in rounds] == [False] * 4 + [True]
    calls = over_runs(lambda hyper, *_: hyper * 2, "shard_map")
    np.testing.assert_array_equal(calls(grid((1.0, 2.0))), [2.0, 4.0])
