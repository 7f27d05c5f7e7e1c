"""Tables over seeds: mean ± 95 % interval of each setting, beside the paper's figure.

Rows are dicts, one a run, as `csv.DictReader` reads them from results.csv or as the
experiment made them.
"""

import csv
import io
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, starmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from scipy import special

Summary = Sequence[Mapping[str, Any]]
"""A dict a line, of `summarize` or made by hand."""

_ESCAPED = str.maketrans(
    {c: "\\" + c for c in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"\\": r"\textbackslash{}", "±": r"$\pm$"}
    # Right after the end of a row these would be its options.
    | {"[": "{[}", "*": "{*}"}
)


class Estimate(NamedTuple):
    """A mean over seeds with its 95 % interval, mean ± half_width.

    An interval needs three seeds. Two seeds are written as their two values: their
    t-interval would be 12.7 standard errors wide.
    """

    mean: float
    half_width: float | None
    """None for fewer than three seeds."""
    n: int
    """0 where nothing was measured: the mean is NaN then, and is not shown."""
    paper: float | None = None
    """What the paper reports for the same setting."""
    values: tuple[float, ...] = ()
    """The values of two seeds, in the order of the runs; empty for other numbers."""

    @property
    def difference(self) -> "Difference | None":
        """Ours less the paper's; None where one of the two is missing."""
        if self.n == 0 or self.paper is None:
            return None
        return Difference(self.mean - self.paper)

    def __str__(self) -> str:
        if self.n == 0:
            return ""
        if self.half_width is None:
            return ", ".join(f"{x:.3f}" for x in self.values or (self.mean,))
        return f"{self.mean:.3f} ± {self.half_width:.3f}"


class Difference(NamedTuple):
    """Of two scores, written with its sign."""

    value: float

    def __str__(self) -> str:
        return "nan" if math.isnan(self.value) else f"{self.value:+.3f}"


def estimate(values: Sequence[float], *, paper: float | None = None) -> Estimate:
    """Computes the mean and the half-width of the 95 % Student-t interval.

    Both are NaN if any value is NaN. Fewer than three values have no interval.

    Raises:
      ValueError: if there are no values.
    """
    n = len(values)
    if n == 0:
        raise ValueError("no values to average")
    mean = float(np.mean(values))
    if n < 3:
        return Estimate(mean, None, n, paper, tuple(map(float, values)) * (n == 2))
    with np.errstate(invalid="ignore"):
        error = float(np.std(values, ddof=1)) / math.sqrt(n)
    return Estimate(mean, float(special.stdtrit(n - 1, 0.975)) * error, n, paper)


def summarize(
    rows: Iterable[Mapping[str, Any]],
    *,
    by: Sequence[str],
    values: Sequence[str],
    paper: Mapping[tuple, Mapping[str, float]] | None = None,
) -> list[dict[str, Any]]:
    """Averages runs that differ in nothing but their seed.

    Args:
      rows: one dict a run.
      by: the columns that make a setting, such as ("dataset", "p"); with "scope"
        among them where the rows hold more than one.
      values: the columns to average. Runs where one is missing, None or "" are left
        out of that column; NaN is not hidden.
      paper: from a setting, a tuple in the order of `by`, to the paper's values.

    Returns:
      One dict a setting, in the order of their first run: the columns of `by`, then
      an `Estimate` for each of `values` that any of its runs has.

    Raises:
      ValueError: if a column of `by` is missing from a row.
    """
    settings: dict[tuple, list[Mapping[str, Any]]] = {}
    for row in rows:
        settings.setdefault(setting_of(row, by), []).append(row)
    summary = []
    for setting, runs in settings.items():
        known = (paper or {}).get(setting, {})
        line: dict[str, Any] = dict(zip(by, setting, strict=True))
        for name in values:
            found = [x for run in runs if (x := number(run.get(name))) is not None]
            if found:
                line[name] = estimate(found, paper=known.get(name))
        summary.append(line)
    return summary


def paper_scores(
    rows: Iterable[Mapping[str, Any]], *, by: Sequence[str], values: Sequence[str]
) -> dict[tuple, dict[str, float]]:
    """Returns what the paper reports, which results.csv holds as paper_NAME, from each
    setting to its scores."""
    paper: dict[tuple, dict[str, float]] = {}
    for row in rows:
        known = {name: number(row.get(f"paper_{name}")) for name in values}
        found = {name: score for name, score in known.items() if score is not None}
        if found:
            paper[setting_of(row, by)] = found
    return paper


def to_text(summary: Summary, *, differences: bool = False) -> str:
    """A summary as an aligned plain-text table, which is valid Markdown too; with
    `differences` a column has how far ours is off the paper's."""
    table = _table(summary, box.MARKDOWN, differences)
    # Wide enough that rich never wraps or shortens a cell.
    console = Console(file=io.StringIO(), width=10_000, color_system=None)
    with console.capture() as capture:
        console.print(table)
    lines = (line.rstrip() for line in capture.get().splitlines())
    return "\n".join(line for line in lines if line)


