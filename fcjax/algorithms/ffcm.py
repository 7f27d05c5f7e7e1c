"""FFCM: federated fuzzy c-means.

Towards Federated Clustering: A Federated Fuzzy c-Means Algorithm (FFCM)
    Morris Stallmann, Anna Wilbik. 2022. https://arxiv.org/abs/2201.07316
    Authors' code: https://github.com/stallmo/federated_clustering
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from fcjax import clients, server
from fcjax.algorithms.plain import MovingCentroids, begin, move, plain
from fcjax.cluster import fuzzy_lloyd, kmeans, lloyd
from fcjax.data.vectors import client_rows
from fcjax.types import FederatedClustering, Federation, PRNGKey, Scalar, State


def ffcm(
    *,
    num_clusters: int,
    fuzzifier: Scalar = 1.1,
    num_rounds: int = 20,
    local_iters: int = 30,
    aggregation: Literal["kmeans", "mean"] = "kmeans",
    tolerance: Scalar = 1e-4,
    unit_length: bool = True,
) -> FederatedClustering:
    """Builds FFCM: clients improve the server's centroids by fuzzy c-means of their
    own, the server averages or clusters what they found.

    Args:
        num_clusters: K.
        fuzzifier: m > 1. The FFCM paper has 2, which on row-normalised pixels draws all
            centroids to the mean; 1.1 is that of the code of SDA-FC.
        num_rounds: bound of the rounds; the stage ends once the centroids stand still.
            The authors' code allows 1000.
        local_iters: bound of the clients' iterations in a round; the code's is 1000.
        aggregation: `kmeans` clusters the clients' centroids, each counting once;
            `mean` averages those of one number, weighted by their supports (the sums of
            their memberships), which fails where clients hold different clusters: on
            MNIST at p = 1 it has NMI 0.19, `kmeans` 0.52 and the CCFC paper 0.54.
        tolerance: of the clients' memberships and of the server's step.
        unit_length: cluster rows of L2 norm 1; False takes the pixels as they are.

    Returns:
        The method, one stage. Centroids start uniform in [0, 1], as in the code. Its
        metrics are the `loss` (the clients' fuzzy objective an example, their mean),
        `participants`, `moved` and the traffic.

    Examples:
        >>> method = ffcm(num_clusters=3, aggregation="mean")
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('cluster', 20)]
    """
    improve = partial(
        fuzzy_lloyd, fuzzifier=fuzzifier, num_iters=local_iters, tolerance=tolerance
    )
    one = partial(round, improve, aggregation == "mean", unit_length)
    return plain(
        partial(initial_state, num_clusters),
        one,
        unit_length=unit_length,
        num_rounds=num_rounds,
        tolerance=tolerance,
    )


def round(
    improve: Callable,
    by_mean: bool,
    unit_length: bool,
    key: PRNGKey,
    state: State,
    federation: Federation,
) -> tuple[State, dict[str, Array]]:
    """A round: clients improve the server's centroids, the server averages or clusters
    theirs."""
    before: MovingCentroids = state.server
    present = server.participants(federation, before.num_rounds)

    def client_round(x, mask):
        found = improve(x, before.centroids, mask=mask)
        supports = jnp.sum(found.memberships, axis=0, where=mask[:, None])
        return found.centroids, supports, found.objective / mask.sum()

    x = client_rows(federation, unit_length=unit_length)
    found = clients.for_each(client_round, x, federation.mask)
    (received, supports, losses), answered = server.gather((found, present))
    upload = {"centroids": received[0]}
    if by_mean:
        upload["supports"] = supports[0]
        centroids = support_mean(received, supports, answered, before.centroids)
    else:
        first = before.num_rounds == 0
        centroids = cluster_all(key, received, answered, before.centroids, first)
    after = move(before, centroids)
    metrics = {
        **server.measure(answered, {"loss": losses}),
        "moved": after.moved,
        **server.traffic(answered, up=upload, down={"centroids": centroids}),
    }
    return State(after), metrics


def initial_state(num_clusters: int, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round: centroids at random."""
    num_features = math.prod(federation.pool.shape[1:])
    return begin(jax.random.uniform(key, (num_clusters, num_features)))


def support_mean(
    received: Float[Array, "M K D"],
    supports: Float[Array, "M K"],
    answered: Bool[Array, "M"],
    before: Float[Array, "K D"],
) -> Float[Array, "K D"]:
    """Returns the mean of the clients' centroids of each number, weighted by their
    supports; a centroid that nobody supports stays."""
    shares = jnp.where(answered[:, None], supports, 0)
    total = shares.sum(axis=0)
    # An absent client may hold NaN: 0 * NaN would let it through.
    sums = jnp.sum(shares[..., None] * received, axis=0, where=answered[:, None, None])
    mean = sums / jnp.where(total > 0, total, 1)[:, None]
    return jnp.where(total[:, None] > 0, mean, before)


def cluster_all(
    key: PRNGKey,
    received: Float[Array, "M K D"],
    answered: Bool[Array, "M"],
    before: Float[Array, "K D"],
    first: Bool[Array, ""],
) -> Float[Array, "K D"]:
    """Returns k-means of all centroids: from seeds of its own in the first round, from
    the last ones after it."""
    num_clients, num_clusters, _ = received.shape
    points = received.reshape(num_clients * num_clusters, -1)
    mask = jnp.repeat(answered, num_clusters)

    def seed(*_):
        return kmeans(key, points, num_clusters, mask=mask).centroids

    # A loop, that later rounds go past it.
    seeded = lax.fori_loop(0, first.astype(int), seed, before)
    warm = lloyd(points, before, mask=mask, num_iters=500).centroids
    return jnp.where(first, seeded, warm)
