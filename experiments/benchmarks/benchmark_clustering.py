"""Seconds of k-means, fuzzy c-means and k-FED beside scikit-learn and scikit-fuzzy.

    python experiments/benchmarks/benchmark_clustering.py
    python experiments/benchmarks/benchmark_clustering.py --dataset mnist --data-dir DIR
    python experiments/benchmarks/benchmark_clustering.py --methods fcm --side theirs

Both sides start from the same centroids and take the same number of iterations, so that
both do the same work; k-FED draws its own seeds on either side. Runs of the two sides
alternate, so that both meet the same noise; a line a method has their medians, the
ratio (below 1 is faster than the other library) and by how much the objectives differ.
With one side alone the peak memory of the process is its own.
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
    """Times clustering of row-normalised examples against other libraries."""

    dataset: str = "digits"
    """digits, or a TFDS data set."""
    data_dir: Path | None = None
    """Where TFDS data sets are prepared."""
    methods: tuple[Literal["km", "fcm", "k-fed"], ...] = ("km", "fcm", "k-fed")
    """What to time."""
    side: Literal["ours", "theirs", "both"] = "both"
    """Whose."""
    clusters: int = 10
    """K, of the server and of the clients of k-FED."""
    clients: int = 10
    """Clients of k-FED, the data dealt at random."""
    iterations: int = 30
    """Iterations of each method."""
    repeats: int = 5
    """Timed runs of each side, after one to warm up."""


Side = Callable[[], float]
"""Does the work once and returns the objective that it reached."""


def km(x: np.ndarray, args: Args) -> tuple[Side, Side]:
    """k-means from the first rows."""
    start, rows = x[: args.clusters], jnp.asarray(x)

    def ours() -> float:
        found = lloyd(rows, jnp.asarray(start), num_iters=args.iterations)
        return float(found.inertia)

    def theirs() -> float:
        return lloyd_from(start, x, args)[1]

    return ours, theirs


def fcm(x: np.ndarray, args: Args) -> tuple[Side, Side]:
    """Fuzzy c-means from rows moved a little, which have no membership of 0 / 0."""
    from skfuzzy import cmeans

    start, rows = jnp.asarray(x[: args.clusters] + 0.01), jnp.asarray(x)
    advance = partial(fuzzy_lloyd, rows, fuzzifier=FUZZIFIER, tolerance=-1.0)
    memberships = np.asarray(advance(start, num_iters=0).memberships).T
    columns = x.T

    def ours() -> float:
        return float(advance(start, num_iters=args.iterations).objective)

    def theirs() -> float:
        centroids, shares, *_ = cmeans(
            columns, args.clusters, FUZZIFIER, -1, args.iterations, init=memberships
        )
        return objective(x, centroids, shares.T)

    return ours, theirs


def objective(x: np.ndarray, centroids: np.ndarray, shares: np.ndarray) -> float:
    """Returns the fuzzy objective of memberships [N, K]."""
    total = 0.0
    for centroid, share in zip(centroids, shares.T, strict=True):
        total += float(share**FUZZIFIER @ np.square(x - centroid).sum(axis=1))
    return total


def k_fed(x: np.ndarray, args: Args) -> tuple[Side, Side]:
    """One round of k-FED on data dealt at random."""
    part = data.heterogeneous(np.zeros(len(x), int), args.clients, 0.0, seed=0)
    settings = KFed(local_clusters=args.clusters, unit_length=False).plain()
    method = kfed(settings, num_clusters=args.clusters, num_iters=args.iterations)
    present = [data.failures(args.clients, 0.0, seed=0)]
    one = data.federate(x, [part], present, num_clusters=args.clusters)
    federation = Federation(one.pool, *jax.tree.map(lambda leaf: leaf[0], one[1:]))
    now = Now(jnp.int32(0), jnp.int32(0), jnp.array(True))
    federation = federation._replace(now=now)
    (stage,) = method.stages
    state = method.init(jax.random.key(0), federation)
    step = jax.jit(stage.round)

    def ours() -> float:
        return float(step(jax.random.key(1), state, federation)[1]["loss"])

    def theirs() -> float:
        found = [local_kmeans(x[rows], args) for rows in part.clients]
        received = np.concatenate([centroids for centroids, _ in found])
        start = received[: args.clusters]
        lloyd_from(start, received, args)
        sizes = [len(rows) for rows in part.clients]
        each = [inertia / n for (_, inertia), n in zip(found, sizes, strict=True)]
        return float(np.mean(each))

    return ours, theirs


def local_kmeans(x: np.ndarray, args: Args) -> tuple[np.ndarray, float]:
    """A client of k-FED in scikit-learn: projection, seeds, separation, Lloyd."""
    projected = TruncatedSVD(args.clusters, random_state=0).fit_transform(x)
    seeds, _ = kmeans_plusplus(projected, args.clusters, random_state=0)
    distances = np.linalg.norm(projected[:, None] - seeds[None], axis=-1)
    nearest, rival = np.sort(distances, axis=1)[:, :2].T
    apart = 3 * nearest <= rival
    labels = distances.argmin(axis=1)
    start = np.array(
        [
            x[apart & (labels == k)].mean(axis=0)
            if (apart & (labels == k)).any()
            else x[distances[:, k].argmin()]
            for k in range(args.clusters)
        ]
    )
    return lloyd_from(start, x, args)


def lloyd_from(
    start: np.ndarray, x: np.ndarray, args: Args
) -> tuple[np.ndarray, float]:
    """Returns scikit-learn's centroids and inertia."""
    # Typed from defaults that are text.
    settings: Any = {"init": start, "n_init": 1, "max_iter": args.iterations, "tol": 0}
    found: Any = k_means(x, len(start), **settings)
    return found[0], found[2]


def main(args: Args) -> None:
    """Prints a line a method; raises ValueError where a flag is wrong."""
    for name in ("clusters", "clients", "iterations", "repeats"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    if "fcm" in args.methods and importlib.util.find_spec("skfuzzy") is None:
        raise ValueError('--methods fcm needs scikit-fuzzy: pip install -e ".[bench]"')
    examples = data.load(args.dataset, data_dir=args.data_dir).examples
    x = np.asarray(as_rows(jnp.asarray(examples), unit_length=True))
    print(
        f"{args.dataset}: {x.shape[0]} x {x.shape[1]}, {args.iterations} iterations; "
        f"{jax.devices()[0].device_kind}, JAX {jax.__version__}"
    )
    for method in args.methods:
        both = dict(zip(("ours", "theirs"), METHODS[method](x, args), strict=True))
        sides = {k: v for k, v in both.items() if args.side in (k, "both")}
        reached = {name: side() for name, side in sides.items()}
        seconds = alternate(sides, args.repeats)
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        told = [
            f"{name} {medians[name]:.3f} s ({min(times):.3f} to {max(times):.3f})"
            for name, times in seconds.items()
        ]
        if args.side == "both":
            told.append(f"ratio {medians['ours'] / medians['theirs']:.2f}")
            apart = reached["ours"] / reached["theirs"] - 1
            told.append(f"objectives differ by {apart:+.1e}")
        print(f"{method}: {', '.join(told)}", flush=True)
    print(f"peak memory {readable(peak_memory())}")


METHODS = {"km": km, "fcm": fcm, "k-fed": k_fed}

if __name__ == "__main__":
    with exit_on_error():
        main(tyro.cli(Args, description=__doc__))
