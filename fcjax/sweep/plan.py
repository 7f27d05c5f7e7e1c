"""Plans a grid: its runs, and the batches of runs that share a compiled program.

The grid is the product of all settings with several values. Runs whose arrays have the
same shapes form a batch. A batch is compiled once. It is split into calls, each with as
many runs as fit in memory.
"""

import dataclasses
import itertools
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcjax import data
from fcjax.data.dataset import Dataset, counted
from fcjax.data.source import Source, short_name
from fcjax.data.split import Split
from fcjax.methods.base import Method, MethodSpec, Problem
from fcjax.parallel.mesh import is_multiprocess, num_bytes
from fcjax.privacy.guarantee import Privacy, Unit, private_builder
from fcjax.ragged import Ragged, clients_by_class
from fcjax.results.store import Point
from fcjax.settings import as_tuple, check_values, given
from fcjax.sweep.options import Options
from fcjax.types import FederatedClustering, Federation, Grid, Now

PARTS = {"source": Source, "split": Split, "options": Options, "privacy": Privacy}


@dataclasses.dataclass(frozen=True)
class Task:
    """The description of a grid: the method, the data, the partition and the options.

    Every setting may have several values.

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
    privacy: Privacy = dataclasses.field(default_factory=Privacy)

    @classmethod
    def of(cls, method: Method | type[Method], **settings: Any) -> "Task":
        """Makes a task from settings by name.

        Args:
            method: a method, or its class for the default settings.
            **settings: settings of the method, `Source`, `Split` or `Options`.

        Returns:
            The task.

        Raises:
            TypeError: there is no setting of this name.
        """
        return cls(method() if isinstance(method, type) else method).replace(**settings)

    def replace(self, **settings: Any) -> "Task":
        """Returns the task with other values of some settings.

        Args:
            **settings: settings of the method, `Source`, `Split` or `Options`.

        Returns:
            The new task.
        """
        parts: dict[str, Any] = {}
        for name, part in PARTS.items():
            names = {x.name for x in dataclasses.fields(part)} & settings.keys()
            changes = {x: settings.pop(x) for x in names}
            parts[name] = dataclasses.replace(getattr(self, name), **changes)
        return Task(dataclasses.replace(self.method, **settings), **parts)

    def with_method(self, method: type[Method]) -> "Task":
        """Returns the task for another method, with the settings that both have.

        Args:
            method: class of the other method.

        Returns:
            The task, whose other settings have their defaults.
        """
        common = {x.name for x in dataclasses.fields(method)} & {*given(self.method)}
        values = {name: getattr(self.method, name) for name in common}
        return dataclasses.replace(self, method=method(**values))

    def problem(
        self, dataset: data.Dataset, num_clients: int, num_clusters: int
    ) -> Problem:
        """Returns the clustering problem, from which the method derives its defaults.

        Args:
            dataset: the data set.
            num_clients: M.
            num_clusters: K.

        Returns:
            The problem.

        Raises:
            ValueError: the method does not take this scale of the features.
        """
        is_scaled = dataset.scaling is None or self.source.scale_columns == "minmax"
        if not is_scaled and not self.method.any_scale:
            raise ValueError(
                f"{self.method.name} needs feature columns between 0 and 1; use "
                f"`scale_columns` minmax, got {self.source.scale_columns}"
            )
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
        """Returns the task with the partition adapted to the method.

        Args:
            dataset: the data set. The partition may depend on the presence of labels.

        Returns:
            The task, with the method's defaults in its split.
        """
        split = self.method.adapt(self.split, labelled=dataset.labels is not None)
        return dataclasses.replace(self, split=split)

    def for_data(self, dataset: data.Dataset) -> tuple["Task", data.Dataset]:
        """Returns the task with the partition adapted to the method and the data.

        Args:
            dataset: the data set.

        Returns:
            The task, and the data set restricted to the clients that take part, see
            `Split.resolve`.
        """
        return self.adapted(dataset).resolved(dataset)

    def resolved(self, dataset: data.Dataset) -> tuple["Task", data.Dataset]:
        """Returns the task and the data set after `Split.resolve`.

        Args:
            dataset: the data set.

        Returns:
            The task with the resolved split, and the data set restricted to the clients
            that take part.
        """
        split, dataset = self.split.resolve(dataset)
        return dataclasses.replace(self, split=split), dataset


class Batch(NamedTuple):
    """Runs of one compiled program. They differ only in array values, not in shapes."""

    method: MethodSpec
    """The method. Settings that are whole numbers are constant within the batch."""
    num_clients: int
    num_clusters: int
    points: tuple[Point, ...]
    """The swept values of each run."""
    partitions: tuple[data.Partition, ...]
    """The partition of each run."""
    present: tuple[np.ndarray, ...]
    """The participating clients of each run: bool [R, M], with one row per round, or
    one row for all rounds."""
    padded_size: int
    """Number of examples to which every client is padded."""
    num_left_out: int
    """Number of examples to which the examples without a client are padded."""
    classes: data.SizeClasses | None = None
    """Size classes of clients, each with its own padded size; None pads all clients to
    `padded_size`."""
    runs_per_call: int = 1
    """Number of runs that are trained at the same time."""
    num_requested: int = 1
    """Number of requested runs, including finished ones. It lets a killed grid resume
    with the same calls."""

    @property
    def traced(self) -> dict[str, tuple[float, ...]]:
        """The settings that are swept within the program, and their values."""
        settings = self.method.settings
        return {k: v for k, v in settings.items() if isinstance(v, tuple)}

    def build(self, hyper: Mapping[str, Any]) -> FederatedClustering:
        """Builds the method from the traced hyper-parameters of a run.

        Args:
            hyper: hyper-parameters by name, scalars that may be traced.

        Returns:
            The method as pure functions.
        """
        return self.method.build({**self.method.settings, **hyper})

    def take(self, runs: Iterable[int]) -> "Batch":
        """Returns the batch with only the runs of these indices.

        Args:
            runs: indices of the runs, in the order of the result.

        Returns:
            The batch of these runs.
        """
        indices = list(runs)
        return self._replace(
            points=tuple(self.points[i] for i in indices),
            partitions=tuple(self.partitions[i] for i in indices),
            present=tuple(self.present[i] for i in indices),
        )

    def keep(self, wanted: Callable[[Point], bool]) -> "Batch":
        """Returns the batch with only the runs whose point is wanted.

        Args:
            wanted: function from the swept values of a run to whether the run is kept.

        Returns:
            The batch of these runs.
        """
        return self.take(i for i, point in enumerate(self.points) if wanted(point))

    def split(self) -> Iterator["Batch"]:
        """Splits the batch into calls of at most `runs_per_call` runs.

        A resumed grid gets the same calls: splitting the runs that are left after the
        first calls gives the remaining calls.

        Yields:
            Batch: the runs of a call.
        """
        count = -(-len(self.points) // self.runs_per_call)
        for runs in np.array_split(np.arange(len(self.points)), count):
            yield self.take(runs.tolist())

    def grid(self, pool: data.Pool) -> Grid:
        """Returns the inputs of the program.

        Args:
            pool: all examples.

        Returns:
            The grid of the runs.
        """
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
        """Returns the examples without a client, if the method can assign them.

        Args:
            pool: all examples.

        Returns:
            A federation of these examples; None for methods without a global model.
        """
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
    """Plans the batches of a grid, and partitions and checks all runs.

    Args:
        task: the task, of `Task.for_data`.
        dataset: the scored examples.
        num_extra: the number of further examples, which are only trained on and follow
            the scored examples in the pool.
        natural: the natural partition of the data, see `Split.partitioner`.

    Returns:
        One batch per set of runs with the same shapes.

    Raises:
        ValueError: a setting is not accepted. One line names the setting.
    """
    split = task.split
    split.check(dataset)
    partition = split.partitioner(dataset, num_extra, natural)
    planned = []
    for (method, num_clients, num_clusters, levels), size in itertools.product(
        specs(task, dataset), as_tuple(split.client_size) or (None,)
    ):
        numbers = {"clients": num_clients, "clusters": num_clusters}
        if size is not None:
            method = with_client_size(method, size)
            numbers = {**numbers, "client_size": size}
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
            planned.append(batch._replace(classes=classes_of(batch, split)))
    return planned


def classes_of(batch: Batch, split: Split) -> data.SizeClasses | None:
    """Returns the size classes of a natural partition, if the method supports them.

    Args:
        batch: the runs. Their natural partition is the same.
        split: the settings of the partition.

    Returns:
        The size classes; None pads all clients to one size.
    """
    # Several processes spread clients over their devices, which needs one padded size.
    if not split.natural or is_multiprocess() or not method_of(batch).by_size:
        return None
    sizes = np.array(list(map(len, batch.partitions[0].clients)))
    return data.size_classes(sizes, least=batch.num_clusters)


def by_size(batch: Batch) -> list[Batch]:
    """Splits a batch so that the padded size of a run does not depend on other runs.

    The padded size changes the order of sums, and so their rounding. It is the size of
    the clients if all are equal. Otherwise it is the size of the largest client. This
    size is rounded up to an eighth of the power of two below it, so that few programs
    serve many seeds.

    Args:
        batch: the runs.

    Returns:
        One batch per padded size.
    """

    def padded(partition: data.Partition) -> int:
        sizes = {len(rows) for rows in partition.clients}
        most = max(sizes)
        step = 2 ** max(0, most.bit_length() - 4) if len(sizes) > 1 else 1
        return -(-most // step) * step

    if batch.classes is not None:
        return [batch]
    each = [padded(partition) for partition in batch.partitions]
    parts = []
    for number in dict.fromkeys(each):
        part = batch.take(i for i, other in enumerate(each) if other == number)
        most = max(len(partition.left_out) for partition in part.partitions)
        parts.append(part._replace(padded_size=number, num_left_out=most))
    return parts


def specs(
    task: Task, dataset: data.Dataset
) -> Iterator[tuple[MethodSpec, int, int, tuple[float | int, ...]]]:
    """Resolves the method for all numbers of clients and clusters of a grid.

    For methods with one clustering per client, a partition rule may fix the number of
    classes per client. If `clusters` is not set, this number is the number of clusters,
    and it may differ between the levels of the rule. Levels with the same resolved
    settings stay together.

    Args:
        task: the task.
        dataset: the data set.

    Yields:
        tuple[MethodSpec, int, int, tuple[float | int, ...]]: the resolved method, the
            number of clients, the number of clusters, and the levels of the partition
            rule, such as values of p.

    Raises:
        ValueError: a number of classes per client cannot be a number of clusters.
    """
    split = task.split
    by_classes = {} if split.clusters else split.levels_by_classes(dataset)
    all_levels = split.levels(dataset)
    known: dict[tuple[int, int, float], MethodSpec] = {}

    def at(level: float | int, num_clients: int, num_clusters: int) -> MethodSpec:
        at_level = dataclasses.replace(task, split=split.at(level))
        problem = at_level.problem(dataset, num_clients, num_clusters)
        key = (num_clients, num_clusters, problem.examples_per_client)
        if key not in known:
            known[key] = resolve(at_level, problem)
        return known[key]

    for num_clients, num_clusters in itertools.product(
        as_tuple(split.clients), split.numbers_of_clusters(dataset)
    ):
        split.check_size(num_clients, min((num_clusters, *by_classes)), dataset)
        method = at(all_levels[0], num_clients, num_clusters)
        levels = {num_clusters: all_levels}
        if by_classes and method.scope != "global":
            if not 2 <= min(by_classes) <= max(by_classes) <= num_clusters:
                is_number = split.rule == "classes_per_client"
                raise ValueError(
                    f"{'classes_per_client' if is_number else 'class_range'} must "
                    f"{'lie' if is_number else 'end'} in 2..{num_clusters} if clients "
                    f"have as many clusters as classes, got {(*by_classes,)}; or set "
                    "`clusters`"
                )
            levels = by_classes
        for number, its_levels in levels.items():
            split.check_size(num_clients, number, dataset)
            each = [(at(level, num_clients, number), level) for level in its_levels]
            for _, group in itertools.groupby(each, lambda pair: pair[0].settings):
                methods, group_levels = zip(*group, strict=True)
                yield methods[0], num_clients, number, group_levels


def resolve(task: Task, problem: Problem) -> MethodSpec:
    """Resolves the method of a task for a problem, with differential privacy if asked.

    Args:
        task: the task.
        problem: the data and the clients.

    Returns:
        The method. With privacy, its settings contain those of the guarantee, and the
        paper's scores and the stage cache do not apply.

    Raises:
        ValueError: a setting is not accepted, or the method cannot give the guarantee.
    """
    method, privacy = task.method, task.privacy
    if privacy.min_members > 1:
        method.check_withholds()
        spec = method.resolve(problem)
        settings = {**spec.settings, "min_members": privacy.min_members}
        return spec._replace(settings=settings, paper={})
    if not privacy.epsilon:
        return method.resolve(problem)
    unit = method.protected_unit(privacy.privacy_unit)
    num_examples = len(problem.dataset.examples)
    privacy.check(unit, problem.num_clients, num_examples)
    spec = method.resolve(problem._replace(protected=unit))
    parts_of = partial(method.noisy_sums, unit=unit)
    return spec._replace(
        settings={**spec.settings, **privacy.settings(unit)},
        build=private_builder(spec.build, parts_of, unit, privacy),
        paper={},
        shared=None,
    )


def guarantee(
    task: Task, unit: Unit, dataset: Dataset, *, num_clients: int
) -> tuple[str, list[str]]:
    """Describes the guarantee of private runs.

    Args:
        task: the task.
        unit: the protected unit.
        dataset: the data set.
        num_clients: largest number of clients of a run.

    Returns:
        The line of the guarantee, and one warning per setting that weakens it.
    """
    privacy = task.privacy
    what = {
        "examples": "one example",
        "clients": "one client",
        "clustering": "one example in federated k-means; the network is not private",
    }[unit]
    open_parts = ["scores", "losses", "figures", "reports", "clusters", "embeddings"]
    scaling = dataset.scaling
    if scaling is not None and (scaling.low.any() or (scaling.span != 1).any()):
        open_parts.append("scaling of columns")
    if privacy.sample_rate < 1:
        open_parts.append("participants")
    epsilons = as_tuple(privacy.epsilon)
    budgets = " ".join(f"{each:g}" for each in epsilons)
    line = (
        f"privacy: epsilon {budgets}, delta {privacy.delta:g} for {what}; Gaussian "
        f"noise; without noise: {', '.join(open_parts)} (docs/guides/privacy.md)"
    )
    warnings = []
    if 0 in task.options.seed:
        warnings.append(
            "privacy: everybody who knows the seed can remove the noise, and seed 0 is "
            "the default; choose other seeds and keep them secret"
        )
    name, number = "examples", len(dataset.examples)
    if unit == "clients":
        name, number = "clients", num_clients
        if number <= 100:
            warnings.append(
                f"privacy: the noise hides a whole client, and {number} clients are "
                "few for that: in our tables up to epsilon 8, clusters lost their "
                "structure (docs/guides/privacy.md)"
            )
    if not getattr(task.method, "unit_length", True) and "radius" not in given(privacy):
        longest = dataset.examples[0].size ** 0.5
        warnings.append(
            f"privacy: examples longer than {privacy.radius:g} are scaled down, which "
            f"can cost more than the noise; if all {dataset.examples[0].size} values "
            f"are from 0 to 1, `radius` {longest:.5g} changes no example"
        )
    if privacy.delta > 0.1 / number:
        warnings.append(
            f"privacy: delta {privacy.delta:g} is large for {number:,} {name}; choose "
            f"at most {0.1 / number:.2g}"
        )
    return line, warnings


def with_client_size(method: MethodSpec, size: int) -> MethodSpec:
    """Returns the method for clients that use only some of their examples.

    The paper's scores do not apply. The size becomes a setting of the shared stages, so
    that the stage cache distinguishes them.

    Args:
        method: the method.
        size: the number of examples per client.

    Returns:
        The new method.
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
    """Returns the runs of a batch: the product of all swept values.

    Args:
        task: the task.
        levels: the levels of the partition rule.
        swept: the values of the swept settings of the method.
        here: the settings with one value in this batch.

    Returns:
        The values of each run by name, the level first and the seed last.
    """
    split = task.split
    rest = {"failure_rate": split.failure_rate, "seed": task.options.seed}
    fixed = {name: (value,) for name, value in here.items()}
    axes = {split.rule: levels, **fixed, **swept, **rest, **fixed}
    return [dict(zip(axes, x, strict=True)) for x in itertools.product(*axes.values())]


