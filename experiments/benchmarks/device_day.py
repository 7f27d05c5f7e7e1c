"""Measures fcjax on an accelerator in ten minutes, and trains runs of the papers.

    python experiments/benchmarks/device_day.py --data-dir DIR
    python experiments/benchmarks/device_day.py --data-dir DIR --minutes 60
    python experiments/benchmarks/device_day.py --dry-run

The script writes Markdown tables for docs/benchmarks/accelerators.md. It adds each row
as soon as it is measured. If the script is given again with the same --out, finished
parts keep their rows, and the other parts are measured. The parts, in order, are:

- a round of CCFC at three precisions, and without the autotuning of kernels: time,
  share of the lower bound, kernels, memory
- CCFC's local training compared with a PyTorch loop on the same device
- grids of 40 runs of CCFC on the digits and on 10,000 images of MNIST
- the papers' rows that wait for a device, as many as fit into the time
- the stages of the other methods, on request: --parts fdsc sda-fdc fedmcc

Each part has a share of the time. Unused time goes to the later parts. A part that
fails or takes too long leaves a row that says so. --dry-run takes small sizes, for a
test on a CPU.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import tyro

from experiments.benchmarks import benchmark
from experiments.benchmarks.speed import on_device
from experiments.benchmarks.speed.commands import SHARED
from fcjax.cli.errors import exit_with_error
from fcjax.results.environment import compiler_options

Name = Literal[
    "ccfc-pretrain",
    "ccfc-pretrain-highest",
    "ccfc-pretrain-bfloat16",
    "ccfc-pretrain-no-autotuning",
    "ccfc-cluster",
    "torch",
    "grid-digits",
    "grid-mnist",
    "ccfc-mnist",
    "ccfc-mnist-seeds",
    "sda-fdc-mnist",
    "fdsc-mnist",
    "fedmcc-cifar10",
    "fdsc",
    "sda-fdc",
    "fedmcc",
    "fedcref",
]
ON_REQUEST = ("fdsc", "sda-fdc", "fedmcc", "fedcref")


@dataclasses.dataclass(frozen=True)
class Args:
    """Measures the devices that JAX finds, and writes tables."""

    data_dir: Path | None = None
    """Folder with MNIST and CIFAR-10 as prepared TFDS data sets. Without it, parts with
    these data are left out."""
    out: Path = Path("device_day.md")
    """Markdown file of the tables. The JSON file of the same name holds the rows of the
    finished parts; delete it to measure all parts again."""
    runs: Path = Path("runs/device_day")
    """Folder of the papers' runs. Stopped runs continue."""
    minutes: float = 10
    """Minutes for all parts together."""
    parts: tuple[Name, ...] = tuple(x for x in get_args(Name) if x not in ON_REQUEST)
    """Parts to measure. A single part has all the minutes."""
    dry_run: bool = False
    """Take small sizes: all parts in a few minutes on a CPU. The numbers have no
    meaning."""


class Table(NamedTuple):
    """A table of consecutive parts."""

    title: str
    note: str
    header: str
    shares: dict[Name, float]
    """Share of the time of each part, in minutes of ten."""


