"""Counts the operations of a program's matrix products and convolutions.

The count is made on the jaxpr, before XLA compiles the program. The jaxpr has every
product, also the products that XLA hands to cuBLAS or cuDNN, and the length of every
`scan`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.interpreters.partial_eval import dce_jaxpr


class Operations(NamedTuple):
    """The operations of one call of a program, on each device."""

    counts: Counter[str]
    """Multiplications and additions by precision: the values of `jax.lax.Precision` in
    lower case for float32 operands, "bfloat16" for operands of 16 bits or fewer."""
    open_loops: int
    """Number of loops of unknown length. The body of such a loop is counted once."""


Known = Sequence[int | None]
"""The value of each scalar integer that the program fixes, None for other variables."""


def count(program: ClosedJaxpr) -> Operations:
    """Counts the operations of a program.

    A multiplication with an addition counts as two operations. Only matrix products
    and convolutions are counted, not the decompositions of linear algebra. Taps of a
    convolution that see padding, and equations without effect on the results, are left
    out. The cheapest branch of a `cond` is counted, unless the branch is known.

    Args:
        program: the traced program, as `jax.stages.Traced.jaxpr`. Shapes inside of a
            `shard_map` are those of one device.

    Returns:
        The operations by precision, and the number of loops of unknown length.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> product = jax.make_jaxpr(jnp.matmul)(jnp.ones((4, 8)), jnp.ones((8, 3)))
        >>> count(product).counts  # 2 * 4 * 8 * 3
        Counter({'default': 192})
    """
    live, _ = dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))
    return _of_jaxpr(live, [None] * len(live.invars))[0]


def _of_jaxpr(jaxpr: Any, inputs: Known) -> tuple[Operations, Known]:
    """Returns the operations of a jaxpr, and the values of its outputs."""
    consts = getattr(jaxpr, "consts", [])
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    known: dict[Var, int | None] = dict(zip(jaxpr.invars, inputs, strict=True))
    known |= zip(jaxpr.constvars, map(_integer, consts), strict=False)

    def values(atoms: Iterable[Any]) -> Known:
        return [
            _integer(x.val) if isinstance(x, Literal) else known.get(x) for x in atoms
        ]

    found = []
    for eqn in jaxpr.eqns:
        own, outputs = _of_equation(eqn, values(eqn.invars))
        found.append(own)
        known |= zip(eqn.outvars, outputs, strict=False)
    return _sum(found), values(jaxpr.outvars)


def _of_equation(eqn: JaxprEqn, inputs: Known) -> tuple[Operations, Known]:
    name, params, unknown = eqn.primitive.name, eqn.params, [None] * len(eqn.outvars)
    match name:
        case "dot_general":
            return _products(eqn, _dot(eqn)), unknown
        case "conv_general_dilated":
            return _products(eqn, _convolution(eqn)), unknown
        case "scan":
            num_fixed = params["num_consts"]
            varied = [None] * (len(inputs) - num_fixed)
            body, _ = _of_jaxpr(params["jaxpr"], [*inputs[:num_fixed], *varied])
            return _times(body, params["length"]), unknown
        case "while":
            return _while(eqn, inputs), unknown
        case "cond":
            index, branches = inputs[0], params["branches"]
            if index is not None:
                return _of_jaxpr(
                    branches[np.clip(index, 0, len(branches) - 1)], inputs[1:]
                )
            each = [_of_jaxpr(branch, inputs[1:])[0] for branch in branches]
            return min(each, key=lambda own: own.counts.total()), unknown
        case "custom_linear_solve":  # the other jaxprs are for gradients
            solve = params["jaxprs"].solve
            return _of_jaxpr(solve, [None] * len(solve.in_avals))[0], unknown
        case "optimization_barrier":
            return _sum([]), inputs
        case "convert_element_type":
            return _sum([]), inputs
        case "select_n":
            cases = [x for x in inputs[1:] if x is not None]
            return _sum([]), [min(cases) if len(cases) == len(inputs) - 1 else None]
    inner = list(_jaxprs(params.values()))
    if len(inner) == 1 and len(_inputs(inner[0])) == len(inputs):
        return _of_jaxpr(inner[0], inputs)
    each = [_of_jaxpr(x, [None] * len(_inputs(x)))[0] for x in inner]
    return _sum(each), unknown


def _while(eqn: JaxprEqn, inputs: Known) -> Operations:
    params = eqn.params
    of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
    fixed = inputs[of_cond:][:of_body]
    varied = [None] * (len(inputs) - of_cond - of_body)
    body, _ = _of_jaxpr(params["body_jaxpr"], [*fixed, *varied])
    length = _length(eqn, inputs)
    if length is not None:
        return _times(body, length)
    asked, _ = _of_jaxpr(params["cond_jaxpr"], [*inputs[:of_cond], *varied])
    once = _sum([body, asked])
    return once._replace(open_loops=once.open_loops + 1)


def _length(eqn: JaxprEqn, inputs: Known) -> int | None:
    """Returns the length of a `fori_loop`: a counter goes by 1 from one known integer
    to another. Returns None for other loops."""
    condition, body = (eqn.params[x].jaxpr for x in ("cond_jaxpr", "body_jaxpr"))
    of_cond, of_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    if [x.primitive.name for x in condition.eqns] != ["lt"]:
        return None
    given = [*inputs[:of_cond], *inputs[of_cond + of_body :]]
    counter, limit = condition.eqns[0].invars
    places = {x: i for i, x in enumerate(condition.invars)}
    carried, results = body.invars[of_body:], body.outvars
    place = places.get(counter, -1) - of_cond if isinstance(counter, Var) else -1
    if place < 0:
        return None
    steps = {x.outvars[0]: x for x in body.eqns if x.primitive.name == "add"}
    step = steps.get(results[place]) if isinstance(results[place], Var) else None
    if step is None or step.invars[0] is not carried[place]:
        return None
    if not isinstance(step.invars[1], Literal) or step.invars[1].val != 1:
        return None
    if isinstance(limit, Literal):
        last = _integer(limit.val)
    else:
        last, of_limit = given[places[limit]], places[limit] - of_cond
        if of_limit >= 0 and results[of_limit] is not carried[of_limit]:
            return None
    first = given[places[counter]]
    return None if first is None or last is None else max(0, last - first)


def _integer(value: Any) -> int | None:
    """Returns the value of a scalar integer or boolean, None for other constants."""
    is_integer = np.ndim(value) == 0 and np.result_type(value).kind in "iub"
    return int(value) if is_integer else None


def _jaxprs(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, ClosedJaxpr | Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from _jaxprs(value)


def _inputs(jaxpr: Any) -> Sequence[Var]:
    return jaxpr.jaxpr.invars if isinstance(jaxpr, ClosedJaxpr) else jaxpr.invars


def _sum(parts: Sequence[Operations]) -> Operations:
    counts = sum((part.counts for part in parts), Counter[str]())
    return Operations(counts, sum(part.open_loops for part in parts))


def _times(body: Operations, length: int) -> Operations:
    counts = Counter({name: length * number for name, number in body.counts.items()})
    return body._replace(counts=counts)


def _products(eqn: JaxprEqn, number: int) -> Operations:
    return Operations(Counter({_precision(eqn): number}), 0)


def _precision(eqn: JaxprEqn) -> str:
    """Returns the precision of a product: the higher one of its two operands'."""
    operands: Any = eqn.invars[:2]
    if all(x.aval.dtype.itemsize <= 2 for x in operands):
        return "bfloat16"
    given = eqn.params["precision"]
    pair = given if isinstance(given, tuple) else (given,)
    asked = [x for x in pair if isinstance(x, lax.Precision)]
    return max(asked, key=lambda x: x.value, default=lax.Precision.DEFAULT).name.lower()


