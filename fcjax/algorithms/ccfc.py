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
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from fcjax import losses, ragged
from fcjax.algorithms.rounds import EVERY_ROUND, Scored, all_rounds
from fcjax.cluster import assign_nearest, kmeans
from fcjax.data.augment import Augment, to_float
from fcjax.federated import clients, server, training
from fcjax.types import (
    FederatedClustering,
    Federation,
    Network,
    Pool,
    PRNGKey,
    PyTree,
    Scalar,
    State,
)

WHOLE = optax.constant_schedule(1.0)
"""Of every round the whole step size."""


class Server(NamedTuple):
    """All that crosses; the optimisers stay on the clients."""

    variables: PyTree  # the global network w^g
    centroids: Float[Array, "K D"]  # eta^g
    num_rounds: Int[Array, ""]  # rounds so far, over all stages


class Setup(NamedTuple):
    """What all rounds share; see `ccfc`."""

    network: Network
    optimizer: optax.GradientTransformation
    augment: Augment
    num_clusters: int
    pretrain_rounds: int
    cluster_rounds: int
    local_epochs: int
    batch_size: int
    model_weight: Scalar
    decorrelation_weight: Scalar
    num_init: int
    sample_contrastive: bool
    own_init: bool
    include_self: bool
    euclidean: bool
    schedule: optax.Schedule
    scored: Scored


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
    decorrelation_weight: Scalar = 0.0,
    num_init: int = 10,
    sample_contrastive: bool = False,
    own_init: bool = False,
    include_self: bool = True,
    euclidean: bool = False,
    schedule: optax.Schedule = WHOLE,
    scored: Scored = EVERY_ROUND,
) -> FederatedClustering:
    """Builds CCFC: SimSiam pre-training, then rounds of cluster contrast.

    The paper describes the second stage alone. Its code trains SimSiam first, on two
    augmented views, and then contrasts clusters without augmentation; that is what
    the defaults do, but for `own_init`. The second stage begins as in the code: every
    client mines centroids with the averaged network, and the server clusters them.
    `pretrain_rounds=0, include_self=False, euclidean=True` is Algorithm 1 as printed,
    but for z, which keeps unit length, and clusters, which are those of a batch.

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
        decorrelation_weight: weight (eta) of `losses.decorrelation` of the projections,
            of each view, in both stages: CCFC++, as far as it is known. 0 is CCFC.
        num_init: seedings of every k-means, of which the best counts; in the code
            scikit-learn's default of its day.
        sample_contrastive: keep the loss of the first stage in the second: SCFC of
            the paper's ablation (Table 4).
        own_init: let the clients start from unrelated networks and average them after
            a first round of their own, as the code does, which draws them to the
            server's own first network meanwhile; False starts all from that one.
            The mean of unrelated weights is small, which under batch norm is a larger
            step size for all that follows.
        include_self: count an example as its own pair, as the code does; False is
            Eq. 1.
        euclidean: assign to the nearest centroid, Eq. 3; False takes that of the
            largest cosine, as the code does.
        schedule: the step size of each round of the second stage as a share of the
            optimiser's own; in the first, as in the code in both, it is all of it.
        scored: the rounds after which clusters are asked for. Where examples are
            contrasted nothing else needs centroids, and clients mine none in other
            rounds.

    Returns:
        The method, with stages `pretrain` and `cluster` (and before them `first`, a
        round of pre-training, with `own_init`). Its metrics are the mean
        `loss` over the clients that answered, `participants`, `embedding_spread`
        of a batch of each client's examples (1 where the embedding fills its sphere, 0
        where it collapsed), `weight_size`
        (root mean square of the clients' weights) and the traffic.

    Raises:
        ValueError: own_init without a round of pre-training.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.data.augment import vector_view
        >>> network = nn.mlp_simsiam(widths=(16,), hidden_size=16, latent_size=8)
        >>> method = ccfc(network, optax.adam(1e-3), vector_view, num_clusters=3)
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('pretrain', 100), ('cluster', 30)]
    """
    setup = Setup(
        *(network, optimizer, augment, num_clusters, pretrain_rounds, cluster_rounds),
        *(local_epochs, batch_size, model_weight, decorrelation_weight, num_init),
        *(sample_contrastive, own_init, include_self, euclidean, schedule, scored),
    )
    return in_two_stages(
        setup, initial_state, federated_round, begin_clusters, downloaded
    )


