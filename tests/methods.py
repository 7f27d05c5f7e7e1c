"""The methods that tests/test_contract.py tests.

Each entry is a function from a scalar, which can be swept, to the built method with a
tiny network on vectors. A new method is one more entry. A method in a file outside the
library is given by --method.
"""

import runpy
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import jax
import optax
from flax import linen as nn

from experiments import spherical
from fcjax.algorithms.autoencoders import by_dcn, by_dec
from fcjax.algorithms.averaging import Local
from fcjax.algorithms.baselines import exact_cmeans, ffcm
from fcjax.algorithms.ccfc import ccfc
from fcjax.algorithms.central import by_fuzzy_cmeans, by_kmeans, central
from fcjax.algorithms.fdsc import dlrsc, dscn, fdsc, lrsc
from fcjax.algorithms.fedcref import fedcref, on_clients
from fcjax.algorithms.fedmcc import (
    FeatureKMeans,
    by_heterogeneity,
    cc,
    cluster_contrast,
    feature_kmeans,
    fedmcc,
    mcc,
)
from fcjax.algorithms.fedu import fedema, fedsimclr, fedsimsiam, fedu
from fcjax.algorithms.kfed import kfed
from fcjax.algorithms.orchestra import orchestra
from fcjax.algorithms.sda import Pair, sda
from fcjax.algorithms.uifca import uifca
from fcjax.methods import (
    CC,
    CCFC,
    DCN,
    DEC,
    DLRSC,
    DSCN,
    FDSC,
    FFCM,
    LRSC,
    MCC,
    SDAFDC,
    UIFCA,
    ExactKMeans,
    FedCRef,
    FedEMA,
    FedMCC,
    FedSimCLR,
    FedSimSiam,
    FedU,
    FuzzyCMeans,
    KFed,
    KMeans,
    Orchestra,
)
from fcjax.nn import (
    MLP,
    autoencoder,
    byol_head,
    cluster_projector,
    encoder,
    from_linen,
    mlp_gan,
    orchestra_projector,
    projector,
    realnvp,
    reconstructor,
    simsiam_predictor,
    simsiam_projector,
)
from fcjax.types import FederatedClustering, Scalar

NUM_CLUSTERS = 3


class TinySimSiam(nn.Module):
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x, *, train, mask):
        mask = None if mask is None else mask[:, None]
        norm = nn.BatchNorm(
            use_running_average=not train, momentum=0.9, epsilon=self.epsilon
        )
        z = nn.Dense(6)(jax.nn.relu(norm(nn.Dense(8)(x), mask=mask)))
        return z, nn.Dense(6)(z)


def jitter(key, x):
    return x + 0.1 * jax.random.normal(key, x.shape)


def build_ccfc(weight, *, swept="model_weight", epsilon=1e-5, **options):
    rounds = {"pretrain_rounds": 3, "cluster_rounds": 2}
    settings = CCFC(**rounds, batch_size=4, **options).plain(**{swept: weight})
    # SGD instead of Adam: Adam divides by the size of the gradient. Where the gradient
    # is only a rounding error, two orders of summation would differ by whole steps.
    optimizer, network = optax.sgd(0.05, momentum=0.9), from_linen(TinySimSiam(epsilon))
    return ccfc(settings, network, optimizer, jitter, num_clusters=NUM_CLUSTERS)


def build_kfed(weight):
    del weight  # k-FED has no setting that can be swept.
    return kfed(KFed(local_clusters=2).plain(), num_clusters=NUM_CLUSTERS)


def build_ffcm(weight, aggregation, **options):
    settings = FFCM(num_rounds=3, **options).plain(fuzzifier=1.2 + weight)
    last = {"aggregation": aggregation, "tolerance": 0.0}
    return ffcm(settings, num_clusters=NUM_CLUSTERS, **last)


def build_exact(weight):
    settings, last = ExactKMeans(num_rounds=3).plain(), {"tolerance": 0.0}
    fuzzifier = 1.2 + weight
    return exact_cmeans(
        settings, num_clusters=NUM_CLUSTERS, fuzzifier=fuzzifier, **last
    )


LOCAL = Local(optax.sgd(0.05, momentum=0.9), jitter, num_epochs=1, batch_size=4)
ENCODER = encoder(MLP((8,)))
BYOL = (ENCODER, byol_head(6, hidden_size=8), byol_head(6, hidden_size=5))
SIMSIAM = (
    ENCODER,
    simsiam_projector(6, hidden_size=8),
    simsiam_predictor(6, hidden_size=4),
)


SIMCLR = (ENCODER, projector(6, hidden_size=7))
SOFT = cluster_projector(NUM_CLUSTERS, hidden_size=7)


def contrastive(method, **options):
    """Returns the settings and the second stage of a method."""
    settings = method(num_rounds=3, cluster_rounds=2).plain(**options)
    return settings, cluster_contrast(settings, SOFT, LOCAL)


