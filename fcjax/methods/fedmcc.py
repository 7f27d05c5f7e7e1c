"""FedMCC: momentum contrastive clustering (https://arxiv.org/abs/2206.05093), and the
methods that it is compared with.

Settings, defaults by the data, networks and views. The algorithms are
`fcjax.algorithms.fedmcc` and `fcjax.algorithms.fedu`.
"""

from collections.abc import Mapping
from functools import partial
from inspect import signature
from math import ceil
from typing import Annotated, Any, ClassVar, Literal

import optax

from fcjax import nn
from fcjax.algorithms.averaging import Local
from fcjax.algorithms.fedmcc import cc, cluster_contrast, feature_kmeans, fedmcc, mcc
from fcjax.algorithms.fedu import fedema, fedsimclr, fedsimsiam, fedu
from fcjax.data.augment import Augment, affine_grey, simsiam_colour, vector_view
from fcjax.methods.base import Method, MethodSpec, Problem, Shared, one_client, taken_by
from fcjax.methods.encoders import Backbone, backbone_of, encoder_of
from fcjax.settings import Limits, Positive, Sweep, default, frozen, shown
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
BUILDERS = {
    "fedmcc": fedmcc,
    "fedu": fedu,
    "fedema": fedema,
    "fedsimsiam": fedsimsiam,
    "fedsimclr": fedsimclr,
    "fed-cc": cc,
    "fedmcc-one-stage": mcc,
    "cc": cc,
    "mcc": mcc,
}
LOCAL = (
    *("local_epochs", "batch_size", "learning_rate", "drop_last", "microbatch"),
    *("backbone", "optimizer"),
)
"""How a client trains, of every method."""
SECOND = (
    *("cluster_rounds", "cluster_learning_rate", "cluster_temperature"),
    *("entropy_weight", "momentum"),
)

ALONE = {"num_rounds": 500, "local_epochs": 1}  # Figure 5 of MCC
SGD = {"learning_rate": 0.032}  # EasyFL's, for FedU and FedEMA
# Momentum was chosen where a stage had some hundred steps, of which an average of a
# hundred keeps the random beginning; 0.99 was not tried with more.
SMALL = {"learning_rate": 1e-3, "cluster_learning_rate": 1e-3, "momentum": 0.9}
SMOKE = {"num_rounds": 2, "cluster_rounds": 1, "local_epochs": 1}


@frozen
class Contrastive(Method):
    """Contrastive clustering in two stages, and the methods it is compared with.

    fedmcc, fedu, fedema, fedsimsiam, fedsimclr: rounds of representation learning, then
    `cluster_by`. fed-cc, fedmcc-one-stage: examples and clusters contrasted at once,
    without and with target networks. cc, mcc: the same on one client that has all data.
    """

    partition_defaults: ClassVar[Mapping[str, Any]] = {"clients": 5, "p": 0.0}

    #: The second stage: mcc trains a cluster projector on the frozen encoder, k-means
    #: clusters the features of all clients in one place.
    cluster_by: Literal["mcc", "k-means"] = "mcc"
    num_rounds: Sweep[int] = default(100)
    """Rounds of the first stage, or of the only one; cc, mcc 500; conv as many
    as 500 steps take, 1,500 of the only one, in the default's batches, 20 at least."""
    cluster_rounds: Annotated[Sweep[int], Limits(least=1)] = default(10)
    """Rounds of mcc as the second stage, conv as many as 1,500 steps take, 10 at least;
    --cluster-by k-means takes one."""
    local_epochs: Sweep[int] = default(5)
    """E: epochs that a client trains in a round; cc, mcc 1."""
    batch_size: Sweep[int] = default(128)
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
    learning_rate: Sweep[float] = default(3e-4)
    """Of the first stage; sgd 0.032, small networks 0.001."""
    cluster_learning_rate: Sweep[float] = default(3e-4)
    """Of the second stage's Adam; small networks 0.001."""
    instance_temperature: Positive = default(0.5)
    """tau_I of examples."""
    cluster_temperature: Positive = default(1.0)
    """tau_C of clusters."""
    #: Of the entropies against the contrast of clusters, where there are target
    #: networks: 1 as in equation 9, 0.5 has the ratio of CC.
    entropy_weight: Sweep[float] = default(1.0)
    momentum: Annotated[Sweep[float], Limits(most=1)] = default(0.99)
    """m of the target networks; small networks 0.9."""

    def resolve(self, problem: Problem) -> MethodSpec:
        name: Any = self.name
        per_client = ceil(problem.examples_per_client)
        settings = self.settings(
            *chosen(self, name, problem.shape, per_client=per_client),
            names=flags_of(name, self.cluster_by),
        )
        first = flags_of(name)
        shared = Shared(name, 1, {k: v for k, v in settings.items() if k in first})
        view = view_of(name, problem.data, problem.shape)
        some = len(problem.dataset.examples) if problem.has_extra else None

        def build(values: Mapping[str, Any]) -> FederatedClustering:
            numbers = {"num_clusters": problem.num_clusters, "num_clustered": some}
            return method_of(name, values, view, problem.shape, **numbers)

        return MethodSpec(
            *(self.called(), settings, build, "global"),
            shared=None if name in ONE_STAGE else shared,
        )

    def called(self) -> str:
        by_kmeans = self.cluster_by == "k-means" and self.name not in ONE_STAGE
        return f"{self.name}+k-means" if by_kmeans else self.name

    @classmethod
    def adapt(cls, args: Any) -> Any:
        return one_client(args) if cls.is_central else args


