import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.patches import Rectangle

from fcjax.evaluation.figures import confusion, partition


def values(axes):
    (image,) = axes.images
    return np.asarray(image.get_array())


def texts(axes):
    """The texts of the cells, as an array like the map."""
    written = {text.get_position(): text.get_text() for text in axes.texts}
    shape = values(axes).shape
    return [[written[c, r] for c in range(shape[1])] for r in range(shape[0])]


def ticks(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_partition(tmp_path):
    path = tmp_path / "figures" / "partition.png"
    labels = np.array([4, 4, 1, 1, 1, 9, 4])
    clients = np.array([0, 0, 0, 2, 2, 2, -1])
    figure = partition(labels, clients, path)
    assert min(imread(path).shape[:2]) > 300
    axes, bar = figure.axes
    np.testing.assert_array_equal(values(axes), [[1, 2, 0], [2, 0, 1]])
    assert texts(axes) == [["1", "2", "0"], ["2", "0", "1"]]
    assert ticks(axes.xaxis) == ["1", "4", "9"]
    assert ticks(axes.yaxis) == ["0", "2"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("class", "client")
    assert bar.get_ylabel() == "examples"
    assert axes.images[0].get_clim() == (0, 2)


def test_numbers_are_light_on_dark_and_dark_on_light(tmp_path):
    labels, clients = np.array([0] * 1500 + [1]), np.zeros(1501, int)
    axes = partition(labels, clients, tmp_path / "partition.png").axes[0]
    many, one = axes.texts
    assert (many.get_text(), many.get_color()) == ("1,500", "white")
    assert (one.get_text(), one.get_color()) == ("1", "0.25")


def test_large_partitions_have_no_numbers(tmp_path):
    labels, clients = np.divmod(np.arange(21 * 50), 50)
    axes = partition(labels, clients, tmp_path / "partition.png").axes[0]
    assert values(axes).shape == (50, 21)
    assert not axes.texts
    assert ticks(axes.yaxis) == [str(i) for i in range(0, 50, 3)]


def test_confusion(tmp_path):
    # Cluster 7 is class 0, cluster 5 is class 1, cluster 6 is left over.
    labels = np.array([0, 0, 0, 0, 1, 1])
    clusters = np.array([7, 7, 7, 6, 5, 7])
    figure = confusion(labels, clusters, tmp_path / "confusion.png")
    axes, bar = figure.axes
    np.testing.assert_allclose(values(axes), [[3 / 4, 0, 1 / 4], [1 / 2, 1 / 2, 0]])
    assert axes.images[0].get_clim() == (0, 1)
    assert texts(axes) == [["75%\n3", "", "25%\n1"], ["50%\n1", "50%\n1", ""]]
    assert ticks(axes.xaxis) == ["7", "5", "6"]
    assert ticks(axes.yaxis) == ["0", "1"]
    assert axes.get_title() == "ACC 0.667"
    assert bar.get_ylabel() == "share of the class"
    outlined = [patch.get_xy() for patch in axes.patches if type(patch) is Rectangle]
    assert outlined == [(-0.5, -0.5), (0.5, 0.5)]
    (border,) = axes.lines
    assert border.get_xdata()[0] == 1.5


def test_confusion_of_fewer_clusters(tmp_path):
    # Class 1 has no cluster: those of 0 and 2 are outlined beside each other.
    labels = np.array([0, 0, 1, 2, 2])
    clusters = np.array([3, 3, 3, 1, 1])
    axes = confusion(labels, clusters, tmp_path / "confusion.png").axes[0]
    np.testing.assert_allclose(values(axes), [[1, 0], [1, 0], [0, 1]])
    assert ticks(axes.xaxis) == ["3", "1"]
    assert [patch.get_xy() for patch in axes.patches] == [(-0.5, -0.5), (0.5, 1.5)]
    assert not axes.lines


def test_large_confusions_have_no_numbers(tmp_path):
    labels = np.arange(200) % 40
    axes = confusion(labels, 39 - labels, tmp_path / "confusion.png").axes[0]
    np.testing.assert_array_equal(values(axes), np.eye(40))
    assert ticks(axes.xaxis) == [str(39 - i) for i in range(0, 40, 2)]
    assert not axes.texts


def test_bad_input(tmp_path):
    path, ones = tmp_path / "map.png", np.ones(3, int)
    with pytest.raises(ValueError, match=r"^3 labels but 2 clients$"):
        partition(ones, ones[:2], path)
    with pytest.raises(ValueError, match=r"^no client holds an example$"):
        partition(ones, -ones, path)
    with pytest.raises(ValueError, match=r"^3 labels but 2 assignments$"):
        confusion(ones, ones[:2], path)
    assert not path.exists()
