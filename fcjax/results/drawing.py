"""The figures of a run and of a grid of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Integer
from scipy.sparse.csgraph import connected_components

from fcjax import data, metrics
from fcjax.metrics.internal import INTERNAL_SCORES
from fcjax.results import figures
from fcjax.results.store import CommunityAssignments, Folder


class Graph(NamedTuple):
    """The association graph of the V clusters that are not empty."""

    edges: Bool[np.ndarray, "V V"]
    """Whether two clusters are associated."""
    sizes: Integer[np.ndarray, "V"]
    """The number of examples of each cluster."""
    groups: Integer[np.ndarray, "V"]
    """The class that matches each cluster on its client. For data without labels, the
    connected component of the cluster. -1 without a class, or without an edge."""


def graph(
    communities: CommunityAssignments, labels: Integer[np.ndarray, "L"] | None
) -> Graph:
    """Returns the association graph of a run for a figure, without empty clusters.

    Args:
        communities: the communities of the run.
        labels: [L] true classes of the first L examples of the pool; None for data
            without labels.

    Returns:
        The graph.
    """
    num_clients, num_clusters = communities.community.shape
    sizes = np.zeros((num_clients, num_clusters), int)
    groups = np.full((num_clients, num_clusters), -1)
    for client, clusters in enumerate(communities.graph_cluster):
        is_counted = clusters >= 0
        sizes[client] = np.bincount(clusters[is_counted], minlength=num_clusters)
        if labels is None:
            continue
        is_counted &= communities.indices[client] < len(labels)
        if is_counted.any():
            classes = labels[communities.indices[client, is_counted]]
            names = metrics.match(classes, clusters[is_counted])
            # `match` names clusters without a class by numbers above all classes.
            names = np.where(np.isin(names, classes), names, -1)
            groups[client, clusters[is_counted]] = names
    occupied = sizes.ravel() > 0
    edges = communities.edges.reshape(occupied.size, occupied.size)
    edges, groups = edges[occupied][:, occupied], groups.ravel()[occupied]
    if labels is None:
        _, components = connected_components(edges, directed=False)
        groups = np.where(edges.any(axis=1), components, -1)
    return Graph(edges, sizes.ravel()[occupied], groups)


def match_by_client(
    dataset: data.Dataset, clients: np.ndarray, clusters: np.ndarray
) -> np.ndarray:
    """Renames the clusters of each client to the classes that match them.

    Clients that cluster separately use the same cluster numbers for different things.
    After renaming, a number means the same for all clients.

    Args:
        dataset: the P examples. Without labels the clusters stay as they are.
        clients: [P] the client of each example, -1 for none.
        clusters: [P] the cluster of each example within its client, -1 for none.

    Returns:
        [P] the renamed clusters.
    """
    labels, renamed = dataset.labels, clusters.copy()
    if labels is None:
        return renamed
    has_cluster = clusters >= 0
    for client in np.unique(clients[has_cluster & (clients >= 0)]):
        members = has_cluster & (clients == client)
        renamed[members] = metrics.match(labels[members], clusters[members])
    return renamed


def figures_of_run(
    folder: Path,
    dataset: data.Dataset,
    clients: np.ndarray,
    clusters: np.ndarray,
    embedding: np.ndarray | None,
    communities: CommunityAssignments | None = None,
    *,
    examples: np.ndarray | None = None,
    scope: str = "global",
    title: str = "",
) -> None:
    """Draws the figures of one run.

    These are the partition and the confusion matrix for data with labels, a sheet of
    images for images, the association graph for communities, and a map of the
    embedding.

    Args:
        folder: folder of the figures; created if it is missing.
        dataset: the P examples.
        clients: [P or more] the client of each example, -1 for none. Entries after the
            first P are ignored, here and in the next two arguments.
        clusters: [P or more] the cluster of each example, -1 for none.
        embedding: [P or more, D] the embedding of each example, NaN for none. None
            draws no map.
        communities: the communities of the run; None draws no association graph.
        examples: the indices of the examples in the rows of `embedding`; None means all
            P examples.
        scope: scope of the method. If it is not "global", the clusters of each client
            are renamed to the classes that match them.
        title: title of each figure: method, data set, heterogeneity and seed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count, labels = len(dataset.examples), dataset.labels
    clients, clusters = clients[:count], clusters[:count]
    if scope != "global":
        clusters = match_by_client(dataset, clients, clusters)
    has_cluster = clusters >= 0
    if labels is not None:
        figures.partition(labels, clients, folder / "partition.png", title)
        figures.confusion(
            labels[has_cluster], clusters[has_cluster], folder / "confusion.png", title
        )
    images = dataset.examples
    if images.ndim == 4 and images.shape[-1] in (1, 3) and has_cluster.any():
        figures.contact_sheet(images, clusters, folder / "clusters.png", title=title)
    if communities is not None:
        path, nodes = folder / "associations.png", graph(communities, labels)
        figures.associations(path=path, title=title, **nodes._asdict())
    if embedding is None:
        return
    examples = np.arange(len(embedding)) if examples is None else examples
    embedding, examples = embedding[examples < count], examples[examples < count]
    mapped = np.isfinite(embedding).all(axis=1)
    mapped &= (clients[examples] >= 0) & has_cluster[examples]
    shown = examples[mapped]
    if mapped.sum() >= 4:
        figures.tsne(
            embedding[mapped],
            None if labels is None else labels[shown],
            clients[shown],
            folder / "embedding.png",
            assignments=clusters[shown],
            title=title,
        )


