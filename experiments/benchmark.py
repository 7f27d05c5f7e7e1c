"""Seconds of a round of local training, beside PyTorch on the same cores.

python experiments/benchmark.py ccfc
python experiments/benchmark.py ccfc --against torch
python experiments/benchmark.py ccfc --against torch --data-dir DIR --repeats 9
python experiments/benchmark.py ccfc --against torch --backbone resnet18 --examples 200

A round of CCFC's pre-training at the paper's sizes, without the server: every client
trains one epoch on two fixed views of its images; augmentation is timed apart. Rounds
of the two sides alternate, so that both meet the same noise, and the ratio of their
medians is the last line. Both run in one process: alternated with processes of their
own, neither was slower for it. A machine busy with other work slows PyTorch more, whose
threads wait for each other: compare on an idle one, or on one core (`taskset -c 0`).
"""

import dataclasses
import importlib.util
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

from fcjax import clients, data, models
from fcjax.algorithms.ccfc import sample_contrast
from fcjax.data.augment import ccfc_grey, to_float
from fcjax.data.colour import simsiam_colour

LATENT_SIZE, BOTTLENECK = 256, 16
LEARNING_RATE, MODEL_WEIGHT = 1e-3, 1e-3
SHAPES = {"conv": (28, 28, 1), "resnet18": (32, 32, 3)}


@dataclasses.dataclass(frozen=True)
class Args:
    """Times a round of local training, optionally against another framework."""

    method: tyro.conf.Positional[Literal["ccfc"]]
    """Whose local training."""
    backbone: Literal["conv", "resnet18"] = "conv"
    """conv on 28x28 grey images, or resnet18 on 32x32 colour ones."""
    against: Literal["torch"] | None = None
    """Also time the same work in PyTorch, on the CPU."""
    clients: int = 10
    """Clients, one after another on both sides."""
    examples: int = 1000
    """Images a client."""
    batch_size: int = 128
    """Images in a local step."""
    repeats: int = 5
    """Timed rounds of each side, after one to warm up."""
    data_dir: Path | None = None
    """Where TFDS's mnist or cifar10 is prepared (default: random images)."""


class JaxSide:
    """Clients of this library, and their round."""

    def __init__(self, views: np.ndarray, *, backbone: str, batch_size: int):
        """Takes views [2, M, N, H, W, C]; compiles nothing yet."""
        encoders = {"conv": models.conv_encoder, "resnet18": models.resnet18}
        self.network = models.simsiam(
            encoders[backbone](), latent_size=LATENT_SIZE, bottleneck=BOTTLENECK
        )
        self.views = tuple(jnp.asarray(view) for view in views)
        self.mask = jnp.ones(views.shape[1:3], bool)
        self.variables = self.network.init(jax.random.key(0), self.views[0][0, :1])
        optimizer = optax.adam(LEARNING_RATE)
        client = clients.Client(
            self.variables, optimizer.init(self.variables["params"])
        )
        # A copy: the round is given the clients' memory, the anchor stays.
        self.clients = jax.tree.map(jnp.array, clients.repeat(client, len(self.mask)))
        self.keys = jax.random.split(jax.random.key(1), len(self.mask))

        def train(anchor, key, client, first, second, mask):
            def loss(key, variables, slots, counted):
                del key
                batch = (first[slots], second[slots])
                return sample_contrast(
                    self.network,
                    variables,
                    anchor,
                    batch,
                    counted,
                    model_weight=MODEL_WEIGHT,
                )

            return clients.train(
                key,
                client,
                loss,
                mask,
                optimizer=optimizer,
                batch_size=batch_size,
                num_epochs=1,
            )

        def round(anchor, keys, state, views, mask):
            train_one = partial(train, anchor)
            return clients.for_each(train_one, keys, state, *views, mask)

        self.compiled: Callable = jax.jit(round, donate_argnums=2)

    def compile(self) -> float:
        """Compiles the round; returns the seconds that took."""
        start = time.perf_counter()
        self.compiled = self.compiled.lower(*self._arguments()).compile()
        return time.perf_counter() - start

    def round(self) -> float:
        """Trains every client one epoch; returns their mean loss."""
        self.clients, losses = self.compiled(*self._arguments())
        return float(losses.mean())

    def _arguments(self):
        return self.variables, self.keys, self.clients, self.views, self.mask


def torch_side(
    views: np.ndarray, variables: Any, *, backbone: str, batch_size: int
) -> Any:
    """The same clients in PyTorch, which is imported here alone."""
    from speed.ccfc_torch import Loop

    return Loop(
        views,
        variables,
        backbone=backbone,
        batch_size=batch_size,
        learning_rate=LEARNING_RATE,
        model_weight=MODEL_WEIGHT,
        num_threads=num_cores(),
    )


def check_parity(
    views: np.ndarray, *, backbone: str, steps: int = 2, tolerance: float = 1e-4
) -> list[tuple[float, float]]:
    """Checks that both sides do the same work, on one batch of each client.

    Returns:
        The losses of both sides in each of the first steps; from the second on they
        depend on gradients and optimiser too, and drift apart as rounding does.

    Raises:
        AssertionError: they differ by more than the tolerance.
    """
    sizes = {"backbone": backbone, "batch_size": views.shape[2]}
    ours = JaxSide(views, **sizes)
    theirs = torch_side(views, ours.variables, **sizes)
    losses = [(ours.round(), theirs.round()) for _ in range(steps)]
    for a, b in losses:
        assert abs(a - b) <= tolerance, f"losses differ: {losses}"
    return losses


