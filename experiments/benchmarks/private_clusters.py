"""Measures the clusters of private federated k-means against the privacy budget.

    python experiments/benchmarks/private_clusters.py digits
    python experiments/benchmarks/private_clusters.py runs/ccfc-digits-1234abcd

The argument is the name or path of a data set, or the results folder of a run. The
examples are scaled to unit length. From a results folder, the embedding of its first
run is clustered, with half-whitening. Federated k-means is compared with the k-means of
diffprivlib, which has all examples in one place: pip install "fcjax[bench]".
"""

import dataclasses
import time
import warnings
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import fcjax
from experiments.benchmarks.benchmark import titles
from fcjax import data, metrics
from fcjax.cli.errors import exit_on_error
from fcjax.data.augment import as_rows
from fcjax.engine import Program
from fcjax.federated.kmeans import HALF, Clusters, KMeans, no_clusters
from fcjax.privacy.accounting import noise_of
from fcjax.privacy.kmeans import STEPS, PrivateKMeans, parts_of
from fcjax.types import FederatedClustering, Federation, Grid, State


@dataclasses.dataclass(frozen=True)
class Args:
    """Compares private k-means with k-means and with diffprivlib."""

    data: Annotated[str, tyro.conf.Positional]
    """Name or path of a data set, or a results folder."""
    epsilon: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    """Privacy budgets."""
    delta: float = 1e-5
    """Probability delta of the guarantee."""
    clients: int = 10
    """Number of clients."""
    seeds: int = 5
    """Number of seeds of the noise."""
    limit: int | None = None
    """Number of examples of the data set; None uses all."""
    whiten: bool = True
    """Half-whiten the embedding of a run."""
    per_client: bool = False
    """Protect clients instead of examples."""
    data_dir: Path | None = None
    """Folder of prepared TFDS data sets."""


class Server(NamedTuple):
    """The server's state."""

    clusters: Clusters


def build(points: np.ndarray, num_clusters: int, args: Args, hyper: Any, **options):
    """Builds private k-means of given points, or k-means without `noise`.

    Args:
        points: the points [P, D].
        num_clusters: K.
        args: the command-line arguments.
        hyper: `noise`, the noise multiplier; empty for k-means without noise.
        **options: `whitens`.

    Returns:
        The method with one stage.
    """
    whitens = options["whitens"]

    def embed(_, federation):
        return federation.pool[federation.indices]

    def with_mask(state, federation):
        return embed(state, federation), federation.mask

    def init(key, federation):
        del key, federation
        return State(Server(no_clusters(num_clusters, points.shape[1])))

    def assign(state, federation):
        return jax.vmap(state.server.clusters.nearest)(embed(state, federation))

    if "noise" in hyper:
        stage = PrivateKMeans(
            *(with_mask, num_clusters, hyper["noise"]),
            parts_of(STEPS, whitens=whitens),
            per_client=args.per_client,
        ).stage()
    else:
        stage = KMeans(with_mask, num_clusters, whitening=HALF * whitens).stage()
    return FederatedClustering(init, (stage,), embed, assign)


