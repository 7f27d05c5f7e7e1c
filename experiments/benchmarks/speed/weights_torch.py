"""What all PyTorch loops share: steps of training, and the library's weights."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]

AXES = {"Conv": (3, 2, 0, 1), "ConvTranspose": (2, 3, 0, 1), "Dense": (1, 0)}
"""By kind of layer, where PyTorch has the axes of a kernel."""


def start(num_threads: int) -> None:
    """Takes so many threads, and draws the same numbers in every process."""
    torch.set_num_threads(num_threads)
    torch.manual_seed(0)


def adam(networks: Iterable[nn.Module], learning_rate: float) -> list[Any]:
    """Returns an Adam for each network."""
    return [torch.optim.Adam(x.parameters(), lr=learning_rate) for x in networks]


def step(optimizer: Any, loss: torch.Tensor, *, inputs: Any = None) -> torch.Tensor:
    """Takes a step down, by the gradients of `inputs` or of all that the loss is made
    of, and returns the loss.
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
    """Returns the network with these as its parameters, in its own order and axes."""
    with torch.no_grad():
        for parameter, array in zip(network.parameters(), arrays, strict=True):
            parameter.copy_(torch.from_numpy(np.array(array)))
    return network


def layer_arrays(params: Any, layers: Iterable[str]) -> Iterator[np.ndarray]:
    """Yields the parameters of these layers, each followed by those of the batch norm
    of its number, if there is one.
    """
    for i, name in enumerate(layers):
        layer = params[name]
        layer = layer.get("Dense_0", layer)  # the library's own Dense holds Linen's
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
    """Returns a dense kernel [in, out] on flattened features: PyTorch flattens them
    before the pixels, the library behind them.
    """
    kernel = kernel.reshape(-1, channels, kernel.shape[1])
    return kernel.swapaxes(0, 1).reshape(-1, kernel.shape[2])
