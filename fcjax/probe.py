"""How good the embedding of a finished run is: `python -m fcjax.probe RUN`.

The k-nearest-neighbour probe of the CCFC paper's Table 3, and each client's own scores
of Table 4, averaged.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from fcjax import data, evaluation, experiment, frozen
from fcjax.evaluation import tables
from fcjax.finished import Finished
from fcjax.flags import Common, shown


@dataclasses.dataclass(frozen=True)
class Args:
    """Probes the embedding of a finished run on its labels."""

    run: tyro.conf.Positional[Path]
    """The results folder, --out of the run."""
    num_neighbors: tuple[int, ...] = (3, 5, 7, 9, 100, 1000, 7000)
    """How many neighbours vote; more than there are training examples are left out."""
    where: Annotated[tuple[str, ...], shown("the first run of the grid")] = ()
    """Which run of a grid: p=0.25 seed=3."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""


def main(args: Args) -> None:
    """Prints both tables; raises ValueError where run and data do not allow it."""
    finished = Finished(args.run)
    point = finished.point(args.where)
    flags = finished.flags(data_dir=args.data_dir)
    dataset, _ = experiment.load(flags)
    if dataset.labels is None:
        raise ValueError(f"{args.run} has no labels to probe with")
    path = finished.model_path(point)
    if not path.exists():
        raise ValueError(f"{args.run} kept no model that all its clients share")
    embedding = frozen.predict(frozen.read(path), dataset.examples).embedding

    is_test = test_rows(flags, dataset)
    found = evaluation.knn_accuracy(
        embedding[~is_test],
        dataset.labels[~is_test],
        embedding[is_test],
        dataset.labels[is_test],
        num_neighbors=[k for k in args.num_neighbors if k <= (~is_test).sum()],
    )
    print(f"{finished.told(point)}: {is_test.sum()} examples by {(~is_test).sum()}")
    tables.show([{"neighbors": k, "accuracy": f"{v:.4f}"} for k, v in found.items()])

    holders, clusters = finished.assignments(point)
    holders, clusters = (x[: len(dataset.labels)] for x in (holders, clusters))
    scores = client_scores(dataset.labels, clusters, holders)
    print("mean of the clients' own scores, each with a match of its own")
    tables.show([{name: f"{value:.4f}" for name, value in scores.items()}])


def test_rows(flags: Common, dataset: data.Dataset) -> np.ndarray:
    """Returns which examples [P] are the test split; a sixth drawn at random where the
    data has no splits or only a part of it was used."""
    whole = flags.limit is None and flags.split == "all"
    if whole and flags.dataset != "digits" and not Path(flags.dataset).exists():
        train = experiment.load(dataclasses.replace(flags, split="train"))[0]
        return np.arange(len(dataset.examples)) >= len(train.examples)
    draws = np.random.default_rng(0).random(len(dataset.examples))
    return draws < np.sort(draws)[max(1, len(draws) // 6)]


def client_scores(
    labels: np.ndarray, clusters: np.ndarray, holders: np.ndarray
) -> dict[str, float]:
    """Returns the clients' own scores, averaged by their numbers of examples."""
    names = np.unique(holders[holders >= 0])
    rows = [np.flatnonzero(holders == name) for name in names]
    padded = np.array([np.resize(r, max(map(len, rows))) for r in rows])
    mask = np.arange(padded.shape[1]) < np.array([[len(r)] for r in rows])
    each = evaluation.per_client(labels[padded], clusters[padded], mask)
    return evaluation.client_mean(each, mask)


if __name__ == "__main__":
    try:
        main(tyro.cli(Args))
    except ValueError as error:
        sys.exit(f"fcjax.probe: error: {error}")
