"""Mean ranks of methods over several data sets, and the methods that tie.

References:
    Demsar, `Statistical Comparisons of Classifiers over Multiple Data Sets
    <https://jmlr.org/papers/v7/demsar06a.html>`_, JMLR 2006: the Friedman test and the
    figure. Benavoli, Corani and Mangili, `Should We Really Use Post-Hoc Tests Based on
    Mean-Ranks? <https://jmlr.org/papers/v17/benavoli16a.html>`_, JMLR 2016: a test of
    each pair in place of a critical difference, so that the verdict on two methods does
    not depend on the other methods.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from experiments.matrix.frame import Frame
from experiments.papers.significance import BEST, NOT_SIGNIFICANT, compare_with_best
from fcjax.metrics.agreement import SURE, holm

BLOCK = ["dataset", "rule", "level", "seed"]
"""The columns of a block: a partition on which all methods are compared."""


wilcoxon: Any = stats.wilcoxon  # The type of its result is unknown to type checkers.


class Ranks(NamedTuple):
    """The mean ranks of the methods, from the best to the worst."""

    mean: Frame
    """The mean rank by method, 1 for a method that is always the best."""
    num_blocks: int
    """Number of blocks."""
    datasets: list[str]
    """The data sets of the blocks."""
    p_value: float
    """The p-value of the Friedman test: all methods have the same ranks. NaN for fewer
    than three methods."""
    ties: list[tuple[int, int]]
    """The first and the last of methods next to each other, no two of which differ
    significantly. Groups within other groups are left out."""


def blocks_of(frame: Frame, score: str = "nmi", *, failed: float = 0.0) -> Frame:
    """Arranges the scores with one row per block and one column per method.

    Args:
        frame: the frame of one preset, see `frame.COLUMNS`.
        score: the name of the score.
        failed: the score of a failed run.

    Returns:
        The scores, indexed by `BLOCK`. A central method has the same score at all
        levels. Runs that are missing are NaN. Methods that only cluster on each client
        are left out.
    """
    fails = frame["status"].str.startswith("failed")
    is_local = ~fails & (frame["scope"] != "global")
    local = set(frame.loc[is_local, "method"])
    runs = frame.assign(**{score: frame[score].mask(fails, failed)})
    runs = runs[~runs["method"].isin(local)]
    table = runs.pivot_table(score, BLOCK, "method", sort=False, dropna=False)
    table = table.dropna(how="all")
    central = frame.loc[frame["is_central"].astype(bool), "method"]
    for method in set(central) & set(table.columns):
        known = table[method].dropna().groupby(["dataset", "seed"]).first()
        places = pd.MultiIndex.from_arrays(
            [table.index.get_level_values(name) for name in ("dataset", "seed")]
        )
        table[method] = known.reindex(places).to_numpy()
    return table


def largest_complete(table: Frame) -> Frame:
    """Selects partitions and methods without holes.

    Blocks with the same data set, rule and seed stay together. They are added in the
    order of their number of complete methods. The largest part on the way is taken.

    Args:
        table: the result of `blocks_of`.

    Returns:
        A part of the table without NaN. Empty if no method is complete anywhere.
    """
    complete = table.notna().groupby(["dataset", "rule", "seed"], sort=False).all()
    order = complete.sum(axis=1).sort_values(ascending=False, kind="stable").index
    groups = table.index.droplevel("level")
    best = table.iloc[:0, :0]
    for count in range(1, len(order) + 1):
        part = table[groups.isin(order[:count])].dropna(axis=1)
        if part.size > best.size:
            best = part
    return best


def ranks_of(table: Frame) -> Ranks:
    """Ranks the methods in each block, and tests their differences.

    The paired test is Wilcoxon's signed-rank test over blocks, with Holm's correction
    for all pairs. Blocks of one data set are not independent, so the tests are about
    these data sets.

    Args:
        table: scores without NaN, one row per block and one column per method. A larger
            score is better.

    Returns:
        The ranks.

    Examples:
        >>> scores = {"a": [0.9, 0.8, 0.9], "b": [0.5, 0.9, 0.4], "c": [0.1, 0.2, 0.3]}
        >>> blocks = [("digits", "p", 0.0, seed) for seed in range(3)]
        >>> index = pd.MultiIndex.from_tuples(blocks, names=BLOCK)
        >>> ranks = ranks_of(pd.DataFrame(scores, index))
        >>> print(ranks.mean.round(2).to_dict(), ranks.ties)
        {'a': 1.33, 'b': 1.67, 'c': 3.0} [(0, 2)]
    """
    mean = table.rank(axis=1, ascending=False).mean().sort_values(kind="stable")
    ordered = table[mean.index]
    p_value = float("nan")
    if len(mean) > 2 and len(table) > 1:
        p_value = float(stats.friedmanchisquare(*ordered.to_numpy().T)[1])
    differs = significant_pairs(ordered.to_numpy())
    datasets = list(dict.fromkeys(table.index.get_level_values("dataset")))
    return Ranks(mean, len(table), datasets, p_value, ties_of(differs))


def significant_pairs(scores: np.ndarray) -> np.ndarray:
    """Tests all pairs of methods.

    Args:
        scores: the scores [blocks, methods].

    Returns:
        True [methods, methods] at the pairs that differ significantly.
    """
    count = scores.shape[1]
    pairs = list(combinations(range(count), 2))
    p_values = []
    for first, second in pairs:
        differences = scores[:, first] - scores[:, second]
        p_values.append(float(wilcoxon(differences)[1]) if differences.any() else 1.0)
    differs = np.zeros((count, count), bool)
    for (first, second), p_value in zip(pairs, holm(p_values), strict=True):
        differs[first, second] = differs[second, first] = p_value < SURE
    return differs


def ties_of(differs: np.ndarray) -> list[tuple[int, int]]:
    """Returns the longest groups of neighbours without a significant difference.

    Args:
        differs: True [methods, methods] at pairs that differ, in the order of the
            ranks.

    Returns:
        The first and the last method of each group of two or more.

    Examples:
        >>> differs = np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]], bool)
        >>> ties_of(differs)
        [(0, 1), (1, 2)]
    """
    groups: list[tuple[int, int]] = []
    for first in range(len(differs)):
        last = first
        while last + 1 < len(differs) and not differs[first : last + 2, last + 1].any():
            last += 1
        if last > first and (not groups or last > groups[-1][1]):
            groups.append((first, last))
    return groups


def advice_of(table: Frame) -> Frame:
    """Names the best method of each partition, and the methods that tie with it.

    Args:
        table: the result of `blocks_of`, with NaN for failed runs.

    Returns:
        One row per partition, indexed by data set, rule and level. `best` has the
        highest mean, `score` is this mean, and `seeds` is the number of its runs.
        `tied` lists the methods whose difference from it is not significant: a paired
        t-test over the common seeds, with Holm's correction for the partition. `means`
        has the mean of every method.
    """
    names = [name for name in BLOCK if name != "seed"]
    long = table.stack().rename("score").dropna().reset_index()
    rows = []
    for place, group in long.groupby(names, sort=False):
        rows_of_place = group.to_dict("records")
        marks = compare_with_best(rows_of_place, by=[*names, "method"], value="score")
        of_place = dict(zip(marks.index.get_level_values("method"), marks, strict=True))
        means = group.groupby("method", sort=False)["score"].mean()
        means = means.sort_values(ascending=False, kind="stable")
        tested = [method for method, mark in of_place.items() if mark == BEST]
        best = tested[0] if tested else means.index[0]
        tied = [m for m in means.index if of_place.get(m) == NOT_SIGNIFICANT]
        seeds = int((group["method"] == best).sum())
        rows.append((*place, best, means[best], seeds, tied, means.to_dict()))
    columns = [*names, "best", "score", "seeds", "tied", "means"]
    return pd.DataFrame(rows, columns=columns).set_index(names)


def non_dominated(costs: Sequence[float], scores: Sequence[float]) -> list[int]:
    """Returns the points that no other point beats in both cost and score.

    Args:
        costs: a smaller cost is better.
        scores: a larger score is better.

    Returns:
        The indices in the order of their costs.

    Examples:
        >>> non_dominated([3.0, 1.0, 2.0], [0.9, 0.5, 0.4])
        [1, 0]
    """
    found: list[int] = []
    for i in sorted(range(len(costs)), key=lambda i: (costs[i], -scores[i])):
        if not found or scores[i] > scores[found[-1]]:
            found.append(i)
    return found
