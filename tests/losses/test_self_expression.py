"""Self-expression by hand, against loops in NumPy and against PyTorch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from fcjax.losses import (
    coefficient_penalty,
    locality_alignment,
    off_diagonal,
    self_expression,
)

MASK = np.array([True, False, True, True, False, True])
NORMS = ["frobenius", "l1", "nuclear"]


@pytest.fixture
def batch(key):
    """Six codes, their coefficients, and a graph of neighbours."""
    keys = jax.random.split(key, 3)
    z, coefficients = jax.random.normal(keys[0], (6, 4)), jax.random.normal(keys[1], 36)
    adjacency = jax.random.bernoulli(keys[2], 0.4, (6, 6)).astype(jnp.float32)
    return z, coefficients.reshape(6, 6), adjacency


def pairs(mask):
    """Of two different samples that count."""
    counted = np.flatnonzero(mask)
    return [(i, j) for i in counted for j in counted if i != j]


def cleared(coefficients, mask=MASK):
    kept = np.zeros(coefficients.shape)
    for i, j in pairs(mask):
        kept[i, j] = coefficients[i, j]
    return kept


def self_expression_by_loops(z, coefficients, mask):
    """|Z - Z R|_F^2 as FDSC writes it, samples as columns."""
    z, r = np.asarray(z, float).T, np.asarray(coefficients, float).T
    total = 0.0
    for j in np.flatnonzero(mask):
        column = z[:, j].copy()
        for i in np.flatnonzero(mask):
            if i != j:
                column -= z[:, i] * r[i, j]
        total += column @ column
    return total


def alignment_by_loops(coefficients, adjacency, alpha, beta, mask):
    c, a = np.asarray(coefficients, float), np.asarray(adjacency, float)
    return sum((alpha * a[i, j] - beta * c[i, j]) ** 2 for i, j in pairs(mask))


def penalty_by_numpy(coefficients, norm, mask):
    c = cleared(np.asarray(coefficients, float), mask)
    if norm == "frobenius":
        return np.linalg.norm(c) ** 2
    return abs(c).sum() if norm == "l1" else np.linalg.norm(c, "nuc")


def losses(mask=None):
    """Every loss as a function of (z, C, A)."""
    return {
        "self-expression": lambda z, c, a: self_expression(z, c, mask=mask),
        "alignment": lambda z, c, a: locality_alignment(c, a, alpha=0.5, mask=mask),
        **{
            norm: lambda z, c, a, norm=norm: coefficient_penalty(
                c, norm=norm, mask=mask
            )
            for norm in NORMS
        },
    }


def by_numpy(z, c, a, mask):
    return {
        "self-expression": self_expression_by_loops(z, c, mask),
        "alignment": alignment_by_loops(c, a, 0.5, 1, mask),
        **{norm: penalty_by_numpy(c, norm, mask) for norm in NORMS},
    }


LOSSES = list(losses())


def test_off_diagonal_by_hand():
    coefficients = jnp.arange(1.0, 10).reshape(3, 3)
    np.testing.assert_array_equal(
        off_diagonal(coefficients), [[0, 2, 3], [4, 0, 6], [7, 8, 0]]
    )
    np.testing.assert_array_equal(
        off_diagonal(coefficients, jnp.array([True, False, True])),
        [[0, 0, 3], [0, 0, 0], [7, 0, 0]],
    )


def test_self_expression_by_hand():
    """Row i of C expresses sample i: 1, 0 by half of 4, 2; and 4, 2 by three of it."""
    z = jnp.array([[1.0, 0.0], [4.0, 2.0]])
    coefficients = jnp.array([[9.0, 0.5], [3.0, 9.0]])
    # (1 - 2)^2 + (0 - 1)^2 + (4 - 3)^2 + (2 - 0)^2, no half and no mean.
    assert self_expression(z, coefficients) == 7
    # Expressed by nobody: the squares of what is left.
    assert self_expression(z, coefficients, mask=jnp.array([False, True])) == 20


def test_penalties_by_hand():
    """Of [[0, 3], [-4, 0]] the singular values are 4 and 3."""
    coefficients = jnp.array([[5.0, 3.0], [-4.0, 6.0]])
    for norm, expected in [("frobenius", 25), ("l1", 7), ("nuclear", 7)]:
        value = coefficient_penalty(coefficients, norm=norm)
        np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert coefficient_penalty(coefficients) == 25
    # Of all ones without the diagonal the eigenvalues are 2, -1 and -1.
    value = coefficient_penalty(jnp.ones((3, 3)), norm="nuclear")
    np.testing.assert_allclose(value, 4, rtol=1e-6)


def test_alignment_by_hand():
    adjacency = jnp.array([[1.0, 1.0], [0.0, 1.0]])
    coefficients = jnp.array([[7.0, 0.25], [2.0, 7.0]])
    # (1 - 0.25)^2 + (0 - 2)^2, then (2 - 0.75)^2 + (0 - 6)^2.
    assert locality_alignment(coefficients, adjacency) == 4.5625
    assert locality_alignment(coefficients, adjacency != 0) == 4.5625
    value = locality_alignment(coefficients, adjacency, alpha=2.0, beta=3.0)
    assert value == 37.5625


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("mask", [None, MASK])
def test_values_are_those_of_loops(batch, name, mask):
    value = losses(None if mask is None else jnp.asarray(mask))[name](*batch)
    expected = by_numpy(*batch, np.ones(6) if mask is None else mask)[name]
    assert value.shape == ()
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.parametrize("mask", [None, MASK])
def test_gradients_are_those_of_torch(batch, mask):
    torch = pytest.importorskip("torch")
    z, c, a = (torch.tensor(np.asarray(array, float)) for array in batch)
    z.requires_grad_(True)
    c.requires_grad_(True)
    kept = torch.tensor(cleared(np.ones((6, 6)), np.ones(6) if mask is None else mask))
    rows = z if mask is None else z * torch.tensor(mask)[:, None]
    r = c * kept
    expected = {
        "self-expression": ((rows - r @ rows) ** 2).sum(),
        "alignment": ((0.5 * a * kept - r) ** 2).sum(),
        "frobenius": (r**2).sum(),
        "l1": r.abs().sum(),
        # Masked, the null space's share of PyTorch's gradient is no one's choice.
        "nuclear": torch.linalg.matrix_norm(
            r if mask is None else r[mask][:, mask], ord="nuc"
        ),
    }
    for name, loss in losses(None if mask is None else jnp.asarray(mask)).items():
        z.grad = torch.zeros_like(z)
        c.grad = torch.zeros_like(c)
        expected[name].backward(retain_graph=True)
        dz, dc, _ = jax.grad(loss, argnums=(0, 1, 2))(*batch)
        close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
        close(dz, z.grad.numpy(), err_msg=name)
        close(dc, c.grad.numpy(), err_msg=name)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_differences(batch, name):
    z, coefficients, adjacency = batch
    # check_grads itself passes NumPy arrays.
    check_grads(
        lambda z, c: losses()[name](jnp.asarray(z), jnp.asarray(c), adjacency),
        (z, coefficients),
        order=1,
        modes=["fwd", "rev"],
        eps=1e-3,
        atol=1e-2,
        rtol=1e-2,
    )


@pytest.mark.parametrize("name", LOSSES)
def test_the_diagonal_counts_for_nothing(batch, name):
    z, coefficients, adjacency = batch
    loss = jax.value_and_grad(losses()[name], argnums=(0, 1, 2))
    expected = loss(*batch)
    for spoiler in (7.0, jnp.nan, jnp.inf):
        spoilt = [
            jnp.where(jnp.eye(6, dtype=bool), spoiler, array)
            for array in (coefficients, adjacency)
        ]
        jax.tree.map(np.testing.assert_array_equal, loss(z, *spoilt), expected)
    np.testing.assert_array_equal(np.diag(expected[1][1]), 0)
    np.testing.assert_array_equal(np.diag(expected[1][2]), 0)


@pytest.mark.parametrize("spoiler", [np.nan, np.inf])
@pytest.mark.parametrize("name", LOSSES)
def test_masked_samples_may_hold_anything(batch, name, spoiler):
    """Value and gradients are those of the other samples alone."""
    mask = jnp.asarray(MASK)
    both = mask[:, None] & mask[None]
    z, coefficients, adjacency = batch
    spoilt = (
        jnp.where(mask[:, None], z, spoiler),
        jnp.where(both, coefficients, spoiler),
        jnp.where(both, adjacency, spoiler),
    )
    value, gradients = jax.value_and_grad(losses(mask)[name], argnums=(0, 1, 2))(
        *spoilt
    )
    alone = (z[MASK], *(array[MASK][:, MASK] for array in (coefficients, adjacency)))
    np.testing.assert_allclose(value, by_numpy(*batch, MASK)[name], rtol=1e-5)
    references = jax.grad(losses()[name], argnums=(0, 1, 2))(*alone)
    dz, *squares = (np.asarray(gradient) for gradient in gradients)
    np.testing.assert_allclose(dz[MASK], references[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(dz[~MASK], 0)
    for gradient, reference in zip(squares, references[1:], strict=True):
        np.testing.assert_allclose(
            gradient[np.ix_(MASK, MASK)], reference, rtol=1e-4, atol=1e-5
        )
        np.testing.assert_array_equal(gradient[~np.asarray(both)], 0)


@pytest.mark.parametrize("name", LOSSES)
def test_nothing_left_is_zero(batch, name):
    value, gradients = jax.value_and_grad(
        losses(jnp.zeros(6, bool))[name], argnums=(0, 1, 2)
    )(*batch)
    assert value == 0
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("norm", NORMS)
def test_no_coefficients_have_no_slope(norm):
    """DSC-Net starts C at 0 on ORL."""
    value, gradient = jax.value_and_grad(partial(coefficient_penalty, norm=norm))(
        jnp.zeros((5, 5))
    )
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


def test_nuclear_norm_at_repeated_singular_values():
    """Two swaps: an orthogonal matrix is its own slope."""
    swaps = jnp.zeros((4, 4)).at[[0, 1, 2, 3], [1, 0, 3, 2]].set(2.0)
    value, gradient = jax.value_and_grad(partial(coefficient_penalty, norm="nuclear"))(
        swaps
    )
    np.testing.assert_allclose(value, 8, rtol=1e-6)
    np.testing.assert_allclose(gradient, swaps / 2, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e4])
def test_nuclear_norm_of_a_matrix_of_rank_one(scale):
    """Of u v^T with |u| = |v| = 5 the slope is u v^T / 25 off the diagonal, though
    five singular values of six are zero."""
    u, v = np.zeros(6), np.zeros(6)
    u[:2], v[4:] = [3, 4], [-4, 3]
    product = scale * np.outer(u, v)
    value, gradient = jax.value_and_grad(partial(coefficient_penalty, norm="nuclear"))(
        jnp.asarray(product, jnp.float32)
    )
    np.testing.assert_allclose(value, 25 * scale, rtol=1e-5)
    np.testing.assert_allclose(gradient, product / scale / 25, atol=1e-5)


def test_expression_by_a_copy_is_exact():
    """Each code twice, each copy expressed by the other."""
    z = jnp.array([[1.0, -2.0], [1.0, -2.0], [0.3, 5.0], [0.3, 5.0]])
    swaps = jnp.zeros((4, 4)).at[[0, 1, 2, 3], [1, 0, 3, 2]].set(1.0)
    value, gradients = jax.value_and_grad(self_expression, argnums=(0, 1))(z, swaps)
    assert value == 0
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("name", LOSSES)
def test_same_under_jit_and_vmap(batch, name):
    def both(mask, *arrays):
        return jax.value_and_grad(losses(mask)[name], argnums=(0, 1, 2))(*arrays)

    clients = [
        (jnp.asarray(MASK), *batch),
        (jnp.asarray(~MASK), *(2 * array for array in batch)),
    ]
    expected = [both(*client) for client in clients]
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, jax.jit(both)(*clients[0]), expected[0])
    stacked = [jnp.stack(leaves) for leaves in zip(*clients, strict=True)]
    together = jax.jit(jax.vmap(both))(*stacked)
    for i in range(2):
        jax.tree.map(lambda x, y, i=i: close(x[i], y), together, expected[i])


def test_weights_may_be_swept(batch):
    _, coefficients, adjacency = batch
    weights = jnp.array([0.0, 0.5, 2.0])
    swept = jax.jit(
        jax.vmap(
            lambda w: locality_alignment(coefficients, adjacency, alpha=w, beta=1 - w)
        )
    )(weights)
    expected = [
        alignment_by_loops(coefficients, adjacency, w, 1 - w, np.ones(6))
        for w in (0.0, 0.5, 2.0)
    ]
    np.testing.assert_allclose(swept, expected, rtol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_lower_precision_is_computed_in_float32(batch, name):
    """In float16 squares of 300 would overflow."""
    halves = [(300 * array).astype(jnp.float16) for array in batch]
    value = losses()[name](*halves)
    assert value.dtype == jnp.float32
    wide = [np.asarray(array, float) for array in halves]
    np.testing.assert_allclose(value, by_numpy(*wide, np.ones(6))[name], rtol=1e-5)
