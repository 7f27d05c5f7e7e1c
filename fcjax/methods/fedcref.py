"""FedCRef (https://arxiv.org/abs/2408.10664) and the methods that it is compared with.

Settings, defaults by the data and networks. The algorithms are in
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
from fcjax.settings import Counts, Default, Limits, Shares, Sweep, default, frozen
from fcjax.types import FederatedClustering, Federation

Local = Literal["dec", "k-means", "dirty"]


OF_DEC = ("pretrain_rounds", "joint_rounds", "dec_batch_size")
OF_START: dict[Local, tuple[str, ...]] = {
    "dec": OF_DEC,
    "k-means": (),
    "dirty": ("dirtiness",),
}
"""The settings that belong to one start."""
LAST_PHASES: dict[Local, str] = {"dec": "dec", "k-means": "cluster", "dirty": "dirty"}
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
SOME = 2000
"""Images in which all values of a pixel are seen."""
PAPERS_SIZE = 500
"""Examples of a cluster, for which the paper's settings are."""


@frozen
class Unsupervised(Method):
    """Clients cluster their own examples and find out which of their clusters are the
    same, without a server and without knowing how many there are of all.

    fedcref: scores are means over clients, each with a match of its own; global_acc
    takes the communities as clusters. dec: deep embedded clustering of all examples in
    one place. uifca: a generative model a cluster, whose number is known.
    """

    partition_defaults: ClassVar[Mapping[str, Any]] = {"clients": 8, "p": ()}

    def resolve(self, problem: Problem) -> MethodSpec:
        examples = problem.dataset.examples
        names = {*fields_of(type(self))} - self.unused()
        settings = self.settings(*self.chosen(problem), names=names)
        return MethodSpec(
            *(self.name, settings, self.builder(problem), "global"),
            working_bytes=examples.nbytes + 4 * examples.size,
            sees_all=self.is_central,
        )

    def chosen(self, problem: Problem) -> list[dict[str, Any]]:
        """Returns the values that data and preset choose; a later one wins."""
        return [{"smoke": SMOKE, "paper": PAPER}.get(self.preset, {})]

    def unused(self) -> set[str]:
        """Returns the settings that have no effect, as the others are."""
        return set()

    def adapt(self, split: Split, *, labelled: bool) -> Split:
        split = super().adapt(split, labelled=labelled)
        if labelled and not any(getattr(split, rule) for rule in RULES):
            split = dataclasses.replace(split, overlap=default(0.0))
        if self.preset == "paper" and isinstance(split.clients, Default):
            split = dataclasses.replace(split, clients=default(25))
        return split


@frozen
class UIFCA(Unsupervised):
    """UIFCA: one generative model per cluster, trained by all clients.

    Examples:
        >>> UIFCA(preset="smoke").name
        'uifca'
    """

    name: ClassVar[str] = "uifca"

    batch_size: Sweep[int] = default(32)
    """Examples a step; uifca 128."""
    learning_rate: Sweep[float] = default(1e-3)
    """Of Adam, uifca 0.003; DEC's own is 0.001."""
    cluster_rounds: Sweep[int] = default(5)
    """uifca: T, how often examples are assigned."""
    communication_rounds: Sweep[int] = default(2)
    """uifca: tau, rounds between that."""
    local_steps: Counts = default(20)
    """uifca: M, steps of each model in a round."""
    flow_width: Sweep[int] = default(64)
    """uifca: units of the three hidden layers of a coupling."""

    def chosen(self, problem: Problem) -> list[dict[str, Any]]:
        rate = 1e-4 if self.preset == "paper" else 3e-3
        own = {"batch_size": 128, "learning_rate": rate}
        return [own, *super().chosen(problem)]

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        shape, num_clusters = problem.shape, problem.num_clusters
        of_start = KFed(local_clusters=num_clusters).plain()
        return uifca(
            settings,
            nn.realnvp(shape, hidden=(settings.flow_width,) * 3),
            optax.adam(settings.learning_rate),
            kfed(of_start, num_clusters=num_clusters),
            num_clusters=num_clusters,
            levels=levels_of(problem.dataset.examples) if len(shape) == 3 else None,
        )


