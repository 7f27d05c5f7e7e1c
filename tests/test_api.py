"""The methods as Python objects: arrays in, clusters, frames and models out."""

import dataclasses
import logging
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.metrics import normalized_mutual_info_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fcjax
from fcjax import Split, data
from fcjax.methods import CCFC, FFCM, FedU, KFed, KMeans
from fcjax.methods.base import Problem
from fcjax.results import exported
from fcjax.sweep.train import programs

X, Y = load_iris(return_X_y=True)
KFED = KFed()
SITE = np.random.default_rng(0).choice(["north", "south", "west"], len(X))


@pytest.fixture(autouse=True)
def _printed():
    """Nothing is printed unless a call asks for it."""


@pytest.fixture(scope="module")
def fitted():
    # By nearest centroids, which new examples are assigned by, too.
    return KFed(inherit=False).fit(X, clients=SITE, num_clusters=3, seed=0)


def test_a_fitted_run_holds_what_was_found(fitted):
    assert fitted.labels_.shape == (150,)
    assert {*fitted.labels_} == {0, 1, 2}
    # Clients are numbered from the largest on, each example keeps its own.
    found = pd.crosstab(SITE, fitted.clients_)
    assert ((found > 0).sum() == 1).all()
    assert fitted.embedding_.shape == (150, 4)
    np.testing.assert_array_equal(fitted.predict(X), fitted.labels_)
    assert fitted.transform(X[:1]).shape == (1, 4)
    scores = fitted.scores(Y)
    assert scores["nmi"] == pytest.approx(
        normalized_mutual_info_score(Y, fitted.labels_)
    )
    assert len(fitted.history) == fitted.result["rounds"] == 1


def test_a_second_seed_compiles_nothing_and_changes_nothing():
    def clusters(seed, method=KFED, x=X, clients=SITE):
        return method.fit(x, clients=clients, num_clusters=3, seed=seed).labels_

    def hits_and_misses():
        return programs.cache_info()[:2]

    programs.cache_clear()
    alone = clusters(1)
    programs.cache_clear()
    clusters(0)
    np.testing.assert_array_equal(clusters(1), alone)
    clusters(1, clients=np.roll(SITE, 1))
    assert hits_and_misses() == (2, 1)
    # Another setting, other data, and a method outside of fcjax share nothing.
    clusters(0, KFed(local_start="kmeans++"))
    clusters(0, x=X[::-1])
    assert hits_and_misses() == (2, 3)
    own = dataclasses.make_dataclass("Own", [], bases=(KFed,), frozen=True)
    np.testing.assert_array_equal(clusters(1, own()), alone)
    assert hits_and_misses() == (2, 3)


def test_labels_are_not_taken_for_clients():
    """A method may build from labels, as FedCRef does to measure its associations."""
    sites = np.repeat(np.arange(3), 50)
    unlabelled = data.Dataset("mine", X.astype(np.float32), None)
    programs.cache_clear()
    KFED.fit(unlabelled, clients=sites, num_clusters=3)
    labelled = unlabelled._replace(labels=sites)
    KFED.fit(labelled, split=Split(clients=3, p=0.0), num_clusters=3)
    assert programs.cache_info().hits == 0


def test_a_model_is_saved_and_read(fitted, tmp_path):
    fitted.save(tmp_path / "model.npz")
    model = exported.read(tmp_path / "model.npz")
    x = ((X - model.scaling.low) / model.scaling.span).astype(np.float32)
    np.testing.assert_array_equal(exported.predict(model, x).clusters, fitted.labels_)


@pytest.mark.parametrize(
    "kind", [np.asarray, jnp.asarray, pd.DataFrame, np.ndarray.tolist]
)
def test_examples_may_be_any_array(kind, fitted):
    x = kind(X.astype(np.float32))
    ids = pd.Series(SITE) if kind is pd.DataFrame else SITE.tolist()
    found = KFed(inherit=False).fit_predict(x, clients=ids, num_clusters=3)
    assert normalized_mutual_info_score(found, fitted.labels_) == pytest.approx(1)


