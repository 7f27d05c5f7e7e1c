"""FDSC: federated deep subspace clustering (https://arxiv.org/abs/2501.00230), and the
methods that it is compared with.

Settings, defaults by the data and networks. The algorithms are `fcjax.algorithms.fdsc`.
"""

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import optax

from fcjax import nn
from fcjax.algorithms.fdsc import (
    Affinity,
    Norm,
    SubspaceNetwork,
    dense,
    dlrsc,
    dscn,
    fdsc,
    lrsc,
)
from fcjax.cluster import Assign, subspace_affinity, symmetric_affinity
from fcjax.methods.base import Method, MethodSpec, Problem, fields_of
from fcjax.settings import Counts, Positive, Sweep, as_tuple, default, frozen, shown
from fcjax.types import FederatedClustering

Name = Literal["fdsc2", "fdsc1", "dscn", "dlrsc", "lrsc"]
FEDERATED = ("fdsc2", "fdsc1")
DEEP = (*FEDERATED, "dscn", "dlrsc")
BUDGET = ("pretrain_rounds", "num_rounds", "local_steps", "fit_steps")
"""What the steps of a client follow from."""
LARGEST_PIXEL = 255
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

    #: How the eigenvectors of the affinity become clusters: by k-means, as Ng, Jordan
    #: and Weiss do, whom FDSC cites, or by discretisation, as the code of DSC-Net does.
    assign_labels: Assign = "kmeans"
    #: Process the coefficients as the code of DSC-Net does, of any method, before they
    #: are clustered; the paper says nothing of it. Without it |C| + |C|^T is clustered.
    post_processing: bool = False
    keep: Positive = default(0.4)
    """Share of the L1 norm of a column that its largest coefficients keep."""
    dimension: Sweep[int] = default(10)
    """Singular vectors for each cluster."""
    power: Positive = default(3.5)
    """Exponent of the affinity."""
    unit_diagonal: Annotated[bool | None, shown("no; COIL yes")] = None
    """Ones on the diagonal of what is decomposed."""

    def resolve(self, problem: Problem) -> MethodSpec:
        name: Any = self.name
        # DSCN and DLRSC train as long as a client of FDSC with so many participants.
        unused = set() if name in FEDERATED else {"num_participants"}
        unused |= set() if self.post_processing else {*POST_PROCESSING}
        names = {*fields_of(type(self))} - unused
        settings = self.settings(*chosen(self, name, problem), names=names)

        def build(values: Mapping[str, Any]) -> FederatedClustering:
            return method_of(
                name, values, problem.shape, num_clusters=problem.num_clusters
            )

        size = int(problem.examples_per_client)
        return MethodSpec(
            *(name, settings, build, "client-pooled"),
            working_bytes=memory_of(name, (size, *problem.shape)),
            evaluate_every=25,
        )


@frozen
class SubspaceNetworks(Subspaces):
    """A network of every client expresses its examples by each other."""

    #: T: rounds of the whole network; dscn, dlrsc: in which every client is, dscn as
    #: many as a client of fdsc is in, dlrsc 700.
    num_rounds: Counts = default(100)
    num_participants: Annotated[Sweep[int], shown("0.4 of --clients")] = ()
    """r m: how many clients take part in a round, drawn at random."""
    local_steps: Counts = default(7)
    """tau: steps of a client in a round, on all of its examples at once."""
    #: Rounds of the auto-encoder without coefficients, before. FDSC has none; what it
    #: builds on does.
    pretrain_rounds: Annotated[Sweep[int], shown("half of --num-rounds")] = ()
    #: All but lrsc: steps of every client before and after the rounds, in which the
    #: encoder stays as it is.
    fit_steps: Sweep[int] = default(100)
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


@frozen
class DSCN(SubspaceNetworks):
    """Deep subspace clustering on every client; clients share nothing.

    Examples:
        >>> DSCN(preset="smoke").name
        'dscn'
    """

    name: ClassVar[str] = "dscn"

    norm: Norm = "frobenius"
    """Of the coefficients: the squared Frobenius norm, L1 or nuclear."""


@frozen
class FDSC1(DSCN):
    """FDSC without the graph of nearest neighbours: clients share an encoder.

    Examples:
        >>> FDSC1(preset="smoke").name
        'fdsc1'
    """

    name: ClassVar[str] = "fdsc1"


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
    #: What lambda_3 weighs: the sum with pixels of 0 to 255, where 1e6 amounts to 15.4
    #: with pixels of 0 to 1; or the mean over pairs of examples with pixels of 0 to 1,
    #: where 1e6 amounts to 4 of the sum of 500 examples.
    locality: Literal["sum", "mean"] = "sum"
    adjacency_weight: Sweep[float] = default(1.0)
    """alpha."""
    coefficient_weight: Sweep[float] = default(1.0)
    """beta."""
    num_neighbors: Sweep[int] = default(5)
    """k of the graph A."""


