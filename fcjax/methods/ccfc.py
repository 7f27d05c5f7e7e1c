"""CCFC: cluster-contrastive federated clustering (https://arxiv.org/abs/2401.06634).

Settings, defaults by the data, networks and views. The algorithm is
`fcjax.algorithms.ccfc`.
"""

from collections.abc import Mapping
from functools import partial
from math import ceil, log2
from typing import Annotated, Any, ClassVar, Literal

import optax

from fcjax import nn
from fcjax.algorithms.ccfc import CONSTANT, ccfc
from fcjax.data.augment import (
    Augment,
    affine_grey,
    ccfc_grey,
    simsiam_colour,
    vector_view,
)
from fcjax.federated.kmeans import UNLIKE
from fcjax.methods import paper_scores_ccfc
from fcjax.methods.base import Method, MethodSpec, Problem, fields_of
from fcjax.methods.encoders import (
    Kind,
    backbone_of,
    encoder_of,
    is_grey,
    is_small,
    is_tiny,
)
from fcjax.settings import Sweep, as_tuple, default, frozen, shown
from fcjax.types import FederatedClustering, Network

Backbone = Annotated[
    Kind | Literal["conv-small"] | None,
    shown(
        "conv-small; --preset paper conv, colour resnet18; colour above 64 pixels "
        "resnet18-imagenet; vectors mlp"
    ),
]
"""A flag. conv has three convolutions of 64 to 256 features, conv-small begins with 32
and has two, more above 32 pixels; else as `encoders.Backbone`."""
View = Literal["affine", "crop"]
"""How a grey image is varied: by an affine map, or as in the authors' code."""


@frozen
class CCFC(Method):
    """CCFC: SimSiam and cluster contrast under federated averaging.

    Settings that take several values span a grid. Whole numbers (clients, batch size)
    have a program each, all else is one program. What is said of images is of grey
    ones, and of colour ones of up to 64 pixels.

    Examples:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(60, 4))
        >>> site = np.repeat(["north", "south", "west"], 20)
        >>> method = CCFC(preset="smoke", latent_size=8)
        >>> method.fit_predict(x, clients=site, num_clusters=2).shape
        (60,)
    """

    name: ClassVar[str] = "ccfc"

    pretrain_rounds: Sweep[int] = default(100)
    """Rounds of SimSiam that come first; of images by how many there are."""
    cluster_rounds: Sweep[int] = default(30)
    """Rounds of cluster contrast; 10 of images, 0 with small batches."""
    local_epochs: Sweep[int] = default(1)
    """Epochs that a client trains in a round; more of few rows and large images."""
    batch_size: Sweep[int] = default(128)
    """Examples in a local step; fewer of few examples, at most 50 of images."""
    backbone: Backbone = None
    """The encoder."""
    view: Annotated[View | None, shown("affine; --preset paper crop")] = None
    """How a grey image is varied: `affine` in size, place, slant and thickness, `crop`
    as in the authors' code."""
    latent_size: Sweep[int] = default(256)
    """Size of the embedding."""
    learning_rate: Sweep[float] = default(1e-3)
    """Of the clients' Adam; 0.005 of images."""
    schedule: Annotated[
        Literal["constant", "cosine"] | None, shown("constant; images cosine")
    ] = None
    """Of the learning rate over the rounds of cluster contrast: cosine falls to 0."""
    model_weight: Sweep[float] = default(1e-3)
    """Weight (lambda) of the model-contrastive term; the paper's for its data sets."""
    decorrelation_weight: Sweep[float] = default(0.0)
    """Weight (eta) of CCFC++'s term against collapse into few directions, as far as it
    is known; 0.1, up to 1 with many clusters; 0 with --preset paper."""
    sample_contrastive: bool = False
    """SCFC: contrast examples, not clusters, in the second stage too."""
    standalone: bool = False
    """Clients train alone: nothing is uploaded or downloaded."""
    own_init: Annotated[bool | None, shown("no; --preset paper yes")] = None
    """Average unrelated networks after a first round, as the authors' code does: True
    or False."""
    cluster_by: Annotated[
        Literal["k-means", "ccfc"] | None,
        shown("k-means; --preset paper and --standalone ccfc"),
    ] = None
    """The clustering: `k-means` is federated k-means of the embedding, by sums and
    counts. `ccfc` is the paper's: the server clusters the clients' local centroids."""
    max_heterogeneity: Sweep[float] = default(UNLIKE)
    """Contrast clusters only if the measured heterogeneity of the clients, from 0 to 1,
    is at most this. With `cluster_by="k-means"`."""
    whiten: bool = True
    """Half-whiten the embedding before federated k-means."""
    num_init: Sweep[int] = default(10)
    """Seedings of the clients' and the server's k-means; the best counts."""
    include_self: bool = True
    """An example is a pair with itself, as in the authors' code and not in Eq. 1."""
    euclidean: bool = False
    """Pseudo-labels by distance, as in Eq. 3, not by cosine as in the authors' code."""

    def resolve(self, problem: Problem) -> MethodSpec:
        chosen = self.chosen(problem)
        others = KMEANS if self.clustering == "ccfc" else ()
        names = [name for name in fields_of(type(self)) if name not in others]
        settings = self.settings(*chosen, names=names)
        if not any((*settings["pretrain_rounds"], *settings["cluster_rounds"])):
            # Federated k-means would cluster the embedding of an untrained network.
            raise ValueError(f"{self.name} is given no round to run, take one")
        is_ablation = self.sample_contrastive or self.standalone
        return MethodSpec(
            name=self.name,
            settings=settings,
            build=self.builder(problem),
            scope="client-pooled" if self.standalone else "global",
            evaluate_every=evaluate_every(settings),
            paper={}
            if is_ablation
            else paper_scores_ccfc.scores_of(problem.data, "CCFC"),
        )

    @property
    def clustering(self) -> str:
        """`cluster_by`, or its default."""
        is_paper = self.preset == "paper" or self.standalone
        return self.cluster_by or ("ccfc" if is_paper else "k-means")

    def chosen(self, problem: Problem) -> list[dict[str, Any]]:
        """Returns the settings that preset and data choose, the strongest last."""
        shape = problem.shape
        of_data = {
            "backbone": backbone_of(shape),
            "own_init": False,
            "schedule": "constant",
            "cluster_by": self.clustering,
        }
        if self.preset == "paper":
            pretrains = 0 not in as_tuple(self.pretrain_rounds)
            of_data |= {"own_init": pretrains}
            of_data |= {"view": "crop"} if is_grey(shape) else {}
        elif is_grey(shape) or is_small(shape):
            of_data |= of_images(
                ceil(problem.examples_per_client),
                problem.num_clients,
                problem.num_clusters,
            )
            of_data |= {"view": "affine"} if is_grey(shape) else {}
        else:
            of_data |= steps_of_others(ceil(problem.examples_per_client))
        if self.preset != "paper":
            weight = against_collapse(problem.num_clusters)
            of_data |= {"decorrelation_weight": weight}
        smoke = SMOKE if self.preset == "smoke" else {}
        return [PAPER.get(problem.data, {}), of_data, smoke]

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        return ccfc(
            settings,
            network_of(settings, problem.shape),
            optax.adam(settings.learning_rate),
            view_of(settings.view, problem.shape),
            num_clusters=problem.num_clusters,
            schedule=schedule_of(settings),
        )


