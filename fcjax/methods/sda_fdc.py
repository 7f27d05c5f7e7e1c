"""SDA-FDC: deep clustering of samples of the clients' generators
(https://arxiv.org/abs/2211.16965), and the methods that it is compared with.

Settings, defaults by the data and networks. The algorithms are `fcjax.algorithms.sda`
and `fcjax.algorithms.autoencoders`.
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
from fcjax.methods.base import Method, MethodSpec, Problem, Shared, partitioned_once
from fcjax.methods.encoders import is_tiny
from fcjax.nn.generative import Gan
from fcjax.settings import Counts, Limits, Sweep, default, frozen, shown
from fcjax.types import FederatedClustering

LOCAL = (
    *("gan_rounds", "gan_batch_size", "generator_learning_rate"),
    *("discriminator_learning_rate", "gan_decay", "noise_size"),
)
# With these weights both terms of Eq. 3 begin about alike: an auto-encoder errs less on
# small images, and much less on vectors.
VECTORS = {
    # Of CCEGAN, later code of the authors. Not as there: its noise is uniform, its Adam
    # is kept from epoch to epoch and decays weights, and it takes ten times the steps.
    "generator_learning_rate": 3e-4,
    "discriminator_learning_rate": 6e-4,
    "noise_size": 5,
    "pretrain_rounds": 15,
    "joint_rounds": 10,
    "cluster_weight": 0.5,
}
DIGITS = {  # docs/benchmarks/sda_fdc.md says what was tried
    "gan_rounds": 100,
    "joint_rounds": 20,
    "cluster_weight": 2.0,
}
SMOKE = {"gan_rounds": 3, "pretrain_rounds": 3, "joint_rounds": 2, "num_init": 1}


@frozen
class OfExamples(Method):
    """Clustering of real or synthetic examples on the server.

    sda-fdc: by DCN, an auto-encoder whose codes are drawn to their centroids.
    sda-fdc-disjoint: by k-means of an auto-encoder's codes. sda-fc-km, sda-fc-fcm: by
    k-means or fuzzy c-means of the examples. dcn, dcn-disjoint: the first two of real
    data in one place, however it is dealt: unless clients fail, at the first --p alone.
    """

    own: ClassVar[Mapping[str, Any]] = {}
    """Defaults of the method that differ from the fields'."""

    def resolve(self, problem: Problem) -> MethodSpec:
        settings = self.settings(*self.chosen(problem))
        gans = {flag: settings[flag] for flag in LOCAL if flag in settings}
        examples = problem.dataset.examples
        return MethodSpec(
            name=self.name,
            settings=settings,
            build=self.builder(problem),
            scope="global",
            paper=paper_scores_sda_fdc.scores_of(problem.data, self.name),
            # The server's examples, as they are and as rows.
            working_bytes=examples.nbytes + 4 * examples.size,
            sees_all=self.is_central,
            shared=Shared("gan", 1, gans) if gans else None,
        )

    def chosen(self, problem: Problem) -> list[Mapping[str, Any]]:
        """Returns the values that data and preset choose; a later one wins."""
        found = [self.own, VECTORS if len(problem.shape) == 1 else {}]
        if self.preset != "paper":
            # Some twelve steps an epoch, where a client has examples for so many.
            enough = int(problem.examples_per_client) // 12
            found += [{"gan_batch_size": min(64, max(16, enough))}]
            found += [DIGITS if is_tiny(problem.shape) else {}]
        return [*found, SMOKE if self.preset == "smoke" else {}]

    @classmethod
    def algorithm(cls, settings: Any, problem: Problem) -> FederatedClustering:
        return central(cls.clustering(settings, problem))

    @staticmethod
    def clustering(settings: Any, problem: Problem) -> Clustering:
        """Returns how the server clusters."""
        raise NotImplementedError

    def adapt(self, split: Split, *, labelled: bool) -> Split:
        split = super().adapt(split, labelled=labelled)
        return partitioned_once(split) if self.is_central else split


@frozen
class Gans(OfExamples):
    """Clients train a GAN each and upload its generator, once; the server clusters
    samples of the generators.
    """

    gan_rounds: Counts = default(50)
    """Epochs in which clients train their GANs."""
    gan_batch_size: Sweep[int] = default(64)
    """Real examples, and as many synthetic ones, in a step of a GAN."""
    generator_learning_rate: Sweep[float] = default(1.8e-3)
    """Of the generator's Adam in the first round."""
    discriminator_learning_rate: Sweep[float] = default(2e-4)
    """Of the discriminator's."""
    gan_decay: Sweep[float] = default(0.99)
    """What both are multiplied by after each round."""
    noise_size: Sweep[int] = default(62)
    """Normal inputs of the generator, beside as many categories as --clusters."""
    num_synthetic: Annotated[
        int | None, Limits(least=1), shown("as many as it holds")
    ] = None
    """Examples that the server makes with each client's generator."""

    @classmethod
    def algorithm(cls, settings: Any, problem: Problem) -> FederatedClustering:
        return sda(
            settings,
            gan_of(problem.shape),
            optimizers_of(settings, problem.shape),
            cls.clustering(settings, problem),
            num_clusters=problem.num_clusters,
        )


