"""The scores of a grid as `page.py` shows them: a table and curves."""

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fcjax.evaluation import tables
from fcjax.evaluation.figures import inline
from fcjax.sweep.folder import Folder, Row


class Score(NamedTuple):
    """A column of the table of scores."""

    title: str
    higher: bool
    """Whether higher is better."""
    internal: bool
    """Whether it needs no labels."""


SCORES = {
    "silhouette": Score("silhouette, higher is better", True, True),
    "calinski_harabasz": Score("Calinski-Harabasz, higher is better", True, True),
    "davies_bouldin": Score("Davies-Bouldin, lower is better", False, True),
    "acc": Score("ACC against labels", True, False),
    "nmi": Score("NMI against labels", True, False),
}

CURVES = """<p>The filled point is the run that this page shows.{hint}</p>"""

NONE_COMPARED = """<p>One number of clusters was tried. With several, such as
<code>--clusters 8 10 12</code>, the scores of each stand here side by side.</p>"""

NO_INTERNAL = """<p>Clients on their own have no common embedding, so no internal score
compares their clusters.</p>"""


def scores(folder: Folder, row: Row) -> str:
    """Returns the scores of every setting as a table, and as curves over --clusters of
    those settings that differ from the shown run's in nothing else."""
    by = varied(folder) or ["clusters"]
    names = [name for name in SCORES if tables.number(row.get(name)) is not None]
    runs = [{**each, "occupied": occupied(folder, each)} for each in folder.rows]
    lines = tables.summarize(runs, by=by, values=["occupied", *names])
    counts = Counter(tables.setting_of(each, by) for each in runs)
    own = tables.setting_of(row, by)
    best = {name: best_of(lines, name) for name in names}
    head = [*by, "clusters in use", *(SCORES[name].title for name in names), "runs"]
    body = []
    for line in lines:
        setting = tables.setting_of(line, by)
        in_use = f"{line['occupied'].mean:g}" if "occupied" in line else ""
        cells = [f"<td>{in_use}</td>"]
        for name in names:
            text = str(line.get(name, ""))
            is_best = name in line and line[name].mean == best[name]
            text = f"<strong>{text}</strong>" if is_best else text
            cells.append(f"<td>{text}</td>")
        swept = "".join(f"<th>{value:g}</th>" for value in setting)
        kind = ' class="shown"' if setting == own and len(lines) > 1 else ""
        body.append(f"<tr{kind}>{swept}{''.join(cells)}<td>{counts[setting]}</td></tr>")
    header = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    return (
        f'<div class="wide"><table>\n<thead><tr>{header}</tr></thead>\n<tbody>\n'
        + "\n".join(body)
        + "\n</tbody></table></div>\n"
        + curves(lines, dict(zip(by, own, strict=True)), names)
    )


def best_of(lines: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Returns the best mean of a score, None where fewer than two are compared."""
    known = [line[name].mean for line in lines if name in line]
    known = [value for value in known if not np.isnan(value)]
    if len(known) < 2:
        return None
    return max(known) if SCORES[name].higher else min(known)


def curves(
    lines: Sequence[Mapping[str, Any]], own: Mapping[str, Any], names: Sequence[str]
) -> str:
    """Returns a curve over --clusters for each internal score.

    Args:
        lines: of `tables.summarize`.
        own: the setting of the run that is shown.
        names: of scores.
    """
    internal = [name for name in names if SCORES[name].internal]
    if not internal:
        return NO_INTERNAL
    others = [name for name in own if name != "clusters"]
    alike = [line for line in lines if all(line[n] == own[n] for n in others)]
    if "clusters" not in own or len(alike) < 2:
        return NONE_COMPARED
    drawn = [
        inline.curve(
            SCORES[name].title,
            {
                float(line["clusters"]): line[name].mean
                for line in alike
                if name in line
            },
            marked=float(own["clusters"]),
        )
        for name in internal
    ]
    told = CURVES.format(hint=hint(alike))
    return f'<div class="curves">{"".join(drawn)}</div>\n{told}'


def hint(lines: Sequence[Mapping[str, Any]]) -> str:
    """Returns where to look further if the best silhouette is at an end of the numbers
    of clusters that were tried, and nothing otherwise."""
    measured = {
        line["clusters"]: line["silhouette"].mean
        for line in lines
        if "silhouette" in line and not np.isnan(line["silhouette"].mean)
    }
    if len(measured) < 2:
        return ""
    best = max(measured, key=lambda count: measured[count])
    if best == min(measured):
        return " The silhouette is best at the fewest clusters tried: try fewer, too."
    if best == max(measured):
        return " The silhouette is best at the most clusters tried: try more, too."
    return ""


def varied(folder: Folder) -> list[str]:
    """Returns what tells the settings of the grid apart."""
    rows = folder.rows
    return [n for n in folder.settings if len({float(row[n]) for row in rows}) > 1]


def occupied(folder: Folder, row: Row) -> int | None:
    """Returns how many clusters of a run hold examples, None of clients' own."""
    if row["scope"] != "global":
        return None
    clusters = folder.assigned({n: row[n] for n in folder.names})["cluster"]
    return len(np.unique(clusters[clusters >= 0]))
