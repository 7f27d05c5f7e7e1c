"""Learning curves, scores against a swept value, and the figures of a grid."""

import itertools
import math

import numpy as np
import pytest

from fcjax.results import drawing, figures
from fcjax.results.figures import against, learning_curves
from tests.metrics.drawn import names, picture, texts, ticks

HALF_WIDTH = 4.3026527 * 0.1 / math.sqrt(3)
"""Of three values 0.1 apart: the t quantile of two degrees of freedom."""


def results(*, seeds=3, methods=("ccfc", "scfc")):
    """NMI 0.1 apart between seeds, in no order of p."""
    axes = itertools.product((1.0, 0.0, 0.5), range(seeds), enumerate(methods))
    return [
        {
            **{"p": p, "seed": seed, "kappa": 0.5, "method": method},
            "nmi": 0.8 - p / 2 + 0.1 * (seed - 1) - 0.1 * i,
        }
        for p, seed, (i, method) in axes
    ]


def history(*, seeds=3, restart=True):
    """Two stages of 4 and 3 rounds, NMI measured in every other round."""
    stages = (("warm-up", 4, 0), ("clustering", 3, 4))
    return [
        {
            **{"p": p, "seed": seed, "stage": stage, "loss": 1 / (1 + i + seed)},
            "round": i if restart else first + i,
            "nmi": (first + i + seed) / 10 if i % 2 else None,
            "acc": (first + i) / 8 if i % 2 else None,
        }
        for p, seed, (stage, rounds, first) in itertools.product(
            (0.0, 0.5), range(seeds), stages
        )
        for i in range(rounds)
    ]


@pytest.fixture
def plot(tmp_path):
    def plot(rows, **options):
        options = {"level": "p", "by": (), "values": ("nmi",), **options}
        return against(rows, tmp_path / "figures" / "p.png", **options)

    return plot


def lines(axes, style="-"):
    return [line for line in axes.lines if line.get_linestyle() == style]


def assert_at(line, places, heights):
    np.testing.assert_allclose(line.get_xdata(orig=False), places)
    np.testing.assert_allclose(line.get_ydata(orig=False), heights)


def span(band, at):
    """From where to where a band reaches."""
    (path,) = band.get_paths()
    corners = path.vertices[path.vertices[:, 0] == at, 1]
    return corners.min(), corners.max()


@pytest.mark.parametrize("restart", [True, False])
def test_learning_curves(tmp_path, restart):
    path = tmp_path / "figures" / "curves.png"
    figure = learning_curves(history(restart=restart), path)
    assert min(picture(path)) > 500
    nmi, acc, loss = figure.axes
    # Two settings and the verticals; the loss of each setting breaks once.
    assert [len(axes.lines) for axes in (nmi, acc, loss)] == [3, 3, 5]
    # Bands where the seeds differ, which those of ACC do not.
    assert [len(axes.collections) for axes in (nmi, acc, loss)] == [2, 0, 4]
    assert_at(nmi.lines[0], [1, 3, 5], [0.2, 0.4, 0.6])
    np.testing.assert_allclose(loss.lines[2].get_xdata(), [4, 5, 6])
    assert texts(nmi.texts) == ["warm-up", "clustering"]
    assert names(figure) == ["p = 0", "p = 0.5"]


def test_against_draws_means_in_order_of_p_in_bands_of_the_interval(plot, tmp_path):
    figure = plot(results(), by=("method",), values=("nmi", "kappa"))
    assert min(picture(tmp_path / "figures" / "p.png")) > 500
    nmi, kappa = figure.axes
    ccfc, scfc = lines(nmi)
    assert_at(ccfc, [0, 0.5, 1], [0.8, 0.55, 0.3])
    assert_at(scfc, [0, 0.5, 1], [0.7, 0.45, 0.2])
    assert_at(lines(kappa)[0], [0, 0.5, 1], [0.5] * 3)
    assert names(figure) == ["method = ccfc", "method = scfc"]
    for band, mean in zip(nmi.collections, (0.8, 0.7), strict=True):
        assert span(band, 0) == pytest.approx((mean - HALF_WIDTH, mean + HALF_WIDTH))


def test_a_band_needs_three_seeds_and_leaves_the_range_as_it_is(plot):
    one = results(seeds=1, methods=("ccfc",))
    three = [row for row in results(methods=("ccfc",)) if row["p"] == 0.5]
    (band,) = plot([*one, *three]).axes[0].collections
    assert {at for at, _ in band.get_paths()[0].vertices} == {0.5}
    for scores, bands in (((0.2, 0.8), 0), ((0.2, 0.5, 0.8), 1)):
        (axes,) = plot([{"p": p, "nmi": x} for p in (0, 1) for x in scores]).axes
        assert len(axes.collections) == bands
        assert axes.get_ylim() == (-0.02, 1.02)


