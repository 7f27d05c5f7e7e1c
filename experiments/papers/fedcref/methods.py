"""FedCRef and what it is measured by, built from the settings of a run."""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import optax

from experiments.papers.fedcref import simulated
from fcjax import data, nn
from fcjax.algorithms.autoencoders import by_dec
from fcjax.algorithms.central import Clustering, by_kmeans, central
from fcjax.algorithms.fedcref import (
    Association,
    Halting,
    Start,
    Training,
    fedcref,
    given,
    on_clients,
)
from fcjax.algorithms.uifca import uifca
from fcjax.cluster import count_clusters
from fcjax.data.augment import client_rows
from fcjax.federated import clients
from fcjax.sweep import plan
from fcjax.sweep.flags import Default
from fcjax.types import FederatedClustering, Federation

Name = Literal["fedcref", "dec", "uifca"]
Local = Literal["dec", "k-means", "dirty"]


DEC = ("pretrain_rounds", "joint_rounds", "dec_batch_size")
FLOWS = (
    *("cluster_rounds", "communication_rounds", "local_steps", "flow_width"),
    *("batch_size", "learning_rate"),
)
ITERATION = (
    *("start", "percentile", "threshold", "stability", "tolerance", "num_rounds"),
    *("stop_when_settled", "max_refinements", "max_members", "associations"),
    *("community_model", "leftovers", "local_clusters", "local_epochs"),
    *("federated_rounds", "first_epochs", "federated_epochs", "batch_size"),
    "learning_rate",
)
STARTS: dict[Local, tuple[str, ...]] = {
    "dec": DEC,
    "k-means": (),
    "dirty": ("dirtiness",),
}
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


class Data(NamedTuple):
    """What builders need to know of the data."""

    shape: tuple[int, ...]
    """Of an example."""
    levels: int | None
    """How many values a pixel has; None of vectors."""
    labels: np.ndarray | None
    """0, 1, ... of every example; what only a simulation or a measure is given."""


def flags_of(name: Name, start: Local) -> tuple[str, ...]:
    """Returns the flags that a method has."""
    if name == "fedcref":
        return (*ITERATION, *STARTS[start])
    return DEC if name == "dec" else FLOWS


def chosen(args: Any, name: Name, cluster_size: int) -> list[dict[str, Any]]:
    """Returns what presets and the data choose, each before what wins over it."""
    is_paper = args.preset == "paper"
    found: list[dict[str, Any]] = []
    if name == "uifca":
        rate = 1e-4 if is_paper else 3e-3
        found = [{"batch_size": 128, "learning_rate": rate}]
    elif not is_paper:
        found = [of_few(max(cluster_size, 1))]
    return [*found, {"smoke": SMOKE, "paper": PAPER}.get(args.preset, {})]


def of_few(size: int) -> dict[str, Any]:
    """Returns the settings that few examples ask for, see docs/benchmarks/fedcref.md.

    Their models need more epochs to be worth a comparison, but so many that they know
    each by heart leave nothing to refine. And the largest of few differences, which the
    test divides by, is smaller.
    """
    shortage = max(PAPERS_SIZE / size, 1)
    return {
        "local_epochs": round(20 * shortage**0.5),
        "threshold": round(0.2 * shortage**0.2, 2),
    }


def described(
    args: Any,
    settings: Mapping[str, Any],
    dataset: data.Dataset,
    num_clients: int,
    num_clusters: int,
) -> plan.Method:
    """Describes the first of the methods that are asked for."""
    name, labels = args.methods[0], dataset.labels
    check(args, name, has_labels=labels is not None)
    shape = dataset.examples.shape[1:]
    of_data = Data(
        shape,
        levels_of(dataset.examples) if len(shape) == 3 else None,
        None if labels is None else np.unique(labels, False, True)[1],
    )
    build = partial(method_of, name, data=of_data, num_clusters=num_clusters)
    if name != "fedcref":
        size = dataset.examples.nbytes + 4 * dataset.examples.size
        return plan.Method(
            *(name, settings, build, "global"),
            working_bytes=size,
            sees_all=name == "dec",
        )
    start = LAST_PHASES[args.start]
    if args.start == "dec" and settings["joint_rounds"] == (0,):
        start = "k-means"
    return plan.Method(
        name=name,
        settings=settings,
        build=build,
        scope="client-mean",
        # The errors of all examples under the models of all clusters.
        working_bytes=4 * len(dataset.examples) * num_clients * num_clusters,
        start=start,
        reported=REPORTED,
    )


def levels_of(images: np.ndarray) -> int:
    """Returns how many values a pixel can have: 17 of digits, 256 of most others."""
    values = np.unique(images[:SOME].astype(float))
    largest = 255 if images.dtype == np.uint8 else 1
    step = np.median(np.diff(values)) if len(values) > 1 else largest / 255
    return round(largest / step) + 1


def check(args: Any, name: Name, *, has_labels: bool) -> None:
    """Refuses what a method cannot have, in a line that names the flag."""
    if not isinstance(args.dirtiness, Default) and args.start != "dirty":
        raise ValueError("--dirtiness is of --start dirty, give both")
    if name != "fedcref" or (has_labels and args.extra_split is None):
        return
    why = "has no labels" if not has_labels else "has examples without labels"
    if args.start == "dirty":
        raise ValueError(f"--start dirty is made from classes, and the data {why}")
    if args.associations == "perfect":
        raise ValueError(f"--associations perfect knows classes, and the data {why}")


def method_of(
    name: Name, values: Mapping[str, Any], data: Data, *, num_clusters: int
) -> FederatedClustering:
    """Builds one of the methods from the settings of a run."""
    if name == "dec":
        return central(dec_of(values, data, num_clusters=num_clusters))
    optimizer = optax.adam(values["learning_rate"])
    if name == "uifca":
        flow = nn.realnvp(data.shape, hidden=(values["flow_width"],) * 3)
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
        nn.reconstructor(prod(data.shape)),
        optimizer,
        start_of(values, data, num_clusters=num_clusters),
        num_clusters=num_clusters,
        num_rounds=values["num_rounds"],
        training=of(Training),
        halting=of(Halting),
        renumber_leftovers=values["leftovers"] == "renumbered",
        num_local=estimate if values["local_clusters"] == "silhouette" else None,
        **{"association": of(Association), **known},
    )


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

    return on_clients(clustering, num_clusters=num_clusters)


def dec_of(values: Mapping[str, Any], data: Data, **options: Any) -> Clustering:
    return by_dec(
        nn.autoencoder(prod(data.shape)),
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
    )
