"""LRSC: the coefficients of least nuclear norm, in closed form.

Low Rank Subspace Clustering (LRSC)
    René Vidal, Paolo Favaro. 2014. Pattern Recognition Letters 43, 47-61.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fcjax import clients, server
from fcjax.algorithms import subspace
from fcjax.algorithms.plain import plain
from fcjax.algorithms.subspace import Affinity, Spectral
from fcjax.cluster import Assign
from fcjax.cluster.distances import clear
from fcjax.data.vectors import client_rows
from fcjax.types import FederatedClustering, Federation, PRNGKey, Scalar, State


def lrsc(
    *,
    num_clusters: int,
    affinity: Affinity,
    fidelity: Scalar = 1.0,
    unit_length: bool = True,
    assign_labels: Assign = "kmeans",
) -> FederatedClustering:
    """Builds LRSC: every client by itself, and nothing is shared.

    Args:
        num_clusters: K, of every client.
        affinity: from coefficients to what is clustered; the paper's is
            `cluster.symmetric_affinity`.
        fidelity: tau, of half the squared error beside the nuclear norm; singular
            values up to 1 / sqrt(tau) count as noise.
        unit_length: of the rows that are expressed, see `vectors.as_rows`.
        assign_labels: see `cluster.spectral_clustering`.

    Returns:
        The method, one stage of one round. Metrics are the `loss` (the objective, the
        mean over clients) and `participants`. An example's embedding is its row, its
        cluster one of its client's K.

    Examples:
        >>> from fcjax.cluster import symmetric_affinity
        >>> method = lrsc(
        ...     num_clusters=3,
        ...     affinity=lambda coefficients, mask: symmetric_affinity(coefficients),
        ... )
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('cluster', 1)]
    """

    def init(_: PRNGKey, federation: Federation) -> State:
        num_clients, num_slots = federation.indices.shape
        nothing = jnp.zeros((num_clients, num_slots, num_slots))
        return State(jnp.int32(0), nothing)  # rounds, and the clients' coefficients

    def round(_: PRNGKey, state: State, federation: Federation):
        present = server.participants(federation, state.server)
        coefficients, objectives = clients.for_each(
            lambda x, mask: low_rank_coefficients(x, fidelity, mask=mask),
            client_rows(federation, unit_length=unit_length),
            federation.mask,
        )
        coefficients = clients.keep_absent(present, coefficients, state.clients)
        metrics = server.measure(*server.gather((present, {"loss": objectives})))
        return State(state.server + 1, coefficients), metrics

    def assign(state: State, federation: Federation):
        spectral = Spectral(num_clusters, affinity, assign_labels)
        return subspace.cluster(spectral, state.clients, federation.mask)

    method = plain(init, round, unit_length=unit_length)
    return method._replace(assign=assign)


def low_rank_coefficients(
    x: Float[Array, "N D"], fidelity: Scalar, *, mask: Bool[Array, "N"]
) -> tuple[Float[Array, "N N"], Float[Array, ""]]:
    """Returns the C that minimises |C|_* + fidelity / 2 |X - C X|_F^2, and the minimum.

    With X = U S V^T it is U_1 (1 - S_1^-2 / fidelity) U_1^T over the singular values
    above 1 / sqrt(fidelity) (the paper's Theorem on the noisy case, for examples as
    rows). Its diagonal is not zero. Masked examples have rows and columns of zeros.
    """
    x = clear(x, mask.astype(float))
    gram = jnp.matmul(x, x.T, precision=jax.lax.Precision.HIGHEST)
    squares, vectors = jnp.linalg.eigh(gram)  # of singular values
    is_kept = fidelity * squares > 1
    shrunk = jnp.where(is_kept, 1 - 1 / (fidelity * jnp.where(is_kept, squares, 1)), 0)
    coefficients = jnp.matmul(
        vectors * shrunk[None], vectors.T, precision=jax.lax.Precision.HIGHEST
    )
    # Rounding is left there.
    coefficients = jnp.where(mask[:, None] & mask[None], coefficients, 0)
    errors = (1 - shrunk) ** 2 * jnp.maximum(squares, 0)
    return coefficients, shrunk.sum() + fidelity / 2 * errors.sum()
