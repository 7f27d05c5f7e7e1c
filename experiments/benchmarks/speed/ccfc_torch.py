"""CCFC's pre-training in PyTorch, on the CPU or on another device of PyTorch.

The clients train one after another, without a data loader. Clients, batches and
threads are as in JAX, and the weights are copies of the JAX weights. On a GPU the
networks are compiled (`torch.compile`), and images have their features last.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from experiments.benchmarks.speed.weights_torch import (
    adam,
    features_first,
    layer_arrays,
    load,
    mean,
    norm_arrays,
    start,
    step,
)


class Loop:
    """Clients that train SimSiam with the model-contrastive term.

    Args:
        views: two views of all images [2, M, N, H, W, C].
        variables: variables of the network that all clients start from.
        backbone: `conv` or `resnet18`.
        batch_size: number of examples per step.
        learning_rate: learning rate of Adam.
        model_weight: weight of the model-contrastive term.
        num_threads: number of CPU threads.
        device: device of PyTorch.
    """

    def __init__(
        self,
        views: np.ndarray,
        variables: Any,
        *,
        backbone: str,
        batch_size: int,
        learning_rate: float,
        model_weight: float,
        num_threads: int,
        device: str = "cpu",
    ):
        start(num_threads)
        self.batch_size, self.model_weight = batch_size, model_weight
        # In memory the features stay last, except on a CPU.
        self.views = torch.from_numpy(views).to(device).moveaxis(-1, 3)
        if device == "cpu":
            self.views = self.views.contiguous()

        def network():
            model = simsiam(variables, backbone)
            if device == "cpu":
                return model
            model = model.to(device, memory_format=torch.channels_last)
            return torch.compile(model)

        self.anchor = network().eval()
        self.models = [network().train() for _ in views[0]]
        self.optimizers = adam(self.models, learning_rate)

    def round(self) -> float:
        """Trains every client one epoch and returns the mean loss."""
        return mean(map(self.steps, range(len(self.models))))

    def steps(self, client: int) -> Iterator[torch.Tensor]:
        """Trains a client one epoch and yields the loss of each step."""
        model, optimizer = self.models[client], self.optimizers[client]
        order = torch.randperm(self.views.shape[2], device=self.views.device)
        for batch in order.split(self.batch_size):
            first, second = self.views[0, client][batch], self.views[1, client][batch]
            loss = sample_contrast(
                model, self.anchor, first, second, model_weight=self.model_weight
            )
            yield step(optimizer, loss)


def sample_contrast(
    model: nn.Module,
    anchor: nn.Module,
    first: torch.Tensor,
    second: torch.Tensor,
    *,
    model_weight: float,
) -> torch.Tensor:
    """Computes the SimSiam loss of two views, with the model-contrastive term.

    Args:
        model: the client's network.
        anchor: the global network, in evaluation mode.
        first: first view of each example.
        second: second view of each example.
        model_weight: weight of the model-contrastive term.

    Returns:
        The loss.
    """
    with torch.no_grad():
        g1, g2 = anchor(first)[1], anchor(second)[1]
    (z1, p1), (z2, p2) = model(first), model(second)
    contrast = (distance(p1, z2) + distance(p2, z1)) / 2
    return contrast + model_weight * (distance(p1, g1) + distance(p2, g2)) / 2


def distance(p, z):
    """Returns the negative mean cosine similarity, without a gradient into `z`."""
    return -functional.cosine_similarity(p, z.detach()).mean()


def simsiam(variables: Any, backbone: str) -> nn.Module:
    """Returns the PyTorch network with the weights of these variables."""
    params = variables["params"]
    is_conv = backbone == "conv"
    encoder = conv_encoder(params) if is_conv else ResNet18()
    dense = [params[f"Dense_{i}"]["Dense_0"]["kernel"].shape for i in range(4)]
    network = SimSiam(encoder, dense)
    arrays = list(conv_arrays(params) if is_conv else resnet_arrays(params))
    arrays += head_arrays(params, params["Conv_2"]["bias"].size if is_conv else None)
    return load(network, arrays)


class SimSiam(nn.Module):
    """Encoder, projector and predictor.

    Args:
        encoder: the encoder.
        dense: input and output size of the four dense layers, in their order.
    """

    def __init__(self, encoder: nn.Module, dense: list[tuple[int, int]]):
        super().__init__()
        hidden, latent, bottleneck, out = (nn.Linear(*shape) for shape in dense)
        self.encoder = encoder
        self.projector = nn.Sequential(
            hidden,
            nn.BatchNorm1d(hidden.out_features),
            nn.ReLU(),
            latent,
            nn.BatchNorm1d(latent.out_features, affine=False),
        )
        self.predictor = nn.Sequential(
            bottleneck, nn.BatchNorm1d(bottleneck.out_features), nn.ReLU(), out
        )

    def forward(self, x):
        """Returns the outputs of projector and predictor."""
        z = self.projector(self.encoder(x))
        return z, self.predictor(z)


def conv_encoder(params: Any) -> nn.Module:
    """Returns CCFC's encoder with the widths of these parameters."""
    layers = []
    for i in range(3):
        inputs, features = params[f"Conv_{i}"]["kernel"].shape[2:]
        layers += [
            nn.Conv2d(inputs, features, 4, stride=2, padding=1),
            nn.BatchNorm2d(features),
            nn.LeakyReLU(0.2),
        ]
    return nn.Sequential(*layers, nn.Flatten())


