"""A small method of clients that cluster on their own and find out whose clusters are
the same: k-means on each, then an edge where two centres lie near each other."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcjax import clients, server
from fcjax.grid.flags import Common, choose
from fcjax.grid.plan import Method
from fcjax.types import Communities, FederatedClustering, Stage

REPORTED = ("communities", "isolated", "iteration")


@dataclasses.dataclass(frozen=True)
class Args(Common):
    near: tuple[float, ...] = (0.3,)


class State(NamedTuple):
    centers: jax.Array  # [M, K, D]
    used: jax.Array  # [M, K]
    graph: Communities
    num_rounds: jax.Array


def examples(federation):
    return federation.pool[federation.indices].astype(jnp.float32)


def distances(x, state):
    d = jnp.linalg.norm(x[:, :, None] - state.centers[:, None], axis=-1)
    return jnp.where(state.used[:, None], d, jnp.inf)


def farthest_first(x, num_clusters):
    chosen = [x[0]]
    for _ in range(num_clusters - 1):
        d = jnp.min(
            jnp.stack([jnp.linalg.norm(x - c[None], axis=-1) for c in chosen]), 0
        )
        chosen.append(x[jnp.argmax(d)])
    return jnp.stack(chosen)


def build(settings, *, num_clusters):
    def init(key, federation):
        del key
        num_clients, num_slots = federation.indices.shape
        centers = jax.vmap(lambda x: farthest_first(x, num_clusters))(
            examples(federation)
        )
        everyone = len(server.gather(jnp.zeros(num_clients)))
        return State(
            centers,
            jnp.arange(num_clusters)[None] < federation.local_clusters[:, None],
            Communities(
                jnp.full((num_clients, num_clusters), -1),
                jnp.zeros((num_clients, num_clusters, everyone, num_clusters), bool),
                jnp.zeros((num_clients, num_slots), int),
            ),
            jnp.int32(0),
        )

    def assign(state, federation):
        return distances(examples(federation), state).argmin(axis=-1)

    def lloyd(state, federation):
        x, clusters = examples(federation), assign(state, federation)
        here = jax.nn.one_hot(clusters, num_clusters) * federation.mask[..., None]
        sums = jnp.einsum("mnk,mnd->mkd", here, x)
        centers = sums / jnp.maximum(here.sum(axis=1), 1)[..., None]
        present = server.participants(federation, state.num_rounds)
        state = state._replace(centers=centers, num_rounds=state.num_rounds + 1)
        used, present = server.gather((state.used, present))
        metrics = {
            "loss": jnp.float32(0.25),
            "participants": present.sum(),
            "communities": jnp.int32(0),
            "isolated": (used & present[:, None]).sum(),
        }
        return state, metrics

    def begin_round(key, state, federation):
        del key
        return lloyd(state, federation)

    def refine_round(key, state, federation):
        del key
        before = assign(state, federation)
        state, metrics = lloyd(state, federation)
        here = server.participants(federation, state.num_rounds)[:, None] & state.used
        centers, here = server.gather((state.centers, here))
        count = len(centers) * num_clusters
        owner = jnp.arange(count) // num_clusters
        centers, here = centers.reshape(count, -1), here.reshape(count)
        d = jnp.linalg.norm(centers[:, None] - centers[None], axis=-1)
        edges = (d < settings["near"]) & here[:, None] & here[None]
        edges &= owner[:, None] != owner[None]
        names = jnp.arange(count)
        for _ in range(count):
            lowest = jnp.where(edges, names[None], count).min(axis=1)
            names = jnp.minimum(names, lowest)
        names = jnp.where(edges.any(axis=1), names, -1)
        shape = (-1, num_clusters)
        everyone = Communities(
            names.reshape(shape),
            edges.reshape(*shape, count // num_clusters, num_clusters),
            before,
        )
        own = len(state.centers)
        first = clients.first_number(own)
        graph = Communities(
            *(jax.lax.dynamic_slice_in_dim(x, first, own) for x in everyone[:2]),
            before,
        )
        metrics["communities"] = (names == jnp.arange(count)).sum()
        metrics["isolated"] = (here & (names < 0)).sum()
        metrics["iteration"] = state.num_rounds - 3
        return state._replace(graph=graph), metrics

    def stage(name, step, num_rounds):
        def keep(key, state, federation):
            del key, federation
            return state

        return Stage(name, keep, step, num_rounds, lambda state: jnp.bool_(False))

    return FederatedClustering(
        init,
        (stage("begin", begin_round, 3), stage("refine", refine_round, 2)),
        lambda state, federation: examples(federation) + 0 * state.centers[:, :1],
        assign,
        lambda state: state.graph,
    )


def describe(args, dataset, num_clients, num_clusters):
    del dataset, num_clients
    return Method(
        "own-clusters",
        choose({"near": 0.3}, args),
        lambda settings: build(settings, num_clusters=num_clusters),
        "client-mean",
        {},
        start="begin",
        reported=REPORTED,
    )


def corners(path, per_class=30, *, seed=0):
    """Writes four classes around the corners of a square, far apart."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(4), per_class))
    at = np.stack([labels % 2, labels // 2], axis=1)
    x = at + rng.uniform(-0.05, 0.05, (len(labels), 2))
    np.savez(path, x=x.astype(np.float32), y=labels)
    return labels
