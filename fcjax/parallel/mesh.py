"""Maps runs and clients over the devices of all processes."""

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

from fcjax.parallel.exact import compiler_options, one_by_one
from fcjax.ragged import GROUPS, Ragged, clients_by_class, is_ragged
from fcjax.types import Federation, Grid, PyTree, State

# --- Own pool


@jax.tree_util.register_pytree_node_class
class LocalPool:
    """Takes the place of the array of examples where clients lie on devices of several
    processes, see `fcjax.parallel.mesh.shard_pool`.

    `pool[rows]` is a device array of those rows, within a program that is spread over
    the devices; of rows that are neither the first nor its clients' a device has none,
    and gives others.

    Args:
        examples: [A, B, R, *F] on A x B devices: what each of them has.
        places: [A, B, P]: where it has each row of the pool.

    Attributes:
        shape: of all examples.
        dtype: of the examples.

    Examples:
        >>> import jax.numpy as jnp
        >>> examples, places = jnp.array([[[[7.0], [9.0]]]]), jnp.array([[[0, 0, 1]]])
        >>> pool = LocalPool(examples, places)  # of three rows the first and the last
        >>> print(pool.shape, pool[jnp.array([2, 0])][:, 0])
        (3, 1) [9. 7.]
    """

    def __init__(
        self, examples: Shaped[Array, "A B R *F"], places: Int[Array, "A B P"]
    ):
        self.examples, self.places = examples, places

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.places.shape[-1], *self.examples.shape[3:])

    @property
    def dtype(self):
        return self.examples.dtype

    def __getitem__(self, rows: slice | Int[Array, "*S"]) -> Shaped[Array, "..."]:
        return self.examples[0, 0][self.places[0, 0][rows]]

    @property
    def local_bytes(self) -> int:
        """What it takes of this process's memory."""
        parts = (self.examples, self.places)
        return sum(x.data.nbytes for part in parts for x in part.addressable_shards)

    def tree_flatten(self):
        return (self.examples, self.places), None

    @classmethod
    def tree_unflatten(cls, _, parts):
        # What is unflattened need not be arrays.
        pool = object.__new__(cls)
        pool.examples, pool.places = parts
        return pool


# --- Devices

Backend = Literal["shard_map", "pmap", "loop"]

AXIS = "client"
"""The mesh axis over which the clients of a run are spread where devices are left over;
a function of one run then sees those of its own device. Elsewhere it is not bound."""
ALL_CLIENTS = "all clients"
"""An axis of the length of a run's clients, bound where some were repeated to fill the
devices: no array has it, its length tells them apart."""
SERVER, CLIENTS = P("run"), P("run", AXIS)
"""How what a run has once, and what each of its clients has, lies on the devices."""
STATE = State(SERVER, CLIENTS)
FEDERATIONS = (P(), CLIENTS, CLIENTS, SERVER, CLIENTS, SERVER)
GRID = Grid._make([SERVER, SERVER, Federation._make(FEDERATIONS)])
RUNS = Grid._make([0, 0, Federation._make([None, 0, 0, 0, 0, 0])])
"""Where the arrays of a grid count its runs; all have one pool."""


def platform() -> str:
    """Returns what the program that is traced is for: cpu, gpu, tpu. The mesh that
    it is spread over says so; one without a mesh is for the devices that JAX has.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def platform_problem(error: Exception) -> str:
    """Says why JAX has no devices, where an error comes from that.

    Args:
        error: as the first use of JAX's devices raised it.

    Returns:
        One line that names JAX_PLATFORMS and the available platforms; an empty string
        for any other error.
    """
    refused = "Unable to initialize backend" in str(error)
    if not refused and not isinstance(error, AssertionError):
        return ""
    try:
        jax.devices()
    except (RuntimeError, AssertionError):
        refused = True
    asked = jax.config.values["jax_platforms"]
    if not refused:
        return ""
    if not asked:
        return str(error).partition("\n")[0]
    jax.config.update("jax_platforms", None)
    available = ", ".join(sorted(jax.extend.backend.backends()))
    return (
        f"JAX_PLATFORMS={asked} asks for a platform that JAX cannot start here; "
        f"available: {available}. Unset JAX_PLATFORMS, or install JAX for that "
        'platform, as pip install "jax[cuda13]" for NVIDIA GPUs.'
    )


def is_multiprocess() -> bool:
    """Returns whether several processes run one program."""
    return jax.process_count() > 1


def all_devices() -> Sequence[Any]:
    """Returns the devices that runs are spread over, those of all processes."""
    return jax.devices() if is_multiprocess() else jax.local_devices()


def on_host(tree: PyTree) -> PyTree:
    """Returns arrays in this host's memory, whole, whichever processes have their
    parts; all of them ask for it.
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
    """Returns the bytes of all arrays of a tree.

    Examples:
        >>> num_bytes({"w": jnp.zeros((10, 2)), "b": jnp.zeros(2)})  # 4 * (20 + 2)
        88
    """
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


