"""The methods that the contract suite holds to their promises.

Each is a function from a scalar that may be swept to the built method, over a tiny
network on vectors. A new method is one more entry.
"""

from functools import partial

import jax
import optax
from flax import linen as nn

from fcjax.algorithms.ccfc import ccfc
from fcjax.algorithms.central import central_fuzzy_cmeans
from fcjax.algorithms.exact import exact_cmeans
from fcjax.algorithms.ffcm import ffcm
from fcjax.algorithms.kfed import kfed
from fcjax.models import from_linen

NUM_CLUSTERS = 3


class TinySimSiam(nn.Module):
    @nn.compact
    def __call__(self, x, *, train, mask):
        mask = None if mask is None else mask[:, None]
        norm = nn.BatchNorm(use_running_average=not train, momentum=0.9)
        z = nn.Dense(6)(jax.nn.relu(norm(nn.Dense(8)(x), mask=mask)))
        return z, nn.Dense(6)(z)


def jitter(key, x):
    return x + 0.1 * jax.random.normal(key, x.shape)


def build_ccfc(weight, **options):
    return ccfc(
        from_linen(TinySimSiam()),
        # Not Adam: it divides a gradient that is mere rounding by its own size, so that
        # two orders of summation would part by whole steps.
        optax.sgd(0.05, momentum=0.9),
        jitter,
        num_clusters=NUM_CLUSTERS,
        pretrain_rounds=3,
        cluster_rounds=2,
        batch_size=4,
        model_weight=weight,
        **options,
    )


def build_kfed(weight):
    del weight  # nothing of it can be swept
    return kfed(num_clusters=NUM_CLUSTERS, local_clusters=2)


def fuzzy(method, **options):
    """Sweeps the fuzzifier of a method."""

    def build(weight):
        return method(num_clusters=NUM_CLUSTERS, fuzzifier=1.2 + weight, **options)

    return build


METHODS = {
    "ccfc": build_ccfc,
    "ccfc-paper-equations": partial(build_ccfc, include_self=False, euclidean=True),
    "scfc": partial(build_ccfc, sample_contrastive=True),
    "standalone": partial(build_ccfc, standalone=True),
    "fcm": fuzzy(central_fuzzy_cmeans),
    "k-fed": build_kfed,
    "ffcm": fuzzy(ffcm, num_rounds=3, local_iters=4, tolerance=0.0),
    "ffcm-mean": fuzzy(ffcm, num_rounds=3, aggregation="mean", tolerance=0.0),
    "exact-fcm": fuzzy(exact_cmeans, num_rounds=3, tolerance=0.0),
}
SWEPT = tuple(name for name in METHODS if name != "k-fed")
