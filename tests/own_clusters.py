"""A small method of clients that cluster on their own and find out whose clusters are
the same: k-means on each, then an edge where two centres lie near each other."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcjax.algorithms import fedcref_models
from fcjax.algorithms.rounds import all_rounds
from fcjax.cluster import assign_nearest, kmeans
from fcjax.federated import clients, server
from fcjax.methods.base import Method, MethodSpec
from fcjax.settings import Sweep, default, frozen
from fcjax.types import Communities, FederatedClustering, State


@frozen
class OwnClusters(Method):
    name = "own-clusters"
    near: Sweep[float] = default(0.3)

    def resolve(self, problem):
        return MethodSpec(
            self.name,
            self.settings(),
            lambda settings: build(settings, num_clusters=problem.num_clusters),
            "client-mean",
            {},
            start="begin",
            reported=("communities", "isolated", "iteration"),
        )


class Own(NamedTuple):
    centers: jax.Array  # [M, K, D]
    graph: Communities


def build(settings, *, num_clusters):
    def embed(state, federation):
        return federation.pool[federation.indices].astype(jnp.float32)

    def assign(state, federation):
        x, centers = embed(state, federation), state.clients.centers
        return jax.vmap(assign_nearest)(x, centers)

    def init(key, federation):
        def own(key, x, mask, count):
            found = kmeans(key, x, num_clusters, num_used=count, mask=mask)
            return found.centroids

        keys = clients.keys(key, len(federation.indices))
        x = embed(None, federation)
        centers = jax.vmap(own)(keys, x, federation.mask, federation.local_clusters)
        clusters = jax.vmap(assign_nearest)(x, centers)
        graph = fedcref_models.all_alone(clusters, num_clusters)
        return State(jnp.int32(0), Own(centers, graph))

    def round(near, key, state, federation):
        del key
        own_centers = state.clients.centers
        here = server.participants(federation)[:, None]
        here &= jnp.arange(num_clusters)[None] < federation.local_clusters[:, None]
        centers, exist = server.gather((own_centers, here))
        apart = own_centers[:, :, None, None] - centers[None, None]
        edges = jnp.linalg.norm(apart, axis=-1) < near
        edges &= fedcref_models.may_be_joined(here)
        numbers = fedcref_models.communities(server.gather(edges)).numbers
        graph = Communities(
            server.rows_on_this_device(numbers, len(here)),
            edges,
            assign(state, federation),
        )
        metrics = {
            "loss": jnp.float32(0.25),
            "participants": exist.any(axis=1).sum(),
            "communities": numbers.max() + 1,
            "isolated": (exist & (numbers < 0)).sum(),
        }
        return State(state.server + 1, Own(own_centers, graph)), metrics

    def refine(key, state, federation):
        state, metrics = round(settings["near"], key, state, federation)
        return state, {**metrics, "iteration": state.server - 3}

    def begin(key, state, federation):
        return round(0.0, key, state, federation)

    return FederatedClustering(
        init,
        (all_rounds("begin", begin, 3), all_rounds("refine", refine, 2)),
        embed,
        assign,
        lambda state: state.clients.graph,
    )


def corners(path, per_class=30, *, seed=0):
    """Writes four classes around the corners of a square, far apart."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(4), per_class))
    at = np.stack([labels % 2, labels // 2], axis=1)
    x = at + rng.uniform(-0.05, 0.05, (len(labels), 2))
    np.savez(path, x=x.astype(np.float32), y=labels)
    return labels
