"""The ledger: what it keeps, what it refuses, and tables that are made of it."""

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from experiments import keep, ledger, reproduce
from experiments.reproduce import task_of
from fcjax.engine import Position
from fcjax.methods import CCFC
from fcjax.results import store
from fcjax.results.store import Folder, read, read_config
from fcjax.sweep import experiment
from fcjax.sweep.plan import Task
from fcjax.sweep.train import execute
from tests.sweep.drifting import LEARN_ROUNDS, USE_ROUNDS, rows, run, vectors

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"
FOUR = {"config.json", "results.csv", "history.csv", "environment.json"}


def entries(results):
    """By METHOD/NAME; whatever lies so deep."""
    return {f"{path.parent.name}/{path.name}": path for path in results.glob("*/*")}


def faults(folder, checkout):
    """What is wrong with a folder of the ledger."""
    if {path.name for path in folder.iterdir()} != FOUR:
        return ["other files than the four"]
    config, results = read_config(folder), rows(folder / "results.csv")
    starts = json.loads((folder / "environment.json").read_text())

    def runs(lines):
        return {tuple(row[name] for name in config["swept"]) for row in lines}

    found = {
        "size": sum(path.stat().st_size for path in folder.iterdir()) > 512 * 1024,
        "a path of a machine": any(str(x).startswith("/") for x in config.values()),
        "no run, or one twice": not 0 < len(results) == len(runs(results)),
        "a run without its end": not all(
            re.match("ok|collapsed|diverged in", row["status"]) for row in results
        ),
        "a run of another method": {x["method"] for x in results}
        != {folder.parent.name},
        "a history of other runs": runs(rows(folder / "history.csv")) != runs(results),
        "no commit": not starts or any(start["changed"] for start in starts),
        "another history's commit": not {x["commit"] for x in starts}
        <= (history_of(checkout) or {x["commit"] for x in starts}),
    }
    return [fault for fault, is_there in found.items() if is_there]


@cache
def history_of(checkout):
    """All commits of a repository, or none where it does not have them all."""
    if not (checkout / ".git").exists():
        return None
    if git(checkout, "rev-parse", "--is-shallow-repository") == "true":
        return None
    return {*git(checkout, "rev-list", "HEAD").split()}


# --- what the repository keeps


def test_every_folder_is_whole_and_can_be_run_again():
    found = {name: faults(path, ROOT) for name, path in entries(RESULTS).items()}
    wrong = {name: lines for name, lines in found.items() if lines}
    assert not wrong, f"of {RESULTS.relative_to(ROOT)}: {wrong}"


def test_the_pages_are_those_that_the_ledger_gives():
    """Every entry is on them, as `pages` takes all of notes.toml and of the folders."""
    pages = ledger.pages(RESULTS)
    old = [path for path, text in pages.items() if path.read_text() != text]
    assert not old, "run: python experiments/ledger.py write"
    assert {*(ROOT / ledger.RUNS).iterdir()} <= pages.keys()


def test_an_entry_without_a_note_is_named(kept):
    (kept / "notes.toml").write_text('["km/digits-p"]\ncommand = "python x"\n')
    with pytest.raises(ValueError, match=r"differ: ffcm/digits-p-fuzzifier, ffcm/soft"):
        ledger.pages(kept)


# --- what is kept


