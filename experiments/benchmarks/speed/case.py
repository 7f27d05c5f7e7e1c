"""A case: local training of a method in JAX, and the same work in PyTorch."""

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
"""Function that trains every client once more and returns the mean loss of its
steps."""


class Sizes(NamedTuple):
    """Number of clients, examples per client, and batch size."""

    clients: int
    examples: int
    """Number of examples per client."""
    batch_size: int


class Case(NamedTuple):
    """The local training of a round, without the server."""

    name: str
    """Method and part of the training, for example "fedmcc representation"."""
    workload: str
    """Size of the work, for example "5 clients x 1000 images of 28x28, batch 128"."""
    train: Callable[..., tuple[Any, jax.Array]]
    """Function (state, *rest) -> (state, losses) that trains every client once more."""
    arguments: tuple
    """Arguments of `train`. The state is the first."""
    has_client_axis: tuple[bool, ...]
    """Whether each argument has a leading client axis. Empty if the server trains on
    the examples of all clients."""
    num_batches: int
    """Number of batches in an epoch of a client."""
    num_examples: int
    """Number of examples that all clients together train on in a round."""
    loop: Callable[[int], Loop]
    """Function (number of threads) -> PyTorch loop with the same clients, weights and
    batches."""


class JaxSide:
    """A case in JAX, with the clients spread over the devices as in a run.

    Args:
        case: the case. It is compiled by `compile` or in the first round.
    """

    def __init__(self, case: Case):
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
        # Training reuses the memory of the state. The copy keeps the case usable.
        self._state = jax.tree.map(jnp.array, arguments[0])
        self._rest = arguments[1:]
        options = compiler_options(platform(), num_bytes=num_bytes(arguments))
        self._train: Callable = jax.jit(
            train, donate_argnums=0, compiler_options=options or None
        )

    def compile(self) -> tuple[float, int]:
        """Compiles the training.

        Returns:
            The compile seconds, and the bytes that a round needs.
        """
        start = time.perf_counter()
        self._train = self._train.lower(self._state, *self._rest).compile()
        seconds = time.perf_counter() - start
        memory = self._train.memory_analysis()
        return seconds, memory.argument_size_in_bytes + memory.temp_size_in_bytes

    def round(self) -> float:
        """Trains every client once more and returns the mean loss, as a `Loop`."""
        self._state, losses = self._train(self._state, *self._rest)
        return float(losses.mean())


def check_parity(case: Case, *, num_rounds: int = 2, tolerance: float = 1e-4):
    """Checks that JAX and PyTorch do the same work.

    JAX and PyTorch shuffle differently, so every client of the case must have one
    batch. From the second round on the losses depend on gradients and optimizer as
    well.

    Args:
        case: the case.
        num_rounds: number of rounds.
        tolerance: maximum difference of the losses.

    Returns:
        The losses of JAX and PyTorch in each round.

    Raises:
        AssertionError: the losses differ by more than the tolerance.
    """
    jax_round, torch_round = JaxSide(case).round, case.loop(1)
    losses = [(jax_round(), torch_round()) for _ in range(num_rounds)]
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
        trips: numbers of iterations of loops without a static length, from the
            outermost to the innermost loop.

    Returns:
        The number of operations.
    """
    total, (num_trips, *inner_trips) = 0, trips
    # XLA removes unused values, such as the gradient of a first layer's inputs.
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
        # The cheapest branch runs in every round, so it is counted.
        if equation.primitive.name == "cond":
            branches = equation.params["branches"]
            total += min(products(branch.jaxpr, trips=trips) for branch in branches)
            continue
        is_while = equation.primitive.name == "while"
        length = num_trips if is_while else equation.params.get("length", 1)
        within = tuple(inner_trips) or trips if is_while else trips
        for inner in core.jaxprs_in_params(equation.params):
            total += length * products(inner, trips=within)
    return total
