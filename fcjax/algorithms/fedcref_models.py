"""FedCRef's associations of clusters and models of communities.

The models by which clusters and communities are known: phases 1 and 3 of FedCRef,
and the errors under them.

In shapes V is M K, all clusters of these clients, or of those of all devices.
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
"""Of the clusters of these clients with those of all A, on whatever device."""
Associate = Callable[[Federation, Int[Array, "M N"]], Edges]
"""(federation, clusters) -> the association graph."""


class Groups(NamedTuple):
    """The communities that clusters are members of."""

    numbers: Int[Array, "M K"]
    """From 0 on, -1 where a cluster is alone."""
    ranks: Int[Array, "M K"]
    """How many members of its community come before it."""


def associate(
    settings: Any,
    errors: Float[Array, "M N V"],
    clusters: Int[Array, "M N"],
    exist: Bool[Array, "M K"],
    federation: Federation,
) -> Edges:
    """Returns which clusters are the same: those that accept each other's models.

    Args:
        settings: of the test, an `fcjax.methods.FedCRef` with one value per setting.
        errors: of every example under the models of all clients' clusters, K a client.
        clusters: in [0, K).
        exist: which clusters there are.
        federation: whose examples.
    """
    num_clusters = exist.shape[1]

    def one(errors, models, clusters, mask):
        own = jnp.take_along_axis(errors, models[clusters][:, None], axis=1)[:, 0]
        return accepts(settings, errors, own, clusters, mask, num_clusters=num_clusters)

    each = (errors, own_models(*exist.shape), clusters, federation.mask)
    accepted = server.gather(clients.for_each(one, *each))
    accepted = accepted.reshape(*accepted.shape[:2], -1, num_clusters)
    found = accepted & accepted.transpose(2, 3, 0, 1)
    if settings.associations == "first-match":
        found = first_matches(found)
    return server.rows_on_this_device(found, len(clusters)) & may_be_joined(exist)


def accepts(
    settings: Any,
    errors: Float[Array, "N V"],
    own: Float[Array, "N"],
    clusters: Int[Array, "N"],
    mask: Bool[Array, "N"],
    *,
    num_clusters: int,
) -> Bool[Array, "K V"]:
    """Asks of every cluster of a client which models know it as well as its own does.

    Eq. 2 and step 3: over the examples of a cluster, the differences |e_own - e_other|
    are scaled to [0, 1] by their minimum and maximum; the cluster accepts the model if
    their percentile is at most the threshold. As scaling keeps the order, it is the
    percentile that is scaled.

    The scaling belongs to one cluster and one model (as in the authors' code; the paper
    does not say). Where all differences are the same there is nothing to scale, and the
    model is not accepted; so it is where the cluster has less than two examples.

    Args:
        settings: `percentile`, interpolated linearly, and `threshold`.
        errors: of every example under every model.
        own: under the model of the cluster that it belongs to.
        clusters: in [0, K).
        mask: which examples count; others may hold anything.
        num_clusters: K.
    """
    # Examples come cluster by cluster, those of each by size.
    clusters = jnp.where(mask, clusters, num_clusters)
    differences = jnp.abs(own[:, None] - errors)
    groups = jnp.broadcast_to(clusters[:, None], differences.shape)
    _, ordered = lax.sort((groups, differences), dimension=0, num_keys=2)
    sizes = jnp.sum(clusters[:, None] == jnp.arange(num_clusters)[None], axis=0)
    starts = jnp.cumsum(sizes) - sizes
    last = jnp.maximum(sizes - 1, 0)

    def ranked(rank):
        return ordered[jnp.minimum(starts + rank, len(ordered) - 1)]

    place = settings.percentile / 100 * last
    below = jnp.floor(place).astype(jnp.int32)
    low, high = ranked(below), ranked(jnp.minimum(below + 1, last))
    value = low + (place - below)[:, None] * (high - low)
    least, most = ranked(0), ranked(last)
    return (most > least) & (value - least <= settings.threshold * (most - least))


def own_models(num_own: int, num_clusters: int) -> Int[Array, "M K"]:
    """Returns where the models of these clients stand among those of all."""
    numbers = clients.first_index(num_own) + jnp.arange(num_own)
    return numbers[:, None] * num_clusters + jnp.arange(num_clusters)[None]


def may_be_joined(exist: Bool[Array, "M K"]) -> Edges:
    """Returns which pairs of clusters an edge may join: both exist, and they are of two
    clients.
    """
    everyones = server.gather(exist)
    numbers = clients.first_index(len(exist)) + jnp.arange(len(exist))
    differ = numbers[:, None] != jnp.arange(len(everyones))[None]
    pairs = exist[:, :, None, None] & everyones[None, None]
    return pairs & differ[:, None, :, None]


def first_matches(accepted: Bool[Array, "M K M K"]) -> Bool[Array, "M K M K"]:
    """Returns of mutual acceptances those that the authors' code comes to: it compares
    two clients once, and goes on to the next cluster of the first one as soon as one of
    the second's is accepted. The paper makes an edge of every pair.
    """
    num_clients = len(accepted)
    is_first = jnp.cumsum(accepted, axis=3) == 1
    client = jnp.arange(num_clients)
    is_upper = (client[:, None] < client[None])[:, None, :, None]
    found = accepted & is_first & is_upper
    return found | found.transpose(2, 3, 0, 1)


def all_alone(clusters: Int[Array, "M N"], num_clusters: int) -> Communities:
    """Returns what is known before any association: no cluster has a community."""
    numbers = jnp.full((len(clusters), num_clusters), jnp.int32(-1))
    num_all = clients.total_clients(len(clusters))
    edges = jnp.zeros((*numbers.shape, num_all, num_clusters), bool)
    return Communities(numbers, edges, clusters)


def communities(edges: Bool[Array, "M K M K"]) -> Groups:
    """Returns the connected components of two clusters or more: Eq. 3."""
    num_clients, num_clusters = edges.shape[:2]
    count = num_clients * num_clusters
    edges = edges.reshape(count, count)
    roots = connected_components(edges)
    is_member = edges.any(axis=1)
    is_root = is_member & (roots == jnp.arange(count))
    numbers = jnp.where(is_member, (jnp.cumsum(is_root) - 1)[roots], -1)
    before = jnp.tri(count, k=-1, dtype=bool)
    ranks = jnp.sum((roots[:, None] == roots[None]) & before, axis=1)
    each = (x.astype(jnp.int32).reshape(num_clients, -1) for x in (numbers, ranks))
    return Groups(*each)


def most_communities(num_own: int, num_clusters: int) -> int:
    """Returns how many communities of two clusters or more there can be, one at least,
    as arrays have to have a row.
    """
    return max(clients.total_clients(num_own) * num_clusters // 2, 1)


# --- Models

BATCH = 4096
"""Examples that a model reconstructs at a time where it is not trained."""


class Models(NamedTuple):
    """What models are, and how they are trained."""

    network: Network
    """From rows to their reconstructions."""
    optimizer: optax.GradientTransformation
    num_clusters: int
    """K."""
    settings: Any
    """An `fcjax.methods.FedCRef` with one value per setting."""


def train_clusters(
    models: Models,
    key: PRNGKey,
    clusters: Int[Array, "M N"],
    chosen: Bool[Array, "M K"],
    federation: Federation,
) -> tuple[PyTree, Float[Array, "M K"]]:
    """Phase 1: trains a new model on each of the chosen clusters.

    Returns:
        The models [M, K, ...], and the mean loss of each one's steps; those of other
        clusters are of no use.
    """
    num_epochs = models.settings.local_epochs

    def one(key, rows, members):
        init_key, train_key = jax.random.split(key)
        variables = draw(models, federation, init_key)
        client = clients.Client(variables, models.optimizer.init(variables["params"]))
        client, value = train(
            models, train_key, client, rows, members, federation, num_epochs=num_epochs
        )
        return client.variables, value

    held = rows_of(clusters, chosen, federation)
    keys = keys_of(key, *chosen.shape)
    trained = clients.for_each(one, keys, *held)
    return jax.tree.map(lambda x: x.reshape(*chosen.shape, *x.shape[1:]), trained)


def train_communities(
    models: Models,
    key: PRNGKey,
    clusters: Int[Array, "M N"],
    groups: Groups,
    federation: Federation,
) -> PyTree:
    """Phase 3: trains a new model of every community by FedAvg over its clusters.

    A member's weight is its number of examples; the state of its optimiser lasts over
    the rounds.

    Returns:
        The models [S, ...], as many as there can be communities.
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

    def one_round(num_epochs, carry, key):
        received, opt_states, _ = carry

        def one(key, number, opt_state, rows, members):
            variables = jax.tree.map(lambda x: x[number], received)
            client = clients.Client(variables, opt_state)
            return train(
                models, key, client, rows, members, federation, num_epochs=num_epochs
            )[0]

        keys = keys_of(key, *trains.shape)
        trained = clients.for_each(one, keys, numbers, opt_states, rows, members)
        means = server.group_means(trained.variables, sizes, numbers, count)
        first = ()
        if last_local:
            first = server.group_means(trained.variables, is_first, numbers, count)
        return (means, trained.opt_state, first), None

    keys = clients.fold_in(train_key, settings.federated_rounds)
    carry, _ = one_round(settings.first_epochs, (received, opt_states, ()), keys[0])
    carry, _ = lax.scan(partial(one_round, settings.federated_epochs), carry, keys[1:])
    return carry[2] if last_local else carry[0]