@frozen
class FedEMA(Contrastive):
    """FedEMA: BYOL with moving averages of the online networks, then clustering.

    Examples:
        >>> FedEMA(preset="smoke").name
        'fedema'
    """

    name: ClassVar[str] = "fedema"

    autoscale: Sweep[float] = default(0.7)
    """fedema: share (tau) of its own network in a client's second round."""
    scale: Annotated[Sweep[float], shown("by --autoscale")] = ()
    """fedema: the weight (lambda) of a client's divergence, instead."""


@frozen
class FedU(Contrastive):
    """FedU: BYOL with divergence-aware predictors, then clustering.

    Examples:
        >>> FedU(preset="smoke").name
        'fedu'
    """

    name: ClassVar[str] = "fedu"

    threshold: Sweep[float] = default(0.4)
    """fedu: divergence (mu) from which a client keeps its own predictor."""


@frozen
class FedMCC(Contrastive):
    """FedMCC: momentum contrastive representations, then a cluster projector.

    Examples:
        >>> FedMCC(num_rounds=20).called(), FedMCC(cluster_by="k-means").called()
        ('fedmcc', 'fedmcc+k-means')
    """

    name: ClassVar[str] = "fedmcc"

    average_target: bool = False
    """fedmcc, mcc: average the target networks too, as in Table VII."""


@frozen
class FedSimSiam(Contrastive):
    """SimSiam under federated averaging, then clustering.

    Examples:
        >>> FedSimSiam(preset="smoke").name
        'fedsimsiam'
    """

    name: ClassVar[str] = "fedsimsiam"


@frozen
class FedSimCLR(Contrastive):
    """SimCLR under federated averaging, then clustering.

    Examples:
        >>> FedSimCLR(preset="smoke").name
        'fedsimclr'
    """

    name: ClassVar[str] = "fedsimclr"


@frozen
class FedCC(Contrastive):
    """Contrastive clustering of examples and clusters at once, under averaging.

    Examples:
        >>> FedCC(preset="smoke").name
        'fed-cc'
    """

    name: ClassVar[str] = "fed-cc"


@frozen
class FedMCCOneStage(FedMCC):
    """FedMCC with examples and clusters contrasted at once.

    Examples:
        >>> FedMCCOneStage(preset="smoke").name
        'fedmcc-one-stage'
    """

    name: ClassVar[str] = "fedmcc-one-stage"


@frozen
class CC(Contrastive):
    """Contrastive clustering on one client that has all data.

    Examples:
        >>> CC(preset="smoke").name
        'cc'
    """

    name: ClassVar[str] = "cc"
    is_central: ClassVar[bool] = True


@frozen
class MCC(FedMCC):
    """Momentum contrastive clustering on one client that has all data.

    Examples:
        >>> MCC(preset="smoke").name
        'mcc'
    """

    name: ClassVar[str] = "mcc"
    is_central: ClassVar[bool] = True


