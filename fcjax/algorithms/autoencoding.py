"""Auto-encoders of rows: what DEC and DCN share, and how FedCRef knows a cluster.

DEC and DCN begin alike: an auto-encoder is trained whole, then its codes are clustered
by k-means.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import losses, training
from fcjax.algorithms.parts import chained, part
from fcjax.algorithms.pooling import BATCH, Clustering, Counted, Examples, Phase
from fcjax.algorithms.rounds import go_on
from fcjax.clients import Client
from fcjax.cluster import assign_nearest, kmeans
from fcjax.data.vectors import as_rows
from fcjax.models.autoencoder import AutoEncoder
from fcjax.types import Network, PRNGKey, PyTree


class Codes(NamedTuple):
    """How an auto-encoder is trained and its codes are clustered; see `by_dec`."""

    autoencoder: AutoEncoder
    optimizer: optax.GradientTransformation
    num_clusters: int
    batch_size: int
    num_init: int
    num_used: Int[Array, ""] | int | None = None


def clustering(
    codes: Codes,
    new: Callable,
    put: Callable,
    centroids_of: Callable,
    pretrain_rounds: int,
    later: tuple[Phase, ...],
) -> Clustering:
    """Returns the clustering that begins with an auto-encoder and k-means of its codes.

    Args:
        codes: of the auto-encoder.
        new: (variables, opt_state) -> a state that has both; variables are by kind, and
            then by part, `encoder` and `decoder`.
        put: (state, centroids) -> the state that has them.
        centroids_of: (state) -> its centroids [K, D], () where there are none yet.
        pretrain_rounds: epochs of the auto-encoder.
        later: the phases that follow.
    """
    kmeans_of_codes = partial(begin_kmeans, codes, put), partial(cluster, codes, put)
    phases = (
        Phase("autoencoder", go_on, partial(train, codes), pretrain_rounds),
        Phase("k-means", *kmeans_of_codes),
        *later,
    )

    def init(key, x):
        rows = as_rows(x, unit_length=False)
        variables = chained(codes.autoencoder._asdict()).init(key, rows)
        return new(variables, codes.optimizer.init(variables["params"]))

    def embed(state, x):
        return encode(codes.autoencoder, state.variables, x)

    def assign(state, z):
        centroids = centroids_of(state)
        if isinstance(centroids, tuple):
            return jnp.full(len(z), -1, jnp.int32)
        return assign_nearest(z, centroids)

    def results(state):
        encoder = part(state.variables, "encoder")
        return {"encoder": encoder, "centroids": centroids_of(state)}

    return Clustering(init, phases, embed, assign, results)


def train(codes: Codes, key: PRNGKey, state: Any, x: Examples, mask: Counted):
    """Trains an auto-encoder for an epoch: as in `Phase`, of a state that has
    `variables` and `opt_state`. The loss is an example's squared error, summed over
    features."""
    network = chained(codes.autoencoder._asdict())

    def loss(_, variables, slots, counted):
        rows = counted_rows(x, slots, counted)
        return reconstruction(network, variables, rows, counted)

    client, value = training.train(
        *(key, Client(state.variables, state.opt_state), loss, mask),
        optimizer=codes.optimizer,
        batch_size=codes.batch_size,
        num_epochs=1,
    )
    return state._replace(**client._asdict()), value


def reconstruction(
    network: Network,
    variables: PyTree,
    rows: Float[Array, "B D"],
    counted: Bool[Array, "B"],
    *,
    per_feature: bool = False,
) -> tuple[Float[Array, ""], PyTree]:
    """Returns the mean squared error of a batch, and the variables with new batch
    statistics.

    Args:
        network: from rows to their reconstructions.
        variables: of the network.
        rows: of the batch.
        counted: which of them count.
        per_feature: whether an example's error is the mean over its features, or the
            sum.
    """
    decoded, variables = network.apply(variables, rows, train=True, mask=counted)
    errors = losses.reconstruction_error(rows, decoded)
    if per_feature:
        errors /= rows.shape[1]
    return jnp.mean(errors, where=counted), variables


def counted_rows(
    x: Shaped[Array, "N *F"], slots: Int[Array, "B"], counted: Bool[Array, "B"]
) -> Float[Array, "B D"]:
    """Returns a batch of examples as rows, zeros where one does not count: it may be no
    number, and 0 * NaN would reach the gradients."""
    return jnp.where(counted[:, None], as_rows(x[slots], unit_length=False), 0)


def encode(
    autoencoder: AutoEncoder, variables: PyTree, x: Shaped[Array, "N *F"]
) -> Float[Array, "N D"]:
    """Returns the codes of examples."""
    rows = as_rows(x, unit_length=False)
    encoder = part(variables, "encoder")
    return autoencoder.encoder.apply(encoder, rows, train=False)[0]


def encode_all(
    autoencoder: AutoEncoder, variables: PyTree, x: Shaped[Array, "N *F"]
) -> Float[Array, "N D"]:
    """Returns the codes of however many examples, in bounded memory."""

    def batch(slots):
        return encode(autoencoder, variables, x[slots])

    return training.in_batches(batch, jnp.arange(len(x)), batch_size=BATCH)


def begin_kmeans(
    codes: Codes, put: Callable, _: PRNGKey, state: Any, x: Examples, mask: Counted
):
    """Returns the state with zeros for centroids."""
    code = jax.eval_shape(partial(encode, codes.autoencoder), state.variables, x[:1])
    return put(state, jnp.zeros((codes.num_clusters, code.shape[-1])))


def cluster(
    codes: Codes, put: Callable, key: PRNGKey, state: Any, x: Examples, mask: Counted
):
    """Clusters the codes of the examples that count by k-means: as in `Phase`; the loss
    is the inertia a code."""
    found = kmeans(
        *(key, encode_all(codes.autoencoder, state.variables, x), codes.num_clusters),
        num_used=codes.num_used,
        mask=mask,
        num_init=codes.num_init,
    )
    return put(state, found.centroids), found.inertia / mask.sum()
