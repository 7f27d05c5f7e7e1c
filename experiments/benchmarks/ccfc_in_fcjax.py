"""Pre-trains CCFC in fcjax, as one side of simulators.py.

The clients are spread over all cores. Up to 100 clients keep their Adam optimizers
between the rounds, as in the recipe of CCFC's authors. More clients start new ones, as
in a run.
"""

from pathlib import Path

import jax
import numpy as np
import optax

from experiments.benchmarks.speed import pretraining
from fcjax import data, engine, nn
from fcjax.algorithms.ccfc import ccfc
from fcjax.federated.server import FEW
from fcjax.methods import CCFC
from fcjax.parallel.exact import take_cores
from fcjax.types import Grid


def run(path: Path, num_rounds: int, report: pretraining.Report) -> None:
    """Runs the rounds.

    Args:
        path: file of the problem.
        num_rounds: number of rounds.
        report: called with the mean loss after each round.
    """
    problem = pretraining.read(path)
    settings = CCFC(
        pretrain_rounds=num_rounds,
        batch_size=problem.batch_size,
        model_weight=problem.model_weight,
        cluster_by="k-means",
        own_init=False,
        optimizer_state="kept" if len(problem.clients) <= FEW else "reset",
    ).plain()
    network = nn.simsiam(nn.conv_encoder())._replace(
        init=lambda key, x: problem.variables
    )
    method = ccfc(
        settings,
        network,
        optax.adam(problem.learning_rate),
        data.ccfc_grey if problem.is_augmented else lambda key, x: x,
        num_clusters=10,
    )
    method = method._replace(stages=method.stages[:1])
    partition = data.Partition(problem.clients, left_out=np.array([], int))
    present = [np.ones((1, len(problem.clients)), bool)]
    federation = data.federate(problem.images, [partition], present, num_clusters=10)
    grid = Grid({}, jax.random.split(jax.random.key(0), 1), federation)
    engine.run(
        lambda _: method,
        grid,
        on_round=lambda each: report(float(each.metrics["loss"][0])),
    )


if __name__ == "__main__":
    take_cores()
    pretraining.main(run, __doc__)
