"""k-FED: one-shot federated k-means.

Heterogeneity for the Win: One-Shot Federated Clustering
    Don Kurian Dennis, Tian Li, Virginia Smith. 2021. https://arxiv.org/abs/2103.00697
    Authors' code: https://github.com/metastableB/kfed
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fcjax.algorithms.baselines import one_stage_method
from fcjax.cluster import assign_nearest, kmeans, lloyd
from fcjax.cluster.kmeans import clear, farthest_first, plus_plus, squared_distances
from fcjax.data.augment import row_reader
from fcjax.federated import clients, server
from fcjax.privacy.guarantee import least_members
from fcjax.ragged import Ragged
from fcjax.types import FederatedClustering, Federation, PRNGKey, State, Uploads

matmul = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

LocalStart = Literal["projected", "kmeans++"]
"""The initial centroids of a client's k-means, see `kfed`."""
OVERSAMPLING, POWER_ITERS = 10, 5
"""Number of additional directions, and of power iterations, of the randomised singular
vectors."""


class Server(NamedTuple):
    """The server's state."""

    centroids: Float[Array, "K D"]
    """The global centroids; 0 before the round."""


class Local(NamedTuple):
    """The state of all clients; L is the number of local clusters."""

    centroids: Float[Array, "M L D"]
    """The local centroids of each client."""
    clusters: Int[Array, "M L"]
    """The global cluster of each local centroid."""
    answered: Bool[Array, "M"]
    """Whether the client participated in the round."""


class Setup(NamedTuple):
    """The arguments of `kfed`."""

    settings: Any
    num_clusters: int
    num_iters: int


def kfed(
    settings: Any, *, num_clusters: int, num_iters: int = 300
) -> FederatedClustering:
    """Builds k-FED: clients cluster their examples, the server clusters the centroids.

    The number of clusters of a client is k' = `local_clusters`. The paper's theory
    assumes k' <= sqrt(k). For data that is partitioned at random only k' = k makes
    sense.

    The first centroids of a client depend on `local_start`. "projected" follows the
    paper, see `projected_start`. "kmeans++" takes the best of ten greedy k-means++
    seedings.

    With `inherit` the cluster of an example is the global cluster of its nearest local
    centroid, as in the paper. Otherwise it is the nearest global centroid; this
    reproduces the numbers of the CCFC paper. Examples of new clients always get the
    nearest global centroid.

    Args:
        settings: one value per setting of `fcjax.methods.KFed`.
        num_clusters: k, the number of global clusters.
        num_iters: maximum number of Lloyd iterations, on the clients and on the server.
            The code iterates on both. In the paper the server takes one step.

    Returns:
        The method: one stage of one round. Its metrics are the `loss` (inertia per
        example of the local clusters, averaged over the clients), `participants` and
        the traffic.

    Raises:
        ValueError: if `local_clusters` is not in 1..num_clusters, or `local_start` is
            unknown.

    Examples:
        >>> from fcjax.methods import KFed
        >>> from fcjax.types import Now
        >>> federation = Federation(
        ...     pool=jnp.array([[0.0], [0.1], [5.0], [5.1]]),
        ...     indices=jnp.array([[0, 2], [1, 3]]),  # each client has both clusters
        ...     mask=jnp.ones((2, 2), bool),
        ...     present=jnp.ones((1, 2), bool),
        ...     local_clusters=jnp.full(2, 2),
        ...     now=Now(jnp.int32(0), jnp.int32(0), jnp.array(True)),
        ... )
        >>> settings = KFed(local_clusters=2, unit_length=False).plain()
        >>> method = kfed(settings, num_clusters=2)
        >>> key = jax.random.key(0)
        >>> state = method.init(key, federation)
        >>> state, metrics = jax.jit(method.stages[0].round)(key, state, federation)
        >>> clusters = method.assign(state, federation)
        >>> (clusters[:, :1] == clusters).tolist()  # two clusters on each client
        [[True, False], [True, False]]
    """
    if not 1 <= settings.local_clusters <= num_clusters:
        raise ValueError(
            f"local_clusters must lie in 1..{num_clusters}, the number of clusters, "
            f"got {settings.local_clusters}"
        )
    if settings.local_start not in get_args(LocalStart):
        raise ValueError(
            f"local_start must be one of {get_args(LocalStart)}, "
            f"got {settings.local_start!r}"
        )
    setup = Setup(settings, num_clusters, num_iters)
    init, one_round = partial(initial_state, setup), partial(round, setup)
    method = one_stage_method(init, one_round, unit_length=settings.unit_length)
    method = method._replace(by_size=True, uploads=partial(client_uploads, setup))
    if not settings.inherit:
        return method
    return method._replace(assign=partial(assign, setup, method.assign))


