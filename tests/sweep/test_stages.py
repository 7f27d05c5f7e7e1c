"""Leading stages that several methods, settings and commands train once."""

import shutil
from functools import partial

import jax
import numpy as np
import pytest

from fcjax.engine import Position
from fcjax.methods.base import Shared
from fcjax.sweep import train
from tests.sweep import drifting
from tests.sweep.drifting import LEARN_ROUNDS, assert_same, rows, without_times

alone = drifting.describe
"""near and far as methods that share nothing."""


def describe(args, *others, name="learnt", **more):
    """near and far share what clients learn."""
    deciding = {"rate": args.rate, "learn_rounds": args.learn_rounds}
    return alone(args, *others, shared=Shared(name, 1, deciding), **more)


def options(flags):
    return {"seed": (0, 1), "runs_per_call": 4, "describe": describe, **flags}


def run(out, data, **flags):
    return drifting.run(out, data, **options(flags))


def run_until(position, out, data, *, of_seed=0, **flags):
    with pytest.raises(drifting.Killed):
        drifting.run_until(position, out, data, at={"seed": of_seed}, **options(flags))


def kept(out):
    return sorted(x for x in (out / "stages").iterdir() if x.is_dir())


def damage(folder):
    """Cuts all that orbax has written off in the middle."""
    for path in folder.glob("0*/**/*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def learnt_in(folder):
    """When each run had its rounds of the first stage, in seconds."""
    found = [row for row in rows(folder / "history.csv") if row["stage"] == "learn"]
    return {(row["rate"], row["seed"], row["round"]): row["seconds"] for row in found}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return drifting.vectors(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def far_alone(data, tmp_path_factory):
    """far, which has trained everything itself."""
    out = tmp_path_factory.mktemp("alone") / "far"
    return run(out, data, method="far", describe=alone)


@pytest.fixture(scope="module")
def near(data, tmp_path_factory):
    """near, which came first."""
    out = tmp_path_factory.mktemp("both")
    run(out / "near", data)
    return out


@pytest.fixture
def after_near(near, tmp_path):
    """A folder in which near has been trained."""
    shutil.copytree(near / "stages", tmp_path / "stages")
    return tmp_path


# --- another method


def test_a_second_method_ends_as_if_it_had_trained_all(near, far_alone, data, capsys):
    assert len(kept(near)) == 2
    run(near / "far", data, method="far")
    line = f"2 runs: leading stages loaded from the stage cache {near / 'stages'}"
    assert capsys.readouterr().out.count(line) == 1
    assert_same(near / "far", far_alone)
    # Their seconds are the first method's: no round of them ran again.
    assert learnt_in(near / "far") == learnt_in(near / "near")
    assert len(learnt_in(near / "far")) == 2 * LEARN_ROUNDS
    assert len(kept(near)) == 2


def test_columns_of_a_resumed_history_stay_behind(data, far_alone, tmp_path):
    """Read back from its file, a row of a first stage has those of the second too."""
    flags = {"runs_per_call": 1}
    run_until(Position(0, 3), tmp_path / "near", data, of_seed=1, **flags)
    run(tmp_path / "near", data, **flags)
    run(tmp_path / "far", data, method="far", **flags)
    assert learnt_in(tmp_path / "far") == learnt_in(tmp_path / "near")
    ours, theirs = (rows(x / "history.csv") for x in (tmp_path / "far", far_alone))
    assert list(ours[0]) == list(theirs[0])
    # Side by side the runs have each round in turn.
    theirs.sort(key=lambda row: int(row["seed"]))
    assert without_times(ours) == without_times(theirs)


# --- what decides them


def finds(out, data, **flags):
    """Whether the runs of the flags' first call find what they share."""
    prepared = drifting.prepare(out, data, **options(flags))
    batch = prepared.batches[0]
    (batch,) = train.ordered_calls(batch)
    prepared.folder.begin()
    start = train.StageCache(prepared).start(batch)
    grid = batch.grid(prepared.pool)

    def first(tree):
        return jax.tree.map(lambda x: x[0], tree)

    def stacked(x):
        return jax.ShapeDtypeStruct((len(batch.points), *x.shape), x.dtype)

    pool, key = grid.federations.pool, grid.keys[0]
    federation = first(grid.federations._replace(pool=None))._replace(pool=pool)
    method = batch.build(first(grid.hyper))
    state = jax.eval_shape(method.init, key, federation)
    # What it begins with has the shapes of what the first stage ends in.
    state = jax.eval_shape(method.stages[0].begin, key, state, federation)
    return start([jax.tree.map(stacked, state)].__getitem__) is not None


@pytest.mark.parametrize(
    ("flags", "found"),
    [
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
        ({"describe": partial(describe, width=4)}, False),
        ({"describe": partial(describe, name="other")}, False),
        ({"describe": alone}, False),
    ],
)
def test_stages_are_found_by_all_that_decides_them(after_near, data, flags, found):
    assert finds(after_near / "again", data, **flags) is found


def test_stages_lie_beside_the_grid_of_shards_and_are_of_the_data_of_then(tmp_path):
    path = drifting.vectors(tmp_path)
    for shard in ("0/2", "1/2"):
        run(tmp_path / "near", path, shard=shard)
    assert len(kept(tmp_path)) == 2
    assert finds(tmp_path / "far", path, method="far", shard="0/2")
    with np.load(path) as file:
        x, y = file["x"], file["y"]
    for name, examples, labels in (
        ("other classes", x, y[::-1]),
        ("other examples", x[::-1], y),
        ("the same", x, y),
    ):
        np.savez(path, x=examples, y=labels)
        found = finds(tmp_path / name, path, method="far")
        assert found is (name == "the same")


# --- a sweep


def test_a_sweep_of_a_later_stage_trains_the_first_once(data, tmp_path, capsys):
    flags = {"weight": (0.5, 0.1, 0.9), "rate": (0.3, 0.2), "seed": (0,)}
    flags |= {"runs_per_call": 2}
    run(tmp_path / "sweep", data, **flags)
    assert capsys.readouterr().out.count("2 runs: leading stages") == 2
    assert len(kept(tmp_path)) == 2
    run(tmp_path / "alone", data, describe=alone, **flags)
    for name in ("history.csv", "results.csv"):
        one, other = (
            sorted(tuple(row.items()) for row in without_times(rows(x / name)))
            for x in (tmp_path / "sweep", tmp_path / "alone")
        )
        assert one == other


# --- killed


@pytest.mark.parametrize(
    ("position", "was_found", "num_kept", "goes_on"),
    [
        (Position(1, 3), True, LEARN_ROUNDS + 2, "resuming from checkpoint"),
        # Before its first checkpoint it finds the stages again.
        (Position(1, 1), True, LEARN_ROUNDS, "2 runs: leading stages loaded"),
        # A checkpoint of its own wins over stages that are there now.
        (Position(0, 3), False, 2, "resuming from checkpoint"),
    ],
)
def test_killed_it_goes_on_from_its_checkpoint_or_the_stages(
    near, far_alone, data, tmp_path, capsys, position, was_found, num_kept, goes_on
):
    out, link = tmp_path / "far", tmp_path / ("stages" if was_found else "later")
    link.symlink_to(near / "stages")
    run_until(position, out, data, method="far")
    assert ("2 runs: leading stages" in capsys.readouterr().out) == was_found
    if not was_found:
        link.rename(tmp_path / "stages")
    before = rows(out / "history.csv")
    assert len(before) == 2 * num_kept
    run(out, data, method="far")
    assert goes_on in capsys.readouterr().out
    # Their seconds too: no round of them ran again.
    for old, new in zip(before, rows(out / "history.csv"), strict=False):
        assert old.items() <= new.items()
    assert_same(out, far_alone)


# --- files


@pytest.mark.parametrize("resume", [True, False])
def test_damaged_stages_are_trained_anew_and_written_over(
    after_near, data, far_alone, capsys, resume
):
    """Without --no-resume they are read first."""
    for path in kept(after_near):
        damage(path)
    run(after_near / "far", data, method="far", resume=resume)
    printed = capsys.readouterr().out
    assert ("skipping the damaged checkpoint" in printed) == resume
    assert "leading stages" not in printed
    assert_same(after_near / "far", far_alone)
    run(after_near / "again", data, method="far")
    assert "2 runs: leading stages loaded" in capsys.readouterr().out
    assert_same(after_near / "again", far_alone)
