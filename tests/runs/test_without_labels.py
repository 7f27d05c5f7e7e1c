"""What the commands for several runs say: of blobs that two runs find and a third does
not, of runs that cannot be compared, of clients on their own."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fcjax
from experiments import spherical
from fcjax.cli import commands, tools
from fcjax.methods import LRSC, KMeans
from fcjax.metrics.agreement import holm, paired
from fcjax.metrics.external import ari
from fcjax.results import selection, store
from fcjax.results.results import gather, least_confident
from fcjax.sweep import experiment, train
from fcjax.sweep.plan import Task


def rows(path):
    """The lines of a table, of which no cell is changed by reading it."""
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def run(out, dataset, **flags):
    flags = {"dataset": str(dataset), "clients": (3,), "p": (0.0,), **flags}
    args = Task.of(spherical.Spherical, out=out, plot=False, **flags)
    train.execute(experiment.prepare(args))
    return out


def rewritten(source, out, clusters, **cells):
    """A copy of a folder whose runs found these clusters, [R, P], and whose rows have
    these cells."""
    shutil.copytree(source, out)
    arrays = dict(np.load(out / "assignments.npz"))
    assert arrays["cluster"].shape == np.shape(clusters)
    np.savez(out / "assignments.npz", **arrays | {"cluster": np.array(clusters)})
    table = rows(out / "results.csv").assign(**cells)
    table.to_csv(out / "results.csv", index=False)
    return out


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    """Sixty vectors in three directions, and which."""
    labels = np.repeat([0, 1, 2], 20)
    rng = np.random.default_rng(0)
    x = np.eye(3)[labels] + 0.05 * rng.random((60, 3))
    path = tmp_path_factory.mktemp("data") / "blobs.npz"
    np.savez(path, x=x.astype(np.float32), y=labels)
    return path, labels


@pytest.fixture(scope="module")
def grid(blobs, tmp_path_factory):
    return run(tmp_path_factory.mktemp("grid") / "run", blobs[0], seed=(0, 1, 2, 3))


@pytest.fixture(scope="module")
def known(grid, blobs, tmp_path_factory):
    """Four runs, as good as they are: the first has two in other clusters, the second
    and third one, another each, the last all by chance."""
    _, truth = blobs
    found = np.tile(truth, (4, 1))
    found[0, [0, 20]] = 1, 0
    found[1, 1], found[2, 21] = 2, 2
    found[3] = np.random.default_rng(1).permutation(truth)
    nmi = ["0.8", "0.9", "0.95", "0.1"]
    out = tmp_path_factory.mktemp("known") / "run"
    return rewritten(grid, out, found, nmi=nmi, acc=nmi)


def test_the_run_that_agrees_most_is_chosen(known, tmp_path, capsys):
    tools.Choose((known,), by="agreement", out=tmp_path)()
    table = pd.read_csv(tmp_path / "choice.csv")
    # Of clusters of 20 the index of two that differ in one example is above that of
    # two that differ in three.
    assert table.seed[2:].tolist() == [0, 3]
    assert table.agreement[0] > table.agreement[2] > 0.5
    assert (tmp_path / "choice.png").stat().st_size > 5000
    printed, best = capsys.readouterr().out, table.seed[0]
    assert f"The best run by agreement is spherical p 0, seed {best} (" in printed
    assert f"--where p=0 seed={best}" in printed
    assert re.search(rf"\| agreement .* {0.95 - table.nmi[0]:.3f} \|", printed)
    assert re.search(r"a random run.* 0.262 ", printed)  # 0.95 less the mean, 0.6875


def test_there_is_one_choice_per_heterogeneity(blobs, tmp_path, capsys):
    """Nobody chooses how unlike the clients are. Runs of other p are neither chosen nor
    compared."""
    truth, rng = blobs[1], np.random.default_rng(0)
    made = run(tmp_path / "made", blobs[0], p=(0.0, 1.0), seed=(0, 1, 2))
    found = np.tile(truth, (6, 1))
    for place, errors in enumerate((9, 9, 30, 0, 3, 0)):
        found[place, :errors] = rng.integers(0, 3, errors)
    found[1] = found[0]  # the first two of p = 0 agree
    out = rewritten(made, tmp_path / "run", found)
    tools.Choose((out,), by="agreement")()
    printed = capsys.readouterr().out
    best = [x for x in printed.splitlines() if x.startswith("The best run by agree")]
    assert [x.partition(" (")[0] for x in best] == [
        "The best run by agreement is spherical p 0, seed 0",
        "The best run by agreement is spherical p 1, seed 0",
    ]
    assert all("the same value as 1 of the other runs" in x for x in best)
    table = pd.read_csv(out / "choice.csv")
    assert table.p.tolist() == [0, 0, 0, 1, 1, 1]
    # Each of the two agrees with the other one fully, and with the third by the index.
    third = ari(found[0], found[2])
    assert table.agreement[0] == pytest.approx((1 + third) / 2, abs=1e-5)
    assert not (out / "choice.png").exists()
    results = gather([out])
    assert results.ensemble().by_data_setting == [[0, 1, 2], [3, 4, 5]]
    place, _ = selection.choose_run(results.ensemble())  # of pages and figures
    assert results[place].row["p"] == 0
    with pytest.raises(ValueError, match="2 settings of the data"):
        results.choose()
    assert results.where(p=1).choose("agreement").params["seed"] == 0


def test_rank_correlation_and_regret_by_hand():
    values, nmi = np.array([3.0, 1, 2, 0]), np.array([0.8, 0.9, 0.7, 0.1])
    # Ranks 4 2 3 1 and 3 4 2 1: 1 - 6 * (1 + 4 + 1 + 0) / (4 * 15).
    assert selection.correlation(values, nmi) == pytest.approx(0.4)
    assert selection.regret(values, nmi) == pytest.approx(0.1)
    unknown = np.array([np.nan, 1, 2, 0])
    assert selection.ranking(unknown) == [2, 1, 3, 0]
    assert np.isnan(selection.correlation(np.ones(4), nmi))


def test_a_collapsed_run_has_no_vote_and_is_not_chosen(known, grid, blobs, tmp_path):
    _, truth = blobs
    found = np.stack([truth, np.zeros(60, int), np.zeros(60, int), truth])
    found[3, 0] = 1
    found[:, 7] = -1
    status = ["ok", "collapsed", "collapsed", "ok"]
    out = rewritten(grid, tmp_path / "run", found, status=status)
    tools.Choose((out,), by="agreement", out=tmp_path)()
    table = pd.read_csv(tmp_path / "choice.csv")
    # The two that collapsed agree perfectly.
    assert table.status.tolist() == ["ok", "ok", "collapsed", "collapsed"]
    assert table.agreement.isna().tolist() == [False, False, True, True]
    tools.Consensus((out,), out=tmp_path / "both")()
    table = pd.read_csv(tmp_path / "both" / "assignments.csv")
    assert {*table.cluster} == {-1, 0, 1, 2}
    assert table.example[table.confidence < 0.9].tolist() == [0]
    # Nobody holds example 7.
    assert table.cluster[7] == -1
    assert np.isnan(table.confidence[7])


def test_a_consensus_and_how_sure_it_is(known, tmp_path, capsys):
    tools.Consensus((known,), out=tmp_path)()
    table = pd.read_csv(tmp_path / "assignments.csv")
    # Each of the examples that a single run has elsewhere is where the others have it.
    assert table.groupby("label").cluster.unique().map(len).tolist() == [1, 1, 1]
    assert table.cluster.nunique() == 3
    assert {*table.nsmallest(4, "confidence").example} == {0, 1, 20, 21}
    assert re.search(r"consensus( +\| +1\.000){3}", capsys.readouterr().out)
    with np.load(tmp_path / "consensus.npz") as file:
        assert file["clusters"].shape == file["confidence"].shape == (60,)
    assert (tmp_path / "confidence.png").exists()
    assert not (tmp_path / "unsure.png").exists()  # vectors are no images


def test_a_consensus_has_the_numbers_of_the_run_of_the_report(
    grid, blobs, tmp_path, capsys
):
    """Four runs found the same three blobs, each with other numbers."""
    _, truth = blobs
    numbers = [[2, 0, 1], [1, 0, 2], [0, 2, 1], [1, 2, 0]]
    found = np.array(numbers)[:, truth]
    found[:3, :2] = found[:3, 59:]  # two examples are wrong except in the last run
    out = rewritten(grid, tmp_path / "run", found)
    tools.Consensus((out,), out=tmp_path)()
    table = pd.read_csv(tmp_path / "assignments.csv")
    # The last run has the highest silhouette.
    assert table.cluster.tolist() == [0] * 2 + [1] * 18 + [2] * 20 + [0] * 20
    assert table.confidence[[0, 2, 59]].tolist() == pytest.approx(
        # Alike with 1 other always, and with 20 in three of four runs.
        [(1 + 20 * 0.75) / 21, 1, (19 + 2 * 0.75) / 21]
    )
    assert (
        "like those of spherical p 0, seed 3, by best match" in capsys.readouterr().out
    )
    combined = fcjax.open(out).consensus()
    assert combined.clusters.tolist() == table.cluster.tolist()


def test_of_a_part_the_rows_of_the_whole_are_named(blobs, tmp_path):
    out = run(tmp_path / "run", blobs[0], limit=30, seed=(0, 1))
    tools.Consensus((out,), out=tmp_path)()
    tools.Report(out)()
    each = [pd.read_csv(x / "assignments.csv").example for x in (tmp_path, out)]
    assert each[0].tolist() == each[1].tolist() != [*range(30)]


def test_scores_alone_are_enough_to_compare(known, tmp_path):
    """As the ledger keeps them."""
    kept = shutil.copytree(known, tmp_path / "kept")
    (kept / "assignments.npz").unlink()
    first = {"first_where": ("seed=0",), "second_where": ("seed=0",)}
    tools.Compare(kept, known, out=tmp_path, **first)()
    table = pd.read_csv(tmp_path / "comparison.csv")
    assert table[["difference", "seeds"]].to_numpy().tolist() == [[0, 1]]
    with pytest.raises(ValueError, match="has no assignments"):
        tools.Choose((kept,))()


def test_a_run_is_named_so_that_it_is_found_again(blobs, tmp_path, capsys):
    out = run(tmp_path / "my run", blobs[0], p=(0.1234567,), seed=(20261125, 7))
    tools.Choose((out,))()
    _, command = capsys.readouterr().out.split("next: fcjax report ")
    folder, _, *where = shlex.split(command.splitlines()[0])
    found = gather([Path(folder)], store.parse_where(where))
    assert len(found) == 1


def test_the_number_of_clusters_of_blobs(blobs, tmp_path, capsys):
    """Three directions: two clusters hold one of them and two of them by chance."""
    path, _ = blobs
    flags = {"clusters": (2, 3, 6), "seed": (0, 1, 2)}
    out = run(tmp_path / "run", path, labels=False, **flags)
    tools.HowMany((out,))()
    assert "Suggested number of clusters: 3 (" in capsys.readouterr().out
    table = pd.read_csv(out / "how_many.csv", index_col="clusters")
    assert table.index.tolist() == [2, 3, 6]
    assert table.between[3] == 1
    assert (out / "how_many.png").stat().st_size > 5000


def test_the_caveats_of_a_suggested_number():
    runs = {4: stable((0.99, 0.97), (0.1, 0.1)), 6: stable((0.9, 0.9), (0.9, 0.9))}
    four, six, none = (selection.Suggestion(k, "", runs, "") for k in (4, 6, None))
    agree = "seeds nearly always agree on 4 clusters (mean adjusted Rand index 0.98), "
    agree += "as they often do for few clusters"
    assert tools.how_many_caveat(four, {4: 0.30, 6: 0.31}) == f"caveat: {agree}"
    assert tools.how_many_caveat(four, {4: 0.2, 6: 0.3}) == (
        f"caveat: {agree}; the silhouette on the raw examples is highest for 6 "
        "clusters (0.30; 4 clusters: 0.20)"
    )
    assert tools.how_many_caveat(six, {4: 0.2, 6: 0.3}) == ""
    assert tools.how_many_caveat(six, {}) == ""
    assert tools.how_many_caveat(none, {4: 0.2, 6: 0.3}) == ""


def test_unsure_examples_are_counted_and_sure_clusters_named():
    clusters, confidence = np.repeat([0, 1], [597, 3]), np.ones(600)
    confidence[[597, 598, 599]] = 0.8, 0.4, 0.6
    combined = selection.Consensus(clusters, confidence)
    runs = selection.Ensemble((None, None), np.zeros((2, 600), int), None)
    assert selection.confidence_text(runs, combined) == (
        "the 2 runs agree on 100% of 600 examples (confidence 0.9 or more); "
        "3 examples are unsure, 1 of them with a confidence below 0.5"
    )
    rows, names = least_confident(combined)
    assert [row.tolist() for row in rows] == [[], [598, 599, 597]]
    assert names == ["cluster 0, all sure", "cluster 1, from 40%"]


def stable(between, within=(0.1, 0.1, 0.1)):
    return selection.Stability(between, within, len(between))


@pytest.mark.parametrize(
    ("four", "six", "number", "told"),
    [
        (
            stable((0.5, 0.7, 0.6)),
            stable((0.5, 0.6, 0.6)),
            None,
            "0.50 for 4 clusters, 0.47",
        ),
        # However alike: two that differ in the third digit.
        (stable((0.8, 0.8, 0.8)), stable((0.799, 0.799, 0.799)), None, "no number"),
        (stable((0.5, 0.7, 0.6)), stable((0.9, 0.9, 0.9)), 6, "no run has more"),
        # Seeds agree more on the parts of the clusters.
        (
            stable((0.1,) * 3, (0.5,) * 3),
            stable((0.1,) * 3, (0.9,) * 3),
            None,
            "no num",
        ),
    ],
)
def test_what_does_not_stand_out_is_not_suggested(four, six, number, told):
    found, reason = selection.suggest({4: four, 6: six})
    assert found == number
    assert told in reason


def test_seeds_are_paired(known, grid, blobs, tmp_path, capsys):
    """Scores 0.8, 0.9, 0.95, 0.1 and 0.6, 0.8, 0.85, 0.3, seed by seed, of which the
    second folder has the seeds in another order and one more."""
    _, truth = blobs
    other = run(tmp_path / "other", blobs[0], seed=(3, 2, 1, 0, 4))
    found = np.tile(truth, (5, 1))
    nmi = ["0.6", "0.8", "0.85", "0.3", "0.5"]
    other = rewritten(other, tmp_path / "scored", found, nmi=nmi)
    tools.Compare(known, other, out=tmp_path)()
    table = pd.read_csv(tmp_path / "comparison.csv")
    expected = [4, (0.2 + 0.1 + 0.1 - 0.2) / 4, 2.55 / 4]
    found = table[["seeds", "difference", "second"]].to_numpy().tolist()
    assert found == [pytest.approx(expected)]
    printed = capsys.readouterr().out
    assert "no difference seen" in printed
    assert "1 of 5 runs in" in printed
    assert "No difference between" in printed
    assert (tmp_path / "comparison.png").stat().st_size > 5000
    # The same runs with themselves, by the seed: one pair each.
    tools.Compare(known, other, by=("seed",), out=tmp_path)()
    table = pd.read_csv(tmp_path / "comparison.csv")
    assert table.difference.tolist() == pytest.approx([0.2, 0.1, 0.1, -0.2])


def test_settings_of_one_grid_are_told_apart(blobs, tmp_path):
    flags = {"clusters": (2, 3), "p": (0.0, 1.0), "seed": (0, 1)}
    out = run(tmp_path / "run", blobs[0], **flags)
    where = {"first_where": ("clusters=3",), "second_where": ("clusters=2",)}
    tools.Compare(out, out, **where)()
    table = pd.read_csv(out / "comparison.csv", index_col="p")
    assert table.seeds.to_dict() == {0: 2, 1: 2}
    nmi = pd.read_csv(out / "results.csv").groupby(["clusters", "p"]).nmi.mean()
    np.testing.assert_allclose(table.difference, nmi[3] - nmi[2], atol=1e-6)


def test_all_values_of_a_setting_are_compared_with_one_correction(
    blobs, tmp_path, monkeypatch, capsys
):
    flags = {"clusters": (2, 3, 4), "p": (0.0, 1.0), "seed": (0, 1, 2)}
    out = run(tmp_path / "run", blobs[0], **flags)
    noise = np.random.default_rng(0).normal(0, 0.1, 18)
    table = pd.read_csv(out / "results.csv")
    table.assign(nmi=table.nmi + noise).to_csv(out / "results.csv", index=False)
    capsys.readouterr()
    tools.Compare(out, between="clusters")()
    assert " of 6 differences between values of clusters" in capsys.readouterr().out
    keys = ["first clusters", "second clusters", "p"]
    table = pd.read_csv(out / "comparison.csv", index_col=keys)
    pairs = [(2, 3), (2, 4), (3, 4)]
    assert table.index.tolist() == [(*x, p) for x in pairs for p in (0, 1)]
    nmi = pd.read_csv(out / "results.csv").set_index(["clusters", "p", "seed"]).nmi
    for first, second, p in table.index:
        test = paired(nmi[first, p].tolist(), nmi[second, p].tolist())
        line = table.loc[(first, second, p)]
        assert line.difference == pytest.approx(test.mean, abs=1e-5)
        assert line.p_value == pytest.approx(test.p_value, rel=1e-4)
    np.testing.assert_allclose(table.holm, holm(table.p_value.tolist()), rtol=1e-4)
    for words, told in [
        (("--between", "seed"), "--between takes p clusters, got seed"),
        ((str(out), "--between", "p"), "--between takes one folder"),
        ((), "SECOND is missing; give a second folder, or --between"),
    ]:
        assert told in refused("compare", [str(out), *words], monkeypatch, capsys)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Clients on their own: low-rank subspaces of two hundred digits."""
    out = tmp_path_factory.mktemp("own")
    flags = {"clients": (2,), "seed": (0, 1, 2), "limit": 200, "plot": False}
    args = Task.of(LRSC, out=out / "lrsc", **flags)
    train.execute(experiment.prepare(args))
    return out / "lrsc"


