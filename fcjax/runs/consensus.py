"""One clustering from many runs, and how sure it is: `fcjax consensus RUN [RUN ...]`.

assignments.csv   every example: its cluster, and how often the runs have it there
consensus.npz     the same for NumPy
unsure.png        for each cluster the examples of which the runs are least sure
confidence.png    how many examples are how sure, and with labels whether they may be
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from fcjax.results import selection, tables
from fcjax.results.results import gather
from fcjax.results.store import parsed
from fcjax.sweep.ending import refusing
from fcjax.sweep.flags import shown
from fcjax.sweep.words import flags_in


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
    results = gather(args.runs, parsed(args.where), data_dir=args.data_dir)
    out = args.out or args.runs[0] / "consensus"
    together = results.consensus(args.clusters, seed=args.seed, out=out)
    voters = results.ensemble().voters
    print(selection.confidence_text(voters, together))
    if voters.dataset.labels is not None:
        tables.show(selection.consensus_scores(voters, together), ".3f")
    print(f"every example, and which ones are unsure: {out / 'assignments.csv'}")


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
