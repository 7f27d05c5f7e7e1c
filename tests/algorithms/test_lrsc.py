"""LRSC: its closed form against a numerical optimum, and what it recovers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.algorithms.fdsc import low_rank_coefficients, lrsc
from fcjax.methods import LRSC
from tests.algorithms.federations import federate, rounds
from tests.algorithms.subspaces import NUM_CLUSTERS, worst_accuracies

MASK = np.array([True, True, False, True, True, True, True, False, True])


def objective(c, x, fidelity):
    nuclear = np.linalg.svd(c, compute_uv=False).sum()
    return nuclear + fidelity / 2 * np.sum((x - c @ x) ** 2)


def proximal_gradient(x, fidelity, num_steps=4000):
    """Singular values of each step are drawn to zero by as much as the step is long."""
    rate = 1 / (fidelity * np.linalg.norm(x, 2) ** 2)
    c = np.zeros((len(x), len(x)))
    for _ in range(num_steps):
        c = c + rate * fidelity * (x - c @ x) @ x.T
        u, singular, vt = np.linalg.svd(c)
        c = (u * np.maximum(singular - rate, 0)) @ vt
    return c


def examples(noise):
    """Seven of rank 3 in five dimensions, but for noise."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(7, 3)) @ rng.normal(size=(3, 5))
    return x + noise * rng.normal(size=x.shape)


closed_form = jax.jit(low_rank_coefficients)


# Of 3 singular values without noise, of 5 with, so many are kept.
@pytest.mark.parametrize(
    ("fidelity", "noise", "rank"),
    [(0.01, 0.3, 0), (0.02, 0.0, 1), (0.1, 0.3, 2), (10.0, 0.0, 3), (10.0, 0.3, 4)],
)
def test_the_closed_form_is_the_optimum(fidelity, noise, rank):
    x = examples(noise)
    expected = proximal_gradient(x, fidelity)
    assert np.linalg.matrix_rank(expected, tol=1e-6) == rank
    # Among other examples, which do not count and may hold anything.
    rows = np.full((len(MASK), 5), np.nan)
    rows[MASK] = x
    found, minimum = closed_form(
        jnp.asarray(rows, jnp.float32), fidelity, mask=jnp.asarray(MASK)
    )
    found, own = np.asarray(found, np.float64), np.ix_(MASK, MASK)
    np.testing.assert_allclose(found[own], expected, atol=2e-5)
    assert not found[~MASK].any()
    assert not found[:, ~MASK].any()
    for c in (expected, found[own]):
        assert float(minimum) == pytest.approx(objective(c, x, fidelity), rel=1e-5)


def test_independent_subspaces_are_recovered():
    def build(**affinity):
        settings = LRSC().plain(fidelity=100.0, **affinity)
        return lrsc(settings, num_clusters=NUM_CLUSTERS)

    worst = worst_accuracies(build)
    assert min(worst.values()) >= 0.98, worst


def test_clients_stay_by_themselves(key):
    """The loss is the mean over those that answer, and nothing is sent."""
    x = examples(0.3)
    rows = [np.arange(4), np.arange(7), np.arange(2, 7)]
    federation = federate(x, rows, absent=(1,))
    method = lrsc(LRSC().plain(fidelity=0.7, unit_length=False), num_clusters=2)
    state, metrics = rounds(method, key, federation)
    assert set(metrics) == {"loss", "participants"}
    assert int(metrics["participants"]) == 2
    minima = [objective(proximal_gradient(x[r], 0.7), x[r], 0.7) for r in rows]
    assert float(metrics["loss"]) == pytest.approx((minima[0] + minima[2]) / 2, 1e-5)
    np.testing.assert_array_equal(state.clients[1], 0)
    np.testing.assert_allclose(
        state.clients[2, :5, :5], proximal_gradient(x[rows[2]], 0.7), atol=2e-5
    )
    np.testing.assert_allclose(method.embed(state, federation)[0, :4], x[:4], 1e-5)
