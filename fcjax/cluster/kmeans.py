"""k-means: distances, seeding, Lloyd's algorithm, running means, silhouettes.

All functions accept a mask and work under `jax.jit` and `jax.vmap`. Most of them also
accept weights.

References:
    Arthur and Vassilvitskii, k-means++: the advantages of careful seeding, 2007. The
    seeding here is the greedy variant of section 5 with 2 + log K candidates, as in
    scikit-learn.
    Gonzalez, Clustering to minimize the maximum intercluster distance, 1985
    (farthest-first seeding).
    Lloyd, Least squares quantization in PCM, 1982.
    Yang et al., `Towards K-means-friendly Spaces: Simultaneous Deep Learning and
    Clustering <https://arxiv.org/abs/1610.04794>`_ (DCN), ICML 2017, for running means;
    code boyangumn/DCN-New.
    Rousseeuw, Silhouettes: a graphical aid to the interpretation and validation of
    cluster analysis, 1987.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fcjax.shapes import checked
from fcjax.types import PRNGKey

# --- Distances


def row_weights(
    x: Float[Array, "N D"],
    mask: Bool[Array, "N"] | None,
    weights: Float[Array, "N"] | None,
) -> Float[Array, "N"]:
    """Returns the weight of each example: 1 by default, 0 where the mask is False.

    Args:
        x: the examples.
        mask: [N], False at examples to ignore; None ignores no example.
        weights: the weight of each example, at least 0; None is 1 for all examples.

    Returns:
        The weights [N], float32.
    """
    if weights is None:
        weights = jnp.ones(x.shape[0])
    weights = weights.astype(jnp.float32)
    return weights if mask is None else jnp.where(mask, weights, 0)


def origin(x: Float[Array, "N D"], weights: Float[Array, "N"]) -> Float[Array, "1 D"]:
    """Returns a point near the weighted mean, which is subtracted from all examples.

    Args:
        x: the examples.
        weights: the weight of each example; examples of weight 0 are ignored.

    Returns:
        The point [1, D].
    """
    # Squared distances from inner products lose digits far from the origin.
    total = jnp.maximum(weights.sum(), jnp.finfo(jnp.float32).tiny)
    mean = jnp.matmul(
        weights[None] / total, clear(x, weights), precision=jax.lax.Precision.HIGHEST
    )
    # Any point near the mean will do. Fewer bits make the point independent of the
    # rounding of the sum, so that padding does not change the draws.
    return jax.lax.reduce_precision(mean, exponent_bits=8, mantissa_bits=12)


def clear(x: Float[Array, "N D"], weights: Float[Array, "N"]) -> Float[Array, "N D"]:
    """Returns the examples, with zeros in place of examples of weight 0.

    Args:
        x: the examples. They may be NaN where the weight is 0.
        weights: the weight of each example.

    Returns:
        The examples [N, D].
    """
    # A product with weight 0 would not remove infinities, because 0 * inf is NaN.
    return jnp.where(weights[:, None] > 0, x, 0)


def relative_distances(
    x: Float[Array, "N D"], centroids: Float[Array, "K D"]
) -> Float[Array, "K N"]:
    """Returns |x - c|^2 - |x|^2, which has the same nearest centroid as |x - c|^2.

    Args:
        x: the examples.
        centroids: the centroids c.

    Returns:
        The differences [K, N], one row per centroid. They may be negative.
    """
    # Clusters are the first axis, because matrix products and reductions over K are
    # then fast on CPUs.
    product = jnp.matmul(centroids, x.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.sum(centroids**2, axis=-1)[:, None] - 2 * product


def squared_distances(
    x: Float[Array, "N D"], centroids: Float[Array, "K D"]
) -> Float[Array, "K N"]:
    """Returns the squared Euclidean distances |x - c|^2, at least 0.

    Args:
        x: the examples.
        centroids: the centroids c.

    Returns:
        The squared distances [K, N], one row per centroid.
    """
    norms = jnp.sum(x**2, axis=-1)
    return jnp.maximum(relative_distances(x, centroids) + norms[None], 0)


# --- Seeding

UNUSED = 1e15
"""The value of all features of an unused centroid. Such a centroid is farther from
every example than any used centroid. Sums of squares of this value stay finite."""


@checked
def used_clusters(centroids: Float[Array, "K D"]) -> Bool[Array, "K"]:
    """Returns which centroids are used, if `kmeans` was called with `num_used`.

    Args:
        centroids: the centroids [K, D] that `kmeans` returned.

    Returns:
        bool [K], False for unused centroids.

    Examples:
        >>> from fcjax.cluster import kmeans
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> result = kmeans(jax.random.key(0), x, 3, num_used=2)
        >>> print(used_clusters(result.centroids))
        [ True  True False]
    """
    return centroids[:, 0] < UNUSED / 2


def plus_plus(
    key: PRNGKey,
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    num_clusters: int,
    num_used: Int[Array, ""] | int | None = None,
) -> Int[Array, "K"]:
    """Draws far-apart examples as seeds by greedy k-means++.

    Each step draws a few candidates and takes the candidate that reduces the sum of
    squared distances most.

    Args:
        key: the random key of the draws.
        x: the examples [N, D].
        weights: the weight of each example [N]; examples of weight 0 are never drawn.
        num_clusters: the number K of seeds.
        num_used: the number of seeds that are used, in 1..K; None uses all of them. The
            first `num_used` seeds equal the seeds for `num_clusters=num_used`.

    Returns:
        The indices [K] of the seeds. Some indices repeat if fewer than K examples are
        distinct.
    """
    num_trials = _num_trials(num_clusters)
    uniform = jax.random.uniform(key, (num_clusters, num_trials))
    if num_used is not None:
        # Fewer clusters have fewer trials. The same draws are read as shorter rows, and
        # the first trial of a row replaces the superfluous ones.
        trials = jnp.array([_num_trials(k + 1) for k in range(num_clusters)])
        width = trials[jnp.asarray(num_used) - 1]
        trial = jnp.arange(num_trials)
        column = jnp.where(trial < width, trial, 0)[None]
        row = jnp.arange(num_clusters)[:, None]
        uniform = uniform.reshape(-1)[row * width + column]

    rounding = _rounding(x, weights)

    def add(closest, uniform):
        candidates = _draw(uniform, weights * closest, weights)
        closer = jnp.minimum(closest[None], squared_distances(x, x[candidates]))
        best = _first_least(jnp.sum(weights[None] * closer, axis=1), rounding)
        return closer[best], candidates[best]

    first = _draw(uniform[0, :1], weights, weights)
    closest = squared_distances(x, x[first])[0]
    _, added = jax.lax.scan(add, closest, uniform[1:])
    return jnp.concatenate([first, added])


def _num_trials(num_clusters: int) -> int:
    """Returns the number of candidates per seed."""
    return 2 + int(math.log(num_clusters))


def check_num_clusters(num_clusters: int, num_rows: int) -> None:
    # JAX adds lines to errors that are raised during tracing, so check before it.
    """Raises ValueError unless the number of clusters is in 1..num_rows.

    Args:
        num_clusters: the number of clusters.
        num_rows: the number of examples.

    Raises:
        ValueError: num_clusters is below 1 or above num_rows.
    """
    if not 1 <= num_clusters <= num_rows:
        raise ValueError(
            f"num_clusters must be between 1 and {num_rows}, the number of examples, "
            f"got {num_clusters}"
        )


def best_start(
    descend: Callable[[Float[Array, "K D"]], tuple[Float[Array, "K D"], Array]],
    key: PRNGKey,
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    num_clusters: int,
    num_init: int,
    num_used: Int[Array, ""] | int | None = None,
) -> Float[Array, "K D"]:
    """Returns the final centroids of the best of several seedings.

    Args:
        descend: maps initial centroids to the final centroids and their objective.
        key: the random key of the seedings.
        x: the examples [N, D].
        weights: the weight of each example [N].
        num_clusters: the number K of clusters.
        num_init: the number of seedings.
        num_used: the number of clusters that start at an example; the other clusters
            start at `UNUSED`. None uses all clusters.

    Returns:
        The final centroids [K, D] with the smallest objective; the first seeding wins a
        tie.
    """

    def start(key):
        seeds = x[plus_plus(key, x, weights, num_clusters, num_used)]
        if num_used is not None:
            used = jnp.arange(num_clusters) < num_used
            seeds = jnp.where(used[:, None], seeds, UNUSED)
        return descend(seeds)

    centroids, objective = jax.vmap(start)(jax.random.split(key, num_init))
    # Different seedings often reach the same optimum with clusters in another order.
    return centroids[_first_least(objective, _rounding(x, weights))]


def _rounding(x: Float[Array, "N D"], weights: Float[Array, "N"]) -> Float[Array, ""]:
    """Returns a bound of the rounding error of a sum of squared distances."""
    return 1e-6 * jnp.sum(weights * jnp.sum(x**2, axis=-1))


def _first_least(objective: Float[Array, "S"], rounding: Float[Array, ""]) -> Array:
    """Returns the index of the first objective that equals the minimum up to rounding.

    Rounding depends on padding and batching, so that exact comparisons would too.
    """
    return jnp.argmax(objective <= objective.min() * (1 + 1e-5) + rounding)


def farthest_first(
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    chosen: Bool[Array, "N"],
    num_clusters: int,
) -> Int[Array, "K"]:
    """Adds the example farthest from all chosen examples, until there are K.

    Args:
        x: the examples [N, D].
        weights: the weight of each example [N]; examples of weight 0 are never added.
        chosen: bool [N], True for the examples to start with: at least one, at most K.
        num_clusters: the number K of examples to choose.

    Returns:
        The indices [K] of the chosen examples: first the initial ones in ascending
        order, then the added ones in the order of their choice.
    """
    initial = jnp.flatnonzero(chosen, size=num_clusters, fill_value=0)

    def add(rank, carry):
        rows, closest = carry
        farthest = jnp.argmax(jnp.where(weights > 0, closest, -1))
        row = jnp.where(rank < chosen.sum(), rows[rank], farthest)
        closer = squared_distances(x, x[row][None])[0]
        return rows.at[rank].set(row), jnp.minimum(closest, closer)

    carry = (initial, jnp.full(x.shape[0], jnp.inf))
    return jax.lax.fori_loop(0, num_clusters, add, carry)[0]


def _draw(
    uniform: Float[Array, "T"], mass: Float[Array, "N"], weights: Float[Array, "N"]
) -> Int[Array, "T"]:
    """Draws examples in proportion to `mass`, or to `weights` if all mass is 0."""
    mass = jnp.where(jnp.any(mass > 0), mass, weights)
    row = jnp.arange(mass.shape[0])
    last = jnp.max(jnp.where(mass > 0, row, 0))
    cumulative = jnp.cumsum(mass)
    # Rounding may increase the cumulative sum at an example without mass, and may end
    # the sum below its target.
    beyond = (cumulative[None] > uniform[:, None] * cumulative[last]) & (mass > 0)[None]
    return jnp.min(jnp.where(beyond, row[None], last), axis=1)


# --- Kmeans


class KMeansResult(NamedTuple):
    """The result of k-means: centroids, assignments and inertia.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> result = lloyd(x, centroids=jnp.array([[0.0], [11.0]]))
        >>> print(result.assignments, result.inertia)  # 4 * 0.5^2
        [0 0 1 1] 1.0
    """

    centroids: Float[Array, "K D"]
    """The centroid of each cluster."""
    assignments: Int[Array, "N"]
    """The index of the nearest centroid of each example, int32, also for masked
    examples."""
    inertia: Float[Array, ""]
    """The weighted sum of squared distances to the nearest centroid, without masked
    examples."""


@checked
def kmeans(
    key: PRNGKey,
    x: Float[Array, "N D"],
    num_clusters: int,
    *,
    num_used: Int[Array, ""] | int | None = None,
    mask: Bool[Array, "N"] | None = None,
    weights: Float[Array, "N"] | None = None,
    num_init: int = 10,
    num_iters: int = 100,
) -> KMeansResult:
    """Clusters examples by k-means with greedy k-means++ seeding.

    Lloyd's algorithm runs from several seedings, and the result with the smallest
    inertia is returned. Two inertias count as equal if their relative difference is
    below 1e-5, or if they differ by less than 1e-6 of the total squared distance to the
    mean. The first seeding wins such a tie. The candidates of a seeding are compared in
    the same way.

    Examples that are masked or have weight 0 are never drawn as seeds and do not move
    centroids. The random draws do not depend on the number of such examples. So padding
    does not change the clusters, except where rounding decides a draw.

    If there are fewer distinct examples than clusters, some centroids coincide or stay
    unused. Without any example, all centroids are zero. All centroids are finite if
    the unmasked examples are. There is no gradient.

    Args:
        key: the random key of the seedings.
        x: the examples to cluster [N, D]; computed in float32.
        num_clusters: the number K of clusters, at most N.
        num_used: the number of used clusters, in 1..K. It may be a traced array. The
            first `num_used` clusters equal the clusters for `num_clusters=num_used`.
            The other centroids are so far away that no example is nearest to them; see
            `used_clusters`. None uses all K clusters.
        mask: bool [N], False for examples to ignore; None uses all examples.
        weights: the non-negative weight of each example [N]; None means weight 1.
        num_init: the number of seedings.
        num_iters: the maximum number of Lloyd iterations, which stop at convergence.

    Returns:
        The centroids [K, D], assignments [N] in [0, K) and inertia of the best seeding.

    Raises:
        ValueError: num_clusters is below 1 or above N, or an int num_used is below 1 or
            above num_clusters.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> result = kmeans(jax.random.key(0), x, 2)
        >>> print(jnp.sort(result.centroids[:, 0]))  # clusters have no order
        [ 0.5 10.5]
    """
    check_num_clusters(num_clusters, len(x))
    if isinstance(num_used, int) and not 1 <= num_used <= num_clusters:
        raise ValueError(
            f"num_used must be between 1 and num_clusters {num_clusters}, "
            f"got {num_used}"
        )
    weights = row_weights(x, mask, weights)
    return _best_of(key, x, weights, num_iters, num_clusters, num_init, num_used)


@checked
def lloyd(
    x: Float[Array, "N D"],
    centroids: Float[Array, "K D"],
    *,
    mask: Bool[Array, "N"] | None = None,
    weights: Float[Array, "N"] | None = None,
    num_iters: int = 100,
) -> KMeansResult:
    """Runs Lloyd's algorithm from given centroids.

    A cluster whose examples have total weight 0 keeps its centroid.

    Args:
        x: the examples to cluster [N, D]; computed in float32.
        centroids: the initial centroids [K, D].
        mask: bool [N], False for examples to ignore; None uses all examples.
        weights: the non-negative weight of each example [N]; None means weight 1.
        num_iters: the maximum number of iterations, which stop at convergence.

    Returns:
        The final centroids [K, D] with their assignments [N] and inertia.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> result = lloyd(x, centroids=jnp.array([[0.0], [11.0]]))
        >>> print(result.centroids)
        [[ 0.5]
         [10.5]]
    """
    weights = row_weights(x, mask, weights)
    return _improve(x, weights, num_iters, centroids)


@checked
def assign_nearest(
    x: Float[Array, "N D"], centroids: Float[Array, "K D"]
) -> Int[Array, "N"]:
    """Returns the index of the nearest centroid of each example (Euclidean distance).

    Args:
        x: the examples [N, D].
        centroids: the centroids [K, D].

    Returns:
        int32 [N], in [0, K). Rounding decides between equally near centroids.

    Examples:
        >>> print(assign_nearest(jnp.array([[1.0], [9.0]]), jnp.array([[0.0], [10.0]])))
        [0 1]
    """
    centroids = centroids.astype(jnp.float32)
    used = used_clusters(centroids)[:, None]
    offset = centroids.mean(axis=0, keepdims=True, where=used)
    scores = relative_distances(x.astype(jnp.float32) - offset, centroids - offset)
    return jnp.argmin(scores, axis=0).astype(jnp.int32)


# Both functions are compiled once per shape. Without `jit`, each call would compile its
# loops again.
@partial(jax.jit, static_argnames=("num_clusters", "num_init"))
def _best_of(
    key: PRNGKey,
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    num_iters: Int[Array, ""],
    num_clusters: int,
    num_init: int,
    num_used: Int[Array, ""] | int | None,
) -> KMeansResult:
    x = x.astype(jnp.float32)
    offset = origin(x, weights)
    rows = clear(x - offset, weights)

    def descend(seeds):
        centroids = _descend(rows, weights, num_iters, seeds)
        distances = squared_distances(rows, centroids).min(axis=0)
        return centroids, jnp.sum(weights * distances)

    best = best_start(descend, key, rows, weights, num_clusters, num_init, num_used)
    return _result(x, weights, best + offset)


@jax.jit
def _improve(
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    num_iters: Int[Array, ""],
    centroids: Float[Array, "K D"],
) -> KMeansResult:
    x = x.astype(jnp.float32)
    offset = origin(x, weights)
    rows = clear(x - offset, weights)
    start = centroids.astype(jnp.float32) - offset
    improved = _descend(rows, weights, num_iters, start)
    return _result(x, weights, improved + offset)


def _result(
    x: Float[Array, "N D"], weights: Float[Array, "N"], centroids: Float[Array, "K D"]
) -> KMeansResult:
    assignments = assign_nearest(x, centroids)
    residuals = clear(x - centroids[assignments], weights)
    inertia = jnp.sum(weights * jnp.sum(residuals**2, axis=-1))
    return KMeansResult(centroids, assignments, inertia)


def _descend(
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    num_iters: Int[Array, ""],
    centroids: Float[Array, "K D"],
) -> Float[Array, "K D"]:
    """Runs Lloyd's algorithm and returns the final centroids."""
    num_clusters = centroids.shape[0]

    def improve(carry):
        iteration, centroids, _ = carry
        nearest = jnp.argmin(relative_distances(x, centroids), axis=0)
        members = nearest[None] == jnp.arange(num_clusters)[:, None]
        shares = jnp.where(members, weights[None], 0)
        mass = shares.sum(axis=1)[:, None]
        sums = jnp.matmul(shares, x, precision=jax.lax.Precision.HIGHEST)
        means = sums / jnp.where(mass > 0, mass, 1)
        moved = jnp.where(mass > 0, means, centroids)
        return iteration + 1, moved, jnp.any(moved != centroids)

    def unfinished(carry):
        iteration, _, changed = carry
        return changed & (iteration < num_iters)

    return jax.lax.while_loop(unfinished, improve, (0, centroids, jnp.array(True)))[1]


