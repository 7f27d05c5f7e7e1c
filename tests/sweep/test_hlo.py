"""The bytes that a program moves and sends, counted by hand."""

from collections import Counter

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from fcjax.sweep import costs


def cost(function, *args):
    return costs.cost(jax.jit(function).lower(*args).compile().as_text())


def test_loops_in_loops_are_counted_by_their_lengths():
    def inner(x, _):
        return jnp.sin(x @ x), None

    def outer(i, x):
        return lax.scan(inner, x, None, length=3)[0]

    found = cost(lambda x: lax.fori_loop(0, 7, outer, x), jnp.ones((64, 64)))
    # At the least each product reads its matrix and writes it.
    assert found.moved >= 7 * 3 * 2 * 64 * 64 * 4
    assert found.open_loops == 0


def test_a_loop_until_something_holds_is_counted_once_and_said():
    found = cost(
        lambda x: lax.while_loop(lambda x: x.sum() < 5, lambda x: x @ x, x),
        jnp.ones((8, 8)),
    )
    assert found.open_loops == 1
    # The product reads its matrix and writes it, once.
    assert 2 * 8 * 8 * 4 <= found.moved < 2 * (2 * 8 * 8 * 4 + 2 * 8 * 8 * 4)


def test_of_what_a_loop_takes_rows_of_each_row_is_read_and_written_once():
    x = jnp.ones((50, 1000))
    found = cost(lambda x: lax.scan(lambda _, row: (None, jnp.sin(row)), None, x), x)
    assert 2 * x.nbytes <= found.moved <= 4 * x.nbytes


def test_of_two_branches_the_one_that_moves_less_is_counted():
    def products(x, count):
        return lax.fori_loop(0, count, lambda _, x: x @ x, x)

    x = jnp.ones((64, 64))
    found = cost(
        lambda i, x: lax.cond(i, lambda: products(x, 9), lambda: products(x, 2)),
        True,
        x,
    )
    assert cost(lambda x: products(x, 2), x).moved <= found.moved
    assert found.moved < cost(lambda x: products(x, 9), x).moved


def test_what_devices_exchange_in_a_loop():
    mesh = jax.make_mesh((2,), ("x",), devices=jax.local_devices()[:2])

    def three(x):
        return lax.fori_loop(0, 3, lambda i, x: lax.psum(x * x, "x"), x)

    spread = jax.shard_map(
        three, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
    )
    found = cost(spread, jnp.ones(50))
    assert found.collectives == Counter({"all-reduce": 3})
    assert found.sent == Counter({"all-reduce": 3 * 50 * 4})


def test_a_loop_s_length_stands_in_its_condition_too():
    """As compilers for TPUs leave it, whose layouts have parentheses and say what lies
    in scratch memory."""
    text = """HloModule jit_f, entry_computation_layout={(f32[4,4]{1,0:T(8,128)})->s32[]}

%body (arg: (s32[], f32[4,4])) -> (s32[], f32[4,4]) {
  %arg = (s32[]{:T(128)}, f32[4,4]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%arg), index=0
  %x = f32[4,4]{1,0:T(8,128)} get-tuple-element(%arg), index=1
  %start = (f32[4,4]{1,0:T(8,128)}, f32[4,4]{1,0:T(8,128)S(1)}, u32[]{:S(2)}) copy-start(%x)
  %near = f32[4,4]{1,0:T(8,128)S(1)} copy-done(%start)
  %y = f32[4,4]{1,0:T(8,128)} dot(%near, %near), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %next = (s32[]{:T(128)}, f32[4,4]{1,0:T(8,128)}) tuple(%i, %y)
}

%condition (arg.1: (s32[], f32[4,4])) -> pred[] {
  %constant.3 = s32[]{:T(128)} constant(30)
  %arg.1 = (s32[]{:T(128)}, f32[4,4]{1,0:T(8,128)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%arg.1), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i.1, %constant.3), direction=LT
}

ENTRY %main (x.1: f32[4,4]) -> s32[] {
  %x.1 = f32[4,4]{1,0:T(8,128)} parameter(0)
  %zero = s32[]{:T(128)} constant(0)
  %tuple = (s32[]{:T(128)}, f32[4,4]{1,0:T(8,128)}) tuple(%zero, %x.1)
  %while = (s32[]{:T(128)}, f32[4,4]{1,0:T(8,128)}) while(%tuple), condition=%condition, body=%body
  ROOT %out = s32[]{:T(128)} get-tuple-element(%while), index=0
}
"""  # noqa: E501
    # The device's memory is read by the copy and written by the product.
    found = costs.cost(text)
    assert (found.moved, found.open_loops) == (30 * 2 * 64, 0)