def axes(point: Point, flags: Collection[str]) -> list[str]:
    """Returns the axes of a grid, whose values identify a run.

    The heterogeneity and the seed are always axes. Any other setting is an axis only if
    the command names it. Otherwise its default is only reported in results.csv.

    Args:
        point: the values of any run, of `span`.
        flags: the flags that the command names.

    Returns:
        The names, the heterogeneity first and the seed last.

    Examples:
        >>> point = {"p": 0.25, "clusters": 10, "model_weight": 0.1, "seed": 0}
        >>> axes(point, ["clusters"])
        ['p', 'clusters', 'seed']
    """
    first, *rest, seed = point
    return [first, *(name for name in rest if name in flags), seed]


def width(num_runs: int, most: int) -> int:
    """Chooses the number of runs per call.

    A last call with fewer runs would be compiled anew. Therefore the result
    divides the number of runs if a divisor is near the maximum.

    Args:
        num_runs: the number of runs.
        most: the maximum per call.

    Returns:
        1 to `most`.
    """
    fewest = -(-num_runs // most)
    for calls in range(fewest, 2 * fewest):
        if num_runs % calls == 0:
            return num_runs // calls
    return -(-num_runs // fewest)


def state_bytes(batch: Batch, examples: np.ndarray) -> int:
    """Estimates the memory of one run in a round.

    Args:
        batch: the runs.
        examples: all examples; only their shape and dtype matter.

    Returns:
        Bytes of the state and of the working memory of the method.
    """
    shape, classes = (batch.num_clients, batch.padded_size), batch.classes

    def of_clients(dtype) -> Any:
        if classes is None:
            return jax.ShapeDtypeStruct(shape, dtype)
        each = zip(
            clients_by_class(classes.counts, shape[0]),
            classes.padded_sizes,
            strict=True,
        )
        blocks = [jax.ShapeDtypeStruct((len(x), n), dtype) for x, n in each]
        return Ragged(blocks, classes.counts)

    federation = Federation(
        pool=jax.ShapeDtypeStruct(examples.shape, examples.dtype),  # pyright: ignore[reportArgumentType]
        indices=of_clients(jnp.int32),
        mask=of_clients(bool),
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
    """Returns the number of rounds of each stage.

    Args:
        batch: the runs, which have the same stages.

    Returns:
        One number per stage. It is an upper bound for a stage that can end early.
    """
    return [stage.num_rounds for stage in method_of(batch).stages]


def budget(batch: Batch) -> str:
    """Describes the largest amount of training of a run.

    Args:
        batch: the runs.

    Returns:
        The number of rounds. For a network that all clients train, also the local steps
        of the largest client per round.
    """
    settings = batch.method.settings
    rounds = f"at most {counted(sum(num_rounds(batch)), 'round')}"
    trains_one = batch.method.scope == "global" and not batch.method.sees_all
    if not trains_one or not {"local_epochs", "batch_size"} <= settings.keys():
        return rounds
    steps = settings["local_epochs"] * -(-batch.padded_size // settings["batch_size"])
    return (
        f"{rounds} with {counted(steps, 'local step')} per client "
        f"(batch size {settings['batch_size']})"
    )


def method_of(batch: Batch) -> FederatedClustering:
    """Builds the method of the first run.

    Args:
        batch: the runs.

    Returns:
        The method as pure functions.
    """
    return batch.build({name: values[0] for name, values in batch.traced.items()})


def padded_size(batch: Batch) -> int:
    """Returns the number of examples of all clients of a run, with padding.

    Args:
        batch: the runs.

    Returns:
        The number of examples, the same for all runs of the batch.
    """
    if batch.classes is None:
        return batch.num_clients * batch.padded_size
    clients = clients_by_class(batch.classes.counts, batch.num_clients)
    return sum(
        len(x) * n for x, n in zip(clients, batch.classes.padded_sizes, strict=True)
    )
