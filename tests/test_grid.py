"""A grid that is killed, extended, widened or has a run that diverges."""

import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.sweep import drifting
from tests.sweep.drifting import assert_same, prepare, rows, run, without_times

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
from fcjax.engine import Position
from tests import test_grid
from tests.sweep import drifting
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


def position(row):
    return int(row["stage_index"]), int(row["round"])


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_killed_grid_ends_with_the_bits_of_an_uninterrupted_one(
    data, whole, killed, tmp_path, capsys, is_damaged
):
    """From its newest checkpoint, or the one before where that is damaged."""
    out = shutil.copytree(killed, tmp_path / "out")
    # The last line may be cut short by the kill.
    history = [r for r in rows(out / "history.csv") if None not in r.values()]
    complete = {x.parent for x in out.glob("checkpoints/*/*/_CHECKPOINT_METADATA")}
    before, last = sorted(x for x in complete if "tmp" not in x.name)[-2:]
    assert int(last.name.split("-")[1]) >= 4
    if is_damaged:
        for file in filter(Path.is_file, last.rglob("*")):
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    newest = before if is_damaged else last
    run(out, data, **GRID)
    printed = capsys.readouterr().out
    assert "reusing 3 finished runs" in printed
    assert f"resuming from checkpoint {newest}" in printed
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
    assert rows(out / "results.csv")[:3] == rows(killed / "results.csv")


def test_a_finished_grid_is_reused_also_where_it_would_not_fit(
    data, whole, tmp_path, capsys
):
    """The same method, but of a state beyond all memory."""

    def large(*args):
        method = drifting.describe(*args)

        def build(settings):
            def init(key, federation):
                return jax.numpy.zeros((10**6, 10**6, 10**6), jax.numpy.int8)

            return method.build(settings)._replace(init=init)

        return method._replace(build=build)

    out = shutil.copytree(whole, tmp_path / "out")
    before = (out / "results.csv").read_bytes()
    run(out, data, **GRID, describe=large)
    assert "reusing 9 finished runs" in capsys.readouterr().out
    assert (out / "results.csv").read_bytes() == before
    with pytest.raises(ValueError, match=r"the state of one run needs 2728484.1 Ti"):
        prepare(out, data, **GRID | {"seed": (3,)}, describe=large)


def test_drawn_classes_and_a_subset_of_each_client_are_found_again(data, tmp_path):
    """Whole numbers. A third of the rows is more than 8."""
    flags = {"classes_per_client": (2, 3), "describe": in_common}
    out = run(tmp_path / "out", data, client_size=(8, 25), **flags)
    found = rows(out / "results.csv")
    dealt = [(row["classes_per_client"], row["client_size"]) for row in found]
    assert dealt == [("2", "8"), ("2", "25"), ("3", "8"), ("3", "25")]
    labels, saved = np.load(data)["y"], np.load(out / "assignments.npz")
    assert (saved["cluster"] >= 0).all()  # of a method in common all rows are scored
    names = ("classes_per_client", "client_size", "client")
    for classes, size, client in zip(*(saved[name] for name in names), strict=True):
        held = [labels[client == i] for i in range(3)]
        assert [len(set(own)) for own in held] == [classes] * 3
        assert all(len(own) == 8 if size == 8 else 8 < len(own) <= 25 for own in held)
        row = found[dealt.index((str(classes), str(size)))]
        assert int(row["left_out"]) == sum(client < 0)

    def asked(*sizes):
        groups = prepare(out, data, client_size=sizes, **flags).batches
        points = [point for group in groups for point in group.points]
        return [(p["classes_per_client"], p["client_size"]) for p in points]

    assert asked(8, 25) == asked(8) == []
    assert sorted(asked(8, 9)) == [(2, 9), (3, 9)]
    with pytest.raises(ValueError, match="the earlier command gives client_size"):
        prepare(out, data, **flags)


def test_further_values_of_floats_and_seeds_compile_nothing(data, tmp_path):
    """Calls of three runs each, whose clients are as large at both levels. Counted is
    how often the method is built from values that are not known yet: once for each
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

    def tracings(out, **flags):
        before = count
        flags |= {"describe": describe, "seed": (0, 1, 2), "runs_per_call": 3}
        return len(rows(run(out, data, **flags) / "results.csv")), count - before

    # The most calls come first: whatever JAX keeps can only spare the others.
    swept = {"weight": (0.0, 0.1), "rate": (0.1, 0.2)}
    num_runs, many = tracings(tmp_path / "many", p=(0.0, 0.5), **swept)
    _, few = tracings(tmp_path / "few", p=(0.0,))
    assert num_runs == 24
    assert 0 < many <= few


def test_a_run_that_diverges_leaves_those_beside_it_alone(data, tmp_path, capsys):
    flags = {"p": (0.0,), "runs_per_call": 3}
    sane = run(tmp_path / "sane", data, rate=(0.2, 0.3, 0.4), **flags)
    assert "diverged in" not in capsys.readouterr().out
    out = run(tmp_path / "wild", data, rate=(0.2, 0.3, 3e38), **flags)
    assert "rate 3e+38, seed 0 diverged in round" in capsys.readouterr().out
    sane, wild = (rows(folder / "results.csv") for folder in (sane, out))
    assert [row["rate"] for row in wild] == ["0.2", "0.3", "3e+38"]
    assert wild[2]["status"].startswith("diverged in round ")
    assert without_times(wild[:2]) == without_times(sane[:2])
    rounds = drifting.LEARN_ROUNDS + drifting.USE_ROUNDS
    assert len(rows(out / "history.csv")) == 3 * rounds
