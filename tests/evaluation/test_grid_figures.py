import math

import numpy as np
import pytest

from fcjax.evaluation import figures
from fcjax.runs import draw
from tests.evaluation.drawn import names


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
    """Every figure, by the name of its file."""
    found = {}

    def keep(draw):
        def kept(rows, path, **options):
            found[path.name] = draw(rows, path, **options)
            return found[path.name]

        return kept

    for name in ("against", "learning_curves"):
        monkeypatch.setattr(figures, name, keep(getattr(figures, name)))
    return found


def test_a_figure_for_every_number_that_varies(tmp_path, drawn):
    folder = tmp_path / "figures"
    rows, history = grid(
        p=(0.0, 0.5), model_weight=(0, 1e-3, 1e-1), clients=(10, 20), seed=(0, 1)
    )
    draw.grid_figures(folder, rows, history, by=["p", "model_weight", "clients"])
    against = {f"against_{x}.png" for x in ("p", "model_weight", "clients")}
    assert {path.name for path in folder.iterdir()} == against | {"learning_curves.png"}
    by_weight = drawn["against_model_weight.png"]
    assert by_weight.axes[-1].get_xlabel() == "model_weight"
    assert by_weight.axes[-1].get_xscale() == "symlog"
    settings = [
        f"p = {p}, clients = {clients}" for p in (0, 0.5) for clients in (10, 20)
    ]
    assert names(by_weight) == settings
    assert len(names(drawn["against_p.png"])) == 6
    assert drawn["against_clients.png"].axes[-1].get_xscale() == "linear"


@pytest.mark.parametrize(
    ("varied", "expected"),
    [
        # One number that varies leaves the method and the data to be named.
        (
            {"p": (0.25,), "model_weight": (0, 0.1)},
            {"against_model_weight.png": ["method = ccfc, dataset = digits"]},
        ),
        (
            {"p": (0, 1), "backbone": ("conv", "mlp")},
            {"against_p.png": ["backbone = conv", "backbone = mlp"]},
        ),
        ({"p": (0.25,)}, {}),
    ],
    ids=["one number", "a number and text", "nothing"],
)
def test_what_varies_makes_a_figure_or_its_lines(tmp_path, drawn, varied, expected):
    rows, history = grid(**varied, seed=(0, 1))
    draw.grid_figures(tmp_path, rows, history, by=list(varied))
    assert drawn.pop("learning_curves.png")
    assert {file: names(figure) for file, figure in drawn.items()} == expected


def test_unlabelled_data_has_its_internal_scores(tmp_path, drawn):
    rows, history = grid(p=(0,), model_weight=(0, 1), seed=(0,))
    for silhouette, expected in (("", set()), ("0.3", {"against_model_weight.png"})):
        for row in rows:
            row |= {"nmi": "", "acc": "", "kappa": "", "silhouette": silhouette}
        draw.grid_figures(tmp_path, rows, history, by=["p", "model_weight"])
        assert drawn.keys() - {"learning_curves.png"} == expected
    (axes,) = drawn["against_model_weight.png"].axes
    assert axes.get_ylabel() == "silhouette"


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


def test_learning_curves_name_settings_in_their_order(tmp_path, drawn):
    rows, history = grid(p=(0.5, 0, 10, 2), seed=(0, 1))
    draw.grid_figures(tmp_path, rows, history, by=["p"])
    expected = ["p = 0", "p = 0.5", "p = 2", "p = 10"]
    assert names(drawn["learning_curves.png"]) == expected
