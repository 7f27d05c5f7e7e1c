"""Maps of the latent space."""

import numpy as np
import pytest
from matplotlib.colors import to_rgba_array
from sklearn.neighbors import KNeighborsClassifier

from experiments.papers.maps import Panel, draw_maps
from fcjax.results.figures import tsne
from tests.metrics.drawn import blobs, picture, texts, titles


def test_tsne_by_class_cluster_and_client(tmp_path):
    embedding, labels = blobs(classes=3)
    # Cluster 2 is class 0, cluster 0 is class 1, and 1 and 9 share class 2.
    clusters = np.array([2, 0, 1])[labels]
    clusters[-5:] = 9
    path, clients = tmp_path / "tsne.png", np.arange(60) % 12
    options = {"assignments": clusters, "max_points": 50}
    figure = tsne(embedding, labels, clients, path, **options)
    assert min(picture(path)) > 500
    assert titles(figure) == ["by class", "by cluster", "by client"]
    clouds = [axes.collections[0] for axes in figure.axes]
    points = np.asarray(clouds[0].get_offsets())
    order = np.random.default_rng(0).permutation(60)[:50]
    # A cluster has the colour of its class; the one left over has its own.
    by_class, by_cluster, _ = (cloud.get_facecolors() for cloud in clouds)
    same = (by_class == by_cluster).all(axis=1)
    np.testing.assert_array_equal(same, clusters[order] != 9)
    named = [texts(axes.get_legend().get_texts()) for axes in figure.axes[:2]]
    assert named == [["0", "1", "2"], ["2", "0", "1", "9"]]
    # Colours stay with their points: the nearest of each is of its class.
    neighbours = KNeighborsClassifier(2).fit(points, labels[order])
    assert neighbours.score(points, labels[order]) == 1


@pytest.mark.parametrize("classes", [10, 25])
def test_classes_and_clusters_share_colours_however_many(tmp_path, classes):
    embedding, labels = blobs(classes=classes, each=3)
    clusters = labels.copy()
    clusters[0] = classes
    figure = tsne(embedding, labels, labels, tmp_path / "a.png", assignments=clusters)
    clouds = [axes.collections[0] for axes in figure.axes]
    by_class, by_cluster, _ = (cloud.get_facecolors() for cloud in clouds)
    assert (by_class != by_cluster).any(axis=1).sum() == 1
    assert len(np.unique(by_cluster, axis=0)) == classes + 1
    # A legend names at most twenty.
    first, *_, last = found = texts(figure.axes[0].get_legend().get_texts())
    assert len(found) == min(classes, 20)
    assert (first, last) == ("0", str(classes - 1))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "embedding",
    [np.zeros((8, 3)), np.arange(8.0)[:, None], np.eye(4)],
    ids=["collapsed", "one feature", "four examples"],
)
def test_tsne_of_awkward_embeddings(tmp_path, embedding):
    clusters = np.arange(len(embedding)) % 2
    path = tmp_path / "tsne.png"
    figure = tsne(embedding, None, clusters, path, assignments=clusters)
    assert figure.axes[0].get_title() == "by cluster"
    assert np.isfinite(figure.axes[0].collections[0].get_offsets()).all()


def test_classes_have_one_colour_and_clients_one_marker_in_all_panels(tmp_path):
    embedding, labels = blobs(classes=3)
    clients = np.arange(60) % 4
    # The second panel lacks class 0 and clients 0 and 2.
    odd = (clients % 2 == 1) & (labels > 0)
    arrays = (embedding, labels, clients)
    panels = [Panel("all", *arrays), Panel("odd", *(x[odd] for x in arrays))]
    figure = draw_maps(panels, tmp_path / "maps.png")
    classes, holders = figure.legends
    colors = to_rgba_array([x.get_color() for x in classes.legend_handles])
    markers = [handle.get_marker() for handle in holders.legend_handles]
    assert texts(classes.get_texts()) == ["0", "1", "2"]
    assert texts(holders.get_texts()) == ["0", "1", "2", "3"]
    assert len(set(markers)) == 4
    for axes, panel in zip(figure.axes, panels, strict=True):
        order = np.random.default_rng(0).permutation(len(panel.labels))
        for client, cloud in enumerate(axes.collections):
            shown = panel.labels[order][panel.clients[order] == client]
            if len(shown):
                found = cloud.get_facecolors()[:, :3]
                np.testing.assert_allclose(found, colors[shown, :3])
