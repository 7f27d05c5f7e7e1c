"""Cluster-contrastive federated clustering.

CCFC: Bridging Federated Clustering and Contrastive Learning
    Jing Liu, Jie Yan, Zhong-Yuan Zhang. 2024. https://arxiv.org/abs/2401.06634
    Authors' code: https://github.com/Jarvisyan/CCFC-pytorch
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import clients, losses, server, training
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
    State,
)


class Server(NamedTuple):
    """All that crosses; the optimisers stay on the clients."""

    variables: PyTree  # the global network w^g
    centroids: Float[Array, "K D"]  # eta^g
    num_rounds: Int[Array, ""]  # rounds so far, over all stages


class Own(NamedTuple):
    """What a client has that trains by itself; its server counts the rounds."""

    variables: PyTree
    centroids: Float[Array, "M K D"]
    opt_state: PyTree


class Setup(NamedTuple):
    """What all rounds share; see `ccfc`."""

    network: Network
    optimizer: optax.GradientTransformation
    augment: Augment
    num_clusters: int
    local_epochs: int
    batch_size: int
    model_weight: Scalar
    num_init: int
    include_self: bool
    euclidean: bool


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
    setup = Setup(
        *(network, optimizer, augment, num_clusters, local_epochs, batch_size),
        *(model_weight, num_init, include_self, euclidean),
    )
    round_of = partial(standalone_round if standalone else federated_round, setup)

    def cluster_round(key, state, federation):
        new, metrics = round_of(True, False, key, state, federation)
        if not standalone:
            # Before the first round of this stage they were uploaded already.
            times = 1 + (state.server.num_rounds == pretrain_rounds)
            metrics["up_centroids"] = metrics["up_centroids"].at[0].multiply(times)
        return new, metrics

    first_round, pretrain_round = (
        partial(round_of, False, own) for own in (True, False)
    )
    first = all_rounds("first", first_round, 1)
    pretrain = all_rounds("pretrain", pretrain_round, pretrain_rounds - own_init)
    begin = partial(mine_centroids, setup, standalone)
    second = all_rounds("cluster", cluster_round, cluster_rounds, begin=begin)
    if sample_contrastive:  # which has no use for pseudo-labels
        renew = partial(renew_optimizers, setup)
        second = all_rounds("cluster", pretrain_round, cluster_rounds, begin=renew)
    return FederatedClustering(
        init=partial(initial_state, setup, standalone),
        stages=(*([first] if own_init else []), pretrain, second),
        embed=partial(embed, setup),
        assign=partial(assign, setup),
    )


def federated_round(
    setup: Setup,
    by_clusters: bool,
    own_init: bool,
    key: PRNGKey,
    state: State,
    federation: Federation,
) -> tuple[State, dict[str, Array]]:
    """A round of Algorithm 1: clients train the global network and mine centroids, the
    server averages the one and clusters the other.

    Args:
        setup: of the method.
        by_clusters: contrast clusters, else two views of each example.
        own_init: clients begin with networks of their own.
        key, state, federation: as in `Stage`.
    """
    before: Server = state.server
    num_clients = len(federation.indices)
    present = server.participants(federation, before.num_rounds)
    clients_key, server_key = jax.random.split(key)
    trained, mined, measured = clients.for_each(
        partial(client_round, setup, by_clusters, own_init, federation.pool),
        clients.keys(clients_key, num_clients),
        *clients.repeat((before.variables, before.centroids), num_clients),
        state.clients,
        federation.indices,
        federation.mask,
    )
    opt_state = clients.keep_absent(present, trained.opt_state, state.clients)
    sizes = present * federation.mask.sum(axis=1).astype(float)
    variables, (mined, answered, measured) = server.receive(
        trained.variables, sizes, (mined, present, measured)
    )
    centroids = cluster_centroids(setup, server_key, mined, answered)
    sent = {"network": variables, "centroids": centroids}
    metrics = server.measure(answered, measured)
    metrics |= server.traffic(answered, up=sent, down=sent)
    after = Server(variables, centroids, before.num_rounds + 1)
    return State(after, opt_state), metrics


def standalone_round(
    setup: Setup,
    by_clusters: bool,
    own_init: bool,
    key: PRNGKey,
    state: State,
    federation: Federation,
) -> tuple[State, dict[str, Array]]:
    """A round in which nothing crosses: what it measures is for the metrics alone."""
    own: Own = state.clients
    present = server.participants(federation, state.server)
    clients_key, _ = jax.random.split(key)
    trained, mined, measured = clients.for_each(
        partial(client_round, setup, by_clusters, own_init, federation.pool),
        clients.keys(clients_key, len(federation.indices)),
        *own,
        federation.indices,
        federation.mask,
    )
    new = Own(trained.variables, mined, trained.opt_state)
    new = clients.keep_absent(present, new, own)
    metrics = server.measure(*server.gather((present, measured)))
    return State(state.server + 1, new), metrics


def client_round(
    setup: Setup,
    by_clusters: bool,
    own_init: bool,
    pool: Shaped[Array, "P *F"],
    key: PRNGKey,
    anchor: PyTree,
    centroids: Float[Array, "K D"],
    opt_state: PyTree,
    rows: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> tuple[clients.Client, Float[Array, "K D"], dict[str, Float[Array, ""]]]:
    """A client trains the network that it was sent, which it stays close to, and mines
    the centroids of what it makes of its own examples."""
    train_key, mine_key, init_key = jax.random.split(key, 3)
    start, labels = anchor, jnp.zeros_like(rows)
    if own_init:
        start = setup.network.init(init_key, to_float(pool[:1]))
    if by_clusters:
        labels = nearest(setup, encode(setup, anchor, pool, rows), centroids)

    def loss(key, variables, slots, counted):
        x, weight = to_float(pool[rows[slots]]), setup.model_weight
        if by_clusters:
            return cluster_contrast(
                *(setup.network, variables, anchor, x, labels[slots], counted),
                num_clusters=setup.num_clusters,
                model_weight=weight,
                include_self=setup.include_self,
            )
        views = two_views(setup, key, x)
        return sample_contrast(
            setup.network, variables, anchor, views, counted, model_weight=weight
        )

    client, value = training.train(
        train_key,
        clients.Client(start, opt_state),
        loss,
        mask,
        optimizer=setup.optimizer,
        batch_size=setup.batch_size,
        num_epochs=setup.local_epochs,
    )
    mined, z = mine(setup, mine_key, client.variables, pool, rows, mask)
    measured = {
        "loss": value,
        "embedding_spread": training.spread(z, mask),
        "weight_size": training.root_mean_square(client.variables["params"]),
    }
    return client, mined, measured


def two_views(setup: Setup, key: PRNGKey, x: Float[Array, "B *F"]):
    """Draws two views of each example."""
    keys = jax.vmap(jax.random.split)(clients.fold_in(key, len(x)))
    views = jax.vmap(jax.vmap(setup.augment, in_axes=(0, None)))(keys, x)
    return views[:, 0], views[:, 1]


def sample_contrast(
    network: Network,
    variables: PyTree,
    anchor: PyTree,
    views: tuple[Float[Array, "B *F"], Float[Array, "B *F"]],
    mask: Bool[Array, "B"],
    *,
    model_weight: Scalar,
) -> tuple[Float[Array, ""], PyTree]:
    """Returns SimSiam's loss on two views of a batch, with the pull towards the anchor,
    and the variables with new batch statistics; the loss of the first stage."""
    (z1, p1), variables = network.apply(variables, views[0], train=True, mask=mask)
    (z2, p2), variables = network.apply(variables, views[1], train=True, mask=mask)
    (_, g1), _ = network.apply(anchor, views[0], train=False)
    (_, g2), _ = network.apply(anchor, views[1], train=False)
    contrast = (losses.negative_cosine(p1, z2) + losses.negative_cosine(p2, z1)) / 2
    contrast = jnp.sum(contrast, where=mask) / jnp.maximum(mask.sum(), 1)
    pull = losses.model_contrastive(p1, g1, mask=mask)
    pull += losses.model_contrastive(p2, g2, mask=mask)
    return contrast + model_weight * pull / 2, variables


def cluster_contrast(
    network: Network,
    variables: PyTree,
    anchor: PyTree,
    x: Float[Array, "B *F"],
    labels: Int[Array, "B"],
    mask: Bool[Array, "B"],
    *,
    num_clusters: int,
    model_weight: Scalar,
    include_self: bool,
) -> tuple[Float[Array, ""], PyTree]:
    """Returns Eq. 4 on a batch under its pseudo-labels, and the variables with new
    batch statistics; the loss of the second stage."""
    (z, p), variables = network.apply(variables, x, train=True, mask=mask)
    (_, anchors), _ = network.apply(anchor, x, train=False)
    contrast = losses.cluster_contrastive(
        p, z, labels, num_clusters=num_clusters, include_self=include_self, mask=mask
    )
    pull = losses.model_contrastive(p, anchors, mask=mask)
    return contrast + model_weight * pull, variables


def mine(
    setup: Setup,
    key: PRNGKey,
    variables: PyTree,
    pool: Shaped[Array, "P *F"],
    rows: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> tuple[Float[Array, "K D"], Float[Array, "N D"]]:
    """Returns the centroids of a client's own embedding, and that embedding."""
    z = encode(setup, variables, pool, rows)
    found = kmeans(key, z, setup.num_clusters, mask=mask, num_init=setup.num_init)
    return found.centroids, z


