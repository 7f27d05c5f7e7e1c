"""Orchestra: globally consistent clustering (https://arxiv.org/abs/2205.11506).

python experiments/orchestra.py
python experiments/orchestra.py --p 0 0.25 0.5 0.75 1 --seed 0 1 2
python experiments/orchestra.py --dataset cifar10 --data-dir DIR --preset paper
"""

import dataclasses
from functools import partial
from typing import Annotated

import jax
import optax

from experiments.encoders import Backbone, backbone_of, encoder_of, is_tiny
from fcjax import nn
from fcjax.algorithms.averaging import Local
from fcjax.algorithms.fedmcc import feature_kmeans
from fcjax.algorithms.orchestra import orchestra
from fcjax.data.augment import (
    Augment,
    affine_grey,
    random_solarize,
    simsiam_colour,
    vector_view,
)
from fcjax.sweep import command, plan
from fcjax.sweep.flags import (
    Common,
    Limits,
    Positive,
    default,
    settings_of,
    shown,
    taken_by,
)


@dataclasses.dataclass(frozen=True)
class Args(Common):
    """Orchestra: clients predict the global cluster of another view of an example, the
    server clusters the clients' clusters. Its clusters are no classes: in the end the
    features of all clients are clustered by k-means in one place.
    """

    num_rounds: tuple[int, ...] = default(100)
    """Rounds, after a first one in which nobody trains; tiny images 20."""
    num_participants: Annotated[
        tuple[int, ...], shown("all; --preset paper half of --clients")
    ] = ()
    """How many clients take part in a round, drawn at random."""
    local_epochs: tuple[int, ...] = default(10)
    """Epochs that a client trains in a round; tiny images 2."""
    batch_size: tuple[int, ...] = default(16)
    """Examples in a local step; small networks 64."""
    drop_last: Annotated[bool | None, shown("no; the paper preset yes")] = None
    """Leave a last batch out that is not full, as the authors' code does."""
    microbatch: Annotated[int | None, Limits(least=1), shown("a batch at once")] = None
    """Examples that a network takes at a time, which bounds the memory of a batch."""
    backbone: Backbone = None
    """The encoder."""
    learning_rate: tuple[float, ...] = default(3e-3)
    """Of the clients' SGD, which has momentum 0.9; small networks 0.03."""
    num_global: tuple[int, ...] = default(128)
    """Clusters of the server; small networks 32."""
    num_local: tuple[int, ...] = default(16)
    """Clusters of a client."""
    memory_size: tuple[int, ...] = default(128)
    """Projections that a client clusters, its last ones."""
    temperature: Positive = default(0.1)
    """T of the assignments to global clusters."""
    momentum: Annotated[tuple[float, ...], Limits(most=1)] = default(0.996)
    """Of the target networks; small networks 0.97."""
    rotation_weight: tuple[float, ...] = default(1.0)
    """Of telling by how many quarters an image was turned; vectors have none."""
    server_steps: tuple[int, ...] = default(500)
    """Steps of gradient descent of the server in a round."""
    num_init: tuple[int, ...] = default(10)
    """Seedings of k-means in the end; the best counts."""


SMALL = {
    "learning_rate": 0.03,
    "batch_size": 64,
    "num_global": 32,
    "momentum": 0.97,
}
DIGITS = {"num_rounds": 20, "local_epochs": 2}
SMOKE = {"num_rounds": 2, "local_epochs": 1, "server_steps": 50}


def describe(args: Args, dataset, num_clients: int, num_clusters: int) -> plan.Method:
    """Chooses settings, networks and views for the data set."""
    shape, is_paper = dataset.examples.shape[1:], args.preset == "paper"
    backbone = backbone_of(shape)
    chosen = [{"backbone": backbone, "drop_last": is_paper}]
    some = max(1, num_clients // 2) if is_paper else num_clients
    chosen += [{"num_participants": some}]
    if not is_paper and backbone in ("conv", "mlp"):
        chosen += [SMALL, DIGITS if is_tiny(shape) else {}]
    chosen += [SMOKE] if args.preset == "smoke" else []
    settings = settings_of(args, *chosen)
    if max(settings["num_participants"]) > num_clients:
        most, got = f"--clients {num_clients}", max(settings["num_participants"])
        raise ValueError(f"--num-participants must be at most {most}, got {got}")
    views = views_of(shape)

    def build(values):
        return method_of(values, views, shape, num_clusters=num_clusters)

    return plan.Method("orchestra", settings, build, "global")


def method_of(values, views: tuple[Augment, Augment], shape, *, num_clusters: int):
    """Builds the method from the settings of a run."""
    is_small = values["backbone"] in ("conv", "mlp")
    channels = (256, 256) if values["backbone"] == "mlp" else (16, 32, 64)
    encoder = nn.encoder(encoder_of(values["backbone"], shape, channels=channels))
    width = {"size": 128, "hidden_size": 128} if is_small else {}
    projector = nn.orchestra_projector(**width)
    rotation = nn.rotation_head() if turns(shape) else None
    seen, other = views
    optimizer = optax.chain(
        optax.add_decayed_weights(1e-4),
        optax.sgd(values["learning_rate"], momentum=0.9),
    )
    local = Local(
        *(optimizer, seen),
        num_epochs=values["local_epochs"],
        batch_size=values["batch_size"],
        microbatch=values["microbatch"],
        drop_last=values["drop_last"],
    )
    clustering = feature_kmeans(
        num_clusters=num_clusters,
        num_init=values["num_init"],
        batch_size=local.at_once,
    )
    return orchestra(
        *(encoder, projector, rotation, other, clustering, local),
        **taken_by(orchestra, values),
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


if __name__ == "__main__":
    command.main(Args, describe)
