"""What FedCRef is measured by, where an experiment knows the labels: a start of true
classes made dirty, true associations, and how many associations are wrong.

None of it is an algorithm's: builders take it as arguments.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int
from optax.assignment import hungarian_algorithm

from fcjax.federated import clients, server
from fcjax.types import Federation, PRNGKey, Scalar

Labels = Int[Array, "P"]
"""0, 1, ... of every row of the pool."""


def dirty(
    labels: Labels, dirtiness: Scalar, *, num_classes: int
) -> Callable[[PRNGKey, Federation], Int[Array, "M N"]]:
    """Returns FedCRef's simulated start ("dirty uniform", section 5.4).

    A client's clusters are its classes, in ascending order; then every example leaves
    its own, with probability `dirtiness`, for another of the client, each as likely.
    """

    def one(key, rows, mask):
        of_examples = labels[rows]
        holds = jnp.zeros(num_classes, bool).at[of_examples].max(mask)
        number = jnp.cumsum(holds) - 1
        own, count = number[of_examples], holds.sum()

        def draw(key):
            leave_key, step_key = jax.random.split(key)
            leaves = jax.random.uniform(leave_key) < dirtiness
            step = jax.random.randint(step_key, (), 1, jnp.maximum(count, 2))
            return jnp.where(leaves & (count > 1), step, 0)

        steps = jax.vmap(draw)(clients.fold_in(key, len(rows)))
        return ((own + steps) % jnp.maximum(count, 1)).astype(jnp.int32)

    def start(key: PRNGKey, federation: Federation):
        keys = clients.keys(key, len(federation.indices))
        return jax.vmap(one)(keys, federation.indices, federation.mask)

    return start


def classes_of(
    labels: Labels,
    federation: Federation,
    clusters: Int[Array, "M N"],
    *,
    num_clusters: int,
    num_classes: int,
) -> Int[Array, "M K"]:
    """Returns the class that each cluster of a client matches, where clusters and the
    client's classes are matched one to one so that most examples agree; -1 for one that
    is empty or matches none.
    """

    def one(rows, own, mask):
        counts = jnp.zeros((num_clusters, num_classes)).at[own, labels[rows]].add(mask)
        of_cluster, of_class = hungarian_algorithm(-counts)
        matched = jnp.full(num_clusters, -1).at[of_cluster].set(of_class)
        agreeing = counts[jnp.arange(num_clusters), jnp.maximum(matched, 0)]
        return jnp.where(agreeing > 0, matched, -1)

    return jax.vmap(one)(federation.indices, clusters, federation.mask)


def perfect(
    labels: Labels, *, num_clusters: int, num_classes: int
) -> Callable[[Federation, Int[Array, "M N"]], Bool[Array, "M K A K"]]:
    """Returns true associations: an edge between clusters that match the same class."""

    def associate(federation: Federation, clusters):
        own = classes_of(
            *(labels, federation, clusters),
            num_clusters=num_clusters,
            num_classes=num_classes,
        )
        everyones = server.gather(own)
        same = own[:, :, None, None] == everyones[None, None]
        return same & (own >= 0)[:, :, None, None]

    return associate


def wrong_associations(labels: Labels, *, num_clusters: int, num_classes: int):
    """Returns a measure: the share of the edges that join clusters of different classes
    (as they are matched), 0 where there is no edge.
    """

    def measure(federation: Federation, clusters, edges) -> dict[str, Array]:
        own = classes_of(
            *(labels, federation, clusters),
            num_clusters=num_clusters,
            num_classes=num_classes,
        )
        everyones, edges = server.gather((own, edges))
        differ = everyones[:, :, None, None] != everyones[None, None]
        count = jnp.maximum(edges.sum(), 1)
        return {"wrong_associations": jnp.sum(edges & differ) / count}

    return measure
