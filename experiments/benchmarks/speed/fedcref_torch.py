"""FedCRef's models of clusters in PyTorch, on the CPU.

Models, weights and examples are as in JAX. The models train one after another, each on
the examples of its cluster only.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from experiments.benchmarks.speed.weights_torch import adam, load, mean, start, step


class Training:
    """One model per cluster of each client.

    Args:
        images: images of all clients [M, N, H, W, C].
        clusters: clusters [N] of every client's examples.
        variables: variables [M * K, ...] that the models start from.
        batch_size: number of examples per step.
        num_epochs: number of epochs per round.
        learning_rate: learning rate of Adam.
        num_threads: number of CPU threads.
    """

    def __init__(
        self,
        images: np.ndarray,
        clusters: np.ndarray,
        variables: Any,
        *,
        batch_size: int,
        num_epochs: int,
        learning_rate: float,
        num_threads: int,
    ):
        start(num_threads)
        self.batch_size, self.num_epochs = batch_size, num_epochs
        self.clusters = [
            torch.from_numpy(
                images_of_client[clusters == number].reshape(
                    -1, images_of_client[0].size
                )
            )
            for images_of_client in images
            for number in range(clusters.max() + 1)
        ]
        self.models = reconstructors(variables)
        self.optimizers = adam(self.models, learning_rate)

    def round(self) -> float:
        """Trains every model for its epochs and returns the mean loss."""
        return mean(map(self.steps, self.models, self.optimizers, self.clusters))

    def steps(
        self, model: nn.Module, optimizer: Any, rows: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        """Trains a model for its epochs.

        Args:
            model: the model.
            optimizer: its optimizer.
            rows: the examples of its cluster.

        Yields:
            torch.Tensor: the loss of each step.
        """
        for _ in range(self.num_epochs):
            for batch in torch.randperm(len(rows)).split(self.batch_size):
                x = rows[batch]
                yield step(optimizer, functional.mse_loss(model(x), x))


class Errors:
    """All models, applied to all examples in a round.

    Args:
        images: images of all clients [M, N, H, W, C].
        variables: variables of the models.
        batch_size: number of examples per call of a model.
        num_threads: number of CPU threads.
    """

    def __init__(
        self, images: np.ndarray, variables: Any, *, batch_size: int, num_threads: int
    ):
        torch.set_num_threads(num_threads)
        self.batch_size = batch_size
        self.rows = torch.from_numpy(images.reshape(-1, images[0, 0].size))
        self.models = reconstructors(variables)

    @torch.inference_mode()
    def round(self) -> float:
        """Returns the mean squared error over examples and models."""
        errors = torch.empty(len(self.models), len(self.rows))
        for model, errors_of_model in zip(self.models, errors, strict=True):
            for x, errors_of_batch in zip(
                self.rows.split(self.batch_size),
                errors_of_model.split(self.batch_size),
                strict=True,
            ):
                errors_of_batch.copy_((model(x) - x).square().mean(dim=1))
        return errors.mean().item()


def reconstructors(variables: Any) -> list[nn.Module]:
    """Returns the PyTorch networks of stacked variables."""
    layers = jax.tree.map(np.array, variables["params"])
    layers = [layers[f"Dense_{i}"] for i in range(len(layers))]
    widths = [layer["kernel"].shape[1] for layer in layers]
    widths += [layers[-1]["kernel"].shape[2]]
    models = []
    for i in range(len(layers[0]["kernel"])):
        model = reconstructor(widths)
        arrays = [a[i] for layer in layers for a in (layer["kernel"], layer["bias"])]
        models.append(load(model, [array.T for array in arrays]))
    return models


def reconstructor(widths: list[int]) -> nn.Sequential:
    """Returns dense layers with ReLU between the layers and a sigmoid at the end."""
    layers = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.Sigmoid())
