"""From a script's flags to a checked experiment: data, method, and the grid they span.

A script names its method's flags, its defaults and how to build the method; the rest
is here.
"""

import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from fcjax import data, server
from fcjax.backends import Grid
from fcjax.flags import Common
from fcjax.results import Point, Results
from fcjax.types import FederatedClustering, Federation


class Method(NamedTuple):
    """What a script says of its method."""

    name: str
    settings: Mapping[str, Any]  # resolved hyper-parameters; tuples are swept
    build: Callable[
        [Mapping[str, Any]], FederatedClustering
    ]  # settings of one run -> the method
    scope: Literal["global", "client-mean"]
    paper: Mapping[float, Mapping[str, float]]  # by p: scores on the whole data set


class Experiment(NamedTuple):
    """A validated experiment: nothing is compiled or written yet."""

    args: Common
    method: Method
    dataset: data.Dataset
    num_clusters: int
    results: Results
    partitions: tuple[data.Partition, ...]
    grid: Grid
    left_out: Federation | None
    notes: tuple[str, ...]
    """What became of the data on its way, a line each."""


Args = TypeVar("Args", bound=Common)


def main(
    flags: type[Args], describe: Callable[[Args, data.Dataset, int], Method]
) -> None:
    """Runs a script: reads its flags, checks them, runs the grid, prints the table.

    Args:
        flags: the script's dataclass of flags.
        describe: (flags, data set, number of clusters) -> the method.
    """
    args = tyro.cli(flags)
    try:
        experiment = prepare(args, describe)
    except ValueError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: error: {error}")
    # Late, so that a wrong flag is answered before orbax and matplotlib are imported.
    from fcjax.session import execute

    execute(experiment)


def prepare(
    args: Args, describe: Callable[[Args, data.Dataset, int], Method]
) -> Experiment:
    """Checks everything that can be checked before anything is compiled or written.

    Raises:
        ValueError: one line that names the flag and what it accepts.
    """
    for name in ("clients", "evaluate_every"):
        if getattr(args, name) < 1:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} must be at least 1, got {getattr(args, name)}")
    dataset, extra = load(args)
    num_clusters = clusters_of(args, dataset)
    method = describe(args, dataset, num_clusters)
    points = span(args, dataset, method)
    # Every run is checked, also those that are reused.
    dealt = [partition_of(point, args, dataset, len(extra)) for point in points]
    answers = [failures_of(point, args) for point in points]
    config = configuration(args, method, points[0], num_clusters)
    results = Results(
        args.out or default_folder(config), config, points, resume=args.resume
    )

    pending = results.pending or points
    chosen = [points.index(point) for point in pending]
    partitions = [dealt[i] for i in chosen]
    present = [answers[i] for i in chosen]
    examples = dataset.examples
    if len(extra):
        examples = np.concatenate([examples, extra])
    hyper = {
        name: jnp.array([point[name] for point in pending], jnp.float32)
        for name, value in method.settings.items()
        if isinstance(value, tuple)
    }
    keys = jax.vmap(jax.random.key)(jnp.array([p["seed"] for p in pending]))
    federations = data.federate(
        examples, partitions, present, num_clusters=num_clusters
    )
    runs = -(-len(pending) // jax.device_count())
    pool, placed = data.place(
        examples,
        runs * state_bytes(method, Grid(hyper, keys, federations)),
        where=args.pool,
    )
    left_out = data.federate_left_out(pool, partitions, num_clusters=num_clusters)
    return Experiment(
        args,
        method,
        dataset,
        num_clusters,
        results,
        tuple(partitions),
        Grid(hyper, keys, federations._replace(pool=pool)),
        left_out if method.scope == "global" else None,
        (*dataset.notes, placed),
    )


def load(args: Common) -> tuple[data.Dataset, np.ndarray]:
    """Returns the data that is scored, and further examples to train on."""
    dataset = data.load(
        args.dataset,
        data_dir=args.data_dir,
        split=args.split,
        image_shape=args.image_shape or None,
        labelled=args.labels,
    )
    if args.limit is not None:
        dataset = data.stratified_subset(dataset, args.limit)
    if args.extra_split is None:
        return dataset, dataset.examples[:0]
    extra = data.load_extra(args.dataset, args.extra_split, data_dir=args.data_dir)
    if extra.shape[1:] != dataset.examples.shape[1:]:
        raise ValueError(
            f"--extra-split {args.extra_split} has images of {extra.shape[1:]}, the "
            f"others are of {dataset.examples.shape[1:]}"
        )
    return dataset, extra


def clusters_of(args: Common, dataset: data.Dataset) -> int:
    num_examples, num_clusters = len(dataset.examples), args.clusters
    if num_clusters is None:
        if dataset.labels is None:
            raise ValueError("--clusters is required where the data has no labels")
        num_clusters = len(np.unique(dataset.labels))
        if num_clusters < 2:
            raise ValueError(
                f"--clusters is required: all of {dataset.name} has one class"
            )
    if num_clusters < 2:
        raise ValueError(f"--clusters must be at least 2, got {num_clusters}")
    if num_clusters * args.clients > num_examples:
        raise ValueError(
            f"--clusters {num_clusters} with --clients {args.clients} take at least "
            f"{num_clusters * args.clients} examples, {args.dataset} has {num_examples}"
        )
    return num_clusters


def span(args: Common, dataset: data.Dataset, method: Method) -> list[Point]:
    """Returns the runs of the grid: the product of all that takes several values."""
    swept = {k: v for k, v in method.settings.items() if isinstance(v, tuple)}
    levels = args.p or ((0.0,) if dataset.labels is None else (0.25,))
    shares = {"alpha": args.alpha} if args.alpha else {"p": levels}
    axes = {**shares, **swept, "failure_rate": args.failure_rate, "seed": args.seed}
    for name, values in axes.items():
        if len(set(values)) != len(values) or not values:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} takes one or more different values, got {values}")
    return [
        dict(zip(axes, values, strict=True))
        for values in itertools.product(*axes.values())
    ]


