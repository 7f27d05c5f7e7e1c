"""FedMCC: momentum contrastive clustering (https://arxiv.org/abs/2206.05093).

python experiments/fedmcc.py
python experiments/fedmcc.py --methods fedmcc fed-cc fedu --class-share 1 0.2
python experiments/fedmcc.py --methods fedu fedema --cluster-by k-means
python experiments/fedmcc.py --methods mcc cc
"""

import dataclasses
from functools import partial
from typing import Annotated, Any, Literal

from experiments import several
from experiments.encoders import Backbone, backbone_of, is_tiny
from experiments.papers.fedmcc.methods import (
    BY_SGD,
    CENTRAL,
    FIRST,
    ONE_STAGE,
    Name,
    method_of,
    view_of,
)
from fcjax.sweep import deal, experiment, plan
from fcjax.sweep.flags import Common, choose, shown
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
    clients: tuple[int, ...] = (5,)
    """How many clients the data is dealt to; cc and mcc have one."""
    p: tuple[float, ...] = (0.0,)
    """Heterogeneity: 0 deals at random, 1 gives every client a class of its own."""
    #: The second stage: mcc trains a cluster projector on the frozen encoder, k-means
    #: clusters the features of all clients in one place.
    cluster_by: Literal["mcc", "k-means"] = "mcc"
    num_rounds: Annotated[
        tuple[int, ...], shown("100; cc, mcc 500; digits 20, 100")
    ] = ()
    """Rounds of the first stage, or of the only one."""
    cluster_rounds: Annotated[tuple[int, ...], shown("10; digits 20")] = ()
    """Rounds of mcc as the second stage."""
    local_epochs: Annotated[tuple[int, ...], shown("5; cc, mcc 1")] = ()
    """E: epochs that a client trains in a round."""
    batch_size: Annotated[tuple[int, ...], shown("128")] = ()
    """n: examples in a local step."""
    drop_last: Annotated[bool | None, shown("no; the paper preset yes")] = None
    """Leave a last batch out that is not full, as CC's and EasyFL's code does."""
    microbatch: Annotated[int | None, shown("a batch at once")] = None
    """Examples that a network takes at a time, which bounds the memory of a batch."""
    #: The encoder. A resnet begins with a 3x3 convolution, -imagenet with a 7x7 and a
    #: max-pool, which halve the image twice.
    backbone: Annotated[
        Backbone | None,
        shown(
            "conv; colour resnet18, cc and mcc resnet34, -imagenet above 64 pixels; "
            "vectors mlp"
        ),
    ] = None
    optimizer: Annotated[
        Literal["adam", "sgd"] | None, shown("adam; fedu, fedema, fedsimsiam sgd")
    ] = None
    """Of the first stage; sgd has momentum 0.9 and a cosine over the rounds."""
    learning_rate: Annotated[
        tuple[float, ...], shown("adam 0.0003, conv and mlp 0.001; sgd 0.032")
    ] = ()
    """Of the first stage."""
    cluster_learning_rate: Annotated[
        tuple[float, ...], shown("0.0003, conv and mlp 0.001")
    ] = ()
    """Of the second stage's Adam."""
    instance_temperature: Annotated[tuple[float, ...], shown("0.5")] = ()
    """tau_I of examples."""
    cluster_temperature: Annotated[tuple[float, ...], shown("1")] = ()
    """tau_C of clusters."""
    #: Of the entropies against the contrast of clusters, where there are target
    #: networks: 1 as in equation 9, 0.5 has the ratio of CC.
    entropy_weight: Annotated[tuple[float, ...], shown("1")] = ()
    momentum: Annotated[tuple[float, ...], shown("0.99; conv and mlp 0.9")] = ()
    """m of the target networks."""
    average_target: bool = False
    """fedmcc, mcc: average the target networks too, as in Table VII."""
    threshold: Annotated[tuple[float, ...], shown("0.4")] = ()
    """fedu: divergence (mu) from which a client keeps its own predictor."""
    autoscale: Annotated[tuple[float, ...], shown("0.7")] = ()
    """fedema: share (tau) of its own network in a client's second round."""
    scale: Annotated[tuple[float, ...], shown("by --autoscale")] = ()
    """fedema: the weight (lambda) of a client's divergence, instead."""


