"""FDSC and the subspace clusterings that it is measured by, built from the settings of
a run."""

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import optax

from fcjax import nn
from fcjax.algorithms.fdsc import (
    Affinity,
    SubspaceNetwork,
    dense,
    dlrsc,
    dscn,
    fdsc,
    lrsc,
)
from fcjax.cluster import subspace_affinity, symmetric_affinity
from fcjax.sweep.load import short_name
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
WEIGHTS = ("pixel_scale", "penalty_weight", "expression_weight", "learning_rate")
NETWORK = (*BUDGET, *WEIGHTS, "optimizer")
LOCALITY = (
    *("locality_weight", "locality", "adjacency_weight", "coefficient_weight"),
    "num_neighbors",
)
OWN: dict[Name, tuple[str, ...]] = {
    "fdsc2": (*NETWORK, "norm", "num_participants", *LOCALITY),
    "fdsc1": (*NETWORK, "norm", "num_participants"),
    "dscn": (*NETWORK, "norm"),
    "dlrsc": (*NETWORK, "rank_factor"),
    "lrsc": ("unit_length", "fidelity"),
}
ACTIVATIONS = 400
"""Bytes that the auto-encoder of images takes for each pixel of a client's examples."""
PAPER = {"pretrain_rounds": 0, "fit_steps": 0}
SMOKE = {"num_rounds": 3, "pretrain_rounds": 2, "fit_steps": 3}


def flags_of(name: Name, *, post_processing: bool) -> tuple[str, ...]:
    """Returns the flags that a method has."""
    more = POST_PROCESSING if post_processing else ()
    return ("post_processing", "assign_labels", *OWN[name], *more)


def chosen(
    args: Any, name: Name, num_clients: int, num_clusters: int
) -> list[dict[str, Any]]:
    """Returns what presets and the data choose, each before what wins over it.

    Raises:
        ValueError: more clients are to take part than there are.
    """
    dataset = re.sub("[-_]", "", short_name(args.dataset).lower())
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
        taken = min(max(args.num_participants, default=participants), num_clients)
        if num_clients == 1:  # no client of FDSC, but DSC-Net, which has no fits
            taken = of_data["participation"]
            budget["fit_steps"] = 0
        rounds = {"num_rounds": of_data["num_rounds"], **budget}
        budget |= {
            flag: math.ceil(rounds[flag] * taken / num_clients)
            for flag in ("num_rounds", "pretrain_rounds")
        }
    for value in args.num_participants:
        if value > num_clients and name in FEDERATED:
            most = f"at most --clients {num_clients}"
            raise ValueError(f"--num-participants must be {most}, got {value}")
    of_optimizer = {"learning_rate": {"adam": 1e-3, "sgd": 1e-6}[args.optimizer]}
    of_preset = {"smoke": SMOKE, "paper": PAPER}.get(args.preset, {})
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