def clusters_of(
    points: np.ndarray,
    num_clusters: int,
    noises: list[float],
    args: Args,
    whitens: bool,
) -> tuple[np.ndarray, float]:
    """Clusters points once per noise and seed, in one program.

    Args:
        points: the points [P, D].
        num_clusters: K.
        noises: noise multipliers; an empty list runs k-means without noise.
        args: the command-line arguments.
        whitens: whether to half-whiten the points.

    Returns:
        The clusters [G, P], with the seeds of a noise next to each other, and the
        seconds of a second execution, without compilation.
    """
    count = max(1, len(noises)) * args.seeds
    size = len(points) // args.clients
    order = np.random.default_rng(0).permutation(len(points))
    rows = order[: size * args.clients].reshape(args.clients, size)
    federations = Federation(
        pool=jnp.asarray(points, jnp.float32),
        indices=jnp.broadcast_to(rows, (count, *rows.shape)),
        mask=jnp.ones((count, *rows.shape), bool),
        present=jnp.ones((count, 1, args.clients), bool),
        local_clusters=jnp.full((count, args.clients), num_clusters),
    )
    keys = jax.vmap(jax.random.key)(
        jnp.tile(jnp.arange(args.seeds), count // args.seeds)
    )
    hyper = (
        {"noise": jnp.repeat(jnp.array(noises), args.seeds)}
        if noises
        else {"unused": jnp.zeros(count)}
    )
    grid = Grid(hyper, keys, federations)
    program = Program(
        lambda hyper: build(points, num_clusters, args, hyper, whitens=whitens)
    )
    program.run(grid)
    start = time.perf_counter()
    state = jax.block_until_ready(program.run(grid))
    seconds = time.perf_counter() - start
    found = np.full((count, len(points)), -1)
    assigned = np.asarray(program.assign(grid, state))
    found[:, rows.ravel()] = assigned.reshape(count, -1)
    return found, seconds


def diffprivlib_clusters(
    points: np.ndarray, num_clusters: int, epsilon: float, seed: int
) -> np.ndarray:
    """Clusters points by the k-means of diffprivlib.

    Args:
        points: the points [P, D].
        num_clusters: K.
        epsilon: the budget of pure differential privacy.
        seed: the random seed.

    Returns:
        The clusters [P].
    """
    import sklearn.tree._tree as tree

    # diffprivlib 0.6.6 imports these names for its forests. scikit-learn removed them.
    for name, kind in {"DOUBLE": np.float64, "DTYPE": np.float32}.items():
        if not hasattr(tree, name):
            setattr(tree, name, kind)
    from diffprivlib.models import (  # pyright: ignore[reportMissingImports]
        KMeans as DiffprivlibKMeans,
    )

    # The bounds hold for all vectors of unit length, so they do not reveal examples.
    least = -1.0 if points.min() < 0 else 0.0
    model = DiffprivlibKMeans(
        num_clusters, epsilon=epsilon, bounds=(least, 1.0), random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit_predict(points)


def main(args: Args) -> None:
    """Prints the table.

    Args:
        args: the command-line arguments.
    """
    whitens = False
    if (Path(args.data) / "config.json").exists():
        run = fcjax.open(args.data, data_dir=args.data_dir)[0]
        points, labels = run.embedding_, run.dataset.labels
        whitens = args.whiten
    else:
        dataset = data.load(args.data, data_dir=args.data_dir, limit=args.limit)
        points = np.asarray(as_rows(jnp.asarray(dataset.examples), unit_length=True))
        labels = dataset.labels
    if labels is None:
        raise ValueError(f"{args.data} has no labels to score clusters with")
    num_clusters = len(np.unique(labels))

    def scores(clusters: np.ndarray) -> float:
        known = clusters >= 0
        return float(metrics.nmi(labels[known], clusters[known]))

    parts = parts_of(STEPS, whitens=whitens)
    noises = [noise_of(parts, epsilon, args.delta) for epsilon in args.epsilon]
    find = partial(clusters_of, points, num_clusters, args=args, whitens=whitens)
    plain, plain_seconds = find(noises=[])
    private, seconds = find(noises=noises)
    rows = []
    for i, epsilon in enumerate(args.epsilon):
        ours = private[i * args.seeds : (i + 1) * args.seeds]
        theirs = [
            diffprivlib_clusters(points, num_clusters, epsilon, seed)
            for seed in range(args.seeds)
        ]
        rows.append(
            [f"{epsilon:g}", summary(map(scores, ours)), summary(map(scores, theirs))]
        )
    print(
        f"{args.data}: {len(points):,} examples with {points.shape[1]} values, "
        f"{num_clusters} clusters, {args.clients} clients, {args.seeds} seeds, delta "
        f"{args.delta:g}, {'half-whitened' if whitens else 'not whitened'}; NMI with "
        "the classes, mean and standard deviation\n"
    )
    print(titles(["epsilon", "fcjax, federated", "diffprivlib, central"]))
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print(f"| no privacy | {summary(map(scores, plain))} | |")
    print(
        f"\n{len(private)} private runs in one program: {seconds:.2f} s; "
        f"{len(plain)} runs without privacy: {plain_seconds:.2f} s"
    )


def summary(values: Iterable[float]) -> str:
    """Returns mean and standard deviation as text."""
    each = list(values)
    return f"{np.mean(each):.3f} ± {np.std(each, ddof=min(1, len(each) - 1)):.3f}"


if __name__ == "__main__":
    with exit_on_error():
        main(tyro.cli(Args, description=__doc__))