def round(
    setup: Setup, key: PRNGKey, _: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """Runs the only round of k-FED.

    The clients cluster their examples (Algorithm 1) and upload their centroids. The
    server clusters these centroids (Algorithm 2). Each client downloads the clusters of
    its centroids.

    Args:
        setup: the arguments of `kfed`.
        key: the key of the round.
        federation: the federation in the current round.

    Returns:
        The state after the round, and the metrics of the round, see `kfed`.
    """
    present = server.participants(federation)
    read = row_reader(federation, unit_length=setup.settings.unit_length)

    def local_clusters(key, indices, mask):
        return client_round(setup, key, read(indices), mask)

    keys = clients.keys(key, len(present))
    local, losses = clients.for_each(
        local_clusters, keys, federation.indices, federation.mask
    )
    kept = jnp.ones(local.shape[:2], bool)
    least = least_members(setup.settings)
    if least > 1:  # Clients withhold centroids of few examples.
        count = partial(count_members, read)
        data = federation.indices, federation.mask
        kept = clients.for_each(count, *data, local) >= least
        local_uploads = jnp.where(kept[..., None], local, 0)
    else:
        local_uploads = local
    uploads, kept, participating, losses = server.gather(
        (local_uploads, kept, present, losses)
    )
    numbers = {"num_clusters": setup.num_clusters, "num_iters": setup.num_iters}
    centroids = aggregate(uploads, participating, kept, **numbers)
    nearest = partial(assign_nearest, centroids=centroids)
    clusters = clients.for_each(nearest, local)
    down = (
        {"clusters": clusters[0]}
        if setup.settings.inherit
        else {"centroids": centroids}
    )
    metrics = server.measure(participating, {"loss": losses})
    metrics |= server.traffic(participating, up={"centroids": local[0]}, down=down)
    return State(Server(centroids), Local(local, clusters, present)), metrics


def client_round(
    setup: Setup, key: PRNGKey, x: Float[Array, "N D"], mask: Bool[Array, "N"]
) -> tuple[Float[Array, "L D"], Float[Array, ""]]:
    """Runs Algorithm 1; returns a client's centroids and its inertia per example.

    Args:
        setup: the arguments of `kfed`.
        key: the key of the client in this round.
        x: the client's examples.
        mask: False at padding.

    Returns:
        The local centroids [L, D] of L local clusters, and the inertia divided by the
        number of examples, a scalar of at least 0.
    """
    number = setup.settings.local_clusters
    if setup.settings.local_start == "kmeans++":
        result = kmeans(key, x, number, mask=mask, num_iters=setup.num_iters)
    else:
        start = projected_start(key, x, mask, num_clusters=number)
        result = lloyd(x, start, mask=mask, num_iters=setup.num_iters)
    return result.centroids, result.inertia / mask.sum()


def projected_start(
    key: PRNGKey, x: Float[Array, "N D"], mask: Bool[Array, "N"], *, num_clusters: int
) -> Float[Array, "L D"]:
    """Computes a client's initial centroids (Algorithm 1, steps 1 to 3).

    The examples are projected onto their leading k' right singular vectors. Greedy
    k-means++ draws k' seeds among the projections. Each seed is replaced by the mean of
    the projections that are at least three times nearer to this seed than to any other
    seed. The means are mapped back to the space of the examples, as in the authors'
    code (fkms/algorithms.py, awasthisheffet). The projection removes noise; a seed that
    is an example would contain noise.

    Args:
        key: the key of all random draws.
        x: the client's examples.
        mask: False at padding.
        num_clusters: k', the number of local clusters.

    Returns:
        The centroids [k', D]. They are in the span of the singular vectors.
    """
    span_key, seed_key = jax.random.split(key)
    x = clear(x, mask.astype(float))
    # With as many vectors as features the projection is a rotation.
    vectors = jnp.eye(x.shape[1])
    if num_clusters < x.shape[1]:
        vectors = top_singular_vectors(span_key, x, num_clusters)
    projected = matmul(x, vectors)
    seeds = plus_plus(seed_key, projected, mask.astype(float), num_clusters)
    distances = squared_distances(projected, projected[seeds])
    nearest = distances.argmin(axis=0)[None] == jnp.arange(num_clusters)[:, None]
    rival = jnp.where(nearest, jnp.inf, distances).min(axis=0)
    # The distances are squared, so the factor 3 becomes 9.
    near = mask & (9 * distances.min(axis=0) <= rival)
    members = nearest & near[None]
    counts = members.sum(axis=1)[:, None]
    sums = matmul(members.astype(float), projected)
    means = jnp.where(counts > 0, sums / jnp.maximum(counts, 1), projected[seeds])
    return matmul(means, vectors.T)


def aggregate(
    uploads: Float[Array, "M L D"],
    participating: Bool[Array, "M"],
    kept: Bool[Array, "M L"] | None = None,
    *,
    num_clusters: int,
    num_iters: int = 300,
) -> Float[Array, "K D"]:
    """Computes the global centroids from the local ones (Algorithm 2).

    The initial centroids are those of the first participating client, then repeatedly
    the local centroid that is farthest from all initial centroids. Lloyd's algorithm
    then clusters all local centroids with equal weights.

    Args:
        uploads: the local centroids of all clients.
        participating: the participating clients; the others are ignored.
        kept: the centroids that their clients have uploaded; None means all.
        num_clusters: k, the number of global clusters.
        num_iters: maximum number of Lloyd iterations.

    Returns:
        The global centroids [K, D].
    """
    num_clients, local_clusters, _ = uploads.shape
    points = uploads.reshape(num_clients * local_clusters, -1)
    kept = jnp.ones((num_clients, local_clusters), bool) if kept is None else kept
    kept &= participating[:, None]
    mask = kept.reshape(-1)
    is_first = jnp.arange(num_clients) == jnp.argmax(kept.any(axis=1))
    first = jnp.repeat(is_first, local_clusters) & mask
    start = farthest_first(points, mask.astype(float), first, num_clusters)
    return lloyd(points, points[start], mask=mask, num_iters=num_iters).centroids


def initial_state(setup: Setup, _: PRNGKey, federation: Federation) -> State:
    """Returns the state before the round, in which no client has participated.

    Args:
        setup: the arguments of `kfed`.
        federation: the federation.

    Returns:
        The state. All centroids are 0.
    """
    num_clients, number = len(federation.indices), setup.settings.local_clusters
    num_features = math.prod(federation.pool.shape[1:])
    local = Local(
        jnp.zeros((num_clients, number, num_features)),
        jnp.zeros((num_clients, number), jnp.int32),
        jnp.zeros(num_clients, bool),
    )
    return State(Server(jnp.zeros((setup.num_clusters, num_features))), local)


def assign(
    setup: Setup, by_server: Callable, state: State, federation: Federation
) -> Int[Array, "M N"] | Ragged:
    """Assigns every example to the global cluster of its nearest local centroid.

    Clients that did not participate use the nearest global centroid. A federation with
    another number of clients has new clients, which all use the nearest global
    centroid.

    Args:
        setup: the arguments of `kfed`.
        by_server: (state, federation) -> the nearest global centroid of every example.
        state: the state after the round.
        federation: the federation to cluster.

    Returns:
        The cluster of every example [M, N].
    """
    read = row_reader(federation, unit_length=setup.settings.unit_length)

    def inherit(indices, centroids, clusters, participated, nearest):
        own = clusters[assign_nearest(read(indices), centroids)]
        return jnp.where(participated, own, nearest)

    local, nearest = state.clients, by_server(state, federation)
    if len(federation.indices) != len(local.answered):
        return nearest
    return clients.for_each(inherit, federation.indices, *local, nearest)


def count_members(
    read: Callable,
    indices: Int[Array, "N"],
    mask: Bool[Array, "N"],
    centroids: Float[Array, "L D"],
) -> Int[Array, "L"]:
    """Counts the examples of a client whose nearest local centroid each one is.

    Args:
        read: (indices) -> the examples.
        indices: the client's examples, as indices into the pool.
        mask: False at padding.
        centroids: the local centroids.

    Returns:
        The number of examples per centroid.
    """
    nearest = assign_nearest(read(indices), centroids)
    is_member = nearest[None] == jnp.arange(len(centroids))[:, None]
    return jnp.sum(is_member & mask[None], axis=1)


def client_uploads(
    setup: Setup, _: PRNGKey, state: State, federation: Federation
) -> Uploads:
    """Returns the uploads of the clients: the local centroids.

    Args:
        setup: the arguments of `kfed`.
        state: the state after the round.
        federation: the federation of the round.

    Returns:
        The local centroids of each client, with the number of its examples whose
        nearest local centroid they are.
    """
    read = row_reader(federation, unit_length=setup.settings.unit_length)
    local: Local = state.clients

    count = partial(count_members, read)
    members = clients.for_each(
        count, federation.indices, federation.mask, local.centroids
    )
    kept = members >= least_members(setup.settings)
    kept &= local.answered[:, None]
    return Uploads(jnp.where(kept[..., None], local.centroids, jnp.nan), members)


def top_singular_vectors(
    key: PRNGKey, x: Float[Array, "N D"], rank: int
) -> Float[Array, "D L"]:
    """Computes leading right singular vectors by randomised subspace iteration.

    Args:
        key: the key of the random initial directions.
        x: a matrix; its rows are not centred.
        rank: L, the number of singular vectors.

    Returns:
        The singular vectors [D, L], one per column, sorted by decreasing singular
        value.

    References:
        Halko, Martinsson and Tropp, `Finding structure with randomness
        <https://arxiv.org/abs/0909.4061>`_, 2011, Algorithm 4.4.
    """
    width = min(rank + OVERSAMPLING, x.shape[1])

    def iterate(_, basis):
        return jnp.linalg.qr(matmul(x.T, matmul(x, basis)))[0]

    basis = jax.random.normal(key, (x.shape[1], width))
    basis = jax.lax.fori_loop(0, POWER_ITERS, iterate, jnp.linalg.qr(basis)[0])
    image = matmul(x, basis)
    _, vectors = jnp.linalg.eigh(matmul(image.T, image))  # in increasing order
    return matmul(basis, vectors[:, ::-1][:, :rank])
