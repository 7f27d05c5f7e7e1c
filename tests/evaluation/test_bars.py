import numpy as np
import pytest
from matplotlib.image import imread

from fcjax.evaluation.figures import bars


def row(method, label, share, seed=0):
    return {"method": method, "label": label, "share": share, "seed": seed}


def heights(container):
    return [bar.get_height() for bar in container]


def places(container):
    return [bar.get_x() + bar.get_width() / 2 for bar in container]


def test_a_bar_is_a_mean_over_runs_beside_that_of_the_other_method(tmp_path):
    path = tmp_path / "figures" / "bars.png"
    # The second method never found label 1; its label 7 is one that no class has.
    rows = [
        *[row("first", 0, share, seed) for seed, share in enumerate((0.2, 0.4))],
        *[row("first", 1, share, seed) for seed, share in enumerate((0.8, 0.6))],
        row("second", 7, 0.25),
        row("second", 0, 0.75),
    ]
    figure = bars(rows, path)
    height, width, _ = imread(path).shape
    assert width > height > 500
    (axes,) = figure.axes
    assert [x.get_text() for x in axes.get_xticklabels()] == ["0", "1", "7"]
    first, second = (x for x in axes.containers if hasattr(x, "patches"))
    assert heights(first) == pytest.approx([0.3, 0.7])
    assert sorted(heights(second)) == [0.25, 0.75]
    # Two bars of width 0.4 a label, the first method's to the left.
    assert places(first) == pytest.approx([-0.2, 0.8])
    assert sorted(places(second)) == pytest.approx([0.2, 2.2])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["first", "second"]


def test_several_runs_have_an_interval_and_one_has_none(tmp_path):
    rows = [row("two", 0, 0.2, 0), row("two", 0, 0.4, 1), row("one", 0, 0.5)]
    (axes,) = bars(rows, tmp_path / "bars.png").axes
    two, one = (x for x in axes.containers if hasattr(x, "patches"))
    # The t quantile of one degree of freedom is 12.7062, the standard error 0.1.
    (segment,) = two.errorbar.lines[2][0].get_segments()
    np.testing.assert_allclose(segment[:, 1], [0.3 - 1.27062, 0.3 + 1.27062], atol=1e-5)
    (segment,) = one.errorbar.lines[2][0].get_segments()
    assert len(segment) == 0
    # Bars stand on 0 and shares end at 1, however wide an interval is.
    assert axes.get_ylim()[0] == 0
    assert axes.get_ylim()[1] <= 1


def test_nothing_to_draw(tmp_path):
    with pytest.raises(ValueError, match="no shares to draw"):
        bars([], tmp_path / "bars.png")
    with pytest.raises(ValueError, match="no column 'cluster'; there are: method"):
        bars([row("a", 0, 1.0)], tmp_path / "bars.png", group="cluster")
    assert list(tmp_path.iterdir()) == []
