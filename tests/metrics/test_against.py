import itertools
import math

import numpy as np
import pytest

from fcjax.results.figures import against
from tests.metrics.drawn import names, picture, ticks


def results(*, seeds=3, methods=("ccfc", "scfc")):
    """As read from results.csv: text, in no order; NMI 0.1 apart between seeds."""
    rows = []
    for p, seed in itertools.product(("1.0", "0.0", "0.5"), range(seeds)):
        row = {"p": p, "seed": str(seed), "kappa": "0.5"}
        for i, method in enumerate(methods):
            nmi = 0.8 - float(p) / 2 + 0.1 * (seed - 1) - 0.1 * i
            rows.append({**row, "method": method, "nmi": str(nmi)})
    return rows


@pytest.fixture
def draw(tmp_path):
    def draw(rows, **options):
        options = {"level": "p", "by": (), "values": ("nmi",), **options}
        return against(rows, tmp_path / "figures" / "p.png", **options)

    return draw


def lines(axes):
    """The measured lines and the paper's."""
    full = [line for line in axes.lines if line.get_linestyle() == "-"]
    return full, [line for line in axes.lines if line.get_linestyle() == "--"]


def assert_at(line, places, heights):
    np.testing.assert_allclose(line.get_xdata(orig=False), places)
    np.testing.assert_allclose(line.get_ydata(orig=False), heights)


def span(band, at):
    """From where to where a band reaches."""
    (path,) = band.get_paths()
    corners = path.vertices[path.vertices[:, 0] == at, 1]
    return corners.min(), corners.max()


def test_lines_are_means_in_order_of_p_in_bands_of_the_interval(draw, tmp_path):
    figure = draw(results(), by=("method",), values=("nmi", "kappa"))
    assert min(picture(tmp_path / "figures" / "p.png")) > 500
    nmi, kappa = figure.axes
    (ccfc, scfc), paper = lines(nmi)
    assert not paper
    assert_at(ccfc, [0, 0.5, 1], [0.8, 0.55, 0.3])
    assert_at(scfc, [0, 0.5, 1], [0.7, 0.45, 0.2])
    assert_at(lines(kappa)[0][0], [0, 0.5, 1], [0.5] * 3)
    assert (nmi.get_ylabel(), kappa.get_ylabel()) == ("NMI", "Kappa")
    assert kappa.get_xlabel() == "p"
    assert ticks(kappa.xaxis) == ["0", "0.5", "1"]
    assert names(figure) == ["method = ccfc", "method = scfc"]

    bands = nmi.collections
    half_width = 4.3026527 * 0.1 / math.sqrt(3)
    for at, mean in ((0, 0.8), (0.5, 0.55), (1, 0.3)):
        expected = (mean - half_width, mean + half_width)
        assert span(bands[0], at) == pytest.approx(expected)
    assert span(bands[1], 0) == pytest.approx((0.7 - half_width, 0.7 + half_width))
    for band, line in zip(bands, (ccfc, scfc), strict=True):
        np.testing.assert_allclose(band.get_facecolor()[0, :3], line.get_color()[:3])
        assert band.get_facecolor()[0, 3] < 0.3


def test_a_band_is_where_there_are_several_seeds_and_one_run_has_none(draw):
    rows = results(seeds=1, methods=("ccfc",))
    rows += [row for row in results(methods=("ccfc",)) if row["p"] == "0.5"]
    (band,) = draw(rows).axes[0].collections
    assert {at for at, _ in band.get_paths()[0].vertices} == {0.5}
    # A band over one place alone is seen by its outline.
    assert band.get_linewidth()[0] > 0
    figure = draw(rows[:1])
    ((line,), _) = lines(figure.axes[0])
    assert_at(line, [1], [0.2])
    assert not figure.axes[0].collections
    assert not figure.legends
    # Two seeds have no interval. That of three is 0.5 ± 4.302653 * 0.3 / sqrt(3).
    two = draw([{"p": p, "nmi": x} for p in (0, 1) for x in (0.2, 0.8)])
    assert not two.axes[0].collections
    values = (0.2, 0.5, 0.8)
    (axes,) = draw([{"p": p, "nmi": x} for p in (0, 1) for x in values]).axes
    assert span(axes.collections[0], 0) == pytest.approx((-0.2452413, 1.2452413))
    assert axes.get_ylim() == (-0.02, 1.02)


