import numpy as np

from fcjax.results.figures import associations
from tests.metrics.drawn import names, picture, texts

# Communities 0 2 4 and 1 5; 3 and 6 are isolated.
GROUPS = np.array([1, 0, 1, 0, 2, -1, 2])
SIZES = np.array([10, 20, 0, 40, 30, 40, 5])


def graph(count, *pairs):
    edges = np.zeros((count, count), bool)
    for one, other in pairs:
        edges[one, other] = edges[other, one] = True
    return edges


EDGES = graph(7, (0, 2), (2, 4), (4, 0), (1, 5))


def cloud_of(figure):
    (axes,) = figure.axes
    return axes.collections[-1]


def segments(figure):
    """The right and the wrong edges, as pairs of nodes."""
    right, wrong, cloud = figure.axes[0].collections
    places = np.asarray(cloud.get_offsets())
    return [
        sorted(
            tuple(
                sorted(int(np.abs(places - end).sum(axis=1).argmin()) for end in ends)
            )
            for ends in lines.get_segments()
        )
        for lines in (right, wrong)
    ]


def draw(tmp_path, edges=EDGES, **changes):
    options = {"sizes": SIZES, "groups": GROUPS, **changes}
    return associations(edges, tmp_path / "figures" / "graph.png", **options)


def test_edges_between_groups_are_wrong_but_for_those_of_the_unknown(tmp_path):
    figure = draw(tmp_path)
    assert min(picture(tmp_path / "figures" / "graph.png")) > 300
    right, wrong = segments(figure)
    assert right == [(0, 2), (1, 5)]
    assert wrong == [(0, 4), (2, 4)]
    assert names(figure) == ["0", "1", "2", "unknown", "wrong"]
    figure = draw(tmp_path, groups=np.zeros(7, int))
    assert segments(figure) == [[(0, 2), (0, 4), (1, 5), (2, 4)], []]
    assert names(figure) == ["0"]


def test_colour_is_the_group_area_the_size_and_a_community_a_circle(tmp_path):
    """Isolated clusters lie below a line, of which an edge to oneself makes none."""
    figure = draw(tmp_path, EDGES | np.eye(7, dtype=bool))
    cloud = cloud_of(figure)
    colors, areas = cloud.get_facecolors(), cloud.get_sizes()
    same = (colors[:, None] == colors).all(axis=-1)
    np.testing.assert_array_equal(same, GROUPS[:, None] == GROUPS)
    np.testing.assert_allclose((areas - areas[2]) / np.ptp(areas), SIZES / 40)
    places = np.asarray(cloud.get_offsets())
    for own in ([0, 2, 4], [1, 5]):
        center = places[own].mean(axis=0)
        radii = np.linalg.norm(places[own] - center, axis=1)
        np.testing.assert_allclose(radii, radii[0])
    (axes,) = figure.axes
    below = places[:, 1] < axes.lines[0].get_ydata()[0]
    np.testing.assert_array_equal(np.flatnonzero(below), [3, 6])
    assert texts(axes.texts) == ["2 isolated clusters"]
