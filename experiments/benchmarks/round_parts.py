"""A round of CCFC's pre-training on MNIST beside its parts, and beside the round of its
authors' recipe in PyTorch.

python experiments/benchmarks/round_parts.py --data-dir DIR
python experiments/benchmarks/round_parts.py --data-dir DIR --examples 70000 --torch

The round is that of `experiments/ccfc.py --preset paper --p 0`, as its session drives
it, one that is not scored. The parts are programs of their own, with the clients
spread over the cores as in the round; one that is scored embeds and clusters besides.
Nothing else should run on the machine; all take turns.
"""

import dataclasses
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

from experiments.benchmarks.benchmark import seconds, titles
from experiments.benchmarks.speed.case import Case, JaxSide, flops
from fcjax import engine, losses, metrics, nn
from fcjax.algorithms import ccfc
from fcjax.cli.errors import exit_on_error
from fcjax.cluster import kmeans
from fcjax.data.augment import ccfc_grey, to_float
from fcjax.federated import clients, training
from fcjax.methods import CCFC
from fcjax.parallel.exact import num_cores, take_cores
from fcjax.sweep.experiment import Experiment, prepare
from fcjax.sweep.plan import Batch, Task
from fcjax.sweep.score import ROUND_SCORES
from fcjax.types import Federation

TRAINING = "training, with views"


@dataclasses.dataclass(frozen=True)
class Args:
    """Times a round and its parts."""

    data_dir: Path
    """Where MNIST is prepared."""
    examples: tuple[int, ...] = (10_000,)
    """Images, of ten clients."""
    repeats: int = 5
    """Of each, by turns, after one to warm up."""
    torch: bool = False
    """Also time the recipe's round: PIL's views, scikit-learn's k-means, scores."""


def main(args: Args) -> None:
    print(f"{num_cores()} cores, {jax.local_device_count()} devices, JAX", end=" ")
    print(jax.__version__)
    for num_examples in args.examples:
        measure(num_examples, args)


def measure(num_examples: int, args: Args) -> None:
    """Prints a table of what everything takes that a round consists of."""
    experiment = prepare(task_of(num_examples, args))
    (batch,) = experiment.batches
    program, grid = engine.Program(batch.build), experiment.grid(batch)
    labels = experiment.dataset.labels
    assert labels is not None
    # A grid of one run.
    federation = jax.tree.map(lambda x: x[0], grid.federations._replace(pool=()))
    cases = parts(federation._replace(pool=grid.federations.pool))
    clusters = np.random.default_rng(0).integers(10, size=len(labels))
    factors = jax.random.normal(jax.random.key(0), (2, 2048, 2048))
    matmul = jax.jit(jnp.matmul)
    others: dict[str, Callable] = {
        **{name: JaxSide(case).round for name, case in cases.items()},
        "scores of them, on the host": lambda: metrics.scores(
            labels, clusters, names=ROUND_SCORES
        ),
        "a product": lambda: matmul(*factors),
    }
    if args.torch:
        others["the recipe's round, with its scores"] = recipe(experiment, batch)
    times: dict[str, list[float]] = defaultdict(list)
    clock = time.perf_counter()

    def take_turns(round: engine.Round) -> None:
        nonlocal clock
        if round.is_last:
            return
        times["a round"].append(time.perf_counter() - clock)
        times["clusters of all images, for scores"].append(
            seconds(lambda: program.assign(grid, round.state))
        )
        for name, fn in others.items():
            times[name].append(seconds(fn))
        clock = time.perf_counter()

    with jax.default_matmul_precision(experiment.task.options.precision):
        program.run(grid, on_round=take_turns)
    # Of everything the first one compiles.
    timed = {name: each[1:] for name, each in times.items()}
    middle = {name: statistics.median(each) for name, each in timed.items()}
    rate = 2 * 2048**3 / middle["a product"]
    floor = flops(cases[TRAINING]) / rate
    print(f"\n{len(labels)} images, products at {rate / 1e9:.0f} GFLOP/s\n")
    print(titles(["part", "s", "min to max", "of a round"]))
    for name, each in timed.items():
        cells = [name, f"{middle[name]:.3f}", f"{min(each):.3f} to {max(each):.3f}"]
        print(f"| {' | '.join(cells)} | {middle[name] / middle['a round']:.3f} |")
    share = floor / middle["a round"]
    print(f"| training's products alone, at that rate | {floor:.3f} | | {share:.3f} |")


