"""The settings that partition a data set over clients and make clients fail."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Annotated, Any, Literal, get_type_hints

import numpy as np
import tyro

from fcjax.data.dataset import Dataset
from fcjax.data.partition import (
    RULES,
    Partition,
    add_evenly,
    examples_per_class,
    failures,
    select_clients,
    subsample_clients,
)
from fcjax.settings import (
    Default,
    Sweep,
    as_tuple,
    check_values,
    default,
    kind_of,
    shown,
    values,
)

Point = Mapping[str, float | int]
"""The settings of one run of a grid, by name."""


@dataclasses.dataclass(frozen=True)
class Split:
    """Clients: their number, their heterogeneity and their failures.

    Examples:
        >>> Split(p=[0, 0.5], clients=20).p
        (0.0, 0.5)
    """

    clients: Sweep[int] = default(10)
    """Number of clients of the partition. Not for data with natural clients."""
    natural: Annotated[tuple[int, ...], tyro.conf.Suppress] = ()
    """(1,) for the natural partition, else empty; set by `resolve`, not by users."""
    max_clients: Annotated[int | None, shown("all")] = None
    """Maximum number of natural clients, drawn at random and equal in all runs."""
    min_client_size: int = 1
    """Minimum number of examples of a natural client. Smaller clients are not used."""
    clusters: Annotated[Sweep[int], shown("the number of classes")] = ()
    """Number of clusters.
    Clients that cluster independently use their own number of classes by default."""
    p: Annotated[Sweep[float], shown("0.25, or 0 for data without labels")] = ()
    """Heterogeneity in [0, 1]: 0 partitions at random, 1 gives each client one class.
    0:1:0.25 means five values."""
    alpha: Annotated[Sweep[float], shown("none; --p is used")] = ()
    """Concentration alpha of a Dirichlet partition, above 0. Replaces --p."""
    class_share: Annotated[Sweep[float], shown("none; --p is used")] = ()
    """Share of classes per client, in [1 / clients, 1], consecutive. Replaces --p."""
    classes_per_client: Annotated[Sweep[int], shown("none; --p is used")] = ()
    """Number of classes of each client, drawn at random. Replaces --p."""
    overlap: Annotated[Sweep[float], shown("none; --p is used")] = ()
    """Share of a client's examples of a class that the class's other clients also have.
    In [0, 1). Each client has random classes, see --class-range. Replaces --p."""
    class_range: Annotated[
        tuple[int, int] | None, shown("2 to half of the classes")
    ] = None
    """With --overlap: minimum and maximum number of classes per client."""
    samples_per_class: int = 500
    """With --overlap: maximum number of examples per client and class."""
    client_size: Annotated[Sweep[int], shown("no maximum")] = ()
    """Maximum number of examples per client. Classes are sampled in proportion."""
    partition_seed: Annotated[int | None, shown("--seed of the run")] = None
    """Seed of the partition and of the failures."""
    failure_rate: Sweep[float] = default(0.0)
    """Share of clients that fail, in [0, 1).
    Failed clients do not train, but their data is scored."""
    failures: Literal["fixed", "per-round"] = "fixed"
    """fixed: the same clients fail in all rounds.
    per-round: each round draws the failing clients again."""

    def __post_init__(self):
        for name, hint in _hints().items():
            if kind := kind_of(hint):
                object.__setattr__(self, name, values(getattr(self, name), kind))
        for name in ("max_clients", "min_client_size", "partition_seed"):
            value, least = getattr(self, name), int(name != "partition_seed")
            if value is not None and value < least:
                raise ValueError(f"`{name}` must be at least {least}, got {value}")

    @property
    def rule(self) -> str:
        """The name of the setting that chooses the partition rule; p is the default.

        Raises:
            ValueError: two rules are given, or a setting of a rule that is not given.
        """
        levels = {name: getattr(self, name) for name in RULES}
        rules = [x for x in RULES if levels[x] and not isinstance(levels[x], Default)]
        rules = rules or [x for x in RULES if levels[x]]
        if len(rules) > 1:
            raise ValueError(
                f"`{rules[0]}` and `{rules[1]}` are two partition rules; give only one"
            )
        if self.class_range is not None and rules != ["overlap"]:
            raise ValueError("`class_range` requires `overlap`; give both")
        return rules[0] if rules else "p"

    def config(self) -> dict[str, Any]:
        """Returns the partition rule and its other settings, for config.json."""
        names = {
            "overlap": ("class_range", "samples_per_class"),
            "natural": ("max_clients", "min_client_size"),
        }.get(self.rule, ())
        return {"partition": self.rule, **{name: getattr(self, name) for name in names}}

    def resolve(self, dataset: Dataset) -> tuple["Split", Dataset]:
        """Decides between the natural partition and a partition rule.

        A data set with clients gets the natural partition, unless a rule is given.

        Args:
            dataset: the data set to partition.

        Returns:
            The split, with `natural` and `clients` set for the natural partition; and
            the data set, with the selected clients and a note.

        Raises:
            ValueError: a setting of natural clients is given and natural clients are
                not used, or a number of clients is given and natural clients are used.
        """
        selections = [
            name
            for name in ("max_clients", "min_client_size")
            if getattr(self, name) != getattr(Split, name)
        ]
        levels = {name: getattr(self, name) for name in RULES}
        defaults = [name for name, x in levels.items() if isinstance(x, Default)]
        rules = [name for name, x in levels.items() if x and name not in defaults]
        if selections and (rules or dataset.clients is None):
            reason = "has no natural clients"
            if dataset.clients is not None:
                reason = f"is partitioned by `{rules[0]}`"
            raise ValueError(
                f"`{selections[0]}` selects among natural clients, but {dataset.name} "
                f"{reason}; omit `{selections[0]}`"
            )
        if dataset.clients is None:
            return self, dataset
        if rules:
            note = f"the natural partition is not used, because `{rules[0]}` is given"
            return self, dataset._replace(notes=(*dataset.notes, note))
        if not isinstance(self.clients, Default):
            raise ValueError(
                "`clients` is the number of clients of a partition, but the data has "
                "natural clients; give `max_clients` to use some of them, or `p` 0 to "
                "partition at random"
            )
        clients, note = select_clients(
            dataset.clients, most=self.max_clients, least_size=self.min_client_size
        )
        dataset = dataset._replace(clients=clients, notes=(*dataset.notes, note))
        count = len(np.unique(clients[clients >= 0]))
        changes = {**dict.fromkeys(defaults, ()), "natural": (1,), "clients": (count,)}
        return dataclasses.replace(self, **changes), dataset

    def check(self, dataset: Dataset) -> None:
        """Checks the partition's settings against a data set.

        Args:
            dataset: the data set.

        Raises:
            ValueError: a value is out of its range, or a setting lists a value twice.
        """
        check_values("clients", as_tuple(self.clients), least=1)
        check_values("clusters", as_tuple(self.clusters) or (2,), least=2)
        check_values("client_size", as_tuple(self.client_size) or (1,), least=1)
        check_values(self.rule, self.levels(dataset))
        check_values("failure_rate", as_tuple(self.failure_rate), least=0, most=1)

    def levels(self, dataset: Dataset) -> tuple[float | int, ...]:
        """Returns the values of the partition rule's setting.

        Args:
            dataset: the data set. Its labels decide the default of p.

        Returns:
            The given values. The default is p 0.25, or p 0 for data without labels.
        """
        default = 0.0 if dataset.labels is None else 0.25
        return getattr(self, self.rule) or (default,)

    def at(self, level: float | int) -> "Split":
        """Returns this split with a single value of the partition rule's setting.

        Args:
            level: a value of the rule's setting, for example of p.

        Returns:
            The split with this value.
        """
        return dataclasses.replace(self, **{self.rule: (level,)})

    def numbers_of_clusters(self, dataset: Dataset) -> tuple[int, ...]:
        """Returns the numbers of clusters of the grid.

        Without the setting `clusters`, it is the number of classes.

        Args:
            dataset: the data set with its labels.

        Returns:
            One or more numbers, each at least 2.

        Raises:
            ValueError: `clusters` is missing, and there are no labels or only one
                class.
        """
        if self.clusters:
            return as_tuple(self.clusters)
        if dataset.labels is None:
            raise ValueError("`num_clusters` is required for data without labels")
        num_classes = len(np.unique(dataset.labels))
        if num_classes < 2:
            raise ValueError(
                "`num_clusters` is required, because all examples of "
                f"{dataset.name} have the same class"
            )
        return (num_classes,)

    def levels_by_classes(self, dataset: Dataset) -> dict[int, tuple[float | int, ...]]:
        """Groups the values of the rule by the maximum number of classes per client.

        Args:
            dataset: the data set with its labels.

        Returns:
            A dict from the maximum number of classes of a client to the values of the
            rule's setting. Empty for rules without a fixed number of classes per
            client.
        """
        levels = self.levels(dataset)
        if self.rule == "classes_per_client":
            return {int(number): (number,) for number in levels}
        if self.rule == "overlap" and dataset.labels is not None:
            return {self._class_range(dataset.labels)[1]: levels}
        return {}

    def check_size(self, num_clients: int, num_clusters: int, dataset: Dataset) -> None:
        """Checks that clients have at least as many examples as clusters.

        Args:
            num_clients: M, the number of clients.
            num_clusters: K, the number of clusters.
            dataset: the data set.

        Raises:
            ValueError: the data set has fewer than K M examples, or `client_size` is
                below K.
        """
        least, size = num_clusters * num_clients, len(dataset.examples)
        if not self.natural and least > size:
            raise ValueError(
                f"`clusters` {num_clusters} with `clients` {num_clients} require at "
                f"least {least} examples, but {dataset.name} has {size}; give fewer "
                "clusters or clients"
            )
        size = min(as_tuple(self.client_size), default=num_clusters)
        if size < num_clusters:
            raise ValueError(
                f"`client_size` must be at least `clusters` {num_clusters}, got {size}"
            )

    def examples_per_client(self, dataset: Dataset, num_clients: int) -> float:
        """Returns the number of examples of a typical client, at least 1.

        The number is computed for the first value of the rule and any seed. For
        `overlap`, it assumes the middle of the class range and classes of equal size.
        The largest `client_size` is an upper bound. Examples of `extra_split` are not
        counted.

        Args:
            dataset: the data set to partition.
            num_clients: the number of clients.

        Returns:
            The number of examples.
        """
        size, labels = len(dataset.examples), dataset.labels
        if self.natural and dataset.clients is not None:
            size = int((dataset.clients >= 0).sum())
        rows = size / num_clients
        if self.rule == "overlap" and labels is not None:
            num_classes, classes = len(np.unique(labels)), self._middle(labels)
            sharing = max(round(num_clients * classes / num_classes), 1)
            size_each = min(self.samples_per_class, size // num_classes // sharing)
            rows = classes * examples_per_class(
                size_each, sharing, as_tuple(self.overlap)[0]
            )
        most = max(as_tuple(self.client_size), default=rows)
        return max(1.0, float(min(rows, most)))

    def examples_per_cluster(
        self, dataset: Dataset, num_clients: int, num_clusters: int
    ) -> int:
        """Returns the number of examples per cluster of a typical client.

        For `overlap` without `clusters`, a client has as many clusters as classes.

        Args:
            dataset: the data set to partition.
            num_clients: the number of clients.
            num_clusters: the number of clusters of each client.

        Returns:
            The rounded number of examples.
        """
        clusters, labels = float(num_clusters), dataset.labels
        if self.rule == "overlap" and labels is not None and not self.clusters:
            clusters = self._middle(labels)
        return round(self.examples_per_client(dataset, num_clients) / clusters)

    def _class_range(self, labels: np.ndarray) -> tuple[int, int]:
        """Returns the minimum and maximum number of classes per client."""
        return self.class_range or (2, max(2, len(np.unique(labels)) // 2))

    def _middle(self, labels: np.ndarray) -> float:
        """Returns the mean number of classes per client, at least 1."""
        return max(sum(self._class_range(labels)) / 2, 1.0)

    def seed_of(self, point: Point) -> int:
        """Returns the seed of a run's partition and failures.

        Args:
            point: the swept values of the run, of which `seed` is used.

        Returns:
            `partition_seed` if it is given, and the seed of the run otherwise.
        """
        return int(
            point["seed"] if self.partition_seed is None else self.partition_seed
        )

    def partitioner(
        self, dataset: Dataset, num_extra: int = 0, natural: Partition | None = None
    ) -> Callable[[Point], Partition]:
        """Returns a function that maps the settings of a run to its partition.

        Runs with the same partition get the same object.

        Args:
            dataset: the data set to partition.
            num_extra: the number of extra examples behind those of `dataset`. They are
                partitioned evenly.
            natural: the natural partition. None derives it from the clients of
                `dataset`.

        Returns:
            The function.
        """
        rule, labels, count = self.rule, dataset.labels, len(dataset.examples)
        classes = np.zeros(count, int) if labels is None else labels
        by_rule = RULES[rule]
        if rule == "overlap":
            sizes = {"samples_per_class": self.samples_per_class}
            by_rule = partial(by_rule, class_range=self._class_range(classes), **sizes)
        groups = dataset.clients if rule == "natural" else classes
        extra = np.arange(count, count + num_extra)
        # The extra examples count as one further class in the subsets of clients.
        strata = np.concatenate([classes, np.full(num_extra, int(classes.max()) + 1)])

        @cache
        def partition(
            level: float | int, num_clients: int, size: int | None, seed: int
        ):
            result = natural if rule == "natural" else None
            result = result or by_rule(groups, num_clients, level, seed=seed)
            if self.clusters:  # the same number of clusters for all clients
                result = result._replace(local_clusters=None)
            result = add_evenly(result, extra, seed=seed)
            if size is not None:
                result = subsample_clients(result, strata, int(size), seed=seed)
            return result

        def partition_of(point: Point) -> Partition:
            if labels is None and rule not in ("natural", "p"):
                raise ValueError(
                    f"`{rule}` requires labels, but {dataset.name} has none; give `p` 0"
                )
            if labels is None and rule == "p" and point["p"] != 0:
                raise ValueError(
                    f"p must be 0 for data without labels, got {point['p']}"
                )
            settings = point[rule], int(point["clients"]), point.get("client_size")
            return partition(*settings, self.seed_of(point))

        return partition_of

    def present(self, point: Point, num_clients: int, num_rounds: int) -> np.ndarray:
        """Returns the participating clients of each round of a run, bool [R, M].

        Args:
            point: the swept values of the run, of which `failure_rate` and the seed are
                used.
            num_clients: M, the number of clients.
            num_rounds: R, the number of rounds.

        Returns:
            bool [R, M], True for participating clients, see `failures`.
        """
        return failures(
            num_clients,
            point["failure_rate"],
            seed=self.seed_of(point),
            num_rounds=num_rounds,
        )


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Split, include_extras=True)
