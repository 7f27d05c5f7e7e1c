import math

import numpy as np
import pytest
from matplotlib.image import imread

from fcjax.evaluation.figures import against_p

LEVELS = ("1.0", "0.0", "0.5")


def results(*, seeds=3, methods=("ccfc", "scfc")):
    """As read from results.csv: text, in no order; NMI 0.1 apart between seeds."""
    return [
        {
            "method": method,
            "p": p,
            "seed": str(seed),
            "nmi": str(0.8 - float(p) / 2 + 0.1 * (seed - 1) - 0.1 * i),
            "kappa": "0.5",
        }
        for i, method in enumerate(methods)
        for p in LEVELS
        for seed in range(seeds)
    ]


def lines(axes):
    """The measured lines and the paper's."""
    full = [line for line in axes.lines if line.get_linestyle() == "-"]
    return full, [line for line in axes.lines if line.get_linestyle() == "--"]


def test_lines_are_means_in_order_of_p(tmp_path):
    path = tmp_path / "figures" / "p.png"
    figure = against_p(results(), path, by=("method",))
    assert min(imread(path).shape[:2]) > 500
    nmi, kappa = figure.axes
    (ccfc, scfc), paper = lines(nmi)
    assert not paper
    np.testing.assert_allclose(ccfc.get_xdata(orig=False), [0, 0.5, 1])
    np.testing.assert_allclose(ccfc.get_ydata(orig=False), [0.8, 0.55, 0.3])
    np.testing.assert_allclose(scfc.get_ydata(orig=False), [0.7, 0.45, 0.2])
    np.testing.assert_allclose(lines(kappa)[0][0].get_ydata(orig=False), 0.5)
    assert (nmi.get_ylabel(), kappa.get_ylabel()) == ("NMI", "Kappa")
    assert kappa.get_xlabel() == "p"
    assert [label.get_text() for label in kappa.get_xticklabels()] == ["0", "0.5", "1"]
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["method = ccfc", "method = scfc"]


def test_bars_are_the_interval(tmp_path):
    figure = against_p(results(), tmp_path / "p.png", by=("method",), values=("nmi",))
    first = figure.axes[0].containers[0][2][0].get_segments()[0]
    half_width = 4.3026527 * 0.1 / math.sqrt(3)
    np.testing.assert_allclose(first[:, 0], 0)
    np.testing.assert_allclose(first[:, 1], [0.8 - half_width, 0.8 + half_width])


def test_the_paper_is_dashed_in_the_colour_of_its_setting(tmp_path):
    paper = {
        ("scfc", 1.0): {"nmi": 0.1},
        ("scfc", 0.25): {"nmi": 0.6},
        ("k-fed", 0.0): {"nmi": 0.5},
    }
    figure = against_p(results(), tmp_path / "p.png", by=("method",), paper=paper)
    full, (dashed,) = lines(figure.axes[0])
    np.testing.assert_allclose(dashed.get_xdata(orig=False), [0.25, 1])
    np.testing.assert_allclose(dashed.get_ydata(orig=False), [0.6, 0.1])
    np.testing.assert_array_equal(dashed.get_color(), full[1].get_color())
    assert not lines(figure.axes[1])[1]
    assert figure.legends[0].get_texts()[-1].get_text() == "paper"


def test_one_run(tmp_path):
    rows = results(seeds=1, methods=("ccfc",))[:1]
    figure = against_p(rows, tmp_path / "p.png", by=(), values=("nmi",))
    ((line,), _) = lines(figure.axes[0])
    np.testing.assert_allclose(line.get_ydata(orig=False), [0.2])
    assert not figure.legends


@pytest.mark.filterwarnings("error")
def test_holes(tmp_path):
    rows = results()
    for row in rows[:3]:
        row["kappa"] = ""
    rows[-1]["nmi"] = "nan"
    figure = against_p(rows, tmp_path / "p.png", by=("method",))
    (ccfc, _), _ = lines(figure.axes[1])
    np.testing.assert_allclose(ccfc.get_xdata(orig=False), [0, 0.5])
    (_, scfc), _ = lines(figure.axes[0])
    np.testing.assert_allclose(scfc.get_ydata(orig=False), [0.7, np.nan, 0.2])


def test_other_levels(tmp_path):
    rows = [
        {"p": p, "model_weight": w, "nmi": p + w / 10}
        for p in (0.0, 0.5)
        for w in (0, 0.001, 0.1)
    ]
    figure = against_p(
        rows,
        tmp_path / "weight.png",
        by=("p",),
        values=("nmi",),
        level="model_weight",
        log=True,
    )
    (axes,) = figure.axes
    assert axes.get_xscale() == "symlog"
    assert axes.get_xlabel() == "model_weight"
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["0", "0.001", "0.1"]
    # All of the axis is near what was measured.
    edges = axes.transAxes.inverted().transform(
        axes.transData.transform([(0, 0), (0.1, 0)])
    )[:, 0]
    assert edges[0] < 0.1
    assert edges[1] > 0.9


def test_bad_results(tmp_path):
    path = tmp_path / "p.png"
    with pytest.raises(ValueError, match=r"^no results to draw$"):
        against_p([], path)
    with pytest.raises(ValueError, match=r"^no column 'dataset'"):
        against_p(results(), path)
    with pytest.raises(ValueError, match=r"^no column 'alpha'"):
        against_p(results(), path, by=("method",), level="alpha")
    for bad in ("", None, "half"):
        with pytest.raises(ValueError, match=r"^p must be a number, got "):
            against_p([{"p": bad, "nmi": 1.0}], path, by=())
    assert not path.exists()
