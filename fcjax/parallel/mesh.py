"""Spreads runs and clients over the devices of all processes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int, Shaped

from fcjax.parallel.exact import compiler_options, one_by_one, row_at
from fcjax.ragged import GROUPS, Ragged, clients_by_class, is_ragged
from fcjax.types import Federation, Grid, PyTree, State

# --- Pool of several processes


@jax.tree_util.register_pytree_node_class
class LocalPool:
    """The pool of examples for several processes, split by the clients of a device.

    It is made by `shard_pool` and replaces the array of all examples. `pool[rows]`
    works within a program that is spread over the devices. A device has only example 0
    and the examples of its own clients. For other examples it returns wrong values.

    Args:
        examples: the examples of each of A x B devices, [A, B, R, *F].
        places: the index of each example of the pool among the device's examples,
            [A, B, P].

    Attributes:
        shape: the shape of all examples, (P, *F).
        dtype: the type of the values.

    Examples:
        >>> import jax.numpy as jnp
        >>> examples, places = jnp.array([[[[7.0], [9.0]]]]), jnp.array([[[0, 0, 1]]])
        >>> pool = LocalPool(examples, places)  # has examples 0 and 2 of three
        >>> print(pool.shape, pool[jnp.array([2, 0])][:, 0])
        (3, 1) [9. 7.]
    """

    def __init__(
        self, examples: Shaped[Array, "A B R *F"], places: Int[Array, "A B P"]
    ):
        self.examples, self.places = examples, places

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all examples, (P, *F)."""
        return (self.places.shape[-1], *self.examples.shape[3:])

    @property
    def dtype(self):
        """The type of the values."""
        return self.examples.dtype

    def __getitem__(self, rows: slice | Int[Array, "*S"]) -> Shaped[Array, "..."]:
        return self.examples[0, 0][self.places[0, 0][rows]]

    @property
    def local_bytes(self) -> int:
        """The bytes of the pool in the memory of this process."""
        parts = (self.examples, self.places)
        return sum(x.data.nbytes for part in parts for x in part.addressable_shards)

    def tree_flatten(self):
        """Returns both arrays as children, without auxiliary data, for JAX."""
        return (self.examples, self.places), None

    @classmethod
    def tree_unflatten(cls, _: None, parts: Sequence[Any]) -> "LocalPool":
        """Builds the pool from the result of `tree_flatten`, for JAX.

        Args:
            parts: the examples and the places, as arrays or as JAX's placeholders.

        Returns:
            The pool.
        """
        # JAX also unflattens objects that are not arrays, which `__init__` may refuse.
        pool = object.__new__(cls)
        pool.examples, pool.places = parts
        return pool


# --- Devices

Backend = Literal["shard_map", "pmap", "loop"]

AXIS = "client"
"""The mesh axis over which the clients of a run are spread if there are more devices
than runs. A function of one run then sees only the clients of its device. Otherwise the
axis is not bound."""
ALL_CLIENTS = "all clients"
"""A `vmap` axis whose length is the number of clients, bound if clients were repeated
to fill the devices. No array has this axis. Its length tells clients and copies
apart."""
SITES = "site"
"""The axis of a real federation, whose sites hold one client each. It is bound only
while `fcjax.deploy.cut` traces a method. No array has this axis."""
SECURE = "secure sums"
"""An axis without arrays, bound besides `SITES` if the server learns averages as sums
only."""
SERVER, CLIENTS = P("run"), P("run", AXIS)
"""The partition specs of arrays with one entry per run, and per run and client."""
STATE = State(SERVER, CLIENTS)
FEDERATIONS = (P(), CLIENTS, CLIENTS, SERVER, CLIENTS, SERVER)
GRID = Grid._make([SERVER, SERVER, Federation._make(FEDERATIONS)])
RUNS = Grid._make([0, 0, Federation._make([None, 0, 0, 0, 0, 0])])
"""The `vmap` axes of a grid. All runs share one pool."""


