"""The methods that the contract suite holds to their promises.

Each is a function from a scalar that may be swept to the built method, over a tiny
network on vectors. A new method is one more entry.
"""

from functools import partial

import jax
import optax
from flax import linen as nn

from fcjax.algorithms.ccfc import ccfc
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


METHODS = {
    "ccfc": build_ccfc,
    "ccfc-paper-equations": partial(build_ccfc, include_self=False, euclidean=True),
    "scfc": partial(build_ccfc, sample_contrastive=True),
    "standalone": partial(build_ccfc, standalone=True),
}
