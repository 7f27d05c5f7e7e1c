"""What a page of a run says: its words, its frame and its links."""

import html
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
from jaxtyping import Int

from fcjax.runs.assigned import Assigned
from fcjax.runs.page_scores import varied
from fcjax.sweep.folder import Folder, Row

DOCUMENT = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{top}
{body}
<footer>Written by fcjax {version}.</footer>
</body>
</html>
"""

STYLE = """
* { box-sizing: border-box; }
:root { color-scheme: light dark; --ink: #222; --page: #fff; --soft: #666;
  --line: #ccc; --shade: #f2f2f2; --mark: #1f6fb4; --warn: #c60; }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --page: #181818;
  --soft: #aaa; --line: #444; --shade: #282828; --mark: #6cb4ee; --warn: #f93; } }
body { max-width: 68rem; margin: auto; padding: 1rem; background: var(--page);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
h1, h2, h3 { line-height: 1.2; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
h3 { margin: 1.5rem 0 0; }
h3 + p { margin: 0 0 .5rem; color: var(--soft); font-size: .9rem; }
a { color: var(--mark); }
p, li, dd { overflow-wrap: anywhere; }
pre, .wide { overflow-x: auto; }
pre { padding: .5rem; background: var(--shade); }
.warning { padding: .3rem .8rem; border-left: .3rem solid var(--warn); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line);
  text-align: right; }
thead th { vertical-align: bottom; max-width: 9rem; font-size: .85rem; }
.shown { background: var(--shade); }
@media (max-width: 40rem) { th, td { padding: .3rem .35rem; font-size: .85rem; }
  thead th { max-width: 6rem; font-size: .7rem; } }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(4.5rem, 1fr));
  gap: .5rem; margin: 0; padding: 0; list-style: none; }
.sheet li { max-height: 10rem; overflow: hidden; color: var(--soft);
  font-size: .65rem; line-height: 1.3; }
.sheet + p { margin: .8rem 0 .2rem; color: var(--soft); font-size: .9rem; }
.sheet img { display: block; width: 100%; }
.sheet .small { image-rendering: pixelated; }
.curves { display: flex; flex-wrap: wrap; gap: 1rem; margin-top: 1rem; }
.curve { width: 20rem; max-width: 100%; fill: var(--ink); stroke: none;
  font-size: 11px; }
.curve path, .curve polyline { fill: none; stroke: var(--line); }
.curve polyline, .curve circle { stroke: var(--mark); stroke-width: 1.5; }
.curve circle { fill: var(--page); }
.curve .marked { fill: var(--mark); }
.curve .x { text-anchor: middle; }
.curve .y { text-anchor: end; }
.map { width: 100%; max-width: 50rem; border: 1px solid var(--line); }
.map text { fill: var(--ink); stroke: var(--page); stroke-width: 4;
  paint-order: stroke; font-size: 16px; font-weight: bold; text-anchor: middle;
  dominant-baseline: central; pointer-events: none; }