def flags_of(name: Name, cluster_by: str = "") -> set[str]:
    """Returns the flags that a method has; of its first stage alone without
    `cluster_by`."""
    found = {*LOCAL, *signature(BUILDERS[name]).parameters}
    if cluster_by and name not in ONE_STAGE:
        found |= {"cluster_by", *(SECOND if cluster_by == "mcc" else ())}
    return found


def chosen(
    args: Any, name: Name, shape: tuple[int, ...], *, per_client: int
) -> list[dict[str, Any]]:
    """Returns what presets and the data choose, each before what wins over it."""
    is_paper = args.preset == "paper"
    resnet = "resnet34" if name in CENTRAL else "resnet18"
    backbone = args.backbone or backbone_of(shape, resnet=resnet)
    optimizer = "sgd" if name in BY_SGD else "adam"
    # Of few examples every one counts.
    found = [{"backbone": backbone, "optimizer": optimizer, "drop_last": is_paper}]
    found += [ALONE] if name in CENTRAL else []
    if not is_paper and backbone in ("conv", "mlp"):
        found += [SMALL]
        found += [enough_rounds(name, per_client)] if backbone == "conv" else []
    found += [SGD] if (args.optimizer or optimizer) == "sgd" else []
    return [*found, SMOKE] if args.preset == "smoke" else found


def enough_rounds(name: Name, per_client: int) -> dict[str, int]:
    """Returns the rounds in which a small network of images takes enough steps, by the
    default's epochs and batches (docs/benchmarks/fedmcc.md): some 500 in the first
    stage and 1,500 in the second, or in the only one."""
    epochs = 1 if name in CENTRAL else 5
    steps = epochs * -(-per_client // 128)
    first = 1500 if name in ONE_STAGE else 500
    return {
        "num_rounds": max(20, -(-first // steps)),
        "cluster_rounds": max(10, -(-1500 // steps)),
    }


def view_of(name: Name, dataset: str, shape: tuple[int, ...]) -> Augment:
    """Returns the augmentation for examples of this shape: CC's, but for the methods
    that have one of their own.

    Args:
        name: of the method.
        dataset: its name without folders.
        shape: of an example.
    """
    if len(shape) == 1:
        return vector_view
    if shape[2] == 1:
        return affine_grey
    if name == "fedsimsiam":
        return simsiam_colour
    is_mild = dataset.startswith(("cifar", "tiny")) and name not in BY_SGD
    strength = 0.5 if is_mild else 1.0
    blurs = max(shape[:2]) > 96 and not dataset.startswith(("cifar", "stl"))
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
    channels = (256, 256) if values["backbone"] == "mlp" else (16, 32, 64)
    layers = encoder_of(values["backbone"], shape, channels=channels)
    encoder = nn.encoder(layers)
    width = 256 if is_small else None
    projector = nn.projector(128, hidden_size=width)
    clusters = nn.cluster_projector(num_clusters, hidden_size=width)
    local = local_of(values, view)._replace(keep_optimizer=name in CENTRAL)
    build: Any = BUILDERS[name]
    settings = taken_by(build, values)
    if name in ONE_STAGE:
        heads = (projector, clusters)
        return build(encoder, *heads, local, num_clustered=num_clustered, **settings)

    if values["cluster_by"] == "k-means":
        second = feature_kmeans(
            num_clusters=num_clusters,
            num_clustered=num_clustered,
            batch_size=local.at_once,
        )
    else:
        adam = optax.adam(values["cluster_learning_rate"])
        constant = optax.constant_schedule(1.0)
        second = cluster_contrast(
            clusters,
            local._replace(optimizer=adam, schedule=constant),
            num_rounds=values["cluster_rounds"],
            cluster_temperature=values["cluster_temperature"],
            entropy_weight=values["entropy_weight"],
            momentum=values["momentum"],
            average_target=values.get("average_target", False),
            num_clustered=num_clustered,
        )
    if name in ("fedmcc", "fedsimclr"):
        return build(encoder, projector, second, local, **settings)
    if name == "fedsimsiam":
        sizes = {"size": 128, "hidden_size": 256} if is_small else {}
        projector = nn.simsiam_projector(**sizes)
        predictor = nn.simsiam_predictor(
            **{**sizes, "hidden_size": 64} if is_small else {}
        )
    else:
        sizes = {"size": 128, "hidden_size": 512} if is_small else {}
        projector, predictor = nn.byol_head(**sizes), nn.byol_head(**sizes)
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
        drop_last=values["drop_last"],
    )
