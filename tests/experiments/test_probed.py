"""Accuracies of linear classifiers that a table reads off finished runs, on embeddings
that are the examples themselves."""

from dataclasses import replace

import baselines
import numpy as np
import pytest
from papers import measures

from fcjax import script
from tests.data.test_sources import png, prepare


def finished(out, **flags):
    """k-FED of two clients, whose embedding is the example as it is."""
    args = baselines.Args(
        methods=("k-fed",),
        clients=(2,),
        p=(0.0,),
        unit_length=False,
        out=out,
        plot=False,
        **flags,
    )
    return args, script.run(lambda: [(args, baselines.describe)])[0]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """60 rows at two places, of which ten are held out. Two of those lie at one place
    and have the class of the other, so that any good classifier is right on eight."""
    draws = np.random.default_rng(0).random(60)
    held_out = np.flatnonzero(draws < np.sort(draws)[10])
    places = np.arange(60) % 2
    labels = places.copy()
    labels[held_out[:2]] = 1 - labels[held_out[:2]]
    path = tmp_path_factory.mktemp("probed") / "vectors.npz"
    np.savez(path, x=np.eye(2)[places], y=labels)
    return path


def test_a_sixth_is_held_out_where_the_data_has_no_splits(vectors):
    args, results = finished(
        vectors.parent / "out", dataset=str(vectors), seed=(0, 1), failure_rate=(0.5,)
    )
    lines = measures.linear_accuracy(args, results)
    assert [line["seed"] for line in lines] == [0, 1]
    for line in lines:
        assert line["accuracy"] == pytest.approx(0.8)
        assert line["failure_rate"] == 0.5
    few = measures.few_labels_accuracy(args, results)
    assert [(x["seed"], x["label_fraction"]) for x in few] == [
        (seed, share) for seed in (0, 1) for share in (0.01, 0.1)
    ]
    # From a label of each class the two places are told apart.
    assert [line["accuracy"] for line in few] == pytest.approx(4 * [0.8])
    # Runs that were not asked for are not read.
    args = replace(args, seed=(1,))
    (results,) = script.run(lambda: [(args, baselines.describe)])
    (line,) = measures.linear_accuracy(args, results)
    assert line["seed"] == 1


def test_the_test_split_is_held_out_of_runs_on_the_training_split(tmp_path):
    """Of the four test images one is bright and has the class of dark ones."""

    def images(*pairs):
        return [(png(np.full((4, 4), value, np.uint8)), y) for value, y in pairs]

    train = images(*6 * [(20, 0), (230, 1)])
    prepare(
        tmp_path,
        {"train": train, "test": images((25, 0), (225, 0), (235, 1), (15, 0))},
    )
    args, results = finished(
        tmp_path / "out", dataset="tiny", data_dir=tmp_path, split="train"
    )
    assert {row["samples"] for row in results.rows} == {12}
    (line,) = measures.linear_accuracy(args, results)
    assert line["accuracy"] == pytest.approx(0.75)
