"""Leading stages that several methods, settings and commands train once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import server, session
from fcjax.checkpoints import Position
from fcjax.grid import experiment, plan, shared_stages
from fcjax.grid.flags import Common
from fcjax.types import FederatedClustering, Stage
from tests.grid.test_experiment import rows, without_times

LEARN_ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class Args(Common):
    method: str = "near"
    rate: tuple[float, ...] = (0.3,)
    weight: tuple[float, ...] = (0.5,)
    learn_rounds: tuple[int, ...] = (LEARN_ROUNDS,)


def tiny(values, *, use, width):
    """Two stages of a few sums: what clients learn, and clusters that move towards it;
    `use` is what the second makes of what it is given."""

    def init(key, federation):
        return {"x": jax.random.normal(key, (len(federation.indices), width))}

    def learn(key, state, federation):
        present = federation.present[0]
        own = federation.pool[federation.indices].mean(axis=(1, 2))
        noise = jax.random.normal(key, state["x"].shape)
        x = state["x"] + values["rate"] * (own[:, None] + noise)
        x = jnp.where(present[:, None], x, state["x"])
        everyone, answered = server.gather((x, present))
        count = answered.sum(dtype=jnp.int32)
        up = jnp.stack([count, jnp.int32(4)])
        metrics = {"loss": everyone.mean(), "participants": count, "up_x": up}
        return {"x": x}, metrics

    def begin(key, state, federation):
        return {"x": state["x"], "centers": jax.random.normal(key, (3, 5))}

    def cluster(key, state, federation):
        moved = use(server.gather(state["x"])) + jax.random.normal(key, (3, 5))
        metrics = {"loss": moved.mean(), "participants": 3, f"size_{use.__name__}": 1.0}
        return {**state, "centers": state["centers"] + moved}, metrics

    def assign(state, federation):
        shape = federation.indices.shape
        if "centers" not in state:
            return jnp.full(shape, -1, jnp.int32)
        examples = federation.pool[federation.indices]
        return (examples @ state["centers"].T).argmax(axis=-1)

    def going_on(state):
        return jnp.array(False)

    return FederatedClustering(
        init,
        (
            Stage(
                "learn",
                lambda key, state, federation: state,
                learn,
                values["learn_rounds"],
                going_on,
            ),
            Stage("use", begin, cluster, 4, going_on),
        ),
        embed=lambda state, federation: federation.pool[federation.indices],
        assign=assign,
    )


def describe(args, dataset, num_clients, num_clusters, *, shared=True, width=2):
    """near sweeps a weight, far has none: they share what clients learn."""
    first = {"rate": args.rate, "learn_rounds": args.learn_rounds}
    settings = first | ({"weight": args.weight} if args.method == "near" else {})

    def build(values):
        def near(x):
            return values["weight"] * x.mean()

        def far(x):
            return -x.max()

        use = near if args.method == "near" else far
        return tiny(values, use=use, width=width)

    return plan.Method(
        name=args.method,
        settings=settings,
        build=build,
        scope="client-mean",  # there is no model to export
        paper={},
        shared=plan.Shared("tiny", 1, first) if shared else None,
    )


def alone(*args):
    """The method as one that shares nothing."""
    return describe(*args, shared=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data") / "x.npz", seed=0)


def write_data(path, *, seed):
    labels = np.repeat([0, 1, 2], [16, 20, 26])
    noise = np.random.default_rng(seed).normal(size=(62, 5))
    np.savez(path, x=noise + 3 * np.eye(5)[labels], y=labels)
    return str(path)


def prepare(out, data, *, describe=describe, **flags):
    flags = {"clients": (3,), "seed": (0, 1), "runs_per_call": 4, **flags}
    args = Args(dataset=data, out=out, plot=False, checkpoint_interval=0.0, **flags)
    return experiment.prepare(args, describe)


def run(out, data, **flags):
    session.execute(prepare(out, data, **flags))


class Killed(Exception):
    pass


def run_until(position, out, data, *, of_seed=0, **flags):
    """Runs until this round of a seed's call is done, of which nothing is kept."""
    prepared = prepare(out, data, **flags)
    add = prepared.results.add_history

    def killed(reached, rows):
        if reached == position and rows[0]["seed"] == of_seed:
            raise Killed
        add(reached, rows)

    prepared.results.add_history = killed
    with pytest.raises(Killed):
        session.execute(prepared)