@dataclass(frozen=True)
class Spread:
    """A function of one run, for the runs of a grid."""

    call: Callable[..., PyTree]
    """(grid, *states) -> the results, all stacked on G like the states."""
    traced: Callable[..., jax.stages.Traced]
    """(grid, *states), of which no value is read -> its program, to be compiled for the
    devices that it is spread over, which need not be there. Not `trace`: `jax.jit`
    copies a function's attributes, and that one would hide its own."""

    def __call__(self, grid: Grid, *states: State) -> PyTree:
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

    Runs do not communicate, so `shard_map` gives every device its share of them.
    `pmap` is another name for the same program. `loop` takes one run after another; the
    tests compare `shard_map` with it. With fewer runs than devices, `shard_map` spreads
    the clients of each run over the rest: what crosses clients must go through the
    server.

    Args:
        function: (hyper, key, federation, *states) of one run -> a tree of arrays; the
            states are `State`s. It may be given a part of the clients.
        backend: how the runs are spread.
        results: `SERVER`, `CLIENTS` or `STATE`, or a tree of them that the results'
            tree begins with.
        donate: let the results take the place of the states in memory.
        devices: of `shard_map`; by default `all_devices`. Those of one process are as
            few as make the most of them no busier, those of several are all.
    """

    def one(grid, *states):
        return function(grid.hyper, grid.keys, grid.federations, *states)

    def batched(grid, *states):
        # Products of a batch of one are slower on a CPU than those of none.
        if _num_runs(grid) == 1:
            states = jax.tree.map(lambda x: x[0], states)
            alone = one(each_run(lambda x: x[0], grid), *states)
            return jax.tree.map(lambda x: jnp.asarray(x)[None], alone)
        if platform() == "cpu":

            def of_run(run, states):
                return one(each_run(lambda x: x[run], grid), *states)

            return one_by_one(of_run, jnp.arange(_num_runs(grid)), states)
        return jax.vmap(one, in_axes=(RUNS, *[0] * len(states)))(grid, *states)

    if backend == "loop":
        call = _loop(batched, donate)
        return Spread(call, jax.jit(call).trace)
    return _shard_map(batched, results, donate, devices)


def _shard_map(batched, results, donate, devices):
    @cache
    def program(layout, num_clients, has_own, num_states, options):
        mesh = layout.mesh()
        in_specs = layout.specs((_grid_spec(has_own), *[STATE] * num_states))
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

    def dealt(grid, states):
        """The program, where its inputs lie, and how many runs, clients and shards of
        them it takes.
        """
        here = tuple(devices or all_devices())
        count, num_clients, pool = _num_runs(grid), _num_clients(grid), _pool(grid)
        # Of other clients than those of the state each device has all.
        kept = jax.tree.leaves([state.clients for state in states])
        is_spread = all(x.shape[1] == num_clients for x in kept)
        has_own = isinstance(pool, LocalPool)
        if has_own:
            is_spread = pool.examples.shape[1] > 1
        held, units = grid.federations.indices, num_clients
        if is_ragged(held):  # alike parts of all classes are whole groups
            units = GROUPS
        layout = Layout.of(here, count, units, is_spread=is_spread)
        total = layout.filled(count, num_clients)
        if is_ragged(held) and layout.is_spread:
            total = (total[0], layout.filled(1, GROUPS)[1] * sum(held.counts))
        options = _options(grid, states, here[0].platform)
        run, shardings = program(
            *(layout, num_clients if total[1] > num_clients else None),
            *(has_own, len(states), options),
        )
        return run, shardings, total, layout

    def filled(grid, states, total, layout):
        specs = layout.specs((GRID, *[STATE] * len(states)))
        return _resized(specs, (grid, *states), *total)

    def call(grid, *states):
        run, shardings, total, layout = dealt(grid, states)
        inputs, own = (grid, *states), (_num_runs(grid), _num_clients(grid))
        if total != own:
            inputs = filled(grid, states, total, layout)
        found = run(*_placed(inputs, shardings))
        if total == own:
            return found
        return _resized(layout.specs(results), found, *own)

    def traced(grid, *states):
        run, shardings, total, layout = dealt(grid, states)
        inputs = (grid, *states)
        if total != (_num_runs(grid), _num_clients(grid)):
            inputs = jax.eval_shape(
                lambda grid, *states: filled(grid, states, total, layout), *inputs
            )
        return run.compiled.trace(*_shaped(inputs, shardings))

    return Spread(call, traced)


def _loop(batched, donate):
    # Compiled as a whole: an array at a time, the many small programs take longer to
    # compile than they save.
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
    others = grid._replace(federations=grid.federations[1:])
    size = num_bytes((others, states)) // _num_runs(grid)
    if isinstance(pool, LocalPool):  # as if it were whole: not another program
        size += math.prod(pool.shape) * pool.dtype.itemsize
    else:
        size += num_bytes(pool)
    return tuple(compiler_options(target, num_bytes=size).items())


class _Compiled(NamedTuple):
    compiled: Callable[..., Any]
    within: Callable[..., Any]
    """What is traced as a part of something else has no options of its own."""

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
    """The shapes of what lies on devices so."""

    def of(sharding, part):
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), part
        )

    return jax.tree.map(of, shardings, inputs)


class Layout(NamedTuple):
    """How runs and their clients lie on devices, in rows and columns."""

    devices: tuple[Any, ...]
    num_rows: int
    """Each has its share of the runs."""
    num_columns: int
    is_spread: bool
    """Whether each column has its share of the clients of a run, or all of them."""

    @classmethod
    def of(cls, devices, num_runs, num_clients, *, is_spread=True) -> "Layout":
        count = len(devices)
        if len({device.process_index for device in devices}) > 1:
            # A process without a device would have nothing to take part with.
            fewest = min(num_runs, count)
            rows = next(n for n in range(fewest, count + 1) if count % n == 0)
            columns, is_spread = count // rows, is_spread and num_clients > 1
        else:
            rows = min(num_runs, count)
            columns = _num_shards(num_clients, count // rows) if is_spread else 1
        return cls(devices[: rows * columns], rows, columns, is_spread and columns > 1)

    def mesh(self) -> Mesh:
        # An axis of one would still be an axis to sum over.
        axes = {"run": self.num_rows}
        if self.num_columns > 1:
            axes[AXIS if self.is_spread else "alike"] = self.num_columns
        # `jax.make_mesh` takes all chips of a TPU or none.
        return Mesh(
            np.array(self.devices).reshape(*axes.values()),
            tuple(axes),
            axis_types=(AxisType.Auto,) * len(axes),
        )

    def specs(self, specs: PyTree) -> PyTree:
        """Where a run is on one device, what each of its clients has is there, too."""
        return specs if self.is_spread else _by_runs(specs)

    def filled(self, num_runs: int, num_clients: int) -> tuple[int, int]:
        """How many runs and clients there are where every device has as many."""
        shards = self.num_columns if self.is_spread else 1
        return (
            num_runs + -num_runs % self.num_rows,
            num_clients + -num_clients % shards,
        )


def _num_shards(num_clients, num_devices):
    """As few devices a run as make the most of them no busier."""
    most = -(-num_clients // min(num_devices, num_clients))
    return -(-num_clients // most)


def shard_pool(
    examples: Shaped[np.ndarray, "P *F"],
    indices: Int[np.ndarray, "G M N"],
    *,
    devices: Sequence[Any],
    is_spread: bool = True,
) -> LocalPool:
    """Gives each device the examples of its own clients alone.

    Args:
        examples: all of them.
        indices: which of them the clients of a grid hold.
        devices: that the grid is spread over.
        is_spread: whether clients are; not where those are others than the state's.

    Returns:
        What takes the place of the pool in that grid, on no other devices.
    """
    layout = Layout.of(tuple(devices), *indices.shape[:2], is_spread=is_spread)
    for axis, count in enumerate(layout.filled(*indices.shape[:2])):
        rows = np.minimum(np.arange(count), indices.shape[axis] - 1)
        indices = np.take(indices, rows, axis)
    columns = layout.num_columns if layout.is_spread else 1
    held = [
        [np.union1d(0, block) for block in np.split(of_runs, columns, axis=1)]
        for of_runs in np.split(indices, layout.num_rows)
    ]
    most = max(len(rows) for of_runs in held for rows in of_runs)
    sharding = NamedSharding(layout.mesh(), layout.specs(CLIENTS))

    def of_devices(shape, dtype, fill):
        def at(place):
            """Of one device, or of all in a row."""
            found = np.zeros((1, 1, *shape), dtype)
            fill(held[place[0].start or 0][place[1].start or 0], found[0, 0])
            return found

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
    """Gives each device of all processes all examples."""
    mesh = Mesh(np.array(all_devices()), "device")
    return _place(examples, NamedSharding(mesh, P()))


def restore_shardings(structure: PyTree, *, is_run: bool = False) -> PyTree:
    """Says where a state lies that is read from files: on the first device; of several
    processes in parts, where all devices have as much of it, else whole on each.

    Args:
        structure: its shapes, [G, ...], or those of one run; a `State` where there are
            several processes.
        is_run: whether it is of one run.
    """
    if not is_multiprocess():
        return _shaped(structure, SingleDeviceSharding(jax.local_devices()[0]))
    server, own = map(jax.tree.leaves, structure)
    num_runs = 1 if is_run else (server + own)[0].shape[0]
    num_clients = own[0].shape[1] if own and not is_run else 1
    layout = Layout.of(tuple(all_devices()), num_runs, num_clients)
    is_even = layout.filled(num_runs, num_clients) == (num_runs, num_clients)
    specs = layout.specs(STATE) if is_even and not is_run else State(P(), P())
    return _shaped(
        structure, jax.tree.map(partial(NamedSharding, layout.mesh()), specs)
    )


def _grid_spec(has_own):
    federations = GRID.federations
    return GRID._replace(
        federations=federations._replace(pool=CLIENTS) if has_own else federations
    )


def _placed(inputs, shardings):
    """The inputs where they are needed: results of a call on other devices are not
    moved by themselves.
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
    own = np.asarray(x)
    return jax.make_array_from_callback(own.shape, sharding, own.__getitem__)


