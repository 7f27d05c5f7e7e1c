"""Devices that need not be there: TPUs by chip and shape, v5e:2x2, GPUs by name and
number, h100:8."""

import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from jax.experimental import topologies


class Chip(NamedTuple):
    """A chip's published peak rates, for dense operands."""

    rates: Mapping[str, float]
    """Operations per second by precision, as `operations.Operations.counts` has it."""
    bandwidth: float
    """Bytes per second of the chip's memory."""
    memory: int
    """Bytes of the chip's memory."""

    def least_seconds(self, counts: Mapping[str, int], moved: int) -> float:
        """Returns a lower bound on the seconds that a program takes.

        Args:
            counts: the program's operations by precision, which run one after another.
            moved: the bytes that the program reads and writes, during the operations.

        Examples:
            >>> chip = Chip({"highest": 10.0, "default": 80.0}, 5.0, memory=100)
            >>> chip.least_seconds({"highest": 20, "default": 80}, moved=5)
            3.0
        """
        arithmetic = sum(number / self.rates[name] for name, number in counts.items())
        return max(arithmetic, moved / self.bandwidth)


def of_tpu(bfloat16: float) -> dict[str, float]:
    """Returns the rates of a TPU, which multiplies float32 operands in several passes
    over bfloat16 parts: see `jax.lax.Precision`.

    Args:
        bfloat16: operations per second in bfloat16.
    """
    passes = {"highest": 6, "high": 3, "default": 1, "bfloat16": 1}
    return {name: bfloat16 / number for name, number in passes.items()}


def of_gpu(float32: float, tf32: float, bfloat16: float) -> dict[str, float]:
    """Returns the rates of an NVIDIA GPU. At the precisions "high" and "default" JAX
    lets tensor cores multiply float32 operands as TF32: see `jax.lax.Precision`.

    Args:
        float32: operations per second in float32, without tensor cores.
        tf32, bfloat16: operations per second of tensor cores.
    """
    return {"highest": float32, "high": tf32, "default": tf32, "bfloat16": bfloat16}


TPUS = {
    "v5e": Chip(of_tpu(197e12), 819e9, 16 * 2**30),
    "v5p": Chip(of_tpu(459e12), 2765e9, 95 * 2**30),
    "v6e": Chip(of_tpu(918e12), 1640e9, 32 * 2**30),
}
"""https://cloud.google.com/tpu/docs/v5e, v5p, v6e"""

HOPPER_RATES = of_gpu(66.9e12, 494.7e12, 989.4e12)
"""NVIDIA's white paper "H100 Tensor Core GPU Architecture". An H200 computes alike."""

GPUS = {
    "a100": Chip(of_gpu(19.5e12, 156e12, 312e12), 1555e9, 42331013120),
    "h100": Chip(HOPPER_RATES, 3352e9, 84942979072),
    "h200": Chip(HOPPER_RATES, 4800e9, 151397597184),
}
"""The data sheets of the SXM boards (A100: 40 GB), without sparsity. CUDA reports the
memory."""

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
"""What differs between GPUs in XLA's description of one, beside the memory."""


def described(topology: str) -> tuple[list[Any], Chip]:
    """Returns the devices of a topology, to compile for, and what one of them is.

    Args:
        topology: see above.

    Raises:
        ValueError: there is no such topology, or no compiler for it.
    """
    name, _, shape = topology.partition(":")
    if name in TPUS:
        # The compiler would look for a machine with TPUs around this one, and would be
        # the only one on it.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        asked = {"topology_name": topology, "platform": "tpu"}
        chip, compiler = TPUS[name], '"jax[tpu]"'
    elif name in GPUS and shape.isdecimal() and int(shape):
        asked = {"platform": "cuda", "target_config": _gpu(name)}
        asked["topology"] = f"1x1x{shape}"
        chip, compiler = GPUS[name], CUDA_COMPILER
    else:
        raise ValueError(
            f"--on must be one of {', '.join(TPUS)} and a shape, as v5e:2x2, or one of "
            f"{', '.join(GPUS)} and a number, as h100:8, got {topology}"
        )
    try:
        found = topologies.get_topology_desc(**asked)
    except Exception as error:
        line = str(error).partition("\n")[0]
        shapes = f"shapes: {', '.join(SHAPES[name])}; " if name in TPUS else ""
        told = f"{shapes}its compiler: pip install {compiler}"
        raise ValueError(f"--on {topology}: {line} ({told})") from error
    return list(found.devices), chip


CUDA_COMPILER = "jax-cuda13-plugin nvidia-cuda-nvcc nvidia-nvvm"
SHAPES = {
    **dict.fromkeys(
        ("v5e", "v6e"), ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
    ),
    "v5p": ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8"),
}
"""That the chips are rented in, the smallest first."""


def larger(topology: str) -> list[str]:
    """Returns the topologies of the same chips with more of them, the smallest first.

    Examples:
        >>> larger("v5e:8x8")
        ['v5e:8x16', 'v5e:16x16']
        >>> larger("h100:8")
        ['h100:16', 'h100:32', 'h100:64']
    """
    name, _, shape = topology.partition(":")
    if name in GPUS:
        return [f"{name}:{int(shape) * factor}" for factor in (2, 4, 8)]

    def count(shape: str) -> int:
        return math.prod(map(int, shape.split("x")))

    return [f"{name}:{x}" for x in SHAPES[name] if count(x) > count(shape)]


def _gpu(name: str) -> str:
    """Returns XLA's description of a GPU, a GpuTargetConfigProto as text."""
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
