"""What words of a command line stand for, and what a run's own file does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import spherical
from fcjax.cli.arguments import read
from fcjax.methods import SCRIPTS
from fcjax.results import store
from fcjax.sweep.experiment import command, prepare
from tests.experiments.blobs import rows

ROOT = Path(__file__).parents[2]


def task_of(script, *words):
    (task, *_) = read(SCRIPTS[script], words).tasks
    return task


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--seed 0:4", [0, 1, 2, 3]),
        ("--seed 7 2:9:3", [7, 2, 5, 8]),
        ("--seed=3:1:-1", [3, 2]),
        ("--p 0:1:0.25", [0, 0.25, 0.5, 0.75, 1]),
        ("--p 0:1:0.1", [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]),
        ("--p 0:1:0.3 1", [0, 0.3, 0.6, 0.9, 1]),
        ("--model_weight=1e-3:3e-3:1e-3", [0.001, 0.002, 0.003]),
        ("--coordinator 12:80", "12:80"),
    ],
)
def test_a_range_stands_for_its_numbers(line, expected):
    ((task, *_), own, _) = read(SCRIPTS["ccfc"], line.split())
    name = line.replace("=", " ").split()[0][2:].replace("-", "_")
    parts = (task.method, task.split, task.options, own)
    (found,) = (getattr(part, name) for part in parts if hasattr(part, name))
    assert (list(found) if isinstance(found, tuple) else found) == expected


@pytest.mark.parametrize(
    ("script", "line"),
    [
        (
            "ccfc",
            "--p 0:1:0.5 --seed 0:3 --own-init True --no-labels --resize 8",
        ),
        ("ccfc", "--alpha 0.1 --data-dir some/where --standalone --preset smoke"),
        ("ccfc", "--overlap 0 --class-range 2 5 --backbone conv --learning-rate 1e-5"),
        ("fedmcc", "--methods fedu --drop-last False --no-average-target"),
        (
            "ccfc",
            "--preset smoke --pretrain-rounds 100",
        ),  # wins over smoke
        ("orchestra", ""),
    ],
)
def test_a_file_gives_back_the_flags_that_decide_what_is_found(script, line, tmp_path):
    task = task_of(script, *line.split())
    told = {"command": command(task), "more": "of it"}
    (tmp_path / "config.json").write_text(json.dumps(told))
    config = f"--config={tmp_path / 'config.json'}"
    again = task_of(script, config)
    assert again == task
    assert command(again) == told["command"]
    assert {"pretrain_rounds", "seed"} & {*told["command"]["flags"]} == {
        name for name in ("pretrain_rounds", "seed") if f"--{name[:5]}" in line
    }
    elsewhere = task_of(script, config, "--out=o", "--seed", "9", "--no-plot")
    options = elsewhere.options
    assert (options.seed, options.out.parts[0], options.plot) == ((9,), "o", False)
    assert elsewhere.source == task.source


def test_another_rule_of_dealing_takes_the_place_of_the_files(tmp_path):
    task = task_of("ccfc", "--overlap", "0.3", "--class-range", "2", "5", "--seed", "4")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"command": command(task)}))
    found = task_of("ccfc", f"--config={path}", "--p", "0.5")
    split = found.split
    assert (split.p, split.overlap, split.class_range) == ((0.5,), (), None)
    assert found.options.seed == (4,)
    found = task_of("ccfc", f"--config={path}", "--clients", "3")
    assert (found.split.overlap, found.split.class_range) == ((0.3,), (2, 5))
    # Flags that are given stay, also where they have the values of the file.
    same = ["--overlap", "0.3", "--class-range", "2", "5"]
    found = task_of("ccfc", f"--config={path}", *same)
    assert (found.split.overlap, found.split.class_range) == ((0.3,), (2, 5))
    assert (
        task_of("ccfc", f"--config={path}", "--overlap=0.3").split.class_range is None
    )
    path.write_text(json.dumps({"command": command(task_of("ccfc", "--p", "0.5"))}))
    found = task_of("ccfc", f"--config={path}", "--class-share", "0.2")
    assert found.split.rule == "class_share"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"limit": "abc"}, "--limit takes a whole number, got 'abc'"),
        ({"preset": "nope"}, ", got 'nope'"),
        ({"p": "x"}, "--p takes numbers or ranges START:END:STEP"),
    ],
)
def test_a_wrong_value_of_a_file_gets_a_line(flags, told, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"command": {"script": "ccfc", "flags": flags}}))
    with pytest.raises(SystemExit) as ended:
        task_of("ccfc", f"--config={path}")
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_a_run_is_started_again_by_its_own_file(runs):
    """It asks for the runs that are there, and trains none of them."""
    folder = store.read(runs / "runs" / "spherical")
    config = folder.directory / "config.json"
    line = [f"--config={config}", f"--out={folder.directory}", "--no-plot"]
    (task,) = read(spherical.Spherical, line).tasks
    experiment = prepare(task)
    assert experiment.batches == ()
    assert (
        [dict(x) for x in experiment.folder.requested(folder.rows)] == folder.rows != []
    )


# --- what the system refuses, in a process of its own

LIMITED = """
import resource, runpy, signal, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def started(out, data, *, most_bytes):
    script = str(ROOT / "experiments" / "spherical.py")
    line = [script, f"--dataset={data}", "--clients=4", "--p=0.25", "--seed=0:2"]
    line += [f"--out={out}", "--no-plot", "--runs-per-call=1"]
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(most_bytes), *line],
        env={
            **os.environ,
            "JAX_ENABLE_COMPILATION_CACHE": "0",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
    )


def test_a_file_that_has_no_room_ends_with_a_line_and_the_command_goes_on(
    runs, tmp_path
):
    """Of 700 bytes a file: config.json has room, the model of the first run has not."""
    out = tmp_path / "out"
    ended = started(out, runs / "rows.npz", most_bytes=700)
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.startswith("spherical.py: error: ")
    assert ended.stderr.endswith(
        "finished runs are kept; run the same command again to continue\n"
    )
    assert ended.stderr.count("\n") == 1
    assert not (out / "results.csv").exists()
    ended = started(out, runs / "rows.npz", most_bytes=10**9)
    assert ended.returncode == 0, ended.stderr
    assert [row["seed"] for row in rows(out / "results.csv")] == ["0", "1"]