# --- Running


@checked
def running_means(
    centroids: Float[Array, "K D"],
    counts: Float[Array, "K"],
    x: Float[Array, "B D"],
    assignments: Int[Array, "B"],
    *,
    mask: Bool[Array, "B"] | None = None,
) -> tuple[Float[Array, "K D"], Float[Array, "K"]]:
    """Updates centroids as running means of the examples assigned to them.

    The update of a cluster with count n and m new examples is c <- (n c + sum of the
    examples) / (n + m). This equals DCN's update example by example, n += 1 and
    c += (x - c) / n, in any order.

    Args:
        centroids: the current centroids [K, D].
        counts: the number of examples that each centroid stands for [K], at least 0. A
            larger count moves the centroid less. DCN's code starts at 100. Counts are
            exact up to 2^24, about 17 million. Above that, float32 may lose single
            examples in the count, but they still move the centroid.
        x: the new examples [B, D]; computed in float32.
        assignments: the cluster of each new example [B]; an example whose cluster is
            outside [0, K) is ignored.
        mask: bool [B], False for examples to ignore; None uses all examples.

    Returns:
        The centroids [K, D] and counts [K], float32. A cluster without a new example
        keeps its centroid and count exactly.

    Examples:
        >>> centroids, counts = jnp.array([[0.0], [1.0]]), jnp.array([1.0, 1.0])
        >>> x, assignments = jnp.array([[3.0], [6.0]]), jnp.array([0, 0])
        >>> centroids, counts = running_means(centroids, counts, x, assignments)
        >>> print(centroids[:, 0], counts)  # (0 + 3 + 6) / 3; cluster 1 has no example
        [3. 1.] [3. 1.]
    """
    centroids = centroids.astype(jnp.float32)
    members = assignments[None] == jnp.arange(len(centroids))[:, None]
    if mask is not None:
        members &= mask[None]
    # Steps are relative to the centroid, because count * c / count is not always c.
    steps = x.astype(jnp.float32) - centroids[assignments]
    steps = jnp.where(members.any(axis=0)[:, None], steps, 0)
    sums = jnp.matmul(
        members.astype(jnp.float32), steps, precision=jax.lax.Precision.HIGHEST
    )
    counts = counts.astype(jnp.float32) + members.sum(axis=1)
    # A cluster with count 0 has no example, which would give 0 / 0.
    return centroids + sums / jnp.maximum(counts, 1)[:, None], counts


