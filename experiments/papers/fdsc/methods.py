"""FDSC and the subspace clusterings that it is measured by, built from the settings of
a run."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import optax

from fcjax import models
from fcjax.algorithms.dlrsc import dlrsc
from fcjax.algorithms.dscn import dscn
from fcjax.algorithms.fdsc import fdsc
from fcjax.algorithms.lrsc import lrsc
from fcjax.algorithms.subspace import Affinity, SubspaceNetwork, dense
from fcjax.clients import ClientAxis
from fcjax.cluster import subspace_affinity, symmetric_affinity
from fcjax.devices import platform
from fcjax.types import FederatedClustering

Name = Literal["fdsc2", "fdsc1", "dscn", "dlrsc", "lrsc"]
FEDERATED = ("fdsc2", "fdsc1")
DEEP = (*FEDERATED, "dscn", "dlrsc")
BUDGET = ("pretrain_rounds", "num_rounds", "local_steps", "fit_steps")
"""What the steps of a client follow from."""
LARGEST_PIXEL = 255
MOMENTUM = 0.9


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
        "client_axis": client_axis_of(shape),
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


def client_axis_of(shape: tuple[int, ...]) -> ClientAxis | None:
    """Returns how clients run: a network of images on all examples of one client fills
    a core of a CPU, where a product for each of several clients is slower."""
    is_image = len(shape) == 3
    return "map" if is_image and platform() == "cpu" else None


def network_of(values: Mapping[str, Any], shape: tuple[int, ...]) -> SubspaceNetwork:
    """Returns what a client trains on examples of this shape."""
    if len(shape) == 1:
        autoencoder = models.autoencoder(shape[0], widths=(64,), latent_size=32)
    else:
        height, width, colours = shape
        autoencoder = models.conv_autoencoder((height, width, colours))
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