def test_many_settings(draw):
    axes = itertools.product(range(40), (0.0, 0.5), (0.0, 0.1, 0.2))
    rows = [{"p": p, "weight": weight, "nmi": p + more} for weight, p, more in axes]
    for count, bands, named in ((12, 12, 12), (20, 0, 20), (40, 0, 12)):
        figure = draw([row for row in rows if row["weight"] < count], by=("weight",))
        assert len(figure.axes[0].lines) == count
        assert len(figure.axes[0].collections) == bands
        assert len(names(figure)) == named
    found, (legend,) = names(figure), figure.legends
    assert (found[0], found[-1]) == ("weight = 0", "weight = 39")
    assert legend.get_title().get_text() == "12 of 40 settings"
    # The names have the colours of their lines, and all of them are in the picture.
    by_name = {f"weight = {i}": x for i, x in enumerate(figure.axes[0].lines)}
    for handle, name in zip(legend.legend_handles, found, strict=True):
        np.testing.assert_array_equal(handle.get_color(), by_name[name].get_color())
    box = legend.get_window_extent()
    assert box.y0 >= 0
    assert box.y1 <= figure.axes[0].get_window_extent().y0


def test_the_paper_is_dashed_in_the_colour_of_its_setting(draw):
    scores = {("scfc", 1.0): 0.1, ("scfc", 0.25): 0.6, ("k-fed", 0.0): 0.5}
    paper = {setting: {"nmi": score} for setting, score in scores.items()}
    figure = draw(results(), by=("method",), values=("nmi", "kappa"), paper=paper)
    full, (dashed,) = lines(figure.axes[0])
    assert_at(dashed, [0.25, 1], [0.6, 0.1])
    np.testing.assert_array_equal(dashed.get_color(), full[1].get_color())
    assert not lines(figure.axes[1])[1]
    assert names(figure)[-1] == "paper"


@pytest.mark.filterwarnings("error")
def test_holes(draw):
    rows = results()
    for row in rows:
        if (row["method"], row["p"]) == ("ccfc", "1.0"):
            row["kappa"] = ""
    rows[-1]["nmi"] = "nan"
    figure = draw(rows, by=("method",), values=("nmi", "kappa"))
    (ccfc, _), _ = lines(figure.axes[1])
    assert_at(ccfc, [0, 0.5], [0.5, 0.5])
    (_, scfc), _ = lines(figure.axes[0])
    assert_at(scfc, [0, 0.5, 1], [0.7, np.nan, 0.2])


@pytest.mark.parametrize(
    ("levels", "log", "is_log"),
    [
        ((0.0, 0.25, 0.5, 0.75, 1.0), None, False),
        ((5, 10, 100), None, False),
        ((4, 10, 100), None, True),
        ((0, 1e-3, 1e-1), None, True),
        ((0, 1e-3), None, False),
        ((0, 1e-3), True, True),
        ((4, 10, 100), False, False),
    ],
)
def test_far_levels_are_spaced_by_their_logarithm(draw, levels, log, is_log):
    rows = [{"level": level, "nmi": 0.5} for level in levels]
    (axes,) = draw(rows, level="level", log=log).axes
    assert axes.get_xscale() == ("symlog" if is_log else "linear")
    assert axes.get_xlabel() == "level"
    assert ticks(axes.xaxis) == [f"{level:g}" for level in levels]
    # All of the axis, with 0, is near what was measured.
    ends = axes.transData.transform([(levels[0], 0), (levels[-1], 0)])
    first, last = axes.transAxes.inverted().transform(ends)[:, 0]
    assert 0 < first < 0.1
    assert 0.9 < last < 1
