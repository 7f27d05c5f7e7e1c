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
    return count(function, *args).counts.total()


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

    def hidden(x):  # a `while` in the jaxpr, as in `devices.over_rows`
        return lax.fori_loop(2, lax.optimization_barrier(jnp.int32(9)), outer, x)

    x = jnp.ones((8, 8))
    for function in (lambda x: lax.fori_loop(2, 9, outer, x), hidden):
        expected = costs.Operations(Counter(default=7 * 3 * 2 * 8**3), 0)
        assert count(function, x) == expected
    assert total(jax.vmap(hidden), jnp.ones((5, 8, 8))) == 5 * 7 * 3 * 2 * 8**3


@pytest.mark.parametrize(
    ("condition", "step"),
    [
        (lambda i, x, limit: x.sum() < 5, lambda i, x, limit: (i + 1, limit)),
        (lambda i, x, limit: i < 5, lambda i, x, limit: (i * 2, limit)),
        (lambda i, x, limit: i < x.sum(), lambda i, x, limit: (i + 1, limit)),
        (lambda i, x, limit: i < limit, lambda i, x, limit: (i + 1, limit - 1)),
    ],
    ids=[
        "a sum",
        "a counter that doubles",
        "a limit in the data",
        "a limit that moves",
    ],
)
def test_a_loop_of_unknown_length_counts_once_and_is_reported(condition, step):
    def turn(carry):
        i, limit = step(*carry)
        return i, square(carry[1]), limit

    def loop(x):
        start = (jnp.int32(1), x, jnp.int32(9))
        return lax.while_loop(lambda carry: condition(*carry), turn, start)

    expected = costs.Operations(Counter(default=2 * 8**3), 1)
    assert count(loop, jnp.ones((8, 8))) == expected


def test_of_branches_the_cheapest_counts_unless_the_branch_is_known():
    def branches(is_twice, x):
        return lax.cond(is_twice, lambda x: square(square(x)), square, x)

    x = jnp.ones((8, 8))
    assert total(branches, True, x) == 2 * 8**3  # an argument of the program
    assert total(partial(branches, True), x) == 2 * 2 * 8**3
    assert total(partial(branches, False), x) == 2 * 8**3


@pytest.mark.parametrize(("stride", "pairs"), [(1, 2 + 12 * 3 + 2), (2, 2 + 6 * 3)])
def test_of_a_convolution_taps_that_see_padding_do_not_count(stride, pairs):
    """14 pixels per side, a kernel of 3: the pairs of an output and a tap on an axis.
    Both gradients have the same pairs; one sees holes between the outputs."""
    x, kernel = jnp.ones((8, 14, 14, 3)), jnp.ones((3, 3, 3, 5))
    expected = 2 * 8 * 3 * 5 * pairs**2
    strided = partial(conv, stride=stride)
    assert total(strided, x, kernel) == expected
    for argnum in (0, 1):
        gradient = jax.grad(lambda *args: strided(*args).sum(), argnum)
        assert total(gradient, x, kernel) == expected


def test_grouped_convolutions():
    """Each output feature sees the input features of its group alone."""
    x, kernel = jnp.ones((8, 14, 14, 6)), jnp.ones((3, 3, 2, 9))
    grouped = partial(conv, feature_group_count=3)
    expected = 2 * 8 * 2 * 9 * 40**2
    assert total(grouped, x, kernel) == expected
    # The kernel's gradient has groups of the batch: batch_group_count.
    gradient = jax.grad(lambda kernel: grouped(x, kernel).sum())
    assert total(gradient, kernel) == expected
    # Clients with a kernel each: features of a group per client.
    x, kernels = jnp.ones((4, 8, 14, 14, 3)), jnp.ones((4, 3, 3, 3, 5))
    assert total(jax.vmap(conv), x, kernels) == 4 * 2 * 8 * 3 * 5 * 40**2


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
        found = count(both, x, kernel, matrix).counts
        half = count(square, matrix.astype(jnp.bfloat16)).counts
    of_conv = Counter({precision: 2 * 8 * 3 * 5 * 40**2})
    assert found == of_conv + Counter(highest=2 * 8**3)
    assert half == Counter(bfloat16=2 * 8**3)
