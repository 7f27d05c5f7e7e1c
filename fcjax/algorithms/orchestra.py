"""Unsupervised federated learning by global clustering of local clusters.

Orchestra: Unsupervised Federated Learning via Globally Consistent Clustering
    Ekdeep Singh Lubana, Chi Ian Tang, Fahim Kawsar, Robert P. Dick, Akhil Mathur.
    ICML 2022. https://arxiv.org/abs/2205.11506
    Authors' code: https://github.com/akhilmathurs/orchestra

This module follows the authors' code, not the text of the paper, with two differences.
In the code, clients upload their memory of target projections, which the server does
not use; here, the memory stays on the client. In the code, the first view also passes
through the online networks, which only changes running batch statistics; here, it does
not.
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


LocalResult = tuple[Float[Array, "L D"], dict[str, Float[Array, ""]]]
"""The local centroids of a client, and its metrics."""


class Server(NamedTuple):
    """The server's state, which every client downloads."""

    online: Parts
    """The global networks: encoder, projector, rotation."""
    target: Parts
    """The target networks of encoder and projector, with their own batch statistics."""
    centroids: Float[Array, "G D"]
    """The global centroids, of unit length after the first round."""


class Memory(NamedTuple):
    """The last target projections of a client's examples, in a ring buffer."""

    z: Float[Array, "S D"]
    """The projections."""
    count: Int[Array, ""]
    """The number of projections that were ever written."""


class Setup(NamedTuple):
    """The arguments of `orchestra`, which all rounds share."""

    settings: Any
    networks: Networks
    other_view: Augment
    local: Local
    server_optimizer: optax.GradientTransformation

    @property
    def rotates(self) -> bool:
        """Whether the method predicts rotations of images."""
        return "rotation" in self.networks.named


SHARPNESS = 25.0
"""The sharpness of `sinkhorn` in the authors' code."""


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
    """Builds Orchestra: clients learn to predict global clusters of their examples.

    A client predicts the global cluster of one view of an example from another view. It
    clusters its target projections, and uploads networks and local centroids. The
    server averages the networks and clusters the local centroids.

    Args:
        settings: one value per setting of `fcjax.methods.Orchestra`, which describes
            them: `Orchestra(num_global=32).plain()`. Floats may be traced.
        encoder: maps examples to features.
        projector: maps features to projections, whose directions are clustered.
        rotation: maps projections to logits of the four rotations of an image. None
            leaves out the rotation loss, as for feature vectors.
        other_view: (key, example) -> the view of the online network. The augmentation
            of `local` draws the view of the target network.
        clustering: the clustering of the features after the last round. The paper uses
            its global clusters only for linear probes.
        local: the local training of a client in a round.
        server_rate: learning rate of the server's gradient descent on the global
            centroids, with momentum 0.9 and weight decay 1e-4.

    Returns:
        The method, with the stages `start`, `representation` and the stages of
        `clustering`. The embedding is the encoder's features. Clusters are -1 before
        the stages of `clustering`. The metrics `loss`, `embedding_spread` and
        `weight_size` are means over the participating clients. The metric `server_loss`
        in [-1, 0] is the loss before the last step of the server. Other metrics are
        `participants` and the traffic.

    Raises:
        ValueError: if `num_local` is greater than `memory_size`.

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
            "`num_local` must be at most `memory_size`, which is "
            f"{settings.memory_size}, got {settings.num_local}"
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
    """Runs one round: clients train and cluster, the server averages and clusters.

    Args:
        setup: the arguments of `orchestra`.
        trains: whether the clients train. In the stage `start` they do not train; they
            only cluster projections of the initial target network.
        key: the key of the round.
        state: the state before the round.
        federation: the federation in the current round.

    Returns:
        The state after the round, and the metrics of the round.
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
    networks, (local, values) = clients.for_each(
        partial(train, federation.pool),
        clients.keys(clients_key, num_clients),
        clients.repeat(before, num_clients),
        federation.indices,
        federation.mask,
    )
    (online, target), (local, participating, values) = server.receive(
        networks, present * weights(setup, federation), (local, present, values)
    )
    if not trains:  # The networks are those of the server.
        online, target = before.online, before.target
    centroids, value = cluster_globally(setup, before.centroids, local, participating)
    metrics = server.measure(participating, values) | {"server_loss": value}
    down = {name: part(online, name) for name in setup.networks.named}
    down["target"] = target
    up = {**(down if trains else {}), "local_centroids": local[0]}
    down["centroids"] = centroids
    metrics |= server.traffic(participating, up=up, down=down)
    return State(Server(online, target, centroids)), metrics


