from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy.spatial.distance import pdist

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
    figure = draw(tmp_path, title="a graph")
    assert min(picture(tmp_path / "figures" / "graph.png")) > 300
    right, wrong = segments(figure)
    assert right == [(0, 2), (1, 5)]
    assert wrong == [(0, 4), (2, 4)]
    assert figure.get_suptitle() == "a graph"
    assert names(figure) == ["0", "1", "2", "unknown", "wrong"]
    figure = draw(tmp_path, groups=np.zeros(7, int))
    assert segments(figure) == [[(0, 2), (0, 4), (1, 5), (2, 4)], []]
    assert names(figure) == ["0"]


def test_colour_is_the_group_area_the_size_and_a_community_a_circle(tmp_path):
    """Isolated clusters lie below a line, of which an edge to oneself makes none."""
    figure = draw(tmp_path, EDGES | np.eye(7, dtype=bool))
    cloud = cloud_of(figure)
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
    places = np.asarray(cloud.get_offsets())
    for own in ([0, 2, 4], [1, 5]):
        center = places[own].mean(axis=0)
        radii = np.linalg.norm(places[own] - center, axis=1)
        np.testing.assert_allclose(radii, radii[0])
    (axes,) = figure.axes
    (line,) = axes.lines
    floor = line.get_ydata()[0]
    below = places[:, 1] < floor
    np.testing.assert_array_equal(np.flatnonzero(below), [3, 6])
    assert texts(axes.texts) == ["2 isolated"]


@pytest.mark.parametrize(("count", "largest"), [(90, 0), (90, 20), (200, 80)])
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
    assert bool(axes.lines) == bool(axes.texts) == bool(chains)
    centers = [places[own].mean(axis=0) for own in chains]
    radii = [
        np.linalg.norm(places[own[0]] - center)
        for own, center in zip(chains, centers, strict=True)
    ]
    for i, j in combinations(range(len(chains)), 2):
        apart = np.linalg.norm(centers[i] - centers[j])
        assert apart > radii[i] + radii[j] + 1
