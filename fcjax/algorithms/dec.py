"""DEC: an encoder and centroids that sharpen their own soft assignments.

Unsupervised Deep Embedding for Clustering Analysis
    Junyuan Xie, Ross Girshick, Ali Farhadi. 2016.
    https://arxiv.org/abs/1511.06335
    Authors' code: https://github.com/piiswrong/dec; in Keras, with the better figures:
    https://github.com/XifengGuo/DEC-keras
"""

from functools import partial

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from fcjax import losses, training
from fcjax.algorithms import autoencoding
from fcjax.algorithms.autoencoding import flat
from fcjax.algorithms.parts import swap
from fcjax.algorithms.pooling import Clustering, Phase, go_on
from fcjax.clients import Client
from fcjax.cluster import assign_nearest
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

    Examples:
        >>> import optax
        >>> from fcjax import models
        >>> autoencoder = models.autoencoder(5, widths=(8,), latent_size=3)
        >>> clustering = by_dec(autoencoder, optax.adam(1e-3), num_clusters=3)
        >>> [(phase.name, phase.num_rounds) for phase in clustering.phases]
        [('autoencoder', 300), ('k-means', 1), ('dec', 70)]
    """

    def init(key: PRNGKey, x) -> Client:
        return autoencoding.begin(key, autoencoder, optimizer, x)

    def embed(state: Client, x):
        return autoencoding.encode(autoencoder, state.variables, x)

    def train_autoencoder(key, state: Client, x, mask):
        return autoencoding.train(
            *(key, state, autoencoder, *flat(x, mask)),
            optimizer=optimizer,
            batch_size=batch_size,
        )

    def begin_kmeans(key, state: Client, x, mask):
        del key
        x, _ = flat(x, mask)
        centroids = autoencoding.no_centroids(
            autoencoder, state.variables, x, num_clusters
        )
        encoder = swap(state.variables)["encoder"]
        return Client(
            swap({"encoder": encoder, "centroids": {"params": centroids}}), ()
        )

    def cluster_codes(key, state: Client, x, mask):
        centroids, loss = autoencoding.cluster_codes(
            *(key, autoencoder, state.variables, *flat(x, mask)),
            num_clusters=num_clusters,
            num_used=num_used,
            num_init=num_init,
        )
        params = {**state.variables["params"], "centroids": centroids}
        return state._replace(variables={**state.variables, "params": params}), loss

    def begin_dec(key, state: Client, x, mask):
        del key, x, mask
        return state._replace(opt_state=joint_optimizer.init(state.variables["params"]))

    def divergence(x, p, key, variables, slots, counted):
        del key
        parts = swap(variables)
        rows = autoencoding.counted_rows(x, slots, counted)
        z, parts["encoder"] = autoencoder.encoder.apply(
            parts["encoder"], rows, train=True, mask=counted
        )
        q = losses.student_t(z, parts["centroids"]["params"], mask=counted)
        return losses.assignment_kl(p[slots], q, mask=counted), swap(parts)

    def sharpen(key, state: Client, x, mask):
        x, mask = flat(x, mask)
        z = autoencoding.encode_all(autoencoder, state.variables, x)
        q = losses.student_t(z, state.variables["params"]["centroids"], mask=mask)
        loss = partial(divergence, x, losses.target_distribution(q, mask=mask))
        return training.train(
            *(key, state, loss, mask),
            optimizer=joint_optimizer,
            batch_size=batch_size,
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
        Phase("autoencoder", go_on, train_autoencoder, pretrain_rounds),
        Phase("k-means", begin_kmeans, cluster_codes),
        Phase("dec", begin_dec, sharpen, joint_rounds),
    )
    return Clustering(
        init, phases if joint_rounds else phases[:2], embed, assign, results
    )
