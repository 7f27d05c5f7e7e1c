"""Baselines without a network: exact federated c-means and FFCM.

Exact federated c-means: clients upload sums and counts, so that the result equals the
result of the central method.
    A Federated Fuzzy c-Means Clustering Algorithm
    José Luis Corcuera Bárcena, Francesco Marcelloni, Alessandro Renda, Alessio Bechini,
    Pietro Ducange. 2021. CEUR Workshop Proceedings 3074.
    Authors' code: https://github.com/Unipisa/FederatedClustering

FFCM: clients upload centroids of fuzzy c-means, and the server aggregates them.
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
from jaxtyping import Array, Bool, Float, Int

from fcjax.algorithms.rounds import ever_present, keep_state, never_done
from fcjax.cluster import assign_nearest, fuzzy_lloyd, kmeans, lloyd
from fcjax.data.augment import client_rows, row_reader
from fcjax.federated import clients, server
from fcjax.federated.kmeans import (
    Clusters,
    KMeans,
    Read,
    no_clusters,
    uploaded_means,
)
from fcjax.privacy.guarantee import least_members, noise_in
from fcjax.privacy.kmeans import PrivateKMeans
from fcjax.ragged import Ragged
from fcjax.types import (
    FederatedClustering,
    Federation,
    PRNGKey,
    Scalar,
    Stage,
    State,
    Uploads,
)

# --- Common to methods without a network


class MovingCentroids(NamedTuple):
    """The server's state of a method that updates centroids in every round."""

    centroids: Float[Array, "K D"]
    """The global centroids."""
    moved: Float[Array, ""]
    """Frobenius norm of the last change of the centroids."""


def begin(centroids: Float[Array, "K D"]) -> State:
    """Returns the state before the first round, with the given centroids.

    Args:
        centroids: the initial centroids.

    Returns:
        The state. Its `moved` is infinite.
    """
    return State(MovingCentroids(centroids, jnp.float32(jnp.inf)))


def move(before: MovingCentroids, centroids: Float[Array, "K D"]) -> MovingCentroids:
    """Returns the server's state after a round with new centroids.

    Args:
        before: the server's state before the round.
        centroids: the new centroids.

    Returns:
        The new state of the server.
    """
    return MovingCentroids(centroids, jnp.linalg.norm(centroids - before.centroids))


def one_stage_method(
    init: Callable,
    round: Callable,
    *,
    unit_length: bool,
    num_rounds: int = 1,
    tolerance: Scalar | None = None,
) -> FederatedClustering:
    """Builds a method with one stage, `cluster`, that clusters the raw examples.

    Args:
        init: (key, federation) -> the state before the first round. The server's state
            has `centroids` [K, D], unless the caller replaces `assign`. With a
            tolerance it also has `moved`, see `MovingCentroids`.
        round: (key, state, federation) -> (state, metrics).
        unit_length: scale the examples to L2 norm 1.
        num_rounds: maximum number of rounds.
        tolerance: the stage ends once a round moves the centroids by less than this
            Frobenius norm; None runs all rounds.

    Returns:
        The method. The embedding of an example is the flattened example. Its cluster is
        the nearest centroid.
    """

    def embed(_, federation: Federation):
        return client_rows(federation, unit_length=unit_length)

    read = partial(row_reader, unit_length=unit_length)

    def assign(state: State, federation: Federation):
        return nearest_of_rows(state.server.centroids, read, federation)

    def done(state: State):
        return (
            never_done(state) if tolerance is None else state.server.moved < tolerance
        )

    stage = Stage("cluster", keep_state, round, num_rounds, done)
    return FederatedClustering(init, (stage,), embed, assign)


def nearest_of_rows(
    centroids: Float[Array, "K D"],
    read: Callable[[Federation], Read],
    federation: Federation,
) -> Int[Array, "M N"] | Ragged:
    """Assigns every example to its nearest centroid, one client after another.

    Args:
        centroids: the centroids.
        read: (federation) -> the function that reads examples as rows.
        federation: the federation to cluster.

    Returns:
        The cluster of every example [M, N].
    """

    def nearest(indices):
        return assign_nearest(read(federation)(indices), centroids)

    if clients.is_large(federation.mask, centroids.shape[1]):
        in_chunks = partial(clients.map_chunks, nearest)
        return clients.for_each(in_chunks, federation.indices)
    return clients.for_each(nearest, federation.indices)


# --- Exact federated c-means


class Server(NamedTuple):
    """The server's state of exact federated c-means."""

    clusters: Clusters


