"""A page that shows the clusters of a run: `fcjax page RUN`.

page.html         opens in any browser, without a network and without JavaScript
assignments.csv   of the run that it shows: example, client, cluster, distance
embeddings.npz    of the same run, as `fcjax export` writes it
"""

import dataclasses
import html
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import tyro
from jaxtyping import Int

import fcjax
from fcjax.evaluation.figures import inline, latent
from fcjax.runs import assigned, page_text
from fcjax.runs.assigned import Assigned
from fcjax.runs.page_scores import scores
from fcjax.sweep.flags import shown
from fcjax.sweep.folder import Folder, Row, parsed, read
from fcjax.sweep.load import short_name

NEAREST, FARTHEST = 20, 6
"""Examples of a cluster that are shown."""
MOST_CLUSTERS = 200
"""Clusters that are shown; of clients on their own there may be more."""
MOST_POINTS = 2000
"""Examples on the map."""


@dataclasses.dataclass(frozen=True)
class Args:
    """Writes page.html, which shows what a folder run found: its scores beside those
    of the other runs, a sheet of examples for each cluster, and a map of them all."""

    run: tyro.conf.Positional[Path]
    """The results folder, --out of the run."""
    where: Annotated[tuple[str, ...], shown("the highest silhouette of its own")] = ()
    """Which run of a grid: p=0.25 clusters=10 seed=3."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    out: Annotated[Path | None, shown("RUN")] = None
    """Folder of page.html, assignments.csv and embeddings.npz; written over."""


class Cluster(NamedTuple):
    """One sheet of the page."""

    name: str
    rows: Int[np.ndarray, "n"]
    """Of its examples, the nearest to its center first."""


def main(args: Args) -> None:
    """Writes the page; raises ValueError where the folder is not a folder run."""
    folder = read(args.run)
    row = chosen(folder, args.where)
    point = {name: row[name] for name in folder.names}
    found = assigned.of_run(folder, point, data_dir=args.data_dir)
    out = args.out or args.run
    out.mkdir(parents=True, exist_ok=True)
    assigned.write_table(out / "assignments.csv", found)
    if found.prediction is not None:
        np.savez(out / "embeddings.npz", **assigned.arrays(found))  # pyright: ignore[reportArgumentType]
    (out / "page.html").write_text(render(folder, row, found, out), encoding="utf-8")
    print(f"page of the run with {folder.told(point)}: {out / 'page.html'}")


def chosen(folder: Folder, where: Sequence[str]) -> Row:
    """Returns the row of the run with the highest silhouette among those that have the
    values of `where`; one that collapsed or diverged only where all did.

    Raises:
        ValueError: a value is misspelled, or no run has them.
    """
    wanted = parsed(where)
    first = folder.point(**wanted)
    rows = [row for row in folder.rows if all(row[n] == first[n] for n in wanted)]
    rows = [row for row in rows if row["status"] == "ok"] or rows
    scores = [row["silhouette"] for row in rows]
    known = [-np.inf if s is None or np.isnan(s) else s for s in scores]
    return rows[int(np.argmax(known))]


def clusters_of(found: Assigned, *, num_clusters: int, scope: str) -> list[Cluster]:
    """Returns the clusters of a run, empty ones too. Where clients cluster on their own
    these are the communities of their clusters, or without any each client's own."""
    # Those without a distance keep the order of the data set.
    nearest = np.argsort(found.distances, kind="stable")
    if found.communities is not None:
        groups = found.communities[nearest]
        numbers = range(int(groups.max()) + 1)
        return [Cluster(f"Community {k}", nearest[groups == k]) for k in numbers]
    groups = found.clusters[nearest]
    if scope == "global":
        return [
            Cluster(f"Cluster {k}", nearest[groups == k]) for k in range(num_clusters)
        ]
    holders = found.clients[nearest]
    held = (holders >= 0) & (groups >= 0)
    pairs = np.unique(np.stack([holders, groups])[:, held], axis=1).T
    return [
        Cluster(f"Client {i}, cluster {k}", nearest[(holders == i) & (groups == k)])
        for i, k in pairs
    ]