def in_two_stages(
    setup: Setup, init: Callable, round: Callable, begin: Callable, models_of: Callable
) -> FederatedClustering:
    """Returns the method of these functions: `initial_state`, `federated_round`,
    `begin_clusters` and `downloaded`, or what clients have for them on their own."""
    if setup.own_init and setup.pretrain_rounds < 1:
        raise ValueError("own_init is a round of pre-training, and there is none")

    # Stages of one round function are compiled once.
    by_examples, by_clusters = (partial(round, setup, x) for x in (False, True))
    last = by_examples if setup.sample_contrastive else by_clusters
    begin, num_clusterings = partial(begin, setup), setup.cluster_rounds
    return FederatedClustering(
        init=partial(init, setup),
        stages=(
            *([all_rounds("first", by_examples, 1)] if setup.own_init else []),
            all_rounds("pretrain", by_examples, setup.pretrain_rounds - setup.own_init),
            all_rounds("cluster", last, num_clusterings, begin=begin),
        ),
        embed=partial(embed, setup, models_of),
        assign=partial(assign, setup, models_of),
        by_size=True,
    )


def federated_round(
    setup: Setup, by_clusters: bool, key: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """A round of Algorithm 1: clients train the global network and mine centroids, the
    server averages the one and clusters the other.

    Args:
        setup: of the method.
        by_clusters: contrast clusters, else two views of each example.
        key, state, federation: as in `Stage`.
    """
    before: Server = state.server
    present = server.participants(federation, before.num_rounds)
    clients_key, server_key = jax.random.split(key)
    mines = by_clusters or is_scored(setup, before.num_rounds)
    trained, mined, measured = clients.for_each(
        partial(client_round, setup, by_clusters, before.num_rounds, federation.pool),
        clients.keys(clients_key, len(present)),
        *downloaded(state, len(present)),
        state.clients,
        federation.indices,
        federation.mask,
    )
    opt_state = clients.keep_absent(present, trained.opt_state, state.clients)
    sizes = present * ragged.sizes(federation.mask).astype(float)
    variables, (mined, answered, measured) = server.receive(
        trained.variables, sizes, (mined, present, measured)
    )
    centroids = lax.cond(
        mines,
        lambda: cluster_centroids(setup, server_key, mined, answered),
        lambda: before.centroids,
    )
    sent = {"network": variables, "centroids": centroids}
    metrics = server.measure(answered, measured)
    metrics |= server.traffic(answered, up=sent, down=sent)
    crossed = jnp.int32(mines)
    metrics["down_centroids"] = metrics["down_centroids"].at[0].multiply(crossed)
    if by_clusters:  # before the first such round they were uploaded already
        crossed += before.num_rounds == setup.pretrain_rounds
    metrics["up_centroids"] = metrics["up_centroids"].at[0].multiply(crossed)
    after = Server(variables, centroids, before.num_rounds + 1)
    return State(after, opt_state), metrics


def client_round(
    setup: Setup,
    by_clusters: bool,
    num_rounds: Int[Array, ""],
    pool: Pool,
    key: PRNGKey,
    anchor: PyTree,
    centroids: Float[Array, "K D"],
    opt_state: PyTree,
    rows: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> tuple[clients.Client, Float[Array, "K D"], dict[str, Float[Array, ""]]]:
    """A client trains the network that it was sent, which it stays close to, and mines
    the centroids of what it makes of its own examples; those that it was sent where
    nothing needs them."""
    train_key, mine_key, init_key = jax.random.split(key, 3)
    start, labels = anchor, jnp.zeros_like(rows)
    if setup.own_init and not by_clusters:
        own = partial(setup.network.init, init_key, to_float(pool[:1]))
        start = lax.cond(num_rounds == 0, own, lambda: anchor)
    if by_clusters:
        labels = nearest(setup, encode(setup, pool, anchor, rows), centroids)

    def loss(key, variables, slots, counted):
        x = to_float(pool[rows[slots]])
        if by_clusters:
            return cluster_contrast(setup, variables, anchor, x, labels[slots], counted)
        return sample_contrast(
            *(setup.network, variables, anchor, two_views(setup, key, x), counted),
            model_weight=setup.model_weight,
            decorrelation_weight=setup.decorrelation_weight,
        )

    number = num_rounds - setup.pretrain_rounds  # of the second stage
    share = jnp.where(number < 0, 1.0, setup.schedule(jnp.maximum(number, 0)))
    client, value = training.train(
        train_key,
        clients.Client(start, opt_state),
        loss,
        mask,
        optimizer=training.scaled(setup.optimizer, share),
        batch_size=setup.batch_size,
        num_epochs=setup.local_epochs,
    )
    mines = by_clusters or is_scored(setup, num_rounds)
    mined = lax.cond(
        mines,
        lambda: mine(setup, mine_key, client.variables, pool, rows, mask),
        lambda: centroids,
    )
    few = training.evenly(mask, setup.batch_size)
    z = encode(setup, pool, client.variables, rows[few])
    measured = {
        "loss": value,
        "embedding_spread": training.spread(z, mask[few]),
        "weight_size": training.root_mean_square(client.variables["params"]),
    }
    return client, mined, measured


def is_scored(setup: Setup, num_rounds: Int[Array, ""]) -> Bool[Array, ""]:
    """Returns whether clusters are asked for after the round that follows so many."""
    stages = (setup.own_init, setup.pretrain_rounds - setup.own_init)
    number, found = num_rounds + 1, jnp.array(False)
    for count in (*stages, setup.cluster_rounds):
        found |= (number > 0) & (number <= count) & setup.scored.has(number, count)
        number = number - count
    return found


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
    decorrelation_weight: Scalar = 0.0,
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
    few = losses.decorrelation(z1, mask=mask) + losses.decorrelation(z2, mask=mask)
    return contrast + model_weight * pull / 2 + decorrelation_weight * few, variables


def cluster_contrast(
    setup: Setup,
    variables: PyTree,
    anchor: PyTree,
    x: Float[Array, "B *F"],
    labels: Int[Array, "B"],
    mask: Bool[Array, "B"],
) -> tuple[Float[Array, ""], PyTree]:
    """Returns Eq. 4 on a batch under its pseudo-labels, and the variables with new
    batch statistics; the loss of the second stage."""
    (z, p), variables = setup.network.apply(variables, x, train=True, mask=mask)
    (_, anchors), _ = setup.network.apply(anchor, x, train=False)
    contrast = losses.cluster_contrastive(
        *(p, z, labels),
        num_clusters=setup.num_clusters,
        include_self=setup.include_self,
        mask=mask,
    )
    pull = losses.model_contrastive(p, anchors, mask=mask)
    few = losses.decorrelation(z, mask=mask)
    loss = contrast + setup.model_weight * pull
    return loss + setup.decorrelation_weight * few, variables


def mine(
    setup: Setup,
    key: PRNGKey,
    variables: PyTree,
    pool: Pool,
    rows: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> Float[Array, "K D"]:
    """Returns the centroids of a client's own embedding."""
    z = encode(setup, pool, variables, rows)
    found = kmeans(key, z, setup.num_clusters, mask=mask, num_init=setup.num_init)
    return found.centroids


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


def initial_state(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round: one network for all."""
    variables = setup.network.init(key, to_float(federation.pool[:1]))
    z = jax.eval_shape(
        partial(encode, setup, federation.pool), variables, jnp.arange(1)
    )
    centroids = jnp.zeros((setup.num_clusters, z.shape[-1]))
    opt_state = setup.optimizer.init(variables["params"])
    opt_state = clients.repeat(opt_state, len(federation.indices))
    return State(Server(variables, centroids, jnp.int32(0)), opt_state)


def begin_clusters(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> State:
    """Begins the second stage, with new optimisers: the clients of its first round mine
    with the averaged network, and the server clusters what they find. SCFC has no use
    for pseudo-labels."""
    before: Server = state.server
    present = server.participants(federation, before.num_rounds)
    clients_key, server_key = jax.random.split(key)
    variables, _ = downloaded(state, len(present))
    if not setup.sample_contrastive:
        mined = mine_all(setup, clients_key, variables, federation)
        mined, answered = server.gather((mined, present))
        centroids = cluster_centroids(setup, server_key, mined, answered)
        before = before._replace(centroids=centroids)
    return State(before, jax.vmap(setup.optimizer.init)(variables["params"]))


def mine_all(
    setup: Setup, key: PRNGKey, variables: PyTree, federation: Federation
) -> Float[Array, "M K D"]:
    """Returns the centroids that each client mines with a network that it holds."""

    def one(key, variables, rows, mask):
        return mine(setup, key, variables, federation.pool, rows, mask)

    keys = clients.keys(key, len(federation.indices))
    return clients.for_each(one, keys, variables, federation.indices, federation.mask)


def downloaded(state: State, num_clients: int) -> tuple[PyTree, Float[Array, "M K D"]]:
    """Returns the network and the centroids that each client holds: the server's."""
    before: Server = state.server
    return clients.repeat((before.variables, before.centroids), num_clients)


def embed(
    setup: Setup, models_of: Callable, state: State, federation: Federation
) -> Float[Array, "M N D"] | ragged.Ragged:
    """As in `FederatedClustering`: projections, at unit length, by the network that
    each client holds; models_of is `downloaded`, or what clients have on their own."""
    variables, _ = models_of(state, len(federation.indices))
    one = partial(encode, setup, federation.pool)
    return clients.for_each(one, variables, federation.indices)


def assign(
    setup: Setup, models_of: Callable, state: State, federation: Federation
) -> Int[Array, "M N"] | ragged.Ragged:
    """As in `FederatedClustering`: by the centroids that each client holds."""

    def one(variables, centroids, rows):
        z = encode(setup, federation.pool, variables, rows)
        return nearest(setup, z, centroids)

    models = models_of(state, len(federation.indices))
    return clients.for_each(one, *models, federation.indices)


def encode(
    setup: Setup,
    pool: Pool,
    variables: PyTree,
    rows: Int[Array, "N"],
) -> Float[Array, "N D"]:
    """Returns the embedding of some rows of the pool."""

    def batch(rows):
        (z, _), _ = setup.network.apply(variables, to_float(pool[rows]), train=False)
        return losses.normalize(z)

    return training.in_batches(batch, rows, batch_size=setup.batch_size)


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


# --- Clients on their own


class Own(NamedTuple):
    """What a client has that trains by itself; its server counts the rounds."""

    variables: PyTree
    centroids: Float[Array, "M K D"]
    opt_state: PyTree


def standalone(
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
    decorrelation_weight: Scalar = 0.0,
    num_init: int = 10,
    sample_contrastive: bool = False,
    own_init: bool = False,
    include_self: bool = True,
    euclidean: bool = False,
    schedule: optax.Schedule = WHOLE,
    scored: Scored = EVERY_ROUND,
) -> FederatedClustering:
    """Builds the local models of CCFC's Table 4: its clients, each of which trains and
    clusters alone, with nothing uploaded or downloaded.

    Args:
        network, optimizer, augment: as in `ccfc`, and so are the others: a client holds
            and stays close to its own model of the round before where `ccfc` has the
            server's.

    Returns:
        The method, with the stages and metrics of `ccfc` but for the traffic.

    Raises:
        ValueError: own_init without a round of pre-training.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.data.augment import vector_view
        >>> network = nn.mlp_simsiam(widths=(16,), hidden_size=16, latent_size=8)
        >>> method = standalone(network, optax.adam(1e-3), vector_view, num_clusters=3)
        >>> [stage.name for stage in method.stages]
        ['pretrain', 'cluster']
    """
    setup = Setup(
        *(network, optimizer, augment, num_clusters, pretrain_rounds, cluster_rounds),
        *(local_epochs, batch_size, model_weight, decorrelation_weight, num_init),
        *(sample_contrastive, own_init, include_self, euclidean, schedule, scored),
    )
    return in_two_stages(
        setup, initial_clients, standalone_round, begin_alone, own_models
    )


def standalone_round(
    setup: Setup, by_clusters: bool, key: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """A round in which nothing crosses: what it measures is for the metrics alone."""
    own: Own = state.clients
    present = server.participants(federation, state.server)
    clients_key, _ = jax.random.split(key)
    trained, mined, measured = clients.for_each(
        partial(client_round, setup, by_clusters, state.server, federation.pool),
        clients.keys(clients_key, len(present)),
        *own,
        federation.indices,
        federation.mask,
    )
    new = Own(trained.variables, mined, trained.opt_state)
    new = clients.keep_absent(present, new, own)
    metrics = server.measure(*server.gather((present, measured)))
    return State(state.server + 1, new), metrics


def initial_clients(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round, of `ccfc`'s network."""
    return leave(initial_state(setup, key, federation), len(federation.indices))


def leave(state: State, num_clients: int) -> State:
    """Returns the state of standalone clients that go on from the server's model: a
    round of theirs is the local training of the next communication round of `ccfc`."""
    own = Own(*downloaded(state, num_clients), state.clients)
    return State(state.server.num_rounds, own)


def begin_alone(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> State:
    """Begins the second stage, with new optimisers: who is present mines centroids."""
    own: Own = state.clients
    present = server.participants(federation, state.server)
    clients_key, _ = jax.random.split(key)
    if not setup.sample_contrastive:
        mined = mine_all(setup, clients_key, own.variables, federation)
        own = own._replace(centroids=clients.keep_absent(present, mined, own.centroids))
    opt_state = jax.vmap(setup.optimizer.init)(own.variables["params"])
    return state._replace(clients=own._replace(opt_state=opt_state))


def own_models(state: State, num_clients: int) -> tuple[PyTree, Float[Array, "M K D"]]:
    """Returns the network and the centroids that each client holds: its own."""
    del num_clients
    return state.clients.variables, state.clients.centroids
