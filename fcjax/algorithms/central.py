"""k-means and fuzzy c-means on all data in one place: what federation is measured by.

The columns KM and FCM of Tables 1 and 2 of the CCFC paper
(https://arxiv.org/abs/2401.06634), KM_central of the SDA-FDC paper
(https://arxiv.org/abs/2211.16965). Authors' code of the clustering on row-normalised
pixels: https://github.com/Jarvisyan/SDA-FC
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fcjax import server
from fcjax.algorithms.plain import plain
from fcjax.cluster import fuzzy_cmeans, kmeans
from fcjax.data.vectors import as_rows
from fcjax.types import FederatedClustering, Federation, PRNGKey, Scalar


class CentralState(NamedTuple):
    centroids: Float[Array, "K D"]


Cluster = Callable[
    [PRNGKey, Float[Array, "P D"], Bool[Array, "P"]],
    tuple[Float[Array, "K D"], Float[Array, ""]],
]
"""(key, rows, mask) -> (centroids, the sum that they minimise)."""


def central_kmeans(
    *,
    num_clusters: int,
    num_init: int = 10,
    num_iters: int = 300,
    unit_length: bool = True,
) -> FederatedClustering:
    """Builds KM: k-means on the data of all clients that are present.

    Args:
        num_clusters: K.
        num_init: seedings, of which the best by inertia counts; 10 is scikit-learn's
            default at the time of the papers.
        num_iters: bound of the Lloyd iterations.
        unit_length: cluster rows of L2 norm 1; False takes the pixels as they are.

    Returns:
        The method, one stage of one round in which every client uploads its examples.
        Its metrics are the `loss` (inertia an example), `participants` and the traffic.
    """

    def cluster(key, x, mask):
        found = kmeans(
            key, x, num_clusters, mask=mask, num_init=num_init, num_iters=num_iters
        )
        return found.centroids, found.inertia

    return _central(cluster, num_clusters, unit_length)


def central_fuzzy_cmeans(
    *,
    num_clusters: int,
    fuzzifier: Scalar = 1.1,
    num_init: int = 1,
    num_iters: int = 300,
    unit_length: bool = True,
) -> FederatedClustering:
    """Builds FCM: fuzzy c-means on the data of all clients that are present.

    Args:
        num_clusters: K.
        fuzzifier: m > 1; 1.1 is that of the code of SDA-FC.
        num_init: seedings; the package behind that code takes one.
        num_iters: bound of the iterations.
        unit_length: as in `central_kmeans`.

    Returns:
        The method, as `central_kmeans`; its `loss` is the fuzzy objective an example.
    """

    def cluster(key, x, mask):
        found = fuzzy_cmeans(
            key,
            x,
            num_clusters,
            fuzzifier=fuzzifier,
            mask=mask,
            num_init=num_init,
            num_iters=num_iters,
        )
        return found.centroids, found.objective

    return _central(cluster, num_clusters, unit_length)


def _central(
    cluster: Cluster, num_clusters: int, unit_length: bool
) -> FederatedClustering:
    def init(key: PRNGKey, federation: Federation) -> CentralState:
        del key
        num_features = math.prod(federation.pool.shape[1:])
        return CentralState(jnp.zeros((num_clusters, num_features)))

    def round(key: PRNGKey, state: CentralState, federation: Federation):
        del state
        pool = federation.pool
        present = server.participants(federation, jnp.int32(0))
        # In the order of the pool: how it was dealt must not change the draws. Fetched
        # by rows, since a pool may lie on the host.
        mask = server.pooled(federation, present)
        x = as_rows(pool[jnp.arange(pool.shape[0])], unit_length=unit_length)
        centroids, total = cluster(key, x, mask)
        answered = server.gather(present)
        example = server.num_bytes(jax.ShapeDtypeStruct(pool.shape[1:], pool.dtype))
        metrics = {
            "loss": total / mask.sum(),
            "participants": answered.sum(),
            "up_examples": jnp.stack([mask.sum(), jnp.int32(example)]),
            **server.traffic(answered, up={}, down={"centroids": centroids}),
        }
        return CentralState(centroids), metrics

    return plain(init, round, unit_length=unit_length)