def build_fedmcc(weight, local=LOCAL, **options):
    temperatures = {
        "instance_temperature": 0.5 + weight,
        "cluster_temperature": 1 + weight,
    }
    settings, clusters = contrastive(FedMCC, **temperatures, **options)
    return fedmcc(settings, *SIMCLR, clusters, local)


def build_by_heterogeneity(weight):
    settings, trained = contrastive(FedMCC, instance_temperature=0.5 + weight)
    kmeans = FeatureKMeans(NUM_CLUSTERS, num_init=2, whitening=0.5)
    clusters = by_heterogeneity(kmeans, SOFT, trained)
    return fedmcc(settings, *SIMCLR, clusters, LOCAL)


def build_at_once(method, settings, weight, local=LOCAL):
    settings = settings(num_rounds=3).plain(instance_temperature=0.5 + weight)
    return method(settings, *SIMCLR, SOFT, local)


def build_fedu(weight):
    settings, clusters = contrastive(FedU, momentum=0.9 + weight / 9)
    return fedu(settings, *BYOL, clusters, LOCAL)


def build_fedema(weight):
    settings = FedEMA(num_rounds=3).plain(momentum=0.9 + weight / 9)
    clusters = feature_kmeans(FeatureKMeans(NUM_CLUSTERS, num_init=2))
    return fedema(settings, *BYOL, clusters, LOCAL)


def build_fedsimclr(weight):
    settings, clusters = contrastive(FedSimCLR, instance_temperature=0.5 + weight)
    return fedsimclr(settings, *SIMCLR, clusters, LOCAL)


def build_fedsimsiam(weight):
    settings, clusters = contrastive(FedSimSiam)
    local = LOCAL._replace(optimizer=optax.sgd(0.02 * (1 + weight), momentum=0.9))
    return fedsimsiam(settings, *SIMSIAM, clusters, local)


def build_orchestra(weight):
    sizes = {"num_participants": 4, "num_global": 6, "num_local": 2, "memory_size": 6}
    settings = Orchestra(num_rounds=2, server_steps=3, **sizes)
    return orchestra(
        settings.plain(temperature=0.2 + weight),
        *(ENCODER, orchestra_projector(6, hidden_size=8), None, jitter),
        feature_kmeans(FeatureKMeans(NUM_CLUSTERS, num_init=2)),
        LOCAL,
    )


def sgd(weight):
    """Returns an optimizer that `weight` changes from the first round on."""
    return optax.sgd(0.05 * (1 + weight), momentum=0.9)


def build_sda(clustering, weight):
    return sda(
        SDAFDC().plain(gan_rounds=2, gan_batch_size=4, noise_size=2),
        mlp_gan(5, widths=(8,)),
        Pair(sgd(weight), sgd(weight)),
        clustering(weight),
        num_clusters=NUM_CLUSTERS,
    )


def tiny_fcm(weight):
    settings = FuzzyCMeans(num_init=1).plain(fuzzifier=1.2 + weight)
    return by_fuzzy_cmeans(settings, num_clusters=NUM_CLUSTERS)


def tiny_dcn(weight):
    sizes = {"pretrain_rounds": 1, "joint_rounds": 2, "batch_size": 8, "num_init": 2}
    return by_dcn(
        DCN().plain(**sizes, cluster_weight=weight),
        autoencoder(5, widths=(8,), latent_size=3),
        optax.sgd(0.002 * (1 + weight), momentum=0.9),
        num_clusters=NUM_CLUSTERS,
    )


def build_dec(weight):
    clustering = by_dec(
        DEC().plain(pretrain_rounds=1, joint_rounds=2, dec_batch_size=8),
        autoencoder(5, widths=(8,), latent_size=3),
        optax.sgd(0.005 * (1 + weight), momentum=0.9),
        num_clusters=NUM_CLUSTERS,
    )
    return central(clustering)


def build_subspaces(method, settings, weight, **options):
    options = {"local_steps": 1, "fit_steps": 0} | options
    return method(
        settings().plain(
            num_rounds=2,
            pretrain_rounds=1,
            penalty_weight=weight,
            expression_weight=1.0,
            **options,
        ),
        autoencoder(5, widths=(8,), latent_size=4),
        optax.sgd(1e-4 * (1 + weight), momentum=0.9),
        num_clusters=NUM_CLUSTERS,
    )


def build_fdsc(weight):
    return build_subspaces(
        *(fdsc, FDSC, weight),
        num_participants=2,
        local_steps=2,
        fit_steps=2,
        locality_weight=255**2 * weight,
        num_neighbors=2,
    )


def build_lrsc(weight):
    processing = {"keep": 0.9, "dimension": 1, "power": 1.0, "unit_diagonal": False}
    settings = LRSC().plain(post_processing=True, fidelity=1 + weight, **processing)
    return lrsc(settings, num_clusters=NUM_CLUSTERS)