def evaluate_every(settings: Mapping[str, Any]) -> int:
    """Returns the rounds between two evaluations: the clusters of a round take a
    quarter of the time of one epoch of training. Before federated k-means there are no
    clusters to evaluate.
    """
    if settings["cluster_by"] == "k-means":
        return 10
    return -(-4 // max(1, *settings["local_epochs"]))


KMEANS = ("max_heterogeneity", "whiten")
"""The settings of federated k-means."""
SMOKE = {"pretrain_rounds": 2, "cluster_rounds": 1, "local_epochs": 1}
PAPER = {  # Section 4.1
    "fashion_mnist": {"latent_size": 64, "model_weight": 1.0},
    "cifar10": {"model_weight": 0.1},
    "stl10": {"model_weight": 0.1},
}


def of_images(per_client: int, num_clients: int, num_clusters: int) -> dict[str, Any]:
    """Returns what is the default for images (docs/benchmarks/ccfc.md).

    Small batches at a high rate, which falls as clusters are contrasted, first a
    thousand steps or as many rounds as the code's (of few images more). Where a batch
    has fewer examples than there are clusters few of them have a partner, and clusters
    are not contrasted.
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
    }


def against_collapse(num_clusters: int) -> float:
    """Returns the weight of CCFC++'s term, without which unlike clients end in few
    directions: more clusters need more directions (docs/benchmarks/ccfc.md).

    Examples:
        >>> against_collapse(10), against_collapse(40)
        (0.1, 0.8)
    """
    return min(1.0, 0.1 * max(1.0, num_clusters / 10) ** 1.5)


def steps_of_others(per_client: int) -> dict[str, int]:
    """Returns epochs and batches that give clients of few examples enough steps."""
    if per_client >= 1000:
        return {}
    batch_size = min(128, max(16, per_client // 4))
    steps = -(-per_client // batch_size)
    return {"batch_size": batch_size, "local_epochs": -(-16 // steps)}


def schedule_of(settings: Any) -> optax.Schedule:
    """Returns the share of the learning rate in each round of cluster contrast."""
    if settings.schedule == "constant":
        return CONSTANT
    return optax.cosine_decay_schedule(1.0, max(1, settings.cluster_rounds))


def network_of(settings: Any, shape: tuple[int, ...]) -> Network:
    """Returns SimSiam over the encoder of the settings."""
    backbone, latent_size = settings.backbone, settings.latent_size
    if backbone == "mlp" and len(shape) == 1:
        return nn.mlp_simsiam(latent_size=latent_size)
    if backbone == "conv-small" and len(shape) == 3:
        channels = small_channels(max(shape[:2]))
        encoder = encoder_of("conv", shape, channels=channels)
    else:
        encoder = encoder_of(backbone, shape, channels=(64, 128, 256))
    return nn.simsiam(encoder, hidden_size=256, latent_size=latent_size)


def small_channels(side: int) -> tuple[int, ...]:
    """Returns the features of halving convolutions, two or as many as leave at most 8
    of so many pixels.

    Examples:
        >>> small_channels(28), small_channels(64)
        ((32, 64), (32, 64, 128))
    """
    depth = max(2, ceil(log2(side / 8)))
    return tuple(32 * 2**i for i in range(depth))


def view_of(kind: View | None, shape: tuple[int, ...]) -> Augment:
    """Returns the augmentation for examples of this shape.

    Args:
        kind: of grey images; None of others.
        shape: of an example.

    Raises:
        ValueError: the view does not take the examples.
    """
    if (kind is not None) != is_grey(shape):
        raise ValueError(f"`view` {kind} is of grey images, these have {shape}")
    if kind == "affine":
        return affine_grey
    if kind is None:
        return vector_view if len(shape) == 1 else simsiam_colour
    # Few pixels bear little blur, and a nearest-pixel rotation ruins them.
    law = {"blur_probability": 0.0, "order": 1} if is_tiny(shape) else {}
    return partial(ccfc_grey, **law)
