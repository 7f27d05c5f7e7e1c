"""SDA-FDC (https://arxiv.org/abs/2211.16965) and the methods of its comparison.

This module has the settings, the defaults and the networks. The algorithms are in
`fcjax.algorithms.sda` and `fcjax.algorithms.autoencoders`.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import optax

from fcjax import nn
from fcjax.algorithms.autoencoders import by_codes, by_dcn
from fcjax.algorithms.central import Clustering, by_fuzzy_cmeans, by_kmeans, central
from fcjax.algorithms.sda import Pair, sda
from fcjax.data.split import Split
from fcjax.methods import paper_scores_sda_fdc
from fcjax.methods.base import Method, MethodSpec, Problem, Shared, first_partition
from fcjax.methods.encoders import is_tiny
from fcjax.nn.generative import Gan
from fcjax.settings import Counts, Limits, Sweep, default, frozen, shown
from fcjax.types import FederatedClustering

GAN_SETTINGS = (
    *("gan_rounds", "gan_batch_size", "generator_learning_rate"),
    *("discriminator_learning_rate", "gan_decay", "noise_size"),
)
"""The settings of the clients' GANs."""
# With these values of `cluster_weight`, both terms of Eq. 3 start at about the same
# size. The reconstruction error is smaller on small images, and smallest on vectors.
VECTORS = {
    # The learning rates and the noise size are from CCEGAN, later code of the authors.
    # CCEGAN differs in other points: uniform noise, Adam with weight decay that keeps
    # its state between epochs, and ten times the steps.
    "generator_learning_rate": 3e-4,
    "discriminator_learning_rate": 6e-4,
    "noise_size": 5,
    "pretrain_rounds": 15,
    "joint_rounds": 10,
    "cluster_weight": 0.5,
}
DIGITS = {  # tuned in docs/benchmarks/sda_fdc.md
    "gan_rounds": 100,
    "joint_rounds": 20,
    "cluster_weight": 2.0,
}
NumInit = Annotated[Sweep[int], shown("20; sda-fc-km: 10; sda-fc-fcm: 1")]
SMOKE = {"gan_rounds": 3, "pretrain_rounds": 3, "joint_rounds": 2, "num_init": 1}


