"""How many runs fit side by side, and what they take: read in the compiled programs.

`--on v5e:4x4` answers for devices that need not be there. Nothing is run. Times are
lower bounds: the time of the arithmetic at the chip's peak rates.
"""

import json
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax

from fcjax import engine
from fcjax.data.dataset import counted
from fcjax.data.federation import device_memory, readable
from fcjax.parallel.mesh import all_devices
from fcjax.sweep import costs, plan
from fcjax.sweep.costs import Chip
from fcjax.sweep.experiment import Experiment
from fcjax.sweep.plan import Batch
from fcjax.types import Grid

log = logging.getLogger("fcjax")

SHARE = 0.9
"""Share of a device's memory for programs: checkpoints and scores need some too."""


COLLECTIVES = re.compile(
    r" (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)"
    r"(?:-start)?\("
)
"""XLA's names of the exchanges between devices."""


class Fitted(NamedTuple):
    """A compiled program of a batch."""

    name: str
    times: int
    """How often a call runs the program, at most."""
    seconds: float
    """Seconds of the compiler."""
    memory: Any
    """`jax.stages.Compiled.memory_analysis`, of one device."""
    counts: costs.Counts
    collectives: Counter[str]
    """Number of exchanges between devices in the program's text. One in a loop counts
    once."""

    @property
    def num_bytes(self) -> int:
        """Bytes of a device's memory while the program runs."""
        memory = self.memory
        own = memory.output_size_in_bytes - memory.alias_size_in_bytes
        return (
            memory.argument_size_in_bytes
            + own
            + memory.temp_size_in_bytes
            + memory.generated_code_size_in_bytes
        )


def compile_for(
    devices: Sequence[Any], batch: Batch, experiment: Experiment, *, only: str = ""
) -> Iterator[Fitted]:
    """Yields all programs of the runs of a batch side by side, or the one of a name.

    Raises:
        jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED, a program does not fit.
    """
    program = engine.Program(batch.build, devices=devices)
    with jax.default_matmul_precision(experiment.task.options.precision):
        for part in program.parts(shapes(batch, experiment)):
            if only not in ("", part.name):
                continue
            traced = part.trace()
            lowered = traced.lower()
            start = time.perf_counter()
            compiled = lowered.compile()
            seconds = time.perf_counter() - start
            yield Fitted(
                part.name,
                part.times,
                seconds,
                compiled.memory_analysis(),
                costs.count(traced.jaxpr),
                Counter(COLLECTIVES.findall(compiled.as_text() or "")),
            )


def shapes(batch: Batch, experiment: Experiment) -> Grid:
    grid = experiment.grid(batch)
    federations = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), grid.federations
    )
    return grid._replace(federations=federations)


def is_out_of_memory(error: RuntimeError) -> bool:
    return "RESOURCE_EXHAUSTED" in str(error)


