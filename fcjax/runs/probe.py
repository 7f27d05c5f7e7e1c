"""How good the embedding of a finished run is: `fcjax probe RUN`.

The k-nearest-neighbour probe of the CCFC paper's Table 3, linear classifiers of the
frozen embedding from all labels and from a few, as in FedMCC's section IV-C, and each
client's own scores of CCFC's Table 4, averaged.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from fcjax.results import tables
from fcjax.results.probing import shown_linear
from fcjax.results.results import gather
from fcjax.results.store import parsed
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
    run = gather([args.run], parsed(args.where), data_dir=args.data_dir).run()
    found = run.probe(args.num_neighbors, args.label_fraction, args.num_draws)
    num_trained = len(run.scored.clusters) - found.num_tested
    print(f"{run.name}: {found.num_tested} examples by {num_trained}")
    tables.show(found.neighbors, ".4f")
    print(
        "linear classifiers of the frozen embedding; from a share of the labels the "
        f"mean ± 95 % interval over {args.num_draws} draws"
    )
    tables.show(shown_linear(found.linear))
    print("the run's clusters, and those of k-means on its embedding in one place")
    tables.show(found.clusters, ".4f")
    print("mean of the clients' own scores, each with a match of its own")
    tables.show(found.clients, ".4f")


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
