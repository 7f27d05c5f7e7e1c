"""A method's local training, ready to be timed beside the same work in PyTorch."""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fcjax.parallel.exact import compiler_options
from fcjax.parallel.mesh import num_bytes, platform

Loop = Callable[[], float]
"""Trains every client once more and returns the mean loss of its steps."""


class Sizes(NamedTuple):
    """How much work it is."""

    clients: int
    examples: int
    """A client."""
    batch_size: int


class Case(NamedTuple):
    """A part of a method's local training: a round of it, without the server."""

    name: str
    """ "fedmcc representation": the method, and which part of it."""
    workload: str
    """What is trained on: "5 clients x 1000 images of 28x28, batch 128"."""
    train: Callable[..., tuple[Any, jax.Array]]
    """(state, *rest) -> (state, losses): every client trains once more."""
    arguments: tuple
    """Of `train`, the state first."""
    has_client_axis: tuple[bool, ...]
    """Which of the arguments have a leading client axis; where none has, the clients'
    examples are pooled."""
    num_batches: int
    """How often the loop over batches goes round, in an epoch of a client."""
    num_examples: int
    """That all clients together train on in a round."""
    loop: Callable[[int], Loop]
    """(threads) -> the same clients, weights and batches in PyTorch."""


class JaxSide:
    """The library's side of a case: where there are several devices its clients are
    spread over them, as the clients of a run are.
    """

    def __init__(self, case: Case):
        """Compiles nothing yet."""
        train, arguments = case.train, case.arguments
        num_clients = (
            len(jax.tree.leaves(arguments[0])[0]) if case.has_client_axis else 1
        )
        num_devices = math.gcd(num_clients, jax.device_count())
        if num_devices > 1:
            mesh = jax.make_mesh((num_devices,), ("client",))
            specs = tuple(P("client") if x else P() for x in case.has_client_axis)
            train = jax.shard_map(
                train, mesh=mesh, in_specs=specs, out_specs=P("client"), check_vma=False
            )
            shardings = tuple(NamedSharding(mesh, spec) for spec in specs)
            arguments = jax.device_put(arguments, shardings)
        # A copy: training is given the state's memory, the case stays as it was.
        self._state = jax.tree.map(jnp.array, arguments[0])
        self._rest = arguments[1:]
        options = compiler_options(platform(), num_bytes=num_bytes(arguments))
        self._train: Callable = jax.jit(
            train, donate_argnums=0, compiler_options=options or None
        )

    def compile(self) -> tuple[float, int]:
        """Compiles; returns the seconds that took, and the bytes a round needs."""
        start = time.perf_counter()
        self._train = self._train.lower(self._state, *self._rest).compile()
        taken = time.perf_counter() - start
        memory = self._train.memory_analysis()
        return taken, memory.argument_size_in_bytes + memory.temp_size_in_bytes

    def round(self) -> float:
        """A `Loop`."""
        self._state, losses = self._train(self._state, *self._rest)
        return float(losses.mean())


def check_parity(case: Case, *, num_rounds: int = 2, tolerance: float = 1e-4):
    """Checks that both sides do the same work. The case must be of one batch a client,
    since the sides draw their batches in orders of their own.

    Returns:
        The losses of both sides in each round; from the second on they depend on
        gradients and optimiser too, and drift apart as rounding does.

    Raises:
        AssertionError: they differ by more than the tolerance.
    """
    ours, theirs = JaxSide(case).round, case.loop(1)
    losses = [(ours(), theirs()) for _ in range(num_rounds)]
    for a, b in losses:
        assert abs(a - b) <= tolerance, f"{case.name}: losses differ: {losses}"
    return losses


def flops(case: Case) -> int:
    """Returns the floating-point operations of a round's matrix products."""
    traced = jax.make_jaxpr(case.train)(*case.arguments)
    clients = (
        jax.tree.leaves(case.arguments[0])[0].shape[:1] if case.has_client_axis else ()
    )
    return products(traced.jaxpr, trips=(*clients, case.num_batches))


def products(jaxpr: core.Jaxpr, *, trips: tuple[int, ...] = (1,)) -> int:
    """Returns the floating-point operations of the matrix products in a program.

    Args:
        jaxpr: the program.
        trips: how often loops go round whose length is not known before they run: the
            outer ones, those inside them, and so on.
    """
    total, (times, *inside) = 0, trips
    # XLA leaves out what nothing uses, as the gradient in a first layer's inputs.
    jaxpr, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    for equation in jaxpr.eqns:
        size = sum(math.prod(getattr(x.aval, "shape", ())) for x in equation.outvars)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left: Any = equation.invars[0].aval
            depth = math.prod(left.shape[axis] for axis in contracted)
            total += 2 * depth * size
        if equation.primitive.name == "conv_general_dilated":
            kernel: Any = equation.invars[1].aval
            features = equation.params["dimension_numbers"].rhs_spec[0]
            depth = kernel.size // kernel.shape[features]
            total += 2 * depth * size
        if equation.primitive.name == "cond":  # what is not done in every round
            branches = equation.params["branches"]
            total += min(products(branch.jaxpr, trips=trips) for branch in branches)
            continue
        is_open = equation.primitive.name == "while"
        length = times if is_open else equation.params.get("length", 1)
        within = tuple(inside) or trips if is_open else trips
        for inner in core.jaxprs_in_params(equation.params):
            total += length * products(inner, trips=within)
    return total
