"""Soft and balanced assignments: fuzzy c-means and Sinkhorn scaling.

Fuzzy c-means accepts masks and weights. Sinkhorn scaling of scores (Sinkhorn and Knopp)
gives clusters of nearly equal size. All functions work under `jax.jit` and `jax.vmap`.

References:
    Bezdek, Pattern recognition with fuzzy objective function algorithms, 1981.
    Cuturi, Sinkhorn distances, NIPS 2013.
    Asano, Rupprecht and Vedaldi, Self-labelling via simultaneous clustering and
    representation learning, ICLR 2020.
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
from fcjax.shapes import checked
from fcjax.types import PRNGKey, Scalar

# --- Fuzzy


class FuzzyResult(NamedTuple):
    """The result of fuzzy c-means: centroids, memberships, assignments and objective.

    Examples:
        >>> x, centroids = jnp.array([[0.0], [1.0], [2.0]]), jnp.array([[0.0], [2.0]])
        >>> result = fuzzy_lloyd(x, centroids, fuzzifier=2.0, num_iters=0)
        >>> print(result.memberships.round(2))
        [[1.  0. ]
         [0.5 0.5]
         [0.  1. ]]
    """

    centroids: Float[Array, "K D"]
    """The centroid of each cluster."""
    memberships: Float[Array, "N K"]
    """The membership of each example in each cluster, in [0, 1]. Each row sums to 1,
    also for masked examples."""
    assignments: Int[Array, "N"]
    """The cluster with the largest membership, int32. It is the nearest cluster."""
    objective: Float[Array, ""]
    """The weighted sum of u^m d^2 over examples and clusters, without masked
    examples."""


@checked
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
    """Clusters examples by fuzzy c-means with greedy k-means++ seeding.

    The result of the seeding with the smallest objective is returned. The first seeding
    wins a tie. Examples that are masked or have weight 0 are ignored.

    Args:
        key: the random key of the seedings.
        x: the examples to cluster [N, D]; computed in float32.
        num_clusters: the number K of clusters, at most N.
        fuzzifier: the exponent m > 1 of the memberships. Values near 1 approach
            k-means. In many dimensions m = 2 moves all centroids to the mean, so the
            default is the value of the federated papers.
        mask: bool [N], False for examples to ignore; None uses all examples.
        weights: the non-negative weight of each example [N]; None means weight 1.
        num_init: the number of seedings.
        num_iters: the maximum number of iterations.
        tolerance: the iterations stop when no membership changes by more than this.

    Returns:
        The result of the best seeding.

    Raises:
        ValueError: num_clusters is below 1 or above N.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> result = fuzzy_cmeans(jax.random.key(0), x, 2)
        >>> low, high = sorted(result.centroids[:, 0].tolist())  # any order
        >>> print(f"{low:.2f} {high:.2f}")
        0.50 10.50
    """
    check_num_clusters(num_clusters, len(x))
    weights = row_weights(x, mask, weights)
    stop = (num_iters, tolerance)
    return _best_of(key, x, weights, fuzzifier, stop, num_clusters, num_init)


@checked
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
    """Runs fuzzy c-means from given centroids.

    Each iteration computes the memberships from the centroids, then the centroids from
    the memberships.

    Args:
        x: the examples to cluster [N, D]; computed in float32.
        centroids: the initial centroids [K, D].
        fuzzifier: the exponent m > 1 of the memberships; values near 1 approach
            k-means.
        mask: bool [N], False for examples to ignore; None uses all examples.
        weights: the non-negative weight of each example [N]; None means weight 1.
        num_iters: the maximum number of iterations.
        tolerance: the iterations stop when no membership changes by more than this.

    Returns:
        The final centroids with their memberships, assignments and objective.

    Examples:
        >>> x, centroids = jnp.array([[0.0], [1.0], [2.0]]), jnp.array([[0.0], [2.0]])
        >>> result = fuzzy_lloyd(x, centroids, fuzzifier=2.0, num_iters=1)
        >>> print(f"{result.centroids[0, 0]:.2f}")  # (0 + 0.5^2) / (1 + 0.5^2)
        0.20
    """
    weights = row_weights(x, mask, weights)
    return _improve(x, weights, fuzzifier, (num_iters, tolerance), centroids)


def memberships(squares: Float[Array, "K N"], fuzzifier: Scalar) -> Float[Array, "K N"]:
    """Returns the memberships d^(-2 / (m - 1)), normalised over the clusters.

    An example at a centroid belongs to this centroid alone. If several centroids
    coincide there, they share the membership equally.

    Args:
        squares: the squared distances d^2 of clusters and examples [K, N].
        fuzzifier: the exponent m > 1.

    Returns:
        The memberships [K, N], in [0, 1]; each column sums to 1.
    """
    # Logarithms avoid overflow: at m = 1.1 the exponent of d^2 is -10.
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
    """Runs fuzzy c-means and returns the final centroids."""
    num_iters, tolerance = stop
    norms = jnp.sum(x**2, axis=-1)[None]

    def memberships_of(centroids):
        distances = jnp.maximum(relative_distances(x, centroids) + norms, 0)
        return memberships(distances, fuzzifier)

    def improve(carry):
        iteration, centroids, shares, _ = carry
        parts = weights[None] * shares**fuzzifier
        mass = parts.sum(axis=1)[:, None]
        sums = jnp.matmul(parts, x, precision=jax.lax.Precision.HIGHEST)
        # A cluster without any membership keeps its centroid.
        centroids = jnp.where(mass > 0, sums / jnp.where(mass > 0, mass, 1), centroids)
        new_shares = memberships_of(centroids)
        change = jnp.max(jnp.where(weights[None] > 0, jnp.abs(new_shares - shares), 0))
        return iteration + 1, centroids, new_shares, change

    def unfinished(carry):
        iteration, _, _, change = carry
        return (change > tolerance) & (iteration < num_iters)

    start = (0, centroids, memberships_of(centroids), jnp.array(jnp.inf))
    return jax.lax.while_loop(unfinished, improve, start)[1]


def _objective(x, weights, fuzzifier, centroids) -> Float[Array, ""]:
    """Returns the weighted sum of u^m d^2."""
    distances = squared_distances(x, centroids)
    shares = memberships(distances, fuzzifier) ** fuzzifier
    return jnp.sum(weights[None] * shares * distances)


def _result(x, weights, fuzzifier, offset, centroids) -> FuzzyResult:
    """Returns the result; `centroids` are relative to `offset`, `x` is not."""
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
"""The convergence of the scaling is tested every so many iterations."""
LEAST = 1e-30
"""Lower bound of the softmax. A column that underflows in all rows cannot be scaled."""


@checked
def sinkhorn(
    scores: Float[Array, "N K"],
    *,
    sharpness: Scalar = 25.0,
    num_iters: int = 100,
    tolerance: Scalar = 1e-2,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, "N K"]:
    """Returns soft assignments in which all clusters have the same total weight.

    The function scales softmax(sharpness * scores) alternately: columns to the sum N /
    K, then rows to the sum 1. Rows are scaled last, so their sums are exact. Column
    sums are exact only at convergence. For compact clusters, ten iterations leave the
    column sums far from N / K.

    Args:
        scores: the score of each example and cluster [N, K], for example the cosine of
            example and centroid.
        sharpness: the inverse of the entropic regularisation.
        num_iters: the maximum number of iterations.
        tolerance: the iterations stop when the relative changes of the row scalings sum
            to less than this. The change is tested in the first iteration and in every
            tenth after it, as in Orchestra's code.
        mask: bool [N], False for examples to ignore; None uses all examples.

    Returns:
        float32 [N, K], in [0, 1]: rows sum to 1, masked rows are 0.

    Examples:
        >>> scores = jnp.array([[1.0, 0.9], [1.0, 0.8]])  # cluster 0 is nearer to both
        >>> print(sinkhorn(scores, tolerance=1e-6).round(2))
        [[0.22 0.78]
         [0.78 0.22]]
    """
    shares = jax.nn.softmax(sharpness * scores.astype(jnp.float32), axis=1)
    shares = jnp.maximum(shares, LEAST)
    mask = jnp.ones(len(scores), bool) if mask is None else mask
    count = jnp.maximum(mask.sum(), 1)
    shares = jnp.where(mask[:, None], shares, 0)

    def iterate(carry):
        i, rows, _, change = carry
        columns = 1 / scores.shape[1] / (rows @ shares)
        sums = jnp.where(mask, shares @ columns, 1)
        new_rows = jnp.where(mask, 1 / count / sums, 0)
        new_change = jnp.sum(jnp.abs(jnp.where(mask, rows * count * sums - 1, 0)))
        return i + 1, new_rows, columns, jnp.where(i % EVERY == 0, new_change, change)

    def unfinished(carry):
        i, *_, change = carry
        return (change >= tolerance) & (i < num_iters)

    initial = jnp.where(mask, 1 / count, 0.0), jnp.zeros(scores.shape[1])
    start = 0, *initial, jnp.float32(jnp.inf)
    _, rows, columns, _ = lax.while_loop(unfinished, iterate, start)
    return count * rows[:, None] * shares * columns[None]


@checked
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
    """Returns unit centroids of clusters of roughly equal size.

    This is Orchestra's local clustering. It starts at random examples and alternates
    two steps. First, each example goes to the cluster of its largest `sinkhorn`
    assignment. Then each centroid becomes the direction of the mean of its examples.
    The centroid of an empty cluster becomes a random example.

    Args:
        key: the random key of the draws.
        x: the examples [N, D], of unit length.
        num_clusters: the number K of clusters, at most N.
        sharpness: the inverse of the entropic regularisation of `sinkhorn`.
        num_rounds: the number of alternations.
        num_iters: the maximum number of iterations of `sinkhorn`.
        mask: bool [N], False for examples to ignore; None uses all examples. If fewer
            than K examples remain, some centroids start at the same example.

    Returns:
        The centroids [K, D], of unit length.

    Raises:
        ValueError: num_clusters is below 1 or above N.

    Examples:
        >>> x = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> print(jnp.sort(equal_clusters(jax.random.key(0), x, 2), axis=0))
        [[0. 0.]
         [1. 1.]]
    """
    check_num_clusters(num_clusters, len(x))
    is_counted = jnp.ones(len(x), bool) if mask is None else mask
    x = jnp.where(is_counted[:, None], x.astype(jnp.float32), 0)
    count = jnp.maximum(is_counted.sum(), 1)

    def random_examples(key):
        draws = jax.random.uniform(key, (len(x),))
        order = jnp.argsort(jnp.where(is_counted, draws, jnp.inf))
        return x[order[jnp.arange(num_clusters) % count]]

    def improve(centroids, key):
        cosines = jnp.matmul(x, centroids.T, precision=lax.Precision.HIGHEST)
        shares = sinkhorn(cosines, sharpness=sharpness, num_iters=num_iters, mask=mask)
        nearest = jnp.argmax(shares, axis=1)
        members = jax.nn.one_hot(nearest, num_clusters) * is_counted[:, None]
        sums = jnp.matmul(members.T, x, precision=lax.Precision.HIGHEST)
        is_empty = members.sum(axis=0) == 0
        sums = jnp.where(is_empty[:, None], random_examples(key), sums)
        return normalize(sums), None

    keys = jax.random.split(key, num_rounds + 1)
    return lax.scan(improve, normalize(random_examples(keys[0])), keys[1:])[0]
