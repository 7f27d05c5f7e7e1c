"""What the server does, and what crosses the boundary between it and the clients."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax.federated import clients
from fcjax.parallel.exact import over_rows
from fcjax.parallel.mesh import AXIS, num_bytes, platform
from fcjax.types import Federation, PRNGKey, PyTree


def weighted_mean(stacked: PyTree, weights: Float[Array, "M"]) -> PyTree:
    """Averages a tree over its leading client axis, as FedAvg does, and over those of
    all devices.

    Args:
        stacked: a tree of arrays [M, ...], parameters and batch statistics alike.
        weights: a weight of at least 0 for each client; need not sum to 1. A client
            of weight 0 changes nothing, whatever it holds.

    Returns:
        The tree without its leading axis; undefined (NaN) if all weights are 0.

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
    sums, totals = _sums(stacked, weights, jnp.zeros(len(weights), int), 1)
    return jax.tree.map(lambda x: x[0] / totals[0], sums)


def receive(
    networks: PyTree, weights: Float[Array, "M"], each: PyTree = ()
) -> tuple[PyTree, PyTree]:
    """Takes in what the clients of a round upload, on whatever device they run.

    Sums over the devices are all that they ever communicate; on a CPU, where a device
    goes on with the sums of the one before it, that is an exchange between the two.

    Args:
        networks: a tree of arrays [M, ...] whose mean is asked for.
        weights: of the mean, as in `weighted_mean`.
        each: a tree of small arrays [M, ...] that are asked for one by one.

    Returns:
        The weighted mean of `networks` over the clients of all devices, and `each` with
        a leading axis of all of them: the same on every device.

    Examples:
        >>> networks, counts = jnp.array([[0.0], [4.0]]), jnp.array([30, 10])
        >>> mean, counts = receive(networks, jnp.array([3.0, 1.0]), counts)
        >>> print(mean, counts)
        [1.] [30 10]
    """
    return weighted_mean(networks, weights), gather(each)


def group_means(
    stacked: PyTree, weights: Float[Array, "V"], groups: Int[Array, "V"], count: int
) -> PyTree:
    """Averages a tree over those of its leading axis that are of one group, on whatever
    device: FedAvg of several models at once.

    Args:
        stacked: a tree of arrays [V, ...].
        weights: as in `weighted_mean`.
        groups: in [0, count), anything where the weight is 0.
        count: how many groups there are.

    Returns:
        The tree with a leading axis of groups, 0 for one that nobody is in.

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
    """The weighted sums [C, ...] of each group on all devices, and of its weights."""
    stacked = (stacked, jnp.ones(len(weights)))
    if platform() != "cpu":

        def add_up(x: Shaped[Array, "V *S"]) -> Shaped[Array, "C *S"]:
            by_row = clients.column(weights, x.ndim)
            shares = jnp.where(by_row != 0, x * by_row, 0)
            if count == 1:
                return shares.sum(axis=0, keepdims=True)
            return jax.ops.segment_sum(shares, groups, num_segments=count)

        sums = jax.tree.map(add_up, stacked)
        return lax.psum(sums, AXIS) if clients.num_devices() > 1 else sums

    # One row after another, on one device after another: the same sums, bit by bit, on
    # however many. A row without a weight adds 0, and so does one that fills up.
    def add(i, row, sums):
        x, weight, group = row

        def to_group(total, x):
            # A failed client may hold NaN: 0 * NaN would let it through.
            share = jnp.where(weight != 0, x * weight, 0)
            sum = lax.dynamic_index_in_dim(total, group, keepdims=False) + share
            return lax.dynamic_update_index_in_dim(total, sum, group, 0)

        return jax.tree.map(to_group, sums, x)

    def add_own(sums, where):
        return over_rows(add, (stacked, weights, groups), sums, where=where)

    def zeros(x):
        return jnp.zeros((count, *x.shape[1:]), jnp.result_type(x, weights))

    sums, last = jax.tree.map(zeros, stacked), clients.num_devices() - 1
    if last == 0:
        return add_own(sums, True)
    # One vector is sent sooner than many arrays. All of them are float32.
    sums, unravel = ravel_pytree(sums)
    number = lax.axis_index(AXIS)

    def add_there(device, sums):
        return ravel_pytree(add_own(unravel(sums), number == device))[0]

    # In a loop of XLA, exchanges crash now and then (jaxlib 0.10.2).
    for device in range(last):
        # `vmap` takes no exchange but one in which each device has a part.
        others = [(i, i) for i in range(last + 1) if i not in (device, device + 1)]
        pairs = [(device, device + 1), (device + 1, device), *others]
        sums = lax.ppermute(add_there(device, sums), AXIS, pairs)
    sums = add_there(last, sums)
    return unravel(lax.psum(jnp.where(number == last, sums, 0), AXIS))


def rows_on_this_device(all_rows: PyTree, count: int) -> PyTree:
    """Returns, of arrays [M, ...] of the clients of all devices as `gather` took them
    in, the rows of this device's `count` clients; those that were repeated to fill the
    devices have the last one's.
    """
    rows = clients.first_index(count) + jnp.arange(count)
    return jax.tree.map(lambda x: x[jnp.minimum(rows, len(x) - 1)], all_rows)


def gather(each: PyTree) -> PyTree:
    """Takes in small arrays [M, ...] one by one: `receive` without a mean."""

    def own_kind(placed, own):
        return placed[: clients.total_clients(len(own))].astype(own.dtype)

    placed = jax.tree.map(_among_all, each)
    if clients.num_devices() > 1:
        placed = lax.psum(placed, AXIS)
    return jax.tree.map(own_kind, placed, each)


def _among_all(x):
    """This device's rows in their place among those of all devices, 0 elsewhere: a sum
    then gathers them, and what one client holds stays in its own row.
    """
    # A sum of truth values would be one of integers, apart from the networks' floats.
    x = x.astype(jnp.float32) if x.dtype == bool else x
    x = jnp.where(x == 0, jnp.zeros_like(x), x)  # as the sum does with -0
    zeros = jnp.zeros((clients.num_devices() * len(x), *x.shape[1:]), x.dtype)
    start = clients.first_index(len(x))
    return lax.dynamic_update_slice_in_dim(zeros, x, start, axis=0)


def participants(federation: Federation) -> Bool[Array, "M"]:
    """Returns which of this device's clients participate in the round."""
    return clients.on_this_device(all_participants(federation), len(federation.indices))


