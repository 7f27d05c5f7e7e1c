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
from fcjax.algorithms.baselines import exact_cmeans, ffcm
from fcjax.algorithms.central import by_fuzzy_cmeans, by_kmeans, central
from fcjax.algorithms.kfed import LocalStart, kfed
from fcjax.sweep import plan
from fcjax.sweep.flags import Common, Limits, default, settings_of, shown
from fcjax.sweep.load import short_name

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
    num_init: tuple[int, ...] = default(10)
    """Seedings of a central method, the best by its objective counts; fcm 1."""
    fuzzifier: Annotated[tuple[float, ...], Limits(above=1)] = default(1.1)
    """m of fuzzy c-means."""
    local_clusters: Annotated[tuple[int, ...], shown("as many as --clusters")] = ()
    """How many clusters each client of k-fed finds (k')."""
    local_start: LocalStart = "projected"
    """How a client of k-fed starts: the paper's projection, or ten k-means++ starts."""
    inherit: bool = True
    """k-fed: clusters of clients are assigned whole; else each example by itself."""
    num_rounds: tuple[int, ...] = default(100)
    """Most rounds of communication; ffcm 20."""
    local_iters: tuple[int, ...] = default(30)
    """Most iterations of a client of ffcm in a round."""


class Baseline(NamedTuple):
    build: Callable[..., Any]
    flags: tuple[str, ...]
    """Those that it takes beside --unit-length, called as in the builder."""
    chosen: Mapping[str, Any] = {}
    """What is not the flags' default."""
    reported: str | None = None
    """What the CCFC paper calls it."""


FFCM = ("num_rounds", "local_iters", "fuzzifier")
BASELINES: dict[Name, Baseline] = {
    "km": Baseline(by_kmeans, ("num_init",), {}, "KM"),
    "fcm": Baseline(by_fuzzy_cmeans, ("num_init", "fuzzifier"), {"num_init": 1}, "FCM"),
    "k-fed": Baseline(kfed, ("local_clusters", "local_start", "inherit"), {}, "k-FED"),
    "ffcm": Baseline(ffcm, FFCM, {"num_rounds": 20}, "FFCM"),
    "ffcm-mean": Baseline(partial(ffcm, aggregation="mean"), FFCM, {"num_rounds": 20}),
    "exact-km": Baseline(exact_cmeans, ("num_rounds",)),
    "exact-fcm": Baseline(exact_cmeans, ("num_rounds", "fuzzifier")),
}
SMOKE = {"num_init": 1, "num_rounds": 3}


def describe(args: Args, dataset, num_clients: int, num_clusters: int) -> plan.Method:
    """Describes the first of the methods that are asked for."""
    name = args.methods[0]
    baseline = BASELINES[name]
    smoke = SMOKE if args.preset == "smoke" else {}
    changes = ({"local_clusters": num_clusters}, baseline.chosen, smoke)
    settings = settings_of(args, *changes, names=("unit_length", *baseline.flags))
    for value in settings.get("local_clusters", ()):
        if value > num_clusters:
            most = f"at most --clusters {num_clusters}"
            raise ValueError(f"--local-clusters must be {most}, got {value}")

    def build(values):
        found = baseline.build(num_clusters=num_clusters, **values)
        return central(found) if name in CENTRAL else found

    data, reported = short_name(args.dataset), baseline.reported
    return plan.Method(
        name=name,
        settings=settings,
        build=build,
        scope="global",
        paper=printed.scores_of(data, reported) if reported else {},
        working_bytes=4 * dataset.examples.size,  # the examples as float32
        sees_all=name in (*CENTRAL, "exact-km", "exact-fcm"),
    )


def only(args: Args, name: Name) -> Args:
    """Returns the flags of one method."""
    args = several.dealt_once(args) if name in CENTRAL else args
    return several.only(args, name)


if __name__ == "__main__":
    several.main(Args, describe, only)
