"""Differences by seed against closed forms, and Holm against R."""

import math

import pytest

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


def test_holm_as_r_has_it():
    """p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05)) and, out of order, with one above 1,
    p.adjust(c(0.5, 0.001, 0.2, 0.7)); NaN as NA, which is not counted."""
    expected = [0.05, 0.08, 0.09, 0.09, 0.09]
    assert holm([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx(expected)
    found = holm([0.5, 0.001, math.nan, 0.2, 0.7])
    assert found[:2] == pytest.approx([1.0, 0.004])
    assert math.isnan(found[2])
    assert found[3:] == pytest.approx([0.6, 1.0])
