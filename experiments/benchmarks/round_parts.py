"""Times a round of CCFC's pre-training on MNIST and its parts.

python experiments/benchmarks/round_parts.py --data-dir DIR
python experiments/benchmarks/round_parts.py --data-dir DIR --examples 70000 --torch

The round is from `experiments/ccfc.py --preset paper --p 0`, without scores. Each part
is a program of its own. Its clients are spread over the cores, as in the round. A round
with scores also embeds and clusters all examples. With --torch, a round of the authors'
recipe in PyTorch is timed as well. Use an idle machine. The round and its parts
alternate, so that all have the same background load.
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
"""Name of the case with the local training of a round."""


@dataclasses.dataclass(frozen=True)
class Args:
    """Times a round and its parts."""

    data_dir: Path
    """Folder with the prepared MNIST."""
    examples: tuple[int, ...] = (10_000,)
    """Number of images, over ten clients."""
    repeats: int = 5
    """Number of timed repetitions, after one warm-up."""
    torch: bool = False
    """Also time a round of the recipe in PyTorch: views by PIL, k-means by
    scikit-learn, scores."""


def main(args: Args) -> None:
    """Prints one table per number of images.

    Args:
        args: the command-line arguments.
    """
    print(
        f"{num_cores()} cores, {jax.local_device_count()} devices, "
        f"JAX {jax.__version__}"
    )
    for num_examples in args.examples:
        measure(num_examples, args)


def measure(num_examples: int, args: Args) -> None:
    """Prints a table with the times of a round and its parts.

    Args:
        num_examples: number of images.
        args: the command-line arguments.
    """
    experiment = prepare(task_of(num_examples, args))
    (batch,) = experiment.batches
    program, grid = engine.Program(batch.build), experiment.grid(batch)
    labels = experiment.dataset.labels
    assert labels is not None
    # The grid has one run, so its leading axis is dropped.
    federation = jax.tree.map(lambda x: x[0], grid.federations._replace(pool=()))
    cases = parts(federation._replace(pool=grid.federations.pool))
    clusters = np.random.default_rng(0).integers(10, size=len(labels))
    factors = jax.random.normal(jax.random.key(0), (2, 2048, 2048))
    matmul = jax.jit(jnp.matmul)
    functions: dict[str, Callable] = {
        **{name: JaxSide(case).round for name, case in cases.items()},
        "scores of these clusters, on the host": lambda: metrics.scores(
            labels, clusters, names=ROUND_SCORES
        ),
        "one matrix product": lambda: matmul(*factors),
    }
    if args.torch:
        functions["round of the PyTorch recipe, with scores"] = recipe(
            experiment, batch
        )
    times: dict[str, list[float]] = defaultdict(list)
    clock = time.perf_counter()

    def take_turns(round: engine.Round) -> None:
        nonlocal clock
        if round.is_last:
            return
        times["one round"].append(time.perf_counter() - clock)
        times["clusters of all images, for the scores"].append(
            seconds(lambda: program.assign(grid, round.state))
        )
        for name, fn in functions.items():
            times[name].append(seconds(fn))
        clock = time.perf_counter()

    with jax.default_matmul_precision(experiment.task.options.precision):
        program.run(grid, on_round=take_turns)
    # The first call of each function compiles.
    timed = {name: each[1:] for name, each in times.items()}
    medians = {name: statistics.median(each) for name, each in timed.items()}
    rate = 2 * 2048**3 / medians["one matrix product"]
    lower_bound = flops(cases[TRAINING]) / rate
    print(f"\n{len(labels)} images, matrix products at {rate / 1e9:.0f} GFLOP/s\n")
    print(titles(["part", "s", "min to max", "share of one round"]))
    for name, each in timed.items():
        cells = [name, f"{medians[name]:.3f}", f"{min(each):.3f} to {max(each):.3f}"]
        print(f"| {' | '.join(cells)} | {medians[name] / medians['one round']:.3f} |")
    share = lower_bound / medians["one round"]
    name = "lower bound of training: its matrix products"
    print(f"| {name} | {lower_bound:.3f} | | {share:.3f} |")


def task_of(num_examples: int, args: Args) -> Task:
    """Returns the task of a run that is long enough to be timed."""
    return Task.of(
        CCFC,
        dataset="mnist",
        data_dir=args.data_dir,
        limit=None if num_examples == 70_000 else num_examples,
        preset="paper",
        p=(0.0,),
        # The last round is always scored, so it is not timed.
        pretrain_rounds=(args.repeats + 2,),
        evaluate_every=args.repeats + 2,
        cluster_rounds=(0,),
        runs_per_call=1,
        plot=False,
    )


def parts(federation: Federation) -> dict[str, Case]:
    """Returns the parts of a round as cases, for all clients.

    The parts are local training, the views alone, the embedding of all examples and
    k-means of the embedding. The last two belong to a round with scores.

    Args:
        federation: the clients and their data.

    Returns:
        The cases by name.
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

    def train_part(anchor, pool, key, client, rows, mask):
        def loss(key, variables, batch_indices, batch_mask):
            views = ccfc.two_views(setup, key, to_float(pool[rows[batch_indices]]))
            return ccfc.sample_contrast(
                setup.network, variables, anchor, views, batch_mask, model_weight=1e-3
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

    def augment_part(anchor, pool, key, client, rows, mask):
        del anchor, mask
        first, second = ccfc.two_views(setup, key, to_float(pool[rows]))
        return client, first.sum() + second.sum()

    def embed_part(anchor, pool, key, client, rows, mask):
        del anchor, key, mask
        return client, ccfc.encode(setup, pool, client.variables, rows).sum()

    def cluster_part(anchor, pool, key, client, z, mask):
        del anchor, pool
        result = kmeans(key, z, 10, mask=mask, num_init=setup.settings.num_init)
        return client, result.inertia

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

    client_data = (federation.indices, federation.mask)

    return {
        TRAINING: case(train_part, *client_data),
        "views of all examples": case(augment_part, *client_data),
        "embedding of all examples": case(embed_part, *client_data),
        "k-means of the embedding, ten seedings": case(cluster_part, z, client_data[1]),
    }


def recipe(experiment: Experiment, batch: Batch) -> Callable[[], Any]:
    """Returns a function that runs one scored round of the PyTorch recipe."""
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