def largest_that_fits(
    bytes_of: Callable[[int], int | float], *, limit: float, most: int
) -> int:
    """Returns how many runs fit on a device side by side.

    Compiles for one run and for a second number of runs. The line through the bytes of
    both gives the result, which is compiled, too.

    Args:
        bytes_of: bytes for a number of runs; infinite where the compiler refuses.
        limit: bytes that the runs may take.
        most: number of runs that are asked for.

    Returns:
        0 to `most`.

    Examples:
        >>> largest_that_fits(lambda count: 60 + 10 * count, limit=155.0, most=100)
        9
    """
    one_bytes = bytes_of(1)
    if one_bytes > limit or most == 1:
        return int(one_bytes <= limit)
    second = min(most, max(2, int(limit // one_bytes)))
    while bytes_of(second) > limit:
        second //= 2
    if second in (1, most):
        return second
    each = max(1.0, (bytes_of(second) - one_bytes) / (second - 1))
    count = min(most, second + int((limit - bytes_of(second)) // each))
    return count if bytes_of(count) <= limit else second


def with_measured_width(experiment: Experiment) -> Experiment:
    """Returns the experiment with as many runs side by side as fit by their compiled
    programs on the devices here. On a CPU, or where a flag sets the number of runs, the
    experiment stays as it is.

    The programs that are compiled here are the ones that run: the compilation cache has
    them.
    """
    memory, options = device_memory(), experiment.task.options
    is_set = options.runs_per_call is not None or options.backend == "loop"
    if memory is None or is_set:
        return experiment
    devices, limit = all_devices(), SHARE * memory

    def widen(batch: Batch) -> Batch:
        @cache
        def bytes_of(count: int) -> int | float:
            # Pending runs, repeated where others are done: shapes are the grid's.
            num_runs = min(count * len(devices), batch.num_requested)
            part = batch.take(i % len(batch.points) for i in range(num_runs))
            return most_bytes(compile_for(devices, part, experiment))

        most = -(-batch.num_requested // len(devices))
        count = max(1, largest_that_fits(bytes_of, limit=limit, most=most))
        width = plan.width(batch.num_requested, count * len(devices))
        return batch._replace(runs_per_call=width)

    return experiment._replace(batches=tuple(map(widen, experiment.batches)))


def most_bytes(programs: Iterator[Fitted]) -> int | float:
    """Returns the bytes of the largest program, infinity where one does not fit."""
    try:
        return max(program.num_bytes for program in programs)
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return math.inf


def fit(
    experiment: Experiment, topology: str, devices: Sequence[Any], chip: Chip
) -> None:
    """Compiles a grid's programs for a topology, says what they take, and writes it
    into OUT/fit/TOPOLOGY.json.

    Args:
        experiment: the grid.
        topology: its name.
        devices, chip: see `costs.absent_devices`.
    """
    hosts = len({device.process_index for device in devices})
    log.info(
        f"{topology}: {len(devices)} x {devices[0].device_kind} on "
        f"{counted(hosts, 'host')}, {readable(chip.memory)} each"
    )
    record = {
        "topology": topology,
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "hosts": hosts,
        "jax": jax.__version__,
        "precision": experiment.task.options.precision,
        "batches": [
            fit_batch(devices, chip, batch, experiment) for batch in experiment.batches
        ],
    }
    path = experiment.folder.directory / "fit" / f"{topology.replace(':', '-')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1))
    log.info(f"written to {path}")


def fit_batch(
    devices: Sequence[Any], chip: Chip, batch: Batch, experiment: Experiment
) -> dict[str, Any]:
    """Returns what the runs of a batch take, with as many side by side as fit."""
    num_runs, asked = len(batch.points), experiment.task.options.runs_per_call
    most = -(-(num_runs if asked is None else asked) // len(devices))
    compiled: dict[int, list[Fitted]] = {}

    @cache
    def bytes_of(count: int) -> int | float:
        part = batch.take(range(min(num_runs, count * len(devices))))
        log.info(f"{counted(len(part.points), 'run')} side by side; each device:")
        log.info(HEADER)
        compiled[count] = []

        def programs() -> Iterator[Fitted]:
            for program in compile_for(devices, part, experiment):
                log.info(line(program, chip))
                compiled[count].append(program)
                yield program

        size = most_bytes(programs())
        if size == math.inf:
            log.info("the next program does not fit: the compiler refuses it")
        return size

    count = largest_that_fits(bytes_of, limit=SHARE * chip.memory, most=most)
    result: dict[str, Any] = {
        "runs": num_runs,
        "runs_a_device": count,
        "programs": {
            number: [row(program, chip) for program in programs]
            for number, programs in compiled.items()
        },
    }
    if count == 0:
        log.info(
            "one run does not fit on these devices: try larger ones, or more of them"
        )
        return result
    width = min(num_runs, count * len(devices))
    calls = -(-num_runs // width)
    least = calls * sum(x.times * least_seconds(x, chip) for x in compiled[count])
    result |= {"runs_side_by_side": width, "calls": calls, "least_seconds": least}
    limited = "all that are asked for" if count == most else "no more fit"
    log.info(
        f"{counted(count, 'run')} per device, {limited} (the largest program takes "
        f"{readable(int(bytes_of(count)))}): {counted(calls, 'call')} for "
        f"{counted(num_runs, 'run')}, at least {least:.3g} s"
    )
    if any(program.counts.open_loops for program in compiled[count]):
        log.info("*: the data decide the length of a loop; its body counts once")
    return result


def least_seconds(program: Fitted, chip: Chip) -> float:
    return chip.least_seconds(program.counts.operations)


HEADER = (
    f"{'program':18} {'times':>6} {'compiled':>9} {'arguments':>10} "
    f"{'temporaries':>12} {'code':>10} {'operations':>11} {'at least':>10} exchanges"
)


def line(program: Fitted, chip: Chip) -> str:
    """Returns the row of a program below `HEADER`."""
    memory, counts = program.memory, program.counts
    exchanges = (f"{number} {name}" for name, number in program.collectives.items())
    return (
        f"{program.name + '*' * bool(counts.open_loops):18} {program.times:6} "
        f"{program.seconds:7.1f} s {readable(memory.argument_size_in_bytes):>10} "
        f"{readable(memory.temp_size_in_bytes):>12} "
        f"{readable(memory.generated_code_size_in_bytes):>10} "
        f"{counts.operations.total():11.3g} {least_seconds(program, chip):8.3g} s "
        f"{' and '.join(exchanges) or 'none'}"
    )


def row(program: Fitted, chip: Chip) -> dict[str, Any]:
    """Returns the entry of a program in the JSON file, of one device."""
    memory, counts = program.memory, program.counts
    return {
        "program": program.name,
        "times": program.times,
        "compile_seconds": round(program.seconds, 1),
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
        "bytes": program.num_bytes,
        "operations": counts.operations.total(),
        "operations_by_precision": counts.operations,
        "collectives": program.collectives,
        "open_loops": counts.open_loops,
        "least_seconds": least_seconds(program, chip),
    }
