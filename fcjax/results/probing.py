"""Evaluation of an embedding with labels.

There are three probes. K-nearest-neighbour classifiers are those of Table 3 of the CCFC
paper. Linear classifiers, trained with all or few labels, are those of Section IV-C of
the FedMCC paper. The mean of the clients' scores is that of Table 4 of the CCFC paper.
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
from fcjax.data.source import Source
from fcjax.data.sources import load_source
from fcjax.metrics import probes
from fcjax.results import tables


class Probe(NamedTuple):
    """The results of all probes of the embedding of a run."""

    neighbors: pd.DataFrame
    """Accuracy of k-nearest-neighbour classifiers, one row per k."""
    linear: pd.DataFrame
    """Accuracy of linear classifiers on the fixed embedding, trained with all labels
    and with subsets of the labels: one row per subset, with the number of labels."""
    clusters: pd.DataFrame
    """Scores of the clusters of the run, and of k-means on its embedding."""
    clients: pd.DataFrame
    """One row: the mean over clients of the scores of each client, where clusters and
    classes are matched for each client."""
    num_tested: int
    """Number of test examples of the classifiers."""


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
    """Evaluates an embedding with labels.

    Args:
        embedding: [P, D] the embeddings.
        labels: [P] true classes.
        is_test: [P] whether each example is in the test split.
        clusters: [P] cluster of each example, -1 for none.
        clients: [P] client of each example, -1 for none.
        num_clusters: number of clusters of k-means.
        num_neighbors: numbers of neighbours; those above the number of training
            examples are left out.
        label_fraction: shares of the training labels, above 0 and at most 1.
        num_draws: number of random subsets for each share, at least 1.

    Returns:
        The results of all probes.

    Raises:
        ValueError: a share or `num_draws` is out of range.
    """
    for share in label_fraction:
        if not 0 < share <= 1:
            raise ValueError(f"`label_fraction` must lie in (0, 1], got {share:g}")
    if num_draws < 1:
        raise ValueError(f"`num_draws` must be at least 1, got {num_draws}")
    split = [x[part] for part in (~is_test, is_test) for x in (embedding, labels)]
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
    """Returns whether each example is a test example.

    For data without splits, and for subsets of a data set, the test examples are a
    random sixth.

    Args:
        source: the source of the data set.
        dataset: the data set of P examples.

    Returns:
        [P] True for test examples.
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
    """Returns the accuracies of linear classifiers with all and with few labels.

    Args:
        split: training embeddings, training labels, test embeddings and test labels.
        shares: shares of the training labels.
        num_draws: number of random subsets for each share.

    Returns:
        One row for all labels, and one row per subset.
    """
    key, labels = jax.random.key(0), split[1]
    rows = [("linear probe", len(labels), probes.linear_probe(key, *split))]
    for share in shares:
        accuracies = probes.semi_supervised(
            key, *split, label_fraction=share, num_draws=num_draws
        )
        count = probes.labels_per_class(labels, label_fraction=share).sum()
        rows += [(f"{100 * share:g} % of labels", count, x) for x in accuracies]
    return pd.DataFrame(rows, columns=["protocol", "labels", "accuracy"])


def format_linear(linear: pd.DataFrame) -> pd.DataFrame:
    """Returns a table of texts: the mean accuracy ± its 95 % interval over subsets.

    Args:
        linear: the table `Probe.linear`.

    Returns:
        One row per protocol and number of labels. The column `draws` has the number of
        subsets.
    """
    by = ["protocol", "labels"]
    summary = tables.summarize(linear, by=by, values=["accuracy"])
    return tables.format_summary(summary).rename(columns={"seeds": "draws"})


def cluster_rows(
    labels: np.ndarray, clusters: np.ndarray, embedding: np.ndarray, num_clusters: int
) -> pd.DataFrame:
    """Returns the scores of the run's clusters and of k-means on the embedding.

    K-means is the best of ten initializations. Examples without a cluster are left out.

    Args:
        labels: [P] true classes.
        clusters: [P] cluster of each example, -1 for none.
        embedding: [P, D] the embeddings.
        num_clusters: number of clusters of k-means.

    Returns:
        One row for the run, and one row for k-means.
    """
    has_cluster = clusters >= 0
    z = jnp.asarray(embedding[has_cluster])
    baseline = np.asarray(kmeans(jax.random.key(0), z, num_clusters).assignments)
    rows = []
    for name, x in (("of the run", clusters[has_cluster]), ("k-means", baseline)):
        scores = metrics.scores(labels[has_cluster], x, names=("nmi", "acc", "kappa"))
        rows.append({"clusters": name, **scores})
    return pd.DataFrame(rows)


def client_scores(
    labels: np.ndarray, clusters: np.ndarray, clients: np.ndarray
) -> dict[str, float]:
    """Returns the mean of the clients' scores, weighted by the number of examples.

    Args:
        labels: [P] true classes.
        clusters: [P] cluster of each example.
        clients: [P] client of each example, -1 for none.

    Returns:
        The means by name of the score.
    """
    names = np.unique(clients[clients >= 0])
    indices = [np.flatnonzero(clients == name) for name in names]
    padded = np.array([np.resize(i, max(map(len, indices))) for i in indices])
    mask = np.arange(padded.shape[1]) < np.array([[len(i)] for i in indices])
    scores = metrics.per_client(labels[padded], clusters[padded], mask)
    return metrics.client_pooled(scores, mask)