def kept(out):
    return sorted((out / "stages").iterdir())


def assert_same(folder, other):
    """All but the times are the same, to the order of columns and the last digit."""
    for name in ("results.csv", "history.csv"):
        ours, theirs = rows(folder / name), rows(other / name)
        assert without_times(ours) == without_times(theirs)
        assert list(ours[0]) == list(theirs[0])
    one, two = (np.load(x / "assignments.npz") for x in (folder, other))
    for name in two:
        np.testing.assert_array_equal(one[name], two[name])


def learnt_in(folder):
    """When each run had its rounds of the first stage, in seconds."""
    found = rows(folder / "history.csv")
    return {
        (row["rate"], row["seed"], row["round"]): row["seconds"]
        for row in found
        if row["stage"] == "learn"
    }


@pytest.fixture(scope="module")
def far_alone(data, tmp_path_factory):
    """far, which has trained everything itself."""
    out = tmp_path_factory.mktemp("alone")
    run(out / "far", data, method="far", describe=alone)
    assert not (out / "stages").exists()
    return out / "far"


@pytest.fixture(scope="module")
def near(data, tmp_path_factory):
    """near, which came first."""
    out = tmp_path_factory.mktemp("both")
    run(out / "near", data)
    return out


@pytest.fixture
def after_near(near, tmp_path):
    """A folder in which near has been trained."""
    (tmp_path / "stages").mkdir()
    for path in kept(near):
        (tmp_path / "stages" / path.name).write_bytes(path.read_bytes())
    return tmp_path


# --- another method


def test_a_second_method_ends_as_if_it_had_trained_all(near, far_alone, data, capsys):
    assert len(kept(near)) == 2
    run(near / "far", data, method="far")
    line = f"2 runs go on from stages that were trained before ({near / 'stages'})"
    assert capsys.readouterr().out.count(line) == 1
    assert_same(near / "far", far_alone)
    # Their seconds are the first method's: no round of them ran again.
    assert learnt_in(near / "far") == learnt_in(near / "near")
    assert len(learnt_in(near / "far")) == 2 * LEARN_ROUNDS
    assert len(kept(near)) == 2
    first, *_, last = rows(near / "far" / "history.csv")
    assert (first["stage"], first["nmi"], first["size_far"]) == ("learn", "", "")
    assert first["up_x"] == "12"  # three clients, four bytes each
    assert (last["stage"], last["up_x"], last["size_far"]) == ("use", "", "1.0")
    assert "weight" not in first


def test_columns_of_a_resumed_history_stay_behind(data, tmp_path):
    """Read back from its file, a row of a first stage has those of the second too."""
    flags = {"runs_per_call": 1}
    run_until(Position(0, 3), tmp_path / "near", data, of_seed=1, **flags)
    run(tmp_path / "near", data, **flags)
    run(tmp_path / "far", data, method="far", **flags)
    run(tmp_path / "other" / "far", data, method="far", describe=alone, **flags)
    assert learnt_in(tmp_path / "far") == learnt_in(tmp_path / "near")
    assert_same(tmp_path / "far", tmp_path / "other" / "far")


def test_shards_keep_their_stages_beside_the_grid(data, tmp_path, capsys):
    for shard in ("0/2", "1/2"):
        run(tmp_path / "near", data, shard=shard)
    assert len(kept(tmp_path)) == 2
    run(tmp_path / "far", data, method="far", shard="0/2")
    assert "1 runs go on" in capsys.readouterr().out


# --- what decides them