@frozen
class DEC(Unsupervised):
    """Deep embedded clustering (DEC) of all examples in one place.

    Examples:
        >>> DEC(preset="smoke").name
        'dec'
    """

    name: ClassVar[str] = "dec"
    is_central: ClassVar[bool] = True

    pretrain_rounds: Counts = default(50)
    """DEC: epochs of the auto-encoder alone."""
    joint_rounds: Sweep[int] = default(20)
    """DEC: epochs with the clusters."""
    dec_batch_size: Sweep[int] = default(64)
    """DEC: examples a step."""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        num_clusters = problem.num_clusters
        return central(dec_of(settings, problem.shape, num_clusters=num_clusters))


@frozen
class FedCRef(Unsupervised):
    """FedCRef: clients refine their clusters with models of communities of clusters.

    Examples:
        >>> FedCRef(start="k-means").name
        'fedcref'
    """

    name: ClassVar[str] = "fedcref"
    runs_alone: ClassVar[bool] = True

    start: Local = "dec"
    """How clients come to their first clusters; dirty: from classes, a simulation."""
    dirtiness: Shares = default(0.3)
    """--start dirty: share of the examples that are put into a wrong cluster."""
    local_clusters: Literal["known", "silhouette"] = "known"
    """A client looks for as many as it holds classes, or by the best silhouette."""
    associations: Literal["test", "first-match", "perfect"] = "test"
    """Which clusters are joined: those that pass the test, the first match of each (the
    authors' code), or, a simulation, those of the same class."""
    percentile: Annotated[Sweep[float], Limits(most=100)] = default(75.0)
    """alpha of the test."""
    threshold: Shares = default(0.2)
    """theta of the test; more where classes have less than 500 examples."""
    stability: Shares = default(0.8)
    """tau: the share of its examples by which a client that keeps them is done."""
    tolerance: Sweep[float] = default(0.1)
    """The largest change of communities and isolated clusters that is none."""
    stop_when_settled: bool = True
    """End when all clients have settled, which the authors' code does not."""
    num_rounds: Counts = default(30)
    """The most iterations."""
    max_refinements: Annotated[float | None, Limits(least=1)] = None
    """End when clients have refined so often, as a mean; the authors' code has 10."""
    max_members: Annotated[int | None, Limits(least=1)] = None
    """Clusters of a community that are trained on; the authors' code has 30."""
    community_model: Literal["mean", "last-local"] = "mean"
    """Of its members' models; or what the first had last, as in the authors' code."""
    leftovers: Literal["nearest", "renumbered"] = "nearest"
    """Of examples that no model took; the authors' code renumbers by a second vote."""
    local_epochs: Sweep[int] = default(20)
    """Of a cluster's model; more where classes have less than 500 examples."""
    federated_rounds: Counts = default(15)
    """Of a community's model."""
    first_epochs: Sweep[int] = default(2)
    """Of a member in the first of them."""
    federated_epochs: Sweep[int] = default(7)
    """Of a member in the others."""
    batch_size: Sweep[int] = default(32)
    """Examples a step; uifca 128."""
    learning_rate: Sweep[float] = default(1e-3)
    """Of Adam, uifca 0.003; DEC's own is 0.001."""
    pretrain_rounds: Counts = default(50)
    """DEC: epochs of the auto-encoder alone."""
    joint_rounds: Sweep[int] = default(20)
    """DEC: epochs with the clusters."""
    dec_batch_size: Sweep[int] = default(64)
    """DEC: examples a step."""

    def resolve(self, problem: Problem) -> MethodSpec:
        self.check(problem)
        spec = Unsupervised.resolve(self, problem)
        start = LAST_PHASES[self.start]
        if self.start == "dec" and spec.settings["joint_rounds"] == (0,):
            start = "k-means"
        # The errors of all examples under the models of all clusters.
        size = len(problem.dataset.examples) * problem.num_clients
        return spec._replace(
            scope="client-mean",
            working_bytes=4 * size * problem.num_clusters,
            start=start,
            reported=REPORTED,
        )

    def chosen(self, problem: Problem) -> list[dict[str, Any]]:
        few = {} if self.preset == "paper" else of_few(problem.examples_per_cluster)
        return [few, *super().chosen(problem)]

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
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
        return {x for each in OF_START.values() for x in each} - {*OF_START[self.start]}

    def check(self, problem: Problem) -> None:
        """Raises ValueError where a simulation needs labels that the data lacks."""
        if not isinstance(self.dirtiness, Default) and self.start != "dirty":
            raise ValueError("`dirtiness` is of `start` dirty, give both")
        has_labels = problem.dataset.labels is not None
        if has_labels and not problem.has_extra:
            return
        why = "has no labels" if not has_labels else "has examples without labels"
        if self.start == "dirty":
            raise ValueError(f"`start` dirty is made from classes, and the data {why}")
        if self.associations == "perfect":
            raise ValueError(
                f"`associations` perfect knows classes, and the data {why}"
            )


