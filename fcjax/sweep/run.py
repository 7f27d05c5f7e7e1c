"""What a method finds in the data of a call: clusters and embeddings."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int, Shaped

from fcjax.data import Partition
from fcjax.devices import each_run
from fcjax.engine import Program
from fcjax.sweep.plan import Call
from fcjax.types import Grid


class Found(NamedTuple):
    """The clusters of one run, -1 where the method gives none."""

    of_clients: Int[np.ndarray, "M N"]
    """What each client found of its own examples; -1 where one of them is repeated."""
    of_examples: Int[np.ndarray, "P"]
    """Of an example that several clients hold what the first of them found."""


def clusters_of(program: Program, call: Call, state: Any) -> list[Found]:
    """Returns the clusters of each run of a call."""

    def assign(federations):
        grid = call.grid._replace(federations=federations)
        return np.asarray(program.assign(grid, state))

    held, left_out = call.grid.federations, call.left_out
    num_examples = held.pool.shape[0]
    rows, mask = np.asarray(held.indices), np.asarray(held.mask)
    of_clients = np.where(mask, assign(held), -1)
    found = [
        Found(own, of_examples(own, indices, here, num_examples, fill=-1))
        for own, indices, here in zip(of_clients, rows, mask, strict=True)
    ]
    if left_out is not None:
        rows, mask = np.asarray(left_out.indices), np.asarray(left_out.mask)
        others = assign(left_out)
        for run, one in enumerate(found):
            one.of_examples[rows[run][mask[run]]] = others[run][mask[run]]
    return found


def embedding_of(program: Program, call: Call, state: Any, run: int) -> np.ndarray:
    """Returns the embedding [P, D] of one run, NaN where no client holds a row."""
    grid = run_of(call.grid, run)
    z = np.asarray(program.embed(grid, one_of(state, run)), np.float32)[0]
    rows = np.asarray(grid.federations.indices)[0]
    mask = np.asarray(grid.federations.mask)[0]
    return of_examples(z, rows, mask, grid.federations.pool.shape[0], fill=np.nan)


def holder(partition: Partition, num_examples: int) -> np.ndarray:
    """Which client holds each example [P], the first one of several; -1 where none
    does."""
    holders = np.full(num_examples, -1)
    for client, rows in reversed(list(enumerate(partition.clients))):
        holders[rows] = client
    return holders


def of_examples(
    values: Shaped[np.ndarray, "M N *D"],
    rows: Int[np.ndarray, "M N"],
    mask: Bool[np.ndarray, "M N"],
    num_examples: int,
    *,
    fill: int | float,
) -> Shaped[np.ndarray, "P *D"]:
    """Returns what clients have of their examples in the order of the pool, `fill`
    where nobody holds one; of several clients the first one's."""
    found = np.full((num_examples, *values.shape[2:]), fill, values.dtype)
    # The last one that is written stays.
    found[rows[mask][::-1]] = values[mask][::-1]
    return found


def run_of(grid: Grid, run: int) -> Grid:
    """Returns the grid of one run; the pool stays whole."""
    return each_run(lambda x: x[run : run + 1], grid)


def one_of(tree: Any, run: int) -> Any:
    return jax.tree.map(lambda x: x[run : run + 1], tree)