def render(folder: Folder, row: Row, found: Assigned, out: Path) -> str:
    """Returns the text of the page.

    Args:
        folder: that a command left.
        row: of the run that it shows.
        found: the examples of that run.
        out: the folder of the page, from where its links lead.
    """
    count = int(row["clusters"])
    clusters = clusters_of(found, num_clusters=count, scope=row["scope"])
    sizes = {cluster.name: len(cluster.rows) for cluster in clusters}
    title = html.escape(f"{short_name(folder.config['dataset'])} in {count} clusters")
    paragraphs = [
        page_text.told(folder, row, found),
        *(
            f'<p class="warning">{html.escape(text)}</p>'
            for text in page_text.warnings(folder, row, found, sizes)
        ),
    ]
    sections = {
        "Scores": scores(folder, row),
        "Clusters": sheets(found, clusters),
        "Map": map_of(found, num_clusters=count),
        "How to read this": page_text.READING,
        "Files": page_text.links(folder, row, out),
        "Settings of this run": page_text.settings(folder, row),
    }
    return page_text.DOCUMENT.format(
        title=title,
        style=page_text.STYLE,
        top="\n".join(paragraphs),
        body="\n".join(f"<h2>{name}</h2>\n{text}" for name, text in sections.items()),
        version=fcjax.__version__,
    )


def sheets(found: Assigned, clusters: Sequence[Cluster]) -> str:
    """Returns a sheet a cluster: how large it is, and its examples that are nearest to
    its center and farthest from it."""
    measured = found.prediction is not None
    parts = [page_text.SHEETS if measured else page_text.SHEETS_OF_CLIENTS]
    for cluster in clusters[:MOST_CLUSTERS]:
        told = "; ".join(page_text.about(found, cluster.rows))
        rest = cluster.rows[NEAREST:]
        parts.append(f"<section>\n<h3>{cluster.name}</h3>\n<p>{html.escape(told)}</p>")
        if len(cluster.rows):
            parts.append(sheet(found, cluster.rows[:NEAREST]))
        if measured and len(rest):
            between = len(rest) - len(rest[-FARTHEST:])
            told = f"{between:,} others, then the farthest" if between else "Farthest"
            parts.append(f"<p>{told}:</p>\n{sheet(found, rest[-FARTHEST:])}")
        parts.append("</section>")
    if len(clusters) > MOST_CLUSTERS:
        rest = len(clusters) - MOST_CLUSTERS
        parts.append(f"<p>{rest:,} further clusters are in assignments.csv.</p>")
    return "\n".join(parts)


def sheet(found: Assigned, rows: Int[np.ndarray, "n"]) -> str:
    """Returns some examples side by side, a list."""
    members = [member(found, row) for row in rows.tolist()]
    return '<ul class="sheet">\n' + "\n".join(members) + "\n</ul>"


def member(found: Assigned, row: int) -> str:
    """Returns one example of a sheet, an item of a list."""
    name, pixels = html.escape(found.names[row]), found.dataset.examples[row]
    picture = ""
    if pixels.ndim == 3:
        kind = ' class="small"' if inline.is_small(pixels) else ""
        picture = f'<img{kind} src="{inline.image(pixels)}" alt="">'
    return f'<li title="{name}">{picture}<span>{name}</span></li>'


def map_of(found: Assigned, *, num_clusters: int) -> str:
    """Returns the map of the embedding with its explanation, or why there is none."""
    if found.prediction is None:
        return page_text.NO_MAP
    z = found.prediction.embedding
    (rows,) = np.nonzero(np.isfinite(z).all(axis=1) & (found.clusters >= 0))
    if len(rows) < 4:
        return page_text.NO_MAP
    rows = np.random.default_rng(0).permutation(rows)[:MOST_POINTS]
    points = latent.project(latent.checked(z[rows]), 0)
    titles = [f"{found.names[row]}, cluster {found.clusters[row]}" for row in rows]
    drawn = inline.scatter(
        points, found.clusters[rows], titles, num_groups=num_clusters
    )
    told = page_text.MAP.format(number=f"{len(rows):,}")
    return f"{drawn}\n{told}"


if __name__ == "__main__":
    try:
        main(tyro.cli(Args))
    except ValueError as error:
        sys.exit(f"fcjax page: error: {error}")
