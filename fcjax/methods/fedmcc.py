"""FedMCC (https://arxiv.org/abs/2206.05093) and the methods of its comparison.

This module has the settings, the defaults, the networks and the augmentations. The
algorithms are in `fcjax.algorithms.fedmcc` and `fcjax.algorithms.fedu`.
"""

import dataclasses
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
from fcjax.privacy.accounting import Part, Parts
from fcjax.privacy.guarantee import Unit, least_members, noise_in
from fcjax.privacy.kmeans import CLUSTERING, STEPS, parts_of
from fcjax.settings import Limits, Positive, Sweep, default, frozen, shown
from fcjax.types import FederatedClustering, Network

FIRST_STAGE = (
    *("num_rounds", "local_epochs", "batch_size", "learning_rate", "drop_last"),
    *("microbatch", "backbone", "optimizer"),
)
"""The settings of local training in the first stage, which all methods have."""
SECOND_STAGE = (
    *("cluster_rounds", "cluster_learning_rate", "cluster_temperature"),
    *("entropy_weight", "momentum"),
)
"""The settings of the cluster projector, as the second stage."""

CLUSTERINGS = {
    "auto": ("max_heterogeneity", "whiten"),
    "k-means": ("whiten",),
    "mcc": (),
}
"""The further settings of each value of `cluster_by`."""

CENTRAL = {"num_rounds": 500, "local_epochs": 1}  # Figure 5 of MCC
SGD = {"learning_rate": 0.032}  # EasyFL's value for FedU and FedEMA
# This momentum was tuned for stages of some hundred steps. There, a target network with
# momentum 0.99 still resembles its random start. More steps were not tried with 0.99.
SMALL = {"learning_rate": 1e-3, "cluster_learning_rate": 1e-3, "momentum": 0.9}
SMOKE = {"num_rounds": 2, "cluster_rounds": 1, "local_epochs": 1}