def chosen(method: Method, name: Name, problem: Problem) -> list[dict[str, Any]]:
    """Returns what presets and the data choose, each before what wins over it.

    Raises:
        ValueError: more clients are to take part than there are.
    """
    num_clients, num_clusters = problem.num_clients, problem.num_clusters
    asked = as_tuple(getattr(method, "num_participants", ()))
    dataset = re.sub("[-_]", "", problem.data.lower())
    known = [v for start, v in BY_NAME.items() if dataset.startswith(start)]
    of_data = {
        **{"num_rounds": 100, "participation": 0.4, "unit_diagonal": False},
        "keep": max(0.4 - 0.1 * ((num_clusters - 1) // 10), 0.1),
        **(known[0] if known else {}),
    }
    budget = {"pretrain_rounds": of_data["num_rounds"] // 2}
    participants = max(1, round(of_data["participation"] * num_clients))
    if name == "dlrsc":
        budget = {"num_rounds": 700, "pretrain_rounds": 0}  # the authors' 5,000 steps
    elif name == "dscn":
        # As many rounds as a client of FDSC takes part in, of as many steps, and the
        # same steps before and after. Rounds are rounded up.
        taken = min(max(asked, default=participants), num_clients)
        if num_clients == 1:  # no client of FDSC, but DSC-Net, which has no fits
            taken = of_data["participation"]
            budget["fit_steps"] = 0
        rounds = {"num_rounds": of_data["num_rounds"], **budget}
        budget |= {
            flag: math.ceil(rounds[flag] * taken / num_clients)
            for flag in ("num_rounds", "pretrain_rounds")
        }
    for value in asked:
        if value > num_clients and name in FEDERATED:
            most = f"at most `clients` {num_clients}"
            raise ValueError(f"`num_participants` must be {most}, got {value}")
    of_optimizer = {
        "learning_rate": {"adam": 1e-3, "sgd": 1e-6}[
            getattr(method, "optimizer", "adam")
        ]
    }
    of_preset = {"smoke": SMOKE, "paper": PAPER}.get(method.preset, {})
    first = {"num_participants": participants, **of_optimizer}
    return [of_data, first, budget, of_preset]


def memory_of(name: Name, shape: tuple[int, ...]) -> int:
    """Returns the bytes that training on a client's examples of this shape takes."""
    return 0 if name == "lrsc" else ACTIVATIONS * math.prod(shape)


def method_of(
    name: Name,
    values: Mapping[str, Any],
    shape: tuple[int, ...],
    *,
    num_clusters: int,
) -> FederatedClustering:
    """Builds one of the methods from the settings of a run."""
    options: dict[str, Any] = {
        "num_clusters": num_clusters,
        "affinity": affinity_of(values, num_clusters=num_clusters),
        "assign_labels": values["assign_labels"],
    }
    if name == "lrsc":
        by_rows = {flag: values[flag] for flag in ("fidelity", "unit_length")}
        return lrsc(**options, **by_rows)
    options |= {flag: values[flag] for flag in BUDGET}
    network, optimizer = network_of(values, shape), optimizer_of(values)
    if name in FEDERATED:
        return fdsc(
            network,
            optimizer,
            **options,
            **locality_of(values),
            num_participants=values["num_participants"],
        )
    if name == "dscn":
        return dscn(network, optimizer, **options)
    return dlrsc(network, optimizer, **options, rank_factor=values["rank_factor"])


def network_of(values: Mapping[str, Any], shape: tuple[int, ...]) -> SubspaceNetwork:
    """Returns what a client trains on examples of this shape."""
    if len(shape) == 1:
        autoencoder = nn.autoencoder(shape[0], widths=(64,), latent_size=32)
    else:
        height, width, colours = shape
        autoencoder = nn.conv_autoencoder((height, width, colours))
    return SubspaceNetwork(
        autoencoder,
        dense(norm=values.get("norm", "frobenius")),
        penalty_weight=values["penalty_weight"],
        expression_weight=values["expression_weight"],
        pixel_scale=values["pixel_scale"],
    )


def optimizer_of(values: Mapping[str, Any]) -> optax.GradientTransformation:
    rate = values["learning_rate"]
    if values["optimizer"] == "sgd":
        return optax.sgd(rate, momentum=MOMENTUM)
    return optax.adam(rate)


def locality_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how C is aligned with the graph of neighbours: nothing for FDSC1.

    lambda_3 belongs to the pixels of its reading, 0 to 255 of the sum and 0 to 1 of the
    mean; at another scale it is carried over, as all other terms grow with its square.
    """
    if "locality_weight" not in values:
        return {}
    of_reading = {"sum": LARGEST_PIXEL, "mean": 1}[values["locality"]]
    scale = values["pixel_scale"] / of_reading
    return {
        "locality_weight": values["locality_weight"] * scale**2,
        "mean_locality": values["locality"] == "mean",
        "adjacency_weight": values["adjacency_weight"],
        "coefficient_weight": values["coefficient_weight"],
        "num_neighbors": values["num_neighbors"],
    }


def affinity_of(values: Mapping[str, Any], *, num_clusters: int) -> Affinity:
    """Returns how coefficients become what is clustered."""
    if not values["post_processing"]:
        return lambda coefficients, mask: symmetric_affinity(coefficients)
    process = partial(
        subspace_affinity,
        num_clusters=num_clusters,
        keep=values["keep"],
        dimension=values["dimension"],
        power=values["power"],
        unit_diagonal=values["unit_diagonal"],
    )
    return lambda coefficients, mask: process(coefficients, mask=mask)
