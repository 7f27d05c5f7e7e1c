"""Unsupervised federated learning by global clustering of local clusters.

Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering
    Ekdeep Singh Lubana, Chi Ian Tang, Fahim Kawsar, Robert P. Dick, Akhil Mathur.
    ICML 2022. https://arxiv.org/abs/2205.11506
    Authors' code: https://github.com/akhilmathurs/orchestra, which is followed; the
    paper's text was not at hand. It returns each client's memory of raw target
    projections to a server that has no use for it, which here stays; and it also
    passes the first view through the online networks, where nothing but running batch
    statistics comes of it, which is left out.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from fcjax import losses
from fcjax.algorithms.averaging import (
    Local,
    Networks,
    Parts,
    build_method,
    forward,
    initialize,
    part,
    pick,
    spread,
)
from fcjax.algorithms.fedmcc import Clustering, assign_features
from fcjax.algorithms.rounds import all_rounds
from fcjax.cluster import equal_clusters, sinkhorn
from fcjax.data.augment import Augment, to_float
from fcjax.federated import clients, server, training
from fcjax.types import (
    FederatedClustering,
    Federation,
    Network,
    Pool,
    PRNGKey,
    Scalar,
    State,
)

TARGETS = ("encoder", "projector")
"""The parts that have a target network."""


Mined = tuple[Float[Array, "L D"], dict[str, Float[Array, ""]]]
"""The centroids of a client, and its metrics."""


class Server(NamedTuple):
    """All that crosses down."""

    online: Parts
    """The global networks: encoder, projector, rotation."""
    target: Parts
    """Of encoder and projector, with their own batch statistics."""
    centroids: Float[Array, "G D"]
    """Global ones, of unit length after the first round."""


class Memory(NamedTuple):
    """The last target projections of a client's examples."""

    z: Float[Array, "S D"]
    """A ring."""
    count: Int[Array, ""]
    """How many were ever put in."""


class Setup(NamedTuple):
    """The inputs of `orchestra`, which all rounds share."""

    settings: Any
    networks: Networks
    other_view: Augment
    local: Local
    server_optimizer: optax.GradientTransformation

    @property
    def rotates(self) -> bool:
        return "rotation" in self.networks.named


SHARPNESS = 25.0
"""Of `sinkhorn`, in the authors' code."""


def orchestra(
    settings: Any,
    encoder: Network,
    projector: Network,
    rotation: Network | None,
    other_view: Augment,
    clustering: Clustering,
    local: Local,
    *,
    server_rate: Scalar = 0.01,
) -> FederatedClustering:
    """Builds Orchestra: clients predict the global cluster of another view of an
    example, and the server clusters the clients' local centroids.

    Args:
        settings: one value per setting of `fcjax.methods.Orchestra`, which describes
            them: `Orchestra(num_global=32).plain()`. Floats may be traced.
        encoder: from examples to features.
        projector: from features to projections, whose directions are clustered.
        rotation: from projections to logits of the four turns of an image; None leaves
            that term out, as for feature vectors.
        other_view: of the online network; the target's view is that of `local`.
        clustering: the clustering of the features after the last round. The paper's
            global clusters are used for linear probes only.
        local: how a client trains in a round.
        server_rate: step size of the server's gradient descent on the global centroids,
            with momentum 0.9 and weight decay 1e-4.

    Returns:
        The method, with stages `start`, `representation` and those of `clustering`,
        whose embedding is the encoder's features. It has no clusters (-1) before the
        last. Its metrics are the mean `loss` over the clients that answered,
        `participants`, `server_loss` in [-1, 0] before the last step of the server,
        `embedding_spread`, `weight_size` and the traffic.

    Raises:
        ValueError: more local clusters than the memory has places.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.algorithms.fedmcc import FeatureKMeans, feature_kmeans
        >>> from fcjax.data.augment import vector_view
        >>> encoder, head = nn.encoder(nn.MLP((16,))), nn.simsiam_projector
        >>> from fcjax.methods import Orchestra
        >>> method = orchestra(
        ...     Orchestra().plain(),
        ...     *(encoder, head(8, hidden_size=8), None, vector_view),
        ...     feature_kmeans(FeatureKMeans(num_clusters=3)),
        ...     Local(optax.sgd(3e-3, momentum=0.9), vector_view, batch_size=16),
        ... )
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('start', 1), ('representation', 100), ('k-means', 100)]
    """
    if settings.num_local > settings.memory_size:
        raise ValueError(
            f"num_local {settings.num_local} must be at most memory_size "
            f"{settings.memory_size}"
        )
    named = {"encoder": encoder, "projector": projector}
    if rotation is not None:
        named["rotation"] = rotation
    setup = Setup(
        settings=settings,
        networks=local.networks(**named),
        other_view=other_view,
        local=local,
        server_optimizer=optax.chain(
            optax.add_decayed_weights(1e-4), optax.sgd(server_rate, momentum=0.9)
        ),
    )
    train, start = (partial(federated_round, setup, trains) for trains in (True, False))

    stages = (
        all_rounds("start", start, 1),
        all_rounds("representation", train, settings.num_rounds),
        *clustering.stages(encoder),
    )
    init, assign = partial(initial_state, setup), partial(assign_features, clustering)
    return build_method(encoder, local, init, stages, assign)


