"""How far clusterings of the same examples agree with each other.

No truth is needed: runs that differ in their seed alone agree where the data says what
the clusters are, and disagree where chance did.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Array, Float, Integer

from fcjax.evaluation.scores import ari

Names = Integer[np.ndarray | Array, "_"]


def agreement(
    first: Names,
    second: Names,
    *,
    blocks: Names | None = None,
    measure: Callable[[Names, Names], float] = ari,
) -> float:
    """Returns how far two clusterings agree on the examples that both have a cluster
    for, 1 where they are the same; NaN where there are no two such examples.

    Args:
      first: [n] clusters, -1 where there is none.
      second: [n] those of another run, in any number and by any names.
      blocks: [n] groups of examples that are measured on their own, as where clients
        cluster without each other and no cluster of one is that of another: the mean
        over the groups, which count by their examples. Those of one example, which
        nothing can be said of, do not count.
      measure: of two clusterings: `ari`, in which agreement by chance is 0, or `nmi`.

    Raises:
      ValueError: lengths differ.

    References:
      Hubert and Arabie, Comparing partitions, 1985; Strehl and Ghosh, Cluster
      ensembles, 2002, whose average normalised mutual information this is with `nmi`.

    Examples:
      >>> first, second = np.array([0, 0, 1, 1, -1]), np.array([7, 7, 5, 5, 5])
      >>> agreement(first, second)
      1.0
      >>> owners = np.array([0, 1, 0, 1, 0])  # who tell one example from the other
      >>> agreement(first, np.array([7, 5, 5, 7, 5]), blocks=owners)
      1.0
    """
    first, second = np.asarray(first), np.asarray(second)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} clustered examples")
    both = (first >= 0) & (second >= 0)
    groups = np.zeros(len(first), int) if blocks is None else np.asarray(blocks)
    found, sizes = [], []
    for group in np.unique(groups[both]):
        rows = both & (groups == group)
        if rows.sum() > 1:
            found.append(measure(first[rows], second[rows]))
            sizes.append(rows.sum())
    return float(np.average(found, weights=sizes)) if found else math.nan


def pairwise_agreement(
    runs: Integer[np.ndarray | Array, "R n"],
    *,
    holders: Integer[np.ndarray | Array, "R n"] | None = None,
    measure: Callable[[Names, Names], float] = ari,
) -> Float[np.ndarray, "R R"]:
    """Returns the agreement of each run with each other; NaN on the diagonal, since a
    run says nothing by agreeing with itself.

    Args:
      runs: clusters, -1 where there is none.
      holders: which client holds each example in each run, where clients clustered
        without each other: only examples that one client holds in both runs are
        compared. The same for all, as -1, in a run that has one clustering of all.
      measure: as of `agreement`.

    Examples:
      >>> runs = np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]])
      >>> print(pairwise_agreement(runs).round(1))
      [[ nan  1.  -0.5]
       [ 1.   nan -0.5]
       [-0.5 -0.5  nan]]
    """
    runs = np.asarray(runs)
    found = np.full((len(runs), len(runs)), np.nan)
    for i, j in itertools.combinations(range(len(runs)), 2):
        blocks = None
        if holders is not None:
            each = np.asarray(holders)[[i, j]]
            blocks = np.unique(each, axis=1, return_inverse=True)[1].reshape(-1)
        found[i, j] = agreement(runs[i], runs[j], blocks=blocks, measure=measure)
        found[j, i] = found[i, j]
    return found


def mean_agreement(pairwise: Float[np.ndarray, "R R"]) -> Float[np.ndarray, "R"]:
    """Returns how far each run agrees with the others on average, from
    `pairwise_agreement`; NaN where it can be compared with none.

    Examples:
      >>> runs = np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]])
      >>> print(mean_agreement(pairwise_agreement(runs)))
      [ 0.25  0.25 -0.5 ]
    """
    known = ~np.isnan(pairwise)
    count = known.sum(axis=1)
    total = np.where(known, pairwise, 0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