class ResNet18(nn.Module):
    """ResNet-18 with the stem for small images and torchvision's layers."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        )
        widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
        widths += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.blocks = nn.Sequential(*(Block(*width) for width in widths))

    def forward(self, x):
        """Returns the mean features of each image."""
        return self.blocks(torch.relu(self.stem(x))).mean(dim=(2, 3))


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut.

    Args:
        inputs: number of input features.
        features: number of output features.
        stride: stride of the first convolution.
    """

    def __init__(self, inputs: int, features: int, stride: int):
        super().__init__()

        def conv(inputs, size, stride):
            padding = size // 2
            return nn.Conv2d(inputs, features, size, stride, padding, bias=False)

        self.body = nn.Sequential(
            conv(inputs, 3, stride),
            nn.BatchNorm2d(features),
            nn.ReLU(),
            conv(features, 3, 1),
            nn.BatchNorm2d(features),
        )
        self.shortcut = nn.Identity()
        if inputs != features:
            self.shortcut = nn.Sequential(
                conv(inputs, 1, stride), nn.BatchNorm2d(features)
            )

    def forward(self, x):
        """Returns the sum of body and shortcut, after ReLU."""
        return torch.relu(self.body(x) + self.shortcut(x))


def conv_arrays(params: Any) -> Iterator[np.ndarray]:
    """Returns the parameters of the encoder in PyTorch's order and axes."""
    return layer_arrays(params, [f"Conv_{i}" for i in range(3)])


def resnet_arrays(params: Any) -> Iterator[np.ndarray]:
    """Yields the parameters of ResNet-18 in PyTorch's order and axes."""
    params = params["encoder"]
    layers = [params, *(params[f"BasicBlock_{i}"] for i in range(8))]
    for layer in layers:
        for i, name in enumerate(("Conv_0", "Conv_1", "shortcut")):
            if name in layer:
                yield layer[name]["kernel"].transpose(3, 2, 0, 1)
                yield from norm_arrays(layer[f"BatchNorm_{i}"])


def head_arrays(params: Any, channels: int | None) -> Iterator[np.ndarray]:
    """Yields the parameters of projector and predictor in PyTorch's order and axes.

    Args:
        params: parameters of the whole network.
        channels: number of features per pixel if the encoder flattens them, else None.

    Yields:
        np.ndarray: the parameters.
    """
    # The last two batch norms belong to the heads, the earlier ones to the encoder.
    norms = iter(sorted(k for k in params if k.startswith("BatchNorm"))[-2:])
    for i in range(4):
        layer = params[f"Dense_{i}"]["Dense_0"]
        kernel = layer["kernel"]
        if i == 0 and channels is not None:
            kernel = features_first(kernel, channels)
        yield kernel.T
        yield layer["bias"]
        if i in (0, 2):
            yield from norm_arrays(params[next(norms)])
