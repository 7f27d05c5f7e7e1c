"""Common code of the PyTorch loops: training steps and copies of JAX weights."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

AXES = {"Conv": (3, 2, 0, 1), "ConvTranspose": (2, 3, 0, 1), "Dense": (1, 0)}
"""PyTorch's order of a kernel's axes, by kind of layer."""


def start(num_threads: int) -> None:
    """Sets the number of threads and the seed."""
    torch.set_num_threads(num_threads)
    torch.manual_seed(0)


def adam(networks: Iterable[nn.Module], learning_rate: float) -> list[Any]:
    """Returns one Adam optimizer per network."""
    return [torch.optim.Adam(x.parameters(), lr=learning_rate) for x in networks]


def step(optimizer: Any, loss: torch.Tensor, *, inputs: Any = None) -> torch.Tensor:
    """Takes one optimizer step and returns the loss.

    Args:
        optimizer: the optimizer.
        loss: the loss.
        inputs: the parameters that get gradients. None means all parameters of the
            loss.

    Returns:
        The loss without its graph.
    """
    optimizer.zero_grad(set_to_none=True)
    loss.backward(inputs=inputs)
    optimizer.step()
    return loss.detach()


def mean(losses: Iterable[Iterable[torch.Tensor]]) -> float:
    """Returns the mean over clients of the mean loss of their steps."""
    each = [torch.stack(list(of_client)).mean() for of_client in losses]
    return torch.stack(each).mean().item()


def load(network: nn.Module, arrays: Iterable[np.ndarray]) -> nn.Module:
    """Copies parameters, in the network's order and axes, into the network.

    Args:
        network: the network.
        arrays: the parameters.

    Returns:
        The network.
    """
    with torch.no_grad():
        for parameter, array in zip(network.parameters(), arrays, strict=True):
            parameter.copy_(torch.from_numpy(np.array(array)))
    return network


def layer_arrays(params: Any, layers: Iterable[str]) -> Iterator[np.ndarray]:
    """Yields the parameters of layers, each with its batch norm if there is one.

    Args:
        params: parameters of the network.
        layers: names of the layers.

    Yields:
        np.ndarray: the parameters in PyTorch's order and axes.
    """
    for i, name in enumerate(layers):
        layer = params[name]
        layer = layer.get("Dense_0", layer)  # fcjax's Dense contains Linen's Dense.
        yield np.transpose(layer["kernel"], AXES[name.partition("_")[0]])
        if "bias" in layer:
            yield layer["bias"]
        if f"BatchNorm_{i}" in params:
            yield from norm_arrays(params[f"BatchNorm_{i}"])


def norm_arrays(layer: Any) -> Iterator[np.ndarray]:
    """Yields the parameters of a batch norm."""
    yield layer["scale"]
    yield layer["bias"]


def features_first(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Reorders the inputs of a dense layer on flattened features.

    PyTorch flattens features before pixels. fcjax flattens pixels before features.

    Args:
        kernel: the kernel [in, out].
        channels: number of features per pixel.

    Returns:
        The kernel with reordered inputs.
    """
    kernel = kernel.reshape(-1, channels, kernel.shape[1])
    return kernel.swapaxes(0, 1).reshape(-1, kernel.shape[2])
