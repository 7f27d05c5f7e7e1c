"""Clients that fail, from the flags through the engine to the files and the table."""

import itertools
import json

import jax
import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score

from fcjax import engine, report
from fcjax.backends import Grid
from fcjax.data import Partition, failures, federate
from tests.methods import METHODS
from tests.test_experiment import VECTORS, execute, prepare, rows, vectors

NUM_ROUNDS = 3 + 2  # of both stages, in `METHODS` and in `VECTORS`


def test_who_trains_in_a_round_is_who_answers_in_it():
    """Clients on their own, whose networks stand still while they are absent."""
    rows = np.arange(32).reshape(4, 8)
    pool = np.random.default_rng(0).normal(size=(32, 5)).astype(np.float32)
    present = failures(4, 0.5, seed=4, num_rounds=NUM_ROUNDS)
    assert len(np.unique(present, axis=0)) > 2
    partition = Partition(tuple(rows), np.arange(0))
    federations = federate(pool, [partition], [present], num_clusters=3)
    grid = Grid(np.zeros(1), jax.random.split(jax.random.key(0), 1), federations)
    networks, counts = [], []

    def on_round(round):
        leaves = jax.tree.leaves(round.state.variables["params"])
        networks.append(np.concatenate([np.array(x).reshape(4, -1) for x in leaves], 1))
        counts.append(int(round.metrics["participants"][0]))

    engine.run(METHODS["standalone"], grid, on_round=on_round)
    moved = [(a != b).any(axis=1) for a, b in itertools.pairwise(networks)]
    np.testing.assert_array_equal(moved, present[1:])
    # Of the first round only what it leaves behind is seen: who was absent is alike.
    alike = [(networks[0][i] == networks[0][j]).all() for i, j in [(0, 1), (2, 3)]]
    absent = ~present[0]
    assert alike == [absent[[0, 1]].all(), absent[[2, 3]].all()]
    assert counts == [2] * NUM_ROUNDS


@pytest.fixture(scope="module")
def grids(tmp_path_factory):
    """A grid of failure rates under both kinds of failures."""
    folder = tmp_path_factory.mktemp("failures")
    flags = [f"--dataset={vectors(folder)}", *VECTORS, "--no-plot", "--p=0.5"]
    flags += ["--failure-rate", "0", "0.34", "0.67"]
    for kind in ("fixed", "per-round"):
        execute(folder / kind, *flags, f"--failures={kind}")
    return folder, flags


@pytest.mark.parametrize("kind", ["fixed", "per-round"])
def test_a_run_says_who_took_part_and_how_they_fared(grids, kind):
    folder, _ = grids
    results = rows(folder / kind / "results.csv")
    history = rows(folder / kind / "history.csv")
    saved = np.load(folder / kind / "assignments.npz")
    labels = np.load(folder / "vectors.npz")["y"]
    assert [row["participation"] for row in results] == ["1.0", "0.666667", "0.333333"]
    for rate, participants in (("0.0", "3"), ("0.34", "2"), ("0.67", "1")):
        of_run = [row for row in history if row["failure_rate"] == rate]
        assert [row["participants"] for row in of_run] == [participants] * NUM_ROUNDS

    num_survivors = []
    for run, row in enumerate(results):
        num_rounds = 1 if kind == "fixed" else NUM_ROUNDS
        present = failures(3, float(row["failure_rate"]), seed=0, num_rounds=num_rounds)
        survivors = np.flatnonzero(present.any(axis=0))
        num_survivors.append(len(survivors))
        cluster, client = saved["cluster"][run], saved["client"][run]
        counted = np.isin(client, survivors)
        expected = normalized_mutual_info_score(labels[counted], cluster[counted])
        assert float(row["surviving_nmi"]) == pytest.approx(expected, abs=1e-6)
        expected = normalized_mutual_info_score(labels, cluster)
        assert float(row["nmi"]) == pytest.approx(expected, abs=1e-6)
    # With this seed one client misses all five rounds of the highest rate.
    assert num_survivors == ([3, 2, 1] if kind == "fixed" else [3, 3, 2])


def test_what_failures_are_is_part_of_the_configuration(grids):
    """A folder from before the flag does not say it, and goes on with fixed ones."""
    folder, flags = grids
    config = json.loads((folder / "per-round" / "config.json").read_text())
    assert config["failures"] == "per-round"
    assert "failures" not in json.loads((folder / "fixed" / "config.json").read_text())
    for kind, other in (("fixed", "per-round"), ("per-round", "fixed")):
        with pytest.raises(ValueError, match=r"\(failures differ\)"):
            prepare(*flags, f"--out={folder / kind}", f"--failures={other}")


# --- the table


def run(rate, seed, **more):
    row = {"method": "ccfc", "dataset": "digits", "scope": "global", "p": "0.0"}
    row |= {"failure_rate": rate, "seed": seed, "nmi": "0.5", "acc": "0.6"}
    return {**row, "kappa": "0.4", "silhouette": "0.3", **more}


def columns(runs, *, labelled=True):
    lines = report.summarize(runs, ["p", "failure_rate"], labelled=labelled)
    return [
        [n for n in line if n not in ("method", "dataset", "scope")] for line in lines
    ]


def test_the_table_shows_failures_where_any_run_has_them():
    runs = [
        run(rate, seed, participation=taken, surviving_nmi=nmi)
        for rate, seed, taken, nmi in [
            ("0.0", "0", "1.0", "0.7"),
            ("0.0", "1", "1.0", "0.8"),
            ("0.5", "0", "0.5", "0.2"),
            ("0.5", "1", "0.5", "0.4"),
        ]
    ]
    shown = ["p", "failure_rate", "nmi", "acc", "kappa"]
    assert columns(runs[:2]) == [shown]
    assert columns(runs) == [[*shown, "participation", "surviving_nmi"]] * 2
    lines = report.summarize(runs, ["p", "failure_rate"], labelled=True)
    assert str(lines[1]["participation"]) == "0.500 ± 0.000"
    # The t quantile of one degree of freedom is 12.706, the standard error 0.1.
    assert str(lines[1]["surviving_nmi"]) == "0.300 ± 1.271"


def test_the_table_of_runs_without_labels_shows_who_took_part():
    runs = [run("0.5", "0", participation="0.5", surviving_nmi="", nmi="")]
    shown = ["p", "failure_rate", "silhouette", "participation"]
    assert columns(runs, labelled=False) == [shown]


def test_rows_from_before_these_columns_are_read():
    shown = ["p", "failure_rate", "nmi", "acc", "kappa"]
    assert columns([run("0.5", "0")]) == [shown]
    mixed = [run("0.5", "0"), run("0.5", "1", participation="0.5", surviving_nmi="")]
    assert columns(mixed) == [[*shown, "participation"]]
