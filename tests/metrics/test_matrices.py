import numpy as np

from fcjax.results.figures import confusion, partition
from tests.metrics.drawn import picture, ticks


def values(axes):
    (image,) = axes.images
    return np.asarray(image.get_array())


def written(axes):
    """The texts of the cells, as an array like the map."""
    found = {text.get_position(): text.get_text() for text in axes.texts}
    shape = values(axes).shape
    return [[found[c, r] for c in range(shape[1])] for r in range(shape[0])]


def test_partition(tmp_path):
    path = tmp_path / "figures" / "partition.png"
    labels = np.array([4, 4, 1, 1, 1, 9, 4])
    clients = np.array([0, 0, 0, 2, 2, 2, -1])
    figure = partition(labels, clients, path, "k-FED")
    assert min(picture(path)) > 300
    axes, _ = figure.axes
    np.testing.assert_array_equal(values(axes), [[1, 2, 0], [2, 0, 1]])
    assert written(axes) == [["1", "2", "0"], ["2", "0", "1"]]
    assert ticks(axes.xaxis) == ["1", "4", "9"]
    assert ticks(axes.yaxis) == ["0", "2"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("class", "client")


def test_large_maps_have_no_numbers(tmp_path):
    labels, clients = np.divmod(np.arange(21 * 50), 50)
    axes = partition(labels, clients, tmp_path / "partition.png").axes[0]
    assert values(axes).shape == (50, 21)
    assert not axes.texts
    assert ticks(axes.yaxis) == [str(i) for i in range(0, 50, 3)]
    labels = np.arange(200) % 40
    axes = confusion(labels, 39 - labels, tmp_path / "confusion.png").axes[0]
    np.testing.assert_array_equal(values(axes), np.eye(40))
    assert ticks(axes.xaxis) == [str(39 - i) for i in range(0, 40, 2)]
    assert not axes.texts


def test_confusion(tmp_path):
    # Cluster 7 is class 0, cluster 5 is class 1, cluster 6 is left over.
    labels = np.array([0, 0, 0, 0, 1, 1])
    clusters = np.array([7, 7, 7, 6, 5, 7])
    figure = confusion(labels, clusters, tmp_path / "confusion.png")
    axes, _ = figure.axes
    np.testing.assert_allclose(values(axes), [[3 / 4, 0, 1 / 4], [1 / 2, 1 / 2, 0]])
    assert written(axes) == [["75%\n3", "", "25%\n1"], ["50%\n1", "50%\n1", ""]]
    assert ticks(axes.xaxis) == ["7", "5", "6"]
    assert ticks(axes.yaxis) == ["0", "1"]
    assert axes.get_title() == "ACC 0.667"
