from itertools import pairwise

import numpy as np
import pytest
from matplotlib.image import imread
from scipy.spatial.distance import pdist

from fcjax.evaluation.figures import associations

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
    (axes,) = figure.axes
    places = np.asarray(cloud_of(figure).get_offsets())
    found = []
    for lines in axes.collections[:2]:
        ends = [
            tuple(int(np.abs(places - end).sum(axis=1).argmin()) for end in segment)
            for segment in lines.get_segments()
        ]
        found.append(sorted(tuple(sorted(pair)) for pair in ends))
    return found


def draw(tmp_path, edges=EDGES, **changes):
    options = {"sizes": SIZES, "groups": GROUPS, **changes}
    return associations(edges, tmp_path / "figures" / "graph.png", **options)


def test_edges_between_groups_are_wrong_but_for_those_of_the_unknown(tmp_path):
    figure = draw(tmp_path, title="a graph")
    assert min(imread(tmp_path / "figures" / "graph.png").shape[:2]) > 300
    right, wrong = segments(figure)
    assert right == [(0, 2), (1, 5)]
    assert wrong == [(0, 4), (2, 4)]
    (axes,) = figure.axes
    assert axes.get_title() == "a graph"
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["0", "1", "2", "unknown", "wrong"]
    figure = draw(tmp_path, groups=np.zeros(7, int), labels=["bags"])
    assert segments(figure) == [[(0, 2), (0, 4), (1, 5), (2, 4)], []]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["bags"]


def test_colour_is_the_group_and_area_the_size(tmp_path):
    cloud = cloud_of(draw(tmp_path))
    colors = cloud.get_facecolors()
    same = (colors[:, None] == colors).all(axis=-1)
    np.testing.assert_array_equal(same, GROUPS[:, None] == GROUPS)
    red, green, blue = colors[GROUPS == -1][0, :3]
    assert red == green == blue
    areas = cloud.get_sizes()
    assert 0 < areas[2] == areas.min()
    np.testing.assert_allclose(
        (areas - areas[2]) / (areas.max() - areas[2]), SIZES / 40
    )


def test_a_community_is_a_circle_and_isolated_clusters_lie_below_a_line(tmp_path):
    figure = draw(tmp_path)
    places = np.asarray(cloud_of(figure).get_offsets())
    for own in ([0, 2, 4], [1, 5]):
        center = places[own].mean(axis=0)
        radii = np.linalg.norm(places[own] - center, axis=1)
        np.testing.assert_allclose(radii, radii[0])
    (axes,) = figure.axes
    (line,) = axes.lines
    floor = line.get_ydata()[0]
    below = places[:, 1] < floor
    np.testing.assert_array_equal(np.flatnonzero(below), [3, 6])
    assert [text.get_text() for text in axes.texts] == ["2 isolated"]


@pytest.mark.parametrize("count", [90, 200])
@pytest.mark.parametrize("largest", [0, 20, 80])
def test_no_two_clusters_meet_and_no_two_communities(tmp_path, count, largest):
    """Chains of 2 to `largest` clusters, the others isolated."""
    rng = np.random.default_rng(count + largest)
    order, pairs, chains, start = rng.permutation(count), [], [], 0
    while largest and start < 0.8 * count:
        length = int(rng.integers(2, largest + 1)) if chains else largest
        own = order[start : start + length]
        pairs += pairwise(own)
        chains.append(own)
        start += length
    figure = draw(
        tmp_path,
        graph(count, *pairs),
        sizes=rng.integers(0, 500, count),
        groups=rng.integers(-1, 10, count),
    )
    cloud = cloud_of(figure)
    places = np.asarray(cloud.get_offsets())
    assert len(places) == count
    # Measured as drawn, in points: a dot of area s is sqrt(s) across.
    figure.draw_without_rendering()
    (axes,) = figure.axes
    in_points = axes.transData.transform(places) * 72 / figure.dpi
    assert pdist(in_points).min() > np.sqrt(cloud.get_sizes().max())
    assert max(figure.get_size_inches()) < 13
    circles = [
        (
            places[own].mean(axis=0),
            np.linalg.norm(places[own[0]] - places[own].mean(axis=0)),
        )
        for own in chains
        if len(own) > 1
    ]
    for i, (center, radius) in enumerate(circles):
        for other, its_radius in circles[:i]:
            assert np.linalg.norm(center - other) > radius + its_radius + 1


def test_clusters_of_a_group_lie_side_by_side(tmp_path):
    groups = np.array([0, 1, 0, 1, 0, 1])
    edges = graph(6, *[(i, i + 1) for i in range(5)])
    figure = draw(tmp_path, edges, sizes=np.ones(6), groups=groups)
    places = np.asarray(cloud_of(figure).get_offsets())
    x, y = (places - places.mean(axis=0)).T
    around = groups[np.argsort(np.arctan2(y, x))]
    assert (around != np.roll(around, 1)).sum() == 2


def test_an_edge_to_oneself_is_none(tmp_path):
    edges = EDGES | np.eye(7, dtype=bool)
    (axes,) = draw(tmp_path, edges).axes
    assert [text.get_text() for text in axes.texts] == ["2 isolated"]


def test_nothing_isolated_and_nothing_else(tmp_path):
    for edges in (graph(2, (0, 1)), graph(2)):
        figure = draw(tmp_path, edges, sizes=np.ones(2), groups=np.zeros(2, int))
        (axes,) = figure.axes
        assert not axes.lines
        assert not axes.texts
        assert len(cloud_of(figure).get_offsets()) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": np.zeros((0, 0), bool), "groups": GROUPS[:0]}, "no clusters"),
        ({"edges": EDGES[:6]}, r"edges \(6, 7\), 7 sizes and 7 groups"),
        ({"sizes": SIZES[:6]}, "6 sizes and 7 groups"),
        ({"edges": np.triu(EDGES)}, "not symmetric"),
        ({"sizes": SIZES - 1}, "sizes must be at least 0, got -1"),
        ({"labels": ["a", "b"]}, "2 labels do not name group 2"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        draw(tmp_path, **changes)
    assert not list(tmp_path.iterdir())
