"""SDA-FC and SDA-FDC: the server clusters what the clients' generators make.

Federated deep clustering with GAN-based data synthesis
    Jie Yan, Jing Liu, Ji Qi, Zhong-Yuan Zhang. 2022. https://arxiv.org/abs/2211.16965
    (SDA-FDC, in later papers PPFC-GAN: DCN on the synthetic data)
Federated clustering with GAN-based data synthesis
    The same. 2022. https://arxiv.org/abs/2210.16524
    (SDA-FC-KM, SDA-FC-FCM: k-means or fuzzy c-means on it)
    Authors' code of SDA-FC: https://github.com/Jarvisyan/SDA-FC
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from fcjax import clients, server, training
from fcjax.algorithms import gan, pooling
from fcjax.algorithms.gan import Adversarial, Pair
from fcjax.algorithms.rounds import all_rounds, ever_present
from fcjax.types import FederatedClustering, Federation, PRNGKey, State


class Trained(NamedTuple):
    """What the clients have in the first stage."""

    gans: Pair  # stacked on M
    received: Bool[Array, "M"]  # who has been sent one


class Synthetic(NamedTuple):
    """What the clients' generators make; of a client it counts once it has answered."""

    examples: Shaped[Array, "M S *F"]
    sizes: Int[Array, "M"]  # how many of them count


class Setup(NamedTuple):
    """What all rounds share; see `sda`."""

    adversarial: Adversarial
    clustering: pooling.Clustering
    num_synthetic: int | None


def sda(
    adversarial: Adversarial,
    clustering: pooling.Clustering,
    *,
    num_synthetic: int | None = None,
) -> FederatedClustering:
    """Builds SDA-FC or SDA-FDC: generators go up once, then all is the server's.

    The server sends every client the same GAN, which it trains alone, an epoch a round.
    In the first round after that in which a client answers it uploads its generator and
    how many examples it holds, nothing else. The server makes as many examples with
    each generator that came and clusters them; a late one's are added to them, and
    nothing is trained anew for it. A client that is sent its GAN late has trained it
    for fewer epochs, one that is sent none is left out. In the last round the server
    sends what assigns examples.

    Args:
        adversarial: how clients train their GANs.
        clustering: of the synthetic examples. `by_dcn` is SDA-FDC, with joint_rounds 0
            its ablation (disjoint); `by_kmeans` is SDA-FC-KM, `by_fuzzy_cmeans`
            SDA-FC-FCM.
        num_synthetic: examples of each client; None makes as many as it holds, as in
            the papers, where the authors' code makes 7,000 of MNIST.

    Returns:
        The method, stages `gan` and the phases of the clustering. Metrics of the first
        are its `loss`, the discriminator's (2 ln 2 where it cannot tell), the
        `generator_loss`, `participants`, `weight_size` and the traffic.

    Examples:
        >>> import optax
        >>> from fcjax import models
        >>> from fcjax.algorithms.central import by_kmeans
        >>> adam = optax.adam(1e-3, b1=0.5)
        >>> adversarial = Adversarial(models.mlp_gan(5), adam, adam, num_rounds=2)
        >>> method = sda(adversarial, by_kmeans(num_clusters=3))
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('gan', 2), ('cluster', 1)]
    """
    setup = Setup(adversarial, clustering, num_synthetic)
    gans = all_rounds("gan", partial(gan_round, adversarial), adversarial.num_rounds)
    first, *others = pooling.cluster_stages(
        clustering,
        pooling.Pooling(examples, partial(uploads, adversarial)),
        rounds_before=adversarial.num_rounds,
    )
    first = first._replace(begin=partial(begin_clustering, setup, first.begin))
    init = partial(initial_state, adversarial)
    method = pooling.pooled_method(init, (gans, first, *others), clustering)
    return method._replace(assign=partial(assign, method.assign))


