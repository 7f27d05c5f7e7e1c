"""How a client divides its examples anew among models, and when all is over: phases 4
(Algorithm 2) and 5 of FedCRef."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int
from optax.assignment import hungarian_algorithm

from fcjax.types import Scalar

STEADY_ITERATIONS = 3
"""Without significant changes, after which the process is halted."""


class Halting(NamedTuple):
    """When a client is done, and when all are: section 4, phase 5.

    Examples:
        >>> Halting(stability=0.85).tolerance
        0.1
    """

    stability: Scalar = 0.8
    """tau, the share of its examples that a refinement leaves in their cluster from
    which on a client stops, the first one too (line 29 of Algorithm 1; so in the
    authors' code, which has 0.85)."""
    tolerance: Scalar = 0.1
    """How much the numbers of communities and of isolated clusters may change, relative
    to those before, or to 1 where there were none, and count as steady; of the latter
    the code has 0.15."""
    stop_when_settled: bool = True
    """Halt when no client is active, as the text of phase 5 does; without it only
    steady numbers and `max_refinements` do, as in the code. The iterations that this
    adds change nobody's clusters."""
    max_refinements: Scalar | None = None
    """Halt when a client has refined so often, as a mean; the code has 10, the paper no
    such bound."""


HALTING = Halting()


class Trend(NamedTuple):
    """What is watched, which all clients know."""

    communities: Int[Array, ""]  # |G|
    isolated: Int[Array, ""]  # |I|
    active: Int[Array, ""]  # |A|
    num_steady: Int[Array, ""]  # iterations on end in which |G|, |I| hardly changed
    refinements: Float[Array, ""]  # the mean over clients


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


def begin(num_clusters: Int[Array, ""], num_clients: Int[Array, ""]) -> Trend:
    """Returns the trend before the first iteration: every cluster is alone."""
    return Trend(
        communities=jnp.int32(0),
        isolated=num_clusters.astype(jnp.int32),
        active=num_clients.astype(jnp.int32),
        num_steady=jnp.int32(0),
        refinements=jnp.float32(0),
    )


def follow(
    halting: Halting,
    trend: Trend,
    communities: Int[Array, ""],
    isolated: Int[Array, ""],
    is_active: Bool[Array, "M"],
    num_refinements: Int[Array, "M"],
    counted: Bool[Array, "M"],
) -> Trend:
    """Returns the trend after a further iteration.

    Args:
        halting: the rule.
        trend: after the last one.
        communities: |G| of its graph.
        isolated: |I|.
        is_active: which clients go on.
        num_refinements: how often each has refined its clusters.
        counted: which clients take part at all.
    """

    def is_steady(new, old):
        return jnp.abs(new - old) <= halting.tolerance * jnp.maximum(old, 1)

    steady = is_steady(communities, trend.communities)
    steady &= is_steady(isolated, trend.isolated)
    return Trend(
        communities=communities.astype(jnp.int32),
        isolated=isolated.astype(jnp.int32),
        active=jnp.sum(is_active & counted, dtype=jnp.int32),
        num_steady=jnp.where(steady, trend.num_steady + 1, 0),
        refinements=jnp.mean(num_refinements, where=counted),
    )


def is_over(halting: Halting, trend: Trend) -> Bool[Array, ""]:
    """Returns whether nobody is active, nothing has changed for some iterations, or
    clients have refined as often as they may, as a mean.

    The text of phase 5 ends at either; line 6 of Algorithm 1 goes on while either
    holds, (varying) or |A| > 0, which active clients that change nothing never end.
    The authors' code does not look at |A|.

    Args:
        halting: the rule.
        trend: after the last iteration.
    """
    over = trend.num_steady >= STEADY_ITERATIONS
    if halting.max_refinements is not None:
        over |= trend.refinements >= halting.max_refinements
    return over | (trend.active == 0) if halting.stop_when_settled else over
