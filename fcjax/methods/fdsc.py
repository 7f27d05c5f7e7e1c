"""FDSC: federated deep subspace clustering (https://arxiv.org/abs/2501.00230), and the
methods that it is compared with.

Settings, defaults by the data and networks. The algorithms are `fcjax.algorithms.fdsc`.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import optax

from fcjax import nn
from fcjax.algorithms.fdsc import Norm, dlrsc, dscn, fdsc, lrsc
from fcjax.cluster import Assign
from fcjax.methods.base import Method, MethodSpec, Problem, fields_of
from fcjax.nn.autoencoders import AutoEncoder
from fcjax.settings import Counts, Positive, Sweep, as_tuple, default, frozen, shown
from fcjax.types import FederatedClustering

MOMENTUM = 0.9


# Weights and post-processing are those of the code of DSC-Net for the same data, and so
# is the scale of the pixels: it feeds its files as they are, in which those of ORL and
# COIL-100 are 0 to 255 and those of COIL20 0 to 1. It has none for others: these have
# the weights of COIL-100, as the paper gives MNIST, with pixels of 0 to 1, of which the
# paper says nothing, and the post-processing of faces (Extended Yale B), by the number
# of clusters. LRSC's tau is the best of a grid, see
# docs/benchmarks/fdsc.md.
COIL = {"keep": 0.04, "dimension": 12, "power": 8.0, "unit_diagonal": True}
ORL = {
    "num_rounds": 200,
    "pixel_scale": 255.0,
    "penalty_weight": 2.0,
    "expression_weight": 0.2,
    "fidelity": 100.0,
    "keep": 0.2,
    "dimension": 3,
    "power": 1.0,
}
BY_NAME = {
    "orl": ORL,
    "coil20": {**COIL, "expression_weight": 75.0},
    "coil100": {**COIL, "pixel_scale": 255.0},
    "mnist": {"participation": 0.25},
}
"""By what the name of a data set begins with."""
POST_PROCESSING = ("keep", "dimension", "power", "unit_diagonal")
ACTIVATIONS = 400
"""Bytes that the auto-encoder of images takes for each pixel of a client's examples."""
PAPER = {"pretrain_rounds": 0, "fit_steps": 0}
SMOKE = {"num_rounds": 3, "pretrain_rounds": 2, "fit_steps": 3}


@frozen
class Subspaces(Method):
    """Every client clusters its own examples, each of which is expressed by the others.

    fdsc2: clients share the encoder of their networks; coefficients are drawn to the
    graph of nearest neighbours. fdsc1: without that. dscn, dlrsc: nothing is shared;
    the coefficients of dlrsc have a low rank. lrsc: the same without a network, in
    closed form. Scores are means over clients, each with a match of its own.
    """

    partition_defaults: ClassVar[Mapping[str, Any]] = {"clients": 5, "p": 0.0}

    assign_labels: Assign = "kmeans"
    """How the eigenvectors of the affinity become clusters: by k-means, as Ng, Jordan
    and Weiss do, whom FDSC cites, or by discretisation, as the code of DSC-Net does."""
    post_processing: bool = False
    """Process the coefficients as the code of DSC-Net does, of any method, before they
    are clustered; the paper says nothing of it. Without it |C| + |C|^T is clustered."""
    keep: Positive = default(0.4)
    """Share of the L1 norm of a column that its largest coefficients keep."""
    dimension: Sweep[int] = default(10)
    """Singular vectors for each cluster."""
    power: Positive = default(3.5)
    """Exponent of the affinity."""
    unit_diagonal: Annotated[bool | None, shown("no; COIL yes")] = None
    """Ones on the diagonal of what is decomposed."""

    def resolve(self, problem: Problem) -> MethodSpec:
        names = {*fields_of(type(self))} - self.unused()
        settings = self.settings(*self.chosen(problem), names=names)
        return MethodSpec(
            *(self.name, settings, self.builder(problem), "client-pooled"),
            working_bytes=self.working_bytes(problem),
            evaluate_every=25,
        )

    def unused(self) -> set[str]:
        """Returns the settings that have no effect."""
        return set() if self.post_processing else {*POST_PROCESSING}

    def chosen(self, problem: Problem) -> list[dict[str, Any]]:
        """Returns the values that data and preset choose; a later one wins."""
        of_preset = {"smoke": SMOKE, "paper": PAPER}.get(self.preset, {})
        return [of_data(problem), of_preset]

    def working_bytes(self, problem: Problem) -> int:
        """Returns the memory that training on the examples of a client takes."""
        return 0


