"""FedMCC's local training in PyTorch, on the CPU, in both stages.

It is plain PyTorch: the clients train one after another, without a data loader.
Clients, batches, losses and threads are as in JAX, and the weights are copies of the
JAX weights.
"""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from experiments.benchmarks.speed.ccfc_torch import conv_arrays, conv_encoder
from experiments.benchmarks.speed.weights_torch import (
    adam,
    features_first,
    layer_arrays,
    load,
    mean,
    start,
    step,
)


class Loop:
    """Clients that train a network against a momentum target network.

    In the first stage encoder and projector are trained. In the second stage the
    cluster projector is trained on the features of the frozen encoder.

    Args:
        views: two views of all images [2, M, N, H, W, C].
        trained: variables that all clients start from.
        frozen: variables of the frozen encoder. Empty in the first stage.
        batch_size: number of examples per step.
        learning_rate: learning rate of Adam.
        momentum: momentum of the target network.
        temperature: temperature of the contrastive loss.
        num_threads: number of CPU threads.
    """

    def __init__(
        self,
        views: np.ndarray,
        trained: Any,
        frozen: Any,
        *,
        batch_size: int,
        learning_rate: float,
        momentum: float,
        temperature: float,
        num_threads: int,
    ):
        start(num_threads)
        self.batch_size, self.learning_rate = batch_size, learning_rate
        self.momentum, self.temperature = momentum, temperature
        self.views = torch.from_numpy(np.moveaxis(views, -1, 3).copy())
        params = {**trained["params"], **frozen.get("params", {})}
        params = jax.tree.map(np.asarray, params)
        make, self.loss = encoder_projector, self.instance_loss
        if frozen:
            make, self.loss = cluster_projector, self.cluster_loss
            encoder = params["encoder"]
            self.encoder = load(conv_encoder(encoder), conv_arrays(encoder)).eval()
        self.models = [(make(params), make(params)) for _ in views[0]]

    def round(self) -> float:
        """Trains every client one epoch and returns the mean loss."""
        return mean(map(self.steps, range(len(self.models))))

    def steps(self, client: int) -> Iterator[torch.Tensor]:
        """Trains a client one epoch and yields the loss of each step."""
        online, target = self.models[client]
        (optimizer,) = adam([online], self.learning_rate)
        for batch in torch.randperm(self.views.shape[2]).split(self.batch_size):
            views = self.views[0, client][batch], self.views[1, client][batch]
            loss = step(optimizer, self.loss(online, target, views))
            follow(target, online, self.momentum)
            yield loss

    def instance_loss(self, online, target, views):
        """Returns the instance-level contrastive loss."""
        z_a, z_b = (online(x) for x in views)
        with torch.no_grad():
            t_a, t_b = (target(x) for x in views)
        return self.nt_xent(z_a, t_b) / 2 + self.nt_xent(t_a, z_b) / 2

    def cluster_loss(self, online, target, views):
        """Returns the cluster-level contrastive loss less the entropy of clusters."""
        with torch.no_grad():
            h = [self.encoder(x) for x in views]
            t_a, t_b = (target(x) for x in h)
        c_a, c_b = (online(x) for x in h)
        contrast = self.nt_xent(c_a.T, t_b.T) / 2 + self.nt_xent(t_a.T, c_b.T) / 2
        return contrast - sum(entropy(c) for c in (c_a, c_b, t_a, t_b))

    def nt_xent(self, a, b):
        """Returns the NT-Xent loss of paired rows."""
        z = functional.normalize(torch.cat([a, b]))
        similarity = (z @ z.T / self.temperature).fill_diagonal_(-torch.inf)
        positives = torch.arange(len(z)).roll(len(a))
        return functional.cross_entropy(similarity, positives)


def entropy(c):
    """Returns the entropy of the mean assignment."""
    shares = c.mean(dim=0)
    return -(shares * shares.log()).sum()


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, momentum: float):
    """Moves the parameters of a target network towards those of the online network."""
    for old, new in zip(target.parameters(), online.parameters(), strict=True):
        old.lerp_(new, 1 - momentum)


def encoder_projector(params: Any) -> nn.Module:
    """Returns the network of the first stage."""
    network = nn.Sequential(conv_encoder(params["encoder"]), *head(params["projector"]))
    arrays = [
        *conv_arrays(params["encoder"]),
        *head_arrays(params["projector"], params["encoder"]),
    ]
    return load(network, arrays)


def cluster_projector(params: Any) -> nn.Module:
    """Returns the network of the second stage, which takes the encoder's features."""
    layers = params["cluster_projector"]
    network = nn.Sequential(*head(layers), nn.Softmax(dim=1))
    return load(network, head_arrays(layers, params["encoder"]))


def head(params: Any) -> list[nn.Module]:
    """Returns the layers of a projector."""
    first, second = (params[f"Dense_{i}"]["Dense_0"]["kernel"].shape for i in range(2))
    return [nn.Linear(*first), nn.ReLU(), nn.Linear(*second)]


def head_arrays(params: Any, encoder: Any) -> Iterator[np.ndarray]:
    """Yields the parameters of a projector in PyTorch's order and axes."""
    first, *later = layer_arrays(params, ["Dense_0", "Dense_1"])
    yield features_first(first.T, encoder["Conv_2"]["bias"].size).T
    yield from later
