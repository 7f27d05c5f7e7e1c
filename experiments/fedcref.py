"""FedCRef: cluster-wise federated training (https://arxiv.org/abs/2408.10664), and what
it is measured by.

python experiments/fedcref.py
python experiments/fedcref.py --methods fedcref dec uifca
python experiments/fedcref.py --start dirty --dirtiness 0 0.3 0.5 --seed 0 1 2
python experiments/fedcref.py --preset paper --dataset mnist --data-dir DIR
"""

import dataclasses
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np

from experiments import several
from experiments.papers.fedcref.methods import Data, Local, Name, method_of
from fcjax.devices import platform
from fcjax.sweep import deal, experiment
from fcjax.sweep.flags import Common, choose, shown


@dataclasses.dataclass(frozen=True)
class Args(Common):
    """Clients cluster their own examples and find out which of their clusters are the
    same, without a server and without knowing how many there are of all.

    fedcref: scores are means over clients, each with a match of its own; global_acc
    takes the communities as clusters. dec: deep embedded clustering of all examples in
    one place. uifca: a generative model a cluster, whose number is known.
    """

    methods: tuple[Name, ...] = ("fedcref",)
    """Which methods to run, each into a results folder of its own."""
    clients: Annotated[tuple[int, ...], shown("8, --preset paper 25")] = ()
    """How many clients the data is dealt to."""
    p: Annotated[tuple[float, ...], shown("deal by --overlap 0")] = ()
    """Heterogeneity: 0 deals at random, 1 gives every client a class of its own."""
    start: Local = "dec"
    """How clients come to their first clusters; dirty: from classes, a simulation."""
    dirtiness: Annotated[tuple[float, ...], shown("0.3")] = ()
    """--start dirty: share of the examples that are put into a wrong cluster."""
    #: How many clusters a client looks for: as many as it holds classes, or as many as
    #: k-means has the largest silhouette for.
    local_clusters: Literal["known", "silhouette"] = "known"
    #: Which clusters are joined: those that pass the test, the first match of each as
    #: in the authors' code, or, as a simulation, those of the same class.
    associations: Literal["test", "first-match", "perfect"] = "test"
    percentile: Annotated[tuple[float, ...], shown("75")] = ()
    """alpha of the test, 0 to 100."""
    threshold: Annotated[
        tuple[float, ...], shown("0.2; more where classes have less than 500 examples")
    ] = ()
    """theta of the test, 0 to 1."""
    stability: Annotated[tuple[float, ...], shown("0.8")] = ()
    """tau: the share of its examples by which a client that keeps them is done."""
    tolerance: Annotated[tuple[float, ...], shown("0.1")] = ()
    """The largest change of communities and isolated clusters that is none."""
    #: End when all clients have settled, as the paper's text says; the authors' code
    #: goes on until communities and isolated clusters are steady.
    stop_when_settled: bool = True
    num_rounds: Annotated[tuple[int, ...], shown("30")] = ()
    """The most iterations."""
    max_refinements: Annotated[float | None, shown("none")] = None
    """End when clients have refined so often, as a mean; the authors' code has 10."""
    max_members: Annotated[int | None, shown("all")] = None
    """Clusters of a community that are trained on; the authors' code has 30."""
    #: What a community's model is: the mean of its members', or as in the authors' code
    #: what the first of them had after its last training.
    community_model: Literal["mean", "last-local"] = "mean"
    #: Where examples go that no selected model took: to the nearest of these, or as in
    #: the authors' code to clusters numbered by a second vote.
    leftovers: Literal["nearest", "renumbered"] = "nearest"
    local_epochs: Annotated[
        tuple[int, ...], shown("20; more where classes have less than 500 examples")
    ] = ()
    """Of a cluster's model."""
    federated_rounds: Annotated[tuple[int, ...], shown("15")] = ()
    """Of a community's model."""
    first_epochs: Annotated[tuple[int, ...], shown("2")] = ()
    """Of a member in the first of them."""
    federated_epochs: Annotated[tuple[int, ...], shown("7")] = ()
    """Of a member in the others."""
    batch_size: Annotated[tuple[int, ...], shown("32; uifca 128")] = ()
    """Examples a step."""
    learning_rate: Annotated[
        tuple[float, ...], shown("0.001; uifca 0.003, --preset paper 0.0001")
    ] = ()
    """Of Adam; DEC's own is 0.001."""
    pretrain_rounds: Annotated[tuple[int, ...], shown("50, --preset paper 300")] = ()
    """DEC: epochs of the auto-encoder alone."""
    joint_rounds: Annotated[tuple[int, ...], shown("20, --preset paper 70")] = ()
    """DEC: epochs with the clusters."""
    dec_batch_size: Annotated[tuple[int, ...], shown("64, --preset paper 256")] = ()
    """DEC: examples a step."""
    cluster_rounds: Annotated[tuple[int, ...], shown("5, --preset paper 20")] = ()
    """uifca: T, how often examples are assigned."""
    communication_rounds: Annotated[tuple[int, ...], shown("2, --preset paper 40")] = ()
    """uifca: tau, rounds between that."""
    local_steps: Annotated[tuple[int, ...], shown("20, --preset paper 100")] = ()
    """uifca: M, steps of each model in a round."""
    flow_width: Annotated[tuple[int, ...], shown("64, --preset paper 512")] = ()
    """uifca: units of the three hidden layers of a coupling."""


