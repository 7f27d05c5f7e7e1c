"""Federated spherical k-means, a template: copy it and change what "Yours" marks.

python experiments/spherical.py --clients 10 --p 0.25 --momentum 0 0.5
python -m pytest tests/test_contract.py --method experiments/spherical.py
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fcjax import cluster, losses, settings, types
from fcjax.cli.main import main
from fcjax.data.augment import as_rows, client_rows
from fcjax.federated import clients, server
from fcjax.methods import base


class Server(NamedTuple):  # Yours; what clients keep is types.State's other part.
    centroids: jax.Array  # [K, D], of length 1
    moved: jax.Array  # [], the norm of their last step


def spherical_kmeans(  # Yours: whole numbers are static; never branch on a Scalar.
    *, num_clusters: int, momentum: types.Scalar = 0.0, num_rounds: int = 100
) -> types.FederatedClustering:
    def init(key, federation):  # Yours: k-means++ of all rows, which no server has.
        held = server.pool_mask(federation, server.participants(federation))
        x = as_rows(federation.pool[jnp.arange(held.size)], unit_length=True)
        seeds = cluster.kmeans(key, x, num_clusters, mask=held, num_init=1, num_iters=0)
        return types.State(Server(seeds.centroids, jnp.float32(jnp.inf)))

    def round(key, state, federation):  # Only `server` may reach across clients.
        def one_client(x, mask):  # Yours: what a client sends; padding is off its mask.
            nearest = jnp.matmul(x, old.T, precision="highest").argmax(axis=1)
            return jax.ops.segment_sum(x * mask[:, None], nearest, num_clusters)

        old, here = state.server.centroids, server.participants(federation)
        sums = clients.for_each(one_client, embed(state, federation), federation.mask)
        own = (sums, federation.mask.sum(axis=1))
        (sums, count), here = server.receive(own, here.astype(float), here)
        new = losses.normalize(losses.normalize(sums) + momentum * old)  # Yours too.
        new = jnp.where(sums.any(axis=1, keepdims=True), new, old)
        metrics = {"loss": 1 - jnp.sum(sums * old) / count, "participants": here.sum()}
        metrics |= server.traffic(here, up={"sums": (sums, count)}, down={"means": new})
        return types.State(Server(new, jnp.linalg.norm(new - old))), metrics

    def embed(state, federation):  # Yours: [M, N, D], padding too.
        return client_rows(federation, unit_length=True)

    def assign(state, federation):  # Yours: [M, N], in 0 to num_clusters - 1.
        x, centroids = embed(state, federation), state.server.centroids
        return jnp.matmul(x, centroids.T, precision="highest").argmax(axis=-1)

    def done(state):  # Yours: whether it ends before `num_rounds`.
        return state.server.moved < 1e-4

    stage = types.Stage("cluster", lambda key, state, _: state, round, num_rounds, done)
    return types.FederatedClustering(init, (stage,), embed, assign)


def contract(scalar: types.Scalar):  # Yours: what --method tests.
    return spherical_kmeans(num_clusters=3, momentum=scalar, num_rounds=3)


@settings.frozen
class Spherical(base.Method):  # Yours: settings are named as in the builder.
    name = "spherical"
    momentum: settings.Sweep[float] = settings.default(0.0)
    """Weight of the last centroid beside the new one. Several values span a grid."""

    def resolve(self, problem):  # Yours: `sees_all` as `init` reads any row.
        k = {"num_clusters": problem.num_clusters}
        own = self.settings(), lambda values: spherical_kmeans(**k, **values)
        return base.MethodSpec(self.name, *own, "global", sees_all=True)


if __name__ == "__main__":
    main(Spherical)
