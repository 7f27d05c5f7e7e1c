import math

import numpy as np
import pytest

from fcjax.evaluation import collapse, status
from fcjax.evaluation.collapse import MAX_SHARE, MIN_SPREAD


def test_by_hand():
    # Columns of the unit vectors (1, 0), (0, 1): each has a deviation of 1 / 2.
    embedding = np.array([[3.0, 0.0], [0.0, 0.5]], np.float32)
    report = collapse(np.array([2, 0]), embedding, num_clusters=4)
    assert report == {
        "occupied_clusters": 2,
        "largest_share": 0.5,
        "embedding_spread": pytest.approx(math.sqrt(2) / 2),
    }
    assert isinstance(report["occupied_clusters"], int)


def test_without_embedding():
    report = collapse(np.array([1, 1, 1, 0]), num_clusters=3)
    assert report == {"occupied_clusters": 2, "largest_share": 0.75}


def test_isotropic_embeddings_spread_by_one():
    embedding = np.random.default_rng(0).normal(size=(20_000, 16))
    report = collapse(np.zeros(20_000, int), embedding, num_clusters=2)
    assert report["embedding_spread"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("scale", [1e-300, 1e-3, 1e30, 1e300])
def test_spread_does_not_depend_on_scale(scale):
    embedding = np.array([[1.0, 2.0], [-2.0, 1.0], [1.0, 0.0]])
    clusters = np.array([0, 1, 1])
    expected = collapse(clusters, embedding, num_clusters=2)
    scaled = collapse(clusters, scale * embedding, num_clusters=2)
    assert scaled == pytest.approx(expected)


@pytest.mark.parametrize("row", [[1.0, -2.0, 5.0], [0.0, 0.0, 0.0]])
def test_equal_embeddings_have_no_spread(row):
    report = collapse(np.array([0, 1]), np.array([row, row]), num_clusters=2)
    assert report["embedding_spread"] == 0
    assert status(report, num_clusters=2) == "collapsed"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_embedding_that_is_not_finite(bad):
    embedding = np.array([[1.0, bad], [0.0, 1.0]])
    report = collapse(np.array([0, 1]), embedding, num_clusters=2)
    assert math.isnan(report["embedding_spread"])
    assert status(report, num_clusters=2) == "diverged"


def test_status():
    healthy = {
        "occupied_clusters": 10,
        "largest_share": MAX_SHARE,
        "embedding_spread": MIN_SPREAD,
    }
    assert status(healthy, num_clusters=10) == "ok"
    assert status(healthy, num_clusters=10, loss=math.nan) == "diverged"
    assert status(healthy | {"largest_share": 0.91}, num_clusters=10) == "collapsed"
    assert status(healthy | {"embedding_spread": 0.0}, num_clusters=10) == "collapsed"


def test_a_single_cluster_is_collapse_unless_it_was_asked_for():
    one = np.zeros(5, int)
    assert status(collapse(one, num_clusters=3), num_clusters=3) == "collapsed"
    assert status(collapse(one, num_clusters=1), num_clusters=1) == "ok"


def test_bad_input():
    with pytest.raises(ValueError, match=r"^no assignments"):
        collapse(np.array([], int), num_clusters=2)
    for outside in (-1, 2):
        with pytest.raises(ValueError, match=r"^assignments outside 0 \.\. 1$"):
            collapse(np.array([0, outside]), num_clusters=2)
    with pytest.raises(ValueError, match=r"^3 embedded but 2 assigned examples$"):
        collapse(np.array([0, 1]), np.zeros((3, 2)), num_clusters=2)
