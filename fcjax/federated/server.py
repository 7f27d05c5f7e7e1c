"""The server: averages of client values, participation, and traffic.

These functions are the only ones that exchange values between clients.
"""

from collections.abc import Callable
from functools import partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import ragged
from fcjax.federated import clients
from fcjax.parallel.exact import over_rows, row_at, set_row
from fcjax.parallel.mesh import AXIS, SITES, num_bytes, platform
from fcjax.types import Federation, PRNGKey, PyTree


def weighted_mean(stacked: PyTree, weights: Float[Array, "M"]) -> PyTree:
    """Computes the weighted mean over the clients of all devices, as FedAvg does.

    Args:
        stacked: a tree of arrays [M, ...], such as parameters and batch statistics.
        weights: one weight per client, at least 0. They need not sum to 1. Clients with
            weight 0 are ignored, even if their values are NaN.

    Returns:
        The tree without its leading axis, of the common type of an array and the
        weights. It is NaN if all weights are 0. In a program of the engine it is the
        mean over the clients of all devices, the same on every device.

    Raises:
        ValueError: an array has not one row per weight.

    References:
        McMahan et al., `Communication-Efficient Learning of Deep Networks from
        Decentralized Data <https://arxiv.org/abs/1602.05629>`_, 2017, Algorithm 1;
        Eq. 8 of the CCFC paper.

    Examples:
        >>> networks = {"w": jnp.array([[0.0], [4.0], [jnp.nan]])}
        >>> weights = jnp.array([3.0, 1.0, 0.0])  # the third client failed
        >>> print(weighted_mean(networks, weights)["w"])
        [1.]
    """
    for path, x in jax.tree_util.tree_leaves_with_path(stacked):
        if np.shape(x)[:1] != np.shape(weights) or np.ndim(weights) != 1:
            raise ValueError(
                f"weighted_mean: stacked{jax.tree_util.keystr(path)} needs one row per "
                f"weight, but its shape is {[*np.shape(x)]} and that of the weights is "
                f"{[*np.shape(weights)]}"
            )
    sums, totals = _sums(stacked, weights, jnp.zeros(len(weights), int), 1)
    return jax.tree.map(lambda x: x[0] / totals[0], sums)


def receive(
    networks: PyTree, weights: Float[Array, "M"], each: PyTree = ()
) -> tuple[PyTree, PyTree]:
    """Receives the clients' uploads: averages the networks and gathers small arrays.

    Args:
        networks: a tree of arrays [M, ...] to average.
        weights: one weight per client, see `weighted_mean`.
        each: a tree of small arrays [M, ...] to gather without averaging.

    Returns:
        The weighted mean of `networks` over the clients of all devices, and `each` with
        a leading axis A of these clients. Both are the same on every device.

    Examples:
        >>> networks, counts = jnp.array([[0.0], [4.0]]), jnp.array([30, 10])
        >>> mean, counts = receive(networks, jnp.array([3.0, 1.0]), counts)
        >>> print(mean, counts)
        [1.] [30 10]
    """
    return weighted_mean(networks, weights), gather(each)


FEW = 100
"""Up to this number of clients, the server averages the networks of all clients at
once. With more clients, it adds one network after another, which takes less memory."""


