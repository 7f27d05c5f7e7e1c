"""Emulates the tensor cores of a GPU on a CPU, to measure their effect on scores.

    python experiments/benchmarks/precision.py 10 ccfc --p 0.25 --seed 0:5

The first argument is the number of mantissa bits of the operands: 10 for TF32, the
default of NVIDIA's GPUs, and 7 for bfloat16, the default of TPUs. The other arguments
are a command of fcjax, which runs with `--precision default`. The operands of every
product without an explicit precision are rounded. Sums are float32, as on tensor cores.
Products with precision "highest", such as distances to centroids, are not rounded.
"""

import sys
from typing import Any

import jax
from jax import lax
from jax.interpreters import mlir

from fcjax.cli.errors import exit_with_error
from fcjax.cli.main import main as run_method
from fcjax.methods import SCRIPTS

USAGE = "usage: precision.py {7,10} NAME [FLAGS], for example: precision.py 10 ccfc"


def round_operands(primitive: Any, mantissa_bits: int) -> None:
    """Rounds the operands of a primitive when JAX lowers the primitive for a CPU.

    Lowering comes after differentiation, so gradients are rounded, too.

    Args:
        primitive: a product with two operands and the parameter `precision`.
        mantissa_bits: number of explicit mantissa bits of the rounded operands.
    """

    def rounded(x: jax.Array, y: jax.Array, **params: Any) -> jax.Array:
        x, y = (lax.reduce_precision(z, 8, mantissa_bits) for z in (x, y))
        highest = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)
        return primitive.bind(x, y, **params | {"precision": highest})

    on_cpu = mlir._platform_specific_lowerings["cpu"]
    exact = on_cpu.get(primitive, mlir._lowerings[primitive]).rule
    emulated = mlir.lower_fun(rounded, multiple_results=False)

    def lower(context: Any, *operands: Any, **params: Any) -> Any:
        precisions = params["precision"]
        if not isinstance(precisions, tuple):
            precisions = (precisions,)
        is_exact = lax.Precision.HIGHEST in precisions
        return (exact if is_exact else emulated)(context, *operands, **params)

    mlir.register_lowering(primitive, lower, platform="cpu")


def main() -> None:
    """Runs a command with rounded operands."""
    if len(sys.argv) < 3 or sys.argv[1] not in ("7", "10"):
        exit_with_error(USAGE)
    bits, name, *flags = sys.argv[1:]
    if name not in SCRIPTS:
        exit_with_error(f"unknown method {name!r}; {USAGE}")
    for primitive in (lax.dot_general_p, lax.conv_general_dilated_p):
        round_operands(primitive, int(bits))
    sys.argv = [f"precision.py {bits} {name}", *flags]
    run_method(SCRIPTS[name], [*flags, "--precision", "default"])


if __name__ == "__main__":
    main()
