"""The figures of a run and of its grid."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Integer
from scipy.sparse.csgraph import connected_components

from fcjax import data, metrics
from fcjax.results import figures
from fcjax.results.run import INTERNAL_SCORES
from fcjax.results.store import CommunityAssignments, Folder


class Graph(NamedTuple):
    """The association graph of the clusters that are not empty, V of them."""

    edges: Bool[np.ndarray, "V V"]
    sizes: Integer[np.ndarray, "V"]
    """Examples of each."""
    groups: Integer[np.ndarray, "V"]
    """The class that each matches on its client, or without labels the connected
    component that it is in; -1 where there is none, as of a cluster without an edge."""


def graph(kept: CommunityAssignments, labels: Integer[np.ndarray, "L"] | None) -> Graph:
    """Returns the graph of a run as it is drawn.

    Args:
        kept: of the run.
        labels: of the first L examples of the pool, if they have any.
    """
    num_clients, num_clusters = kept.community.shape
    sizes = np.zeros((num_clients, num_clusters), int)
    groups = np.full((num_clients, num_clusters), -1)
    for client, clusters in enumerate(kept.graph_cluster):
        own = clusters >= 0
        sizes[client] = np.bincount(clusters[own], minlength=num_clusters)
        if labels is None:
            continue
        own &= kept.indices[client] < len(labels)
        if own.any():
            classes = labels[kept.indices[client, own]]
            names = metrics.match(classes, clusters[own])
            # Clusters that match no class have names above all of them.
            names = np.where(np.isin(names, classes), names, -1)
            groups[client, clusters[own]] = names
    shown = sizes.ravel() > 0
    edges = kept.edges.reshape(shown.size, shown.size)[shown][:, shown]
    groups = groups.ravel()[shown]
    if labels is None:
        _, components = connected_components(edges, directed=False)
        groups = np.where(edges.any(axis=1), components, -1)
    return Graph(edges, sizes.ravel()[shown], groups)


def match_by_client(
    dataset: data.Dataset, holders: np.ndarray, clusters: np.ndarray
) -> np.ndarray:
    """Returns clusters by the names of the classes that they match on their client,
    where clients cluster on their own: one number then means the same for all. As they
    are where there are no labels.
    """
    labels, named = dataset.labels, clusters.copy()
    if labels is None:
        return named
    assigned = clusters >= 0
    for client in np.unique(holders[assigned & (holders >= 0)]):
        own = assigned & (holders == client)
        named[own] = metrics.match(labels[own], clusters[own])
    return named


def figures_of_run(
    folder: Path,
    dataset: data.Dataset,
    holders: np.ndarray,
    clusters: np.ndarray,
    embedding: np.ndarray | None,
    found: CommunityAssignments | None = None,
    *,
    scope: str = "global",
    title: str = "",
) -> None:
    """Draws what one run found.

    Args:
        folder: created if need be.
        dataset: P examples.
        holders: [P or more] client of each example, -1 where nobody holds it; what
            goes beyond the data set is not shown.
        clusters: [P or more], -1 where there is none.
        embedding: [P or more, D], NaN where there is none; None draws none.
        found: its communities; None draws none.
        scope: of the method; clients' own clusters are shown as the classes that each
            client matches them with.
        title: method, data set, heterogeneity and seed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count, labels = len(dataset.examples), dataset.labels
    holders, clusters = holders[:count], clusters[:count]
    if scope != "global":
        clusters = match_by_client(dataset, holders, clusters)
    assigned = clusters >= 0
    if labels is not None:
        figures.partition(labels, holders, folder / "partition.png", title)
        figures.confusion(
            labels[assigned], clusters[assigned], folder / "confusion.png", title
        )
    images = dataset.examples
    if images.ndim == 4 and images.shape[-1] in (1, 3) and assigned.any():
        figures.contact_sheet(images, clusters, folder / "clusters.png", title=title)
    if found is not None:
        path, shown = folder / "associations.png", graph(found, labels)._asdict()
        figures.associations(path=path, title=title, **shown)
    if embedding is None:
        return
    embedding = embedding[:count]
    held = np.isfinite(embedding).all(axis=1) & (holders >= 0) & assigned
    if held.sum() >= 4:
        figures.tsne(
            embedding[held],
            None if labels is None else labels[held],
            holders[held],
            folder / "embedding.png",
            assignments=clusters[held],
            title=title,
        )


