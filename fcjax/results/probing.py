"""How good an embedding is, measured with labels.

The k-nearest-neighbour probe of the CCFC paper's Table 3, linear classifiers of the
frozen embedding from all labels and from a few, as in FedMCC's section IV-C, and each
client's own scores of CCFC's Table 4, averaged.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from fcjax import metrics
from fcjax.cluster import kmeans
from fcjax.data import Dataset
from fcjax.data.source import Source, load_source
from fcjax.metrics import probes
from fcjax.results import tables


class Probe(NamedTuple):
    """Tables of what the embedding of a run says of the labels."""

    neighbors: pd.DataFrame
    """The accuracy of k-nearest-neighbour classifiers, one row per k."""
    linear: pd.DataFrame
    """The accuracy of linear classifiers of the frozen embedding, from all labels and
    from shares of them: one row per draw, with the number of labels."""
    clusters: pd.DataFrame
    """The scores of the run's clusters, and of k-means on its embedding."""
    clients: pd.DataFrame
    """One row: the mean of the clients' own scores, each with a match of its own."""
    num_tested: int
    """The number of examples that the classifiers are tested on."""


def probe(
    embedding: Float[np.ndarray, "P D"],
    labels: Int[np.ndarray, "P"],
    *,
    is_test: Bool[np.ndarray, "P"],
    clusters: Int[np.ndarray, "P"],
    clients: Int[np.ndarray, "P"],
    num_clusters: int,
    num_neighbors: Sequence[int],
    label_fraction: Sequence[float],
    num_draws: int,
) -> Probe:
    """Measures an embedding, see `Run.probe`."""
    for share in label_fraction:
        if not 0 < share <= 1:
            raise ValueError(f"`label_fraction` must lie in (0, 1], got {share:g}")
    if num_draws < 1:
        raise ValueError(f"`num_draws` must be at least 1, got {num_draws}")
    split = [x[rows] for rows in (~is_test, is_test) for x in (embedding, labels)]
    counts = [k for k in num_neighbors if k <= len(split[0])]
    knn = metrics.knn_accuracy(*split, num_neighbors=counts)
    scores = client_scores(labels, clusters, clients)
    return Probe(
        pd.DataFrame(knn.items(), columns=["neighbors", "accuracy"]),
        linear_rows(split, label_fraction, num_draws=num_draws),
        cluster_rows(labels, clusters, embedding, num_clusters),
        pd.DataFrame([scores]),
        int(is_test.sum()),
    )


def test_rows(source: Source, dataset: Dataset) -> Bool[np.ndarray, "P"]:
    """Returns which examples are the test split; a sixth drawn at random where the data
    has no splits or only a part of it was used.
    """
    whole = source.limit is None and source.split == "all"
    if whole and source.dataset != "digits" and not Path(source.dataset).exists():
        train = load_source(dataclasses.replace(source, split="train"))[0]
        return np.arange(len(dataset.examples)) >= len(train.examples)
    draws = np.random.default_rng(0).random(len(dataset.examples))
    return draws < np.sort(draws)[max(1, len(draws) // 6)]


def linear_rows(
    split: Sequence[np.ndarray], shares: Sequence[float], *, num_draws: int
) -> pd.DataFrame:
    """Returns a row of the linear probe and one per draw of each share of the labels.

    Args:
        split: embedding and labels to train on, and those to test on.
        shares: of the labels to train on.
        num_draws: how many times each is drawn.
    """
    key, labels = jax.random.key(0), split[1]
    rows = [("linear probe", len(labels), probes.linear_probe(key, *split))]
    for share in shares:
        drawn = probes.semi_supervised(
            key, *split, label_fraction=share, num_draws=num_draws
        )
        count = probes.labels_per_class(labels, label_fraction=share).sum()
        rows += [(f"{100 * share:g} % of labels", count, value) for value in drawn]
    return pd.DataFrame(rows, columns=["protocol", "labels", "accuracy"])


def format_linear(linear: pd.DataFrame) -> pd.DataFrame:
    """Returns the linear classifiers as text: the mean ± 95 % interval over draws."""
    by = ["protocol", "labels"]
    summary = tables.summarize(linear, by=by, values=["accuracy"])
    return tables.format_summary(summary).rename(columns={"seeds": "draws"})


def cluster_rows(
    labels: np.ndarray, clusters: np.ndarray, embedding: np.ndarray, num_clusters: int
) -> pd.DataFrame:
    """Returns the scores of the run's clusters and of as many by k-means, the best of
    ten seedings; examples without a cluster are left out of both.
    """
    counted = clusters >= 0
    z = jnp.asarray(embedding[counted])
    plain = np.asarray(kmeans(jax.random.key(0), z, num_clusters).assignments)
    rows = []
    for name, own in (("of the run", clusters[counted]), ("k-means", plain)):
        scores = metrics.scores(labels[counted], own, names=("nmi", "acc", "kappa"))
        rows.append({"clusters": name, **scores})
    return pd.DataFrame(rows)


def client_scores(
    labels: np.ndarray, clusters: np.ndarray, holders: np.ndarray
) -> dict[str, float]:
    """Returns the clients' own scores, averaged by their numbers of examples."""
    names = np.unique(holders[holders >= 0])
    rows = [np.flatnonzero(holders == name) for name in names]
    padded = np.array([np.resize(r, max(map(len, rows))) for r in rows])
    mask = np.arange(padded.shape[1]) < np.array([[len(r)] for r in rows])
    each = metrics.per_client(labels[padded], clusters[padded], mask)
    return metrics.client_pooled(each, mask)