def all_participants(federation: Federation) -> Bool[Array, "A"]:
    """Returns which clients of all devices participate in the round."""
    last = federation.present.shape[0] - 1
    return federation.present[jnp.minimum(federation.now.round, last)]


def participated_before(federation: Federation, num_rounds: int) -> Bool[Array, "M"]:
    """Returns which of this device's clients participated in an earlier round of the
    stage.

    Args:
        federation: with the round that is being run.
        num_rounds: of the stage.
    """
    now, rounds = federation.now, jnp.arange(num_rounds)
    numbers = now.round - now.stage_round + rounds
    answers = federation.present[jnp.minimum(numbers, len(federation.present) - 1)]
    answered = answers.any(axis=0, where=(rounds < now.stage_round)[:, None])
    return clients.on_this_device(answered, len(federation.indices))


def choose(key: PRNGKey, present: Bool[Array, "A"], count: int) -> Bool[Array, "A"]:
    """Draws a random group of the clients that are present.

    Args:
        key: of the draw.
        present: who of all clients may be drawn, see `all_participants`.
        count: how many, at least 1; where fewer are present, all of them are drawn.

    Returns:
        Who is drawn: the same on every device, which thus needs to ask no other.

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
    """Returns which rows of the pool the clients that are present hold together: what a
    server has that is given all data.
    """
    own = federation.mask & present[:, None]
    rows, own = gather((federation.indices, own))
    return jnp.zeros(federation.pool.shape[0], bool).at[rows].max(own)


def measure(
    answered: Bool[Array, "M"], measured: dict[str, Float[Array, "M"]]
) -> dict[str, Array]:
    """Returns the metrics that a round has of its clients: the mean of each over those
    that answered, and how many `participants` they are.

    Examples:
        >>> answered = jnp.array([True, False, True])
        >>> metrics = measure(answered, {"loss": jnp.array([1.0, jnp.nan, 2.0])})
        >>> print(metrics["loss"], metrics["participants"])
        1.5 2
    """
    means = {name: jnp.mean(x, where=answered) for name, x in measured.items()}
    return {**means, "participants": answered.sum()}


def traffic(
    present: Bool[Array, "M"], *, up: dict[str, PyTree], down: dict[str, PyTree]
) -> dict[str, Int[Array, "2"]]:
    """Counts what a round sends between the server and the clients.

    Args:
        present: who takes part; nobody else sends or receives.
        up: by name, what one client uploads (arrays or their shapes).
        down: by name, what one client downloads.

    Returns:
        Metrics `up_<name>` and `down_<name>`, each a pair of the number of senders and
        the bytes of one message: their product overflows 32 bits where networks are
        large, so `total_bytes` takes it on the host.

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
    """Returns the bytes [...] of the pairs [..., 2] that `traffic` counted.

    Examples:
        >>> total_bytes(np.array([[2, 80], [3, 80]]))
        array([160, 240])
    """
    return np.asarray(np.prod(np.asarray(pairs, np.int64), axis=-1))
