import numpy as np
import pytest
from matplotlib.image import imread

from fcjax.evaluation.figures import blocks


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_matrices_side_by_side_on_one_scale(tmp_path):
    first = np.array([[1.0, 0.25], [0.5, 0.75]])
    second = np.array([[np.nan, 0.0], [0.1, 0.2]])
    path = tmp_path / "figures" / "blocks.png"
    figure = blocks(
        {"one": first, "two": second}, path, names=np.array([3, 7]), scale="size"
    )
    height, width, _ = imread(path).shape
    assert width > 1.5 * height > 750
    *maps, bar = figure.axes
    assert [axes.get_title() for axes in maps] == ["one", "two"]
    for axes, matrix in zip(maps, (first, second), strict=True):
        (image,) = axes.images
        np.testing.assert_array_equal(np.ma.filled(image.get_array(), np.nan), matrix)
        assert image.get_clim() == (0, 1)
        assert ticks(axes.xaxis) == ticks(axes.yaxis) == ["3", "7"]
    assert bar.get_ylabel() == "size"


def test_of_many_classes_some_are_named(tmp_path):
    figure = blocks({"": np.eye(50)}, tmp_path / "b.png", names=np.arange(50), scale="")
    assert ticks(figure.axes[0].xaxis) == [str(x) for x in range(0, 50, 3)]


def test_bad_matrices(tmp_path):
    path = tmp_path / "blocks.png"
    with pytest.raises(ValueError, match="no matrices to draw"):
        blocks({}, path, names=[], scale="")
    with pytest.raises(ValueError, match="few: 2 names of 3 classes"):
        blocks({"few": np.eye(3)}, path, names=[1, 2], scale="")
    for value in (-0.1, 1.1):
        with pytest.raises(ValueError, match=r"wide: values must lie in \[0, 1\]"):
            blocks({"wide": np.eye(2) * value}, path, names=[1, 2], scale="")
    assert not path.exists()