@frozen
class Contrastive(Method):
    """The methods learn representations with contrastive losses and cluster them.

    Methods for --methods:
      fedmcc            momentum contrast of examples, then clustering (--cluster-by)
      fedu              BYOL with divergence-aware predictors, then clustering
      fedema            BYOL with moving averages of the networks, then clustering
      fedsimsiam        SimSiam, then clustering
      fedsimclr         SimCLR, then clustering
      fed-cc            contrast of examples and of clusters in one stage
      fedmcc-one-stage  fed-cc with target networks
      cc                fed-cc on one client with all examples
      mcc               fedmcc-one-stage on one client with all examples

    In the help of the settings, "small networks" are conv and mlp (--backbone).
    """

    partition_defaults: ClassVar[Mapping[str, Any]] = {"clients": 5, "p": 0.0}
    units = ("clients", "clustering")
    not_private = (
        "the contrastive loss compares the examples of a batch, so that no gradient "
        "belongs to one example"
    )

    cluster_by: Annotated[
        Literal["auto", "mcc", "k-means"] | None,
        shown("auto; --preset paper, cc and mcc: mcc; --epsilon: k-means"),
    ] = None
    """How features are clustered. `mcc` trains a cluster projector on the frozen
    encoder, `k-means` is federated k-means of the features, and `auto` takes k-means
    for heterogeneous clients and the cluster projector otherwise."""
    max_heterogeneity: Sweep[float] = default(UNLIKE)
    """Clients count as heterogeneous above this measured heterogeneity, from 0 to 1.
    Used with `cluster_by` auto."""
    whiten: bool = True
    """Half-whiten the features before k-means."""
    num_rounds: Annotated[
        Sweep[int],
        shown(
            "100; conv: 500 steps (methods with one stage: 1500), at least 20 rounds; "
            "cc, mcc: 500"
        ),
    ] = default(100)
    """Number of rounds of the first or only stage."""
    cluster_rounds: Annotated[
        Sweep[int],
        Limits(least=1),
        shown("10; conv: 1500 steps, at least 10 rounds"),
    ] = default(10)
    """Number of rounds of the second stage, which trains the cluster projector, at
    least 1. Federated k-means does not use this setting."""
    local_epochs: Annotated[Sweep[int], shown("5; cc, mcc: 1")] = default(5)
    """Epochs that a client trains in each round (E)."""
    batch_size: Sweep[int] = default(128)
    """Number of examples in each local step (n)."""
    drop_last: Annotated[bool | None, shown("False; --preset paper: True")] = None
    """Skip the last batch of an epoch if it is not full, as in the code of CC and
    EasyFL."""
    microbatch: Annotated[int | None, Limits(least=1), shown("the whole batch")] = None
    """Number of examples of a batch that a network processes at once, at least 1. A
    small number needs less memory."""
    backbone: Annotated[
        Backbone,
        shown(
            "by the data: conv for grey images, resnet18 for colour images (cc, mcc: "
            "resnet34), -imagenet above 64 pixels, mlp for feature vectors"
        ),
    ] = None
    """The encoder network."""
    optimizer: Annotated[
        Literal["adam", "sgd"] | None,
        shown("adam; fedu, fedema, fedsimsiam: sgd"),
    ] = None
    """Optimizer of the first stage. `sgd` has momentum 0.9, weight decay 0.0005 and a
    cosine schedule over the rounds."""
    learning_rate: Annotated[
        Sweep[float], shown("0.0003; small networks: 0.001; sgd: 0.032")
    ] = default(3e-4)
    """Learning rate of the first stage."""
    cluster_learning_rate: Annotated[
        Sweep[float], shown("0.0003; small networks: 0.001")
    ] = default(3e-4)
    """Learning rate of Adam in the second stage."""
    instance_temperature: Positive = default(0.5)
    """Temperature tau_I of the contrast of examples, above 0."""
    cluster_temperature: Positive = default(1.0)
    """Temperature tau_C of the contrast of clusters, above 0."""
    entropy_weight: Sweep[float] = default(1.0)
    """Weight of the entropy loss relative to the contrast of clusters, in methods with
    target networks. 1 is equation 9; 0.5 is the ratio of CC."""
    momentum: Annotated[
        Sweep[float], Limits(most=1), shown("0.99; small networks: 0.9")
    ] = default(0.99)
    """Momentum m of the target networks, from 0 to 1."""

    of_networks: ClassVar[Callable[..., FederatedClustering]]
    """The builder in `fcjax.algorithms.fedmcc` or `fcjax.algorithms.fedu`."""
    extra_settings: ClassVar[tuple[str, ...]] = ()
    """The settings of the first stage in addition to `FIRST_STAGE`."""
    in_one_stage: ClassVar[bool] = False
    """Whether one stage contrasts both examples and clusters."""
    default_optimizer: ClassVar[str] = "adam"
    """Default of the setting `optimizer`."""

    def resolve(self, problem: Problem) -> MethodSpec:
        """Chooses a value for each setting and returns the method for this problem."""
        first = {*FIRST_STAGE, *self.extra_settings}
        if self.in_one_stage and self.clustering == "k-means":
            raise ValueError(
                f"`cluster_by` must be auto or mcc for {self.name}, got k-means"
            )
        if problem.protected and self.cluster_by is None:
            by = "mcc" if self.in_one_stage else "k-means"
            return dataclasses.replace(self, cluster_by=by).resolve(problem)
        second = {"cluster_by", *CLUSTERINGS[self.clustering]}
        if not self.in_one_stage and self.clustering != "k-means":
            second |= {*SECOND_STAGE}
        settings = self.settings(*self.defaults(problem), names=first | second)
        if problem.protected:
            self.check_private(settings, problem)
        shared = {k: v for k, v in settings.items() if k in first}
        return MethodSpec(
            *(self.full_name(), settings, self.builder(problem), "global"),
            shared=None if self.in_one_stage else Shared(self.name, 1, shared),
        )

    @property
    def withholds(self) -> bool:
        """Whether clients can withhold clusters of few examples."""
        return self.clustering != "mcc"

    def check_private(self, settings: Mapping[str, Any], problem: Problem) -> None:
        """Checks that all uploads of a private run can be protected.

        Args:
            settings: the resolved settings.
            problem: the data and the clients.

        Raises:
            ValueError: a setting needs uploads without noise.
        """
        if self.is_central:
            raise ValueError(
                f"`epsilon` is not available for {self.name}, because it has one client"
            )
        if self.in_one_stage and problem.protected == "clustering":
            raise ValueError(
                f"`privacy_unit` must be clients for {self.name}, got clustering, "
                "because its network also clusters"
            )
        expected = "mcc" if self.in_one_stage else "k-means"
        if self.clustering != expected:
            raise ValueError(
                f"`cluster_by` must be {expected} with `epsilon` for {self.name}, got "
                f"{self.clustering}"
            )
        if settings.get("average_target"):
            raise ValueError("`average_target` must be False with `epsilon`")

    def noisy_sums(self, settings: Mapping[str, Any], unit: Unit) -> Parts:
        """Lists the noisy sums: the rounds of training, and federated k-means."""
        options = {"whitens": settings.get("whiten", False)}
        if unit == "clustering":
            return parts_of(STEPS, **options)
        share = 0.0 if self.in_one_stage else CLUSTERING
        rounds, rate = settings["num_rounds"], settings["sample_rate"]
        training = Part("rounds", 1 - share, rounds, rate)
        if self.in_one_stage:
            return (training,)
        return training, *parts_of(STEPS, share=share, **options)

    @property
    def clustering(self) -> str:
        """The value of `cluster_by`, or its default."""
        is_paper = self.preset == "paper" or self.is_central
        return self.cluster_by or ("mcc" if is_paper else "auto")

    def defaults(self, problem: Problem) -> list[dict[str, Any]]:
        """Returns the settings that preset and data choose; the last value counts.

        Args:
            problem: the data and the clients.

        Returns:
            Mappings from setting to value. A later mapping takes precedence.
        """
        is_paper = self.preset == "paper"
        resnet = "resnet34" if self.is_central else "resnet18"
        backbone = self.backbone or backbone_of(problem.shape, resnet=resnet)
        optimizer = self.optimizer or self.default_optimizer
        # Clients with few examples would lose many of them with `drop_last`.
        values: list[dict[str, Any]] = [
            {"backbone": backbone, "optimizer": optimizer, "drop_last": is_paper},
            {"cluster_by": self.clustering},
        ]
        values += [CENTRAL] if self.is_central else []
        if not is_paper and backbone in ("conv", "mlp"):
            values += [SMALL]
            values += [self.enough_rounds(problem)] if backbone == "conv" else []
        values += [SGD] if optimizer == "sgd" else []
        return [*values, SMOKE] if self.preset == "smoke" else values

    def enough_rounds(self, problem: Problem) -> dict[str, int]:
        """Returns the numbers of rounds for a small network on images.

        With the default epochs and batches, the first stage has about 500 steps, and
        the second or only stage has about 1500 (docs/benchmarks/fedmcc.md).

        Args:
            problem: the data and the clients.

        Returns:
            `num_rounds`, at least 20, and `cluster_rounds`, at least 10.
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
        """Builds the algorithm from the settings of one run."""
        networks = networks_of(settings, problem)
        num_clustered = len(problem.dataset.examples) if problem.has_extra else None
        view = cls.view_of(problem.data, problem.shape)
        local = local_of(settings, view)._replace(keep_optimizer=cls.is_central)
        by_kmeans = partial(
            kmeans_of, settings, problem.num_clusters, num_clustered, local
        )
        if cls.in_one_stage:
            kmeans = None if settings.cluster_by == "mcc" else by_kmeans()
            options = {"num_clustered": num_clustered, "kmeans": kmeans}
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
                num_clustered=num_clustered,
            )
            if settings.cluster_by == "auto":
                second = by_heterogeneity(by_kmeans(), clusters, second)
        heads = cls.heads(projector, is_small=settings.backbone in ("conv", "mlp"))
        return cls.of_networks(settings, encoder, *heads, second, local)

    @staticmethod
    def heads(projector: Network, *, is_small: bool) -> tuple[Network, ...]:
        """Returns the networks of the first stage that follow the encoder.

        Args:
            projector: the projector of CC.
            is_small: whether the encoder is a small network, so that the heads are
                small, too.

        Returns:
            The networks in the order of their application.
        """
        del is_small
        return (projector,)

    @classmethod
    def view_of(cls, dataset: str, shape: tuple[int, ...]) -> Augment:
        """Returns the augmentation for examples of this shape.

        This is the augmentation of CC. Some methods have an augmentation of their own.

        Args:
            dataset: name of the data set without folders.
            shape: shape of an example.

        Returns:
            A function from a key and an example to an augmented example.
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
        """Returns the name of the method and its variant, as in results.csv."""
        by_kmeans = self.cluster_by == "k-means" and not self.in_one_stage
        return f"{self.name}+k-means" if by_kmeans else self.name

    def adapt(self, split: Split, *, labelled: bool) -> Split:
        """Fills the fields of a split that were not given with defaults."""
        split = super().adapt(split, labelled=labelled)
        return one_client(split) if self.is_central else split


