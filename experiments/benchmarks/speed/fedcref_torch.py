"""FedCRef's models of clusters as one would write them in PyTorch, on the CPU.

The same models, weights and examples as on the library's side, one model after another,
each over the members of its own cluster alone.
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
    """A model for each cluster of each client, and their round."""

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
        """Takes images [M, N, H, W, C], clusters [N] of every client's examples, and
        the variables [M * K, ...] that the models start from.
        """
        start(num_threads)
        self.batch_size, self.num_epochs = batch_size, num_epochs
        self.clusters = [
            torch.from_numpy(own[clusters == number].reshape(-1, own[0].size))
            for own in images
            for number in range(clusters.max() + 1)
        ]
        self.models = reconstructors(variables)
        self.optimizers = adam(self.models, learning_rate)

    def round(self) -> float:
        """Trains every model some epochs; returns their mean loss."""
        return mean(map(self.steps, self.models, self.optimizers, self.clusters))

    def steps(
        self, model: nn.Module, optimizer: Any, rows: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        """Trains a model some epochs; yields the loss of each step."""
        for _ in range(self.num_epochs):
            for batch in torch.randperm(len(rows)).split(self.batch_size):
                x = rows[batch]
                yield step(optimizer, functional.mse_loss(model(x), x))


class Errors:
    """All models, applied to all examples in a round."""

    def __init__(
        self, images: np.ndarray, variables: Any, *, batch_size: int, num_threads: int
    ):
        """Takes images [M, N, H, W, C] and the models' variables."""
        torch.set_num_threads(num_threads)
        self.batch_size = batch_size
        self.rows = torch.from_numpy(images.reshape(-1, images[0, 0].size))
        self.models = reconstructors(variables)

    @torch.inference_mode()
    def round(self) -> float:
        """Returns the mean over examples and models of the mean squared error."""
        errors = torch.empty(len(self.models), len(self.rows))
        for model, of_model in zip(self.models, errors, strict=True):
            for x, found in zip(
                self.rows.split(self.batch_size),
                of_model.split(self.batch_size),
                strict=True,
            ):
                found.copy_((model(x) - x).square().mean(dim=1))
        return errors.mean().item()


def reconstructors(variables: Any) -> list[nn.Module]:
    """Returns the networks of these variables, each leaf of which is of all."""
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
    """Returns dense layers with ReLU between them and a sigmoid at the end."""
    layers = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.Sigmoid())
