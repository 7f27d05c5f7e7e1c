"""The model by which a client knows a cluster: phase 1 of FedCRef, and its errors.

See `fcjax.algorithms.fedcref` for the paper. In shapes V is M K, all clusters of these
clients, or of those of all devices.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from fcjax import clients, losses, training
from fcjax.algorithms.autoencoding import reconstruction
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


def zeros(models: Models, federation: Federation) -> PyTree:
    """Returns what is held before any cluster has a model: [M, K, ...]."""
    drawn = jax.eval_shape(
        partial(draw, models, federation=federation), jax.random.key(0)
    )
    shape = (len(federation.indices), models.num_clusters)
    return jax.tree.map(lambda x: jnp.zeros((*shape, *x.shape), x.dtype), drawn)


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

    held = members_of(clusters, chosen, federation)
    keys = keys_of(key, *chosen.shape)
    trained = clients.for_each(one, keys, *held, axis=models.client_axis)
    return jax.tree.map(lambda x: x.reshape(*chosen.shape, *x.shape[1:]), trained)


def keep(chosen: Bool[Array, "M K"], new: PyTree, old: PyTree) -> PyTree:
    """Takes the new values of the chosen clusters, the old ones of the rest."""

    def choose(new, old):
        return jnp.where(
            chosen.reshape(*chosen.shape, *(1,) * (new.ndim - 2)), new, old
        )

    return jax.tree.map(choose, new, old)


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
        key,
        client,
        loss,
        members,
        optimizer=models.optimizer,
        batch_size=models.batch_size,
        num_epochs=num_epochs,
    )


def members_of(
    clusters: Int[Array, "M N"], chosen: Bool[Array, "M K"], federation: Federation
) -> tuple[Int[Array, "V N"], Bool[Array, "V N"]]:
    """Returns the rows of every cluster's client, and which of them the cluster has;
    none where it is not chosen."""
    number = jnp.arange(chosen.shape[1])[None, :, None]
    members = (clusters[:, None] == number) & federation.mask[:, None]
    members &= chosen[..., None]
    rows = jnp.broadcast_to(federation.indices[:, None], members.shape)
    return by_slot((rows, members))


def keys_of(key: PRNGKey, num_own: int, num_clusters: int) -> Key[Array, "V"]:
    """Returns a key for each cluster, the same on whatever device."""
    each = partial(clients.fold_in, count=num_clusters)
    return by_slot(jax.vmap(each)(clients.keys(key, num_own)))
