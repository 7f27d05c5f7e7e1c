"""The model of a community of clusters, trained by its members: phase 3 of FedCRef.

See `fcjax.algorithms.fedcref` for the paper.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from fcjax import clients, server
from fcjax.algorithms import fedcref_models
from fcjax.algorithms.fedcref_association import Groups
from fcjax.algorithms.fedcref_models import Models
from fcjax.devices import num_bytes
from fcjax.types import Federation, PRNGKey, PyTree


def train(
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
    """Trains a new model of every community by FedAvg over its clusters.

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
    rows, members = fedcref_models.members_of(clusters, trains, federation)
    numbers = jnp.maximum(groups.numbers.reshape(-1), 0)
    sizes = members.sum(axis=1).astype(jnp.float32)
    is_first = (trains & (groups.ranks == 0)).reshape(-1).astype(jnp.float32)
    count = most_communities(len(clusters), models.num_clusters)

    init_key, train_key = jax.random.split(key)
    received = jax.vmap(lambda key: fedcref_models.draw(models, key, federation))(
        clients.fold_in(init_key, count)
    )
    opt_state = models.optimizer.init(jax.tree.map(lambda x: x[0], received)["params"])
    opt_states = clients.repeat(opt_state, len(numbers))

    def one_round(num_epochs, carry, key):
        received, opt_states = carry[:2]

        def one(key, number, opt_state, rows, members):
            variables = jax.tree.map(lambda x: x[number], received)
            client = clients.Client(variables, opt_state)
            return fedcref_models.train(
                models, key, client, rows, members, federation, num_epochs=num_epochs
            )[0]

        keys = fedcref_models.keys_of(key, len(clusters), models.num_clusters)
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


def most_communities(num_own: int, num_clusters: int) -> int:
    """Returns how many communities of two clusters or more there can be."""
    return clients.num_all(num_own) * num_clusters // 2


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
    size = num_bytes(jax.tree.map(lambda x: x[0, 0], local))
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
