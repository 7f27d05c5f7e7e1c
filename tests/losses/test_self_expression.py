"""Self-expression by hand and against loops in NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.losses import (
    coefficient_penalty,
    locality_alignment,
    self_expression,
)

NORMS = ["frobenius", "l1", "nuclear"]


def self_expression_by_loops(z, c):
    """|Z - Z R|_F^2 as FDSC writes it, samples as columns."""
    z, r = z.T, c.T
    total = 0.0
    for j in range(6):
        column = z[:, j] - sum(z[:, i] * r[i, j] for i in range(6) if i != j)
        total += column @ column
    return total


def test_values_are_those_of_loops(key):
    """Of codes, coefficients and a graph; no half and no mean."""
    z, c = jax.random.normal(key, (6, 4)), jax.random.normal(key, (6, 6))
    a = jax.random.bernoulli(key, 0.4, (6, 6))
    found = {
        "self-expression": self_expression(z, c),
        "alignment": locality_alignment(c, a, alpha=0.5, beta=2.0),
        **{norm: coefficient_penalty(c, norm=norm) for norm in NORMS},
    }
    z, c, a = (np.float64(array) for array in (z, c, a))
    pairs = [(i, j) for i in range(6) for j in range(6) if i != j]
    cleared = c - np.diag(np.diag(c))
    expected = {
        "self-expression": self_expression_by_loops(z, c),
        "alignment": sum((0.5 * a[i, j] - 2 * c[i, j]) ** 2 for i, j in pairs),
        "frobenius": np.linalg.norm(cleared) ** 2,
        "l1": abs(cleared).sum(),
        "nuclear": np.linalg.norm(cleared, "nuc"),
    }
    for name, value in found.items():
        assert value.shape == ()
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, err_msg=name)


def test_no_coefficients_have_no_slope():
    """DSC-Net starts C at 0 on ORL."""
    for norm in NORMS:
        slope = jax.grad(partial(coefficient_penalty, norm=norm))(jnp.zeros((5, 5)))
        np.testing.assert_array_equal(slope, 0)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e4])
def test_nuclear_norm_of_a_matrix_of_rank_one(scale):
    """Of u v^T with |u| = |v| = 5 the slope is u v^T / 25 off the diagonal, though
    five singular values of six are zero."""
    u, v = np.zeros(6), np.zeros(6)
    u[:2], v[4:] = [3, 4], [-4, 3]
    product = scale * np.outer(u, v)
    step = jax.value_and_grad(partial(coefficient_penalty, norm="nuclear"))
    value, gradient = step(jnp.asarray(product, jnp.float32))
    np.testing.assert_allclose(value, 25 * scale, rtol=1e-5)
    np.testing.assert_allclose(gradient, product / scale / 25, atol=1e-5)