def trained_on(settings: Any, groups: Groups) -> Bool[Array, "M K"]:
    """Returns which clusters the models of communities are trained on."""
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
    """Trains one model.

    Args:
        models: how.
        key: of the batches.
        client: the model's variables and the state of its optimiser.
        rows: of the pool, those of the cluster's client.
        members: which of them the cluster has.
        federation: whose pool.
        num_epochs: over the members.

    Returns:
        The trained model, and the mean loss of its steps.
    """

    def loss(key, variables, slots, counted):
        del key
        x = as_rows(federation.pool[rows[slots]], unit_length=False)
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
        models: how they are applied.
        variables: [V, ...].
        exist: which of them there are; the errors under the others are 0.
        federation: whose examples.
    """
    order = jnp.argsort(~exist, stable=True)

    def under_all(rows):
        x = as_rows(federation.pool[rows], unit_length=False)

        def add(i, errors):
            own = jax.tree.map(lambda x: x[order[i]], variables)
            decoded, _ = models.network.apply(own, x, train=False)
            found = losses.reconstruction_error(x, decoded) / x.shape[1]
            return errors.at[order[i]].set(found)

        # As many passes as there are models: of the communities that can be, few are.
        errors = jnp.zeros((len(exist), len(rows)))
        return lax.fori_loop(0, exist.sum(), add, errors).T

    rows = federation.indices
    errors = training.in_batches(under_all, rows.reshape(-1), batch_size=BATCH)
    return errors.reshape(*rows.shape, len(exist))


def draw(models: Models, federation: Federation, key: PRNGKey) -> PyTree:
    """Draws a model's variables."""
    return models.network.init(key, as_rows(federation.pool[:1], unit_length=False))