def finds(out, data, *, describe=describe, **flags):
    """Whether the runs of the flags' only call find what they share."""
    prepared = prepare(out, data, describe=describe, **flags)
    (group,) = prepared.groups
    (call,) = shared_stages.calls(group, prepared.pool)
    prepared.results.begin()
    start = shared_stages.Kept(prepared).start(call)
    if start is None:
        return False
    one = jax.tree.map(lambda x: x[0], call.grid._replace(federations=None))
    federation = jax.tree.map(
        lambda x: x[0], call.grid.federations._replace(pool=None)
    )._replace(pool=call.grid.federations.pool)
    method, shapes = group.build(one.hyper), []
    state = jax.eval_shape(method.init, one.keys, federation)
    for stage in method.stages:
        state = jax.eval_shape(stage.begin, one.keys, state, federation)
        shapes.append(stacked(state, len(call.points)))
    return start(shapes.__getitem__) is not None


def stacked(state, count):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((count, *x.shape), x.dtype), state
    )


def wider(*args):
    return describe(*args, width=4)


def named(*args):
    method = describe(*args)
    assert method.shared is not None
    return method._replace(shared=method.shared._replace(name="other"))


def told(value):
    """What a test is called by, the same in every process: no address."""
    if not isinstance(value, dict):
        return str(value)
    return ",".join(f"{k}={getattr(v, '__name__', v)}" for k, v in value.items())


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ({}, True),
        ({"method": "far"}, True),
        ({"weight": (0.7,)}, True),
        ({"method": "far", "seed": (1,)}, True),
        ({"evaluate_every": 2}, False),
        ({"seed": (0, 1, 2)}, False),  # not all of them
        ({"rate": (0.2,)}, False),
        ({"learn_rounds": (2,)}, False),
        ({"p": (1.0,)}, False),
        ({"alpha": (0.25,)}, False),
        ({"partition_seed": 0}, False),
        ({"clients": (2,)}, False),
        ({"clusters": (2,)}, False),
        ({"failure_rate": (0.34,)}, False),
        ({"failures": "per-round"}, False),
        ({"precision": "high"}, False),
        ({"limit": 60}, False),
        ({"resume": False}, False),
        ({"describe": wider}, False),
        ({"describe": named}, False),
        ({"describe": alone}, False),
    ],
    ids=told,
)
def test_stages_are_found_by_all_that_decides_them(after_near, data, flags, found):
    assert finds(after_near / "again", data, **flags) is found


def test_other_data_at_the_same_path_is_other_data(tmp_path):
    path = tmp_path / "x.npz"
    run(tmp_path / "near", write_data(path, seed=0), seed=(0,))
    assert finds(tmp_path / "far", str(path), seed=(0,), method="far")
    with np.load(path) as file:
        x, y = file["x"], file["y"]
    np.savez(path, x=x, y=y[::-1])
    assert not finds(tmp_path / "other", str(path), seed=(0,), method="far")
    np.savez(path, x=x[::-1], y=y)
    assert not finds(tmp_path / "other", str(path), seed=(0,), method="far")
    np.savez(path, x=x, y=y)
    assert finds(tmp_path / "other", str(path), seed=(0,), method="far")


# --- a sweep


def test_a_sweep_of_a_later_stage_trains_the_first_once(data, tmp_path, capsys):
    flags = {"weight": (0.5, 0.1, 0.9), "rate": (0.3, 0.2), "seed": (0,)}
    flags |= {"runs_per_call": 2}
    run(tmp_path / "sweep", data, **flags)
    assert capsys.readouterr().out.count("2 runs go on") == 2
    assert len(kept(tmp_path)) == 2
    run(tmp_path / "alone", data, describe=alone, **flags)
    tables = [
        without_times(rows(tmp_path / folder / "history.csv"))
        for folder in ("sweep", "alone")
    ]
    assert len(tables[0]) == 6 * (LEARN_ROUNDS + 4)
    in_order = [sorted(table, key=lambda row: tuple(row.values())) for table in tables]
    assert in_order[0] == in_order[1]
    results = rows(tmp_path / "sweep" / "results.csv")
    expected = rows(tmp_path / "alone" / "results.csv")
    assert without_times(results) == without_times(expected)
    assert {row["rounds"] for row in results} == {str(LEARN_ROUNDS + 4)}


