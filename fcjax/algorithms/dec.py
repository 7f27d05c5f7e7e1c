"""DEC: an encoder and centroids that sharpen their own soft assignments.

Unsupervised Deep Embedding for Clustering Analysis
    Junyuan Xie, Ross Girshick, Ali Farhadi. 2016.
    https://arxiv.org/abs/1511.06335
    Authors' code: https://github.com/piiswrong/dec; in Keras, with the better figures:
    https://github.com/XifengGuo/DEC-keras
"""

from functools import partial
from typing import Any, NamedTuple

import optax
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import losses, training
from fcjax.algorithms import autoencoding
from fcjax.algorithms.autoencoding import Codes
from fcjax.algorithms.parts import Networks, forward, pick, put
from fcjax.algorithms.pooling import Clustering, Counted, Examples, Phase
from fcjax.clients import Client
from fcjax.models.autoencoder import AutoEncoder
from fcjax.types import PRNGKey, PyTree

SGD = optax.sgd(0.01, momentum=0.9)
"""The optimiser of the paper's clusters."""


class Setup(NamedTuple):
    """What the rounds of the joint phase share; see `by_dec`."""

    codes: Codes
    optimizer: optax.GradientTransformation
    num_epochs: int


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
    codes = Codes(autoencoder, optimizer, num_clusters, batch_size, num_init, num_used)
    setup = Setup(codes, joint_optimizer, joint_epochs)
    dec = Phase("dec", partial(begin, setup), partial(sharpen, setup), joint_rounds)
    later = (dec,) if joint_rounds else ()
    return autoencoding.clustering(
        codes, Client, begin_clusters, centroids_of, pretrain_rounds, later
    )


def begin_clusters(state: Client, centroids: Float[Array, "K D"]) -> Client:
    """Returns the state that has an encoder and these centroids."""
    encoder = pick(state.variables, ("encoder",))
    return Client(put(encoder, "centroids", {"params": centroids}), ())


def centroids_of(state: Client) -> Any:
    """Returns the centroids, () before k-means."""
    return state.variables["params"].get("centroids", ())


def begin(
    setup: Setup, _: PRNGKey, state: Client, x: Examples, mask: Counted
) -> Client:
    """Returns the state in which encoder and centroids have not taken a step yet."""
    return state._replace(opt_state=setup.optimizer.init(state.variables["params"]))


def sharpen(
    setup: Setup, key: PRNGKey, state: Client, x: Examples, mask: Counted
) -> tuple[Client, Float[Array, ""]]:
    """A round: P of all examples, then some epochs of encoder and centroids by it."""
    autoencoder = setup.codes.autoencoder
    z = autoencoding.encode_all(autoencoder, state.variables, x)
    q = losses.student_t(z, centroids_of(state), mask=mask)
    p = losses.target_distribution(q, mask=mask)
    return training.train(
        *(key, state, partial(divergence, autoencoder, x, p), mask),
        optimizer=setup.optimizer,
        batch_size=setup.codes.batch_size,
        num_epochs=setup.num_epochs,
    )


def divergence(
    autoencoder: AutoEncoder,
    x: Shaped[Array, "N *F"],
    p: Float[Array, "N K"],
    _: PRNGKey,
    variables: PyTree,
    slots: Int[Array, "B"],
    counted: Bool[Array, "B"],
) -> tuple[Float[Array, ""], PyTree]:
    """Returns KL(P || Q) on a batch, Eq. 2, and the variables with new batch
    statistics."""
    networks = Networks(autoencoder._asdict())
    rows = autoencoding.counted_rows(x, slots, counted)
    z, variables = forward(networks, variables, ("encoder",), rows, counted)
    q = losses.student_t(z, variables["params"]["centroids"], mask=counted)
    return losses.assignment_kl(p[slots], q, mask=counted), variables
