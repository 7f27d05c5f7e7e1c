"""A JAX developer uses a loss and clusterings in a training loop of their own.

Five clients of different sizes are stacked with a mask. The loop needs neither Flax nor
the commands of fcjax. Scores and inertia are compared with scikit-learn and NumPy.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.metrics import normalized_mutual_info_score

from fcjax.cluster import assign_nearest, kmeans
from fcjax.federated.kmeans import federated_kmeans
from fcjax.federated.server import weighted_mean
from fcjax.losses import nt_xent
from fcjax.metrics import nmi

SIZES, CLUSTERS = [60, 80, 100, 120, 140], 10
examples, labels = load_digits(return_X_y=True)
mask = np.arange(max(SIZES)) < np.array(SIZES)[:, None]
x = np.zeros((*mask.shape, 64), np.float32)  # 0 at padding
x[mask] = examples[: sum(SIZES)] / 16
x, mask, labels = jnp.array(x), jnp.array(mask), labels[: sum(SIZES)]
optimizer = optax.adam(1e-3)


def embed(params, x):
    return jnp.tanh(x @ params["first"]) @ params["second"]


def loss(params, key, x, mask):
    keep = [jax.random.bernoulli(k, 0.8, x.shape) for k in jax.random.split(key)]
    views = [embed(params, x * each) for each in keep]
    return nt_xent(*views, temperature=0.5, mask=mask)


def train(params, key, x, mask):
    def step(carry, key):
        params, state = carry
        value, gradient = jax.value_and_grad(loss)(params, key, x, mask)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(params, updates), state), value

    start = params, optimizer.init(params)
    (params, _), values = jax.lax.scan(step, start, jax.random.split(key, 5))
    return params, values[-1]


@jax.jit
def federated_round(params, key):
    keys = jax.random.split(key, len(SIZES))
    trained, values = jax.vmap(train, (None, 0, 0, 0))(params, keys, x, mask)
    return weighted_mean(trained, jnp.array(SIZES, jnp.float32)), values


@jax.jit
def one_shot(key, z):
    keys = jax.random.split(key, len(z) + 1)
    local = jax.vmap(lambda k, z, m: kmeans(k, z, CLUSTERS, mask=m))(keys[1:], z, mask)
    members = jax.nn.one_hot(local.assignments, CLUSTERS) * mask[..., None]
    points = local.centroids.reshape(-1, z.shape[-1])
    return kmeans(keys[0], points, CLUSTERS, weights=members.sum(axis=1).ravel())


first, second = jax.random.split(jax.random.key(0))
params = {
    "first": jax.random.normal(first, (64, 128)) / 8,
    "second": jax.random.normal(second, (128, 32)) / 11,
}
for number in range(5):
    params, values = federated_round(params, jax.random.key(number))
assert np.isfinite(values).all()
z = embed(params, x)
exact = federated_kmeans(jax.random.key(9), z, mask, CLUSTERS)
for centroids in (one_shot(jax.random.key(9), z).centroids, exact.centroids):
    clusters = jax.vmap(partial(assign_nearest, centroids=centroids))(z)[mask]
    score = nmi(labels, clusters)
    assert abs(score - normalized_mutual_info_score(labels, clusters)) < 1e-6
    assert score > 0.4
    print(f"NMI {score:.3f}")
points = np.asarray(z[mask])
squares = ((points[:, None] - np.asarray(exact.centroids)) ** 2).sum(axis=-1)
assert np.isclose(squares.min(axis=1).mean(), exact.inertia, rtol=1e-2)
