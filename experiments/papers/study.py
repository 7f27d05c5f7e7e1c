"""Types that describe a table or figure of a paper."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fcjax.results.store import Folder
from fcjax.sweep.plan import Task

Measurement = dict[str, Any]
"""One row of a table: columns of a run, or of a part of a run.

Example: {"p": 0.25, "seed": 0, "nmi": 0.8}."""
Paper = Mapping[tuple, Mapping[str, float]]
"""Scores that the paper reports, by setting (the values of the columns `Study.by`)."""


class Draw(Protocol):
    """Function that draws the rows of a table into folder/NAME.png.

    Each row has the columns `dataset` and `method`. The paper's scores are in rows of
    their own.
    """

    def __call__(self, rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
        """Draws the rows into PNG files in the folder."""
        ...


class Row(NamedTuple):
    """A method, or a variant of a method, in a table."""

    label: str
    """Name of the row in the table."""
    script: str = ""
    """Name of the module in experiments/ that trains the row. Empty for a row without
    training, and for a method that fcjax does not have."""
    flags: Mapping[str, Any] = {}
    """Flags of the script, by name."""
    presets: Mapping[str, Mapping[str, Any]] = {}
    """Further flags of the script, by preset."""
    runs: str = ""
    """Name of the results folder, which rows of other tables can share. Default: the
    label."""
    central: bool = False
    """Whether the method is central. No p changes a central method, so only the first p
    is trained."""
    measure_data: Callable[[Task], list[Measurement]] | None = None
    """Function that measures the data itself, for a row without training."""


class Preset(NamedTuple):
    """The grid, seeds and flags of a preset (`smoke` or `paper`)."""

    grid: Mapping[str, tuple]
    """Flags of all rows. Their values span the grid, together with the seeds."""
    seeds: tuple[int, ...]
    flags: Mapping[str, Mapping[str, Any]]
    """Further flags by script."""
    by_dataset: Mapping[str, Mapping[str, Any]] = {}
    """Further flags by data set of the paper. A stand-in data set gets none of these
    flags."""


class Study(NamedTuple):
    """A table or a figure of a paper.

    Measurements are averaged over seeds. The table has one row per setting.
    """

    title: str
    """Title of the table: one line of --help."""
    datasets: tuple[str, ...]
    """The data sets of the paper. The first data set can be loaded by its name."""
    rows: tuple[Row, ...]
    presets: Mapping[str, Preset]
    measure: Callable[[Task, Folder], list[Measurement]] | None = None
    """Function (options of a row, results folder of its runs) -> measurements."""
    by: tuple[str, ...] = ()
    """The columns that define a setting. `dataset` and `method` come from the row."""
    values: tuple[str, ...] = ()
    """The columns to average."""
    paper: Mapping[tuple, Mapping[str, float]] = {}
    """Scores that the paper reports, by setting."""
    draw: Draw | None = None
    """Function that draws the figure, or None for a table."""
    draw_runs: str = ""
    """Name PAPER.MODULE.FUNCTION, in this package, of a function that trains a row and
    draws its embeddings. The function returns the rows of the table. The study then has
    no `measure`."""
    by_path: tuple[str, ...] = ()
    """The data sets that need --datasets NAME=PATH, because no loader knows their
    name."""
    notes: tuple[str, ...] = ()
    """Notes for the reader, one line per note."""