DEC = {"pretrain_rounds": 50, "joint_rounds": 20, "dec_batch_size": 64}
TRAINING = {
    "local_epochs": 20,
    "federated_rounds": 15,
    "first_epochs": 2,
    "federated_epochs": 7,
    "batch_size": 32,
    "learning_rate": 1e-3,
}
ITERATION = {
    "percentile": 75.0,
    "threshold": 0.2,
    "stability": 0.8,
    "tolerance": 0.1,
    "stop_when_settled": True,
    "num_rounds": 30,
    "max_refinements": None,
    "max_members": None,
    "associations": "test",
    "community_model": "mean",
    "leftovers": "nearest",
    "local_clusters": "known",
}
FLOWS = {
    "cluster_rounds": 5,
    "communication_rounds": 2,
    "local_steps": 20,
    "flow_width": 64,
    "batch_size": 128,
    "learning_rate": 3e-3,
}
STARTS: dict[Local, dict[str, Any]] = {
    "dec": DEC,
    "k-means": {},
    "dirty": {"dirtiness": 0.3},
}
LAST_PHASES: dict[Local, str] = {"dec": "dec", "k-means": "cluster", "dirty": "dirty"}
REPORTED = ("communities", "isolated", "wrong_associations", "active", "iteration")
PAPER = {
    "pretrain_rounds": 300,
    "joint_rounds": 70,
    "dec_batch_size": 256,
    "cluster_rounds": 20,
    "communication_rounds": 40,
    "local_steps": 100,
    "flow_width": 512,
    "local_epochs": 20,
}
SMOKE = {
    "num_rounds": 3,
    "federated_rounds": 3,
    "pretrain_rounds": 3,
    "joint_rounds": 2,
    "cluster_rounds": 2,
    "communication_rounds": 1,
    "local_steps": 3,
}
SOME = 2000
"""Images in which all values of a pixel are seen."""
PAPERS_SIZE = 500
"""Examples of a cluster, for which the paper's settings are."""


def defaults_of(args: Args, name: Name, *, cluster_size: int) -> dict[str, Any]:
    """Returns by flag what stands for one that is not given."""
    found: dict[str, Any] = {"dec": DEC, "uifca": FLOWS}.get(name, {})
    if name == "fedcref":
        found = {"start": args.start, **STARTS[args.start], **ITERATION, **TRAINING}
        if args.preset != "paper":
            found |= of_few(max(cluster_size, 1))
    of_preset: dict[str, Any] = {"smoke": SMOKE, "paper": PAPER}.get(args.preset, {})
    if name == "uifca" and args.preset == "paper":
        of_preset = {**of_preset, "learning_rate": 1e-4}
    return found | {k: v for k, v in of_preset.items() if k in found}


def of_few(size: int) -> dict[str, Any]:
    """Returns the settings that few examples ask for, see BENCHMARKS.md.

    Their models need more epochs to be worth a comparison, but so many that they know
    each by heart leave nothing to refine. And the largest of few differences, which the
    test divides by, is smaller.
    """
    shortage = max(PAPERS_SIZE / size, 1)
    return {
        "local_epochs": round(TRAINING["local_epochs"] * shortage**0.5),
        "threshold": round(ITERATION["threshold"] * shortage**0.2, 2),
    }


