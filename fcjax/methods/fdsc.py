"""FDSC (https://arxiv.org/abs/2501.00230) and other subspace clustering methods.

This module has the settings, the defaults and the networks. The algorithms are in
`fcjax.algorithms.fdsc`.
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


# The weights, the post-processing and the scale of the pixels for ORL, COIL20 and
# COIL-100 are from the code of DSC-Net. This code reads pixels from 0 to 255 for ORL
# and COIL-100, and from 0 to 1 for COIL20. It has no values for other data sets. They
# get the weights of COIL-100, which the paper uses for MNIST, and pixels from 0 to 1;
# the paper does not specify pixels. Their post-processing is that of faces (Extended
# Yale B), by the number of clusters. LRSC's tau is the best of a grid
# (docs/benchmarks/fdsc.md).
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
"""Defaults by the beginning of the name of a data set."""
POST_PROCESSING = ("keep", "dimension", "power", "unit_diagonal")
ACTIVATIONS = 400
"""Memory of the auto-encoder of images per pixel of a client's examples, in bytes."""
PAPER = {"pretrain_rounds": 0, "fit_steps": 0}
SMOKE = {"num_rounds": 3, "pretrain_rounds": 2, "fit_steps": 3}


@frozen
class Subspaces(Method):
    """Each client clusters its own examples by subspace clustering.

    Each example is written as a combination of other examples of the client. The
    coefficients are the affinity of a spectral clustering. Clusters are matched to
    classes per client, and the scores are means over clients.

    Methods for --methods:
      fdsc2  clients share an encoder; coefficients are pulled toward the graph of
             nearest neighbours
      fdsc1  fdsc2 without the graph
      dscn   deep subspace clustering; clients share nothing
      dlrsc  deep subspace clustering with coefficients of low rank; clients share
             nothing
      lrsc   low-rank subspace clustering in closed form, without a network
    """

    partition_defaults: ClassVar[Mapping[str, Any]] = {"clients": 5, "p": 0.0}

    assign_labels: Assign = "kmeans"
    """How eigenvectors of the affinity become clusters: `kmeans` (Ng, Jordan and Weiss,
    cited by FDSC) or `discretize` (the code of DSC-Net)."""
    post_processing: bool = False
    """Process the coefficients before clustering as in the code of DSC-Net. Otherwise
    |C| + |C|^T is clustered. The paper does not mention post-processing."""
    keep: Annotated[
        Positive,
        shown("0.4 to 0.1, less for more clusters; COIL: 0.04; ORL: 0.2"),
    ] = default(0.4)
    """With `post_processing`: share of the L1 norm of a column that its largest
    coefficients keep, above 0."""
    dimension: Annotated[Sweep[int], shown("10; COIL: 12; ORL: 3")] = default(10)
    """With `post_processing`: number of singular vectors per cluster."""
    power: Annotated[Positive, shown("3.5; COIL: 8; ORL: 1")] = default(3.5)
    """With `post_processing`: exponent of the affinity, above 0."""
    unit_diagonal: Annotated[bool | None, shown("False; COIL: True")] = None
    """With `post_processing`: put ones on the diagonal of the matrix before its
    singular value decomposition."""

    def resolve(self, problem: Problem) -> MethodSpec:
        """Chooses a value for each setting and returns the method for this problem."""
        names = {*fields_of(type(self))} - self.unused()
        settings = self.settings(*self.defaults(problem), names=names)
        return MethodSpec(
            *(self.name, settings, self.builder(problem), "client-pooled"),
            working_bytes=self.working_bytes(problem),
            evaluate_every=25,
        )

    def unused(self) -> set[str]:
        """Returns the settings that the other settings switch off."""
        return set() if self.post_processing else {*POST_PROCESSING}

    def defaults(self, problem: Problem) -> list[dict[str, Any]]:
        """Returns the settings that data and preset choose; the last value counts.

        Args:
            problem: the data and the clients.

        Returns:
            Mappings from setting to value. A later mapping takes precedence.
        """
        of_preset = {"smoke": SMOKE, "paper": PAPER}.get(self.preset, {})
        return [of_data(problem), of_preset]

    def working_bytes(self, problem: Problem) -> int:
        """Returns the memory for training on the examples of a client, in bytes.

        Args:
            problem: the data and the clients.

        Returns:
            The number of bytes. It is 0 for a method without a network.
        """
        return 0