STAGES_NOTE = (
    "One run on random images: for each stage a first round and up to "
    f"{on_device.REPEATS} timed rounds. Programs are compiled as in `fcjax fit`, which "
    "predicts the memory per device; the first round loads them from a cache. Peaks "
    "are of the first device (on a CPU: of the process), after compilation, which "
    "tries out kernels, and after the rounds. kernels: in the largest loop body, which "
    "is a local step; GB/step: their operands and results. The bound is the time of "
    "the operations at the peak rate"
)
TABLES = [
    Table(
        "CCFC, one process per stage",
        f"{STAGES_NOTE}.",
        benchmark.titles(on_device.STAGES),
        {
            "ccfc-pretrain": 1.0,
            "ccfc-pretrain-highest": 0.7,
            "ccfc-pretrain-bfloat16": 0.8,
            "ccfc-pretrain-no-autotuning": 0.6,
            "ccfc-cluster": 0.8,
        },
    ),
    Table(
        "CCFC's local training compared with PyTorch",
        "One epoch of pre-training of all clients. JAX and PyTorch alternate on one "
        "device. Precision default: TF32 on a GPU, for both, and bfloat16 on a TPU. "
        f"Precision highest: float32. {benchmark.LEGENDS['local']}",
        benchmark.header(benchmark.Args("ccfc", against="torch")),
        {"torch": 0.8},
    ),
    Table(
        "A grid of CCFC: 8 seeds and 5 values of p",
        "wall: the whole command, with compilation. One PyTorch run: an epoch of "
        "pre-training of the same clients and network, times the rounds of both "
        "stages. ratio: 40 PyTorch runs, one after another, over the grid.",
        benchmark.titles(on_device.GRID),
        {"grid-digits": 1.0, "grid-mnist": 1.5},
    ),
    Table(
        "Rows of the papers",
        "`--preset paper`, stopped at the end of the time. The folders of results can "
        "be added to the ledger by `experiments/keep.py` once they are complete.",
        benchmark.titles(on_device.PAPERS),
        {part: 0.7 for part in get_args(Name) if part in on_device.WAITING},
    ),
    Table(
        "The other methods",
        f"{STAGES_NOTE} of this stage and the earlier stages.",
        benchmark.titles(on_device.STAGES),
        {part: 0.7 for part in get_args(Name) if part in ON_REQUEST},
    ),
]
NO_AUTOTUNING = [
    "--xla_gpu_autotune_level=0",
    "--xla_gpu_experimental_enable_fusion_autotuner=false",
    "--xla_gpu_enable_triton_gemm=false",
]
"""XLA's flags with which a program for a GPU compiles soonest."""
LEAST = 20
"""Minimum number of seconds for a part. With less time a part is left out."""


def check(args: Args) -> None:
    """Checks the command-line arguments.

    Args:
        args: the command-line arguments.

    Raises:
        ValueError: an argument is wrong. The message is one line that names the flag
            and the accepted values.
    """
    if not args.minutes > 0:
        raise ValueError(f"--minutes must be above 0, got {args.minutes}")
    if not args.parts:
        raise ValueError(f"--parts takes one or more of {', '.join(get_args(Name))}")
    if args.data_dir is not None and not args.data_dir.is_dir():
        raise ValueError(f"--data-dir {args.data_dir} is not a folder")
    if not args.out.parent.is_dir() or args.out.is_dir():
        raise ValueError(f"--out must be a file in an existing folder, got {args.out}")


def measure(part: str, args: Args, folder: Path, seconds: float) -> Iterator[str]:
    """Measures a part in a process of its own.

    Args:
        part: name of the part.
        args: the command-line arguments.
        folder: folder for temporary files.
        seconds: time limit of the part.

    Yields:
        str: the rows of the table. If the part fails, the last row says why.
    """
    repeat_command = command(
        dataclasses.replace(
            args,
            parts=(part,),
            out=args.out.with_stem(f"{args.out.stem}-{part}"),
        )
    )
    if seconds < LEAST:
        yield f"| {part} | left out, too little time; run `{repeat_command}` |"
        return
    values = {
        **{"--seconds": seconds, "--folder": folder, "--runs": args.runs},
        "--data-dir": args.data_dir,
    }
    flags = [str(x) for pair in values.items() if pair[1] is not None for x in pair]
    flags += ["--dry-run"] if args.dry_run else []
    errors, start = folder / "errors", time.perf_counter()
    with (
        errors.open("w") as file,
        subprocess.Popen(
            [sys.executable, on_device.__file__, part, *flags],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env=environment(part, folder),
        ) as process,
    ):
        watch = threading.Timer(seconds, process.kill)
        watch.start()
        for line in process.stdout or ():
            yield line.rstrip()
        code = process.wait()
        watch.cancel()
    if code and time.perf_counter() - start >= seconds:
        yield f"| {part} | stopped after {seconds:.0f} s; run `{repeat_command}` |"
    elif code:
        yield f"| {part} | failed, exit status {code}: {on_device.last_line(errors)} |"


