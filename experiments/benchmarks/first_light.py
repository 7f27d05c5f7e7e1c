"""Ten minutes on an accelerator: how fast every method is there, in how much memory.

    python experiments/benchmarks/first_light.py --data-dir DIR
    python experiments/benchmarks/first_light.py --dry-run
    python experiments/benchmarks/first_light.py --parts fedcref --minutes 5

Writes a page of tables for docs/benchmarks/accelerators.md as it goes: one that is cut
short has what was measured. In order of worth: the stages of CCFC, compiled, timed,
their memory beside what `fcjax fit` says; its local training beside a PyTorch loop on
the same device; its runs side by side; every backend; the stages of the other methods;
and CCFC on MNIST for as many rounds as fit. All but the last takes random images of the
papers' sizes. A part has a share of the time, and what it leaves goes to those that
follow; one that fails or takes too long is a line of its table. --dry-run takes small
sizes, for a CPU.
"""

import contextlib
import dataclasses
import datetime
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
from typing import Literal, NamedTuple, get_args

import tyro

from experiments.benchmarks import benchmark
from experiments.benchmarks.speed import on_device
from experiments.benchmarks.speed.commands import SHARED
from fcjax.cli.errors import end
from fcjax.methods import printed_ccfc as printed
from fcjax.results.environment import compiler_options

Name = Literal[
    "ccfc-pretrain",
    "ccfc-cluster",
    "torch",
    "runs-1",
    "runs-4",
    "runs-16",
    "runs-64",
    "backends",
    "fdsc",
    "sda-fdc",
    "fedmcc",
    "fedcref",
    "ccfc-mnist",
]


@dataclasses.dataclass(frozen=True)
class Args:
    """Measures on the devices that JAX has, and writes a page of it."""

    data_dir: Path | None = None
    """Where MNIST is prepared as a TFDS data set; without, it is left out."""
    out: Path = Path("first-light.md")
    """The page; written over."""
    minutes: float = 10
    """For all parts together."""
    parts: tuple[Name, ...] = get_args(Name)
    """What to measure; a part alone has all the minutes."""
    dry_run: bool = False
    """Take small sizes: all parts in some minutes on a CPU, none of worth."""


class Table(NamedTuple):
    """Of parts that follow each other."""

    title: str
    note: str
    header: str
    shares: dict[Name, float]
    """By part, its share of the time: minutes of ten."""


PAPER = printed.scores_of("mnist", "CCFC")[0.0]
STAGES_NOTE = (
    "One run on random images, float32 (`--precision highest`): of each stage a first "
    f"round and up to {on_device.REPEATS} timed ones. It is compiled as `fcjax fit` "
    "does, which says what a device needs; the first round loads that from a cache. "
    "Peaks are of the first device, on a CPU of the process: after compiling, which "
    "tries kernels out, and after the rounds"
)
TABLES = [
    Table(
        "CCFC, a process for each stage",
        f"{STAGES_NOTE}.",
        benchmark.titles(on_device.STAGES),
        {"ccfc-pretrain": 1.2, "ccfc-cluster": 1.2},
    ),
    Table(
        "CCFC's local training beside PyTorch",
        "An epoch of pre-training of all clients, both sides by turns on one device. "
        "By default a GPU rounds products to TF32, on both sides, and a TPU to "
        "bfloat16; highest is float32.",
        benchmark.header(benchmark.Args("ccfc", against="torch")),
        {"torch": 0.8},
    ),
    Table(
        "CCFC's runs side by side",
        "Pre-training of so many seeds in one call, ten batches a client. Runs an "
        "hour: of the paper's rounds of pre-training on all its images, in proportion.",
        benchmark.titles(on_device.SIDE_BY_SIDE),
        {"runs-1": 0.6, "runs-4": 0.6, "runs-16": 0.7, "runs-64": 1.0},
    ),
    Table(
        "Every backend",
        "CCFC with an MLP on random rows of 16, four seeds in one call. Backends may "
        "round otherwise, which every round adds to.",
        benchmark.titles(on_device.BACKENDS),
        {"backends": 0.8},
    ),
    Table(
        "The other methods",
        f"{STAGES_NOTE} of this stage and those before.",
        benchmark.titles(on_device.STAGES),
        {"fdsc": 0.4, "sda-fdc": 0.6, "fedmcc": 0.8, "fedcref": 0.7},
    ),
    Table(
        "CCFC on MNIST",
        "`ccfc.py --dataset mnist --preset paper --p 0 --evaluate-every 10`, ended "
        "when the time was over; seconds of a round have its scores in them. The "
        f"paper's NMI after all rounds: {PAPER['nmi']}.",
        benchmark.titles(on_device.MNIST),
        {"ccfc-mnist": 1.2},
    ),
]
LEAST = 20
"""Seconds without which a part tells nothing."""


