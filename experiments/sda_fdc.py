"""SDA-FDC: deep clustering of what the clients' generators make
(https://arxiv.org/abs/2211.16965), and what it is measured by.

python experiments/sda_fdc.py
python experiments/sda_fdc.py --methods sda-fc-km sda-fdc-disjoint sda-fdc --p 0 0.5 1
python experiments/sda_fdc.py --methods dcn --dataset mnist --data-dir DIR
"""

import dataclasses
from functools import partial
from typing import Annotated, Any

from experiments import several
from experiments.encoders import is_tiny
from experiments.papers.sda_fdc import printed
from experiments.papers.sda_fdc.methods import CENTRAL, Name, method_of
from fcjax.sweep import experiment, plan
from fcjax.sweep.flags import Common, choose, shown
from fcjax.sweep.load import short_name


@dataclasses.dataclass(frozen=True)
class Args(Common):
    """Clients train a GAN each and upload its generator, once; the server clusters what
    the generators make.

    sda-fdc: by DCN, an auto-encoder whose codes are drawn to their centroids.
    sda-fdc-disjoint: by k-means of an auto-encoder's codes. sda-fc-km, sda-fc-fcm: by
    k-means or fuzzy c-means of the examples. dcn, dcn-disjoint: the first two of real
    data in one place, however it is dealt: unless clients fail, at the first --p alone.
    """

    methods: tuple[Name, ...] = ("sda-fdc",)
    """Which methods to run, each into a results folder of its own."""
    gan_rounds: Annotated[tuple[int, ...], shown("50; digits 100")] = ()
    """Epochs in which clients train their GANs."""
    gan_batch_size: Annotated[tuple[int, ...], shown("64, of few examples 16")] = ()
    """Real examples, and as many synthetic ones, in a step of a GAN."""
    generator_learning_rate: Annotated[
        tuple[float, ...], shown("0.0018; vectors 0.0003")
    ] = ()
    """Of the generator's Adam in the first round."""
    discriminator_learning_rate: Annotated[
        tuple[float, ...], shown("0.0002; vectors 0.0006")
    ] = ()
    """Of the discriminator's."""
    gan_decay: Annotated[tuple[float, ...], shown("0.99")] = ()
    """What both are multiplied by after each round."""
    noise_size: Annotated[tuple[int, ...], shown("62; vectors 5")] = ()
    """Normal inputs of the generator, beside as many categories as --clusters."""
    num_synthetic: Annotated[int | None, shown("as many as it holds")] = None
    """Examples that the server makes with each client's generator."""
    pretrain_rounds: Annotated[tuple[int, ...], shown("50; vectors 15")] = ()
    """Epochs of the auto-encoder alone."""
    joint_rounds: Annotated[tuple[int, ...], shown("50; digits 20, vectors 10")] = ()
    """Epochs of the auto-encoder and the clusters by turns."""
    refresh_every: Annotated[tuple[int, ...], shown("10")] = ()
    """Epochs of these after which k-means of all codes goes on from the clusters."""
    batch_size: Annotated[tuple[int, ...], shown("128")] = ()
    """Examples in a step of the auto-encoder."""
    learning_rate: Annotated[tuple[float, ...], shown("0.001")] = ()
    """Of the auto-encoder's Adam."""
    #: lambda of Eq. 3: of half the squared distance of a code to its centroid, beside
    #: the squared error of the example, pixels being 0 to 1.
    cluster_weight: Annotated[
        tuple[float, ...], shown("20; digits 2, vectors 0.5")
    ] = ()
    num_init: Annotated[
        tuple[int, ...], shown("codes 20, examples 10, sda-fc-fcm 1")
    ] = ()
    """Seedings of k-means; the best by inertia counts."""
    fuzzifier: Annotated[tuple[float, ...], shown("1.1")] = ()
    """sda-fc-fcm: m, above 1."""
    unit_length: bool = True
    """sda-fc-km, sda-fc-fcm: scale every example to L2 norm 1, as the authors do."""


LOCAL = {  # the authors' code of SDA-FC
    "gan_rounds": 50,
    "gan_batch_size": 64,
    "generator_learning_rate": 1.8e-3,
    "discriminator_learning_rate": 2e-4,
    "gan_decay": 0.99,
    "noise_size": 62,
}
DISJOINT = {
    "pretrain_rounds": 50,
    "batch_size": 128,
    "learning_rate": 1e-3,
    "num_init": 20,
}
JOINT = {
    **DISJOINT,
    "joint_rounds": 50,
    "refresh_every": 10,
    "cluster_weight": 20.0,
}
OF_ROWS = {"num_init": 10, "unit_length": True}
SERVER: dict[Name, dict[str, Any]] = {
    "sda-fdc": JOINT,
    "sda-fdc-disjoint": DISJOINT,
    "sda-fc-km": OF_ROWS,
    "sda-fc-fcm": {**OF_ROWS, "num_init": 1, "fuzzifier": 1.1},
    "dcn": JOINT,
    "dcn-disjoint": DISJOINT,
}
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
DIGITS = {  # BENCHMARKS.md says what was tried
    "gan_rounds": 100,
    "joint_rounds": 20,
    "cluster_weight": 2.0,
}
SMOKE = {"gan_rounds": 3, "pretrain_rounds": 3, "joint_rounds": 2, "num_init": 1}


def defaults_of(
    args: Args, name: Name, shape: tuple[int, ...], *, per_client: int
) -> dict[str, Any]:
    """Returns by flag what stands for one that is not given."""
    settings = {} if name in CENTRAL else {**LOCAL, "num_synthetic": None}
    settings |= SERVER[name]
    found = {}
    if len(shape) == 1:
        found |= VECTORS
    if args.preset != "paper":
        # Some twelve steps an epoch, where a client has examples for so many.
        found |= {"gan_batch_size": min(64, max(16, per_client // 12))}
        found |= DIGITS if is_tiny(shape) else {}
    if args.preset == "smoke":
        found |= SMOKE
    return settings | {k: v for k, v in found.items() if k in settings}


def describe(
    args: Args, dataset, num_clients: int, num_clusters: int
) -> experiment.Method:
    """Describes the first of the methods that are asked for."""
    name = args.methods[0]
    shape = dataset.examples.shape[1:]
    per_client = len(dataset.examples) // num_clients
    settings = choose(defaults_of(args, name, shape, per_client=per_client), args)
    for value in settings.get("fuzzifier", ()):
        if value <= 1:
            raise ValueError(f"--fuzzifier must be above 1, got {value}")
    for flag in ("gan_rounds", "pretrain_rounds", "refresh_every"):
        if 0 in settings.get(flag, ()):
            raise ValueError(f"--{flag.replace('_', '-')} must be at least 1, got 0")
    if args.num_synthetic is not None and args.num_synthetic < 1:
        raise ValueError(
            f"--num-synthetic must be at least 1, got {args.num_synthetic}"
        )
    local = {flag: settings[flag] for flag in LOCAL if flag in settings}
    return experiment.Method(
        name=name,
        settings=settings,
        build=partial(method_of, name, shape=shape, num_clusters=num_clusters),
        scope="global",
        paper=printed.scores_of(short_name(args.dataset), name),
        # The server's examples, as they are and as rows.
        working_bytes=dataset.examples.nbytes + 4 * dataset.examples.size,
        shared=plan.Shared("gan", 1, local) if local else None,
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
