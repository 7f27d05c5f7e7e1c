"""Which rows of a table are apart from the best one beside them, by their seeds."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from fcjax.metrics.agreement import SURE, holm, paired
from fcjax.results import tables

BEST = "best"
NOT_SEEN = "not seen"


def from_best(
    rows: Sequence[Mapping[str, Any]], *, by: Sequence[str], value: str
) -> dict[tuple, str]:
    """Returns what to say of every setting of a table beside the method that has the
    highest mean in the same setting otherwise.

    Methods are compared seed by seed, as `fcjax compare` does, with Holm's correction
    over all that the table compares.

    Args:
      rows: a dict a run; those without a `seed` are not compared.
      by: the columns that make a setting; without `method` nothing is compared.
      value: the column that is compared, the larger the better.

    Returns:
      From a setting, a tuple in the order of `by`: that it is the `BEST`, its mean
      difference from that, or where none is seen at 5 % that it is `NOT_SEEN`. Settings
      that have no two seeds in common with the best one are left out, and so is the
      best one of nothing.
    """
    if "method" not in by:
        return {}
    others = [name for name in by if name != "method"]
    methods: dict[tuple, dict[Hashable, dict[float, list[float]]]] = {}
    for row in rows:
        score, seed = (tables.number(row.get(name)) for name in (value, "seed"))
        if seed is not None and score is not None and np.isfinite(score):
            own = methods.setdefault(tables.setting_of(row, others), {})
            seeds = own.setdefault(row["method"], {})
            seeds.setdefault(seed, []).append(score)
    means = {
        setting: {
            method: {seed: float(np.mean(each)) for seed, each in seeds.items()}
            for method, seeds in own.items()
        }
        for setting, own in methods.items()
    }
    found, marks = {}, {}
    for setting, own in means.items():
        best = max(own, key=lambda method: np.mean([*own[method].values()]))
        for method in own:
            common = sorted({*own[method]} & {*own[best]})
            if method == best or len(common) < 2:
                continue
            key = dict(zip(others, setting, strict=True))
            place = tuple((key | {"method": method})[name] for name in by)
            found[place] = paired(
                *([own[name][seed] for seed in common] for name in (method, best))
            )
            marks[tuple((key | {"method": best})[name] for name in by)] = BEST
    sure = holm([each.p_value for each in found.values()])
    for (place, each), value_of in zip(found.items(), sure, strict=True):
        marks[place] = f"{each.mean:+.3f}" if value_of < SURE else NOT_SEEN
    return marks
