"""Central methods, and a server that clusters examples.

A server that has examples and clusters them in phases: real ones or synthetic ones.

What the central methods and SDA-FDC's family share: the first pool the clients' own
examples, the others what their generators make.

Methods that have all data in one place: what federation is measured by.

The columns KM and FCM of Tables 1 and 2 of the CCFC paper
(https://arxiv.org/abs/2401.06634), KM_central and DCN_central of the SDA-FDC paper
(https://arxiv.org/abs/2211.16965). Authors' code of the clustering on row-normalised
pixels: https://github.com/Jarvisyan/SDA-FC
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import losses
from fcjax.algorithms.rounds import all_rounds, keep_state
from fcjax.cluster import assign_nearest, fuzzy_cmeans, kmeans, used_clusters
from fcjax.data.augment import as_rows
from fcjax.federated import clients, server, training
from fcjax.parallel.mesh import num_bytes
from fcjax.types import (
    FederatedClustering,
    Federation,
    Now,
    PRNGKey,
    PyTree,
    Stage,
    State,
)

# --- A server that has examples

Examples = Shaped[Array, "N *F"]
Counted = Bool[Array, "N"]

BATCH = 512
"""Examples that an embedding takes at a time, so that its layers stay small."""


class Phase(NamedTuple):
    """One phase of a clustering; both functions get the examples and which count."""

    name: str
    begin: Callable[[PRNGKey, Any, Examples, Counted], Any]
    """(key, state, x, mask) -> the state of this phase."""
    round: Callable[
        [PRNGKey, Any, Examples, Counted, Now], tuple[Any, Float[Array, ""]]
    ]
    """(key, state, x, mask, now) -> (state, loss)."""
    num_rounds: int = 1


class Clustering(NamedTuple):
    """How examples that lie in one place are clustered.

    The mask says which examples are there: it may gain some from round to round, and
    the others may hold anything.
    """

    init: Callable[[PRNGKey, Shaped[Array, "1 *F"]], Any]
    """(key, an example) -> state."""
    phases: tuple[Phase, ...]
    embed: Callable[[Any, Shaped[Array, "N *F"]], Float[Array, "N D"]]
    """(state, x) -> the representation in which clusters are nearest centroids."""
    assign: Callable[[Any, Float[Array, "N D"]], Int[Array, "N"]]
    """(state, embedding) -> clusters, -1 where there are none yet."""
    results: Callable[[Any], dict[str, PyTree]]
    """(state) -> what the clients are sent in the end, by name."""


class Pooling(NamedTuple):
    """How examples come to the server."""

    examples: Callable[[Any, Federation, Bool[Array, "M"]], tuple[Examples, Counted]]
    """(source, federation, whose have arrived) -> examples and which of them count."""
    uploads: Callable[[Any, Federation, Bool[Array, "M"]], dict[str, Int[Array, "2"]]]
    """(source, federation, who sends) -> metrics of what they send."""


class PooledServer(NamedTuple):
    """The server; of each client it knows whether its examples have arrived."""

    source: PyTree  # what its examples are made from; () where that is the pool
    clustering: PyTree


def empty_state(source: PyTree, clustering: PyTree, federation: Federation) -> State:
    """Returns the state in which nobody's examples have arrived."""
    arrived = jnp.zeros(len(federation.indices), bool)
    return State(PooledServer(source, clustering), arrived)


def cluster_stages(
    clustering: Clustering, pooling: Pooling, *, rounds_before: int = 0
) -> tuple[Stage, ...]:
    """Returns the phases of a clustering as stages of a `PooledServer` server.

    A client sends in the first round in which it answers, and is sent the results if
    it answers in the last. Who comes late is taken in then, who never comes is not.
    The metrics of a round are its `loss`, `participants` and the traffic.
    """
    total = rounds_before + sum(phase.num_rounds for phase in clustering.phases)

    def stage(phase: Phase) -> Stage:
        def begin(key, state: State, federation: Federation):
            before: PooledServer = state.server
            x, mask = pooling.examples(before.source, federation, state.clients)
            begun = phase.begin(key, before.clustering, x, mask)
            return state._replace(server=before._replace(clustering=begun))

        def round(key, state: State, federation: Federation):
            before: PooledServer = state.server
            present = server.participants(federation)
            arrived = state.clients | present
            x, mask = pooling.examples(before.source, federation, arrived)
            clustered, loss = phase.round(
                key, before.clustering, x, mask, federation.now
            )
            answered, sends = server.gather((present, present & ~state.clients))
            is_last = federation.now.round == total - 1
            metrics = {
                "loss": loss,
                "participants": answered.sum(),
                **pooling.uploads(before.source, federation, sends),
                **server.traffic(
                    answered & is_last, up={}, down=clustering.results(clustered)
                ),
            }
            return State(before._replace(clustering=clustered), arrived), metrics

        return all_rounds(phase.name, round, phase.num_rounds, begin=begin)

    return tuple(map(stage, clustering.phases))


def pooled_method(
    init: Callable[[PRNGKey, Federation], Any],
    stages: tuple[Stage, ...],
    clustering: Clustering,
) -> FederatedClustering:
    """Returns the method of these stages, of which the last ones are those of
    `cluster_stages`: clients embed and assign as the clustering does.
    """

    def embed(state: State, federation: Federation):
        def batch(rows):
            return clustering.embed(state.server.clustering, federation.pool[rows])

        in_batches = partial(training.in_batches, batch, batch_size=BATCH)
        return clients.for_each(in_batches, federation.indices)

    def assign(state: State, federation: Federation):
        z = embed(state, federation)
        return clients.for_each(partial(clustering.assign, state.server.clustering), z)

    return FederatedClustering(init, stages, embed, assign)