@frozen
class ServerClustering(Method):
    """The server clusters synthetic examples from the clients' generators.

    Methods for --methods:
      sda-fdc           by DCN: an auto-encoder whose codes are drawn to their centroids
      sda-fdc-disjoint  by k-means of the codes of an auto-encoder
      sda-fc-km         by k-means of the examples
      sda-fc-fcm        by fuzzy c-means of the examples
      dcn               DCN on the real examples of all clients in one place
      dcn-disjoint      k-means of codes on the real examples in one place

    The partition does not change the result of dcn and dcn-disjoint. They run for the
    first value of --p alone, unless clients fail.

    In the help of the settings, "tiny images" have less than 16 pixels per side.
    """

    overrides: ClassVar[Mapping[str, Any]] = {}
    """Defaults of this method that differ from the defaults of the fields."""

    def resolve(self, problem: Problem) -> MethodSpec:
        """Chooses a value for each setting and returns the method for this problem."""
        settings = self.settings(*self.defaults(problem))
        gans = {name: settings[name] for name in GAN_SETTINGS if name in settings}
        examples = problem.dataset.examples
        return MethodSpec(
            name=self.name,
            settings=settings,
            build=self.builder(problem),
            scope="global",
            paper=paper_scores_sda_fdc.scores_of(problem.data, self.name),
            # The server holds its examples twice: as they are, and as flat rows.
            working_bytes=examples.nbytes + 4 * examples.size,
            sees_all=self.is_central,
            shared=Shared("gan", 1, gans) if gans else None,
        )

    def defaults(self, problem: Problem) -> list[Mapping[str, Any]]:
        """Returns the settings that preset and data choose; the last value counts.

        Args:
            problem: the data and the clients.

        Returns:
            Mappings from setting to value. A later mapping takes precedence.
        """
        values = [self.overrides, VECTORS if len(problem.shape) == 1 else {}]
        if self.preset != "paper":
            # A GAN needs about twelve steps in each epoch.
            batch_size = int(problem.examples_per_client) // 12
            values += [{"gan_batch_size": min(64, max(16, batch_size))}]
            values += [DIGITS if is_tiny(problem.shape) else {}]
        return [*values, SMOKE if self.preset == "smoke" else {}]

    @classmethod
    def algorithm(cls, settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        return central(cls.clustering(settings, problem))

    @staticmethod
    def clustering(settings: Any, problem: Problem) -> Clustering:
        """Builds the clustering of the server.

        Args:
            settings: settings of one run, an object with one attribute per setting.
            problem: the data and the clients.

        Returns:
            The clustering as pure functions.
        """
        raise NotImplementedError

    def adapt(self, split: Split, *, labelled: bool) -> Split:
        """Fills the fields of a split that were not given with defaults."""
        split = super().adapt(split, labelled=labelled)
        return first_partition(split) if self.is_central else split


@frozen
class ClientGans(ServerClustering):
    """Base class of methods whose clients train GANs.

    Each client uploads its generator once. The server clusters samples of the
    generators.
    """

    gan_rounds: Annotated[Counts, shown("50; tiny images: 100; --preset paper: 50")] = (
        default(50)
    )
    """Epochs in which clients train their GANs, at least 1."""
    gan_batch_size: Annotated[
        Sweep[int],
        shown("a twelfth of a client's examples, from 16 to 64; --preset paper: 64"),
    ] = default(64)
    """Number of real examples in each step of a GAN; there are as many synthetic
    examples."""
    generator_learning_rate: Annotated[
        Sweep[float], shown("0.0018; vectors: 0.0003")
    ] = default(1.8e-3)
    """Learning rate of Adam for the generator in the first round."""
    discriminator_learning_rate: Annotated[
        Sweep[float], shown("0.0002; vectors: 0.0006")
    ] = default(2e-4)
    """Learning rate of Adam for the discriminator in the first round."""
    gan_decay: Sweep[float] = default(0.99)
    """Factor of both learning rates after each round."""
    noise_size: Annotated[Sweep[int], shown("62; vectors: 5")] = default(62)
    """Number of normal random inputs of a generator. There is one more input per
    cluster (--clusters), which selects a category."""
    num_synthetic: Annotated[
        int | None, Limits(least=1), shown("the number of the client's examples")
    ] = None
    """Number of synthetic examples from each client's generator, at least 1."""

    @classmethod
    def algorithm(cls, settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        return sda(
            settings,
            gan_of(problem.shape),
            optimizers_of(settings, problem.shape),
            cls.clustering(settings, problem),
            num_clusters=problem.num_clusters,
        )


@frozen
class CodeClustering(ServerClustering):
    """Base class of methods that cluster the codes of an auto-encoder by k-means."""

    pretrain_rounds: Annotated[Counts, shown("50; vectors: 15")] = default(50)
    """Epochs that pre-train the auto-encoder, at least 1."""
    batch_size: Sweep[int] = default(128)
    """Number of examples in each step of the auto-encoder."""
    learning_rate: Sweep[float] = default(1e-3)
    """Learning rate of Adam for the auto-encoder."""
    num_init: NumInit = default(20)
    """Number of starts of k-means; the result with the smallest inertia is kept."""

    by_network: ClassVar[Callable[..., Clustering]] = staticmethod(by_codes)
    """The builder in `fcjax.algorithms.autoencoders`."""

    @classmethod
    def clustering(cls, settings: Any, problem: Problem) -> Clustering:
        """Builds the clustering of the server."""
        return cls.by_network(
            settings,
            nn.autoencoder(math.prod(problem.shape)),
            adam_of(settings),
            num_clusters=problem.num_clusters,
        )


@frozen
class DeepClusteringNetwork(CodeClustering):
    """Base class of methods that use DCN.

    DCN trains an auto-encoder whose codes are drawn to their centroids.
    """

    joint_rounds: Annotated[Sweep[int], shown("50; tiny images: 20; vectors: 10")] = (
        default(50)
    )
    """Epochs that train the auto-encoder and the clusters in turns."""
    refresh_every: Counts = default(10)
    """Number of these epochs between two runs of k-means on all codes, at least 1."""
    cluster_weight: Annotated[
        Sweep[float], shown("20; tiny images: 2; vectors: 0.5")
    ] = default(20.0)
    """Weight (lambda of Eq. 3) of half the squared distance of a code to its centroid,
    relative to the squared reconstruction error for pixels from 0 to 1."""

    by_network: ClassVar[Callable[..., Clustering]] = staticmethod(by_dcn)


@frozen
class SDAFDC(DeepClusteringNetwork, ClientGans):
    """SDA-FDC: the server clusters samples of the clients' generators with DCN.

    Examples:
        >>> SDAFDC(gan_rounds=5).gan_rounds
        5
    """

    name: ClassVar[str] = "sda-fdc"


@frozen
class SDAFDCDisjoint(CodeClustering, ClientGans):
    """SDA-FDC with k-means of the codes of an auto-encoder, instead of DCN.

    Examples:
        >>> SDAFDCDisjoint(preset="smoke").name
        'sda-fdc-disjoint'
    """

    name: ClassVar[str] = "sda-fdc-disjoint"


@frozen
class SDAFCKM(ClientGans):
    """SDA-FC with k-means of the synthetic examples.

    Examples:
        >>> SDAFCKM(preset="smoke").name
        'sda-fc-km'
    """

    name: ClassVar[str] = "sda-fc-km"
    overrides: ClassVar[Mapping[str, Any]] = {"num_init": 10}

    num_init: NumInit = default(20)
    """Number of starts of k-means; the result with the smallest inertia is kept."""
    unit_length: bool = True
    """sda-fc-km, sda-fc-fcm: scale each example to L2 norm 1, as in the authors'
    code."""

    @staticmethod
    def clustering(settings: Any, problem: Problem) -> Clustering:
        """Builds the clustering of the server."""
        number = problem.num_clusters
        return by_kmeans(settings, num_clusters=number, by_cosine=settings.unit_length)


@frozen
class SDAFCFCM(SDAFCKM):
    """SDA-FC with fuzzy c-means of the synthetic examples.

    Examples:
        >>> SDAFCFCM(preset="smoke").name
        'sda-fc-fcm'
    """

    name: ClassVar[str] = "sda-fc-fcm"
    overrides: ClassVar[Mapping[str, Any]] = {"num_init": 1}

    fuzzifier: Annotated[Sweep[float], Limits(above=1)] = default(1.1)
    """sda-fc-fcm: fuzzifier m of fuzzy c-means, above 1."""

    @staticmethod
    def clustering(settings: Any, problem: Problem) -> Clustering:
        """Builds the clustering of the server."""
        cosine = settings.unit_length
        return by_fuzzy_cmeans(
            settings, num_clusters=problem.num_clusters, by_cosine=cosine
        )


@frozen
class DCN(DeepClusteringNetwork):
    """Deep clustering network (DCN) on all examples in one place.

    Examples:
        >>> DCN(preset="smoke").name
        'dcn'
    """

    name: ClassVar[str] = "dcn"
    is_central: ClassVar[bool] = True


@frozen
class DCNDisjoint(CodeClustering):
    """k-means of the codes of an auto-encoder, on all examples in one place.

    Examples:
        >>> DCNDisjoint(preset="smoke").name
        'dcn-disjoint'
    """

    name: ClassVar[str] = "dcn-disjoint"
    is_central: ClassVar[bool] = True


def gan_of(shape: tuple[int, ...]) -> Gan:
    """Builds the generator and the discriminator of a client.

    The networks for vectors are from CCEGAN, and those for images from SDA-FC. Both are
    code of the authors.

    Args:
        shape: shape of one example, (F,) or (H, W, C).

    Returns:
        The generator and the discriminator.
    """
    if len(shape) == 1:
        return nn.mlp_gan(shape[0])
    height, width, colours = shape
    sizes = {"channels": 32, "hidden_size": 256} if is_tiny(shape) else {}
    return nn.dcgan((height, width, colours), **sizes)


def optimizers_of(settings: Any, shape: tuple[int, ...]) -> Pair:
    """Builds the optimizers of generator and discriminator.

    The betas of Adam for vectors are those of CCEGAN.

    Args:
        settings: settings of one run, with the learning rates of both networks.
        shape: shape of one example, (F,) or (H, W, C).

    Returns:
        Two Adam optimizers, the generator's first.
    """
    adam = partial(optax.adam, b1=0.5, b2=0.9 if len(shape) == 1 else 0.999)
    rates = settings.generator_learning_rate, settings.discriminator_learning_rate
    return Pair(*map(adam, rates))


def adam_of(settings: Any) -> optax.GradientTransformation:
    """Builds the optimizer of the auto-encoder.

    Args:
        settings: settings of one run, of which `learning_rate` is used.

    Returns:
        Adam with this learning rate.
    """
    return optax.adam(settings.learning_rate)
