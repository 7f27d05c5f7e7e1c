"""Cluster-contrastive federated clustering.

CCFC: Bridging Federated Clustering and Contrastive Learning
    Jing Liu, Jie Yan, Zhong-Yuan Zhang. 2024. https://arxiv.org/abs/2401.06634
    Authors' code: https://github.com/Jarvisyan/CCFC-pytorch
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from fcjax import clients, losses, server, training
from fcjax.algorithms.ccfc_losses import cluster_contrast, sample_contrast
from fcjax.algorithms.rounds import all_rounds
from fcjax.cluster import assign_nearest, kmeans
from fcjax.data.augment import Augment, to_float
from fcjax.types import (
    FederatedClustering,
    Federation,
    Network,
    PRNGKey,
    PyTree,
    Scalar,
)


class CCFCState(NamedTuple):
    """The server's model and what stays on the clients between rounds.

    Standalone clients have a model each: then `variables` and `centroids` have a
    leading client axis.
    """

    variables: PyTree  # the global network w^g
    centroids: Float[Array, "*M K D"]  # the global centroids eta^g
    opt_state: PyTree  # the clients' optimisers, stacked on M
    num_rounds: Int[Array, ""]  # rounds so far, over both stages


def ccfc(
    network: Network,
    optimizer: optax.GradientTransformation,
    augment: Augment,
    *,
    num_clusters: int,
    pretrain_rounds: int = 100,
    cluster_rounds: int = 30,
    local_epochs: int = 1,
    batch_size: int = 128,
    model_weight: Scalar = 1e-3,
    num_init: int = 10,
    sample_contrastive: bool = False,
    standalone: bool = False,
    own_init: bool = False,
    include_self: bool = True,
    euclidean: bool = False,
) -> FederatedClustering:
    """Builds CCFC: SimSiam pre-training, then rounds of cluster contrast.

    The paper describes the second stage alone. Its code trains SimSiam first, on two
    augmented views, and then contrasts clusters without augmentation; that is what
    the defaults do, but for `own_init`. The second stage begins as in the code: every
    client mines centroids with the averaged network, and the server clusters them.
    Algorithm 1 as printed is `pretrain_rounds=0, include_self=False, euclidean=True`.

    Args:
        network: maps [B, *F] to projections and predictions, [B, D] each.
        optimizer: one per client; its state outlives a round (as in the code) and
            starts anew with the second stage.
        augment: (key, example) -> a view of it.
        num_clusters: K, of the clients' k-means and of the server's.
        pretrain_rounds: rounds of the first stage (not in the paper).
        cluster_rounds: t in Algorithm 1.
        local_epochs: epochs each client trains in a round.
        batch_size: examples a local step.
        model_weight: weight (lambda) of the model-contrastive term, Eq. 4.
        num_init: seedings of every k-means, of which the best counts; in the code
            scikit-learn's default of its day.
        sample_contrastive: keep the loss of the first stage in the second: SCFC of
            the paper's ablation (Table 4).
        standalone: clients neither upload nor download: the local models of Table 4.
        own_init: let the clients start from unrelated networks and average them after
            a first round of their own, as the code does, which draws them to the
            server's own first network meanwhile; False starts all from that one.
            The mean of unrelated weights is small, which under batch norm is a larger
            step size for all that follows.
        include_self: count an example as its own pair, as the code does; False is
            Eq. 1.
        euclidean: assign to the nearest centroid, Eq. 3; False takes that of the
            largest cosine, as the code does.

    Returns:
        The method, with stages `pretrain` and `cluster` (and before them `first`, a
        round of pre-training, with `own_init`). Its metrics are the mean
        `loss` over the clients that answered, `participants`, `embedding_spread`
        (1 where the embedding fills its sphere, 0 where it collapsed), `weight_size`
        (root mean square of the clients' weights) and the traffic.

    Raises:
        ValueError: own_init without a round of pre-training.

    Examples:
        >>> import optax
        >>> from fcjax import models
        >>> from fcjax.data.vectors import vector_view
        >>> network = models.mlp_simsiam(widths=(16,), hidden_size=16, latent_size=8)
        >>> method = ccfc(network, optax.adam(1e-3), vector_view, num_clusters=3)
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('pretrain', 100), ('cluster', 30)]
    """
    if own_init and pretrain_rounds < 1:
        raise ValueError("own_init is a round of pre-training, and there is none")
    train = partial(
        training.train,
        optimizer=optimizer,
        batch_size=batch_size,
        num_epochs=local_epochs,
    )

    def init(key: PRNGKey, federation: Federation) -> CCFCState:
        num_clients = len(federation.indices)
        example = to_float(federation.pool[:1])

        variables = network.init(key, example)
        latent_size = jax.eval_shape(apply_eval, variables, example)[0].shape[-1]
        opt_state = clients.repeat(optimizer.init(variables["params"]), num_clients)
        centroids = jnp.zeros((num_clusters, latent_size))
        if standalone:
            variables, centroids = clients.repeat((variables, centroids), num_clients)
        return CCFCState(variables, centroids, opt_state, jnp.int32(0))

    def sample_loss(key, variables, anchor, x, labels, mask):
        del labels
        keys = jax.vmap(jax.random.split)(clients.fold_in(key, len(x)))
        views = jax.vmap(jax.vmap(augment, in_axes=(0, None)))(keys, x)
        views = (views[:, 0], views[:, 1])
        return sample_contrast(
            network, variables, anchor, views, mask, model_weight=model_weight
        )

    def cluster_loss(key, variables, anchor, x, labels, mask):
        del key
        return cluster_contrast(
            network,
            variables,
            anchor,
            x,
            labels,
            mask,
            num_clusters=num_clusters,
            model_weight=model_weight,
            include_self=include_self,
        )

    def mine(key, variables, federation, rows, mask):
        """The centroids of a client's own embedding, and that embedding."""
        z = encode(variables, federation.pool, rows)
        found = kmeans(key, z, num_clusters, mask=mask, num_init=num_init)
        return found.centroids, z

    def communication_round(
        local_loss: Callable, group: bool, own: bool, key, state, federation
    ):
        num_clients = len(federation.indices)
        present = server.participants(federation, state.num_rounds)

        def client_round(key, anchor, centroids, opt_state, rows, mask):
            train_key, mine_key, init_key = jax.random.split(key, 3)
            start = anchor
            if own:
                start = network.init(init_key, to_float(federation.pool[:1]))
            if group:
                labels = nearest(encode(anchor, federation.pool, rows), centroids)
            else:
                labels = jnp.zeros_like(rows)

            def loss(key, variables, slots, counted):
                x = to_float(federation.pool[rows[slots]])
                return local_loss(key, variables, anchor, x, labels[slots], counted)

            client, value = train(
                train_key, clients.Client(start, opt_state), loss, mask
            )
            mined, z = mine(mine_key, client.variables, federation, rows, mask)
            weight_size = training.root_mean_square(client.variables["params"])
            return client, mined, (value, training.spread(z, mask), weight_size)

        clients_key, server_key = jax.random.split(key)
        trained, mined, measured = clients.for_each(
            client_round,
            clients.keys(clients_key, num_clients),
            *held(state, num_clients),
            state.opt_state,
            federation.indices,
            federation.mask,
        )
        opt_state = clients.keep_absent(present, trained.opt_state, state.opt_state)
        sizes = present * federation.mask.sum(axis=1).astype(float)
        # A standalone client uploads nothing; the rest is for the metrics alone.
        networks, points = ((), ()) if standalone else (trained.variables, mined)
        variables, (points, answered, measured) = server.receive(
            networks, sizes, (points, present, measured)
        )
        if standalone:
            variables = clients.keep_absent(present, trained.variables, state.variables)
            centroids = clients.keep_absent(present, mined, state.centroids)
            messages = {}
        else:
            centroids = aggregate(server_key, points, answered)
            messages = {"network": variables, "centroids": centroids}
        crossed = server.traffic(answered, up=messages, down=messages)
        if group and not standalone:
            # Before the first round of this stage they were uploaded already.
            times = 1 + (state.num_rounds == pretrain_rounds)
            crossed["up_centroids"] = crossed["up_centroids"].at[0].multiply(times)
        names = ("loss", "embedding_spread", "weight_size")
        metrics = {
            **{
                name: jnp.mean(each, where=answered)
                for name, each in zip(names, measured, strict=True)
            },
            "participants": answered.sum(),
            **crossed,
        }
        return CCFCState(variables, centroids, opt_state, state.num_rounds + 1), metrics

    def aggregate(key, mined, present):
        """K-means of the clients' centroids, each counting once, as in the code."""
        points = mined.reshape(-1, mined.shape[-1])
        mask = jnp.repeat(present, num_clusters)
        found = kmeans(key, points, num_clusters, mask=mask, num_init=num_init)
        return found.centroids

    def apply_eval(variables, x):
        return network.apply(variables, x, train=False)[0]

    def encode(variables, pool, rows):
        def batch(rows):
            return losses.normalize(apply_eval(variables, to_float(pool[rows]))[0])

        return training.in_batches(batch, rows, batch_size=batch_size)

    def nearest(z, centroids):
        if euclidean:
            return assign_nearest(z, centroids)
        # The means of unit vectors are shorter the wider their cluster is.
        directions = losses.normalize(centroids).T
        similarity = jnp.matmul(z, directions, precision=jax.lax.Precision.HIGHEST)
        return jnp.argmax(similarity, axis=-1)

    def held(state, num_clients):
        """The network and the centroids that each client holds."""
        models = (state.variables, state.centroids)
        return models if standalone else clients.repeat(models, num_clients)

    def embed(state: CCFCState, federation: Federation):
        variables, _ = held(state, len(federation.indices))
        return clients.for_each(
            lambda v, rows: encode(v, federation.pool, rows),
            variables,
            federation.indices,
        )

    def assign(state: CCFCState, federation: Federation):
        return clients.for_each(
            lambda v, centroids, rows: nearest(
                encode(v, federation.pool, rows), centroids
            ),
            *held(state, len(federation.indices)),
            federation.indices,
        )

    def renew(key, state, federation):
        del key
        variables, _ = held(state, len(federation.indices))
        return state._replace(opt_state=jax.vmap(optimizer.init)(variables["params"]))

    def begin_cluster(key, state, federation):
        """The clients of the first round mine with the network that they now hold."""
        num_clients = len(federation.indices)
        present = server.participants(federation, state.num_rounds)
        clients_key, server_key = jax.random.split(key)
        variables, centroids = held(state, num_clients)
        mined, _ = clients.for_each(
            lambda key, variables, rows, mask: mine(
                key, variables, federation, rows, mask
            ),
            clients.keys(clients_key, num_clients),
            variables,
            federation.indices,
            federation.mask,
        )
        if standalone:
            centroids = clients.keep_absent(present, mined, centroids)
        else:
            centroids = aggregate(server_key, *server.gather((mined, present)))
        return renew(key, state._replace(centroids=centroids), federation)

    pretrain_round = partial(communication_round, sample_loss, False, False)
    first_round = partial(communication_round, sample_loss, False, True)
    cluster_round = partial(communication_round, cluster_loss, True, False)
    first = all_rounds("first", first_round, 1)
    second = all_rounds("cluster", cluster_round, cluster_rounds, begin=begin_cluster)
    if sample_contrastive:  # which has no use for pseudo-labels
        second = all_rounds("cluster", pretrain_round, cluster_rounds, begin=renew)
    stages = (
        *([first] if own_init else []),
        all_rounds("pretrain", pretrain_round, pretrain_rounds - own_init),
        second,
    )
    return FederatedClustering(init, stages, embed, assign)


def leave(state: CCFCState, num_clients: int) -> CCFCState:
    """Returns the state of standalone clients that go on from the server's model: a
    round of theirs is the local training of the next communication round."""
    models = (state.variables, state.centroids)
    variables, centroids = clients.repeat(models, num_clients)
    return state._replace(variables=variables, centroids=centroids)
