"""Which clients' clusters are the same: what is kept of it, and what is made of it.

RUN.npz of a results folder's communities/ holds the arrays of `Kept`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Integer
from scipy.sparse.csgraph import connected_components

from fcjax import evaluation
from fcjax.sweep.run import Run
from fcjax.types import Communities


class Kept(NamedTuple):
    """The communities of one run, with the examples that they are of."""

    indices: Integer[np.ndarray, "M N"]
    """Examples that each client holds; one that several hold is there several times."""
    mask: Bool[np.ndarray, "M N"]
    """False where one of them is repeated."""
    cluster: Integer[np.ndarray, "M N"]
    """What each client found in the end; -1 where one is repeated."""
    community: Integer[np.ndarray, "M K"]
    """Of each client's cluster; -1 where it has none."""
    edges: Bool[np.ndarray, "M K M K"]
    """The association graph of the last round."""
    graph_cluster: Integer[np.ndarray, "M N"]
    """The clusters that it is a graph of; -1 where an example is repeated."""


class Graph(NamedTuple):
    """The association graph of the clusters that are not empty, V of them."""

    edges: Bool[np.ndarray, "V V"]
    sizes: Integer[np.ndarray, "V"]
    """Examples of each."""
    groups: Integer[np.ndarray, "V"]
    """The class that each matches on its client, or without labels the connected
    component that it is in; -1 where there is none, as of a cluster without an edge."""


def of_runs(runs: Sequence[Run], found: Communities | None) -> list[Kept | None]:
    """Returns what is kept of each run, None of a method without communities.

    Args:
        runs: what they found.
        found: the communities of all of them, [G, ...].
    """
    if found is None:
        return [None] * len(runs)
    community, edges, clusters = map(np.asarray, found)
    return [
        Kept(
            *(run.rows, run.mask, run.of_clients, community[i], edges[i]),
            np.where(run.mask, clusters[i], -1),
        )
        for i, run in enumerate(runs)
    ]


def write(path: Path, kept: Kept) -> None:
    """Writes what `read` reads, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp.npz")
    np.savez_compressed(temporary, **kept._asdict())
    temporary.replace(path)


def read(path: Path) -> Kept:
    with np.load(path) as file:
        return Kept(**file)


def taken_globally(
    cluster: Integer[np.ndarray, "M N"], community: Integer[np.ndarray, "M K"]
) -> Int[np.ndarray, "M N"]:
    """Returns communities as clusters of all clients: a cluster without one is one of
    its own. -1 where an example has no cluster."""
    number = np.arange(community.size).reshape(community.shape)
    names = np.where(community >= 0, community, community.max() + 1 + number)
    found = np.take_along_axis(names, np.maximum(cluster, 0), axis=1)
    return np.where(cluster >= 0, found, -1)


def of_examples(
    community: Integer[np.ndarray, "M K"],
    client: Integer[np.ndarray, "P"],
    cluster: Integer[np.ndarray, "P"],
) -> Integer[np.ndarray, "P"]:
    """Returns the community of every example through its client and its cluster; -1
    where one of the three is missing."""
    return np.where((client >= 0) & (cluster >= 0), community[client, cluster], -1)


def columns(
    holders: Integer[np.ndarray, "P"],
    clusters: Integer[np.ndarray, "P"],
    same: Kept | None,
) -> dict[str, np.ndarray]:
    """Returns what assignments.npz keeps of a run, see `Folder.assignments`."""
    found = {"client": holders, "cluster": clusters}
    if same is not None:
        found["community"] = of_examples(same.community, holders, clusters)
    return found


def graph(kept: Kept, labels: Integer[np.ndarray, "L"] | None) -> Graph:
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
            names = evaluation.match(classes, clusters[own])
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