def zeros(models: Models, federation: Federation) -> PyTree:
    """Returns what is held before any cluster has a model: [M, K, ...]."""
    drawn = jax.eval_shape(partial(draw, models, federation), jax.random.key(0))
    shape = (len(federation.indices), models.num_clusters)
    return jax.tree.map(lambda x: jnp.zeros((*shape, *x.shape), x.dtype), drawn)


def members_of(
    clusters: Int[Array, "M N"], federation: Federation, num_clusters: int
) -> Bool[Array, "M K N"]:
    """Returns which of its client's examples every cluster has."""
    number = jnp.arange(num_clusters)[None, :, None]
    return (clusters[:, None] == number) & federation.mask[:, None]


def rows_of(
    clusters: Int[Array, "M N"], chosen: Bool[Array, "M K"], federation: Federation
) -> tuple[Int[Array, "V N"], Bool[Array, "V N"]]:
    """Returns the rows of every cluster's client, and which of them the cluster has;
    none where it is not chosen.
    """
    members = members_of(clusters, federation, chosen.shape[1]) & chosen[..., None]
    rows = jnp.broadcast_to(federation.indices[:, None], members.shape)
    return by_slot((rows, members))


def keys_of(key: PRNGKey, num_own: int, num_clusters: int) -> Key[Array, "V"]:
    """Returns a key for each cluster, the same on whatever device."""
    each = partial(clients.fold_in, count=num_clusters)
    return by_slot(jax.vmap(each)(clients.keys(key, num_own)))


def by_slot(stacked: PyTree) -> PyTree:
    """From [M, K, ...] to [V, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stacked)