def test_many_settings(plot):
    axes = itertools.product(range(40), (0.0, 0.5), (0.0, 0.1, 0.2))
    rows = [{"p": p, "weight": weight, "nmi": p + more} for weight, p, more in axes]
    for count, bands, named in ((12, 12, 12), (20, 0, 20), (40, 0, 12)):
        figure = plot([row for row in rows if row["weight"] < count], by=("weight",))
        assert len(figure.axes[0].lines) == count
        assert len(figure.axes[0].collections) == bands
        assert len(names(figure)) == named


def test_the_paper_is_dashed_in_the_colour_of_its_setting_and_k_means_dotted(plot):
    rows = [{**row, "kmeans_nmi": 0.4 + row["p"] / 10} for row in results()]
    rows += [{"p": p, "method": "scfc", "paper_nmi": p / 2} for p in (1.0, 0.5)]
    figure = plot(rows, by=("method",), values=("nmi", "kappa"))
    (dashed,) = lines(figure.axes[0], "--")
    assert_at(dashed, [0.5, 1], [0.25, 0.5])
    np.testing.assert_array_equal(
        dashed.get_color(), lines(figure.axes[0])[1].get_color()
    )
    assert_at(*lines(figure.axes[0], ":"), [0, 0.5, 1], [0.4, 0.45, 0.5])
    assert not lines(figure.axes[1], "--")
    assert names(figure)[-2:] == ["k-means (baseline)", "paper"]


@pytest.mark.parametrize(
    ("levels", "log", "is_log"),
    [
        ((0.0, 0.25, 0.5, 0.75, 1.0), None, False),
        ((5, 10, 100), None, False),
        ((4, 10, 100), None, True),
        ((0, 1e-3, 1e-1), None, True),
        ((0, 1e-3), True, True),
        ((4, 10, 100), False, False),
    ],
)
def test_far_levels_are_spaced_by_their_logarithm(plot, levels, log, is_log):
    rows = [{"level": level, "nmi": 0.5} for level in levels]
    (axes,) = plot(rows, level="level", log=log).axes
    assert axes.get_xscale() == ("symlog" if is_log else "linear")
    assert ticks(axes.xaxis) == [f"{level:g}" for level in levels]
    # All of the axis, with 0, is near what was measured.
    ends = axes.transData.transform([(levels[0], 0), (levels[-1], 0)])
    first, last = axes.transAxes.inverted().transform(ends)[:, 0]
    assert 0 < first < 0.1
    assert 0.9 < last < 1


def grid(**axes):
    """Rows and history of every combination."""
    rows, rounds = [], []
    for values in itertools.product(*axes.values()):
        run = {**dict(zip(axes, values, strict=True)), "nmi": 0.5, "acc": 0.6}
        told = {"method": "ccfc", "dataset": "digits", "kappa": 0.4, "status": "ok"}
        rows.append({**told, **run})
        rounds += [{"stage": "train", "round": i, "loss": 1, **run} for i in range(3)]
    return rows, rounds


@pytest.fixture
def drawn(monkeypatch):
    """Every figure, by the name of its file."""
    found = {}
    for name in ("against", "learning_curves"):
        plot = getattr(figures, name)

        def keep(rows, path, plot=plot, **options):
            found[path.name] = plot(rows, path, **options)

        monkeypatch.setattr(figures, name, keep)
    return found


def test_a_figure_for_every_number_that_varies(tmp_path, drawn):
    folder = tmp_path / "figures"
    axes = {"p": (0.0, 0.5), "model_weight": (0, 1e-3, 1e-1), "clients": (10, 20)}
    drawing.grid_figures(folder, *grid(**axes, seed=(0, 1)), by=list(axes))
    expected = {f"against_{name}.png" for name in axes}
    assert {path.name for path in folder.iterdir()} == expected | {
        "learning_curves.png"
    }
    settings = itertools.product((0, 0.5), (10, 20))
    expected = [f"p = {p}, clients = {m}" for p, m in settings]
    assert names(drawn["against_model_weight.png"]) == expected


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
    drawing.grid_figures(tmp_path, *grid(**varied, seed=(0, 1)), by=list(varied))
    assert drawn.pop("learning_curves.png")
    assert {file: names(figure) for file, figure in drawn.items()} == expected


def test_unlabelled_data_has_its_internal_scores(tmp_path, drawn):
    rows, rounds = grid(p=(0,), model_weight=(0, 1), seed=(0,))
    for silhouette, expected in ((None, set()), (0.3, {"against_model_weight.png"})):
        for row in rows:
            row |= {"nmi": None, "acc": None, "kappa": None, "silhouette": silhouette}
        drawing.grid_figures(tmp_path, rows, rounds, by=["p", "model_weight"])
        assert drawn.keys() - {"learning_curves.png"} == expected