@frozen
class Disjoint(OfExamples):
    """k-means of the codes of an auto-encoder."""

    pretrain_rounds: Counts = default(50)
    """Epochs of the auto-encoder alone."""
    batch_size: Sweep[int] = default(128)
    """Examples in a step of the auto-encoder."""
    learning_rate: Sweep[float] = default(1e-3)
    """Of the auto-encoder's Adam."""
    num_init: Sweep[int] = default(20)
    """Seedings of k-means, the best by inertia counts; of examples 10, sda-fc-fcm 1."""

    by_network: ClassVar[Callable[..., Clustering]] = staticmethod(by_codes)
    """The builder in `fcjax.algorithms.autoencoders`."""

    @classmethod
    def clustering(cls, settings: Any, problem: Problem) -> Clustering:
        return cls.by_network(
            settings,
            nn.autoencoder(math.prod(problem.shape)),
            adam_of(settings),
            num_clusters=problem.num_clusters,
        )


@frozen
class Joint(Disjoint):
    """DCN: an auto-encoder whose codes are drawn to their centroids."""

    joint_rounds: Sweep[int] = default(50)
    """Epochs of the auto-encoder and the clusters by turns."""
    refresh_every: Counts = default(10)
    """Epochs of these after which k-means of all codes goes on from the clusters."""
    cluster_weight: Sweep[float] = default(20.0)
    """lambda of Eq. 3: of half the squared distance of a code to its centroid, beside
    the squared error of the example, pixels being 0 to 1."""

    by_network: ClassVar[Callable[..., Clustering]] = staticmethod(by_dcn)


@frozen
class SDAFDC(Joint, Gans):
    """SDA-FDC: the server clusters samples of the clients' generators by DCN.

    Examples:
        >>> SDAFDC(gan_rounds=5).gan_rounds
        5
    """

    name: ClassVar[str] = "sda-fdc"


@frozen
class SDAFDCDisjoint(Disjoint, Gans):
    """SDA-FDC with k-means of the codes of an auto-encoder in place of DCN.

    Examples:
        >>> SDAFDCDisjoint(preset="smoke").name
        'sda-fdc-disjoint'
    """

    name: ClassVar[str] = "sda-fdc-disjoint"


@frozen
class SDAFCKM(Gans):
    """SDA-FC with k-means of the synthetic examples.

    Examples:
        >>> SDAFCKM(preset="smoke").name
        'sda-fc-km'
    """

    name: ClassVar[str] = "sda-fc-km"
    own: ClassVar[Mapping[str, Any]] = {"num_init": 10}

    num_init: Sweep[int] = default(20)
    """Seedings of k-means, the best by inertia counts; of examples 10, sda-fc-fcm 1."""
    unit_length: bool = True
    """Scale every example to L2 norm 1, as the authors do."""

    @staticmethod
    def clustering(settings: Any, problem: Problem) -> Clustering:
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
    own: ClassVar[Mapping[str, Any]] = {"num_init": 1}

    fuzzifier: Annotated[Sweep[float], Limits(above=1)] = default(1.1)
    """sda-fc-fcm: m."""

    @staticmethod
    def clustering(settings: Any, problem: Problem) -> Clustering:
        cosine = settings.unit_length
        return by_fuzzy_cmeans(
            settings, num_clusters=problem.num_clusters, by_cosine=cosine
        )


@frozen
class DCN(Joint):
    """Deep clustering network (DCN) on all data in one place.

    Examples:
        >>> DCN(preset="smoke").name
        'dcn'
    """

    name: ClassVar[str] = "dcn"
    is_central: ClassVar[bool] = True


@frozen
class DCNDisjoint(Disjoint):
    """k-means of the codes of an auto-encoder, on all data in one place.

    Examples:
        >>> DCNDisjoint(preset="smoke").name
        'dcn-disjoint'
    """

    name: ClassVar[str] = "dcn-disjoint"
    is_central: ClassVar[bool] = True


def gan_of(shape: tuple[int, ...]) -> Gan:
    """Returns the networks of a client."""
    if len(shape) == 1:  # those of CCEGAN, the authors' later code
        return nn.mlp_gan(shape[0])
    height, width, colours = shape  # as in the authors' code of SDA-FC
    sizes = {"channels": 32, "hidden_size": 256} if is_tiny(shape) else {}
    return nn.dcgan((height, width, colours), **sizes)


def optimizers_of(settings: Any, shape: tuple[int, ...]) -> Pair:
    """Returns the optimisers of generator and discriminator, with CCEGAN's betas for
    vectors.
    """
    adam = partial(optax.adam, b1=0.5, b2=0.9 if len(shape) == 1 else 0.999)
    rates = settings.generator_learning_rate, settings.discriminator_learning_rate
    return Pair(*map(adam, rates))


def adam_of(settings: Any) -> optax.GradientTransformation:
    """Returns the optimiser of the auto-encoder."""
    return optax.adam(settings.learning_rate)
