"""SDA-FDC: deep clustering of what the clients' generators make
(https://arxiv.org/abs/2211.16965), and what it is measured by.

python experiments/sda_fdc.py
python experiments/sda_fdc.py --methods sda-fc-km sda-fdc-disjoint sda-fdc --p 0 0.5 1
python experiments/sda_fdc.py --methods dcn --dataset mnist --data-dir DIR
"""

import dataclasses
from typing import Annotated

from experiments import several
from experiments.papers.sda_fdc import methods, printed
from experiments.papers.sda_fdc.methods import CENTRAL, Name
from fcjax.sweep import plan
from fcjax.sweep.flags import Common, Counts, Limits, default, settings_of, shown
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
    gan_rounds: Counts = default(50)
    """Epochs in which clients train their GANs."""
    gan_batch_size: tuple[int, ...] = default(64)
    """Real examples, and as many synthetic ones, in a step of a GAN."""
    generator_learning_rate: tuple[float, ...] = default(1.8e-3)
    """Of the generator's Adam in the first round."""
    discriminator_learning_rate: tuple[float, ...] = default(2e-4)
    """Of the discriminator's."""
    gan_decay: tuple[float, ...] = default(0.99)
    """What both are multiplied by after each round."""
    noise_size: tuple[int, ...] = default(62)
    """Normal inputs of the generator, beside as many categories as --clusters."""
    num_synthetic: Annotated[
        int | None, Limits(least=1), shown("as many as it holds")
    ] = None
    """Examples that the server makes with each client's generator."""
    pretrain_rounds: Counts = default(50)
    """Epochs of the auto-encoder alone."""
    joint_rounds: tuple[int, ...] = default(50)
    """Epochs of the auto-encoder and the clusters by turns."""
    refresh_every: Counts = default(10)
    """Epochs of these after which k-means of all codes goes on from the clusters."""
    batch_size: tuple[int, ...] = default(128)
    """Examples in a step of the auto-encoder."""
    learning_rate: tuple[float, ...] = default(1e-3)
    """Of the auto-encoder's Adam."""
    #: lambda of Eq. 3: of half the squared distance of a code to its centroid, beside
    #: the squared error of the example, pixels being 0 to 1.
    cluster_weight: tuple[float, ...] = default(20.0)
    num_init: tuple[int, ...] = default(20)
    """Seedings of k-means, the best by inertia counts; of examples 10, sda-fc-fcm 1."""
    fuzzifier: Annotated[tuple[float, ...], Limits(above=1)] = default(1.1)
    """sda-fc-fcm: m."""
    unit_length: bool = True
    """sda-fc-km, sda-fc-fcm: scale every example to L2 norm 1, as the authors do."""


def settings(args: Args, name: Name, shape: tuple[int, ...], *, per_client: int):
    """Returns the settings of a method for examples of this shape."""
    changes = methods.chosen(name, shape, preset=args.preset, per_client=per_client)
    return settings_of(args, *changes, names=methods.FLAGS[name])


def describe(args: Args, dataset, num_clients: int, num_clusters: int) -> plan.Method:
    """Describes the first of the methods that are asked for."""
    name, shape = args.methods[0], dataset.examples.shape[1:]
    per_client = int(plan.rows_of_client(args, dataset, num_clients))
    found = settings(args, name, shape, per_client=per_client)
    local = {flag: found[flag] for flag in methods.LOCAL if flag in found}

    def build(values):
        return methods.method_of(name, values, shape, num_clusters=num_clusters)

    return plan.Method(
        name=name,
        settings=found,
        build=build,
        scope="global",
        paper=printed.scores_of(short_name(args.dataset), name),
        # The server's examples, as they are and as rows.
        working_bytes=dataset.examples.nbytes + 4 * dataset.examples.size,
        sees_all=name in CENTRAL,
        shared=plan.Shared("gan", 1, local) if local else None,
    )


def only(args: Args, name: Name) -> Args:
    """Returns the flags of one method."""
    args = several.dealt_once(args) if name in CENTRAL else args
    return several.only(args, name)


if __name__ == "__main__":
    several.main(Args, describe, only)
