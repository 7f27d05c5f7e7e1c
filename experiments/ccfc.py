"""CCFC: cluster-contrastive federated clustering (https://arxiv.org/abs/2401.06634).

python experiments/ccfc.py --clients 10 --p 0.25
python experiments/ccfc.py --p 0 0.25 0.5 0.75 1 --seed 0 1 2 3 4
python experiments/ccfc.py --dataset mnist --data-dir DIR --limit 10000 --p 0
"""

import dataclasses
from functools import partial
from typing import Annotated

import optax

from fcjax import experiment, models
from fcjax.algorithms.ccfc import ccfc
from fcjax.data.augment import ccfc_grey
from fcjax.experiment import shown


@dataclasses.dataclass(frozen=True)
class Args(experiment.Common):
    """CCFC: SimSiam and cluster contrast under federated averaging.

    Flags that take several values span a grid, which runs as one program.
    """

    pretrain_rounds: Annotated[int | None, shown("100")] = None
    """Rounds of SimSiam that come first."""
    cluster_rounds: Annotated[int | None, shown("30; digits 10")] = None
    """Rounds of cluster contrast."""
    local_epochs: Annotated[int | None, shown("1; digits 4")] = None
    """Epochs that a client trains in a round."""
    batch_size: Annotated[int | None, shown("128; digits 45")] = None
    """Examples in a local step."""
    latent_size: Annotated[int | None, shown("256; fashion_mnist 64, digits 128")] = (
        None
    )
    """Size of the embedding."""
    learning_rate: Annotated[tuple[float, ...], shown("0.001; digits 0.002")] = ()
    """Of the clients' Adam."""
    model_weight: Annotated[
        tuple[float, ...], shown("the paper's for the data set, else 0.001")
    ] = ()
    """Weight (lambda) of the model-contrastive term."""
    sample_contrastive: bool = False
    """SCFC: contrast examples, not clusters, in the second stage too."""
    standalone: bool = False
    """Clients train alone: nothing is uploaded or downloaded."""
    own_init: bool = False
    """Average unrelated networks after a first round, as the authors' code does."""


SMOKE = {"pretrain_rounds": 2, "cluster_rounds": 1, "local_epochs": 1}
REFERENCE = {
    "pretrain_rounds": 100,
    "cluster_rounds": 30,
    "local_epochs": 1,
    "batch_size": 128,
    "latent_size": 256,
    "learning_rate": (1e-3,),
    "model_weight": (1e-3,),
}
DIGITS = {  # found on digits itself: BENCHMARKS.md says what was tried
    "cluster_rounds": 10,
    "local_epochs": 4,
    "batch_size": 45,
    "latent_size": 128,
    "learning_rate": (2e-3,),
}
PAPER = {  # Section 4.1
    "fashion_mnist": {"latent_size": 64, "model_weight": (1.0,)},
    "cifar10": {"model_weight": (0.1,)},
    "stl10": {"model_weight": (0.1,)},
}
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
PAPER_SCORES = {  # Tables 1 and 2: NMI and kappa at these p
    "mnist": (
        (0.9236, 0.8152, 0.6718, 0.3611, 0.0766),
        (0.9619, 0.8307, 0.6534, 0.3307, 0.0911),
    ),
    "fashion_mnist": (
        (0.6237, 0.5709, 0.6023, 0.4856, 0.1211),
        (0.6411, 0.5261, 0.5929, 0.3945, 0.1434),
    ),
    "cifar10": (
        (0.2449, 0.2094, 0.2085, 0.1189, 0.0639),
        (0.2854, 0.2281, 0.2214, 0.1214, 0.1047),
    ),
}


def describe(args: Args, dataset, num_clusters: int) -> experiment.Method:
    """Chooses defaults and network for the data set."""
    small = min(dataset.examples.shape[1:3]) < 16
    settings = REFERENCE | PAPER.get(args.dataset, {})
    if small and args.preset != "paper":
        settings |= DIGITS
    if args.preset == "smoke":
        settings |= SMOKE
    settings = experiment.choose(settings, args)

    latent_size = settings["latent_size"]
    if small:
        network = models.simsiam(
            models.conv_encoder((32, 64)),
            hidden_size=latent_size,
            latent_size=latent_size,
        )
        # Eight pixels bear little blur, and a nearest-pixel rotation ruins them.
        view = partial(
            ccfc_grey,
            crop_scale=(0.6, 1.0),
            max_degrees=15.0,
            blur_probability=0.0,
            order=1,
        )
    else:
        network = models.simsiam(models.conv_encoder(), latent_size=latent_size)
        view = ccfc_grey

    def build(values):
        return ccfc(
            network,
            optax.adam(values["learning_rate"]),
            view,
            num_clusters=num_clusters,
            pretrain_rounds=values["pretrain_rounds"],
            cluster_rounds=values["cluster_rounds"],
            local_epochs=values["local_epochs"],
            batch_size=values["batch_size"],
            model_weight=values["model_weight"],
            sample_contrastive=values["sample_contrastive"],
            standalone=values["standalone"],
            own_init=values["own_init"],
        )

    scores = zip(LEVELS, *PAPER_SCORES.get(args.dataset, ((), ())), strict=False)
    return experiment.Method(
        name="ccfc",
        settings=settings,
        build=build,
        scope="client-mean" if args.standalone else "global",
        paper={p: {"nmi": nmi, "kappa": kappa} for p, nmi, kappa in scores},
    )


if __name__ == "__main__":
    experiment.main(Args, describe)