# --- Silhouette


@checked
def silhouette(
    x: Float[Array, "N D"],
    assignments: Int[Array, "N"],
    *,
    num_clusters: int,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, ""]:
    """Returns the mean silhouette coefficient, with all N x N distances at once.

    The coefficient of an example is (b - a) / max(a, b). Here a is its mean Euclidean
    distance to the other examples of its cluster. The value b is the smallest mean
    distance to the examples of another cluster. As in scikit-learn, the coefficient is
    0 for an example that is alone in its cluster.

    Args:
        x: the examples [N, D]; computed in float32.
        assignments: the cluster of each example [N], in [0, num_clusters); clusters may
            be empty.
        num_clusters: the number K of clusters.
        mask: bool [N], False for examples to ignore, which may have any values; None
            uses all examples.

    Returns:
        float32 in [-1, 1]; 0 if fewer than two clusters have an example.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> coefficient = silhouette(x, jnp.array([0, 0, 1, 1]), num_clusters=2)
        >>> print(f"{coefficient:.3f}")  # the mean of 9.5 / 10.5 and 8.5 / 9.5
        0.900
    """
    weights = row_weights(x, mask, None)
    return _coefficient(_distances(x, weights), assignments, num_clusters, weights)


@checked
def count_clusters(
    key: PRNGKey,
    x: Float[Array, "N D"],
    *,
    most: int,
    mask: Bool[Array, "N"] | None = None,
    num_init: int = 10,
) -> Int[Array, ""]:
    """Returns the number of clusters whose k-means has the largest mean silhouette.

    Args:
        key: the random key of the seedings.
        x: the examples [N, D].
        most: the largest number of clusters to try, in 2..N.
        mask: bool [N], False for examples to ignore, which may have any values; None
            uses all examples.
        num_init: the number of seedings of each k-means.

    Returns:
        int32 in 2..most; the smallest number wins a tie.

    Raises:
        ValueError: most is below 2 or above N.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0], [20.0], [21.0]])
        >>> print(count_clusters(jax.random.key(0), x, most=4))
        3
    """
    if not 2 <= most <= len(x):
        raise ValueError(
            f"most must be between 2 and {len(x)}, the number of examples, got {most}"
        )
    weights = row_weights(x, mask, None)
    distances = _distances(x, weights)

    def score(num_used):
        result = kmeans(key, x, most, num_used=num_used, mask=mask, num_init=num_init)
        return _coefficient(distances, result.assignments, most, weights)

    return 2 + jnp.argmax(jax.lax.map(score, jnp.arange(2, most + 1))).astype(jnp.int32)


