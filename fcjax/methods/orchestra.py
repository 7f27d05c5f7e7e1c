"""Orchestra: globally consistent clustering (https://arxiv.org/abs/2205.11506).

Settings, defaults by the data, networks and views. The algorithm is
`fcjax.algorithms.orchestra`.
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
    """Orchestra: clients predict the global cluster of another view of an example, the
    server clusters the clients' clusters. Its clusters are no classes: in the end the
    features of all clients are clustered by federated k-means.

    Examples:
        >>> Orchestra(num_rounds=5).name
        'orchestra'
    """

    name: ClassVar[str] = "orchestra"

    num_rounds: Sweep[int] = default(100)
    """Rounds, after a first one in which nobody trains; tiny images 20."""
    num_participants: Annotated[
        Sweep[int], shown("all; --preset paper half of --clients")
    ] = ()
    """How many clients take part in a round, drawn at random."""
    local_epochs: Sweep[int] = default(10)
    """Epochs that a client trains in a round; tiny images 2."""
    batch_size: Sweep[int] = default(16)
    """Examples in a local step; small networks 64."""
    drop_last: Annotated[bool | None, shown("no; the paper preset yes")] = None
    """Leave a last batch out that is not full, as the authors' code does."""
    microbatch: Annotated[int | None, Limits(least=1), shown("a batch at once")] = None
    """Examples that a network takes at a time, which bounds the memory of a batch."""
    backbone: Backbone = None
    """The encoder."""
    learning_rate: Sweep[float] = default(3e-3)
    """Of the clients' SGD, which has momentum 0.9; small networks 0.03."""
    num_global: Sweep[int] = default(128)
    """Clusters of the server; small networks 32."""
    num_local: Sweep[int] = default(16)
    """Clusters of a client."""
    memory_size: Sweep[int] = default(128)
    """Projections that a client clusters, its last ones."""
    temperature: Positive = default(0.1)
    """T of the assignments to global clusters."""
    momentum: Annotated[Sweep[float], Limits(most=1)] = default(0.996)
    """Of the target networks; small networks 0.97."""
    rotation_weight: Sweep[float] = default(1.0)
    """Of telling by how many quarters an image was turned; vectors have none."""
    server_steps: Sweep[int] = default(500)
    """Steps of gradient descent of the server in a round."""
    num_init: Sweep[int] = default(10)
    """Seedings of k-means in the end; the best counts."""
    whiten: Annotated[bool | None, shown("yes; --preset paper no")] = None
    """Half-whiten the features before k-means."""

    def resolve(self, problem: Problem) -> MethodSpec:
        settings = self.settings(*self.chosen(problem))
        if max(settings["num_participants"]) > problem.num_clients:
            most, got = problem.num_clients, max(settings["num_participants"])
            raise ValueError(
                f"`num_participants` must be at most `clients` {most}, got {got}"
            )
        return MethodSpec(self.name, settings, self.builder(problem), "global")

    def chosen(self, problem: Problem) -> list[dict[str, Any]]:
        """Returns the settings that preset and data choose, the strongest last."""
        is_paper, num_clients = self.preset == "paper", problem.num_clients
        backbone = backbone_of(problem.shape)
        found: list[dict[str, Any]] = [
            {"backbone": backbone, "drop_last": is_paper, "whiten": not is_paper}
        ]
        some = max(1, num_clients // 2) if is_paper else num_clients
        found += [{"num_participants": some}]
        if not is_paper and backbone in ("conv", "mlp"):
            found += [SMALL, DIGITS if is_tiny(problem.shape) else {}]
        return [*found, SMOKE] if self.preset == "smoke" else found

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        shape, backbone = problem.shape, settings.backbone
        is_small = backbone in ("conv", "mlp")
        channels = (256, 256) if backbone == "mlp" else (16, 32, 64)
        width = {"size": 128, "hidden_size": 128} if is_small else {}
        seen, other = views_of(shape)
        optimizer = optax.chain(
            optax.add_decayed_weights(1e-4),
            optax.sgd(settings.learning_rate, momentum=0.9),
        )
        local = Local(
            *(optimizer, seen),
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
            nn.rotation_head() if turns(shape) else None,
            other,
            feature_kmeans(kmeans),
            local,
        )


def turns(shape: tuple[int, ...]) -> bool:
    """Whether a quarter turn of an example has its shape."""
    return len(shape) == 3 and shape[0] == shape[1]


def views_of(shape: tuple[int, ...]) -> tuple[Augment, Augment]:
    """Returns the views for the target and for the online network."""
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
