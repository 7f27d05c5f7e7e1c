"""CCFC: cluster-contrastive federated clustering (https://arxiv.org/abs/2401.06634).

python experiments/ccfc.py --clients 10 --p 0.25
python experiments/ccfc.py --p 0 0.25 0.5 0.75 1 --seed 0 1 2 3 4
python experiments/ccfc.py --dataset mnist --data-dir DIR --limit 10000 --p 0
python experiments/ccfc.py --dataset path/to/images --clusters 10
"""

import dataclasses
from collections.abc import Mapping
from math import ceil
from typing import Annotated, Any, Literal

import optax

from experiments.encoders import backbone_of, is_grey, is_small
from experiments.papers.ccfc import printed
from experiments.papers.ccfc.networks import Backbone, View, network_of, view_of
from fcjax.algorithms.ccfc import WHOLE, ccfc, standalone
from fcjax.sweep import command, plan
from fcjax.sweep.flags import Common, default, settings_of, shown, taken_by
from fcjax.sweep.load import short_name


@dataclasses.dataclass(frozen=True)
class Args(Common):
    """CCFC: SimSiam and cluster contrast under federated averaging.

    Flags that take several values span a grid. Whole numbers (clients, batch size) have
    a program each, all else is one program. What is said of images is of grey ones, and
    of colour ones of up to 64 pixels.
    """

    pretrain_rounds: tuple[int, ...] = default(100)
    """Rounds of SimSiam that come first; of images by how many there are."""
    cluster_rounds: tuple[int, ...] = default(30)
    """Rounds of cluster contrast; 10 of images, 0 with small batches."""
    local_epochs: tuple[int, ...] = default(1)
    """Epochs that a client trains in a round; more of few rows and large images."""
    batch_size: tuple[int, ...] = default(128)
    """Examples in a local step; fewer of few examples, at most 50 of images."""
    backbone: Backbone = None
    """The encoder."""
    #: How a grey image is varied: `affine` in size, place, slant and thickness, `crop`
    #: as in the authors' code.
    view: Annotated[View | None, shown("affine; --preset paper crop")] = None
    latent_size: tuple[int, ...] = default(256)
    """Size of the embedding."""
    learning_rate: tuple[float, ...] = default(1e-3)
    """Of the clients' Adam; 0.005 of images."""
    #: Of the learning rate over the rounds of cluster contrast: cosine falls to 0.
    schedule: Annotated[
        Literal["constant", "cosine"] | None, shown("constant; images cosine")
    ] = None
    model_weight: tuple[float, ...] = default(1e-3)
    """Weight (lambda) of the model-contrastive term; the paper's for its data sets."""
    #: Weight (eta) of CCFC++'s term against collapse into few directions, as far as it
    #: is known; 0.1 of images, up to 1 with many clusters, 0 with --preset paper.
    decorrelation_weight: tuple[float, ...] = default(0.0)
    sample_contrastive: bool = False
    """SCFC: contrast examples, not clusters, in the second stage too."""
    standalone: bool = False
    """Clients train alone: nothing is uploaded or downloaded."""
    #: Average unrelated networks after a first round, as the authors' code does: True
    #: or False.
    own_init: Annotated[bool | None, shown("no; --preset paper yes")] = None
    num_init: tuple[int, ...] = default(10)
    """Seedings of the clients' and the server's k-means; the best counts."""
    include_self: bool = True
    """An example is a pair with itself, as in the authors' code and not in Eq. 1."""
    euclidean: bool = False
    """Pseudo-labels by distance, as in Eq. 3, not by cosine as in the authors' code."""


SMOKE = {"pretrain_rounds": 2, "cluster_rounds": 1, "local_epochs": 1}
PAPER = {  # Section 4.1
    "fashion_mnist": {"latent_size": 64, "model_weight": 1.0},
    "cifar10": {"model_weight": 0.1},
    "stl10": {"model_weight": 0.1},
}


def of_images(per_client: int, num_clients: int, num_clusters: int) -> dict[str, Any]:
    """Returns what is the default for images (docs/benchmarks/ccfc.md).

    Small batches at a high rate, which falls as clusters are contrasted, first a
    thousand steps or as many rounds as the code's (of few images more), and CCFC++'s
    term, without which unlike clients end in few directions; of more than ten clusters
    more of it, for more directions. Where a batch has fewer examples than there are
    clusters few of them have a partner, and clusters are not contrasted.
    """
    batch_size = min(max(50, num_clusters), max(16, -(-per_client // 4)))
    steps = -(-per_client // batch_size)
    most = max(100, 180_000 // (per_client * num_clients))
    have_partners = min(batch_size, per_client) >= num_clusters
    return {
        "backbone": "conv-small",
        "pretrain_rounds": max(20, min(most, 1000 // steps)),
        "cluster_rounds": 10 if have_partners else 0,
        "batch_size": batch_size,
        "learning_rate": 5e-3,
        "schedule": "cosine",
        "decorrelation_weight": min(1.0, 0.1 * max(1.0, num_clusters / 10) ** 1.5),
    }


def steps_of_others(per_client: int) -> dict[str, int]:
    """Returns epochs and batches that give clients of few examples enough steps."""
    if per_client >= 1000:
        return {}
    batch_size = min(128, max(16, per_client // 4))
    steps = -(-per_client // batch_size)
    return {"batch_size": batch_size, "local_epochs": -(-16 // steps)}


def schedule_of(values: Mapping[str, Any]) -> optax.Schedule:
    """Returns the share of the learning rate in each round of cluster contrast."""
    if values["schedule"] == "constant":
        return WHOLE
    return optax.cosine_decay_schedule(1.0, max(1, values["cluster_rounds"]))


def describe(args: Args, dataset, num_clients: int, num_clusters: int) -> plan.Method:
    """Chooses settings, network and views for the data set."""
    shape, name = dataset.examples.shape[1:], short_name(args.dataset)
    per_client = ceil(plan.rows_of_client(args, dataset, num_clients))
    grey = is_grey(shape)
    of_data = {
        "backbone": backbone_of(shape),
        "own_init": False,
        "schedule": "constant",
    }
    if args.preset == "paper":
        of_data |= {"own_init": 0 not in args.pretrain_rounds}
        of_data |= {"view": "crop"} if grey else {}
    elif grey or is_small(shape):
        of_data |= of_images(per_client, num_clients, num_clusters)
        of_data |= {"view": "affine"} if grey else {}
    else:
        of_data |= steps_of_others(per_client)
    smoke = SMOKE if args.preset == "smoke" else {}
    settings = settings_of(args, PAPER.get(name, {}), of_data, smoke)
    # Clusters of a round take a quarter of what an epoch of training does.
    every = -(-4 // max(1, *settings["local_epochs"]))
    scored = plan.scored(args, every)

    def build(values):
        builder = standalone if values["standalone"] else ccfc
        network, optimizer = (
            network_of(values, shape),
            optax.adam(values["learning_rate"]),
        )
        options = {"num_clusters": num_clusters, "scored": scored}
        options |= {**taken_by(builder, values), "schedule": schedule_of(values)}
        return builder(network, optimizer, view_of(values["view"], shape), **options)

    is_ablation = args.sample_contrastive or args.standalone
    return plan.Method(
        name="ccfc",
        settings=settings,
        build=build,
        scope="client-pooled" if args.standalone else "global",
        evaluate_every=every,
        paper={} if is_ablation else printed.scores_of(name, "CCFC"),
    )


if __name__ == "__main__":
    command.main(Args, describe)