def describe(
    args: Args, dataset, num_clients: int, num_clusters: int
) -> experiment.Method:
    """Describes the first of the methods that are asked for."""
    name = args.methods[0]
    size = deal.cluster_size(args, dataset, num_clients, num_clusters)
    settings = choose(defaults_of(args, name, cluster_size=size), args)
    check(args, name, settings, has_labels=dataset.labels is not None)
    shape = dataset.examples.shape[1:]
    is_own, is_image = name == "fedcref", len(shape) == 3
    data = Data(
        shape,
        levels_of(dataset.examples) if is_image else None,
        None if dataset.labels is None else np.unique(dataset.labels, False, True)[1],
    )
    start = LAST_PHASES[args.start]
    if args.start == "dec" and settings.get("joint_rounds") == (0,):
        start = "k-means"
    return experiment.Method(
        name=name,
        settings=settings,
        build=partial(method_of, name, data=data, num_clusters=num_clusters),
        scope="client-mean" if is_own else "global",
        paper={},
        # The errors of all examples under the models of all clusters.
        working_bytes=4 * len(dataset.examples) * num_clients * num_clusters
        if is_own
        else dataset.examples.nbytes + 4 * dataset.examples.size,
        start=start if is_own else "",
        reported=REPORTED if is_own else (),
    )


def levels_of(images: np.ndarray) -> int:
    """Returns how many values a pixel can have: 17 of digits, 256 of most others."""
    values = np.unique(images[:SOME].astype(float))
    largest = 255 if images.dtype == np.uint8 else 1
    step = np.median(np.diff(values)) if len(values) > 1 else largest / 255
    return round(largest / step) + 1


def check(
    args: Args, name: Name, settings: dict[str, Any], *, has_labels: bool
) -> None:
    """Refuses what a method cannot have, in a line that names the flag."""
    limits = {"percentile": 100, "threshold": 1, "stability": 1, "dirtiness": 1}
    for flag, most in limits.items():
        for value in settings.get(flag, ()):
            if value > most:
                raise ValueError(f"--{flag} must lie in [0, {most}], got {value}")
    for flag in ("num_rounds", "federated_rounds", "pretrain_rounds", "local_steps"):
        if 0 in settings.get(flag, ()):
            raise ValueError(f"--{flag.replace('_', '-')} must be at least 1, got 0")
    for flag in ("max_members", "max_refinements"):
        value = settings.get(flag)
        if value is not None and not value >= 1:
            called = flag.replace("_", "-")
            raise ValueError(f"--{called} must be at least 1, got {value}")
    if args.dirtiness and args.start != "dirty":
        raise ValueError("--dirtiness is of --start dirty, give both")
    if name != "fedcref" or (has_labels and args.extra_split is None):
        return
    why = "has no labels" if not has_labels else "has examples without labels"
    if args.start == "dirty":
        raise ValueError(f"--start dirty is made from classes, and the data {why}")
    if args.associations == "perfect":
        raise ValueError(f"--associations perfect knows classes, and the data {why}")


def split(args: Args) -> list[experiment.Task]:
    """Returns an experiment for each method."""
    given = any(getattr(args, rule) for rule in deal.RULES)
    changes: dict[str, Any] = {} if given or not args.labels else {"overlap": (0.0,)}
    if not args.clients:
        changes["clients"] = (25 if args.preset == "paper" else 8,)
    return several.tasks(dataclasses.replace(args, **changes), describe, only)


def only(args: Args, name: Name) -> Args:
    """Returns the flags of one method."""
    if name == "fedcref":
        if deal.rule_of(args) == "overlap" and len(args.methods) > 1:
            args = dataclasses.replace(args, clusters=())  # those of dec and uifca
        # Where a run ends early, or has few communities, others would wait for it.
        if args.runs_per_call is None and platform() == "cpu":
            args = dataclasses.replace(args, runs_per_call=1)
    return several.only(args, name)


if __name__ == "__main__":
    several.main(Args, split)
