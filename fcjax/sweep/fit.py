"""Estimates how many runs fit on a device, and their time, from compiled programs.

`--on v5e:4x4` compiles for devices that need not be present. Nothing is run. Times are
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
"""Share of a device's memory for programs. Checkpoints and scores need memory, too."""


COLLECTIVES = re.compile(
    r" (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)"
    r"(?:-start)?\("
)
"""XLA's names of the collective operations, which communicate between devices."""


INSTRUCTION = re.compile(
    r"^ +(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][a-z0-9-]*)\((.*)$", re.MULTILINE
)
"""An instruction in the text of a compiled program: name, type, opcode and the rest."""
ARRAY = re.compile(r"\b(pred|bf|[a-z])(\d*)(?:\w*)\[([\d,]*)\]")
"""The type of an array in this text: kind, bits and shape."""
NO_KERNEL = {
    *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all"),
    *("while", "conditional", "call", "partition-id", "replica-id"),
    *("copy-start", "copy-done", "slice-start", "slice-done"),
}
"""Opcodes that start no kernel. A TPU copies to its fast memory during kernels."""


class Body(NamedTuple):
    """The largest loop body of a compiled program.

    For an algorithm of this package this body is a local training step.
    """

    kernels: Counter[str]
    """Number of instructions that start a kernel, by opcode."""
    num_bytes: int
    """Bytes of the operands and results of all kernels. The caches of a device may save
    some of this traffic."""


class Fitted(NamedTuple):
    """A compiled program of a batch."""

    name: str
    times: int
    """Upper bound on the number of executions per call."""
    seconds: float
    """Compile time."""
    memory: Any
    """`jax.stages.Compiled.memory_analysis` of one device."""
    counts: costs.Counts
    """Operations on one device."""
    collectives: Counter[str]
    """Number of collective operations in the text of the program, by name. An operation
    in a loop counts once."""
    body: Body
    """The largest loop body."""

    @property
    def num_bytes(self) -> int:
        """Bytes of device memory while the program runs."""
        memory = self.memory
        # Results that reuse the memory of arguments are counted with the arguments.
        results = memory.output_size_in_bytes - memory.alias_size_in_bytes
        return (
            memory.argument_size_in_bytes
            + results
            + memory.temp_size_in_bytes
            + memory.generated_code_size_in_bytes
        )


def compile_for(
    devices: Sequence[Any], batch: Batch, experiment: Experiment, *, only: str = ""
) -> Iterator[Fitted]:
    """Compiles the programs of the runs of a batch, all trained at the same time.

    If a program does not fit on the devices, JAX raises `jax.errors.JaxRuntimeError`
    with RESOURCE_EXHAUSTED.

    Args:
        devices: the devices to compile for.
        batch: the runs.
        experiment: the grid of the batch.
        only: the name of the only program to compile; empty compiles all.

    Yields:
        Fitted: a compiled program.
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
            text = compiled.as_text() or ""
            yield Fitted(
                part.name,
                part.times,
                seconds,
                compiled.memory_analysis(),
                costs.count(traced.jaxpr),
                Counter(COLLECTIVES.findall(text)),
                largest_body(text),
            )


def largest_body(text: str) -> Body:
    """Finds the largest loop body of a compiled program.

    Args:
        text: the program as XLA prints it.

    Returns:
        The body of the `while` loop with the largest number of kernels; an empty body
        without a loop.
    """
    names = {*re.findall(r"body=%?([\w.-]+)", text)}
    bodies = [Body(Counter(), 0)]
    for computation in re.split(r"^}", text, flags=re.MULTILINE):
        header = re.search(r"^(?:ENTRY )?%?([\w.-]+) .*{$", computation, re.MULTILINE)
        if not header or header[1] not in names:
            continue
        instructions = INSTRUCTION.findall(computation)
        types = {name: kind for name, kind, *_ in instructions}
        kernels, num_bytes = Counter(), 0
        for _, kind, opcode, rest in instructions:
            if opcode in NO_KERNEL:
                continue
            kernels[opcode] += 1
            operands = re.findall(r"%([\w.-]+)", rest.partition(")")[0])
            num_bytes += sum(
                bytes_of_type(types.get(name, "")) for name in operands
            ) + bytes_of_type(kind)
            if opcode == "custom-call":  # The results of cuBLAS include its workspace.
                num_bytes -= sum(map(int, re.findall(r"\bs8\[(\d+)\]", kind)))
        bodies.append(Body(kernels, num_bytes))
    return max(bodies, key=lambda body: body.kernels.total())


def bytes_of_type(text: str) -> int:
    """Returns the bytes of a type in the text of a compiled program.

    Args:
        text: the type of an array or of a tuple of arrays.

    Returns:
        The bytes of all arrays.

    Examples:
        >>> bytes_of_type("(f32[10,4]{1,0}, pred[3])")
        163
    """
    return sum(
        max(1, int(bits or 8) // 8)
        * math.prod(map(int, filter(None, shape.split(","))))
        for _, bits, shape in ARRAY.findall(text)
    )


def shapes(batch: Batch, experiment: Experiment) -> Grid:
    """Returns the grid of a batch with the shapes of its federations, without data.

    Args:
        batch: the runs.
        experiment: the grid of the batch.

    Returns:
        The grid, with a `jax.ShapeDtypeStruct` for each array of the federations.
    """
    grid = experiment.grid(batch)
    federations = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), grid.federations
    )
    return grid._replace(federations=federations)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Returns whether an error of JAX means that the device has too little memory.

    Args:
        error: the error of JAX.

    Returns:
        True for RESOURCE_EXHAUSTED.
    """
    return "RESOURCE_EXHAUSTED" in str(error)


