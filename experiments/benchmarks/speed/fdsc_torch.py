"""FDSC's local training in PyTorch, on the CPU.

Clients, weights, graphs and steps are as in JAX. The clients train one after another.
The product of coefficients and codes is computed once per step.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

from experiments.benchmarks.speed.weights_torch import adam, load, mean, start, step


class Loop:
    """Clients that train their subspace networks.

    Args:
        images: images of all clients [M, N, H, W, C].
        adjacency: neighbour graphs [M, N, N].
        parts: parameters that all clients start from. Without coefficients, only the
            auto-encoder is trained.
        penalty_weight: weight of the squared norm of the coefficients.
        expression_weight: weight of the self-expression error.
        locality_weight: weight of the distance between coefficients and graph.
        learning_rate: learning rate of Adam.
        num_steps: number of steps per round.
        num_threads: number of CPU threads.
    """

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
        """Trains every client for its steps and returns the mean loss per pixel."""
        clients = self.models, self.optimizers, self.images, self.adjacency
        return mean(map(self.steps, *clients))

    def steps(self, model, optimizer, x, adjacency) -> Iterator[torch.Tensor]:
        """Trains a client and yields the loss of each step."""
        for _ in range(self.num_steps):
            if model.coefficients is None:
                loss = squared(model.decode(model.encoder(x)) - x)
            else:
                loss = self.joint_loss(model, x, adjacency)
            yield step(optimizer, loss) / x.numel()

    def joint_loss(self, model, x, adjacency):
        """Returns the loss of auto-encoder and coefficients."""
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
    """Returns the sum of squares."""
    return x.square().sum()


class SubspaceNetwork(nn.Module):
    """A convolutional auto-encoder, with coefficients if the parameters have them.

    Args:
        params: the parameters in JAX.
        shape: shape of an image [H, W, C].
    """

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
        """Returns the images of codes, cut to the right size."""
        decoded = self.decoder(z.unflatten(1, self.code_shape))
        return decoded[..., : self.height, : self.width]


def network(parts: Any, shape: tuple[int, ...]) -> SubspaceNetwork:
    """Returns the PyTorch network with these parameters, for images [H, W, C]."""
    params = jax.tree.map(np.array, parts)
    params |= {name: params[name]["params"] for name in ("encoder", "decoder")}
    model = SubspaceNetwork(params, shape)
    load(nn.Sequential(model.encoder, model.decoder), layer_arrays(params))
    return model


def layer_arrays(params: Any) -> Iterator[np.ndarray]:
    """Yields the parameters of the layers in PyTorch's order and axes."""
    for part, axes in (("encoder", (3, 2, 0, 1)), ("decoder", (2, 3, 0, 1))):
        for layer in params[part].values():
            yield layer["kernel"].transpose(axes)
            yield layer["bias"]
