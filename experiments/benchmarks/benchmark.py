"""Times the rounds of a method: local training, server steps, whole rounds, a grid.

    python experiments/benchmarks/benchmark.py ccfc
    python experiments/benchmarks/benchmark.py all --parts local --against torch
    python experiments/benchmarks/benchmark.py ccfc --backbone resnet18 --clients 2
        --examples 200
    python experiments/benchmarks/benchmark.py fedcref --against torch --repeats 9

local: the local training of all clients between two server steps. The data is random
examples of the papers' sizes, without augmentation. On a CPU the clients are spread
over the cores, as in a run. Rounds of JAX and PyTorch alternate in one process, so that
both have the same background load. The last column is the ratio of their median times.

server: the server's step on the clients' uploads, compared with one pass over the same
number of bytes.

rounds: whole rounds of the method's script on the digits data set, without scores, as
one run and in a grid of four runs.

Background load slows PyTorch more than JAX, because PyTorch's threads wait for each
other. Compare on an idle machine, or on one core (`taskset -c 0`).
"""

import dataclasses
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

import jax
import jax.numpy as jnp
import tyro

from experiments.benchmarks.speed import (
    ccfc,
    fdsc,
    fedcref,
    fedmcc,
    rounds,
    sda_fdc,
    server,
)
from experiments.benchmarks.speed.case import Case, JaxSide, Sizes, flops
from fcjax.cli.errors import exit_on_system_error, exit_with_error
from fcjax.parallel.exact import num_cores, take_cores
from fcjax.parallel.mesh import platform
from fcjax.settings import shown

Method = Literal["ccfc", "fedmcc", "sda-fdc", "fdsc", "fedcref"]
Part = Literal["local", "server", "rounds"]
TRAINING = {
    "ccfc": ccfc,
    "fedmcc": fedmcc,
    "sda-fdc": sda_fdc,
    "fdsc": fdsc,
    "fedcref": fedcref,
}
SERVER_COLUMNS = ["part", "workload", "s/step", "min to max", "upload MB", "one pass s"]
ROUND_COLUMNS = [
    "stage",
    "s/round, 1 run",
    "min to max",
    "s/round/run, grid of 4",
    "min to max",
    "ratio",
    "compile s",
    "peak GiB",
]
LEGENDS = {
    "local": "Local training of all clients in one round. GFLOP/s: rate of the matrix "
    "products, of the rate of a 2048 x 2048 product. lower bound: time of the matrix "
    "products at that rate. ratio: JAX time / PyTorch time.",
    "server": "Server step. one pass: time to read and write all uploads once.",
    "rounds": "Whole rounds of the script. ratio: time per run in the grid / time of "
    "one run.",
}
"""Explanations of the columns, by part."""


@dataclasses.dataclass(frozen=True)
class Args:
    """Times the rounds of a method and their parts."""

    method: tyro.conf.Positional[Method | Literal["all"]]
    """Method to time."""
    parts: tuple[Part, ...] = get_args(Part)
    """Parts to time."""
    backbone: Literal["conv", "resnet18"] = "conv"
    """Network of ccfc: conv on 28x28 grey images, or resnet18 on 32x32 colour
    images."""
    against: Literal["torch"] | None = None
    """Also time local training in PyTorch, on the CPU."""
    clients: Annotated[int | None, shown("those of the method")] = None
    """Number of clients."""
    examples: Annotated[int | None, shown("those of the method")] = None
    """Number of examples per client."""
    batch_size: Annotated[int | None, shown("that of the method")] = None
    """Number of examples in a local step."""
    repeats: int = 5
    """Number of timed rounds of JAX and of PyTorch, after one warm-up round."""


def cases_of(args: Args) -> list[Case]:
    """Returns the local training cases to time."""
    cases = []
    for method in methods_of(args):
        sizes = sizes_of(args, method)
        options = {"backbone": args.backbone} if method == "ccfc" else {}
        cases += TRAINING[method].cases(sizes, **options)
    return cases


def methods_of(args: Args) -> tuple[Method, ...]:
    """Returns the methods to time."""
    return get_args(Method) if args.method == "all" else (args.method,)


def sizes_of(args: Args, method: Method) -> Sizes:
    """Returns the method's sizes, replaced by the sizes in the arguments."""
    arguments = {name: getattr(args, name) for name in Sizes._fields}
    return TRAINING[method].SIZES._replace(
        **{name: x for name, x in arguments.items() if x is not None}
    )


def check(args: Args) -> None:
    """Checks the command-line arguments.

    Args:
        args: the command-line arguments.

    Raises:
        ValueError: an argument is wrong. The message is one line that names the flag
            and the accepted values.
    """
    for name in (*Sizes._fields, "repeats"):
        value = getattr(args, name)
        if value is not None and value < 1:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} must be at least 1, got {value}")
    if args.against and platform() != "cpu":
        raise ValueError("--against compares on the CPU: set JAX_PLATFORMS=cpu")
    if args.against and importlib.util.find_spec("torch") is None:
        raise ValueError('--against torch needs PyTorch: pip install -e ".[bench]"')


