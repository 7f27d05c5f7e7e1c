"""How a function of one run is compiled for a grid: the runs of a grid, and where
devices are left over the clients of a run, are spread over the devices."""

from collections.abc import Callable
from functools import cache, partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from fcjax.clients import AXIS
from fcjax.cores import compiler_options
from fcjax.server import num_bytes
from fcjax.types import Federation, Grid, PyTree

Backend = Literal["shard_map", "pmap", "loop"]


CLIENT_AXES = Federation._make([None, 1, 1, 2, 1])
"""Where the fields of a grid's federations count clients; the pool does not."""


def over_runs(
    function: Callable[..., PyTree],
    backend: Backend,
    *,
    donate: bool = False,
    like: Callable[..., tuple[PyTree, ...]] | None = None,
    results: Callable[..., PyTree] | None = None,
) -> Callable[..., PyTree]:
    """Compiles a function of one run for a grid.

    Runs do not communicate, so `shard_map` and its older form `pmap` give every device
    its share of them; `loop` takes one after another and is the oracle of the others.
    With fewer runs than devices, `shard_map` spreads the clients of each over the rest.

    Args:
        function: (hyper, key, federation, *state) of one run -> a tree of arrays.
        backend: how the runs are spread.
        donate: let the results take the place of `state` in memory.
        like: (structure of `state`, hyper, key, federation) -> a tuple like `state`,
            never run: its shapes tell what in it has a client axis. With it `function`
            may be given a part of the clients, so what crosses them must go through
            the server; without it clients are not spread.
        results: takes what `function` takes and returns the shapes of its results, or
            of a tree that theirs begins with, where that is quicker to trace.

    Returns:
        (grid, *state) -> the results, all stacked on G like `state`.
    """

    def batched(pool, runs, state):
        def one(run, state):
            hyper, key, federation = run
            return function(hyper, key, federation._replace(pool=pool), *state)

        # Products of a batch of one are slower on a CPU than those of none.
        if _count(runs) == 1:
            alone = one(*jax.tree.map(lambda x: x[0], (runs, state)))
            return jax.tree.map(lambda x: jnp.asarray(x)[None], alone)
        return jax.vmap(one)(runs, state)

    options = {"donate_argnums": (2,) if donate else ()}
    if backend == "shard_map":
        compiled = _shard_map(batched, results or function, like, **options)
    else:
        compiled = {"pmap": _pmap, "loop": _loop}[backend](batched, **options)

    def call(grid: Grid, *state: PyTree) -> PyTree:
        runs = (grid.hyper, grid.keys, grid.federations._replace(pool=None))  # pyright: ignore[reportArgumentType]
        return compiled(grid.federations.pool, runs, state)

    return call


def _shard_map(batched, results, like, **options):
    def spread(mesh, in_specs, out_specs, size):
        mapped = jax.shard_map(
            batched, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        within = program = jax.jit(mapped, **options)
        if of_cpu := compiler_options(mesh.size, num_bytes=size):
            program = jax.jit(mapped, compiler_options=of_cpu, **options)
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), in_specs)

        # Results of a call on other devices are not moved by themselves.
        def call(*inputs):
            # What is traced as a part of something else has no options of its own.
            is_traced = isinstance(jax.tree.leaves(inputs)[0], Tracer)
            return (within if is_traced else program)(
                *jax.device_put(inputs, shardings)
            )

        return call

    @cache
    def prepare(structure, shapes):
        pool, runs, state = structure.unflatten(shapes)
        num_runs = min(_count(runs), jax.local_device_count())
        size = num_bytes(pool) + num_bytes((runs, state)) // _count(runs)
        left = 1 if like is None else jax.local_device_count() // num_runs
        num_shards = _num_shards(runs, left)
        axes = None
        if like is not None and num_shards > 1:
            kind = partial(like, jax.tree.structure(state))
            axes = _client_axes(results, kind, pool, runs, num_shards)
        if axes is None or _has_other_clients(axes[0], state, runs):
            in_specs = (P(), P("run"), P("run"))
            program = spread(_mesh(num_runs), in_specs, P("run"), size)
            return partial(_padded, program, num_runs)

        def spec(rows):
            return P("run", AXIS) if rows == 1 else P("run")

        of_clients = jax.tree.map(
            lambda axis: P("run", *[None] * (axis - 1), AXIS), CLIENT_AXES
        )
        of_state, of_results = jax.tree.map(spec, axes)
        program = spread(
            _mesh(num_runs, num_shards),
            (P(), (P("run"), P("run"), of_clients), of_state),
            of_results,
            size,
        )
        return _padded_clients(program, num_shards, axes, runs)

    def call(pool, runs, state):
        leaves, structure = jax.tree.flatten((pool, runs, state))
        shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves)
        return prepare(structure, shapes)(pool, runs, state)

    return call