@frozen
class Byol(Contrastive):
    """Base class of methods that train BYOL, with the networks of EasyFL's code."""

    default_optimizer = "sgd"

    @staticmethod
    def heads(projector: Network, *, is_small: bool) -> tuple[Network, ...]:
        """Returns the networks of the first stage that follow the encoder."""
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
    extra_settings = ("autoscale", "scale", "momentum")

    autoscale: Sweep[float] = default(0.7)
    """fedema: share (tau) of the client's own network in the average with the global
    network in its second round, from 0 to 1. This share determines `scale`."""
    scale: Annotated[Sweep[float], shown("determined by --autoscale")] = ()
    """fedema: scale (lambda) of a client's divergence. Replaces `autoscale`."""


@frozen
class FedU(Byol):
    """FedU: BYOL with divergence-aware predictors, then clustering.

    Examples:
        >>> FedU(preset="smoke").name
        'fedu'
    """

    name: ClassVar[str] = "fedu"
    of_networks = staticmethod(fedu)
    extra_settings = ("threshold", "momentum")

    threshold: Sweep[float] = default(0.4)
    """fedu: a client keeps its own predictor if its divergence is at least this
    threshold (mu)."""


@frozen
class FedMCC(Contrastive):
    """FedMCC: momentum contrastive representations, then a cluster projector.

    Examples:
        >>> FedMCC(num_rounds=20).full_name(), FedMCC(cluster_by="k-means").full_name()
        ('fedmcc', 'fedmcc+k-means')
    """

    name: ClassVar[str] = "fedmcc"
    of_networks = staticmethod(fedmcc)
    extra_settings = ("instance_temperature", "momentum", "average_target")

    average_target: bool = False
    """fedmcc, fedmcc-one-stage, mcc: average the target networks of the clients, too,
    as in Table VII."""


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
        """Returns the networks of the first stage that follow the encoder."""
        if not is_small:
            return nn.simsiam_projector(), nn.simsiam_predictor()
        return (
            nn.simsiam_projector(size=128, hidden_size=256),
            nn.simsiam_predictor(size=128, hidden_size=64),
        )

    @classmethod
    def view_of(cls, dataset: str, shape: tuple[int, ...]) -> Augment:
        """Returns the augmentation for examples of this shape."""
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
    extra_settings = ("instance_temperature",)


