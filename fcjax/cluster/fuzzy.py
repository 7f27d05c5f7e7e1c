"""Soft and balanced assignments: fuzzy c-means and Sinkhorn's scaling.

Fuzzy c-means for masked, weighted arrays, under jit and vmap.

References:
    Bezdek, Pattern recognition with fuzzy objective function algorithms, 1981.

Clusters of nearly equal size, by Sinkhorn and Knopp's scaling of scores.

References:
    Cuturi, Sinkhorn distances, NIPS 2013; Asano, Rupprecht and Vedaldi,
    Self-labelling via simultaneous clustering and representation learning, ICLR 2020.
    Lubana, Tang, Kawsar, Dick and Mathur, `Orchestra
    <https://arxiv.org/abs/2205.11506>`_, ICML 2022; code akhilmathurs/orchestra.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from fcjax.cluster.kmeans import (
    best_start,
    check_num_clusters,
    clear,
    origin,
    relative_distances,
    row_weights,
    squared_distances,
)
from fcjax.losses import normalize
from fcjax.types import PRNGKey, Scalar

# --- Fuzzy


class FuzzyResult(NamedTuple):
    """Centroids, and how much of every example belongs to each.

    Examples:
        >>> x, centroids = jnp.array([[0.0], [1.0], [2.0]]), jnp.array([[0.0], [2.0]])
        >>> found = fuzzy_lloyd(x, centroids, fuzzifier=2.0, num_iters=0)
        >>> print(found.memberships.round(2))
        [[1.  0. ]
         [0.5 0.5]
         [0.  1. ]]
    """

    centroids: Float[Array, "K D"]
    memberships: Float[Array, "N K"]
    """In [0, 1]; each row sums to 1, masked rows included."""
    assignments: Int[Array, "N"]
    """int32, the cluster of the largest membership, which is the nearest."""
    objective: Float[Array, ""]
    """The weighted sum of u^m d^2 over rows and clusters; masked rows count nothing."""


def fuzzy_cmeans(
    key: PRNGKey,
    x: Float[Array, "N D"],
    num_clusters: int,
    *,
    fuzzifier: Scalar = 1.1,
    mask: Bool[Array, "N"] | None = None,
    weights: Float[Array, "N"] | None = None,
    num_init: int = 10,
    num_iters: int = 300,
    tolerance: Scalar = 1e-4,
) -> FuzzyResult:
    """Clusters rows by fuzzy c-means: the best of several seedings by k-means++.

    Rows that are masked or of weight 0 count nothing, and ties go to the first seeding,
    as in `kmeans`.

    Args:
        key: the key of all draws.
        x: the rows to cluster; computed in float32.
        num_clusters: number K of clusters, at most N.
        fuzzifier: m > 1; near 1 is k-means. In many dimensions 2 draws all centroids
            to the mean, so the default is that of the federated papers.
        mask: False at rows to leave out; all rows count by default.
        weights: non-negative weight of each row, 1 by default.
        num_init: number of seedings.
        num_iters: upper bound of the iterations.
        tolerance: they stop once no membership changes by more.

    Returns:
        The result of the best seeding.

    Raises:
        ValueError: if num_clusters is below 1 or above N.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> found = fuzzy_cmeans(jax.random.key(0), x, 2)
        >>> low, high = sorted(found.centroids[:, 0].tolist())  # clusters have no order
        >>> print(f"{low:.2f} {high:.2f}")
        0.50 10.50
    """
    check_num_clusters(num_clusters, len(x))
    weights = row_weights(x, mask, weights)
    stop = (num_iters, tolerance)
    return _best_of(key, x, weights, fuzzifier, stop, num_clusters, num_init)


def fuzzy_lloyd(
    x: Float[Array, "N D"],
    centroids: Float[Array, "K D"],
    *,
    fuzzifier: Scalar = 1.1,
    mask: Bool[Array, "N"] | None = None,
    weights: Float[Array, "N"] | None = None,
    num_iters: int = 300,
    tolerance: Scalar = 1e-4,
) -> FuzzyResult:
    """Improves centroids by turns with their memberships, as Lloyd's iteration does.

    Args:
        x: the rows to cluster; computed in float32.
        centroids: where to start.
        fuzzifier: see `fuzzy_cmeans`, as all that follow.
        mask: False at rows to leave out.
        weights: of each row.
        num_iters: upper bound of the iterations; each moves the centroids once.
        tolerance: of the memberships.

    Returns:
        The improved centroids, and what they make of the rows.

    Examples:
        >>> x, centroids = jnp.array([[0.0], [1.0], [2.0]]), jnp.array([[0.0], [2.0]])
        >>> found = fuzzy_lloyd(x, centroids, fuzzifier=2.0, num_iters=1)
        >>> print(f"{found.centroids[0, 0]:.2f}")  # (0 + 0.5^2) / (1 + 0.5^2)
        0.20
    """
    weights = row_weights(x, mask, weights)
    return _improve(x, weights, fuzzifier, (num_iters, tolerance), centroids)


def memberships(squares: Float[Array, "K N"], fuzzifier: Scalar) -> Float[Array, "K N"]:
    """Returns how much of each row belongs to each cluster by its squared distances:
    d^(-2 / (m - 1)), in shares.

    A row at a centroid belongs to it alone, or in equal parts to those that coincide.
    """
    # By logarithms: at m = 1.1 these are tenth powers, which leave float32.
    nearest = jnp.finfo(jnp.float32).tiny
    closeness = -jnp.log(jnp.maximum(squares, nearest))
    return jax.nn.softmax(closeness / (fuzzifier - 1), axis=0)


@partial(jax.jit, static_argnames=("num_clusters", "num_init"))
def _best_of(
    key: PRNGKey,
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    fuzzifier: Scalar,
    stop: tuple,
    num_clusters: int,
    num_init: int,
) -> FuzzyResult:
    x = x.astype(jnp.float32)
    offset = origin(x, weights)
    rows = clear(x - offset, weights)

    def descend(seeds):
        centroids = _descend(rows, weights, fuzzifier, stop, seeds)
        return centroids, _objective(rows, weights, fuzzifier, centroids)

    best = best_start(descend, key, rows, weights, num_clusters, num_init)
    return _result(x, weights, fuzzifier, offset, best)


@jax.jit
def _improve(
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    fuzzifier: Scalar,
    stop: tuple,
    centroids: Float[Array, "K D"],
) -> FuzzyResult:
    x = x.astype(jnp.float32)
    offset = origin(x, weights)
    rows = clear(x - offset, weights)
    start = centroids.astype(jnp.float32) - offset
    improved = _descend(rows, weights, fuzzifier, stop, start)
    return _result(x, weights, fuzzifier, offset, improved)


def _descend(
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    fuzzifier: Scalar,
    stop: tuple,
    centroids: Float[Array, "K D"],
) -> Float[Array, "K D"]:
    num_iters, tolerance = stop
    norms = jnp.sum(x**2, axis=-1)[None]

    def belongs(centroids):
        distances = jnp.maximum(relative_distances(x, centroids) + norms, 0)
        return memberships(distances, fuzzifier)

    def improve(carry):
        iteration, centroids, shares, _ = carry
        parts = weights[None] * shares**fuzzifier
        mass = parts.sum(axis=1)[:, None]
        sums = jnp.matmul(parts, x, precision=jax.lax.Precision.HIGHEST)
        # A cluster that no row belongs to stays where it is.
        centroids = jnp.where(mass > 0, sums / jnp.where(mass > 0, mass, 1), centroids)
        after = belongs(centroids)
        change = jnp.max(jnp.where(weights[None] > 0, jnp.abs(after - shares), 0))
        return iteration + 1, centroids, after, change

    def unfinished(carry):
        iteration, _, _, change = carry
        return (change > tolerance) & (iteration < num_iters)

    start = (0, centroids, belongs(centroids), jnp.array(jnp.inf))
    return jax.lax.while_loop(unfinished, improve, start)[1]


def _objective(x, weights, fuzzifier, centroids) -> Float[Array, ""]:
    distances = squared_distances(x, centroids)
    shares = memberships(distances, fuzzifier) ** fuzzifier
    return jnp.sum(weights[None] * shares * distances)


def _result(x, weights, fuzzifier, offset, centroids) -> FuzzyResult:
    """Of centroids that are relative to the offset; the rows are not."""
    shares = memberships(squared_distances(x - offset, centroids), fuzzifier)
    objective = _objective(clear(x - offset, weights), weights, fuzzifier, centroids)
    return FuzzyResult(
        centroids + offset,
        shares.T,
        jnp.argmax(shares, axis=0).astype(jnp.int32),
        objective,
    )


# --- Sinkhorn

EVERY = 10
"""Iterations after which it is asked whether the scaling still changes."""
LEAST = 1e-30
"""Of the softmax: what underflows in all rows would leave a column nothing to scale."""


def sinkhorn(
    scores: Float[Array, "N K"],
    *,
    sharpness: Scalar = 25.0,
    num_iters: int = 100,
    tolerance: Scalar = 1e-2,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, "N K"]:
    """Soft assignments in which all clusters have as much, as far as they can.

    Scales softmax(sharpness * scores) by turns so that its columns sum to N / K and its
    rows to 1. As the rows come last, theirs are exact, and the columns' only at
    convergence: of tight clusters some ten iterations leave them far off.

    Args:
        scores: such as cosines of rows to centroids.
        sharpness: the inverse of the entropic regularisation.
        num_iters: upper bound of the iterations.
        tolerance: they stop once no more than this, summed over the rows, changes in
            the share of their scaling; looked at before the first and then every
            tenth iteration, as in Orchestra's code.
        mask: False at rows that count nowhere; all count by default.

    Returns:
        float32 [N, K], in [0, 1]: rows sum to 1, masked rows are 0.

    Examples:
        >>> scores = jnp.array([[1.0, 0.9], [1.0, 0.8]])  # both are nearer to the first
        >>> print(sinkhorn(scores, tolerance=1e-6).round(2))
        [[0.22 0.78]
         [0.78 0.22]]
    """
    shares = jax.nn.softmax(sharpness * scores.astype(jnp.float32), axis=1)
    shares = jnp.maximum(shares, LEAST)
    kept = jnp.ones(len(scores), bool) if mask is None else mask
    count = jnp.maximum(kept.sum(), 1)
    shares = jnp.where(kept[:, None], shares, 0)

    def iterate(carry):
        i, rows, _, change = carry
        columns = 1 / scores.shape[1] / (rows @ shares)
        sums = jnp.where(kept, shares @ columns, 1)
        new = jnp.where(kept, 1 / count / sums, 0)
        moved = jnp.sum(jnp.abs(jnp.where(kept, rows * count * sums - 1, 0)))
        return i + 1, new, columns, jnp.where(i % EVERY == 0, moved, change)

    def unfinished(carry):
        i, *_, change = carry
        return (change >= tolerance) & (i < num_iters)

    begin = jnp.where(kept, 1 / count, 0.0), jnp.zeros(scores.shape[1])
    start = 0, *begin, jnp.float32(jnp.inf)
    _, rows, columns, _ = lax.while_loop(unfinished, iterate, start)
    return count * rows[:, None] * shares * columns[None]


def equal_clusters(
    key: PRNGKey,
    x: Float[Array, "N D"],
    num_clusters: int,
    *,
    sharpness: Scalar = 25.0,
    num_rounds: int = 5,
    num_iters: int = 10,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, "K D"]:
    """Unit centroids of clusters of roughly equal size.

    From random rows on, by turns: rows go to the cluster of their largest `sinkhorn`
    share, and a centroid to the direction of the mean of its rows; one without any to
    that of a random row. Orchestra's local clustering.

    Args:
        key: of the draws.
        x: rows of unit length.
        num_clusters: K, at most N.
        sharpness, num_iters: of `sinkhorn`.
        num_rounds: turns.
        mask: False at rows that count nowhere; all count by default. Where fewer than K
            do, some centroids begin at the same row.

    Raises:
        ValueError: if num_clusters is below 1 or above N.

    Examples:
        >>> x = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> print(jnp.sort(equal_clusters(jax.random.key(0), x, 2), axis=0))
        [[0. 0.]
         [1. 1.]]
    """
    check_num_clusters(num_clusters, len(x))
    kept = jnp.ones(len(x), bool) if mask is None else mask
    x = jnp.where(kept[:, None], x.astype(jnp.float32), 0)
    count = jnp.maximum(kept.sum(), 1)

    def drawn(key):
        draws = jax.random.uniform(key, (len(x),))
        order = jnp.argsort(jnp.where(kept, draws, jnp.inf))
        return x[order[jnp.arange(num_clusters) % count]]

    def improve(centroids, key):
        cosines = jnp.matmul(x, centroids.T, precision=lax.Precision.HIGHEST)
        shares = sinkhorn(cosines, sharpness=sharpness, num_iters=num_iters, mask=mask)
        nearest = jnp.argmax(shares, axis=1)
        members = jax.nn.one_hot(nearest, num_clusters) * kept[:, None]
        sums = jnp.matmul(members.T, x, precision=lax.Precision.HIGHEST)
        is_empty = members.sum(axis=0) == 0
        return normalize(jnp.where(is_empty[:, None], drawn(key), sums)), None

    keys = jax.random.split(key, num_rounds + 1)
    return lax.scan(improve, normalize(drawn(keys[0])), keys[1:])[0]
