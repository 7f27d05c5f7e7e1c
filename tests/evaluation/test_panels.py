import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.markers import MarkerStyle

from fcjax.evaluation.figures import Panel, maps, panels, tsne
from tests.evaluation.test_figures import blobs


def texts(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_a_row_of_maps(tmp_path):
    embedding, labels = blobs(classes=3)
    wide = np.concatenate([embedding, embedding], axis=1)
    path = tmp_path / "figures" / "maps.png"
    figure = maps(
        [Panel("pixels", wide, labels), Panel("few", embedding[:40], labels[:40])],
        path,
        max_points=50,
    )
    height, width, _ = imread(path).shape
    assert width > 1.5 * height > 750
    assert [axes.get_title() for axes in figure.axes] == ["pixels", "few"]
    for axes, count in zip(figure.axes, (50, 40), strict=True):
        (cloud,) = axes.collections
        assert cloud.get_offsets().shape == (count, 2)
        assert not axes.get_xticks().size
    (legend,) = figure.legends
    assert texts(legend) == ["0", "1", "2"]


def test_the_map_is_that_of_tsne(tmp_path):
    embedding, labels = blobs(classes=2)
    alone = tsne(embedding, labels, labels, tmp_path / "a.png", seed=4)
    beside = maps([Panel("", embedding, labels)], tmp_path / "b.png", seed=4)
    (one,), (two,) = (figure.axes[0].collections for figure in (alone, beside))
    np.testing.assert_array_equal(one.get_offsets(), two.get_offsets())
    np.testing.assert_array_equal(one.get_facecolors(), two.get_facecolors())


def test_classes_have_one_colour_and_clients_one_marker_in_all_panels(tmp_path):
    embedding, labels = blobs(classes=3)
    clients = np.arange(60) % 4
    # The second panel lacks class 0 and clients 0 and 2.
    odd = (clients % 2 == 1) & (labels > 0)
    figure = maps(
        [
            Panel("all", embedding, labels, clients),
            Panel("odd", embedding[odd], labels[odd], clients[odd]),
        ],
        tmp_path / "maps.png",
    )
    classes, holders = figure.legends
    colors = [handle.get_color() for handle in classes.legend_handles]
    markers = [handle.get_marker() for handle in holders.legend_handles]
    assert texts(classes) == ["0", "1", "2"]
    assert texts(holders) == ["0", "1", "2", "3"]
    assert len(set(markers)) == 4
    for axes, kept in zip(figure.axes, (clients >= 0, odd), strict=True):
        order = np.random.default_rng(0).permutation(kept.sum())
        mine, theirs = labels[kept][order], clients[kept][order]
        for client, cloud in enumerate(axes.collections):
            shown = mine[theirs == client]
            assert len(cloud.get_offsets()) == len(shown)
            if not len(shown):
                continue
            expected = np.array(colors)[shown][:, :3]
            np.testing.assert_allclose(cloud.get_facecolors()[:, :3], expected)
            shape = MarkerStyle(markers[client])
            expected = shape.get_path().transformed(shape.get_transform())
            np.testing.assert_array_equal(
                cloud.get_paths()[0].vertices, expected.vertices
            )


def test_bad_panels(tmp_path):
    path, labels = tmp_path / "maps.png", np.arange(20)
    with pytest.raises(ValueError, match="no panels to draw"):
        maps([], path)
    with pytest.raises(ValueError, match=r"^short: .* are \[20, 19\]$"):
        maps([Panel("short", np.eye(20), labels[1:])], path)
    with pytest.raises(ValueError, match="at least 4 examples, not 3"):
        maps([Panel("", np.eye(3), labels[:3])], path)
    with pytest.raises(ValueError, match="NaN or infinite"):
        maps([Panel("", np.full((20, 2), np.nan), labels)], path)
    with pytest.raises(ValueError, match=f"at most {len(panels.MARKERS)} clients"):
        maps([Panel("", np.eye(20), labels, labels)], path)
    assert not path.exists()
