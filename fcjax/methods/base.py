"""The base class of all methods, and the description of a clustering problem.

A method is a frozen dataclass. Each field is a setting of the algorithm. The same name
is used for the Python argument, the command-line flag, the key in config.json and the
column in results.csv.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
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
from fcjax.privacy.accounting import Parts
from fcjax.privacy.guarantee import Unit
from fcjax.settings import Default, as_tuple, default, frozen, settings_of
from fcjax.types import FederatedClustering

Preset = Literal["smoke", "default", "paper"]
Scope = Literal["global", "client-pooled", "client-mean"]
"""How clusters are matched to classes for the scores: once for all examples ("global"),
or once per client. The scores of the clients are averaged with their numbers of
examples as weights ("client-pooled") or without weights ("client-mean")."""


class Problem(NamedTuple):
    """The clustering problem that a method is built for.

    Defaults that are chosen from the data depend on these values.
    """

    data: str
    """Name of the data set, without folders and file ending."""
    dataset: Dataset
    """The examples, and their labels if there are any."""
    num_clients: int
    """M, the number of clients."""
    num_clusters: int
    """K, the number of clusters. If clients cluster on their own: the largest number of
    clusters of a client."""
    examples_per_client: float
    """Number of examples of a typical client, at least 1."""
    examples_per_cluster: int
    """Number of examples of a typical cluster of one client."""
    has_extra: bool = False
    """Whether clients also train on examples that are not scored."""
    protected: Unit | None = None
    """The protected unit of differential privacy; None without it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.dataset.examples.shape[1:]


class Shared(NamedTuple):
    """First stages that several methods have in common, for the stage cache."""

    name: str
    """Name of the trained networks, for example "fedu" or "gan"."""
    num_stages: int
    """Number of the common stages."""
    settings: Mapping[str, Any]
    """All settings that the stages and their metrics depend on, by name."""


class MethodSpec(NamedTuple):
    """A method for one problem, with a value for each setting."""

    name: str
    """Name of the method and its variant, as in results.csv."""
    settings: Mapping[str, Any]
    """Settings by name. A tuple has one value per run of the grid: JAX traces floats,
    and compiles one program per whole number, because whole numbers change shapes."""
    build: Callable[[Mapping[str, Any]], FederatedClustering]
    """Function from the settings of one run to the algorithm."""
    scope: Scope
    """How clusters are matched to classes for the scores."""
    paper: Mapping[float, Mapping[str, float]] = {}
    """Scores of the paper on the whole data set, by p and by name of the score."""
    working_bytes: int = 0
    """Memory of one round of one run in addition to its state, in bytes."""
    evaluate_every: int = 1
    """Default number of rounds between two evaluations."""
    sees_all: bool = False
    """Whether the server reads examples of all clients."""
    shared: Shared | None = None
    """First stages that the stage cache may store; None if there are none."""
    start: str = ""
    """Name of a stage whose final metrics are also reported as `initial_NAME`."""
    reported: tuple[str, ...] = ()
    """Metrics whose last value is a column of results.csv."""
    warning: Callable[[Mapping[str, Any], Sequence[Sequence[int]]], str] | None = None
    """(settings, sizes of the clients of each run) -> a line to print before these runs
    start; "" for no line."""


