"""Private runs of whole methods: budgets as an axis, refusals, and what is stored."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import fcjax
from fcjax import data
from fcjax.methods import CCFC, FFCM, ExactFuzzyCMeans, ExactKMeans, FedMCC, KFed
from fcjax.privacy import Privacy
from fcjax.privacy.guarantee import spent
from fcjax.sweep.experiment import prepare
from fcjax.sweep.plan import Task

DIGITS = {"limit": 200, "seeds": 1}


@pytest.fixture(scope="module")
def vectors():
    """Digits as vectors, for which networks compile fast."""
    digits = data.stratified_subset(data.load("digits"), 200)
    x = digits.examples.reshape(200, 64).astype(np.float32) / 255
    return data.Dataset("vectors", x, digits.labels)


def test_a_grid_of_budgets_is_one_program_with_a_row_per_budget(tmp_path):
    privacy = Privacy(epsilon=[1, 50])
    results = fcjax.run(
        ExactKMeans(), "digits", privacy=privacy, out=tmp_path, limit=400, seeds=2
    )
    assert results.runs["epsilon"].tolist() == [1, 1, 50, 50]
    (batch,) = prepare(Task.of(ExactKMeans(), limit=400, epsilon=[1, 50])).batches
    assert [point["epsilon"] for point in batch.points] == [1, 50]
    means = results.runs.groupby("epsilon")["nmi"].mean()
    assert means[50] > means[1]
    config = json.loads((tmp_path / "config.json").read_text())
    expected = {"delta": 1e-5, "privacy_unit": "examples", "mechanism": "gaussian"}
    assert config.items() >= expected.items()
    assert config["command"]["flags"]["epsilon"] == [1, 50]


def test_the_guarantee_is_printed_and_a_part_of_the_results(tmp_path):
    command = [
        *(sys.executable, "-m", "fcjax", "baselines", "--methods", "exact-km"),
        *("--epsilon", "2", "--delta", "1e-6", "--seed", "0", "--no-plot"),
        *("--out", str(tmp_path)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after = re.findall("^privacy: epsilon.*$", done.stdout, re.MULTILINE)
    assert before.startswith("privacy: epsilon 2, delta 1e-06 for one example; ")
    assert after == "privacy: epsilon 2, delta 1e-06 per run, unit examples"
    runs = fcjax.open(tmp_path).runs
    names = ["epsilon", "delta", "privacy_unit", "mechanism"]
    assert runs[names].to_numpy().tolist() == [[2.0, 1e-6, "examples", "gaussian"]]


def test_a_folder_that_goes_on_has_the_sum_of_all_its_budgets(tmp_path):
    for epsilon in ([1.0], [1.0, 2.0]):
        privacy = Privacy(epsilon=epsilon)
        fcjax.run(ExactKMeans(), "digits", privacy=privacy, out=tmp_path, **DIGITS)
    expected = (
        "- privacy: epsilon 1 or 2, delta 1e-05 per run, unit examples; all 2 private "
        "runs together: at most epsilon 3, delta 2e-05\n"
    )
    assert expected in (tmp_path / "table.md").read_text()
    models = [path.name for path in (tmp_path / "models").glob("*.npz")]
    assert len(models) == 2
    assert all(any(f"epsilon={x}," in name for x in (1, 2)) for name in models)


@pytest.mark.parametrize(
    ("method", "settings", "line"),
    [
        (
            ExactKMeans(unit_length=False),
            {},
            "`radius` 8 changes no example",
        ),
        (ExactKMeans(unit_length=False), {"radius": 8.0}, ""),
        (ExactKMeans(), {}, ""),
        (ExactKMeans(), {"privacy_unit": "clients"}, "10 clients are few for that"),
    ],
)
def test_what_costs_more_than_the_noise_is_warned_of(method, settings, line):
    task = Task.of(method, epsilon=1, seed=(5,), limit=200, **settings)
    warnings = prepare(task, in_memory=True).warnings
    assert bool(line) == bool(warnings)
    assert re.search(line, " ".join(warnings))


def test_a_private_run_does_not_depend_on_the_other_budgets():
    def labels(epsilon):
        privacy = Privacy(epsilon=epsilon)
        results = fcjax.run(ExactKMeans(), "digits", privacy=privacy, **DIGITS)
        return results.where(epsilon=4.0)[0].labels_

    np.testing.assert_array_equal(labels([4.0]), labels([0.5, 4.0, 9.0]))


@pytest.mark.parametrize("noise_at", ["server", "clients"])
@pytest.mark.parametrize("method", [ExactKMeans(), ExactFuzzyCMeans()])
def test_a_large_budget_finds_clusters(method, noise_at):
    privacy = Privacy(epsilon=100, privacy_unit="clients", noise_at=noise_at)
    split = fcjax.Split(clients=100, p=0)
    run = method.fit("digits", split=split, privacy=privacy)
    assert run.row["nmi"] > 0.4


@pytest.mark.parametrize("method", [CCFC(preset="smoke"), FedMCC(preset="smoke")])
def test_networks_train_with_noise(method, vectors):
    """Little noise does not matter, and much noise leaves the networks finite.

    Much noise makes variances of batch norms negative, if nothing prevents it.
    """
    privacy = Privacy(epsilon=[0.5, 1e8], privacy_unit="clients", clip=50.0)
    split = fcjax.Split(clients=4, p=0)
    how = {"privacy": privacy, "split": split, "seeds": 1}
    much, little = fcjax.run(method, vectors, **how)
    assert np.isfinite(much.embedding_).all()
    assert little.is_ok
    assert len(set(little.labels_)) > 5


@pytest.mark.parametrize("method", [CCFC(preset="smoke"), FedMCC(preset="smoke")])
def test_the_clip_adapts_round_by_round(method, vectors):
    """Every update is shorter than the clip, so each round shrinks it by exp(-0.1)."""
    privacy = Privacy(epsilon=1e8, privacy_unit="clients", clip=50.0, clip_quantile=0.5)
    split = fcjax.Split(clients=4, p=0)
    results = fcjax.run(method, vectors, privacy=privacy, split=split, seeds=1)
    clips = results.history["clip"].dropna().to_numpy()
    assert len(clips) > 1
    expected = 50 * np.exp(-0.1 * np.arange(1, len(clips) + 1))
    np.testing.assert_allclose(clips, expected, rtol=1e-3)
    assert results.runs["nmi"].item() >= 0


@pytest.mark.parametrize(
    ("method", "settings", "line"),
    [
        (KFed(), {"epsilon": 1}, "`epsilon` is not available for k-fed"),
        (FFCM(), {"epsilon": 1}, "`epsilon` is not available for ffcm"),
        (CCFC(), {"epsilon": 1, "privacy_unit": "examples"}, "no gradient belongs"),
        (CCFC(cluster_rounds=3), {"epsilon": 1}, "`cluster_rounds` must be 0"),
        (CCFC(preset="paper"), {"epsilon": 1}, "`cluster_by` k-means"),
        (CCFC(standalone=True), {"epsilon": 1}, "`cluster_by` k-means"),
        (FedMCC(cluster_by="mcc"), {"epsilon": 1}, "must be k-means"),
        (ExactKMeans(), {"epsilon": 1, "delta": 0.01}, "`delta` must be below 1 / 200"),
        (ExactKMeans(), {"epsilon": 1, "privacy_unit": "clustering"}, "examples or"),
        (ExactKMeans(), {"epsilon": 1, "keep_uploads": True}, "have no noise"),
        (ExactKMeans(), {"epsilon": 1, "clip": 2.0}, "`clip` has no effect with"),
        (ExactKMeans(), {"epsilon": 1, "sample_rate": 0.5}, "`sample_rate` has no"),
        (FFCM(), {"min_members": 2}, "`min_members` is not available for ffcm"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_one_line(method, settings, line):
    with pytest.raises(ValueError, match=line) as error:
        prepare(Task.of(method, limit=200, **settings), in_memory=True)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"epsilon": 1, "clip_quantile": 1.5}, "`clip_quantile` must lie in .0, 1."),
        ({"clip_quantile": 0.5}, "`clip_quantile` has no effect without `epsilon`"),
        ({"epsilon": 0}, "`epsilon` must be finite and above 0, got 0"),
        ({"epsilon": float("inf")}, "`epsilon` must be finite and above 0, got inf"),
        ({"epsilon": [1, 1]}, "different values"),
        ({"epsilon": 1, "delta": 0.0}, r"`delta` must lie in \(0, 0.5\], got 0.0"),
        ({"epsilon": 1, "sample_rate": 1.5}, "`sample_rate` must lie in"),
        ({"epsilon": 1, "clip": 0.0}, "`clip` must be above 0, got 0.0"),
        ({"epsilon": 1, "noise_at": "clients", "sample_rate": 0.5}, "must be 1 with"),
        ({"epsilon": 1, "min_members": 2}, "`min_members` has no effect with"),
        ({"min_members": 0}, "`min_members` must be at least 1, got 0"),
        ({"clip": 2.0}, "`clip` has no effect without `epsilon`"),
    ],
)
def test_wrong_settings_of_privacy(settings, line):
    with pytest.raises(ValueError, match=line):
        Privacy(**settings)


@pytest.mark.parametrize("method", [ExactKMeans(), ExactFuzzyCMeans(), KFed()])
def test_small_clusters_are_withheld(method):
    split = fcjax.Split(clients=10, p=1)

    def uploaded(least):
        results = fcjax.run(
            *(method, "digits"),
            split=split,
            keep_uploads=True,
            privacy=Privacy(min_members=least),
            **DIGITS,
        )
        return results[0].privacy_report().points.members

    assert uploaded(1).min() < 4
    assert uploaded(4).min() >= 4


def test_the_model_of_a_private_run_has_no_exact_means():
    """The mean of a cluster with one example would be this example."""
    split = fcjax.Split(clients=4, p=0)
    privacy = Privacy(epsilon=8)
    private = ExactKMeans().fit("digits", split=split, privacy=privacy)
    assert np.isnan(private.model.centers).all()
    noisy = private.model.weights["clusters/centroids"]
    examples = private.dataset.examples.reshape(len(private.labels_), -1) / 16
    unit = examples / np.linalg.norm(examples, axis=1, keepdims=True)
    nearest = ((unit[:, None] - noisy) ** 2).sum(axis=-1).argmin(axis=1)
    assert (nearest == private.labels_).mean() > 0.99
    assert np.isfinite(ExactKMeans().fit("digits", split=split).model.centers).all()


def test_the_report_of_a_private_run_says_what_it_shows(tmp_path):
    def report(name, **options):
        split, folder = fcjax.Split(clients=4, p=0), tmp_path / name
        results = fcjax.run(
            *(ExactKMeans(), "digits"),
            split=split,
            limit=60,
            out=folder,
            **options,
        )
        results.report(folder / "report")
        return (folder / "report" / "report.html").read_text()

    private = report("private", privacy=Privacy(epsilon=8))
    line = "Privacy: epsilon 8, delta 1e-05 per run, unit examples. The guarantee does "
    assert f"{line}not cover this report" in " ".join(private.split())
    assert "in the order of the data set" in private
    assert "nearest to the center" not in private
    usual = report("usual")
    assert "The guarantee does not cover" not in usual
    assert "nearest to the center" in usual


def test_a_sum_of_budgets_needs_independent_noise_and_the_same_clients():
    def rows(unit, *seeds):
        each = {"epsilon": 2.0, "delta": 1e-5, "privacy_unit": unit}
        return [each | {"seed": seed} for seed in seeds]

    assert spent(rows("examples", 1, 2, 3)).endswith(
        "; all 3 private runs together: at most epsilon 6, delta 3e-05"
    )
    assert "together (if their clients are the same): " in spent(rows("clients", 1, 2))
    # Such as runs of two numbers of clusters.
    assert "; no sum bounds all 3 runs" in spent(rows("examples", 1, 2, 2))
    assert spent([{"epsilon": None}, {}]) == ""


def test_what_weakens_a_guarantee_is_said():
    def said(**settings):
        task = Task.of(ExactKMeans(), limit=200, **settings)
        prepared = prepare(task, in_memory=True)
        return prepared.notes, prepared.warnings

    notes, warnings = said(epsilon=[1, 2], seed=(3, 4, 5), delta=1e-4)
    assert notes[-1].startswith("privacy: epsilon 1 2, delta 0.0001 for one example; ")
    assert not warnings
    _, warnings = said(epsilon=1, delta=1e-3)
    assert "seed 0 is the default" in warnings[0]
    assert "delta 0.001 is large for 200 examples; choose at most 0.0005" in warnings[1]
