"""As many clusters as there are come out alike and have no parts that do."""

import numpy as np
import pytest

from fcjax.metrics.agreement import stability

rng = np.random.default_rng(0)
TRUTH = np.repeat(np.arange(4), 50)
CENTERS = np.array([[0, 0], [4, 0], [20, 0], [24, 0]])


def turned(z):
    """The same embedding as another network might have it."""
    angle = rng.uniform(0, 2 * np.pi)
    turn = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return (z + 0.3 * rng.normal(size=z.shape)) @ np.array(turn)


def runs_of(clusters_of, *, seeds=4):
    """Runs of blobs that lie two by two, each with its own embedding."""
    z = CENTERS[TRUTH] + 0.5 * rng.normal(size=(200, 2))
    return np.array([clusters_of() for _ in range(seeds)]), [
        turned(z) for _ in range(seeds)
    ]


def test_the_number_that_is_true_has_the_best_trade_off():
    found = {
        2: stability(*runs_of(lambda: TRUTH // 2)),
        4: stability(*runs_of(lambda: TRUTH)),
        8: stability(*runs_of(lambda: 2 * TRUTH + rng.integers(2, size=200))),
    }
    between, within = (
        {k: np.mean(getattr(each, name)) for k, each in found.items()}
        for name in ("between", "within")
    )
    assert between[2] == between[4] == 1  # alone it would choose two as well
    assert between[8] < 0.7
    assert within[2] == pytest.approx(1)  # each of the two falls apart alike
    assert within[4] < 0.4
    assert max(found, key=lambda k: np.mean(found[k].trade_off)) == 4
    assert found[4].trade_off[0] == 1 - found[4].within[0]


def test_clusters_too_small_to_fall_apart_have_no_parts():
    runs, spaces = runs_of(lambda: np.arange(200) // 4)
    assert np.isnan(stability(runs, spaces).within).all()
