"""SDA-FDC's family, built from the settings of a run."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import optax

from experiments.encoders import is_tiny
from fcjax import nn
from fcjax.algorithms.autoencoders import by_dcn
from fcjax.algorithms.central import Clustering, by_fuzzy_cmeans, by_kmeans, central
from fcjax.algorithms.sda import Adversarial, sda
from fcjax.types import FederatedClustering

Name = Literal[
    "sda-fdc", "sda-fdc-disjoint", "sda-fc-km", "sda-fc-fcm", "dcn", "dcn-disjoint"
]
CENTRAL = ("dcn", "dcn-disjoint")
DEEP = ("sda-fdc", "sda-fdc-disjoint", *CENTRAL)


LOCAL = (
    *("gan_rounds", "gan_batch_size", "generator_learning_rate"),
    *("discriminator_learning_rate", "gan_decay", "noise_size"),
)
DISJOINT = ("pretrain_rounds", "batch_size", "learning_rate", "num_init")
JOINT = (*DISJOINT, "joint_rounds", "refresh_every", "cluster_weight")
SYNTHETIC = (*LOCAL, "num_synthetic")
FLAGS: dict[Name, tuple[str, ...]] = {
    "sda-fdc": (*SYNTHETIC, *JOINT),
    "sda-fdc-disjoint": (*SYNTHETIC, *DISJOINT),
    "sda-fc-km": (*SYNTHETIC, "num_init", "unit_length"),
    "sda-fc-fcm": (*SYNTHETIC, "num_init", "unit_length", "fuzzifier"),
    "dcn": JOINT,
    "dcn-disjoint": DISJOINT,
}
# With these weights both terms of Eq. 3 begin about alike: an auto-encoder errs less on
# small images, and much less on vectors.
VECTORS = {
    # Of CCEGAN, later code of the authors. Not as there: its noise is uniform, its Adam
    # is kept from epoch to epoch and decays weights, and it takes ten times the steps.
    "generator_learning_rate": 3e-4,
    "discriminator_learning_rate": 6e-4,
    "noise_size": 5,
    "pretrain_rounds": 15,
    "joint_rounds": 10,
    "cluster_weight": 0.5,
}
DIGITS = {  # docs/benchmarks/sda_fdc.md says what was tried
    "gan_rounds": 100,
    "joint_rounds": 20,
    "cluster_weight": 2.0,
}
SMOKE = {"gan_rounds": 3, "pretrain_rounds": 3, "joint_rounds": 2, "num_init": 1}


def chosen(
    name: Name, shape: tuple[int, ...], *, preset: str, per_client: int
) -> list[dict[str, Any]]:
    """Returns what presets and the data choose, each before what wins over it."""
    found = [{"num_init": {"sda-fc-km": 10, "sda-fc-fcm": 1}.get(name, 20)}]
    found += [VECTORS] if len(shape) == 1 else []
    if preset != "paper":
        # Some twelve steps an epoch, where a client has examples for so many.
        found += [{"gan_batch_size": min(64, max(16, per_client // 12))}]
        found += [DIGITS] if is_tiny(shape) else []
    return [*found, SMOKE] if preset == "smoke" else found


def method_of(
    name: Name,
    values: Mapping[str, Any],
    shape: tuple[int, ...],
    *,
    num_clusters: int,
) -> FederatedClustering:
    """Builds one of the methods from the settings of a run."""
    clustering = clustering_of(name, values, shape, num_clusters=num_clusters)
    if name in CENTRAL:
        return central(clustering)
    return sda(
        adversarial_of(values, shape, num_clusters=num_clusters),
        clustering,
        num_synthetic=values["num_synthetic"],
    )


def adversarial_of(
    values: Mapping[str, Any], shape: tuple[int, ...], *, num_clusters: int
) -> Adversarial:
    """Returns how clients train their GANs."""
    if len(shape) == 1:  # networks, rates and betas of CCEGAN, their later code
        gan, beta = nn.mlp_gan(shape[0]), 0.9
    else:  # as in the authors' code of SDA-FC
        height, width, colours = shape
        sizes = {"channels": 32, "hidden_size": 256} if is_tiny(shape) else {}
        gan, beta = nn.dcgan((height, width, colours), **sizes), 0.999
    return Adversarial(
        gan,
        optax.adam(values["generator_learning_rate"], b1=0.5, b2=beta),
        optax.adam(values["discriminator_learning_rate"], b1=0.5, b2=beta),
        num_rounds=values["gan_rounds"],
        batch_size=values["gan_batch_size"],
        decay=values["gan_decay"],
        num_categories=num_clusters,
        noise_size=values["noise_size"],
    )


def clustering_of(
    name: Name, values: Mapping[str, Any], shape: tuple[int, ...], *, num_clusters: int
) -> Clustering:
    """Returns how the server clusters."""
    if name in DEEP:
        return by_dcn(
            nn.autoencoder(math.prod(shape)),
            optax.adam(values["learning_rate"]),
            num_clusters=num_clusters,
            pretrain_rounds=values["pretrain_rounds"],
            joint_rounds=values.get("joint_rounds", 0),
            batch_size=values["batch_size"],
            cluster_weight=values.get("cluster_weight", 0.0),
            num_init=values["num_init"],
            refresh_every=values.get("refresh_every", 10),
        )
    options = {
        "num_clusters": num_clusters,
        "num_init": values["num_init"],
        "unit_length": values["unit_length"],
        "by_cosine": values["unit_length"],
    }
    if name == "sda-fc-km":
        return by_kmeans(**options)
    return by_fuzzy_cmeans(**options, fuzzifier=values["fuzzifier"])
