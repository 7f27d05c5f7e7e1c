"""Marks the rows of a table that differ significantly from the best method."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fcjax.metrics.agreement import SURE, holm, paired

BEST = "best"
"""Mark of the method with the highest mean in a setting."""
NOT_SIGNIFICANT = "not significant"
"""Mark of a method whose difference from the best is not significant."""


def compare_with_best(
    rows: Sequence[Mapping[str, Any]], *, by: Sequence[str], value: str
) -> pd.Series:
    """Compares each method with the best method of the same setting.

    The comparison is a paired t-test over seeds, as in `fcjax compare`. Holm's
    correction covers all comparisons of the table.

    Args:
      rows: one dict per run. A run without a `seed` is not compared.
      by: the columns that define a setting. Without `method` nothing is compared.
      value: the column to compare. A larger value is better.

    Returns:
      One mark per row of the table, indexed by the columns `by`: `BEST`, the mean
      difference from the best, or `NOT_SIGNIFICANT` at the 5 % level. There is no mark
      for a method with fewer than two seeds in common with the best, and none for a
      best method without a competitor.
    """
    if "method" not in by:
        return pd.Series(dtype=object)
    runs: Any = pd.DataFrame(rows).reindex(columns=[*by, "seed", value])
    runs = runs.dropna(subset=["seed", value])
    setting_columns = [name for name in by if name != "method"]
    tests, marks = {}, {}
    for setting, group in runs.groupby(setting_columns, sort=False, dropna=False):
        scores = group.pivot_table(value, "seed", "method", sort=False)
        best = scores.mean().idxmax()
        setting_values = dict(zip(setting_columns, setting, strict=True))
        for method in scores.columns.drop(best):
            paired_scores = scores[[method, best]].dropna()
            if len(paired_scores) > 1:
                key = tuple({**setting_values, "method": method}[name] for name in by)
                tests[key] = paired(
                    paired_scores[method].tolist(), paired_scores[best].tolist()
                )
                marks[
                    tuple({**setting_values, "method": best}[name] for name in by)
                ] = BEST
    p_values = holm([test.p_value for test in tests.values()])
    for (key, test), p_value in zip(tests.items(), p_values, strict=True):
        marks[key] = f"{test.mean:+.3f}" if p_value < SURE else NOT_SIGNIFICANT
    index = pd.MultiIndex.from_tuples(marks, names=by)
    return pd.Series(list(marks.values()), index, dtype=object)
