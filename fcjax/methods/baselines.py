"""Baselines without a network: k-means and fuzzy c-means, central and federated.

This module has the settings and the defaults. The algorithms are in
`fcjax.algorithms.central`, `fcjax.algorithms.kfed` and `fcjax.algorithms.baselines`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from fcjax.algorithms.baselines import exact_cmeans, ffcm
from fcjax.algorithms.central import by_fuzzy_cmeans, by_kmeans, central
from fcjax.algorithms.kfed import LocalStart, kfed
from fcjax.data.split import Split
from fcjax.methods import paper_scores_ccfc
from fcjax.methods.base import Method, MethodSpec, Problem, first_partition
from fcjax.parallel.mesh import platform
from fcjax.privacy.accounting import Parts
from fcjax.privacy.guarantee import Unit
from fcjax.privacy.kmeans import STEPS, parts_of
from fcjax.settings import Limits, Sweep, default, frozen, shown
from fcjax.types import FederatedClustering

SMOKE = {"num_init": 1, "num_rounds": 3}
NumInit = Annotated[Sweep[int], shown("10; fcm: 1")]
NumRounds = Annotated[
    Sweep[int], shown("100; ffcm and ffcm-mean: 20; exact-km with --epsilon: 6")
]


@frozen
class Baseline(Method):
    """The methods cluster the raw examples.

    Methods for --methods:
      km         k-means of all examples in one place
      fcm        fuzzy c-means of all examples in one place
      k-fed      one round: k-means on each client, then k-means of the clients'
                 centroids on the server
      ffcm       rounds of fuzzy c-means on the clients; the server clusters their
                 centroids
      ffcm-mean  ffcm, but the server averages the centroids with the same index
      exact-km   each round is one iteration of k-means on all examples; clients upload
                 sums and counts
      exact-fcm  each round is one iteration of fuzzy c-means on all examples; clients
                 upload sums

    The partition does not change the result of km and fcm. They run for the first value
    of --p alone, unless clients fail.
    """

    overrides: ClassVar[Mapping[str, Any]] = {}
    """Defaults of this method that differ from the defaults of the fields."""
    paper_name: ClassVar[str] = ""
    """Name of the method in the tables of the CCFC paper."""
    any_scale: ClassVar[bool] = True
    sees_all: ClassVar[bool] = False
    """Whether the server reads examples of all clients."""

    unit_length: bool = True
    """Scale each example to L2 norm 1, as the scores in the papers imply."""

    def resolve(self, problem: Problem) -> MethodSpec:
        """Chooses a value for each setting and returns the method for this problem."""
        smoke = SMOKE if self.preset == "smoke" else {}
        num_clusters = problem.num_clusters
        private = {"num_rounds": STEPS} if problem.protected else {}
        settings = self.settings(
            {"local_clusters": num_clusters}, self.overrides, private, smoke
        )
        for value in settings.get("local_clusters", ()):
            if value > num_clusters:
                raise ValueError(
                    f"`local_clusters` must be at most `clusters` {num_clusters}, got "
                    f"{value}"
                )
        return MethodSpec(
            name=self.name,
            settings=settings,
            build=self.builder(problem),
            scope="global",
            paper=paper_scores_ccfc.scores_of(problem.data, self.paper_name),
            working_bytes=self.working_bytes(problem),
            sees_all=self.sees_all,
        )

    def working_bytes(self, problem: Problem) -> int:
        """Returns the bytes of all examples as float32, if the method needs them."""
        # On a CPU, clients read their examples one after another.
        one_by_one = platform() == "cpu" and not self.sees_all
        return 0 if one_by_one else 4 * problem.dataset.examples.size

    def adapt(self, split: Split, *, labelled: bool) -> Split:
        """Fills the fields of a split that were not given with defaults."""
        split = super().adapt(split, labelled=labelled)
        return first_partition(split) if self.is_central else split


@frozen
class KMeans(Baseline):
    """k-means of all examples in one place.

    Examples:
        >>> import numpy as np
        >>> x = np.repeat([[0.0, 1.0], [1.0, 0.0]], 5, axis=0)
        >>> labels = KMeans().fit_predict(x, clients=[0, 1] * 5, num_clusters=2)
        >>> len(set(labels[:5])), len(set(labels))
        (1, 2)
    """

    name: ClassVar[str] = "km"
    paper_name = "KM"
    is_central = sees_all = True

    num_init: NumInit = default(10)
    """Number of random starts; the result with the best objective is kept."""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        return central(by_kmeans(settings, num_clusters=problem.num_clusters))


@frozen
class FuzzyCMeans(Baseline):
    """Fuzzy c-means of all examples in one place.

    Examples:
        >>> FuzzyCMeans(preset="smoke").name
        'fcm'
    """

    name: ClassVar[str] = "fcm"
    overrides: ClassVar[Mapping[str, Any]] = {"num_init": 1}
    paper_name = "FCM"
    is_central = sees_all = True

    num_init: NumInit = default(10)
    """Number of random starts; the result with the best objective is kept."""
    fuzzifier: Annotated[Sweep[float], Limits(above=1)] = default(1.1)
    """Fuzzifier m of fuzzy c-means, above 1. Near 1, memberships are almost hard."""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        return central(by_fuzzy_cmeans(settings, num_clusters=problem.num_clusters))


@frozen
class KFed(Baseline):
    """k-FED: k-means on each client, then k-means of their centroids on the server.

    Examples:
        >>> KFed(preset="smoke").name
        'k-fed'
    """

    name: ClassVar[str] = "k-fed"
    paper_name = "k-FED"

    local_clusters: Annotated[Sweep[int], shown("the value of --clusters")] = ()
    """Number of clusters that each client finds (k'), from 1 to --clusters."""
    local_start: LocalStart = "projected"
    """First centroids of a client: `projected` is the projection of the paper,
    `kmeans++` takes the best of ten k-means++ starts."""
    inherit: bool = True
    """Give all examples of a client's cluster the same global cluster, as in the paper.
    Otherwise each example gets the nearest centroid of the server."""

    @property
    def withholds(self) -> bool:
        """Whether clients can withhold clusters of few examples."""
        return True

    def resolve(self, problem: Problem) -> MethodSpec:
        """Chooses a value for each setting and returns the method for this problem."""
        return super().resolve(problem)._replace(warning=uploads_of_examples)

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        return kfed(settings, num_clusters=problem.num_clusters)


def uploads_of_examples(
    settings: Mapping[str, Any], sizes: Sequence[Sequence[int]]
) -> str:
    """Returns a warning if clients of k-FED upload their examples as centroids.

    A client with at most `local_clusters` examples has one local cluster per example.

    Args:
        settings: the settings of the runs.
        sizes: the number of examples of each client, for each run.

    Returns:
        The line, for the run with the most such clients; "" if there are none.

    Examples:
        >>> uploads_of_examples({"local_clusters": 2}, [[3, 4], [2, 5]])[:34]
        'k-fed: 1 of 2 clients have no more'
        >>> uploads_of_examples({"local_clusters": 2}, [[3, 4]])
        ''
    """
    most = settings["local_clusters"]
    number = max(sum(size <= most for size in run) for run in sizes)
    if not number:
        return ""
    return (
        f"k-fed: {number:,} of {len(sizes[0]):,} clients have no more examples than "
        f"`local_clusters` {most}; their uploaded centroids are their examples"
    )


@frozen
class FFCM(Baseline):
    """FFCM: fuzzy c-means on the clients; the server clusters their centroids.

    Examples:
        >>> FFCM(preset="smoke").name
        'ffcm'
    """

    name: ClassVar[str] = "ffcm"
    not_private = (
        "every client uploads centroids, so that each would need noise of its own; "
        "exact-fcm needs noise once"
    )
    overrides: ClassVar[Mapping[str, Any]] = {"num_rounds": 20}
    paper_name = "FFCM"

    num_rounds: NumRounds = default(100)
    """Largest number of communication rounds. A run ends early after convergence."""
    local_iters: Sweep[int] = default(30)
    """Largest number of fuzzy c-means iterations of a client in a round."""
    fuzzifier: Annotated[Sweep[float], Limits(above=1)] = default(1.1)
    """Fuzzifier m of fuzzy c-means, above 1. Near 1, memberships are almost hard."""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        return ffcm(settings, num_clusters=problem.num_clusters)


@frozen
class FFCMMean(FFCM):
    """FFCM with a server that averages the clients' centroids of the same index.

    Examples:
        >>> FFCMMean(preset="smoke").name
        'ffcm-mean'
    """

    name: ClassVar[str] = "ffcm-mean"
    paper_name = ""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        number = problem.num_clusters
        return ffcm(settings, num_clusters=number, aggregation="mean")


@frozen
class ExactKMeans(Baseline):
    """Federated k-means with the result of k-means on all examples.

    Each round is one iteration of Lloyd's algorithm. Clients upload the sum and the
    number of their examples per cluster. The default `unit_length=True` ignores the
    length of examples. Set `unit_length=False` for tables of numbers, whose length
    often matters.

    Examples:
        >>> ExactKMeans(preset="smoke").name
        'exact-km'
    """

    name: ClassVar[str] = "exact-km"
    units = ("examples", "clients")
    not_private = "it trains no network, so the unit examples covers the whole method"

    num_rounds: NumRounds = default(100)
    """Largest number of communication rounds. A run ends early after convergence."""

    @property
    def withholds(self) -> bool:
        """Whether clients can withhold clusters of few examples."""
        return True

    def noisy_sums(self, settings: Mapping[str, Any], unit: Unit) -> Parts:
        """Lists the noisy sums of a private run: the mean and the Lloyd steps."""
        return parts_of(settings["num_rounds"])

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        return exact_cmeans(settings, num_clusters=problem.num_clusters)


@frozen
class ExactFuzzyCMeans(ExactKMeans):
    """Federated fuzzy c-means with the result of fuzzy c-means on all examples.

    Each round is one iteration of fuzzy c-means. Clients upload weighted sums of their
    examples per cluster.

    Examples:
        >>> ExactFuzzyCMeans(preset="smoke").name
        'exact-fcm'
    """

    name: ClassVar[str] = "exact-fcm"

    fuzzifier: Annotated[Sweep[float], Limits(above=1)] = default(1.1)
    """Fuzzifier m of fuzzy c-means, above 1. Near 1, memberships are almost hard."""

    @staticmethod
    def algorithm(settings: Any, problem: Problem) -> FederatedClustering:
        """Builds the algorithm from the settings of one run."""
        number, fuzzifier = problem.num_clusters, settings.fuzzifier
        return exact_cmeans(settings, num_clusters=number, fuzzifier=fuzzifier)