def weights(setup: Setup, federation: Federation) -> Float[Array, "M"]:
    """Returns the weights of the clients in the average: their numbers of batches.

    The authors' code uses these weights instead of the numbers of examples.

    Args:
        setup: the arguments of `orchestra`.
        federation: the federation.

    Returns:
        The weights [M] of the clients on this device.
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
    download: Server,
    indices: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> tuple[tuple[Parts, Parts], LocalResult]:
    """Trains one client, and clusters its last target projections.

    Args:
        setup: the arguments of `orchestra`.
        number: the number of the round in its stage, from 0.
        pool: all examples.
        key: the key of the client in this round.
        download: the server's state.
        indices: the client's examples, as indices into the pool.
        mask: False at padding.

    Returns:
        The online and the target networks, and the local centroids and metrics.
    """
    train_key, cluster_key = jax.random.split(key)
    optimizer = setup.local.optimizer_of(number)
    variables = {
        **download.online,
        "target": download.target,
        "memory": empty_memory(setup, download),
    }

    def loss(key, variables, batch, batch_mask):
        online, target, memory = split_variables(variables)
        target = follow(setup.settings.momentum, target, online)
        views = three_views(setup, key, to_float(pool[indices[batch]]))
        value, online, target, z = contrast(
            setup, online, target, download.centroids, views, batch_mask
        )
        memory = remember(memory, z, batch_mask)
        return value, {**online, "target": target, "memory": memory}

    client, value = training.train(
        train_key,
        clients.Client(variables, optimizer.init(download.online["params"])),
        loss,
        mask,
        optimizer=optimizer,
        batch_size=setup.local.batch_size,
        num_epochs=setup.local.num_epochs,
        drop_last=setup.local.drop_last,
    )
    online, target, memory = split_variables(client.variables)
    values = {"loss": value, **measure(setup, pool, online, indices, mask)}
    return (online, target), (cluster_locally(setup, cluster_key, memory), values)


def client_start(
    setup: Setup,
    pool: Pool,
    key: PRNGKey,
    download: Server,
    indices: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> tuple[tuple[Parts, Parts], LocalResult]:
    """Clusters a client's projections by the initial target network, without training.

    Args:
        setup: the arguments of `orchestra`.
        pool: all examples.
        key: the key of the client in this round.
        download: the server's state.
        indices: the client's examples, as indices into the pool.
        mask: False at padding.

    Returns:
        The downloaded networks, and the local centroids and metrics.
    """
    project_key, cluster_key = jax.random.split(key)

    def project_batch(key, memory, batch, batch_mask):
        keys = clients.fold_in(key, len(batch))
        x = jax.vmap(setup.local.augment)(keys, to_float(pool[indices[batch]]))
        z, _ = project(setup, download.target, x, batch_mask)
        return remember(memory, z, batch_mask), jnp.float32(0)

    memory, value = training.epochs(
        project_key,
        empty_memory(setup, download),
        project_batch,
        mask,
        batch_size=setup.local.batch_size,
        num_epochs=1,
        drop_last=setup.local.drop_last,
    )
    values = {"loss": value, **measure(setup, pool, download.online, indices, mask)}
    centroids = cluster_locally(setup, cluster_key, memory)
    return (download.online, download.target), (centroids, values)


def contrast(
    setup: Setup,
    online: Parts,
    target: Parts,
    centroids: Float[Array, "G D"],
    views: tuple[Float[Array, "B *F"], Float[Array, "B *F"], tuple | None],
    mask: Bool[Array, "B"],
) -> tuple[Float[Array, ""], Parts, Parts, Float[Array, "B D"]]:
    """Computes the loss of one batch.

    Args:
        setup: the arguments of `orchestra`.
        online: the variables of the online networks.
        target: the variables of the target networks.
        centroids: the global centroids.
        views: the views of the batch, see `three_views`.
        mask: False at padding.

    Returns:
        The loss, the online and the target networks with new batch statistics, and the
        target's projections of the first view, of unit length.
    """
    a, b, rotated = views
    u, target = project(setup, target, a, mask)
    v, online = forward(setup.networks, online, TARGETS, b, mask)
    value = losses.cluster_agreement(
        v, u, centroids, temperature=setup.settings.temperature, mask=mask
    )
    if rotated is not None:
        x, rotations = rotated
        logits, online = forward(
            setup.networks, online, (*TARGETS, "rotation"), x, mask
        )
        values = optax.softmax_cross_entropy_with_integer_labels(
            jnp.where(mask[:, None], logits, 0), rotations
        )
        mean = jnp.sum(values, where=mask) / jnp.maximum(mask.sum(), 1)
        value += setup.settings.rotation_weight * mean
    return value, online, target, u


def project(
    setup: Setup, target: Parts, x: Float[Array, "B *F"], mask: Bool[Array, "B"]
) -> tuple[Float[Array, "B D"], Parts]:
    """Computes target projections of unit length, in training mode without gradients.

    Args:
        setup: the arguments of `orchestra`.
        target: the variables of the target networks.
        x: the examples of a batch.
        mask: False at padding.

    Returns:
        The projections, and the target networks with new batch statistics.
    """
    z, target = forward(setup.networks, lax.stop_gradient(target), TARGETS, x, mask)
    return lax.stop_gradient(losses.normalize(z)), lax.stop_gradient(target)


def three_views(setup: Setup, key: PRNGKey, x: Float[Array, "B *F"]):
    """Draws the views of each example.

    Args:
        setup: the arguments of `orchestra`.
        key: the key of all random draws.
        x: the examples of a batch.

    Returns:
        The views for the target network, the views for the online network, and the
        rotated views with their numbers of quarter turns. The last item is None without
        a rotation loss.
    """

    def draw(key, x):
        keys = jax.random.split(key, 4)
        first, second = setup.local.augment(keys[0], x), setup.other_view(keys[1], x)
        if not setup.rotates:
            return first, second, None
        rotation = jax.random.randint(keys[2], (), 0, 4)
        third = setup.local.augment(keys[3], x)
        rotated = jnp.stack([jnp.rot90(third, k) for k in range(4)])
        return first, second, (rotated[rotation], rotation)

    pairs = (clients.fold_in(key, len(x)), x)
    if setup.local.microbatch is None:
        return jax.vmap(draw)(*pairs)
    return lax.map(lambda pair: draw(*pair), pairs, batch_size=setup.local.microbatch)


def follow(momentum: Scalar, target: Parts, online: Parts) -> Parts:
    """Moves the target networks towards the online networks.

    As in the authors' code, this comes before each step of the online networks. The
    batch statistics of the target do not change.

    Args:
        momentum: m in [0, 1]; target = m target + (1 - m) online.
        target: the variables of the target networks.
        online: the variables of the online networks.

    Returns:
        The new target networks.
    """

    def mix(old, new):
        return momentum * old + (1 - momentum) * lax.stop_gradient(new)

    params = {name: online["params"][name] for name in TARGETS}
    return {**target, "params": jax.tree.map(mix, target["params"], params)}


def split_variables(variables: Parts) -> tuple[Parts, Parts, Memory]:
    """Splits a client's variables into online networks, target networks and memory.

    Args:
        variables: the online networks by kind and part, with the target networks under
            "target" and the memory under "memory".

    Returns:
        The online networks, the target networks, and the memory.
    """
    kinds = ("target", "memory")
    online = {kind: x for kind, x in variables.items() if kind not in kinds}
    return online, variables["target"], variables["memory"]


def empty_memory(setup: Setup, download: Server) -> Memory:
    """Returns a memory without projections.

    Args:
        setup: the arguments of `orchestra`.
        download: the server's state, whose centroids set the number of features.

    Returns:
        A memory of `memory_size` zeros, with the count 0.
    """
    shape = (setup.settings.memory_size, download.centroids.shape[-1])
    return Memory(jnp.zeros(shape), jnp.int32(0))


def remember(memory: Memory, z: Float[Array, "B D"], mask: Bool[Array, "B"]) -> Memory:
    """Writes the projections of a batch into the memory, over the oldest ones.

    Args:
        memory: the memory of a client.
        z: the projections of a batch.
        mask: False at padding, which comes last.

    Returns:
        The new memory. If the batch is larger than the memory, it has the last
        projections of the batch.
    """
    size, number = len(memory.z), mask.sum()
    order = jnp.arange(len(z))
    is_written = mask & (order >= number - size)
    positions = jnp.where(is_written, (memory.count + order) % size, size)
    return Memory(memory.z.at[positions].set(z, mode="drop"), memory.count + number)


def cluster_locally(setup: Setup, key: PRNGKey, memory: Memory) -> Float[Array, "L D"]:
    """Clusters the memory of a client into clusters of equal size.

    Args:
        setup: the arguments of `orchestra`.
        key: the key of the initial centroids.
        memory: the memory of the client.

    Returns:
        The local centroids [L, D].
    """
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
    local: Float[Array, "M L D"],
    participating: Bool[Array, "M"],
) -> tuple[Float[Array, "G D"], Float[Array, ""]]:
    """Updates the global centroids by gradient descent on the clients' centroids.

    The gradient steps move the soft assignments of the local centroids towards the
    balanced assignments of `sinkhorn`. All local centroids have equal weights.

    Args:
        setup: the arguments of `orchestra`.
        centroids: the global centroids of the previous round.
        local: the local centroids of all clients.
        participating: the participating clients; the others are ignored.

    Returns:
        Global centroids of unit length, and the loss before the last step: minus the
        mean cosine of both assignments of a local centroid.
    """
    mask = jnp.repeat(participating, setup.settings.num_local)
    # Absent clients must not change the gradient, even if their values are NaN.
    z = jnp.where(mask[:, None], local.reshape(-1, local.shape[-1]), 0)
    optimizer = setup.server_optimizer

    def objective(centroids):
        cosines = jnp.matmul(z, centroids.T, precision=lax.Precision.HIGHEST)
        soft = jax.nn.softmax(cosines / setup.settings.temperature, axis=1)
        constant = lax.stop_gradient(cosines)
        balanced = sinkhorn(constant, sharpness=SHARPNESS, mask=mask)
        values = jnp.sum(losses.normalize(balanced) * losses.normalize(soft), axis=1)
        return -jnp.sum(values, where=mask) / jnp.maximum(mask.sum(), 1)

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
    indices: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> dict[str, Float[Array, ""]]:
    """Computes the metrics that detect collapse or divergence of a client's networks.

    Args:
        setup: the arguments of `orchestra`.
        pool: all examples.
        online: the variables of the client's online networks.
        indices: the client's examples, as indices into the pool.
        mask: False at padding.

    Returns:
        `embedding_spread`, the spread of the features (0 if they collapsed), and
        `weight_size`, the root mean square of the weights.
    """
    return {
        "embedding_spread": spread(setup, online, pool, indices, mask),
        "weight_size": training.root_mean_square(online["params"]),
    }


def initial_state(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round.

    The target networks are copies of the online networks. The global centroids are
    drawn like the weights of PyTorch's linear layer without bias.

    Args:
        setup: the arguments of `orchestra`.
        key: the key of the networks and of the centroids.
        federation: the federation.

    Returns:
        The state. Its global centroids [G, D] are not yet of unit length.
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
