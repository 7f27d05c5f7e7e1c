"""Processes that take the roll and run a shard each: together they are the grid."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import collect
from fcjax.sweep import processes
from fcjax.sweep.flags import Common
from tests.sweep.drifting import rows, run, vectors, without_times

ROOT = Path(__file__).parents[2]


def test_a_share_is_a_number_of_how_many():
    for text, expected in (("0/1", (0, 1)), ("1/2", (1, 2)), ("09/10", (9, 10))):
        assert processes.share("--shard", text) == expected
    for text in ("", "1", "2/2", "0/0", "-1/2", "a/b", "1/2/3", "0.5/2", " 0/1"):
        with pytest.raises(ValueError, match="--process is i/n with i from 0 to n - 1"):
            processes.share("--process", text)


def test_a_single_process_runs_all():
    for args in (Common(), Common(shard="1/2")):
        assert processes.join(args) is args


@pytest.mark.parametrize(
    ("coordinator", "process", "shard", "message"),
    [
        (None, "0/2", None, "--process goes with --coordinator HOST:PORT"),
        ("auto", None, "0/2", "--shard is what"),
        ("localhost", "0/2", None, "is auto or HOST:PORT, got"),
        ("h:port", "0/2", None, "is auto or HOST:PORT, got"),
        ("h:1", None, None, "--coordinator HOST:PORT needs --process i/n"),
        ("h:1", "2/2", None, "--process is i/n with i from 0"),
    ],
)
def test_flags_of_processes_that_do_not_fit_are_refused(
    coordinator, process, shard, message
):
    args = Common(coordinator=coordinator, process=process, shard=shard)
    with pytest.raises(ValueError, match=message) as error:
        processes.join(args)
    assert "\n" not in str(error.value)


def test_two_processes_and_collect_leave_the_results_of_one(tmp_path, capsys):
    """Four runs: two calls of two in one process, one call of two in each of two."""
    data, out = vectors(tmp_path), tmp_path / "two"
    grid = {"p": (0.0, 1.0), "seed": (0, 1), "runs_per_call": 2}
    one = run(tmp_path / "one", data, **grid)

    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    command = ["-m", "tests.sweep.drifting", f"--out={out}", f"--dataset={data}"]
    command += ["--no-plot", "--clients=3", "--runs-per-call=2"]
    command += ["--p", "0", "1", "--seed", "0", "1", f"--coordinator=localhost:{port}"]
    both = [
        subprocess.Popen(
            [sys.executable, *command, f"--process={index}/2"],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    for process in both:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    shards = [out / f"shard-{index}-of-2" for index in range(2)]
    held = [[(r["p"], r["seed"]) for r in rows(s / "results.csv")] for s in shards]
    assert held == [[("0.0", "0"), ("1.0", "0")], [("0.0", "1"), ("1.0", "1")]]

    collect.main(collect.Args((out,), plot=False))
    told = capsys.readouterr().out
    assert f"4 runs in {out}" in told
    assert "-of-2" not in told  # no shard is missing
    whole, merged = rows(one / "results.csv"), rows(out / "results.csv")
    assert without_times(merged) == without_times(whole)
    assert (out / "table.md").read_bytes() == (one / "table.md").read_bytes()