LOCAL = {  # Section IV-A
    "num_rounds": 100,
    "local_epochs": 5,
    "batch_size": 128,
    "learning_rate": 3e-4,
    "drop_last": True,  # not in the text: CC's and EasyFL's
    "microbatch": None,
}
SECOND = {
    "cluster_rounds": 10,
    "cluster_learning_rate": 3e-4,
    "cluster_temperature": 1.0,
    "entropy_weight": 1.0,
    "momentum": 0.99,
}
ALONE = {"num_rounds": 500, "local_epochs": 1}  # Figure 5 of MCC
SGD = {"learning_rate": 0.032}  # EasyFL's, for FedU and FedEMA
# Of some hundred steps an average of a hundred would keep the random beginning.
SMALL = {"learning_rate": 1e-3, "cluster_learning_rate": 1e-3, "momentum": 0.9}
DIGITS = {"num_rounds": 20, "cluster_rounds": 20}
SMOKE = {"num_rounds": 2, "cluster_rounds": 1, "local_epochs": 1}


def defaults_of(args: Args, name: Name, shape: tuple[int, ...]) -> dict[str, Any]:
    """Returns by flag what stands for one that is not given."""
    resnet = "resnet34" if name in CENTRAL else "resnet18"
    settings = {**LOCAL, **FIRST[name]}
    settings |= {"backbone": backbone_of(shape, resnet=resnet), "optimizer": "adam"}
    if name in BY_SGD:
        settings |= {"optimizer": "sgd"}
    if name not in ONE_STAGE:
        settings |= {"cluster_by": args.cluster_by}
        if args.cluster_by == "mcc":
            settings |= SECOND
    if name == "fedema" and args.scale:
        settings |= {"scale": None}
    found = {}
    if name in CENTRAL:
        found |= ALONE
    if args.preset != "paper":
        found |= {"drop_last": False}  # of few examples every one counts
    if args.preset != "paper" and settings["backbone"] in ("conv", "mlp"):
        found |= SMALL
    if (args.optimizer or settings["optimizer"]) == "sgd":
        found |= SGD
    if args.preset != "paper" and is_tiny(shape):
        found |= {**DIGITS, "num_rounds": 100} if name in CENTRAL else DIGITS
    if args.preset == "smoke":
        found |= SMOKE
    return settings | {k: v for k, v in found.items() if k in settings}


def describe(
    args: Args, dataset, num_clients: int, num_clusters: int
) -> experiment.Method:
    """Describes the first of the methods that are asked for."""
    name = args.methods[0]
    shape = dataset.examples.shape[1:]
    settings = choose(defaults_of(args, name, shape), args)
    for value in settings.get("momentum", ()):
        if value > 1:
            raise ValueError(f"--momentum must be at most 1, got {value}")
    for flag in ("instance_temperature", "cluster_temperature"):
        if 0 in settings.get(flag, ()):
            raise ValueError(f"--{flag.replace('_', '-')} must be above 0, got 0")
    if 0 in settings.get("cluster_rounds", ()):
        raise ValueError(
            "--cluster-rounds must be at least 1, got 0; --cluster-by k-means takes one"
        )
    if args.microbatch is not None and args.microbatch < 1:
        raise ValueError(f"--microbatch must be at least 1, got {args.microbatch}")
    has_extra = args.extra_split is not None
    first = {*LOCAL, *FIRST[name], "backbone", "optimizer", "scale"}
    representation = plan.Shared(
        name, 1, {flag: value for flag, value in settings.items() if flag in first}
    )
    return experiment.Method(
        name=called(args, name),
        settings=settings,
        build=partial(
            method_of,
            name,
            view=view_of(name, short_name(args.dataset), shape),
            shape=shape,
            num_clusters=num_clusters,
            num_clustered=len(dataset.examples) if has_extra else None,
        ),
        scope="global",
        paper={},
        shared=None if name in ONE_STAGE else representation,
    )


def split(args: Args) -> list[experiment.Task]:
    """Returns an experiment for each method."""
    return several.tasks(args, describe, only)


def only(args: Args, name: Name) -> Args:
    """Returns the flags of one method; a central one has a single client."""
    out = args.out and args.out / called(args, name)
    if name in CENTRAL:
        undealt = {rule: () for rule in deal.RULES} | {"p": (0.0,)}
        args = dataclasses.replace(args, clients=(1,), **undealt)
    return dataclasses.replace(args, methods=(name,), out=out)


def called(args: Args, name: Name) -> str:
    """Returns what a method is called with its second stage."""
    by_kmeans = args.cluster_by == "k-means" and name not in ONE_STAGE
    return f"{name}+k-means" if by_kmeans else name


if __name__ == "__main__":
    several.main(Args, split)
