"""A finished run in formats that other programs read: `fcjax export RUN`.

network.safetensors   the weights by path; metadata: fcjax (version), config (JSON)
config.json           the same configuration, with the run's swept values
embeddings.npz        in the order of the data set: embedding [P, D], cluster [P],
                      client [P] (-1: nobody's), label [P] if there are any; and
                      centers [K, D], the mean embedding of each cluster (NaN: empty)
assignments.csv       the same without the embedding, for spreadsheets: example (its
                      file or row), client, cluster, distance to the cluster's center

The extra split has no rows in it.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from fcjax.results.results import gather
from fcjax.results.store import parsed
from fcjax.sweep.ending import refusing
from fcjax.sweep.flags import shown
from fcjax.sweep.words import flags_in


@dataclasses.dataclass(frozen=True)
class Args:
    """Writes the network and the embeddings of a finished run for use without fcjax."""

    run: tyro.conf.Positional[Path]
    """The results folder, --out of the run."""
    where: Annotated[tuple[str, ...], shown("the only run")] = ()
    """Which run of a grid: p=0.25 seed=3."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    #: Folder of network.safetensors, config.json, embeddings.npz and assignments.csv;
    #: an earlier export in it is written over.
    out: Annotated[Path | None, shown("RUN/export")] = None


def main(args: Args) -> None:
    """Writes the files; raises ValueError where the run has no global model."""
    out = args.out or args.run / "export"
    run = gather([args.run], parsed(args.where), data_dir=args.data_dir).run()
    run.export(out)
    print(f"network and embeddings of the run {run.name}: {out}")
    if run.scored.moved:
        print(
            f"{run.scored.moved} examples are assigned otherwise than in the run: the "
            "data has changed, or the examples lie between clusters on this device"
        )


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