# --- killed


def test_killed_in_a_later_stage_it_goes_on_from_its_checkpoint(
    after_near, far_alone, data, capsys
):
    out = after_near / "far"
    run_until(Position(1, 3), out, data, method="far")
    assert "2 runs go on" in capsys.readouterr().out
    before = rows(out / "history.csv")
    assert len(before) == 2 * (LEARN_ROUNDS + 2)
    run(out, data, method="far")
    printed = capsys.readouterr().out
    assert "going on from checkpoint" in printed
    assert "go on from stages" not in printed
    assert rows(out / "history.csv")[: len(before)] == before
    assert_same(out, far_alone)


def test_killed_before_its_first_checkpoint_it_finds_the_stages_again(
    after_near, far_alone, data, capsys
):
    out = after_near / "far"
    run_until(Position(1, 1), out, data, method="far")
    assert len(rows(out / "history.csv")) == 2 * LEARN_ROUNDS
    capsys.readouterr()
    run(out, data, method="far")
    assert "2 runs go on" in capsys.readouterr().out
    assert_same(out, far_alone)


def test_a_checkpoint_of_its_own_wins(near, far_alone, data, tmp_path, capsys):
    out = tmp_path / "far"
    run_until(Position(0, 3), out, data, method="far")
    (tmp_path / "stages").symlink_to(near / "stages")
    before = learnt_in(out)
    run(out, data, method="far")
    printed = capsys.readouterr().out
    assert "going on from checkpoint" in printed
    assert "go on from stages" not in printed
    assert len(before) == 2 * 2
    assert before.items() <= learnt_in(out).items()
    assert_same(out, far_alone)


# --- files


def spoil(path, change):
    leaves, history = shared_stages.read(path)
    shared_stages.write(path, [change(leaf) for leaf in leaves], history)


def test_written_over_by_no_resume_and_never_read(after_near, near, data, far_alone):
    for path in kept(after_near):
        spoil(path, lambda leaf: leaf + 1)
    read = after_near / "read"
    run(read, data, method="far")
    losses = [[r["loss"] for r in rows(x / "history.csv")] for x in (read, far_alone)]
    assert losses[0][: 2 * LEARN_ROUNDS] == losses[1][: 2 * LEARN_ROUNDS]
    assert losses[0][2 * LEARN_ROUNDS :] != losses[1][2 * LEARN_ROUNDS :]

    run(after_near / "far", data, method="far", resume=False)
    assert_same(after_near / "far", far_alone)
    for path in kept(after_near):
        (new,), _ = shared_stages.read(path)
        (old,), _ = shared_stages.read(near / "stages" / path.name)
        np.testing.assert_array_equal(new, old)


def test_a_damaged_file_is_trained_anew(after_near, far_alone, data, capsys):
    path = kept(after_near)[0]
    path.write_bytes(path.read_bytes()[:-100])
    run(after_near / "far", data, method="far")
    printed = capsys.readouterr().out
    assert "skipping unreadable stages in" in printed
    assert "go on from" not in printed
    assert_same(after_near / "far", far_alone)
    shared_stages.read(path)


def test_a_history_of_no_numbers_is_kept(tmp_path):
    history = [{"stage_index": 0, "loss": float("nan"), "nmi": ""}]
    leaves = [np.arange(3.0), np.array(4), np.zeros((0, 2), np.int8)]
    shared_stages.write(tmp_path / "new" / "x.npz", leaves, history)
    found, rows_found = shared_stages.read(tmp_path / "new" / "x.npz")
    for leaf, other in zip(leaves, found, strict=True):
        assert leaf.dtype == other.dtype
        np.testing.assert_array_equal(leaf, other)
    assert list(rows_found[0]) == ["stage_index", "loss", "nmi"]
    assert np.isnan(rows_found[0]["loss"])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.npz"]