def test_a_method_is_a_step_of_a_pipeline_and_can_be_cloned():
    method = KFed(local_clusters=2)
    assert clone(method) == method
    pipeline = make_pipeline(StandardScaler(), method)
    found = pipeline.fit_predict(X, kfed__clients=SITE, kfed__num_clusters=3)
    # Columns are scaled to [0, 1] afterwards, whatever stood before.
    alone = method.fit_predict(X, clients=SITE, num_clusters=3)
    assert normalized_mutual_info_score(found, alone) == pytest.approx(1)


@pytest.mark.parametrize("values", [[1, 2], (1, 2)])
def test_settings_may_be_lists_or_tuples(values):
    found = fcjax.run(KMeans(num_init=values), X, num_clusters=3)
    assert found.runs["num_init"].tolist() == [1, 2]


def test_a_logs_own_handlers_stay_while_lines_are_printed(capsys):
    log, heard = logging.getLogger("fcjax"), []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    log.addHandler(handler)
    try:
        KMeans(num_init=1).fit(X, num_clusters=3, progress=True)
    finally:
        log.removeHandler(handler)
    printed = capsys.readouterr().out
    assert any("km on array" in line for line in heard)
    assert all(line in printed for line in heard)
    assert log.handlers == []


def test_nothing_is_printed_nor_configured(capsys, tmp_path, monkeypatch):
    import jax

    monkeypatch.chdir(tmp_path)
    before = dict(jax.config.values)
    KMeans(num_init=2).fit(X, num_clusters=3)
    assert capsys.readouterr().out == ""
    assert dict(jax.config.values) == before
    assert not [*tmp_path.iterdir()]


def test_assignments_have_the_rows_of_the_frame(tmp_path):
    frame = pd.DataFrame({"id": range(12), "a": [0, None, 1] * 4, "b": [0, 1, 1] * 4})
    kept = data.from_frame(frame, missing="drop")
    (run,) = fcjax.run(KFed(), kept, clients=[0, 1] * 4, num_clusters=2, out=tmp_path)
    rows = [0, 2, 3, 5, 6, 8, 9, 11]  # Rows 1, 4, 7 and 10 have a missing value.
    assert run.assignments.index.tolist() == rows
    assert fcjax.open(tmp_path)[0].assignments.index.tolist() == rows


def test_a_column_that_numbers_the_rows_is_no_feature():
    frame = pd.DataFrame({"id": range(150), "a": X[:, 2], "b": X[:, 3]})
    run = KFed().fit(frame, clients=SITE, num_clusters=3)
    assert run.dataset.examples.shape == (150, 2)
    (note,) = [x for x in run.dataset.notes if "numbers the rows" in x]
    assert note.startswith("column id ignored")


def test_warnings_need_no_progress(caplog):
    # Two groups on one ray from the origin, which `unit_length` makes the same.
    points = np.array([[1, 1], [2, 2], [8, 8], [9, 9]], np.float32)
    rays = data.Dataset("rays", points, np.array([0, 0, 1, 1]))
    FFCM().fit(rays, clients=[0, 0, 1, 1], num_clusters=2)
    KFed(unit_length=False).fit(rays, clients=[0, 0, 1, 1], num_clusters=2)
    below, copies = [x.getMessage() for x in caplog.records if x.name == "fcjax"]
    assert below.startswith("scores below the k-means baseline (k-means on the raw ")
    assert ", k-means 1.000); docs/methods/which.md" in below
    assert copies == (
        "k-fed: 2 of 2 clients have no more examples than `local_clusters` 2; their "
        "uploaded centroids are their examples"
    )


GRID = {"split": fcjax.Split(p=[0, 0.5], clients=4), "seeds": 3, "limit": 200}
METHODS = [KMeans(num_init=2), KFed(local_clusters=3)]


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    out = tmp_path_factory.mktemp("grid")
    return out, fcjax.run(METHODS, "digits", out=out, **GRID)