def _pmap(batched, **options):
    devices = jax.local_devices()
    mesh = _mesh(len(devices))
    mapped = jax.pmap(batched, in_axes=(None, 0, 0), devices=devices, **options)

    # Results of an earlier call lie on devices: pmap does not move them by itself.
    def deal(tree):
        return jax.device_put(split(tree), NamedSharding(mesh, P("run")))

    @jax.jit
    def split(tree):
        return jax.tree.map(lambda x: x.reshape(mesh.size, -1, *x.shape[1:]), tree)

    @jax.jit
    def join(tree):
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)

    def call(pool, runs, state):
        return join(mapped(pool, deal(runs), deal(state)))

    return partial(_padded, call, mesh.size)


def _loop(batched, **options):
    compiled = jax.jit(batched, **options)

    # Compiled as a whole: an array at a time, the many small programs take longer to
    # compile than they save.
    @jax.jit
    def one(tree, i):
        return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, i, 1), tree)

    @jax.jit
    def join(results):
        return jax.tree.map(lambda *xs: jnp.concatenate(xs), *results)

    def call(pool, runs, state):
        count = _count(runs)
        return join([compiled(pool, one(runs, i), one(state, i)) for i in range(count)])

    return call


def _mesh(num_runs: int, num_shards: int = 1):
    """Over this process's own devices: each of many processes has runs of its own."""
    # An axis of one would still be an axis to sum over.
    axes = {"run": num_runs} | ({AXIS: num_shards} if num_shards > 1 else {})
    return jax.make_mesh(
        tuple(axes.values()),
        tuple(axes),
        axis_types=(AxisType.Auto,) * len(axes),
        devices=jax.local_devices()[: num_runs * num_shards],
    )


def _num_shards(runs, num_devices):
    """As few devices a run as make the most of them no busier."""
    num_clients = runs[2].indices.shape[1]
    most = -(-num_clients // min(num_devices, num_clients))
    return -(-num_clients // most)


def _client_axes(results, like, pool, runs, num_shards):
    """How many rows the leaves of the states and of the results gain when every device
    has one client more: 1 where each has its own clients, `num_shards` where each has
    all, 0 where there is no client axis. (A look at the shapes alone would take K
    clusters for M clients.)"""
    hyper, keys, federations = runs

    def both(pool, hyper, key, federation):
        federation = federation._replace(pool=pool)
        state = like(hyper, key, federation)
        return state, results(hyper, key, federation, *state)

    def one(x):
        return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)

    def shapes(count):
        def part(axis, x):
            shape = (*x.shape[1:axis], count, *x.shape[axis + 1 :])
            return jax.ShapeDtypeStruct(shape, x.dtype)

        clients = jax.tree.map(part, CLIENT_AXES, federations)
        on_all = jax.vmap(both, in_axes=None, axis_name=AXIS, axis_size=num_shards)
        return jax.eval_shape(on_all, pool, *jax.tree.map(one, (hyper, keys)), clients)

    def gain(few, more):
        rows = more.shape[1] - few.shape[1] if few.ndim > 1 else 0
        if rows not in (0, 1, num_shards):
            raise ValueError(f"{few.shape[1:]}: a leading axis that counts clients")
        return rows

    return jax.tree.map(gain, shapes(1), shapes(2))


def _has_other_clients(axes, state, runs):
    num_clients = runs[2].indices.shape[1]
    found = jax.tree.map(
        lambda rows, x: rows and x.shape[1] != num_clients, axes, state
    )
    return any(jax.tree.leaves(found))


def _padded_clients(call, num_shards, axes, runs):
    """Repeats the last client, absent, until every device has as many as the others."""
    count = runs[2].indices.shape[1]
    missing = -count % num_shards
    if not missing:
        return call
    rows = np.minimum(np.arange(count + missing), count - 1)
    of_state, of_results = axes

    @jax.jit
    def pad(federations):
        federations = jax.tree.map(
            lambda axis, x: jnp.take(x, rows, axis), CLIENT_AXES, federations
        )
        present = federations.present.at[..., count:].set(False)
        return federations._replace(present=present)

    @jax.jit
    def pad_state(state):
        return jax.tree.map(lambda axis, x: x[:, rows] if axis else x, of_state, state)

    @jax.jit
    def cut(results):
        def cut_all(axis, results):
            return jax.tree.map(lambda x: x[:, :count], results) if axis else results

        return jax.tree.map(cut_all, of_results, results)

    def padded(pool, runs, state):
        hyper, keys, federations = runs
        return cut(call(pool, (hyper, keys, pad(federations)), pad_state(state)))

    return padded


def _padded(call, multiple, pool, runs, state):
    """Repeats the last run until every device has as many as the others."""
    count = _count(runs)
    missing = -count % multiple
    if not missing:
        return call(pool, runs, state)
    runs, state = (_resized(tree, count + missing) for tree in (runs, state))
    return _resized(call(pool, runs, state), count)


@partial(jax.jit, static_argnames="count")
def _resized(tree, count):
    """The first runs, the last one repeated where there are fewer."""
    rows = jnp.arange(count)
    return jax.tree.map(lambda x: x[jnp.minimum(rows, len(x) - 1)], tree)


def _count(runs):
    return len(jax.tree.leaves(runs)[0])
