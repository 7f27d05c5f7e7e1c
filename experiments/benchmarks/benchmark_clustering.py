"""Times k-means, fuzzy c-means and k-FED against scikit-learn and scikit-fuzzy.

    python experiments/benchmarks/benchmark_clustering.py
    python experiments/benchmarks/benchmark_clustering.py --dataset mnist --data-dir DIR
    python experiments/benchmarks/benchmark_clustering.py --methods fcm --side theirs

Both libraries start from the same centroids and run the same number of iterations, so
that they do the same work. Only k-FED draws its own initial centroids in each library.
Runs of the two libraries alternate, so that both have the same background load. The
output has one line per method: median times, their ratio (below 1: fcjax is faster),
and the relative difference of the objectives. With --side ours or --side theirs, the
peak memory is for one library.
"""

import dataclasses
import importlib.util
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from sklearn.cluster import k_means, kmeans_plusplus
from sklearn.decomposition import TruncatedSVD

from experiments.benchmarks.benchmark import alternate
from fcjax import data
from fcjax.algorithms.kfed import kfed
from fcjax.cli.errors import exit_on_error
from fcjax.cluster import fuzzy_lloyd, lloyd
from fcjax.data.augment import as_rows
from fcjax.data.federation import peak_memory, readable
from fcjax.methods import KFed
from fcjax.types import Federation, Now

FUZZIFIER = 1.1


@dataclasses.dataclass(frozen=True)
class Args:
    """Times clustering of examples with unit length against other libraries."""

    dataset: str = "digits"
    """digits, or the name of a TFDS data set."""
    data_dir: Path | None = None
    """Folder with the prepared TFDS data sets."""
    methods: tuple[Literal["km", "fcm", "k-fed"], ...] = ("km", "fcm", "k-fed")
    """Methods to time."""
    side: Literal["ours", "theirs", "both"] = "both"
    """Library to time: ours is fcjax, theirs is scikit-learn or scikit-fuzzy."""
    clusters: int = 10
    """Number of clusters K. For k-FED: of the server and of each client."""
    clients: int = 10
    """Number of clients of k-FED. The data is partitioned at random."""
    iterations: int = 30
    """Number of iterations of each method."""
    repeats: int = 5
    """Number of timed runs per library, after one warm-up run."""


Side = Callable[[], float]
"""Function that clusters once and returns the objective."""


def km(x: np.ndarray, args: Args) -> tuple[Side, Side]:
    """Returns k-means in both libraries, from the first examples as centroids.

    Args:
        x: [N, D] the examples.
        args: the command-line arguments.

    Returns:
        The functions of fcjax and of scikit-learn.
    """
    start, rows = x[: args.clusters], jnp.asarray(x)

    def ours() -> float:
        result = lloyd(rows, jnp.asarray(start), num_iters=args.iterations)
        return float(result.inertia)

    def theirs() -> float:
        return lloyd_from(start, x, args)[1]

    return ours, theirs


def fcm(x: np.ndarray, args: Args) -> tuple[Side, Side]:
    """Returns fuzzy c-means in both libraries.

    The initial centroids are the first examples plus 0.01. At the examples themselves
    the membership is 0 / 0.

    Args:
        x: the examples.
        args: the command-line arguments.

    Returns:
        The functions of fcjax and of scikit-fuzzy.
    """
    from skfuzzy import cmeans

    start, rows = jnp.asarray(x[: args.clusters] + 0.01), jnp.asarray(x)
    advance = partial(fuzzy_lloyd, rows, fuzzifier=FUZZIFIER, tolerance=-1.0)
    memberships = np.asarray(advance(start, num_iters=0).memberships).T
    columns = x.T

    def ours() -> float:
        return float(advance(start, num_iters=args.iterations).objective)

    def theirs() -> float:
        centroids, final_memberships, *_ = cmeans(
            columns, args.clusters, FUZZIFIER, -1, args.iterations, init=memberships
        )
        return objective(x, centroids, final_memberships.T)

    return ours, theirs


def objective(x: np.ndarray, centroids: np.ndarray, shares: np.ndarray) -> float:
    """Returns the objective of fuzzy c-means for memberships [N, K]."""
    total = 0.0
    for centroid, share in zip(centroids, shares.T, strict=True):
        total += float(share**FUZZIFIER @ np.square(x - centroid).sum(axis=1))
    return total


