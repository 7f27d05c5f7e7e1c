"""Simulations and measurements of FedCRef that use the labels.

These are a start from true classes with errors, true associations of clusters, and the
share of wrong associations. The algorithm itself uses no labels: its builder takes
these functions as arguments.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int
from optax.assignment import hungarian_algorithm

from fcjax.federated import clients, server
from fcjax.types import Federation, PRNGKey, Scalar

Labels = Int[Array, "P"]
"""The class of each example in the pool: 0, 1, ..."""


def dirty(
    labels: Labels, dirtiness: Scalar, *, num_classes: int
) -> Callable[[PRNGKey, Federation], Int[Array, "M N"]]:
    """Returns the simulated start of FedCRef ("dirty uniform", section 5.4).

    The clusters of a client are its classes, in ascending order. Then each example
    moves with probability `dirtiness` to another cluster of the client, uniformly at
    random.

    Args:
        labels: the class of each example in the pool, int [P].
        dirtiness: probability from 0 to 1.
        num_classes: number of classes in the pool.

    Returns:
        A function from a key and a federation to the cluster of each example of each
        client, int [M, N].
    """

    def client_start(key, indices, mask):
        classes = labels[indices]
        has_class = jnp.zeros(num_classes, bool).at[classes].max(mask)
        number = jnp.cumsum(has_class) - 1
        clusters, count = number[classes], has_class.sum()

        def draw(key):
            leave_key, step_key = jax.random.split(key)
            leaves = jax.random.uniform(leave_key) < dirtiness
            step = jax.random.randint(step_key, (), 1, jnp.maximum(count, 2))
            return jnp.where(leaves & (count > 1), step, 0)

        steps = jax.vmap(draw)(clients.fold_in(key, len(indices)))
        return ((clusters + steps) % jnp.maximum(count, 1)).astype(jnp.int32)

    def start(key: PRNGKey, federation: Federation):
        keys = clients.keys(key, len(federation.indices))
        return jax.vmap(client_start)(keys, federation.indices, federation.mask)

    return start


def classes_of(
    labels: Labels,
    federation: Federation,
    clusters: Int[Array, "M N"],
    *,
    num_clusters: int,
    num_classes: int,
) -> Int[Array, "M K"]:
    """Matches the clusters of each client to its classes.

    The match is one to one and maximizes the number of examples that agree.

    Args:
        labels: the class of each example in the pool, int [P].
        federation: the clients and their examples.
        clusters: the cluster of each example of each client, in [0, K).
        num_clusters: K, the largest number of clusters of a client.
        num_classes: number of classes in the pool.

    Returns:
        The class of each cluster; -1 for a cluster that is empty or has no match.
    """

    def client_classes(indices, clusters, mask):
        counts = jnp.zeros((num_clusters, num_classes))
        counts = counts.at[clusters, labels[indices]].add(mask)
        of_cluster, of_class = hungarian_algorithm(-counts)
        matched = jnp.full(num_clusters, -1).at[of_cluster].set(of_class)
        agreeing = counts[jnp.arange(num_clusters), jnp.maximum(matched, 0)]
        return jnp.where(agreeing > 0, matched, -1)

    return jax.vmap(client_classes)(federation.indices, clusters, federation.mask)


def perfect(
    labels: Labels, *, num_clusters: int, num_classes: int
) -> Callable[[Federation, Int[Array, "M N"]], Bool[Array, "M K A K"]]:
    """Returns a function that associates clusters which match the same class.

    Args:
        labels: the class of each example in the pool, int [P].
        num_clusters: K, the largest number of clusters of a client.
        num_classes: number of classes in the pool.

    Returns:
        A function from a federation and the clusters of its examples to the edges
        between the clusters of these M clients and of all A clients.
    """

    def associate(federation: Federation, clusters):
        classes = classes_of(
            *(labels, federation, clusters),
            num_clusters=num_clusters,
            num_classes=num_classes,
        )
        all_classes = server.gather(classes)
        same = classes[:, :, None, None] == all_classes[None, None]
        return same & (classes >= 0)[:, :, None, None]

    return associate


def wrong_associations(labels: Labels, *, num_clusters: int, num_classes: int):
    """Returns a function that measures the share of wrong associations.

    An association is wrong if its two clusters match different classes.

    Args:
        labels: the class of each example in the pool, int [P].
        num_clusters: K, the largest number of clusters of a client.
        num_classes: number of classes in the pool.

    Returns:
        A function from a federation, the clusters of its examples and the edges to the
        metric `wrong_associations`, from 0 to 1; 0 if there are no edges.
    """

    def measure(federation: Federation, clusters, edges) -> dict[str, Array]:
        classes = classes_of(
            *(labels, federation, clusters),
            num_clusters=num_clusters,
            num_classes=num_classes,
        )
        all_classes, edges = server.gather((classes, edges))
        differ = all_classes[:, :, None, None] != all_classes[None, None]
        count = jnp.maximum(edges.sum(), 1)
        return {"wrong_associations": jnp.sum(edges & differ) / count}

    return measure
