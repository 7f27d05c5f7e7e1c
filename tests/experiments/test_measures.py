"""How the values of a table or figure are read off the files that runs leave."""

import numpy as np
import pytest

from experiments.papers import measures
from fcjax.cli import main
from fcjax.engine import Position
from fcjax.methods import KFed
from fcjax.results.store import Folder
from fcjax.sweep.plan import Task
from tests.data.test_sources import png, prepare


def results_of(folder, runs, *, level="overlap"):
    """A results folder as a session leaves it: of each (level, seed) its rounds and its
    row."""
    points = [{level: at, "seed": seed} for at, seed in runs]
    config = {"method": "fedcref", "swept": [level, "seed"]}
    results = Folder(folder, config, points)
    results.begin()
    rows = []
    for point, (rounds, row) in zip(points, runs.values(), strict=True):
        for number, (stage, values) in enumerate(rounds):
            place = Position(int(stage == "refine"), number)
            results.add_history(place, [{**point, "stage": stage, **values}])
        rows.append({**point, "seconds": 90.0, **row})
    results.add_rows(rows)
    return Folder(folder, config, points)


def rounds_of(first, *others, start=2):
    """`start` rounds of the start with the first, then one a refinement."""
    begun = [("dirty", {"iteration": 0, "acc": ""})] * (start - 1)
    begun.append(("dirty", {"iteration": 0, "acc": first}))
    return begun + [
        ("refine", {"iteration": i, "acc": x}) for i, x in enumerate(others, start=1)
    ]


def test_improvement_is_in_percent_of_the_start_and_time_in_minutes(tmp_path):
    runs = {
        (0.0, 0): ([], {"acc": 0.9, "initial_acc": 0.6}),
        (0.0, 1): ([], {"acc": 0.6, "initial_acc": 0.8}),
        (0.5, 0): ([], {"acc": 0.7, "initial_acc": ""}),
    }
    found = measures.refinement_scores(Task(KFed()), results_of(tmp_path, runs))
    improvements = [x.get("improvement") for x in found]
    assert improvements == [pytest.approx(50.0), pytest.approx(-25.0), None]


OF_K = {(8, 0): 0.7, (10, 0): 0.6, (8, 1): np.nan, (10, 1): 0.8, (12, 1): np.nan}


@pytest.mark.parametrize(
    ("level", "runs", "expected"),
    [
        ("clusters", OF_K, [(0, 0.7, 8), (1, 0.8, 10)]),
        ("communities", {(11, 0): 0.9}, [(0, 0.9, 11)]),
        ("overlap", {(0.0, 0): 0.9}, [(0, 0.9, None)]),  # UIFCA is told
    ],
)
def test_categories_are_the_best_k_of_each_seed_or_communities(
    tmp_path, level, runs, expected
):
    accs = {run: ([], {"acc": acc}) for run, acc in runs.items()}
    several = (8, 10, 12) if level == "clusters" else ()
    results = results_of(tmp_path, accs, level=level)
    found = measures.categories(Task.of(KFed, clusters=several), results)
    assert [(x["seed"], x["acc"], x["categories"]) for x in found] == expected


CURVES = {  # the second ends after one refinement, the third has a longer start
    (0.0, 0): (rounds_of(0.7, 0.8, 0.9, 1.0), {}),
    (0.0, 1): (rounds_of(0.5, 0.6), {}),
    (0.5, 0): (rounds_of(0.6, 0.7, 0.8, start=4), {}),
}


def test_runs_that_ended_keep_their_last_values_over_the_iterations(tmp_path):
    found = measures.iteration_scores(Task(KFed()), results_of(tmp_path, CURVES))
    assert [row["iteration"] for row in found] == 3 * [0, 1, 2, 3]
    by_run = {
        run: [row["acc"] for row in found if (row["overlap"], row["seed"]) == run]
        for run in CURVES
    }
    assert by_run == {
        (0.0, 0): [0.7, 0.8, 0.9, 1.0],
        (0.0, 1): [0.5, 0.6, 0.6, 0.6],
        (0.5, 0): [0.6, 0.7, 0.8, 0.8],
    }


# --- linear classifiers, on embeddings that are the examples themselves


def finished(out, **flags):
    """k-FED of two clients, whose embedding is the example as it is."""
    flags |= {"clients": (2,), "p": (0.0,), "plot": False}
    task = Task.of(KFed(unit_length=False), out=out, **flags)
    return task, main.run(lambda: [task])[0]


def test_a_sixth_is_held_out_where_the_data_has_no_splits(tmp_path):
    """60 rows at two places, of which ten are held out. Two of those lie at one place
    and have the class of the other, so that any good classifier is right on eight."""
    draws = np.random.default_rng(0).random(60)
    held_out = np.flatnonzero(draws < np.sort(draws)[10])
    places = np.arange(60) % 2
    labels = places.copy()
    labels[held_out[:2]] = 1 - labels[held_out[:2]]
    path = tmp_path / "vectors.npz"
    np.savez(path, x=np.eye(2)[places], y=labels)

    flags = {"dataset": str(path), "seed": (0, 1), "failure_rate": (0.5,)}
    args, results = finished(tmp_path / "out", **flags)
    lines = measures.linear_accuracy(args, results)
    found = [(x["seed"], x["failure_rate"], x["accuracy"]) for x in lines]
    assert found == [(seed, 0.5, pytest.approx(0.8)) for seed in (0, 1)]
    few = measures.few_labels_accuracy(args, results)
    assert [(x["seed"], x["label_fraction"]) for x in few] == [
        (seed, share) for seed in (0, 1) for share in (0.01, 0.1)
    ]
    # From a label of each class the two places are told apart.
    assert [line["accuracy"] for line in few] == pytest.approx(4 * [0.8])
    # Runs that were not asked for are not read.
    args = args.replace(seed=(1,))
    (results,) = main.run(lambda: [args])
    (line,) = measures.linear_accuracy(args, results)
    assert line["seed"] == 1


def test_the_test_split_is_held_out_of_runs_on_the_training_split(tmp_path):
    """Of the four test images one is bright and has the class of dark ones."""

    def images(*pairs):
        return [(png(np.full((4, 4), value, np.uint8)), y) for value, y in pairs]

    train = images(*6 * [(20, 0), (230, 1)])
    test = images((25, 0), (225, 0), (235, 1), (15, 0))
    prepare(tmp_path, {"train": train, "test": test})
    args, results = finished(
        tmp_path / "out", dataset="tiny", data_dir=tmp_path, split="train"
    )
    (line,) = measures.linear_accuracy(args, results)
    assert line["accuracy"] == pytest.approx(0.75)
