"""The server's step of a round, on the uploads of all clients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.benchmarks.speed import ccfc, fdsc, fedcref, fedmcc
from experiments.benchmarks.speed.case import Sizes
from fcjax.algorithms.fdsc import OUTER, pick
from fcjax.cluster import kmeans
from fcjax.federated import server
from fcjax.parallel.mesh import num_bytes

NUM_CLUSTERS = 10


class Step(NamedTuple):
    """A server step with its input."""

    name: str
    workload: str
    run: Callable[..., Any]
    uploads: Any
    """The stacked uploads of all clients: the argument of `run`."""


def steps(method: str, sizes: Sizes) -> list[Step]:
    """Returns the server step of a method, with the networks of its local training.

    SDA-FDC has no entry, because its server trains. That training is one of its cases.

    Args:
        method: name of the method.
        sizes: number of clients, examples and batch size.

    Returns:
        One step, or none.
    """
    make = {"ccfc": _ccfc, "fedmcc": _fedmcc, "fdsc": _fdsc, "fedcref": _fedcref}
    return [make[method](sizes)] if method in make else []


def _ccfc(sizes: Sizes) -> Step:
    networks = _state(ccfc, sizes).variables
    count = _count(networks)
    points = jax.random.normal(
        jax.random.key(0), (count * NUM_CLUSTERS, ccfc.LATENT_SIZE)
    )

    def run(uploads):
        networks, points = uploads
        centroids = kmeans(jax.random.key(1), points, NUM_CLUSTERS).centroids
        return server.weighted_mean(networks, jnp.ones(count)), centroids

    return Step(
        "ccfc server",
        f"mean of {count} networks, k-means of {len(points)} centroids",
        run,
        (networks, points),
    )


def _fedmcc(sizes: Sizes) -> Step:
    state = _state(fedmcc, sizes)
    return _mean("fedmcc", {k: v for k, v in state.items() if k != "target"})


def _fdsc(sizes: Sizes) -> Step:
    parts, _ = _state(fdsc, sizes)
    return _mean("fdsc", pick(parts, OUTER))


def _fedcref(sizes: Sizes) -> Step:
    networks = _state(fedcref, sizes).variables
    count = _count(networks)
    groups = jnp.arange(count) % NUM_CLUSTERS

    def run(networks):
        return server.group_means(networks, jnp.ones(count), groups, NUM_CLUSTERS)

    return Step(
        "fedcref server",
        f"means of {count} models in {NUM_CLUSTERS} communities",
        run,
        networks,
    )


def _mean(method: str, networks: Any) -> Step:
    count = _count(networks)

    def run(networks):
        return server.weighted_mean(networks, jnp.ones(count))

    return Step(f"{method} server", f"mean of {count} networks", run, networks)


def _state(part: Any, sizes: Sizes) -> Any:
    return part.cases(sizes)[0].arguments[0]


def _count(networks: Any) -> int:
    return len(jax.tree.leaves(networks)[0])


def megabytes(step: Step) -> float:
    """Returns the size of all uploads in MB."""
    return num_bytes(step.uploads) / 1e6