def figures_of_grid(folder: Folder, out: Path) -> None:
    """Draws the figures of the requested runs of a results folder.

    Args:
        folder: the results folder.
        out: folder of the figures, see `grid_figures`.
    """
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
    """Draws the figures of a grid of runs.

    learning_curves.png has scores and loss by round, one line per setting.
    iterations.png has the quantities that the method reports. against_NAME.png has the
    scores against each number that varies, one line per setting of the other columns.

    Args:
        folder: folder of the figures; created if it is missing.
        rows: one row per run, as in results.csv.
        history: one row per run and round, as in history.csv.
        by: columns whose values define a setting: the heterogeneity first, then all
            columns that vary except for the seed.
        start: name of the stage whose last round is the starting point in
            iterations.png; "" for none.
        reported: columns of `history` that the method reports.
    """
    labelled, history = rows[0]["nmi"] is not None, by_setting(history, by)
    title = figure_title(rows, [*by, "seed"])
    learning_curves(folder / "learning_curves.png", rows, history, by=by)
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


def learning_curves(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    history: Sequence[Mapping[str, Any]],
    *,
    by: Sequence[str],
) -> None:
    """Draws scores and loss by round, with the scores of k-means on the raw examples.

    Args:
        path: file to write; the ending sets the format.
        rows: one row per run, as in results.csv.
        history: one row per run and round, as in history.csv.
        by: columns whose values define a setting.
    """
    labelled = rows[0]["nmi"] is not None
    names = ("nmi", "acc")
    baselines = {
        name: sorted(
            {x for row in rows if (x := row.get(f"kmeans_{name}")) is not None}
        )
        for name in names
    }
    figures.learning_curves(
        *(by_setting(history, by), path),
        by=by,
        values=(*names, "loss") if labelled else ("loss",),
        baselines=baselines,
        title=figure_title(rows, [*by, "seed"]),
    )


def by_setting(
    history: Sequence[Mapping[str, Any]], by: Sequence[str]
) -> list[Mapping[str, Any]]:
    """Returns the rounds in ascending order of the columns `by`.

    The rounds of an extended grid are in the order of the commands. Numbers stand
    before text, because the two cannot be compared.

    Args:
        history: rounds, one row per run and round.
        by: columns that define the order, the most important first.

    Returns:
        The sorted rounds. Rounds with equal values keep their order.
    """
    return sorted(
        history,
        key=lambda row: [(isinstance(row[name], str), row[name]) for name in by],
    )


def figure_title(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Returns the title of a figure: method, data set, shared settings, and seeds.

    Args:
        rows: one row per run, with the columns method, dataset and those of `names`.
        names: columns for the title. A column that varies is left out. Of several
            seeds the title has the number.

    Returns:
        The title.

    Examples:
        >>> rows = [{"method": "ccfc", "dataset": "digits", "p": 0.25, "seed": 0}]
        >>> figure_title(rows, ["p", "seed"])
        'ccfc on digits, heterogeneity p 0.25, seed 0'
    """
    parts = [f"{rows[0]['method']} on {rows[0]['dataset']}"]
    for name in dict.fromkeys(names):
        values = {row[name] for row in rows}
        if len(values) == 1 and name == "natural":
            parts.append("natural partition")
        elif len(values) == 1:
            (value,) = values
            text = f"{value:g}" if isinstance(value, float) else value
            parts.append(f"{figures.in_words(name)} {text}")
        elif name == "seed":
            parts.append(f"{len(values)} seeds")
    return ", ".join(parts)


def rounds_after_stage(
    history: Sequence[Mapping[str, Any]], start: str, *, by: Sequence[str]
) -> list[Mapping[str, Any]]:
    """Returns the rounds after a stage, with the last round of that stage as round 0.

    Args:
        history: one row per run and round, as in history.csv.
        start: name of the stage.
        by: columns whose values define a setting.

    Returns:
        Round 0 of each run and the rounds of the later stages; all rounds if there is
        no stage of this name.
    """
    last: dict[tuple, Mapping[str, Any]] = {}
    for row in history:
        if row["stage"] == start:
            last[tuple(row[name] for name in [*by, "seed"])] = {**row, "round": 0}
    if not last:
        return list(history)
    index = max(int(row["stage_index"]) for row in last.values())
    later = [row for row in history if int(row["stage_index"]) > index]
    # Round 0 takes the name of the next stage, because curves break between stages.
    name = later[0]["stage"] if later else start
    return [*({**row, "stage": name} for row in last.values()), *later]
