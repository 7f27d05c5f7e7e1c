"""SDA-FC and SDA-FDC: the server clusters what the clients' generators make.

Federated deep clustering with GAN-based data synthesis
    Jie Yan, Jing Liu, Ji Qi, Zhong-Yuan Zhang. 2022. https://arxiv.org/abs/2211.16965
    (SDA-FDC, in later papers PPFC-GAN: DCN on the synthetic data)
Federated clustering with GAN-based data synthesis
    The same. 2022. https://arxiv.org/abs/2210.16524
    (SDA-FC-KM, SDA-FC-FCM: k-means or fuzzy c-means on it)
    Authors' code of SDA-FC: https://github.com/Jarvisyan/SDA-FC
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from fcjax import clients, server, training
from fcjax.algorithms.gan import (
    Adversarial,
    GanVariables,
    initialize_gan,
    synthesise,
    train_gan,
)
from fcjax.algorithms.pooling import (
    Clustering,
    Pooling,
    cluster_stages,
    pooled,
    pooled_method,
)
from fcjax.algorithms.rounds import all_rounds, ever_present
from fcjax.data.augment import to_float
from fcjax.types import FederatedClustering, Federation, PRNGKey, State


class Trained(NamedTuple):
    """What the clients have in the first stage."""

    gans: GanVariables  # stacked on M
    received: Bool[Array, "M"]  # who has been sent one


class Synthetic(NamedTuple):
    """What the clients' generators make; of a client it counts once it has answered."""

    examples: Shaped[Array, "M S *F"]
    sizes: Int[Array, "M"]  # how many of them count


def sda(
    adversarial: Adversarial,
    clustering: Clustering,
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

    def init(key: PRNGKey, federation: Federation) -> State:
        num_clients = len(federation.indices)
        gan = initialize_gan(key, adversarial, to_float(federation.pool[:1]))
        received = jnp.zeros(num_clients, bool)
        own = Trained(clients.repeat(gan, num_clients), received)
        return State(jnp.int32(0), own)  # the server counts the rounds

    def round(key, state: State, federation: Federation):
        own: Trained = state.clients
        num_clients = len(federation.indices)
        present = server.participants(federation, state.server)
        received = (own.received | present) & ever_present(federation)

        def client_round(key, gan, rows, mask):
            gan, losses = train_gan(
                key,
                gan,
                federation.pool,
                rows,
                mask,
                adversarial,
                number=state.server,
            )
            weights = [network["params"] for network in gan]
            return gan, (losses, training.root_mean_square(weights))

        gans, measured = clients.for_each(
            client_round,
            clients.keys(key, num_clients),
            own.gans,
            federation.indices,
            federation.mask,
        )
        gans = clients.keep_absent(received, gans, own.gans)
        (losses, size), answered, trained, new = server.gather(
            (measured, present, received, present & ~own.received)
        )
        one = jax.tree.map(lambda x: x[0], gans)
        metrics = {
            "loss": jnp.mean(losses.discriminator, where=trained),
            "generator_loss": jnp.mean(losses.generator, where=trained),
            "weight_size": jnp.mean(size, where=trained),
            "participants": answered.sum(),
            **server.traffic(new, up={}, down={"gan": one}),
        }
        return State(state.server + 1, Trained(gans, received)), metrics

    def construct(key, state: State, federation: Federation) -> State:
        own: Trained = state.clients
        sizes = jnp.where(own.received, federation.mask.sum(axis=1), 0)
        generators, sizes = server.gather((own.gans.generator, sizes))
        pool = federation.pool
        count = num_synthetic
        if count is None:
            count = federation.indices.shape[1]
        else:
            sizes = jnp.where(sizes > 0, count, 0)
        make = partial(
            synthesise,
            count=count,
            adversarial=adversarial,
            dtype=pool.dtype,
        )
        synthesis_key, init_key = jax.random.split(key)
        made = clients.for_each(
            make,
            clients.fold_in(synthesis_key, len(sizes)),
            generators,
        )
        begun = clustering.init(init_key, jnp.zeros((1, *pool.shape[1:]), pool.dtype))
        return pooled(Synthetic(made, sizes), begun, federation, state.server)

    def examples(source: Synthetic, federation: Federation, arrived):
        arrived = server.gather(arrived & ever_present(federation))
        slots = jnp.arange(source.examples.shape[1])[None]
        return source.examples, arrived[:, None] & (slots < source.sizes[:, None])

    def uploads(source: Synthetic, federation: Federation, sends):
        example = jax.eval_shape(to_float, federation.pool[:1])
        gan = jax.eval_shape(
            lambda x: initialize_gan(jax.random.key(0), adversarial, x), example
        )
        message = {"generator": gan.generator, "size": source.sizes[0]}
        return server.traffic(sends & (source.sizes > 0), up=message, down={})

    num_epochs = adversarial.num_rounds
    first, *others = cluster_stages(
        clustering, Pooling(examples, uploads), rounds_before=num_epochs
    )

    def begin_clustering(key, state: State, federation: Federation):
        construct_key, begin_key = jax.random.split(key)
        server_state = construct(construct_key, state, federation)
        return first.begin(begin_key, server_state, federation)

    stages = (
        all_rounds("gan", round, num_epochs),
        first._replace(begin=begin_clustering),
        *others,
    )
    method = pooled_method(init, stages, clustering)

    def assign(state: State, federation: Federation):
        if isinstance(state.clients, Trained):
            return jnp.full(federation.indices.shape, -1, jnp.int32)
        return method.assign(state, federation)

    return method._replace(assign=assign)
