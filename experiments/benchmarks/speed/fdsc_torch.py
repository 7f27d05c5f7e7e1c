"""FDSC's local training as one would write it in PyTorch, on the CPU.

The same clients, weights, graphs and steps as on the library's side, one client after
another; the product of coefficients and codes is taken once a step.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

from experiments.benchmarks.speed.weights_torch import adam, load, mean, start, step


class Loop:
    """Clients that train their subspace networks, and their round."""

    def __init__(
        self,
        images: np.ndarray,
        adjacency: np.ndarray,
        parts: Any,
        *,
        penalty_weight: float,
        expression_weight: float,
        locality_weight: float,
        learning_rate: float,
        num_steps: int,
        num_threads: int,
    ):
        """Takes images [M, N, H, W, C], graphs [M, N, N] and the parts that all clients
        start from; without coefficients they train the auto-encoder alone.
        """
        start(num_threads)
        self.images = torch.from_numpy(np.moveaxis(images, -1, 2).copy())
        self.adjacency = torch.from_numpy(adjacency.astype(np.float32))
        self.penalty_weight = penalty_weight
        self.expression_weight = expression_weight
        self.locality_weight = locality_weight
        self.num_steps = num_steps
        self.diagonal = torch.eye(images.shape[1], dtype=torch.bool)
        self.models = [network(parts, images.shape[2:]) for _ in images]
        self.optimizers = adam(self.models, learning_rate)

    def round(self) -> float:
        """Every client takes its steps; returns their mean loss, of each pixel."""
        clients = self.models, self.optimizers, self.images, self.adjacency
        return mean(map(self.steps, *clients))

    def steps(self, model, optimizer, x, adjacency) -> Iterator[torch.Tensor]:
        """Trains a client; yields the loss of each step."""
        for _ in range(self.num_steps):
            if model.coefficients is None:
                loss = squared(model.decode(model.encoder(x)) - x)
            else:
                loss = self.joint_loss(model, x, adjacency)
            yield step(optimizer, loss) / x.numel()

    def joint_loss(self, model, x, adjacency):
        z = model.encoder(x)
        coefficients = model.coefficients.masked_fill(self.diagonal, 0)
        expressed = coefficients @ z
        return (
            squared(model.decode(expressed) - x)
            + self.penalty_weight * squared(coefficients)
            + self.expression_weight * squared(z - expressed)
            + self.locality_weight * squared(adjacency - coefficients)
        )


def squared(x):
    return x.square().sum()


class SubspaceNetwork(nn.Module):
    """A convolutional auto-encoder, and coefficients where the parameters have some."""

    def __init__(self, params: Any, shape: tuple[int, ...]):
        super().__init__()
        encoder, decoder = [], []
        for layer in params["encoder"].values():
            size, _, inputs, features = layer["kernel"].shape
            conv = nn.Conv2d(inputs, features, size, stride=2, padding=size // 2)
            encoder += [conv, nn.ReLU()]
        for layer in params["decoder"].values():
            _, _, inputs, features = layer["kernel"].shape
            conv = nn.ConvTranspose2d(inputs, features, 4, stride=2, padding=1)
            decoder += [conv, nn.ReLU()]
        self.encoder = nn.Sequential(*encoder, nn.Flatten())
        self.decoder = nn.Sequential(*decoder)
        self.height, self.width = shape[:2]
        step = 2 ** len(params["encoder"])
        self.code_shape = (-1, -(-self.height // step), -(-self.width // step))
        self.coefficients = None
        if "coefficients" in params:
            self.coefficients = nn.Parameter(torch.from_numpy(params["coefficients"]))

    def decode(self, z):
        decoded = self.decoder(z.unflatten(1, self.code_shape))
        return decoded[..., : self.height, : self.width]


def network(parts: Any, shape: tuple[int, ...]) -> SubspaceNetwork:
    """Returns the network of these parts, for images [H, W, C]."""
    params = jax.tree.map(np.array, parts)
    params |= {name: params[name]["params"] for name in ("encoder", "decoder")}
    model = SubspaceNetwork(params, shape)
    load(nn.Sequential(model.encoder, model.decoder), layer_arrays(params))
    return model


def layer_arrays(params: Any) -> Iterator[np.ndarray]:
    """The layers' parameters, in the order and the axes of PyTorch's."""
    for part, axes in (("encoder", (3, 2, 0, 1)), ("decoder", (2, 3, 0, 1))):
        for layer in params[part].values():
            yield layer["kernel"].transpose(axes)
            yield layer["bias"]