@cache
def _move(sharding):
    return jax.jit(lambda x: x, out_shardings=sharding)


def _by_runs(specs):
    """Where a run is on one device: what each of its clients has is there, too."""
    return jax.tree.map(lambda spec: P(*spec[:1]), specs)


def _resized(specs, tree, num_runs, num_clients):
    """The first runs and clients, the last one repeated where there are fewer."""
    # What no run has of its own would be copied.
    own = jax.tree.map(lambda spec, part: part if len(spec) else (), specs, tree)
    own = _resize(specs, own, num_runs, num_clients)
    return jax.tree.map(
        lambda spec, part, new: new if len(spec) else part, specs, tree, own
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
        return Ragged([first(axis, len(own), block) for block, own in each], x.counts)

    def resize(spec, part):
        for axis, name in enumerate(spec):
            if name == "run":
                part = jax.tree.map(partial(first, axis, num_runs), part)
            elif name is not None:
                part = jax.tree.map(partial(of_clients, axis), part, is_leaf=is_ragged)
        return part

    return jax.tree.map(resize, specs, tree)


def each_run(fn: Callable[[jax.Array], jax.Array], grid: Grid) -> Grid:
    """Applies a function to all arrays of a grid that count its runs."""
    federations = grid.federations
    hyper, keys, runs = jax.tree.map(fn, (grid.hyper, grid.keys, federations[1:]))
    return Grid(hyper, keys, Federation(federations.pool, *runs))


def _pool(grid):
    return grid.federations.pool


def _num_runs(grid):
    return len(grid.keys)


def _num_clients(grid):
    return sum(x.shape[1] for x in jax.tree.leaves(grid.federations.indices))