def federated_round(
    setup: Setup, trains: bool, key: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """A round: clients train and cluster, the server averages and clusters.

    Args:
        setup: of the method.
        trains: whether the clients do; without, they cluster what they are sent.
        key, state, federation: as in `Stage`.
    """
    before: Server = state.server
    everyone = server.all_participants(federation)
    draw_key, clients_key = jax.random.split(key)
    if setup.settings.num_participants is not None:
        everyone = server.choose(draw_key, everyone, setup.settings.num_participants)
    num_clients = len(federation.indices)
    present = clients.on_this_device(everyone, num_clients)
    train = partial(client_round, setup, federation.now.stage_round)
    if not trains:
        train = partial(client_start, setup)
    networks, (mined, measured) = clients.for_each(
        partial(train, federation.pool),
        clients.keys(clients_key, num_clients),
        clients.repeat(before, num_clients),
        federation.indices,
        federation.mask,
    )
    (online, target), (mined, answered, measured) = server.receive(
        networks, present * weights(setup, federation), (mined, present, measured)
    )
    if not trains:  # all have what they were sent
        online, target = before.online, before.target
    centroids, value = cluster_globally(setup, before.centroids, mined, answered)
    metrics = server.measure(answered, measured) | {"server_loss": value}
    down = {name: part(online, name) for name in setup.networks.named}
    down["target"] = target
    up = {**(down if trains else {}), "local_centroids": mined[0]}
    down["centroids"] = centroids
    metrics |= server.traffic(answered, up=up, down=down)
    return State(Server(online, target, centroids)), metrics


def weights(setup: Setup, federation: Federation) -> Float[Array, "M"]:
    """Returns how many batches each client has: what the code averages by, where
    federated averaging has examples.
    """
    batches = partial(
        training.num_batches,
        batch_size=setup.local.batch_size,
        drop_last=setup.local.drop_last,
    )
    return jax.vmap(batches)(federation.mask).astype(float)


def client_round(
    setup: Setup,
    number: Int[Array, ""],
    pool: Pool,
    key: PRNGKey,
    sent: Server,
    rows: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> tuple[tuple[Parts, Parts], Mined]:
    """A client trains the networks that it was sent, and clusters the last projections
    of the target among them.

    Returns:
        The networks, online and target, and what it has mined with them.
    """
    train_key, cluster_key = jax.random.split(key)
    optimizer = setup.local.optimizer_of(number)
    own = {**sent.online, "target": sent.target, "memory": empty_memory(setup, sent)}

    def loss(key, variables, slots, counted):
        online, target, memory = taken_apart(variables)
        target = follow(setup.settings.momentum, target, online)
        views = three_views(setup, key, to_float(pool[rows[slots]]))
        value, online, target, z = contrast(
            setup, online, target, sent.centroids, views, counted
        )
        memory = remember(memory, z, counted)
        return value, {**online, "target": target, "memory": memory}

    client, value = training.train(
        train_key,
        clients.Client(own, optimizer.init(sent.online["params"])),
        loss,
        mask,
        optimizer=optimizer,
        batch_size=setup.local.batch_size,
        num_epochs=setup.local.num_epochs,
        drop_last=setup.local.drop_last,
    )
    online, target, memory = taken_apart(client.variables)
    measured = {"loss": value, **measure(setup, pool, online, rows, mask)}
    return (online, target), (cluster_locally(setup, cluster_key, memory), measured)


def client_start(
    setup: Setup,
    pool: Pool,
    key: PRNGKey,
    sent: Server,
    rows: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> tuple[tuple[Parts, Parts], Mined]:
    """Of the round before the first, in which nothing is trained: a client clusters
    what the target makes of its examples.
    """
    see_key, cluster_key = jax.random.split(key)

    def see(key, memory, slots, counted):
        keys = clients.fold_in(key, len(slots))
        x = jax.vmap(setup.local.augment)(keys, to_float(pool[rows[slots]]))
        z, _ = project(setup, sent.target, x, counted)
        return remember(memory, z, counted), jnp.float32(0)

    memory, value = training.epochs(
        see_key,
        empty_memory(setup, sent),
        see,
        mask,
        batch_size=setup.local.batch_size,
        num_epochs=1,
        drop_last=setup.local.drop_last,
    )
    measured = {"loss": value, **measure(setup, pool, sent.online, rows, mask)}
    mined = cluster_locally(setup, cluster_key, memory)
    return (sent.online, sent.target), (mined, measured)


def contrast(
    setup: Setup,
    online: Parts,
    target: Parts,
    centroids: Float[Array, "G D"],
    views: tuple[Float[Array, "B *F"], Float[Array, "B *F"], tuple | None],
    mask: Bool[Array, "B"],
) -> tuple[Float[Array, ""], Parts, Parts, Float[Array, "B D"]]:
    """Returns the loss of a batch, both networks with new batch statistics, and the
    target's projections of the first view at unit length.
    """
    a, b, turned = views
    u, target = project(setup, target, a, mask)
    v, online = forward(setup.networks, online, TARGETS, b, mask)
    value = losses.cluster_agreement(
        v, u, centroids, temperature=setup.settings.temperature, mask=mask
    )
    if turned is not None:
        x, turns = turned
        logits, online = forward(
            setup.networks, online, (*TARGETS, "rotation"), x, mask
        )
        each = optax.softmax_cross_entropy_with_integer_labels(
            jnp.where(mask[:, None], logits, 0), turns
        )
        mean = jnp.sum(each, where=mask) / jnp.maximum(mask.sum(), 1)
        value += setup.settings.rotation_weight * mean
    return value, online, target, u


def project(
    setup: Setup, target: Parts, x: Float[Array, "B *F"], mask: Bool[Array, "B"]
) -> tuple[Float[Array, "B D"], Parts]:
    """Returns what the target networks make of examples, at unit length, and them with
    new batch statistics: in training, and with no gradient.
    """
    z, target = forward(setup.networks, lax.stop_gradient(target), TARGETS, x, mask)
    return lax.stop_gradient(losses.normalize(z)), lax.stop_gradient(target)


def three_views(setup: Setup, key: PRNGKey, x: Float[Array, "B *F"]):
    """Returns a view for the target, one for the online network, and where it predicts
    them, turned ones and by how many quarters, else None.
    """

    def draw(key, x):
        keys = jax.random.split(key, 4)
        seen, other = setup.local.augment(keys[0], x), setup.other_view(keys[1], x)
        if not setup.rotates:
            return seen, other, None
        turns = jax.random.randint(keys[2], (), 0, 4)
        third = setup.local.augment(keys[3], x)
        quarters = jnp.stack([jnp.rot90(third, k) for k in range(4)])
        return seen, other, (quarters[turns], turns)

    pairs = (clients.fold_in(key, len(x)), x)
    if setup.local.microbatch is None:
        return jax.vmap(draw)(*pairs)
    return lax.map(lambda pair: draw(*pair), pairs, batch_size=setup.local.microbatch)


def follow(momentum: Scalar, target: Parts, online: Parts) -> Parts:
    """Returns the target networks after a step towards the online ones, which the code
    takes before each step of these. Batch statistics are its own.
    """

    def mix(old, new):
        return momentum * old + (1 - momentum) * lax.stop_gradient(new)

    params = {name: online["params"][name] for name in TARGETS}
    return {**target, "params": jax.tree.map(mix, target["params"], params)}


def taken_apart(variables: Parts) -> tuple[Parts, Parts, Memory]:
    """Returns the online networks, the target's, and the memory."""
    apart = ("target", "memory")
    online = {kind: x for kind, x in variables.items() if kind not in apart}
    return online, variables["target"], variables["memory"]


def empty_memory(setup: Setup, sent: Server) -> Memory:
    shape = (setup.settings.memory_size, sent.centroids.shape[-1])
    return Memory(jnp.zeros(shape), jnp.int32(0))


def remember(
    memory: Memory, z: Float[Array, "B D"], counted: Bool[Array, "B"]
) -> Memory:
    """Returns a memory with the rows that count, which come first, in the place of its
    oldest ones.
    """
    size, number = len(memory.z), counted.sum()
    order = jnp.arange(len(z))
    # Of more rows than it has places the last ones stay.
    stays = counted & (order >= number - size)
    places = jnp.where(stays, (memory.count + order) % size, size)
    return Memory(memory.z.at[places].set(z, mode="drop"), memory.count + number)


def cluster_locally(setup: Setup, key: PRNGKey, memory: Memory) -> Float[Array, "L D"]:
    """Returns the centroids of what a client remembers."""
    return equal_clusters(
        key,
        memory.z,
        setup.settings.num_local,
        sharpness=SHARPNESS,
        mask=jnp.arange(setup.settings.memory_size) < memory.count,
    )


def cluster_globally(
    setup: Setup,
    centroids: Float[Array, "G D"],
    found: Float[Array, "M L D"],
    answered: Bool[Array, "M"],
) -> tuple[Float[Array, "G D"], Float[Array, ""]]:
    """The server: some steps of gradient descent, from the centroids of the round
    before, by which soft assignments of the clients' centroids, each counting once,
    come near those of `sinkhorn`.

    Returns:
        Centroids of unit length, and the loss of the last step: minus the mean cosine
        of the two assignments of a row.
    """
    mask = jnp.repeat(answered, setup.settings.num_local)
    # A row that does not count must not reach the gradient, whatever it holds.
    z = jnp.where(mask[:, None], found.reshape(-1, found.shape[-1]), 0)
    optimizer = setup.server_optimizer

    def objective(centroids):
        cosines = jnp.matmul(z, centroids.T, precision=lax.Precision.HIGHEST)
        soft = jax.nn.softmax(cosines / setup.settings.temperature, axis=1)
        constant = lax.stop_gradient(cosines)
        equal = sinkhorn(constant, sharpness=SHARPNESS, mask=mask)
        each = jnp.sum(losses.normalize(equal) * losses.normalize(soft), axis=1)
        return -jnp.sum(each, where=mask) / jnp.maximum(mask.sum(), 1)

    def step(carry, _):
        centroids, opt_state = carry
        value, gradient = jax.value_and_grad(objective)(centroids)
        updates, opt_state = optimizer.update(gradient, opt_state, centroids)
        centroids = losses.normalize(centroids + updates)
        return (centroids, opt_state), value

    start = centroids, optimizer.init(centroids)
    (centroids, _), values = lax.scan(step, start, length=setup.settings.server_steps)
    return centroids, values[-1]


def measure(
    setup: Setup,
    pool: Pool,
    online: Parts,
    rows: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> dict[str, Float[Array, ""]]:
    """Returns what shows that the networks of a client collapse or diverge."""
    return {
        "embedding_spread": spread(setup, online, pool, rows, mask),
        "weight_size": training.root_mean_square(online["params"]),
    }


def initial_state(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round: the target is a copy, and the global
    centroids are drawn as the weights of a layer without bias, PyTorch's way.
    """
    networks_key, centroids_key = jax.random.split(key)
    x = to_float(federation.pool[:1])
    online = initialize(networks_key, setup.networks.named, x)
    target = pick(online, TARGETS)
    z = jax.eval_shape(
        lambda: forward(
            setup.networks, target, TARGETS, x, jnp.array([True]), train=False
        )[0]
    )
    bound = 1 / jnp.sqrt(z.shape[-1])
    shape = (setup.settings.num_global, z.shape[-1])
    centroids = jax.random.uniform(centroids_key, shape, minval=-bound, maxval=bound)
    return State(Server(online, target, centroids))
