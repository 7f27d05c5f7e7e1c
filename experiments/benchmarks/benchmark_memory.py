"""Memory of FedMCC's gradient at growing batches, whole and part by part.

python experiments/benchmarks/benchmark_memory.py
python experiments/benchmarks/benchmark_memory.py --backbone resnet18
python experiments/benchmarks/benchmark_memory.py --batch 512 --repeats 5

Of the loss that trains FedMCC's encoder: two given views through the online and the
target network, batch norm in training. XLA says what the compiled gradient takes beside
its arguments and results; nothing is run but for --repeats. Beside it stands what
cannot but grow with the batch, by arithmetic: the views, once more; projections and
their gradients; a matrix of similarities for each of the two losses. What is left is
the networks' own, and should be that of one part whatever the batch.
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
    """Compiles the gradient of the instance-level loss and prints what it takes."""

    backbone: Literal["conv", "resnet18"] = "conv"
    """conv, of 32, 64 and 128 features on 28x28 grey images, or resnet18 on 32x32
    colour ones."""
    batch: tuple[int, ...] = (128, 512, 2048)
    """Examples a gradient."""
    microbatch: int = 64
    """Examples a part."""
    repeats: int = 0
    """Timed gradients of each kind, after one to warm up; kinds alternate."""


def networks_of(backbone: str) -> dict[str, Network]:
    layers: dict[str, Any] = {
        "conv": nn.conv_encoder((32, 64, 128)),
        "resnet18": nn.resnet18(),
    }
    return {
        "encoder": nn.encoder(layers[backbone]),
        "projector": nn.projector(SIZE),
    }


def compile_step(backbone: str, batch: int, microbatch: int | None) -> Any:
    """Returns the compiled gradient of FedMCC's equation 8 by the online parameters; a
    batch goes whole where microbatch is None.

    It takes (online, target, views); with it come the online batch statistics.
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
    """Returns (key, x) -> the variables of encoder and projector."""
    networks = networks_of(backbone)
    return lambda key, x: initialize(key, networks, x)


def must_grow(backbone: str, batch: int) -> dict[str, int]:
    """Returns the bytes that any gradient of the batch takes beside its arguments."""
    return {
        "views": 4 * 2 * batch * math.prod(SHAPES[backbone]),
        "outputs": 4 * 2 * 4 * batch * SIZE,
        "similarities": 4 * 2 * (2 * batch) ** 2,
    }


def seconds(args: Args, batch: int, steps: dict[str, Any]) -> dict[str, list[float]]:
    """Returns the seconds of each compiled gradient's runs, which take turns."""
    shape = (batch, *SHAPES[args.backbone])
    views = [jax.random.uniform(jax.random.key(i), shape) for i in range(2)]
    init = jax.jit(initialize_of(args.backbone))
    online = init(jax.random.key(0), views[0][:1])
    target = online["params"]
    arguments = online, target, tuple(views)
    calls = {name: partial(step, *arguments) for name, step in steps.items()}
    return alternate(calls, args.repeats)


def main(args: Args) -> None:
    """Prints a line a batch and kind; raises ValueError where a flag is wrong."""
    for name, least in (("batch", 1), ("microbatch", 1), ("repeats", 0)):
        value = getattr(args, name)
        lowest = min(value, default=0) if name == "batch" else value
        if lowest < least:
            raise ValueError(f"--{name} must be at least {least}, got {value}")
    mega = 2**20
    print(
        f"{args.backbone}, parts of {args.microbatch}, MiB; "
        f"{jax.devices()[0].device_kind}, JAX {jax.__version__}"
    )
    columns = ["arguments", "results", "temporary", "views", "outputs"]
    columns += ["similarities", "left"]
    print(f"{'batch':>6} {'kind':>8}", *(f"{name:>12}" for name in columns))
    for batch in args.batch:
        steps = {}
        for kind, microbatch in (("whole", None), ("in parts", args.microbatch)):
            steps[kind] = compile_step(args.backbone, batch, microbatch)
            told = steps[kind].memory_analysis()
            grown = must_grow(args.backbone, batch)
            row = [told.argument_size_in_bytes, told.output_size_in_bytes]
            row += [told.temp_size_in_bytes, *grown.values()]
            row += [told.temp_size_in_bytes - sum(grown.values())]
            figures = (f"{size / mega:12.1f}" for size in row)
            print(f"{batch:6} {kind:>8}", *figures, flush=True)
        if args.repeats:
            times = seconds(args, batch, steps)
            medians = {kind: statistics.median(each) for kind, each in times.items()}
            told = [
                f"{kind} {medians[kind]:.3f} s ({min(each):.3f} to {max(each):.3f})"
                for kind, each in times.items()
            ]
            told.append(f"ratio {medians['in parts'] / medians['whole']:.2f}")
            print(f"{batch:6} {', '.join(told)}", flush=True)
    print(f"peak memory {federation.readable(federation.peak_memory())}")


if __name__ == "__main__":
    with exit_on_error():
        main(tyro.cli(Args))
