"""FedCRef and what it is measured by, built from the settings of a run."""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import optax

from experiments.papers.fedcref import simulated
from fcjax import clients, models
from fcjax.algorithms.central import by_kmeans, central
from fcjax.algorithms.dec import by_dec
from fcjax.algorithms.fedcref import (
    Association,
    Halting,
    Start,
    Training,
    fedcref,
    given,
    on_clients,
)
from fcjax.algorithms.pooling import Clustering
from fcjax.algorithms.uifca import uifca
from fcjax.cluster import count_clusters
from fcjax.data.vectors import client_rows
from fcjax.devices import platform
from fcjax.types import FederatedClustering, Federation

Name = Literal["fedcref", "dec", "uifca"]
Local = Literal["dec", "k-means", "dirty"]


class Data(NamedTuple):
    """What builders need to know of the data."""

    shape: tuple[int, ...]
    """Of an example."""
    levels: int | None
    """How many values a pixel has; None of vectors."""
    labels: np.ndarray | None
    """0, 1, ... of every example; what only a simulation or a measure is given."""


def method_of(
    name: Name, values: Mapping[str, Any], data: Data, *, num_clusters: int
) -> FederatedClustering:
    """Builds one of the methods from the settings of a run."""
    if name == "dec":
        return central(dec_of(values, data, num_clusters=num_clusters))
    optimizer = optax.adam(values["learning_rate"])
    if name == "uifca":
        flow = models.realnvp(data.shape, hidden=(values["flow_width"],) * 3)
        names = ("cluster_rounds", "communication_rounds", "local_steps", "batch_size")
        return uifca(
            flow,
            optimizer,
            num_clusters=num_clusters,
            levels=data.levels,
            **{name: values[name] for name in names},
        )
    told = {
        **values,
        "first_match": values["associations"] == "first-match",
        "last_local_model": values["community_model"] == "last-local",
    }

    def of(group):
        return group(*(told[name] for name in group._fields))

    estimate = partial(by_silhouette, num_clusters=num_clusters)
    known = known_of(values, data, num_clusters=num_clusters)
    return fedcref(
        models.reconstructor(prod(data.shape)),
        optimizer,
        start_of(values, data, num_clusters=num_clusters),
        num_clusters=num_clusters,
        num_rounds=values["num_rounds"],
        training=of(Training),
        halting=of(Halting),
        renumber_leftovers=values["leftovers"] == "renumbered",
        num_local=estimate if values["local_clusters"] == "silhouette" else None,
        client_axis=client_axis(),
        **{"association": of(Association), **known},
    )


def client_axis() -> clients.ClientAxis | None:
    """Returns how clusters run: on a CPU the small model of one stays in its cache."""
    return "map" if platform() == "cpu" else None


def start_of(values: Mapping[str, Any], data: Data, *, num_clusters: int) -> Start:
    """Returns how clients come to their first clusters."""
    kind: Local = values["start"]
    if kind == "dirty":
        assert data.labels is not None  # the script refuses data without
        clusters = simulated.dirty(
            jax.numpy.asarray(data.labels),
            values["dirtiness"],
            num_classes=int(data.labels.max()) + 1,
        )
        return given("dirty", clusters)

    def clustering(num_used) -> Clustering:
        options = {"num_clusters": num_clusters, "num_used": num_used}
        if kind == "k-means":
            return by_kmeans(**options)
        return dec_of(values, data, **options)

    return on_clients(clustering, num_clusters=num_clusters, client_axis=client_axis())


def dec_of(values: Mapping[str, Any], data: Data, **options: Any) -> Clustering:
    return by_dec(
        models.autoencoder(prod(data.shape)),
        optax.adam(1e-3),
        pretrain_rounds=values["pretrain_rounds"],
        joint_rounds=values["joint_rounds"],
        batch_size=values["dec_batch_size"],
        **options,
    )


def known_of(
    values: Mapping[str, Any], data: Data, *, num_clusters: int
) -> dict[str, Any]:
    """Returns what the experiment alone knows, by the labels."""
    if data.labels is None:
        return {}
    sizes = {"num_clusters": num_clusters, "num_classes": int(data.labels.max()) + 1}
    labels = jax.numpy.asarray(data.labels)
    measure = simulated.wrong_associations(labels, **sizes)
    if values["associations"] != "perfect":
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
        axis=client_axis(),
    )
