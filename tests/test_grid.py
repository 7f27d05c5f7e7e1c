"""A grid that is killed, extended, widened or has a run that diverges."""

import csv
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.grid import drifting
from tests.grid.drifting import assert_same, prepare, rows, run, without_times

ROOT = Path(__file__).parents[1]
NUM_ROUNDS = 7 + drifting.USE_ROUNDS
GRID = {"p": (0.0, 0.5, 1.0), "seed": (0, 1, 2), "runs_per_call": 3}
GRID |= {"learn_rounds": (7,)}
"""Nine runs in three calls: p = 0, p = 0.5 and p = 1."""


def in_common(*args):
    return drifting.describe(*args, scope="global")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return drifting.vectors(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The grid in one session."""
    return run(tmp_path_factory.mktemp("whole"), data, **GRID)


KILL = """
import os, signal, sys
from pathlib import Path
from fcjax.checkpoints import Position
from tests import test_grid
from tests.grid import drifting
drifting.run_until(
    Position(0, 6),
    Path(sys.argv[1]),
    sys.argv[2],
    at={"p": 0.5},
    kill=lambda: os.kill(os.getpid(), signal.SIGKILL),
    **test_grid.GRID,
)
"""


@pytest.fixture(scope="module")
def killed(data, tmp_path_factory):
    """The grid, killed in the sixth round of its second call: the fourth is saved, and
    maybe the fifth."""
    out = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-c", KILL, out, data]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(rows(out / "results.csv")) == 3
    return out


def checkpoints(out):
    """What is complete of the call that was stopped, oldest first."""
    found = out.glob("checkpoints/*/*/_CHECKPOINT_METADATA")
    return sorted(file.parent for file in found if "tmp" not in file.parent.name)


def position(row):
    return int(row["stage_index"]), int(row["round"])


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_killed_grid_ends_with_the_bits_of_an_uninterrupted_one(
    data, whole, killed, tmp_path, capsys, is_damaged
):
    """From its newest checkpoint, or the one before where that is damaged."""
    out = shutil.copytree(killed, tmp_path / "out")
    # The last line may be cut short by the kill.
    with (out / "history.csv").open(newline="") as file:
        history = [row for row in csv.DictReader(file) if None not in row.values()]
    before, last = checkpoints(out)[-2:]
    assert int(last.name.split("-")[1]) >= 4
    if is_damaged:
        for file in filter(Path.is_file, last.rglob("*")):
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    newest = before if is_damaged else last
    run(out, data, **GRID)
    printed = capsys.readouterr().out
    assert "reusing 3 finished runs" in printed
    assert f"going on from checkpoint {newest}" in printed
    assert (f"skipping the damaged checkpoint {last}" in printed) == is_damaged

    assert_same(out, whole)
    after = rows(out / "history.csv")
    times = Counter((row["p"], row["seed"], *position(row)) for row in after)
    assert set(times.values()) == {1}
    assert len(times) == 9 * NUM_ROUNDS
    # Their seconds too: no round that was saved ran again.
    saved = tuple(map(int, newest.name.split("-")))
    kept = [row for row in history if row["p"] == "0.0" or position(row) <= saved]
    assert len(kept) == 3 * NUM_ROUNDS + 3 * saved[1]
    assert after[: len(kept)] == kept
    finished = rows(killed / "results.csv")
    assert rows(out / "results.csv")[:3] == finished


def test_a_finished_grid_is_reused_and_extended(data, whole, tmp_path, capsys):
    out = shutil.copytree(whole, tmp_path / "out")
    before = (out / "results.csv").read_bytes()
    run(out, data, **GRID)
    assert "reusing 9 finished runs" in capsys.readouterr().out
    assert (out / "results.csv").read_bytes() == before

    run(out, data, **GRID | {"seed": (0, 1, 2, 3)})
    known = {(row["p"], row["seed"]): row for row in rows(whole / "results.csv")}
    more = rows(out / "results.csv")
    assert [row["seed"] for row in more] == ["0", "1", "2", "3"] * 3
    assert [row for row in more if row["seed"] != "3"] == list(known.values())
    history = rows(out / "history.csv")
    assert history[: 9 * NUM_ROUNDS] == rows(whole / "history.csv")
    assert {row["seed"] for row in history[9 * NUM_ROUNDS :]} == {"3"}
    assert len(history) == 12 * NUM_ROUNDS
    with pytest.raises(ValueError, match=r"another configuration \(precision differ"):
        prepare(out, data, **GRID, precision="high")


# --- dealt by drawn classes, and a subset of what is dealt


def test_drawn_classes_are_whole_numbers_and_found_again(data, tmp_path):
    out = run(tmp_path / "out", data, classes_per_client=(2, 3))
    found = rows(out / "results.csv")
    assert [row["classes_per_client"] for row in found] == ["2", "3"]
    assert [row["clusters"] for row in found] == ["2", "3"]
    labels = np.load(data)["y"]
    for client, held in zip(
        np.load(out / "assignments.npz")["client"], (2, 3), strict=True
    ):
        assert [len(set(labels[client == i])) for i in range(3)] == [held] * 3

    def pending(*values, **flags):
        groups = prepare(out, data, classes_per_client=values, **flags).groups
        return [p["classes_per_client"] for group in groups for p in group.points]

    assert pending(2, 3) == pending(3) == []
    assert pending(2, 3, seed=(0, 1)) == [2, 3]


def test_a_subset_of_each_client_is_trained_on(data, tmp_path):
    """At p = 0 three clients have 20 of the 62 rows each."""
    flags = {"p": (0.0,), "describe": in_common}
    out = run(tmp_path / "out", data, client_size=(8, 25), **flags)
    found = rows(out / "results.csv")
    assert [row["client_size"] for row in found] == ["8", "25"]
    assert [row["left_out"] for row in found] == ["38", "2"]
    saved = np.load(out / "assignments.npz")
    for client, size in zip(saved["client"], (8, 20), strict=True):
        assert [int((client == i).sum()) for i in range(3)] == [size] * 3
    # Of a method in common all rows are scored.
    assert (saved["cluster"] >= 0).all()
    (group,) = prepare(out, data, client_size=(8, 9, 25), **flags).groups
    assert [point["client_size"] for point in group.points] == [9]
    with pytest.raises(ValueError, match=r"another configuration \(swept differ"):
        prepare(out, data, **flags)


def test_what_is_finished_is_reused_where_it_would_not_fit(data, whole):
    """The same method, but of a state beyond all memory."""

    def large(*args):
        method = drifting.describe(*args)

        def build(settings):
            def init(key, federation):
                return jax.numpy.zeros((10**6, 10**6, 10**6), jax.numpy.int8)

            return method.build(settings)._replace(init=init)

        return method._replace(build=build)

    assert prepare(whole, data, **GRID, describe=large).groups == ()
    with pytest.raises(ValueError, match=r"the state of one run takes 3 x 909494.7 Ti"):
        prepare(whole, data, **GRID | {"seed": (3,)}, describe=large)


# --- one program


def tracings(out, data, **flags):
    """How often the method is built from values that are not known yet: once for each
    function that is compiled or has its shapes taken."""
    count = 0

    def describe(*args):
        method = drifting.describe(*args)

        def build(settings):
            nonlocal count
            values = settings.values()
            count += any(isinstance(value, jax.core.Tracer) for value in values)
            return method.build(settings)

        return method._replace(build=build)

    run(out, data, describe=describe, seed=(0, 1, 2), runs_per_call=3, **flags)
    return count


def test_further_values_of_floats_and_seeds_compile_nothing(data, tmp_path):
    """Calls of three runs each; p = 1 has a larger client and leaves no row out."""
    swept = {"weight": (0.0, 0.1), "rate": (0.1, 0.2)}
    # The most calls come first: whatever JAX keeps can only spare the others.
    many = tracings(tmp_path / "many", data, p=(0.0, 1.0), **swept)
    few = tracings(tmp_path / "few", data, p=(0.0,))
    twice = tracings(tmp_path / "twice", data, p=(0.0,), learn_rounds=(1, 2))
    assert 0 < many <= few
    assert twice == 2 * few
    assert len(rows(tmp_path / "many" / "results.csv")) == 24


def test_a_run_that_diverges_leaves_those_beside_it_alone(data, tmp_path, capsys):
    flags = {"p": (0.0,), "runs_per_call": 3}
    sane = rows(
        run(tmp_path / "0", data, rate=(0.2, 0.3, 0.4), **flags) / "results.csv"
    )
    assert "diverged" not in capsys.readouterr().out
    out = run(tmp_path / "wild", data, rate=(0.2, 0.3, 3e38), **flags)
    assert "rate 3e+38, seed 0 diverged in round" in capsys.readouterr().out
    wild = rows(out / "results.csv")
    assert [row["rate"] for row in wild] == ["0.2", "0.3", "3e+38"]
    assert wild[2]["status"].startswith("diverged in round ")
    assert without_times(wild[:2]) == without_times(sane[:2])
    rounds = drifting.LEARN_ROUNDS + drifting.USE_ROUNDS
    assert len(rows(out / "history.csv")) == 3 * rounds
