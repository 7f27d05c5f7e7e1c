"""Orchestra: globally consistent clustering (https://arxiv.org/abs/2205.11506).

This module has the settings, the defaults, the networks and the augmentations. The
algorithm is in `fcjax.algorithms.orchestra`.
"""

from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import optax

from fcjax import nn
from fcjax.algorithms.averaging import Local
from fcjax.algorithms.fedmcc import FeatureKMeans, feature_kmeans
from fcjax.algorithms.orchestra import orchestra
from fcjax.data.augment import (
    Augment,
    affine_grey,
    random_solarize,
    simsiam_colour,
    vector_view,
)
from fcjax.federated.kmeans import HALF
from fcjax.methods.base import Method, MethodSpec, Problem
from fcjax.methods.encoders import Backbone, backbone_of, encoder_of, is_tiny
from fcjax.settings import Limits, Positive, Sweep, default, frozen, shown
from fcjax.types import FederatedClustering

SMALL = {
    "learning_rate": 0.03,
    "batch_size": 64,
    "num_global": 32,
    "momentum": 0.97,
}
DIGITS = {"num_rounds": 20, "local_epochs": 2}
SMOKE = {"num_rounds": 2, "local_epochs": 1, "server_steps": 50}


@frozen
class Orchestra(Method):
    """Orchestra learns features by predicting clusters across clients.

    Each client clusters its own examples, and the server clusters the clients'
    centroids. A network learns to predict the global cluster of an augmented example.
    There are more global clusters than classes, so federated k-means of the features
    gives the final clusters.

    In the help of the settings, "small networks" are conv and mlp (--backbone), and
    "tiny images" have less than 16 pixels per side.

    Examples:
        >>> Orchestra(num_rounds=5).name
        'orchestra'
    """

    name: ClassVar[str] = "orchestra"

    num_rounds: Annotated[Sweep[int], shown("100; tiny images: 20")] = default(100)
    """Number of training rounds. One more round before them clusters without
    training."""
    num_participants: Annotated[
        Sweep[int], shown("all clients; --preset paper: half of --clients")
    ] = ()
    """Number of clients that participate in each round, drawn at random, from 1 to
    --clients."""
    local_epochs: Annotated[Sweep[int], shown("10; tiny images: 2")] = default(10)
    """Epochs that a client trains in each round."""
    batch_size: Annotated[
        Sweep[int], shown("16; small networks: 64; --preset paper: 16")
    ] = default(16)
    """Number of examples in each local step."""
    drop_last: Annotated[bool | None, shown("False; --preset paper: True")] = None
    """Skip the last batch of an epoch if it is not full, as in the authors' code."""
    microbatch: Annotated[int | None, Limits(least=1), shown("the whole batch")] = None
    """Number of examples of a batch that a network processes at once, at least 1. A
    small number needs less memory."""
    backbone: Backbone = None
    """The encoder network."""
    learning_rate: Annotated[
        Sweep[float], shown("0.003; small networks: 0.03; --preset paper: 0.003")
    ] = default(3e-3)
    """Learning rate of the clients' SGD, which has momentum 0.9."""
    num_global: Annotated[
        Sweep[int], shown("128; small networks: 32; --preset paper: 128")
    ] = default(128)
    """Number of global clusters on the server during training."""
    num_local: Sweep[int] = default(16)
    """Number of clusters of each client, at most `memory_size`."""
    memory_size: Sweep[int] = default(128)
    """Number of latest projections that a client stores and clusters."""
    temperature: Positive = default(0.1)
    """Temperature T of the assignments to global clusters, above 0."""
    momentum: Annotated[
        Sweep[float],
        Limits(most=1),
        shown("0.996; small networks: 0.97; --preset paper: 0.996"),
    ] = default(0.996)
    """Momentum of the target networks, from 0 to 1."""
    rotation_weight: Sweep[float] = default(1.0)
    """Weight of the loss that predicts the rotation of an image by quarter turns.
    Feature vectors have no such loss."""
    server_steps: Sweep[int] = default(500)
    """Gradient steps of the server's clustering in each round."""
    num_init: Sweep[int] = default(10)
    """Number of starts of the final k-means; the best result is kept."""
    whiten: Annotated[bool | None, shown("True; --preset paper: False")] = None
    """Half-whiten the features before the final k-means."""

    def resolve(self, problem: Problem) -> MethodSpec:
        """Chooses a value for each setting and returns the method for this problem."""
        settings = self.settings(*self.defaults(problem))
        if max(settings["num_participants"]) > problem.num_clients:
            raise ValueError(
                f"`num_participants` must be at most `clients` {problem.num_clients}, "
                f"got {max(settings['num_participants'])}"
            )
        return MethodSpec(self.name, settings, self.builder(problem), "global")

    def defaults(self, problem: Problem) -> list[dict[str, Any]]:
        """Returns the settings that preset and data choose; the last value counts.

        Args:
            problem: the data and the clients.

        Returns:
            Mappings from setting to value. A later mapping takes precedence.
        """
        is_paper, num_clients = self.preset == "paper", problem.num_clients
        backbone = backbone_of(problem.shape)
        values: list[dict[str, Any]] = [
            {"backbone": backbone, "drop_last": is_paper, "whiten": not is_paper}
        ]
        num_participants = max(1, num_clients // 2) if is_paper else num_clients
        values += [{"num_participants": num_participants}]
        if not is_paper and backbone in ("conv", "mlp"):
            values += [SMALL, DIGITS if is_tiny(problem.shape) else {}]
        return [*values, SMOKE] if self.preset == "smoke" else values

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        shape, backbone = problem.shape, settings.backbone
        is_small = backbone in ("conv", "mlp")
        channels = (256, 256) if backbone == "mlp" else (16, 32, 64)
        width = {"size": 128, "hidden_size": 128} if is_small else {}
        target_view, online_view = views_of(shape)
        optimizer = optax.chain(
            optax.add_decayed_weights(1e-4),
            optax.sgd(settings.learning_rate, momentum=0.9),
        )
        local = Local(
            *(optimizer, target_view),
            num_epochs=settings.local_epochs,
            batch_size=settings.batch_size,
            microbatch=settings.microbatch,
            drop_last=settings.drop_last,
        )
        kmeans = FeatureKMeans(
            num_clusters=problem.num_clusters,
            num_init=settings.num_init,
            whitening=HALF if settings.whiten else 0.0,
            batch_size=local.at_once,
        )
        return orchestra(
            settings,
            nn.encoder(encoder_of(backbone, shape, channels=channels)),
            nn.orchestra_projector(**width),
            nn.rotation_head() if is_square(shape) else None,
            online_view,
            feature_kmeans(kmeans),
            local,
        )


def is_square(shape: tuple[int, ...]) -> bool:
    """Returns whether the examples are square images, for quarter turns.

    Args:
        shape: shape of one example, (F,) or (H, W, C).

    Returns:
        True for images of equal height and width.
    """
    return len(shape) == 3 and shape[0] == shape[1]


def views_of(shape: tuple[int, ...]) -> tuple[Augment, Augment]:
    """Returns the augmentations for the target network and for the online network.

    Args:
        shape: shape of one example, (F,) or (H, W, C).

    Returns:
        Two functions from a key and an example to an augmented example.
    """
    if len(shape) == 1:
        return vector_view, vector_view
    if shape[2] == 1:
        return affine_grey, affine_grey
    colour = partial(simsiam_colour, crop_scale=(0.5, 1.0), saturation=0.2)

    def solarized(key, image):
        first, last = jax.random.split(key)
        image = colour(first, image, blur_probability=0.1)
        return random_solarize(last, image, probability=0.2)

    return partial(colour, blur_probability=0.5), solarized
