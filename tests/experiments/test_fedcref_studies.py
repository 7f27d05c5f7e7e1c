"""What reproduce.py makes of the FedCRef paper: what is run for each table, and how
the files that runs leave are read and drawn."""

import numpy as np
import pytest
import reproduce
from papers import fedcref_studies, measures

from fcjax.checkpoints import Position
from fcjax.evaluation import figures, tables
from fcjax.grid.flags import Common
from fcjax.results import Results

NAMES = [*fedcref_studies.STUDIES]
EMNIST = "emnist/digits"
DEC, FROM_DEC, UIFCA = "Centralized baseline w/ DEC", "FedCRef w/ DEC", "UIFCA"
OURS, PERFECT = "FedCRef", "Perfect Associations"


def flags(table, tmp_path, dataset=EMNIST, *, preset="paper"):
    """Of each row, as its script is given them."""
    study = reproduce.STUDIES[table]
    args = reproduce.Args(table=table, preset=preset, out=tmp_path)
    name = "digits" if preset == "smoke" else dataset
    return {
        row.label: reproduce.flags_of(study, row, name, args, paper=name)
        for row in study.rows
    }


@pytest.mark.parametrize("table", NAMES)
def test_the_paper_preset_has_the_settings_of_table_1(table, tmp_path):
    for label, found in flags(table, tmp_path).items():
        expected = {
            "class_range": (2, 5),
            "samples_per_class": 500,
            "split": "train",
            "seed": (0, 1, 2, 3, 4),
            "evaluate_every": 1,
            "preset": "paper",
        }
        assert expected.items() <= found.items()
        by_clients = table.endswith(("table10", "table11", "table12", "figure10"))
        assert found["clients"] == ((20, 30, 40) if by_clients else (25,))
        methods = {DEC: ("dec",), UIFCA: ("uifca",)}
        assert found["methods"] == methods.get(label, ("fedcref",))
        if found["methods"] == ("fedcref",):
            start = "dec" if label == FROM_DEC else "dirty"
            assert found["start"] == start
            assert ("dirtiness" in found) == (start == "dirty")
            assert (found.get("associations") == "perfect") == (label == PERFECT)


@pytest.mark.parametrize("table", NAMES)
def test_a_smoke_run_is_short(table, tmp_path):
    for found in flags(table, tmp_path, preset="smoke").values():
        assert max(found["clients"]) == 8
        assert found["samples_per_class"] == 60
        assert found["seed"] == (0,)
        assert (found["num_rounds"], found["federated_rounds"]) == ((3,), (15,))
        # In batches of 32 they are 120 steps: with ten nothing is associated.
        assert found["local_epochs"] == (60,)
        assert "split" not in found


def test_data_sets_have_their_own_settings(tmp_path):
    of_data = {
        name: flags("fedcref-table6", tmp_path, name)[OURS]
        for name in (EMNIST, "kmnist", "kmnist49", "fashion_mnist")
    }
    assert {x["dirtiness"] for x in of_data.values()} == {(0.0, 0.3, 0.5)}
    ranges = {name: x["class_range"] for name, x in of_data.items()}
    assert ranges.pop("kmnist49") == (2, 15)
    assert set(ranges.values()) == {(2, 5)}
    # A file has no splits.
    splits = {name: x.get("split", "all") for name, x in of_data.items()}
    assert splits.pop("kmnist49") == "all"
    assert set(splits.values()) == {"train"}
    fashion = of_data.pop("fashion_mnist")
    assert (fashion["threshold"], fashion["local_epochs"]) == ((0.15,), (30,))
    assert not any("threshold" in x or "local_epochs" in x for x in of_data.values())
    study = reproduce.STUDIES["fedcref-table6"]
    args = reproduce.Args(table="fedcref-table6", preset="paper")
    named = [EMNIST, "kmnist", "fashion_mnist"]
    assert list(reproduce.datasets_of(study, args)) == named
    assert "left out, as no data is called so: kmnist49" in reproduce.note(study, args)


def test_table_7_runs_the_five_settings_of_the_paper(tmp_path):
    found = flags("fedcref-table7", tmp_path)
    ran = [
        (alpha, theta)
        for x in found.values()
        for alpha in x.get("percentile", (75.0,))
        for theta in x.get("threshold", (0.2,))
    ]
    settings = [key[1:] for key in reproduce.STUDIES["fedcref-table7"].paper]
    assert sorted(ran) == sorted(settings)
    assert {x["dirtiness"] for x in found.values()} == {(0.3,)}


@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_tables_share_the_runs_of_a_method(preset, tmp_path):
    def folders(label):
        tables_of = [name for name in NAMES if label in flags(name, tmp_path)]
        outs = {flags(x, tmp_path, preset=preset)[label]["out"] for x in tables_of}
        return [name.removeprefix("fedcref-") for name in tables_of], outs

    assert folders(DEC)[0] == ["table3", "figure7"]
    assert folders(FROM_DEC)[0] == ["table3", "table4", "figure8"]
    assert folders(PERFECT)[0] == ["table6", "table9", "table11"]
    for label in (DEC, FROM_DEC, PERFECT, OURS):
        assert len(folders(label)[1]) == 1
    # Table 7 has the run of the defaults, the others are beside it.
    alpha, theta = flags("fedcref-table7", tmp_path, preset=preset).values()
    assert {alpha["out"]} == folders(OURS)[1]
    assert theta["out"] != alpha["out"]


