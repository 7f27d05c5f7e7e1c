"""The run axis: how a function of one run is compiled for a grid of runs."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from fcjax.types import Federation, PyTree

Backend = Literal["shard_map", "pmap", "loop"]


class Grid(NamedTuple):
    """The inputs of G runs."""

    hyper: PyTree  # [G, ...], what is swept
    keys: jax.Array  # [G], typed keys
    federations: Federation  # one pool for all; the other fields [G, ...]


def over_runs(
    function: Callable[..., PyTree], backend: Backend, *, donate: bool = False
) -> Callable[..., PyTree]:
    """Compiles a function of one run for a grid.

    Runs do not communicate, so `shard_map` and its older form `pmap` give every device
    its share of them; `loop` takes one after another and is the oracle of the others.

    Args:
        function: (hyper, key, federation, *state) of one run -> a tree of arrays.
        backend: how the runs are spread.
        donate: let the results take the place of `state` in memory.

    Returns:
        (grid, *state) -> the results, all stacked on G like `state`.
    """

    def batched(pool, runs, state):
        def one(run, state):
            hyper, key, federation = run
            return function(hyper, key, federation._replace(pool=pool), *state)

        return jax.vmap(one)(runs, state)

    spread = {"shard_map": _shard_map, "pmap": _pmap, "loop": _loop}[backend]
    compiled = spread(batched, donate_argnums=(2,) if donate else ())

    def call(grid: Grid, *state: PyTree) -> PyTree:
        runs = (grid.hyper, grid.keys, grid.federations._replace(pool=None))  # pyright: ignore[reportArgumentType]
        return compiled(grid.federations.pool, runs, state)

    return call


def _shard_map(batched, **options):
    mesh = _mesh()
    specs = (P(), P("run"), P("run"))
    sharded = jax.shard_map(
        batched, mesh=mesh, in_specs=specs, out_specs=P("run"), check_vma=False
    )
    return partial(_padded, jax.jit(sharded, **options), mesh.size)


def _pmap(batched, **options):
    mesh = _mesh()
    devices = list(mesh.devices.flat)
    mapped = jax.pmap(batched, in_axes=(None, 0, 0), devices=devices, **options)

    # Results of an earlier call lie on devices: pmap does not move them by itself.
    def deal(tree):
        tree = jax.tree.map(lambda x: x.reshape(mesh.size, -1, *x.shape[1:]), tree)
        return jax.device_put(tree, NamedSharding(mesh, P("run")))

    def call(pool, runs, state):
        results = mapped(pool, deal(runs), deal(state))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), results)

    return partial(_padded, call, mesh.size)


def _loop(batched, **options):
    compiled = jax.jit(batched, **options)

    def call(pool, runs, state):
        results = []
        for i in range(_count(runs)):
            one = partial(jax.tree.map, lambda x, i=i: x[i : i + 1])
            results.append(compiled(pool, one(runs), one(state)))
        return jax.tree.map(lambda *xs: jnp.concatenate(xs), *results)

    return call


def _mesh():
    """This process's own devices: every process of many runs a share of the runs."""
    devices = jax.local_devices()
    types = (AxisType.Auto,)
    return jax.make_mesh((len(devices),), ("run",), axis_types=types, devices=devices)


def _padded(call, multiple, pool, runs, state):
    """Repeats the last run until every device has as many as the others."""
    count = _count(runs)
    missing = -count % multiple
    if not missing:
        return call(pool, runs, state)
    rows = jnp.minimum(jnp.arange(count + missing), count - 1)
    more = partial(jax.tree.map, lambda x: x[rows])
    results = call(pool, more(runs), more(state))
    return jax.tree.map(lambda x: x[:count], results)


def _count(runs):
    return len(jax.tree.leaves(runs)[0])
