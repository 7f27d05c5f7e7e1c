"""Clients that fail, from the flags through the engine to the files and the table."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score

from fcjax.data import failures
from fcjax.federated import server
from fcjax.methods.base import MethodSpec
from fcjax.sweep import report
from fcjax.types import FederatedClustering, Stage, State
from tests.sweep.drifting import rows, vectors
from tests.sweep.test_experiment import execute

RATES = ("0.0", "0.34", "0.67")  # of three clients: none, one, two
NUM_ROUNDS = 3 + 2  # of both stages


def roll_call(settings):
    """A method that learns nothing and notes who answers; clusters are the largest of
    three features, which tell two of the three classes of `vectors` apart."""

    def call(key, state, federation):
        num_rounds = state.server
        present = server.participants(federation, num_rounds)
        _, answered = server.receive((), present.astype(float), present)
        each = {f"answered_{i}": answered[i] for i in range(3)}
        spread = {"loss": settings["weight"], "embedding_spread": jnp.float32(1)}
        metrics = {"participants": answered.sum(), **each, **spread}
        return State(num_rounds + 1), metrics

    def embed(state, federation):
        return federation.pool[federation.indices]

    def assign(state, federation):
        return jnp.argmax(embed(state, federation)[..., 1:4], axis=-1)

    def keep(key, state, federation):
        return state

    def init(key, federation):
        return State(jnp.int32(0))

    stages = tuple(
        Stage(name, keep, call, count, lambda state: jnp.array(False))
        for name, count in (("first", 3), ("second", 2))
    )
    return FederatedClustering(init, stages, embed, assign)


def describe(args, dataset, num_clients, num_clusters):
    return MethodSpec("roll-call", {"weight": (0.1,)}, roll_call, "global", {})


@pytest.fixture(scope="module")
def grids(tmp_path_factory):
    """A grid of failure rates under both kinds of failures."""
    folder = tmp_path_factory.mktemp("failures")
    flags = [f"--dataset={vectors(folder)}", "--clients=3", "--no-plot", "--p=0.5"]
    flags += ["--failure-rate", *RATES]
    for kind in ("fixed", "per-round"):
        execute(folder / kind, *flags, f"--failures={kind}", describe=describe)
    return folder


def present_of(kind, rate):
    """Who answers in each round [R, M]."""
    num_rounds = 1 if kind == "fixed" else NUM_ROUNDS
    drawn = failures(3, float(rate), seed=0, num_rounds=num_rounds)
    return np.broadcast_to(drawn, (NUM_ROUNDS, 3))


@pytest.mark.parametrize(
    # With this seed one client misses all five rounds of the highest rate.
    ("kind", "num_survivors"),
    [("fixed", [3, 2, 1]), ("per-round", [3, 3, 2])],
)
def test_a_run_says_who_answered_and_how_they_fared(grids, kind, num_survivors):
    history = rows(grids / kind / "history.csv")
    for rate, count in zip(RATES, ("3", "2", "1"), strict=True):
        of_run = [row for row in history if row["failure_rate"] == rate]
        assert [row["participants"] for row in of_run] == [count] * NUM_ROUNDS
        answered = [[row[f"answered_{i}"] for i in range(3)] for row in of_run]
        np.testing.assert_array_equal(answered, present_of(kind, rate).astype(str))

    results = rows(grids / kind / "results.csv")
    assert [row["participation"] for row in results] == ["1.0", "0.666667", "0.333333"]
    saved = np.load(grids / kind / "assignments.npz")
    labels = np.load(grids / "vectors.npz")["y"]
    for run, (row, count) in enumerate(zip(results, num_survivors, strict=True)):
        survivors = np.flatnonzero(present_of(kind, row["failure_rate"]).any(axis=0))
        assert len(survivors) == count
        cluster = saved["cluster"][run]
        counted = np.isin(saved["client"][run], survivors)
        expected = normalized_mutual_info_score(labels[counted], cluster[counted])
        assert float(row["surviving_nmi"]) == pytest.approx(expected, abs=1e-6)
    # The clusters are the same in all runs: what differs is who is counted.
    assert len({row["surviving_nmi"] for row in results}) == len(set(num_survivors))
    # What failures are is part of the configuration.
    config = json.loads((grids / kind / "config.json").read_text())
    assert config["failures"] == kind


# --- the table


def run(rate, seed, **more):
    row = {"method": "ccfc", "dataset": "digits", "scope": "global", "p": 0.0}
    row |= {"failure_rate": float(rate), "seed": seed, "nmi": 0.5, "acc": 0.6}
    return {**row, "kappa": 0.4, "silhouette": 0.3, **more}


def columns(runs, *, labelled=True):
    lines = report.summarize(runs, ["p", "failure_rate"], labelled=labelled)
    others = ("method", "dataset", "scope", "p", "failure_rate", "seeds")
    return [name for name in lines if name not in others]


def test_the_table_shows_failures_where_any_run_has_them():
    runs = [
        run("0.0", "0", participation=1.0, surviving_nmi=0.7),
        run("0.0", "1", participation=1.0, surviving_nmi=0.8),
        run("0.5", "0", participation=0.5, surviving_nmi=0.2),
        run("0.5", "1", participation=0.5, surviving_nmi=0.4),
    ]
    scores = ["nmi", "acc", "kappa"]
    assert columns(runs[:2]) == scores
    assert columns(runs) == [*scores, "participation", "surviving_nmi"]
    table = report.summarize(runs, ["p", "failure_rate"], labelled=True)
    line = table.iloc[1]
    assert str(line["participation"]) == "0.500, 0.500"
    assert str(line["surviving_nmi"]) == "0.200, 0.400"
    unscored = run("0.5", "1", participation=0.5, surviving_nmi=None)
    assert columns([unscored], labelled=False) == ["silhouette", "participation"]
    # From before there were these columns.
    assert columns([run("0.5", "0")]) == scores
    assert columns([run("0.5", "0"), unscored]) == [*scores, "participation"]