def of_few(size: int) -> dict[str, Any]:
    """Returns the settings that few examples ask for, see docs/benchmarks/fedcref.md.

    Their models need more epochs to be worth a comparison, but so many that they know
    each by heart leave nothing to refine. And the largest of few differences, which the
    test divides by, is smaller.
    """
    shortage = max(PAPERS_SIZE / max(size, 1), 1)
    return {
        "local_epochs": round(20 * shortage**0.5),
        "threshold": round(0.2 * shortage**0.2, 2),
    }


def levels_of(images: np.ndarray) -> int:
    """Returns how many values a pixel can have: 17 of digits, 256 of most others."""
    values = np.unique(images[:SOME].astype(float))
    largest = 255 if images.dtype == np.uint8 else 1
    step = np.median(np.diff(values)) if len(values) > 1 else largest / 255
    return round(largest / step) + 1


def start_of(settings: Any, problem: Problem, labels: Any) -> Start:
    """Returns how clients come to their first clusters."""
    if settings.start == "dirty":
        clusters = simulated.dirty(
            jnp.asarray(labels),
            settings.dirtiness,
            num_classes=int(labels.max()) + 1,
        )
        return given_clusters("dirty", clusters)

    def clustering(num_used) -> Clustering:
        options = {"num_clusters": problem.num_clusters, "num_used": num_used}
        if settings.start == "k-means":
            return by_kmeans(KMeans().plain(), **options)
        return dec_of(settings, problem.shape, **options)

    return on_clients(clustering, num_clusters=problem.num_clusters)


def dec_of(settings: Any, shape: tuple[int, ...], **options: Any) -> Clustering:
    """Returns DEC with its own learning rate."""
    autoencoder, optimizer = nn.autoencoder(prod(shape)), optax.adam(1e-3)
    return by_dec(settings, autoencoder, optimizer, **options)


def known_of(settings: Any, labels: Any, *, num_clusters: int) -> dict[str, Any]:
    """Returns the arguments of `fedcref` that an experiment knows by the labels."""
    if labels is None:
        return {}
    sizes = {"num_clusters": num_clusters, "num_classes": int(labels.max()) + 1}
    labels = jnp.asarray(labels)
    measure = simulated.wrong_associations(labels, **sizes)
    if settings.associations != "perfect":
        return {"measure": measure}
    perfect = simulated.perfect(labels, **sizes)
    return {"measure": measure, "association": perfect}


def by_silhouette(key, federation: Federation, *, num_clusters: int):
    """Returns how many clusters each client finds best: K_i."""
    rows = client_rows(federation, unit_length=False)
    one = partial(count_clusters, most=num_clusters)
    return clients.for_each(
        lambda key, x, mask: one(key, x, mask=mask),
        clients.keys(key, len(rows)),
        rows,
        federation.mask,
    )
