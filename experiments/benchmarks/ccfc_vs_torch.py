"""CCFC beside a plain PyTorch loop of its authors' recipe, seed by seed.

python experiments/benchmarks/ccfc_vs_torch.py fcjax --data-dir DIR
python experiments/benchmarks/ccfc_vs_torch.py torch --data-dir DIR  # with torch
python experiments/benchmarks/ccfc_vs_torch.py compare

Both sides have the same images, the same deal of them and a narrow network, and draw
all else on their own: what is compared is the distribution of their scores.
"""

import dataclasses
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
    """Trains one side, or compares what both have left in the file."""

    side: Annotated[Literal["fcjax", "torch", "compare"], tyro.conf.Positional]
    """Which side to train; compare tests the means of what both left."""
    data_dir: Path | None = None
    """Where TFDS data sets are prepared."""
    limit: int = 4000
    """Images of MNIST, dealt to ten clients at p = 0."""
    seed: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    """Of the deal, and of all that a side draws."""
    pretrain_rounds: int = 100
    """Of SimSiam."""
    cluster_rounds: int = 30
    """Of cluster contrast."""
    out: Path = Path("runs/ccfc-beside-torch.csv")
    """A row a side, seed and stage; seeds that it has are not trained again."""


class Problem:
    """The images, and who holds which of them with a seed."""

    def __init__(self, args: Args):
        mnist = data.stratified_subset(
            load("mnist", data_dir=args.data_dir), args.limit
        )
        self.images, self.labels = mnist.examples, np.asarray(mnist.labels)

    def deal(self, seed: int) -> data.Partition:
        return data.heterogeneous(self.labels, NUM_CLIENTS, 0.0, seed=seed)

    def score(self, clusters: np.ndarray) -> tuple[float, float]:
        return (
            float(metrics.nmi(self.labels, clusters)),
            float(metrics.accuracy(self.labels, clusters)),
        )


def by_fcjax(problem: Problem, args: Args):
    """Yields seed, stage, NMI and ACC of the library's runs."""

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
        dealt = problem.deal(seed)
        grid = Grid(
            hyper=jnp.zeros(1),
            keys=jax.vmap(jax.random.key)(jnp.array([seed])),
            federations=data.federate(
                problem.images,
                [dealt],
                [np.ones((1, NUM_CLIENTS), bool)],
                num_clusters=NUM_CLUSTERS,
            ),
        )
        rows = np.concatenate(dealt.clients)
        found = []

        def keep(round, grid=grid, rows=rows, found=found):
            if round.is_last and round.stage.name in STAGES:
                clusters = np.empty(len(problem.labels), int)
                assigned = program.assign(grid, round.state)[0]
                clusters[rows] = np.asarray(assigned)[
                    np.asarray(grid.federations.mask[0])
                ]
                found.append((round.stage.name, *problem.score(clusters)))

        program.run(grid, on_round=keep)
        yield from ((seed, *row) for row in found)


def by_torch(problem: Problem, args: Args):
    """Yields seed, stage, NMI and ACC of the loop."""
    from experiments.benchmarks.ccfc_recipe_torch import Recipe  # PyTorch is an extra

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
    """Prints both sides' scores and how often as large a difference of their means
    comes by chance, over all ways to take the seeds for one side or the other.
    """
    for stage in STAGES:
        for score in ("nmi", "acc"):
            own = rows[rows.stage == stage].groupby("side")[score]
            ours, theirs = (own.get_group(side) for side in ("fcjax", "torch"))
            test = stats.permutation_test(
                (ours, theirs), lambda a, b: a.mean() - b.mean(), n_resamples=10_000
            )
            print(f"{stage} {score}, p = {test.pvalue:.3f}")
            for side, values in (("fcjax", ours), ("torch", theirs)):
                each = values.round(3).tolist()
                print(f"  {side}: mean {values.mean():.3f} of {each}")


def main(args: Args) -> None:
    """Adds what is missing of a side to the file, or compares both."""
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


if __name__ == "__main__":
    with exit_on_error():
        main(tyro.cli(Args, description=__doc__))
