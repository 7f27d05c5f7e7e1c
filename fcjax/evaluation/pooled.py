"""Internal scores of clusterings in embeddings that are not their own."""

import math

import numpy as np
from jaxtyping import Float
from scipy import stats


def pooled_ranks(scores: Float[np.ndarray, "R R"]) -> Float[np.ndarray, "R"]:
    """Returns how highly the other runs' embeddings rank each run, from 0, below all
    others in each, to 1; NaN where no other ranks it.

    A score of one embedding cannot be compared with that of another, but its order of
    the clusterings can; and a run's own embedding, which was trained to make its
    clusters compact, has no vote. This is the pooling of ACE without its
    selection of the embeddings.

    Args:
      scores: of every run in every run's embedding, see `silhouettes`.

    References:
      Deep clustering evaluation: how to validate internal clustering validation
      measures (ACE), arXiv 2403.14830, 2024.

    Examples:
      >>> scores = np.array([[0.1, 0.5, 0.3], [0.4, 0.9, 0.2], [0.7, 0.8, 0.9]])
      >>> print(pooled_ranks(scores))
      [0.5 1.  0. ]
    """
    found = np.full(scores.shape, np.nan)
    for i, row in enumerate(scores):
        (others,) = np.nonzero(~np.isnan(row) & (np.arange(len(row)) != i))
        if len(others) > 1:
            found[i, others] = (stats.rankdata(row[others]) - 1) / (len(others) - 1)
    return np.array(
        [
            np.mean(x[~np.isnan(x)]) if (~np.isnan(x)).any() else math.nan
            for x in found.T
        ]
    )
