"""Central methods: a server has examples and clusters them in phases.

In central methods the clients upload their examples; federated methods are compared
with them. In SDA-FDC's methods the server has synthetic examples from the clients'
generators. Both use the same stages (`cluster_stages`).

In the CCFC paper (https://arxiv.org/abs/2401.06634), central methods are the columns
KM and FCM of Tables 1 and 2. In the SDA-FDC paper (https://arxiv.org/abs/2211.16965),
they are KM_central and DCN_central. Authors' code of the clustering on row-normalised
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
"""The examples of a server."""
Counted = Bool[Array, "N"]
"""A mask that is True at the examples that the server has."""

BATCH = 512
"""Number of examples per forward pass of an embedding, to bound its memory."""


class Phase(NamedTuple):
    """One phase of a clustering. Its functions get the examples and their mask."""

    name: str
    """The name of the stage."""
    begin: Callable[[PRNGKey, Any, Examples, Counted], Any]
    """(key, state, x, mask) -> the first state of this phase."""
    round: Callable[
        [PRNGKey, Any, Examples, Counted, Now], tuple[Any, Float[Array, ""]]
    ]
    """(key, state, x, mask, now) -> (state, loss)."""
    num_rounds: int = 1
    """Number of rounds of the phase."""


class Clustering(NamedTuple):
    """A clustering of examples on one server.

    Its functions get a mask of the examples that have arrived. More examples may arrive
    in later rounds. The values of other examples are arbitrary.
    """

    init: Callable[[PRNGKey, Shaped[Array, "1 *F"]], Any]
    """(key, one example) -> the state before the first phase."""
    phases: tuple[Phase, ...]
    """The phases, one after another."""
    embed: Callable[[Any, Shaped[Array, "N *F"]], Float[Array, "N D"]]
    """(state, x) -> the embedding, in which a cluster is the nearest centroid."""
    assign: Callable[[Any, Float[Array, "N D"]], Int[Array, "N"]]
    """(state, embedding) -> clusters, or -1 before there are clusters."""
    results: Callable[[Any], dict[str, PyTree]]
    """(state) -> the arrays that clients download after the last round, by name."""


class Pooling(NamedTuple):
    """The transfer of examples from the clients to the server."""

    examples: Callable[[Any, Federation, Bool[Array, "M"]], tuple[Examples, Counted]]
    """(source, federation, clients whose examples have arrived) -> the examples of the
    server, and a mask that is True at the examples that have arrived."""
    uploads: Callable[[Any, Federation, Bool[Array, "M"]], dict[str, Int[Array, "2"]]]
    """(source, federation, clients that upload) -> the traffic of the uploads."""


class PooledServer(NamedTuple):
    """The server's state of a method that pools examples."""

    source: PyTree
    """The source of the server's examples; () if they are those of the pool."""
    clustering: PyTree
    """The state of the `Clustering`."""


def empty_state(source: PyTree, clustering: PyTree, federation: Federation) -> State:
    """Returns the state before any client has uploaded examples.

    Args:
        source: the source of the server's examples, see `PooledServer`.
        clustering: the initial state of the clustering.
        federation: the federation.

    Returns:
        The state. The state of a client is whether its examples have arrived.
    """
    arrived = jnp.zeros(len(federation.indices), bool)
    return State(PooledServer(source, clustering), arrived)


def cluster_stages(
    clustering: Clustering, pooling: Pooling, *, rounds_before: int = 0
) -> tuple[Stage, ...]:
    """Returns one stage per phase of a clustering.

    A client uploads its examples in the first round in which it participates; the
    server uses them from this round on. A client that participates in the last round
    downloads the results.

    Args:
        clustering: the clustering of the server's examples.
        pooling: the transfer of the examples.
        rounds_before: number of rounds of the stages before these.

    Returns:
        The stages. Their metrics are the `loss`, `participants` and the traffic.
    """
    total = rounds_before + sum(phase.num_rounds for phase in clustering.phases)

    def stage(phase: Phase) -> Stage:
        def begin(key, state: State, federation: Federation):
            before: PooledServer = state.server
            x, mask = pooling.examples(before.source, federation, state.clients)
            after = phase.begin(key, before.clustering, x, mask)
            return state._replace(server=before._replace(clustering=after))

        def round(key, state: State, federation: Federation):
            before: PooledServer = state.server
            present = server.participants(federation)
            arrived = state.clients | present
            x, mask = pooling.examples(before.source, federation, arrived)
            after, loss = phase.round(key, before.clustering, x, mask, federation.now)
            participating, is_new = server.gather((present, present & ~state.clients))
            is_last = federation.now.round == total - 1
            metrics = {
                "loss": loss,
                "participants": participating.sum(),
                **pooling.uploads(before.source, federation, is_new),
                **server.traffic(
                    participating & is_last, up={}, down=clustering.results(after)
                ),
            }
            return State(before._replace(clustering=after), arrived), metrics

        return all_rounds(phase.name, round, phase.num_rounds, begin=begin)

    return tuple(map(stage, clustering.phases))


