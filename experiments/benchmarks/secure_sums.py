"""Measures the effect of secure sums on federated k-means of the digits.

    python experiments/benchmarks/secure_sums.py
    python experiments/benchmarks/secure_sums.py --p 0 --clients 100 --bits 8 16

Every Lloyd step sums the clients' uploads as float32 or by `secure_sum`. Both runs
begin with the same centroids. The scale of the sums is a power of two above the largest
value of all clients, as in a real federation. Counts of examples have a step of 1 if
the largest count fits into the number of bits.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro
from jaxtyping import Array, Float

from experiments.benchmarks.benchmark import titles
from fcjax import data, metrics
from fcjax.cli.errors import exit_on_error
from fcjax.cluster import assign_nearest
from fcjax.federated import clients
from fcjax.federated.kmeans import (
    cluster_sums,
    means_of,
    seed_centroids,
    stand_still,
)
from fcjax.privacy.secure_sums import secure_sum
from fcjax.types import PRNGKey

MAX_STEPS = 100
"""Largest number of Lloyd steps of a run."""
TITLES = [
    "bits",
    "largest error of a centroid, first step",
    "largest error of a centroid, last step",
    "NMI with the float run's clusters",
    "NMI with the classes",
    "Lloyd steps",
]


@dataclasses.dataclass(frozen=True)
class Args:
    """Compares secure sums with float32 sums."""

    bits: tuple[int, ...] = (8, 12, 16, 24)
    """Numbers of bits of a client's value."""
    clients: int = 10
    """Number of clients."""
    p: float = 0.5
    """Heterogeneity of the clients, from 0 to 1."""
    seeds: int = 5
    """Number of seeds of the partition and of the initial centroids."""


find_seeds = jax.jit(seed_centroids, static_argnames="num_clusters")


def lloyd_step(
    key: PRNGKey,
    z: Float[Array, "M N D"],
    mask: Array,
    before: Float[Array, "K D"],
    bits: int | None,
) -> Float[Array, "K D"]:
    """Runs one Lloyd step with float32 sums or with secure sums.

    Args:
        key: the key of the masks.
        z: the examples of the clients.
        mask: [M, N], False at padding.
        before: the centroids before the step.
        bits: number of bits of a client's value; None means float32 sums.

    Returns:
        The centroids after the step.
    """

    def upload(z, mask):
        return cluster_sums(z, assign_nearest(z, before), mask, len(before))

    sums, counts = clients.for_each(upload, z, mask)
    if bits is None:
        return means_of(sums.sum(axis=0), counts.sum(axis=0), before)
    scale = jnp.exp2(jnp.ceil(jnp.log2(sums.max())))
    # At this clip an integer stands for one example.
    clip = (scale, jnp.maximum(2.0 ** (bits - 1) - 1, counts.max()))
    sums, counts = secure_sum(key, (sums, counts), clip=clip, bits=bits)
    return means_of(sums, counts, before)


@partial(jax.jit, static_argnames="bits")
def kmeans(
    key: PRNGKey,
    z: Float[Array, "M N D"],
    mask: Array,
    seeds: Float[Array, "K D"],
    bits: int | None,
) -> tuple[Array, Array, Array]:
    """Runs Lloyd steps until the centroids converge.

    Args:
        key: the key of the masks of all steps.
        z: the examples of the clients.
        mask: [M, N], False at padding.
        seeds: the initial centroids.
        bits: see `lloyd_step`.

    Returns:
        The centroids after the first step, those after the last step, and the number of
        steps.
    """

    def step(i, centroids):
        return lloyd_step(jax.random.fold_in(key, i), z, mask, centroids, bits)

    def unfinished(carry):
        i, after, before = carry
        return ~stand_still(before, after) & (i < MAX_STEPS)

    def iterate(carry):
        i, after, _ = carry
        return i + 1, step(i, after), after

    first = step(0, seeds)
    steps, last, _ = jax.lax.while_loop(
        unfinished, iterate, (jnp.int32(1), first, seeds)
    )
    return first, last, steps


def measure(dataset: data.Dataset, seed: int, args: Args) -> list[dict[str, Any]]:
    """Returns the results of one seed, one row per number of bits.

    Args:
        dataset: the examples and their classes.
        seed: the seed.
        args: the command-line arguments.

    Returns:
        The values of the columns of the table; `bits` is 0 for float32 sums.
    """
    labels = np.asarray(dataset.labels)
    partition = data.heterogeneous(labels, args.clients, args.p, seed=seed)
    present, num_clusters = np.ones((1, 1, args.clients), bool), labels.max() + 1
    federation = data.federate(
        dataset.examples, [partition], present, num_clusters=num_clusters
    )
    x = jnp.asarray(dataset.examples.reshape(len(labels), -1) / 255, jnp.float32)
    z, mask = x[federation.indices[0]], jnp.asarray(federation.mask[0])
    key, masks_key = jax.random.split(jax.random.key(seed))
    everyone = jnp.ones(args.clients, bool)
    seeds = find_seeds(key, z, mask, everyone, num_clusters=int(num_clusters))
    plain = kmeans(masks_key, z, mask, seeds, None)
    nearest = np.asarray(assign_nearest(x, plain[1]))
    rows = []
    for bits in (None, *args.bits):
        first, last, steps = kmeans(masks_key, z, mask, seeds, bits)
        clusters = np.asarray(assign_nearest(x, last))
        errors = (jnp.abs(first - plain[0]).max(), jnp.abs(last - plain[1]).max())
        scores = (metrics.nmi(nearest, clusters), metrics.nmi(labels, clusters))
        values = (bits or 0, *map(float, (*errors, *scores, steps)))
        rows.append(dict(zip(TITLES, values, strict=True)))
    return rows


def main(args: Args) -> None:
    """Prints the table.

    Args:
        args: the command-line arguments.
    """
    dataset = data.load("digits")
    rows = [row for seed in range(args.seeds) for row in measure(dataset, seed, args)]
    frame: Any = pd.DataFrame(rows)
    print(
        f"k-means of the digits, {args.clients} clients, p {args.p:g}, {args.seeds} "
        "seeds; pixels from 0 to 1\n"
        "Errors are maxima over the seeds. Other columns are means over the seeds.\n"
    )
    print(titles(TITLES))
    for bits, group in frame.groupby("bits"):
        first, last = (group[name].max() for name in TITLES[1:3])
        near, true, steps = (group[name].mean() for name in TITLES[3:])
        name = bits or "float32 sums"
        cells = f"{first:.1e} | {last:.1e} | {near:.3f} | {true:.3f} | {steps:.1f}"
        print(f"| {name} | {cells} |")


if __name__ == "__main__":
    with exit_on_error():
        main(tyro.cli(Args, description=__doc__))