def test_clients_on_their_own_are_compared_client_by_client(own, tmp_path, capsys):
    runs = gather([own]).ensemble()
    assert runs.clients is not None
    assert runs.clusters.max() == 19  # ten of each of two clients
    tools.Choose((own,), by="agreement", out=tmp_path)()
    assert "The best run by agreement is lrsc" in capsys.readouterr().out
    assert (
        pd.read_csv(tmp_path / "choice.csv")[["others", "input"]].isna().all(axis=None)
    )
    tools.Consensus((own,), clusters=10, out=tmp_path)()
    printed = capsys.readouterr().out
    best = pd.read_csv(own / "results.csv").nmi.max()
    assert re.search(rf"best of the runs.* {best:.3f} ", printed)
    # Clusters of clients that hold other examples with every seed become ten of all.
    found = re.search(r"consensus +\| +([\d.]+)", printed)
    assert float(found[1]) > 0.3
    assert {*pd.read_csv(tmp_path / "assignments.csv").cluster} == {*range(10)}


# --- what is refused


def other_data(grid, blobs, tmp_path):
    path = tmp_path / "others.npz"
    np.savez(path, x=np.ones((60, 3)), y=np.repeat([0, 1, 2], 20))
    return run(tmp_path / "others", path)


def backwards(name):
    """Other examples, or other labels, of the same name."""

    def make(grid, blobs, tmp_path):
        path = tmp_path / blobs[0].name
        with np.load(blobs[0]) as file:
            np.savez(path, **{**file, name: file[name][::-1]})
        return run(tmp_path / "others", path)

    return make


