"""k-means: distances, seeding, Lloyd's algorithm, running means, silhouettes.

Where clusterings start: rows that lie far apart.

References:
    Arthur and Vassilvitskii, k-means++: the advantages of careful seeding, 2007; the
    greedy variant of their section 5, with 2 + log K trials as in scikit-learn.
    Gonzalez, Clustering to minimize the maximum intercluster distance, 1985.

k-means for masked, weighted arrays, under jit and vmap.

References:
    Lloyd, Least squares quantization in PCM, 1982.

Centroids as running means of the examples that have come by.

References:
    Yang et al., `Towards K-means-friendly Spaces: Simultaneous Deep Learning and
    Clustering <https://arxiv.org/abs/1610.04794>`_ (DCN), ICML 2017, its update of the
    centroids; code boyangumn/DCN-New.

How well rows lie in their clusters, and how many clusters that speaks for.

References:
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

from fcjax.types import PRNGKey

# --- Distances


def row_weights(
    x: Float[Array, "N D"],
    mask: Bool[Array, "N"] | None,
    weights: Float[Array, "N"] | None,
) -> Float[Array, "N"]:
    """The weight of every row, 1 by default, 0 where it is masked."""
    if weights is None:
        weights = jnp.ones(x.shape[0])
    weights = weights.astype(jnp.float32)
    return weights if mask is None else jnp.where(mask, weights, 0)


def origin(x: Float[Array, "N D"], weights: Float[Array, "N"]) -> Float[Array, "1 D"]:
    """A point near the weighted mean, to be taken off all rows."""
    # Squared distances by way of inner products lose digits far from the origin.
    total = jnp.maximum(weights.sum(), jnp.finfo(jnp.float32).tiny)
    mean = jnp.matmul(
        weights[None] / total, clear(x, weights), precision=jax.lax.Precision.HIGHEST
    )
    # Any point near the mean serves; fewer bits make it the same one however the sum is
    # rounded, so that padding does not disturb the draws.
    return jax.lax.reduce_precision(mean, exponent_bits=8, mantissa_bits=12)


def clear(x: Float[Array, "N D"], weights: Float[Array, "N"]) -> Float[Array, "N D"]:
    """The rows, with zeros in place of those of weight 0."""
    # A weight of 0 alone would let infinities in, as 0 * inf is NaN.
    return jnp.where(weights[:, None] > 0, x, 0)


def relative_distances(
    x: Float[Array, "N D"], centroids: Float[Array, "K D"]
) -> Float[Array, "K N"]:
    """|x - c|^2 - |x|^2, which has the same nearest centroid."""
    # Clusters come first, as matrix products and the reductions over K are then fast on
    # CPUs.
    product = jnp.matmul(centroids, x.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.sum(centroids**2, axis=-1)[:, None] - 2 * product


def squared_distances(
    x: Float[Array, "N D"], centroids: Float[Array, "K D"]
) -> Float[Array, "K N"]:
    """|x - c|^2, at least 0."""
    norms = jnp.sum(x**2, axis=-1)
    return jnp.maximum(relative_distances(x, centroids) + norms[None], 0)


# --- Seeding

UNUSED = 1e15
"""Every feature of a centroid that is not used: beyond all rows, and the sum even of
many of its squares is a number in float32."""


def used_clusters(centroids: Float[Array, "K D"]) -> Bool[Array, "K"]:
    """Which centroids stand for a cluster, where `kmeans` was given a `num_used`.

    Args:
        centroids: as `kmeans` returned them.

    Returns:
        bool [K], False at those that lie beyond all rows.

    Examples:
        >>> from fcjax.cluster import kmeans
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> found = kmeans(jax.random.key(0), x, 3, num_used=2)
        >>> print(used_clusters(found.centroids))
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
    """Draws far-apart rows: of a few candidates, each time the one that helps most.

    Returns:
        Which rows, none of weight 0; some repeat where fewer are distinct. The first
        `num_used` are those that `num_clusters=num_used` draws.
    """
    num_trials = _num_trials(num_clusters)
    uniform = jax.random.uniform(key, (num_clusters, num_trials))
    if num_used is not None:
        # Fewer clusters have fewer trials: the same draws in shorter rows, the first
        # one again in place of a trial too many.
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
    _, others = jax.lax.scan(add, closest, uniform[1:])
    return jnp.concatenate([first, others])


def _num_trials(num_clusters: int) -> int:
    return 2 + int(math.log(num_clusters))


