"""One clustering from many runs, and how sure it is: `fcjax consensus RUN [RUN ...]`.

assignments.csv   every example: its cluster, and how often the runs have it there
consensus.npz     the same for NumPy
unsure.png        for each cluster the examples of which the runs are least sure
confidence.png    how many examples are how sure, and with labels whether they may be
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import tyro

from fcjax import data, metrics
from fcjax.metrics.agreement import Consensus, consensus
from fcjax.results import figures, tables
from fcjax.runs.together import Together, gather
from fcjax.sweep.ending import refusing
from fcjax.sweep.flags import shown
from fcjax.sweep.words import flags_in

SURE = 0.9
"""The confidence from which on an example is called sure."""
SCORES = ("nmi", "acc", "ari")
PER_CLUSTER = 16


@dataclasses.dataclass(frozen=True)
class Args:
    """Clusters examples by how often finished runs put them together, and says how sure
    it is of each. Runs that collapsed or diverged have no vote.

    Where the data has labels the scores are printed beside those of the single runs.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Results folders, --out of the runs; of any method."""
    clusters: Annotated[int | None, shown("as many as the runs look for")] = None
    """How many clusters."""
    where: Annotated[tuple[str, ...], shown("all runs")] = ()
    """Only runs with these values: p=0.25 clusters=10."""
    seed: int = 0
    """Of k-means of the spectral embedding."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    out: Annotated[Path | None, shown("consensus/ of the first folder")] = None
    """Folder of the four files; written over."""


def main(args: Args) -> None:
    """Raises ValueError with one line where there is no clustering of the runs."""
    runs = gather(args.runs, args.where).voters
    found = of_runs(runs, args.clusters, seed=args.seed)
    dataset, names = runs.dataset(args.data_dir)
    out = args.out or args.runs[0] / "consensus"
    out.mkdir(parents=True, exist_ok=True)
    write(out, found, dataset, names)
    if dataset.labels is not None:
        tables.show(beside(runs, found, dataset.labels))
    print(told(runs, found))
    print(f"every example, and which ones are unsure: {out}")


def of_runs(runs: Together, num_clusters: int | None, *, seed: int = 0) -> Consensus:
    """Returns the consensus of runs.

    Raises:
        ValueError: they look for different numbers of clusters, or clients for their
            own, and none is given.
    """
    if num_clusters is None:
        if runs.holders is not None:
            raise ValueError(
                "clients looked for clusters of their own: say how many there are of "
                "all, by --clusters"
            )
        numbers = sorted({int(member.row["clusters"]) for member in runs.members})
        if len(numbers) > 1:
            several = " ".join(map(str, numbers))
            raise ValueError(
                f"the runs look for {several} clusters: choose by --where clusters="
                f"{numbers[0]}, or by --clusters"
            )
        (num_clusters,) = numbers
    if num_clusters < 2:
        raise ValueError(f"--clusters takes 2 or more, got {num_clusters}")
    return consensus(runs.clusters, num_clusters, holders=runs.holders, seed=seed)


def write(
    out: Path, found: Consensus, dataset: data.Dataset, names: Sequence[str]
) -> None:
    """Writes what a consensus leaves."""
    labels = dataset.labels
    columns = {
        "example": names,
        "cluster": found.clusters,
        "confidence": found.confidence,
        "label": labels,
    }
    table = pd.DataFrame({k: v for k, v in columns.items() if v is not None})
    table.to_csv(out / "assignments.csv", index=False, float_format="%.6g")
    np.savez_compressed(out / "consensus.npz", **found._asdict())
    right = None
    if labels is not None:
        held = found.clusters >= 0
        right = np.zeros(len(labels), bool)
        right[held] = metrics.match(labels[held], found.clusters[held]) == labels[held]
    title = f"consensus of runs on {dataset.name}"
    path = out / "confidence.png"
    figures.sureness(found.confidence, path, right=right, title=title)
    if dataset.examples.ndim == 4:
        rows, titles = least_sure(found)
        if rows:
            images = [dataset.examples[each] for each in rows]
            title = f"least sure examples of {dataset.name}, by cluster"
            figures.image_rows(images, titles, out / "unsure.png", title=title)


def least_sure(found: Consensus) -> tuple[list[np.ndarray], list[str]]:
    """Returns of each cluster the examples of which the runs are least sure, those of
    which all are sure left out; and what the rows are called."""
    rows, names = [], []
    for k in np.unique(found.clusters[found.clusters >= 0]):
        own = np.flatnonzero((found.clusters == k) & (found.confidence < 1))
        own = own[np.argsort(found.confidence[own], kind="stable")][:PER_CLUSTER]
        if len(own):
            rows.append(own)
            names.append(f"cluster {k}, from {found.confidence[own[0]]:.0%}")
    return rows, names


def beside(
    runs: Together, found: Consensus, labels: np.ndarray
) -> list[dict[str, str]]:
    """Returns the scores of the consensus, and the mean and the best of its runs."""

    def line(name: str, scores: dict[str, float]) -> dict[str, str]:
        return {"clusters": name, **{k: f"{scores[k]:.3f}" for k in SCORES}}

    # As results.csv has them: where clients are on their own, a mean of theirs.
    each = [
        {name: float(member.row[name]) for name in SCORES} for member in runs.members
    ]
    return [
        line("of the consensus", scored(found.clusters, labels)),
        line(
            "of the runs, mean",
            {k: float(np.mean([x[k] for x in each])) for k in SCORES},
        ),
        line("of the runs, best", {k: max(x[k] for x in each) for k in SCORES}),
    ]


def scored(clusters: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    held = clusters >= 0
    return metrics.scores(labels[held], clusters[held], names=SCORES)


def told(runs: Together, found: Consensus) -> str:
    """Returns how sure the consensus is, in a sentence."""
    known = found.confidence[~np.isnan(found.confidence)]
    number, missing = len(runs.members), len(found.confidence) - len(known)
    told = (
        f"of {len(known):,} examples the {number} runs are sure of "
        f"{np.mean(known >= SURE):.0%}, which they put together with the others of "
        f"their cluster {SURE:.0%} of the time or more; of {np.mean(known < 0.5):.0%} "
        "less than half"
    )
    return f"{told}; {missing:,} others are in no run's clusters" if missing else told


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
