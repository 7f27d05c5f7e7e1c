"""FedCRef's association graph of clusters, and its models of clusters and communities.

Phase 1 trains one model per cluster, and phase 3 one model per community. This module
has both, the association graph between them (phase 2), and the reconstruction errors of
examples under these models.

In shapes, M is the number of clients on this device, A the number on all devices, K the
number of clusters per client, and V = M K or A K the number of clusters.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from fcjax import losses
from fcjax.algorithms.autoencoders import reconstruction
from fcjax.cluster import connected_components
from fcjax.data.augment import as_rows
from fcjax.federated import clients, server, training
from fcjax.types import Communities, Federation, Network, PRNGKey, PyTree

# --- Association

Edges = Bool[Array, "M K A K"]
"""Edges between the clusters of this device's clients and those of all A clients."""
Associate = Callable[[Federation, Int[Array, "M N"]], Edges]
"""(federation, clusters) -> the association graph."""


class Groups(NamedTuple):
    """The communities: groups of similar clusters of different clients."""

    numbers: Int[Array, "M K"]
    """Number of each cluster's community, from 0; -1 for an isolated cluster."""
    ranks: Int[Array, "M K"]
    """Number of clusters in the same community that come before this cluster."""


def associate(
    settings: Any,
    errors: Float[Array, "M N V"],
    clusters: Int[Array, "M N"],
    exist: Bool[Array, "M K"],
    federation: Federation,
) -> Edges:
    """Returns the association graph: pairs of clusters that accept each other's models.

    Args:
        settings: an `fcjax.methods.FedCRef` with one value per setting.
        errors: error of every example under the models of all clusters [M, N, V].
        clusters: cluster of each example, in [0, K).
        exist: [M, K], True at clusters that have examples.
        federation: the clients' data.

    Returns:
        The edges [M, K, A, K].
    """
    num_clusters = exist.shape[1]

    def client_accepts(errors, models, clusters, mask):
        model_of_example = models[clusters][:, None]
        own_errors = jnp.take_along_axis(errors, model_of_example, axis=1)[:, 0]
        return accepts(
            settings, errors, own_errors, clusters, mask, num_clusters=num_clusters
        )

    inputs = (errors, own_models(*exist.shape), clusters, federation.mask)
    accepted = server.gather(clients.for_each(client_accepts, *inputs))
    accepted = accepted.reshape(*accepted.shape[:2], -1, num_clusters)
    edges = accepted & accepted.transpose(2, 3, 0, 1)
    if settings.associations == "first-match":
        edges = first_matches(edges)
    return server.rows_on_this_device(edges, len(clusters)) & may_be_joined(exist)


def accepts(
    settings: Any,
    errors: Float[Array, "N V"],
    own_errors: Float[Array, "N"],
    clusters: Int[Array, "N"],
    mask: Bool[Array, "N"],
    *,
    num_clusters: int,
) -> Bool[Array, "K V"]:
    """Returns which models each cluster of a client accepts (equation 2 and step 3).

    For a cluster and a model, take the differences |e_own - e_other| of the errors of
    the cluster's examples under its own model and under the other model. Scale them to
    [0, 1] by their minimum and maximum. The cluster accepts the model if a percentile
    of the scaled differences is at most a threshold. Scaling keeps the order, so the
    code scales only the percentile.

    The minimum and maximum belong to one cluster and one model, as in the authors'
    code; the paper does not say. If all differences are equal, they cannot be scaled,
    and the model is not accepted. This includes clusters with fewer than two examples.

    Args:
        settings: settings of the method. `percentile` is in percent, with linear
            interpolation; `threshold` lies in [0, 1].
        errors: error of every example under every model [N, V].
        own_errors: error of every example under its own cluster's model [N].
        clusters: cluster of each example [N], in [0, K).
        mask: [N], False at padding, which may contain any values.
        num_clusters: number K of clusters.

    Returns:
        [K, V], True where the cluster accepts the model.
    """
    # Sort the differences within each cluster; padding comes last.
    clusters = jnp.where(mask, clusters, num_clusters)
    differences = jnp.abs(own_errors[:, None] - errors)
    groups = jnp.broadcast_to(clusters[:, None], differences.shape)
    _, ordered = lax.sort((groups, differences), dimension=0, num_keys=2)
    sizes = jnp.sum(clusters[:, None] == jnp.arange(num_clusters)[None], axis=0)
    starts = jnp.cumsum(sizes) - sizes
    last = jnp.maximum(sizes - 1, 0)

    def ranked(rank):
        """Returns the difference of this rank in each cluster [K, V]."""
        return ordered[jnp.minimum(starts + rank, len(ordered) - 1)]

    position = settings.percentile / 100 * last
    below = jnp.floor(position).astype(jnp.int32)
    low, high = ranked(below), ranked(jnp.minimum(below + 1, last))
    value = low + (position - below)[:, None] * (high - low)
    least, most = ranked(0), ranked(last)
    return (most > least) & (value - least <= settings.threshold * (most - least))