def collapsed(grid, blobs, tmp_path):
    found = np.zeros((4, 60), int)
    return rewritten(grid, tmp_path / "run", found, status=["collapsed"] * 4)


def twice(grid, blobs, tmp_path):
    return grid


single: dict = {}
other_level = {"p": (1.0,)}
fewer, two_clusters, parts_of_clients = (
    *({"limit": 30}, {"clusters": (2,)}, {"client_size": (20,)}),
)
softer = {"clusters": (3, 4), "momentum": (0.5,)}
levels = {"clusters": (2, 3), "p": (0.0, 1.0)}
"""Runs of the same blobs with these flags."""


@pytest.mark.parametrize(
    ("command", "make", "with_grid", "flags", "told"),
    [
        ("choose", single, False, ("--by", "agreement"), "--by agreement needs 2"),
        ("consensus", single, False, (), "1 of 1 runs ended well, and at least two"),
        ("consensus", collapsed, False, (), "0 of 4 runs ended well"),
        ("choose", collapsed, False, (), "needs 1 runs? that ended well, got 0"),
        ("choose", twice, True, (), "is given twice"),
        (
            "compare",
            other_level,
            True,
            (),
            "no run of .* has the same p, clients, clusters",
        ),
        ("choose", single, False, ("--where", "self=1"), "--where takes p=VALUE"),
        (
            "how-many",
            softer,
            True,
            (),
            "differ in momentum: select runs with --where mom",
        ),
        ("how-many", single, True, (), "all runs have 3 clusters: run several"),
        ("choose", other_data, True, (), "data: dataset is blobs.npz and others.npz"),
        ("choose", backwards("x"), True, (), "data: the digest of its examples is"),
        ("compare", backwards("y"), True, (), "data: the digest of its labels is"),
        ("compare", other_data, True, (), "of different data: dataset is blobs"),
        (
            "compare",
            parts_of_clients,
            True,
            (),
            "partitions: --client-size is None and",
        ),
        ("consensus", fewer, True, (), "different data: limit is None and 30"),
        (
            "consensus",
            two_clusters,
            True,
            (),
            r"different numbers of clusters \(2 3\): select",
        ),
        ("how-many", two_clusters, True, (), "one run with 2 clusters ended well"),
        (
            "how-many",
            levels,
            False,
            (),
            "the runs also differ in p: select runs with --where p",
        ),
        (
            "compare",
            single,
            True,
            ("--by", "weight"),
            "--by weight: .* has no setting weight, only p ",
        ),
        (
            *("compare", single, True),
            ("--by", "p", "--first-where", "p=0"),
            "--by p cannot define rows, because --where selects one",
        ),
        (
            "compare",
            single,
            True,
            ("--score", "size"),
            "--score size: .* has no number",
        ),
        ("choose", single, False, ("--where", "p=3"), "no run of .* has p=3"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(
    command, make, with_grid, flags, told, grid, blobs, tmp_path, monkeypatch, capsys
):
    if isinstance(make, dict):
        made = run(tmp_path / "run", blobs[0], **make)
    else:
        made = make(grid, blobs, tmp_path)
    folders = [grid, made] if with_grid else [made]
    before = [{path.name for path in folder.iterdir()} for folder in folders]
    line = refused(command, [*map(str, folders), *flags], monkeypatch, capsys)
    assert re.search(told, line)
    assert [{path.name for path in folder.iterdir()} for folder in folders] == before


def test_clients_of_other_classes_are_no_partners(blobs, tmp_path, monkeypatch, capsys):
    flags = {"p": (), "overlap": (0.0,), "clients": (6,), "samples_per_class": 5}
    folders = [
        str(run(tmp_path / str(most), blobs[0], class_range=(1, most), **flags))
        for most in (1, 2)
    ]
    line = refused("compare", folders, monkeypatch, capsys)
    assert "different partitions: --class-range is [1, 1] and [1, 2]" in line


@pytest.mark.parametrize("command", ["choose", "consensus", "how-many", "compare"])
def test_a_folder_that_is_none_is_refused(command, tmp_path, monkeypatch, capsys):
    folders = [str(tmp_path)] * (2 if command == "compare" else 1)
    assert "holds no run" in refused(command, folders, monkeypatch, capsys)


def test_runs_are_not_compared_with_themselves(known, tmp_path, monkeypatch, capsys):
    """The same folder may be on both sides, if each side has runs of its own."""
    both, told = [str(known)] * 2, "choose the runs of each side by --first-where and "
    assert f"{told}--second-where" in refused("compare", both, monkeypatch, capsys)
    same = ("--first-where", "seed=0", "--second-where", "seed=0.0")
    assert told in refused("compare", [*both, *same], monkeypatch, capsys)
    runs = gather([known])
    with pytest.raises(ValueError, match="both sides are the same runs of"):
        runs.compare(runs)
    assert runs.compare(runs.where(seed=0)).seeds.tolist() == [1]
    in_memory = [
        fcjax.run(KMeans(num_init=x), "digits", seeds=1, limit=100) for x in (1, 2)
    ]
    assert in_memory[0].compare(in_memory[1]).seeds.tolist() == [1]


def refused(command, words, monkeypatch, capsys):
    """Runs a command, and returns the line with which it ends."""
    monkeypatch.setattr(sys, "argv", ["fcjax", command, *words])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    line = capsys.readouterr().err
    assert ended.value.code == 2
    assert re.fullmatch(rf"fcjax {command}: error: .*\n", line)
    return line