def test_a_grid_in_memory_is_that_in_a_folder(grid):
    out, kept = grid
    made = fcjax.run(METHODS, "digits", **GRID)
    opened = fcjax.open(out)
    columns = ["method", "p", "seed", "nmi", "acc", "kappa"]
    assert len(made) == 3 + 6  # k-means sees all data, whatever p is
    for other in (kept, opened):
        both = [
            x.runs[columns].sort_values(columns).reset_index(drop=True)
            for x in (made, other)
        ]
        pd.testing.assert_frame_equal(*both)
    table = made.summary()
    assert table.loc[("k-fed", 0.5), "seeds"] == 3
    nmi = made.runs.query("method == 'k-fed' and p == 0.5")["nmi"].astype(float)
    half = 4.302653 * nmi.std() / np.sqrt(3)
    assert table.loc[("k-fed", 0.5), "nmi_half_width"] == pytest.approx(half)
    one = made.run(method="k-fed", p=0.5, seed=2)
    assert one.params == {"p": 0.5, "clients": 4, "local_clusters": 3, "seed": 2}
    assert {*made.history["method"]} == {"km", "k-fed"}
    with pytest.raises(
        ValueError, match=r"6 runs .* by p \(0.0, 0.5\) and seed \(0, 1, 2"
    ):
        made.run(method="k-fed")
    with pytest.raises(ValueError, match=r"no run has p 0\.75"):
        made.where(p=0.75)


def test_the_command_goes_on_with_a_folder_that_python_has_begun(grid):
    out, _ = grid
    flags = "--methods k-fed --local-clusters 3 --p 0 0.5 --clients 4 --limit 200"
    command = f"-m fcjax baselines {flags} --seed 0:4 --out {out} --no-plot"
    done = subprocess.run(
        [sys.executable, *command.split()], capture_output=True, text=True
    )
    assert "reusing 6 finished runs" in done.stdout, done.stderr
    assert len(fcjax.open(out).where(method="k-fed")) == 8


def test_a_partition_gives_what_the_command_gives_at_its_heterogeneity():
    digits = fcjax.data.stratified_subset(fcjax.data.load("digits"), 300)
    site = fcjax.data.heterogeneous(digits.labels, 4, 0.25, seed=0)
    method = CCFC(preset="smoke", latent_size=8, num_init=2)
    alone = method.fit(digits.examples, clients=site, num_clusters=10)
    split = fcjax.Split(clients=4, p=0.25)
    (other,) = fcjax.run(method, "digits", split=split, limit=300, seeds=1)
    np.testing.assert_array_equal(alone.labels_, other.labels_)
    assert other.result["nmi"] == pytest.approx(
        alone.scores(digits.labels)["nmi"], abs=1e-6
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: KFed().fit(X), "^`num_clusters` is required for data without labels$"),
        (
            lambda: KFed().fit(
                pd.DataFrame({"site": SITE}), clients="site", num_clusters=3
            ),
            r"clients=x\['site'\] and x.drop\(columns='site'\), or pass data.from_fr",
        ),
        (
            lambda: KFed().fit(pd.DataFrame({"a": SITE}), num_clusters=3),
            r"`drop_columns`.* arguments of data.from_frame.* x.drop\(columns=\[...",
        ),
        (lambda: KFed().fit(X, clients=SITE[:9], num_clusters=3), "one id per example"),
        (
            lambda: KFed().fit(X, clients=[None] * 150, num_clusters=3),
            "has no example with a client",
        ),
        (lambda: KFed().fit([["a"]], num_clusters=3), "x has values of type"),
        (
            lambda: KMeans(num_init=[1, 2]).fit(X, num_clusters=3),
            "fit takes one value of each setting",
        ),
        (lambda: KMeans(num_init=0).fit(X, num_clusters=3), "`num_init` must be at"),
        (
            lambda: fcjax.run([KFed(), KFed()], X, num_clusters=3),
            "methods must have different names",
        ),
        (
            lambda: fcjax.run(
                KFed(), X, clients=SITE, split=fcjax.Split(p=1), num_clusters=3
            ),
            "clients and split exclude each other",
        ),
    ],
)
def test_wrong_arguments_get_one_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_setting_without_effect_is_warned_of():
    method = FedU(preset="smoke", cluster_by="k-means", cluster_learning_rate=1.0)
    with pytest.warns(UserWarning, match="cluster_learning_rate has no effect on fedu"):
        method.fit(X, clients=SITE, num_clusters=3)