def environment(part: str, folder: Path) -> dict[str, str]:
    """Returns the environment variables of a part.

    A measured part has an empty compilation cache. The papers' runs have the usual
    cache, so that a second start compiles nothing.

    Args:
        part: name of the part.
        folder: folder of the caches.

    Returns:
        The environment variables.
    """
    if part in on_device.WAITING:
        return {**os.environ, **SHARED}
    flags = {}
    if part.endswith("no-autotuning"):
        given = os.environ.get("XLA_FLAGS", "")
        flags = {"XLA_FLAGS": " ".join([given, *NO_AUTOTUNING])}
    return {
        **os.environ,
        **SHARED,
        **flags,
        "JAX_COMPILATION_CACHE_DIR": str(folder / f"compiled-{part}"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def command(args: Args) -> str:
    """Returns the command line of the arguments that differ from the defaults.

    It begins with the environment variables that set options of the compiler.

    Args:
        args: the command-line arguments.

    Returns:
        The command line.
    """
    options = compiler_options().items()
    words = ["python", "experiments/benchmarks/device_day.py"]
    for field in dataclasses.fields(args):
        value, flag = getattr(args, field.name), "--" + field.name.replace("_", "-")
        if value == field.default:
            continue
        values = value if isinstance(value, tuple) else (value,)
        words += [flag, *([] if value is True else map(str, values))]
    return "".join(f"{k}={shlex.quote(v)} " for k, v in options) + shlex.join(words)


def head(args: Args) -> str:
    """Returns the command, the commit, the date and the versions as text."""
    versions = [f"Python {platform.python_version()}"]
    for name in ("jax", "jaxlib", "torch"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    return (
        f"`{command(args)}`, commit {commit()}, {datetime.date.today()}, "
        f"{', '.join(versions)}"
    )


def commit() -> str:
    """Returns the commit of the checkout, marked if files differ from it."""
    try:
        process = subprocess.run(
            ["git", "describe", "--always", "--exclude=*", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return process.stdout.strip()


def finished_parts(args: Args, key: dict[str, Any]) -> dict[str, Any]:
    """Returns the rows of the parts that an earlier start finished.

    Args:
        args: the command-line arguments.
        key: the devices, the commit, and whether the sizes are small.

    Returns:
        `key`, and `rows`: the rows of the table by part.

    Raises:
        ValueError: the earlier start had another key.
    """
    path = args.out.with_suffix(".json")
    if not path.exists():
        return {**key, "rows": {}}
    measured = json.loads(path.read_text())
    for name, value in key.items():
        if measured[name] != value:
            raise ValueError(
                f"{path} has {name} {measured[name]}, not {value}; give another --out"
            )
    return measured


def device_day(args: Args) -> None:
    """Measures the parts in turn, and rewrites the file after every row.

    Args:
        args: the command-line arguments.

    Raises:
        RuntimeError: there is no accelerator.
        ValueError: an argument is wrong, or the file of --out is of another device.
    """
    check(args)
    start, lines = time.perf_counter(), []
    end, heading = start + 60 * args.minutes, head(args)

    def add(*new: str) -> None:
        lines.extend(new)
        minutes = (time.perf_counter() - start) / 60
        summary = f"{heading}; {minutes:.1f} minutes in total."
        args.out.write_text("\n".join([title, "", summary, *lines, ""]))
        print(*new, sep="\n", flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (row,) = measure("device", args, folder, end - time.perf_counter())
        devices, *errors = row.strip("| ").split(" | ")
        if errors:
            raise RuntimeError(" | ".join(errors))
        title = f"## Accelerator: {devices}"
        print(title, f"{heading}.", sep="\n\n")
        key = {"devices": devices, "commit": commit(), "dry_run": args.dry_run}
        measured = finished_parts(args, key)
        deadline = time.perf_counter()
        shares = {part: x for table in TABLES for part, x in table.shares.items()}
        left = {*args.parts} - measured["rows"].keys()
        seconds_per_share = (end - deadline) / (sum(shares[x] for x in left) or 1)
        for table in TABLES:
            parts = {k: share for k, share in table.shares.items() if k in args.parts}
            if parts:
                add("", f"### {table.title}", "", table.note, "", table.header)
            for part, share in parts.items():
                if part in measured["rows"]:
                    add(*measured["rows"][part])
                    continue
                deadline += seconds_per_share * share
                rows = []
                for line in measure(part, args, folder, deadline - time.perf_counter()):
                    add(line)
                    rows.append(line)
                # A row that says why a part failed has fewer cells.
                cells = table.header.partition("\n")[0].count("|")
                is_finished = all(row.count("|") == cells for row in rows)
                if is_finished and part not in on_device.WAITING:
                    measured["rows"][part] = rows
                    args.out.with_suffix(".json").write_text(json.dumps(measured))
    print(f"\ntables: {args.out}")


if __name__ == "__main__":
    try:
        device_day(tyro.cli(Args, description=__doc__))
    except (ValueError, RuntimeError) as error:
        exit_with_error(str(error))
