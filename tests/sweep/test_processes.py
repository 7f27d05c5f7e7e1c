"""Several processes that run one program: what they leave, and what ends them."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from fcjax.cli.errors import with_flags
from fcjax.methods import KMeans
from fcjax.sweep import processes
from fcjax.sweep.options import share
from fcjax.sweep.plan import Task
from tests.sweep.drifting import assert_same, rows, vectors

ROOT = Path(__file__).parents[2]


def test_a_share_is_a_number_of_how_many():
    for text, expected in (("0/1", (0, 1)), ("1/2", (1, 2)), ("09/10", (9, 10))):
        assert share("shard", text) == expected
    for text in ("", "1", "2/2", "0/0", "-1/2", "a/b", "1/2/3", "0.5/2", " 0/1"):
        with pytest.raises(
            ValueError, match="`process` must be i/n with i from 0 to n - 1"
        ):
            share("process", text)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"process": "0/2"}, "--process needs --coordinator HOST:PORT"),
        (
            {"coordinator": "auto", "shard": "0/2"},
            "give --shard or --coordinator, not both",
        ),
        (
            {"coordinator": "auto", "backend": "loop"},
            "--coordinator needs --backend shard_map",
        ),
        ({"coordinator": "auto", "on": "v5e:2x2"}, "cannot be combined with --on"),
        (
            {"coordinator": "localhost", "process": "0/2"},
            "--coordinator must be auto or HOST:PORT, got",
        ),
        (
            {"coordinator": "h:port", "process": "0/2"},
            "--coordinator must be auto or HOST:PORT, got",
        ),
        ({"coordinator": "h:1"}, "--coordinator HOST:PORT needs --process i/n"),
        (
            {"coordinator": "h:1", "process": "2/2"},
            "--process must be i/n with i from 0",
        ),
    ],
)
def test_flags_of_processes_that_do_not_fit_are_refused(flags, message):
    own = {name: flags.pop(name) for name in ("coordinator", "process") & flags.keys()}
    with pytest.raises(ValueError, match=r".") as error:
        processes.join(processes.Processes(**own), [Task.of(KMeans, **flags)])
    assert message in with_flags(str(error.value))
    assert "\n" not in str(error.value)


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


# --- processes


def command(out, data, *flags, module="tests.sweep.drifting"):
    given = [f"--out={out}", f"--dataset={data}", "--no-plot", "--clients=3", *flags]
    return [sys.executable, "-m", module, *given]


@contextmanager
def started(own, *, num_devices=1, cwd=(), env=()):
    """Processes that run as one, with more flags of each; killed in the end."""
    address, count = f"localhost:{free_port()}", len(own)
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": str(num_devices), **dict(env)}
    env["XLA_FLAGS"] = env["XLA_FLAGS"].replace(
        "--xla_force_host_platform_device_count=4", ""
    )
    all_of_them = [
        subprocess.Popen(
            [*line, f"--coordinator={address}", f"--process={index}/{count}"],
            cwd=dict(cwd).get(index, ROOT),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index, line in enumerate(own)
    ]
    try:
        yield all_of_them
    finally:
        for process in all_of_them:
            process.kill()
            process.communicate()


def ended(all_of_them, timeout=240):
    """What each has printed, of those that were not killed."""
    return [process.communicate(timeout=timeout) for process in all_of_them]


def together(lines, **how):
    with started(lines, **how) as all_of_them:
        told = ended(all_of_them)
        codes = [process.returncode for process in all_of_them]
        assert codes == [0] * len(codes), told
        return told


def alone(out, data, *flags, num_devices):
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": str(num_devices)}
    env["XLA_FLAGS"] = env["XLA_FLAGS"].replace("count=4", f"count={num_devices}")
    subprocess.run(command(out, data, *flags), cwd=ROOT, env=env, check=True)
    return out


GRID = ("--p", "0", "1", "--seed", "0", "1", "--weight", "0.5", "2", "--shares")
"""Of the first weight's runs the second's go on from the first stage."""


def test_two_processes_leave_the_bits_of_one_and_the_first_tells(tmp_path):
    data = vectors(tmp_path)
    one = alone(tmp_path / "one" / "out", data, *GRID, num_devices=4)
    two = command(tmp_path / "two" / "out", data, *GRID)
    (told, _), (second, _) = together([two, two], num_devices=2)
    assert_same(tmp_path / "two" / "out", one)
    assert "4 x cpu in 2 processes, backend shard_map" in told
    assert "memory: each process holds" in told
    assert "2 runs: leading stages loaded" in told
    assert "2 runs: leading stages" not in second


ROUNDS = ("--learn-rounds=40", "--checkpoint-interval=0")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """One run of three clients, on as many devices as the disturbed ones have."""
    folder = tmp_path_factory.mktemp("undisturbed")
    data = vectors(folder)
    return alone(folder / "out", data, *ROUNDS, num_devices=4), data


@pytest.mark.parametrize("killed", [0, 1])
def test_one_that_dies_ends_the_other_and_one_goes_on_after_two(
    killed, tmp_path, undisturbed
):
    expected, data = undisturbed
    line = command(tmp_path / "out", data, *ROUNDS)
    history = tmp_path / "out/history.csv"
    with started([line] * 2, num_devices=2) as all_of_them:
        while not (history.exists() and len(rows(history)) > 8):
            assert all(process.poll() is None for process in all_of_them)
            time.sleep(0.05)
        all_of_them[killed].send_signal(signal.SIGKILL)
        other = all_of_them[1 - killed]
        ended([other], timeout=60)
        assert other.returncode
    assert not (tmp_path / "out" / "results.csv").exists()

    ((told, _),) = together([line])
    assert "resuming from checkpoint" in told
    assert_same(tmp_path / "out", expected)


def refused(lines, **how):
    """The error of each, among what JAX and gloo print."""
    with started(lines, **how) as all_of_them:
        told = ended(all_of_them, timeout=90)
        assert all(process.returncode == 2 for process in all_of_them), told
    return [errors for _, errors in told]


def test_other_flags_or_devices_are_refused(tmp_path):
    data, out = vectors(tmp_path), tmp_path / "out"
    seeds = [command(out, data, f"--seed={seed}") for seed in (0, 1)]
    for told in refused(seeds):
        assert "error: --seed is (0,) in process 0 and (1,) in process 1" in told
    assert not out.exists()


def test_another_version_of_the_code_is_refused(tmp_path):
    data, out, other = vectors(tmp_path), tmp_path / "out", tmp_path / "other"
    for name in ("fcjax", "tests"):
        shutil.copytree(
            ROOT / name, other / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    with (other / "fcjax" / "server.py").open("a") as file:
        file.write("# Of another day.\n")
    # The editable installation comes after the folder that a command is run in.
    for told in refused([command(out, data)] * 2, cwd={1: other}):
        assert "the version of fcjax is" in told
    assert not out.exists()


def test_what_is_wrong_in_one_is_told_by_all(tmp_path):
    """The data lies in the folder of the first alone."""
    vectors(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    line, env = command("out", "vectors.npz"), {"PYTHONPATH": str(ROOT)}
    folders = {0: tmp_path, 1: tmp_path / "elsewhere"}
    first, second = refused([line] * 2, cwd=folders, env=env)
    assert "error: process 1: " in first
    assert "vectors.npz" in second
    shutil.copy(tmp_path / "vectors.npz", tmp_path / "elsewhere")
    for told in refused([line] * 2, cwd=folders, env=env):
        assert "--out out must be the same folder for all processes" in told


def test_the_two_terminals_of_the_guide(tmp_path):
    guide = (ROOT / "docs" / "guides" / "clusters.md").read_text()
    (block,) = (x for x in guide.split("```") if "localhost:12345" in x)
    lines = block.replace("\\\n", " ").strip().splitlines()[1:]
    words = [shlex.split(line) for line in lines]
    (first, one), (second, other) = (
        (env, [sys.executable, *line]) for env, _, *line in words
    )
    assert first == second == "JAX_NUM_CPU_DEVICES=1"
    for line, index in ((one, 0), (other, 1)):
        at = line.index("--coordinator")
        assert line[at:] == [
            "--coordinator",
            "localhost:12345",
            "--process",
            f"{index}/2",
        ]
        line[at:] = [f"--out={tmp_path / 'out'}", "--no-plot"]
    (told, _), _ = together([one, other])
    assert "2 x cpu in 2 processes" in told
    assert len(rows(tmp_path / "out" / "exact-km" / "results.csv")) == 2
