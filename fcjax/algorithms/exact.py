"""Federated c-means whose result is the central one: clients send sums and counts.

A Federated Fuzzy c-Means Clustering Algorithm
    José Luis Corcuera Bárcena, Francesco Marcelloni, Alessandro Renda, Alessio Bechini,
    Pietro Ducange. 2021. CEUR Workshop Proceedings 3074.
    Authors' code: https://github.com/Unipisa/FederatedClustering
"""

import jax
import jax.numpy as jnp

from fcjax import clients, server
from fcjax.algorithms.plain import MovingCentroids, begin, move, plain
from fcjax.cluster.distances import clear, squared_distances
from fcjax.cluster.fuzzy import memberships
from fcjax.cluster.seeding import plus_plus
from fcjax.data.vectors import as_rows, client_rows
from fcjax.types import FederatedClustering, Federation, PRNGKey, Scalar, State


def exact_cmeans(
    *,
    num_clusters: int,
    fuzzifier: Scalar | None = None,
    num_rounds: int = 100,
    tolerance: Scalar = 1e-4,
    unit_length: bool = True,
) -> FederatedClustering:
    """Builds exact federated c-means: a round is one iteration of the central method.

    What it reaches is what a federation could at best, at the price of many rounds. It
    starts from rows of k-means++ over all data, which no real server could draw.

    Args:
        num_clusters: K.
        fuzzifier: m > 1; None is k-means.
        num_rounds: bound of the rounds; the stage ends once the centroids stand still.
        tolerance: of their step.
        unit_length: cluster rows of L2 norm 1; False takes the pixels as they are.

    Returns:
        The method, one stage. Its metrics are the `loss` (the objective an example of
        the centroids that the round began with), `participants`, `moved` and the
        traffic.

    Examples:
        >>> method = exact_cmeans(num_clusters=3, fuzzifier=1.1)
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('cluster', 100)]
    """

    def init(key: PRNGKey, federation: Federation) -> State:
        pool = federation.pool
        present = server.participants(federation, jnp.int32(0))
        held = server.pooled(federation, present).astype(float)
        x = as_rows(pool[jnp.arange(pool.shape[0])], unit_length=unit_length)
        x = clear(x, held)
        return begin(x[plus_plus(key, x, held, num_clusters)])

    def client_round(centroids, x, mask):
        x = clear(x, mask.astype(float))
        distances = squared_distances(x, centroids)
        if fuzzifier is None:
            nearest = distances.argmin(axis=0)
            parts = jax.nn.one_hot(nearest, num_clusters, axis=0)
        else:
            parts = memberships(distances, fuzzifier) ** fuzzifier
        parts = jnp.where(mask[None], parts, 0)
        sums = jnp.matmul(parts, x, precision=jax.lax.Precision.HIGHEST)
        return sums, parts.sum(axis=1), (jnp.sum(parts * distances), mask.sum())

    def round(_: PRNGKey, state: State, federation: Federation):
        before: MovingCentroids = state.server
        present = server.participants(federation, before.num_rounds)
        sums, masses, objectives = clients.for_each(
            lambda x, mask: client_round(before.centroids, x, mask),
            client_rows(federation, unit_length=unit_length),
            federation.mask,
        )
        # Means over the clients that answered: what they are divided by cancels.
        (sums, masses, (objective, count)), answered = server.receive(
            (sums, masses, objectives), present.astype(float), present
        )
        occupied = masses[:, None] > 0
        means = sums / jnp.where(occupied, masses[:, None], 1)
        centroids = jnp.where(occupied, means, before.centroids)
        after = move(before, centroids)
        message = {"sums": sums, "masses": masses}
        metrics = {
            "loss": objective / count,
            "participants": answered.sum(),
            "moved": after.moved,
            **server.traffic(answered, up=message, down={"centroids": centroids}),
        }
        return State(after), metrics

    return plain(
        init, round, unit_length=unit_length, num_rounds=num_rounds, tolerance=tolerance
    )