def test_ffcm_of_hospitals_runs_too():
    found = FFCM(num_rounds=3).fit(X, clients=SITE, num_clusters=3)
    assert found.scores(Y)["nmi"] > 0.5


def test_what_is_given_wins_over_the_preset_even_if_it_is_the_default():
    # 10 is the default, and the smoke preset has 1.
    method = KMeans(preset="smoke", num_init=(10,))
    assert method.fit(X, num_clusters=3).result["num_init"] == 10
    assert KMeans(preset="smoke").fit(X, num_clusters=3).result["num_init"] == 1


def test_a_limit_holds_for_arrays_and_their_clients():
    grid = fcjax.run(KFed(), X, clients=SITE, num_clusters=3, limit=60)
    assert grid.runs["samples"].tolist() == [60]
    assert grid[0].labels_.shape == (60,)
    assert grid[0].embedding_.shape == (60, 4)


def test_ids_below_0_and_missing_ids_are_nobodys():
    site = np.where(np.arange(150) < 5, -1, np.arange(150) % 3)
    run = KFed(inherit=False).fit(X, clients=site, num_clusters=3)
    assert run.clients_.max() == 2
    assert (run.clients_[:5] == -1).all()
    names = [None if x < 0 else f"site {x}" for x in site]
    other = KFed(inherit=False).fit(X, clients=names, num_clusters=3)
    np.testing.assert_array_equal(run.labels_, other.labels_)


def test_a_folder_of_an_array_embeds_what_it_is_given(tmp_path):
    method = KFed(inherit=False)
    made = fcjax.run(method, X, clients=SITE, num_clusters=3, out=tmp_path)[0]
    opened = fcjax.open(tmp_path)[0]
    np.testing.assert_array_equal(made.embedding_, opened.transform(X))
    np.testing.assert_array_equal(made.labels_, opened.predict(X))
    with pytest.raises(ValueError, match="the folder does not store; use the results"):
        _ = opened.embedding_


def test_images_are_predicted_as_they_were_clustered():
    digits = fcjax.data.stratified_subset(fcjax.data.load("digits"), 200)
    run = KFed(inherit=False).fit(digits.examples, num_clusters=10)
    same = digits.examples[..., 0].astype(int)  # [n, H, W], as another program has it
    np.testing.assert_array_equal(run.predict(same), run.labels_)


def test_a_method_builds_its_algorithm():
    problem = Problem("iris", fcjax.data.Dataset("iris", X, Y), 5, 3, 30.0, 10)
    stages = CCFC(pretrain_rounds=4, cluster_rounds=2).build(problem).stages
    expected = [("pretrain", 4), ("k-means", 100), ("cluster", 2)]
    assert [(x.name, x.num_rounds) for x in stages] == expected
    with pytest.raises(ValueError, match="latent_size takes one value"):
        CCFC(latent_size=[4, 8]).build(problem)


@pytest.fixture(scope="module")
def of_table():
    """A table of named columns on unlike scales, and a run on it."""
    table = pd.DataFrame(X * [1, 10, 100, 1000], columns=["a", "b", "c", "d"])
    table["site"] = SITE
    dataset = fcjax.data.from_frame(table, client_column="site")
    method = KFed(inherit=False, unit_length=False)
    return table, method.fit(dataset, num_clusters=3, seed=0)


