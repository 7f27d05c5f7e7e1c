import math

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from fcjax.evaluation.figures import learning_curves, tsne


def history(*, seeds=3, restart=True):
    """Two stages of 4 and 3 rounds, NMI measured in every other round."""
    rows = []
    for p in ("0.0", "0.5"):
        for seed in range(seeds):
            for stage, rounds, first in (("warm-up", 4, 0), ("clustering", 3, 4)):
                for i in range(rounds):
                    rows.append(
                        {
                            "run": f"{p}-{seed}",
                            "p": p,
                            "seed": seed,
                            "stage": stage,
                            "round": i if restart else first + i,
                            "loss": 1 / (1 + i + seed),
                            "nmi": (first + i + seed) / 10 if i % 2 else "",
                            "acc": (first + i) / 8 if i % 2 else "",
                        }
                    )
    return rows


@pytest.mark.parametrize("restart", [True, False])
def test_learning_curves(tmp_path, restart):
    path = tmp_path / "figures" / "curves.png"
    figure = learning_curves(history(restart=restart), path)
    assert min(imread(path).shape[:2]) > 500
    nmi, acc, loss = figure.axes
    # Two settings and the verticals; the loss of each setting breaks once.
    assert [len(axes.lines) for axes in (nmi, acc, loss)] == [3, 3, 5]
    # Bands where the seeds differ, which those of ACC do not.
    assert [len(axes.collections) for axes in (nmi, acc, loss)] == [2, 0, 4]
    np.testing.assert_allclose(nmi.lines[0].get_xdata(), [1, 3, 5])
    np.testing.assert_allclose(nmi.lines[0].get_ydata(), [0.2, 0.4, 0.6])
    np.testing.assert_allclose(loss.lines[1].get_xdata(), [4, 5, 6])
    assert nmi.lines[2].get_xdata()[0] == 3.5
    assert [text.get_text() for text in nmi.texts] == ["warm-up", "clustering"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["p = 0", "p = 0.5"]


def test_band_is_the_interval(tmp_path):
    figure = learning_curves(history(), tmp_path / "curves.png", values=("nmi",))
    corners = figure.axes[0].collections[0].get_paths()[0].vertices
    at_first = corners[corners[:, 0] == 1, 1]
    # Three seeds 0.1 apart: the deviation is 0.1.
    half_width = 4.3026527 * 0.1 / math.sqrt(3)
    assert at_first.min() == pytest.approx(0.2 - half_width)
    assert at_first.max() == pytest.approx(0.2 + half_width)


def test_one_run_of_one_stage(tmp_path):
    rows = [row for row in history(seeds=1) if row["stage"] == "warm-up"]
    figure = learning_curves(rows, tmp_path / "curves.png")
    for axes in figure.axes:
        assert len(axes.lines) == 2
        assert not axes.collections
        assert not axes.texts


def test_negative_scores_are_in_sight(tmp_path):
    rows = [{"p": 0, "stage": "train", "round": i, "ari": -0.3} for i in range(3)]
    figure = learning_curves(rows, tmp_path / "curves.png", values=("ari",))
    assert figure.axes[0].get_ylim()[0] < -0.3


def test_a_diverged_run_is_still_drawn(tmp_path):
    rows = history()
    rows[3]["loss"], rows[4]["loss"] = math.nan, math.inf
    learning_curves(rows, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").exists()


def test_bad_history(tmp_path):
    with pytest.raises(ValueError, match=r"^no history to draw$"):
        learning_curves([], tmp_path / "curves.png")
    with pytest.raises(ValueError, match=r"^no column 'q'"):
        learning_curves(history(), tmp_path / "curves.png", by=("q",))
    assert not list(tmp_path.iterdir())


def blobs(*, classes, each=20, features=5):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), each)
    centres = 10 * rng.normal(size=(classes, features))
    points = centres[labels] + rng.normal(size=(len(labels), features))
    return points.astype(np.float32), labels


def test_tsne(tmp_path):
    embedding, labels = blobs(classes=3)
    clients = np.arange(60) % 12
    figure = tsne(embedding, labels, clients, tmp_path / "tsne.png", max_points=50)
    assert min(imread(tmp_path / "tsne.png").shape[:2]) > 500
    by_class, by_client = figure.axes
    assert by_class.get_title() == "by class"
    assert by_client.get_title() == "by client"
    for axes, groups in ((by_class, 3), (by_client, 12)):
        (cloud,) = axes.collections
        assert cloud.get_offsets().shape == (50, 2)
        assert len(np.unique(cloud.get_facecolors(), axis=0)) == groups
        assert len(axes.get_legend().get_texts()) == groups
        assert not axes.get_xticks().size
        assert axes.get_aspect() == 1


