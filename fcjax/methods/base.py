"""What all methods share: settings with limits, presets, and defaults by the data.

A method is a frozen dataclass. A field is at once the Python argument, the command-line
flag, the key in config.json, the column in results.csv and the setting of the
algorithm.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
)

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin

from fcjax.data import Dataset
from fcjax.data.partition import RULES
from fcjax.data.split import Split
from fcjax.settings import Default, as_tuple, default, frozen, settings_of
from fcjax.types import FederatedClustering

Preset = Literal["smoke", "default", "paper"]
Scope = Literal["global", "client-pooled", "client-mean"]
"""How clusters are scored: one match for all examples, or one match per client, where
clients count by their examples, or all alike."""


class Problem(NamedTuple):
    """The clustering problem that a method is built for; defaults follow from it."""

    data: str
    """Name of the data set, without folders and file ending."""
    dataset: Dataset
    num_clients: int
    num_clusters: int
    """K. Clients that cluster on their own look for at most so many."""
    examples_per_client: float
    """Of a client of middle size, at least 1."""
    examples_per_cluster: int
    """Of one cluster of a client, in the middle."""
    has_extra: bool = False
    """Whether clients also train on examples that are not scored."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an example."""
        return self.dataset.examples.shape[1:]


class Shared(NamedTuple):
    """Leading stages that a method has in common with others."""

    name: str
    """Of what the stages train: "fedu", "gans"."""
    num_stages: int
    settings: Mapping[str, Any]
    """All settings that the stages and their metrics depend on, by name."""


class MethodSpec(NamedTuple):
    """A method with all its settings resolved for one problem."""

    name: str
    settings: Mapping[str, Any]
    """By name. A tuple is swept: floats are traced, whole numbers change shapes and
    have a program each."""
    build: Callable[[Mapping[str, Any]], FederatedClustering]
    """(settings of one run) -> the algorithm."""
    scope: Scope
    paper: Mapping[float, Mapping[str, float]] = {}
    """The paper's scores on the whole data set, by p."""
    working_bytes: int = 0
    """Memory of a round of one run beside its state, as for a copy of the data."""
    evaluate_every: int = 1
    """Rounds between two evaluations, unless the user chooses."""
    sees_all: bool = False
    """Whether the server reads examples of all clients."""
    shared: Shared | None = None
    """Leading stages that the stage cache may keep."""
    start: str = ""
    """The stage whose final metrics are also reported, as `initial_NAME`."""
    reported: tuple[str, ...] = ()
    """Metrics whose last value is a column of results.csv."""