def own_models(num_own: int, num_clusters: int) -> Int[Array, "M K"]:
    """Returns the indices of these clients' models among those of all clients.

    Args:
        num_own: number of this device's clients.
        num_clusters: number K of clusters per client.

    Returns:
        The indices [M, K].
    """
    numbers = clients.first_index(num_own) + jnp.arange(num_own)
    return numbers[:, None] * num_clusters + jnp.arange(num_clusters)[None]


def may_be_joined(exist: Bool[Array, "M K"]) -> Edges:
    """Returns the pairs of clusters that an edge may connect.

    Both clusters must exist, and they must belong to different clients.

    Args:
        exist: [M, K], True at clusters that have examples.

    Returns:
        The pairs [M, K, A, K].
    """
    all_exist = server.gather(exist)
    numbers = clients.first_index(len(exist)) + jnp.arange(len(exist))
    differ = numbers[:, None] != jnp.arange(len(all_exist))[None]
    pairs = exist[:, :, None, None] & all_exist[None, None]
    return pairs & differ[:, None, :, None]


def first_matches(accepted: Bool[Array, "M K M K"]) -> Bool[Array, "M K M K"]:
    """Keeps the edges that the authors' code would find; the paper keeps all of them.

    That code compares each pair of clients once. For a cluster of the first client, it
    stops at the first accepted cluster of the second client.

    Args:
        accepted: pairs of clusters that accept each other [M, K, M, K].

    Returns:
        The edges, symmetric [M, K, M, K].
    """
    num_clients = len(accepted)
    is_first = jnp.cumsum(accepted, axis=3) == 1
    number = jnp.arange(num_clients)
    is_upper = (number[:, None] < number[None])[:, None, :, None]
    edges = accepted & is_first & is_upper
    return edges | edges.transpose(2, 3, 0, 1)


def all_alone(clusters: Int[Array, "M N"], num_clusters: int) -> Communities:
    """Returns the communities before any association: every cluster is isolated.

    Args:
        clusters: cluster of each example [M, N].
        num_clusters: number K of clusters per client.

    Returns:
        The communities, without edges.
    """
    numbers = jnp.full((len(clusters), num_clusters), jnp.int32(-1))
    num_all = clients.total_clients(len(clusters))
    edges = jnp.zeros((*numbers.shape, num_all, num_clusters), bool)
    return Communities(numbers, edges, clusters)


def communities(edges: Bool[Array, "M K M K"]) -> Groups:
    """Returns the connected components of at least two clusters (equation 3).

    Args:
        edges: the association graph of all clients [M, K, M, K].

    Returns:
        The community of each cluster.
    """
    num_clients, num_clusters = edges.shape[:2]
    count = num_clients * num_clusters
    edges = edges.reshape(count, count)
    roots = connected_components(edges)
    is_member = edges.any(axis=1)
    is_root = is_member & (roots == jnp.arange(count))
    numbers = jnp.where(is_member, (jnp.cumsum(is_root) - 1)[roots], -1)
    is_earlier = jnp.tri(count, k=-1, dtype=bool)
    ranks = jnp.sum((roots[:, None] == roots[None]) & is_earlier, axis=1)
    numbers_and_ranks = (
        x.astype(jnp.int32).reshape(num_clients, -1) for x in (numbers, ranks)
    )
    return Groups(*numbers_and_ranks)