def figures_of_grid(folder: Folder, out: Path) -> None:
    """Draws what the runs that were asked for have in common, see `grid_figures`."""
    grid_figures(
        out,
        folder.requested(folder.rows),
        folder.requested(folder.rounds),
        by=folder.settings,
        start=folder.config.get("start_stage", ""),
        reported=folder.config.get("reported", ()),
    )


def grid_figures(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    history: Sequence[Mapping[str, Any]],
    *,
    by: Sequence[str],
    start: str = "",
    reported: Sequence[str] = (),
) -> None:
    """Draws the learning curves of all settings, what the method reports, and the
    scores against every number that varies, with a line for each setting of the others.

    Args:
        folder: created if need be.
        rows: one a run, as in results.csv.
        history: one a run a round, as in history.csv.
        by: what tells the settings apart, first what they are dealt by, such as p,
            then whatever varies but for the seed.
        start: the stage that ends in what the others set out from, if there is one.
        reported: what the method reports in its rounds.
    """
    labelled = rows[0]["nmi"] is not None
    values = ("nmi", "acc", "loss") if labelled else ("loss",)
    # An extended grid has its settings in the order in which they were asked for.
    # Numbers before text, which no number compares with.
    history = sorted(
        history,
        key=lambda row: [(isinstance(row[name], str), row[name]) for name in by],
    )
    title = figure_title(rows, [*by, "seed"])
    figures.learning_curves(
        history, folder / "learning_curves.png", by=by, values=values, title=title
    )
    history = rounds_after_stage(history, start, by=by)
    measured = [
        name for name in reported if any(row.get(name) is not None for row in history)
    ]
    if measured:
        figures.learning_curves(
            history, folder / "iterations.png", by=by, values=measured, title=title
        )
    scores = ("nmi", "kappa") if labelled else INTERNAL_SCORES
    scores = [name for name in scores if any(row.get(name) is not None for row in rows)]
    levels = {name: {row[name] for row in rows} for name in by}
    varied = [name for name in by if len(levels[name]) > 1]
    for name in varied if scores else ():
        if any(isinstance(level, str | bool | None) for level in levels[name]):
            continue
        others = [other for other in varied if other != name] or ["method", "dataset"]
        figures.against(
            rows,
            folder / f"against_{name}.png",
            level=name,
            by=others,
            values=scores,
            title=title,
        )


def figure_title(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Returns the title of a figure: method, data set, and what all rows share."""
    shared = [
        f"{name} {rows[0][name]}"
        for name in names
        if len({row[name] for row in rows}) == 1
    ]
    return ", ".join([f"{rows[0]['method']} on {rows[0]['dataset']}", *shared])


def rounds_after_stage(
    history: Sequence[Mapping[str, Any]], start: str, *, by: Sequence[str]
) -> list[Mapping[str, Any]]:
    """Returns the rounds after a stage, and before them the last one of it as their
    round 0 of each run; all rounds where there is no such stage.
    """
    begun: dict[tuple, Mapping[str, Any]] = {}
    for row in history:
        if row["stage"] == start:
            begun[tuple(row[name] for name in [*by, "seed"])] = {**row, "round": 0}
    if not begun:
        return list(history)
    place = max(int(row["stage_index"]) for row in begun.values())
    after = [row for row in history if int(row["stage_index"]) > place]
    # A curve breaks between two stages.
    name = after[0]["stage"] if after else start
    return [*({**row, "stage": name} for row in begun.values()), *after]
