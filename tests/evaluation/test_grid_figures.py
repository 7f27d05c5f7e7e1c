import math

import numpy as np
import pytest

from fcjax.evaluation import figures
from fcjax.runs import draw


def grid(**axes):
    """Rows and history, as text, of every combination."""
    shape = [len(values) for values in axes.values()]
    rows, history = [], []
    for place in np.ndindex(*shape):
        point = {n: str(v[i]) for (n, v), i in zip(axes.items(), place, strict=True)}
        scores = {"nmi": "0.5", "acc": "0.6"}
        run = {"method": "ccfc", "dataset": "digits", **point, **scores}
        rows.append(run | {"kappa": "0.4", "status": "ok"})
        for i in range(3):
            history.append(
                {"stage": "train", "round": str(i), **point, **scores, "loss": "1"}
            )
    return rows, history


@pytest.fixture
def drawn(monkeypatch):
    """Every figure drawn against something, by the name of its file."""
    found, against = {}, figures.against

    def keep(rows, path, **options):
        found[path.name] = against(rows, path, **options)
        return found[path.name]

    monkeypatch.setattr(figures, "against", keep)
    return found


def names(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_figure_for_every_number_that_varies(tmp_path, drawn):
    folder = tmp_path / "figures"
    rows, history = grid(
        p=(0.0, 0.5), model_weight=(0, 1e-3, 1e-1), clients=(10, 20), seed=(0, 1)
    )
    draw.grid_figures(folder, rows, history, by=["p", "model_weight", "clients"])
    assert {path.name for path in folder.iterdir()} == {
        "learning_curves.png",
        "against_p.png",
        "against_model_weight.png",
        "against_clients.png",
    }
    by_weight = drawn["against_model_weight.png"]
    assert by_weight.axes[-1].get_xlabel() == "model_weight"
    assert by_weight.axes[-1].get_xscale() == "symlog"
    assert names(by_weight) == [
        "p = 0, clients = 10",
        "p = 0, clients = 20",
        "p = 0.5, clients = 10",
        "p = 0.5, clients = 20",
    ]
    assert len(names(drawn["against_p.png"])) == 6
    assert drawn["against_clients.png"].axes[-1].get_xscale() == "linear"


def test_one_number_that_varies_names_the_method(tmp_path, drawn):
    rows, history = grid(p=(0.25,), model_weight=(0, 0.1), seed=(0,))
    draw.grid_figures(tmp_path, rows, history, by=["p", "model_weight"])
    (figure,) = drawn.values()
    assert names(figure) == ["method = ccfc, dataset = digits"]


def test_text_that_varies_makes_lines(tmp_path, drawn):
    rows, history = grid(p=(0, 1), backbone=("conv", "mlp"), seed=(0,))
    draw.grid_figures(tmp_path, rows, history, by=["p", "backbone"])
    assert list(drawn) == ["against_p.png"]
    assert names(drawn["against_p.png"]) == ["backbone = conv", "backbone = mlp"]


def test_nothing_varies(tmp_path, drawn):
    rows, history = grid(p=(0.25,), seed=(0, 1))
    draw.grid_figures(tmp_path, rows, history, by=["p"])
    assert [path.name for path in tmp_path.iterdir()] == ["learning_curves.png"]
    assert not drawn


def test_unlabelled_data_has_its_internal_scores(tmp_path, drawn):
    rows, history = grid(p=(0,), model_weight=(0, 1), seed=(0,))
    for row in rows:
        row |= {"nmi": "", "acc": "", "kappa": "", "silhouette": "0.3"}
    draw.grid_figures(tmp_path, rows, history, by=["p", "model_weight"])
    (figure,) = drawn.values()
    assert [axes.get_ylabel() for axes in figure.axes] == ["silhouette"]
    del drawn["against_model_weight.png"]
    for row in rows:
        row["silhouette"] = ""
    draw.grid_figures(tmp_path, rows, history, by=["p", "model_weight"])
    assert not drawn


@pytest.mark.filterwarnings("error")
def test_diverged_runs_leave_a_gap(tmp_path, drawn):
    rows, history = grid(p=(0, 0.5, 1), seed=(0, 1))
    for row in rows:
        if row["p"] == "0.5" and row["seed"] == "0":
            row |= {"nmi": "nan", "kappa": "nan", "status": "diverged in round 2"}
    for row in history:
        if row["p"] == "0.5" and row["round"] == "2":
            row |= {"nmi": "nan", "loss": "nan"}
    draw.grid_figures(tmp_path, rows, history, by=["p"])
    (line,) = drawn["against_p.png"].axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), [0.5, math.nan, 0.5])


def test_learning_curves_name_settings_in_their_order(tmp_path, monkeypatch):
    found = []
    curves = figures.learning_curves
    monkeypatch.setattr(
        figures, "learning_curves", lambda *a, **k: found.append(curves(*a, **k))
    )
    rows, history = grid(p=(0.5, 0, 10, 2), seed=(0, 1))
    draw.grid_figures(tmp_path, rows, history, by=["p"])
    assert names(found[0]) == ["p = 0", "p = 0.5", "p = 2", "p = 10"]