def gan_round(
    adversarial: Adversarial, key: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """A round of the first stage: clients that have been sent a GAN train it, each by
    itself, and nothing is uploaded."""
    own: Trained = state.clients
    present = server.participants(federation, state.server)
    ever = clients.own(ever_present(federation), len(present))
    received = (own.received | present) & ever
    train = partial(gan.train_gan, examples=federation.pool, adversarial=adversarial)

    def client_round(key, own, rows, mask):
        own, (told, fooled) = train(key, own, rows=rows, mask=mask, number=state.server)
        size = training.root_mean_square([network["params"] for network in own])
        return own, {"loss": told, "generator_loss": fooled, "weight_size": size}

    gans, measured = clients.for_each(
        client_round,
        clients.keys(key, len(present)),
        own.gans,
        federation.indices,
        federation.mask,
    )
    gans = clients.keep_absent(received, gans, own.gans)
    measured, answered, trained, new = server.gather(
        (measured, present, received, present & ~own.received)
    )
    one = jax.tree.map(lambda x: x[0], gans)
    metrics = {
        **server.measure(trained, measured),
        "participants": answered.sum(),
        **server.traffic(new, up={}, down={"gan": one}),
    }
    return State(state.server + 1, Trained(gans, received)), metrics


def begin_clustering(
    setup: Setup, begin: Callable, key: PRNGKey, state: State, federation: Federation
) -> State:
    """Returns the state in which the server has made examples with all generators, and
    begins the first phase of their clustering; until a client answers, its own count
    nowhere."""
    construct_key, begin_key = jax.random.split(key)
    synthesis_key, init_key = jax.random.split(construct_key)
    own, pool, count = state.clients, federation.pool, setup.num_synthetic
    sizes = jnp.where(own.received, federation.mask.sum(axis=1), 0)
    generators, sizes = server.gather((own.gans.generator, sizes))
    if count is None:
        count = federation.indices.shape[1]
    else:
        sizes = jnp.where(sizes > 0, count, 0)
    make = partial(gan.synthesise, adversarial=setup.adversarial, dtype=pool.dtype)
    keys = clients.fold_in(synthesis_key, len(sizes))
    made = clients.for_each(partial(make, count=count), keys, generators)
    nothing = jnp.zeros((1, *pool.shape[1:]), pool.dtype)
    begun = setup.clustering.init(init_key, nothing)
    state = pooling.pooled(Synthetic(made, sizes), begun, federation, state.server)
    return begin(begin_key, state, federation)


def examples(
    source: Synthetic, federation: Federation, arrived: Bool[Array, "M"]
) -> tuple[Shaped[Array, "N *F"], Bool[Array, "N"]]:
    """As in `Pooling`: what was made for those who have answered."""
    arrived = server.gather(arrived) & ever_present(federation)
    slots = jnp.arange(source.examples.shape[1])[None]
    counted = arrived[:, None] & (slots < source.sizes[:, None])
    return source.examples.reshape(-1, *source.examples.shape[2:]), counted.reshape(-1)


def uploads(
    adversarial: Adversarial,
    source: Synthetic,
    federation: Federation,
    sends: Bool[Array, "A"],
) -> dict[str, Int[Array, "2"]]:
    """As in `Pooling`: a generator and a size of each that has been sent a GAN."""
    key, x = jax.random.key(0), federation.pool[:1]
    one = jax.eval_shape(lambda x: gan.initialize_gan(key, adversarial, x), x)
    message = {"generator": one.generator, "size": source.sizes[0]}
    return server.traffic(sends & (source.sizes > 0), up=message, down={})


def initial_state(
    adversarial: Adversarial, key: PRNGKey, federation: Federation
) -> State:
    """Returns the state before the first round: one GAN for all, which nobody has been
    sent; the server counts the rounds."""
    one = gan.initialize_gan(key, adversarial, federation.pool[:1])
    num_clients = len(federation.indices)
    own = Trained(clients.repeat(one, num_clients), jnp.zeros(num_clients, bool))
    return State(jnp.int32(0), own)


def assign(by_clustering: Callable, state: State, federation: Federation):
    """As in `FederatedClustering`: none before the server clusters."""
    if isinstance(state.clients, Trained):
        return jnp.full(federation.indices.shape, -1, jnp.int32)
    return by_clustering(state, federation)
