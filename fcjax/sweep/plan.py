"""What will run: the runs of a grid, and which of them share a program.

The product of all settings of several values is the grid. Runs whose arrays have the
same shapes are a batch. It is compiled once, and is split into as many runs as fit in
memory at a time.
"""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcjax import data
from fcjax.data.source import Source, short_name
from fcjax.data.split import Split
from fcjax.methods.base import Method, MethodSpec, Problem
from fcjax.parallel.mesh import are_several, num_bytes
from fcjax.ragged import Ragged, places
from fcjax.results.store import Point
from fcjax.settings import as_tuple, check_values, given
from fcjax.sweep.options import Options
from fcjax.types import FederatedClustering, Federation, Grid, Now

PARTS = {"source": Source, "split": Split, "options": Options}


@dataclasses.dataclass(frozen=True)
class Task:
    """A grid to run: a method, its data, their partition, and how to run it.

    Examples:
        >>> from fcjax.methods import KFed
        >>> task = Task.of(KFed(), dataset="digits", p=[0, 1], seed=(0, 1))
        >>> task.source.dataset, task.split.p, task.options.seed
        ('digits', (0.0, 1.0), (0, 1))
    """

    method: Method
    source: Source = Source()
    split: Split = Split()
    options: Options = Options()

    @classmethod
    def of(cls, method: Method | type[Method], **settings: Any) -> "Task":
        """Returns a task from settings by their names, whichever part they are of.

        Raises:
            TypeError: neither the method nor a part has a setting of this name.
        """
        return cls(method() if isinstance(method, type) else method).but(**settings)

    def but(self, **settings: Any) -> "Task":
        """Returns the task with other values of settings, see `of`."""
        parts: dict[str, Any] = {}
        for name, part in PARTS.items():
            own = {x.name for x in dataclasses.fields(part)} & settings.keys()
            changes = {x: settings.pop(x) for x in own}
            parts[name] = dataclasses.replace(getattr(self, name), **changes)
        return Task(dataclasses.replace(self.method, **settings), **parts)

    def by(self, method: type[Method]) -> "Task":
        """Returns the task for another method, with the settings that both have."""
        own = {x.name for x in dataclasses.fields(method)} & given(self.method).keys()
        values = {name: getattr(self.method, name) for name in own}
        return dataclasses.replace(self, method=method(**values))

    def problem(
        self, dataset: data.Dataset, num_clients: int, num_clusters: int
    ) -> Problem:
        """Returns the problem that the method is built for."""
        size = (dataset, num_clients)
        return Problem(
            data=short_name(self.source.dataset),
            dataset=dataset,
            num_clients=num_clients,
            num_clusters=num_clusters,
            examples_per_client=self.split.examples_per_client(*size),
            examples_per_cluster=self.split.examples_per_cluster(*size, num_clusters),
            has_extra=self.source.extra_split is not None,
        )

    def adapted(self, dataset: data.Dataset) -> "Task":
        """Returns the task with the split that the method asks for."""
        split = self.method.adapt(self.split, labelled=dataset.labels is not None)
        return dataclasses.replace(self, split=split)

    def for_data(self, dataset: data.Dataset) -> tuple["Task", data.Dataset]:
        """Returns the task with the split that the method and the data ask for, and the
        data with the clients that take part, see `Split.resolve`.
        """
        return self.adapted(dataset).resolved(dataset)

    def resolved(self, dataset: data.Dataset) -> tuple["Task", data.Dataset]:
        """Returns the task and the data as `Split.resolve` has them."""
        split, dataset = self.split.resolve(dataset)
        return dataclasses.replace(self, split=split), dataset


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
    padded_size: int
    """Rows that every client is padded to, so that one program serves all splits."""
    num_left_out: int
    """Rows that the examples without a client are padded to."""
    classes: data.SizeClasses | None = None
    """How clients of unequal sizes are padded, in place of all to `padded_size`."""
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
            padded_size=self.padded_size,
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
            padded_size=self.num_left_out,
        )