def mean_of_each(
    fn: Callable[..., tuple[PyTree, PyTree]],
    weights: Float[Array, "M"],
    *stacked: PyTree,
) -> tuple[PyTree, PyTree]:
    """Applies a function to every client and averages its networks over all clients.

    On a CPU, the networks of more than `FEW` clients are never in memory together. Each
    network is added to the sum of its group of clients before the next client begins.
    The groups do not depend on the number of devices, up to eight. So the result has
    the same bits on any of these numbers of devices.

    Args:
        fn: (values of one client) -> the network of the client, and small values.
        weights: one weight per client, see `weighted_mean`.
        *stacked: the values of all clients, see `clients.for_each`.

    Returns:
        The weighted mean of the networks over the clients of all devices, and the small
        values of the clients on this device, stacked on M.

    Examples:
        >>> def train(x):
        ...     return {"w": 2 * x}, x + 1
        >>> mean, values = mean_of_each(train, jnp.array([3.0, 1.0]), jnp.arange(2.0))
        >>> print(mean["w"], values)
        0.5 [1. 2.]
    """
    count = len(weights)
    total = clients.total_clients(count)
    if platform() != "cpu" or total <= FEW or clients.num_sites() > 1:
        networks, values = clients.for_each(fn, *stacked)
        return weighted_mean(networks, weights), values

    fn = jax.jit(fn)  # the shapes and the loop then share one trace
    # n devices have equally many clients, so no group is on two devices.
    starts = {-(-total // n) * i for n in range(1, 9) for i in range(n)}
    groups = np.array(sorted(starts))
    numbers = clients.first_index(count) + jnp.arange(count)
    rows = jnp.searchsorted(groups, numbers, side="right") - 1, weights, stacked

    def step(i, row, carry):
        group, weight, row = row
        sums, results = carry
        network, values = fn(*row)
        sums = _add_row(sums, (network, jnp.ones(())), weight, group)
        return sums, jax.tree.map(partial(set_row, index=i), results, values)

    def zeros(shape, num_rows, kind=None):
        kind = shape.dtype if kind is None else kind
        return jnp.zeros((num_rows, *shape.shape), kind)

    like = ragged.ragged_in(stacked)
    parts, results = [rows] if like is None else ragged.parts(rows, like), []
    sums = None
    for part in parts:
        network, values = jax.eval_shape(fn, *jax.tree.map(lambda x: x[0], part[2]))
        if sums is None:
            sums = jax.tree.map(
                lambda x: zeros(x, len(groups), jnp.result_type(x, weights)),
                (network, jnp.ones(())),
            )
        empty = jax.tree.map(partial(zeros, num_rows=len(part[1])), values)
        sums, values = over_rows(step, part, (sums, empty))
        results.append(values)
    if clients.num_devices() > 1:
        sums = lax.psum(sums, AXIS)  # other devices add 0 to a group
    sums, total = jax.tree.map(lambda x: reduce(jnp.add, x), sums)
    values = results[0] if like is None else ragged.joined(results, like)
    # XLA would divide on some numbers of devices and multiply on others.
    share = 1 / total
    return jax.tree.map(lambda x: x * share, sums), values


def _add_row(sums, row, weight, group):
    """Adds the weighted values of a row to the sums [C, ...] of its group."""

    def add(total, x):
        # The values of a failed client may be NaN, and 0 * NaN is NaN.
        share = jnp.where(weight != 0, x * weight, 0)
        return set_row(total, row_at(total, group) + share, group)

    return jax.tree.map(add, sums, row)


def group_means(
    stacked: PyTree, weights: Float[Array, "V"], groups: Int[Array, "V"], count: int
) -> PyTree:
    """Computes the weighted mean of each group: FedAvg of several models at once.

    Args:
        stacked: a tree of arrays [V, ...], such as the models of all clients.
        weights: one weight per model, see `weighted_mean`.
        groups: the group of each model, from 0 to `count` - 1. It is ignored for models
            with weight 0.
        count: number of groups.

    Returns:
        The tree with a leading axis of groups, the same on every device; 0 for groups
        without models.

    Examples:
        >>> models, groups = jnp.array([[1.0], [3.0], [8.0]]), jnp.array([0, 0, 2])
        >>> print(group_means(models, jnp.ones(3), groups, 3)[:, 0])
        [2. 0. 8.]
    """
    groups = jnp.where(weights != 0, groups, 0)
    sums, totals = _sums(stacked, weights, groups, count)
    totals = jnp.where(totals > 0, totals, 1)
    return jax.tree.map(lambda x: x / clients.column(totals, x.ndim), sums)


def _sums(
    stacked: PyTree, weights: Float[Array, "V"], groups: Int[Array, "V"], count: int
) -> tuple[PyTree, Float[Array, "C"]]:
    """Returns each group's weighted sum over all devices, and its sum of weights."""
    if clients.has_secure_sums() and count == 1:
        # The server learns nothing but the sums.
        terms = (stacked, jnp.ones(len(weights)))
        shares = jax.tree.map(partial(_shares, weights), terms)
        return jax.tree.map(lambda x: lax.psum(x, SITES), shares)
    if clients.num_sites() > 1:
        stacked, weights = gather((stacked, weights))
        groups = gather(groups) if count > 1 else jnp.zeros(len(weights), int)
    stacked = (stacked, jnp.ones(len(weights)))
    if platform() != "cpu":

        def add_up(x: Shaped[Array, "V *S"]) -> Shaped[Array, "C *S"]:
            shares = _shares(weights, x)
            if count == 1:
                return shares.sum(axis=0, keepdims=True)
            return jax.ops.segment_sum(shares, groups, num_segments=count)

        sums = jax.tree.map(add_up, stacked)
        return lax.psum(sums, AXIS) if clients.num_devices() > 1 else sums

    # Rows are added one after another, and devices add one after another. So the bits
    # of a sum do not depend on the number of devices. Rows without weight and rows that
    # were repeated to fill the devices add 0.
    def add(i, row, sums):
        return _add_row(sums, *row)

    def add_local(sums, where):
        return over_rows(add, (stacked, weights, groups), sums, where=where)

    def zeros(x):
        return jnp.zeros((count, *x.shape[1:]), jnp.result_type(x, weights))

    sums, last = jax.tree.map(zeros, stacked), clients.num_devices() - 1
    if last == 0:
        return add_local(sums, True)
    # One vector is sent faster than many arrays. All arrays are float32.
    sums, unravel = ravel_pytree(sums)
    number = lax.axis_index(AXIS)

    def add_there(device, sums):
        return ravel_pytree(add_local(unravel(sums), number == device))[0]

    # This loop is unrolled: exchanges within a loop of XLA sometimes crash (jaxlib
    # 0.10.2).
    for device in range(last):
        # `vmap` accepts an exchange only if every device takes part in it.
        unchanged = [(i, i) for i in range(last + 1) if i not in (device, device + 1)]
        pairs = [(device, device + 1), (device + 1, device), *unchanged]
        sums = lax.ppermute(add_there(device, sums), AXIS, pairs)
    sums = add_there(last, sums)
    return unravel(lax.psum(jnp.where(number == last, sums, 0), AXIS))


def _shares(weights, x):
    """Multiplies rows [V, ...] by their weights; rows without weight may be NaN."""
    by_row = clients.column(weights, x.ndim)
    return jnp.where(by_row != 0, x * by_row, 0)


def rows_on_this_device(all_rows: PyTree, count: int) -> PyTree:
    """Selects the rows of the clients on this device from gathered arrays.

    Args:
        all_rows: a tree of arrays [A, ...] of the clients of all devices, see `gather`.
        count: M, the number of clients on this device.

    Returns:
        A tree of arrays [M, ...]. Clients that were repeated to fill the devices have
        the row of the last client.
    """
    rows = clients.first_index(count) + jnp.arange(count)
    return jax.tree.map(lambda x: x[jnp.minimum(rows, len(x) - 1)], all_rows)


def gather(each: PyTree) -> PyTree:
    """Gathers small arrays of the clients of all devices.

    Args:
        each: a tree of arrays [M, ...] of the clients on this device.

    Returns:
        A tree of arrays [A, ...], the same on every device.
    """
    if clients.num_sites() > 1:
        each = jax.tree.map(_unsigned_zero, each)
        return jax.tree.map(lambda x: lax.all_gather(x, SITES, tiled=True), each)

    def restore(placed, x):
        return placed[: clients.total_clients(len(x))].astype(x.dtype)

    placed = jax.tree.map(_among_all, each)
    if clients.num_devices() > 1:
        placed = lax.psum(placed, AXIS)
    return jax.tree.map(restore, placed, each)


def _unsigned_zero(x):
    # A sum over devices turns -0 into 0. One device and a site do the same.
    return jnp.where(x == 0, jnp.zeros_like(x), x)


def _among_all(x):
    """Places the rows of this device among those of all devices, and zeros elsewhere.

    The sum over the devices then is the gathered array.
    """
    # Truth values become float32, so that they are summed together with the networks.
    x = x.astype(jnp.float32) if x.dtype == bool else x
    x = _unsigned_zero(x)
    zeros = jnp.zeros((clients.num_devices() * len(x), *x.shape[1:]), x.dtype)
    start = clients.first_index(len(x))
    return lax.dynamic_update_slice_in_dim(zeros, x, start, axis=0)


def participants(federation: Federation) -> Bool[Array, "M"]:
    """Returns the participating clients of the round, among those on this device.

    Args:
        federation: the federation in the current round.

    Returns:
        True [M] at participating clients.
    """
    everyone = all_participants(federation)
    return clients.on_this_device(everyone, len(federation.indices))


def all_participants(federation: Federation) -> Bool[Array, "A"]:
    """Returns the participating clients of the round, among those of all devices.

    Args:
        federation: the federation in the current round.

    Returns:
        True [A] at participating clients, the same on every device.
    """
    last = federation.present.shape[0] - 1
    return federation.present[jnp.minimum(federation.now.round, last)]


def participated_before(federation: Federation, num_rounds: int) -> Bool[Array, "M"]:
    """Returns the clients that participated in an earlier round of the current stage.

    Args:
        federation: the federation in the current round.
        num_rounds: number of rounds of the stage.

    Returns:
        One truth value [M] per client on this device.
    """
    now, rounds = federation.now, jnp.arange(num_rounds)
    numbers = now.round - now.stage_round + rounds
    present = federation.present[jnp.minimum(numbers, len(federation.present) - 1)]
    before = present.any(axis=0, where=(rounds < now.stage_round)[:, None])
    return clients.on_this_device(before, len(federation.indices))


def choose(key: PRNGKey, present: Bool[Array, "A"], count: int) -> Bool[Array, "A"]:
    """Samples participating clients uniformly, without replacement.

    Args:
        key: the key of the draw.
        present: the clients of all devices that may be sampled, see `all_participants`.
        count: number of clients to sample, at least 1. If fewer are present, all of
            them are sampled.

    Returns:
        The sampled clients [A]. The result is the same on every device, without
        communication.

    Examples:
        >>> present = jnp.array([True, True, False, True])
        >>> chosen = choose(jax.random.key(0), present, 2)
        >>> print(chosen.sum(), (chosen & ~present).any())
        2 False
    """
    draws = jax.vmap(jax.random.uniform)(clients.fold_in(key, len(present)))
    draws = jnp.where(present, draws, jnp.inf)
    last = jnp.sort(draws)[min(count, len(draws)) - 1]
    return present & (draws <= last)


def pool_mask(federation: Federation, present: Bool[Array, "M"]) -> Bool[Array, "P"]:
    """Returns a mask over the pool: the examples of all participating clients.

    A central server, which is given all examples, has these examples.

    Args:
        federation: the federation.
        present: the participating clients, among those on this device.

    Returns:
        True [P] at the examples of these clients, the same on every device.
    """
    mask = federation.mask & present[:, None]
    indices, mask = gather((federation.indices, mask))
    return jnp.zeros(federation.pool.shape[0], bool).at[indices].max(mask)


def measure(
    participating: Bool[Array, "M"], values: dict[str, Float[Array, "M"]]
) -> dict[str, Array]:
    """Averages the clients' metrics over the participating clients.

    Args:
        participating: the participating clients.
        values: one value per client, by the name of the metric. Those of other clients
            are ignored, even if they are NaN.

    Returns:
        The mean of each metric, and `participants`, the number of participating
        clients.

    Examples:
        >>> participating = jnp.array([True, False, True])
        >>> metrics = measure(participating, {"loss": jnp.array([1.0, jnp.nan, 2.0])})
        >>> print(metrics["loss"], metrics["participants"])
        1.5 2
    """
    means = {name: jnp.mean(x, where=participating) for name, x in values.items()}
    return {**means, "participants": participating.sum()}


def traffic(
    present: Bool[Array, "M"], *, up: dict[str, PyTree], down: dict[str, PyTree]
) -> dict[str, Int[Array, "2"]]:
    """Counts the messages of a round between the server and the clients.

    Args:
        present: the participating clients; only they send and receive.
        up: the upload of one client by name, as arrays or their shapes.
        down: the download of one client by name, as arrays or their shapes.

    Returns:
        Metrics `up_<name>` and `down_<name>`. Each is a pair: the number of messages
        and the bytes of one message. Their product may overflow 32 bits, so
        `total_bytes` computes it on the host.

    Examples:
        >>> message = {"w": jnp.zeros((10, 2))}
        >>> traffic(jnp.array([True, False, True]), up={"network": message}, down={})
        {'up_network': Array([ 2, 80], dtype=int32)}
    """
    senders = present.sum(dtype=jnp.int32)
    sizes = {f"up_{name}": num_bytes(tree) for name, tree in up.items()}
    sizes |= {f"down_{name}": num_bytes(tree) for name, tree in down.items()}
    return {name: jnp.stack([senders, jnp.int32(n)]) for name, n in sizes.items()}


def total_bytes(pairs: np.ndarray) -> np.ndarray:
    """Computes the bytes of messages that `traffic` counted.

    Args:
        pairs: number of messages and bytes of one message, [..., 2].

    Returns:
        The bytes of all messages, int64 [...].

    Examples:
        >>> total_bytes(np.array([[2, 80], [3, 80]]))
        array([160, 240])
    """
    return np.asarray(np.prod(np.asarray(pairs, np.int64), axis=-1))
