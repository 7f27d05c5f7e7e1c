"""Makes the table of all methods on all data sets and partitions.

    python experiments/benchmarks/matrix.py --hours 1
    python experiments/benchmarks/matrix.py --hours 3 --datasets digits mnist-2000-16px
    python experiments/benchmarks/matrix.py --hours 0 --assignments mine=partitions

The command trains each method on each data set until the time is over, and writes
matrix.html, matrix.csv and matrix.parquet. If it is stopped, the same command goes on.
docs/guides/matrix.md explains how to add a method of your own.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
import tyro

from experiments.matrix import page
from experiments.matrix.frame import (
    CELL,
    COLUMNS,
    Frame,
    frame_of,
    rows_of_assignments,
)
from experiments.matrix.groups import DATA, SEEDS, Preset, Program, groups_of, programs
from experiments.matrix.train import ended_by_sigterm, train
from fcjax import data
from fcjax.cli.arguments import parse
from fcjax.cli.errors import exit_on_error
from fcjax.settings import shown

Pairs = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=PATH ...")]


@dataclasses.dataclass(frozen=True)
class Args:
    """Makes the table of all methods on all data sets and partitions.

    The data sets: digits, orl, mnist-2000-16px, fashion-2000-16px, embeddings,
    natural-clients, pendigits, mnist-2000, cifar10-2000, mnist-10000-16px and
    mnist-10000. Those named orl, pendigits, embeddings and natural-clients need a file,
    see --files.
    """

    out: Path = Path("runs/matrix")
    """Folder of the runs and of the table."""
    hours: float = 1.0
    """Largest time of training in hours. With 0, only the table is written."""
    datasets: Annotated[tuple[str, ...], shown("all that can be loaded")] = ()
    """Data sets of the table."""
    methods: Annotated[tuple[str, ...], shown("all")] = ()
    """Methods of the table."""
    presets: tuple[Preset, ...] = ("default",)
    """Settings of the methods: the defaults of fcjax, or those of the papers."""
    seeds: int = len(SEEDS)
    """Number of seeds, from 1 to 5."""
    files: Pairs = ()
    """Files of the data sets that have no loader, for example
    pendigits=pendigits.csv."""
    data_dir: Annotated[Path | None, shown("TFDS's own folder")] = None
    """Folder of the prepared TFDS data sets."""
    programs: Pairs = ()
    """Programs of methods outside of fcjax, for example
    spherical=experiments/spherical.py. They accept the flags of fcjax."""
    assignments: Pairs = ()
    """Clusters of other programs: folders with the files of `fcjax partition`, whose
    column `cluster` is filled."""
    add: tuple[Path, ...] = ()
    """Tables matrix.csv of other machines. Their runs are not made again. The table
    gets the runs of the chosen data sets, methods and seeds."""
    docs: Annotated[Path | None, shown("none")] = None
    """Folder of the page matrix.md of the documentation, which is written again."""


def main(args: Args) -> None:
    """Trains the runs that are missing, and writes the table.

    Args:
        args: the command-line arguments.

    Raises:
        ValueError: a name is unknown, or a number is out of its range.
    """
    files = pairs("files", args.files)
    others = pairs("programs", args.programs)
    own_programs = {x: Program((path,), is_own=True) for x, path in others.items()}
    methods = own_programs | programs()
    assignments = pairs("assignments", args.assignments)
    known: Frame = pd.DataFrame(columns=COLUMNS)
    for path in args.add:
        known = join(known, pd.read_csv(path))
    check_names("methods", args.methods, dict.fromkeys([*methods, *known["method"]]))
    check_names("datasets", (*args.datasets, *files), DATA)
    if not 1 <= args.seeds <= len(SEEDS):
        raise ValueError(f"`seeds` must lie in 1..{len(SEEDS)}, got {args.seeds}")
    if args.hours < 0:
        raise ValueError(f"`hours` must be at least 0, got {args.hours:g}")
    for name in args.datasets:
        if not DATA[name].source and name not in files:
            raise ValueError(
                f"`datasets` {name} needs a file, for example `files` {name}=PATH"
            )
    for name in files:
        if DATA[name].source:
            raise ValueError(f"`files` takes no file for {name}, which has a loader")
    known = known[known["seed"] < args.seeds]
    for column in ("datasets", "methods"):
        if names := getattr(args, column):
            known = known[known[column.removesuffix("s")].isin(names)]
    loaded = load_all(args, files)
    own = [
        row
        for name, folder in assignments.items()
        for row in rows_of_assignments(name, Path(folder), loaded)
    ]
    groups = groups_of(
        # The runs of other methods are only in the added tables.
        {name: methods[name] for name in args.methods or methods if name in methods},
        datasets=list(loaded),
        presets=args.presets,
        seeds=args.seeds,
    )
    succeeded: Frame = known[~known["status"].astype(str).str.startswith("failed")]
    with ended_by_sigterm():
        try:
            train(
                groups,
                methods,
                out=args.out,
                files=files,
                data_dir=args.data_dir,
                seconds=3600 * args.hours,
                known=set(succeeded[list(CELL)].itertuples(index=False, name=None)),
            )
        finally:
            frame = join(known, frame_of(groups, methods, out=args.out, files=files))
            frame = join(frame, pd.DataFrame(own, columns=COLUMNS))
            if len(frame):
                page.write(frame, args.out)
                print(f"{len(frame):,} runs in {args.out / 'matrix.csv'}")
                print(f"open next: {args.out / 'matrix.html'} (open it in a browser)")
    if frame.empty:
        raise ValueError("no run is finished; give more `hours`")
    if args.docs is not None:
        page.write_docs(frame, args.docs)


def join(first: Frame, second: Frame) -> Frame:
    """Joins two frames.

    Args:
        first: a frame with the columns `COLUMNS`.
        second: another frame.

    Returns:
        The frame of all rows. A row of the second replaces a row of the same cell,
        unless it has failed and the other one has not.
    """
    parts = [part for part in (first, second) if len(part)]
    both = pd.concat(parts or [first], ignore_index=True)
    succeeded = ~both["status"].astype(str).str.startswith("failed")
    order = succeeded.sort_values(kind="stable").index
    last = both.loc[order].drop_duplicates(list(CELL), keep="last")
    return last.sort_index().reset_index(drop=True)


def load_all(args: Args, files: Mapping[str, str]) -> dict[str, data.Dataset]:
    """Loads the data sets of the table.

    Args:
        args: the command-line arguments.
        files: the files of the user by data set.

    Returns:
        The data sets by name. Without --datasets, data sets that cannot be loaded are
        left out, with a warning.

    Raises:
        ValueError: a data set of --datasets cannot be loaded.
    """
    loaded = {}
    for name in args.datasets or DATA:
        source = dict(DATA[name].source)
        if not source and name not in files:
            continue
        path = source.pop("dataset", None) or files[name]
        try:
            loaded[name] = data.load(path, data_dir=args.data_dir, **source)
        except ValueError as error:
            if args.datasets or name in files:
                raise
            print(f"warning: {name} is left out: {error}")
    return loaded


def pairs(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """Splits the texts NAME=PATH of a flag.

    Args:
        flag: the name of the flag.
        texts: its values.

    Returns:
        The paths by name.

    Raises:
        ValueError: a text has no name or no path.
    """
    found = {}
    for text in texts:
        name, _, path = text.partition("=")
        if not name or not path:
            raise ValueError(f"`{flag}` must be NAME=PATH, got {text}")
        found[name] = path
    return found


def check_names(flag: str, names: Collection[str], known: Collection[str]) -> None:
    """Checks the names of a flag.

    Args:
        flag: the name of the flag.
        names: its values.
        known: the accepted names.

    Raises:
        ValueError: a name is unknown.
    """
    for name in names:
        if name not in known:
            raise ValueError(f"`{flag}` must be among {', '.join(known)}; got {name}")


if __name__ == "__main__":
    with exit_on_error():
        main(parse(Args))
