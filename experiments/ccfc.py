"""CCFC: cluster-contrastive federated clustering (https://arxiv.org/abs/2401.06634).

python experiments/ccfc.py --clients 10 --p 0.25
python experiments/ccfc.py --p 0 0.25 0.5 0.75 1 --seed 0 1 2 3 4
python experiments/ccfc.py --dataset mnist --data-dir DIR --limit 10000 --p 0
python experiments/ccfc.py --dataset path/to/images --clusters 10
"""

import dataclasses
from functools import partial
from typing import Annotated

import optax

from experiments.encoders import Backbone, backbone_of, encoder_of, is_tiny
from experiments.papers.ccfc import printed
from fcjax import models
from fcjax.algorithms.ccfc import ccfc, standalone
from fcjax.data.augment import ccfc_grey
from fcjax.data.colour import simsiam_colour
from fcjax.data.vectors import vector_view
from fcjax.sweep import command, experiment
from fcjax.sweep.flags import Common, choose, shown
from fcjax.sweep.load import short_name


@dataclasses.dataclass(frozen=True)
class Args(Common):
    """CCFC: SimSiam and cluster contrast under federated averaging.

    Flags that take several values span a grid. Whole numbers (clients, batch size) have
    a program each, all else is one program.
    """

    pretrain_rounds: Annotated[tuple[int, ...], shown("100")] = ()
    """Rounds of SimSiam that come first."""
    cluster_rounds: Annotated[tuple[int, ...], shown("30; digits 10")] = ()
    """Rounds of cluster contrast."""
    local_epochs: Annotated[
        tuple[int, ...], shown("1; digits 4; more below 1,000 examples a client")
    ] = ()
    """Epochs that a client trains in a round."""
    batch_size: Annotated[
        tuple[int, ...], shown("128; digits 45; a quarter below 1,000")
    ] = ()
    """Examples in a local step."""
    #: The encoder. A resnet begins with a 3x3 convolution, -imagenet with a 7x7 and a
    #: max-pool, which halve the image twice.
    backbone: Annotated[
        Backbone | None,
        shown("conv; colour resnet18, -imagenet above 64 pixels; vectors mlp"),
    ] = None
    latent_size: Annotated[
        tuple[int, ...], shown("256; fashion_mnist 64, digits 128")
    ] = ()
    """Size of the embedding."""
    learning_rate: Annotated[tuple[float, ...], shown("0.001; digits 0.002")] = ()
    """Of the clients' Adam."""
    model_weight: Annotated[
        tuple[float, ...], shown("the paper's for the data set, else 0.001")
    ] = ()
    """Weight (lambda) of the model-contrastive term."""
    sample_contrastive: bool = False
    """SCFC: contrast examples, not clusters, in the second stage too."""
    standalone: bool = False
    """Clients train alone: nothing is uploaded or downloaded."""
    #: Average unrelated networks after a first round, as the authors' code does: True
    #: or False.
    own_init: Annotated[bool | None, shown("no; --preset paper yes")] = None
    num_init: Annotated[tuple[int, ...], shown("10")] = ()
    """Seedings of the clients' and the server's k-means; the best counts."""
    include_self: bool = True
    """An example is a pair with itself, as in the authors' code and not in Eq. 1."""
    euclidean: bool = False
    """Pseudo-labels by distance, as in Eq. 3, not by cosine as in the authors' code."""


SMOKE = {"pretrain_rounds": 2, "cluster_rounds": 1, "local_epochs": 1}
REFERENCE = {
    "pretrain_rounds": 100,
    "cluster_rounds": 30,
    "local_epochs": 1,
    "batch_size": 128,
    "latent_size": 256,
    "learning_rate": 1e-3,
    "model_weight": 1e-3,
    "sample_contrastive": False,
    "standalone": False,
    "own_init": False,
    "num_init": 10,
    "include_self": True,
    "euclidean": False,
}
DIGITS = {  # found on digits itself: BENCHMARKS.md says what was tried
    "cluster_rounds": 10,
    "local_epochs": 4,
    "batch_size": 45,
    "latent_size": 128,
    "learning_rate": 2e-3,
}
PAPER = {  # Section 4.1
    "fashion_mnist": {"latent_size": 64, "model_weight": 1.0},
    "cifar10": {"model_weight": 0.1},
    "stl10": {"model_weight": 0.1},
}


def steps_for(per_client: int) -> dict[str, int]:
    """Returns epochs and batches that give clients of few examples enough steps."""
    if per_client >= 1000:
        return {}
    batch_size = min(128, max(16, per_client // 4))
    steps = -(-per_client // batch_size)
    return {"batch_size": batch_size, "local_epochs": -(-16 // steps)}


def network_of(settings, shape: tuple[int, ...]):
    """Returns SimSiam over the encoder that was asked for."""
    backbone, latent_size = settings["backbone"], settings["latent_size"]
    if backbone == "mlp" and len(shape) == 1:
        return models.mlp_simsiam(latent_size=latent_size)
    encoder = encoder_of(backbone, shape, channels=(64, 128, 256))
    hidden_size = latent_size if backbone == "conv" and is_tiny(shape) else 256
    return models.simsiam(encoder, hidden_size=hidden_size, latent_size=latent_size)


def view_of(shape: tuple[int, ...]):
    """Returns the augmentation for examples of this shape."""
    if len(shape) == 1:
        return vector_view
    if shape[2] == 3:
        return simsiam_colour
    if is_tiny(shape):
        # Eight pixels bear little blur, and a nearest-pixel rotation ruins them.
        return partial(
            ccfc_grey,
            crop_scale=(0.6, 1.0),
            max_degrees=15.0,
            blur_probability=0.0,
            order=1,
        )
    return ccfc_grey


def describe(
    args: Args, dataset, num_clients: int, num_clusters: int
) -> experiment.Method:
    """Chooses defaults, network and views for the data set."""
    shape = dataset.examples.shape[1:]
    name = short_name(args.dataset)
    settings = REFERENCE | PAPER.get(name, {})
    settings |= {"backbone": backbone_of(shape)}
    if args.preset == "paper":
        settings |= {"own_init": 0 not in args.pretrain_rounds}
    else:
        per_client = len(dataset.examples) // num_clients
        settings |= DIGITS if is_tiny(shape) else steps_for(per_client)
    if args.preset == "smoke":
        settings |= SMOKE
    settings = choose(settings, args)
    view = view_of(shape)

    def build(values):
        builder = standalone if values["standalone"] else ccfc
        return builder(
            network_of(values, shape),
            optax.adam(values["learning_rate"]),
            view,
            num_clusters=num_clusters,
            pretrain_rounds=values["pretrain_rounds"],
            cluster_rounds=values["cluster_rounds"],
            local_epochs=values["local_epochs"],
            batch_size=values["batch_size"],
            model_weight=values["model_weight"],
            num_init=values["num_init"],
            sample_contrastive=values["sample_contrastive"],
            own_init=values["own_init"],
            include_self=values["include_self"],
            euclidean=values["euclidean"],
        )

    is_ablation = args.sample_contrastive or args.standalone
    return experiment.Method(
        name="ccfc",
        settings=settings,
        build=build,
        scope="client-pooled" if args.standalone else "global",
        paper={} if is_ablation else printed.scores_of(name, "CCFC"),
    )


if __name__ == "__main__":
    command.main(Args, describe)