def check_num_clusters(num_clusters: int, num_rows: int) -> None:
    # Before anything is traced: JAX adds lines of its own to what is raised within.
    if not 1 <= num_clusters <= num_rows:
        raise ValueError(
            f"num_clusters must be between 1 and the {num_rows} rows, "
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
    """Returns where the best of several seedings leads.

    Args:
        descend: centroids to begin with -> (centroids at the end, what they minimise).
        key: of the seeds.
        x: the rows.
        weights: of the rows.
        num_clusters: K.
        num_init: how many seedings.
        num_used: how many of the clusters begin at a row, the others at `UNUSED`.
    """

    def start(key):
        seeds = x[plus_plus(key, x, weights, num_clusters, num_used)]
        if num_used is not None:
            used = jnp.arange(num_clusters) < num_used
            seeds = jnp.where(used[:, None], seeds, UNUSED)
        return descend(seeds)

    centroids, objective = jax.vmap(start)(jax.random.split(key, num_init))
    # Seedings often meet in one optimum, numbered differently.
    return centroids[_first_least(objective, _rounding(x, weights))]


def _rounding(x: Float[Array, "N D"], weights: Float[Array, "N"]) -> Float[Array, ""]:
    """What the rows' distances together are rounded by, however small they are."""
    return 1e-6 * jnp.sum(weights * jnp.sum(x**2, axis=-1))


def _first_least(objective: Float[Array, "S"], rounding: Float[Array, ""]) -> Array:
    """The first of those that only rounding, which padding and batching change, tells
    from the least.
    """
    return jnp.argmax(objective <= objective.min() * (1 + 1e-5) + rounding)


def farthest_first(
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    chosen: Bool[Array, "N"],
    num_clusters: int,
) -> Int[Array, "K"]:
    """Adds to some chosen rows the one farthest from all chosen, until there are K.

    Args:
        x: the rows.
        weights: 0 at rows that are never added.
        chosen: True at the rows to begin with, at least one and at most K.
        num_clusters: K.

    Returns:
        Which rows, those to begin with first, in their order.
    """
    begun = jnp.flatnonzero(chosen, size=num_clusters, fill_value=0)

    def add(rank, carry):
        rows, closest = carry
        farthest = jnp.argmax(jnp.where(weights > 0, closest, -1))
        row = jnp.where(rank < chosen.sum(), rows[rank], farthest)
        closer = squared_distances(x, x[row][None])[0]
        return rows.at[rank].set(row), jnp.minimum(closest, closer)

    carry = (begun, jnp.full(x.shape[0], jnp.inf))
    return jax.lax.fori_loop(0, num_clusters, add, carry)[0]


def _draw(
    uniform: Float[Array, "T"], mass: Float[Array, "N"], weights: Float[Array, "N"]
) -> Int[Array, "T"]:
    """Rows drawn in proportion to `mass`, or to `weights` where there is no mass."""
    mass = jnp.where(jnp.any(mass > 0), mass, weights)
    row = jnp.arange(mass.shape[0])
    last = jnp.max(jnp.where(mass > 0, row, 0))
    cumulative = jnp.cumsum(mass)
    # A rounded cumulative sum may step at a row without mass, and end below its target.
    beyond = (cumulative[None] > uniform[:, None] * cumulative[last]) & (mass > 0)[None]
    return jnp.min(jnp.where(beyond, row[None], last), axis=1)


# --- Kmeans


class KMeansResult(NamedTuple):
    """Centroids, and what they make of the examples.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> found = lloyd(x, centroids=jnp.array([[0.0], [11.0]]))
        >>> print(found.assignments, found.inertia)  # 4 * 0.5^2
        [0 0 1 1] 1.0
    """

    centroids: Float[Array, "K D"]
    assignments: Int[Array, "N"]
    """int32, the nearest centroid of every row, masked rows included."""
    inertia: Float[Array, ""]
    """The weighted sum of squared distances to the nearest centroid; masked rows
    count nothing."""


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
    """Clusters rows by k-means: the best of several seedings by greedy k-means++.

    Rows that are masked or of weight 0 are never drawn as a seed and move no centroid,
    and the draws do not depend on how many there are: an array padded by such rows has
    the same clusters, save where a draw falls between two rows to rounding. Inertias
    within 1e-5 of the least, relatively, or within 1e-6 of the rows' own about their
    mean, are a tie that the first seeding wins, and so among a seeding's candidates.

    With fewer distinct rows than clusters, some centroids coincide or stay unused; with
    no row left at all they are zero. All stay finite.

    Args:
        key: the key of all draws.
        x: the rows to cluster; computed in float32.
        num_clusters: number K of clusters, at most N.
        num_used: how many of them are used, in 1..K, where that is data: the first ones
            are the clusters of `num_clusters=num_used`, and the centroids of the others
            lie so far away that no row is nearest to them, see `used_clusters`.
        mask: False at rows to leave out; all rows count by default.
        weights: non-negative weight of each row, 1 by default.
        num_init: number of seedings.
        num_iters: upper bound of the Lloyd iterations; they stop at a fixed point.

    Returns:
        The centroids [K, D], assignments [N] in [0, K) and inertia of the best seeding.

    Raises:
        ValueError: if num_clusters is below 1 or above N, or num_used, where it is an
            int, below 1 or above num_clusters.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> found = kmeans(jax.random.key(0), x, 2)
        >>> print(jnp.sort(found.centroids[:, 0]))  # clusters have no order
        [ 0.5 10.5]
    """
    check_num_clusters(num_clusters, len(x))
    if isinstance(num_used, int) and not 1 <= num_used <= num_clusters:
        raise ValueError(
            f"num_used must be between 1 and num_clusters, {num_clusters}, "
            f"got {num_used}"
        )
    weights = row_weights(x, mask, weights)
    return _best_of(key, x, weights, num_iters, num_clusters, num_init, num_used)


def lloyd(
    x: Float[Array, "N D"],
    centroids: Float[Array, "K D"],
    *,
    mask: Bool[Array, "N"] | None = None,
    weights: Float[Array, "N"] | None = None,
    num_iters: int = 100,
) -> KMeansResult:
    """Improves centroids until they are the means of their clusters.

    A cluster that has lost all its weight keeps its centroid.

    Args:
        x: the rows to cluster; computed in float32.
        centroids: where to start.
        mask: False at rows to leave out; all rows count by default.
        weights: non-negative weight of each row, 1 by default.
        num_iters: upper bound of the iterations; they stop at a fixed point.

    Returns:
        The improved centroids [K, D], with assignments [N] and inertia by them.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> found = lloyd(x, centroids=jnp.array([[0.0], [11.0]]))
        >>> print(found.centroids)
        [[ 0.5]
         [10.5]]
    """
    weights = row_weights(x, mask, weights)
    return _improve(x, weights, num_iters, centroids)


def assign_nearest(
    x: Float[Array, "N D"], centroids: Float[Array, "K D"]
) -> Int[Array, "N"]:
    """The nearest centroid of each row by Euclidean distance.

    Returns:
        int32 [N], in [0, K); rounding decides between centroids equally near.

    Examples:
        >>> print(assign_nearest(jnp.array([[1.0], [9.0]]), jnp.array([[0.0], [10.0]])))
        [0 1]
    """
    centroids = centroids.astype(jnp.float32)
    used = used_clusters(centroids)[:, None]
    offset = centroids.mean(axis=0, keepdims=True, where=used)
    scores = relative_distances(x.astype(jnp.float32) - offset, centroids - offset)
    return jnp.argmin(scores, axis=0).astype(jnp.int32)


# Both are compiled once a shape: loops run eagerly would be compiled at every call.
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


def running_means(
    centroids: Float[Array, "K D"],
    counts: Float[Array, "K"],
    x: Float[Array, "B D"],
    assignments: Int[Array, "B"],
    *,
    mask: Bool[Array, "B"] | None = None,
) -> tuple[Float[Array, "K D"], Float[Array, "K"]]:
    """Moves each centroid by the rows that are assigned to it.

    What DCN's code does row by row, count += 1 and c += (x - c) / count, in any order
    of the rows and at once: (count c + sum of m rows) / (count + m).

    Args:
        centroids: where they are.
        counts: how many rows each stands for, at least 0; the more, the slower it
            moves. DCN's code starts at 100. Whole numbers stay exact up to 2^24, about
            17 million; above, float32 rounds how many are added, and single rows may
            no longer be counted, though they still move the centroid.
        x: the rows; computed in float32.
        assignments: the cluster of each row; a row whose cluster is outside [0, K)
            counts nowhere.
        mask: False at rows that count nowhere; all rows count by default.

    Returns:
        The centroids [K, D] and counts [K], float32; a cluster without a row keeps both
        exactly as they are.

    Examples:
        >>> centroids, counts = jnp.array([[0.0], [1.0]]), jnp.array([1.0, 1.0])
        >>> x, assignments = jnp.array([[3.0], [6.0]]), jnp.array([0, 0])
        >>> centroids, counts = running_means(centroids, counts, x, assignments)
        >>> print(centroids[:, 0], counts)  # (0 + 3 + 6) / 3; no row of the second
        [3. 1.] [3. 1.]
    """
    centroids = centroids.astype(jnp.float32)
    members = assignments[None] == jnp.arange(len(centroids))[:, None]
    if mask is not None:
        members &= mask[None]
    # Steps from its own centroid: count * c / count is not always c.
    steps = x.astype(jnp.float32) - centroids[assignments]
    steps = jnp.where(members.any(axis=0)[:, None], steps, 0)
    sums = jnp.matmul(
        members.astype(jnp.float32), steps, precision=jax.lax.Precision.HIGHEST
    )
    counts = counts.astype(jnp.float32) + members.sum(axis=1)
    # A count of 0 has no rows now either: 0 / 0.
    return centroids + sums / jnp.maximum(counts, 1)[:, None], counts


# --- Silhouette


def silhouette(
    x: Float[Array, "N D"],
    assignments: Int[Array, "N"],
    *,
    num_clusters: int,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, ""]:
    """The mean silhouette coefficient by Euclidean distances, all N x N at once.

    That of a row is (b - a) / max(a, b), where a is its mean distance to the others of
    its cluster and b that to the cluster nearest in this sense; 0 for a row that is
    alone in its cluster, as in scikit-learn.

    Args:
        x: the rows; computed in float32.
        assignments: their clusters, in [0, num_clusters); some may be empty.
        num_clusters: K.
        mask: False at rows to leave out, which may hold anything; all count by default.

    Returns:
        float32 in [-1, 1]; 0 where fewer than two clusters have a row.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> coefficient = silhouette(x, jnp.array([0, 0, 1, 1]), num_clusters=2)
        >>> print(f"{coefficient:.3f}")  # the mean of 9.5 / 10.5 and 8.5 / 9.5
        0.900
    """
    weights = row_weights(x, mask, None)
    return _coefficient(_distances(x, weights), assignments, num_clusters, weights)


def count_clusters(
    key: PRNGKey,
    x: Float[Array, "N D"],
    *,
    most: int,
    mask: Bool[Array, "N"] | None = None,
    num_init: int = 10,
) -> Int[Array, ""]:
    """The number of clusters whose k-means has the largest mean silhouette.

    Args:
        key: of the seedings.
        x: the rows to cluster.
        most: the largest number to try, from 2 to N.
        mask: False at rows to leave out, which may hold anything; all count by default.
        num_init: seedings of each k-means.

    Returns:
        int32 in 2..most, the smallest of equally good ones.

    Raises:
        ValueError: if most is below 2 or above N.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0], [20.0], [21.0]])
        >>> print(count_clusters(jax.random.key(0), x, most=4))
        3
    """
    if not 2 <= most <= len(x):
        raise ValueError(f"most must be between 2 and the {len(x)} rows, got {most}")
    weights = row_weights(x, mask, None)
    distances = _distances(x, weights)

    def score(num_used):
        found = kmeans(key, x, most, num_used=num_used, mask=mask, num_init=num_init)
        return _coefficient(distances, found.assignments, most, weights)

    return 2 + jnp.argmax(jax.lax.map(score, jnp.arange(2, most + 1))).astype(jnp.int32)


def _distances(
    x: Float[Array, "N D"], weights: Float[Array, "N"]
) -> Float[Array, "N N"]:
    x = x.astype(jnp.float32)
    rows = clear(x - origin(x, weights), weights)
    itself = jnp.eye(len(x), dtype=bool)
    return jnp.sqrt(jnp.where(itself, 0, squared_distances(rows, rows)))


def _coefficient(
    distances: Float[Array, "N N"],
    assignments: Int[Array, "N"],
    num_clusters: int,
    weights: Float[Array, "N"],
) -> Float[Array, ""]:
    own = assignments[:, None] == jnp.arange(num_clusters)[None]
    members = own * weights[:, None]
    sizes = members.sum(axis=0)[None]
    sums = jnp.matmul(distances, members, precision=jax.lax.Precision.HIGHEST)
    # A row is among its own cluster's, at a distance of 0.
    within = jnp.sum(own * sums / jnp.maximum(sizes - 1, 1), axis=1)
    others = jnp.where(own | (sizes == 0), jnp.inf, sums / jnp.maximum(sizes, 1))
    nearest = others.min(axis=1)
    larger = jnp.maximum(within, nearest)
    alone = jnp.sum(own * sizes, axis=1) <= 1
    # Equal rows in two clusters have no silhouette, nor have those of the only one.
    defined = ~alone & (larger > 0) & jnp.isfinite(larger) & (weights > 0)
    coefficients = jnp.where(defined, (nearest - within) / larger, 0)
    return coefficients.sum() / jnp.maximum(weights.sum(), 1)