def k_fed(x: np.ndarray, args: Args) -> tuple[Side, Side]:
    """Returns one round of k-FED in both libraries, on data partitioned at random.

    Args:
        x: [N, D] the examples of all clients.
        args: the command-line arguments.

    Returns:
        The functions of fcjax and of scikit-learn.
    """
    partition = data.heterogeneous(np.zeros(len(x), int), args.clients, 0.0, seed=0)
    settings = KFed(local_clusters=args.clusters, unit_length=False).plain()
    method = kfed(settings, num_clusters=args.clusters, num_iters=args.iterations)
    present = [data.failures(args.clients, 0.0, seed=0)]
    batch = data.federate(x, [partition], present, num_clusters=args.clusters)
    federation = Federation(batch.pool, *jax.tree.map(lambda leaf: leaf[0], batch[1:]))
    now = Now(jnp.int32(0), jnp.int32(0), jnp.array(True))
    federation = federation._replace(now=now)
    (stage,) = method.stages
    state = method.init(jax.random.key(0), federation)
    step = jax.jit(stage.round)

    def ours() -> float:
        return float(step(jax.random.key(1), state, federation)[1]["loss"])

    def theirs() -> float:
        results = [local_kmeans(x[rows], args) for rows in partition.clients]
        received = np.concatenate([centroids for centroids, _ in results])
        start = received[: args.clusters]
        lloyd_from(start, received, args)
        sizes = [len(rows) for rows in partition.clients]
        mean_inertias = [
            inertia / n for (_, inertia), n in zip(results, sizes, strict=True)
        ]
        return float(np.mean(mean_inertias))

    return ours, theirs


def local_kmeans(x: np.ndarray, args: Args) -> tuple[np.ndarray, float]:
    """Clusters the data of a k-FED client with scikit-learn.

    The steps are projection, seeding, separation and Lloyd's algorithm.

    Args:
        x: the examples of the client.
        args: the command-line arguments.

    Returns:
        The centroids and the inertia.
    """
    projected = TruncatedSVD(args.clusters, random_state=0).fit_transform(x)
    seeds, _ = kmeans_plusplus(projected, args.clusters, random_state=0)
    distances = np.linalg.norm(projected[:, None] - seeds[None], axis=-1)
    nearest, rival = np.sort(distances, axis=1)[:, :2].T
    is_core = 3 * nearest <= rival
    labels = distances.argmin(axis=1)
    start = np.array(
        [
            x[is_core & (labels == k)].mean(axis=0)
            if (is_core & (labels == k)).any()
            else x[distances[:, k].argmin()]
            for k in range(args.clusters)
        ]
    )
    return lloyd_from(start, x, args)


def lloyd_from(
    start: np.ndarray, x: np.ndarray, args: Args
) -> tuple[np.ndarray, float]:
    """Returns scikit-learn's centroids and inertia after Lloyd's algorithm."""
    # scikit-learn's types come from defaults that are text, so they are too narrow.
    settings: Any = {"init": start, "n_init": 1, "max_iter": args.iterations, "tol": 0}
    result: Any = k_means(x, len(start), **settings)
    return result[0], result[2]


def main(args: Args) -> None:
    """Times the methods and prints one line per method.

    Args:
        args: the command-line arguments.

    Raises:
        ValueError: an argument is wrong. The message is one line that names the flag
            and the accepted values.
    """
    for name in ("clusters", "clients", "iterations", "repeats"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    if "fcm" in args.methods and importlib.util.find_spec("skfuzzy") is None:
        raise ValueError('--methods fcm needs scikit-fuzzy: pip install -e ".[bench]"')
    examples = data.load(args.dataset, data_dir=args.data_dir).examples
    x = np.asarray(as_rows(jnp.asarray(examples), unit_length=True))
    print(
        f"{args.dataset}: {x.shape[0]} examples x {x.shape[1]} features, "
        f"{args.iterations} iterations, {jax.devices()[0].device_kind}, "
        f"JAX {jax.__version__}; times are median (minimum to maximum)"
    )
    for method in args.methods:
        both = dict(zip(("ours", "theirs"), METHODS[method](x, args), strict=True))
        sides = {k: v for k, v in both.items() if args.side in (k, "both")}
        objectives = {name: side() for name, side in sides.items()}
        seconds = alternate(sides, args.repeats)
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        other = "scikit-fuzzy" if method == "fcm" else "scikit-learn"
        libraries = {"ours": "fcjax", "theirs": other}
        cells = [
            f"{libraries[name]} {medians[name]:.3f} s "
            f"({min(times):.3f} to {max(times):.3f})"
            for name, times in seconds.items()
        ]
        if args.side == "both":
            cells.append(f"ratio {medians['ours'] / medians['theirs']:.2f}")
            difference = objectives["ours"] / objectives["theirs"] - 1
            cells.append(f"relative difference of the objectives {difference:+.1e}")
        print(f"{method}: {', '.join(cells)}", flush=True)
    print(f"peak memory {readable(peak_memory())}")


METHODS = {"km": km, "fcm": fcm, "k-fed": k_fed}

if __name__ == "__main__":
    with exit_on_error():
        main(tyro.cli(Args, description=__doc__))