def cluster_centroids(
    setup: Setup,
    key: PRNGKey,
    mined: Float[Array, "M K D"],
    answered: Bool[Array, "M"],
) -> Float[Array, "K D"]:
    """K-means of the clients' centroids, each counting once, as in the code."""
    points = mined.reshape(-1, mined.shape[-1])
    mask = jnp.repeat(answered, setup.num_clusters)
    found = kmeans(key, points, setup.num_clusters, mask=mask, num_init=setup.num_init)
    return found.centroids


def initial_state(
    setup: Setup, standalone: bool, key: PRNGKey, federation: Federation
) -> State:
    """Returns the state before the first round: one network for all."""
    num_clients, example = len(federation.indices), to_float(federation.pool[:1])
    variables = setup.network.init(key, example)
    z = jax.eval_shape(partial(apply_eval, setup), variables, example)
    opt_state = setup.optimizer.init(variables["params"])
    opt_state = clients.repeat(opt_state, num_clients)
    centroids = jnp.zeros((setup.num_clusters, z.shape[-1]))
    state = State(Server(variables, centroids, jnp.int32(0)), opt_state)
    return leave(state, num_clients) if standalone else state


def leave(state: State, num_clients: int) -> State:
    """Returns the state of standalone clients that go on from the server's model: a
    round of theirs is the local training of the next communication round."""
    models = (state.server.variables, state.server.centroids)
    variables, centroids = clients.repeat(models, num_clients)
    own = Own(variables, centroids, state.clients)
    return State(state.server.num_rounds, own)