def colors_of(axes, groups):
    """The one colour of each group, and the legend's names by colour."""
    (cloud,) = axes.collections
    colors = cloud.get_facecolors()[:, :3]
    for group in np.unique(groups):
        assert len(np.unique(colors[groups == group], axis=0)) == 1
    legend = axes.get_legend()
    names = {
        handle.get_color()[:3]: text.get_text()
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True)
    }
    return [tuple(color) for color in colors], names


def test_tsne_by_class_cluster_and_client(tmp_path):
    embedding, labels = blobs(classes=3)
    # Cluster 2 is class 0, cluster 0 is class 1, and 1 and 9 share class 2.
    clusters = np.array([2, 0, 1])[labels]
    clusters[-5:] = 9
    path, clients = tmp_path / "tsne.png", np.arange(60) % 2
    figure = tsne(embedding, labels, clients, path, assignments=clusters)
    kinds = ["by class", "by cluster", "by client"]
    assert [axes.get_title() for axes in figure.axes] == kinds
    maps = [axes.collections[0].get_offsets() for axes in figure.axes]
    np.testing.assert_array_equal(maps[0], maps[1])
    np.testing.assert_array_equal(maps[0], maps[2])
    order = np.random.default_rng(0).permutation(60)
    by_class, class_names = colors_of(figure.axes[0], labels[order])
    by_cluster, cluster_names = colors_of(figure.axes[1], clusters[order])
    colors_of(figure.axes[2], clients[order])
    # A cluster has the colour of its class; the one left over has its own.
    same = [a == b for a, b in zip(by_class, by_cluster, strict=True)]
    np.testing.assert_array_equal(same, clusters[order] != 9)
    assert list(class_names.values()) == ["0", "1", "2"]
    assert list(cluster_names.values()) == ["2", "0", "1", "9"]


@pytest.mark.parametrize("classes", [10, 25])
def test_classes_and_clusters_share_colours_however_many(tmp_path, classes):
    embedding, labels = blobs(classes=classes, each=3)
    clusters = labels.copy()
    clusters[0] = classes
    figure = tsne(embedding, labels, labels, tmp_path / "a.png", assignments=clusters)
    by_class, by_cluster = (
        axes.collections[0].get_facecolors() for axes in figure.axes[:2]
    )
    assert (by_class != by_cluster).any(axis=1).sum() == 1
    assert len(np.unique(by_cluster, axis=0)) == classes + 1


def test_tsne_keeps_colours_with_their_points(tmp_path):
    embedding, labels = blobs(classes=3)
    figure = tsne(embedding, labels, labels, tmp_path / "tsne.png", max_points=45)
    (cloud,) = figure.axes[0].collections
    points, colors = np.asarray(cloud.get_offsets()), cloud.get_facecolors()
    distances = np.linalg.norm(points[:, None] - points, axis=-1)
    nearest = np.argsort(distances, axis=1)[:, 1]
    np.testing.assert_array_equal(colors, colors[nearest])


def test_tsne_repeats_itself(tmp_path):
    embedding, labels = blobs(classes=2)
    clouds = [
        tsne(embedding, labels, labels, tmp_path / "tsne.png", seed=3)
        .axes[0]
        .collections[0]
        .get_offsets()
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*clouds)


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


def test_a_legend_names_at_most_twenty(tmp_path):
    embedding, labels = blobs(classes=30, each=2)
    figure = tsne(embedding, labels, labels, tmp_path / "tsne.png")
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert len(names) == 20
    assert (names[0], names[-1]) == ("0", "29")


def test_bad_embeddings(tmp_path):
    path, clients = tmp_path / "tsne.png", np.zeros(5, int)
    with pytest.raises(ValueError, match="labels or assignments"):
        tsne(np.zeros((5, 2)), None, clients, path)
    with pytest.raises(ValueError, match="at least 4 examples, not 3"):
        tsne(np.zeros((3, 2)), clients[:3], clients[:3], path)
    with pytest.raises(ValueError, match="NaN or infinite"):
        tsne(np.full((5, 2), np.nan), clients, clients, path)
    assert not path.exists()


def test_global_state_of_matplotlib_stays(tmp_path):
    before = dict(matplotlib.rcParams)
    learning_curves(history(), tmp_path / "curves.png")
    assert dict(matplotlib.rcParams) == before
