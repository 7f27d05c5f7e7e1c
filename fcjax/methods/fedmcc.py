"""FedMCC: momentum contrastive clustering (https://arxiv.org/abs/2206.05093), and the
methods that it is compared with.

Settings, defaults by the data, networks and views. The algorithms are
`fcjax.algorithms.fedmcc` and `fcjax.algorithms.fedu`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from typing import Annotated, Any, ClassVar, Literal

import optax

from fcjax import nn
from fcjax.algorithms.averaging import Local
from fcjax.algorithms.fedmcc import (
    FeatureKMeans,
    by_heterogeneity,
    cc,
    cluster_contrast,
    feature_kmeans,
    fedmcc,
    mcc,
)
from fcjax.algorithms.fedu import fedema, fedsimclr, fedsimsiam, fedu
from fcjax.data.augment import Augment, affine_grey, simsiam_colour, vector_view
from fcjax.data.split import Split
from fcjax.federated.kmeans import HALF, UNLIKE
from fcjax.methods.base import Method, MethodSpec, Problem, Shared, one_client
from fcjax.methods.encoders import Backbone, backbone_of, encoder_of
from fcjax.settings import Limits, Positive, Sweep, default, frozen, shown
from fcjax.types import FederatedClustering, Network

LOCAL = (
    *("num_rounds", "local_epochs", "batch_size", "learning_rate", "drop_last"),
    *("microbatch", "backbone", "optimizer"),
)
"""How clients train, of every method."""
SECOND = (
    *("cluster_rounds", "cluster_learning_rate", "cluster_temperature"),
    *("entropy_weight", "momentum"),
)

CLUSTERINGS = {
    "auto": ("max_heterogeneity", "whiten"),
    "k-means": ("whiten",),
    "mcc": (),
}
"""The settings of k-means, by `cluster_by`."""

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

    cluster_by: Annotated[
        Literal["auto", "mcc", "k-means"] | None,
        shown("auto; --preset paper, cc and mcc mcc"),
    ] = None
    """The clustering: `mcc` trains a cluster projector on the frozen encoder, `k-means`
    is federated k-means of the features. `auto` measures how unlike the clients are:
    k-means for unlike clients, the cluster projector for alike ones."""
    max_heterogeneity: Sweep[float] = default(UNLIKE)
    """With `auto`: the clients are unlike above this measured heterogeneity, 0 to 1."""
    whiten: bool = True
    """Half-whiten the features before k-means."""
    num_rounds: Sweep[int] = default(100)
    """Rounds of the first stage, or of the only one; cc, mcc 500; conv as many
    as 500 steps take, 1,500 of the only one, in the default's batches, 20 at least."""
    cluster_rounds: Annotated[Sweep[int], Limits(least=1)] = default(10)
    """Rounds of mcc as the second stage, conv as many as 1,500 steps take, 10 at least;
    --cluster-by k-means takes none."""
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
    optimizer: Annotated[Literal["adam", "sgd"] | None, shown("by the method")] = None
    """Of the first stage: adam, or as of fedu, fedema and fedsimsiam sgd, which has
    momentum 0.9 and a cosine over the rounds."""
    learning_rate: Sweep[float] = default(3e-4)
    """Of the first stage; sgd 0.032, small networks 0.001."""
    cluster_learning_rate: Sweep[float] = default(3e-4)
    """Of the second stage's Adam; small networks 0.001."""
    instance_temperature: Positive = default(0.5)
    """tau_I of examples."""
    cluster_temperature: Positive = default(1.0)
    """tau_C of clusters."""
    entropy_weight: Sweep[float] = default(1.0)
    """Of the entropies against the contrast of clusters, where there are target
    networks: 1 as in equation 9, 0.5 has the ratio of CC."""
    momentum: Annotated[Sweep[float], Limits(most=1)] = default(0.99)
    """m of the target networks; small networks 0.9."""

    of_networks: ClassVar[Callable[..., FederatedClustering]]
    """The builder in `fcjax.algorithms.fedmcc` or `fcjax.algorithms.fedu`."""
    own: ClassVar[tuple[str, ...]] = ()
    """The settings of the first stage, or of the only one, beside `LOCAL`."""
    in_one_stage: ClassVar[bool] = False
    """Whether examples and clusters are contrasted at once."""
    default_optimizer: ClassVar[str] = "adam"

    def resolve(self, problem: Problem) -> MethodSpec:
        first, chosen = {*LOCAL, *self.own}, self.chosen(problem)
        if self.in_one_stage and self.clustering == "k-means":
            raise ValueError(
                f"`cluster_by` must be auto or mcc for {self.name}, got k-means"
            )
        second = {"cluster_by", *CLUSTERINGS[self.clustering]}
        if not self.in_one_stage and self.clustering != "k-means":
            second |= {*SECOND}
        settings = self.settings(*chosen, names=first | second)
        shared = {k: v for k, v in settings.items() if k in first}
        return MethodSpec(
            *(self.full_name(), settings, self.builder(problem), "global"),
            shared=None if self.in_one_stage else Shared(self.name, 1, shared),
        )

    @property
    def clustering(self) -> str:
        """`cluster_by`, or its default."""
        is_paper = self.preset == "paper" or self.is_central
        return self.cluster_by or ("mcc" if is_paper else "auto")

    def chosen(self, problem: Problem) -> list[dict[str, Any]]:
        """Returns the values that presets and data choose; a later one wins."""
        is_paper = self.preset == "paper"
        resnet = "resnet34" if self.is_central else "resnet18"
        backbone = self.backbone or backbone_of(problem.shape, resnet=resnet)
        optimizer = self.optimizer or self.default_optimizer
        # Of few examples every one counts.
        found: list[dict[str, Any]] = [
            {"backbone": backbone, "optimizer": optimizer, "drop_last": is_paper},
            {"cluster_by": self.clustering},
        ]
        found += [ALONE] if self.is_central else []
        if not is_paper and backbone in ("conv", "mlp"):
            found += [SMALL]
            found += [self.enough_rounds(problem)] if backbone == "conv" else []
        found += [SGD] if optimizer == "sgd" else []
        return [*found, SMOKE] if self.preset == "smoke" else found

    def enough_rounds(self, problem: Problem) -> dict[str, int]:
        """Returns the rounds in which a small network of images takes enough steps, by
        the default's epochs and batches (docs/benchmarks/fedmcc.md): some 500 in the
        first stage and 1,500 in the second, or in the only one.
        """
        epochs = 1 if self.is_central else 5
        steps = epochs * -(-ceil(problem.examples_per_client) // 128)
        first = 1500 if self.in_one_stage else 500
        return {
            "num_rounds": max(20, -(-first // steps)),
            "cluster_rounds": max(10, -(-1500 // steps)),
        }

    @classmethod
    def algorithm(cls, settings: Any, problem: Problem) -> FederatedClustering:
        networks = networks_of(settings, problem)
        some = len(problem.dataset.examples) if problem.has_extra else None
        view = cls.view_of(problem.data, problem.shape)
        local = local_of(settings, view)._replace(keep_optimizer=cls.is_central)
        by_kmeans = partial(kmeans_of, settings, problem.num_clusters, some, local)
        if cls.in_one_stage:
            kmeans = None if settings.cluster_by == "mcc" else by_kmeans()
            options = {"num_clustered": some, "kmeans": kmeans}
            return cls.of_networks(settings, *networks, local, **options)
        encoder, projector, clusters = networks
        if settings.cluster_by == "k-means":
            second = feature_kmeans(by_kmeans())
        else:
            adam = optax.adam(settings.cluster_learning_rate)
            constant = optax.constant_schedule(1.0)
            second = cluster_contrast(
                *(settings, clusters),
                local._replace(optimizer=adam, schedule=constant),
                num_clustered=some,
            )
            if settings.cluster_by == "auto":
                second = by_heterogeneity(by_kmeans(), clusters, second)
        heads = cls.heads(projector, is_small=settings.backbone in ("conv", "mlp"))
        return cls.of_networks(settings, encoder, *heads, second, local)

    @staticmethod
    def heads(projector: Network, *, is_small: bool) -> tuple[Network, ...]:
        """Returns the networks that the first stage has behind the encoder."""
        del is_small
        return (projector,)

    @classmethod
    def view_of(cls, dataset: str, shape: tuple[int, ...]) -> Augment:
        """Returns the augmentation for examples of this shape: CC's, but for the
        methods that have one of their own.

        Args:
            dataset: its name without folders.
            shape: of an example.
        """
        if len(shape) == 1:
            return vector_view
        if shape[2] == 1:
            return affine_grey
        is_byol = issubclass(cls, Byol)
        strength = 0.5 if dataset.startswith(("cifar", "tiny")) and not is_byol else 1.0
        blurs = max(shape[:2]) > 96 and not dataset.startswith(("cifar", "stl"))
        return partial(
            simsiam_colour,
            crop_scale=(0.08, 1.0),
            brightness=0.8 * strength,
            contrast=0.8 * strength,
            saturation=0.8 * strength,
            hue=0.2 * strength,
            blur_probability=0.5 if blurs and not is_byol else 0.0,
        )

    def full_name(self) -> str:
        by_kmeans = self.cluster_by == "k-means" and not self.in_one_stage
        return f"{self.name}+k-means" if by_kmeans else self.name

    def adapt(self, split: Split, *, labelled: bool) -> Split:
        split = super().adapt(split, labelled=labelled)
        return one_client(split) if self.is_central else split


@frozen
class Byol(Contrastive):
    """BYOL on the clients, with heads and rates of EasyFL's code."""

    default_optimizer = "sgd"

    @staticmethod
    def heads(projector: Network, *, is_small: bool) -> tuple[Network, ...]:
        sizes = {"size": 128, "hidden_size": 512} if is_small else {}
        return nn.byol_head(**sizes), nn.byol_head(**sizes)


@frozen
class FedEMA(Byol):
    """FedEMA: BYOL with moving averages of the online networks, then clustering.

    Examples:
        >>> FedEMA(preset="smoke").name
        'fedema'
    """

    name: ClassVar[str] = "fedema"
    of_networks = staticmethod(fedema)
    own = ("autoscale", "scale", "momentum")

    autoscale: Sweep[float] = default(0.7)
    """fedema: share (tau) of its own network in a client's second round."""
    scale: Annotated[Sweep[float], shown("by --autoscale")] = ()
    """fedema: the weight (lambda) of a client's divergence, instead."""


@frozen
class FedU(Byol):
    """FedU: BYOL with divergence-aware predictors, then clustering.

    Examples:
        >>> FedU(preset="smoke").name
        'fedu'
    """

    name: ClassVar[str] = "fedu"
    of_networks = staticmethod(fedu)
    own = ("threshold", "momentum")

    threshold: Sweep[float] = default(0.4)
    """fedu: divergence (mu) from which a client keeps its own predictor."""


@frozen
class FedMCC(Contrastive):
    """FedMCC: momentum contrastive representations, then a cluster projector.

    Examples:
        >>> FedMCC(num_rounds=20).full_name(), FedMCC(cluster_by="k-means").full_name()
        ('fedmcc', 'fedmcc+k-means')
    """

    name: ClassVar[str] = "fedmcc"
    of_networks = staticmethod(fedmcc)
    own = ("instance_temperature", "momentum", "average_target")

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
    of_networks = staticmethod(fedsimsiam)
    default_optimizer = "sgd"

    @staticmethod
    def heads(projector: Network, *, is_small: bool) -> tuple[Network, ...]:
        if not is_small:
            return nn.simsiam_projector(), nn.simsiam_predictor()
        return (
            nn.simsiam_projector(size=128, hidden_size=256),
            nn.simsiam_predictor(size=128, hidden_size=64),
        )

    @classmethod
    def view_of(cls, dataset: str, shape: tuple[int, ...]) -> Augment:
        is_colour = len(shape) == 3 and shape[2] > 1
        return simsiam_colour if is_colour else super().view_of(dataset, shape)


@frozen
class FedSimCLR(Contrastive):
    """SimCLR under federated averaging, then clustering.

    Examples:
        >>> FedSimCLR(preset="smoke").name
        'fedsimclr'
    """

    name: ClassVar[str] = "fedsimclr"
    of_networks = staticmethod(fedsimclr)
    own = ("instance_temperature",)


@frozen
class FedCC(Contrastive):
    """Contrastive clustering of examples and clusters at once, under averaging.

    Examples:
        >>> FedCC(preset="smoke").name
        'fed-cc'
    """

    name: ClassVar[str] = "fed-cc"
    of_networks = staticmethod(cc)
    own = ("instance_temperature", "cluster_temperature")
    in_one_stage = True


@frozen
class FedMCCOneStage(FedMCC):
    """FedMCC with examples and clusters contrasted at once.

    Examples:
        >>> FedMCCOneStage(preset="smoke").name
        'fedmcc-one-stage'
    """

    name: ClassVar[str] = "fedmcc-one-stage"
    of_networks = staticmethod(mcc)
    own = (*FedMCC.own, "cluster_temperature", "entropy_weight")
    in_one_stage = True


@frozen
class CC(FedCC):
    """Contrastive clustering on one client that has all data.

    Examples:
        >>> CC(preset="smoke").name
        'cc'
    """

    name: ClassVar[str] = "cc"
    is_central: ClassVar[bool] = True


@frozen
class MCC(FedMCCOneStage):
    """Momentum contrastive clustering on one client that has all data.

    Examples:
        >>> MCC(preset="smoke").name
        'mcc'
    """

    name: ClassVar[str] = "mcc"
    is_central: ClassVar[bool] = True


def networks_of(settings: Any, problem: Problem) -> tuple[Network, Network, Network]:
    """Returns the encoder, the projector and the cluster projector of CC."""
    width = 256 if settings.backbone in ("conv", "mlp") else None
    channels = (256, 256) if settings.backbone == "mlp" else (16, 32, 64)
    layers = encoder_of(settings.backbone, problem.shape, channels=channels)
    return (
        nn.encoder(layers),
        nn.projector(128, hidden_size=width),
        nn.cluster_projector(problem.num_clusters, hidden_size=width),
    )


def kmeans_of(
    settings: Any, num_clusters: int, num_clustered: int | None, local: Local
) -> FeatureKMeans:
    """Returns k-means of the features, where `cluster_by` is not mcc."""
    kmeans = FeatureKMeans(
        num_clusters,
        whitening=HALF if settings.whiten else 0.0,
        num_clustered=num_clustered,
        batch_size=local.at_once,
    )
    if settings.cluster_by == "k-means":
        return kmeans
    return kmeans._replace(max_heterogeneity=settings.max_heterogeneity)


def local_of(settings: Any, view: Augment) -> Local:
    """Returns how a client trains in a round of the first stage."""
    if settings.optimizer == "adam":
        optimizer = optax.adam(settings.learning_rate)
        schedule = optax.constant_schedule(1.0)
    else:
        optimizer = optax.chain(
            optax.add_decayed_weights(5e-4),
            optax.sgd(settings.learning_rate, momentum=0.9),
        )
        schedule = optax.cosine_decay_schedule(1.0, max(1, settings.num_rounds))
    return Local(
        optimizer,
        view,
        num_epochs=settings.local_epochs,
        batch_size=settings.batch_size,
        schedule=schedule,
        microbatch=settings.microbatch,
        drop_last=settings.drop_last,
    )