def platform() -> str:
    """Returns the platform of the program being traced: "cpu", "gpu" or "tpu".

    It is the platform of the current mesh. Without a mesh it is JAX's default backend.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def platform_problem(error: Exception) -> str:
    """Explains an error that says that JAX cannot start its devices.

    Args:
        error: an error of the first use of JAX's devices.

    Returns:
        One line that names JAX_PLATFORMS and the available platforms; an empty string
        for any other error.
    """
    is_refused = "Unable to initialize backend" in str(error)
    if not is_refused and not isinstance(error, AssertionError):
        return ""
    try:
        jax.devices()
    except (RuntimeError, AssertionError):
        is_refused = True
    requested = jax.config.values["jax_platforms"]
    if not is_refused:
        return ""
    if not requested:
        return str(error).partition("\n")[0]
    jax.config.update("jax_platforms", None)
    available = ", ".join(sorted(jax.extend.backend.backends()))
    return (
        f"JAX_PLATFORMS={requested} is a platform that JAX cannot start here; "
        f"available: {available}. Unset JAX_PLATFORMS, or install JAX for that "
        'platform, for example pip install "jax[cuda13]" for NVIDIA GPUs.'
    )


def is_multiprocess() -> bool:
    """Returns whether several processes run one program."""
    return jax.process_count() > 1


def all_devices() -> Sequence[Any]:
    """Returns the devices of all processes, over which the runs are spread."""
    return jax.devices() if is_multiprocess() else jax.local_devices()


def on_host(tree: PyTree) -> PyTree:
    """Copies arrays to this host. With several processes, all must call this function.

    Args:
        tree: a tree of arrays, which may be spread over the devices of all processes.

    Returns:
        The tree with NumPy arrays.
    """
    if not is_multiprocess():
        return jax.device_get(tree)

    def whole(x):
        is_here = not isinstance(x, jax.Array) or x.is_fully_addressable
        if is_here or x.is_fully_replicated:
            return np.asarray(x)
        return process_allgather(x, tiled=True)

    return jax.tree.map(whole, tree)


def num_bytes(tree: PyTree) -> int:
    """Counts the bytes of the arrays of a tree.

    Args:
        tree: a tree of arrays or shapes.

    Returns:
        The number of bytes.

    Examples:
        >>> num_bytes({"w": jnp.zeros((10, 2)), "b": jnp.zeros(2)})  # 4 * (20 + 2)
        88
    """
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


@dataclass(frozen=True)
class Spread:
    """A function of one run, compiled for all runs of a grid."""

    call: Callable[..., PyTree]
    """(grid, *states) -> the results. States and results have the leading axis G."""
    traced: Callable[..., jax.stages.Traced]
    """(grid, *states) -> the traced program, to be compiled for its devices, which need
    not be present. Only shapes are read. The name is not `trace`, because `jax.jit`
    copies the attributes of a function, and the copy would hide its own `trace`."""

    def __call__(self, grid: Grid, *states: State) -> PyTree:
        """Applies the function to all runs of a grid.

        Args:
            grid: the inputs of the runs.
            *states: states of the runs, [G, ...].

        Returns:
            The results, [G, ...].
        """
        return self.call(grid, *states)


def over_runs(
    function: Callable[..., PyTree],
    backend: Backend,
    *,
    results: PyTree = SERVER,
    donate: bool = False,
    devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm]
) -> Spread:
    """Compiles a function of one run for a grid.

    Runs do not communicate, so `shard_map` gives every device a part of the runs.
    `pmap` is another name for the same program. `loop` trains one run after another, as
    a reference for the tests. With fewer runs than devices, `shard_map` spreads the
    clients of each run over several devices. The function may then communicate between
    clients only through `fcjax.federated.server`.

    Args:
        function: (hyper, key, federation, *states) of one run -> a tree of arrays. The
            states are of type `State`. The function may get only a part of the clients.
        backend: the JAX transformation that spreads the runs.
        results: the partition spec of the results: `SERVER`, `CLIENTS` or `STATE`, or a
            tree of them that is a prefix of the results.
        donate: whether the results may reuse the memory of the states.
        devices: the devices of `shard_map`; by default `all_devices`. One process
            uses only as many of them as shorten the time. Several processes use all.

    Returns:
        The function of a grid.
    """

    def one(grid, *states):
        return function(grid.hyper, grid.keys, grid.federations, *states)

    def batched(grid, *states):
        # On a CPU, products with a batch axis of length 1 are slower than without it.
        if _num_runs(grid) == 1:
            states = jax.tree.map(lambda x: x[0], states)
            result = one(each_run(lambda x: x[0], grid), *states)
            return jax.tree.map(lambda x: jnp.asarray(x)[None], result)
        if platform() == "cpu":

            def of_run(run, states):
                return one(each_run(lambda x: row_at(x, run), grid), *states)

            return one_by_one(of_run, jnp.arange(_num_runs(grid)), states)
        return jax.vmap(one, in_axes=(RUNS, *[0] * len(states)))(grid, *states)

    if backend == "loop":
        call = _loop(batched, donate)
        return Spread(call, jax.jit(call).trace)
    return _shard_map(batched, results, donate, devices)


def _shard_map(batched, results, donate, devices):
    @cache
    def program(layout, num_clients, is_local, num_states, options):
        mesh = layout.mesh()
        in_specs = layout.specs((_grid_spec(is_local), *[STATE] * num_states))
        out_specs = layout.specs(results)
        function = batched
        if num_clients is not None:
            function = jax.vmap(
                *(batched, None, None), axis_name=ALL_CLIENTS, axis_size=num_clients
            )
        mapped = jax.shard_map(
            function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        donated = tuple(range(1, 1 + num_states)) if donate else ()
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), in_specs)
        return _compiled(mapped, donated, options), shardings

    def plan(grid, states):
        """Returns the program, input shardings, padded sizes and the layout."""
        available = tuple(devices or all_devices())
        count, num_clients, pool = _num_runs(grid), _num_clients(grid), _pool(grid)
        # If the clients are others than those of the state, each device has all
        # clients.
        client_states = jax.tree.leaves([state.clients for state in states])
        is_spread = all(x.shape[1] == num_clients for x in client_states)
        is_local = isinstance(pool, LocalPool)
        if is_local:
            is_spread = pool.examples.shape[1] > 1
        indices, units = grid.federations.indices, num_clients
        if is_ragged(indices):  # only whole groups have equal parts of all classes
            units = GROUPS
        layout = Layout.of(available, count, units, is_spread=is_spread)
        total = layout.filled(count, num_clients)
        if is_ragged(indices) and layout.is_spread:
            total = (total[0], layout.filled(1, GROUPS)[1] * sum(indices.counts))
        options = _options(grid, states, available[0].platform)
        run, shardings = program(
            *(layout, num_clients if total[1] > num_clients else None),
            *(is_local, len(states), options),
        )
        return run, shardings, total, layout

    def filled(grid, states, total, layout):
        specs = layout.specs((GRID, *[STATE] * len(states)))
        return _resized(specs, (grid, *states), *total)

    def call(grid, *states):
        run, shardings, total, layout = plan(grid, states)
        inputs, size = (grid, *states), (_num_runs(grid), _num_clients(grid))
        if total != size:
            inputs = filled(grid, states, total, layout)
        outputs = run(*_placed(inputs, shardings))
        if total == size:
            return outputs
        return _resized(layout.specs(results), outputs, *size)

    def trace(grid, *states):
        run, shardings, total, layout = plan(grid, states)
        inputs = (grid, *states)
        if total != (_num_runs(grid), _num_clients(grid)):
            inputs = jax.eval_shape(
                lambda grid, *states: filled(grid, states, total, layout), *inputs
            )
        return run.compiled.trace(*_shaped(inputs, shardings))

    return Spread(call, trace)


def _loop(batched, donate):
    # Both functions are compiled as a whole. Indexing one array at a time would compile
    # many small programs.
    @jax.jit
    def one(grid, states, i):
        def part(x):
            return lax.dynamic_slice_in_dim(x, i, 1)

        return each_run(part, grid), jax.tree.map(part, states)

    @jax.jit
    def join(results):
        return jax.tree.map(lambda *xs: jnp.concatenate(xs), *results)

    donated = (1,) if donate else ()

    @cache
    def program(options):
        return _compiled(lambda grid, states: batched(grid, *states), donated, options)

    def call(grid, *states):
        run, each = program(_options(grid, states, platform())), range(_num_runs(grid))
        return join([run(*one(grid, states, i)) for i in each])

    return call


def _options(grid, states, target):
    pool = _pool(grid)
    without_pool = grid._replace(federations=grid.federations[1:])
    size = num_bytes((without_pool, states)) // _num_runs(grid)
    # A `LocalPool` counts in full, so that the options do not depend on the processes.
    if isinstance(pool, LocalPool):
        size += math.prod(pool.shape) * pool.dtype.itemsize
    else:
        size += num_bytes(pool)
    return tuple(compiler_options(target, num_bytes=size).items())


class _Compiled(NamedTuple):
    compiled: Callable[..., Any]
    within: Callable[..., Any]
    """The function without compiler options, for use inside of another traced function,
    where JAX does not accept options."""

    def __call__(self, *inputs):
        is_traced = isinstance(jax.tree.leaves(inputs)[0], Tracer)
        return (self.within if is_traced else self.compiled)(*inputs)


def _compiled(function, donated, options):
    within = compiled = jax.jit(function, donate_argnums=donated)
    if options:
        compiled = jax.jit(
            function, donate_argnums=donated, compiler_options=dict(options)
        )
    return _Compiled(compiled, within)


def _shaped(inputs, shardings):
    """Returns the shapes of inputs with their shardings."""

    def of(sharding, part):
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), part
        )

    return jax.tree.map(of, shardings, inputs)


class Layout(NamedTuple):
    """The placement of runs and clients on devices, which form rows and columns."""

    devices: tuple[Any, ...]
    num_rows: int
    """Number of rows of devices. Each row has a part of the runs."""
    num_columns: int
    """Number of columns of devices."""
    is_spread: bool
    """Whether each column has a part of the clients of a run; otherwise it has all."""

    @classmethod
    def of(
        cls,
        devices: tuple[Any, ...],
        num_runs: int,
        num_clients: int,
        *,
        is_spread: bool = True,
    ) -> "Layout":
        """Chooses the layout of runs and clients on devices.

        Several processes use all `devices`. One process uses the fewest devices that
        give the shortest time.

        Args:
            devices: the available devices of all processes.
            num_runs: number of runs G, at least 1.
            num_clients: number of clients M, or of groups of clients, at least 1.
            is_spread: whether the clients of a run may be spread over columns.

        Returns:
            The layout. `Layout.is_spread` says whether the clients are spread.
        """
        count = len(devices)
        if len({device.process_index for device in devices}) > 1:
            # Every process needs a device to take part in the program.
            fewest = min(num_runs, count)
            rows = next(n for n in range(fewest, count + 1) if count % n == 0)
            columns, is_spread = count // rows, is_spread and num_clients > 1
        else:
            rows = min(num_runs, count)
            columns = _num_shards(num_clients, count // rows) if is_spread else 1
        return cls(devices[: rows * columns], rows, columns, is_spread and columns > 1)

    def mesh(self) -> Mesh:
        """Returns the mesh of the devices, with axes for runs and for clients."""
        # An axis of length 1 would still cause sums over devices.
        axes = {"run": self.num_rows}
        if self.num_columns > 1:
            axes[AXIS if self.is_spread else "alike"] = self.num_columns
        # `jax.make_mesh` does not accept a part of the chips of a TPU.
        return Mesh(
            np.array(self.devices).reshape(*axes.values()),
            tuple(axes),
            axis_types=(AxisType.Auto,) * len(axes),
        )

    def specs(self, specs: PyTree) -> PyTree:
        """Returns partition specs without the client axis if clients are not spread.

        Args:
            specs: a tree of partition specs, with the axes of runs and of clients.

        Returns:
            The tree of partition specs for this layout.
        """
        return specs if self.is_spread else _by_runs(specs)

    def filled(self, num_runs: int, num_clients: int) -> tuple[int, int]:
        """Rounds runs and clients up, so that all devices get equal parts.

        Args:
            num_runs: G.
            num_clients: M.

        Returns:
            The rounded numbers.
        """
        shards = self.num_columns if self.is_spread else 1
        return (
            num_runs + -num_runs % self.num_rows,
            num_clients + -num_clients % shards,
        )


def _num_shards(num_clients, num_devices):
    """Returns the number of devices per run: the fewest that are equally fast."""
    most = -(-num_clients // min(num_devices, num_clients))
    return -(-num_clients // most)


def shard_pool(
    examples: Shaped[np.ndarray, "P *F"],
    indices: Int[np.ndarray, "G M N"],
    *,
    devices: Sequence[Any],
    is_spread: bool = True,
) -> LocalPool:
    """Distributes the examples, so that each device has those of its own clients.

    Args:
        examples: all examples, on the host.
        indices: the indices of the clients' examples in a grid.
        devices: the devices of the grid.
        is_spread: whether the clients of a run are spread over devices. It must be
            False if they are others than the clients of the state.

    Returns:
        The pool of this grid, for these devices.
    """
    layout = Layout.of(tuple(devices), *indices.shape[:2], is_spread=is_spread)
    for axis, count in enumerate(layout.filled(*indices.shape[:2])):
        rows = np.minimum(np.arange(count), indices.shape[axis] - 1)
        indices = np.take(indices, rows, axis)
    columns = layout.num_columns if layout.is_spread else 1
    parts = [
        [np.union1d(0, block) for block in np.split(of_runs, columns, axis=1)]
        for of_runs in np.split(indices, layout.num_rows)
    ]
    most = max(len(rows) for of_runs in parts for rows in of_runs)
    sharding = NamedSharding(layout.mesh(), layout.specs(CLIENTS))

    def of_devices(shape, dtype, fill):
        def at(index):
            """Returns the part of a device, or of all devices in a row."""
            part = np.zeros((1, 1, *shape), dtype)
            fill(parts[index[0].start or 0][index[1].start or 0], part[0, 0])
            return part

        whole = (layout.num_rows, columns, *shape)
        return jax.make_array_from_callback(whole, sharding, at)

    def take(rows, into):
        into[: len(rows)] = examples[rows]

    def number(rows, into):
        into[rows] = np.arange(len(rows))

    return LocalPool(
        of_devices((most, *examples.shape[1:]), examples.dtype, take),
        of_devices((len(examples),), np.int32, number),
    )


def replicate(examples: Shaped[np.ndarray, "P *F"]) -> Array:
    """Copies all examples to each device of all processes.

    Args:
        examples: all examples, on the host.

    Returns:
        The examples [P, *F], with a copy on each device.
    """
    mesh = Mesh(np.array(all_devices()), "device")
    return _place(examples, NamedSharding(mesh, P()))


def restore_shardings(structure: PyTree, *, is_run: bool = False) -> PyTree:
    """Returns the shapes and shardings with which a state is read from files.

    One process reads the state onto its first device. With several processes, the state
    is sharded over all devices if they get equal parts. Otherwise every device gets the
    whole state.

    Args:
        structure: the shapes of the state, [G, ...] or of one run. It must be a `State`
            if there are several processes.
        is_run: whether the state is that of one run.

    Returns:
        The tree of `jax.ShapeDtypeStruct` with shardings.
    """
    if not is_multiprocess():
        return _shaped(structure, SingleDeviceSharding(jax.local_devices()[0]))
    server, clients = map(jax.tree.leaves, structure)
    num_runs = 1 if is_run else (server + clients)[0].shape[0]
    num_clients = clients[0].shape[1] if clients and not is_run else 1
    layout = Layout.of(tuple(all_devices()), num_runs, num_clients)
    is_even = layout.filled(num_runs, num_clients) == (num_runs, num_clients)
    specs = layout.specs(STATE) if is_even and not is_run else State(P(), P())
    return _shaped(
        structure, jax.tree.map(partial(NamedSharding, layout.mesh()), specs)
    )


def _grid_spec(is_local):
    """Returns the partition specs of a grid, with a `LocalPool` or a common pool."""
    federations = GRID.federations
    return GRID._replace(
        federations=federations._replace(pool=CLIENTS) if is_local else federations
    )


def _placed(inputs, shardings):
    """Moves inputs to the devices of a program.

    JAX does not move the results of a call on other devices by itself.
    """
    if not is_multiprocess():
        return jax.device_put(inputs, shardings)

    def of(sharding, part):
        return jax.tree.map(lambda x: _place(x, sharding), part)

    return jax.tree.map(of, shardings, inputs)


def _place(x, sharding):
    if isinstance(x, Tracer):
        return x
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        is_there = x.sharding.is_equivalent_to(sharding, x.ndim)
        return x if is_there else _move(sharding)(x)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = _place(jax.random.key_data(x), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    array = np.asarray(x)
    return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)


@cache
def _move(sharding):
    return jax.jit(lambda x: x, out_shardings=sharding)


def _by_runs(specs):
    """Returns partition specs without the client axis."""
    return jax.tree.map(lambda spec: P(*spec[:1]), specs)


def _resized(specs, tree, num_runs, num_clients):
    """Returns the first runs and clients; repeats the last one to fill up."""
    # Arrays that all runs share are left out, because `_resize` would copy them.
    per_run = jax.tree.map(lambda spec, part: part if len(spec) else (), specs, tree)
    per_run = _resize(specs, per_run, num_runs, num_clients)
    return jax.tree.map(
        lambda spec, part, new: new if len(spec) else part, specs, tree, per_run
    )


@partial(jax.jit, static_argnums=(0, 2, 3))
def _resize(specs, tree, num_runs, num_clients):
    def first(axis, count, x):
        rows = jnp.minimum(jnp.arange(count), x.shape[axis] - 1)
        return x[(*(slice(None),) * axis, rows)]

    def of_clients(axis, x):
        if not is_ragged(x):
            return first(axis, num_clients, x)
        each = zip(x.blocks, clients_by_class(x.counts, num_clients), strict=True)
        blocks = [first(axis, len(clients), block) for block, clients in each]
        return Ragged(blocks, x.counts)

    def resize(spec, part):
        for axis, name in enumerate(spec):
            if name == "run":
                part = jax.tree.map(partial(first, axis, num_runs), part)
            elif name is not None:
                part = jax.tree.map(partial(of_clients, axis), part, is_leaf=is_ragged)
        return part

    return jax.tree.map(resize, specs, tree)


def each_run(fn: Callable[[jax.Array], jax.Array], grid: Grid) -> Grid:
    """Applies a function to all arrays of a grid with the leading axis G.

    Args:
        fn: (array [G, ...]) -> array.
        grid: the grid.

    Returns:
        The grid with the new arrays and the same pool.
    """
    federations = grid.federations
    hyper, keys, runs = jax.tree.map(fn, (grid.hyper, grid.keys, federations[1:]))
    return Grid(hyper, keys, Federation(federations.pool, *runs))


def _pool(grid):
    return grid.federations.pool


def _num_runs(grid):
    return len(grid.keys)


def _num_clients(grid):
    return sum(x.shape[1] for x in jax.tree.leaves(grid.federations.indices))