def exact_cmeans(
    settings: Any,
    *,
    num_clusters: int,
    fuzzifier: Scalar | None = None,
    tolerance: Scalar = 1e-4,
) -> FederatedClustering:
    """Builds exact federated c-means: each round is one step of the central method.

    The clients upload sums and counts. From the same initial centroids the result
    equals the result of the central method. The initial centroids come from the
    clients' local centroids, see `fcjax.federated.kmeans.seed_centroids`.

    Args:
        settings: one value per setting of `fcjax.methods.ExactKMeans`.
        num_clusters: K.
        fuzzifier: m > 1 of fuzzy c-means; None is k-means.
        tolerance: the stage ends once a round moves the centroids by at most this
            Frobenius norm.

    Returns:
        The method: one stage `cluster`. Its metrics are those of
        `fcjax.federated.kmeans.KMeans`.

    Examples:
        >>> from fcjax.methods import ExactKMeans
        >>> settings = ExactKMeans().plain()
        >>> method = exact_cmeans(settings, num_clusters=3, fuzzifier=1.1)
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('cluster', 100)]
    """

    def init(_: PRNGKey, federation: Federation) -> State:
        num_features = math.prod(federation.pool.shape[1:])
        return State(Server(no_clusters(num_clusters, num_features)))

    read = partial(row_reader, unit_length=settings.unit_length)

    def embed(_: State, federation: Federation):
        return client_rows(federation, unit_length=settings.unit_length)

    def points(_: State, federation: Federation):
        return federation.indices, federation.mask

    def assign(state: State, federation: Federation):
        return nearest_of_rows(state.server.clusters.centroids, read, federation)

    def uploads(_: PRNGKey, state: State, federation: Federation) -> Uploads:
        centroids = state.server.clusters.centroids

        def of_client(indices, mask, present):
            x = read(federation)(indices)
            nearest = assign_nearest(x, centroids)
            return uploaded_means(
                *(x, mask, present, nearest, centroids),
                fuzzifier=fuzzifier,
                min_members=least_members(settings),
            )

        present = ever_present(federation)
        each = clients.for_each(of_client, *federation[1:3], present)
        return Uploads(*each)

    # All examples as rows would be a second copy of the data set.
    options = {"fuzzifier": fuzzifier, "read": read, "keep": False}
    if noise := noise_in(settings):
        private = PrivateKMeans(points, num_clusters, **options, **noise.kmeans())
        return FederatedClustering(init, (private.stage("cluster"),), embed, assign)
    options |= {"tolerance": tolerance, "min_members": least_members(settings)}
    kmeans = KMeans(points, num_clusters, **options)
    stage = kmeans.stage("cluster", settings.num_rounds)
    return FederatedClustering(init, (stage,), embed, assign, uploads=uploads)


# --- FFCM


