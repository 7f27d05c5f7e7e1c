"""The table of all methods: cells, frame, ranks, pages, and the command."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import normalized_mutual_info_score

import fcjax
from experiments.benchmarks import matrix
from experiments.matrix import local_kmeans, page
from experiments.matrix.frame import COLUMNS, bytes_of, rows_of_assignments
from experiments.matrix.groups import Group, Program, flags_of, groups_of, programs
from experiments.matrix.ranks import (
    BLOCK,
    advice_of,
    blocks_of,
    largest_complete,
    non_dominated,
    ranks_of,
    ties_of,
)
from fcjax import data
from fcjax.cli.partition import clients_by_name
from fcjax.methods import SCRIPTS
from fcjax.results import store

CHECKOUT = Path(__file__).parents[2]

# --- Cells


def test_every_method_is_in_the_table():
    every = {m.name for script in SCRIPTS.values() for m in script.methods}
    assert set(programs()) == every


def test_all_methods_have_the_first_seed_before_the_second():
    known = programs()
    methods = {name: known[name] for name in ("ccfc", "orchestra", "km", "exact-km")}
    groups = groups_of(
        methods, datasets=("digits", "orl"), presets=("default",), seeds=2
    )
    digits = [group for group in groups if group.dataset == "digits"]
    assert groups[: len(digits)] == digits
    order = [(group.method, group.rule, group.seeds) for group in digits]
    assert order[:4] == [
        ("km", "p", (0, 1)),
        ("exact-km", "p", (0, 1)),
        ("exact-km", "alpha", (0, 1)),
        ("exact-km", "classes_per_client", (0, 1)),
    ]
    later = [(group.seeds, group.rule, group.levels) for group in digits[4::2]]
    alpha, classes = ("alpha", (0.1,)), ("classes_per_client", (2.0,))
    assert later == [
        ((0,), "p", (0.0, 1.0)),
        ((0,), "p", (0.25, 0.5, 0.75)),
        ((0,), *alpha),
        ((0,), *classes),
        ((1,), "p", (0.0, 0.25, 0.5, 0.75, 1.0)),
        ((1,), *alpha),
        ((1,), *classes),
    ]
    assert [group.method for group in digits[4:]] == ["ccfc", "orchestra"] * 7


def test_programs_of_the_user_come_first_on_each_data_set():
    methods = {
        "exact-km": programs()["exact-km"],
        "mine": Program(("a.py",), is_own=True),
    }
    groups = groups_of(
        methods, datasets=("digits", "orl"), presets=("default",), seeds=1
    )
    order = [(group.dataset, group.method) for group in groups]
    assert list(dict.fromkeys(order)) == [
        ("digits", "mine"),
        ("digits", "exact-km"),
        ("orl", "mine"),
        ("orl", "exact-km"),
    ]


def test_the_command_of_a_cell():
    group = Group("paper", "mnist-2000-16px", "p", (0.0, 0.25), "k-fed", (0, 3))
    assert " ".join(flags_of(group, programs()["k-fed"], files={})) == (
        "-m fcjax baselines --methods k-fed --dataset mnist --limit 2000 --resize 16 "
        "--preset paper --clients 10 --p 0 0.25 --seed 0 3 --no-plot"
    )
    orl = Group("default", "orl", "classes_per_client", (2.0,), "ccfc", (1,))
    assert " ".join(flags_of(orl, programs()["ccfc"], files={"orl": "a.mat"})) == (
        "-m fcjax ccfc --dataset a.mat --clients 10 --classes-per-client 2 --seed 1 "
        "--no-plot"
    )


# --- Ranks


def table_with(scores: dict[str, list[float]], datasets=("digits",)):
    rows = len(next(iter(scores.values())))
    blocks = [
        (dataset, "p", float(level), 0)
        for dataset in datasets
        for level in range(rows // len(datasets))
    ]
    return pd.DataFrame(scores, pd.MultiIndex.from_tuples(blocks, names=BLOCK))


def test_equal_scores_share_their_rank():
    ranks = ranks_of(table_with({"a": [0.9, 0.5], "b": [0.9, 0.4], "c": [0.1, 0.9]}))
    # Block 1: a and b share the ranks 1 and 2. Block 2: c, a, b.
    assert ranks.mean.to_dict() == {"a": 1.75, "c": 2.0, "b": 2.25}
    assert ranks.num_blocks == 2


def test_only_clear_differences_separate_methods():
    random = np.random.default_rng(0)
    base = random.uniform(0.4, 0.6, 40)
    scores = {
        "best": base + 0.2 + random.normal(0, 0.01, 40),
        "one": base + random.normal(0, 0.05, 40),
        "two": base + random.normal(0, 0.05, 40),
    }
    ranks = ranks_of(table_with({k: v.tolist() for k, v in scores.items()}))
    assert ranks.mean.index[0] == "best"
    assert ranks.ties == [(1, 2)]
    assert ranks.p_value < 1e-6


def test_a_group_of_ties_within_another_is_left_out():
    none = np.zeros((4, 4), bool)
    assert ties_of(none) == [(0, 3)]
    every = ~np.eye(4, dtype=bool)
    assert ties_of(every) == []


def test_the_largest_part_without_holes():
    nan = np.nan
    table = table_with(
        {
            "a": [1.0, 1, 1, 1],
            "b": [1.0, 1, 1, 1],
            "c": [1.0, 1, nan, nan],
            "d": [nan, 1, nan, nan],
        },
        datasets=("digits", "orl"),
    )
    # Two methods on four blocks beat three methods on two blocks.
    assert largest_complete(table).shape == (4, 2)
    assert largest_complete(table.iloc[:3]).shape == (2, 3)


def test_a_central_method_counts_at_all_levels_and_a_failure_as_zero():
    rows = [
        cell("km", 0.0, nmi=0.7, is_central=True),
        cell("a", 0.0, nmi=0.8),
        cell("a", 1.0, nmi=0.6),
        cell("b", 0.0, nmi=np.nan, status="failed: out of memory", scope=np.nan),
        cell("local", 0.0, nmi=0.9, scope="client-pooled"),
    ]
    table = blocks_of(pd.DataFrame(rows, columns=COLUMNS))
    assert table["km"].tolist() == [0.7, 0.7]
    assert table["a"].tolist() == [0.8, 0.6]
    assert table["b"].iloc[0] == 0
    assert np.isnan(table["b"].iloc[1])
    assert "local" not in table


def cell(method: str, level: float, **values):
    common = {"preset": "default", "dataset": "digits", "rule": "p", "seed": 0}
    more = {"status": "ok", "scope": "global", "is_central": False}
    return {**common, **more, "method": method, "level": level, **values}


def test_methods_that_cluster_per_client_are_not_ranked_even_if_a_run_fails():
    rows = [
        cell("local", 0.0, nmi=0.9, scope="client-pooled"),
        cell("local", 1.0, status="failed: no memory", scope=np.nan),
        cell("a", 0.0, nmi=0.8),
    ]
    assert list(blocks_of(pd.DataFrame(rows, columns=COLUMNS))) == ["a"]


def test_equal_methods_tie_and_none_is_lost():
    scores = {"a": 0.7, "b": 0.7, "c": 0.7}
    rows = [
        cell(method, 0.0, seed=seed, nmi=score)
        for method, score in scores.items()
        for seed in range(3)
    ]
    (line,) = advice_of(blocks_of(pd.DataFrame(rows, columns=COLUMNS))).to_dict(
        "records"
    )
    assert sorted([line["best"], *line["tied"]]) == ["a", "b", "c"]


def test_advice_names_ties_by_a_paired_test():
    rows = [
        cell(method, 0.0, seed=seed, nmi=score + (0.01, -0.01, 0.02)[seed] * sign)
        for method, score, sign in (("a", 0.8, 1), ("b", 0.8, -1), ("c", 0.3, 1))
        for seed in range(3)
    ]
    advice = advice_of(blocks_of(pd.DataFrame(rows, columns=COLUMNS)))
    (line,) = advice.to_dict("records")
    assert (line["best"], line["tied"]) == ("a", ["b"])
    assert line["means"]["c"] == pytest.approx(0.3 + 0.02 / 3)


def test_a_point_that_is_dearer_and_not_better_is_dominated():
    assert non_dominated([1.0, 1.0, 2.0, 3.0], [0.5, 0.6, 0.6, 0.7]) == [1, 3]


# --- Pages


def test_the_page_shows_failures_and_holes(tmp_path):
    rows = [
        cell("km", 0.0, nmi=0.7, acc=0.7, ari=0.7, is_central=True, seconds=1.0),
        cell(
            "k-fed", 0.0, nmi=0.61, acc=0.5, ari=0.4, bytes_up=2.0**20, bytes_down=0.0
        ),
        cell("ccfc", 0.0, status="failed: <b>", scope=np.nan),
        cell("k-fed", 1.0, nmi=0.0, acc=0.1, ari=0.0, status="collapsed"),
    ]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    page.write(frame, tmp_path)
    html = (tmp_path / "matrix.html").read_text()
    (text,) = re.findall(r'id="cells">(.*?)</script>', html)
    assert "<" not in text
    assert "NaN" not in text
    cells = {(x["method"], x["level"]): x for x in json.loads(text)}
    assert cells["ccfc", 0]["problems"] == ["1 x failed: <b>"]
    assert cells["ccfc", 0]["scores"] == {}
    assert cells["k-fed", 1]["problems"] == ["1 x collapsed"]
    assert cells["k-fed", 0]["scores"]["nmi"] == [0.61, None]
    assert cells["k-fed", 0]["mib"] == 1.0
    markdown = page.markdown(page.table_of(frame))
    missing = 5 * (7 * len(programs()) - 6 * len(central())) - 4
    assert f"| digits, 1,797 | 3 | 1 | 1 | {missing:,} |" in markdown
    assert pd.read_parquet(tmp_path / "matrix.parquet")["nmi"].tolist()[:2] == [
        0.7,
        0.61,
    ]


def central() -> list[str]:
    return [name for name, program in programs().items() if program.is_central]


def test_only_central_runs_make_a_page(tmp_path):
    """The first command of each data set is central k-means."""
    rows = [cell("km", 0.0, nmi=0.7, is_central=True, seconds=1.0)]
    page.write(pd.DataFrame(rows, columns=COLUMNS), tmp_path)
    assert (tmp_path / "matrix.html").exists()


def test_advice_says_if_nothing_was_tested_and_takes_no_time_from_nowhere():
    rows = [
        cell("mine", 0.0, nmi=0.9),  # another program, whose seconds are unknown
        cell("a", 0.0, nmi=0.89, seconds=5.0),
        cell("b", 0.0, nmi=0.88, seconds=4.0),
        cell("c", 0.0, nmi=0.5, seconds=1.0),
    ]
    table = page.table_of(pd.DataFrame(rows, columns=COLUMNS))
    (row,) = page.advice_rows(table)
    assert row["best method"] == "mine (of 4)"
    assert row["ties with the best"] == "no test: the best has one seed"
    assert row["fastest within 0.03"] == "b (0.880)"


def test_times_are_medians_because_the_first_run_includes_a_start():
    times = {"a": (9.0, 1.0, 1.2), "b": (2.0, 2.0, 2.0)}
    rows = [
        cell(method, 0.0, seed=seed, nmi=0.9, seconds=seconds, bytes_up=1, bytes_down=1)
        for method, values in times.items()
        for seed, seconds in enumerate(values)
    ]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    table = page.table_of(frame)
    (row,) = page.advice_rows(table)
    assert row["fastest within 0.03"] == "a (0.900)"
    seconds = page.costs_of(table, "digits")["seconds"]
    assert seconds.to_dict() == {"a": 1.2, "b": 2.0}
    assert [x["seconds"] for x in page.cells_of(frame)] == [1.2, 2.0]


def test_figures_name_methods_from_outside(tmp_path):
    best = ["ccfc", "fedmcc", "k-fed", "ffcm", "exact-fcm", "exact-km", "orchestra"]
    assert page.named([*best, "mine"]) == [*best[:6], "mine"]
    assert page.named(best) == best
    # Another method is better and cheaper than mine.
    costs = {"bytes_up": 1, "bytes_down": 1}
    rows = [
        cell("ccfc", 0.0, nmi=0.9, seconds=1, **costs),
        cell("k-fed", 0.0, nmi=0.6, seconds=2, **costs),
        cell("mine", 0.0, nmi=0.5, seconds=3, **costs),
    ]
    table = page.table_of(pd.DataFrame(rows, columns=COLUMNS))
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        page.draw_costs(table, "digits", tmp_path / "costs.svg")
    text = (tmp_path / "costs.svg").read_text()
    shown = [x in text for x in (">CCFC<", ">k-FED<", ">mine<")]
    assert shown == [True, False, True]


def test_documented_runs_need_a_clean_commit(tmp_path):
    frame = pd.DataFrame(
        [cell("km", 0.0, nmi=0.7, commit="abc", changed=True, began="2026-11-28")],
        columns=COLUMNS,
    )
    with pytest.raises(ValueError, match="1 runs have no commit"):
        page.write_docs(frame, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_documented_page_is_that_of_its_csv_file():
    docs = CHECKOUT / "docs" / "benchmarks"
    frame = pd.read_csv(docs / "matrix" / "matrix.csv")
    assert list(frame.columns) == list(COLUMNS)
    table = page.table_of(frame[frame["preset"] == "default"])
    text = (docs / "matrix.md").read_text()
    (generated,) = re.findall(f"{page.BEGIN}\n(.*){page.END}", text, re.DOTALL)
    assert generated == page.markdown(table)


# --- Clusters of other programs


def partition(folder: Path) -> dict[str, data.Dataset]:
    """Writes the files of `fcjax partition` with one partition."""
    dataset = data.load("digits")
    folder.mkdir(parents=True)
    np.savez(folder / "examples.npz", x=dataset.examples, y=dataset.labels)
    split = fcjax.Split(clients=10, p=0.5)
    for name, client in clients_by_name(split, dataset, (1,)).items():
        table = {"example": range(len(client)), "client": client, "cluster": ""}
        pd.DataFrame(table).to_csv(folder / f"{name}.csv", index=False)
    return {"digits": dataset}


FILE = "p=0.5,seed=1.csv"


def test_clusters_of_scikit_learn_become_a_row(tmp_path):
    datasets = partition(tmp_path / "digits")
    local_kmeans.main(tmp_path / "digits")
    (row,) = rows_of_assignments("sklearn", tmp_path, datasets)
    clusters = pd.read_csv(tmp_path / "digits" / FILE)["cluster"]
    expected = normalized_mutual_info_score(datasets["digits"].labels, clusters)
    assert row["nmi"] == pytest.approx(expected, abs=1e-6)
    assert row["nmi"] > 0.6
    assert (row["rule"], row["level"], row["seed"]) == ("p", 0.5, 1)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda x: x.drop(columns="cluster"), "has no column cluster"),
        (lambda x: x.assign(cluster=1).iloc[1:], "1,796 of 1,797 examples"),
        (lambda x: x, "0 of 1,797 examples"),
        (lambda x: x.assign(client=x["client"] % 5), "has another partition"),
    ],
)
def test_incomplete_clusters_are_refused(tmp_path, change, match):
    datasets = partition(tmp_path / "digits")
    path = tmp_path / "digits" / FILE
    change(pd.read_csv(path)).to_csv(path, index=False)
    with pytest.raises(ValueError, match=match):
        rows_of_assignments("mine", tmp_path, datasets)


def test_levels_and_seeds_that_the_table_lacks_are_refused(tmp_path):
    datasets = partition(tmp_path / "digits")
    path = tmp_path / "digits" / FILE
    path.rename(path.with_name("p=0.1,seed=1.csv"))
    with pytest.raises(ValueError, match="no partition of the table"):
        rows_of_assignments("mine", tmp_path, datasets)


# --- The command


def execute(*flags: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fcjax", "matrix", *flags]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_the_command_trains_goes_on_and_keeps_failures(tmp_path):
    """Nothing is trained twice, and a failed program stays in the table."""
    (tmp_path / "broken.py").write_text(
        'print("round 1")\nraise SystemExit("broken.py: error: no such layer")\n'
    )
    flags = (
        *("--datasets", "digits", "--seeds", "1", "--methods", "exact-km", "broken"),
        *("--programs", "broken=broken.py"),
    )
    first = execute(*flags, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    out = tmp_path / "runs" / "matrix"
    frame = pd.read_csv(out / "matrix.csv")
    broken = frame[frame["method"] == "broken"]
    assert set(broken["status"]) == {"failed: no such layer"}
    assert len(broken) == len(frame) - len(broken) == 7
    folder = out / "default" / "digits" / "p" / "exact-km"
    expected = {row["p"]: row["nmi"] for row in store.read_rows(folder / "results.csv")}
    found = frame[(frame["method"] == "exact-km") & (frame["rule"] == "p")]
    assert found.set_index("level")["nmi"].to_dict() == pytest.approx(expected)
    results = store.read(folder)
    history = pd.read_csv(folder / "history.csv")
    up = history.filter(like="up_").sum(axis=1)[history["p"] == 0.5].sum()
    (key,) = [results.key(row) for row in results.rows if row["p"] == 0.5]
    assert bytes_of(results)[key][0] == up
    assert found.set_index("level")["bytes_up"][0.5] == up
    before = (folder / "environment.json").read_text()
    again = execute(*flags, cwd=tmp_path)
    assert "7 of 7 commands are finished" in again.stdout
    assert (folder / "environment.json").read_text() == before
    # The command of a cell repeats its score.
    (command,) = found.loc[found["level"] == 1, "command"]
    arguments = [sys.executable, *command.split()[1:], "--out", "alone"]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    subprocess.run(
        arguments, cwd=tmp_path, env=environment, check=True, capture_output=True
    )
    (alone,) = store.read_rows(tmp_path / "alone" / "exact-km" / "results.csv")
    assert alone["nmi"] == found.set_index("level")["nmi"][1.0]


def test_a_stopped_command_stops_its_program_and_is_no_failure(tmp_path):
    (tmp_path / "slow.py").write_text(
        'import os, time\nopen("pid", "w").write(str(os.getpid()))\ntime.sleep(600)\n'
    )
    command = [
        *(sys.executable, "-m", "fcjax", "matrix", "--datasets", "digits"),
        *("--methods", "slow", "--programs", "slow=slow.py"),
    ]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    pid = tmp_path / "pid"
    for _ in range(600):
        if pid.exists() and pid.read_text():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert not list(tmp_path.rglob("*failed.json"))


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        ({"methods": ("cfcc",)}, "`methods` must be among"),
        ({"datasets": ("orl",)}, "`datasets` orl needs a file"),
        ({"files": ("orl",)}, "`files` must be NAME=PATH, got orl"),
        ({"files": ("faces=a.mat",)}, "got faces"),
        ({"files": ("digits=a.csv",)}, "`files` takes no file for digits"),
        ({"datasets": ("mnist-2000",), "data_dir": Path("none")}, "mnist"),
        ({"seeds": 6}, r"`seeds` must lie in 1..5, got 6"),
        ({"hours": -1.0}, "`hours` must be at least 0"),
        ({"hours": 0.0, "datasets": ("digits",)}, "no run is finished"),
    ],
)
def test_wrong_flags(tmp_path, flags, match):
    with pytest.raises(ValueError, match=match):
        matrix.main(matrix.Args(out=tmp_path / "out", **flags))


def test_a_failure_does_not_replace_a_finished_run():
    finished = pd.DataFrame([cell("a", 0.0, nmi=0.5)], columns=COLUMNS)
    failed = pd.DataFrame([cell("a", 0.0, status="failed: x")], columns=COLUMNS)
    assert matrix.join(finished, failed)["status"].tolist() == ["ok"]
    assert matrix.join(failed, finished)["status"].tolist() == ["ok"]
    newer = pd.DataFrame([cell("a", 0.0, nmi=0.6)], columns=COLUMNS)
    assert matrix.join(finished, newer)["nmi"].tolist() == [0.6]


def test_runs_of_another_machine_are_not_made_again(tmp_path, capsys):
    row = cell("exact-km", 0.1, rule="alpha", nmi=0.5, acc=0.5, ari=0.5)
    path = tmp_path / "other.csv"
    rows = [row, {**row, "rule": "classes_per_client", "level": 2.0}]
    rows += [{**row, "rule": "p", "level": p} for p in (0.0, 0.25, 0.5, 0.75, 1.0)]
    pd.DataFrame(rows, columns=COLUMNS).to_csv(path, index=False)
    matrix.main(
        matrix.Args(
            out=tmp_path / "out",
            datasets=("digits",),
            methods=("exact-km",),
            seeds=1,
            add=(path,),
        )
    )
    assert "3 of 3 commands are finished" in capsys.readouterr().out
    frame = pd.read_csv(tmp_path / "out" / "matrix.csv")
    assert frame["nmi"].tolist() == [0.5] * 7


def test_only_chosen_runs_of_another_machine_are_in_the_table(tmp_path, capsys):
    row = cell("other", 0.0, nmi=0.5, acc=0.5, ari=0.5)
    changes = [{}, {"dataset": "orl"}, {"method": "km"}, {"seed": 1}]
    path = tmp_path / "other.csv"
    rows = pd.DataFrame([{**row, **x} for x in changes], columns=COLUMNS)
    rows.to_csv(path, index=False)

    def places(**flags):
        args = matrix.Args(out=tmp_path / "out", hours=0, add=(path,), **flags)
        matrix.main(args)
        frame = pd.read_csv(tmp_path / "out" / "matrix.csv")
        return list(zip(frame["dataset"], frame["method"], frame["seed"], strict=True))

    chosen = {"datasets": ("digits",), "methods": ("other", "exact-km"), "seeds": 1}
    assert places(**chosen) == [("digits", "other", 0)]
    assert "--hours 0: nothing is trained" in capsys.readouterr().out
    assert len(places(datasets=("digits",))) == 3
