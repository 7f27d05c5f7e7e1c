"""Outcomes of runs: their clusters, communities and embeddings, as NumPy arrays."""

import math
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
    """The current clusters of one run."""

    point: Mapping[str, float | int]
    """The swept values of the run, by flag."""
    rows: Int[np.ndarray, "M N"]
    """Indices of each client's examples. Several clients may hold the same example."""
    mask: Bool[np.ndarray, "M N"]
    """False for padding, which repeats an example."""
    clusters_of_clients: Int[np.ndarray, "M N"]
    """The cluster of each client's examples; -1 for padding and for examples without a
    cluster."""
    client_of_example: Int[np.ndarray, "P"]
    """The client of every example, the first one if there are several; -1 for examples
    without a client."""
    clusters: Int[np.ndarray, "P"]
    """The cluster of every example, assigned by its client; -1 if there is none."""


def outcomes_of(
    program: Program,
    points: tuple[Mapping[str, float | int], ...],
    grid: Grid,
    left_out: Federation | None,
    state: Any,
) -> list[Outcome]:
    """Assigns the examples of all runs to clusters.

    Args:
        program: the program of the runs.
        points: the swept values of each run.
        grid: the inputs of the runs.
        left_out: the examples without a client, if the method can assign them.
        state: the state of all runs, [G, ...].

    Returns:
        One outcome per run.
    """

    def assign(federations):
        inputs = grid._replace(federations=federations)
        return rectangle(on_host(program.assign(inputs, state)))

    federations, count = grid.federations, grid.federations.pool.shape[0]
    rows, mask = rectangle(federations.indices), rectangle(federations.mask)
    clusters_of_clients = np.where(mask, assign(federations), -1)
    clients = np.broadcast_to(np.arange(rows.shape[1])[:, None], rows.shape[1:])
    outcomes = [
        Outcome(
            *each,
            of_examples(clients, *each[1:3], count, fill=-1),
            of_examples(each[3], *each[1:3], count, fill=-1),
        )
        for each in zip(points, rows, mask, clusters_of_clients, strict=True)
    ]
    if left_out is not None:
        rows, mask = np.asarray(left_out.indices), np.asarray(left_out.mask)
        for run, indices, is_real, clusters in zip(
            outcomes, rows, mask, assign(left_out), strict=True
        ):
            run.clusters[indices[is_real]] = clusters[is_real]
    return outcomes


def communities_of(
    runs: Sequence[Outcome], communities: Communities | None
) -> list[CommunityAssignments | None]:
    """Combines the communities of each run with the indices of the clients' examples.

    Args:
        runs: the outcomes of G runs.
        communities: the communities of all runs, [G, ...]; None for methods without.

    Returns:
        One entry per run; None for methods without communities.
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


MOST_EMBEDDED, SAMPLE = 2**26, 2**24
"""Up to `MOST_EMBEDDED` values (256 MiB), all examples of a run are embedded. Larger
data has the embedding of a random sample of about `SAMPLE` values. The scores of an
embedding need ten times its memory."""


class Embedding(NamedTuple):
    """The embedding of the examples of one run that have a client."""

    examples: Int[np.ndarray, "n"]
    """The indices of the examples, sorted."""
    points: Float[np.ndarray, "n D"]
    """The embedding of these examples."""


def embeddings_of(program: Program, grid: Grid, state: Any) -> Iterator[Embedding]:
    """Embeds the examples of a grid, one run after another to save memory.

    Args:
        program: the program of the runs.
        grid: the inputs of the runs.
        state: the state of all runs, [G, ...].

    Yields:
        Embedding: the embedding of one run. If all examples have more values than
        `MOST_EMBEDDED`, it has a random sample of each client's examples.
    """
    grid = grid._replace(federations=sampled(grid.federations))
    federations = grid.federations
    # With several processes, examples are placed on devices for all runs together.
    whole = program.embed(grid, state) if is_multiprocess() else None
    for run in range(len(grid.keys)):

        def of_run(x, run=run):
            return x[run : run + 1]

        if whole is None:
            embedding = program.embed(
                each_run(of_run, grid), jax.tree.map(of_run, state)
            )
        else:
            embedding = of_run(whole)
        indices = jax.tree.map(of_run, (federations.indices, federations.mask))
        # Size classes are handled separately, since padding all clients to the largest
        # one may need too much memory.
        blocks = (
            map(np.asarray, jax.tree.leaves(x)) for x in (on_host(embedding), *indices)
        )
        parts = [(z[mask], rows[mask]) for z, rows, mask in zip(*blocks, strict=True)]
        z, rows = map(np.concatenate, zip(*parts, strict=True))
        # The first client of an example counts, as in `of_examples`.
        examples, first = np.unique(rows, return_index=True)
        yield Embedding(examples, z[first].astype(np.float32, copy=False))


def sampled(federations: Federation) -> Federation:
    """Takes a random sample of the examples of each client, if there are too many.

    Args:
        federations: the federations of a grid.

    Returns:
        The federations. If their examples have more than `MOST_EMBEDDED` values, about
        `SAMPLE` of them remain, at least one example per client.
    """
    blocks = jax.tree.leaves(federations.mask)
    num_examples = sum(math.prod(x.shape[1:]) for x in blocks)
    num_values = num_examples * math.prod(federations.pool.shape[1:])
    if num_values <= MOST_EMBEDDED:
        return federations

    def sample(x):
        # The same draw for indices and mask. Padding is at the end of a client, so at
        # least one column has real examples of every client.
        number = max(1, x.shape[2] * SAMPLE // num_values)
        others = np.random.default_rng(0).permutation(np.arange(1, x.shape[2]))
        return x[:, :, np.sort(np.append(others[: number - 1], 0))]

    indices, mask = jax.tree.map(sample, (federations.indices, federations.mask))
    return federations._replace(indices=indices, mask=mask)


def sample_note(federations: Federation) -> str:
    """Returns a line on the number of examples that `embeddings_of` embeds.

    Args:
        federations: the federations of a grid.

    Returns:
        The line for the first run; "" if all examples are embedded.
    """
    part = sampled(federations)
    if part is federations:
        return ""
    number, total = (
        sum(np.count_nonzero(x[0]) for x in jax.tree.leaves(each.mask))
        for each in (part, federations)
    )
    return (
        f"large data (more than {MOST_EMBEDDED:,} values): silhouette and other scores "
        f"of the embedding use {number:,} of {total:,} examples, drawn at random"
    )


def of_examples(
    values: Shaped[np.ndarray, "M N *D"],
    rows: Int[np.ndarray, "M N"],
    mask: Bool[np.ndarray, "M N"],
    num_examples: int,
    *,
    fill: int | float,
) -> Shaped[np.ndarray, "P *D"]:
    """Reorders values of the clients' examples by the index of the example.

    Args:
        values: one value per example of each client.
        rows: the indices of each client's examples.
        mask: False for padding.
        num_examples: P.
        fill: the value of examples without a client.

    Returns:
        One value per example, of the first client if several clients hold the example.
    """
    result = np.full((num_examples, *values.shape[2:]), fill, values.dtype)
    # Written in reverse order, because the last write stays.
    result[rows[mask][::-1]] = values[mask][::-1]
    return result
