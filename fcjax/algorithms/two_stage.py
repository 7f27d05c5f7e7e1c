"""Learning a representation in one stage, clustering its features in another."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fcjax import server
from fcjax.algorithms.averaging import Contrast, Local, Pass, Setup, averaging, start
from fcjax.algorithms.cc import is_clustered
from fcjax.algorithms.features import assembled, encode
from fcjax.algorithms.parts import Networks, Parts, initialize, part, pick, put
from fcjax.algorithms.rounds import all_rounds
from fcjax.cluster import assign_nearest, kmeans
from fcjax.data.augment import to_float
from fcjax.devices import num_bytes
from fcjax.types import FederatedClustering, Federation, Network, PRNGKey, Stage, State


class Clustering(NamedTuple):
    """A second stage."""

    stage: Callable[[Network, int], Stage]
    """(encoder, rounds before) -> the stage, which goes on with the encoder alone of
    all that was trained."""
    assign: Callable[[Parts, Float[Array, "N D"]], Int[Array, "N"]]
    """(the server's parts, features) -> clusters."""


class KMeans(NamedTuple):
    """See `feature_kmeans`."""

    num_clusters: int
    num_init: int
    num_clustered: int | None
    batch_size: int


def two_stages(
    networks: Networks,
    contrast: Contrast,
    clustering: Clustering,
    local: Local,
    *,
    num_rounds: int,
    **options: Any,
) -> FederatedClustering:
    """Builds a method that learns features on the clients, then clusters them.

    Args:
        networks: of the first stage, `encoder` first, each fed by the one before.
        contrast: the loss of a batch.
        clustering: the second stage.
        local: how a client trains in a round of the first stage.
        num_rounds: of the first stage.
        **options: tracks, momentum, average_target and personal, as in
            `averaging.Setup`.

    Returns:
        The method, with stages `representation` and that of `clustering`, whose
        embedding is the encoder's features. It has no clusters (-1) before the second.
    """
    trains, passes = tuple(networks.named), (Pass(contrast),)
    setup = Setup(networks, trains, passes, local, num_rounds, **options)

    def init(key, federation: Federation) -> State:
        x = to_float(federation.pool[:1])
        return start(setup, initialize(key, networks.named, x), federation)

    def assign(parts: Parts, h: Float[Array, "N D"]) -> Int[Array, "N"]:
        if "projector" in parts["params"]:  # the first stage goes on
            return jnp.full(len(h), -1, jnp.int32)
        return clustering.assign(parts, h)

    stages = (
        averaging("representation", setup),
        clustering.stage(networks.named["encoder"], num_rounds),
    )
    return assembled(networks.named["encoder"], local, init, stages, assign)


def feature_kmeans(
    *,
    num_clusters: int,
    num_init: int = 10,
    num_clustered: int | None = None,
    batch_size: int = 128,
) -> Clustering:
    """Returns `+ K-means` of FedMCC's tables: k-means of all clients' features.

    A stage of one round in which every client uploads its features, as the classical
    algorithm takes them in one place.

    Args:
        num_clusters: K.
        num_init: seedings, of which the best by inertia counts.
        num_clustered: cluster the first so many rows of the pool alone; None is all.
        batch_size: examples that a client encodes at a time.

    Examples:
        >>> from fcjax import models
        >>> clustering = feature_kmeans(num_clusters=3)
        >>> stage = clustering.stage(models.encoder(models.MLP((16,))), 100)
        >>> stage.name, stage.num_rounds  # after 100 rounds of the first stage
        ('k-means', 1)
    """
    setup = KMeans(num_clusters, num_init, num_clustered, batch_size)

    def stage(encoder: Network, _: int) -> Stage:
        begin = partial(begin_kmeans, setup, encoder)
        round = partial(kmeans_round, setup, encoder)
        return all_rounds("k-means", round, 1, begin=begin)

    def assign(parts: Parts, h: Float[Array, "N D"]) -> Int[Array, "N"]:
        return assign_nearest(h, parts["params"]["centroids"])

    return Clustering(stage, assign)


def begin_kmeans(
    setup: KMeans, encoder: Network, _: PRNGKey, state: State, federation: Federation
) -> State:
    """Returns the encoder alone, and centroids of zeros."""
    before = state.server
    parts, x = pick(before.online, ("encoder",)), to_float(federation.pool[:1])
    h = encoder.apply(part(parts, "encoder"), x, train=False)[0]
    centroids = jnp.zeros((setup.num_clusters, h.shape[-1]))
    parts = put(parts, "centroids", {"params": centroids})
    return State(before._replace(online=parts))


def kmeans_round(
    setup: KMeans, encoder: Network, key: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """The round: the server clusters the features of all who answer."""
    before = state.server
    present = server.participants(federation, before.num_rounds)
    h = encode(encoder, before.online, federation, batch_size=setup.batch_size)
    mask = federation.mask & present[:, None]
    mask &= is_clustered(setup.num_clustered)(federation.indices)
    rows, counted, answered = server.gather((h, mask, present))
    found = kmeans(
        key,
        rows.reshape(-1, h.shape[-1]),
        setup.num_clusters,
        mask=counted.reshape(-1),
        num_init=setup.num_init,
    )
    num_rows = counted.sum(dtype=jnp.int32)
    feature = num_bytes(jax.ShapeDtypeStruct(h.shape[-1:], h.dtype))
    parts = put(before.online, "centroids", {"params": found.centroids})
    down = {name: part(parts, name) for name in parts["params"]}
    metrics = {
        "loss": found.inertia / num_rows,
        "participants": answered.sum(),
        "up_features": jnp.stack([num_rows, jnp.int32(feature)]),
        **server.traffic(answered, up={}, down=down),
    }
    after = before._replace(online=parts, num_rounds=before.num_rounds + 1)
    return State(after), metrics
