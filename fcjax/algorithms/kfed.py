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
from fcjax.data.augment import client_rows
from fcjax.federated import clients, server
from fcjax.ragged import Ragged
from fcjax.types import FederatedClustering, Federation, PRNGKey, State

matmul = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

LocalStart = Literal["projected", "kmeans++"]
OVERSAMPLING, POWER_ITERS = 10, 5
"""Of the randomised singular vectors: further directions, and how often they turn."""


class Server(NamedTuple):
    centroids: Float[Array, "K D"]


class Local(NamedTuple):
    """What each client made of the server's centroids."""

    centroids: Float[Array, "M L D"]
    clusters: Int[Array, "M L"]  # of each local centroid
    answered: Bool[Array, "M"]


class Setup(NamedTuple):
    """What clients and server share; see `kfed`."""

    settings: Any
    num_clusters: int
    num_iters: int


def kfed(
    settings: Any, *, num_clusters: int, num_iters: int = 300
) -> FederatedClustering:
    """Builds k-FED: clients cluster once, the server clusters their centroids.

    The paper's theory wants k' <= sqrt(k) `local_clusters`; where data is partitioned
    at random only k' = k makes sense. The `local_start` "projected" is the paper's, see
    `projected_start`; "kmeans++" is the best of ten greedy k-means++ starts. With
    `inherit` an example has the cluster of its nearest local centroid, as in the paper.
    Without, it has the nearest centroid of the server, which is how the figures of the
    CCFC paper come out. An example of another federation, which held none in the round,
    always has the nearest centroid of the server.

    Args:
        settings: one value per setting of `fcjax.methods.KFed`.
        num_clusters: k, of the server.
        num_iters: bound of the Lloyd iterations, at the clients and at the server. The
            code iterates at both; the paper's server takes one step.

    Returns:
        The method, one stage of one round. Its metrics are the `loss` (inertia an
        example of the clients' own clustering, their mean), `participants` and the
        traffic.

    Raises:
        ValueError: local_clusters is not in 1 .. num_clusters, or local_start is none
            of the two.

    Examples:
        >>> from fcjax.methods import KFed
        >>> from fcjax.types import Now
        >>> federation = Federation(
        ...     pool=jnp.array([[0.0], [0.1], [5.0], [5.1]]),
        ...     indices=jnp.array([[0, 2], [1, 3]]),  # an example of either side each
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
        >>> (clusters[:, :1] == clusters).tolist()  # clients agree, sides differ
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
    init, only = partial(initial_state, setup), partial(round, setup)
    method = one_stage_method(init, only, unit_length=settings.unit_length)
    method = method._replace(by_size=True)
    if not settings.inherit:
        return method
    return method._replace(assign=partial(assign, setup, method.assign))


def round(
    setup: Setup, key: PRNGKey, _: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """The one round: clients cluster their examples (Algorithm 1), the server their
    centroids (Algorithm 2), and sends each client the clusters of its own.
    """
    present = server.participants(federation)
    local, losses = clients.for_each(
        partial(client_round, setup),
        clients.keys(key, len(present)),
        client_rows(federation, unit_length=setup.settings.unit_length),
        federation.mask,
    )
    received, answered, losses = server.gather((local, present, losses))
    numbers = {"num_clusters": setup.num_clusters, "num_iters": setup.num_iters}
    centroids = aggregate(received, answered, **numbers)
    nearest = partial(assign_nearest, centroids=centroids)
    inherited = clients.for_each(nearest, local)
    down = (
        {"clusters": inherited[0]}
        if setup.settings.inherit
        else {"centroids": centroids}
    )
    metrics = server.measure(answered, {"loss": losses})
    metrics |= server.traffic(answered, up={"centroids": local[0]}, down=down)
    return State(Server(centroids), Local(local, inherited, present)), metrics


def client_round(
    setup: Setup, key: PRNGKey, x: Float[Array, "N D"], mask: Bool[Array, "N"]
) -> tuple[Float[Array, "L D"], Float[Array, ""]]:
    """Algorithm 1: returns the centroids of a client, and the inertia an example."""
    number = setup.settings.local_clusters
    if setup.settings.local_start == "kmeans++":
        found = kmeans(key, x, number, mask=mask, num_iters=setup.num_iters)
    else:
        start = projected_start(key, x, mask, num_clusters=number)
        found = lloyd(x, start, mask=mask, num_iters=setup.num_iters)
    return found.centroids, found.inertia / mask.sum()


def projected_start(
    key: PRNGKey, x: Float[Array, "N D"], mask: Bool[Array, "N"], *, num_clusters: int
) -> Float[Array, "L D"]:
    """Computes a client's first centroids (Algorithm 1, steps 1 to 3).

    The examples are projected onto their leading k' right singular vectors. Greedy
    k-means++ draws k' seeds among the projections. Each seed is replaced by the mean of
    the projections that are at least three times nearer to it than to any other seed.
    The means are mapped back to the space of the examples, as in the authors' code
    (fkms/algorithms.py, awasthisheffet): the projection removes noise, which one
    example alone would bring back.

    Args:
        key: of the random draws.
        x: the client's examples [N, D].
        mask: False at examples that are padding.
        num_clusters: k' of the client.

    Returns:
        The centroids [k', D]. All lie in the span of the singular vectors.
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
    # Of squares: three times nearer is nine times.
    near = mask & (9 * distances.min(axis=0) <= rival)
    members = nearest & near[None]
    counts = members.sum(axis=1)[:, None]
    sums = matmul(members.astype(float), projected)
    means = jnp.where(counts > 0, sums / jnp.maximum(counts, 1), projected[seeds])
    return matmul(means, vectors.T)


def aggregate(
    received: Float[Array, "M L D"],
    answered: Bool[Array, "M"],
    *,
    num_clusters: int,
    num_iters: int = 300,
) -> Float[Array, "K D"]:
    """Returns the server's centroids: those of the first client that answered, then
    always the one farthest from all chosen, then Lloyd over all that were received,
    each counting once (Algorithm 2).
    """
    num_clients, local_clusters, _ = received.shape
    points = received.reshape(num_clients * local_clusters, -1)
    mask = jnp.repeat(answered, local_clusters)
    first = jnp.repeat(jnp.arange(num_clients) == jnp.argmax(answered), local_clusters)
    start = farthest_first(points, mask.astype(float), first, num_clusters)
    return lloyd(points, points[start], mask=mask, num_iters=num_iters).centroids


def initial_state(setup: Setup, _: PRNGKey, federation: Federation) -> State:
    """Returns the state before the round, in which nobody has answered."""
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
    """As in `FederatedClustering`: the cluster of the nearest local centroid, in
    federations of the same clients, which their number tells.
    """

    def inherited(x, centroids, clusters, answered, nearest):
        return jnp.where(answered, clusters[assign_nearest(x, centroids)], nearest)

    local, nearest = state.clients, by_server(state, federation)
    # Other clients than those of the round, such as one that holds new examples.
    if len(federation.indices) != len(local.answered):
        return nearest
    x = client_rows(federation, unit_length=setup.settings.unit_length)
    return clients.for_each(inherited, x, *local, nearest)


def top_singular_vectors(
    key: PRNGKey, x: Float[Array, "N D"], rank: int
) -> Float[Array, "D L"]:
    """Returns the leading right singular vectors of the rows, which are not centred, by
    randomised subspace iteration.

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
    _, vectors = jnp.linalg.eigh(matmul(image.T, image))  # the smallest first
    return matmul(basis, vectors[:, ::-1][:, :rank])
