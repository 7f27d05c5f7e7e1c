"""How good the embedding of a finished run is: `fcjax probe RUN`.

The k-nearest-neighbour probe of the CCFC paper's Table 3, linear classifiers of the
frozen embedding from all labels and from a few, as in FedMCC's section IV-C, and each
client's own scores of CCFC's Table 4, averaged.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro

from fcjax import data, metrics
from fcjax.cluster import kmeans
from fcjax.data.source import Source, load_source
from fcjax.metrics import probes
from fcjax.results import exported, tables
from fcjax.results.store import Row, parsed, read
from fcjax.sweep.ending import refusing
from fcjax.sweep.flags import shown
from fcjax.sweep.words import flags_in


@dataclasses.dataclass(frozen=True)
class Args:
    """Probes the embedding of a finished run on its labels."""

    run: tyro.conf.Positional[Path]
    """The results folder, --out of the run."""
    num_neighbors: tuple[int, ...] = (3, 5, 7, 9, 100, 1000, 7000)
    """How many neighbours vote; more than there are training examples are left out."""
    label_fraction: tuple[float, ...] = (0.01, 0.1)
    """Shares of the training labels that linear classifiers learn from, above 0 and at
    most 1; of each class at least one label."""
    num_draws: int = 5
    """How many times each share is drawn."""
    where: Annotated[tuple[str, ...], shown("the only run")] = ()
    """Which run of a grid: p=0.25 seed=3."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""


def main(args: Args) -> None:
    """Prints all tables; raises ValueError where run and data do not allow it."""
    for share in args.label_fraction:
        if not 0 < share <= 1:
            raise ValueError(f"--label-fraction takes shares in (0, 1], got {share:g}")
    if args.num_draws < 1:
        raise ValueError(f"--num-draws takes 1 or more, got {args.num_draws}")
    folder = read(args.run)
    point = folder.point(**parsed(args.where))
    (row,) = folder.rows_of(**point)
    source = folder.source(args.data_dir)
    dataset, _ = load_source(source)
    if dataset.labels is None:
        raise ValueError(f"{args.run} has no labels to probe with")
    embedding = exported.predict(folder.model(**point), dataset.examples).embedding

    is_test = test_rows(source, dataset)
    both = embedding, dataset.labels
    split = [x[rows] for rows in (~is_test, is_test) for x in both]
    counts = [k for k in args.num_neighbors if k <= len(split[0])]
    found = metrics.knn_accuracy(*split, num_neighbors=counts)
    print(f"{folder.told(point)}: {is_test.sum()} examples by {(~is_test).sum()}")
    tables.show([{"neighbors": k, "accuracy": f"{v:.4f}"} for k, v in found.items()])

    print(
        "linear classifiers of the frozen embedding; from a share of the labels the "
        f"mean ± 95 % interval over {args.num_draws} draws"
    )
    tables.show(linear_rows(split, args.label_fraction, num_draws=args.num_draws))

    found, count = folder.assigned(point), len(dataset.labels)
    holders, clusters = found["client"][:count], found["cluster"][:count]
    print("the run's clusters, and those of k-means on its embedding in one place")
    tables.show(cluster_rows(dataset.labels, clusters, embedding, row))
    scores = client_scores(dataset.labels, clusters, holders)
    print("mean of the clients' own scores, each with a match of its own")
    tables.show([{name: f"{value:.4f}" for name, value in scores.items()}])


def test_rows(source: Source, dataset: data.Dataset) -> np.ndarray:
    """Returns which examples [P] are the test split; a sixth drawn at random where the
    data has no splits or only a part of it was used."""
    whole = source.limit is None and source.split == "all"
    if whole and source.dataset != "digits" and not Path(source.dataset).exists():
        train = load_source(dataclasses.replace(source, split="train"))[0]
        return np.arange(len(dataset.examples)) >= len(train.examples)
    draws = np.random.default_rng(0).random(len(dataset.examples))
    return draws < np.sort(draws)[max(1, len(draws) // 6)]


def linear_rows(
    split: Sequence[np.ndarray], shares: Sequence[float], *, num_draws: int
) -> pd.DataFrame:
    """Returns a row of the linear probe and one for each share of the labels.

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
    by = ["protocol", "labels"]
    draws = pd.DataFrame(rows, columns=[*by, "accuracy"])
    summary = tables.summarize(draws, by=by, values=["accuracy"])
    return tables.shown(summary).rename(columns={"seeds": "draws"})


def cluster_rows(
    labels: np.ndarray, clusters: np.ndarray, embedding: np.ndarray, row: Row
) -> list[dict[str, str]]:
    """Returns the scores of the run's clusters and of as many by k-means, the best of
    ten seedings; examples without a cluster are left out of both."""
    counted = clusters >= 0
    z, count = jnp.asarray(embedding[counted]), int(row["clusters"])
    found = np.asarray(kmeans(jax.random.key(0), z, count).assignments)
    rows = []
    for name, own in (("of the run", clusters[counted]), ("k-means", found)):
        scores = metrics.scores(labels[counted], own)
        cells = {score: f"{scores[score]:.4f}" for score in ("nmi", "acc", "kappa")}
        rows.append({"clusters": name, **cells})
    return rows


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


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