def _distances(
    x: Float[Array, "N D"], weights: Float[Array, "N"]
) -> Float[Array, "N N"]:
    """Returns the Euclidean distances of all pairs of examples, 0 on the diagonal."""
    x = x.astype(jnp.float32)
    rows = clear(x - origin(x, weights), weights)
    diagonal = jnp.eye(len(x), dtype=bool)
    return jnp.sqrt(jnp.where(diagonal, 0, squared_distances(rows, rows)))


def _coefficient(
    distances: Float[Array, "N N"],
    assignments: Int[Array, "N"],
    num_clusters: int,
    weights: Float[Array, "N"],
) -> Float[Array, ""]:
    """Returns the mean silhouette coefficient from all pairwise distances."""
    is_member = assignments[:, None] == jnp.arange(num_clusters)[None]
    members = is_member * weights[:, None]
    sizes = members.sum(axis=0)[None]
    sums = jnp.matmul(distances, members, precision=jax.lax.Precision.HIGHEST)
    # The sum over a cluster includes the example itself, at distance 0.
    within = jnp.sum(is_member * sums / jnp.maximum(sizes - 1, 1), axis=1)
    excluded = is_member | (sizes == 0)
    between = jnp.where(excluded, jnp.inf, sums / jnp.maximum(sizes, 1))
    nearest = between.min(axis=1)
    larger = jnp.maximum(within, nearest)
    alone = jnp.sum(is_member * sizes, axis=1) <= 1
    # The silhouette is undefined for equal examples in two clusters, and if there is
    # only one cluster.
    defined = ~alone & (larger > 0) & jnp.isfinite(larger) & (weights > 0)
    coefficients = jnp.where(defined, (nearest - within) / larger, 0)
    return coefficients.sum() / jnp.maximum(weights.sum(), 1)
