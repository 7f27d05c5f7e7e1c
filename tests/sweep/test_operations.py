"""The operations of a program, counted by hand."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fcjax.sweep import costs


def count(function, *args):
    return costs.count(jax.jit(function).trace(*args).jaxpr)


def total(function, *args):
    return count(function, *args).operations.total()


def square(x):
    return x @ x


def conv(x, kernel, *, stride=1, **options):
    return lax.conv_general_dilated(
        *(x, kernel, (stride, stride), ((1, 1), (1, 1))),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        **options,
    )


def test_a_scan_of_products_and_its_gradient():
    """Seven products, and for each product one for either factor's gradient."""

    def loss(x, w):
        return lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, length=7)[0].sum()

    x, w = jnp.zeros((4, 8)), jnp.zeros((8, 8))
    assert total(loss, x, w) == 7 * 2 * 4 * 8 * 8
    assert total(jax.grad(loss, argnums=(0, 1)), x, w) == 7 * 2 * 4 * 8 * 8 * 3
    recomputed = jax.value_and_grad(jax.checkpoint(loss), argnums=(0, 1))
    assert total(recomputed, x, w) == 7 * 2 * 4 * 8 * 8 * 4


def test_a_batch_of_products():
    x, y = jnp.ones((5, 4, 6)), jnp.ones((5, 6, 3))
    assert total(jnp.matmul, x, y) == 2 * 5 * 4 * 6 * 3
    contracted = partial(jnp.einsum, "bij,bij->b")
    assert total(contracted, x, x) == 2 * 5 * 4 * 6


def test_loops_with_known_bounds_count_by_their_length():
    def inner(x, _):
        return square(x), None

    def outer(i, x):
        return lax.scan(inner, x, length=3)[0]

    x = jnp.ones((8, 8))
    expected = costs.Counts(Counter(default=7 * 3 * 2 * 8**3), 0)
    assert count(lambda x: lax.fori_loop(2, 9, outer, x), x) == expected


def test_a_loop_of_unknown_length_counts_once_and_is_reported():
    def loop(x):
        return lax.while_loop(lambda x: x.sum() < 5, square, x)

    expected = costs.Counts(Counter(default=2 * 8**3), 1)
    assert count(loop, jnp.ones((8, 8))) == expected
    looped = count(lambda x: lax.fori_loop(0, 3, lambda _, x: loop(x), x), jnp.eye(8))
    assert looped == costs.Counts(Counter(default=3 * 2 * 8**3), 1)


def test_of_branches_the_cheapest_counts():
    def branches(is_twice, x):
        return lax.cond(is_twice, lambda x: square(square(x)), square, x)

    assert total(branches, True, jnp.ones((8, 8))) == 2 * 8**3


@pytest.mark.parametrize(("stride", "outputs"), [(1, 14), (2, 7)])
def test_a_convolution_and_both_gradients(stride, outputs):
    """14 pixels per side, a kernel of 3: each output meets three taps on an axis. One
    gradient sees holes between the outputs."""
    x, kernel = jnp.ones((8, 14, 14, 3)), jnp.ones((3, 3, 3, 5))
    expected = 2 * 8 * 3 * 5 * (3 * outputs) ** 2
    strided = partial(conv, stride=stride)
    assert total(strided, x, kernel) == expected
    for argnum in (0, 1):
        gradient = jax.grad(lambda *args: strided(*args).sum(), argnum)
        assert total(gradient, x, kernel) == expected


def test_grouped_convolutions():
    """Each output feature sees the input features of its group alone."""
    x, kernel = jnp.ones((8, 14, 14, 6)), jnp.ones((3, 3, 2, 9))
    grouped = partial(conv, feature_group_count=3)
    expected = 2 * 8 * 2 * 9 * 42**2
    assert total(grouped, x, kernel) == expected
    # The kernel's gradient has groups of the batch: batch_group_count.
    gradient = jax.grad(lambda kernel: grouped(x, kernel).sum())
    assert total(gradient, kernel) == expected
    # Clients with a kernel each: features of a group per client.
    x, kernels = jnp.ones((4, 8, 14, 14, 3)), jnp.ones((4, 3, 3, 3, 5))
    assert total(jax.vmap(conv), x, kernels) == 4 * 2 * 8 * 3 * 5 * 42**2


def test_inner_functions_count_once():
    @jax.custom_jvp
    def with_jvp(x):
        return square(x)

    with_jvp.defjvp(lambda x, t: (with_jvp(*x), 2 * t[0]))

    @jax.custom_vjp
    def with_vjp(x):
        return square(x)

    with_vjp.defvjp(lambda x: (square(x), None), lambda _, t: (t,))

    @jax.custom_batching.custom_vmap
    def with_vmap(x):
        return square(x)

    @with_vmap.def_vmap
    def _(size, is_batched, x):
        return square(x), True

    x, expected = jnp.ones((8, 8)), 2 * 8**3
    for function in (with_jvp, with_vjp, with_vmap, jax.jit(square)):
        assert total(function, x) == expected, function
    assert total(jax.grad(lambda x: with_vjp(x).sum()), x) == 0  # no result needs it
    # x as the solution of A x = b: one product in the solver, none for gradients.
    solved = partial(
        lax.custom_linear_solve, square, solve=lambda _, b: square(b), symmetric=True
    )
    assert total(solved, x) == expected


def test_what_no_result_needs_does_not_count():
    def two(x):
        return {"used": square(x), "dropped": square(square(x))}

    assert total(lambda x: jax.jit(two)(x)["used"], jnp.ones((8, 8))) == 2 * 8**3


def test_a_shard_map_counts_one_device():
    mesh = Mesh(jax.local_devices()[:2], "x")
    spread = jax.shard_map(
        lambda x, y: x @ y, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x")
    )
    assert total(spread, jnp.ones((8, 8)), jnp.ones((8, 8))) == 2 * 4 * 8 * 8


@pytest.mark.parametrize("precision", ["highest", "high", "default"])
def test_products_count_by_their_own_precision(precision):
    """A product asks for a precision, or takes the precision of the context."""
    x, kernel = jnp.ones((8, 14, 14, 3)), jnp.ones((3, 3, 3, 5))
    matrix = jnp.ones((8, 8))

    def both(x, kernel, matrix):
        return conv(x, kernel), jnp.matmul(matrix, matrix, precision="highest")

    with jax.default_matmul_precision(precision):
        found = count(both, x, kernel, matrix).operations
        half = count(square, matrix.astype(jnp.bfloat16)).operations
    of_conv = Counter({precision: 2 * 8 * 3 * 5 * 42**2})
    assert found == of_conv + Counter(highest=2 * 8**3)
    assert half == Counter(bfloat16=2 * 8**3)
