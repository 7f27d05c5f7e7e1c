"""Baselines without a network: exact federated c-means and FFCM.

Federated c-means whose result is the central one: clients send sums and counts.

A Federated Fuzzy c-Means Clustering Algorithm
    José Luis Corcuera Bárcena, Francesco Marcelloni, Alessandro Renda, Alessio Bechini,
    Pietro Ducange. 2021. CEUR Workshop Proceedings 3074.
    Authors' code: https://github.com/Unipisa/FederatedClustering

FFCM: federated fuzzy c-means.

Towards Federated Clustering: A Federated Fuzzy c-Means Algorithm (FFCM)
    Morris Stallmann, Anna Wilbik. 2022. https://arxiv.org/abs/2201.07316
    Authors' code: https://github.com/stallmo/federated_clustering
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from fcjax.algorithms.rounds import keep_state, never_done
from fcjax.cluster import assign_nearest, fuzzy_lloyd, kmeans, lloyd
from fcjax.data.augment import client_rows
from fcjax.federated import clients, server
from fcjax.federated.kmeans import Clusters, KMeans, no_clusters
from fcjax.types import FederatedClustering, Federation, PRNGKey, Scalar, Stage, State

# --- Common to methods without a network


class MovingCentroids(NamedTuple):
    """The server of a method whose centroids go from round to round."""

    centroids: Float[Array, "K D"]
    moved: Float[Array, ""]  # Frobenius norm of their last step


def begin(centroids: Float[Array, "K D"]) -> State:
    """Returns the state before the first round."""
    return State(MovingCentroids(centroids, jnp.float32(jnp.inf)))


def move(before: MovingCentroids, centroids: Float[Array, "K D"]) -> MovingCentroids:
    """Returns the server after a round that has found these centroids."""
    return MovingCentroids(centroids, jnp.linalg.norm(centroids - before.centroids))


def one_stage_method(
    init: Callable,
    round: Callable,
    *,
    unit_length: bool,
    num_rounds: int = 1,
    tolerance: Scalar | None = None,
) -> FederatedClustering:
    """Returns a method of one stage, `cluster`.

    Args:
        init: as in `FederatedClustering`; the server has `centroids` [K, D], unless the
            caller replaces `assign`, and `moved` where there is a tolerance.
        round: as in `Stage`.
        unit_length: of the rows that are clustered, see `vectors.as_rows`.
        num_rounds: bound of the rounds.
        tolerance: the stage ends once the centroids have moved by less; None runs all
            rounds.

    Returns:
        The method. An example's embedding is its row, its cluster the nearest centroid.
    """

    def embed(_, federation: Federation):
        return client_rows(federation, unit_length=unit_length)

    def assign(state: State, federation: Federation):
        x = embed(state, federation)
        nearest = partial(assign_nearest, centroids=state.server.centroids)
        return clients.for_each(nearest, x)

    def done(state: State):
        return (
            never_done(state) if tolerance is None else state.server.moved < tolerance
        )

    stage = Stage("cluster", keep_state, round, num_rounds, done)
    return FederatedClustering(init, (stage,), embed, assign)


# --- Exact federated c-means


class Clustered(NamedTuple):
    """The server of exact federated c-means."""

    clusters: Clusters


def exact_cmeans(
    settings: Any,
    *,
    num_clusters: int,
    fuzzifier: Scalar | None = None,
    tolerance: Scalar = 1e-4,
) -> FederatedClustering:
    """Builds exact federated c-means: a round is one iteration of the central method.

    The clients upload sums and counts. From the same start the result is that of the
    central method. The start comes from the clients' local centroids, see
    `fcjax.federated.kmeans.seed_centroids`.

    Args:
        settings: one value per setting of `fcjax.methods.ExactKMeans`. The stage ends
            before the last round once the centroids stand still.
        num_clusters: K.
        fuzzifier: m > 1; None is k-means.
        tolerance: the stage ends once the centroids move by no more.

    Returns:
        The method, one stage. Its metrics are those of `fcjax.federated.kmeans.KMeans`.

    Examples:
        >>> from fcjax.methods import ExactKMeans
        >>> settings = ExactKMeans().plain()
        >>> method = exact_cmeans(settings, num_clusters=3, fuzzifier=1.1)
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('cluster', 100)]
    """

    def init(_: PRNGKey, federation: Federation) -> State:
        num_features = math.prod(federation.pool.shape[1:])
        return State(Clustered(no_clusters(num_clusters, num_features)))

    def embed(_: State, federation: Federation):
        return client_rows(federation, unit_length=settings.unit_length)

    def points(state: State, federation: Federation):
        return embed(state, federation), federation.mask

    def assign(state: State, federation: Federation):
        nearest = partial(Clusters.nearest, state.server.clusters)
        return clients.for_each(nearest, embed(state, federation))

    # A kept copy of the data could be as large as memory.
    law = {"fuzzifier": fuzzifier, "tolerance": tolerance, "keep": False}
    kmeans = KMeans(points, num_clusters, **law)
    stage = kmeans.stage("cluster", settings.num_rounds)
    return FederatedClustering(init, (stage,), embed, assign)


# --- FFCM


def ffcm(
    settings: Any,
    *,
    num_clusters: int,
    aggregation: Literal["kmeans", "mean"] = "kmeans",
    tolerance: Scalar = 1e-4,
) -> FederatedClustering:
    """Builds FFCM: clients improve the server's centroids by fuzzy c-means of their
    own, the server averages or clusters what they found.

    Args:
        settings: one value per setting of `fcjax.methods.FFCM`. The FFCM paper has the
            fuzzifier 2, which on row-normalised pixels draws all centroids to the mean;
            1.1 is that of the code of SDA-FC. The stage ends before the last round once
            the centroids stand still. The authors' code allows 1000 rounds, and 1000
            iterations of a client in a round.
        num_clusters: K.
        aggregation: `kmeans` clusters the clients' centroids, each counting once;
            `mean` averages those of one number, weighted by their supports (the sums of
            their memberships), which fails where clients hold different clusters: on
            MNIST at p = 1 it has NMI 0.19, `kmeans` 0.52 and the CCFC paper 0.54.
        tolerance: of the clients' memberships and of the server's step.

    Returns:
        The method, one stage. Centroids start uniform in [0, 1], as in the code. Its
        metrics are the `loss` (the clients' fuzzy objective an example, their mean),
        `participants`, `moved` and the traffic.

    Examples:
        >>> from fcjax.methods import FFCM
        >>> method = ffcm(FFCM().plain(), num_clusters=3, aggregation="mean")
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('cluster', 100)]
    """
    improve = partial(
        fuzzy_lloyd,
        fuzzifier=settings.fuzzifier,
        num_iters=settings.local_iters,
        tolerance=tolerance,
    )
    return one_stage_method(
        partial(initial_state, num_clusters),
        partial(round, improve, aggregation == "mean", settings.unit_length),
        unit_length=settings.unit_length,
        num_rounds=settings.num_rounds,
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
    theirs.
    """
    before: MovingCentroids = state.server
    present = server.participants(federation)

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
        first = federation.now.round == 0
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
    supports; a centroid that nobody supports stays.
    """
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
    the last ones after it.
    """
    num_clients, num_clusters, _ = received.shape
    points = received.reshape(num_clients * num_clusters, -1)
    mask = jnp.repeat(answered, num_clusters)

    def seed(*_):
        return kmeans(key, points, num_clusters, mask=mask).centroids

    # A loop, that later rounds go past it.
    seeded = lax.fori_loop(0, first.astype(int), seed, before)
    warm = lloyd(points, before, mask=mask, num_iters=500).centroids
    return jnp.where(first, seeded, warm)
