"""SDA-FDC's training in PyTorch, on the CPU: GANs and DCN.

It is plain PyTorch: the clients train one after another, without a data loader.
Examples, batch sizes, losses and threads are as in JAX, and the weights are copies of
the JAX weights.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from experiments.benchmarks.speed.weights_torch import (
    layer_arrays,
    load,
    mean,
    start,
    step,
)


class GanLoop:
    """Clients that train one GAN each.

    Args:
        examples: examples of all clients in [0, 1], [M, N, H, W, C] or [M, N, F].
        variables: variables of generator and discriminator that all clients start from.
        batch_size: number of examples per step.
        generator_learning_rate: learning rate of the generator.
        discriminator_learning_rate: learning rate of the discriminator.
        betas: betas of Adam.
        num_categories: number of categories.
        noise_size: dimension of the noise L.
        num_threads: number of CPU threads.
        noise: function (client, batch size B) -> noise [B, L]. None draws normal noise.
    """

    def __init__(
        self,
        examples: np.ndarray,
        variables: Any,
        *,
        batch_size: int,
        generator_learning_rate: float,
        discriminator_learning_rate: float,
        betas: tuple[float, float],
        num_categories: int,
        noise_size: int,
        num_threads: int,
        noise: Callable[[int, int], Any] | None = None,
    ):
        start(num_threads)
        self.batch_size, self.betas = batch_size, betas
        self.learning_rates = generator_learning_rate, discriminator_learning_rate
        self.num_categories = num_categories
        self.noise = noise or (lambda client, size: torch.randn(size, noise_size))
        shape = examples.shape[2:]
        if len(shape) == 3:
            examples = np.moveaxis(examples, -1, 2).copy()
        self.examples = torch.from_numpy(examples)
        generator, discriminator = (
            jax.tree.map(np.asarray, part["params"]) for part in variables
        )
        self.gans = [
            (make_generator(generator, shape), make_discriminator(discriminator))
            for _ in examples
        ]

    def round(self) -> float:
        """Trains every client one epoch and returns the mean loss of both networks.

        As in the method, both optimizers are new in every round.

        Returns:
            The mean loss.
        """
        return mean(map(self.steps, range(len(self.gans))))

    def steps(self, client: int) -> Iterator[torch.Tensor]:
        """Trains a client one epoch and yields both networks' losses of each step."""
        generator, discriminator = self.gans[client]
        generator_optimizer, discriminator_optimizer = (
            torch.optim.Adam(network.parameters(), lr=rate, betas=self.betas)
            for network, rate in zip(
                self.gans[client], self.learning_rates, strict=True
            )
        )
        for batch in torch.randperm(self.examples.shape[1]).split(self.batch_size):
            x = self.examples[client][batch]
            inputs = [self.categories(len(x)), self.noise(client, len(x))]
            fake = generator(torch.cat(inputs, dim=1))

            on_real, on_fake = discriminator(x), discriminator(fake.detach())
            discriminator_loss = -functional.logsigmoid(on_real).mean()
            discriminator_loss = (
                discriminator_loss - functional.logsigmoid(-on_fake).mean()
            )
            yield step(discriminator_optimizer, discriminator_loss)

            generator_loss = -functional.logsigmoid(discriminator(fake)).mean()
            # The discriminator does not learn from this loss.
            yield step(
                generator_optimizer, generator_loss, inputs=list(generator.parameters())
            )

    def categories(self, count):
        """Returns one-hot categories in blocks of equal size."""
        block = max(1, round(count / self.num_categories))
        chosen = (torch.arange(count) // block).clamp(max=self.num_categories - 1)
        return functional.one_hot(chosen, self.num_categories).float()


class DcnLoop:
    """An auto-encoder of vectors, with a clustering loss on its codes.

    Args:
        x: vectors [N, F] in [0, 1].
        state: state in JAX that training starts from.
        batch_size: number of examples per step.
        learning_rate: learning rate of Adam.
        cluster_weight: weight of the clustering loss. None trains only the
            auto-encoder.
        num_threads: number of CPU threads.
    """

    def __init__(
        self,
        x: np.ndarray,
        state: Any,
        *,
        batch_size: int,
        learning_rate: float,
        cluster_weight: float | None,
        num_threads: int,
    ):
        start(num_threads)
        self.batch_size, self.cluster_weight = batch_size, cluster_weight
        self.x = torch.from_numpy(x)
        params = jax.tree.map(np.asarray, state.variables["params"])
        self.encoder, self.decoder = (
            dense_layers(params[name], nn.ReLU()) for name in ("encoder", "decoder")
        )
        self.optimizer = torch.optim.Adam(
            [*self.encoder.parameters(), *self.decoder.parameters()], lr=learning_rate
        )
        if cluster_weight is not None:
            self.centroids, self.counts, self.assignments = (
                torch.from_numpy(np.array(part)) for part in state[2:5]
            )
            self.assignments = self.assignments.reshape(-1).long()

    def round(self) -> float:
        """Trains one epoch and returns the mean loss."""
        return mean([self.steps()])

    def steps(self) -> Iterator[torch.Tensor]:
        """Trains one epoch and yields the loss of each step."""
        for batch in torch.randperm(len(self.x)).split(self.batch_size):
            x = self.x[batch]
            z = self.encoder(x)
            loss = (self.decoder(z) - x).square().sum(dim=1).mean()
            if self.cluster_weight is not None:
                targets = self.centroids[self.assignments[batch]]
                distance = (z - targets).square().sum(dim=1).mean()
                loss = loss + self.cluster_weight / 2 * distance
            loss = step(self.optimizer, loss)
            if self.cluster_weight is not None:
                self.cluster(batch, x)
            yield loss

    @torch.no_grad()
    def cluster(self, batch, x):
        """Assigns the examples of a batch to clusters and moves the centroids."""
        z = self.encoder(x)
        nearest = torch.cdist(z, self.centroids).argmin(dim=1)
        steps = z - self.centroids[nearest]
        sums = torch.zeros_like(self.centroids).index_add_(0, nearest, steps)
        self.counts += torch.bincount(nearest, minlength=len(self.counts))
        self.centroids += sums / self.counts[:, None]
        self.assignments[batch] = nearest


def make_generator(params: Any, shape: tuple[int, ...]) -> nn.Module:
    """Returns the generator of examples [H, W, C] or [F]."""
    if len(shape) == 1:
        layers = dense_layers(params, nn.LeakyReLU(0.2))
        return nn.Sequential(layers, nn.Sigmoid())
    names = sorted(name for name in params if name.startswith("ConvTranspose"))
    kernels = [params[name]["kernel"].shape[2:] for name in names]
    layers = []
    for name in ("Dense_0", "Dense_1"):
        inputs, features = params[name]["kernel"].shape
        layers += [nn.Linear(inputs, features, bias=False)]
        layers += [nn.BatchNorm1d(features), nn.ReLU()]
    height, width = (side // 2 ** len(names) for side in shape[:2])
    layers += [nn.Unflatten(1, (kernels[0][0], height, width))]
    for inputs, features in kernels[:-1]:
        layers += [
            nn.ConvTranspose2d(inputs, features, 4, 2, padding=1, bias=False),
            nn.BatchNorm2d(features),
            nn.ReLU(),
        ]
    inputs, colours = kernels[-1]
    layers += [nn.ConvTranspose2d(inputs, colours, 4, 2, padding=1), nn.Sigmoid()]
    arrays = layer_arrays(params, ["Dense_0", "Dense_1", *names])
    return load(nn.Sequential(*layers), arrays)


def make_discriminator(params: Any) -> nn.Module:
    """Returns the discriminator of examples, with logits [B]."""
    names = sorted(name for name in params if name.startswith("Conv"))
    if not names:
        return nn.Sequential(dense_layers(params, nn.LeakyReLU(0.2)), nn.Flatten(0))
    layers = []
    for name in names:
        inputs, features = params[name]["kernel"].shape[2:]
        layers += [
            nn.Conv2d(inputs, features, 4, 2, padding=1, bias=False),
            nn.BatchNorm2d(features),
            nn.LeakyReLU(0.2),
        ]
    first, second = (params[f"Dense_{i}"]["kernel"].shape for i in range(2))
    layers += [
        nn.Flatten(),
        nn.Linear(*first, bias=False),
        nn.BatchNorm1d(first[1]),
        nn.LeakyReLU(0.2),
        nn.Linear(*second),
        nn.Flatten(0),
    ]
    arrays = layer_arrays(params, [*names, "Dense_0", "Dense_1"])
    return load(nn.Sequential(*layers), arrays)


def dense_layers(params: Any, activation: nn.Module) -> nn.Module:
    """Returns dense layers with an activation, and batch norm if `params` has it."""
    names = sorted(name for name in params if name.startswith("Dense"))
    layers = []
    for i, name in enumerate(names):
        layer = params[name].get("Dense_0", params[name])
        sizes = layer["kernel"].shape
        layers += [nn.Linear(*sizes, bias="bias" in layer)]
        if f"BatchNorm_{i}" in params:
            layers += [nn.BatchNorm1d(sizes[1])]
        if name != names[-1]:
            layers += [activation]
    return load(nn.Sequential(*layers), layer_arrays(params, names))
