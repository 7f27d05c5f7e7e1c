"""Figures of a run and of its grid; of a finished one by `fcjax draw RUN`."""

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
    """Draws a finished run again: learning curves, scores against whatever varies, the
    partition, the confusion matrix, a contact sheet of the clusters, the embedding, and
    the association graph of clients' clusters."""

    run: tyro.conf.Positional[Path]
    """The results folder, --out of the run."""
    where: Annotated[tuple[str, ...], shown("that of fcjax choose")] = ()
    """Which run of a grid: p=0.25 seed=3."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    out: Annotated[Path | None, shown("RUN/figures")] = None
    """Folder of the figures."""


def main(args: Args) -> None:
    """Draws everything; raises ValueError where the folder is not a results folder."""
    out = args.out or args.run / "figures"
    results = gather([args.run], parsed(args.where), data_dir=args.data_dir)
    print(f"figures of the run {results.draw(out).name}: {out}")


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