dt { font-weight: bold; }
dd { margin-left: 1rem; }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }
"""

READING = """<dl>
<dt>silhouette</dt><dd>From -1 to 1: how much nearer an example lies to its own cluster
than to the next one, on average. Near 0 the clusters overlap, below 0 examples lie
nearer to another cluster.</dd>
<dt>Calinski-Harabasz</dt><dd>From 0: how far apart the clusters are, relative to how
wide they are.</dd>
<dt>Davies-Bouldin</dt><dd>From 0: how much each cluster overlaps with the one most like
it, on average.</dd>
<dt>embedding</dt><dd>The numbers that the network makes of an example. Scores,
distances and the map are all of these.</dd>
<dt>distance to the center</dt><dd>From the embedding of an example to the mean of its
cluster. Sort assignments.csv by it to see what fits worst.</dd>
</dl>
<p>The scores do not know what you look for, and every run is scored in an embedding of
its own: small differences between runs say little. Look at the sheets.</p>"""

SHEETS = """<p>First the examples of a cluster that lie nearest to its center, which are
its most typical ones, then those farthest from it. The numbers of clusters mean nothing
and differ from run to run.</p>
"""

SHEETS_OF_CLIENTS = """<p>The first examples of each cluster, in the order of the
data.</p>
"""

MAP = """<p>Each of {number} points is an example in the colour of its cluster, whose
number stands among them; pointing at one names it. t-SNE keeps neighbours together; how
far apart two groups are, and how large, says little.</p>"""

NO_MAP = """<p>There is none: clients on their own have no common embedding, or too few
examples have one.</p>"""

FIGURES = """<p>Figures, those of a single run of the first one unless
<code>fcjax draw</code> was asked for another:</p>
"""


def told(folder: Folder, row: Row, found: Assigned) -> str:
    """Returns what was run, and how to see another run, as HTML."""
    config, level = folder.config, folder.names[0]
    shape = found.dataset.examples.shape
    what = f"{shape[0]:,} rows of {shape[-1]:,} numbers"
    if len(shape) == 4:
        kind = "grey" if shape[3] == 1 else "colour"
        what = f"{shape[0]:,} {kind} images of {shape[2]} x {shape[1]} pixels"
    held = np.bincount(found.clients[found.clients >= 0])
    each = " to ".join(f"{n:,}" for n in sorted({int(held.min()), int(held.max())}))
    at_random = level == "p" and float(row[level]) == 0
    dealt = "at random" if at_random else f"by {level} = {float(row[level]):g}"
    truth = "There are no labels"
    if row["nmi"] is not None:
        truth = "Labels were used for scores alone, not for training"
    text = (
        f"<p>{html.escape(config['method'])} looked for {row['clusters']} clusters in "
        f"{what} from <code>{html.escape(config['dataset'])}</code>. {truth}. The "
        f"examples were dealt {dealt} to {row['clients']} clients, {each} each; "
        f"training took {row['rounds']} rounds.</p>"
    )
    if len(folder.rows) == 1:
        return text
    names = [*(name for name in varied(folder) if name != "seed"), "seed"]
    own = " ".join(f"{name}={float(row[name]):g}" for name in names)
    place = shlex.quote(str(folder.directory))
    return (
        f"{text}\n<p>Of {len(folder.rows)} runs this page shows one; without "
        "<code>--where</code> that with the highest silhouette. Each run's silhouette "
        "is of its own embedding, so it does not compare runs: a run that packs its "
        "examples tightly into wrong clusters scores high. Look at others before you "
        "choose; other values in this command show them:</p>\n"
        f"<pre>fcjax page {html.escape(place)} --where {own}</pre>"
    )


def warnings(
    folder: Folder,
    row: Row,
    found: Assigned,
    sizes: Mapping[str, int],
) -> list[str]:
    """Returns what to be careful about, a sentence or two each, as plain text.

    Args:
        folder: that a command left.
        row: of the run that is shown.
        found: its examples.
        sizes: by the name of a cluster, how many examples it has.
    """
    noted = []
    if row["status"] == "collapsed":
        noted.append(
            "This run collapsed: nearly all examples are in one cluster, or have "
            "nearly the same embedding. Its clusters say little; another seed or "
            "learning rate may do better."
        )
    elif row["status"] != "ok":
        noted.append(
            f"This run {row['status']}: its loss or its weights grew without bound. "
            "Its clusters say nothing; a smaller learning rate may help."
        )
    others = [each for each in folder.rows if each is not row]
    if failed := [each for each in others if each["status"] != "ok"]:
        noted.append(
            f"{len(failed)} of the {len(others)} other runs collapsed or diverged; "
            "results.csv says which ones."
        )
    if empty := [name for name, size in sizes.items() if size == 0]:
        noted.append(
            f"Empty clusters, {len(empty)} of {len(sizes)}: {_listed(empty)}. The data "
            "may have fewer groups, or training was too short."
        )
    if single := [name for name, size in sizes.items() if size == 1]:
        noted.append(f"Clusters of a single example: {_listed(single)}.")
    if row["scope"] != "global" and found.communities is None:
        noted.append(
            "Every client clustered its own examples: cluster 0 of one client and "
            "cluster 0 of another have nothing to do with each other."
        )
    groups = found.clusters if found.communities is None else found.communities
    if missing := int((groups < 0).sum()):
        noted.append(f"Examples in none of the clusters below: {missing:,}.")
    if found.moved:
        noted.append(
            f"Of {found.moved:,} examples the network says another cluster now than in "
            "the run: the data has changed since, or they lie between clusters."
        )
    return noted


def _listed(names: Sequence[str], most: int = 10) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def about(found: Assigned, rows: Int[np.ndarray, "n"]) -> list[str]:
    """Returns a cluster in numbers, each as plain text."""
    if not len(rows):
        return ["no examples"]
    number, total = len(rows), len(found.clusters)
    holders = found.clients[rows]
    clients = len(np.unique(holders[holders >= 0]))
    noun = "example" if number == 1 else "examples"
    parts = [
        f"{number:,} {noun} ({number / total:.1%})",
        f"held by {clients} of {found.clients.max() + 1} clients",
    ]
    if np.isfinite(distance := found.distances[rows].mean()):
        parts.append(f"mean distance to the center {distance:.3g}")
    if found.dataset.labels is not None:
        labels, counts = np.unique(found.dataset.labels[rows], return_counts=True)
        share = counts.max() / number
        parts.append(f"most of class {labels[counts.argmax()]} ({share:.0%})")
    return parts


def links(folder: Folder, row: Row, out: Path) -> str:
    """Returns links to the files of the run that exist, from the folder of the page."""
    place = folder.directory
    point = {name: row[name] for name in folder.names}
    files = {
        out / "assignments.csv": "every example of this run: file or row, client, "
        "cluster, distance to the center; for a spreadsheet",
        out / "embeddings.npz": "the embedding of every example of this run, for NumPy",
        place / "assignments.npz": "clients and clusters of all runs, for NumPy",
        folder.model_path(point): "the network of this run, for fcjax predict, which "
        "finds the clusters of further examples",
        place / "results.csv": "scores of all runs",
        place / "history.csv": "scores and losses of every round",
        place / "table.md": "scores of every setting",
        place / "config.json": "the configuration",
    }
    figures = sorted((place / "figures").glob("*.png"))
    listed = _links({path: told for path, told in files.items() if path.exists()}, out)
    if figures:
        listed += "\n" + FIGURES + _links(dict.fromkeys(figures, ""), out)
    return listed


def _links(files: Mapping[Path, str], out: Path) -> str:
    items = []
    for path, told in files.items():
        name = os.path.relpath(path, out)
        link = f'<a href="{quote(name)}">{html.escape(name)}</a>'
        items.append(f"<li>{link}{told and ': '}{told}</li>")
    return "<ul>\n" + "\n".join(items) + "\n</ul>"


def settings(folder: Folder, row: Row) -> str:
    """Returns every setting of the run as a table that opens on demand."""
    values = {name: row[name] for name in folder.names}
    values |= {k: v for k, v in folder.config.items() if k != "swept"}
    rows = [
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in sorted(values.items())
    ]
    return (
        f"<details><summary>{len(rows)} settings</summary>\n"
        f'<div class="wide"><table>\n{chr(10).join(rows)}\n</table></div></details>'
    )