def _shape(atom: Any) -> tuple[int, ...]:
    return atom.aval.shape


def _dot(eqn: JaxprEqn) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = _shape(eqn.invars[0])
    return 2 * prod(_shape(eqn.outvars[0])) * prod(left[i] for i in contracted)


def _convolution(eqn: JaxprEqn) -> int:
    """Returns the operations of a convolution, grouped or not. The kernel's number of
    input features is the number in a group."""
    params = eqn.params
    left, kernel = (_shape(x) for x in eqn.invars[:2])
    out = _shape(eqn.outvars[0])
    numbers = params["dimension_numbers"]
    pairs = pixels = 1
    for axis, (stride, (before, _), holes, spread) in enumerate(
        zip(
            params["window_strides"],
            params["padding"],
            params["lhs_dilation"],
            params["rhs_dilation"],
            strict=True,
        )
    ):
        extent, size, outputs = (
            shape[spec[2 + axis]]
            for shape, spec in zip((left, kernel, out), numbers, strict=True)
        )
        last = (extent - 1) * holes
        places = (
            i * stride + tap * spread - before
            for i in range(outputs)
            for tap in range(size)
        )
        pairs *= sum(0 <= place <= last and place % holes == 0 for place in places)
        pixels *= outputs
    return 2 * prod(out) // pixels * kernel[numbers.rhs_spec[1]] * pairs
