"""What `fcjax probe` says of a run's clusters beside those of k-means."""

import numpy as np
import pytest

from fcjax.results import probing


def test_k_means_of_the_embedding_beside_the_runs_own_clusters():
    """Three far blobs, which k-means finds. The run joined the last two, so that an
    eighth of its ACC is lost with the eight examples of the last; one example without a
    cluster counts for neither."""
    labels = np.repeat([0, 1, 2], (32, 24, 8))
    rng = np.random.default_rng(0)
    embedding = 50 * np.eye(4)[labels] + rng.normal(size=(64, 4))
    clusters = np.minimum(labels, 1)
    labels, embedding, clusters = (
        np.concatenate([x, x[:1]]) for x in (labels, embedding, clusters)
    )
    clusters[-1] = -1
    table = probing.cluster_rows(labels, clusters, embedding.astype(np.float32), 3)
    own, plain = table.to_dict("records")
    assert (own["clusters"], plain["clusters"]) == ("of the run", "k-means")
    assert own["acc"] == pytest.approx(56 / 64)
    assert plain["nmi"] == plain["acc"] == plain["kappa"] == pytest.approx(1)
