"""Federated k-means: the central algorithm, computed from the clients' sums and counts.

The server runs k-means of all examples without seeing any example. Each quantity of
Lloyd's algorithm is a sum over examples. So every client sums over its examples, and
the server sums over the clients. From the same initial centroids the result equals
k-means of the pooled examples.

References:
    Lloyd, Least squares quantization in PCM, 1982.
    Dennis, Li and Smith, `Heterogeneity for the win
    <https://arxiv.org/abs/2103.00697>`_, ICML 2021: seeds come from local centroids.
    Bergsma, A bias-correction for Cramer's V and Tschuprow's T, Journal of the Korean
    Statistical Society, 2013: the idea of `heterogeneity`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax.cluster import assign_nearest, kmeans
from fcjax.cluster.fuzzy import memberships
from fcjax.cluster.kmeans import squared_distances
from fcjax.federated import clients, server
from fcjax.losses import normalize
from fcjax.parallel.mesh import platform
from fcjax.ragged import Ragged, is_ragged
from fcjax.types import Federation, PRNGKey, PyTree, Scalar, Stage, State

HALF = 0.5
"""Exponent of half-whitening, see `find_whitening`."""
UNLIKE = 0.3
"""Threshold of `heterogeneity`. Above it, k-means of the embedding finds better
clusters than clients that train a cluster contrast (docs/guides/heterogeneity.md)."""

STILL = 1e-6
"""Lloyd's algorithm has converged if a step moves the centroids by at most this share
of their norm."""

SEEDING = 2**15
"""Number of examples of all clients together in the k-means of `seed_centroids`, if the
points of all clients are large."""

matmul = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

Embedding = Float[Array, "M N D"] | Ragged
Mask = Bool[Array, "M N"] | Ragged
Entries = Shaped[Array, "M N ..."] | Ragged
"""The embedding, or the argument of `Read`."""
Read = Callable[[Shaped[Array, "N ..."]], Float[Array, "N D"]]
"""(the entries of z of some examples of a client) -> the points of these examples. So z
can be the indices of the examples, and the points of all clients are never in memory
together."""


def _as_is(z: Float[Array, "N D"]) -> Float[Array, "N D"]:
    """The entries of z are the points themselves."""
    return z


class Step(NamedTuple):
    """The result of one Lloyd step.

    Examples:
        >>> z = jnp.array([[[0.0], [1.0]], [[9.0], [5.0]]])
        >>> mask = jnp.ones((2, 2), bool)
        >>> step = lloyd_step(z, mask, jnp.ones(2, bool), jnp.array([[0.0], [9.0]]))
        >>> print(step.counts.tolist())  # one row per client
        [[2.0, 0.0], [0.0, 2.0]]
    """

    centroids: Float[Array, "K D"]
    """The means of the clusters; a cluster without examples keeps its centroid."""
    counts: Float[Array, "M K"]
    """The number of examples of each client in each cluster, before the step; 0 for
    clients that do not participate."""
    inertia: Float[Array, ""]
    """Mean squared distance of an example to its nearest centroid, before the step."""


def lloyd_step(
    z: Entries,
    mask: Mask,
    present: Bool[Array, "M"],
    centroids: Float[Array, "K D"],
    *,
    read: Read = _as_is,
    cosine: bool = False,
    fuzzifier: Scalar | None = None,
    min_members: int = 1,
) -> Step:
    """Runs one step of Lloyd's algorithm on the examples of all clients.

    Each client uploads K (D + 1) numbers: the sum of its examples in each cluster and
    the number of these examples. If the points of all clients are large, see
    `clients.LARGE`, a client reads its points in chunks. Outside of `jax.jit`, every
    call compiles again.

    Args:
        z: the examples or their embedding, [M, N, D], or the argument of `read`.
        mask: False at padding.
        present: the participating clients; the others are ignored.
        centroids: the centroids before the step.
        read: computes the points of a client, see `Read`.
        cosine: scale the new centroids to unit length, for examples of unit length.
        fuzzifier: m > 1 runs a step of fuzzy c-means instead: sums, counts and squared
            distances are weighted by the memberships to the power m. None is k-means.
        min_members: clients withhold clusters with fewer examples, see `withhold`.

    Returns:
        The new centroids, and the counts and the inertia of the old ones; NaN if no
        client participates.

    Examples:
        >>> z = jnp.array([[[0.0], [1.0]], [[9.0], [5.0]]])
        >>> mask = jnp.ones((2, 2), bool)
        >>> step = lloyd_step(z, mask, jnp.ones(2, bool), jnp.array([[0.0], [9.0]]))
        >>> print(step.centroids[:, 0], step.inertia)  # (1^2 + 4^2) / 4
        [0.5 7. ] 4.25
    """
    is_large = clients.is_large(mask, centroids.shape[1])

    def local_sums(z, mask):
        return _local_sums(
            *(centroids, read(z), mask), fuzzifier=fuzzifier, is_large=is_large
        )

    def upload(z, mask):
        local = (
            clients.sum_chunks(local_sums, z, mask) if is_large else local_sums(z, mask)
        )
        sums, counts, squares, number = local
        local = (*withhold(sums, counts, min_members), squares, number)
        return local, local[1]

    # The server receives means over the clients. The number of clients cancels.
    local, counts = server.mean_of_each(upload, present.astype(float), z, mask)
    sums, totals, squares, number = local
    counts = server.gather(jnp.where(present[:, None], counts, 0))
    means = means_of(sums, totals, centroids, cosine=cosine)
    return Step(means, counts, squares / number)


def withhold(
    sums: Float[Array, "K D"], counts: Float[Array, "K"], min_members: int
) -> tuple[Float[Array, "K D"], Float[Array, "K"]]:
    """Removes the clusters of a client that have few examples from its upload.

    The mean of a cluster with one example is this example.

    Args:
        sums: the sum of the client's examples in each cluster.
        counts: the number of these examples, or their sum of memberships.
        min_members: smallest number of examples of an uploaded cluster.

    Returns:
        The sums and counts, 0 for clusters below `min_members`.

    Examples:
        >>> sums, counts = jnp.array([[6.0], [2.0]]), jnp.array([3.0, 1.0])
        >>> sums, counts = withhold(sums, counts, 2)
        >>> print(sums[:, 0], counts)
        [6. 0.] [3. 0.]
    """
    if min_members <= 1:
        return sums, counts
    kept = counts >= min_members
    return jnp.where(kept[:, None], sums, 0), jnp.where(kept, counts, 0)


def means_of(
    sums: Float[Array, "K D"],
    totals: Float[Array, "K"],
    before: Float[Array, "K D"],
    *,
    cosine: bool = False,
) -> Float[Array, "K D"]:
    """Computes the server's part of a Lloyd step: the means of the clusters.

    Args:
        sums: the sum of the examples in each cluster.
        totals: the number of examples in each cluster.
        before: the centroids before the step. Clusters without examples keep them.
        cosine: scale the means to unit length.

    Returns:
        The new centroids [K, D].

    Examples:
        >>> sums, before = jnp.array([[6.0], [0.0]]), jnp.array([[1.0], [5.0]])
        >>> print(means_of(sums, jnp.array([3.0, 0.0]), before)[:, 0])
        [2. 5.]
    """
    occupied = totals[:, None] > 0
    means = sums / jnp.where(occupied, totals[:, None], 1)
    means = normalize(means) if cosine else means
    return jnp.where(occupied, means, before)


def _local_sums(
    centroids: Float[Array, "K D"],
    z: Float[Array, "N D"],
    mask: Bool[Array, "N"],
    *,
    fuzzifier: Scalar | None = None,
    is_large: bool = False,
) -> tuple[Float[Array, "K D"], Float[Array, "K"], Float[Array, ""], Float[Array, ""]]:
    """Computes a client's upload for a Lloyd step.

    The upload is a tuple: the sum of the examples in each cluster, their number in each
    cluster, the sum of the squared distances to the nearest centroids, and the number
    of examples. With `is_large` the distances are computed once, which is faster but
    rounds differently.
    """
    # Without the barrier, XLA would read the examples again for every use.
    z = jax.lax.optimization_barrier(jnp.where(mask[:, None], z, 0))
    number = mask.sum().astype(float)
    if fuzzifier is None and is_large:
        offset = centroids.mean(axis=0, keepdims=True)
        distances = squared_distances(z - offset, centroids - offset)
        nearest = jnp.argmin(distances, axis=0)
        sums, counts = _scattered_sums(z, nearest, mask, len(centroids))
        return sums, counts, jnp.sum(distances.min(axis=0), where=mask), number
    if fuzzifier is None:
        nearest = assign_nearest(z, centroids)
        sums, counts = cluster_sums(z, nearest, mask, len(centroids))
        squares = jnp.sum((z - centroids[nearest]) ** 2, axis=1)
        return sums, counts, jnp.sum(squares, where=mask), number
    squares = squared_distances(z, centroids)
    parts = jnp.where(mask[None], memberships(squares, fuzzifier) ** fuzzifier, 0)
    return matmul(parts, z), parts.sum(axis=1), jnp.sum(parts * squares), number


def _scattered_sums(
    z: Float[Array, "N D"],
    assignments: Int[Array, "N"],
    mask: Bool[Array, "N"],
    num_clusters: int,
) -> tuple[Float[Array, "K D"], Float[Array, "K"]]:
    """Computes `cluster_sums` by additions alone, on a CPU in a tenth of the time."""
    if platform() != "cpu":
        return cluster_sums(z, assignments, mask, num_clusters)
    add_up = partial(
        jax.ops.segment_sum, segment_ids=assignments, num_segments=num_clusters
    )
    return add_up(z), add_up(mask.astype(float))


def cluster_means(
    z: Embedding,
    assignments: Int[Array, "M N"] | Ragged,
    mask: Mask,
    present: Bool[Array, "M"],
    before: Float[Array, "K D"],
    *,
    cosine: bool = False,
    min_members: int = 1,
) -> Float[Array, "K D"]:
    """Computes the mean of each cluster from the clients' sums and counts.

    Args:
        z: the examples or their embedding, [M, N, D].
        assignments: the cluster of each example, from 0 to K - 1.
        mask: False at padding.
        present: the participating clients; the others are ignored.
        before: the centroids that clusters without examples keep.
        cosine: scale the means to unit length.
        min_members: clients withhold clusters with fewer examples, see `withhold`.

    Returns:
        The means [K, D].

    Examples:
        >>> z = jnp.array([[[0.0], [1.0]], [[9.0], [5.0]]])
        >>> assignments, mask = jnp.array([[0, 1], [1, 0]]), jnp.ones((2, 2), bool)
        >>> present, before = jnp.ones(2, bool), jnp.zeros((2, 1))
        >>> print(cluster_means(z, assignments, mask, present, before)[:, 0])
        [2.5 5. ]
    """

    def local_sums(z, assignments, mask):
        local = cluster_sums(z, assignments, mask, len(before))
        return withhold(*local, min_members)

    local = clients.for_each(local_sums, z, assignments, mask)
    sums, totals = server.weighted_mean(local, present.astype(float))
    return means_of(sums, totals, before, cosine=cosine)


def cluster_sums(
    z: Float[Array, "N D"],
    assignments: Int[Array, "N"],
    mask: Bool[Array, "N"],
    num_clusters: int,
) -> tuple[Float[Array, "K D"], Float[Array, "K"]]:
    """Computes the sum and the number of a client's examples in each cluster.

    Args:
        z: the client's examples or their embedding.
        assignments: the cluster of each example, from 0 to K - 1.
        mask: False at padding.
        num_clusters: K.

    Returns:
        The sums [K, D] and the counts [K].

    Examples:
        >>> z, mask = jnp.array([[1.0], [2.0], [4.0]]), jnp.ones(3, bool)
        >>> sums, counts = cluster_sums(z, jnp.array([0, 1, 1]), mask, 2)
        >>> print(sums[:, 0], counts)
        [1. 6.] [1. 2.]
    """
    members = (assignments[None] == jnp.arange(num_clusters)[:, None]) & mask[None]
    z = jnp.where(mask[:, None], z, 0)
    return matmul(members.astype(float), z), members.sum(axis=1).astype(float)


def uploaded_means(
    z: Float[Array, "N D"],
    mask: Bool[Array, "N"],
    present: Bool[Array, ""],
    assignments: Int[Array, "N"],
    centroids: Float[Array, "K D"],
    *,
    fuzzifier: Scalar | None = None,
    min_members: int = 1,
) -> tuple[Float[Array, "K D"], Int[Array, "K"]]:
    """Computes the means that the server can compute from a client's sums and counts.

    Args:
        z: the client's examples or their embedding.
        mask: False at padding.
        present: whether the client has uploaded its sums and counts.
        assignments: the cluster of each example, from 0 to K - 1.
        centroids: the centroids, for the memberships of fuzzy c-means.
        fuzzifier: m > 1 of fuzzy c-means; None is k-means.
        min_members: the client withheld clusters with fewer examples.

    Returns:
        The means [K, D], with NaN for clusters without examples, and the number of
        examples of each cluster [K]. They are the fields of `fcjax.types.Uploads` for
        one client.

    Examples:
        >>> z, mask = jnp.array([[1.0], [3.0], [9.0]]), jnp.array([True, True, False])
        >>> assignments, centroids = jnp.array([0, 0, 1]), jnp.zeros((2, 1))
        >>> present = jnp.array(True)
        >>> points, members = uploaded_means(z, mask, present, assignments, centroids)
        >>> print(points[:, 0], members)
        [ 2. nan] [2 0]
    """
    sums, counts = cluster_sums(z, assignments, mask, len(centroids))
    weights = counts
    if fuzzifier is not None:
        sums, weights, *_ = _local_sums(centroids, z, mask, fuzzifier=fuzzifier)
    sums, weights = withhold(sums, weights, min_members)
    uploaded = present & (weights > 0)
    means = sums / jnp.where(weights > 0, weights, 1)[:, None]
    return jnp.where(uploaded[:, None], means, jnp.nan), counts.astype(int)


def seed_centroids(
    key: PRNGKey,
    z: Entries,
    mask: Mask,
    present: Bool[Array, "M"],
    num_clusters: int,
    *,
    read: Read = _as_is,
    num_init: int = 10,
    cosine: bool = False,
    min_members: int = 1,
) -> Float[Array, "K D"]:
    """Finds initial centroids for federated k-means.

    Each client runs k-means on its own examples and uploads K centroids and the number
    of examples in each cluster. The server runs k-means on the uploaded centroids,
    weighted by these numbers, from several seedings. The clients measure the inertia of
    each result, and the server takes the result of the smallest inertia.

    If the points of all clients are large, see `clients.LARGE`, each client uses a
    random sample of its examples for its own k-means: n = `SEEDING` / M examples. It
    uploads min(K, n) centroids. With n <= K they are examples of the client.

    Args:
        key: the key of all random draws.
        z: the examples or their embedding, [M, N, D], or the argument of `read`.
        mask: False at padding.
        present: the participating clients; the others are ignored.
        num_clusters: K.
        read: computes the points of a client, see `Read`.
        num_init: number of seedings of each client's k-means, and of the server's.
        cosine: scale the centroids to unit length, for examples of unit length.
        min_members: clients withhold clusters with fewer examples, see `withhold`.

    Returns:
        The centroids [K, D].

    Examples:
        >>> z = jnp.array([[[0.0], [1.0]], [[9.0], [5.0]]])
        >>> mask, present = jnp.ones((2, 2), bool), jnp.ones(2, bool)
        >>> seeds = seed_centroids(jax.random.key(0), z, mask, present, 2)
        >>> print(jnp.sort(seeds[:, 0]))
        [0.5 7. ]
    """
    clients_key, server_key = jax.random.split(key)
    entry = jax.tree.leaves(z)[0][0, :1]
    is_large = clients.is_large(mask, jax.eval_shape(read, entry).shape[1])
    most = max(1, SEEDING // clients.total_clients(len(present)))
    num_local = min(num_clusters, most) if is_large else num_clusters

    def summarize(key, z, mask):
        if is_large and len(mask) > most:
            draws = jax.random.uniform(jax.random.fold_in(key, 0), mask.shape)
            sample = jnp.argsort(jnp.where(mask, draws, jnp.inf))[:most]
            z, mask = z[sample], mask[sample]
        z = read(z)
        # k-means needs at least K rows, but a client may have fewer examples.
        missing = max(0, num_local - len(z))
        z, mask = jnp.pad(z, ((0, missing), (0, 0))), jnp.pad(mask, (0, missing))
        # A client with few examples makes clusters that it need not withhold.
        most_used = mask.sum() // min_members
        used = jnp.clip(most_used, 1, num_local) if min_members > 1 else None
        result = kmeans(
            *(key, z, num_local), num_used=used, mask=mask, num_init=num_init
        )
        members = result.assignments[None] == jnp.arange(num_local)[:, None]
        counts = jnp.sum(members & mask[None], axis=1).astype(float)
        return withhold(result.centroids, counts, min_members)

    keys = clients.keys(clients_key, len(present))
    local, counts = clients.for_each(summarize, keys, z, mask)
    local, counts = server.gather((local, jnp.where(present[:, None], counts, 0)))
    points, weights = local.reshape(-1, local.shape[-1]), counts.reshape(-1)

    def cluster(key):
        result = kmeans(key, points, num_clusters, weights=weights, num_init=1)
        return normalize(result.centroids) if cosine else result.centroids

    candidates = jax.lax.map(cluster, jax.random.split(server_key, num_init))

    def squares_of(z, mask):
        points = read(z)

        def squares(centroids):
            return _local_sums(centroids, points, mask, is_large=is_large)[2]

        return jax.lax.map(squares, candidates)

    def local_squares(z, mask):
        if is_large:
            return clients.sum_chunks(squares_of, z, mask)
        return squares_of(z, mask)

    squares = clients.for_each(local_squares, z, mask)
    return candidates[jnp.argmin(server.weighted_mean(squares, present.astype(float)))]


@partial(jax.jit, static_argnames=("num_clusters", "num_init", "num_iters", "cosine"))
def federated_kmeans(
    key: PRNGKey,
    z: Embedding,
    mask: Mask,
    num_clusters: int,
    *,
    present: Bool[Array, "M"] | None = None,
    num_init: int = 10,
    num_iters: int = 100,
    cosine: bool = False,
) -> Step:
    """Runs federated k-means until the centroids converge.

    It calls `seed_centroids` once and `lloyd_step` repeatedly. All clients must be on
    one device; the stage `KMeans` works on several devices. It compiles once for each
    shape of `z`, and has no gradient.

    Args:
        key: the key of all random draws.
        z: the examples or their embedding, [M, N, D].
        mask: False at padding.
        num_clusters: K.
        present: the participating clients; None means all clients.
        num_init: number of seedings, see `seed_centroids`.
        num_iters: maximum number of Lloyd steps, at least 1.
        cosine: scale the centroids to unit length, for examples of unit length.

    Returns:
        The centroids after the last step, and the counts and the inertia before it. If
        the centroids have converged, both are those of the returned centroids. The
        inertia is a mean per example; that of `fcjax.cluster.kmeans` is a sum.

    Raises:
        ValueError: `num_iters` is below 1.

    Examples:
        >>> z = jnp.array([[[0.0], [1.0]], [[9.0], [5.0]]])
        >>> result = federated_kmeans(jax.random.key(0), z, jnp.ones((2, 2), bool), 2)
        >>> print(jnp.sort(result.centroids[:, 0]), result.inertia)
        [0.5 7. ] 2.125
    """
    if num_iters < 1:
        raise ValueError(f"num_iters must be at least 1, got {num_iters}")
    present = jnp.ones(len(mask), bool) if present is None else present
    take_step = partial(lloyd_step, z, mask, present, cosine=cosine)
    seeds = seed_centroids(
        *(key, z, mask, present, num_clusters), num_init=num_init, cosine=cosine
    )

    def unfinished(carry):
        i, step, before = carry
        return ~stand_still(before, step.centroids) & (i < num_iters)

    def iterate(carry):
        i, step, _ = carry
        return i + 1, take_step(step.centroids), step.centroids

    return jax.lax.while_loop(unfinished, iterate, (1, take_step(seeds), seeds))[1]


def stand_still(
    before: Float[Array, "K D"], after: Float[Array, "K D"]
) -> Bool[Array, ""]:
    """Tells whether a step moved the centroids by rounding errors only.

    Args:
        before: the centroids before the step.
        after: the centroids after the step.

    Returns:
        True if the Frobenius norm of the change is at most `STILL` times the norm of
        `after`.
    """
    # Fused arithmetic may change the last bits of a fixed point.
    return jnp.linalg.norm(after - before) <= STILL * jnp.linalg.norm(after)


# --- Whitening


class Whitening(NamedTuple):
    """A linear map that makes the variances of an embedding's directions more equal.

    Examples:
        >>> whitening = Whitening(jnp.zeros(2), jnp.eye(2))
        >>> print(whitening.apply(jnp.array([[3.0, 4.0]])))
        [[0.6 0.8]]
    """

    mean: Float[Array, "D"]
    directions: Float[Array, "D D"]
    """One scaled principal direction per column, sorted by decreasing variance."""

    def apply(self, z: Float[Array, "N D"]) -> Float[Array, "N D"]:
        """Returns whitened examples [N, D] of unit length.

        Args:
            z: the embedding of the examples.

        Returns:
            The whitened embedding [N, D], of L2 norm 1.
        """
        return normalize(matmul(z - self.mean[None], self.directions))

    def undo(self, whitened: Float[Array, "N D"]) -> Float[Array, "N D"]:
        """Inverts the linear map; the scaling to unit length cannot be inverted.

        Args:
            whitened: points of the whitened space.

        Returns:
            The points [N, D] in the space of the embedding.
        """
        squares = jnp.sum(self.directions**2, axis=0)
        whitened = whitened / jnp.where(squares > 0, squares, 1)[None]
        return matmul(whitened, self.directions.T) + self.mean[None]


def find_whitening(
    z: Embedding, mask: Mask, present: Bool[Array, "M"], *, exponent: Scalar = 0.5
) -> Whitening:
    """Computes a whitening from the clients' first and second moments.

    Each client uploads the number of its examples, their sum and their second moments
    once: D (D + 1) / 2 + D + 1 numbers. Every principal direction is divided by its
    variance to the power `exponent / 2`. An exponent of 1 gives all directions the same
    variance, also directions of noise, so that one has to choose a rank. An exponent of
    0.5 strengthens weak directions and keeps noise small without a choice of a rank.

    Args:
        z: the embedding of the examples, [M, N, D].
        mask: False at padding.
        present: the participating clients; the others are ignored.
        exponent: from 0 (only a rotation) to 1 (full whitening).

    Returns:
        The whitening. Directions without variance have scale 0. They exist if there are
        fewer examples than dimensions.

    Examples:
        >>> z = jnp.array([[[4.0, 0.0], [-4.0, 0.0]], [[0.0, 1.0], [0.0, -1.0]]])
        >>> mask, present = jnp.ones((2, 2), bool), jnp.ones(2, bool)
        >>> whitening = find_whitening(z, mask, present, exponent=1.0)
        >>> print(jnp.abs(whitening.directions).round(3))  # variances 8 and 0.5
        [[0.354 0.   ]
         [0.    1.414]]
    """

    def moments(z, mask):
        z = jnp.where(mask[:, None], z, 0)
        return mask.sum().astype(float), z.sum(axis=0), matmul(z.T, z)

    local = clients.for_each(moments, z, mask)
    count, total, second = server.weighted_mean(local, present.astype(float))
    mean = total / count
    covariance = second / count - mean[:, None] * mean[None]
    variances, vectors = jnp.linalg.eigh(covariance)  # in increasing order
    variances, vectors = variances[::-1], vectors[:, ::-1]
    # Rounding in float32 makes variances of 0 slightly positive or negative.
    threshold = len(variances) * jnp.finfo(jnp.float32).eps * variances[0]
    varies = variances > threshold
    scales = jnp.where(varies, variances, 1) ** (-exponent / 2)
    return Whitening(mean, vectors * jnp.where(varies, scales, 0)[None])


# --- Heterogeneity


def heterogeneity(counts: Float[Array | np.ndarray, "M K"]) -> Float[Array, ""]:
    """Measures the heterogeneity of the clients from 0 to 1, without labels.

    It is 0 if the examples of each cluster are distributed over the clients at random.
    It is 1 if the clients differ as much as possible: with at most K clients, no two of
    them have a cluster in common.

    It is Cramer's V of clients and clusters, minus its expected value for a random
    partition. Suppose that the clusters are the true classes and M = K. If each client
    has a share p of examples of one class and random other examples, the value is p.
    For Dirichlet(alpha) shares it is about 1 / sqrt(1 + K alpha). Clusters that mix
    classes lower the value.

    Args:
        counts: the number of examples of each client in each cluster. Clients and
            clusters without examples are ignored.

    Returns:
        A number in [0, 1]; 0 with fewer than two clients or clusters.

    Examples:
        >>> print(heterogeneity(jnp.array([[50.0, 0.0], [0.0, 50.0]])))
        1.0
        >>> print(heterogeneity(jnp.array([[25.0, 25.0], [30.0, 30.0]])))
        0.0
    """
    rows, columns, total = counts.sum(axis=1), counts.sum(axis=0), counts.sum()
    expected = rows[:, None] * columns[None] / jnp.maximum(total, 1)
    squares = (counts - expected) ** 2 / jnp.where(expected > 0, expected, 1)
    row_freedom, column_freedom = jnp.sum(rows > 0) - 1, jnp.sum(columns > 0) - 1
    by_chance = row_freedom * column_freedom
    maximum = total * jnp.minimum(row_freedom, column_freedom)
    # The value is not defined if there are fewer examples than degrees of freedom.
    is_defined = maximum > by_chance
    share = (squares.sum() - by_chance) / jnp.where(is_defined, maximum - by_chance, 1)
    return jnp.where(is_defined, jnp.sqrt(jnp.clip(share, 0, 1)), 0)


# --- A stage of a method


class Clusters(NamedTuple):
    """The server's clusters: centroids, convergence and heterogeneity.

    Examples:
        >>> no_clusters(2, 3).centroids.shape
        (2, 3)
    """

    centroids: Float[Array, "K D"]
    """The centroids, in the whitened space if there is a whitening."""
    moved: Float[Array, ""]
    """Frobenius norm of the last change of the centroids; huge before the first one."""
    heterogeneity: Float[Array, ""]
    """`heterogeneity` of the clients in the last step; 0 before the first step."""
    whitening: Whitening | tuple[()] = ()
    """The whitening of the embedding; () if there is none."""
    spread: Float[Array, ""] | tuple[()] = ()
    """Root mean square distance of the examples from their mean, for private k-means,
    see `fcjax.privacy.kmeans`; () for k-means without differential privacy."""

    def space(self, z: Float[Array, "N D"]) -> Float[Array, "N D"]:
        """Maps an embedding to the space of the centroids.

        Args:
            z: the embedding of the examples.

        Returns:
            The points [N, D], whitened if there is a whitening.
        """
        return self.whitening.apply(z) if self.whitening else z

    def nearest(self, z: Float[Array, "N D"]) -> Int[Array, "N"]:
        """Returns the cluster of every example: the index of its nearest centroid.

        Args:
            z: the embedding of the examples, without whitening.

        Returns:
            The clusters [N], from 0 to K - 1.
        """
        return assign_nearest(self.space(z), self.centroids)


def identity(size: int) -> Whitening:
    """Returns a whitening that only scales examples to unit length.

    Args:
        size: D, the number of features of the embedding.

    Returns:
        The whitening, with the mean 0 and the identity matrix.
    """
    return Whitening(jnp.zeros(size), jnp.eye(size))


def no_clusters(num_clusters: int, num_features: int) -> Clusters:
    """Returns the clusters before the first k-means: all centroids are 0.

    Args:
        num_clusters: K, the number of clusters.
        num_features: D, the number of features of the embedding.

    Returns:
        The clusters, with the heterogeneity 0 and without a whitening.
    """
    centroids = jnp.zeros((num_clusters, num_features))
    return Clusters(centroids, jnp.float32(jnp.finfo(jnp.float32).max), jnp.float32(0))


Points = Callable[[State, Federation], tuple[Entries, Mask]]
"""(state, federation) -> the embedding of every example, or the argument of
`KMeans.read`, and a mask that is True at the
examples to cluster."""


class KMeans(NamedTuple):
    """Federated k-means as a stage of a method whose server has `clusters`.

    Examples:
        >>> stage = KMeans(points=lambda state, federation: (), num_clusters=3).stage()
        >>> stage.name, stage.num_rounds
        ('k-means', 100)
    """

    points: Points
    """Computes the embedding to cluster, or the argument of `read`."""
    num_clusters: int
    """K."""
    num_init: int = 10
    """Number of seedings, see `seed_centroids`."""
    whitening: float = 0.0
    """Exponent of the whitening, see `find_whitening`; 0 disables whitening."""
    cosine: bool = False
    """Scale the centroids to unit length, for embeddings of unit length."""
    fuzzifier: Scalar | None = None
    """m > 1 runs fuzzy c-means, see `lloyd_step`; None runs k-means."""
    tolerance: Scalar = 0.0
    """The stage ends once a step moves the centroids by at most this Frobenius norm."""
    model: Callable[[State], dict[str, PyTree]] = lambda _: {}
    """(state) -> the networks that clients download for their embedding, by name."""
    keep: bool = True
    """Whether clients store their embedding as their state, which is also part of the
    checkpoints. Otherwise, and always for size classes, clients compute the embedding
    again in every round, which takes less memory."""
    read: Callable[[Federation], Read] = lambda _: _as_is
    """(federation) -> the function that computes the points of a client. If `points`
    gives indices and this function reads the examples, the points of all clients are
    never in memory together. It requires `keep=False` and no whitening."""
    min_members: int = 1
    """Clients withhold clusters with fewer examples, see `withhold`."""

    def stage(self, name: str = "k-means", num_rounds: int = 100) -> Stage:
        """Returns the stage; each round is one Lloyd step.

        Args:
            name: the name of the stage.
            num_rounds: maximum number of rounds.

        Returns:
            The stage. Its metrics are the `loss` (inertia per example before the step),
            `participants`, `moved` (Frobenius norm of the change of the centroids),
            `heterogeneity` and the traffic.
        """
        round = partial(self.round, num_rounds)
        return Stage(name, self.begin, round, num_rounds, self.done)

    def begin(self, key: PRNGKey, state: State, federation: Federation) -> State:
        """Computes the whitening and the initial centroids.

        Args:
            key: the key of the seedings.
            state: the last state of the previous stage.
            federation: the federation in the current round.

        Returns:
            The first state of the stage, with new `clusters`. If clients store their
            embedding, their state is the embedding and the mask.
        """
        z, mask = self.points(state, federation)
        present = server.participants(federation)
        whitening = ()
        if self.whitening:
            whitening = find_whitening(z, mask, present, exponent=self.whitening)
            z = clients.for_each(partial(Whitening.apply, whitening), z)
        centroids = seed_centroids(
            *(key, z, mask, present, self.num_clusters),
            read=self.read(federation),
            num_init=self.num_init,
            cosine=self.cosine,
            min_members=self.min_members,
        )
        clusters = no_clusters(*centroids.shape)
        clusters = clusters._replace(centroids=centroids, whitening=whitening)
        after = state._replace(server=state.server._replace(clusters=clusters))
        return after._replace(clients=(z, mask)) if self.keeps(federation) else after

    def keeps(self, federation: Federation) -> bool:
        """Tells whether clients store their embedding as their state.

        Args:
            federation: the federation.

        Returns:
            True if `keep` is set and the federation has no size classes.
        """
        # The engine cannot distribute client states that have size classes.
        return self.keep and not is_ragged(federation.mask)

    def round(
        self, num_rounds: int, _: PRNGKey, state: State, federation: Federation
    ) -> tuple[State, dict[str, Array]]:
        """Runs one Lloyd step.

        The traffic of the first round includes the traffic of `begin`. A client
        downloads networks and whitening in the first round in which it participates.

        Args:
            num_rounds: maximum number of rounds of the stage.
            state: the state before the round.
            federation: the federation in the current round.

        Returns:
            The state after the round, and the metrics of the round, see `stage`.
        """
        before: Clusters = state.server.clusters
        if self.keeps(federation):
            z, mask = state.clients
        else:
            z, mask = self.points(state, federation)
            if before.whitening:
                z = clients.for_each(before.space, z)
        present = server.participants(federation)
        step = lloyd_step(
            *(z, mask, present, before.centroids),
            read=self.read(federation),
            cosine=self.cosine,
            fuzzifier=self.fuzzifier,
            min_members=self.min_members,
        )
        after = before._replace(
            centroids=step.centroids,
            moved=jnp.linalg.norm(step.centroids - before.centroids),
            heterogeneity=heterogeneity(step.counts),
        )
        is_new = present & ~server.participated_before(federation, num_rounds)
        participating, is_new = server.gather((present, is_new))
        seeding = self.traffic_of_seeds(participating, before)
        is_first = (federation.now.stage_round == 0).astype(jnp.int32)
        once = self.model(state)
        once |= {"whitening": before.whitening} if before.whitening else {}
        metrics = {
            "loss": step.inertia,
            "participants": participating.sum(),
            "moved": after.moved,
            "heterogeneity": after.heterogeneity,
            **server.traffic(
                participating,
                up={"sums": step.centroids, "counts": step.counts[0]},
                down={"centroids": step.centroids},
            ),
            **server.traffic(is_new, up={}, down=once),
            **{name: x.at[0].multiply(is_first) for name, x in seeding.items()},
        }
        return state._replace(server=state.server._replace(clusters=after)), metrics

    def traffic_of_seeds(
        self, participating: Bool[Array, "M"], clusters: Clusters
    ) -> dict[str, Int[Array, "2"]]:
        """Counts the traffic of `begin`: seeding and, if there is one, whitening.

        Args:
            participating: the participating clients.
            clusters: the clusters before the first Lloyd step.

        Returns:
            The metrics `up_seeds` and `down_seeds`, with a whitening also `up_moments`.
            Each is a pair, see `server.traffic`.
        """
        centroids, counts = clusters.centroids, jnp.zeros(self.num_clusters)
        up: dict[str, PyTree] = {"seeds": (centroids, counts, jnp.zeros(self.num_init))}
        down: dict[str, PyTree] = {"seeds": [centroids] * self.num_init}
        if clusters.whitening:
            size = centroids.shape[-1]
            number = size * (size + 1) // 2 + size + 1
            up["moments"] = jax.ShapeDtypeStruct((number,), jnp.float32)
        return server.traffic(participating, up=up, down=down)

    def done(self, state: State) -> Bool[Array, ""]:
        """Tells whether the centroids have converged.

        Args:
            state: the state after a round.

        Returns:
            True if the last step moved the centroids by at most `tolerance`, or by
            rounding errors only.
        """
        clusters: Clusters = state.server.clusters
        # Fused arithmetic may change the last bits of a fixed point.
        rounding = STILL * jnp.linalg.norm(clusters.centroids)
        return clusters.moved <= jnp.maximum(self.tolerance, rounding)
