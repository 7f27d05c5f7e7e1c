"""The marks of rows that differ significantly from the best row of their setting."""

import numpy as np
import pytest

from experiments.papers import significance

A = (0.80, 0.82, 0.78)
WORSE = (-0.05, -0.06, -0.04)
"""t = -0.05 / (0.01 / sqrt 3) = -8.66 of two degrees of freedom: p = 0.0131."""


def runs(method: str, scores: tuple[float, ...], p: float = 0.0) -> list[dict]:
    return [
        {"p": p, "method": method, "seed": seed, "nmi": score}
        for seed, score in enumerate(scores)
    ]


def less(scores: tuple[float, ...], off: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(np.add(scores, off).tolist())


def marks(rows: list[dict]) -> dict[tuple, str]:
    return significance.compare_with_best(
        rows, by=("p", "method"), value="nmi"
    ).to_dict()


def test_a_method_is_apart_from_the_best_or_it_is_not():
    rows = [
        *runs("a", A),
        *runs("b", less(A, WORSE)),
        # t = -0.01 / (0.026 / sqrt 3) = -0.65: p = 0.58.
        *runs("c", less(A, (0.02, -0.03, -0.02))),
    ]
    assert marks(rows) == {
        (0.0, "a"): significance.BEST,
        (0.0, "b"): "-0.050",
        (0.0, "c"): significance.NOT_SIGNIFICANT,
    }


@pytest.mark.parametrize(
    ("num_tests", "expected"), [(3, "-0.050"), (4, "not significant")]
)
def test_the_number_of_comparisons_counts(num_tests: int, expected: str):
    # 3 x 0.0131 = 0.039, 4 x 0.0131 = 0.052.
    rows = []
    for p in range(num_tests):
        rows += [*runs("a", A, p), *runs("b", less(A, WORSE), p)]
    assert {marks(rows)[(p, "b")] for p in range(num_tests)} == {expected}


def test_only_seeds_that_both_have_are_compared():
    rows = [*runs("a", (*A, 0.9)), *runs("b", (*less(A, WORSE), np.nan))]
    assert marks(rows) == {(0.0, "a"): significance.BEST, (0.0, "b"): "-0.050"}
    assert not marks([*runs("a", A[:1]), *runs("b", A)])


def test_nothing_is_said_of_one_method_or_of_rows_without_a_seed():
    assert not marks(runs("a", A))
    assert significance.compare_with_best(runs("a", A), by=("p",), value="nmi").empty
    drawn = [{**row, "seed": None} for row in runs("a", A) + runs("b", A)]
    assert not marks(drawn)