def seconds(fn: Callable[[], Any]) -> float:
    """Returns the seconds of one call, including the computation of its result.

    Args:
        fn: the function to time. It has no arguments and may return JAX arrays.

    Returns:
        The wall time in seconds.
    """
    start = time.perf_counter()
    jax.block_until_ready(fn())
    return time.perf_counter() - start


def alternate(functions: dict[str, Callable], repeats: int) -> dict[str, list[float]]:
    """Times functions in turn, after one warm-up call of each.

    Args:
        functions: the functions by name.
        repeats: number of timed calls of each function.

    Returns:
        The seconds of each call, by name.
    """
    for fn in functions.values():
        seconds(fn)
    times = {name: [] for name in functions}
    for _ in range(repeats):
        for name, fn in functions.items():
            times[name].append(seconds(fn))
    return times


def measure(case: Case, args: Args) -> str:
    """Times local training.

    Args:
        case: the case to time.
        args: the command-line arguments.

    Returns:
        The row of the table.
    """
    side = JaxSide(case)
    compile_seconds, memory = side.compile()
    factors = jax.random.normal(jax.random.key(0), (2, 2048, 2048))
    matmul = jax.jit(jnp.matmul)
    functions: dict[str, Callable] = {"jax": side.round}
    if args.against:
        functions["torch"] = case.loop(num_cores())
    functions["product"] = lambda: matmul(*factors)
    times = alternate(functions, args.repeats)
    medians = {name: statistics.median(each) for name, each in times.items()}
    num_operations = flops(case)
    rate = 2 * 2048**3 / medians["product"]

    def spread(name: str) -> str:
        each = times[name]
        return f"{medians[name]:.3f} | {min(each):.3f} to {max(each):.3f}"

    cells = [
        case.name,
        case.workload,
        spread("jax"),
        f"{case.num_examples / medians['jax']:.0f}",
        f"{num_operations / medians['jax'] / 1e9:.0f} of {rate / 1e9:.0f}",
        f"{num_operations / rate:.3f}",
        f"{compile_seconds:.1f}",
        f"{memory / 2**20:.0f}",
    ]
    if args.against:
        cells += [spread("torch"), f"**{medians['jax'] / medians['torch']:.2f}**"]
    return f"| {' | '.join(cells)} |"


def measure_server(step: server.Step, args: Args) -> str:
    """Times a server step.

    Args:
        step: the server step.
        args: the command-line arguments.

    Returns:
        The row of the table.
    """
    run = jax.jit(step.run)
    pass_over = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree))
    functions = {
        "server": lambda: run(step.uploads),
        "pass": lambda: pass_over(step.uploads),
    }
    times = alternate(functions, args.repeats)
    medians = {
        name: statistics.median(server_times) for name, server_times in times.items()
    }
    server_times = times["server"]
    cells = [
        step.name,
        step.workload,
        f"{medians['server']:.4f} | {min(server_times):.4f} to {max(server_times):.4f}",
        f"{server.megabytes(step):.1f}",
        f"{medians['pass']:.4f}",
    ]
    return f"| {' | '.join(cells)} |"


def header(args: Args) -> str:
    """Returns the first two lines of the table of local training.

    Args:
        args: the command-line arguments. With `against`, the table has columns for
            PyTorch.

    Returns:
        The line of titles and the separator.
    """
    names = ["part", "workload", "s/round", "min to max", "examples/s"]
    names += ["GFLOP/s of matmul rate", "lower bound s", "compile s", "memory MiB"]
    if args.against:
        names += ["PyTorch s", "min to max", "ratio"]
    return titles(names)


def titles(names: list[str]) -> str:
    """Returns the first two lines of a Markdown table.

    Args:
        names: the titles of the columns.

    Returns:
        The line of titles and the separator.
    """
    return f"| {' | '.join(names)} |\n|{' --- |' * len(names)}"


def benchmark(args: Args) -> None:
    """Times the parts and prints one table per part, row by row.

    Args:
        args: the command-line arguments.

    Raises:
        ValueError: an argument is wrong. The message is one line that names the flag
            and the accepted values.
    """
    check(args)
    device = jax.devices()[0].device_kind
    print(f"device: {device}, {num_cores()} cores, JAX {jax.__version__}")
    if "local" in args.parts:
        print(f"\n{LEGENDS['local']}\n\n{header(args)}", flush=True)
        for case in cases_of(args):
            print(measure(case, args), flush=True)
    if "server" in args.parts:
        print(f"\n{LEGENDS['server']}\n\n{titles(SERVER_COLUMNS)}", flush=True)
        for method in methods_of(args):
            for step in server.steps(method, sizes_of(args, method)):
                print(measure_server(step, args), flush=True)
    if "rounds" in args.parts:
        print(f"\n{LEGENDS['rounds']}\n\n{titles(ROUND_COLUMNS)}", flush=True)
        for method in methods_of(args):
            for row in rounds.rows(method, rounds=args.repeats):
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    # The tables have compile times, so no program may come from a cache.
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        take_cores()
        with exit_on_system_error(), jax.default_matmul_precision("highest"):
            benchmark(tyro.cli(Args, description=__doc__))
    except (ValueError, RuntimeError) as error:
        exit_with_error(str(error))
