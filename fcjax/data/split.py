"""Which client holds which examples, and which clients fail: the axes of a grid that
belong to the federation.
"""

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
    """For other clients: how many, how unlike, and which of them fail.

    Examples:
        >>> Split(p=[0, 0.5], clients=20).p
        (0.0, 0.5)
    """

    clients: Sweep[int] = default(10)
    """How many clients the data is dealt to, where it has none of its own."""
    natural: Annotated[tuple[int, ...], tyro.conf.Suppress] = ()
    """1 where the clients are the data's own, see `resolve`; not to be given."""
    max_clients: Annotated[int | None, shown("all")] = None
    """At most so many of the data's own clients, drawn at random, alike in all runs."""
    min_client_size: int = 1
    """Of the data's own clients those alone that have so many examples."""
    clusters: Annotated[Sweep[int], shown("the number of classes")] = ()
    """How many clusters to find; of clients on their own as many as they hold."""
    p: Annotated[Sweep[float], shown("0.25; 0 without labels")] = ()
    """Heterogeneity: 0 deals at random, 1 a class a client; 0:1:0.25 are five."""
    alpha: Annotated[Sweep[float], shown("deal by --p")] = ()
    """Deal by Dirichlet shares of this concentration instead of by --p."""
    class_share: Annotated[Sweep[float], shown("deal by --p")] = ()
    """Each client holds this share of the classes, consecutive ones."""
    classes_per_client: Annotated[Sweep[int], shown("deal by --p")] = ()
    """Each client holds so many classes, drawn at random."""
    overlap: Annotated[Sweep[float], shown("deal by --p")] = ()
    """Clients hold classes of a range and share so much of each; 0 shares nothing."""
    class_range: Annotated[
        tuple[int, int] | None, shown("2 to half of the classes")
    ] = None
    """With --overlap: the least and the most classes that a client holds."""
    samples_per_class: int = 500
    """With --overlap: examples of each class that a client holds, at most."""
    client_size: Annotated[Sweep[int], shown("all that it is dealt")] = ()
    """Use at most so many examples a client, classes in proportion."""
    partition_seed: Annotated[int | None, shown("the run's own --seed")] = None
    """Seed of the partition and of failures."""
    failure_rate: Sweep[float] = default(0.0)
    """Share of the clients that do not answer; their data is scored all the same."""
    failures: Literal["fixed", "per-round"] = "fixed"
    """The same clients for the whole run, or as many drawn anew in every round."""

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
        """The rule that is asked for, p where no other one is.

        Raises:
            ValueError: two are given, or a setting of a rule that is not.
        """
        levels = {name: getattr(self, name) for name in RULES}
        asked = [x for x in RULES if levels[x] and not isinstance(levels[x], Default)]
        asked = asked or [x for x in RULES if levels[x]]
        if len(asked) > 1:
            raise ValueError(f"`{asked[0]}` and `{asked[1]}` are two rules, give one")
        if self.class_range is not None and asked != ["overlap"]:
            raise ValueError("class_range needs `overlap`, give both")
        return asked[0] if asked else "p"

    def config(self) -> dict[str, Any]:
        """Returns the rule and its other settings, as config.json holds them."""
        names = {
            "overlap": ("class_range", "samples_per_class"),
            "natural": ("max_clients", "min_client_size"),
        }.get(self.rule, ())
        return {"partition": self.rule, **{name: getattr(self, name) for name in names}}

    def resolve(self, dataset: Dataset) -> tuple["Split", Dataset]:
        """Returns the split and the data set once it is known whether the clients are
        the data's own. They are, for a data set that has clients, unless another rule
        is asked for.

        Raises:
            ValueError: a setting of such clients is given and they are not used, or a
                number of clients and they are.
        """
        given = [
            name
            for name in ("max_clients", "min_client_size")
            if getattr(self, name) != getattr(Split, name)
        ]
        levels = {name: getattr(self, name) for name in RULES}
        defaults = [name for name, x in levels.items() if isinstance(x, Default)]
        asked = [name for name, x in levels.items() if x and name not in defaults]
        if given and (asked or dataset.clients is None):
            why = "names no clients"
            if dataset.clients is not None:
                why = f"is partitioned by `{asked[0]}`"
            raise ValueError(
                f"`{given[0]}` selects among the data's own clients, but "
                f"{dataset.name} {why}"
            )
        if dataset.clients is None:
            return self, dataset
        if asked:
            note = f"the data's own clients are not used: `{asked[0]}` is given"
            return self, dataset._replace(notes=(*dataset.notes, note))
        if not isinstance(self.clients, Default):
            raise ValueError(
                "`clients` is the number of clients of a partition, but the data has "
                "clients of its own; give `max_clients`, or `p` 0 to partition at "
                "random"
            )
        clients, note = select_clients(
            dataset.clients, most=self.max_clients, least_size=self.min_client_size
        )
        dataset = dataset._replace(clients=clients, notes=(*dataset.notes, note))
        count = len(np.unique(clients[clients >= 0]))
        changes = {**dict.fromkeys(defaults, ()), "natural": (1,), "clients": (count,)}
        return dataclasses.replace(self, **changes), dataset

    def check(self, dataset: Dataset) -> None:
        """Raises ValueError where a value is out of its range or given twice."""
        check_values("clients", as_tuple(self.clients), least=1)
        check_values("clusters", as_tuple(self.clusters) or (2,), least=2)
        check_values("client_size", as_tuple(self.client_size) or (1,), least=1)
        check_values(self.rule, self.levels(dataset))
        check_values("failure_rate", as_tuple(self.failure_rate), least=0, most=1)

    def levels(self, dataset: Dataset) -> tuple[float | int, ...]:
        """Returns the values of the rule that the grid has."""
        default = 0.0 if dataset.labels is None else 0.25
        return getattr(self, self.rule) or (default,)

    def at(self, level: float | int) -> "Split":
        """Returns the split at one level of its rule."""
        return dataclasses.replace(self, **{self.rule: (level,)})

    def numbers_of_clusters(self, dataset: Dataset) -> tuple[int, ...]:
        if self.clusters:
            return as_tuple(self.clusters)
        if dataset.labels is None:
            raise ValueError("`clusters` is required for data without labels")
        num_classes = len(np.unique(dataset.labels))
        if num_classes < 2:
            raise ValueError(
                f"`clusters` is required: all of {dataset.name} has one class"
            )
        return (num_classes,)

    def levels_by_classes(self, dataset: Dataset) -> dict[int, tuple[float | int, ...]]:
        """Returns the levels by the most classes that a client holds at them; nothing
        for a rule that does not tell.
        """
        levels = self.levels(dataset)
        if self.rule == "classes_per_client":
            return {int(number): (number,) for number in levels}
        if self.rule == "overlap" and dataset.labels is not None:
            return {self._class_range(dataset.labels)[1]: levels}
        return {}

    def check_size(self, num_clients: int, num_clusters: int, dataset: Dataset) -> None:
        """Raises ValueError where clients have fewer examples than clusters."""
        least, size = num_clusters * num_clients, len(dataset.examples)
        if not self.natural and least > size:
            raise ValueError(
                f"`clusters` {num_clusters} with `clients` {num_clients} take at least "
                f"{least} examples, {dataset.name} has {size}"
            )
        size = min(as_tuple(self.client_size), default=num_clusters)
        if size < num_clusters:
            raise ValueError(
                f"`client_size` must be at least `clusters` {num_clusters}, got {size}"
            )

    def examples_per_client(self, dataset: Dataset, num_clients: int) -> float:
        """Returns the number of examples of a typical client, at least 1.

        It is that of the rule at its first level, for any seed: with `overlap` for the
        middle of the class range and classes of equal size. The largest `client_size`
        bounds it. Examples of `extra_split` are not counted.
        """
        size, labels = len(dataset.examples), dataset.labels
        if self.natural and dataset.clients is not None:
            size = int((dataset.clients >= 0).sum())
        rows = size / num_clients
        if self.rule == "overlap" and labels is not None:
            num_classes, classes = len(np.unique(labels)), self._middle(labels)
            holders = max(round(num_clients * classes / num_classes), 1)
            each = min(self.samples_per_class, size // num_classes // holders)
            rows = classes * examples_per_class(
                each, holders, as_tuple(self.overlap)[0]
            )
        most = max(as_tuple(self.client_size), default=rows)
        return max(1.0, float(min(rows, most)))

    def examples_per_cluster(
        self, dataset: Dataset, num_clients: int, num_clusters: int
    ) -> int:
        """Returns the number of examples of one cluster of a typical client. With
        `overlap` and no `clusters`, a client has as many clusters as classes.
        """
        own, labels = float(num_clusters), dataset.labels
        if self.rule == "overlap" and labels is not None and not self.clusters:
            own = self._middle(labels)
        return round(self.examples_per_client(dataset, num_clients) / own)

    def _class_range(self, labels: np.ndarray) -> tuple[int, int]:
        return self.class_range or (2, max(2, len(np.unique(labels)) // 2))

    def _middle(self, labels: np.ndarray) -> float:
        return max(sum(self._class_range(labels)) / 2, 1.0)

    def seed_of(self, point: Point) -> int:
        """Returns the seed of a run's partition and failures."""
        return int(
            point["seed"] if self.partition_seed is None else self.partition_seed
        )

    def partitioner(
        self, dataset: Dataset, num_extra: int = 0, natural: Partition | None = None
    ) -> Callable[[Point], Partition]:
        """Returns a function from the settings of a run to its partition. Runs with the
        same partition share one object.

        Args:
            dataset: its examples are partitioned by the rule.
            num_extra: further examples behind them, which are partitioned evenly.
            natural: the data's own clients, in place of the ids of `dataset`.
        """
        rule, labels, count = self.rule, dataset.labels, len(dataset.examples)
        known = np.zeros(count, int) if labels is None else labels
        by_rule = RULES[rule]
        if rule == "overlap":
            sizes = {"samples_per_class": self.samples_per_class}
            by_rule = partial(by_rule, class_range=self._class_range(known), **sizes)
        groups = dataset.clients if rule == "natural" else known
        extra = np.arange(count, count + num_extra)
        # To a client's subset the extra rows are one class more.
        kinds = np.concatenate([known, np.full(num_extra, int(known.max()) + 1)])

        @cache
        def made(level: float | int, num_clients: int, size: int | None, seed: int):
            found = natural if rule == "natural" else None
            found = found or by_rule(groups, num_clients, level, seed=seed)
            if self.clusters:  # then all look for so many
                found = found._replace(local_clusters=None)
            found = add_evenly(found, extra, seed=seed)
            if size is not None:
                found = subsample_clients(found, kinds, int(size), seed=seed)
            return found

        def partition(point: Point) -> Partition:
            if labels is None and rule not in ("natural", "p"):
                raise ValueError(f"`{rule}` needs labels, and the data has none")
            if labels is None and rule == "p" and point["p"] != 0:
                raise ValueError("p must be 0 for data without labels")
            own = point[rule], int(point["clients"]), point.get("client_size")
            return made(*own, self.seed_of(point))

        return partition

    def present(self, point: Point, num_clients: int, num_rounds: int) -> np.ndarray:
        """Returns the participating clients of each round of a run, bool [R, M]."""
        return failures(
            num_clients,
            point["failure_rate"],
            seed=self.seed_of(point),
            num_rounds=num_rounds,
        )


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Split, include_extras=True)