def results_of(folder, runs, *, level="overlap"):
    """A results folder as a session leaves it: of each (level, seed) its rounds and its
    row."""
    points = [{level: at, "seed": seed} for at, seed in runs]
    results = Results(folder, {"method": "fedcref"}, points, resume=True)
    results.begin()
    rows = []
    for point, (rounds, row) in zip(points, runs.values(), strict=True):
        for number, (stage, values) in enumerate(rounds):
            place = Position(int(stage == "refine"), number)
            results.add_history(place, [{**point, "stage": stage, **values}])
        rows.append({**point, "seconds": 90.0, **row})
    results.add_rows(rows)
    return Results(folder, {"method": "fedcref"}, points, resume=True)


def rounds_of(*values, start=2):
    """`start` rounds of the start with the first, then one a refinement."""
    first, *others = values
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
    found = measures.refined(Common(), results_of(tmp_path, runs))
    assert [x.get("improvement") for x in found] == [
        pytest.approx(50.0),
        pytest.approx(-25.0),
        None,
    ]
    assert {x["minutes"] for x in found} == {1.5}
    assert [x["overlap"] for x in found] == [0.0, 0.0, 0.5]


def test_central_dec_has_the_best_k_of_each_seed(tmp_path):
    runs = {
        (8, 0): ([], {"acc": 0.7, "clusters": 8}),
        (10, 0): ([], {"acc": 0.6, "clusters": 10}),
        (8, 1): ([], {"acc": np.nan, "clusters": 8}),
        (10, 1): ([], {"acc": 0.8, "clusters": 10}),
        (12, 1): ([], {"acc": np.nan, "clusters": 12}),
    }
    results = results_of(tmp_path / "dec", runs, level="clusters")
    found = measures.categories(Common(clusters=(8, 10, 12)), results)
    assert [(x["seed"], x["acc"], x["categories"]) for x in found] == [
        (0, 0.7, 8),
        (1, 0.8, 10),
    ]
    # FedCRef has its communities; UIFCA is told.
    row = {"acc": 0.9, "clusters": 5, "communities": 11}
    (one,) = measures.categories(
        Common(), results_of(tmp_path / "fedcref", {(0.0, 0): ([], row)})
    )
    assert one["categories"] == 11
    del row["communities"]
    (one,) = measures.categories(
        Common(), results_of(tmp_path / "uifca", {(0.0, 0): ([], row)})
    )
    assert one["categories"] is None


CURVES = {  # the second ends after one refinement, the third has a longer start
    (0.0, 0): (rounds_of(0.7, 0.8, 0.9, 1.0), {}),
    (0.0, 1): (rounds_of(0.5, 0.6), {}),
    (0.5, 0): (rounds_of(0.6, 0.7, 0.8, start=4), {}),
}


def test_runs_that_ended_keep_their_last_values_over_the_iterations(tmp_path):
    found = measures.over_iterations(Common(), results_of(tmp_path, CURVES))
    by_run = {}
    for row in found:
        by_run.setdefault((row["overlap"], row["seed"]), []).append(
            (row["iteration"], row["acc"])
        )
    assert by_run == {
        (0.0, 0): [(0, 0.7), (1, 0.8), (2, 0.9), (3, 1.0)],
        (0.0, 1): [(0, 0.5), (1, 0.6), (2, 0.6), (3, 0.6)],
        (0.5, 0): [(0, 0.6), (1, 0.7), (2, 0.8), (3, 0.8)],
    }


def test_a_figure_over_iterations_has_a_line_a_level_and_its_means(
    tmp_path, monkeypatch
):
    drawn, against = [], figures.against

    def keep(rows, path, **options):
        drawn.append((path.name, against(rows, path, **options)))

    monkeypatch.setattr(figures, "against", keep)
    study = reproduce.STUDIES["fedcref-figure9"]
    rows = [
        {**line, "dataset": "emnist-digits", "method": OURS, "communities": 10.0}
        for line in study.measure(Common(), results_of(tmp_path / "runs", CURVES))
    ]
    study.draw(rows, tmp_path / "figures", paper=study.paper)
    ((name, figure),) = drawn
    assert name == "emnist-digits-fedcref.png"
    assert (tmp_path / "figures" / name).exists()
    # No isolated clusters were measured.
    communities, acc = figure.axes
    assert [x.get_ylabel() for x in (communities, acc)] == ["communities", "ACC"]
    assert (acc.get_xlabel(), acc.get_xscale()) == ("iteration", "linear")
    assert [list(line.get_xdata()) for line in acc.lines] == [[0, 1, 2, 3]] * 2
    np.testing.assert_allclose(acc.lines[0].get_ydata(), [0.6, 0.7, 0.75, 0.8])
    np.testing.assert_allclose(acc.lines[1].get_ydata(), [0.6, 0.7, 0.8, 0.8])
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["overlap = 0", "overlap = 0.5"]
    summary = tables.summarize(rows, by=study.by, values=study.values)
    assert [line["iteration"] for line in summary[:4]] == [0, 1, 2, 3]
    # The t quantile of one degree of freedom is 12.7062.
    assert summary[0]["acc"].half_width == pytest.approx(12.7062047 * 0.1)


@pytest.mark.parametrize("table", NAMES)
def test_every_table_says_what_the_paper_leaves_open(table):
    said = reproduce.note(reproduce.STUDIES[table], reproduce.Args(table=table))
    if table != "fedcref-figure7":
        assert "2 epochs in the first federated round and 7" in said
        assert "--associations first-match" in said
