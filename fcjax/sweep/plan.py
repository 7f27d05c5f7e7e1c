"""What will run: the runs of a grid, and which of them share a program.

The product of all flags of several values is the grid. Runs whose arrays have the same
shapes are a batch, which is compiled once, and is split into as many runs as fit in
memory side by side.
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcjax import data
from fcjax.algorithms.rounds import Scored
from fcjax.devices import are_several, num_bytes
from fcjax.ragged import Ragged, places
from fcjax.sweep import deal
from fcjax.sweep.flags import Common, check_values
from fcjax.sweep.folder import Point
from fcjax.types import FederatedClustering, Federation, Grid

Scope = Literal["global", "client-pooled", "client-mean"]
"""What is scored: all examples by one match; or each client's by its own, where clients
count by their examples, or all alike."""


class Shared(NamedTuple):
    """Leading stages that other settings, and other methods, have too."""

    name: str
    """Of what they train: "fedu", "gans"."""
    num_stages: int
    settings: Mapping[str, Any]
    """By flag, all of the method's settings that decide them, and what is measured in
    them; the others must change no bit. Of one that is swept a run has its own."""


class Method(NamedTuple):
    """What a script says of its method."""

    name: str
    settings: Mapping[str, Any]
    """Resolved hyper-parameters. A tuple is swept: floats are traced, whole numbers
    change shapes and have a program each."""
    build: Callable[[Mapping[str, Any]], FederatedClustering]
    """(settings of one run) -> the method."""
    scope: Scope
    paper: Mapping[float, Mapping[str, float]] = {}
    """By p: scores on the whole data set."""
    working_bytes: int = 0
    """What a round of one run holds beside its state, as a copy of the data."""
    evaluate_every: int = 1
    """Rounds between two that are scored, where --evaluate-every does not say."""
    sees_all: bool = False
    """Whether it reads examples other than those that a device's clients hold, as a
    server does that is given all."""
    shared: Shared | None = None
    """Its first stages, where others may go on from them: see `stages`."""
    start: str = ""
    """The stage that ends in the clusters from which the others set out, if it has one:
    what was measured there is reported as `initial_NAME`."""
    reported: tuple[str, ...] = ()
    """Metrics whose last value stands in results.csv too."""


Describe = Callable[[Any, data.Dataset, int, int], Method]
"""(flags, data set, number of clients, number of clusters) -> the method. The flags
hold one level of the rule of dealing; levels at which clients hold as much of a cluster
are described once."""


class Batch(NamedTuple):
    """Runs of one program: what they differ in is traced, or is data."""

    method: Method
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
    args: Common, dataset: data.Dataset, num_extra: int, describe: Describe
) -> list[Batch]:
    """Returns the grid, all of it dealt and checked.

    Args:
        args: the flags.
        dataset: what is scored.
        num_extra: rows behind it that are trained on too.
        describe: see `Describe`.

    Raises:
        ValueError: one line that names the flag and what it accepts.
    """
    check_values("clients", args.clients, least=1)
    check_values("clusters", args.clusters or (2,), least=2)
    check_values("client_size", args.client_size or (1,), least=1)
    check_values(deal.rule_of(args), deal.levels(args, dataset))
    check_values("failure_rate", args.failure_rate, least=0, most=1)
    check_values("seed", args.seed, least=0, most=2**31 - 1)
    dealt = deal.dealer(args, dataset, num_extra)
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


def classes_of(batch: Batch, args: Common) -> data.SizeClasses | None:
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
    args: Common, dataset: data.Dataset, describe: Describe
) -> Iterator[tuple[Method, int, int, tuple[float | int, ...]]]:
    """Yields the methods of the grid, each with its number of clients, its number of
    clusters and the levels of the rule that it is dealt by.

    Clients that cluster on their own look for as many clusters as they hold classes,
    where the rule tells and --clusters does not: then the number is the most of them,
    and levels may have one each. Levels stay together where their settings are the
    same: those may depend on what clients hold.
    """
    held = {} if args.clusters else deal.levels_by_classes(args, dataset)
    rule, all_levels = deal.rule_of(args), deal.levels(args, dataset)
    known: dict[tuple[int, int, float], Method] = {}

    def at(level: float | int, num_clients: int, num_clusters: int) -> Method:
        own = dataclasses.replace(args, **{rule: (level,)})
        rows = deal.rows_of_client(own, dataset, num_clients)
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


def scored(args: Common, every: int) -> Scored:
    """Returns which rounds are scored: those of --evaluate-every and the last one of a
    stage, or every so many and the last ten."""
    if args.evaluate_every is None:
        return Scored(every, last=10)
    return Scored(args.evaluate_every)


def numbers_of_clusters(args: Common, dataset: data.Dataset) -> tuple[int, ...]:
    if args.clusters:
        return args.clusters
    if dataset.labels is None:
        raise ValueError("--clusters is required where the data has no labels")
    num_classes = len(np.unique(dataset.labels))
    if num_classes < 2:
        raise ValueError(f"--clusters is required: all of {dataset.name} has one class")
    return (num_classes,)


def check_size(
    num_clients: int, num_clusters: int, args: Common, dataset: data.Dataset
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


def of_size(method: Method, size: int) -> Method:
    """Returns the method where clients use `size` examples: the paper's scores are of
    all, and what stages were trained on is one of their settings."""
    shared = method.shared
    if shared is not None:
        shared = shared._replace(settings={**shared.settings, "client_size": size})
    return method._replace(paper={}, shared=shared)


def span(
    args: Common,
    levels: tuple[float | int, ...],
    swept: Mapping[str, tuple],
    here: Mapping[str, int],
) -> list[Point]:
    """Returns the runs of a batch, which has one value of everything in `here`."""
    rest = {**swept, "failure_rate": args.failure_rate, "seed": args.seed}
    fixed = {name: (value,) for name, value in here.items()}
    axes = {deal.rule_of(args): levels, **fixed, **rest, **fixed}
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


def failures_of(batch: Batch, args: Common) -> tuple[np.ndarray, ...]:
    """Returns who answers in each run of the batch, see `Batch.present`."""
    rounds = 1 if args.failures == "fixed" else sum(num_rounds(batch))
    return tuple(
        data.failures(
            batch.num_clients,
            point["failure_rate"],
            seed=deal.seed_of(point, args),
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
        return batch.build(hyper).init(jax.random.key(0), federation)

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
