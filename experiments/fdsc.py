"""FDSC: federated deep subspace clustering (https://arxiv.org/abs/2501.00230), and what
it is measured by.

python experiments/fdsc.py
python experiments/fdsc.py --methods fdsc2 fdsc1 dscn dlrsc lrsc
python experiments/fdsc.py --dataset ORL_32x32.mat --classes-per-client 20 40
python experiments/fdsc.py --dataset mnist --data-dir DIR --clients 20 --client-size 500
"""

import dataclasses
import math
import re
from functools import partial
from typing import Annotated, Any, Literal

from experiments import several
from experiments.papers.fdsc.methods import FEDERATED, Name, method_of
from fcjax.algorithms.subspace import Norm
from fcjax.cluster import Assign
from fcjax.sweep import experiment
from fcjax.sweep.flags import Common, choose, shown
from fcjax.sweep.load import short_name


@dataclasses.dataclass(frozen=True)
class Args(Common):
    """Every client clusters its own examples, each of which is expressed by the others.

    fdsc2: clients share the encoder of their networks; coefficients are drawn to the
    graph of nearest neighbours. fdsc1: without that. dscn, dlrsc: nothing is shared;
    the coefficients of dlrsc have a low rank. lrsc: the same without a network, in
    closed form. Scores are means over clients, each with a match of its own.
    """

    methods: tuple[Name, ...] = ("fdsc2",)
    """Which methods to run, each into a results folder of its own."""
    clients: tuple[int, ...] = (5,)
    """How many clients the data is dealt to."""
    p: tuple[float, ...] = (0.0,)
    """Heterogeneity: 0 deals at random, 1 gives every client a class of its own."""
    evaluate_every: int = 10
    """Score every so many rounds; the last round of a stage always is."""
    num_rounds: Annotated[
        tuple[int, ...],
        shown("100, ORL 200; dscn as many as a client of fdsc is in; dlrsc 700"),
    ] = ()
    """T: rounds of the whole network; dscn, dlrsc: in which every client is."""
    num_participants: Annotated[
        tuple[int, ...], shown("0.4 of --clients, MNIST 0.25")
    ] = ()
    """r m: how many clients take part in a round, drawn at random."""
    local_steps: Annotated[tuple[int, ...], shown("7")] = ()
    """tau: steps of a client in a round, on all of its examples at once."""
    #: Rounds of the auto-encoder without coefficients, before. FDSC has none; what it
    #: builds on does.
    pretrain_rounds: Annotated[
        tuple[int, ...],
        shown("half of --num-rounds, dscn's too; dlrsc and --preset paper 0"),
    ] = ()
    #: All but lrsc: steps of every client before and after the rounds, in which the
    #: encoder stays as it is.
    fit_steps: Annotated[
        tuple[int, ...], shown("100; one client's dscn and --preset paper 0")
    ] = ()
    optimizer: Literal["adam", "sgd"] = "adam"
    """Of the clients; sgd, the paper's, has momentum 0.9."""
    learning_rate: Annotated[tuple[float, ...], shown("adam 0.001, sgd 0.000001")] = ()
    """Of the clients' optimiser; errors are sums over their examples."""
    #: What pixels, 0 to 1, are multiplied by. The weights below belong to it.
    pixel_scale: Annotated[tuple[float, ...], shown("1, ORL and COIL-100 255")] = ()
    norm: Norm = "frobenius"
    """Of the coefficients: the squared Frobenius norm, L1 or nuclear."""
    penalty_weight: Annotated[tuple[float, ...], shown("1, ORL 2")] = ()
    """lambda_1 of the norm; of dlrsc, of |U|^2."""
    expression_weight: Annotated[
        tuple[float, ...], shown("15, ORL 0.2, COIL20 75")
    ] = ()
    """lambda_2 of |Z - C Z|^2."""
    locality_weight: Annotated[tuple[float, ...], shown("1000000")] = ()
    """fdsc2: lambda_3 of |alpha A - beta C|^2."""
    #: What lambda_3 weighs: the sum with pixels of 0 to 255, where 1e6 amounts to 15.4
    #: with pixels of 0 to 1; or the mean over pairs of examples with pixels of 0 to 1,
    #: where 1e6 amounts to 4 of the sum of 500 examples.
    locality: Literal["sum", "mean"] = "sum"
    adjacency_weight: Annotated[tuple[float, ...], shown("1")] = ()
    """alpha."""
    coefficient_weight: Annotated[tuple[float, ...], shown("1")] = ()
    """beta."""
    num_neighbors: Annotated[tuple[int, ...], shown("5")] = ()
    """k of the graph A."""
    rank_factor: Annotated[tuple[int, ...], shown("10")] = ()
    """dlrsc: columns of U for each cluster."""
    fidelity: Annotated[tuple[float, ...], shown("1, ORL 100")] = ()
    """lrsc: tau, of half the squared error beside the nuclear norm."""
    unit_length: bool = True
    """lrsc: scale every example to L2 norm 1."""
    #: How the eigenvectors of the affinity become clusters: by k-means, as Ng, Jordan
    #: and Weiss do, whom FDSC cites, or by discretisation, as the code of DSC-Net does.
    assign_labels: Assign = "kmeans"
    #: Process the coefficients as the code of DSC-Net does, of any method, before they
    #: are clustered; the paper says nothing of it. Without it |C| + |C|^T is clustered.
    post_processing: bool = False
    keep: Annotated[
        tuple[float, ...], shown("0.4, less of many clusters; COIL 0.04, ORL 0.2")
    ] = ()
    """Share of the L1 norm of a column that its largest coefficients keep."""
    dimension: Annotated[tuple[int, ...], shown("10; COIL 12, ORL 3")] = ()
    """Singular vectors for each cluster."""
    power: Annotated[tuple[float, ...], shown("3.5; COIL 8, ORL 1")] = ()
    """Exponent of the affinity."""
    unit_diagonal: Annotated[bool | None, shown("no; COIL yes")] = None
    """Ones on the diagonal of what is decomposed."""


