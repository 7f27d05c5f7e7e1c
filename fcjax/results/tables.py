"""Tables over seeds: mean ± 95 % interval per setting, with the score of the paper."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy import special

_DIGITS = ("", *"+-0123456789")


def half_width(values: Float[np.ndarray, "n"]) -> float:
    """Computes half the width of the 95 % Student-t interval of a mean.

    Args:
      values: [n] the values.

    Returns:
      Half the width; NaN for fewer than three values, because the interval of two
      values would be 12.7 standard errors wide.
    """
    n = len(values)
    if n < 3:
        return np.nan
    error = np.std(values, ddof=1) / np.sqrt(n)
    return float(special.stdtrit(n - 1, 0.975) * error)


def summarize(
    runs: pd.DataFrame | Sequence[Mapping[str, Any]],
    *,
    by: Sequence[str],
    values: Sequence[str],
) -> pd.DataFrame:
    """Averages runs that differ only in the seed.

    Args:
      runs: one row per run. A column `paper_NAME` has the score of the paper for the
        setting.
      by: columns whose values define a setting, such as ("dataset", "p").
      values: columns to average. Cells with None or NaN are left out.

    Returns:
      One row per setting, in the order of the first runs, with the index `by`. For each
      value with a score of a run or of the paper, the columns are NAME (the mean),
      NAME_half_width (half the width of the 95 % interval), NAME_min, NAME_max,
      NAME_paper, NAME_difference (mean minus paper) and NAME_seeds (number of values).

    Raises:
      ValueError: if a column of `by` is missing.

    Examples:
      >>> runs = pd.DataFrame({"p": [0, 0, 0, 1], "nmi": [0.79, 0.812, 0.834, 0.9]})
      >>> summarize(runs, by=["p"], values=["nmi"]).nmi_half_width.round(3).tolist()
      [0.055, nan]
    """
    runs = pd.DataFrame(runs)
    if missing := [name for name in by if name not in runs]:
        raise ValueError(f"no column {missing[0]!r}; there are: {', '.join(runs)}")
    known = [
        name
        for name in values
        if runs.reindex(columns=[name, f"paper_{name}"]).notna().any(axis=None)
    ]
    lines: dict[Any, dict[str, float]] = {}
    for setting, group in runs.groupby(list(by), sort=False, dropna=False):
        lines[setting] = {}
        for name in known:
            lines[setting] |= _statistics(group, name)
    index = pd.MultiIndex.from_tuples(lines, names=list(by))
    return pd.DataFrame(list(lines.values()), index=index)


def _statistics(runs: Any, name: str) -> dict[str, float]:
    """Returns the columns of one value for the runs of one setting."""
    cells = runs.reindex(columns=[name, f"paper_{name}"]).astype(float)
    x = cells[name].dropna().to_numpy()
    mean, low, high = (x.mean(), x.min(), x.max()) if len(x) else [np.nan] * 3
    paper = cells[f"paper_{name}"].dropna().to_numpy()
    paper = paper[-1] if len(paper) else np.nan
    return {
        name: mean,
        f"{name}_half_width": half_width(x),
        f"{name}_min": low,
        f"{name}_max": high,
        f"{name}_paper": paper,
        f"{name}_difference": mean - paper,
        f"{name}_seeds": len(x),
    }


def format_summary(summary: pd.DataFrame, *, differences: bool = False) -> pd.DataFrame:
    """Returns a summary as text, with cells such as "0.812 ± 0.055".

    For two seeds, a cell has both values. The scores of the paper have separate
    columns. The last column is the number of seeds.

    Args:
      summary: the result of `summarize`.
      differences: whether to add columns with the mean minus the score of the paper.

    Returns:
      The table of texts, with the columns of the index first.
    """
    table = summary.index.to_frame(index=False)
    lines: Any = summary.to_dict("records")
    values = [name for name in summary if f"{name}_seeds" in summary]
    for name in values:
        table[name] = [_interval(line, name) for line in lines]
        paper = [line[f"{name}_paper"] for line in lines]
        if not np.isnan(paper).all():
            table[f"{name}, paper"] = [_number(x, ".3f") for x in paper]
            if differences:
                offsets = [line[f"{name}_difference"] for line in lines]
                table[f"{name}, difference"] = [_number(x, "+.3f") for x in offsets]
    if values:
        seeds = summary[[f"{name}_seeds" for name in values]].max(axis=1)
        table["seeds"] = seeds.to_numpy()
    return table


def _interval(line: Mapping[Any, float], name: str) -> str:
    """Returns the mean of a value with its interval as text."""
    seeds = line[f"{name}_seeds"]
    if seeds == 2:
        return f"{line[f'{name}_min']:.3f}, {line[f'{name}_max']:.3f}"
    mean = _number(line[name], ".3f")
    return f"{mean} ± {line[f'{name}_half_width']:.3f}" if seeds > 2 else mean


def _number(cell: Any, form: str = "g") -> str:
    """Returns a cell as text, floats in the format `form`; "" for a missing value."""
    if bool(pd.isna(cell)):
        return ""
    return format(cell, form) if isinstance(cell, float) else str(cell)


def _sides(table: pd.DataFrame) -> list[str]:
    """Returns the alignment of each column: "right" for numbers, otherwise "left"."""
    is_name = table.map(lambda cell: isinstance(cell, str) and cell[:1] not in _DIGITS)
    return ["left" if any_name else "right" for any_name in is_name.any()]


def to_text(table: pd.DataFrame | Sequence[Mapping[str, Any]], form: str = "g") -> str:
    """Returns a table as aligned Markdown.

    Args:
      table: the table, or one mapping from column to value per row.
      form: format of floats, for example "g" or ".3f".

    Returns:
      The text, one line per row.
    """
    table = pd.DataFrame(table)
    cells, sides = table.map(_number, form=form), _sides(table)
    return cells.to_markdown(index=False, disable_numparse=True, colalign=sides)


def show(table: pd.DataFrame | Sequence[Mapping[str, Any]], form: str = "g") -> None:
    """Prints a table as aligned Markdown.

    Args:
      table: the table, or one mapping from column to value per row.
      form: format of floats, for example "g" or ".3f".
    """
    print(to_text(table, form))


def to_latex(table: pd.DataFrame) -> str:
    r"""Returns a table as a LaTeX tabular without caption, for \input.

    The comments name the required package and the number of seeds. The seeds have a
    column only if their number varies.

    Args:
      table: table of texts, such as the result of `format_summary`.

    Returns:
      The text of the file.
    """
    head = "% needs \\usepackage{booktabs}\n"
    if "seeds" in table:
        seeds = " to ".join(map(str, sorted({table.seeds.min(), table.seeds.max()})))
        head += f"% mean and 95 % Student-t interval over seeds, n = {seeds}\n"
        if table.seeds.nunique() == 1:
            table = table.drop(columns="seeds")
    sides = "".join(side[0] for side in _sides(table))
    cells = table.map(_number)
    text = cells.to_latex(index=False, escape=True, column_format=sides)
    return head + text.replace("±", r"$\pm$")


def write(table: pd.DataFrame, folder: str | Path, notes: Sequence[str] = ()) -> None:
    """Writes a table as table.md and table.tex; creates the folder if it is missing.

    Args:
      table: table of texts, such as the result of `format_summary`.
      folder: folder of the two files.
      notes: lines of a list below the table in table.md.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    below = "".join(f"\n- {note}" for note in notes)
    text = f"{to_text(table)}\n{below}".rstrip() + "\n"
    (folder / "table.md").write_text(text, encoding="utf-8")
    (folder / "table.tex").write_text(to_latex(table), encoding="utf-8")
