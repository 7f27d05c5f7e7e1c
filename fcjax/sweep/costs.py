"""Peak rates of chips and operation counts of programs, for `fcjax fit`.

The operations are counted on the jaxpr, before XLA compiles the program. The jaxpr has
every product, including those that XLA delegates to cuBLAS or cuDNN, and the length of
every `scan`.
"""

import os
from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.experimental import topologies
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.interpreters.partial_eval import dce_jaxpr

# --- Devices


class Chip(NamedTuple):
    """The published peak rates of a chip, for dense operands."""

    rates: Mapping[str, float]
    """Operations per second by precision, see `Counts.operations`."""
    bandwidth: float
    """Memory bandwidth in bytes per second, which XLA needs to compile."""
    memory: int
    """Memory in bytes."""

    def least_seconds(self, operations: Mapping[str, int]) -> float:
        """Computes a lower bound of the time of a program.

        Args:
            operations: the number of operations by precision.

        Returns:
            The seconds of all operations, one after another, at the peak rates.

        Examples:
            >>> chip = Chip({"highest": 10.0, "default": 80.0}, 5.0, memory=100)
            >>> chip.least_seconds({"highest": 20, "default": 80})
            3.0
        """
        each = (number / self.rates[name] for name, number in operations.items())
        return sum(each, 0.0)


def of_tpu(bfloat16: float) -> dict[str, float]:
    """Returns the rates of a TPU.

    A TPU multiplies float32 operands in several passes over bfloat16 parts, see
    `jax.lax.Precision`.

    Args:
        bfloat16: operations per second in bfloat16.

    Returns:
        Operations per second by precision.
    """
    passes = {"highest": 6, "high": 3, "default": 1, "bfloat16": 1}
    return {name: bfloat16 / number for name, number in passes.items()}


def of_gpu(float32: float, tf32: float, bfloat16: float) -> dict[str, float]:
    """Returns the rates of an NVIDIA GPU.

    At the precisions "high" and "default", tensor cores multiply float32 operands as
    TF32, see `jax.lax.Precision`.

    Args:
        float32: operations per second in float32, without tensor cores.
        tf32: operations per second of tensor cores in TF32.
        bfloat16: operations per second of tensor cores in bfloat16.

    Returns:
        Operations per second by precision.
    """
    return {"highest": float32, "high": tf32, "default": tf32, "bfloat16": bfloat16}


TPUS = {
    "v5e": Chip(of_tpu(197e12), 819e9, 16 * 2**30),
    "v5p": Chip(of_tpu(459e12), 2765e9, 95 * 2**30),
    "v6e": Chip(of_tpu(918e12), 1640e9, 32 * 2**30),
}
"""TPUs by name. Source: https://cloud.google.com/tpu/docs/v5e, v5p and v6e."""

HOPPER_RATES = of_gpu(66.9e12, 494.7e12, 989.4e12)
"""Rates of H100 and H200. Source: NVIDIA, "H100 Tensor Core GPU Architecture"."""

GPUS = {
    "a100": Chip(of_gpu(19.5e12, 156e12, 312e12), 1555e9, 42331013120),
    "h100": Chip(HOPPER_RATES, 3352e9, 84942979072),
    "h200": Chip(HOPPER_RATES, 4800e9, 151397597184),
}
"""GPUs by name. Source: data sheets of the SXM boards (A100: 40 GB), without sparsity;
the memory is the size that CUDA reports."""

A100 = (
    "core_count: 108 fpus_per_core: 64 clock_rate_ghz: 1.41 l2_cache_size: 41943040 "
    "shared_memory_per_core: 167936 shared_memory_per_block_optin: 166912 "
    "cuda_compute_capability { major: 8 feature_extension: NONE }"
)
HOPPER = (
    "core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 l2_cache_size: 52428800 "
    "shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448 "
    "cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }"
)
CORES = {"a100": A100, "h100": HOPPER, "h200": HOPPER}
"""The fields of XLA's GPU description that differ between GPUs, except the memory."""

CUDA_COMPILER = "jax-cuda13-plugin nvidia-cuda-nvcc nvidia-nvvm"


def absent_devices(topology: str) -> tuple[list[Any], Chip]:
    """Returns devices to compile for, which need not be present.

    Args:
        topology: a TPU and a shape, such as "v5e:2x2", or a GPU and a number of GPUs,
            such as "h100:8".

    Returns:
        The devices, and the rates and memory of each.

    Raises:
        ValueError: the topology is unknown, or its compiler is not installed.
    """
    name, _, shape = topology.partition(":")
    if name in TPUS:
        # Otherwise the compiler asks for the metadata of a TPU host, and locks the TPU
        # library against other processes.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        options = {"topology_name": topology, "platform": "tpu"}
        chip, compiler = TPUS[name], '"jax[tpu]"'
    elif name in GPUS and shape.isdecimal() and int(shape):
        options = {"platform": "cuda", "target_config": _gpu(name)}
        options["topology"] = f"1x1x{shape}"
        chip, compiler = GPUS[name], CUDA_COMPILER
    else:
        raise ValueError(
            f"`on` must be a TPU ({', '.join(TPUS)}) with a shape, such as v5e:2x2, or "
            f"a GPU ({', '.join(GPUS)}) with a number, such as h100:8, got {topology}"
        )
    try:
        description = topologies.get_topology_desc(**options)
    except Exception as error:
        line = str(error).partition("\n")[0]
        raise ValueError(
            f"`on` {topology}: {line}; install its compiler: pip install {compiler}"
        ) from error
    return list(description.devices), chip