# Weights and post-processing are those of the code of DSC-Net for the same data, and so
# is the scale of the pixels: it feeds its files as they are, in which those of ORL and
# COIL-100 are 0 to 255 and those of COIL20 0 to 1. It has none for others: these have
# the weights of COIL-100, as the paper gives MNIST, with pixels of 0 to 1, of which the
# paper says nothing, and the post-processing of faces (Extended Yale B), by the number
# of clusters. LRSC's tau is the best of a grid, see BENCHMARKS.md.
OTHERS = {
    "num_rounds": 100,
    "participation": 0.4,
    "pixel_scale": 1.0,
    "penalty_weight": 1.0,
    "expression_weight": 15.0,
    "fidelity": 1.0,
    "dimension": 10,
    "power": 3.5,
    "unit_diagonal": False,
}
COIL = {**OTHERS, "keep": 0.04, "dimension": 12, "power": 8.0, "unit_diagonal": True}
ORL = {
    "num_rounds": 200,
    "participation": 0.4,
    "pixel_scale": 255.0,
    "penalty_weight": 2.0,
    "expression_weight": 0.2,
    "fidelity": 100.0,
    "keep": 0.2,
    "dimension": 3,
    "power": 1.0,
    "unit_diagonal": False,
}
BY_NAME = {
    "orl": ORL,
    "coil20": {**COIL, "expression_weight": 75.0},
    "coil100": {**COIL, "pixel_scale": 255.0},
    "mnist": {**OTHERS, "participation": 0.25},
}
"""By what the name of a data set begins with."""
POST_PROCESSING = ("keep", "dimension", "power", "unit_diagonal")
WEIGHTS = ("num_rounds", "pixel_scale", "penalty_weight", "expression_weight")
NETWORK = {"local_steps": 7, "fit_steps": 100, "optimizer": "adam"}
DENSE = {**NETWORK, "norm": "frobenius"}
LOCALITY = {
    "locality_weight": 1e6,
    "locality": "sum",
    "adjacency_weight": 1.0,
    "coefficient_weight": 1.0,
    "num_neighbors": 5,
}
OWN: dict[Name, dict[str, Any]] = {
    "fdsc2": {**DENSE, **LOCALITY},
    "fdsc1": DENSE,
    "dscn": DENSE,
    "dlrsc": {**NETWORK, "rank_factor": 10},
    "lrsc": {"unit_length": True},
}
ACTIVATIONS = 400
"""Bytes that the auto-encoder of images takes for each pixel of a client's examples."""
RATES = {"adam": 1e-3, "sgd": 1e-6}
PAPER = {"pretrain_rounds": 0, "fit_steps": 0}
SMOKE = {"num_rounds": 3, "pretrain_rounds": 2, "fit_steps": 3}


