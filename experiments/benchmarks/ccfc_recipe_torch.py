"""The recipe of CCFC's authors as a plain PyTorch loop, one client after another.

It follows the public code of the authors (github.com/Jarvisyan/CCFC-pytorch). Clients
start with different random networks, PIL makes the views, and scikit-learn runs k-means
with ten seedings. Each client has an Adam optimizer, which is new in the second stage.
"""

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from PIL import Image, ImageFilter
from sklearn.cluster import KMeans
from torch.nn.functional import normalize  # pyright: ignore[reportMissingImports]

from experiments.benchmarks.speed.ccfc_torch import distance, simsiam
from fcjax import nn

BATCH_SIZE, LEARNING_RATE, MODEL_WEIGHT = 32, 1e-3, 1e-3


class Recipe:
    """The clients' networks and the server's network.

    Args:
        images: uint8 images [P, H, W, 1].
        partition: indices of the images of each client.
        channels: widths of the encoder.
        num_clusters: number of clusters K.
        seed: seed of all random draws.
    """

    def __init__(
        self,
        images: np.ndarray,
        partition: tuple[np.ndarray, ...],
        *,
        channels: tuple[int, ...],
        num_clusters: int,
        seed: int,
    ):
        random.seed(seed)
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.num_clusters, self.grey = num_clusters, images[..., 0]
        self.pixels = torch.from_numpy(self.grey[:, None] / np.float32(255))
        self.partition = [torch.from_numpy(rows) for rows in partition]
        network = nn.simsiam(nn.conv_encoder(channels))
        shapes = network.init(jax.random.key(0), jnp.zeros((1, *images.shape[1:])))
        self.server, *self.clients = (
            initialised_network(shapes) for _ in range(1 + len(partition))
        )

    def pretrain(self, num_rounds: int) -> np.ndarray:
        """Runs SimSiam pre-training.

        Args:
            num_rounds: number of rounds.

        Returns:
            The cluster of every image [P].
        """
        unused = torch.zeros(len(self.pixels), dtype=torch.long)
        optimizers = self.new_optimizers()
        for number in range(num_rounds):
            # In the first round every client keeps its own random network.
            if number > 0:
                self.download()
            self.round(self.contrast_examples, optimizers, unused)
        return self.labels().numpy()

    def cluster(self, num_rounds: int) -> np.ndarray:
        """Runs cluster contrast after `pretrain`.

        Args:
            num_rounds: number of rounds.

        Returns:
            The cluster of every image [P].
        """
        self.download()
        labels = self.labels()
        optimizers = self.new_optimizers()
        for _ in range(num_rounds):
            self.download()
            self.round(self.contrast_clusters, optimizers, labels)
            labels = self.labels()
        return labels.numpy()

    def new_optimizers(self) -> list[Any]:
        """Returns a new Adam optimizer for each client."""
        return [
            torch.optim.Adam(c.parameters(), lr=LEARNING_RATE) for c in self.clients
        ]

    def download(self) -> None:
        """Copies the server's network to all clients."""
        for client in self.clients:
            client.load_state_dict(self.server.state_dict())

    def round(self, loss, optimizers, labels) -> None:
        """Trains every client one epoch, then averages their networks by data size.

        `loss` is a function (client network, indices, labels) -> loss. Each client has
        its own optimizer in `optimizers`. `labels` has the cluster of every image.
        """
        self.server.eval()
        for client, optimizer, rows in zip(
            self.clients, optimizers, self.partition, strict=True
        ):
            client.train()
            for batch in torch.randperm(len(rows)).split(BATCH_SIZE):
                optimizer.zero_grad()
                loss(client, rows[batch], labels[rows[batch]]).backward()
                optimizer.step()
        shares = torch.tensor([len(rows) for rows in self.partition]).float()
        shares /= shares.sum()
        states = [client.state_dict() for client in self.clients]
        for name, value in self.server.state_dict().items():
            each = torch.stack([state[name].float() for state in states], dim=-1)
            value.copy_(each @ shares)

    def contrast_examples(self, client, rows, labels):
        """Returns the SimSiam loss of random views, with the model-contrastive term."""
        del labels
        first, second = (
            torch.stack([self.view(int(r)) for r in rows]) for _ in range(2)
        )
        with torch.no_grad():
            g1, g2 = self.server(first)[1], self.server(second)[1]
        (z1, p1), (z2, p2) = client(first), client(second)
        contrast = (distance(p1, z2) + distance(p2, z1)) / 2
        return contrast + MODEL_WEIGHT * (distance(p1, g1) + distance(p2, g2)) / 2

    def contrast_clusters(self, client, rows, labels):
        """Returns the cluster-contrastive loss, with the model-contrastive term."""
        with torch.no_grad():
            anchors = self.server(self.pixels[rows])[1]
        z, p = client(self.pixels[rows])
        u, v = normalize(p), normalize(z.detach())
        terms = [
            -(u[labels == c] @ v[labels == c].T).mean()
            for c in range(self.num_clusters)
            if (labels == c).sum() > 1
        ]
        return torch.stack(terms).mean() + MODEL_WEIGHT * distance(p, anchors)

    def labels(self):
        """Returns the cluster of every image.

        Each client clusters its embeddings by k-means. The server clusters the clients'
        centroids. An image has the nearest of the server's centroids by cosine
        similarity.

        Returns:
            The clusters [P].
        """
        local_centroids = [
            self.means(self.encode(client, rows).numpy())
            for client, rows in zip(self.clients, self.partition, strict=True)
        ]
        centroids = torch.from_numpy(
            self.means(np.concatenate(local_centroids))
        ).float()
        z = self.encode(self.server, torch.arange(len(self.pixels)))
        return (z @ normalize(centroids).T).argmax(dim=1)

    def means(self, points: np.ndarray) -> np.ndarray:
        """Returns the centroids of k-means."""
        seed = random.getrandbits(32)
        kmeans = KMeans(self.num_clusters, n_init=10, random_state=seed)  # pyright: ignore[reportArgumentType]
        return kmeans.fit(points).cluster_centers_

    def encode(self, module, rows):
        """Returns the normalised embeddings of images."""
        module.eval()
        with torch.no_grad():
            z = torch.cat([module(self.pixels[part])[0] for part in rows.split(512)])
        return normalize(z)

    def view(self, row: int):
        """Returns a random view of an image."""
        array = np.array(view(self.grey[row]), np.float32)
        return torch.from_numpy(array / 255)[None]


def initialised_network(shapes: Any):
    """Returns the network of these shapes with PyTorch's own initialisation."""
    module = simsiam(shapes, "conv")
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()  # pyright: ignore[reportCallIssue]
    return module


def view(image: np.ndarray) -> Image.Image:
    """Returns a random resized crop, rotated, and blurred with probability 0.5."""
    height, width = image.shape
    for _ in range(10):
        area = height * width * random.uniform(0.5, 1.0)
        aspect = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
        if w <= width and h <= height:
            top, left = random.randint(0, height - h), random.randint(0, width - w)
            break
    else:
        top, left, w, h = 0, 0, width, height
    crop = Image.fromarray(image).crop((left, top, left + w, top + h))
    crop = crop.resize((width, height), Image.Resampling.BILINEAR)
    crop = crop.rotate(random.uniform(-10, 10), Image.Resampling.NEAREST)
    if random.random() < 0.5:
        crop = crop.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))
    return crop
