"""The grid of runs: heterogeneity, partitions, and shape groups.

What will run: the runs of a grid, and which of them share a program.

The product of all flags of several values is the grid. Runs whose arrays have the same
shapes are a batch, which is compiled once, and is split into as many runs as fit in
memory side by side.
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcjax import data
from fcjax.data.partition import RULES, examples_per_class
from fcjax.data.source import short_name
from fcjax.methods.base import MethodSpec, Problem
from fcjax.parallel.mesh import are_several, num_bytes
from fcjax.ragged import Ragged, places
from fcjax.results.store import Point
from fcjax.sweep.flags import Common, Default, check_values, flag_of, of_method
from fcjax.types import FederatedClustering, Federation, Grid, Now

# --- Partitions of a run

BELONGING = {
    "overlap": ("class_range", "samples_per_class"),
    "natural": ("max_clients", "min_client_size"),
}
"""By rule, what else it takes."""


def owned(args: Any, dataset: data.Dataset) -> tuple[Common, data.Dataset]:
    """Returns the flags and the data once it is known whether the clients are the
    data's own: those are dealt where it has them, unless another rule is asked for.

    Raises:
        ValueError: a flag of such clients is given and they are not dealt, or a number
            of clients where they are.
    """
    some = {"max_clients": args.max_clients, "min_client_size": args.min_client_size}
    given = [name for name, value in some.items() if value != getattr(Common, name)]
    values = {name: getattr(args, name) for name in RULES}
    defaults = [name for name, x in values.items() if isinstance(x, Default)]
    asked = [name for name, x in values.items() if x and name not in defaults]
    if given and (asked or dataset.clients is None):
        flag = flag_of(given[0])
        why = "says of none" if dataset.clients is None else f"is dealt by --{asked[0]}"
        raise ValueError(
            f"{flag} is of the data's own clients, but {args.dataset} "
            f"{why.replace('_', '-')}"
        )
    if dataset.clients is None:
        return args, dataset
    if asked:
        flag = asked[0].replace("_", "-")
        told = f"clients of the data not dealt: --{flag} is given"
        return args, dataset._replace(notes=(*dataset.notes, told))
    if not isinstance(args.clients, Default):
        raise ValueError(
            "--clients is how many the data is dealt to, but it has clients of its "
            "own; give --max-clients, or --p 0 to deal it at random"
        )
    clients, told = data.select_clients(
        dataset.clients, most=args.max_clients, least_size=args.min_client_size
    )
    dataset = dataset._replace(clients=clients, notes=(*dataset.notes, told))
    count = len(np.unique(clients[clients >= 0]))
    changes = {**dict.fromkeys(defaults, ()), "natural": (1,), "clients": (count,)}
    return dataclasses.replace(args, **changes), dataset


def rule_of(args: Any) -> str:
    """Returns which of the rules is asked for, p where no other one is.

    Raises:
        ValueError: two are given, or what belongs to one that is not.
    """
    values = {name: getattr(args, name) for name in RULES}
    asked = [
        x for x, value in values.items() if value and not isinstance(value, Default)
    ]
    asked = asked or [x for x, value in values.items() if value]
    if len(asked) > 1:
        one, other = (flag_of(name) for name in asked[:2])
        raise ValueError(f"{one} and {other} are two rules of dealing, give one")
    rule = asked[0] if asked else "p"
    if args.class_range is not None and rule != "overlap":
        raise ValueError("--class-range is of clients dealt by --overlap, give both")
    return rule


def configuration(args: Any) -> dict[str, Any]:
    """Returns the rule and what else it takes, as config.json holds it."""
    rule = rule_of(args)
    own = {name: getattr(args, name) for name in BELONGING.get(rule, ())}
    return {"partition": rule, **own}


def levels_of(args: Any, dataset: data.Dataset) -> tuple[float | int, ...]:
    """Returns the values of the rule that the grid has."""
    default = 0.0 if dataset.labels is None else 0.25
    return getattr(args, rule_of(args)) or (default,)


def levels_by_classes(
    args: Any, dataset: data.Dataset
) -> dict[int, tuple[float | int, ...]]:
    """Returns the levels by the most classes that a client is given at them; none where
    the rule does not tell."""
    rule, found = rule_of(args), levels_of(args, dataset)
    if rule == "classes_per_client":
        return {int(number): (number,) for number in found}
    if rule == "overlap" and dataset.labels is not None:
        return {class_range(args, dataset.labels)[1]: found}
    return {}


def class_range(args: Any, labels: np.ndarray) -> tuple[int, int]:
    """Returns the least and the most classes of a client that is dealt by --overlap."""
    return args.class_range or (2, max(2, len(np.unique(labels)) // 2))


def num_held(args: Any, dataset: data.Dataset) -> int:
    """Returns how many examples all clients have together, before --client-size."""
    if args.natural and dataset.clients is not None:
        return int((dataset.clients >= 0).sum())
    return len(dataset.examples)


def rows_of_client(args: Any, dataset: data.Dataset, num_clients: int) -> float:
    """Returns how many examples a client trains on, in the middle, one at least.

    It is what the rule deals at its first level, whatever the seed draws: of --overlap
    for the middle of the class range, so many holders of each class, and classes that
    are all of one size. Those of --extra-split are not counted.

    Args:
        args: the flags; --client-size holds, the largest of several.
        dataset: what is dealt.
        num_clients: M.
    """
    size, labels = num_held(args, dataset), dataset.labels
    rows = size / num_clients
    if rule_of(args) == "overlap" and labels is not None:
        num_classes, classes = len(np.unique(labels)), middle_classes(args, labels)
        holders = max(round(num_clients * classes / num_classes), 1)
        each = min(args.samples_per_class, size // num_classes // holders)
        rows = classes * examples_per_class(each, holders, args.overlap[0])
    return max(1.0, float(min(rows, max(args.client_size, default=rows))))


def cluster_size(
    args: Any, dataset: data.Dataset, num_clients: int, num_clusters: int
) -> int:
    """Returns how many examples there are of each cluster of a client, in the middle.

    Args:
        args, dataset, num_clients: as in `rows_of_client`.
        num_clusters: K, what clients look for where it is not what they hold.
    """
    own, labels = float(num_clusters), dataset.labels
    if rule_of(args) == "overlap" and labels is not None and not args.clusters:
        own = middle_classes(args, labels)
    return round(rows_of_client(args, dataset, num_clients) / own)


def middle_classes(args: Any, labels: np.ndarray) -> float:
    """Returns how many classes a client dealt by --overlap has, in the middle."""
    return max(sum(class_range(args, labels)) / 2, 1.0)


def seed_of(point: Point, args: Any) -> int:
    return int(point["seed"]) if args.partition_seed is None else args.partition_seed


def dealer(
    args: Any,
    dataset: data.Dataset,
    num_extra: int,
    partition: data.Partition | None = None,
) -> Callable[[Point], data.Partition]:
    """Returns a function that deals the data by its rule, and the extra rows behind it
    evenly, and leaves each client the examples it may use; runs that are dealt alike
    share one partition.

    With `partition`, the data's own clients hold their examples in its order.
    """
    rule, labels, count = rule_of(args), dataset.labels, len(dataset.examples)
    known = np.zeros(count, int) if labels is None else labels
    by_rule = RULES[rule]
    if rule == "overlap":
        by_rule = partial(
            by_rule,
            class_range=class_range(args, known),
            samples_per_class=args.samples_per_class,
        )
    dealt_by = dataset.clients if rule == "natural" else known
    extra = np.arange(count, count + num_extra)
    # To a client's subset the extra rows are one class more.
    kinds = np.concatenate([known, np.full(num_extra, int(known.max()) + 1)])
    dealt: dict[tuple, data.Partition] = {}

    def deal(point: Point) -> data.Partition:
        if labels is None and rule not in ("natural", "p"):
            flag = flag_of(rule)
            raise ValueError(f"{flag} deals by labels, and the data has none")
        if labels is None and rule == "p" and point["p"] != 0:
            raise ValueError("--p must be 0 where the data has no labels to deal by")
        seed, size = seed_of(point, args), point.get("client_size")
        key = (point[rule], point["clients"], size, seed)
        if key not in dealt:
            held = partition if rule == "natural" else None
            held = held or by_rule(
                dealt_by, int(point["clients"]), point[rule], seed=seed
            )
            if args.clusters:  # then all look for so many
                held = held._replace(local_clusters=None)
            held = data.add_evenly(held, extra, seed=seed)
            if size is not None:
                held = data.subsample_clients(held, kinds, int(size), seed=seed)
            dealt[key] = held
        return dealt[key]

    return deal


# --- Runs and shape groups

Describe = Callable[[Any, data.Dataset, int, int], MethodSpec]
"""(flags, data set, number of clients, number of clusters) -> the method. The flags
hold one level of the rule of dealing; levels at which clients hold as much of a cluster
are described once."""


def describe(
    args: Any, dataset: data.Dataset, num_clients: int, num_clusters: int
) -> MethodSpec:
    """Returns the method of a script's flags, resolved for the data: see `Describe`."""
    return of_method(args).resolve(problem_of(args, dataset, num_clients, num_clusters))