def task_of(num_examples: int, args: Args) -> Task:
    return Task.of(
        CCFC,
        dataset="mnist",
        data_dir=args.data_dir,
        limit=None if num_examples == 70_000 else num_examples,
        preset="paper",
        p=(0.0,),
        # The last one is scored in any case, and not timed.
        pretrain_rounds=(args.repeats + 2,),
        evaluate_every=args.repeats + 2,
        cluster_rounds=(0,),
        runs_per_call=1,
        plot=False,
    )


def parts(federation: Federation) -> dict[str, Case]:
    """Returns what all clients do in a round, and of it the views; and what a scored
    one takes besides, the embedding of all examples and k-means of it.
    """
    shape = federation.pool.shape[1:]
    setup = ccfc.Setup(
        settings=CCFC(pretrain_rounds=1, cluster_rounds=0).plain(),
        network=nn.simsiam(nn.conv_encoder(), latent_size=256, bottleneck=16),
        optimizer=optax.adam(1e-3),
        augment=ccfc_grey,
        num_clusters=10,
        schedule=ccfc.CONSTANT,
    )
    pool, num_clients = federation.pool, len(federation.indices)
    anchor = setup.network.init(jax.random.key(0), jnp.zeros((1, *shape)))
    client = clients.Client(anchor, setup.optimizer.init(anchor["params"]))
    state = clients.repeat(client, num_clients)
    keys = jax.random.split(jax.random.key(1), num_clients)
    z = jax.random.normal(jax.random.key(2), (*federation.indices.shape, 256))
    z = losses.normalize(
        z + 2 * z[:, :10].repeat(z.shape[1] // 10 + 1, 1)[:, : z.shape[1]]
    )

    def trained(anchor, pool, key, client, rows, mask):
        def loss(key, variables, slots, counted):
            views = ccfc.two_views(setup, key, to_float(pool[rows[slots]]))
            return ccfc.sample_contrast(
                setup.network, variables, anchor, views, counted, model_weight=1e-3
            )

        return training.train(
            key,
            client,
            loss,
            mask,
            optimizer=setup.optimizer,
            batch_size=setup.settings.batch_size,
            num_epochs=1,
        )

    def viewed(anchor, pool, key, client, rows, mask):
        del anchor, mask
        first, second = ccfc.two_views(setup, key, to_float(pool[rows]))
        return client, first.sum() + second.sum()

    def encoded(anchor, pool, key, client, rows, mask):
        del anchor, key, mask
        return client, ccfc.encode(setup, pool, client.variables, rows).sum()

    def clustered(anchor, pool, key, client, z, mask):
        del anchor, pool
        found = kmeans(key, z, 10, mask=mask, num_init=setup.settings.num_init)
        return client, found.inertia

    def case(one, *stacked):
        def train(state, anchor, pool, keys, *stacked):
            return clients.for_each(partial(one, anchor, pool), keys, state, *stacked)

        return Case(
            *("", "", train, (state, anchor, pool, keys, *stacked)),
            has_client_axis=(True, False, False, True, *(True for _ in stacked)),
            num_batches=-(-federation.indices.shape[1] // setup.settings.batch_size),
            num_examples=0,
            loop=lambda _: lambda: 0.0,
        )

    held = (federation.indices, federation.mask)

    return {
        TRAINING: case(trained, *held),
        "views of all examples": case(viewed, *held),
        "embedding of all examples": case(encoded, *held),
        "k-means of the embedding, ten seedings": case(clustered, z, held[1]),
    }


def recipe(experiment: Experiment, batch: Batch) -> Callable[[], Any]:
    """Returns a scored round of the recipe as a plain PyTorch loop on all cores."""
    import torch  # pyright: ignore[reportMissingImports]

    from experiments.benchmarks import ccfc_recipe_torch

    ccfc_recipe_torch.BATCH_SIZE = 128
    true = experiment.dataset.labels
    assert true is not None
    loop = ccfc_recipe_torch.Recipe(
        experiment.dataset.examples,
        batch.partitions[0].clients,
        channels=(64, 128, 256),
        num_clusters=10,
        seed=0,
    )
    torch.set_num_threads(num_cores())
    optimizers, labels = loop.new_optimizers(), torch.zeros(len(loop.pixels))

    def scored() -> dict[str, float]:
        loop.download()
        loop.round(loop.contrast_examples, optimizers, labels)
        return metrics.scores(true, loop.labels().numpy(), names=ROUND_SCORES)

    return scored


if __name__ == "__main__":
    take_cores()
    with exit_on_error():
        main(tyro.cli(Args))