# --- Central methods


def central(clustering: Clustering) -> FederatedClustering:
    """Builds a method in which every client uploads its examples, and a server clusters
    those of all that are present.

    Args:
        clustering: of the examples, `by_kmeans`, `by_fuzzy_cmeans`, `by_dcn` or
            `by_dec`.

    Returns:
        The method, whose stages are the phases of the clustering. Metrics are its
        `loss`, `participants` and the traffic.

    Examples:
        >>> pool = jnp.array([[0.0], [1.0], [8.0], [9.0]])
        >>> federation = Federation(
        ...     pool=pool,
        ...     indices=jnp.array([[0, 2], [1, 3]]),  # an example of either side each
        ...     mask=jnp.ones((2, 2), bool),
        ...     present=jnp.ones((1, 2), bool),
        ...     local_clusters=jnp.full(2, 2),
        ...     now=Now(jnp.int32(0), jnp.int32(0), jnp.array(True)),
        ... )
        >>> from fcjax.methods import KMeans
        >>> settings = KMeans(unit_length=False).plain()
        >>> method = central(by_kmeans(settings, num_clusters=2))
        >>> key = jax.random.key(0)
        >>> state = method.init(key, federation)
        >>> state, metrics = jax.jit(method.stages[0].round)(key, state, federation)
        >>> print(jnp.sort(state.server.clustering, axis=0))  # the centroids
        [[0.5]
         [8.5]]
    """

    def init(key: PRNGKey, federation: Federation) -> State:
        return empty_state((), clustering.init(key, federation.pool[:1]), federation)

    def examples(_, federation: Federation, arrived):
        # In the order of the pool: how it was dealt must not change the draws. Fetched
        # by rows, since a pool may lie on the host.
        x = federation.pool[jnp.arange(federation.pool.shape[0])]
        return x, server.pool_mask(federation, arrived)

    def uploads(_, federation: Federation, sends):
        sizes = server.gather(federation.mask.sum(axis=1))
        pool = federation.pool
        example = num_bytes(jax.ShapeDtypeStruct(pool.shape[1:], pool.dtype))
        count = jnp.sum(sizes, where=sends)
        return {"up_examples": jnp.stack([count, jnp.int32(example)])}

    stages = cluster_stages(clustering, Pooling(examples, uploads))
    return pooled_method(init, stages, clustering)


def by_kmeans(
    settings: Any,
    *,
    num_clusters: int,
    num_used: Int[Array, ""] | int | None = None,
    by_cosine: bool = False,
) -> Clustering:
    """Returns KM: k-means of the examples as they are.

    Args:
        settings: one value per setting of `fcjax.methods.KMeans`. Its 10 seedings are
            scikit-learn's default at the time of the papers.
        num_clusters: K.
        num_used: how many of them are used, all by default; see `cluster.kmeans`.
        by_cosine: scale the centroids to L2 norm 1 in the end, so that the nearest is
            the one of the largest inner product, by which SDA-FC's code assigns.

    Returns:
        The clustering, one phase of one round; its loss is the inertia an example.

    Examples:
        >>> from fcjax.methods import KMeans
        >>> clustering = by_kmeans(KMeans().plain(), num_clusters=3)
        >>> [(phase.name, phase.num_rounds) for phase in clustering.phases]
        [('cluster', 1)]
    """
    find = partial(kmeans, num_used=num_used, num_init=settings.num_init, num_iters=300)
    return _of_rows(find, "inertia", num_clusters, settings.unit_length, by_cosine)


def by_fuzzy_cmeans(
    settings: Any, *, num_clusters: int, by_cosine: bool = False
) -> Clustering:
    """Returns FCM: fuzzy c-means of the examples as they are.

    Args:
        settings: one value per setting of `fcjax.methods.FuzzyCMeans`. The fuzzifier
            1.1 is that of the code of SDA-FC; the package behind that code takes one
            seeding.
        num_clusters: K.
        by_cosine: as in `by_kmeans`.

    Returns:
        The clustering, as `by_kmeans`; its loss is the fuzzy objective an example.

    Examples:
        >>> from fcjax.methods import FuzzyCMeans
        >>> clustering = by_fuzzy_cmeans(FuzzyCMeans().plain(), num_clusters=3)
        >>> [(phase.name, phase.num_rounds) for phase in clustering.phases]
        [('cluster', 1)]
    """
    numbers = {"fuzzifier": settings.fuzzifier, "num_init": settings.num_init}
    find = partial(fuzzy_cmeans, **numbers)
    return _of_rows(find, "objective", num_clusters, settings.unit_length, by_cosine)


def _of_rows(
    find: Callable, total: str, num_clusters: int, unit_length: bool, by_cosine: bool
) -> Clustering:
    """Of (key, rows, K, mask) -> `centroids` and, by its name, what they minimise."""

    def init(_, x):
        return jnp.zeros((num_clusters, math.prod(x.shape[1:])))

    def round(key, _, x, mask, now):
        del now
        rows = as_rows(x, unit_length=unit_length)
        found = find(key, rows, num_clusters, mask=mask)
        centroids = found.centroids
        if by_cosine:
            used = used_clusters(centroids)[:, None]
            centroids = jnp.where(used, losses.normalize(centroids), centroids)
        return centroids, getattr(found, total) / mask.sum()

    return Clustering(
        init,
        phases=(Phase("cluster", keep_state, round),),
        embed=lambda _, x: as_rows(x, unit_length=unit_length),
        assign=lambda centroids, z: assign_nearest(z, centroids),
        results=lambda centroids: {"centroids": centroids},
    )