def pooled_method(
    init: Callable[[PRNGKey, Federation], Any],
    stages: tuple[Stage, ...],
    clustering: Clustering,
) -> FederatedClustering:
    """Builds a method whose server pools and clusters examples.

    Args:
        init: (key, federation) -> the state before the first round.
        stages: the stages of the method; the last ones are those of `cluster_stages`.
        clustering: the clustering, which also embeds and assigns the clients' examples.

    Returns:
        The method.
    """

    def embed(state: State, federation: Federation):
        def embed_batch(indices):
            return clustering.embed(state.server.clustering, federation.pool[indices])

        in_batches = partial(training.in_batches, embed_batch, batch_size=BATCH)
        return clients.for_each(in_batches, federation.indices)

    def assign(state: State, federation: Federation):
        z = embed(state, federation)
        return clients.for_each(partial(clustering.assign, state.server.clustering), z)

    return FederatedClustering(init, stages, embed, assign)


# --- Central methods


def central(clustering: Clustering) -> FederatedClustering:
    """Builds a central method: clients upload examples, and the server clusters them.

    Args:
        clustering: the clustering of the examples: `by_kmeans`, `by_fuzzy_cmeans`,
            `by_dcn` or `by_dec`.

    Returns:
        The method, with one stage per phase of the clustering. Its metrics are the
        `loss` of the clustering, `participants` and the traffic.

    Examples:
        >>> pool = jnp.array([[0.0], [1.0], [8.0], [9.0]])
        >>> federation = Federation(
        ...     pool=pool,
        ...     indices=jnp.array([[0, 2], [1, 3]]),  # each client has both clusters
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
        # The order is that of the pool, so that random draws do not depend on the
        # partition. A pool may be on the host, so it is indexed to fetch the examples.
        x = federation.pool[jnp.arange(federation.pool.shape[0])]
        return x, server.pool_mask(federation, arrived)

    def uploads(_, federation: Federation, uploading):
        sizes = server.gather(federation.mask.sum(axis=1))
        pool = federation.pool
        example = num_bytes(jax.ShapeDtypeStruct(pool.shape[1:], pool.dtype))
        count = jnp.sum(sizes, where=uploading)
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
    """Returns KM: k-means of the raw examples.

    Args:
        settings: one value per setting of `fcjax.methods.KMeans`. Its 10 seedings were
            scikit-learn's default at the time of the papers.
        num_clusters: K.
        num_used: number of clusters to use, at most K; None uses all. See
            `fcjax.cluster.kmeans`.
        by_cosine: scale the final centroids to L2 norm 1, so that the nearest centroid
            has the largest inner product, as in SDA-FC's code.

    Returns:
        The clustering: one phase of one round. Its loss is the inertia per example.

    Examples:
        >>> from fcjax.methods import KMeans
        >>> clustering = by_kmeans(KMeans().plain(), num_clusters=3)
        >>> [(phase.name, phase.num_rounds) for phase in clustering.phases]
        [('cluster', 1)]
    """
    fit = partial(kmeans, num_used=num_used, num_init=settings.num_init, num_iters=300)
    unit_length = settings.unit_length
    return _in_one_round(fit, "inertia", num_clusters, unit_length, by_cosine)


def by_fuzzy_cmeans(
    settings: Any, *, num_clusters: int, by_cosine: bool = False
) -> Clustering:
    """Returns FCM: fuzzy c-means of the raw examples.

    Args:
        settings: one value per setting of `fcjax.methods.FuzzyCMeans`. The code of
            SDA-FC has the fuzzifier 1.1 and one seeding.
        num_clusters: K.
        by_cosine: scale the final centroids to L2 norm 1, so that the nearest centroid
            has the largest inner product, as in SDA-FC's code.

    Returns:
        The clustering: one phase of one round. Its loss is the fuzzy objective per
        example.

    Examples:
        >>> from fcjax.methods import FuzzyCMeans
        >>> clustering = by_fuzzy_cmeans(FuzzyCMeans().plain(), num_clusters=3)
        >>> [(phase.name, phase.num_rounds) for phase in clustering.phases]
        [('cluster', 1)]
    """
    options = {"fuzzifier": settings.fuzzifier, "num_init": settings.num_init}
    fit, unit_length = partial(fuzzy_cmeans, **options), settings.unit_length
    return _in_one_round(fit, "objective", num_clusters, unit_length, by_cosine)


def _in_one_round(
    fit: Callable, objective: str, num_clusters: int, unit_length: bool, by_cosine: bool
) -> Clustering:
    """Returns a clustering of one round that computes centroids of the raw examples.

    Args:
        fit: (key, examples, K, mask) -> a result with `centroids` and the objective.
        objective: the name of the objective in the result.
        num_clusters: K.
        unit_length: scale the examples to L2 norm 1.
        by_cosine: scale the final centroids to L2 norm 1.

    Returns:
        The clustering. Its loss is the objective per example.
    """

    def init(_, x):
        return jnp.zeros((num_clusters, math.prod(x.shape[1:])))

    def round(key, _, x, mask, now):
        del now
        rows = as_rows(x, unit_length=unit_length)
        result = fit(key, rows, num_clusters, mask=mask)
        centroids = result.centroids
        if by_cosine:
            is_used = used_clusters(centroids)[:, None]
            centroids = jnp.where(is_used, losses.normalize(centroids), centroids)
        return centroids, getattr(result, objective) / mask.sum()

    return Clustering(
        init,
        phases=(Phase("cluster", keep_state, round),),
        embed=lambda _, x: as_rows(x, unit_length=unit_length),
        assign=lambda centroids, z: assign_nearest(z, centroids),
        results=lambda centroids: {"centroids": centroids},
    )
