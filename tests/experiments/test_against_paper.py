"""Figures of scores against a swept value, as the tables of papers ask for them."""

from functools import partial

import reproduce
from papers import measures

from fcjax.evaluation import figures

SHARES = {"0.2": 0.2, "1": 1.0}


def test_a_figure_a_share_with_the_papers_points_where_ours_are(tmp_path, monkeypatch):
    drawn = {}

    def against(rows, path, **asked):
        drawn[path.stem] = (rows, asked)

    monkeypatch.setattr(figures, "against", against)
    study = reproduce.STUDIES["fedmcc-figure6"]
    assert isinstance(study.draw, partial)
    assert study.draw.func is measures.against
    rows = [
        {"dataset": "mnist", "method": m, "class_share": c, "num_rounds": n, "acc": 0.5}
        for m in ("FedMCC", "Fed + CC")
        for c, last in ((1.0, 100.0), (0.2, 10.0))
        for n in (2.0, last)
    ]
    study.draw(rows, tmp_path, paper=study.paper)
    assert set(drawn) == {f"mnist-class_share-{name}" for name in SHARES}
    for name, share in SHARES.items():
        found, asked = drawn[f"mnist-class_share-{name}"]
        assert {row["class_share"] for row in found} == {share}
        assert (list(asked["by"]), asked["level"]) == (["method"], "num_rounds")
    # Table I has 87.3 % at 100 rounds, which the runs of the other share never reach.
    at_hundred = drawn["mnist-class_share-1"][1]["paper"]
    assert round(at_hundred["FedMCC", 100]["acc"], 3) == 0.873
    assert drawn["mnist-class_share-0.2"][1]["paper"] == {}
