"""Pre-trains CCFC in pfl-research, as one side of simulators.py.

    torchrun --standalone --nproc-per-node 2 ccfc_in_pfl.py PROBLEM ROUNDS.csv 6

Each process trains every second client with one thread. The server is pfl's
FederatedAveraging, with weights by the number of images. pfl averages trained
parameters only, so batch statistics are added to these parameters. Every client begins
each round with a new Adam optimizer, as usual in pfl.
"""

# pyright: reportMissingImports=false

from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from experiments.benchmarks.speed import pretraining
from experiments.benchmarks.speed.pretraining_torch import Trainer, trainer_of


class Module(torch.nn.Module):
    """The network with the loss function that pfl expects.

    Args:
        trainer: network, data and loss.
    """

    def __init__(self, trainer: Trainer):
        super().__init__()
        self.network, self.trainer, self.losses = trainer.model, trainer, []

    def loss(self, images):
        """Returns the loss of a batch, and notes it for the mean loss."""
        value = self.trainer.loss(images)
        self.losses.append(value.detach())
        return value

    def metrics(self, images):
        """Returns a metric that costs nothing; pfl needs at least one."""
        return {"images": Weighted(len(images), 1)}


class Model(PyTorchModel):
    """A model that sends its batch statistics together with its parameters.

    Args:
        module: the network.
    """

    def __init__(self, module: Module):
        statistics = {k: x for k, x in module.named_buffers() if x.is_floating_point()}
        tensors = [*module.parameters(), *statistics.values()]
        average = torch.optim.SGD(tensors, lr=1.0)
        super().__init__(module, torch.optim.Adam, average)
        self._variable_map |= statistics


class Algorithm(FederatedAveraging):
    """FedAvg whose clients stay close to the global network."""

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        """Trains a client, and returns its update and its mean loss."""
        module = model.pytorch_model
        module.trainer.anchor.load_state_dict(module.network.state_dict())
        module.losses.clear()
        update, _ = super().train_one_user(
            initial_model_state, model, user_dataset, central_context
        )
        loss = torch.stack(module.losses).mean().item()
        return update, Metrics([("loss", Weighted.from_unweighted(loss))])


class Reports(TrainingProcessCallback):
    """Reports the end of each round, in the first process.

    Args:
        report: called with the mean loss.
    """

    def __init__(self, report: pretraining.Report):
        self.report = report

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Reports the mean loss, and lets the training continue."""
        if pytorch_ops.distributed.global_rank == 0:
            losses = [x.overall_value for k, x in aggregate_metrics if str(k) == "loss"]
            self.report(losses[0])
        return False, Metrics()


def run(path: Path, num_rounds: int, report: pretraining.Report) -> None:
    """Runs the rounds.

    Args:
        path: file of the problem.
        num_rounds: number of rounds.
        report: called with the mean loss after each round.

    Raises:
        ValueError: the number of clients is not divisible by the number of processes.
    """
    trainer = trainer_of(path)
    num_clients = len(trainer.problem.clients)
    if num_clients % pytorch_ops.distributed.world_size:
        raise ValueError(
            f"{num_clients} clients are not divisible by "
            f"{pytorch_ops.distributed.world_size} processes"
        )
    np.random.seed(0)  # noqa: NPY002  All processes must draw the same clients.
    clients = FederatedDataset(
        lambda client: PyTorchTensorDataset((trainer.shuffled(client),), client),
        get_user_sampler("minimize_reuse", range(num_clients)),
    )
    Algorithm().run(
        NNAlgorithmParams(
            central_num_iterations=num_rounds,
            evaluation_frequency=num_rounds,
            train_cohort_size=num_clients,
            val_cohort_size=None,
        ),
        SimulatedBackend(clients, clients, [WeightByDatapoints()]),
        Model(Module(trainer)),
        NNTrainHyperParams(
            local_batch_size=trainer.problem.batch_size,
            local_num_epochs=1,
            local_learning_rate=trainer.problem.learning_rate,
        ),
        callbacks=[Reports(report)],
    )


if __name__ == "__main__":
    pretraining.main(run, __doc__)
