"""FDSC: federated deep subspace clustering (https://arxiv.org/abs/2501.00230), and what
it is measured by.

python experiments/fdsc.py --methods fdsc2 fdsc1 dscn dlrsc lrsc
python experiments/fdsc.py --dataset ORL_32x32.mat --classes-per-client 20 40
python experiments/fdsc.py --dataset mnist --data-dir DIR --clients 20 --client-size 500
"""

import dataclasses
from typing import Annotated, Literal

from experiments import several
from experiments.papers.fdsc import methods
from experiments.papers.fdsc.methods import Name
from fcjax.algorithms.fdsc import Norm
from fcjax.cluster import Assign
from fcjax.sweep import plan
from fcjax.sweep.flags import Common, Counts, Positive, default, settings_of, shown


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
    clients: tuple[int, ...] = default(5)
    """How many clients the data is dealt to."""
    p: tuple[float, ...] = default(0.0)
    """Heterogeneity: 0 deals at random, 1 gives every client a class of its own."""
    #: T: rounds of the whole network; dscn, dlrsc: in which every client is, dscn as
    #: many as a client of fdsc is in, dlrsc 700.
    num_rounds: Counts = default(100)
    num_participants: Annotated[tuple[int, ...], shown("0.4 of --clients")] = ()
    """r m: how many clients take part in a round, drawn at random."""
    local_steps: Counts = default(7)
    """tau: steps of a client in a round, on all of its examples at once."""
    #: Rounds of the auto-encoder without coefficients, before. FDSC has none; what it
    #: builds on does.
    pretrain_rounds: Annotated[tuple[int, ...], shown("half of --num-rounds")] = ()
    #: All but lrsc: steps of every client before and after the rounds, in which the
    #: encoder stays as it is.
    fit_steps: tuple[int, ...] = default(100)
    optimizer: Literal["adam", "sgd"] = "adam"
    """Of the clients; sgd, the paper's, has momentum 0.9."""
    learning_rate: tuple[float, ...] = default(1e-3)
    """Of the clients' optimiser, sgd 1e-6; errors are sums over their examples."""
    pixel_scale: Positive = default(1.0)
    """What pixels, 0 to 1, are multiplied by. The weights below belong to it."""
    norm: Norm = "frobenius"
    """Of the coefficients: the squared Frobenius norm, L1 or nuclear."""
    penalty_weight: tuple[float, ...] = default(1.0)
    """lambda_1 of the norm; of dlrsc, of |U|^2."""
    expression_weight: tuple[float, ...] = default(15.0)
    """lambda_2 of |Z - C Z|^2."""
    locality_weight: tuple[float, ...] = default(1e6)
    """fdsc2: lambda_3 of |alpha A - beta C|^2."""
    #: What lambda_3 weighs: the sum with pixels of 0 to 255, where 1e6 amounts to 15.4
    #: with pixels of 0 to 1; or the mean over pairs of examples with pixels of 0 to 1,
    #: where 1e6 amounts to 4 of the sum of 500 examples.
    locality: Literal["sum", "mean"] = "sum"
    adjacency_weight: tuple[float, ...] = default(1.0)
    """alpha."""
    coefficient_weight: tuple[float, ...] = default(1.0)
    """beta."""
    num_neighbors: tuple[int, ...] = default(5)
    """k of the graph A."""
    rank_factor: tuple[int, ...] = default(10)
    """dlrsc: columns of U for each cluster."""
    fidelity: tuple[float, ...] = default(1.0)
    """lrsc: tau, of half the squared error beside the nuclear norm."""
    unit_length: bool = True
    """lrsc: scale every example to L2 norm 1."""
    #: How the eigenvectors of the affinity become clusters: by k-means, as Ng, Jordan
    #: and Weiss do, whom FDSC cites, or by discretisation, as the code of DSC-Net does.
    assign_labels: Assign = "kmeans"
    #: Process the coefficients as the code of DSC-Net does, of any method, before they
    #: are clustered; the paper says nothing of it. Without it |C| + |C|^T is clustered.
    post_processing: bool = False
    keep: Positive = default(0.4)
    """Share of the L1 norm of a column that its largest coefficients keep."""
    dimension: tuple[int, ...] = default(10)
    """Singular vectors for each cluster."""
    power: Positive = default(3.5)
    """Exponent of the affinity."""
    unit_diagonal: Annotated[bool | None, shown("no; COIL yes")] = None
    """Ones on the diagonal of what is decomposed."""


def settings(args: Args, name: Name, num_clients: int, num_clusters: int):
    """Returns the settings of a method."""
    changes = methods.chosen(args, name, num_clients, num_clusters)
    names = methods.flags_of(name, post_processing=args.post_processing)
    return settings_of(args, *changes, names=names)


def describe(args: Args, dataset, num_clients: int, num_clusters: int) -> plan.Method:
    """Describes the first of the methods that are asked for."""
    name, shape = args.methods[0], dataset.examples.shape[1:]
    found = settings(args, name, num_clients, num_clusters)

    def build(values):
        return methods.method_of(name, values, shape, num_clusters=num_clusters)

    size = int(plan.rows_of_client(args, dataset, num_clients))
    memory = methods.memory_of(name, (size, *shape))
    return plan.Method(
        *(name, found, build, "client-pooled"), working_bytes=memory, evaluate_every=25
    )


if __name__ == "__main__":
    several.main(Args, describe)
