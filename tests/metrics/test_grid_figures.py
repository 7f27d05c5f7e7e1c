import itertools
import math

import numpy as np
import pytest

from fcjax.results import figures
from fcjax.runs import draw
from tests.metrics.drawn import names


def grid(**axes):
    """Rows and history, as text, of every combination."""
    rows, history = [], []
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, map(str, values), strict=True))
        run = {**point, "nmi": "0.5", "acc": "0.6"}
        told = {"method": "ccfc", "dataset": "digits", "kappa": "0.4", "status": "ok"}
        rows.append({**told, **run})
        rounds = [{"stage": "train", "round": str(i), "loss": "1"} for i in range(3)]
        history += [{**round, **run} for round in rounds]
    return rows, history


@pytest.fixture
def drawn(monkeypatch):
    """Every figure, by the name of its file."""
    found = {}

    def keep(name, draw):
        def kept(rows, path, **options):
            found[path.name] = draw(rows, path, **options)

        monkeypatch.setattr(figures, name, kept)

    for name in ("against", "learning_curves"):
        keep(name, getattr(figures, name))
    return found


def test_a_figure_for_every_number_that_varies(tmp_path, drawn):
    folder = tmp_path / "figures"
    axes = {"p": (0.0, 0.5), "model_weight": (0, 1e-3, 1e-1), "clients": (10, 20)}
    draw.grid_figures(folder, *grid(**axes, seed=(0, 1)), by=list(axes))
    against = {f"against_{name}.png" for name in axes}
    assert {path.name for path in folder.iterdir()} == against | {"learning_curves.png"}
    by_weight = drawn["against_model_weight.png"]
    assert by_weight.axes[-1].get_xlabel() == "model_weight"
    assert by_weight.axes[-1].get_xscale() == "symlog"
    settings = itertools.product((0, 0.5), (10, 20))
    assert names(by_weight) == [f"p = {p}, clients = {m}" for p, m in settings]
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
    draw.grid_figures(tmp_path, *grid(**varied, seed=(0, 1)), by=list(varied))
    assert drawn.pop("learning_curves.png")
    assert {file: names(figure) for file, figure in drawn.items()} == expected


def test_unlabelled_data_has_its_internal_scores(tmp_path, drawn):
    rows, history = grid(p=(0,), model_weight=(0, 1), seed=(0,))
    for silhouette, expected in ((None, set()), (0.3, {"against_model_weight.png"})):
        for row in rows:
            row |= {"nmi": None, "acc": None, "kappa": None, "silhouette": silhouette}
        draw.grid_figures(tmp_path, rows, history, by=["p", "model_weight"])
        assert drawn.keys() - {"learning_curves.png"} == expected
    (axes,) = drawn["against_model_weight.png"].axes
    assert axes.get_ylabel() == "silhouette"


@pytest.mark.filterwarnings("error")
def test_diverged_runs_leave_a_gap(tmp_path, drawn):
    rows, history = grid(p=(0, 0.5, 1), seed=(0, 1))
    for row in [*rows, *history]:
        if row["p"] == "0.5" and (row["seed"], row.get("round", "2")) == ("0", "2"):
            row |= {"nmi": "nan", "kappa": "nan", "loss": "nan"}
    draw.grid_figures(tmp_path, rows, history, by=["p"])
    (line,) = drawn["against_p.png"].axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), [0.5, math.nan, 0.5])


def test_learning_curves_name_settings_in_their_order(tmp_path, drawn):
    draw.grid_figures(tmp_path, *grid(p=(0.5, 0, 10, 2), seed=(0, 1)), by=["p"])
    expected = ["p = 0", "p = 0.5", "p = 2", "p = 10"]
    assert names(drawn["learning_curves.png"]) == expected
