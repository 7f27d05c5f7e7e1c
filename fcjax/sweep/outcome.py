"""One run as it is scored, shown, kept and drawn: what it has found in its data."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from fcjax.engine import Program
from fcjax.parallel.mesh import each_run, is_multiprocess, on_host
from fcjax.ragged import rectangle
from fcjax.results.store import CommunityAssignments
from fcjax.types import Communities, Federation, Grid


class Outcome(NamedTuple):
    """What one run has found so far."""

    point: Mapping[str, float | int]
    """Its swept values, by flag."""
    rows: Int[np.ndarray, "M N"]
    """Examples that each client holds; one that several hold is there several times."""
    mask: Bool[np.ndarray, "M N"]
    """False where one of them is repeated."""
    clusters_of_clients: Int[np.ndarray, "M N"]
    """The cluster that each client found them in; -1 where one is repeated, or the
    method gives none."""
    client_of_example: Int[np.ndarray, "P"]
    """Who holds each example, the first of several; -1 where nobody does."""
    clusters: Int[np.ndarray, "P"]
    """Of every example, what its holder found; -1 where there is none."""


def outcomes_of(
    program: Program,
    points: tuple[Mapping[str, float | int], ...],
    grid: Grid,
    left_out: Federation | None,
    state: Any,
) -> list[Outcome]:
    """Returns what the runs of a grid have found.

    Args:
        program: that runs them.
        points: their swept values.
        grid: the runs.
        left_out: the rows that no client holds, if those have clusters, too.
        state: of all of them, [G, ...].
    """

    def assign(federations):
        own = grid._replace(federations=federations)
        return rectangle(on_host(program.assign(own, state)))

    held, count = grid.federations, grid.federations.pool.shape[0]
    rows, mask = rectangle(held.indices), rectangle(held.mask)
    clusters_of_clients = np.where(mask, assign(held), -1)
    clients = np.broadcast_to(np.arange(rows.shape[1])[:, None], rows.shape[1:])
    found = [
        Outcome(
            *each,
            of_examples(clients, *each[1:3], count, fill=-1),
            of_examples(each[3], *each[1:3], count, fill=-1),
        )
        for each in zip(points, rows, mask, clusters_of_clients, strict=True)
    ]
    if left_out is not None:
        rows, mask = np.asarray(left_out.indices), np.asarray(left_out.mask)
        for run, *others in zip(found, rows, mask, assign(left_out), strict=True):
            of_no_client, there, clusters = others
            run.clusters[of_no_client[there]] = clusters[there]
    return found


def communities_of(
    runs: Sequence[Outcome], communities: Communities | None
) -> list[CommunityAssignments | None]:
    """Returns the communities of each run with the examples that they are of; None for
    a method without communities.

    Args:
        runs: G of them.
        communities: of all runs, [G, ...].
    """
    if communities is None:
        return [None] * len(runs)
    community, edges, clusters = map(np.asarray, communities)
    return [
        CommunityAssignments(
            *(run.rows, run.mask, run.clusters_of_clients, community[i], edges[i]),
            np.where(run.mask, clusters[i], -1),
        )
        for i, run in enumerate(runs)
    ]


def embeddings_of(
    program: Program, grid: Grid, state: Any
) -> Iterator[Float[np.ndarray, "P D"]]:
    """Yields the embedding of each run of a grid, NaN where no client holds a row."""
    held = grid.federations
    # The examples of several processes lie by where all runs do.
    whole = program.embed(grid, state) if is_multiprocess() else None
    for run in range(len(grid.keys)):

        def own(x, run=run):
            return x[run : run + 1]

        if whole is None:
            found = program.embed(each_run(own, grid), jax.tree.map(own, state))
        else:
            found = own(whole)
        each = (on_host(found), *jax.tree.map(own, (held.indices, held.mask)))
        # A size class at a time: padded to the largest client they may be too many.
        blocks = (map(np.asarray, jax.tree.leaves(x)) for x in each)
        parts = [(z[own], rows[own]) for z, rows, own in zip(*blocks, strict=True)]
        z, rows = map(np.concatenate, zip(*parts, strict=True))
        alike = (z.astype(np.float32)[None], rows[None], np.ones((1, len(rows)), bool))
        yield of_examples(*alike, held.pool.shape[0], fill=np.nan)


def of_examples(
    values: Shaped[np.ndarray, "M N *D"],
    rows: Int[np.ndarray, "M N"],
    mask: Bool[np.ndarray, "M N"],
    num_examples: int,
    *,
    fill: int | float,
) -> Shaped[np.ndarray, "P *D"]:
    """Returns what clients have of their examples in the order of the pool, `fill`
    where nobody holds one; of several clients the first one's.
    """
    found = np.full((num_examples, *values.shape[2:]), fill, values.dtype)
    # The last one that is written stays.
    found[rows[mask][::-1]] = values[mask][::-1]
    return found
