"""k-means and fuzzy c-means, central and federated: what deep methods are measured by.

python experiments/baselines.py --methods km fcm k-fed ffcm --p 0 0.25 0.5 0.75 1
python experiments/baselines.py --methods k-fed --local-clusters 3 --clients 20
python experiments/baselines.py --methods ffcm --fuzzifier 1.05 1.1 2 --no-unit-length
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from experiments import several
from experiments.papers.ccfc import printed
from fcjax.algorithms.central import by_fuzzy_cmeans, by_kmeans, central
from fcjax.algorithms.exact import exact_cmeans
from fcjax.algorithms.ffcm import ffcm
from fcjax.algorithms.kfed import kfed
from fcjax.sweep import experiment
from fcjax.sweep.flags import Common, choose, shown
from fcjax.sweep.load import short_name
from fcjax.types import FederatedClustering

Name = Literal["km", "fcm", "k-fed", "ffcm", "ffcm-mean", "exact-km", "exact-fcm"]
CENTRAL = ("km", "fcm")


@dataclasses.dataclass(frozen=True)
class Args(Common):
    """Clustering of the examples as they are, without a network.

    km, fcm: all data in one place. k-fed: one round of k-means at the clients and of
    their centroids at the server. ffcm, ffcm-mean: rounds of fuzzy c-means at the
    clients; the server clusters their centroids, or averages those of one number.
    exact-km, exact-fcm: a round is one iteration of the central method, of which the
    clients send sums. km and fcm see all data however it is dealt: unless clients fail,
    they run at the first --p alone.
    """

    methods: tuple[Name, ...] = ("km", "fcm", "k-fed", "ffcm")
    """Which methods to run, each into a results folder of its own."""
    unit_length: bool = True
    """Scale every example to L2 norm 1, as the papers' figures imply."""
    num_init: Annotated[
        tuple[int, ...], shown("km 10, fcm 1, as the papers' code")
    ] = ()
    """Seedings of a central method; the best by its objective counts."""
    fuzzifier: Annotated[tuple[float, ...], shown("1.1")] = ()
    """m of fuzzy c-means, above 1."""
    local_clusters: Annotated[tuple[int, ...], shown("as many as --clusters")] = ()
    """How many clusters each client of k-fed finds (k')."""
    inherit: bool = True
    """k-fed: clusters of clients are assigned whole; else each example by itself."""
    num_rounds: Annotated[tuple[int, ...], shown("ffcm 20, exact 100")] = ()
    """Most rounds of communication."""
    local_iters: Annotated[tuple[int, ...], shown("30")] = ()
    """Most iterations of a client of ffcm in a round."""


class Baseline(NamedTuple):
    build: Callable[..., FederatedClustering]
    defaults: Mapping[str, Any]
    """By flag, which is called as in the builder."""
    reported: str | None = None
    """What the CCFC paper calls it."""


FCM = {"fuzzifier": 1.1}
FFCM = {"num_rounds": 20, "local_iters": 30, **FCM}
BASELINES: dict[Name, Baseline] = {
    "km": Baseline(lambda **flags: central(by_kmeans(**flags)), {"num_init": 10}, "KM"),
    "fcm": Baseline(
        lambda **flags: central(by_fuzzy_cmeans(**flags)), {"num_init": 1, **FCM}, "FCM"
    ),
    "k-fed": Baseline(kfed, {"local_clusters": None, "inherit": True}, "k-FED"),
    "ffcm": Baseline(ffcm, FFCM, "FFCM"),
    "ffcm-mean": Baseline(partial(ffcm, aggregation="mean"), FFCM),
    "exact-km": Baseline(exact_cmeans, {"num_rounds": 100}),
    "exact-fcm": Baseline(exact_cmeans, {"num_rounds": 100, **FCM}),
}
SMOKE = {"num_init": 1, "num_rounds": 3}


def describe(
    args: Args, dataset, num_clients: int, num_clusters: int
) -> experiment.Method:
    """Describes the first of the methods that are asked for."""
    name = args.methods[0]
    baseline = BASELINES[name]
    defaults = {**baseline.defaults, "unit_length": True}
    if "local_clusters" in defaults:
        defaults["local_clusters"] = num_clusters
    if args.preset == "smoke":
        defaults |= {k: v for k, v in SMOKE.items() if k in defaults}
    settings = choose(defaults, args)
    for value in settings.get("fuzzifier", ()):
        if value <= 1:
            raise ValueError(f"--fuzzifier must be above 1, got {value}")
    for value in settings.get("local_clusters", ()):
        if value > num_clusters:
            raise ValueError(
                f"--local-clusters must be at most --clusters {num_clusters}, "
                f"got {value}"
            )

    data_name, reported = short_name(args.dataset), baseline.reported
    return experiment.Method(
        name=name,
        settings=settings,
        build=lambda values: baseline.build(num_clusters=num_clusters, **values),
        scope="global",
        paper=printed.scores_of(data_name, reported) if reported else {},
        working_bytes=4 * dataset.examples.size,  # the examples as float32
    )


def split(args: Args) -> list[experiment.Task]:
    """Returns an experiment for each method."""
    return several.tasks(args, describe, only)


def only(args: Args, name: Name) -> Args:
    """Returns the flags of one method."""
    args = several.dealt_once(args) if name in CENTRAL else args
    return several.only(args, name)


if __name__ == "__main__":
    several.main(Args, split)
