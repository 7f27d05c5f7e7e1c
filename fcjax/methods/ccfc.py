"""CCFC: cluster-contrastive federated clustering (https://arxiv.org/abs/2401.06634).

This module has the settings, the defaults, the networks and the augmentations. The
algorithm is in `fcjax.algorithms.ccfc`.
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
from fcjax.federated.server import FEW
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
from fcjax.privacy.accounting import Part, Parts
from fcjax.privacy.guarantee import Unit
from fcjax.privacy.kmeans import CLUSTERING, STEPS
from fcjax.privacy.kmeans import parts_of as kmeans_parts
from fcjax.settings import Sweep, as_tuple, default, frozen, shown
from fcjax.types import FederatedClustering, Network

Backbone = Annotated[
    Kind | Literal["conv-small"] | None,
    shown(
        "by the data: conv-small for images up to 64 pixels, resnet18-imagenet above, "
        "mlp for feature vectors; --preset paper: conv for grey images, resnet18 for "
        "colour images"
    ),
]
"""Type of the setting `backbone`. `conv` has three convolutions of 64, 128 and 256
features. `conv-small` has convolutions of 32 and 64 features, and more convolutions
above 32 pixels. `encoders.Backbone` describes the other encoders."""
View = Literal["affine", "crop"]
"""The augmentation of grey images: an affine map, or a crop as in the authors' code."""