def largest_that_fits(
    bytes_of: Callable[[int], int | float], *, limit: float, most: int
) -> int:
    """Finds the largest number of runs that fit on a device at the same time.

    It compiles for one run and for a second number of runs. A line through both sizes
    predicts the result, which is compiled as well.

    Args:
        bytes_of: (number of runs) -> bytes; infinity if the compiler refuses.
        limit: the bytes that the runs may take.
        most: the largest useful number of runs.

    Returns:
        The number of runs, 0 to `most`.

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
    """Sets the number of runs per call to the largest number that fits on the devices.

    The memory is measured on compiled programs. The compilation cache keeps these
    programs for the training. On a CPU, or if a flag sets the number of runs, the
    experiment stays as it is.

    Args:
        experiment: the grid.

    Returns:
        The grid with the new number of runs per call in every batch.
    """
    memory, options = device_memory(), experiment.task.options
    is_set = options.runs_per_call is not None or options.backend == "loop"
    if memory is None or is_set:
        return experiment
    devices, limit = all_devices(), SHARE * memory

    def widen(batch: Batch) -> Batch:
        @cache
        def bytes_of(count: int) -> int | float:
            # A resumed grid keeps its width, so finished runs are replaced by copies of
            # pending ones. Only the shapes matter.
            num_runs = min(count * len(devices), batch.num_requested)
            part = batch.take(i % len(batch.points) for i in range(num_runs))
            return most_bytes(compile_for(devices, part, experiment))

        most = -(-batch.num_requested // len(devices))
        count = max(1, largest_that_fits(bytes_of, limit=limit, most=most))
        width = plan.width(batch.num_requested, count * len(devices))
        return batch._replace(runs_per_call=width)

    return experiment._replace(batches=tuple(map(widen, experiment.batches)))


def most_bytes(programs: Iterator[Fitted]) -> int | float:
    """Returns the bytes of the largest program.

    Args:
        programs: compiles the programs one after another.

    Returns:
        Bytes; infinity if a program does not fit.
    """
    try:
        return max(program.num_bytes for program in programs)
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return math.inf


def fit(
    experiment: Experiment, topology: str, devices: Sequence[Any], chip: Chip
) -> None:
    """Estimates time and memory of a grid on a topology.

    The estimate is logged and written to OUT/fit/TOPOLOGY.json.

    Args:
        experiment: the grid.
        topology: the name of the topology, such as "v5e:2x2".
        devices: the devices to compile for, of `costs.absent_devices`.
        chip: the peak rates and memory of a device.
    """
    hosts = len({device.process_index for device in devices})
    log.info(
        f"target {topology}: {len(devices)} x {devices[0].device_kind} on "
        f"{counted(hosts, 'host')}, memory {readable(chip.memory)} per device"
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
    log.info(f"open next: {path} (all programs and sizes)")


def fit_batch(
    devices: Sequence[Any], chip: Chip, batch: Batch, experiment: Experiment
) -> dict[str, Any]:
    """Estimates time and memory of a batch, with as many runs per call as fit.

    Args:
        devices: the devices to compile for.
        chip: the peak rates and memory of a device.
        batch: the runs.
        experiment: the grid of the batch.

    Returns:
        The entry of the batch in the JSON file.
    """
    num_runs, requested = len(batch.points), experiment.task.options.runs_per_call
    most = -(-(num_runs if requested is None else requested) // len(devices))
    compiled: dict[int, list[Fitted]] = {}

    @cache
    def bytes_of(count: int) -> int | float:
        part = batch.take(range(min(num_runs, count * len(devices))))
        log.info(f"{counted(len(part.points), 'run')} at a time; values per device:")
        log.info(HEADER)
        compiled[count] = []

        def programs() -> Iterator[Fitted]:
            for program in compile_for(devices, part, experiment):
                log.info(line(program, chip))
                compiled[count].append(program)
                yield program

        size = most_bytes(programs())
        if size == math.inf:
            log.info("the next program does not fit in the memory of a device")
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
            "one run does not fit on these devices: use larger devices or more devices"
        )
        return result
    width = min(num_runs, count * len(devices))
    calls = -(-num_runs // width)
    least = calls * sum(x.times * least_seconds(x, chip) for x in compiled[count])
    result |= {"runs_side_by_side": width, "calls": calls, "least_seconds": least}
    reason = "as requested" if count == most else "more do not fit"
    log.info(
        "  times: largest number of executions; lower bound: time of the operations at "
        "the chip's peak rate"
    )
    if any(program.counts.open_loops for program in compiled[count]):
        log.info("  *: a loop whose length depends on the data counts once")
    log.info(
        f"result: {counted(count, 'run')} per device ({reason}), largest program "
        f"{readable(int(bytes_of(count)))}, {counted(calls, 'call')} for "
        f"{counted(num_runs, 'run')}, lower bound of the time {least:.3g} s"
    )
    return result


def least_seconds(program: Fitted, chip: Chip) -> float:
    """Returns a lower bound of the seconds of one execution of a program.

    Args:
        program: the compiled program.
        chip: the peak rates of the device.

    Returns:
        The seconds of the arithmetic at the peak rates.
    """
    return chip.least_seconds(program.counts.operations)


HEADER = (
    f"{'program':18} {'times':>6} {'compiling':>9} {'arguments':>10} "
    f"{'temporaries':>12} {'code':>10} {'operations':>11} {'lower bound':>11} "
    "collectives"
)


def line(program: Fitted, chip: Chip) -> str:
    """Returns the line of a program in the printed table.

    Args:
        program: the compiled program.
        chip: the peak rates of the device.

    Returns:
        The cells in the columns of `HEADER`. The mark "*" stands for loops whose length
        depends on the data.
    """
    memory, counts = program.memory, program.counts
    collectives = (f"{number} {name}" for name, number in program.collectives.items())
    return (
        f"{program.name + '*' * bool(counts.open_loops):18} {program.times:6} "
        f"{program.seconds:7.1f} s {readable(memory.argument_size_in_bytes):>10} "
        f"{readable(memory.temp_size_in_bytes):>12} "
        f"{readable(memory.generated_code_size_in_bytes):>10} "
        f"{counts.operations.total():11.3g} {least_seconds(program, chip):9.3g} s "
        f"{' and '.join(collectives) or 'none'}"
    )


def row(program: Fitted, chip: Chip) -> dict[str, Any]:
    """Returns the entry of a program in the JSON file, for one device.

    Args:
        program: the compiled program.
        chip: the peak rates of the device.

    Returns:
        Values by name. Memory is in bytes and time in seconds.
    """
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
        "loop_kernels": program.body.kernels,
        "loop_bytes": program.body.num_bytes,
        "open_loops": counts.open_loops,
        "least_seconds": least_seconds(program, chip),
    }