def defaults_of(
    args: Args, name: Name, num_clients: int, num_clusters: int
) -> dict[str, Any]:
    """Returns by flag what stands for one that is not given."""
    dataset = re.sub("[-_]", "", short_name(args.dataset).lower())
    known = [v for start, v in BY_NAME.items() if dataset.startswith(start)]
    of_data = {"keep": max(0.4 - 0.1 * ((num_clusters - 1) // 10), 0.1)}
    of_data |= known[0] if known else OTHERS
    found = {"post_processing": False, "assign_labels": "kmeans", **OWN[name]}
    if args.post_processing:
        found |= {flag: of_data[flag] for flag in POST_PROCESSING}
    if name == "lrsc":
        return {**found, "fidelity": of_data["fidelity"]}
    found |= {flag: of_data[flag] for flag in WEIGHTS}
    found["learning_rate"] = RATES[args.optimizer]
    found["pretrain_rounds"] = found["num_rounds"] // 2
    participation = of_data["participation"]
    participants = max(1, round(participation * num_clients))
    if name in FEDERATED:
        found["num_participants"] = participants
    elif name == "dlrsc":
        found |= {"num_rounds": 700, "pretrain_rounds": 0}  # the authors' 5,000 steps
    else:
        # The one budget: as many rounds as a client of FDSC takes part in, of as many
        # steps, and the same steps before and after. Rounds are rounded up.
        taken = min(max(args.num_participants, default=participants), num_clients)
        if num_clients == 1:  # no client of FDSC, but DSC-Net, which has no fits
            taken, found["fit_steps"] = participation, 0
        for rounds in ("num_rounds", "pretrain_rounds"):
            found[rounds] = math.ceil(found[rounds] * taken / num_clients)
    of_preset = {"smoke": SMOKE, "paper": PAPER}.get(args.preset, {})
    return found | {k: v for k, v in of_preset.items() if k in found}


def describe(
    args: Args, dataset, num_clients: int, num_clusters: int
) -> experiment.Method:
    """Describes the first of the methods that are asked for."""
    name = args.methods[0]
    settings = choose(defaults_of(args, name, num_clients, num_clusters), args)
    for value in settings.get("num_participants", ()):
        if value > num_clients:
            raise ValueError(
                f"--num-participants must be at most --clients {num_clients}, "
                f"got {value}"
            )
    for flag in ("num_rounds", "local_steps"):
        if 0 in settings.get(flag, ()):
            raise ValueError(f"--{flag.replace('_', '-')} must be at least 1, got 0")
    for flag in ("keep", "power", "pixel_scale"):
        if 0 in settings.get(flag, ()):
            raise ValueError(f"--{flag.replace('_', '-')} must be above 0, got 0")
    size = max(args.client_size, default=len(dataset.examples) // num_clients)
    num_pixels = size * math.prod(dataset.examples.shape[1:])
    return experiment.Method(
        name=name,
        settings=settings,
        build=partial(
            method_of, name, shape=dataset.examples.shape[1:], num_clusters=num_clusters
        ),
        scope="client-pooled",
        paper={},
        working_bytes=0 if name == "lrsc" else ACTIVATIONS * num_pixels,
    )


def split(args: Args) -> list[experiment.Task]:
    """Returns an experiment for each method."""
    return several.tasks(args, describe)


if __name__ == "__main__":
    several.main(Args, split)