@frozen
class Method(ClusterMixin, BaseEstimator):
    """Settings of a federated clustering method.

    A field that accepts several values spans a grid: `CCFC(model_weight=[0, 1e-3])`.
    `fit` and `fit_predict` take one value of each.

    Examples:
        >>> from fcjax.methods import KMeans
        >>> method: Method = KMeans(num_init=3)
        >>> method.name, method.num_init
        ('km', 3)
    """

    preset: Preset = "default"
    """smoke: a minute; default: chosen from the data; paper: the paper's settings.
    Settings that are given win over all of them."""

    name: ClassVar[str]
    """As in results.csv and on the command line."""
    partition_defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of the partition that differ from the common ones, by field."""
    runs_alone: ClassVar[bool] = False
    """Whether a CPU runs one run after another, because some end early."""
    is_central: ClassVar[bool] = False
    """Whether the method has all data in one place, however it is partitioned."""

    def fit(
        self,
        X: Any,
        y: None = None,
        *,
        clients: Any = None,
        num_clusters: int | None = None,
        split: Any = None,
        seed: int = 0,
        progress: bool = False,
    ) -> Any:
        """Clusters examples that clients hold.

        Args:
            X: examples [P, F] or images [P, H, W, C] from NumPy, JAX or pandas, a
                `Dataset`, or the name or path of one; see `fcjax.run`.
            y: not used; scikit-learn's pipelines pass it.
            clients: the client of every example, [P] ids of any kind, or a `Partition`.
                None partitions by `split`.
            num_clusters: K; None takes the number of classes of a labelled data set.
            split: an `fcjax.Split`; by default ten clients, at random.
            seed: of training, and of the partition if there is one.
            progress: show a progress bar.

        Returns:
            The fitted run, an `fcjax.Run`: `labels_`, `embedding_`, `predict(X)`,
            `transform(X)`, `scores(y)`, `history`, `save(path)`.

        Raises:
            ValueError: an argument or a setting is wrong; one line that names it.
        """
        import fcjax

        options = {"clients": clients, "num_clusters": num_clusters, "split": split}
        return fcjax.fit(self, X, seed=seed, progress=progress, **options)

    def fit_predict(self, X: Any, y: None = None, **options: Any) -> np.ndarray:
        """Returns the cluster of every example, int [P]; -1 where an example has none.

        Args:
            X, y, options: see `fit`.
        """
        return self.fit(X, y, **options).labels_

    def resolve(self, problem: Problem) -> MethodSpec:
        """Returns the method with its settings resolved: each as it was given, else by
        the preset and the data.

        Raises:
            ValueError: a setting is out of range, or does not fit the data.
        """
        raise NotImplementedError

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        """Returns the algorithm as pure functions.

        Args:
            settings: one value per setting, by name; floats may be traced.
            problem: the data and the clients.
        """
        raise NotImplementedError

    def builder(
        self, problem: Problem
    ) -> Callable[[Mapping[str, Any]], FederatedClustering]:
        """Returns a function from the settings of one run to the algorithm."""
        return lambda values: self.algorithm(SimpleNamespace(**values), problem)

    def plain(self, **values: Any) -> SimpleNamespace:
        """Returns one value per setting, by name: the value that was given, else the
        default of the field, whatever the data.

        Args:
            **values: replace those of settings, by name; traced scalars are allowed.

        Raises:
            ValueError: a setting is out of range, or has several values.

        Examples:
            >>> from fcjax.methods import CCFC
            >>> settings = CCFC(model_weight=0.1).plain()
            >>> settings.model_weight, settings.latent_size
            (0.1, 256)
        """
        # A setting without a default of its own is None.
        settings = dict.fromkeys(fields_of(type(self))) | one_of_each(self.settings())
        return SimpleNamespace(**settings | values)

    def full_name(self) -> str:
        """Returns the method's name with its variant."""
        return self.name

    def adapt(self, split: Split, *, labelled: bool) -> Split:
        """Returns the split with the method's own defaults where it leaves them open.

        Args:
            split: as it was given.
            labelled: whether the data has labels to partition by.
        """
        del labelled
        values = {name: getattr(split, name) for name in self.partition_defaults}
        is_open = {k for k, x in values.items() if isinstance(x, Default) or x == ()}
        own = {k: x for k, x in self.partition_defaults.items() if k in is_open}
        return dataclasses.replace(
            split, **{k: x if x == () else default(x) for k, x in own.items()}
        )

    def build(self, problem: Problem) -> FederatedClustering:
        """Returns the algorithm as pure functions.

        Raises:
            ValueError: a setting has several values, is out of range, or does not fit
                the data.
        """
        spec = self.resolve(problem)
        return spec.build(one_of_each(spec.settings))

    def settings(
        self, *changes: Mapping[str, Any], names: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Returns settings by name: each as it was given, else as the last of `changes`
        has it that does, else its default. A setting that may be swept is a tuple.

        Args:
            changes: by name, the values that presets and the data choose.
            names: the settings to return; None are all.

        Raises:
            ValueError: a number is negative, infinite, out of its limits, or zero where
                it counts something.
        """
        own = fields_of(type(self))
        return settings_of(
            self, *changes, names=[x for x in own if names is None or x in names]
        )


def one_client(split: Split) -> Split:
    """Returns a split with one client that has all data."""
    rules = {name: () for name in RULES} | {"p": (0.0,)}
    return dataclasses.replace(split, clients=default(1), **rules)


def partitioned_once(split: Split) -> Split:
    """Returns the split for a method that sees all data, however it is partitioned:
    unless clients fail, it runs at the first heterogeneity alone.
    """
    if any(as_tuple(split.failure_rate)):
        return split
    first = {name: getattr(split, name)[:1] for name in RULES}
    return dataclasses.replace(split, **first)


def fields_of(cls: type[Method]) -> list[str]:
    """Returns the names of a method's settings: its fields without `preset`."""
    return [x.name for x in dataclasses.fields(cls) if x.name != "preset"]


def one_of_each(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings without their tuples; raises ValueError where one has several
    values.
    """
    for name, value in settings.items():
        if isinstance(value, tuple) and len(value) > 1:
            raise ValueError(f"{name} takes one value to build a method")
    return {k: v[0] if isinstance(v, tuple) else v for k, v in settings.items()}