def convolutions(backbone: str) -> list[tuple[int, int, int, int]]:
    """Kernel, inputs, outputs and pixels a side of every convolution's output."""
    if backbone == "conv":
        return [(4, 1, 64, 14), (4, 64, 128, 7), (4, 128, 256, 3)]
    layers = [(3, 3, 64, 32)] + 4 * [(3, 64, 64, 32)]
    for inputs, side in ((64, 16), (128, 8), (256, 4)):
        outputs = 2 * inputs
        layers += [(3, inputs, outputs, side), (1, inputs, outputs, side)]
        layers += 3 * [(3, outputs, outputs, side)]
    return layers


def forward_flops(backbone: str) -> int:
    """Of the convolutions and matrix products, for one image."""
    flops = sum(2 * k**2 * i * o * n**2 for k, i, o, n in convolutions(backbone))
    flat = 2304 if backbone == "conv" else 512
    widths = (flat, 256, LATENT_SIZE, BOTTLENECK, LATENT_SIZE)
    return flops + sum(2 * a * b for a, b in itertools.pairwise(widths))


def seconds(fn: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(fn())
    return time.perf_counter() - start


def num_cores() -> int:
    return len(os.sched_getaffinity(0))


def make_views(args: Args) -> tuple[np.ndarray, str]:
    """Returns views [2, M, N, H, W, 1] in [0, 1] and what they are made of."""
    rng = np.random.default_rng(0)
    shape = (2, args.clients, args.examples, *SHAPES[args.backbone])
    if args.data_dir is None:
        return rng.random(shape, np.float32), "random images"
    name = "mnist" if args.backbone == "conv" else "cifar10"
    images = data.load(name, data_dir=args.data_dir).examples
    count = args.clients * args.examples
    if count > len(images):
        raise ValueError(
            f"--clients x --examples must be at most {len(images)}, got {count}"
        )
    drawn = np.stack([rng.permutation(len(images))[:count] for _ in range(2)])
    return np.asarray(to_float(jnp.asarray(images[drawn]))).reshape(shape), name


def augmentation(views: np.ndarray) -> Callable[[], jax.Array]:
    """Returns a function that makes as many views as a round trains on."""
    images = jnp.asarray(views.reshape(-1, *views.shape[3:]))
    keys = jax.random.split(jax.random.key(0), len(images))
    augment = jax.jit(jax.vmap(ccfc_grey if images.shape[-1] == 1 else simsiam_colour))
    return lambda: augment(keys, images)


def benchmark(args: Args) -> None:
    """Checks, times and prints."""
    for name in ("clients", "examples", "batch_size", "repeats"):
        if getattr(args, name) < 1:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} must be at least 1, got {getattr(args, name)}")
    if args.against and jax.default_backend() != "cpu":
        raise ValueError("--against compares on the CPU: set JAX_PLATFORMS=cpu")
    if args.against and importlib.util.find_spec("torch") is None:
        raise ValueError('--against torch needs PyTorch: pip install -e ".[bench]"')
    views, source = make_views(args)
    print(
        f"{args.clients} clients x {args.examples} {source}, batch {args.batch_size}; "
        f"{jax.devices()[0].device_kind}, {num_cores()} cores"
    )
    if args.against:
        losses = check_parity(views[:, :1, : args.batch_size], backbone=args.backbone)
        print(
            "losses of the first steps, jax = torch:",
            ", ".join(f"{a:.6f} = {b:.6f}" for a, b in losses),
        )

    sizes = {"backbone": args.backbone, "batch_size": args.batch_size}
    ours = JaxSide(views, **sizes)
    compile_seconds = ours.compile()
    factors = jax.random.normal(jax.random.key(0), (2, 2048, 2048))
    matmul = jax.jit(jnp.matmul)
    measured: dict[str, Callable] = {"jax training": ours.round}
    if args.against:
        theirs = torch_side(views, ours.variables, **sizes)
        measured["torch training"] = theirs.round
    measured["jax augmentation"] = augmentation(views)
    measured["jax sgemm 2048"] = lambda: matmul(*factors)
    for fn in measured.values():
        seconds(fn)
    times = {name: [] for name in measured}
    for _ in range(args.repeats):
        for name, fn in measured.items():
            times[name].append(seconds(fn))

    # Forward and backward of two views (3 forwards' worth each) and two anchors.
    training = args.clients * args.examples * forward_flops(args.backbone) * (2 * 3 + 2)
    flops = {name: training for name in times if "training" in name}
    flops["jax sgemm 2048"] = 2 * 2048**3
    print(f"{'':18}{'median s':>10}{'min s':>10}{'max s':>10}{'GFLOP/s':>10}")
    for name, values in times.items():
        middle = statistics.median(values)
        rate = f"{flops[name] / middle / 1e9:10.0f}" if name in flops else ""
        print(f"{name:18}{middle:10.3f}{min(values):10.3f}{max(values):10.3f}{rate}")
    if args.against:
        print("torch augmentation: none, its transforms run on the host")
    rate = flops["jax sgemm 2048"] / statistics.median(times["jax sgemm 2048"])
    print(f"floor of training at the sgemm rate: {training / rate:.3f} s")
    print(f"compile: {compile_seconds:.1f} s")
    if args.against:
        medians = [
            statistics.median(times[f"{side} training"]) for side in ("jax", "torch")
        ]
        print(f"ratio {medians[0] / medians[1]:.2f}")


if __name__ == "__main__":
    # Compile time is one of the figures: none of it may come from an earlier run.
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        with jax.default_matmul_precision("highest"):
            benchmark(tyro.cli(Args, description=__doc__))
    except ValueError as error:
        sys.exit(f"benchmark.py: error: {error}")