def _gpu(name: str) -> str:
    """Returns XLA's description of a GPU: a GpuTargetConfigProto in text format."""
    chip = GPUS[name]
    return f"""
        gpu_device_info {{
            {CORES[name]}
            memory_bandwidth: {int(chip.bandwidth)} device_memory_size: {chip.memory}
            threads_per_block_limit: 1024 threads_per_warp: 32
            threads_per_core_limit: 2048 shared_memory_per_block: 49152
            registers_per_core_limit: 65536 registers_per_block_limit: 65536
            block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
            block_dim_limit_z: 65535 thread_dim_limit_x: 1024 thread_dim_limit_y: 1024
            thread_dim_limit_z: 64
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 12 }}
        device_description_str: "{name.upper()}"
    """


# --- Operations


class Counts(NamedTuple):
    """The operation counts of one execution of a program, per device."""

    operations: Counter[str]
    """Multiplications and additions by precision: the values of `jax.lax.Precision` in
    lower case for float32 operands, "bfloat16" for operands of 16 bits or fewer."""
    open_loops: int
    """Number of loops whose length depends on the data. Their body counts once."""


def count(program: ClosedJaxpr) -> Counts:
    """Counts the operations of a program.

    A multiplication with an addition counts as two operations. Only matrix products
    and convolutions are counted, not the decompositions of linear algebra. Equations
    without effect on the results are left out. The cheapest branch of a `cond` counts.

    Args:
        program: the traced program, as `jax.stages.Traced.jaxpr`. Shapes inside of a
            `shard_map` are those of one device.

    Returns:
        The operations by precision, and the number of loops of unknown length.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> product = jax.make_jaxpr(jnp.matmul)(jnp.ones((4, 8)), jnp.ones((8, 3)))
        >>> count(product).operations  # 2 * 4 * 8 * 3
        Counter({'default': 192})
    """
    live, _ = dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))
    return _count(live)


def _count(jaxpr: Jaxpr) -> Counts:
    operations, open_loops = Counter[str](), 0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        inner = [_count(part) for part in _inner(eqn)]
        if name == "dot_general":
            operations[_precision(eqn)] += _dot(eqn)
        elif name == "conv_general_dilated":
            operations[_precision(eqn)] += _convolution(eqn)
        elif name == "cond":
            inner = [min(inner, key=lambda branch: branch.operations.total())]
        times = eqn.params["length"] if name == "scan" else 1
        open_loops += name == "while"
        for part in inner:
            operations.update({k: times * n for k, n in part.operations.items()})
            open_loops += part.open_loops
    return Counts(operations, open_loops)


def _inner(eqn: JaxprEqn) -> list[Jaxpr]:
    """Returns the jaxprs that an equation calls."""
    params: Any = eqn.params
    # The other jaxprs of a linear solve are for gradients.
    if eqn.primitive.name == "custom_linear_solve":
        params = {"solve": params["jaxprs"].solve}
    parts = jax.tree.leaves(list(params.values()))
    return [
        x.jaxpr if isinstance(x, ClosedJaxpr) else x
        for x in parts
        if isinstance(x, ClosedJaxpr | Jaxpr)
    ]


def _precision(eqn: JaxprEqn) -> str:
    """Returns the precision of a product: the higher precision of both operands."""
    operands: Any = eqn.invars[:2]
    if all(x.aval.dtype.itemsize <= 2 for x in operands):
        return "bfloat16"
    precision = eqn.params["precision"]
    pair = precision if isinstance(precision, tuple) else (precision,)
    known = [x for x in pair if isinstance(x, lax.Precision)]
    return max(known, key=lambda x: x.value, default=lax.Precision.DEFAULT).name.lower()


def _shape(atom: Any) -> tuple[int, ...]:
    return atom.aval.shape


def _dot(eqn: JaxprEqn) -> int:
    """Returns the operations of a matrix product."""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = _shape(eqn.invars[0])
    return 2 * prod(_shape(eqn.outvars[0])) * prod(left[i] for i in contracted)


def _convolution(eqn: JaxprEqn) -> int:
    """Returns the operations of a convolution or of one of its gradients.

    On each axis, a tap of the kernel meets as many pixels as the smaller image has,
    pixels of the padding included. The kernel of a group has only the input features of
    this group.
    """
    left, kernel, out = map(_shape, (*eqn.invars[:2], *eqn.outvars))
    numbers = eqn.params["dimension_numbers"]
    pairs = prod(
        kernel[tap] * min(left[pixel], out[place])
        for pixel, tap, place in zip(*(spec[2:] for spec in numbers), strict=True)
    )
    batch, features = (out[axis] for axis in numbers.out_spec[:2])
    return 2 * batch * features * kernel[numbers.rhs_spec[1]] * pairs