def most_communities(num_own: int, num_clusters: int) -> int:
    """Returns the largest possible number of communities, but at least 1.

    A community has at least two clusters. Arrays need at least one row.

    Args:
        num_own: number of this device's clients.
        num_clusters: number K of clusters per client.

    Returns:
        The number.
    """
    return max(clients.total_clients(num_own) * num_clusters // 2, 1)


# --- Models

BATCH = 4096
"""Number of examples that a model reconstructs in one batch outside of training."""


class Models(NamedTuple):
    """The network of all models, and how models are trained."""

    network: Network
    """Maps rows to their reconstructions."""
    optimizer: optax.GradientTransformation
    num_clusters: int
    """Number K of clusters per client."""
    settings: Any
    """An `fcjax.methods.FedCRef` with one value per setting."""


def train_clusters(
    models: Models,
    key: PRNGKey,
    clusters: Int[Array, "M N"],
    chosen: Bool[Array, "M K"],
    federation: Federation,
) -> tuple[PyTree, Float[Array, "M K"]]:
    """Trains a new model on each of the chosen clusters (phase 1).

    Args:
        models: network and training settings of the models.
        key: random key.
        clusters: cluster of each example [M, N].
        chosen: [M, K], True at clusters to train a model on.
        federation: the clients' data.

    Returns:
        The models [M, K, ...], and the mean loss of the steps of each model [M, K].
        Values of other clusters are of no use.
    """
    num_epochs = models.settings.local_epochs

    def train_cluster(key, rows, members):
        init_key, train_key = jax.random.split(key)
        variables = draw(models, federation, init_key)
        client = clients.Client(variables, models.optimizer.init(variables["params"]))
        client, value = train(
            models, train_key, client, rows, members, federation, num_epochs=num_epochs
        )
        return client.variables, value

    inputs = rows_of(clusters, chosen, federation)
    keys = keys_of(key, *chosen.shape)
    trained = clients.for_each(train_cluster, keys, *inputs)
    return jax.tree.map(lambda x: x.reshape(*chosen.shape, *x.shape[1:]), trained)


def train_communities(
    models: Models,
    key: PRNGKey,
    clusters: Int[Array, "M N"],
    groups: Groups,
    federation: Federation,
) -> PyTree:
    """Trains a new model of every community by FedAvg over its clusters (phase 3).

    The weight of a cluster is its number of examples. The optimizer state of a cluster
    lasts over the rounds.

    Args:
        models: network and training settings of the models.
        key: random key.
        clusters: cluster of each example [M, N].
        groups: the communities.
        federation: the clients' data.

    Returns:
        The models [S, ...], where S is the largest possible number of communities.
    """
    settings, trains = models.settings, trained_on(models.settings, groups)
    last_local = settings.community_model == "last-local"
    rows, members = rows_of(clusters, trains, federation)
    numbers = jnp.maximum(groups.numbers.reshape(-1), 0)
    sizes = members.sum(axis=1).astype(jnp.float32)
    is_first = (trains & (groups.ranks == 0)).reshape(-1).astype(jnp.float32)
    count = most_communities(*trains.shape)

    init_key, train_key = jax.random.split(key)
    init_keys = clients.fold_in(init_key, count)
    received = jax.vmap(partial(draw, models, federation))(init_keys)
    opt_state = models.optimizer.init(jax.tree.map(lambda x: x[0], received)["params"])
    opt_states = clients.repeat(opt_state, len(numbers))

    def fedavg_round(num_epochs, carry, key):
        received, opt_states, _ = carry

        def train_member(key, number, opt_state, rows, members):
            variables = jax.tree.map(lambda x: x[number], received)
            client = clients.Client(variables, opt_state)
            return train(
                models, key, client, rows, members, federation, num_epochs=num_epochs
            )[0]

        keys = keys_of(key, *trains.shape)
        trained = clients.for_each(
            train_member, keys, numbers, opt_states, rows, members
        )
        means = server.group_means(trained.variables, sizes, numbers, count)
        first = ()
        if last_local:
            first = server.group_means(trained.variables, is_first, numbers, count)
        return (means, trained.opt_state, first), None

    keys = clients.fold_in(train_key, settings.federated_rounds)
    carry, _ = fedavg_round(settings.first_epochs, (received, opt_states, ()), keys[0])
    later_round = partial(fedavg_round, settings.federated_epochs)
    carry, _ = lax.scan(later_round, carry, keys[1:])
    return carry[2] if last_local else carry[0]


def trained_on(settings: Any, groups: Groups) -> Bool[Array, "M K"]:
    """Returns the clusters that models of communities are trained on.

    Args:
        settings: settings of the method. `max_members` limits the clusters per
            community.
        groups: the communities.

    Returns:
        [M, K], True at these clusters.
    """
    trains = groups.numbers >= 0
    if settings.max_members is not None:
        trains &= groups.ranks < settings.max_members
    return trains


def train(
    models: Models,
    key: PRNGKey,
    client: clients.Client,
    rows: Int[Array, "N"],
    members: Bool[Array, "N"],
    federation: Federation,
    *,
    num_epochs: int,
) -> tuple[clients.Client, Float[Array, ""]]:
    """Trains one model on the examples of one cluster.

    Args:
        models: network and training settings of the models.
        key: random key of the batches.
        client: variables and optimizer state of the model.
        rows: indices of the client's examples in the pool [N].
        members: [N], True at examples of the cluster.
        federation: the data.
        num_epochs: number of epochs over the cluster's examples.

    Returns:
        The trained model, and the mean loss of its steps.
    """

    def loss(key, variables, batch_indices, counted):
        del key
        x = as_rows(federation.pool[rows[batch_indices]], unit_length=False)
        return reconstruction(models.network, variables, x, counted, per_feature=True)

    return training.train(
        *(key, client, loss, members),
        optimizer=models.optimizer,
        batch_size=models.settings.batch_size,
        num_epochs=num_epochs,
    )


def errors_under(
    models: Models,
    variables: PyTree,
    exist: Bool[Array, "V"],
    federation: Federation,
) -> Float[Array, "M N V"]:
    """Returns the mean squared error of these clients' examples under all models.

    Args:
        models: network and training settings of the models.
        variables: variables of the models [V, ...].
        exist: [V], True at models that exist. Errors under the others are 0.
        federation: the clients' data.

    Returns:
        The errors [M, N, V], averaged over the features of an example.
    """
    order = jnp.argsort(~exist, stable=True)

    def under_all(rows):
        x = as_rows(federation.pool[rows], unit_length=False)

        def add(i, errors):
            model = jax.tree.map(lambda x: x[order[i]], variables)
            decoded, _ = models.network.apply(model, x, train=False)
            error = losses.reconstruction_error(x, decoded) / x.shape[1]
            return errors.at[order[i]].set(error)

        # Loop only over existing models: few of the possible communities exist.
        errors = jnp.zeros((len(exist), len(rows)))
        return lax.fori_loop(0, exist.sum(), add, errors).T

    rows = federation.indices
    errors = training.in_batches(under_all, rows.reshape(-1), batch_size=BATCH)
    return errors.reshape(*rows.shape, len(exist))


def draw(models: Models, federation: Federation, key: PRNGKey) -> PyTree:
    """Draws the initial variables of a model.

    Args:
        models: network and training settings of the models.
        federation: the data; only its shape and type are used.
        key: random key.

    Returns:
        The variables.
    """
    return models.network.init(key, as_rows(federation.pool[:1], unit_length=False))


def zeros(models: Models, federation: Federation) -> PyTree:
    """Returns zero variables [M, K, ...], the models before the first training.

    Args:
        models: network and training settings of the models.
        federation: the clients' data.

    Returns:
        The variables of all clusters.
    """
    shapes = jax.eval_shape(partial(draw, models, federation), jax.random.key(0))
    shape = (len(federation.indices), models.num_clusters)
    return jax.tree.map(lambda x: jnp.zeros((*shape, *x.shape), x.dtype), shapes)


def members_of(
    clusters: Int[Array, "M N"], federation: Federation, num_clusters: int
) -> Bool[Array, "M K N"]:
    """Returns which examples of its client each cluster contains.

    Args:
        clusters: cluster of each example [M, N].
        federation: the clients' data.
        num_clusters: number K of clusters per client.

    Returns:
        [M, K, N], True at the cluster's examples.
    """
    number = jnp.arange(num_clusters)[None, :, None]
    return (clusters[:, None] == number) & federation.mask[:, None]


def rows_of(
    clusters: Int[Array, "M N"], chosen: Bool[Array, "M K"], federation: Federation
) -> tuple[Int[Array, "V N"], Bool[Array, "V N"]]:
    """Returns, for every cluster, its client's rows and which of them it contains.

    Args:
        clusters: cluster of each example [M, N].
        chosen: [M, K], True at clusters to include. The others contain no rows.
        federation: the clients' data.

    Returns:
        Indices of the client's examples in the pool [V, N], and True at the cluster's
        examples [V, N].
    """
    members = members_of(clusters, federation, chosen.shape[1]) & chosen[..., None]
    rows = jnp.broadcast_to(federation.indices[:, None], members.shape)
    return flatten_clusters((rows, members))


def keys_of(key: PRNGKey, num_own: int, num_clusters: int) -> Key[Array, "V"]:
    """Returns a random key for each cluster, the same for any number of devices.

    Args:
        key: random key.
        num_own: number of this device's clients.
        num_clusters: number K of clusters per client.

    Returns:
        The keys [V].
    """
    client_keys = partial(clients.fold_in, count=num_clusters)
    return flatten_clusters(jax.vmap(client_keys)(clients.keys(key, num_own)))


def flatten_clusters(stacked: PyTree) -> PyTree:
    """Reshapes arrays from [M, K, ...] to [V, ...], one row per cluster.

    Args:
        stacked: a tree of arrays [M, K, ...].

    Returns:
        The tree of arrays [V, ...]. The clusters of one client are consecutive.
    """
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stacked)
