"""How clients divide their examples anew among models: Algorithm 2 of FedCRef.

See `fcjax.algorithms.fedcref` for the paper.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int
from optax.assignment import hungarian_algorithm

from fcjax import clients
from fcjax.algorithms import fedcref_association


def refine(
    errors: Float[Array, "N J"],
    models: Bool[Array, "J"],
    mask: Bool[Array, "N"],
    num_local: Int[Array, ""],
    *,
    num_clusters: int,
    renumber_leftovers: bool = False,
) -> tuple[Int[Array, "N"], Int[Array, "K"]]:
    """Clusters a client's examples by the models that reconstruct them best.

    K_i times the model that is the best of most examples takes those, and both leave.
    Each example that is left over goes to the selected model of the least error.

    Args:
        errors: of every example under every candidate.
        models: which of the candidates there are.
        mask: which examples count; the others get a cluster of no meaning.
        num_local: K_i, at most K.
        num_clusters: K.
        renumber_leftovers: number the clusters of what is left over by a vote of its
            own among the selected models, as the authors' code does, so that it may get
            another model's number.

    Returns:
        Clusters in [0, K), and the candidate selected for each, -1 for a cluster that
        is left empty: those from K_i on, and where examples or models have run out. A
        model whose error is no number is never selected.
    """
    known = jnp.where(jnp.isnan(errors), jnp.inf, errors)
    clusters, selected = _vote(known, models, mask, num_local, num_clusters)
    left_over = mask & (clusters < 0)
    if renumber_leftovers:
        candidates = jnp.arange(len(models))[:, None] == selected[None]
        again, _ = _vote(
            known, candidates.any(axis=1), left_over, num_local, num_clusters
        )
        return jnp.where(left_over, again, clusters).clip(0), selected
    of_selected = jnp.where(selected[None] >= 0, known[:, selected], jnp.inf)
    nearest = jnp.argmin(of_selected, axis=1).astype(jnp.int32)
    return jnp.where(clusters < 0, nearest, clusters), selected


def of_clients(
    errors: Float[Array, "M N V"],
    of_communities: Float[Array, "M N S"],
    exist: Bool[Array, "M K"],
    known: Bool[Array, "S"],
    numbers: Int[Array, "M K"],
    mask: Bool[Array, "M N"],
    num_local: Int[Array, "M"],
    *,
    renumber_leftovers: bool = False,
    client_axis: clients.ClientAxis | None = None,
) -> tuple[Int[Array, "M N"], Int[Array, "M K"]]:
    """Phase 4: every client clusters its examples by the models of its own clusters and
    those of all communities.

    Args:
        errors: of every example under the models of all clients' clusters.
        of_communities: under those of communities.
        exist: which clusters the clients have.
        known: which communities there are.
        numbers: the communities of the clients' clusters, -1 where they are alone.
        mask, num_local, renumber_leftovers: as in `refine`.
        client_axis: how clients run, see `clients.for_each`.

    Returns:
        The clusters, and the community of each by the model that it was selected by.
    """
    num_clusters = exist.shape[1]

    def one(errors, of_communities, own, exist, mask, num_local):
        return refine(
            jnp.concatenate([errors[:, own], of_communities], axis=1),
            jnp.concatenate([exist, known]),
            mask,
            num_local,
            num_clusters=num_clusters,
            renumber_leftovers=renumber_leftovers,
        )

    own = fedcref_association.own_models(len(exist), num_clusters)
    clusters, selected = clients.for_each(
        *(one, errors, of_communities, own, exist, mask, num_local), axis=client_axis
    )
    return clusters, community_of(selected, numbers)


def agreement(
    before: Int[Array, "N"],
    after: Int[Array, "N"],
    mask: Bool[Array, "N"],
    *,
    num_clusters: int,
) -> Float[Array, ""]:
    """Returns the share of a client's examples that kept their cluster, where clusters
    are matched so that they are the most: ACC(y', y), Eq. 6."""
    pairs = before * num_clusters + after
    counts = jnp.zeros(num_clusters**2).at[pairs].add(mask)
    counts = counts.reshape(num_clusters, num_clusters)
    rows, columns = hungarian_algorithm(-counts)
    return counts[rows, columns].sum() / mask.sum()


def community_of(
    selected: Int[Array, "M K"], numbers: Int[Array, "M K"]
) -> Int[Array, "M K"]:
    """Returns the community of every refined cluster by the model that it was selected
    by: a community's own, or that of one of the client's former clusters.

    Args:
        selected: as `refine` returns it, of K own models and then those of
            communities.
        numbers: the communities of the former clusters, -1 where they were alone.
    """
    num_clusters = numbers.shape[1]
    own = jnp.take_along_axis(numbers, jnp.clip(selected, 0, num_clusters - 1), axis=1)
    found = jnp.where(selected < num_clusters, own, selected - num_clusters)
    return jnp.where(selected < 0, -1, found)


def _vote(errors, models, unassigned, num_local, num_clusters):
    """Lines 6 to 14: clusters, -1 where none of the selected models was the best."""

    def select(p, carry):
        clusters, selected, free, unassigned = carry
        best = jnp.argmin(jnp.where(free[None], errors, jnp.inf), axis=1)
        votes = jnp.zeros(len(models)).at[best].add(unassigned & free[best])
        winner = jnp.argmax(votes)
        found = (votes[winner] > 0) & (p < num_local)
        taken = found & unassigned & (best == winner)
        return (
            jnp.where(taken, p, clusters),
            selected.at[p].set(jnp.where(found, winner, -1)),
            free.at[winner].set(free[winner] & ~found),
            unassigned & ~taken,
        )

    clusters = jnp.full(len(errors), -1, jnp.int32)
    selected = jnp.full(num_clusters, -1, jnp.int32)
    free = models & jnp.isfinite(errors).any(axis=0)
    carry = (clusters, selected, free, unassigned)
    return lax.fori_loop(0, num_clusters, select, carry)[:2]
