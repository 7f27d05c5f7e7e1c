"""Compares the scores of CCFC in fcjax and in a PyTorch loop of its authors' recipe.

python experiments/benchmarks/ccfc_vs_torch.py fcjax --data-dir DIR
python experiments/benchmarks/ccfc_vs_torch.py torch --data-dir DIR  # needs PyTorch
python experiments/benchmarks/ccfc_vs_torch.py compare

Both implementations have the same images, the same partition and the same narrow
network. All other random draws differ, so the comparison is between distributions of
scores.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import tyro
from scipy import stats

from fcjax import data, engine, metrics, nn
from fcjax.algorithms.ccfc import ccfc
from fcjax.cli.errors import exit_on_error
from fcjax.data.augment import ccfc_grey
from fcjax.data.sources import load
from fcjax.methods import CCFC
from fcjax.types import Grid

NUM_CLIENTS = NUM_CLUSTERS = 10
CHANNELS = (16, 32, 64)
BATCH_SIZE, LEARNING_RATE, MODEL_WEIGHT = 32, 1e-3, 1e-3
STAGES = ("pretrain", "cluster")


@dataclasses.dataclass(frozen=True)
class Args:
    """Trains one implementation, or compares the scores of both."""

    side: Annotated[Literal["fcjax", "torch", "compare"], tyro.conf.Positional]
    """fcjax or torch: the implementation to train. compare: test the difference of the
    means."""
    data_dir: Path | None = None
    """Folder with the prepared TFDS data sets."""
    limit: int = 4000
    """Number of images of MNIST, partitioned over ten clients at p = 0."""
    seed: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    """Seeds of the partition and of training."""
    pretrain_rounds: int = 100
    """Rounds of SimSiam pre-training."""
    cluster_rounds: int = 30
    """Rounds of cluster contrast."""
    out: Path = Path("runs/ccfc-beside-torch.csv")
    """CSV file with one row per implementation, seed and stage. Seeds in the file are
    not trained again."""


class Problem:
    """The images, their partition by seed, and the scores of a clustering.

    Args:
        args: the command-line arguments.
    """

    def __init__(self, args: Args):
        mnist = data.stratified_subset(
            load("mnist", data_dir=args.data_dir), args.limit
        )
        self.images, self.labels = mnist.examples, np.asarray(mnist.labels)

    def deal(self, seed: int) -> data.Partition:
        """Partitions the images over the clients at p = 0."""
        return data.heterogeneous(self.labels, NUM_CLIENTS, 0.0, seed=seed)

    def score(self, clusters: np.ndarray) -> tuple[float, float]:
        """Returns the pair (NMI, ACC) of the clusters of all images against labels."""
        return (
            float(metrics.nmi(self.labels, clusters)),
            float(metrics.accuracy(self.labels, clusters)),
        )


def by_fcjax(problem: Problem, args: Args) -> Iterator[tuple[int, str, float, float]]:
    """Trains CCFC in fcjax.

    Args:
        problem: the images and their partition.
        args: the command-line arguments.

    Yields:
        tuple[int, str, float, float]: seed, stage, NMI and ACC of each stage.
    """

    def build(hyper):
        del hyper
        settings = CCFC(
            pretrain_rounds=args.pretrain_rounds,
            cluster_rounds=args.cluster_rounds,
            batch_size=BATCH_SIZE,
            model_weight=MODEL_WEIGHT,
            own_init=True,
        )
        return ccfc(
            settings.plain(),
            nn.simsiam(nn.conv_encoder(CHANNELS)),
            optax.adam(LEARNING_RATE),
            ccfc_grey,
            num_clusters=NUM_CLUSTERS,
        )

    program = engine.Program(build)
    for seed in args.seed:
        partition = problem.deal(seed)
        grid = Grid(
            hyper=jnp.zeros(1),
            keys=jax.vmap(jax.random.key)(jnp.array([seed])),
            federations=data.federate(
                problem.images,
                [partition],
                [np.ones((1, NUM_CLIENTS), bool)],
                num_clusters=NUM_CLUSTERS,
            ),
        )
        rows = np.concatenate(partition.clients)
        scores = []

        def keep(round, grid=grid, rows=rows, scores=scores):
            if round.is_last and round.stage.name in STAGES:
                clusters = np.empty(len(problem.labels), int)
                assigned = program.assign(grid, round.state)[0]
                clusters[rows] = np.asarray(assigned)[
                    np.asarray(grid.federations.mask[0])
                ]
                scores.append((round.stage.name, *problem.score(clusters)))

        program.run(grid, on_round=keep)
        yield from ((seed, *row) for row in scores)


def by_torch(problem: Problem, args: Args) -> Iterator[tuple[int, str, float, float]]:
    """Trains CCFC in PyTorch.

    Args:
        problem: the images and their partition.
        args: the command-line arguments.

    Yields:
        tuple[int, str, float, float]: seed, stage, NMI and ACC of each stage.
    """
    # PyTorch is an extra, which the other commands do not need.
    from experiments.benchmarks.ccfc_recipe_torch import Recipe

    for seed in args.seed:
        recipe = Recipe(
            problem.images,
            problem.deal(seed).clients,
            channels=CHANNELS,
            num_clusters=NUM_CLUSTERS,
            seed=seed,
        )
        yield seed, "pretrain", *problem.score(recipe.pretrain(args.pretrain_rounds))
        yield seed, "cluster", *problem.score(recipe.cluster(args.cluster_rounds))


def compare(rows: pd.DataFrame) -> None:
    """Prints the scores of both implementations and a permutation test of their means.

    Args:
        rows: the rows of the CSV file.
    """
    for stage in STAGES:
        for score in ("nmi", "acc"):
            by_side = rows[rows.stage == stage].groupby("side")[score]
            fcjax_scores, torch_scores = (
                by_side.get_group(side) for side in ("fcjax", "torch")
            )
            test = stats.permutation_test(
                (fcjax_scores, torch_scores),
                lambda a, b: a.mean() - b.mean(),
                n_resamples=10_000,
            )
            print(f"{stage} {score}: p-value of the difference {test.pvalue:.3f}")
            for side, values in (("fcjax", fcjax_scores), ("torch", torch_scores)):
                each = values.round(3).tolist()
                print(f"  {side}: mean {values.mean():.3f}, by seed {each}")


def main(args: Args) -> None:
    """Trains the missing seeds of an implementation, or compares both.

    Args:
        args: the command-line arguments.
    """
    columns = ["side", "seed", "stage", "nmi", "acc"]
    rows = pd.DataFrame(columns=columns)
    if args.out.exists():
        rows = pd.read_csv(args.out)
    if args.side == "compare":
        return compare(rows)
    done = {*rows.seed[rows.side == args.side]}
    args = dataclasses.replace(args, seed=tuple(s for s in args.seed if s not in done))
    side = by_fcjax if args.side == "fcjax" else by_torch
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for seed, stage, nmi, acc in side(Problem(args), args):
        print(
            f"{args.side} seed {seed} {stage}: NMI {nmi:.4f}, ACC {acc:.4f}", flush=True
        )
        row = pd.DataFrame([[args.side, seed, stage, nmi, acc]], columns=columns)
        header = not args.out.exists()
        row.to_csv(args.out, mode="a", header=header, index=False)
    print(f"scores: {args.out}")


if __name__ == "__main__":
    with exit_on_error():
        main(tyro.cli(Args, description=__doc__))