def configuration(
    args: Common, method: Method, point: Point, num_clusters: int
) -> dict[str, Any]:
    """Returns what all runs of the grid share, as a reader of config.json sees it."""
    of_the_data = ("dataset", "image_shape", "labels", "split", "limit", "extra_split")
    config = {
        "method": method.name,
        **{k: v for k, v in method.settings.items() if not isinstance(v, tuple)},
        **{name: getattr(args, name) for name in of_the_data},
        "partition": "alpha" if args.alpha else "p",
        "partition_seed": args.partition_seed,
        "clients": args.clients,
        "clusters": num_clusters,
        "evaluate_every": args.evaluate_every,
        "precision": args.precision,
        "swept": list(point),
    }
    return json.loads(json.dumps(config))


def default_folder(config: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    return Path("runs") / (
        f"{config['method']}-{short_name(config['dataset'])}-{digest[:8]}"
    )


def short_name(dataset: str) -> str:
    """Returns the name of a data set without its folders and ending."""
    name = Path(dataset).name.partition(".")[0] if Path(dataset).exists() else dataset
    return name.replace("/", "-")


def state_bytes(method: Method, grid: Grid) -> int:
    """Returns the size of one run's state."""
    federations = grid.federations
    first = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype),
        (grid.hyper, grid.keys, federations._replace(pool=None)),  # pyright: ignore[reportArgumentType]
    )
    pool = jax.ShapeDtypeStruct(federations.pool.shape, federations.pool.dtype)

    def init(hyper, key, federation, pool):
        built = method.build({**method.settings, **hyper})
        return built.init(key, federation._replace(pool=pool))

    return server.num_bytes(jax.eval_shape(init, *first, pool))


def seed_of(point: Point, args: Common) -> int:
    return int(point["seed"]) if args.partition_seed is None else args.partition_seed


def failures_of(point: Point, args: Common) -> np.ndarray:
    rate, seed = point["failure_rate"], seed_of(point, args)
    return data.failures(args.clients, rate, seed=seed)


def partition_of(
    point: Point, args: Common, dataset: data.Dataset, num_extra: int
) -> data.Partition:
    """Deals the data by --p or --alpha, and the extra rows behind it evenly."""
    seed, labels, count = seed_of(point, args), dataset.labels, len(dataset.examples)
    if labels is None:
        if "alpha" in point or point["p"] != 0:
            raise ValueError("--p must be 0 where the data has no labels to deal by")
        labels = np.zeros(count, int)
    if "alpha" in point:
        partition = data.dirichlet(labels, args.clients, point["alpha"], seed=seed)
    else:
        partition = data.heterogeneous(labels, args.clients, point["p"], seed=seed)
    return data.deal(partition, np.arange(count, count + num_extra), seed=seed)
