"""When FedCRef is over: its global stopping rule.

See `fcjax.algorithms.fedcref` for the paper: section 4, phase 5.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fcjax.types import Scalar

STEADY_ITERATIONS = 3
"""Without significant changes, after which the process is halted."""


class Trend(NamedTuple):
    """What is watched, which all clients know."""

    communities: Int[Array, ""]  # |G|
    isolated: Int[Array, ""]  # |I|
    active: Int[Array, ""]  # |A|
    num_steady: Int[Array, ""]  # iterations on end in which |G|, |I| hardly changed
    refinements: Float[Array, ""]  # the mean over clients


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
    trend: Trend,
    communities: Int[Array, ""],
    isolated: Int[Array, ""],
    is_active: Bool[Array, "M"],
    num_refinements: Int[Array, "M"],
    counted: Bool[Array, "M"],
    *,
    tolerance: Scalar,
) -> Trend:
    """Returns the trend after a further iteration.

    Args:
        trend: after the last one.
        communities: |G| of its graph.
        isolated: |I|.
        is_active: which clients go on.
        num_refinements: how often each has refined its clusters.
        counted: which clients take part at all.
        tolerance: the largest change, relative to the number before, or to 1 where
            there was none, that is not significant.
    """

    def is_steady(new, old):
        return jnp.abs(new - old) <= tolerance * jnp.maximum(old, 1)

    steady = is_steady(communities, trend.communities)
    steady &= is_steady(isolated, trend.isolated)
    return Trend(
        communities=communities.astype(jnp.int32),
        isolated=isolated.astype(jnp.int32),
        active=jnp.sum(is_active & counted, dtype=jnp.int32),
        num_steady=jnp.where(steady, trend.num_steady + 1, 0),
        refinements=jnp.mean(num_refinements, where=counted),
    )


def is_over(
    trend: Trend, *, stop_when_settled: bool, max_refinements: Scalar
) -> Bool[Array, ""]:
    """Returns whether nobody is active, nothing has changed for some iterations, or
    clients have refined as often as they may, as a mean.

    The text of phase 5 ends at either; line 6 of Algorithm 1 goes on while either
    holds, (varying) or |A| > 0, which active clients that change nothing never end.
    The authors' code does not look at |A|.

    Args:
        trend: after the last iteration.
        stop_when_settled: whether it is over when nobody is active.
        max_refinements: how often clients may refine.
    """
    is_steady = trend.num_steady >= STEADY_ITERATIONS
    over = is_steady | (trend.refinements >= max_refinements)
    return over | (trend.active == 0) if stop_when_settled else over