@frozen
class FedCC(Contrastive):
    """Contrastive clustering (CC) under federated averaging, in one stage.

    Examples:
        >>> FedCC(preset="smoke").name
        'fed-cc'
    """

    name: ClassVar[str] = "fed-cc"
    of_networks = staticmethod(cc)
    extra_settings = ("instance_temperature", "cluster_temperature")
    in_one_stage = True


@frozen
class FedMCCOneStage(FedMCC):
    """FedMCC in one stage, which contrasts both examples and clusters.

    Examples:
        >>> FedMCCOneStage(preset="smoke").name
        'fedmcc-one-stage'
    """

    name: ClassVar[str] = "fedmcc-one-stage"
    of_networks = staticmethod(mcc)
    extra_settings = (*FedMCC.extra_settings, "cluster_temperature", "entropy_weight")
    in_one_stage = True


@frozen
class CC(FedCC):
    """Contrastive clustering (CC) on one client with all examples.

    Examples:
        >>> CC(preset="smoke").name
        'cc'
    """

    name: ClassVar[str] = "cc"
    is_central: ClassVar[bool] = True


@frozen
class MCC(FedMCCOneStage):
    """Momentum contrastive clustering (MCC) on one client with all examples.

    Examples:
        >>> MCC(preset="smoke").name
        'mcc'
    """

    name: ClassVar[str] = "mcc"
    is_central: ClassVar[bool] = True


def networks_of(settings: Any, problem: Problem) -> tuple[Network, Network, Network]:
    """Builds the encoder, the projector and the cluster projector of CC.

    Args:
        settings: settings of one run, of which `backbone` is used.
        problem: the data and the clients.

    Returns:
        The encoder, the projector and the cluster projector.
    """
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
    """Builds federated k-means of the features, for `cluster_by` k-means and auto.

    Args:
        settings: settings of one run, of which `whiten`, `cluster_by` and
            `max_heterogeneity` are used.
        num_clusters: K, the number of clusters.
        num_clustered: number of examples to cluster, the first in the pool; None
            clusters all examples.
        local: local training of a client, whose number of examples at a time is used.

    Returns:
        Federated k-means of the features.
    """
    kmeans = FeatureKMeans(
        num_clusters,
        whitening=HALF if settings.whiten else 0.0,
        num_clustered=num_clustered,
        batch_size=local.at_once,
        noise=noise_in(settings),
        min_members=least_members(settings),
    )
    if settings.cluster_by == "k-means":
        return kmeans
    return kmeans._replace(max_heterogeneity=settings.max_heterogeneity)


def local_of(settings: Any, view: Augment) -> Local:
    """Returns the local training of a client in a round of the first stage.

    Args:
        settings: settings of one run.
        view: function from a key and an example to an augmented example.

    Returns:
        The local training, with its optimizer and schedule.
    """
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
