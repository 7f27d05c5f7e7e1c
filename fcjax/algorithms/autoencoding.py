"""Auto-encoders of rows: what DEC and DCN share, and how FedCRef knows a cluster.

DEC and DCN begin alike: an auto-encoder is trained whole, then its codes are clustered
by k-means.
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import losses, training
from fcjax.algorithms.parts import chained, swap
from fcjax.algorithms.pooling import BATCH
from fcjax.clients import Client
from fcjax.cluster import kmeans
from fcjax.data.vectors import as_rows
from fcjax.models.autoencoder import AutoEncoder
from fcjax.types import Network, PRNGKey, PyTree


def begin(
    key: PRNGKey,
    autoencoder: AutoEncoder,
    optimizer: optax.GradientTransformation,
    x: Shaped[Array, "1 *F"],
) -> Client:
    """Draws an auto-encoder of such examples: variables by kind, and then by part,
    `encoder` and `decoder`."""
    rows = as_rows(x, unit_length=False)
    variables = chained(autoencoder._asdict()).init(key, rows)
    return Client(variables, optimizer.init(variables["params"]))


def train(
    key: PRNGKey,
    client: Client,
    autoencoder: AutoEncoder,
    x: Shaped[Array, "N *F"],
    mask: Bool[Array, "N"],
    *,
    optimizer: optax.GradientTransformation,
    batch_size: int,
) -> tuple[Client, Float[Array, ""]]:
    """Trains an auto-encoder for an epoch.

    Returns:
        What it has become, and the mean loss of its steps: the squared error of an
        example, summed over features.
    """
    network = chained(autoencoder._asdict())

    def loss(key, variables, slots, counted):
        del key
        rows = counted_rows(x, slots, counted)
        return reconstruction(network, variables, rows, counted)

    return training.train(
        key,
        client,
        loss,
        mask,
        optimizer=optimizer,
        batch_size=batch_size,
        num_epochs=1,
    )


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
    encoder = swap(variables)["encoder"]
    return autoencoder.encoder.apply(encoder, rows, train=False)[0]


def encode_all(
    autoencoder: AutoEncoder, variables: PyTree, x: Shaped[Array, "N *F"]
) -> Float[Array, "N D"]:
    """Returns the codes of however many examples, in bounded memory."""

    def batch(slots):
        return encode(autoencoder, variables, x[slots])

    return training.in_batches(batch, jnp.arange(len(x)), batch_size=BATCH)


def no_centroids(
    autoencoder: AutoEncoder,
    variables: PyTree,
    x: Shaped[Array, "N *F"],
    num_clusters: int,
) -> Float[Array, "K D"]:
    """Returns zeros of the shape of the codes' centroids."""
    code = jax.eval_shape(partial(encode, autoencoder), variables, x[:1])
    return jnp.zeros((num_clusters, code.shape[-1]))


def cluster_codes(
    key: PRNGKey,
    autoencoder: AutoEncoder,
    variables: PyTree,
    x: Shaped[Array, "N *F"],
    mask: Bool[Array, "N"],
    *,
    num_clusters: int,
    num_init: int,
    num_used: Int[Array, ""] | int | None = None,
) -> tuple[Float[Array, "K D"], Float[Array, ""]]:
    """Clusters the codes of the examples that count by k-means.

    Returns:
        The centroids, and the inertia a code.
    """
    found = kmeans(
        key,
        encode_all(autoencoder, variables, x),
        num_clusters,
        num_used=num_used,
        mask=mask,
        num_init=num_init,
    )
    return found.centroids, found.inertia / mask.sum()


def flat(
    x: Shaped[Array, "..."], mask: Bool[Array, "*N"]
) -> tuple[Shaped[Array, "..."], Bool[Array, "..."]]:
    """Returns the examples of a `pooling.Phase` and their mask on one axis."""
    return x.reshape(-1, *x.shape[mask.ndim :]), mask.reshape(-1)
