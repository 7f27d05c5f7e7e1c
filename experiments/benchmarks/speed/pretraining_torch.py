"""A client of CCFC's pre-training in PyTorch, for the simulators of other projects."""

# pyright: reportMissingImports=false

import math
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from experiments.benchmarks.speed import pretraining
from experiments.benchmarks.speed.ccfc_torch import sample_contrast, simsiam
from experiments.benchmarks.speed.weights_torch import adam, start, step


class Trainer:
    """Trains clients one after another, with one network in memory.

    Args:
        problem: data, initial network and settings.
    """

    def __init__(self, problem: pretraining.Problem):
        start(num_threads=1)
        # Processes of one simulator must draw different views.
        torch.seed()
        self.problem = problem
        self.pixels = torch.from_numpy(
            np.moveaxis(problem.images, -1, 1) / np.float32(255)
        )
        self.model = simsiam(problem.variables, "conv").train()
        self.anchor = simsiam(problem.variables, "conv").eval()

    def shuffled(self, client: int) -> torch.Tensor:
        """Returns the images [N, 1, H, W] of a client in random order."""
        rows = torch.from_numpy(self.problem.clients[client])
        return self.pixels[rows[torch.randperm(len(rows))]]

    def loss(self, images: torch.Tensor) -> torch.Tensor:
        """Returns the loss of a batch, on two new views of each image."""
        views = (images, images)
        if self.problem.is_augmented:
            views = (random_view(images), random_view(images))
        return sample_contrast(
            self.model, self.anchor, *views, model_weight=self.problem.model_weight
        )

    def train(self, client: int) -> float:
        """Trains a client one epoch with a new Adam optimizer.

        Args:
            client: number of the client.

        Returns:
            The mean loss of the steps.
        """
        self.anchor.load_state_dict(self.model.state_dict())
        (optimizer,) = adam([self.model], self.problem.learning_rate)
        batches = self.shuffled(client).split(self.problem.batch_size)
        losses = [step(optimizer, self.loss(batch)) for batch in batches]
        return torch.stack(losses).mean().item()


@cache
def trainer_of(path: Path) -> Trainer:
    """Returns the trainer of this process for a file of a problem."""
    return Trainer(pretraining.read(path))


def random_view(images: torch.Tensor) -> torch.Tensor:
    """Returns a random crop, rotated, and blurred with probability 0.5.

    The ranges are those of `fcjax.data.augment.ccfc_grey`. Crop and rotation are one
    bilinear interpolation, and all images of the batch are transformed at once.

    Args:
        images: images [N, 1, S, S].

    Returns:
        One view of each image.
    """
    count, side = len(images), images.shape[-1]

    def uniform(low: float, high: float, tries: int = 1) -> torch.Tensor:
        return torch.empty(tries, count).uniform_(low, high).squeeze(0)

    # As in torchvision, the first of ten sizes in pixels that fits is taken.
    area = uniform(0.5, 1, tries=10)
    aspect = uniform(math.log(3 / 4), math.log(4 / 3), tries=10).exp()
    sizes = torch.stack([area * aspect, area / aspect]).sqrt()
    sizes = (side * sizes).round() / side
    first = (sizes <= 1).all(dim=0).float().argmax(dim=0)
    width, height = sizes[:, first, torch.arange(count)].clamp(max=1)
    x, y = (1 - width) * uniform(-1, 1), (1 - height) * uniform(-1, 1)
    angle = uniform(-math.pi / 18, math.pi / 18)
    cos, sin = angle.cos(), angle.sin()
    rows = [width * cos, -width * sin, x, height * sin, height * cos, y]
    maps = torch.stack(rows, dim=-1).reshape(count, 2, 3)
    grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
    crops = functional.grid_sample(images, grid, align_corners=False)
    pixels = torch.arange(side)
    distances = (pixels[:, None] - pixels).square() / 2
    sigma = uniform(0.1, 2)[:, None, None, None]
    kernels = torch.softmax(-distances / sigma.square(), dim=-1)
    blurred = kernels @ crops @ kernels.mT
    is_blurred = uniform(0, 1)[:, None, None, None] < 0.5
    return torch.where(is_blurred, blurred, crops)