def git(repository, *command):
    who = ["-c", "user.name=me", "-c", "user.email=me@here"]
    command = ["git", "-C", str(repository), *who, *command]
    return subprocess.check_output(command, text=True).strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A repository of two commits on its branch, and one on another."""
    folder = tmp_path_factory.mktemp("checkout")
    git(folder, "init", "-q", "-b", "main")
    for name in ("one", "two"):
        git(folder, "commit", "-q", "--allow-empty", "-m", name)
    git(folder, "switch", "-q", "-c", "other")
    git(folder, "commit", "-q", "--allow-empty", "-m", "three")
    git(folder, "switch", "-q", "main")
    return folder


def started(folder, checkout, at="main~1", **changes):
    """The folder, whose runs began at a commit of the repository."""
    (start, *_) = store.starts(folder)
    start |= {"commit": git(checkout, "rev-parse", at), "changed": False, **changes}
    store.write_environment(folder, [start])
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory, checkout):
    """Two levels by two weights, one seed."""
    folder = tmp_path_factory.mktemp("finished")
    grid = {"p": (0.0, 1.0), "weight": (0.5, 0.25)}
    return started(run(folder / "run", vectors(folder), **grid), checkout)


@pytest.fixture
def grid(finished, tmp_path):
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "run")


def test_what_is_kept_is_all_of_the_tables_and_no_path(grid, checkout, tmp_path):
    to = tmp_path / "ledger"
    keep.keep([grid], to, checkout=checkout)
    assert [*entries(to)] == ["near/vectors-p-weight"]
    kept = entries(to)["near/vectors-p-weight"]
    assert {path.name for path in kept.iterdir()} == FOUR
    assert faults(kept, checkout) == []
    for name in ("results.csv", "history.csv", "environment.json"):
        assert (kept / name).read_bytes() == (grid / name).read_bytes()
    config = json.loads((grid / "config.json").read_text())
    # The command has the path, too.
    assert config["dataset"] == config.pop("command")["flags"]["dataset"]
    found = json.loads((kept / "config.json").read_text())
    assert found == {**config, "dataset": "vectors.npz"}
    assert len(read(kept).rounds) == 4 * (LEARN_ROUNDS + USE_ROUNDS)


def test_further_seeds_go_into_the_entry_and_the_same_again_changes_nothing(
    grid, finished, checkout, tmp_path
):
    to, data = tmp_path / "ledger", finished.parent / "vectors.npz"
    own = {"p": (0.0, 1.0), "weight": (0.5, 0.25), "seed": (1,)}
    more = started(run(tmp_path / "more", data, **own), checkout, at="main")
    keep.keep([grid], to, checkout=checkout)
    (folder,) = entries(to).values()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    keep.keep([grid], to, checkout=checkout)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    keep.keep([more, grid], to, checkout=checkout)
    assert [row["seed"] for row in read(folder).rows] == [0, 1] * 4
    assert len(read(folder).rounds) == 8 * (LEARN_ROUNDS + USE_ROUNDS)
    commits = [start["commit"] for start in store.starts(folder)]
    assert commits == [git(checkout, "rev-parse", x) for x in ("main~1", "main")]


def long(folder, checkout, *, rounds, num_runs=4):
    """A results folder of runs that took many rounds of two stages."""
    points = [{"p": 0.5, "seed": seed} for seed in range(num_runs)]
    config = {"method": "long", "dataset": "digits", "swept": ["p", "seed"]}
    results = Folder(folder, config, points)
    results.begin()
    values = {f"value_{i}": 1 / 3 for i in range(6)}
    every = [
        {"stage_index": stage, "round": number, "stage": "x", **point, **values}
        for stage in (0, 1)
        for number in range(1, rounds + 1)
        for point in points
    ]
    results.add_history(Position(0, 1), [])
    results.add_rounds(every)
    row = {"method": "long", "dataset": "digits", "samples": 1797, "status": "ok"}
    results.add_rows([{**row, **p, "rounds": 2 * rounds, "nmi": 0.5} for p in points])
    start = {"began": "2026-01-01 00:00:00+00:00", "seconds": 1}
    store.write_environment(folder, [start])
    return started(folder, checkout)


def test_of_a_long_history_some_rounds_are_kept_and_the_last_ten(
    checkout, tmp_path, capsys
):
    to = tmp_path / "ledger"
    # A half of 8 x 1,100 rounds is too many, a quarter is not.
    source = long(tmp_path / "run", checkout, rounds=1100)
    keep.keep([source], to, checkout=checkout)
    told = "history.csv has one round in 4, and the last 10 of each stage"
    assert told in capsys.readouterr().out.splitlines()
    (folder,) = entries(to).values()
    assert faults(folder, checkout) == []
    expected = [*range(4, 1091, 4), *range(1091, 1101)]
    found = {(seed, stage): [] for seed in range(4) for stage in (0, 1)}
    for row in read(folder).rounds:
        found[row["seed"], row["stage_index"]].append(row["round"])
    assert found == dict.fromkeys(found, expected)
    assert ledger.is_thinned(read(folder))
    assert not ledger.is_thinned(read(source))
    many = long(tmp_path / "many", checkout, rounds=12, num_runs=260)
    with pytest.raises(ValueError, match="260 runs take more than 512 KiB"):
        keep.keep([many], to, checkout=checkout, name="many")


# --- what is refused


def changed(**changes):
    return lambda grid, checkout: started(grid, checkout, **changes)


def one_open(grid, checkout):
    lines = (grid / "results.csv").read_text().splitlines(keepends=True)
    (grid / "results.csv").write_text("".join(lines[:-1]))


def without(name):
    return lambda grid, checkout: (grid / name).unlink()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (without("results.csv"), "holds no finished run yet"),
        (
            one_open,
            r"an unfinished run \(p 1, weight 0.5, seed 0\): repeat its command",
        ),
        (
            without("environment.json"),
            "has no environment.json, so its commit is unknown",
        ),
        (changed(commit=None), "run outside of a checkout, so its commit is unknown"),
        (changed(changed=True), "with uncommitted changes to [0-9a-f]{7} "),
        (changed(at="other"), "at [0-9a-f]{7}, a commit that is not in this history"),
        (changed(commit="0" * 40), "at 0000000, a commit that is not in this history"),
    ],
)
def test_what_could_not_be_run_again_is_refused_and_nothing_written(
    spoil, told, grid, finished, checkout, tmp_path
):
    spoil(grid, checkout)
    with pytest.raises(ValueError, match=told) as error:
        # Nor is the folder before it, which has nothing wrong.
        keep.keep([finished, grid], tmp_path / "ledger", checkout=checkout)
    assert str(grid) in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "ledger").exists()


def test_an_entry_has_one_configuration_and_one_score_of_a_run(
    grid, finished, checkout, tmp_path
):
    to = tmp_path / "ledger"
    keep.keep([finished], to, checkout=checkout)
    (folder,) = entries(to).values()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    config = json.loads((grid / "config.json").read_text())
    (grid / "config.json").write_text(json.dumps({**config, "limit": 50}))
    with pytest.raises(
        ValueError, match=r"\(limit 50 instead of None\): give another --name"
    ):
        keep.keep([grid], to, checkout=checkout)
    keep.keep([grid], to, checkout=checkout, name="fewer")
    assert sorted(entries(to)) == ["near/fewer", "near/vectors-p-weight"]

    (grid / "config.json").write_text(json.dumps(config))
    text = (grid / "results.csv").read_text()
    text = text.replace(",client-mean,1.0,", ",client-mean,0.75,")
    (grid / "results.csv").write_text(text)
    said = r"has other scores \(acc\) than .* the run with p 1, weight 0.25, seed 0: "
    with pytest.raises(ValueError, match=said) as error:
        keep.keep([grid], to, checkout=checkout)
    assert "\n" not in str(error.value)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


# --- tables of what is kept

DIGITS = {"dataset": "digits", "limit": 200, "plot": False}


def baseline(method, out, checkout, **flags):
    flags |= {"methods": (method,), "out": out / method, **DIGITS}
    execute(experiment.prepare(task_of("baselines", flags)))
    return started(out / method, checkout)


@pytest.fixture(scope="module")
def kept(tmp_path_factory, checkout):
    """Of 200 digits: FFCM with the fuzzifier of the paper's preset, 1.1, and with 1.5,
    p = 0 and 1; with 1.5 alone, p = 0.5; and k-means, which is central."""
    folder = tmp_path_factory.mktemp("kept")
    both = {"fuzzifier": (1.1, 1.5), "p": (0.0, 1.0), "seed": (0, 1)}
    whole = baseline("ffcm", folder / "one", checkout, **both)
    # As many as go side by side of those: the same program.
    other = {"fuzzifier": (1.5,), "p": (0.5,), "seed": (0, 1, 2, 3)}
    other = baseline("ffcm", folder / "two", checkout, **other)
    central = baseline("km", folder, checkout, p=(0.25,), seed=(0, 1))
    keep.keep([whole, central], folder / "ledger", checkout=checkout)
    keep.keep([other], folder / "ledger", checkout=checkout, name="softer")
    return folder / "ledger"


def lines_of(table, out, capsys, **flags):
    """The lines of the CSV by p and method, and the notes that were printed."""
    flags = {"datasets": ("digits",), "limit": 200, **flags}
    reproduce.main(reproduce.Args(table, out=out, **flags))
    found = {
        (x["p"] and f"{float(x['p']):g}", x["method"]): x
        for x in rows(out / table / "table.csv")
    }
    printed = capsys.readouterr().out.splitlines()
    notes = [line for line in printed if line.startswith("note: ")]
    beside = (out / table / "table.md").read_text().splitlines()
    assert {f"- {line.removeprefix('note: ')}" for line in notes} <= {*beside}
    return found, notes


def test_a_table_is_made_of_what_is_kept_and_says_what_differs(kept, tmp_path, capsys):
    lines, notes = lines_of("ccfc-table1", tmp_path, capsys, from_ledger=kept)
    scores = read(kept / "ffcm" / "digits-p-fuzzifier").rows
    for p in ("0", "1"):
        line = lines[p, "FFCM"]
        own = [x["nmi"] for x in scores if (x["p"], x["fuzzifier"]) == (float(p), 1.1)]
        assert float(line["nmi"]) == pytest.approx(np.mean(own), abs=1e-12)
    own = [x["nmi"] for x in read(kept / "ffcm" / "softer").rows]
    assert float(lines["0.5", "FFCM"]["nmi"]) == pytest.approx(np.mean(own), abs=1e-12)
    called = "note: FFCM, digits for mnist"
    few = "seed 0 1 in place of 0 1 2 3 4"
    assert [line for line in notes if line.startswith(called)] == [
        f"{called}, p 0, p 1: runs ffcm/digits-p-fuzzifier: {few}",
        f"{called}, p 0.5: runs ffcm/softer: fuzzifier 1.5 in place of 1.1, "
        "seed 0 1 2 3 in place of 0 1 2 3 4",
    ]
    # No p changes central k-means: its line has none, and none is missed.
    assert lines["", "KM"]["nmi_seeds"] == "2"
    assert f"note: KM, digits for mnist: runs km/digits-p: {few}" in notes
    empty = [lines[x] for x in (("0", "k-FED"), ("0.25", "FFCM"), ("0", "CCFC"))]
    assert [(line["nmi"], line["nmi_seeds"]) for line in empty] == [("", "0")] * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ccfc/mnist-paper-p0.25", "ccfc"),  # older than the setting
        ("fed-cc/digits", "mcc"),
        ("ccfc/digits-p-k-means", "k-means"),
    ],
)
def test_an_entry_older_than_cluster_by_has_its_value_of_that_time(name, value):
    entry = read(RESULTS / name)
    assert ledger.settings_of_run(entry, entry.rows[0])["cluster_by"] == value


def test_of_nothing_kept_there_is_the_paper_alone(tmp_path, capsys):
    (tmp_path / "ledger").mkdir()
    flags = {"from_ledger": tmp_path / "ledger", "datasets": ("mnist",), "limit": None}
    lines, notes = lines_of("ccfc-table1", tmp_path, capsys, **flags)
    assert len(lines) == 2 + 5 * 6
    assert {line["nmi_seeds"] for line in lines.values()} == {"0"}
    assert "note: the ledger has no runs for this table" in notes


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("ccfc-table3", "ccfc-table3 needs models or assignments, but a ledger"),
        ("ccfc-figure3", "ccfc-figure3 needs models or assignments"),
        ("ccfc-table1", "--from .*none is no folder"),
    ],
)
def test_what_a_ledger_cannot_give_is_said_in_a_line(table, told, tmp_path):
    args = reproduce.Args(table, from_ledger=tmp_path / "none", out=tmp_path / "out")
    with pytest.raises(ValueError, match=told) as error:
        reproduce.main(args)
    assert "\n" not in str(error.value)
    assert [*tmp_path.iterdir()] == []


OWN = {"latent_size": (64,), "model_weight": (1.0,)}
STL = {"samples": 50_000, "backbone": "resnet18-imagenet"}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            {"dataset": "mnist", "p": (0.0, 0.5)},
            {"samples": 70_000, "backbone": "conv", "p": (0.0, 0.5), "clusters": (10,)}
            | {"clients": (10,), "latent_size": (256,), "model_weight": (0.001,)},
        ),
        ({"dataset": "fashion_mnist"}, OWN),
        ({"dataset": "cifar10", "split": "train", "resize": 224}, STL),
    ],
)
def test_the_papers_settings_are_known_without_its_data(flags, expected):
    """Those of CCFC's Section 4.1, and of Fashion-MNIST its own."""
    (found,) = ledger.settings_of_task(Task.of(CCFC(preset="paper"), **flags))
    assert expected.items() <= found.items()
