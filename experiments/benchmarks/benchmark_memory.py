"""Measures the memory of FedMCC's gradient, with and without microbatches.

python experiments/benchmarks/benchmark_memory.py
python experiments/benchmarks/benchmark_memory.py --backbone resnet18
python experiments/benchmarks/benchmark_memory.py --batch 512 --repeats 5

The gradient is of the loss that trains FedMCC's encoder: two views pass through the
online and the target network, with batch norm in training mode. The memory is XLA's
estimate for the compiled gradient. Nothing is run without --repeats.

The table also has the memory that grows with the batch in any program, by arithmetic: a
copy of the views, the projections and their gradients, and one matrix of similarities
for each of the two losses. The column `other` is the temporary memory without these
parts. With microbatches it should not depend on the batch.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import tyro

from experiments.benchmarks.benchmark import alternate
from fcjax import nn
from fcjax.algorithms.averaging import Networks, initialize
from fcjax.algorithms.fedmcc import instance_contrast
from fcjax.cli.errors import exit_on_error
from fcjax.data import federation
from fcjax.types import Network

TEMPERATURE, SIZE = 0.5, 128
SHAPES = {"conv": (28, 28, 1), "resnet18": (32, 32, 3)}


@dataclasses.dataclass(frozen=True)
class Args:
    """Compiles the gradient of the instance-level loss and prints its memory."""

    backbone: Literal["conv", "resnet18"] = "conv"
    """conv: 32, 64 and 128 features on 28x28 grey images. resnet18: on 32x32 colour
    images."""
    batch: tuple[int, ...] = (128, 512, 2048)
    """Number of examples in a gradient."""
    microbatch: int = 64
    """Number of examples in a microbatch."""
    repeats: int = 0
    """Number of timed gradients, with and without microbatches, after one warm-up
    gradient."""


def networks_of(backbone: str) -> dict[str, Network]:
    """Returns the encoder and the projector of a backbone."""
    layers: dict[str, Any] = {
        "conv": nn.conv_encoder((32, 64, 128)),
        "resnet18": nn.resnet18(),
    }
    return {
        "encoder": nn.encoder(layers[backbone]),
        "projector": nn.projector(SIZE),
    }


def compile_step(backbone: str, batch: int, microbatch: int | None) -> Any:
    """Compiles the gradient of FedMCC's equation 8 by the online parameters.

    Args:
        backbone: name of the backbone.
        batch: number of examples.
        microbatch: number of examples in a microbatch. None has no microbatches.

    Returns:
        The compiled function (online, target, views) -> (gradient, online batch
        statistics).
    """
    networks = Networks(networks_of(backbone), microbatch)
    contrast = instance_contrast(networks, temperature=TEMPERATURE)
    mask = jnp.ones(batch, bool)

    def step(online, target, views):
        def loss(params):
            parts = {**online, "params": params}
            value, parts = contrast(parts, target, views, mask)
            return value, parts["batch_stats"]

        return jax.grad(loss, has_aux=True)(online["params"])

    x = jax.ShapeDtypeStruct((batch, *SHAPES[backbone]), jnp.float32)
    one = jnp.zeros((1, *SHAPES[backbone]))
    online = jax.eval_shape(initialize_of(backbone), jax.random.key(0), one)
    return jax.jit(step).lower(online, online["params"], (x, x)).compile()


def initialize_of(backbone: str) -> Callable:
    """Returns the function (key, x) -> variables of encoder and projector.

    Args:
        backbone: name of the backbone, "conv" or "resnet18".

    Returns:
        The function. Its x has one or more images of the shape in `SHAPES`.
    """
    networks = networks_of(backbone)
    return lambda key, x: initialize(key, networks, x)


def must_grow(backbone: str, batch: int) -> dict[str, int]:
    """Returns the bytes of the arrays that any gradient needs for its batch."""
    return {
        "views": 4 * 2 * batch * math.prod(SHAPES[backbone]),
        "outputs": 4 * 2 * 4 * batch * SIZE,
        "similarities": 4 * 2 * (2 * batch) ** 2,
    }


def seconds(args: Args, batch: int, steps: dict[str, Any]) -> dict[str, list[float]]:
    """Times the compiled gradients in turn.

    Args:
        args: the command-line arguments.
        batch: number of examples.
        steps: the compiled gradients by name.

    Returns:
        The seconds of each call, by name.
    """
    shape = (batch, *SHAPES[args.backbone])
    views = [jax.random.uniform(jax.random.key(i), shape) for i in range(2)]
    init = jax.jit(initialize_of(args.backbone))
    online = init(jax.random.key(0), views[0][:1])
    target = online["params"]
    arguments = online, target, tuple(views)
    calls = {name: partial(step, *arguments) for name, step in steps.items()}
    return alternate(calls, args.repeats)


def main(args: Args) -> None:
    """Prints one line per batch size, with and without microbatches.

    Args:
        args: the command-line arguments.

    Raises:
        ValueError: an argument is wrong. The message is one line that names the flag
            and the accepted values.
    """
    for name, least in (("batch", 1), ("microbatch", 1), ("repeats", 0)):
        value = getattr(args, name)
        lowest = min(value, default=0) if name == "batch" else value
        if lowest < least:
            raise ValueError(f"--{name} must be at least {least}, got {value}")
    mega = 2**20
    print(
        f"memory in MiB: {args.backbone}, microbatches of {args.microbatch}, "
        f"{jax.devices()[0].device_kind}, JAX {jax.__version__}; other: temporary "
        "memory without views, outputs and similarities"
    )
    columns = ["arguments", "results", "temporary", "views", "outputs"]
    columns += ["similarities", "other"]
    print(f"{'batch':>6} {'gradient':>12}", *(f"{name:>12}" for name in columns))
    for batch in args.batch:
        steps = {}
        for kind, microbatch in (("whole", None), ("microbatches", args.microbatch)):
            steps[kind] = compile_step(args.backbone, batch, microbatch)
            memory = steps[kind].memory_analysis()
            batch_bytes = must_grow(args.backbone, batch)
            row = [memory.argument_size_in_bytes, memory.output_size_in_bytes]
            row += [memory.temp_size_in_bytes, *batch_bytes.values()]
            row += [memory.temp_size_in_bytes - sum(batch_bytes.values())]
            cells = (f"{size / mega:12.1f}" for size in row)
            print(f"{batch:6} {kind:>12}", *cells, flush=True)
        if args.repeats:
            times = seconds(args, batch, steps)
            medians = {kind: statistics.median(each) for kind, each in times.items()}
            texts = [
                f"{kind} {medians[kind]:.3f} s ({min(each):.3f} to {max(each):.3f})"
                for kind, each in times.items()
            ]
            texts.append(f"ratio {medians['microbatches'] / medians['whole']:.2f}")
            print(f"{batch:6} {', '.join(texts)}", flush=True)
    print(f"peak memory {federation.readable(federation.peak_memory())}")


if __name__ == "__main__":
    with exit_on_error():
        main(tyro.cli(Args))
