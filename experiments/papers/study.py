"""What a table or figure of a paper consists of."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fcjax.results.store import Folder
from fcjax.sweep.plan import Task

Measurement = dict[str, Any]
"""Columns of a table that a run, or a part of it, has: {"p": 0.25, "seed": 0, "nmi":
0.8}."""
Paper = Mapping[tuple, Mapping[str, float]]
"""From the columns that make a setting to what the paper reports there."""


class Draw(Protocol):
    """Draws what was measured, rows with the columns `dataset` and `method` and with
    the paper's scores in rows of their own, into folder/NAME.png.
    """

    def __call__(self, rows: Sequence[Mapping[str, Any]], folder: Path) -> None: ...


class Row(NamedTuple):
    """A method, or a variant of one, as a table has it."""

    label: str
    script: str = ""
    """The module of experiments/ that trains it; empty where nothing is trained, or no
    script has it yet."""
    flags: Mapping[str, Any] = {}
    """Of that script."""
    presets: Mapping[str, Mapping[str, Any]] = {}
    """Further ones by preset."""
    runs: str = ""
    """What its runs are kept as, which rows of other tables share; else the label."""
    central: bool = False
    """Its data lies in one place, so that no p changes it: run at the first p alone."""
    measure_data: Callable[[Task], list[Measurement]] | None = None
    """What is measured where nothing is trained."""


class Preset(NamedTuple):
    """How much is run."""

    grid: Mapping[str, tuple]
    """Flags of all rows, which span the grid but for the seeds."""
    seeds: tuple[int, ...]
    flags: Mapping[str, Mapping[str, Any]]
    """By script."""
    by_dataset: Mapping[str, Mapping[str, Any]] = {}
    """Further flags by data set of the paper; none for what stands in for one."""


class Study(NamedTuple):
    """A table or a figure.

    What is measured is averaged over seeds, a line a setting.
    """

    title: str
    """A line of --help."""
    datasets: tuple[str, ...]
    """The paper's, the first of them with a name that data is loaded by."""
    rows: tuple[Row, ...]
    presets: Mapping[str, Preset]
    measure: Callable[[Task, Folder], list[Measurement]] | None = None
    """(flags of a row, what its runs left) -> what is measured of them."""
    by: tuple[str, ...] = ()
    """The columns that make a setting; `dataset` and `method` are those of the row."""
    values: tuple[str, ...] = ()
    """The columns that are averaged."""
    paper: Mapping[tuple, Mapping[str, float]] = {}
    draw: Draw | None = None
    draw_runs: str = ""
    """PAPER.MODULE.FUNCTION of this folder that trains a row by itself, draws its
    embeddings and returns the numbers shown; nothing else is run or measured then."""
    by_path: tuple[str, ...] = ()
    """The data sets that have no name to be loaded by."""
    notes: tuple[str, ...] = ()
    """What a reader should know, a line each."""
