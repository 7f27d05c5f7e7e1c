"""A grid that is killed, extended, widened or has a run that diverges."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

import ccfc
import jax
import numpy as np
import pytest

from tests.experiments.test_failures import describe as roll_call
from tests.grid.test_experiment import (
    SCRIPT,
    VECTORS,
    execute,
    prepare,
    rows,
    run,
    vectors,
    without_times,
)

NUM_ROUNDS = 8 + 2
GRID = [*VECTORS, "--pretrain-rounds=8", "--no-plot", "--runs-per-call=3"]
GRID += ["--p", "0", "0.5", "1", "--seed", "0", "1", "2"]
"""Nine runs in three calls: p = 0, p = 0.5 and p = 1."""
ONE_STAGE = [*VECTORS, "--no-plot", "--runs-per-call=3", "--pretrain-rounds=0"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return f"--dataset={vectors(tmp_path_factory.mktemp('data'))}"


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """The grid in one session."""
    out = tmp_path_factory.mktemp("whole")
    execute(out, data, *GRID)
    return out


@pytest.fixture(scope="module")
def killed(data, whole, tmp_path_factory):
    """The grid, killed in a later call once two of its rounds are saved."""
    out = tmp_path_factory.mktemp("killed")
    command = [sys.executable, str(SCRIPT), f"--out={out}", data, *GRID]
    cache = jax.config.values["jax_compilation_cache_dir"]
    process = subprocess.Popen(
        command,
        env={**os.environ, "JAX_COMPILATION_CACHE_DIR": cache},
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 240
    # A call that has ended keeps only checkpoints of its last stage.
    saved = "checkpoints/*/00-00000[2-7]/_CHECKPOINT_METADATA"
    while not ((out / "results.csv").exists() and list(out.glob(saved))):
        assert process.poll() is None, "the grid ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(rows(out / "results.csv")) in (3, 6)
    return out


def checkpoints(out):
    """What is complete of the call that was stopped, oldest first."""
    found = out.glob("checkpoints/*/*/_CHECKPOINT_METADATA")
    return sorted(file.parent for file in found if "tmp" not in file.parent.name)


def position(row):
    return int(row["stage_index"]), int(row["round"])


def stays(history, finished, checkpoint):
    """The rounds that a session which goes on from there does not run again."""
    ended = {(row["p"], row["seed"]) for row in finished}
    last = tuple(map(int, checkpoint.name.split("-")))
    return [
        row
        for row in history
        if (row["p"], row["seed"]) in ended or position(row) <= last
    ]


def history_before(out):
    """The last line may be cut short by the kill."""
    with (out / "history.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]


def assert_ends_as(whole, out):
    for name in ("results.csv", "history.csv"):
        assert without_times(rows(out / name)) == without_times(rows(whole / name))
    one, other = (np.load(x / "assignments.npz") for x in (whole, out))
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    times = Counter(
        (r["p"], r["seed"], *position(r)) for r in rows(out / "history.csv")
    )
    assert set(times.values()) == {1}
    assert len(times) == 9 * NUM_ROUNDS


# --- killed


def test_a_killed_grid_ends_with_the_bits_of_an_uninterrupted_one(
    data, whole, killed, tmp_path
):
    out = shutil.copytree(killed, tmp_path / "out")
    history, finished = history_before(out), rows(out / "results.csv")
    newest = checkpoints(out)[-1]
    kept = stays(history, finished, newest)
    assert len(kept) >= 3 * NUM_ROUNDS + 3 * 2

    printed = run(out, data, *GRID)
    assert f"reusing {len(finished)} finished runs" in printed
    assert f"going on from checkpoint {newest}" in printed
    assert_ends_as(whole, out)
    # Their seconds too: no round that was saved ran again.
    after = rows(out / "history.csv")
    assert after[: len(kept)] == kept
    assert rows(out / "results.csv")[: len(finished)] == finished


def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    data, whole, killed, tmp_path, capsys
):
    out = shutil.copytree(killed, tmp_path / "out")
    history, finished = history_before(out), rows(out / "results.csv")
    *_, before, newest = checkpoints(out)
    for file in newest.rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    kept = stays(history, finished, before)

    execute(out, data, *GRID)
    printed = capsys.readouterr().out
    assert f"skipping the damaged checkpoint {newest}" in printed
    assert f"going on from checkpoint {before}" in printed
    assert_ends_as(whole, out)
    assert rows(out / "history.csv")[: len(kept)] == kept


# --- extended


def test_a_finished_grid_is_reused_and_extended(data, whole, tmp_path, capsys):
    out = shutil.copytree(whole, tmp_path / "out")
    before = (out / "results.csv").read_bytes()
    execute(out, data, *GRID)
    assert "reusing 9 finished runs" in capsys.readouterr().out
    assert (out / "results.csv").read_bytes() == before

    execute(out, data, *GRID, "--seed", "0", "1", "2", "3")
    known = {(row["p"], row["seed"]): row for row in rows(whole / "results.csv")}
    more = rows(out / "results.csv")
    assert [row["seed"] for row in more] == ["0", "1", "2", "3"] * 3
    assert [row for row in more if row["seed"] != "3"] == list(known.values())
    history = rows(out / "history.csv")
    assert history[: 9 * NUM_ROUNDS] == rows(whole / "history.csv")
    assert {row["seed"] for row in history[9 * NUM_ROUNDS :]} == {"3"}
    assert len(history) == 12 * NUM_ROUNDS


def test_another_configuration_is_refused(data, whole):
    with pytest.raises(ValueError, match=r"another configuration \(precision differ"):
        prepare(f"--out={whole}", data, *GRID, "--precision=high")


# --- dealt by drawn classes, and a subset of what is dealt


def alone(args, dataset, num_clients, num_clusters):
    """Clients that cluster on their own, and learn nothing."""
    method = roll_call(args, dataset, num_clients, num_clusters)

    def build(settings):
        built = method.build(settings)
        return built._replace(assign=lambda *x: built.assign(*x) % num_clusters)

    return method._replace(build=build, scope="client-mean")


def test_drawn_classes_are_whole_numbers_and_found_again(data, tmp_path):
    out, flags = tmp_path / "out", [data, "--clients=3", "--no-plot"]
    execute(out, *flags, "--classes-per-client", "2", "3", describe=alone)
    found = rows(out / "results.csv")
    assert [row["classes_per_client"] for row in found] == ["2", "3"]
    assert [row["clusters"] for row in found] == ["2", "3"]
    labels = np.load(data.removeprefix("--dataset="))["y"]
    for client, held in zip(
        np.load(out / "assignments.npz")["client"], (2, 3), strict=True
    ):
        assert [len(set(labels[client == i])) for i in range(3)] == [held] * 3

    def pending(*values):
        asked = [f"--out={out}", *flags, "--classes-per-client", *values]
        groups = prepare(*asked, describe=alone).groups
        return [p["classes_per_client"] for group in groups for p in group.points]

    assert pending("2", "3") == pending("3") == []
    assert pending("2", "3", "--seed", "0", "1") == [2, 3]


def test_a_subset_of_each_client_is_trained_on(data, tmp_path):
    """At p = 0 three clients have 20 of the 62 rows each."""
    out = tmp_path / "out"
    flags = [data, "--clients=3", "--no-plot", "--p=0"]
    execute(out, *flags, "--client-size", "8", "25", describe=roll_call)
    found = rows(out / "results.csv")
    assert [row["client_size"] for row in found] == ["8", "25"]
    assert [row["left_out"] for row in found] == ["38", "2"]
    saved = np.load(out / "assignments.npz")
    for client, size in zip(saved["client"], (8, 20), strict=True):
        assert [int((client == i).sum()) for i in range(3)] == [size] * 3
    # Of a method in common all rows are scored.
    assert (saved["cluster"] >= 0).all()
    flags.insert(0, f"--out={out}")
    sizes = ["--client-size", "8", "9", "25"]
    (group,) = prepare(*flags, *sizes, describe=roll_call).groups
    assert [point["client_size"] for point in group.points] == [9]
    with pytest.raises(ValueError, match=r"another configuration \(swept differ"):
        prepare(*flags, describe=roll_call)


def test_without_the_new_flags_a_configuration_is_what_it_was(data, tmp_path):
    out, flags = tmp_path / "out", [data, "--clients=3", "--no-plot", "--p=0"]
    execute(out, *flags, describe=roll_call)
    config = json.loads((out / "config.json").read_text())
    rest = ["clusters", "weight", "failure_rate", "seed"]
    assert config["swept"] == ["p", "clients", *rest]
    assert not {"client_size", "classes_per_client"} & set(config)
    (row,) = rows(out / "results.csv")
    assert not {"client_size", "classes_per_client"} & set(row)


def test_what_is_finished_is_reused_where_it_would_not_fit(data, tmp_path):
    """The same method, but of a state beyond all memory."""
    out, flags = tmp_path / "out", [data, "--clients=3", "--no-plot", "--p=0"]
    execute(out, *flags, describe=roll_call)

    def large(*args):
        method = roll_call(*args)

        def build(settings):
            def init(key, federation):
                return jax.numpy.zeros((10**6, 10**6, 10**6), jax.numpy.int8)

            return method.build(settings)._replace(init=init)

        return method._replace(build=build)

    flags.insert(0, f"--out={out}")
    assert prepare(*flags, describe=large).groups == ()
    with pytest.raises(ValueError, match=r"the state of one run takes 3 x 909494.7 Ti"):
        prepare(*flags, "--seed", "0", "1", describe=large)


# --- one program


def tracings(out, *flags):
    """How often the method is built from values that are not known yet: once for each
    function that is compiled or has its shapes taken."""
    count = 0

    def describe(*args):
        method = ccfc.describe(*args)

        def build(settings):
            nonlocal count
            values = settings.values()
            count += any(isinstance(value, jax.core.Tracer) for value in values)
            return method.build(settings)

        return method._replace(build=build)

    execute(out, *flags, describe=describe)
    return count


def test_further_values_of_floats_and_seeds_compile_nothing(data, tmp_path):
    """Calls of three runs each; p = 1 has a larger client and leaves no row out."""
    flags = [data, *ONE_STAGE, "--seed", "0", "1", "2"]
    swept = ["--model-weight", "0", "0.1", "--learning-rate", "0.001", "0.002"]
    # The most calls come first: whatever JAX keeps can only spare the others.
    many = tracings(tmp_path / "many", *flags, "--p", "0", "1", *swept)
    few = tracings(tmp_path / "few", *flags, "--p", "0")
    sizes = ["--batch-size", "10", "8"]
    twice = tracings(tmp_path / "twice", *flags, "--p", "0", *sizes)
    assert 0 < many <= few
    assert twice == 2 * few
    assert len(rows(tmp_path / "many" / "results.csv")) == 24


# --- diverging


def test_a_run_that_diverges_leaves_those_beside_it_alone(data, tmp_path, capsys):
    flags = [data, *ONE_STAGE, "--p", "0", "--learning-rate", "0.002", "0.003"]
    execute(tmp_path / "sane", *flags, "0.004")
    assert "diverged" not in capsys.readouterr().out
    execute(tmp_path / "wild", *flags, "1e38")
    assert "learning_rate 1e+38, seed 0 diverged in round" in capsys.readouterr().out
    sane, wild = (rows(tmp_path / x / "results.csv") for x in ("sane", "wild"))
    assert [row["learning_rate"] for row in wild] == ["0.002", "0.003", "1e+38"]
    assert wild[2]["status"].startswith("diverged in round ")
    assert without_times(wild[:2]) == without_times(sane[:2])
    assert len(rows(tmp_path / "wild" / "history.csv")) == 3 * 2
