"""DEC: an encoder and centroids that sharpen their own soft assignments.

Unsupervised Deep Embedding for Clustering Analysis
    Junyuan Xie, Ross Girshick, Ali Farhadi. 2016.
    https://arxiv.org/abs/1511.06335
    Authors' code: https://github.com/piiswrong/dec; in Keras, with the better figures:
    https://github.com/XifengGuo/DEC-keras
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from fcjax import clients, losses
from fcjax.algorithms.dcn import flat
from fcjax.algorithms.parts import initialize, swap
from fcjax.algorithms.pooling import BATCH, Clustering, Phase
from fcjax.clients import Client
from fcjax.cluster import assign_nearest, kmeans
from fcjax.data.vectors import as_rows
from fcjax.models.autoencoder import AutoEncoder
from fcjax.types import PRNGKey

SGD = optax.sgd(0.01, momentum=0.9)
"""The optimiser of the paper's clusters."""


def by_dec(
    autoencoder: AutoEncoder,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
    num_used: Int[Array, ""] | int | None = None,
    pretrain_rounds: int = 300,
    joint_rounds: int = 70,
    joint_epochs: int = 1,
    batch_size: int = 256,
    num_init: int = 20,
    joint_optimizer: optax.GradientTransformation = SGD,
) -> Clustering:
    """Returns DEC: an auto-encoder, k-means of its codes, then encoder and centroids.

    The auto-encoder is trained whole, as in DEC-keras; the paper begins with one layer
    after another, and dropout. The target P is refreshed once a round, the papers' code
    does so every 140 or 160 steps, half an epoch of MNIST. Batches are drawn anew every
    epoch, where the papers' code takes them in the order of the data: here that order
    may be by class. All rounds are run: nothing stops at few changed assignments.

    Args:
        autoencoder: of the rows of examples, pixels in [0, 1].
        optimizer: of the auto-encoder.
        num_clusters: K.
        num_used: how many of them are used, all by default, where that is data: the
            clustering is that of `num_clusters=num_used`; see `cluster.kmeans`.
        pretrain_rounds: epochs of the auto-encoder, a round each; 300 as in DEC-keras.
        joint_rounds: how often P is refreshed; with an epoch each, 70 are about the
            20,000 steps on MNIST after which DEC-keras stops at the latest.
        joint_epochs: epochs by one P, more where they are short.
        batch_size: examples a step.
        num_init: seedings of k-means.
        joint_optimizer: of encoder and centroids.

    Returns:
        The clustering, phases `autoencoder`, `k-means` and `dec`. Their losses are the
        squared error and the inertia an example, and KL(P || Q), Eq. 2. An example's
        embedding is its code. A state is a `Client` whose parts are `encoder` and
        first `decoder`, then `centroids`.
    """

    def init(key: PRNGKey, x) -> Client:
        networks = autoencoder._asdict()
        variables = swap(initialize(key, networks, as_rows(x, unit_length=False)))
        return Client(variables, optimizer.init(variables["params"]))

    def embed(state: Client, x):
        variables = swap(state.variables)["encoder"]
        rows = as_rows(x, unit_length=False)
        return autoencoder.encoder.apply(variables, rows, train=False)[0]

    def embed_all(state: Client, x):
        def batch(slots):
            return embed(state, x[slots])

        return clients.in_batches(batch, jnp.arange(len(x)), batch_size=BATCH)

    def encode(x, variables, slots, counted):
        parts = swap(variables)
        # What does not count may be no number, and 0 * NaN would reach the gradients.
        rows = jnp.where(counted[:, None], as_rows(x[slots], unit_length=False), 0)
        z, parts["encoder"] = autoencoder.encoder.apply(
            parts["encoder"], rows, train=True, mask=counted
        )
        return rows, z, parts

    def reconstruction(x, key, variables, slots, counted):
        del key
        rows, z, parts = encode(x, variables, slots, counted)
        decoded, parts["decoder"] = autoencoder.decoder.apply(
            parts["decoder"], z, train=True, mask=counted
        )
        errors = losses.reconstruction_error(rows, decoded)
        return jnp.mean(errors, where=counted), swap(parts)

    def divergence(x, p, key, variables, slots, counted):
        del key
        _, z, parts = encode(x, variables, slots, counted)
        q = losses.student_t(z, parts["centroids"]["params"], mask=counted)
        return losses.assignment_kl(p[slots], q, mask=counted), swap(parts)

    train = partial(clients.train, batch_size=batch_size)

    def begin(key, state, x, mask):
        del key, x, mask
        return state

    def train_autoencoder(key, state: Client, x, mask):
        loss = partial(reconstruction, flat(x, mask))
        mask = mask.reshape(-1)
        return train(key, state, loss, mask, optimizer=optimizer, num_epochs=1)

    def begin_kmeans(key, state: Client, x, mask):
        del key
        code = jax.eval_shape(embed, state, flat(x, mask)[:1])
        parts = {
            "encoder": swap(state.variables)["encoder"],
            "centroids": {"params": jnp.zeros((num_clusters, code.shape[-1]))},
        }
        return Client(swap(parts), ())

    def cluster_codes(key, state: Client, x, mask):
        found = kmeans(
            key,
            embed_all(state, flat(x, mask)),
            num_clusters,
            num_used=num_used,
            mask=mask.reshape(-1),
            num_init=num_init,
        )
        params = {**state.variables["params"], "centroids": found.centroids}
        state = state._replace(variables={**state.variables, "params": params})
        return state, found.inertia / mask.sum()

    def begin_dec(key, state: Client, x, mask):
        del key, x, mask
        return state._replace(opt_state=joint_optimizer.init(state.variables["params"]))

    def sharpen(key, state: Client, x, mask):
        x, mask = flat(x, mask), mask.reshape(-1)
        centroids = state.variables["params"]["centroids"]
        q = losses.student_t(embed_all(state, x), centroids, mask=mask)
        loss = partial(divergence, x, losses.target_distribution(q, mask=mask))
        return train(
            *(key, state, loss, mask),
            optimizer=joint_optimizer,
            num_epochs=joint_epochs,
        )

    def assign(state: Client, z: Float[Array, "N D"]) -> Int[Array, "N"]:
        if "centroids" not in state.variables["params"]:
            return jnp.full(len(z), -1, jnp.int32)
        return assign_nearest(z, state.variables["params"]["centroids"])

    def results(state: Client):
        encoder = swap(state.variables)["encoder"]
        centroids = state.variables["params"].get("centroids", ())
        return {"encoder": encoder, "centroids": centroids}

    phases = (
        Phase("autoencoder", begin, train_autoencoder, pretrain_rounds),
        Phase("k-means", begin_kmeans, cluster_codes),
        Phase("dec", begin_dec, sharpen, joint_rounds),
    )
    return Clustering(
        init, phases if joint_rounds else phases[:2], embed, assign, results
    )
