"""The models by which clusters and communities are known: phases 1 and 3 of FedCRef,
and the errors under them.

In shapes V is M K, all clusters of these clients, or of those of all devices.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from fcjax import clients, losses, server, training
from fcjax.algorithms.autoencoding import reconstruction
from fcjax.algorithms.fedcref.association import Groups, most_communities
from fcjax.data.vectors import as_rows
from fcjax.types import Federation, Network, PRNGKey, PyTree

BATCH = 4096
"""Examples that a model reconstructs at a time where it is not trained."""


class Training(NamedTuple):
    """How long models are trained, and on what.

    Examples:
        >>> Training(local_epochs=60).batch_size
        32
    """

    local_epochs: int = 20
    """Of a cluster's model, which starts anew in every iteration."""
    federated_rounds: int = 15
    """Of a community's model, which does so too."""
    first_epochs: int = 2
    """Of a member in the first of them; the paper is silent, 2 and 7 are those of the
    authors' code."""
    federated_epochs: int = 7
    """Of a member in the others."""
    batch_size: int = 32
    """Examples a step; 32 is that of the authors' code."""
    max_members: int | None = None
    """Clusters of a community that are trained on, all by default; the code has 30."""
    last_local_model: bool = False
    """A community's model is its first member's after its last training, as in the
    authors' code, not the mean."""


TRAINING = Training()


class Models(NamedTuple):
    """What models are, and how they are trained."""

    network: Network
    """From rows to their reconstructions."""
    optimizer: optax.GradientTransformation
    num_clusters: int
    """K."""
    training: Training
    """How clusters run, see `clients.for_each`."""


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
    num_epochs = models.training.local_epochs

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
    how, trains = models.training, trained_on(models.training, groups)
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
        if how.last_local_model:
            first = server.group_means(trained.variables, is_first, numbers, count)
        return (means, trained.opt_state, first), None

    keys = clients.fold_in(train_key, how.federated_rounds)
    carry, _ = one_round(how.first_epochs, (received, opt_states, ()), keys[0])
    carry, _ = lax.scan(partial(one_round, how.federated_epochs), carry, keys[1:])
    return carry[2] if how.last_local_model else carry[0]


def trained_on(how: Training, groups: Groups) -> Bool[Array, "M K"]:
    """Returns which clusters the models of communities are trained on."""
    trains = groups.numbers >= 0
    if how.max_members is not None:
        trains &= groups.ranks < how.max_members
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
        batch_size=models.training.batch_size,
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
    none where it is not chosen."""
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
