"""FedCRef (https://arxiv.org/abs/2408.10664) and what it is measured by.

python experiments/fedcref.py
python experiments/fedcref.py --start dirty --dirtiness 0 0.3 0.5 --seed 0 1 2
"""

import dataclasses
from typing import Annotated, Literal

from experiments import several
from experiments.papers.fedcref import methods
from experiments.papers.fedcref.methods import Local, Name
from fcjax.parallel.mesh import platform
from fcjax.sweep import flags, plan
from fcjax.sweep.flags import Common, Counts, Limits, Shares, default, settings_of


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
    clients: tuple[int, ...] = default(8)
    """How many clients the data is dealt to; the paper has 25."""
    p: tuple[float, ...] = ()
    """Heterogeneity, from 0 to 1; where it is not given, the rule is --overlap 0."""
    start: Local = "dec"
    """How clients come to their first clusters; dirty: from classes, a simulation."""
    dirtiness: Shares = default(0.3)
    """--start dirty: share of the examples that are put into a wrong cluster."""
    local_clusters: Literal["known", "silhouette"] = "known"
    """A client looks for as many as it holds classes, or by the best silhouette."""
    #: Which clusters are joined: those that pass the test, the first match of each (the
    #: authors' code), or, a simulation, those of the same class.
    associations: Literal["test", "first-match", "perfect"] = "test"
    percentile: Annotated[tuple[float, ...], Limits(most=100)] = default(75.0)
    """alpha of the test."""
    threshold: Shares = default(0.2)
    """theta of the test; more where classes have less than 500 examples."""
    stability: Shares = default(0.8)
    """tau: the share of its examples by which a client that keeps them is done."""
    tolerance: tuple[float, ...] = default(0.1)
    """The largest change of communities and isolated clusters that is none."""
    stop_when_settled: bool = True
    """End when all clients have settled, which the authors' code does not."""
    num_rounds: Counts = default(30)
    """The most iterations."""
    max_refinements: Annotated[float | None, Limits(least=1)] = None
    """End when clients have refined so often, as a mean; the authors' code has 10."""
    max_members: Annotated[int | None, Limits(least=1)] = None
    """Clusters of a community that are trained on; the authors' code has 30."""
    community_model: Literal["mean", "last-local"] = "mean"
    """Of its members' models; or what the first had last, as in the authors' code."""
    leftovers: Literal["nearest", "renumbered"] = "nearest"
    """Of examples that no model took; the authors' code renumbers by a second vote."""
    local_epochs: tuple[int, ...] = default(20)
    """Of a cluster's model; more where classes have less than 500 examples."""
    federated_rounds: Counts = default(15)
    """Of a community's model."""
    first_epochs: tuple[int, ...] = default(2)
    """Of a member in the first of them."""
    federated_epochs: tuple[int, ...] = default(7)
    """Of a member in the others."""
    batch_size: tuple[int, ...] = default(32)
    """Examples a step; uifca 128."""
    learning_rate: tuple[float, ...] = default(1e-3)
    """Of Adam, uifca 0.003; DEC's own is 0.001."""
    pretrain_rounds: Counts = default(50)
    """DEC: epochs of the auto-encoder alone."""
    joint_rounds: tuple[int, ...] = default(20)
    """DEC: epochs with the clusters."""
    dec_batch_size: tuple[int, ...] = default(64)
    """DEC: examples a step."""
    cluster_rounds: tuple[int, ...] = default(5)
    """uifca: T, how often examples are assigned."""
    communication_rounds: tuple[int, ...] = default(2)
    """uifca: tau, rounds between that."""
    local_steps: Counts = default(20)
    """uifca: M, steps of each model in a round."""
    flow_width: tuple[int, ...] = default(64)
    """uifca: units of the three hidden layers of a coupling."""


def settings(args: Args, name: Name, *, cluster_size: int):
    """Returns the settings of a method for clusters of so many examples."""
    names = methods.flags_of(name, args.start)
    return settings_of(args, *methods.chosen(args, name, cluster_size), names=names)


def describe(args: Args, dataset, num_clients: int, num_clusters: int) -> plan.Method:
    """Describes the first of the methods that are asked for."""
    size = plan.cluster_size(args, dataset, num_clients, num_clusters)
    found = settings(args, args.methods[0], cluster_size=size)
    return methods.described(args, found, dataset, num_clients, num_clusters)


def only(args: Args, name: Name) -> Args:
    """Returns the flags of one method."""
    if args.labels and not any(getattr(args, rule) for rule in plan.RULES):
        args = dataclasses.replace(args, overlap=flags.default(0.0))
    if args.preset == "paper" and isinstance(args.clients, flags.Default):
        args = dataclasses.replace(args, clients=flags.default(25))
    if name == "fedcref":
        if plan.rule_of(args) == "overlap" and len(args.methods) > 1:
            args = dataclasses.replace(args, clusters=())  # those of dec and uifca
        # Where a run ends early, or has few communities, others would wait for it.
        on_cpu = args.on is None and platform() == "cpu"
        if args.runs_per_call is None and on_cpu:
            args = dataclasses.replace(args, runs_per_call=1)
    return several.only(args, name)


if __name__ == "__main__":
    several.main(Args, describe, only)
