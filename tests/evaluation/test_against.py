import math

import numpy as np
import pytest
from matplotlib.image import imread

from fcjax.evaluation.figures import against

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
    figure = against(results(), path, level="p", by=("method",))
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


def span(band, at):
    """From where to where a band reaches."""
    (path,) = band.get_paths()
    corners = path.vertices[path.vertices[:, 0] == at, 1]
    return corners.min(), corners.max()


def test_bands_are_the_interval(tmp_path):
    figure = against(
        results(), tmp_path / "p.png", level="p", by=("method",), values=("nmi",)
    )
    ccfc, scfc = figure.axes[0].collections
    half_width = 4.3026527 * 0.1 / math.sqrt(3)
    for at, mean in ((0, 0.8), (0.5, 0.55), (1, 0.3)):
        expected = (mean - half_width, mean + half_width)
        assert span(ccfc, at) == pytest.approx(expected)
    assert span(scfc, 0) == pytest.approx((0.7 - half_width, 0.7 + half_width))
    ours = [line.get_color() for line in lines(figure.axes[0])[0]]
    for band, color in zip((ccfc, scfc), ours, strict=True):
        np.testing.assert_allclose(band.get_facecolor()[0, :3], color[:3])
        assert band.get_facecolor()[0, 3] < 0.3


def test_one_seed_has_no_band(tmp_path):
    rows = results(seeds=1)
    figure = against(rows, tmp_path / "p.png", level="p", by=("method",))
    assert not any(axes.collections for axes in figure.axes)


def test_a_band_is_where_there_are_several_seeds(tmp_path):
    rows = [row for row in results(methods=("ccfc",)) if row["seed"] == "0"]
    rows += [row for row in results(methods=("ccfc",)) if row["p"] == "0.5"]
    figure = against(rows, tmp_path / "p.png", level="p", by=(), values=("nmi",))
    (band,) = figure.axes[0].collections
    assert {at for at, _ in band.get_paths()[0].vertices} == {0.5}
    # A band over one place alone is seen by its outline.
    assert band.get_linewidth()[0] > 0


def test_a_wide_interval_leaves_the_scale_of_a_score(tmp_path):
    rows = [{"p": p, "nmi": nmi} for p in (0, 1) for nmi in (0.2, 0.8)]
    figure = against(rows, tmp_path / "p.png", level="p", by=(), values=("nmi",))
    (axes,) = figure.axes
    # 0.5 ± 12.7062 * 0.3
    assert span(axes.collections[0], 0) == pytest.approx((-3.31186, 4.31186))
    assert axes.get_ylim() == (-0.02, 1.02)


def test_many_settings(tmp_path):
    rows = [
        {"p": p, "weight": weight, "nmi": p + seed / 10}
        for weight in range(40)
        for p in (0.0, 0.5)
        for seed in range(3)
    ]
    few = [row for row in rows if row["weight"] < 12]
    some = [row for row in rows if row["weight"] < 20]
    path = tmp_path / "p.png"
    for chosen, bands, named in ((few, 12, 12), (some, 0, 20), (rows, 0, 12)):
        figure = against(chosen, path, level="p", by=("weight",), values=("nmi",))
        assert len(figure.axes[0].lines) == len(chosen) / 6
        assert len(figure.axes[0].collections) == bands
        assert len(figure.legends[0].get_texts()) == named
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert (names[0], names[-1]) == ("weight = 0", "weight = 39")
    assert legend.get_title().get_text() == "12 of 40 settings"
    # The names have the colours of their lines, and all of them are in the picture.
    by_name = {f"weight = {i}": x for i, x in enumerate(figure.axes[0].lines)}
    for handle, name in zip(legend.legend_handles, names, strict=True):
        np.testing.assert_array_equal(handle.get_color(), by_name[name].get_color())
    box = legend.get_window_extent()
    assert box.y0 >= 0
    assert box.y1 <= figure.axes[0].get_window_extent().y0


def test_the_paper_is_dashed_in_the_colour_of_its_setting(tmp_path):
    paper = {
        ("scfc", 1.0): {"nmi": 0.1},
        ("scfc", 0.25): {"nmi": 0.6},
        ("k-fed", 0.0): {"nmi": 0.5},
    }
    figure = against(
        results(), tmp_path / "p.png", level="p", by=("method",), paper=paper
    )
    full, (dashed,) = lines(figure.axes[0])
    np.testing.assert_allclose(dashed.get_xdata(orig=False), [0.25, 1])
    np.testing.assert_allclose(dashed.get_ydata(orig=False), [0.6, 0.1])
    np.testing.assert_array_equal(dashed.get_color(), full[1].get_color())
    assert not lines(figure.axes[1])[1]
    assert figure.legends[0].get_texts()[-1].get_text() == "paper"


def test_one_run(tmp_path):
    rows = results(seeds=1, methods=("ccfc",))[:1]
    figure = against(rows, tmp_path / "p.png", level="p", by=(), values=("nmi",))
    ((line,), _) = lines(figure.axes[0])
    np.testing.assert_allclose(line.get_ydata(orig=False), [0.2])
    assert not figure.legends


@pytest.mark.filterwarnings("error")
def test_holes(tmp_path):
    rows = results()
    for row in rows[:3]:
        row["kappa"] = ""
    rows[-1]["nmi"] = "nan"
    figure = against(rows, tmp_path / "p.png", level="p", by=("method",))
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
    figure = against(
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


@pytest.mark.parametrize(
    ("levels", "scale"),
    [
        ((0.0, 0.25, 0.5, 0.75, 1.0), "linear"),
        ((5, 10, 100), "linear"),
        ((4, 10, 100), "symlog"),
        ((0, 1e-3, 1e-1), "symlog"),
        ((0, 1e-3), "linear"),
    ],
)
def test_far_levels_are_spaced_by_their_logarithm(tmp_path, levels, scale):
    rows = [{"level": level, "nmi": 0.5} for level in levels]
    for log, expected in ((None, scale), (True, "symlog"), (False, "linear")):
        figure = against(
            rows,
            tmp_path / "a.png",
            level="level",
            by=(),
            values=("nmi",),
            log=log,
        )
        assert figure.axes[0].get_xscale() == expected


def test_bad_results(tmp_path):
    path = tmp_path / "p.png"
    with pytest.raises(ValueError, match=r"^no results to draw$"):
        against([], path, level="p")
    with pytest.raises(ValueError, match=r"^no column 'dataset'"):
        against(results(), path, level="p")
    with pytest.raises(ValueError, match=r"^no column 'alpha'"):
        against(results(), path, level="alpha", by=("method",))
    for bad in ("", None, "half"):
        with pytest.raises(ValueError, match=r"^p must be a number, got "):
            against([{"p": bad, "nmi": 1.0}], path, level="p", by=())
    assert not path.exists()
