"""Processes that take the roll and run a shard each: together they are the grid."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from fcjax.grid import processes
from fcjax.grid.flags import Common
from tests.grid.test_experiment import (
    SCRIPT,
    VECTORS,
    execute,
    rows,
    vectors,
    without_times,
)

COLLECT = Path(__file__).parents[2] / "experiments" / "collect.py"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0/1", (0, 1)), ("0/2", (0, 2)), ("1/2", (1, 2)), ("09/10", (9, 10))],
)
def test_a_share_is_a_number_of_how_many(text, expected):
    assert processes.share("--shard", text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "1", "2/2", "3/2", "0/0", "-1/2", "1/-2", "a/b", "1/2/3", "0.5/2", " 0/1"],
)
def test_what_is_no_share_is_refused(text):
    with pytest.raises(ValueError, match="--process is i/n with i from 0 to n - 1"):
        processes.share("--process", text)


def test_a_single_process_runs_all():
    for args in (Common(), Common(shard="1/2")):
        assert processes.join(args) is args


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"process": "0/2"}, "--process goes with --coordinator HOST:PORT"),
        ({"coordinator": "h:1", "process": "0/2", "shard": "0/2"}, "--shard is what"),
        ({"coordinator": "auto", "shard": "0/2"}, "--shard is what"),
        ({"coordinator": "localhost", "process": "0/2"}, "is auto or HOST:PORT, got"),
        ({"coordinator": "h:port", "process": "0/2"}, "is auto or HOST:PORT, got"),
        ({"coordinator": "h:1"}, "--coordinator HOST:PORT needs --process i/n"),
        ({"coordinator": "h:1", "process": "2/2"}, "--process is i/n with i from 0"),
    ],
)
def test_flags_of_processes_that_do_not_fit_are_refused(flags, message):
    with pytest.raises(ValueError, match=message) as error:
        processes.join(Common(**flags))
    assert "\n" not in str(error.value)


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def test_two_processes_and_collect_leave_the_results_of_one(tmp_path):
    """Four runs: two calls of two in one process, one call of two in each of two."""
    data = vectors(tmp_path)
    flags = [f"--dataset={data}", *VECTORS, "--pretrain-rounds=0", "--no-plot"]
    flags += ["--p", "0", "1", "--seed", "0", "1", "--runs-per-call=2"]
    execute(tmp_path / "one", *flags)

    out = tmp_path / "two"
    command = [sys.executable, str(SCRIPT), f"--out={out}", *flags]
    command += [f"--coordinator=localhost:{free_port()}"]
    cache = jax.config.values["jax_compilation_cache_dir"]
    processes = [
        subprocess.Popen(
            [*command, f"--process={index}/2"],
            env={**os.environ, "JAX_COMPILATION_CACHE_DIR": cache},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    for process in processes:
        errors = process.communicate(timeout=240)[1]
        assert process.returncode == 0, errors
    shards = [out / f"shard-{index}-of-2" for index in range(2)]
    held = [[(r["p"], r["seed"]) for r in rows(s / "results.csv")] for s in shards]
    assert held == [[("0.0", "0"), ("1.0", "0")], [("0.0", "1"), ("1.0", "1")]]

    command = [sys.executable, str(COLLECT), str(out), "--no-plot"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"4 runs in {out}" in done.stdout
    assert "warning" not in done.stdout
    whole, merged = (rows(tmp_path / x / "results.csv") for x in ("one", "two"))
    assert without_times(merged) == without_times(whole)
    table = (tmp_path / "one" / "table.md").read_bytes()
    assert (out / "table.md").read_bytes() == table
