"""Which rows of a table are apart from the best one beside them, by their seeds."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fcjax.metrics.agreement import SURE, holm, paired

BEST = "best"
NOT_SIGNIFICANT = "not seen"


def compare_with_best(
    rows: Sequence[Mapping[str, Any]], *, by: Sequence[str], value: str
) -> pd.Series:
    """Returns what to say of every setting of a table beside the method that has the
    highest mean in the same setting otherwise.

    Methods are compared seed by seed, as `fcjax compare` does, with Holm's correction
    over all that the table compares.

    Args:
      rows: a dict a run; those without a `seed` are not compared.
      by: the columns that make a setting; without `method` nothing is compared.
      value: the column that is compared, the larger the better.

    Returns:
      By setting, indexed by the columns `by`: that it is the `BEST`, its mean
      difference from the best, or `NOT_SIGNIFICANT` where no difference is seen at 5 %.
      Settings without two seeds in common with the best one are left out, and so is a
      best one without another method beside it.
    """
    if "method" not in by:
        return pd.Series(dtype=object)
    runs: Any = pd.DataFrame(rows).reindex(columns=[*by, "seed", value])
    runs = runs.dropna(subset=["seed", value])
    others = [name for name in by if name != "method"]
    found, marks = {}, {}
    for setting, own in runs.groupby(others, sort=False, dropna=False):
        scores = own.pivot_table(value, "seed", "method", sort=False)
        best = scores.mean().idxmax()
        place = dict(zip(others, setting, strict=True))
        for method in scores.columns.drop(best):
            both = scores[[method, best]].dropna()
            if len(both) > 1:
                key = tuple({**place, "method": method}[name] for name in by)
                found[key] = paired(both[method].tolist(), both[best].tolist())
                marks[tuple({**place, "method": best}[name] for name in by)] = BEST
    sure = holm([each.p_value for each in found.values()])
    for (key, each), value_of in zip(found.items(), sure, strict=True):
        marks[key] = f"{each.mean:+.3f}" if value_of < SURE else NOT_SIGNIFICANT
    index = pd.MultiIndex.from_tuples(marks, names=by)
    return pd.Series(list(marks.values()), index, dtype=object)
