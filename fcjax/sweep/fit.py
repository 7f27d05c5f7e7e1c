"""What a grid takes on devices that need not be there: `--on v5e:4x4`.

Its programs are compiled for them, and nothing is run: what is said of time is a bound,
what the arithmetic or the memory of a chip needs at the least.
"""

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from fcjax import engine
from fcjax.data.conversion import counted
from fcjax.data.placement import readable
from fcjax.sweep import hlo
from fcjax.sweep.experiment import Experiment
from fcjax.sweep.plan import Batch
from fcjax.types import Grid


class Chip(NamedTuple):
    """As its maker says."""

    operations: float
    """A second, of bfloat16."""
    bandwidth: float
    """Bytes a second, of its memory."""
    memory: int
    """Bytes."""


CHIPS = {
    "v5e": Chip(197e12, 819e9, 16 * 2**30),
    "v5p": Chip(459e12, 2765e9, 95 * 2**30),
    "v6e": Chip(918e12, 1640e9, 32 * 2**30),
}
"""https://cloud.google.com/tpu/docs/system-architecture-tpu-vm"""


class Fitted(NamedTuple):
    """One program of a batch, compiled."""

    name: str
    seconds: float
    """That it took."""
    memory: Any
    """As `jax.stages.Compiled.memory_analysis`, of a device."""
    cost: hlo.Cost


def described(topology: str) -> list[Any]:
    """Returns the devices of a topology, as v5e:2x2.

    Raises:
        ValueError: there is no such topology, or nothing to compile for it.
    """
    # The compiler would look for a machine with TPUs around this one.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    from jax.experimental import topologies

    if topology.partition(":")[0] not in CHIPS:
        raise ValueError(
            f"--on must be one of {', '.join(CHIPS)} and a shape, as v5e:2x2, "
            f"got {topology}"
        )
    try:
        found = topologies.get_topology_desc(topology_name=topology, platform="tpu")
    except Exception as error:
        line = str(error).partition("\n")[0]
        raise ValueError(
            f"--on {topology}: {line} (compilers for TPUs: pip install fcjax[tpu])"
        ) from error
    return list(found.devices)


def shapes(batch: Batch, experiment: Experiment) -> Grid:
    grid = batch.grid(experiment.pool)
    federations = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), grid.federations
    )
    return grid._replace(federations=federations)


def compile_for(
    devices: Sequence[Any], batch: Batch, experiment: Experiment
) -> Iterator[Fitted]:
    """Yields all programs that the runs of a batch take side by side.

    Raises:
        jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED, one does not fit.
    """
    program = engine.Program(batch.build, devices=devices)
    with jax.default_matmul_precision(experiment.args.precision):
        for name, lowered in program.lower(shapes(batch, experiment)):
            start = time.perf_counter()
            compiled = lowered.compile()
            seconds = time.perf_counter() - start
            cost = hlo.cost(compiled.as_text() or "")
            yield Fitted(name, seconds, compiled.memory_analysis(), cost)


def fit(experiment: Experiment, topology: str) -> None:
    """Compiles a grid's programs for a topology and prints what they take."""
    devices, chip = described(topology), CHIPS[topology.partition(":")[0]]
    hosts = len({device.process_index for device in devices})
    print(
        f"{topology}: {len(devices)} x {devices[0].device_kind} on "
        f"{counted(hosts, 'host')}, {readable(chip.memory)} each"
    )
    for batch in experiment.batches:
        part = batch.take(range(min(len(batch.points), len(devices))))
        print(f"{counted(len(part.points), 'run')} side by side, on each device:")
        try:
            for fitted in compile_for(devices, part, experiment):
                print(line(fitted, chip), flush=True)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            print("the next does not fit:", str(error).partition("\n")[0])


def line(fitted: Fitted, chip: Chip) -> str:
    """Returns what is said of a program."""
    cost, memory = fitted.cost, fitted.memory
    least = max(cost.operations / chip.operations, cost.moved / chip.bandwidth)
    exchanged = [f"{count} {kind}" for kind, count in cost.collectives.items()]
    said = [
        f"{fitted.name}: compiled in {fitted.seconds:.1f} s",
        f"memory {readable(memory.argument_size_in_bytes)} of arguments, "
        f"{readable(memory.temp_size_in_bytes)} of temporaries, "
        f"{readable(memory.generated_code_size_in_bytes)} of code",
        f"{cost.operations:.3g} operations, {readable(cost.moved)} moved, "
        f"{' and '.join(exchanged) or 'nothing'} exchanged",
        f"takes {least:.3g} s at least",
    ]
    if cost.open_loops:
        said.append(
            f"{counted(cost.open_loops, 'loop')} of unknown length counted once"
        )
    return "; ".join(said)
