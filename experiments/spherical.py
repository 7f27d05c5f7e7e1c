"""Federated spherical k-means: the template for a method of your own.

Copy this file and change the parts that a comment marks with "Yours". The page
docs/guides/add_a_method.md explains them.

In every round each client assigns its examples to the nearest centroids by cosine. It
uploads the sum of the examples of each cluster. The server adds the sums and scales
them to length 1 (Dhillon and Modha, 2001).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fcjax import cluster, losses, settings, types
from fcjax.cli.main import main
from fcjax.data.augment import as_rows, client_rows
from fcjax.federated import clients, server
from fcjax.methods import base


# Yours: the state of the server between rounds, a tuple of arrays.
class Server(NamedTuple):
    """The server's state."""

    centroids: jax.Array
    """The centroids [K, D], of length 1."""
    moved: jax.Array
    """The norm of the last change of the centroids, []."""


# Yours: the algorithm. Its arguments are the settings. An argument that is a Scalar may
# be traced, so Python's `if` cannot test it. Whole numbers are never traced.
def spherical_kmeans(
    *, num_clusters: int, momentum: types.Scalar = 0.0, num_rounds: int = 100
) -> types.FederatedClustering:
    """Builds federated spherical k-means.

    Args:
        num_clusters: K.
        momentum: weight of the previous centroids relative to the new ones, at least 0.
        num_rounds: maximum number of rounds.

    Returns:
        The method: one stage `cluster`. Its metrics are the `loss` (mean cosine
        distance of an example to its centroid), `participants` and the traffic.
    """

    # Yours: the state before the first round. Here the server draws centroids by
    # k-means++ from all examples. A real server cannot do this: see `sees_all` below.
    def init(key, federation):
        mask = server.pool_mask(federation, server.participants(federation))
        x = as_rows(federation.pool[jnp.arange(mask.size)], unit_length=True)
        seeds = cluster.kmeans(key, x, num_clusters, mask=mask, num_init=1, num_iters=0)
        return types.State(Server(seeds.centroids, jnp.float32(jnp.inf)))

    # Yours: one round. Only functions of `server` may combine values of clients.
    def round(key, state, federation):
        before = state.server.centroids

        # Yours: the upload of one client. The mask is False at padding, which must not
        # change the upload.
        def one_client(x, mask):
            nearest = jnp.matmul(x, before.T, precision="highest").argmax(axis=1)
            sums = jax.ops.segment_sum(x * mask[:, None], nearest, num_clusters)
            return sums, mask.sum()

        x = embed(state, federation)
        uploads = clients.for_each(one_client, x, federation.mask)

        # The server receives means over the participating clients. Their weights are 1.
        participating = server.participants(federation)
        weights = participating.astype(float)
        (sums, count), participating = server.receive(uploads, weights, participating)

        # Yours: the new state of the server. A cluster without examples does not move.
        after = losses.normalize(losses.normalize(sums) + momentum * before)
        after = jnp.where(sums.any(axis=1, keepdims=True), after, before)
        moved = jnp.linalg.norm(after - before)

        # Yours: the metrics. `loss` and `participants` are required.
        metrics = {
            "loss": 1 - jnp.sum(sums * before) / count,
            "participants": participating.sum(),
            **server.traffic(
                participating, up={"sums": (sums, count)}, down={"means": after}
            ),
        }
        return types.State(Server(after, moved)), metrics

    # Yours: the embedding of every example, padding included, [M, N, D].
    def embed(state, federation):
        return client_rows(federation, unit_length=True)

    # Yours: the cluster of every example, padding included, [M, N]: 0 to K - 1.
    def assign(state, federation):
        x, centroids = embed(state, federation), state.server.centroids
        return jnp.matmul(x, centroids.T, precision="highest").argmax(axis=-1)

    # Yours: whether the stage ends before `num_rounds`.
    def done(state):
        return state.server.moved < 1e-4

    # The state at the beginning of the stage.
    def begin(key, state, federation):
        return state

    stage = types.Stage("cluster", begin, round, num_rounds, done)
    return types.FederatedClustering(init, (stage,), embed, assign)


# Yours: the method that this command tests:
#   python -m pytest tests/test_contract.py --method experiments/spherical.py
def contract(scalar: types.Scalar) -> types.FederatedClustering:
    """Builds a small instance of the method for the tests.

    Args:
        scalar: the value of a setting that may be traced.

    Returns:
        The method, with 3 clusters and 3 rounds.
    """
    return spherical_kmeans(num_clusters=3, momentum=scalar, num_rounds=3)


# Yours: the settings. A field is a Python argument, a flag and a column of results.csv.
@settings.frozen
class Spherical(base.Method):
    """Federated spherical k-means: k-means of unit vectors by cosine similarity."""

    name = "spherical"
    momentum: settings.Sweep[float] = settings.default(0.0)
    """Weight of the previous centroids relative to the new ones, at least 0. Several
    values span a grid."""

    def resolve(self, problem: base.Problem) -> base.MethodSpec:
        """Returns the settings and the builder of the method for a data set."""

        def build(values):
            return spherical_kmeans(num_clusters=problem.num_clusters, **values)

        # Yours: `sees_all` is True because `init` reads the examples of all clients.
        return base.MethodSpec(
            name=self.name,
            settings=self.settings(),
            build=build,
            scope="global",
            sees_all=True,
        )


# Run as a command:
#   python experiments/spherical.py --clients 10 --p 0.25 --momentum 0 0.5
if __name__ == "__main__":
    main(Spherical)
