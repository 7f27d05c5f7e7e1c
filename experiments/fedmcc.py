"""FedMCC: momentum contrastive clustering (https://arxiv.org/abs/2206.05093).

python experiments/fedmcc.py
python experiments/fedmcc.py --methods fedmcc fed-cc fedu --class-share 1 0.2
python experiments/fedmcc.py --methods fedu fedema --cluster-by k-means
python experiments/fedmcc.py --methods mcc cc
"""

import dataclasses
from math import ceil
from typing import Annotated, Literal

from experiments import several
from experiments.encoders import Backbone
from experiments.papers.fedmcc import methods
from experiments.papers.fedmcc.methods import CENTRAL, ONE_STAGE, Name
from fcjax.sweep import plan
from fcjax.sweep.flags import Common, Limits, Positive, default, settings_of, shown
from fcjax.sweep.load import short_name


@dataclasses.dataclass(frozen=True)
class Args(Common):
    """Contrastive clustering in two stages, and what it is measured by.

    fedmcc, fedu, fedema, fedsimsiam, fedsimclr: rounds of representation learning, then
    --cluster-by. fed-cc, fedmcc-one-stage: examples and clusters contrasted at once,
    without and with target networks. cc, mcc: the same on one client that has all data.
    """

    methods: tuple[Name, ...] = ("fedmcc",)
    """Which methods to run, each into a results folder of its own."""
    clients: tuple[int, ...] = default(5)
    """How many clients the data is dealt to; cc and mcc have one."""
    p: tuple[float, ...] = default(0.0)
    """Heterogeneity: 0 deals at random, 1 gives every client a class of its own."""
    #: The second stage: mcc trains a cluster projector on the frozen encoder, k-means
    #: clusters the features of all clients in one place.
    cluster_by: Literal["mcc", "k-means"] = "mcc"
    num_rounds: tuple[int, ...] = default(100)
    """Rounds of the first stage, or of the only one; cc, mcc 500; conv as many
    as 500 steps take, 1,500 of the only one, in the default's batches, 20 at least."""
    cluster_rounds: Annotated[tuple[int, ...], Limits(least=1)] = default(10)
    """Rounds of mcc as the second stage, conv as many as 1,500 steps take, 10 at least;
    --cluster-by k-means takes one."""
    local_epochs: tuple[int, ...] = default(5)
    """E: epochs that a client trains in a round; cc, mcc 1."""
    batch_size: tuple[int, ...] = default(128)
    """n: examples in a local step."""
    drop_last: Annotated[bool | None, shown("no; the paper preset yes")] = None
    """Leave a last batch out that is not full, as CC's and EasyFL's code does."""
    microbatch: Annotated[int | None, Limits(least=1), shown("a batch at once")] = None
    """Examples that a network takes at a time, which bounds the memory of a batch."""
    backbone: Backbone = None
    """The encoder; cc and mcc have resnet34 for colour."""
    #: Of the first stage: adam, or as of fedu, fedema and fedsimsiam sgd, which has
    #: momentum 0.9 and a cosine over the rounds.
    optimizer: Annotated[Literal["adam", "sgd"] | None, shown("by the method")] = None
    learning_rate: tuple[float, ...] = default(3e-4)
    """Of the first stage; sgd 0.032, small networks 0.001."""
    cluster_learning_rate: tuple[float, ...] = default(3e-4)
    """Of the second stage's Adam; small networks 0.001."""
    instance_temperature: Positive = default(0.5)
    """tau_I of examples."""
    cluster_temperature: Positive = default(1.0)
    """tau_C of clusters."""
    #: Of the entropies against the contrast of clusters, where there are target
    #: networks: 1 as in equation 9, 0.5 has the ratio of CC.
    entropy_weight: tuple[float, ...] = default(1.0)
    momentum: Annotated[tuple[float, ...], Limits(most=1)] = default(0.99)
    """m of the target networks; small networks 0.9."""
    average_target: bool = False
    """fedmcc, mcc: average the target networks too, as in Table VII."""
    threshold: tuple[float, ...] = default(0.4)
    """fedu: divergence (mu) from which a client keeps its own predictor."""
    autoscale: tuple[float, ...] = default(0.7)
    """fedema: share (tau) of its own network in a client's second round."""
    scale: Annotated[tuple[float, ...], shown("by --autoscale")] = ()
    """fedema: the weight (lambda) of a client's divergence, instead."""


def settings(args: Args, name: Name, shape: tuple[int, ...], *, per_client: int):
    """Returns the settings of a method for examples of this shape."""
    names = methods.flags_of(name, args.cluster_by)
    changes = methods.chosen(args, name, shape, per_client=per_client)
    return settings_of(args, *changes, names=names)


def describe(args: Args, dataset, num_clients: int, num_clusters: int) -> plan.Method:
    """Describes the first of the methods that are asked for."""
    name, shape = args.methods[0], dataset.examples.shape[1:]
    per_client = ceil(plan.rows_of_client(args, dataset, num_clients))
    found = settings(args, name, shape, per_client=per_client)
    first = methods.flags_of(name)
    shared = plan.Shared(name, 1, {k: v for k, v in found.items() if k in first})
    some = len(dataset.examples) if args.extra_split is not None else None
    view = methods.view_of(name, short_name(args.dataset), shape)

    def build(values):
        numbers = {"num_clusters": num_clusters, "num_clustered": some}
        return methods.method_of(name, values, view, shape, **numbers)

    is_shared = None if name in ONE_STAGE else shared
    return plan.Method(called(args, name), found, build, "global", shared=is_shared)


def only(args: Args, name: Name) -> Args:
    """Returns the flags of one method; a central one has a single client."""
    if name in CENTRAL:
        undealt = {rule: () for rule in plan.RULES} | {"p": (0.0,)}
        args = dataclasses.replace(args, clients=default(1), **undealt)
    return several.only(args, name, called(args, name))


def called(args: Args, name: Name) -> str:
    """Returns what a method is called with its second stage."""
    by_kmeans = args.cluster_by == "k-means" and name not in ONE_STAGE
    return f"{name}+k-means" if by_kmeans else name


if __name__ == "__main__":
    several.main(Args, describe, only)
