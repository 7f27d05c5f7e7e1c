"""Seconds of a round of local training, beside PyTorch on the same cores.

python experiments/benchmark.py ccfc
python experiments/benchmark.py ccfc --against torch
python experiments/benchmark.py ccfc --against torch --data-dir DIR --repeats 9

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

CHANNELS, LATENT_SIZE, BOTTLENECK = (64, 128, 256), 256, 16
LEARNING_RATE, MODEL_WEIGHT = 1e-3, 1e-3
SIDE = 28


@dataclasses.dataclass(frozen=True)
class Args:
    """Times a round of local training, optionally against another framework."""

    method: tyro.conf.Positional[Literal["ccfc"]]
    """Whose local training."""
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
    """Where TFDS's mnist is prepared (default: random images)."""


class JaxSide:
    """Clients of this library, and their round."""

    def __init__(self, views: np.ndarray, *, batch_size: int):
        """Takes views [2, M, N, H, W, C]; compiles nothing yet."""
        self.network = models.simsiam(
            models.conv_encoder(CHANNELS),
            latent_size=LATENT_SIZE,
            bottleneck=BOTTLENECK,
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


class TorchSide:
    """The same clients in PyTorch, as one would write them there."""

    def __init__(self, views: np.ndarray, variables: Any, *, batch_size: int):
        """Takes the views and the initial variables of the JAX side."""
        import torch  # pyright: ignore[reportMissingImports]

        torch.set_num_threads(num_cores())
        torch.manual_seed(0)
        self.batch_size = batch_size
        self.views = torch.from_numpy(np.moveaxis(views, -1, 3).copy())
        self.anchor = torch_network(variables).eval()
        self.models = [torch_network(variables).train() for _ in views[0]]
        self.optimizers = [
            torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
            for model in self.models
        ]

    def round(self) -> float:
        """Trains every client one epoch; returns their mean loss."""
        import torch  # pyright: ignore[reportMissingImports]

        cosine = torch.nn.functional.cosine_similarity

        def distance(p, z):
            return -cosine(p, z.detach()).mean()

        means = []
        for i, (model, optimizer) in enumerate(
            zip(self.models, self.optimizers, strict=True)
        ):
            order = torch.randperm(self.views.shape[2])
            losses = []
            for batch in order.split(self.batch_size):
                first, second = self.views[0, i][batch], self.views[1, i][batch]
                with torch.no_grad():
                    anchors = self.anchor(first)[1], self.anchor(second)[1]
                z1, p1 = model(first)
                z2, p2 = model(second)
                contrast = (distance(p1, z2) + distance(p2, z1)) / 2
                pull = (distance(p1, anchors[0]) + distance(p2, anchors[1])) / 2
                loss = contrast + MODEL_WEIGHT * pull
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            means.append(torch.stack(losses).mean())
        return torch.stack(means).mean().item()


def torch_network(variables: Any):
    """CCFC's network in PyTorch, from the variables of this library's."""
    import torch  # pyright: ignore[reportMissingImports]

    nn = torch.nn

    encoder, inputs = [], 1
    for features in CHANNELS:
        encoder += [
            nn.Conv2d(inputs, features, 4, stride=2, padding=1),
            nn.BatchNorm2d(features),
            nn.LeakyReLU(0.2),
        ]
        inputs = features
    flat = inputs * sides()[-1] ** 2

    class SimSiam(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(*encoder, nn.Flatten())
            self.projector = nn.Sequential(
                nn.Linear(flat, 256),
                nn.BatchNorm1d(256),
                nn.ReLU(),
                nn.Linear(256, LATENT_SIZE),
                nn.BatchNorm1d(LATENT_SIZE, affine=False),
            )
            self.predictor = nn.Sequential(
                nn.Linear(LATENT_SIZE, BOTTLENECK),
                nn.BatchNorm1d(BOTTLENECK),
                nn.ReLU(),
                nn.Linear(BOTTLENECK, LATENT_SIZE),
            )

        def forward(self, x):
            z = self.projector(self.encoder(x))
            return z, self.predictor(z)

    network = SimSiam()
    params = jax.tree.map(np.asarray, variables["params"])
    count = {}
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                kind, axes = "Conv", (3, 2, 0, 1)
            elif isinstance(module, nn.Linear):
                kind, axes = "Dense", (1, 0)
            elif isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                kind, axes = "BatchNorm", (0,)
            else:
                continue
            name = f"{kind}_{count.get(kind, 0)}"
            count[kind] = count.get(kind, 0) + 1
            values = params.get(name, {})
            values = values.get("Dense_0", values)
            if name == "Dense_0":  # torch flattens features first, we features last
                kernel = values["kernel"].reshape(-1, inputs, 256)
                kernel = np.moveaxis(kernel, 1, 0).reshape(flat, 256)
                values = {**values, "kernel": kernel}
            if values:
                weight = values["scale" if kind == "BatchNorm" else "kernel"]
                state = {"weight": weight.transpose(axes), "bias": values["bias"]}
                state = {k: torch.from_numpy(v.copy()) for k, v in state.items()}
                module.load_state_dict(state, strict=False)
    return network


def check_parity(
    views: np.ndarray, *, steps: int = 2, tolerance: float = 1e-4
) -> list[tuple[float, float]]:
    """Checks that both sides do the same work, on one batch of each client.

    Returns:
        The losses of both sides in each of the first steps; from the second on they
        depend on gradients and optimiser too, and drift apart as rounding does.

    Raises:
        AssertionError: they differ by more than the tolerance.
    """
    ours = JaxSide(views, batch_size=views.shape[2])
    theirs = TorchSide(views, ours.variables, batch_size=views.shape[2])
    losses = [(ours.round(), theirs.round()) for _ in range(steps)]
    for a, b in losses:
        assert abs(a - b) <= tolerance, f"losses differ: {losses}"
    return losses


def sides() -> list[int]:
    """Pixels a side after each convolution (kernel 4, stride 2, padding 1)."""
    result = [SIDE]
    for _ in CHANNELS:
        result.append((result[-1] - 2) // 2 + 1)
    return result[1:]


def forward_flops() -> int:
    """Of the convolutions and matrix products, for one image."""
    inputs = (1, *CHANNELS[:-1])
    flops = sum(
        2 * 16 * i * o * side**2
        for i, o, side in zip(inputs, CHANNELS, sides(), strict=True)
    )
    widths = (CHANNELS[-1] * sides()[-1] ** 2, 256, LATENT_SIZE, BOTTLENECK)
    widths = (*widths, LATENT_SIZE)
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
    shape = (2, args.clients, args.examples, SIDE, SIDE, 1)
    if args.data_dir is None:
        return rng.random(shape, np.float32), "random images"
    images = data.load("mnist", data_dir=args.data_dir).examples
    count = args.clients * args.examples
    if count > len(images):
        raise ValueError(
            f"--clients x --examples must be at most {len(images)}, got {count}"
        )
    drawn = np.stack([rng.permutation(len(images))[:count] for _ in range(2)])
    return np.asarray(to_float(jnp.asarray(images[drawn]))).reshape(shape), "mnist"


def augmentation(views: np.ndarray) -> Callable[[], jax.Array]:
    """Returns a function that makes as many views as a round trains on."""
    images = jnp.asarray(views.reshape(-1, *views.shape[3:]))
    keys = jax.random.split(jax.random.key(0), len(images))
    augment = jax.jit(jax.vmap(ccfc_grey))
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
        losses = check_parity(views[:, :1, : args.batch_size])
        print(
            "losses of the first steps, jax = torch:",
            ", ".join(f"{a:.6f} = {b:.6f}" for a, b in losses),
        )

    ours = JaxSide(views, batch_size=args.batch_size)
    compile_seconds = ours.compile()
    factors = jax.random.normal(jax.random.key(0), (2, 2048, 2048))
    matmul = jax.jit(jnp.matmul)
    measured: dict[str, Callable] = {"jax training": ours.round}
    if args.against:
        theirs = TorchSide(views, ours.variables, batch_size=args.batch_size)
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
    training = args.clients * args.examples * forward_flops() * (2 * 3 + 2)
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