@frozen
class Method(ClusterMixin, BaseEstimator):
    """Base class of all federated clustering methods: a dataclass of settings.

    Several values of a setting span a grid of runs, for example
    `CCFC(model_weight=[0, 1e-3])`. `fit` and `fit_predict` accept one value per
    setting.

    Examples:
        >>> from fcjax.methods import KMeans
        >>> method: Method = KMeans(num_init=3)
        >>> method.name, method.num_init
        ('km', 3)
    """

    preset: Preset = "default"
    """Default values of the other settings. "default" chooses them from the data,
    "paper" uses those of the paper, and "smoke" runs a test of about a minute."""

    name: ClassVar[str]
    """Name in results.csv and on the command line."""
    partition_defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of fields of `Split` that differ from the defaults of `Split`."""
    runs_alone: ClassVar[bool] = False
    """Whether a CPU trains one run at a time, because some runs end early."""
    any_scale: ClassVar[bool] = False
    """Whether feature vectors may have values outside of [0, 1]. Networks here do not
    take them: views are clipped to [0, 1], and generators end in a sigmoid."""
    is_central: ClassVar[bool] = False
    """Whether the method pools the examples of all clients."""
    units: ClassVar[tuple[Unit, ...]] = ()
    """Protected units of differential privacy that the method offers, the default
    first."""
    not_private: ClassVar[str] = (
        "its uploads have no bounded part per example or client"
    )
    """Why the method offers no differential privacy, or not for every unit."""

    @property
    def withholds(self) -> bool:
        """Whether clients can withhold clusters of few examples."""
        return False

    def check_withholds(self) -> None:
        """Checks that clients can withhold clusters of few examples.

        Raises:
            ValueError: they cannot.
        """
        if not self.withholds:
            raise ValueError(
                f"`min_members` is not available for {self.name} with these settings; "
                "its clients cannot withhold clusters"
            )

    def protected_unit(self, unit: Unit | None) -> Unit:
        """Returns the protected unit of differential privacy.

        Args:
            unit: the unit that the user asked for; None takes the method's default.

        Returns:
            The unit.

        Raises:
            ValueError: the method does not offer this unit. The line has the reason.
        """
        if not self.units:
            reason = self.not_private
            if self.is_central:
                reason = "it has all examples in one place"
            raise ValueError(
                f"`epsilon` is not available for {self.name}, because {reason}"
            )
        if unit is None:
            return self.units[0]
        if unit not in self.units:
            raise ValueError(
                f"`privacy_unit` must be {' or '.join(self.units)} for {self.name}, "
                f"got {unit}, because {self.not_private}"
            )
        return unit

    def noisy_sums(self, settings: Mapping[str, Any], unit: Unit) -> Parts:
        """Lists the noisy sums of a private run, for its privacy budget.

        Args:
            settings: one value per setting, whole numbers included.
            unit: the protected unit.

        Returns:
            The sums, whose shares of the budget sum to 1.
        """
        raise NotImplementedError

    def fit(
        self,
        X: Any,  # noqa: N803
        y: None = None,
        *,
        clients: Any = None,
        num_clusters: int | None = None,
        split: Any = None,
        privacy: Any = None,
        seed: int = 0,
        progress: bool = False,
    ) -> Any:
        """Clusters examples that are distributed over clients.

        Args:
            X: examples [P, F] or images [P, H, W, C] from NumPy, JAX or pandas, a
                `Dataset`, or the name or path of one, as for `fcjax.run`.
            y: ignored; scikit-learn's pipelines pass this argument.
            clients: the client of each example, [P] ids of any type, or a `Partition`.
                None partitions the examples by `split`.
            num_clusters: K, at least 2; None takes the number of classes of a data set
                with labels.
            split: an `fcjax.Split`; by default a random partition over ten clients.
            privacy: an `fcjax.Privacy` with a single epsilon; None adds no noise.
            seed: seed of training, and of the partition by `split`.
            progress: whether to show a progress bar.

        Returns:
            The fitted run, an `fcjax.Run`: `labels_`, `embedding_`, `predict(X)`,
            `transform(X)`, `scores(y)`, `history`, `save(path)`.

        Raises:
            ValueError: an argument or a setting is wrong; the message names the
                argument.
        """
        import fcjax

        options = {"clients": clients, "num_clusters": num_clusters, "split": split}
        options |= {"privacy": privacy}
        return fcjax.fit(self, X, seed=seed, progress=progress, **options)

    def fit_predict(
        self,
        X: Any,  # noqa: N803
        y: None = None,
        **options: Any,
    ) -> np.ndarray:
        """Clusters examples and returns the cluster of each example.

        Args:
            X: examples [P, F], images [P, H, W, C], a `Dataset`, or its name or path.
            y: ignored; scikit-learn's pipelines pass this argument.
            **options: further arguments of `fit`, such as `clients`, `num_clusters` and
                `seed`.

        Returns:
            Clusters, int [P]; -1 for an example without a client.
        """
        return self.fit(X, y, **options).labels_

    def resolve(self, problem: Problem) -> MethodSpec:
        """Chooses a value for each setting and returns the method for this problem.

        A value that the user gave takes precedence over the preset and the data.

        Args:
            problem: the data and the clients.

        Returns:
            The method with all its settings.

        Raises:
            ValueError: a setting is out of range, or does not fit the data.
        """
        raise NotImplementedError

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run.

        Args:
            settings: an object with one attribute per setting; floats may be traced.
            problem: the data and the clients.

        Returns:
            The algorithm as pure functions.
        """
        raise NotImplementedError

    def builder(
        self, problem: Problem
    ) -> Callable[[Mapping[str, Any]], FederatedClustering]:
        """Returns a function from the settings of one run to the algorithm.

        The function may use nothing of this method but its class: calls with other
        values of traced settings share a compiled program.

        Args:
            problem: the data and the clients.

        Returns:
            A function that takes settings by name and returns the algorithm as pure
            functions.
        """
        return lambda values: self.algorithm(SimpleNamespace(**values), problem)

    def plain(self, **values: Any) -> SimpleNamespace:
        """Returns one value per setting, without looking at data.

        Settings that were not given have the default of their field.

        Args:
            **values: values that replace settings, by name; traced scalars are allowed.

        Returns:
            An object with one attribute per setting.

        Raises:
            ValueError: a setting is out of range, or has several values.

        Examples:
            >>> from fcjax.methods import CCFC
            >>> settings = CCFC(model_weight=0.1).plain()
            >>> settings.model_weight, settings.latent_size
            (0.1, 256)
        """
        # Settings that have no value in `settings()` are None.
        settings = dict.fromkeys(fields_of(type(self))) | single_values(self.settings())
        return SimpleNamespace(**settings | values)

    def full_name(self) -> str:
        """Returns the name of the method and its variant, as in results.csv."""
        return self.name

    def adapt(self, split: Split, *, labelled: bool) -> Split:
        """Fills the fields of a split that were not given with the method's defaults.

        Args:
            split: the split of the user.
            labelled: whether the data has labels to partition by.

        Returns:
            The split with the method's defaults.
        """
        del labelled
        defaults = {
            name: x if x == () else default(x)
            for name, x in self.partition_defaults.items()
            if isinstance(getattr(split, name), Default) or getattr(split, name) == ()
        }
        return dataclasses.replace(split, **defaults)

    def build(self, problem: Problem) -> FederatedClustering:
        """Chooses a value for each setting and builds the algorithm.

        Args:
            problem: the data and the clients.

        Returns:
            The algorithm as pure functions.

        Raises:
            ValueError: a setting has several values, is out of range, or does not fit
                the data.
        """
        spec = self.resolve(problem)
        return spec.build(single_values(spec.settings))

    def settings(
        self, *changes: Mapping[str, Any], names: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Returns the values of the settings by name.

        A value that the user gave comes first, then the last value in `changes`, then
        the default of the field. A setting that may have several values is a tuple.

        Args:
            *changes: values that presets and the data choose, by name of the setting.
            names: the settings to return; None returns all settings.

        Returns:
            Values by name.

        Raises:
            ValueError: a number is infinite or out of its limits.
        """
        fields = fields_of(type(self))
        return settings_of(
            self, *changes, names=[x for x in fields if names is None or x in names]
        )


def one_client(split: Split) -> Split:
    """Returns a split with a single client that has all examples.

    Args:
        split: the split of the user.

    Returns:
        The split with `clients` 1 and p 0, and without the other partition rules.
    """
    rules = {name: () for name in RULES} | {"p": (0.0,)}
    return dataclasses.replace(split, clients=default(1), **rules)


def first_partition(split: Split) -> Split:
    """Returns a split with the first value of its rule alone, for central methods.

    The partition does not change the result of a central method, unless clients fail.

    Args:
        split: the split, whose rule may have several values.

    Returns:
        The split with one value of its rule. It is unchanged if `failure_rate` is not
        0.
    """
    if any(as_tuple(split.failure_rate)):
        return split
    first = {name: getattr(split, name)[:1] for name in RULES}
    return dataclasses.replace(split, **first)


def fields_of(cls: type[Method]) -> list[str]:
    """Returns the names of a method's settings: all its fields but `preset`."""
    return [x.name for x in dataclasses.fields(cls) if x.name != "preset"]


def single_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings of one value each, without their tuples.

    Args:
        settings: values by name. A tuple holds the values of a grid.

    Returns:
        Values by name.

    Raises:
        ValueError: a setting has several values.
    """
    for name, value in settings.items():
        if isinstance(value, tuple) and len(value) > 1:
            raise ValueError(f"{name} takes one value to build a method, got {value}")
    return {k: v[0] if isinstance(v, tuple) else v for k, v in settings.items()}