@frozen
class CCFC(Method):
    """CCFC trains an encoder by federated averaging and clusters its embeddings.

    The first stage trains SimSiam. The second stage, cluster contrast, pulls the
    examples of a cluster together. Several values of a setting span a grid of runs. JAX
    compiles one program per value of a whole number, such as the batch size.

    In the help of the settings, "images" are grey images of any size and colour images
    of at most 64 pixels per side.

    Examples:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(60, 4))
        >>> site = np.repeat(["north", "south", "west"], 20)
        >>> method = CCFC(preset="smoke", latent_size=8)
        >>> method.fit_predict(x, clients=site, num_clusters=2).shape
        (60,)
    """

    name: ClassVar[str] = "ccfc"
    units = ("clients", "clustering")
    not_private = (
        "the contrastive loss compares the examples of a batch, so that no gradient "
        "belongs to one example"
    )

    pretrain_rounds: Annotated[
        Sweep[int],
        shown("100; images: 1000 steps, at least 20 rounds; --preset paper: 100"),
    ] = default(100)
    """Number of rounds of the first stage, SimSiam. 0 skips this stage."""
    cluster_rounds: Annotated[
        Sweep[int],
        shown(
            "30; images: 10, or 0 if batches are small; --preset paper: 30; "
            "--epsilon: 0"
        ),
    ] = default(30)
    """Number of rounds of the second stage, cluster contrast. 0 skips this stage."""
    local_epochs: Annotated[
        Sweep[int], shown("1; more for vectors and large images on small clients")
    ] = default(1)
    """Epochs that a client trains in each round."""
    batch_size: Annotated[
        Sweep[int],
        shown(
            "a quarter of a client's examples, from 16 to 128; images: at most 50 or "
            "the number of clusters; --preset paper: 128"
        ),
    ] = default(128)
    """Number of examples in each local step."""
    backbone: Backbone = None
    """The encoder network."""
    view: Annotated[View | None, shown("affine; --preset paper: crop")] = None
    """Augmentation of grey images. `affine` changes size, position, slant and
    thickness; `crop` is the augmentation of the authors' code."""
    latent_size: Annotated[
        Sweep[int], shown("256; fashion_mnist: 64, as in the paper")
    ] = default(256)
    """Number of dimensions of the embedding."""
    learning_rate: Annotated[
        Sweep[float], shown("0.001; images: 0.005; --preset paper: 0.001")
    ] = default(1e-3)
    """Learning rate of the clients' Adam optimizer."""
    optimizer_state: Annotated[
        Literal["kept", "reset"] | None,
        shown("kept up to 100 clients, reset above; --preset paper: kept"),
    ] = None
    """Adam's moments of a client between rounds: `kept`, as in the authors' code, or
    `reset` in every round. `kept` needs memory of several networks per client."""
    schedule: Annotated[
        Literal["constant", "cosine"] | None,
        shown("constant; images: cosine; --preset paper: constant"),
    ] = None
    """Learning rate over the rounds of cluster contrast: `constant`, or `cosine`, which
    falls to 0."""
    model_weight: Annotated[
        Sweep[float],
        shown("0.001; as in the paper: fashion_mnist 1, cifar10 and stl10 0.1"),
    ] = default(1e-3)
    """Weight (lambda) of the model-contrastive loss, at least 0."""
    decorrelation_weight: Annotated[
        Sweep[float],
        shown("0.1 up to 10 clusters, then rising to 1; --preset paper: 0"),
    ] = default(0.0)
    """Weight (eta) of the decorrelation loss of CCFC++, at least 0. This loss prevents
    embeddings that vary in few directions only."""
    sample_contrastive: bool = False
    """Contrast examples instead of clusters in the second stage, too (SCFC)."""
    standalone: bool = False
    """Train each client alone, without uploads and downloads."""
    own_init: Annotated[bool | None, shown("False; --preset paper: True")] = None
    """Start the first round of each client from a random network of its own, as in the
    authors' code. Otherwise all clients start from the same network."""
    cluster_by: Annotated[
        Literal["k-means", "ccfc"] | None,
        shown("k-means; --preset paper and --standalone: ccfc"),
    ] = None
    """How embeddings are clustered. `k-means` is federated k-means, for which clients
    upload sums and counts. `ccfc` is k-means of the clients' centroids on the server,
    as in the paper."""
    max_heterogeneity: Sweep[float] = default(UNLIKE)
    """Skip cluster contrast if the measured heterogeneity of the clients is above this
    value, from 0 to 1. Used with `cluster_by` k-means."""
    whiten: bool = True
    """Half-whiten the embedding before federated k-means."""
    num_init: Sweep[int] = default(10)
    """Number of starts of k-means on clients and server; the best result is kept."""
    include_self: bool = True
    """Count an example and its own augmentation as a pair, as in the authors' code but
    not in Eq. 1."""
    euclidean: bool = False
    """Assign pseudo-labels by Euclidean distance, as in Eq. 3. By default they are
    assigned by cosine similarity, as in the authors' code."""

    def resolve(self, problem: Problem) -> MethodSpec:
        """Chooses a value for each setting and returns the method for this problem."""
        unused = KMEANS if self.clustering == "ccfc" else ()
        names = [name for name in fields_of(type(self)) if name not in unused]
        settings = self.settings(*self.defaults(problem), names=names)
        if not any((*settings["pretrain_rounds"], *settings["cluster_rounds"])):
            # Federated k-means would cluster the embedding of an untrained network.
            raise ValueError(
                "`pretrain_rounds` and `cluster_rounds` must not both be 0"
            )
        if problem.protected:
            self.check_private(settings)
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
    def withholds(self) -> bool:
        """Whether clients can withhold clusters of few examples."""
        return self.clustering == "k-means"

    def check_private(self, settings: Mapping[str, Any]) -> None:
        """Checks that all uploads of a private run can be protected.

        Args:
            settings: the resolved settings.

        Raises:
            ValueError: a setting needs uploads without noise.
        """
        if self.standalone or self.clustering != "k-means":
            raise ValueError("`epsilon` needs `cluster_by` k-means")
        if any(settings["cluster_rounds"]):
            raise ValueError(
                "`cluster_rounds` must be 0 with `epsilon`, because cluster contrast "
                "begins with clusters and a heterogeneity without noise"
            )
        if settings["own_init"]:
            raise ValueError("`own_init` must be False with `epsilon`")

    def noisy_sums(self, settings: Mapping[str, Any], unit: Unit) -> Parts:
        """Lists the noisy sums: the rounds of pre-training, and federated k-means."""
        options = {"whitens": settings["whiten"]}
        if unit == "clustering":
            return kmeans_parts(STEPS, **options)
        rounds = settings["pretrain_rounds"]
        rate = settings["sample_rate"]
        return (
            Part("rounds", 1 - CLUSTERING, rounds, rate),
            *kmeans_parts(STEPS, share=CLUSTERING, **options),
        )

    @property
    def clustering(self) -> str:
        """The value of `cluster_by`, or its default."""
        is_paper = self.preset == "paper" or self.standalone
        return self.cluster_by or ("ccfc" if is_paper else "k-means")

    def defaults(self, problem: Problem) -> list[dict[str, Any]]:
        """Returns the settings that preset and data choose; the last value counts.

        Args:
            problem: the data and the clients.

        Returns:
            Mappings from setting to value. A later mapping takes precedence.
        """
        shape = problem.shape
        of_data = {
            "backbone": backbone_of(shape),
            "own_init": False,
            "schedule": "constant",
            "optimizer_state": "kept",
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
            of_data |= small_client_steps(ceil(problem.examples_per_client))
        if self.preset != "paper":
            if problem.num_clients > FEW:
                of_data |= {"optimizer_state": "reset"}
            weight = against_collapse(problem.num_clusters)
            of_data |= {"decorrelation_weight": weight}
        smoke = SMOKE if self.preset == "smoke" else {}
        if problem.protected:
            of_data |= {"cluster_rounds": 0}
            smoke = {k: x for k, x in smoke.items() if k != "cluster_rounds"}
        return [PAPER.get(problem.data, {}), of_data, smoke]

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        return ccfc(
            settings,
            network_of(settings, problem.shape),
            optax.adam(settings.learning_rate),
            view_of(settings.view, problem.shape),
            num_clusters=problem.num_clusters,
            schedule=schedule_of(settings),
        )


def evaluate_every(settings: Mapping[str, Any]) -> int:
    """Returns the default number of rounds between two evaluations.

    An evaluation of CCFC's own clusters takes a quarter of the time of one epoch of
    training. With federated k-means, there are no clusters before its stage.

    Args:
        settings: the resolved settings, of which `cluster_by` and `local_epochs` are
            used.

    Returns:
        The number of rounds, at least 1.
    """
    if settings["cluster_by"] == "k-means":
        return 10
    return -(-4 // max(1, *settings["local_epochs"]))


KMEANS = ("max_heterogeneity", "whiten")
"""The settings that federated k-means alone uses."""
SMOKE = {"pretrain_rounds": 2, "cluster_rounds": 1, "local_epochs": 1}
PAPER = {  # Section 4.1
    "fashion_mnist": {"latent_size": 64, "model_weight": 1.0},
    "cifar10": {"model_weight": 0.1},
    "stl10": {"model_weight": 0.1},
}


def of_images(per_client: int, num_clients: int, num_clusters: int) -> dict[str, Any]:
    """Returns the defaults for images (docs/benchmarks/ccfc.md).

    Batches are small, and the learning rate is high and falls during cluster contrast.
    The first stage has about 1000 steps per client. If a batch has fewer examples than
    there are clusters, few examples have another example of their cluster in the batch.
    Then cluster contrast is skipped.

    Args:
        per_client: number of examples of a typical client, at least 1.
        num_clients: M, the number of clients.
        num_clusters: K, the number of clusters.

    Returns:
        Values by name of the setting.
    """
    batch_size = min(max(50, num_clusters), max(16, -(-per_client // 4)))
    steps = -(-per_client // batch_size)
    max_rounds = max(100, 180_000 // (per_client * num_clients))
    have_partners = min(batch_size, per_client) >= num_clusters
    return {
        "backbone": "conv-small",
        "pretrain_rounds": max(20, min(max_rounds, 1000 // steps)),
        "cluster_rounds": 10 if have_partners else 0,
        "batch_size": batch_size,
        "learning_rate": 5e-3,
        "schedule": "cosine",
    }


def against_collapse(num_clusters: int) -> float:
    """Returns the default weight of the decorrelation loss (docs/benchmarks/ccfc.md).

    Without this loss, the embeddings of heterogeneous clients vary in few directions.
    More clusters need more directions, so the weight grows with their number.

    Args:
        num_clusters: K.

    Returns:
        The weight, from 0.1 to 1.

    Examples:
        >>> against_collapse(10), against_collapse(40)
        (0.1, 0.8)
    """
    return min(1.0, 0.1 * max(1.0, num_clusters / 10) ** 1.5)


def small_client_steps(per_client: int) -> dict[str, int]:
    """Returns epochs and batch size that give clients with few examples enough steps.

    These are the defaults for feature vectors and for large colour images.

    Args:
        per_client: number of examples of a typical client, at least 1.

    Returns:
        `batch_size` and `local_epochs`, or no values for clients with 1000 examples or
        more.
    """
    if per_client >= 1000:
        return {}
    batch_size = min(128, max(16, per_client // 4))
    steps = -(-per_client // batch_size)
    return {"batch_size": batch_size, "local_epochs": -(-16 // steps)}


def schedule_of(settings: Any) -> optax.Schedule:
    """Returns the factor of the learning rate in each round of cluster contrast.

    Args:
        settings: settings of one run, of which `schedule` and `cluster_rounds` are
            used.

    Returns:
        A function from the number of a round to the factor of the learning rate, in
        [0, 1].
    """
    if settings.schedule == "constant":
        return CONSTANT
    return optax.cosine_decay_schedule(1.0, max(1, settings.cluster_rounds))


def network_of(settings: Any, shape: tuple[int, ...]) -> Network:
    """Builds SimSiam on the encoder that the settings name.

    Args:
        settings: settings of one run, of which `backbone` and `latent_size` are used.
        shape: shape of one example, (F,) or (H, W, C).

    Returns:
        The network, with encoder, projector and predictor.
    """
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
    """Returns the output features of the convolutions of `conv-small`.

    Each convolution halves the image. There are two, or as many as leave at most 8
    pixels per side.

    Args:
        side: height or width of the image, the larger one, in pixels.

    Returns:
        The features of each convolution.

    Examples:
        >>> small_channels(28), small_channels(64)
        ((32, 64), (32, 64, 128))
    """
    depth = max(2, ceil(log2(side / 8)))
    return tuple(32 * 2**i for i in range(depth))


def view_of(kind: View | None, shape: tuple[int, ...]) -> Augment:
    """Returns the augmentation for examples of this shape.

    Args:
        kind: the augmentation of grey images; None for all other examples.
        shape: shape of an example.

    Returns:
        A function from a key and an example to an augmented example.

    Raises:
        ValueError: the augmentation does not accept examples of this shape.
    """
    if (kind is not None) != is_grey(shape):
        raise ValueError(f"`view` {kind} needs grey images, the examples have {shape}")
    if kind == "affine":
        return affine_grey
    if kind is None:
        return vector_view if len(shape) == 1 else simsiam_colour
    # On images of few pixels, blur and a rotation by nearest pixels remove the content.
    options = {"blur_probability": 0.0, "order": 1} if is_tiny(shape) else {}
    return partial(ccfc_grey, **options)
