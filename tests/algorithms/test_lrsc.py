"""LRSC: its closed form against a numerical optimum, and what it recovers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.algorithms.lrsc import low_rank_coefficients, lrsc
from tests.algorithms.federations import federate, rounds
from tests.algorithms.subspaces import NUM_CLUSTERS, plain_affinity, worst_accuracies

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


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("fidelity", [0.02, 0.1, 1.0, 10.0])
def test_the_closed_form_is_the_optimum(fidelity, noise):
    x = examples(noise)
    expected = proximal_gradient(x, fidelity)
    # Among other examples, which do not count and may hold anything.
    rows = np.full((len(MASK), 5), np.nan)
    rows[MASK] = x
    found, minimum = jax.jit(low_rank_coefficients)(
        jnp.asarray(rows, jnp.float32), fidelity, mask=jnp.asarray(MASK)
    )
    found = np.asarray(found, np.float64)
    np.testing.assert_allclose(found[np.ix_(MASK, MASK)], expected, atol=2e-5)
    assert not found[~MASK].any()
    assert not found[:, ~MASK].any()
    own = found[np.ix_(MASK, MASK)]
    assert float(minimum) == pytest.approx(objective(expected, x, fidelity), rel=1e-5)
    assert objective(own, x, fidelity) == pytest.approx(float(minimum), rel=1e-5)


def test_the_fidelities_keep_some_none_and_all_of_the_singular_values():
    """Of what the closed form is tested on: it is not one case all over."""
    ranks = {
        (fidelity, noise): np.linalg.matrix_rank(
            proximal_gradient(examples(noise), fidelity, 4000), tol=1e-6
        )
        for fidelity in (0.02, 1.0, 10.0)
        for noise in (0.0, 0.3)
    }
    assert min(ranks.values()) < 3
    assert ranks[10.0, 0.0] == 3
    assert ranks[10.0, 0.3] > 3


def test_independent_subspaces_are_recovered():
    def with_weight(affinity, fidelity):
        return lrsc(num_clusters=NUM_CLUSTERS, affinity=affinity, fidelity=fidelity)

    worst = worst_accuracies(with_weight, (100.0,))
    assert min(worst.values()) >= 0.98, worst


def test_clients_stay_by_themselves(key):
    """The loss is the mean over those that answer, and nothing is sent."""
    x = examples(0.3)
    rows = [np.arange(4), np.arange(7), np.arange(2, 7)]
    federation = federate(x, rows, absent=(1,))
    method = lrsc(
        num_clusters=2, affinity=plain_affinity, fidelity=0.7, unit_length=False
    )
    state, metrics = rounds(method, key, federation, 1)
    assert set(metrics) == {"loss", "participants"}
    assert int(metrics["participants"]) == 2
    minima = [objective(proximal_gradient(x[r], 0.7), x[r], 0.7) for r in rows]
    assert float(metrics["loss"]) == pytest.approx((minima[0] + minima[2]) / 2, 1e-5)
    np.testing.assert_array_equal(state.coefficients[1], 0)
    np.testing.assert_allclose(
        state.coefficients[2, :5, :5], proximal_gradient(x[rows[2]], 0.7), atol=2e-5
    )
    np.testing.assert_allclose(method.embed(state, federation)[0, :4], x[:4], 1e-5)
