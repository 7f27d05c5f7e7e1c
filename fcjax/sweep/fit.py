"""How many runs fit side by side, and what they take: read in the compiled programs.

`--on v5e:4x4` says it of devices that need not be there. Nothing is run. Times are
lower bounds: the time of the arithmetic or of the memory traffic, whichever is longer.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
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

SHARE = 0.9
"""Of a device's memory that programs may take: checkpoints and scores need some too."""


class Fitted(NamedTuple):
    """One program of a batch, compiled."""

    name: str
    times: int
    """That a call runs it, at the most."""
    seconds: float
    """That compiling took."""
    memory: Any
    """As `jax.stages.Compiled.memory_analysis`, of a device."""
    operations: costs.Operations
    cost: costs.Cost

    @property
    def open_loops(self) -> int:
        """Loops of unknown length, of the traced or of the compiled program."""
        return max(self.operations.open_loops, self.cost.open_loops)

    @property
    def num_bytes(self) -> int:
        """Of a device's memory while it runs."""
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
    """Yields all programs that the runs of a batch take side by side, or one by name.

    Raises:
        jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED, one does not fit.
    """
    program = engine.Program(batch.build, devices=devices)
    with jax.default_matmul_precision(experiment.args.precision):
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
                costs.cost(compiled.as_text() or ""),
            )


def shapes(batch: Batch, experiment: Experiment) -> Grid:
    grid = experiment.grid(batch)
    federations = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), grid.federations
    )
    return grid._replace(federations=federations)


def is_too_large(error: RuntimeError) -> bool:
    return "RESOURCE_EXHAUSTED" in str(error)


