"""Makes the table of all methods, data sets and partitions.

    python experiments/benchmarks/matrix.py --hours 1
    python experiments/benchmarks/matrix.py --hours 3 --datasets digits mnist-2000-16px

The command trains each method on each data set, and writes matrix.csv and matrix.html.
If it is stopped, the same command goes on. docs/guides/matrix.md explains how to add a
method of your own.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from experiments.matrix.groups import DATA, Preset, Program, groups_of, programs
from experiments.matrix.train import raise_on_sigterm, train
from fcjax.cli.arguments import parse
from fcjax.cli.errors import exit_on_error
from fcjax.settings import shown


@dataclasses.dataclass(frozen=True)
class Args:
    """Makes the table of all methods, data sets and partitions."""

    out: Path = Path("runs/matrix")
    """The folder of the runs and of the table."""
    hours: float = 1.0
    """Largest time of training. With 0, only the table is written."""
    datasets: Annotated[tuple[str, ...], shown("all")] = ()
    """Data sets of the table."""
    methods: Annotated[tuple[str, ...], shown("all")] = ()
    """Methods of the table."""
    presets: tuple[Literal["default", "paper"], ...] = ("default",)
    """Settings of the methods: the defaults of fcjax, or those of the papers."""
    seeds: int = 5
    """Number of seeds, at most 5."""
    files: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=FILE ...")] = ()
    """Files of the data sets that have no loader, for example
    pendigits=pendigits.csv."""
    data_dir: Annotated[Path | None, shown("TFDS's own folder")] = None
    """Folder of the prepared TFDS data sets."""
    programs: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=FILE ...")] = ()
    """Python programs of other methods, which accept the flags of fcjax."""


def main(args: Args) -> None:
    """Trains the cells that are missing, and writes the table.

    Args:
        args: the command-line arguments.
    """
    files = pairs("files", args.files)
    methods = programs() | {
        name: Program((path,))
        for name, path in pairs("programs", args.programs).items()
    }
    chosen = args.methods or tuple(methods)
    datasets = args.datasets or tuple(DATA)
    check_names("methods", chosen, methods)
    check_names("datasets", datasets, DATA)
    groups = groups_of(
        {name: methods[name] for name in methods if name in chosen},
        datasets=[x for x in datasets if DATA[x].flags or x in files],
        presets=args.presets,
        seeds=args.seeds,
    )
    restore = raise_on_sigterm()
    train(
        groups,
        methods,
        out=args.out,
        files=files,
        data_dir=args.data_dir,
        seconds=3600 * args.hours,
    )
    restore()


def pairs(flag: str, texts: tuple[str, ...]) -> dict[str, str]:
    found = dict(text.partition("=")[::2] for text in texts)
    if "" in found.values():
        raise ValueError(f"`{flag}` takes NAME=FILE, got {' '.join(texts)}")
    return found


def check_names(flag: str, names, known) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"`{flag}` must be of {', '.join(known)}, got {name}")


if __name__ == "__main__":
    with exit_on_error():
        main(parse(Args))