def test_columns_of_a_table_are_found_by_their_names(of_table, tmp_path):
    table, run = of_table
    order = ["d", "site", "b", "a", "c"]  # site is no feature and is ignored
    np.testing.assert_array_equal(run.predict(table[order]), run.labels_)
    np.testing.assert_array_equal(run.transform(table[order]), run.embedding_)
    values = table[["a", "b", "c", "d"]]
    np.testing.assert_array_equal(run.predict(values.to_numpy()), run.labels_)
    with pytest.raises(ValueError, match="x has no column 'b', but the model was"):
        run.predict(values.rename(columns={"b": "other"}))
    with pytest.raises(ValueError, match="x has several columns 'a'"):
        run.predict(pd.concat([values, values[["a"]]], axis=1))
    # The names are in the file of the model, too.
    values.to_csv(tmp_path / "table.csv", index=False)
    path = tmp_path / "table.csv"
    source = {"labels": False, "scaling": run.model.scaling}
    run.save(tmp_path / "model.npz")
    scaling = exported.read(tmp_path / "model.npz").scaling
    assert scaling is not None
    assert scaling.columns == ("a", "b", "c", "d")
    values[["c", "a", "d", "b"]].to_csv(path, index=False)
    read = fcjax.data.load(path, **source).examples
    np.testing.assert_allclose(read, run.dataset.examples, atol=1e-6)


def test_columns_with_the_same_name_stay_by_position(of_table):
    table, _ = of_table
    twice = table[["a", "b"]].set_axis(["a", "a"], axis=1)
    method = KFed(inherit=False, unit_length=False)
    run = method.fit(twice, clients=SITE, num_clusters=3)
    assert run.model.scaling.columns == ()
    np.testing.assert_array_equal(run.predict(twice), run.labels_)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("call", ["predict", "transform"])
def test_new_examples_with_a_value_that_is_not_finite_are_refused(
    value, call, of_table, fitted
):
    table, run = of_table
    table = table.copy()
    table.loc[7, "c"] = value
    message = "^x has a NaN or infinite value in column {} of example 8 of 150; all "
    with pytest.raises(ValueError, match=message.format("c")):
        getattr(run, call)(table)
    x = X.copy()
    x[7, 2] = value
    with pytest.raises(ValueError, match=message.format(3)):
        getattr(fitted, call)(x)


def test_new_images_that_are_not_finite_are_refused():
    digits = fcjax.data.stratified_subset(fcjax.data.load("digits"), 200)
    run = KFed(inherit=False).fit(digits.examples, num_clusters=10)
    x = digits.examples / 255
    x[3, 1, 1] = np.nan
    with pytest.raises(ValueError, match=r"^x has a NaN .* value of example 4 of 200"):
        run.predict(x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (fcjax.data.from_frame(pd.DataFrame(X)), "^x is a Dataset, whose values are"),
        (X[0], r"^x must have shape \[n, F\], got \(4,\)"),
        (X[:, :3], "^x has 3 columns, but the model was trained on 4"),
        (pd.DataFrame({"a": ["no"]}), "^x has values that are not numbers in column a"),
    ],
)
def test_new_examples_of_a_wrong_kind_get_one_line(x, message, fitted):
    with pytest.raises(ValueError, match=message) as error:
        fitted.predict(x)
    assert "\n" not in str(error.value)


def test_results_and_runs_say_what_they_hold():
    method = KFed(local_clusters=2)
    some = fcjax.run(method, X, clients=SITE, num_clusters=[2, 3], seeds=2)
    expected = "k-fed on array; clusters 2, 3; seed 0, 1; scores silhouette, input_sil"
    assert repr(some).startswith(f"<Results of 4 runs: {expected}")
    one = some.run(num_clusters=3, seed=1)
    assert one.row["clusters"] == 3
    scores = "silhouette {silhouette:.3f}, input_silhouette {input_silhouette:.3f}"
    start = "<Run k-fed natural 1, clusters 3, seed 1 on array: "
    assert repr(one) == start + scores.format(**one.row) + ">"


def test_methods_without_labels_are_compared_on_the_raw_examples():
    some = fcjax.run(METHODS, X, num_clusters=3)
    table = some.summary()
    column = "input_silhouette"
    assert table[column].tolist() == some.runs[column].tolist()
    assert table.columns.tolist() == ["silhouette", column, "seeds"]