def widened(experiment: Experiment) -> Experiment:
    """Returns the experiment with as many runs side by side as their compiled programs
    leave room for on the devices here; on a CPU, or where the flags say it, as it is.

    What is compiled to find it is what then runs, and the compilation cache has it.
    """
    memory, args = device_memory(), experiment.args
    if memory is None or args.runs_per_call is not None or args.backend != "shard_map":
        return experiment
    devices, limit = all_devices(), SHARE * memory

    def widened(batch: Batch) -> Batch:
        def bytes_of(count: int) -> int | None:
            # Of what is pending, repeated where runs are done: shapes are the grid's.
            num_runs = min(count * len(devices), batch.num_asked)
            part = batch.take(i % len(batch.points) for i in range(num_runs))
            try:
                each = compile_for(devices, part, experiment)
                return max(fitted.num_bytes for fitted in each)
            except jax.errors.JaxRuntimeError as error:
                if not is_too_large(error):
                    raise
                return None

        first, most = (
            -(-number // len(devices))
            for number in (batch.side_by_side, batch.num_asked)
        )
        count = max(1, largest(bytes_of, limit=limit, most=most, first=first))
        width = plan.width(batch.num_asked, count * len(devices))
        return batch._replace(side_by_side=width)

    return experiment._replace(batches=tuple(map(widened, experiment.batches)))


def largest(
    bytes_of: Callable[[int], int | None], *, limit: float, most: int, first: int = 1
) -> int:
    """Returns how many runs fit, found by compiling for as few numbers of them as
    needed: what a run takes beside others is about the same for each.

    Args:
        bytes_of: what so many runs take; None where the compiler says too much.
        limit: bytes that they may take.
        most: runs that there are.
        first: number to begin with.

    Returns:
        0 to `most`; more than it would not fit by what it and fewer take.

    Examples:
        >>> def bytes_of(count):  # compiled for 1, 6 and 9 runs
        ...     return 60 + 10 * count if count < 20 else None
        >>> largest(bytes_of, limit=150.0, most=100)
        9
    """
    known: dict[int, int | None] = {}
    count = min(first, most)
    while count not in known:
        known[count] = bytes_of(count)
        fits = max(
            (n for n, size in known.items() if size and size <= limit), default=0
        )
        too_many = min((n for n in known if n > fits), default=most + 1)
        count = foretold(known, limit)
        if count >= too_many:
            count = (fits + too_many) // 2 if too_many <= most else most
        count = max(count, fits, 1)
    return fits


def foretold(known: dict[int, int | None], limit: float) -> int:
    """Returns how many runs fit by the line through the two largest numbers of them
    whose bytes are known. Of one number a part may be for any: another is tried."""
    points = sorted((n, size) for n, size in known.items() if size is not None)
    if not points:
        return min(known)
    (low, low_bytes), (high, high_bytes) = [(0, 0), *points][-2:]
    each = max(1.0, (high_bytes - low_bytes) / (high - low))
    count = high + int((limit - high_bytes) // each)
    return max(count, high + 1) if len(points) == 1 and high_bytes <= limit else count


def fit(
    experiment: Experiment, topology: str, devices: Sequence[Any], chip: Chip
) -> None:
    """Compiles a grid's programs for a topology, prints what they take, and writes it
    into OUT/fit/TOPOLOGY.json.

    Args:
        experiment: the grid.
        topology: its name.
        devices, chip: see `chips.described`.
    """
    hosts = len({device.process_index for device in devices})
    print(
        f"{topology}: {len(devices)} x {devices[0].device_kind} on "
        f"{counted(hosts, 'host')}, {readable(chip.memory)} each"
    )
    told = {
        "topology": topology,
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "hosts": hosts,
        "jax": jax.__version__,
        "precision": experiment.args.precision,
        "batches": [
            fit_batch(topology, devices, chip, x, experiment)
            for x in experiment.batches
        ],
    }
    path = experiment.folder.directory / "fit" / f"{topology.replace(':', '-')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=1))
    print(f"written to {path}")


def fit_batch(
    topology: str,
    devices: Sequence[Any],
    chip: Chip,
    batch: Batch,
    experiment: Experiment,
) -> dict[str, Any]:
    """Returns what the runs of a batch take, side by side as many as fit."""
    num_runs, asked = len(batch.points), experiment.args.runs_per_call
    most = -(-(num_runs if asked is None else asked) // len(devices))
    first = 1 if asked is None else most
    found: dict[int, list[Fitted]] = {}

    def bytes_of(count: int, only: str = "") -> int | None:
        part = batch.take(range(min(num_runs, count * len(devices))))
        print(f"{counted(len(part.points), 'run')} side by side; each device:")
        print(HEADER)
        found[count] = []
        try:
            for fitted in compile_for(devices, part, experiment, only=only):
                print(line(fitted, chip), flush=True)
                found[count].append(fitted)
        except jax.errors.JaxRuntimeError as error:
            if not is_too_large(error):
                raise
            print("the next does not fit:", str(error).partition("\n")[0])
            return None
        return largest_of(found[count]).num_bytes

    def of_largest(count: int) -> int | None:
        """Of the program alone that is the largest for the first number of runs."""
        if not found or asked is not None:
            return bytes_of(count)
        return bytes_of(count, largest_of(found[first]).name)

    limit = SHARE * chip.memory
    count = largest(of_largest, limit=limit, most=most, first=first)
    while count > first and (bytes_of(count) or math.inf) > limit:
        count -= 1  # another program grows faster
    told: dict[str, Any] = {"runs": num_runs, "runs_a_device": count}
    told["programs"] = {
        tried: [record(fitted, chip) for fitted in each]
        for tried, each in found.items()
    }
    if count == 0:
        told["enough"] = enough_for(topology, batch, experiment, found[1])
        enough = told["enough"] or "no larger topology that is known"
        print(f"one run alone is too large here; {enough} would do")
        return told
    width = min(num_runs, count * len(devices))
    calls = -(-num_runs // width)
    least = calls * sum(x.times * least_seconds(x, chip) for x in found[count])
    top = largest_of(found[count])
    told |= {"runs_side_by_side": width, "calls": calls, "least_seconds": least}
    every = "as many as there are" if asked is None else "as many as are asked for"
    more = every if count == most else "no more fit"
    print(
        f"{count} a device, {more} ({top.name} takes {readable(top.num_bytes)}): "
        f"{counted(calls, 'call')} for {counted(num_runs, 'run')}, at least "
        f"{least:.3g} s, {3600 * num_runs / least:.3g} runs an hour at best"
    )
    if any(fitted.open_loops for fitted in found[count]):
        print("*: has loops whose length the data decides; they count as one turn")
    return told


def enough_for(
    topology: str, batch: Batch, experiment: Experiment, tried: Sequence[Fitted]
) -> str:
    """Returns the smallest of the larger topologies that has room for what did not fit
    of one run, spread over all of it; nothing where none is known to.

    Args:
        topology: that is too small.
        batch: of the run.
        experiment: of the batch.
        tried: the programs that were compiled before one did not fit, or all.
    """
    run = batch.take([0])
    for name in costs.larger(topology):
        devices, chip = costs.described(name)
        program = engine.Program(batch.build, devices=devices)
        names = [part.name for part in program.parts(shapes(run, experiment))]
        top = names[len(tried)] if len(tried) < len(names) else largest_of(tried).name
        try:
            fitted = next(iter(compile_for(devices, run, experiment, only=top)))
        except jax.errors.JaxRuntimeError as error:
            if not is_too_large(error):
                raise
            continue
        if fitted.num_bytes <= SHARE * chip.memory:
            return f"{name}, {counted(len(devices), 'device')},"
    return ""


def largest_of(each: Sequence[Fitted]) -> Fitted:
    return max(each, key=lambda fitted: fitted.num_bytes)


def least_seconds(fitted: Fitted, chip: Chip) -> float:
    return chip.least_seconds(fitted.operations.counts, fitted.cost.moved)


COLUMNS = {
    **{"program": "<18", "times": ">6", "compiled": ">9", "arguments": ">10"},
    **{"temporaries": ">12", "code": ">10", "operations": ">11", "moved": ">10"},
    **{"at least": ">10", "exchanged": "<1"},
}
HEADER = " ".join(f"{name:{width}}" for name, width in COLUMNS.items())


def line(fitted: Fitted, chip: Chip) -> str:
    """Returns what is said of a program: a row below `HEADER`."""
    cost, memory = fitted.cost, fitted.memory
    exchanged = [
        f"{count} {kind} of {readable(cost.sent[kind])}"
        for kind, count in cost.collectives.items()
    ]
    cells = [
        fitted.name + "*" * bool(fitted.open_loops),
        str(fitted.times),
        f"{fitted.seconds:.1f} s",
        readable(memory.argument_size_in_bytes),
        readable(memory.temp_size_in_bytes),
        readable(memory.generated_code_size_in_bytes),
        f"{fitted.operations.counts.total():.3g}",
        readable(cost.moved),
        f"{least_seconds(fitted, chip):.3g} s",
        " and ".join(exchanged) or "nothing",
    ]
    widths = COLUMNS.values()
    return " ".join(f"{x:{width}}" for x, width in zip(cells, widths, strict=True))


def record(fitted: Fitted, chip: Chip) -> dict[str, Any]:
    """Returns what is written of a program: bytes, seconds, of one device."""
    memory, cost = fitted.memory, fitted.cost
    return {
        "program": fitted.name,
        "times": fitted.times,
        "compile_seconds": round(fitted.seconds, 1),
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
        "bytes": fitted.num_bytes,
        "operations": fitted.operations.counts.total(),
        "operations_by_precision": fitted.operations.counts,
        "moved_bytes": cost.moved,
        "collectives": cost.collectives,
        "sent_bytes": cost.sent,
        "open_loops": fitted.open_loops,
        "least_seconds": least_seconds(fitted, chip),
    }