def build_uifca(weight):
    of_start = KFed(local_clusters=NUM_CLUSTERS, unit_length=False).plain()
    return uifca(
        UIFCA().plain(
            cluster_rounds=2, communication_rounds=2, local_steps=3, batch_size=4
        ),
        realnvp((5,), num_couplings=2, hidden=(8,)),
        optax.sgd(1e-3 * (1 + weight), momentum=0.9),
        kfed(of_start, num_clusters=NUM_CLUSTERS),
        num_clusters=NUM_CLUSTERS,
        levels=None,
    )


def local_kmeans(num_used):
    settings = KMeans(num_init=2, unit_length=False).plain()
    return by_kmeans(settings, num_clusters=NUM_CLUSTERS, num_used=num_used)


def build_fedcref(weight, **options):
    return fedcref(
        FedCRef().plain(
            **{"num_rounds": 3, "federated_rounds": 2, "batch_size": 4},
            **{"local_epochs": 3, "first_epochs": 1, "federated_epochs": 1},
            threshold=0.9,
            stability=2.0,  # No client becomes stable, so all rounds are run.
        ),
        reconstructor(5, widths=(6, 3, 6)),
        optax.sgd(0.05 * (1 + weight)),
        on_clients(local_kmeans, num_clusters=NUM_CLUSTERS),
        num_clusters=NUM_CLUSTERS,
        **options,
    )


METHODS = {
    "ccfc": build_ccfc,
    "ccfc-paper-equations": partial(build_ccfc, include_self=False, euclidean=True),
    "ccfc++": partial(build_ccfc, swept="decorrelation_weight", model_weight=0.1),
    "ccfc-k-means": partial(build_ccfc, cluster_by="k-means", max_heterogeneity=1.0),
    "scfc": partial(build_ccfc, sample_contrastive=True, own_init=True),
    "standalone": partial(build_ccfc, standalone=True),
    "fcm": lambda weight: central(tiny_fcm(weight)),
    "k-fed": build_kfed,
    "ffcm": partial(build_ffcm, aggregation="kmeans", local_iters=4),
    "ffcm-mean": partial(build_ffcm, aggregation="mean"),
    "exact-fcm": build_exact,
    "fedmcc": build_fedmcc,
    "fedmcc-by-heterogeneity": build_by_heterogeneity,
    "fedmcc-average-target": partial(build_fedmcc, average_target=True),
    "mcc": partial(build_at_once, mcc, MCC),
    "cc": partial(build_at_once, cc, CC, local=LOCAL._replace(keep_optimizer=True)),
    "fedu": build_fedu,
    "fedema": build_fedema,
    "fedsimclr": build_fedsimclr,
    "fedsimsiam": build_fedsimsiam,
    "orchestra": build_orchestra,
    "sda-fc-fcm": partial(build_sda, tiny_fcm),
    "sda-fdc": partial(build_sda, tiny_dcn),
    "dcn": lambda weight: central(tiny_dcn(weight)),
    "dec": build_dec,
    "fdsc": build_fdsc,
    "dscn": partial(build_subspaces, dscn, DSCN),
    "dlrsc": partial(build_subspaces, dlrsc, DLRSC),
    "lrsc": build_lrsc,
    "uifca": build_uifca,
    "fedcref": build_fedcref,
    "spherical": spherical.contract,
}
SWEPT = tuple(name for name in METHODS if name not in ("k-fed", "uifca", "fedcref"))
"""Methods whose first round depends on a swept setting. The first round of the others
is k-FED's or k-means, which have no such setting."""
DRAWN = tuple(name for name in METHODS if name != "lrsc")
"""Methods with randomness: all except LRSC, which has a closed form."""
CENTROIDS = ("ccfc-k-means", "ccfc", "scfc", "k-fed", "ffcm", "ffcm-mean", "exact-fcm")
"""Methods whose clients upload centroids, or the sums and counts of their clusters."""
GENERATORS = ("sda-fc-fcm", "sda-fdc")
"""Methods whose clients upload generators of synthetic examples."""
DIFFERENT = ("ccfc", "fdsc", "fedcref")
"""Three methods that differ for the engine: averaged networks with a second stage,
sampled clients, and runs that stop early."""


@cache
def of_file(path: Path) -> Callable[[Scalar], FederatedClustering]:
    """Returns the function `contract` of a file, see experiments/spherical.py.

    Args:
        path: the Python file of a method.

    Returns:
        The function from a scalar to a built method.

    Raises:
        ValueError: the file has no such function. The message is one line.
    """
    try:
        contract = runpy.run_path(str(path)).get("contract")
        built = contract(0.5) if callable(contract) else None
    except Exception as error:
        what = str(error).partition("\n")[0]
        raise ValueError(f"--method {path}: {type(error).__name__}: {what}") from error
    if not isinstance(built, FederatedClustering):
        raise ValueError(
            f"--method {path} needs a function contract(scalar) that returns a "
            "FederatedClustering, as in experiments/spherical.py"
        )
    return contract
