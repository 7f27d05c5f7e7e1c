"""k-means and fuzzy c-means, central and federated: the baselines of deep methods.

Settings and defaults. The algorithms are `fcjax.algorithms.central`,
`fcjax.algorithms.kfed` and `fcjax.algorithms.baselines`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from fcjax.algorithms.baselines import exact_cmeans, ffcm
from fcjax.algorithms.central import by_fuzzy_cmeans, by_kmeans, central
from fcjax.algorithms.kfed import LocalStart, kfed
from fcjax.data.split import Split
from fcjax.methods import paper_scores_ccfc
from fcjax.methods.base import Method, MethodSpec, Problem, partitioned_once
from fcjax.settings import Limits, Sweep, default, frozen, shown
from fcjax.types import FederatedClustering

SMOKE = {"num_init": 1, "num_rounds": 3}


@frozen
class Plain(Method):
    """Clustering of the examples as they are, without a network.

    km, fcm: all data in one place. k-fed: one round of k-means at the clients and of
    their centroids at the server. ffcm, ffcm-mean: rounds of fuzzy c-means at the
    clients; the server clusters their centroids, or averages those of one number.
    exact-km, exact-fcm: a round is one iteration of the central method, of which the
    clients send sums. km and fcm see all data however it is dealt: unless clients fail,
    they run at the first --p alone.
    """

    own: ClassVar[Mapping[str, Any]] = {}
    """Defaults of the method that differ from the fields'."""
    printed: ClassVar[str] = ""
    """The method's name in the tables of the CCFC paper."""
    sees_all: ClassVar[bool] = False

    unit_length: bool = True
    """Scale every example to L2 norm 1, as the papers' figures imply."""

    def resolve(self, problem: Problem) -> MethodSpec:
        smoke = SMOKE if self.preset == "smoke" else {}
        num_clusters = problem.num_clusters
        settings = self.settings({"local_clusters": num_clusters}, self.own, smoke)
        for value in settings.get("local_clusters", ()):
            if value > num_clusters:
                raise ValueError(
                    f"`local_clusters` must be at most `clusters` {num_clusters}, got "
                    f"{value}"
                )
        scores = paper_scores_ccfc.scores_of(problem.data, self.printed)
        return MethodSpec(
            name=self.name,
            settings=settings,
            build=self.builder(problem),
            scope="global",
            paper=scores if self.printed else {},
            working_bytes=4 * problem.dataset.examples.size,  # as float32
            sees_all=self.sees_all,
        )

    def adapt(self, split: Split, *, labelled: bool) -> Split:
        split = super().adapt(split, labelled=labelled)
        return partitioned_once(split) if self.is_central else split


@frozen
class KMeans(Plain):
    """k-means of all examples in one place.

    Examples:
        >>> import numpy as np
        >>> x = np.repeat([[0.0, 1.0], [1.0, 0.0]], 5, axis=0)
        >>> labels = KMeans().fit_predict(x, clients=[0, 1] * 5, num_clusters=2)
        >>> len(set(labels[:5])), len(set(labels))
        (1, 2)
    """

    name: ClassVar[str] = "km"
    printed = "KM"
    is_central = sees_all = True

    num_init: Sweep[int] = default(10)
    """Seedings of a central method, the best by its objective counts; fcm 1."""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        return central(by_kmeans(settings, num_clusters=problem.num_clusters))


@frozen
class FuzzyCMeans(Plain):
    """Fuzzy c-means of all examples in one place.

    Examples:
        >>> FuzzyCMeans(preset="smoke").name
        'fcm'
    """

    name: ClassVar[str] = "fcm"
    own: ClassVar[Mapping[str, Any]] = {"num_init": 1}
    printed = "FCM"
    is_central = sees_all = True

    num_init: Sweep[int] = default(10)
    """Seedings of a central method, the best by its objective counts; fcm 1."""
    fuzzifier: Annotated[Sweep[float], Limits(above=1)] = default(1.1)
    """m of fuzzy c-means."""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        return central(by_fuzzy_cmeans(settings, num_clusters=problem.num_clusters))


@frozen
class KFed(Plain):
    """k-FED: one round of k-means at the clients, then of their centroids at the
    server.

    Examples:
        >>> KFed(preset="smoke").name
        'k-fed'
    """

    name: ClassVar[str] = "k-fed"
    printed = "k-FED"

    local_clusters: Annotated[Sweep[int], shown("as many as --clusters")] = ()
    """How many clusters each client finds (k')."""
    local_start: LocalStart = "projected"
    """How a client starts: the paper's projection, or ten k-means++ starts."""
    inherit: bool = True
    """Clusters of clients are assigned whole; else each example by itself."""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        return kfed(settings, num_clusters=problem.num_clusters)


@frozen
class FFCM(Plain):
    """FFCM: rounds of fuzzy c-means at the clients, whose centroids the server
    clusters.

    Examples:
        >>> FFCM(preset="smoke").name
        'ffcm'
    """

    name: ClassVar[str] = "ffcm"
    own: ClassVar[Mapping[str, Any]] = {"num_rounds": 20}
    printed = "FFCM"

    num_rounds: Sweep[int] = default(100)
    """Most rounds of communication; 20 by default."""
    local_iters: Sweep[int] = default(30)
    """Most iterations of a client in a round."""
    fuzzifier: Annotated[Sweep[float], Limits(above=1)] = default(1.1)
    """m of fuzzy c-means."""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        return ffcm(settings, num_clusters=problem.num_clusters)


@frozen
class FFCMMean(FFCM):
    """FFCM whose server averages the clients' centroids of one number.

    Examples:
        >>> FFCMMean(preset="smoke").name
        'ffcm-mean'
    """

    name: ClassVar[str] = "ffcm-mean"
    printed = ""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        number = problem.num_clusters
        return ffcm(settings, num_clusters=number, aggregation="mean")


@frozen
class ExactKMeans(Plain):
    """Lloyd's algorithm over clients: every round is one iteration of k-means of all
    examples, of which the clients send sums and counts.

    Examples:
        >>> ExactKMeans(preset="smoke").name
        'exact-km'
    """

    name: ClassVar[str] = "exact-km"

    num_rounds: Sweep[int] = default(100)
    """Most rounds of communication."""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        return exact_cmeans(settings, num_clusters=problem.num_clusters)


@frozen
class ExactFuzzyCMeans(ExactKMeans):
    """Fuzzy c-means over clients: every round is one iteration of it on all examples,
    of which the clients send sums.

    Examples:
        >>> ExactFuzzyCMeans(preset="smoke").name
        'exact-fcm'
    """

    name: ClassVar[str] = "exact-fcm"

    fuzzifier: Annotated[Sweep[float], Limits(above=1)] = default(1.1)
    """m of fuzzy c-means."""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        number, fuzzifier = problem.num_clusters, settings.fuzzifier
        return exact_cmeans(settings, num_clusters=number, fuzzifier=fuzzifier)
