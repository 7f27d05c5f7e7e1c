"""Which clusters of different clients are the same, and the communities that they
make: phase 2 of FedCRef."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from fcjax import clients, server
from fcjax.cluster import connected_components
from fcjax.types import Communities, Federation, Scalar

Edges = Bool[Array, "M K A K"]
"""Of the clusters of these clients with those of all A, on whatever device."""
Associate = Callable[[Federation, Int[Array, "M N"]], Edges]
"""(federation, clusters) -> the association graph."""


class Association(NamedTuple):
    """The test by which clusters are found to be the same: Eq. 2.

    Examples:
        >>> Association(threshold=0.3)
        Association(percentile=75.0, threshold=0.3, first_match=False)
    """

    percentile: Scalar = 75.0
    """alpha, in [0, 100]."""
    threshold: Scalar = 0.2
    """theta, in [0, 1]."""
    first_match: bool = False
    """Of the clusters of another client the first match is an edge, as in the authors'
    code, not every match; see `first_matches`."""


ASSOCIATION = Association()


class Groups(NamedTuple):
    """The communities that clusters are members of."""

    numbers: Int[Array, "M K"]
    """From 0 on, -1 where a cluster is alone."""
    ranks: Int[Array, "M K"]
    """How many members of its community come before it."""


def associate(
    how: Association | Associate,
    errors: Float[Array, "M N V"],
    clusters: Int[Array, "M N"],
    exist: Bool[Array, "M K"],
    federation: Federation,
) -> Edges:
    """Returns which clusters are the same: those that accept each other's models.

    Args:
        how: when a cluster accepts a model, or what stands in for that.
        errors: of every example under the models of all clients' clusters, K a client.
        clusters: in [0, K).
        exist: which clusters there are.
        federation: whose examples.
    """
    if not isinstance(how, Association):
        return how(federation, clusters) & may_be_joined(exist)
    num_clusters = exist.shape[1]

    def one(errors, models, clusters, mask):
        own = jnp.take_along_axis(errors, models[clusters][:, None], axis=1)[:, 0]
        return accepts(how, errors, own, clusters, mask, num_clusters=num_clusters)

    each = (errors, own_models(*exist.shape), clusters, federation.mask)
    accepted = server.gather(clients.for_each(one, *each))
    accepted = accepted.reshape(*accepted.shape[:2], -1, num_clusters)
    found = accepted & accepted.transpose(2, 3, 0, 1)
    found = first_matches(found) if how.first_match else found
    return server.own_rows(found, len(clusters)) & may_be_joined(exist)


def accepts(
    test: Association,
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
        test: the percentile, interpolated linearly, and the threshold.
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

    place = test.percentile / 100 * last
    below = jnp.floor(place).astype(jnp.int32)
    low, high = ranked(below), ranked(jnp.minimum(below + 1, last))
    value = low + (place - below)[:, None] * (high - low)
    least, most = ranked(0), ranked(last)
    return (most > least) & (value - least <= test.threshold * (most - least))


def own_models(num_own: int, num_clusters: int) -> Int[Array, "M K"]:
    """Returns where the models of these clients stand among those of all."""
    numbers = clients.first_number(num_own) + jnp.arange(num_own)
    return numbers[:, None] * num_clusters + jnp.arange(num_clusters)[None]


def may_be_joined(exist: Bool[Array, "M K"]) -> Edges:
    """Returns which pairs of clusters an edge may join: both exist, and they are of two
    clients."""
    everyones = server.gather(exist)
    numbers = clients.first_number(len(exist)) + jnp.arange(len(exist))
    differ = numbers[:, None] != jnp.arange(len(everyones))[None]
    pairs = exist[:, :, None, None] & everyones[None, None]
    return pairs & differ[:, None, :, None]


def first_matches(accepted: Bool[Array, "M K M K"]) -> Bool[Array, "M K M K"]:
    """Returns of mutual acceptances those that the authors' code comes to: it compares
    two clients once, and goes on to the next cluster of the first one as soon as one of
    the second's is accepted. The paper makes an edge of every pair."""
    num_clients = len(accepted)
    is_first = jnp.cumsum(accepted, axis=3) == 1
    client = jnp.arange(num_clients)
    is_upper = (client[:, None] < client[None])[:, None, :, None]
    found = accepted & is_first & is_upper
    return found | found.transpose(2, 3, 0, 1)


def all_alone(clusters: Int[Array, "M N"], num_clusters: int) -> Communities:
    """Returns what is known before any association: no cluster has a community."""
    numbers = jnp.full((len(clusters), num_clusters), jnp.int32(-1))
    num_all = clients.num_all(len(clusters))
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
    as arrays have to have a row."""
    return max(clients.num_all(num_own) * num_clusters // 2, 1)
