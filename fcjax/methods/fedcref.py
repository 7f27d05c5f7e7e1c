"""FedCRef (https://arxiv.org/abs/2408.10664) and the methods of its comparison.

This module has the settings, the defaults and the networks. The algorithms are in
`fcjax.algorithms.fedcref`, `fcjax.algorithms.uifca` and
`fcjax.algorithms.autoencoders`.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Annotated, Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int

from fcjax import nn
from fcjax.algorithms.autoencoders import by_dec
from fcjax.algorithms.central import Clustering, by_kmeans, central
from fcjax.algorithms.fedcref import Start, fedcref, given_clusters, on_clients
from fcjax.algorithms.kfed import kfed
from fcjax.algorithms.uifca import uifca
from fcjax.cluster import count_clusters
from fcjax.data.augment import client_rows
from fcjax.data.partition import RULES
from fcjax.data.split import Split
from fcjax.federated import clients
from fcjax.methods import simulated
from fcjax.methods.base import Method, MethodSpec, Problem, fields_of
from fcjax.methods.baselines import KFed, KMeans
from fcjax.settings import (
    Counts,
    Default,
    Limits,
    Shares,
    Sweep,
    default,
    frozen,
    shown,
)
from fcjax.types import FederatedClustering, Federation, PRNGKey

Local = Literal["dec", "k-means", "dirty"]
"""How clients find their first clusters."""


START_SETTINGS: dict[Local, tuple[str, ...]] = {
    "dec": ("pretrain_rounds", "joint_rounds", "dec_batch_size"),
    "k-means": (),
    "dirty": ("dirtiness",),
}
"""The settings that one value of `start` alone uses."""
LAST_PHASES: dict[Local, str] = {"dec": "dec", "k-means": "cluster", "dirty": "dirty"}
"""The name of the last stage before the refinement, by `start`."""
REPORTED = ("communities", "isolated", "wrong_associations", "active", "iteration")
PAPER = {
    "pretrain_rounds": 300,
    "joint_rounds": 70,
    "dec_batch_size": 256,
    "cluster_rounds": 20,
    "communication_rounds": 40,
    "local_steps": 100,
    "flow_width": 512,
}
SMOKE = {
    "num_rounds": 3,
    "federated_rounds": 3,
    "pretrain_rounds": 3,
    "joint_rounds": 2,
    "cluster_rounds": 2,
    "communication_rounds": 1,
    "local_steps": 3,
}
NUM_IMAGES = 2000
"""Number of images that are searched for the values of a pixel."""
PAPER_CLUSTER_SIZE = 500
"""Number of examples per cluster in the paper, for which its settings were chosen."""

BatchSize = Annotated[Sweep[int], shown("32; uifca: 128")]
LearningRate = Annotated[
    Sweep[float], shown("0.001; uifca: 0.003, with --preset paper 0.0001")
]
PretrainRounds = Annotated[Counts, shown("50; --preset paper: 300")]
JointRounds = Annotated[Sweep[int], shown("20; --preset paper: 70")]
DecBatchSize = Annotated[Sweep[int], shown("64; --preset paper: 256")]


@frozen
class FedCRefFamily(Method):
    """The methods find clusters with auto-encoders or generative models.

    Methods for --methods:
      fedcref  each client clusters its own examples; clients then find out which of
               their clusters are the same and refine them, without a server
      dec      deep embedded clustering of all examples in one place
      uifca    one generative model per cluster; the number of clusters is known

    In fedcref, clusters are matched to classes per client, and the scores are means
    over clients. The score global_acc takes communities as clusters.
    """

    partition_defaults: ClassVar[Mapping[str, Any]] = {"clients": 8, "p": ()}

    def resolve(self, problem: Problem) -> MethodSpec:
        """Chooses a value for each setting and returns the method for this problem."""
        examples = problem.dataset.examples
        names = {*fields_of(type(self))} - self.unused()
        settings = self.settings(*self.defaults(problem), names=names)
        return MethodSpec(
            *(self.name, settings, self.builder(problem), "global"),
            working_bytes=examples.nbytes + 4 * examples.size,
            sees_all=self.is_central,
        )

    def defaults(self, problem: Problem) -> list[dict[str, Any]]:
        """Returns the settings that data and preset choose; the last value counts.

        Args:
            problem: the data and the clients.

        Returns:
            Mappings from setting to value. A later mapping takes precedence.
        """
        return [{"smoke": SMOKE, "paper": PAPER}.get(self.preset, {})]

    def unused(self) -> set[str]:
        """Returns the settings that the other settings switch off."""
        return set()

    def adapt(self, split: Split, *, labelled: bool) -> Split:
        """Fills the fields of a split that were not given with defaults."""
        split = super().adapt(split, labelled=labelled)
        if labelled and not any(getattr(split, rule) for rule in RULES):
            split = dataclasses.replace(split, overlap=default(0.0))
        if self.preset == "paper" and isinstance(split.clients, Default):
            split = dataclasses.replace(split, clients=default(25))
        return split


@frozen
class UIFCA(FedCRefFamily):
    """UIFCA: all clients train one generative model per cluster.

    Examples:
        >>> UIFCA(preset="smoke").name
        'uifca'
    """

    name: ClassVar[str] = "uifca"

    batch_size: BatchSize = default(32)
    """Number of examples in each local step. Not used by DEC."""
    learning_rate: LearningRate = default(1e-3)
    """Learning rate of Adam. DEC always uses 0.001."""
    cluster_rounds: Annotated[Sweep[int], shown("5; --preset paper: 20")] = default(5)
    """uifca: number of times that examples are assigned to clusters (T)."""
    communication_rounds: Annotated[Sweep[int], shown("2; --preset paper: 40")] = (
        default(2)
    )
    """uifca: number of rounds between two assignments (tau)."""
    local_steps: Annotated[Counts, shown("20; --preset paper: 100")] = default(20)
    """uifca: optimizer steps of each model in a round (M), at least 1."""
    flow_width: Annotated[Sweep[int], shown("64; --preset paper: 512")] = default(64)
    """uifca: units in each of the three hidden layers of a coupling."""

    def defaults(self, problem: Problem) -> list[dict[str, Any]]:
        """Returns the settings that preset and data choose; the last value counts."""
        rate = 1e-4 if self.preset == "paper" else 3e-3
        values = {"batch_size": 128, "learning_rate": rate}
        return [values, *super().defaults(problem)]

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        shape, num_clusters = problem.shape, problem.num_clusters
        start_settings = KFed(local_clusters=num_clusters).plain()
        return uifca(
            settings,
            nn.realnvp(shape, hidden=(settings.flow_width,) * 3),
            optax.adam(settings.learning_rate),
            kfed(start_settings, num_clusters=num_clusters),
            num_clusters=num_clusters,
            levels=levels_of(problem.dataset.examples) if len(shape) == 3 else None,
        )


@frozen
class DEC(FedCRefFamily):
    """Deep embedded clustering (DEC) of all examples in one place.

    Examples:
        >>> DEC(preset="smoke").name
        'dec'
    """

    name: ClassVar[str] = "dec"
    is_central: ClassVar[bool] = True

    pretrain_rounds: PretrainRounds = default(50)
    """DEC: epochs that pre-train the auto-encoder, at least 1."""
    joint_rounds: JointRounds = default(20)
    """DEC: epochs that train the auto-encoder and the clusters together."""
    dec_batch_size: DecBatchSize = default(64)
    """DEC: number of examples in each step."""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        num_clusters = problem.num_clusters
        return central(dec_of(settings, problem.shape, num_clusters=num_clusters))


@frozen
class FedCRef(FedCRefFamily):
    """FedCRef: clients refine their clusters together, without a server.

    Clusters of different clients that belong together form a community. Each community
    trains one auto-encoder, and clients reassign their examples with these models.

    Examples:
        >>> FedCRef(start="k-means").name
        'fedcref'
    """

    name: ClassVar[str] = "fedcref"
    runs_alone: ClassVar[bool] = True

    start: Local = "dec"
    """How clients find their first clusters: by DEC, by k-means, or `dirty`, a
    simulation that starts from the classes and moves some examples."""
    dirtiness: Shares = default(0.3)
    """Share of the examples that `start` dirty puts into a wrong cluster, from 0 to
    1."""
    local_clusters: Literal["known", "silhouette"] = "known"
    """Number of clusters of a client: the number of its classes, or the number with the
    best silhouette."""
    associations: Literal["test", "first-match", "perfect"] = "test"
    """Which clusters belong together: all pairs that pass the test, the first match of
    each cluster (authors' code), or pairs of the same class (a simulation)."""
    percentile: Annotated[Sweep[float], Limits(most=100)] = default(75.0)
    """Percentile (alpha) of the differences of reconstruction errors in the test, from
    0 to 100."""
    threshold: Annotated[
        Shares,
        shown("0.2, more for less than 500 examples per class; --preset paper: 0.2"),
    ] = default(0.2)
    """Two clusters pass the test if the scaled percentile is at most this threshold
    (theta), from 0 to 1."""
    stability: Shares = default(0.8)
    """A client stops when a refinement keeps at least this share of its examples in
    their clusters (tau), from 0 to 1."""
    tolerance: Sweep[float] = default(0.1)
    """Relative change of the numbers of communities and of isolated clusters that
    counts as no change, at least 0. All clients stop after three such iterations."""
    stop_when_settled: bool = True
    """End the run when all clients have stopped. The authors' code goes on."""
    num_rounds: Counts = default(30)
    """Largest number of iterations, at least 1."""
    max_refinements: Annotated[float | None, Limits(least=1), shown("no limit")] = None
    """Largest mean number of refinements per client, at least 1. The authors' code
    has 10."""
    max_members: Annotated[int | None, Limits(least=1), shown("all")] = None
    """Largest number of clusters of a community whose examples train its model, at
    least 1. The authors' code has 30."""
    community_model: Literal["mean", "last-local"] = "mean"
    """Model of a community: the mean of its members' models, or the last local model of
    its first member, as in the authors' code."""
    leftovers: Literal["nearest", "renumbered"] = "nearest"
    """Cluster of an example that no selected model takes: the nearest selected model,
    or a second vote, as in the authors' code."""
    local_epochs: Annotated[
        Sweep[int],
        shown("20, more for less than 500 examples per class; --preset paper: 20"),
    ] = default(20)
    """Epochs that train the model of one cluster."""
    federated_rounds: Counts = default(15)
    """Number of averaging rounds that train the model of a community, at least 1."""
    first_epochs: Sweep[int] = default(2)
    """Epochs of a member in the first of these rounds."""
    federated_epochs: Sweep[int] = default(7)
    """Epochs of a member in each further round."""
    batch_size: BatchSize = default(32)
    """Number of examples in each local step. Not used by DEC."""
    learning_rate: LearningRate = default(1e-3)
    """Learning rate of Adam. DEC always uses 0.001."""
    pretrain_rounds: PretrainRounds = default(50)
    """DEC: epochs that pre-train the auto-encoder, at least 1."""
    joint_rounds: JointRounds = default(20)
    """DEC: epochs that train the auto-encoder and the clusters together."""
    dec_batch_size: DecBatchSize = default(64)
    """DEC: number of examples in each step."""

    def resolve(self, problem: Problem) -> MethodSpec:
        """Chooses a value for each setting and returns the method for this problem."""
        self.check(problem)
        spec = FedCRefFamily.resolve(self, problem)
        start = LAST_PHASES[self.start]
        if self.start == "dec" and spec.settings["joint_rounds"] == (0,):
            start = "k-means"
        # The reconstruction errors of all examples by the models of all clusters.
        size = len(problem.dataset.examples) * problem.num_clients
        return spec._replace(
            scope="client-mean",
            working_bytes=4 * size * problem.num_clusters,
            start=start,
            reported=REPORTED,
        )

    def defaults(self, problem: Problem) -> list[dict[str, Any]]:
        """Returns the settings that preset and data choose; the last value counts."""
        size, is_paper = problem.examples_per_cluster, self.preset == "paper"
        values = {} if is_paper else small_cluster_settings(size)
        return [values, *super().defaults(problem)]

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        silhouette = partial(by_silhouette, num_clusters=problem.num_clusters)
        labels = None
        if problem.dataset.labels is not None:
            labels = np.unique(problem.dataset.labels, return_inverse=True)[1]
        known = known_of(settings, labels, num_clusters=problem.num_clusters)
        return fedcref(
            settings,
            nn.reconstructor(prod(problem.shape)),
            optax.adam(settings.learning_rate),
            start_of(settings, problem, labels),
            num_clusters=problem.num_clusters,
            num_local=silhouette if settings.local_clusters == "silhouette" else None,
            **known,
        )

    def unused(self) -> set[str]:
        """Returns the settings that the other settings switch off."""
        every = {name for names in START_SETTINGS.values() for name in names}
        return every - {*START_SETTINGS[self.start]}

    def check(self, problem: Problem) -> None:
        """Checks that the data has the labels that a simulation needs.

        Args:
            problem: the data and the clients.

        Raises:
            ValueError: `start` dirty or `associations` perfect is given for data with
                unlabelled examples, or `dirtiness` is given without `start` dirty.
        """
        if not isinstance(self.dirtiness, Default) and self.start != "dirty":
            raise ValueError(f"`dirtiness` needs `start` dirty, got {self.start}")
        has_labels = problem.dataset.labels is not None
        if has_labels and not problem.has_extra:
            return
        reason = "has no labels" if not has_labels else "has examples without labels"
        if self.start == "dirty":
            raise ValueError(f"`start` dirty needs labels, but the data {reason}")
        if self.associations == "perfect":
            raise ValueError(
                f"`associations` perfect needs labels, but the data {reason}"
            )


def small_cluster_settings(size: int) -> dict[str, Any]:
    """Returns the defaults for clusters of few examples (docs/benchmarks/fedcref.md).

    Models of small clusters need more epochs before their errors can be compared. After
    too many epochs they overfit, and no example changes its cluster. The threshold is
    larger, because the test divides by the largest difference, which is smaller for few
    examples.

    Args:
        size: number of examples of a typical cluster of one client.

    Returns:
        `local_epochs` and `threshold`.
    """
    shortage = max(PAPER_CLUSTER_SIZE / max(size, 1), 1)
    return {
        "local_epochs": round(20 * shortage**0.5),
        "threshold": round(0.2 * shortage**0.2, 2),
    }


def levels_of(images: np.ndarray) -> int:
    """Returns the number of values of a pixel: 17 for digits, 256 for most images.

    Args:
        images: [P, H, W, C] images, uint8 or float in [0, 1].

    Returns:
        The number of values, estimated from the median step between the distinct values
        of the first images.
    """
    values = np.unique(images[:NUM_IMAGES].astype(float))
    largest = 255 if images.dtype == np.uint8 else 1
    step = np.median(np.diff(values)) if len(values) > 1 else largest / 255
    return round(largest / step) + 1


def start_of(settings: Any, problem: Problem, labels: Any) -> Start:
    """Builds the first clustering of the clients.

    Args:
        settings: settings of one run.
        problem: the data and the clients.
        labels: [P] integer classes from 0, for `start` dirty; other starts ignore
            labels.

    Returns:
        The start: given clusters for `start` dirty, or k-means or DEC on each client.
    """
    if settings.start == "dirty":
        clusters = simulated.dirty(
            jnp.asarray(labels),
            settings.dirtiness,
            num_classes=int(labels.max()) + 1,
        )
        return given_clusters("dirty", clusters)

    def clustering(num_used) -> Clustering:
        """Builds the clustering of the server."""
        options = {"num_clusters": problem.num_clusters, "num_used": num_used}
        if settings.start == "k-means":
            return by_kmeans(KMeans().plain(), **options)
        return dec_of(settings, problem.shape, **options)

    return on_clients(clustering, num_clusters=problem.num_clusters)


def dec_of(settings: Any, shape: tuple[int, ...], **options: Any) -> Clustering:
    """Builds DEC, whose Adam has a learning rate of 0.001.

    Args:
        settings: settings of one run, passed to `by_dec`.
        shape: shape of one example, (F,) or (H, W, C).
        **options: further arguments of `by_dec`: `num_clusters` and `num_used`.

    Returns:
        The clustering.
    """
    autoencoder, optimizer = nn.autoencoder(prod(shape)), optax.adam(1e-3)
    return by_dec(settings, autoencoder, optimizer, **options)


def known_of(settings: Any, labels: Any, *, num_clusters: int) -> dict[str, Any]:
    """Returns the arguments of `fedcref` that depend on labels, for measurements.

    Args:
        settings: settings of one run, of which `associations` is used.
        labels: [P] integer classes from 0; None for data without labels.
        num_clusters: K, the largest number of clusters of a client.

    Returns:
        `measure`, and `association` for `associations` perfect; empty for data without
        labels.
    """
    if labels is None:
        return {}
    sizes = {"num_clusters": num_clusters, "num_classes": int(labels.max()) + 1}
    labels = jnp.asarray(labels)
    measure = simulated.wrong_associations(labels, **sizes)
    if settings.associations != "perfect":
        return {"measure": measure}
    perfect = simulated.perfect(labels, **sizes)
    return {"measure": measure, "association": perfect}


def by_silhouette(
    key: PRNGKey, federation: Federation, *, num_clusters: int
) -> Int[Array, "M"]:
    """Returns for each client the number of clusters whose k-means has the best score.

    The score is the silhouette. The numbers from 2 to `num_clusters` are tried.

    Args:
        key: the random key of the seedings of k-means.
        federation: the clients of one run and their examples.
        num_clusters: K, the largest number that is tried, at least 2.

    Returns:
        [M] the number of clusters of each client, in 2..K.
    """
    rows = client_rows(federation, unit_length=False)
    count = partial(count_clusters, most=num_clusters)
    return clients.for_each(
        lambda key, x, mask: count(key, x, mask=mask),
        clients.keys(key, len(rows)),
        rows,
        federation.mask,
    )