@frozen
class SubspaceNetworks(Subspaces):
    """A network of every client expresses its examples by each other."""

    of_networks: ClassVar[Callable[..., FederatedClustering]]
    """The builder in `fcjax.algorithms.fdsc`."""

    num_rounds: Counts = default(100)
    """T: rounds of the whole network; dscn, dlrsc: in which every client is, dscn as
    many as a client of fdsc is in, dlrsc 700."""
    num_participants: Annotated[Sweep[int], shown("0.4 of --clients")] = ()
    """r m: how many clients take part in a round, drawn at random."""
    local_steps: Counts = default(7)
    """tau: steps of a client in a round, on all of its examples at once."""
    pretrain_rounds: Annotated[Sweep[int], shown("half of --num-rounds")] = ()
    """Rounds of the auto-encoder without coefficients, before. FDSC has none; what it
    builds on does."""
    fit_steps: Sweep[int] = default(100)
    """All but lrsc: steps of every client before and after the rounds, in which the
    encoder stays as it is."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Of the clients; sgd, the paper's, has momentum 0.9."""
    learning_rate: Sweep[float] = default(1e-3)
    """Of the clients' optimiser, sgd 1e-6; errors are sums over their examples."""
    pixel_scale: Positive = default(1.0)
    """What pixels, 0 to 1, are multiplied by. The weights below belong to it."""
    penalty_weight: Sweep[float] = default(1.0)
    """lambda_1 of the norm; of dlrsc, of |U|^2."""
    expression_weight: Sweep[float] = default(15.0)
    """lambda_2 of |Z - C Z|^2."""

    def unused(self) -> set[str]:
        # DSCN and DLRSC train as long as a client of FDSC with so many participants.
        return super().unused() | {"num_participants"}

    def chosen(self, problem: Problem) -> list[dict[str, Any]]:
        data, preset = super().chosen(problem)
        first = {
            "num_participants": participants(data, problem),
            "learning_rate": {"adam": 1e-3, "sgd": 1e-6}[self.optimizer],
        }
        return [data, first, self.budget(data, problem), preset]

    def budget(self, data: Mapping[str, Any], problem: Problem) -> dict[str, Any]:
        """Returns the rounds and steps of a client, given the values by the data."""
        return {"pretrain_rounds": data["num_rounds"] // 2}

    @classmethod
    def algorithm(cls, settings: Any, problem: Problem) -> FederatedClustering:
        return cls.of_networks(
            settings,
            autoencoder_of(problem.shape),
            optimizer_of(settings),
            num_clusters=problem.num_clusters,
        )

    def working_bytes(self, problem: Problem) -> int:
        return ACTIVATIONS * int(problem.examples_per_client) * math.prod(problem.shape)


@frozen
class LRSC(Subspaces):
    """Low-rank subspace clustering (LRSC) on every client, in closed form.

    Examples:
        >>> LRSC(preset="smoke").name
        'lrsc'
    """

    name: ClassVar[str] = "lrsc"

    fidelity: Sweep[float] = default(1.0)
    """tau, of half the squared error beside the nuclear norm."""
    unit_length: bool = True
    """Scale every example to L2 norm 1."""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        return lrsc(settings, num_clusters=problem.num_clusters)


@frozen
class DLRSC(SubspaceNetworks):
    """Deep subspace clustering with coefficients of low rank; clients share nothing.

    Examples:
        >>> DLRSC(preset="smoke").name
        'dlrsc'
    """

    name: ClassVar[str] = "dlrsc"

    rank_factor: Sweep[int] = default(10)
    """Columns of U for each cluster."""

    def budget(self, data: Mapping[str, Any], problem: Problem) -> dict[str, Any]:
        return {"num_rounds": 700, "pretrain_rounds": 0}  # the authors' 5,000 steps

    of_networks: ClassVar = staticmethod(dlrsc)


@frozen
class Coefficients(SubspaceNetworks):
    """Methods whose coefficients of self-expression are a matrix of parameters."""

    norm: Norm = "frobenius"
    """Of the coefficients: the squared Frobenius norm, L1 or nuclear."""


@frozen
class DSCN(Coefficients):
    """Deep subspace clustering on every client; clients share nothing.

    Examples:
        >>> DSCN(preset="smoke").name
        'dscn'
    """

    name: ClassVar[str] = "dscn"

    def budget(self, data: Mapping[str, Any], problem: Problem) -> dict[str, Any]:
        # As many rounds as a client of FDSC takes part in, rounded up, of as many
        # steps, and the same steps before and after.
        budget, num_clients = super().budget(data, problem), problem.num_clients
        asked = as_tuple(self.num_participants)
        taken = min(max(asked, default=participants(data, problem)), num_clients)
        alone = {}
        if num_clients == 1:  # no client of FDSC, but DSC-Net, which has no fits
            taken, alone = data["participation"], {"fit_steps": 0}
        rounds = {"num_rounds": data["num_rounds"], **budget}
        shorter = {k: math.ceil(v * taken / num_clients) for k, v in rounds.items()}
        return shorter | alone

    of_networks: ClassVar = staticmethod(dscn)


@frozen
class FDSC1(Coefficients):
    """FDSC without the graph of nearest neighbours: clients share an encoder.

    Examples:
        >>> FDSC1(preset="smoke").name
        'fdsc1'
    """

    name: ClassVar[str] = "fdsc1"

    def resolve(self, problem: Problem) -> MethodSpec:
        num_clients = problem.num_clients
        for value in as_tuple(self.num_participants):
            if value > num_clients:
                most = f"at most `clients` {num_clients}"
                raise ValueError(f"`num_participants` must be {most}, got {value}")
        return super().resolve(problem)

    def unused(self) -> set[str]:
        return super().unused() - {"num_participants"}

    of_networks: ClassVar = staticmethod(partial(fdsc, is_aligned=False))


@frozen
class FDSC(FDSC1):
    """FDSC: clients share an encoder, and coefficients are drawn to the graph of
    nearest neighbours.

    Examples:
        >>> FDSC(num_rounds=5).name
        'fdsc2'
    """

    name: ClassVar[str] = "fdsc2"

    locality_weight: Sweep[float] = default(1e6)
    """lambda_3 of |alpha A - beta C|^2."""
    locality: Literal["sum", "mean"] = "sum"
    """What lambda_3 weighs: the sum with pixels of 0 to 255, where 1e6 amounts to 15.4
    with pixels of 0 to 1; or the mean over pairs of examples with pixels of 0 to 1,
    where 1e6 amounts to 4 of the sum of 500 examples."""
    adjacency_weight: Sweep[float] = default(1.0)
    """alpha."""
    coefficient_weight: Sweep[float] = default(1.0)
    """beta."""
    num_neighbors: Sweep[int] = default(5)
    """k of the graph A."""

    of_networks: ClassVar = staticmethod(fdsc)


def of_data(problem: Problem) -> dict[str, Any]:
    """Returns the values that the data set chooses."""
    dataset = re.sub("[-_]", "", problem.data.lower())
    known = [v for start, v in BY_NAME.items() if dataset.startswith(start)]
    return {
        **{"num_rounds": 100, "participation": 0.4, "unit_diagonal": False},
        "keep": max(0.4 - 0.1 * ((problem.num_clusters - 1) // 10), 0.1),
        **(known[0] if known else {}),
    }


def participants(data: Mapping[str, Any], problem: Problem) -> int:
    """Returns how many clients of FDSC take part in a round."""
    return max(1, round(data["participation"] * problem.num_clients))


def autoencoder_of(shape: tuple[int, ...]) -> AutoEncoder:
    """Returns the auto-encoder of a client for examples of this shape."""
    if len(shape) == 1:
        return nn.autoencoder(shape[0], widths=(64,), latent_size=32)
    height, width, colours = shape
    return nn.conv_autoencoder((height, width, colours))


def optimizer_of(settings: Any) -> optax.GradientTransformation:
    """Returns the optimiser of a client."""
    if settings.optimizer == "sgd":
        return optax.sgd(settings.learning_rate, momentum=MOMENTUM)
    return optax.adam(settings.learning_rate)