def problem_of(
    args: Any, dataset: data.Dataset, num_clients: int, num_clusters: int
) -> Problem:
    """Returns the problem that the flags pose."""
    return Problem(
        data=short_name(args.dataset),
        dataset=dataset,
        num_clients=num_clients,
        num_clusters=num_clusters,
        examples_per_client=rows_of_client(args, dataset, num_clients),
        examples_per_cluster=cluster_size(args, dataset, num_clients, num_clusters),
        has_extra=args.extra_split is not None,
    )


class Batch(NamedTuple):
    """Runs of one program: what they differ in is traced, or is data."""

    method: MethodSpec
    """Its whole numbers are those of the batch."""
    num_clients: int
    num_clusters: int
    points: tuple[Point, ...]
    partitions: tuple[data.Partition, ...]
    present: tuple[np.ndarray, ...]
    """[R, M] of each run: who answers, in one row for all rounds or in a row each."""
    num_slots: int
    """Rows that every client is padded to, so that one program serves all splits."""
    num_left_out: int
    """Rows that the examples without a client are padded to."""
    classes: data.SizeClasses | None = None
    """How clients of unequal sizes are padded, in place of all to `num_slots`."""
    side_by_side: int = 1
    """How many of them run at a time."""
    num_asked: int = 1
    """Of the grid, finished ones too: a killed grid goes on in the calls it was in."""

    @property
    def traced(self) -> dict[str, tuple[float, ...]]:
        """What is swept inside the program, and its values."""
        settings = self.method.settings
        return {k: v for k, v in settings.items() if isinstance(v, tuple)}

    def build(self, hyper: Mapping[str, Any]) -> FederatedClustering:
        """Makes the method from the traced hyper-parameters of a run."""
        return self.method.build({**self.method.settings, **hyper})

    def take(self, runs: Iterable[int]) -> "Batch":
        """Returns the batch of these of its runs alone."""
        kept = list(runs)
        return self._replace(
            points=tuple(self.points[i] for i in kept),
            partitions=tuple(self.partitions[i] for i in kept),
            present=tuple(self.present[i] for i in kept),
        )

    def keep(self, wanted: Callable[[Point], bool]) -> "Batch":
        """Returns the batch of those of its runs alone that are wanted."""
        return self.take(i for i, point in enumerate(self.points) if wanted(point))

    def split(self) -> Iterator["Batch"]:
        """Yields the runs that go side by side, in turn.

        A killed grid finds them again: those that are left after the first ones are
        those that splitting what is left gives.
        """
        count = -(-len(self.points) // self.side_by_side)
        for runs in np.array_split(np.arange(len(self.points)), count):
            yield self.take(runs.tolist())

    def grid(self, pool: data.Pool) -> Grid:
        """Returns what the program takes."""
        hyper = {
            name: jnp.array([point[name] for point in self.points], jnp.float32)
            for name in self.traced
        }
        seeds = jnp.array([point["seed"] for point in self.points])
        federations = data.federate(
            pool,
            self.partitions,
            self.present,
            num_clusters=self.num_clusters,
            num_slots=self.num_slots,
            classes=self.classes,
        )
        return Grid(hyper, jax.vmap(jax.random.key)(seeds), federations)

    def left_out(self, pool: data.Pool) -> Federation | None:
        """Returns the rows that no client holds, where the method can assign them."""
        if self.method.scope != "global":
            return None
        return data.federate_left_out(
            pool,
            self.partitions,
            num_clusters=self.num_clusters,
            num_slots=self.num_left_out,
        )


def batches(
    args: Any,
    dataset: data.Dataset,
    num_extra: int,
    describe: Describe,
    partition: data.Partition | None = None,
) -> list[Batch]:
    """Returns the grid, all of it dealt and checked.

    Args:
        args: the flags.
        dataset: what is scored.
        num_extra: rows behind it that are trained on too.
        describe: see `Describe`.
        partition: see `dealer`.

    Raises:
        ValueError: one line that names the flag and what it accepts.
    """
    check_values("clients", args.clients, least=1)
    check_values("clusters", args.clusters or (2,), least=2)
    check_values("client_size", args.client_size or (1,), least=1)
    check_values(rule_of(args), levels_of(args, dataset))
    check_values("failure_rate", args.failure_rate, least=0, most=1)
    check_values("seed", args.seed, least=0, most=2**31 - 1)
    dealt = dealer(args, dataset, num_extra, partition)
    found = []
    for (method, num_clients, num_clusters, levels), size in itertools.product(
        described(args, dataset, describe), args.client_size or (None,)
    ):
        numbers = {"clients": num_clients, "clusters": num_clusters}
        if size is not None:
            method, numbers = of_size(method, size), {**numbers, "client_size": size}
        swept = {k: v for k, v in method.settings.items() if isinstance(v, tuple)}
        for name, values in swept.items():
            check_values(name, values)
        shapes = {k: v for k, v in swept.items() if all(isinstance(x, int) for x in v)}
        for chosen in itertools.product(*shapes.values()):
            fixed = dict(zip(shapes, chosen, strict=True))
            points = span(args, levels, swept, {**numbers, **fixed})
            partitions = tuple(dealt(point) for point in points)
            batch = Batch(
                method._replace(settings={**method.settings, **fixed}),
                num_clients,
                num_clusters,
                tuple(points),
                partitions,
                (),
                max(len(rows) for part in partitions for rows in part.clients),
                max(len(part.left_out) for part in partitions),
            )
            batch = batch._replace(present=failures_of(batch, args))
            found.append(batch._replace(classes=classes_of(batch, args)))
    return found


def classes_of(batch: Batch, args: Any) -> data.SizeClasses | None:
    """Returns the size classes of the data's own clients, where the method takes them;
    those clients are the same in all runs."""
    # Each of several processes deals clients of one length to its devices.
    if not args.natural or are_several() or not method_of(batch).by_size:
        return None
    sizes = np.array(list(map(len, batch.partitions[0].clients)))
    return data.size_classes(sizes, least=batch.num_clusters)


def by_size(batch: Batch) -> list[Batch]:
    """Returns batches of runs whose clients are padded to a number of rows that does
    not depend on the other runs, since sums of more rows are rounded otherwise.

    It is their size where all have as much, else that of the largest, rounded up to an
    eighth of the power of two below it, so that few programs serve many seeds.
    """

    def slots(partition: data.Partition) -> int:
        sizes = {len(rows) for rows in partition.clients}
        most = max(sizes)
        step = 2 ** max(0, most.bit_length() - 4) if len(sizes) > 1 else 1
        return -(-most // step) * step

    if batch.classes is not None:
        return [batch]
    each = [slots(partition) for partition in batch.partitions]
    found = []
    for number in dict.fromkeys(each):
        own = batch.take(i for i, other in enumerate(each) if other == number)
        most = max(len(partition.left_out) for partition in own.partitions)
        found.append(own._replace(num_slots=number, num_left_out=most))
    return found


def described(
    args: Any, dataset: data.Dataset, describe: Describe
) -> Iterator[tuple[MethodSpec, int, int, tuple[float | int, ...]]]:
    """Yields the methods of the grid, each with its number of clients, its number of
    clusters and the levels of the rule that it is dealt by.

    Clients that cluster on their own look for as many clusters as they hold classes,
    where the rule tells and --clusters does not: then the number is the most of them,
    and levels may have one each. Levels stay together where their settings are the
    same: those may depend on what clients hold.
    """
    held = {} if args.clusters else levels_by_classes(args, dataset)
    rule, all_levels = rule_of(args), levels_of(args, dataset)
    known: dict[tuple[int, int, float], MethodSpec] = {}

    def at(level: float | int, num_clients: int, num_clusters: int) -> MethodSpec:
        own = dataclasses.replace(args, **{rule: (level,)})
        rows = rows_of_client(own, dataset, num_clients)
        key = (num_clients, num_clusters, rows)
        if key not in known:
            known[key] = describe(own, dataset, num_clients, num_clusters)
        return known[key]

    for num_clients, num_clusters in itertools.product(
        args.clients, numbers_of_clusters(args, dataset)
    ):
        check_size(num_clients, min((num_clusters, *held)), args, dataset)
        method = at(all_levels[0], num_clients, num_clusters)
        levels = {num_clusters: all_levels}
        if held and method.scope != "global":
            if not 2 <= min(held) <= max(held) <= num_clusters:
                drawn = rule == "classes_per_client"
                flag = "--classes-per-client must lie"
                raise ValueError(
                    f"{flag if drawn else '--class-range must end'} in "
                    f"2..{num_clusters} where clients look for as many clusters, "
                    f"got {(*held,)}; or give --clusters"
                )
            levels = held
        for number, its_levels in levels.items():
            check_size(num_clients, number, args, dataset)
            each = [(at(level, num_clients, number), level) for level in its_levels]
            for _, alike in itertools.groupby(each, lambda pair: pair[0].settings):
                methods, same = zip(*alike, strict=True)
                yield methods[0], num_clients, number, same


def numbers_of_clusters(args: Any, dataset: data.Dataset) -> tuple[int, ...]:
    if args.clusters:
        return args.clusters
    if dataset.labels is None:
        raise ValueError("--clusters is required where the data has no labels")
    num_classes = len(np.unique(dataset.labels))
    if num_classes < 2:
        raise ValueError(f"--clusters is required: all of {dataset.name} has one class")
    return (num_classes,)


def check_size(
    num_clients: int, num_clusters: int, args: Any, dataset: data.Dataset
) -> None:
    num_examples = len(dataset.examples)
    if not args.natural and num_clusters * num_clients > num_examples:
        raise ValueError(
            f"--clusters {num_clusters} with --clients {num_clients} take at least "
            f"{num_clusters * num_clients} examples, {args.dataset} has {num_examples}"
        )
    size = min(args.client_size, default=num_clusters)
    if size < num_clusters:
        raise ValueError(
            f"--client-size must be at least --clusters {num_clusters}, got {size}"
        )


def of_size(method: MethodSpec, size: int) -> MethodSpec:
    """Returns the method where clients use `size` examples: the paper's scores are of
    all, and what stages were trained on is one of their settings."""
    shared = method.shared
    if shared is not None:
        shared = shared._replace(settings={**shared.settings, "client_size": size})
    return method._replace(paper={}, shared=shared)


def span(
    args: Any,
    levels: tuple[float | int, ...],
    swept: Mapping[str, tuple],
    here: Mapping[str, int],
) -> list[Point]:
    """Returns the runs of a batch, which has one value of everything in `here`."""
    rest = {**swept, "failure_rate": args.failure_rate, "seed": args.seed}
    fixed = {name: (value,) for name, value in here.items()}
    axes = {rule_of(args): levels, **fixed, **rest, **fixed}
    return [dict(zip(axes, x, strict=True)) for x in itertools.product(*axes.values())]


def axes(point: Point, given: Collection[str]) -> list[str]:
    """Returns the axes of a grid, which tell its runs apart.

    The heterogeneity and the seed are always axes. Any other setting is an axis only if
    the command names it: a default is reported in results.csv, and is no axis.

    Args:
        point: of any run, see `span`; the heterogeneity comes first, the seed last.
        given: the flags that the command names.

    Examples:
        >>> point = {"p": 0.25, "clusters": 10, "model_weight": 0.1, "seed": 0}
        >>> axes(point, ["clusters"])
        ['p', 'clusters', 'seed']
    """
    first, *others, seed = point
    return [first, *(name for name in others if name in given), seed]


def failures_of(batch: Batch, args: Any) -> tuple[np.ndarray, ...]:
    """Returns who answers in each run of the batch, see `Batch.present`."""
    rounds = 1 if args.failures == "fixed" else sum(num_rounds(batch))
    return tuple(
        data.failures(
            batch.num_clients,
            point["failure_rate"],
            seed=seed_of(point, args),
            num_rounds=rounds,
        )
        for point in batch.points
    )


def width(num_runs: int, most: int) -> int:
    """Returns how many runs a call takes, at most `most`: a divisor of the number of
    runs if one is near, since a last call of another size is compiled anew."""
    fewest = -(-num_runs // most)
    for calls in range(fewest, 2 * fewest):
        if num_runs % calls == 0:
            return num_runs // calls
    return -(-num_runs // fewest)


def state_bytes(batch: Batch, examples: np.ndarray) -> int:
    """Returns the size of one run's state, and of what else a round of it holds."""
    shape, classes = (batch.num_clients, batch.num_slots), batch.classes

    def slots(dtype) -> Any:
        if classes is None:
            return jax.ShapeDtypeStruct(shape, dtype)
        each = zip(places(classes.counts, shape[0]), classes.slots, strict=True)
        blocks = [jax.ShapeDtypeStruct((len(own), n), dtype) for own, n in each]
        return Ragged(blocks, classes.counts)

    federation = Federation(
        pool=jax.ShapeDtypeStruct(examples.shape, examples.dtype),  # pyright: ignore[reportArgumentType]
        indices=slots(jnp.int32),
        mask=slots(bool),
        present=jax.ShapeDtypeStruct(batch.present[0].shape, bool),  # pyright: ignore[reportArgumentType]
        local_clusters=jax.ShapeDtypeStruct(shape[:1], jnp.int32),  # pyright: ignore[reportArgumentType]
    )
    hyper = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in batch.traced}

    def init(hyper, federation):
        now = Now(jnp.int32(0), jnp.int32(0), jnp.array(False))
        first = federation._replace(now=now)
        return batch.build(hyper).init(jax.random.key(0), first)

    state = jax.eval_shape(init, hyper, federation)
    return num_bytes(state) + batch.method.working_bytes


def num_rounds(batch: Batch) -> list[int]:
    """Returns the rounds of each stage; fewer where it ends early."""
    return [stage.num_rounds for stage in method_of(batch).stages]


def budget(batch: Batch) -> str:
    """Returns how much is trained at most: rounds, and where one network is trained by
    all clients, what the largest does in one."""
    settings, rounds = batch.method.settings, f"{sum(num_rounds(batch))} rounds"
    trains_one = batch.method.scope == "global" and not batch.method.sees_all
    if not trains_one or not {"local_epochs", "batch_size"} <= settings.keys():
        return rounds
    steps = settings["local_epochs"] * -(-batch.num_slots // settings["batch_size"])
    return f"{rounds} of {steps} steps of {settings['batch_size']} examples a client"


def method_of(batch: Batch) -> FederatedClustering:
    """Returns the method of the first run."""
    return batch.build({name: values[0] for name, values in batch.traced.items()})


def num_slots(batch: Batch) -> int:
    """Returns how many rows its clients are padded to in all."""
    if batch.classes is None:
        return batch.num_clients * batch.num_slots
    own = places(batch.classes.counts, batch.num_clients)
    return sum(len(x) * n for x, n in zip(own, batch.classes.slots, strict=True))
