"""Pre-trains CCFC in Flower's simulation, as one side of simulators.py.

Ray starts one worker process per core, and each client uses one thread. The server is
Flower's FedAvg. Batch statistics are averaged, too. Every client begins each round with
a new Adam optimizer, so that no state of the clients is stored or sent.
"""

# pyright: reportMissingImports=false

import os
from pathlib import Path

import numpy as np
from flwr.app import (
    ArrayRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from experiments.benchmarks.speed import pretraining
from experiments.benchmarks.speed.pretraining_torch import trainer_of


class Strategy(FedAvg):
    """FedAvg that reports the end of each round.

    Args:
        report: called with the mean loss after each round.
    """

    def __init__(self, report: pretraining.Report):
        super().__init__(fraction_evaluate=0.0, train_metrics_aggr_fn=mean_loss)
        self.report = report

    def aggregate_train(self, server_round, replies):
        """Returns the averaged network and the mean loss of the clients."""
        replies = list(replies)
        # Flower would average the other replies and continue.
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error.reason}")
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert metrics is not None
        self.report(metrics["loss"])  # pyright: ignore[reportArgumentType]
        return arrays, metrics


def mean_loss(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
    """Returns the mean loss of the clients, without weights."""
    del weighted_by
    losses = [content.metric_records["metrics"]["loss"] for content in contents]
    return MetricRecord({"loss": float(np.mean(losses))})


def client_app(path: Path) -> ClientApp:
    """Makes the program of a client.

    Args:
        path: file of the problem.

    Returns:
        The program.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        trainer, client = trainer_of(path), int(context.node_config["partition-id"])
        trainer.model.load_state_dict(
            message.content.array_records["arrays"].to_torch_state_dict()
        )
        loss, size = trainer.train(client), len(trainer.problem.clients[client])
        content = RecordDict(
            {
                "arrays": ArrayRecord(trainer.model.state_dict()),
                "metrics": MetricRecord({"loss": loss, "num-examples": size}),
            }
        )
        return Message(content=content, reply_to=message)

    return app


def run(path: Path, num_rounds: int, report: pretraining.Report) -> None:
    """Runs the rounds.

    Args:
        path: file of the problem.
        num_rounds: number of rounds.
        report: called with the mean loss after each round.
    """
    trainer = trainer_of(path)
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        del context
        strategy, weights = Strategy(report), ArrayRecord(trainer.model.state_dict())
        strategy.start(grid, weights, num_rounds=num_rounds, timeout=3600)

    run_simulation(
        server,
        client_app(path),
        num_supernodes=len(trainer.problem.clients),
        backend_config={
            "client_resources": {"num_cpus": 1},
            "init_args": {"num_cpus": len(os.sched_getaffinity(0))},
        },
    )


if __name__ == "__main__":
    pretraining.main(run, __doc__)