def show(
    summary: Summary, *, console: Console | None = None, differences: bool = False
) -> None:
    """Prints a summary: ruled on a terminal, as `to_text` into a file or a pipe."""
    console = console or Console()
    if console.is_terminal:
        console.print(_table(summary, box.SIMPLE_HEAD, differences))
    else:
        print(to_text(summary, differences=differences), file=console.file)


def to_csv(summary: Summary) -> str:
    """A summary as comma-separated values in full precision, for programs.

    An estimate NAME is five columns: NAME (the mean), NAME_half_width, NAME_paper,
    NAME_difference (ours less the paper's) and NAME_seeds. Empty is what is not there.
    """
    lines = [dict(chain(*starmap(_plain_cells, line.items()))) for line in summary]
    text = io.StringIO()
    names = dict.fromkeys(chain(*lines))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().rstrip("\n")


def to_latex(summary: Summary, *, differences: bool = False) -> str:
    r"""A summary as a LaTeX tabular, without a caption, for \input.

    Its comments name the package it needs and the number of seeds, which is a column
    only where it varies.
    """
    columns = _columns(summary, differences)
    lines = [r"% needs \usepackage{booktabs}"]
    if seeds := columns.get("seeds"):
        n = " to ".join(map(str, sorted({min(seeds), max(seeds)})))
        lines.append(f"% mean and 95 % Student-t interval over seeds, n = {n}")
        if len(set(seeds)) == 1:
            del columns["seeds"]
    sides = ["l" if _is_text(cells) else "r" for cells in columns.values()]
    rows = [tuple(columns), *zip(*columns.values(), strict=True)]
    head, *body = [" & ".join(map(_latex, row)) + r" \\" for row in rows]
    lines += [rf"\begin{{tabular}}{{{''.join(sides)}}}", r"\toprule", head]
    lines += [r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines)


def write(
    summary: Summary,
    folder: str | Path,
    *,
    differences: bool = False,
    notes: Sequence[str] = (),
) -> None:
    """Writes a summary as `table.md`, see `to_text`, with `notes` in a list below it,
    and as `table.tex`, see `to_latex`; with `differences` as `table.csv` too, see
    `to_csv`.

    Each is written whole or not at all; the folder is created if need be.
    """
    folder = Path(folder)
    below = "".join(f"\n- {note}" for note in notes)
    text = to_text(summary, differences=differences)
    texts = {
        "table.md": f"{text}\n{below}" if below else text,
        "table.tex": to_latex(summary, differences=differences),
    }
    if differences:
        texts["table.csv"] = to_csv(summary)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.tmp").write_text(text + "\n", encoding="utf-8")
    for name in texts:
        (folder / f"{name}.tmp").replace(folder / name)


def setting_of(row: Mapping[str, Any], by: Sequence[str]) -> tuple[Hashable, ...]:
    """The values of `by` in a row, with numbers read from text."""
    if missing := [name for name in by if name not in row]:
        raise ValueError(f"no column {missing[0]!r}; there are: {', '.join(row)}")
    return tuple(_plain(row[name]) for name in by)


def number(cell: Any) -> float | None:
    """A cell as a float; None where it is empty."""
    return None if cell is None or cell == "" else float(cell)


def _plain(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    try:
        value = float(cell)
    except ValueError:
        return cell
    # NaN equals nothing, so it would make a setting of every run.
    return value if math.isfinite(value) else cell


def _table(summary: Summary, style: box.Box, differences: bool) -> Table:
    table = Table(box=style)
    columns = _columns(summary, differences)
    for name, cells in columns.items():
        justify = "left" if _is_text(cells) else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(_text, row))
    return table


def _columns(summary: Summary, differences: bool) -> dict[str, list[Any]]:
    """The cells below each name, with the paper's beside ours and the seeds last."""
    columns: dict[str, list[Any]] = {}
    for name in dict.fromkeys(chain(*summary)):
        cells = columns[name] = [line.get(name) for line in summary]
        known = [getattr(cell, "paper", None) for cell in cells]
        if any(value is not None for value in known):
            columns[f"{name}, paper"] = [
                None if value is None else Estimate(value, None, 1) for value in known
            ]
            if differences:
                off = [getattr(cell, "difference", None) for cell in cells]
                columns[f"{name}, difference"] = off
    estimates = [[e for e in x.values() if isinstance(e, Estimate)] for x in summary]
    if any(estimates):
        columns["seeds"] = [max((e.n for e in line), default=0) for line in estimates]
    return columns


def _plain_cells(name: str, cell: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(cell, Estimate):
        yield name, _text(cell)
        return
    yield name, cell.mean if cell.n else None
    yield f"{name}_half_width", cell.half_width
    yield f"{name}_paper", cell.paper
    yield f"{name}_difference", cell.difference and cell.difference.value
    yield f"{name}_seeds", cell.n


def _is_text(cells: Sequence[Any]) -> bool:
    return any(isinstance(cell, str) for cell in cells)


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{cell:g}" if isinstance(cell, float) else str(cell)


def _latex(cell: Any) -> str:
    if isinstance(cell, Estimate | Difference) and math.isfinite(cell[0]):
        return f"${cell}$".replace("±", r"\pm")
    return _text(cell).translate(_ESCAPED)
