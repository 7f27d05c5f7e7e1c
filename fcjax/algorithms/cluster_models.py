"""Models of clusters and of communities of clusters: what FedCRef trains and compares.

See `fcjax.algorithms.fedcref` for the paper. In shapes V is M K, all clusters of these
clients, or of those of all devices.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from fcjax import clients, losses, server
from fcjax.algorithms.association import Groups
from fcjax.data.vectors import as_rows
from fcjax.types import Federation, Network, PRNGKey, PyTree

BATCH = 4096
"""Examples that a model reconstructs at a time where it is not trained."""


class Models(NamedTuple):
    """How models are trained."""

    network: Network
    """From rows to their reconstructions."""
    optimizer: optax.GradientTransformation
    batch_size: int
    num_clusters: int
    """K."""
    client_axis: clients.ClientAxis | None = None
    """How clusters run, see `clients.for_each`."""


def by_slot(stacked: PyTree) -> PyTree:
    """From [M, K, ...] to [V, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stacked)


def sizes_of(
    clusters: Int[Array, "M N"], mask: Bool[Array, "M N"], num_clusters: int
) -> Int[Array, "M K"]:
    """Returns how many examples every cluster has."""
    members = clusters[..., None] == jnp.arange(num_clusters)[None, None]
    return jnp.sum(members & mask[..., None], axis=1)


def draw(models: Models, key: PRNGKey, federation: Federation) -> PyTree:
    """Draws a model's variables."""
    return models.network.init(key, as_rows(federation.pool[:1], unit_length=False))


def of_clusters(
    models: Models,
    key: PRNGKey,
    clusters: Int[Array, "M N"],
    chosen: Bool[Array, "M K"],
    federation: Federation,
    *,
    num_epochs: int,
) -> tuple[PyTree, Float[Array, "M K"]]:
    """Phase 1: trains a new model on each of the chosen clusters.

    Returns:
        The models [M, K, ...], and the mean loss of each one's steps; those of other
        clusters are of no use.
    """

    def one(key, rows, members):
        init_key, train_key = jax.random.split(key)
        variables = draw(models, init_key, federation)
        client = clients.Client(variables, models.optimizer.init(variables["params"]))
        client, value = train(
            models, train_key, client, rows, members, federation, num_epochs=num_epochs
        )
        return client.variables, value

    held = _members(clusters, chosen, federation)
    keys = _keys(key, *chosen.shape)
    trained = clients.for_each(one, keys, *held, axis=models.client_axis)
    return jax.tree.map(lambda x: x.reshape(*chosen.shape, *x.shape[1:]), trained)


def of_communities(
    models: Models,
    key: PRNGKey,
    clusters: Int[Array, "M N"],
    groups: Groups,
    federation: Federation,
    *,
    first_epochs: int,
    num_epochs: int,
    num_rounds: int,
    max_members: int | None = None,
    last_local_model: bool = False,
) -> PyTree:
    """Phase 3: trains a new model of every community by FedAvg over its clusters.

    A member's weight is its number of examples; the state of its optimiser lasts over
    the rounds.

    Args:
        models: how they are trained.
        key: of all draws.
        clusters: of every example.
        groups: the communities.
        federation: whose examples.
        first_epochs: of a member in the first round.
        num_epochs: in the others.
        num_rounds: of FedAvg.
        max_members: how many members of a community are trained; all by default.
        last_local_model: return what the first member had after its last training, in
            place of the mean.

    Returns:
        The models [S, ...], as many as there can be communities.
    """
    trains = groups.numbers >= 0
    if max_members is not None:
        trains &= groups.ranks < max_members
    rows, members = _members(clusters, trains, federation)
    numbers = jnp.maximum(groups.numbers.reshape(-1), 0)
    sizes = members.sum(axis=1).astype(jnp.float32)
    is_first = (trains & (groups.ranks == 0)).reshape(-1).astype(jnp.float32)
    count = most_communities(len(clusters), models.num_clusters)

    init_key, train_key = jax.random.split(key)
    received = jax.vmap(lambda key: draw(models, key, federation))(
        clients.fold_in(init_key, count)
    )
    opt_state = models.optimizer.init(jax.tree.map(lambda x: x[0], received)["params"])
    opt_states = clients.repeat(opt_state, len(numbers))

    def one_round(num_epochs, carry, key):
        received, opt_states = carry[:2]

        def one(key, number, opt_state, rows, members):
            variables = jax.tree.map(lambda x: x[number], received)
            client = clients.Client(variables, opt_state)
            return train(
                models, key, client, rows, members, federation, num_epochs=num_epochs
            )[0]

        keys = _keys(key, len(clusters), models.num_clusters)
        trained = clients.for_each(
            one, keys, numbers, opt_states, rows, members, axis=models.client_axis
        )
        means = server.group_means(trained.variables, sizes, numbers, count)
        first = ()
        if last_local_model:
            first = server.group_means(trained.variables, is_first, numbers, count)
        return (means, trained.opt_state, first), None

    keys = clients.fold_in(train_key, num_rounds)
    empty = received if last_local_model else ()
    carry, _ = one_round(first_epochs, (received, opt_states, empty), keys[0])
    carry, _ = lax.scan(partial(one_round, num_epochs), carry, keys[1:])
    return carry[2] if last_local_model else carry[0]