def mine_centroids(
    setup: Setup, standalone: bool, key: PRNGKey, state: State, federation: Federation
) -> State:
    """Begins the second stage: the clients of its first round mine with the network
    that they now hold, and all optimisers are new."""
    variables, centroids = held(state, len(federation.indices))
    num_rounds = state.server if standalone else state.server.num_rounds
    present = server.participants(federation, num_rounds)
    clients_key, server_key = jax.random.split(key)

    def mine_own(key, variables, rows, mask):
        return mine(setup, key, variables, federation.pool, rows, mask)[0]

    mined = clients.for_each(
        mine_own,
        clients.keys(clients_key, len(present)),
        variables,
        federation.indices,
        federation.mask,
    )
    if standalone:
        centroids = clients.keep_absent(present, mined, centroids)
        own: Own = state.clients
        state = state._replace(clients=own._replace(centroids=centroids))
    else:
        mined, answered = server.gather((mined, present))
        centroids = cluster_centroids(setup, server_key, mined, answered)
        before: Server = state.server
        state = state._replace(server=before._replace(centroids=centroids))
    return renew_optimizers(setup, key, state, federation)


def renew_optimizers(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> State:
    """Returns the state in which no client has taken a step yet."""
    del key
    variables, _ = held(state, len(federation.indices))
    opt_state = jax.vmap(setup.optimizer.init)(variables["params"])
    if isinstance(state.clients, Own):
        return state._replace(clients=state.clients._replace(opt_state=opt_state))
    return state._replace(clients=opt_state)


def held(state: State, num_clients: int) -> tuple[PyTree, Float[Array, "M K D"]]:
    """Returns the network and the centroids that each client holds."""
    if isinstance(state.clients, Own):
        return state.clients.variables, state.clients.centroids
    models = (state.server.variables, state.server.centroids)
    return clients.repeat(models, num_clients)


def embed(setup: Setup, state: State, federation: Federation) -> Float[Array, "M N D"]:
    """As in `FederatedClustering`: projections, at unit length."""
    variables, _ = held(state, len(federation.indices))
    return clients.for_each(
        lambda variables, rows: encode(setup, variables, federation.pool, rows),
        variables,
        federation.indices,
    )


def assign(setup: Setup, state: State, federation: Federation) -> Int[Array, "M N"]:
    """As in `FederatedClustering`: by the centroids that a client holds."""

    def one(variables, centroids, rows):
        return nearest(
            setup, encode(setup, variables, federation.pool, rows), centroids
        )

    models = held(state, len(federation.indices))
    return clients.for_each(one, *models, federation.indices)


def encode(
    setup: Setup,
    variables: PyTree,
    pool: Shaped[Array, "P *F"],
    rows: Int[Array, "N"],
) -> Float[Array, "N D"]:
    """Returns the embedding of some rows of the pool."""

    def batch(rows):
        return losses.normalize(apply_eval(setup, variables, to_float(pool[rows])))

    return training.in_batches(batch, rows, batch_size=setup.batch_size)


def apply_eval(setup: Setup, variables, x):
    (z, _), _ = setup.network.apply(variables, x, train=False)
    return z


def nearest(
    setup: Setup, z: Float[Array, "N D"], centroids: Float[Array, "K D"]
) -> Int[Array, "N"]:
    """Returns the pseudo-labels: Eq. 3, or by cosine."""
    if setup.euclidean:
        return assign_nearest(z, centroids)
    # The means of unit vectors are shorter the wider their cluster is.
    directions = losses.normalize(centroids).T
    similarity = jnp.matmul(z, directions, precision=jax.lax.Precision.HIGHEST)
    return jnp.argmax(similarity, axis=-1)
