"""FedMCC: momentum contrastive clustering (https://arxiv.org/abs/2206.05093).

python experiments/fedmcc.py
python experiments/fedmcc.py --methods fedmcc fed-cc fedu --class-share 1 0.2
python experiments/fedmcc.py --methods fedu fedema --cluster-by k-means
python experiments/fedmcc.py --methods mcc cc
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import optax
import tyro
from encoders import Backbone, backbone_of, encoder_of, is_tiny

from fcjax import experiment, hosts, models, report
from fcjax.algorithms.averaging import Local
from fcjax.algorithms.cc import cc
from fcjax.algorithms.fedema import fedema
from fcjax.algorithms.fedmcc import cluster_contrast, fedmcc, mcc
from fcjax.algorithms.fedsimclr import fedsimclr
from fcjax.algorithms.fedsimsiam import fedsimsiam
from fcjax.algorithms.fedu import fedu
from fcjax.algorithms.two_stage import feature_kmeans
from fcjax.data.augment import Augment, ccfc_grey
from fcjax.data.colour import simsiam_colour
from fcjax.data.vectors import vector_view
from fcjax.flags import Common, choose, shown
from fcjax.types import FederatedClustering

Name = Literal[
    "fedmcc",
    "fedu",
    "fedema",
    "fedsimsiam",
    "fedsimclr",
    "fed-cc",
    "fedmcc-one-stage",
    "cc",
    "mcc",
]
CENTRAL = ("cc", "mcc")
ONE_STAGE = ("fed-cc", "fedmcc-one-stage", *CENTRAL)
BY_SGD = ("fedu", "fedema", "fedsimsiam")


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
    "microbatch": None,
}
FIRST = {  # by method, what else its first or only stage takes
    "fedmcc": {
        "instance_temperature": 0.5,
        "momentum": 0.99,
        "average_target": False,
    },
    "fedu": {"threshold": 0.4, "momentum": 0.99},
    "fedema": {"autoscale": 0.7, "momentum": 0.99},
    "fedsimsiam": {},
    "fedsimclr": {"instance_temperature": 0.5},
    "cc": {"instance_temperature": 0.5, "cluster_temperature": 1.0},
}
FIRST["mcc"] = FIRST["cc"] | FIRST["fedmcc"]
FIRST |= {"fed-cc": FIRST["cc"], "fedmcc-one-stage": FIRST["mcc"]}
SECOND = {
    "cluster_rounds": 10,
    "cluster_learning_rate": 3e-4,
    "cluster_temperature": 1.0,
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
    if args.preset != "paper" and settings["backbone"] in ("conv", "mlp"):
        found |= SMALL
    if (args.optimizer or settings["optimizer"]) == "sgd":
        found |= SGD
    if args.preset != "paper" and is_tiny(shape):
        found |= {**DIGITS, "num_rounds": 100} if name in CENTRAL else DIGITS
    if args.preset == "smoke":
        found |= SMOKE
    return settings | {k: v for k, v in found.items() if k in settings}


def view_of(args: Args, name: Name, shape: tuple[int, ...]) -> Augment:
    """Returns the augmentation for examples of this shape: CC's, but for the methods
    that have one of their own."""
    if len(shape) == 1:
        return vector_view
    if shape[2] == 1:
        # A digit mirrored is none. Mild, as BENCHMARKS.md has it: what a view may do to
        # an example, clusters of frozen features need not tell apart.
        return partial(
            ccfc_grey,
            crop_scale=(0.75, 1.0),
            max_degrees=10.0,
            blur_probability=0.0,
            order=1,
        )
    if name == "fedsimsiam":
        return simsiam_colour
    is_mild = args.dataset.startswith(("cifar", "tiny")) and name not in BY_SGD
    strength = 0.5 if is_mild else 1.0
    blurs = max(shape[:2]) > 96 and not args.dataset.startswith(("cifar", "stl"))
    return partial(
        simsiam_colour,
        crop_scale=(0.08, 1.0),
        brightness=0.8 * strength,
        contrast=0.8 * strength,
        saturation=0.8 * strength,
        hue=0.2 * strength,
        blur_probability=0.5 if blurs and name not in BY_SGD else 0.0,
    )


def method_of(
    name: Name,
    values: Mapping[str, Any],
    view: Augment,
    shape: tuple[int, ...],
    *,
    num_clusters: int,
    num_clustered: int | None,
) -> FederatedClustering:
    """Builds one of the methods from the settings of a run."""
    is_small = values["backbone"] in ("conv", "mlp")
    layers = encoder_of(values["backbone"], shape, channels=(16, 32, 64))
    encoder = models.encoder(layers)
    width = 256 if is_small else None
    projector = models.projector(128, hidden_size=width)
    clusters = models.cluster_projector(num_clusters, hidden_size=width)
    local = local_of(values, view)._replace(keep_optimizer=name in CENTRAL)
    own = {"num_rounds", *FIRST[name]} | ({"scale"} if name == "fedema" else set())
    settings = {k: v for k, v in values.items() if k in own}
    if name in ONE_STAGE:
        build = cc if name in ("cc", "fed-cc") else mcc
        return build(
            encoder,
            projector,
            clusters,
            local,
            num_clustered=num_clustered,
            **settings,
        )

    if values["cluster_by"] == "k-means":
        second = feature_kmeans(
            num_clusters=num_clusters,
            num_clustered=num_clustered,
            batch_size=values["batch_size"],
        )
    else:
        adam = optax.adam(values["cluster_learning_rate"])
        constant = optax.constant_schedule(1.0)
        second = cluster_contrast(
            clusters,
            local._replace(optimizer=adam, schedule=constant),
            num_rounds=values["cluster_rounds"],
            temperature=values["cluster_temperature"],
            momentum=values["momentum"],
            average_target=values.get("average_target", False),
            num_clustered=num_clustered,
        )
    if name == "fedmcc":
        return fedmcc(encoder, projector, second, local, **settings)
    if name == "fedsimclr":
        temperature = settings.pop("instance_temperature")
        return fedsimclr(
            encoder, projector, second, local, temperature=temperature, **settings
        )
    if name == "fedsimsiam":
        sizes = {"size": 128, "hidden_size": 256} if is_small else {}
        projector = models.simsiam_projector(**sizes)
        predictor = models.simsiam_predictor(
            **{**sizes, "hidden_size": 64} if is_small else {}
        )
    else:
        sizes = {"size": 128, "hidden_size": 512} if is_small else {}
        projector, predictor = models.byol_head(**sizes), models.byol_head(**sizes)
    build = {"fedsimsiam": fedsimsiam, "fedu": fedu, "fedema": fedema}[name]
    return build(encoder, projector, predictor, second, local, **settings)


def local_of(values: Mapping[str, Any], view: Augment) -> Local:
    """Returns how a client trains in a round of the first stage."""
    if values["optimizer"] == "adam":
        optimizer = optax.adam(values["learning_rate"])
        schedule = optax.constant_schedule(1.0)
    else:
        optimizer = optax.chain(
            optax.add_decayed_weights(5e-4),
            optax.sgd(values["learning_rate"], momentum=0.9),
        )
        schedule = optax.cosine_decay_schedule(1.0, max(1, values["num_rounds"]))
    return Local(
        optimizer,
        view,
        num_epochs=values["local_epochs"],
        batch_size=values["batch_size"],
        schedule=schedule,
        microbatch=values["microbatch"],
    )


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
    by_kmeans = settings.get("cluster_by") == "k-means"
    return experiment.Method(
        name=f"{name}+k-means" if by_kmeans else name,
        settings=settings,
        build=partial(
            method_of,
            name,
            view=view_of(args, name, shape),
            shape=shape,
            num_clusters=num_clusters,
            num_clustered=len(dataset.examples) if has_extra else None,
        ),
        scope="global",
        paper={},
    )


def split(args: Args) -> list[experiment.Task]:
    """Returns an experiment for each method."""
    if len(set(args.methods)) != len(args.methods) or not args.methods:
        raise ValueError(f"--methods takes different methods, got {args.methods}")
    return [(only(args, name), describe) for name in args.methods]


def only(args: Args, name: Name) -> Args:
    """Returns the flags of one method; a central one has a single client."""
    out = args.out and args.out / name if len(args.methods) > 1 else args.out
    if name in CENTRAL:
        args = dataclasses.replace(args, clients=(1,), p=(0.0,))
    return dataclasses.replace(args, methods=(name,), out=out)


def main() -> None:
    args = tyro.cli(Args)
    results = experiment.run(lambda: split(hosts.join(args)))
    if len(results) > 1:
        report.conclude_all(results, folder=args.out)


if __name__ == "__main__":
    main()