def traffic(
    answered: Bool[Array, "M"],
    ever: Bool[Array, "M"],
    trained: Bool[Array, "M K"],
    numbers: Int[Array, "M K"],
    local: PyTree,
    *,
    num_rounds: int,
) -> dict[str, Int[Array, "2"]]:
    """Counts what crosses between clients in an iteration, as `server.traffic` does.

    A new model goes to every other client: it grows with the square of their number. A
    community's model goes up from every member and down to it in each round, and in the
    end to all clients. Beside them there is a bit, counted as a byte, for each pair of
    clusters.

    Args:
        answered: which clients take part.
        ever: which of them ever do.
        trained: which clusters have a new model.
        numbers: the communities of clusters, -1 where they are alone.
        local: the models, [M, K, ...].
        num_rounds: of a community's training.
    """
    size = server.num_bytes(jax.tree.map(lambda x: x[0, 0], local))
    num_answered = answered.sum(dtype=jnp.int32)
    members = jnp.sum(numbers >= 0) * num_rounds
    sent = (numbers.max() + 1) * num_answered
    pairs = {
        "up_local_models": (trained.sum() * (num_answered - 1), size),
        "up_community_models": (members, size),
        "down_community_models": (members + sent, size),
        "up_associations": (num_answered, ever.sum() * numbers.shape[1] ** 2),
    }
    return {
        name: jnp.stack([jnp.int32(count), jnp.int32(size)])
        for name, (count, size) in pairs.items()
    }


def keep(chosen: Bool[Array, "M K"], new: PyTree, old: PyTree) -> PyTree:
    """Takes the new values of the chosen clusters, the old ones of the rest."""

    def choose(new, old):
        return jnp.where(
            chosen.reshape(*chosen.shape, *(1,) * (new.ndim - 2)), new, old
        )

    return jax.tree.map(choose, new, old)


def most_communities(num_own: int, num_clusters: int) -> int:
    """Returns how many communities of two clusters or more there can be."""
    return num_own * clients.num_devices() * num_clusters // 2


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
    rows = federation.indices.reshape(-1)
    order = jnp.argsort(~exist, stable=True)

    def add(i, errors):
        own = jax.tree.map(lambda x: x[order[i]], variables)

        def reconstruct(rows):
            x = as_rows(federation.pool[rows], unit_length=False)
            return _errors(models, own, x)[0]

        found = clients.in_batches(reconstruct, rows, batch_size=BATCH)
        return errors.at[order[i]].set(found)

    # As many passes as there are models: of the communities that can be, few are.
    errors = jnp.zeros((len(exist), len(rows)))
    errors = lax.fori_loop(0, exist.sum(), add, errors)
    return jnp.moveaxis(errors.reshape(-1, *federation.indices.shape), 0, -1)


def _errors(models: Models, variables: PyTree, x, mask=None):
    train = mask is not None
    decoded, variables = models.network.apply(variables, x, train=train, mask=mask)
    return losses.reconstruction_error(x, decoded) / x.shape[1], variables


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
        errors, variables = _errors(models, variables, x, counted)
        return jnp.mean(errors, where=counted), variables

    return clients.train(
        key,
        client,
        loss,
        members,
        optimizer=models.optimizer,
        batch_size=models.batch_size,
        num_epochs=num_epochs,
    )


def _members(
    clusters: Int[Array, "M N"], chosen: Bool[Array, "M K"], federation: Federation
) -> tuple[Int[Array, "V N"], Bool[Array, "V N"]]:
    """The rows of every cluster's client, and which of them the cluster has; none where
    it is not chosen."""
    number = jnp.arange(chosen.shape[1])[None, :, None]
    members = (clusters[:, None] == number) & federation.mask[:, None]
    members &= chosen[..., None]
    rows = jnp.broadcast_to(federation.indices[:, None], members.shape)
    return by_slot((rows, members))


def _keys(key: PRNGKey, num_own: int, num_clusters: int):
    each = partial(clients.fold_in, count=num_clusters)
    return by_slot(jax.vmap(each)(clients.keys(key, num_own)))
