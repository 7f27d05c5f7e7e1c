"""Methods that have all data in one place: what federation is measured by.

The columns KM and FCM of Tables 1 and 2 of the CCFC paper
(https://arxiv.org/abs/2401.06634), KM_central and DCN_central of the SDA-FDC paper
(https://arxiv.org/abs/2211.16965). Authors' code of the clustering on row-normalised
pixels: https://github.com/Jarvisyan/SDA-FC
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from fcjax import losses, server
from fcjax.algorithms import pooling
from fcjax.algorithms.pooling import Clustering, Phase
from fcjax.algorithms.rounds import go_on
from fcjax.cluster import assign_nearest, fuzzy_cmeans, kmeans, used_clusters
from fcjax.data.vectors import as_rows
from fcjax.devices import num_bytes
from fcjax.types import FederatedClustering, Federation, PRNGKey, Scalar, State


def central(clustering: Clustering) -> FederatedClustering:
    """Builds a method in which every client uploads its examples, and a server clusters
    those of all that are present.

    Args:
        clustering: of the examples, `by_kmeans` or `by_fuzzy_cmeans`, `dcn.by_dcn` or
            `dec.by_dec`.

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
        ... )
        >>> method = central(by_kmeans(num_clusters=2, unit_length=False))
        >>> key = jax.random.key(0)
        >>> state = method.init(key, federation)
        >>> state, metrics = jax.jit(method.stages[0].round)(key, state, federation)
        >>> print(jnp.sort(state.server.clustering, axis=0))  # the centroids
        [[0.5]
         [8.5]]
    """

    def init(key: PRNGKey, federation: Federation) -> State:
        return pooling.pooled((), clustering.init(key, federation.pool[:1]), federation)

    def examples(_, federation: Federation, arrived):
        # In the order of the pool: how it was dealt must not change the draws. Fetched
        # by rows, since a pool may lie on the host.
        x = federation.pool[jnp.arange(federation.pool.shape[0])]
        return x, server.pooled(federation, arrived)

    def uploads(_, federation: Federation, sends):
        sizes = server.gather(federation.mask.sum(axis=1))
        pool = federation.pool
        example = num_bytes(jax.ShapeDtypeStruct(pool.shape[1:], pool.dtype))
        count = jnp.sum(sizes, where=sends)
        return {"up_examples": jnp.stack([count, jnp.int32(example)])}

    stages = pooling.cluster_stages(clustering, pooling.Pooling(examples, uploads))
    return pooling.pooled_method(init, stages, clustering)


def by_kmeans(
    *,
    num_clusters: int,
    num_used: Int[Array, ""] | int | None = None,
    num_init: int = 10,
    unit_length: bool = True,
    by_cosine: bool = False,
) -> Clustering:
    """Returns KM: k-means of the examples as they are.

    Args:
        num_clusters: K.
        num_used: how many of them are used, all by default; see `cluster.kmeans`.
        num_init: seedings, of which the best by inertia counts; 10 is scikit-learn's
            default at the time of the papers.
        unit_length: cluster rows of L2 norm 1; False takes the pixels as they are.
        by_cosine: scale the centroids to L2 norm 1 in the end, so that the nearest is
            the one of the largest inner product, by which SDA-FC's code assigns.

    Returns:
        The clustering, one phase of one round; its loss is the inertia an example.

    Examples:
        >>> clustering = by_kmeans(num_clusters=3)
        >>> [(phase.name, phase.num_rounds) for phase in clustering.phases]
        [('cluster', 1)]
    """
    find = partial(kmeans, num_used=num_used, num_init=num_init, num_iters=300)
    return _of_rows(find, "inertia", num_clusters, unit_length, by_cosine)


def by_fuzzy_cmeans(
    *,
    num_clusters: int,
    fuzzifier: Scalar = 1.1,
    num_init: int = 1,
    unit_length: bool = True,
    by_cosine: bool = False,
) -> Clustering:
    """Returns FCM: fuzzy c-means of the examples as they are.

    Args:
        num_clusters: K.
        fuzzifier: m > 1; 1.1 is that of the code of SDA-FC.
        num_init: seedings; the package behind that code takes one.
        unit_length, by_cosine: as in `by_kmeans`.

    Returns:
        The clustering, as `by_kmeans`; its loss is the fuzzy objective an example.

    Examples:
        >>> clustering = by_fuzzy_cmeans(num_clusters=3, fuzzifier=1.1)
        >>> [(phase.name, phase.num_rounds) for phase in clustering.phases]
        [('cluster', 1)]
    """
    find = partial(fuzzy_cmeans, fuzzifier=fuzzifier, num_init=num_init)
    return _of_rows(find, "objective", num_clusters, unit_length, by_cosine)


def _of_rows(
    find: Callable, total: str, num_clusters: int, unit_length: bool, by_cosine: bool
) -> Clustering:
    """Of (key, rows, K, mask) -> `centroids` and, by its name, what they minimise."""

    def init(_, x):
        return jnp.zeros((num_clusters, math.prod(x.shape[1:])))

    def round(key, _, x, mask):
        rows = as_rows(x, unit_length=unit_length)
        found = find(key, rows, num_clusters, mask=mask)
        centroids = found.centroids
        if by_cosine:
            used = used_clusters(centroids)[:, None]
            centroids = jnp.where(used, losses.normalize(centroids), centroids)
        return centroids, getattr(found, total) / mask.sum()

    return Clustering(
        init,
        phases=(Phase("cluster", go_on, round),),
        embed=lambda _, x: as_rows(x, unit_length=unit_length),
        assign=lambda centroids, z: assign_nearest(z, centroids),
        results=lambda centroids: {"centroids": centroids},
    )
