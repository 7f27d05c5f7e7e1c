"""Differences by seed against closed forms, and Holm against R."""

import math

import numpy as np
import pytest
from scipy import stats

from fcjax.metrics.agreement import holm, paired


def test_of_two_seeds_all_is_known_in_closed_form():
    """Differences 0.1 and 0.3. Drawn with replacement the mean is 0.1, 0.2, 0.2 or 0.3.
    Student's t with one degree of freedom is Cauchy's distribution, whose function is
    1/2 + atan(x) / pi."""
    found = paired([0.6, 0.9], [0.5, 0.6])
    assert (found.mean, found.n) == (pytest.approx(0.2), 2)
    assert (found.low, found.high) == (pytest.approx(0.1), pytest.approx(0.3))
    spread = math.sqrt(0.02)
    ahead = 0.2 / (spread * math.sqrt(1.5))
    assert found.probability == pytest.approx(0.5 + math.atan(ahead) / math.pi)
    t = 0.2 / (spread / math.sqrt(2))
    assert found.p_value == pytest.approx(1 - 2 * math.atan(t) / math.pi)
    # Half-widths of 3, 4 and 5 seeds: 4.303 / sqrt(3), 3.182 / 2 and 2.776 / sqrt(5)
    # times 0.1414 are 0.351, 0.225 and 0.176.
    assert found.more_seeds == 3


def test_the_interval_is_that_of_many_seeds():
    """Of 400 normal differences, within what 10,000 draws of it leave open."""
    off = np.random.default_rng(1).normal(0.1, 1, 400)
    found = paired(off, np.zeros(400))
    half = stats.norm.ppf(0.975) * off.std() / 20
    assert found.low == pytest.approx(off.mean() - half, abs=0.01)
    assert found.high == pytest.approx(off.mean() + half, abs=0.01)


def test_the_other_way_round_is_the_opposite():
    rng = np.random.default_rng(2)
    first, second = rng.random((2, 6))
    one, other = paired(first, second), paired(second, first)
    assert one.mean == -other.mean
    assert one.probability == pytest.approx(1 - other.probability)
    assert (one.p_value, one.more_seeds) == (other.p_value, other.more_seeds)
    assert one.low == pytest.approx(-other.high, abs=0.01)


def test_what_no_number_of_seeds_decides():
    found = paired([0.5, 0.6, 0.7], [0.6, 0.5, 0.7])
    assert found.mean == pytest.approx(0)
    assert found.more_seeds is None
    assert found.probability == pytest.approx(0.5)
    same = paired([0.5, 0.6], [0.5, 0.6])
    assert (same.p_value, same.probability, same.more_seeds) == (1, 0.5, None)
    ahead = paired([0.6, 0.7], [0.5, 0.6])
    assert (ahead.p_value, ahead.probability, ahead.more_seeds) == (0, 1, 0)


def test_a_single_seed_has_a_difference_and_nothing_else():
    found = paired([0.6], [0.5])
    assert found.mean == pytest.approx(0.1)
    assert found.more_seeds is None
    for name in ("low", "high", "probability", "p_value"):
        assert math.isnan(getattr(found, name))


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ([], [], "0 and 0 scores are no pairs"),
        ([0.1], [0.1, 0.2], "1 and 2 scores are no pairs"),
        ([0.1, math.nan], [0.1, 0.2], "missing or no number"),
    ],
)
def test_what_is_no_pair_is_refused(first, second, told):
    with pytest.raises(ValueError, match=told):
        paired(first, second)


def test_holm_as_r_has_it():
    """p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05)) and, out of order, with one above 1,
    p.adjust(c(0.5, 0.001, 0.2, 0.7)); NaN as NA, which is not counted."""
    expected = [0.05, 0.08, 0.09, 0.09, 0.09]
    assert holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx(expected)
    found = holm([0.5, 0.001, math.nan, 0.2, 0.7])
    assert found[:2] == pytest.approx([1.0, 0.004])
    assert math.isnan(found[2])
    assert found[3:] == pytest.approx([0.6, 1.0])