@frozen
class SubspaceNetworks(Subspaces):
    """Base class of methods that learn the coefficients with a network."""

    of_networks: ClassVar[Callable[..., FederatedClustering]]
    """The builder in `fcjax.algorithms.fdsc`."""

    num_rounds: Annotated[
        Counts,
        shown(
            "100, ORL: 200; dscn: the number of rounds in which a client of fdsc2 "
            "participates; dlrsc: 700"
        ),
    ] = default(100)
    """Number of rounds (T) that train the whole network, at least 1."""
    num_participants: Annotated[
        Sweep[int], shown("0.4 of --clients; MNIST: 0.25 of --clients")
    ] = ()
    """Number of clients that participate in each round (r m), drawn at random, from 1
    to --clients. Used by fdsc1 and fdsc2."""
    local_steps: Counts = default(7)
    """Optimizer steps of a client in each round (tau), at least 1. Each step uses all
    examples of the client."""
    pretrain_rounds: Annotated[
        Sweep[int],
        shown("50, ORL: 100; dscn: its share of them; dlrsc, --preset paper: 0"),
    ] = ()
    """Number of rounds that pre-train the auto-encoder without coefficients. FDSC has
    none; the methods that it extends have them."""
    fit_steps: Annotated[
        Sweep[int], shown("100; --preset paper, dscn on one client: 0")
    ] = default(100)
    """Steps of each client before and after the rounds, with a fixed encoder."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Optimizer of the clients. `sgd`, as in the paper, has momentum 0.9."""
    learning_rate: Annotated[Sweep[float], shown("0.001; sgd: 1e-6")] = default(1e-3)
    """Learning rate of the clients. The loss is a sum over the client's examples."""
    pixel_scale: Annotated[Positive, shown("1; ORL, COIL-100: 255")] = default(1.0)
    """Factor for pixels from 0 to 1, above 0. The weights of the losses depend on this
    factor."""
    penalty_weight: Annotated[Sweep[float], shown("1; ORL: 2")] = default(1.0)
    """Weight (lambda_1) of the norm of the coefficients; in dlrsc, of |U|^2."""
    expression_weight: Annotated[Sweep[float], shown("15; COIL20: 75; ORL: 0.2")] = (
        default(15.0)
    )
    """Weight (lambda_2) of the self-expression loss |Z - C Z|^2."""

    def unused(self) -> set[str]:
        """Returns the settings that the other settings switch off."""
        # In DSCN and DLRSC all clients train in each round.
        return super().unused() | {"num_participants"}

    def defaults(self, problem: Problem) -> list[dict[str, Any]]:
        """Returns the settings that preset and data choose; the last value counts."""
        data, preset = super().defaults(problem)
        first = {
            "num_participants": participants(data, problem),
            "learning_rate": {"adam": 1e-3, "sgd": 1e-6}[self.optimizer],
        }
        return [data, first, self.budget(data, problem), preset]

    def budget(self, data: Mapping[str, Any], problem: Problem) -> dict[str, Any]:
        """Returns the numbers of rounds and steps, from the values for the data set.

        Args:
            data: values for the data set, the result of `of_data`.
            problem: the data and the clients.

        Returns:
            Values by name of the setting, such as `pretrain_rounds`.
        """
        return {"pretrain_rounds": data["num_rounds"] // 2}

    @classmethod
    def algorithm(cls, settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        return cls.of_networks(
            settings,
            autoencoder_of(problem.shape),
            optimizer_of(settings),
            num_clusters=problem.num_clusters,
        )

    def working_bytes(self, problem: Problem) -> int:
        """Returns the memory for training on the examples of a client, in bytes."""
        return ACTIVATIONS * int(problem.examples_per_client) * math.prod(problem.shape)


@frozen
class LRSC(Subspaces):
    """Low-rank subspace clustering (LRSC) on each client, in closed form.

    Examples:
        >>> LRSC(preset="smoke").name
        'lrsc'
    """

    name: ClassVar[str] = "lrsc"

    fidelity: Annotated[Sweep[float], shown("1; ORL: 100")] = default(1.0)
    """lrsc: weight (tau) of half the squared error relative to the nuclear norm."""
    unit_length: bool = True
    """lrsc: scale each example to L2 norm 1."""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        return lrsc(settings, num_clusters=problem.num_clusters)


@frozen
class DLRSC(SubspaceNetworks):
    """Deep subspace clustering (DLRSC) with coefficients of low rank, on each client.

    Examples:
        >>> DLRSC(preset="smoke").name
        'dlrsc'
    """

    name: ClassVar[str] = "dlrsc"

    rank_factor: Sweep[int] = default(10)
    """dlrsc: number of columns of U per cluster."""

    def budget(self, data: Mapping[str, Any], problem: Problem) -> dict[str, Any]:
        """Returns the numbers of rounds and steps, from the values for the data set."""
        return {"num_rounds": 700, "pretrain_rounds": 0}  # the authors' 5,000 steps

    of_networks: ClassVar = staticmethod(dlrsc)


@frozen
class Coefficients(SubspaceNetworks):
    """Base class of methods whose coefficients are a matrix of parameters."""

    norm: Norm = "frobenius"
    """Norm of the coefficients in the loss: squared Frobenius, L1 or nuclear norm."""


@frozen
class DSCN(Coefficients):
    """Deep subspace clustering (DSC-Net) on each client; clients share nothing.

    Examples:
        >>> DSCN(preset="smoke").name
        'dscn'
    """

    name: ClassVar[str] = "dscn"

    def budget(self, data: Mapping[str, Any], problem: Problem) -> dict[str, Any]:
        """Returns the numbers of rounds and steps, from the values for the data set."""
        # Each client trains in as many rounds as a client of FDSC, rounded up.
        budget, num_clients = super().budget(data, problem), problem.num_clients
        numbers = as_tuple(self.num_participants)
        count = min(max(numbers, default=participants(data, problem)), num_clients)
        single = {}
        if num_clients == 1:  # This is DSC-Net itself, which has no fit steps.
            count, single = data["participation"], {"fit_steps": 0}
        rounds = {"num_rounds": data["num_rounds"], **budget}
        shorter = {k: math.ceil(v * count / num_clients) for k, v in rounds.items()}
        return shorter | single

    of_networks: ClassVar = staticmethod(dscn)


@frozen
class FDSC1(Coefficients):
    """FDSC without the graph of nearest neighbours. Clients share an encoder.

    Examples:
        >>> FDSC1(preset="smoke").name
        'fdsc1'
    """

    name: ClassVar[str] = "fdsc1"

    def resolve(self, problem: Problem) -> MethodSpec:
        """Chooses a value for each setting and returns the method for this problem."""
        num_clients = problem.num_clients
        for value in as_tuple(self.num_participants):
            if value > num_clients:
                most = f"at most `clients` {num_clients}"
                raise ValueError(f"`num_participants` must be {most}, got {value}")
        return super().resolve(problem)

    def unused(self) -> set[str]:
        """Returns the settings that the other settings switch off."""
        return super().unused() - {"num_participants"}

    of_networks: ClassVar = staticmethod(partial(fdsc, is_aligned=False))


@frozen
class FDSC(FDSC1):
    """FDSC: clients share an encoder and cluster their examples by subspaces.

    This is FDSC2, with the graph: a loss pulls the coefficients of the
    self-expression toward the graph of nearest neighbours. `FDSC1` has no such loss.

    Examples:
        >>> FDSC(num_rounds=5).name
        'fdsc2'
    """

    name: ClassVar[str] = "fdsc2"

    locality_weight: Sweep[float] = default(1e6)
    """fdsc2: weight (lambda_3) of the graph loss |alpha A - beta C|^2."""
    locality: Literal["sum", "mean"] = "sum"
    """fdsc2: unit of `locality_weight`. `sum` is the sum over pairs of examples for
    pixels from 0 to 255. `mean` is the mean over pairs for pixels from 0 to 1."""
    adjacency_weight: Sweep[float] = default(1.0)
    """fdsc2: factor alpha of the graph A in the graph loss."""
    coefficient_weight: Sweep[float] = default(1.0)
    """fdsc2: factor beta of the coefficients C in the graph loss."""
    num_neighbors: Sweep[int] = default(5)
    """fdsc2: number of nearest neighbours (k) in the graph A."""

    of_networks: ClassVar = staticmethod(fdsc)


def of_data(problem: Problem) -> dict[str, Any]:
    """Returns the default settings for a data set, by its name.

    Args:
        problem: the data and the clients.

    Returns:
        Values by name. `participation` is the share of participating clients, in (0,
        1]. The other names are settings.
    """
    dataset = re.sub("[-_]", "", problem.data.lower())
    known = [v for start, v in BY_NAME.items() if dataset.startswith(start)]
    return {
        **{"num_rounds": 100, "participation": 0.4, "unit_diagonal": False},
        "keep": max(0.4 - 0.1 * ((problem.num_clusters - 1) // 10), 0.1),
        **(known[0] if known else {}),
    }


def participants(data: Mapping[str, Any], problem: Problem) -> int:
    """Returns the default number of clients of FDSC that participate in a round.

    Args:
        data: values for the data set, of which `participation` is used.
        problem: the data and the clients.

    Returns:
        The number of clients, at least 1.
    """
    return max(1, round(data["participation"] * problem.num_clients))


def autoencoder_of(shape: tuple[int, ...]) -> AutoEncoder:
    """Builds the auto-encoder of a client for examples of this shape.

    Args:
        shape: shape of one example, (F,) or (H, W, C).

    Returns:
        An auto-encoder of dense layers for vectors, and of convolutions for images.
    """
    if len(shape) == 1:
        return nn.autoencoder(shape[0], widths=(64,), latent_size=32)
    height, width, colours = shape
    return nn.conv_autoencoder((height, width, colours))


def optimizer_of(settings: Any) -> optax.GradientTransformation:
    """Builds the optimizer of a client.

    Args:
        settings: settings of one run, of which `optimizer` and `learning_rate` are
            used.

    Returns:
        SGD with momentum for `optimizer` "sgd", and Adam otherwise.
    """
    if settings.optimizer == "sgd":
        return optax.sgd(settings.learning_rate, momentum=MOMENTUM)
    return optax.adam(settings.learning_rate)
