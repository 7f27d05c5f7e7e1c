"""What every script shares: the common flags and the grid that they span.

A script names its method's flags, its defaults and how to build the method; the rest
is here.
"""

import dataclasses
import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from fcjax import data
from fcjax.backends import Backend, Grid
from fcjax.results import Point, Results
from fcjax.types import FederatedClustering, Federation

Preset = Literal["smoke", "default", "paper"]


def shown(default: str):
    """Tells `--help` what a flag that is not given stands for."""
    return tyro.conf.arg(help_behavior_hint=f"(default: {default})")


@dataclasses.dataclass(frozen=True)
class Common:
    """The flags of every script; those that take several values span the grid."""

    dataset: str = "digits"
    """digits (8x8, embedded) or the name of a prepared TFDS image data set."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    split: Literal["all", "train", "test"] = "all"
    """Which examples; all joins train and test, as the papers do."""
    limit: Annotated[int | None, shown("all")] = None
    """Use so many examples, drawn in proportion to the classes."""
    clients: int = 10
    """How many clients the data is dealt to."""
    clusters: Annotated[int | None, shown("the number of classes")] = None
    """How many clusters to find."""
    p: Annotated[tuple[float, ...], shown("0.25; 0 without labels")] = ()
    """Heterogeneity: 0 deals at random, 1 gives every client a class of its own."""
    alpha: Annotated[tuple[float, ...], shown("deal by --p")] = ()
    """Deal by Dirichlet shares of this concentration instead of by --p."""
    seed: tuple[int, ...] = (0,)
    """Seeds of training."""
    partition_seed: Annotated[int | None, shown("the run's own --seed")] = None
    """Seed of the partition and of failures."""
    failure_rate: tuple[float, ...] = (0.0,)
    """Share of the clients that never answer; their data is scored all the same."""
    preset: Preset = "default"
    """smoke: a minute; default: chosen for the data set; paper: the paper's settings.
    An explicit flag wins over all of them."""
    out: Annotated[Path | None, shown("runs/METHOD-DATASET-HASH")] = None
    """Results folder."""
    resume: bool = True
    """Reuse finished runs of the folder and go on from its checkpoint."""
    evaluate_every: int = 1
    """Score every so many rounds; the last round of a stage always is."""
    checkpoint_interval: float = 60.0
    """Seconds between two checkpoints."""
    backend: Backend = "shard_map"
    """How runs are spread over the devices."""
    precision: Literal["highest", "high", "default"] = "highest"
    """Of the networks' matrix products; distances and averages stay at float32."""
    plot: bool = True
    """Draw learning curves and the embedding of the first run."""


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
    dataset = data.load(args.dataset, data_dir=args.data_dir, split=args.split)
    if args.limit is not None:
        dataset = data.stratified_subset(dataset, args.limit)
    num_examples = len(dataset.examples)
    num_clusters = args.clusters
    if num_clusters is None:
        if dataset.labels is None:
            raise ValueError("--clusters is required where the data has no labels")
        num_clusters = len(np.unique(dataset.labels))
    if num_clusters < 2:
        raise ValueError(f"--clusters must be at least 2, got {num_clusters}")
    if num_clusters * args.clients > num_examples:
        raise ValueError(
            f"--clusters {num_clusters} with --clients {args.clients} take at least "
            f"{num_clusters * args.clients} examples, {args.dataset} has {num_examples}"
        )
    method = describe(args, dataset, num_clusters)

    swept = {k: v for k, v in method.settings.items() if isinstance(v, tuple)}
    level = 0.25 if dataset.labels is not None else 0.0
    shares = {"alpha": args.alpha} if args.alpha else {"p": args.p or (level,)}
    axes = {**shares, **swept, "failure_rate": args.failure_rate, "seed": args.seed}
    for name, values in axes.items():
        if len(set(values)) != len(values) or not values:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} takes one or more different values, got {values}")
    points = [
        dict(zip(axes, values, strict=True))
        for values in itertools.product(*axes.values())
    ]
    for point in points:  # every run is checked, also those that are reused
        partition_of(point, args, dataset)
        data.failures(args.clients, point["failure_rate"], seed=seed_of(point, args))

    config = {
        "method": method.name,
        **{k: v for k, v in method.settings.items() if not isinstance(v, tuple)},
        **{name: getattr(args, name) for name in ("dataset", "split", "limit")},
        "partition": next(iter(shares)),
        "partition_seed": args.partition_seed,
        "clients": args.clients,
        "clusters": num_clusters,
        "evaluate_every": args.evaluate_every,
        "precision": args.precision,
        "swept": list(axes),
    }
    # As a reader of config.json will see it: lists for tuples and the like.
    config = json.loads(json.dumps(config))
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    name = f"{method.name}-{args.dataset.replace('/', '-')}-{digest[:8]}"
    results = Results(
        args.out or Path("runs") / name, config, points, resume=args.resume
    )

    pending = results.pending or points
    partitions = [partition_of(point, args, dataset) for point in pending]
    present = [
        data.failures(args.clients, p["failure_rate"], seed=seed_of(p, args))
        for p in pending
    ]
    pool = jnp.asarray(dataset.examples)
    federations = data.federate(pool, partitions, present, num_clusters=num_clusters)
    left_out = data.federate_left_out(pool, partitions, num_clusters=num_clusters)
    hyper = {k: jnp.array([p[k] for p in pending], jnp.float32) for k in swept}
    keys = jax.vmap(jax.random.key)(jnp.array([p["seed"] for p in pending]))
    return Experiment(
        args,
        method,
        dataset,
        num_clusters,
        results,
        tuple(partitions),
        Grid(hyper, keys, federations),
        left_out if method.scope == "global" else None,
    )


def choose(defaults: Mapping[str, Any], args: Common) -> dict[str, Any]:
    """Returns the method's settings: its own flags, and defaults where not given.

    Args:
        defaults: by flag; what a flag left at None or () stands for.
        args: the script's flags; the common ones are left out.

    Raises:
        ValueError: a number that must be positive is not.
    """
    common = {field.name for field in dataclasses.fields(Common)}
    settings = {}
    for field in dataclasses.fields(args):
        if field.name in common:
            continue
        value = getattr(args, field.name)
        if value is None or value == ():
            value = defaults[field.name]
        flag = "--" + field.name.replace("_", "-")
        if isinstance(value, int) and not isinstance(value, bool):
            low = 0 if field.name.endswith("_rounds") else 1
            if value < low:
                raise ValueError(f"{flag} must be at least {low}, got {value}")
        if isinstance(value, tuple) and not all(0 <= v < float("inf") for v in value):
            raise ValueError(f"{flag} must be finite and at least 0, got {value}")
        settings[field.name] = value
    return settings


def seed_of(point: Point, args: Common) -> int:
    return int(point["seed"]) if args.partition_seed is None else args.partition_seed


def partition_of(point: Point, args: Common, dataset: data.Dataset) -> data.Partition:
    seed, labels = seed_of(point, args), dataset.labels
    if labels is None:
        if "alpha" in point or point["p"] != 0:
            raise ValueError("--p must be 0 where the data has no labels to deal by")
        labels = np.zeros(len(dataset.examples), int)
    if "alpha" in point:
        return data.dirichlet(labels, args.clients, point["alpha"], seed=seed)
    return data.heterogeneous(labels, args.clients, point["p"], seed=seed)
