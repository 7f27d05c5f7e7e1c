"""CCFC: cluster-contrastive federated clustering (https://arxiv.org/abs/2401.06634).

python experiments/ccfc.py --clients 10 --p 0.25
python experiments/ccfc.py --p 0 0.25 0.5 0.75 1 --seed 0 1 2 3 4
python experiments/ccfc.py --dataset mnist --data-dir DIR --limit 10000 --p 0
python experiments/ccfc.py --dataset path/to/images --clusters 10
"""

import dataclasses
from typing import Annotated

import optax

from experiments.encoders import Backbone, backbone_of, is_tiny
from experiments.papers.ccfc import printed
from experiments.papers.ccfc.networks import network_of, view_of
from fcjax.algorithms.ccfc import ccfc, standalone
from fcjax.sweep import command, plan
from fcjax.sweep.flags import Common, default, settings_of, shown, taken_by
from fcjax.sweep.load import short_name


@dataclasses.dataclass(frozen=True)
class Args(Common):
    """CCFC: SimSiam and cluster contrast under federated averaging.

    Flags that take several values span a grid. Whole numbers (clients, batch size) have
    a program each, all else is one program.
    """

    pretrain_rounds: tuple[int, ...] = default(100)
    """Rounds of SimSiam that come first."""
    cluster_rounds: tuple[int, ...] = default(30)
    """Rounds of cluster contrast."""
    local_epochs: tuple[int, ...] = default(1)
    """Epochs that a client trains in a round; more of few examples."""
    batch_size: tuple[int, ...] = default(128)
    """Examples in a local step; fewer of few examples."""
    backbone: Backbone = None
    """The encoder."""
    latent_size: tuple[int, ...] = default(256)
    """Size of the embedding."""
    learning_rate: tuple[float, ...] = default(1e-3)
    """Of the clients' Adam."""
    model_weight: tuple[float, ...] = default(1e-3)
    """Weight (lambda) of the model-contrastive term; the paper's for its data sets."""
    #: Weight (eta) of CCFC++'s term against collapse into few directions, as far as it
    #: is known: try 0.01, 0.1, 1, 10.
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
DIGITS = {  # found on digits itself: docs/benchmarks/ccfc.md has what was tried
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


def describe(args: Args, dataset, num_clients: int, num_clusters: int) -> plan.Method:
    """Chooses settings, network and views for the data set."""
    shape, name = dataset.examples.shape[1:], short_name(args.dataset)
    first = {"backbone": backbone_of(shape), "own_init": False}
    of_data = (
        DIGITS if is_tiny(shape) else steps_for(len(dataset.examples) // num_clients)
    )
    if args.preset == "paper":
        of_data = {"own_init": 0 not in args.pretrain_rounds}
    smoke = SMOKE if args.preset == "smoke" else {}
    settings = settings_of(args, first, PAPER.get(name, {}), of_data, smoke)
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
        options |= taken_by(builder, values)
        return builder(network, optimizer, view_of(shape), **options)

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