def check(args: Args) -> None:
    """Checks the flags.

    Raises:
        ValueError: one line that names the flag and what it accepts.
    """
    if not args.minutes > 0:
        raise ValueError(f"--minutes must be above 0, got {args.minutes}")
    if not args.parts:
        raise ValueError(f"--parts takes some of {', '.join(get_args(Name))}")
    if args.data_dir is not None and not args.data_dir.is_dir():
        raise ValueError(f"--data-dir {args.data_dir}: there is no such folder")
    if not args.out.parent.is_dir() or args.out.is_dir():
        raise ValueError(
            f"--out takes a file in a folder that is there, got {args.out}"
        )


def measure(part: str, args: Args, folder: Path, seconds: float) -> Iterator[str]:
    """Yields the rows of a part, and one that says so where it did not end well."""
    again = command(
        dataclasses.replace(
            args,
            parts=(part,),
            out=args.out.with_stem(f"{args.out.stem}-{part}"),
        )
    )
    if seconds < LEAST:
        yield f"| {part} | left out, no time: `{again}` |"
        return
    given = {"--seconds": seconds, "--folder": folder, "--data-dir": args.data_dir}
    flags = [str(x) for pair in given.items() if pair[1] is not None for x in pair]
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
        yield f"| {part} | ended after {seconds:.0f} s: `{again}` |"
    elif code:
        yield f"| {part} | exit status {code}: {on_device.last_line(errors)} |"


def environment(part: str, folder: Path) -> dict[str, str]:
    """Returns that of a part, with a cache of compiled programs that begins empty: the
    parts that share it differ in their programs, but for MNIST, which times none.
    """
    cache = folder / f"compiled-{part.partition('-')[0]}"
    return {
        **os.environ,
        **SHARED,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def command(args: Args) -> str:
    """Returns the line that asks for it, with what is asked of the compiler, but for
    what is the default.
    """
    asked = compiler_options().items()
    words = ["python", "experiments/benchmarks/first_light.py"]
    for field in dataclasses.fields(args):
        value, flag = getattr(args, field.name), "--" + field.name.replace("_", "-")
        if value == field.default:
            continue
        values = value if isinstance(value, tuple) else (value,)
        words += [flag, *([] if value is True else map(str, values))]
    return "".join(f"{k}={shlex.quote(v)} " for k, v in asked) + shlex.join(words)


def head(args: Args) -> str:
    """Returns what stands above all figures, but for the devices and the time."""
    versions = [f"Python {platform.python_version()}"]
    for name in ("jax", "jaxlib", "torch"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    return (
        f"`{command(args)}`, commit {commit()}, {datetime.date.today()}, "
        f"{', '.join(versions)}"
    )


def commit() -> str:
    """Returns that of the checkout, with a mark where files differ from it."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--exclude=*", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def first_light(args: Args) -> None:
    """Measures the parts in turn, and writes the page anew with every line."""
    check(args)
    start, lines = time.perf_counter(), []
    end, about = start + 60 * args.minutes, head(args)

    def add(*new: str) -> None:
        lines.extend(new)
        minutes = (time.perf_counter() - start) / 60
        told = f"{about}; {minutes:.1f} minutes in all."
        args.out.write_text("\n".join([title, "", told, *lines, ""]))
        print(*new, sep="\n", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (row,) = measure("device", args, folder, end - time.perf_counter())
        devices, *why = row.strip("| ").split(" | ")
        if why:
            raise RuntimeError(" | ".join(why))
        title = f"## First light: {devices}"
        print(title, f"{about}.", sep="\n\n")
        deadline = time.perf_counter()
        shares = {part: x for table in TABLES for part, x in table.shares.items()}
        a_share = (end - deadline) / sum(shares[part] for part in set(args.parts))
        for table in TABLES:
            parts = {k: share for k, share in table.shares.items() if k in args.parts}
            if parts:
                add("", f"### {table.title}", "", table.note, "", table.header)
            for part, share in parts.items():
                deadline += a_share * share
                left = deadline - time.perf_counter()
                for line in measure(part, args, folder, left):
                    add(line)
    print(f"\nall of it is in {args.out}")


if __name__ == "__main__":
    try:
        first_light(tyro.cli(Args, description=__doc__))
    except (ValueError, RuntimeError) as error:
        end(str(error))
