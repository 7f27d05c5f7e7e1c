"""Clusters of new examples from a finished run: `fcjax predict RUN`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import tyro

from fcjax import data
from fcjax.results import exported
from fcjax.results.results import gather
from fcjax.results.store import example_names, parsed
from fcjax.sweep.ending import refusing
from fcjax.sweep.flags import shown
from fcjax.sweep.words import flags_in


@dataclasses.dataclass(frozen=True)
class Args:
    """Assigns the examples of a data set to the clusters of a finished run."""

    run: tyro.conf.Positional[Path]
    """The results folder, --out of the run."""
    #: digits, a TFDS data set or a path, as for the experiments; labels are not used,
    #: but the last column of a table is taken for one unless there is --no-labels.
    dataset: str
    image_shape: Annotated[tuple[int, ...], shown("feature vectors")] = ()
    """H W or H W C of the images that rows of numbers in a file hold, row by row."""
    resize: Annotated[int | None, shown("as in the run")] = None
    """Resize images to so many pixels a side, bilinear, without cropping."""
    labels: bool = True
    """Whether the last column of a table is the class."""
    client_column: Annotated[str | None, shown("none")] = None
    """Column of a table that says whose an example is, and is no feature."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    where: Annotated[tuple[str, ...], shown("the only run")] = ()
    """Which run of a grid: p=0.25 seed=3."""
    #: The table to write: example, cluster, distance to the center of its own cluster
    #: and of each other, in the embedding.
    out: Annotated[Path | None, shown("RUN/predictions.csv")] = None


def main(args: Args) -> None:
    """Writes the table; raises ValueError where run and data do not go together."""
    run = gather([args.run], parsed(args.where)).run()
    source, model = run.folder.source(), run.model
    dataset = data.load(
        args.dataset,
        data_dir=args.data_dir,
        image_shape=args.image_shape or None,
        labelled=args.labels,
        client_column=args.client_column,
        scaling=model.scaling,
        resize=source.resize if args.resize is None else args.resize,
        keep_index=source.keep_index,
    )
    found = exported.predict(model, dataset.examples)
    names = example_names(args.dataset, len(dataset.examples))
    own = found.distances[np.arange(len(names)), found.clusters]
    table = pd.DataFrame({"example": names, "cluster": found.clusters, "distance": own})
    table[[f"to_{k}" for k in range(len(model.centers))]] = found.distances
    out = args.out or args.run / "predictions.csv"
    out.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(
        out, index=False, float_format="%.6g", na_rep="nan", lineterminator="\n"
    )
    print(f"{len(names)} examples by the run {run.name}: {out}")


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