def batches(
    task: Task,
    dataset: data.Dataset,
    num_extra: int = 0,
    natural: data.Partition | None = None,
) -> list[Batch]:
    """Returns the grid, all of it partitioned and checked.

    Args:
        task: as `Task.for_data` has it.
        dataset: what is scored.
        num_extra: examples behind it that are trained on too.
        natural: the data's own clients, see `Split.partitioner`.

    Raises:
        ValueError: one line that names the setting and what it accepts.
    """
    split = task.split
    split.check(dataset)
    partition = split.partitioner(dataset, num_extra, natural)
    found = []
    for (method, num_clients, num_clusters, levels), size in itertools.product(
        specs(task, dataset), as_tuple(split.client_size) or (None,)
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
            points = span(task, levels, swept, {**numbers, **fixed})
            partitions = tuple(partition(point) for point in points)
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
            rounds = 1 if split.failures == "fixed" else sum(num_rounds(batch))
            present = (split.present(x, num_clients, rounds) for x in points)
            batch = batch._replace(present=tuple(present))
            found.append(batch._replace(classes=classes_of(batch, split)))
    return found


def classes_of(batch: Batch, split: Split) -> data.SizeClasses | None:
    """Returns the size classes of the data's own clients, where the method takes them;
    those clients are the same in all runs.
    """
    # Each of several processes deals clients of one length to its devices.
    if not split.natural or are_several() or not method_of(batch).by_size:
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
        found.append(own._replace(padded_size=number, num_left_out=most))
    return found


def specs(
    task: Task, dataset: data.Dataset
) -> Iterator[tuple[MethodSpec, int, int, tuple[float | int, ...]]]:
    """Yields the methods of the grid, each with its number of clients, its number of
    clusters and the levels of the partition's rule.

    Clients that cluster on their own look for as many clusters as they hold classes,
    where the rule tells and `clusters` does not: then the number is the most of them,
    and levels may have one each. Levels stay together where their settings are the
    same: those may depend on what clients hold.
    """
    split = task.split
    held = {} if split.clusters else split.levels_by_classes(dataset)
    all_levels = split.levels(dataset)
    known: dict[tuple[int, int, float], MethodSpec] = {}

    def at(level: float | int, num_clients: int, num_clusters: int) -> MethodSpec:
        own = dataclasses.replace(task, split=split.at(level))
        problem = own.problem(dataset, num_clients, num_clusters)
        key = (num_clients, num_clusters, problem.examples_per_client)
        if key not in known:
            known[key] = task.method.resolve(problem)
        return known[key]

    for num_clients, num_clusters in itertools.product(
        as_tuple(split.clients), split.numbers_of_clusters(dataset)
    ):
        split.check_size(num_clients, min((num_clusters, *held)), dataset)
        method = at(all_levels[0], num_clients, num_clusters)
        levels = {num_clusters: all_levels}
        if held and method.scope != "global":
            if not 2 <= min(held) <= max(held) <= num_clusters:
                drawn = split.rule == "classes_per_client"
                raise ValueError(
                    f"{'classes_per_client' if drawn else 'class_range'} must "
                    f"{'lie' if drawn else 'end'} in 2..{num_clusters} where clients "
                    f"look for as many clusters, got {(*held,)}; or give `clusters`"
                )
            levels = held
        for number, its_levels in levels.items():
            split.check_size(num_clients, number, dataset)
            each = [(at(level, num_clients, number), level) for level in its_levels]
            for _, alike in itertools.groupby(each, lambda pair: pair[0].settings):
                methods, same = zip(*alike, strict=True)
                yield methods[0], num_clients, number, same


def of_size(method: MethodSpec, size: int) -> MethodSpec:
    """Returns the method where clients use `size` examples: the paper's scores are of
    all, and what stages were trained on is one of their settings.
    """
    shared = method.shared
    if shared is not None:
        shared = shared._replace(settings={**shared.settings, "client_size": size})
    return method._replace(paper={}, shared=shared)


def span(
    task: Task,
    levels: tuple[float | int, ...],
    swept: Mapping[str, tuple],
    here: Mapping[str, int],
) -> list[Point]:
    """Returns the runs of a batch, which has one value of everything in `here`."""
    split = task.split
    rest = {"failure_rate": split.failure_rate, "seed": task.options.seed}
    fixed = {name: (value,) for name, value in here.items()}
    axes = {split.rule: levels, **fixed, **swept, **rest, **fixed}
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


def width(num_runs: int, most: int) -> int:
    """Returns how many runs a call takes, at most `most`: a divisor of the number of
    runs if one is near, since a last call of another size is compiled anew.
    """
    fewest = -(-num_runs // most)
    for calls in range(fewest, 2 * fewest):
        if num_runs % calls == 0:
            return num_runs // calls
    return -(-num_runs // fewest)


def state_bytes(batch: Batch, examples: np.ndarray) -> int:
    """Returns the size of one run's state, and of what else a round of it holds."""
    shape, classes = (batch.num_clients, batch.padded_size), batch.classes

    def slots(dtype) -> Any:
        if classes is None:
            return jax.ShapeDtypeStruct(shape, dtype)
        each = zip(places(classes.counts, shape[0]), classes.padded_sizes, strict=True)
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
    all clients, what the largest does in one.
    """
    settings, rounds = batch.method.settings, f"{sum(num_rounds(batch))} rounds"
    trains_one = batch.method.scope == "global" and not batch.method.sees_all
    if not trains_one or not {"local_epochs", "batch_size"} <= settings.keys():
        return rounds
    steps = settings["local_epochs"] * -(-batch.padded_size // settings["batch_size"])
    return f"{rounds} of {steps} steps of {settings['batch_size']} examples a client"


def method_of(batch: Batch) -> FederatedClustering:
    """Returns the method of the first run."""
    return batch.build({name: values[0] for name, values in batch.traced.items()})


def padded_size(batch: Batch) -> int:
    """Returns how many rows its clients are padded to in all."""
    if batch.classes is None:
        return batch.num_clients * batch.padded_size
    own = places(batch.classes.counts, batch.num_clients)
    return sum(len(x) * n for x, n in zip(own, batch.classes.padded_sizes, strict=True))