def ffcm(
    settings: Any,
    *,
    num_clusters: int,
    aggregation: Literal["kmeans", "mean"] = "kmeans",
    tolerance: Scalar = 1e-4,
) -> FederatedClustering:
    """Builds FFCM: clients run fuzzy c-means, the server aggregates their centroids.

    In each round the clients begin fuzzy c-means with the server's centroids. The
    initial centroids are uniform in [0, 1], as in the authors' code.

    Args:
        settings: one value per setting of `fcjax.methods.FFCM`. The FFCM paper has the
            fuzzifier 2, which on row-normalised pixels moves all centroids to the mean;
            the code of SDA-FC has 1.1. The authors' code allows 1000 rounds, and 1000
            iterations per client and round.
        num_clusters: K.
        aggregation: `kmeans` clusters the clients' centroids with equal weights. `mean`
            averages the centroids of the same index, weighted by their supports (sums
            of memberships). It fails if clients have different clusters: on MNIST at
            p = 1 the NMI is 0.19 with `mean` and 0.52 with `kmeans`.
        tolerance: a client stops once no membership changes by more. The stage ends
            once a round moves the centroids by less than this Frobenius norm.

    Returns:
        The method: one stage `cluster`. Its metrics are the `loss` (fuzzy objective per
        example, averaged over the clients), `participants`, `moved` (Frobenius norm of
        the change of the centroids) and the traffic.

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
    method = one_stage_method(
        partial(initial_state, num_clusters),
        partial(round, improve, aggregation == "mean", settings.unit_length),
        unit_length=settings.unit_length,
        num_rounds=settings.num_rounds,
        tolerance=tolerance,
    )
    return method._replace(
        uploads=partial(client_uploads, improve, settings.unit_length)
    )


def round(
    improve: Callable,
    by_mean: bool,
    unit_length: bool,
    key: PRNGKey,
    state: State,
    federation: Federation,
) -> tuple[State, dict[str, Array]]:
    """Runs one round of FFCM.

    Args:
        improve: (examples, centroids, mask) -> the result of a client's fuzzy c-means.
        by_mean: average the clients' centroids; otherwise cluster them by k-means.
        unit_length: scale the examples to L2 norm 1.
        key: the key of the round.
        state: the state before the round.
        federation: the federation in the current round.

    Returns:
        The state after the round, and the metrics of the round.
    """
    before: MovingCentroids = state.server
    present = server.participants(federation)

    read = row_reader(federation, unit_length=unit_length)

    def client_round(indices, mask):
        result = improve(read(indices), before.centroids, mask=mask)
        supports = jnp.sum(result.memberships, axis=0, where=mask[:, None])
        return result.centroids, supports, result.objective / mask.sum()

    results = clients.for_each(client_round, federation.indices, federation.mask)
    (local, supports, losses), participating = server.gather((results, present))
    upload = {"centroids": local[0]}
    if by_mean:
        upload["supports"] = supports[0]
        centroids = support_mean(local, supports, participating, before.centroids)
    else:
        first = federation.now.round == 0
        centroids = cluster_all(key, local, participating, before.centroids, first)
    after = move(before, centroids)
    metrics = {
        **server.measure(participating, {"loss": losses}),
        "moved": after.moved,
        **server.traffic(participating, up=upload, down={"centroids": centroids}),
    }
    return State(after), metrics


def client_uploads(
    improve: Callable,
    unit_length: bool,
    _: PRNGKey,
    state: State,
    federation: Federation,
) -> Uploads:
    """Returns the centroids that the clients of FFCM would upload in a further round.

    The state has no centroids of clients. In a run that has converged, a further round
    moves no centroid by more than the tolerance.

    Args:
        improve: (examples, centroids, mask) -> the result of a client's fuzzy c-means.
        unit_length: scale the examples to L2 norm 1.
        state: the state after the last round.
        federation: the federation.

    Returns:
        The centroids of each client, with the number of its examples whose nearest
        centroid they are.
    """
    read = row_reader(federation, unit_length=unit_length)

    def of_client(indices, mask, present):
        x = read(indices)
        centroids = improve(x, state.server.centroids, mask=mask).centroids
        nearest = assign_nearest(x, centroids)
        is_member = nearest[None] == jnp.arange(len(centroids))[:, None]
        members = jnp.sum(is_member & mask[None], axis=1)
        return jnp.where(present, centroids, jnp.nan), members

    present = ever_present(federation)
    return Uploads(*clients.for_each(of_client, *federation[1:3], present))


def initial_state(num_clusters: int, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round: random centroids in [0, 1].

    Args:
        num_clusters: K, the number of clusters.
        key: the key of the centroids.
        federation: the federation.

    Returns:
        The state, with K centroids of the size of a flattened example.
    """
    num_features = math.prod(federation.pool.shape[1:])
    return begin(jax.random.uniform(key, (num_clusters, num_features)))


def support_mean(
    local: Float[Array, "M K D"],
    supports: Float[Array, "M K"],
    participating: Bool[Array, "M"],
    before: Float[Array, "K D"],
) -> Float[Array, "K D"]:
    """Averages the clients' centroids of each index, weighted by their supports.

    Args:
        local: the clients' centroids.
        supports: the sum of memberships of each of these centroids.
        participating: the participating clients; the others are ignored.
        before: the centroids to keep if the total support is 0.

    Returns:
        The centroids [K, D].
    """
    weights = jnp.where(participating[:, None], supports, 0)
    total = weights.sum(axis=0)
    # The values of an absent client may be NaN, and 0 * NaN is NaN.
    where = participating[:, None, None]
    sums = jnp.sum(weights[..., None] * local, axis=0, where=where)
    mean = sums / jnp.where(total > 0, total, 1)[:, None]
    return jnp.where(total[:, None] > 0, mean, before)


def cluster_all(
    key: PRNGKey,
    local: Float[Array, "M K D"],
    participating: Bool[Array, "M"],
    before: Float[Array, "K D"],
    first: Bool[Array, ""],
) -> Float[Array, "K D"]:
    """Runs k-means on the clients' centroids, with equal weights.

    Args:
        key: the key of the seedings.
        local: the clients' centroids.
        participating: the participating clients; the others are ignored.
        before: the server's centroids before the round.
        first: whether this is the first round. The first round draws new seeds; later
            rounds begin with `before`.

    Returns:
        The centroids [K, D].
    """
    num_clients, num_clusters, _ = local.shape
    points = local.reshape(num_clients * num_clusters, -1)
    mask = jnp.repeat(participating, num_clusters)

    def seed(*_):
        return kmeans(key, points, num_clusters, mask=mask).centroids

    # A loop of 0 or 1 iterations: later rounds do not run the seedings.
    from_seeds = lax.fori_loop(0, first.astype(int), seed, before)
    from_before = lloyd(points, before, mask=mask, num_iters=500).centroids
    return jnp.where(first, from_seeds, from_before)
