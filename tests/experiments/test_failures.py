"""Clients that fail, in the table of a grid."""

from fcjax.sweep import report


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


def test_the_table_counts_runs_that_failed():
    runs = [run(0, 0, status="ok"), run(0, 1, status="diverged in round 2 of cluster")]
    runs += [run(0.5, seed, status="ok", participation=0.5) for seed in (0, 1)]
    table = report.summarize(runs, ["p", "failure_rate"], labelled=True)
    assert table["failed"].tolist() == [1, 0]
    unset = [each | {"failure_rate": 0.0, "width": None} for each in runs[:2]]
    table = report.summarize(unset, ["p", "width"], labelled=True)
    assert table["failed"].tolist() == [1]
    assert "failed" not in report.summarize(runs[2:], ["p"], labelled=True)
