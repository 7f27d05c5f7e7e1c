"""What a round costs: local training beside PyTorch, the server, whole rounds, a grid.

    python experiments/benchmarks/benchmark.py ccfc
    python experiments/benchmarks/benchmark.py all --parts local --against torch
    python experiments/benchmarks/benchmark.py ccfc --backbone resnet18 --clients 2
        --examples 200
    python experiments/benchmarks/benchmark.py fedcref --against torch --repeats 9

local: what all clients train between two visits to the server, on random examples at
the papers' sizes, without augmentation; on a CPU the clients are spread over its cores,
as in a run. Rounds of the two sides alternate in one process, so that both meet the
same noise, and the ratio of their medians is the last column. server: what it makes of
their uploads, beside one pass over as many bytes. rounds: of the method's script on
embedded digits, all but scores included, as one run and in a grid of four. A machine
busy with other work slows PyTorch more, whose threads wait for each other: compare on
an idle one, or on one core (`taskset -c 0`).
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
from experiments.benchmarks.speed.case import Case, Side, Sizes, flops
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
SERVER_COLUMNS = ["part", "of", "s a step", "min to max", "MB uploaded", "a pass s"]
ROUND_COLUMNS = [
    "stage",
    "s a round, one run",
    "min to max",
    "s a round and run of four",
    "min to max",
    "ratio",
    "compile s",
    "peak GiB",
]


@dataclasses.dataclass(frozen=True)
class Args:
    """Times rounds of a method and what they are made of."""

    method: tyro.conf.Positional[Method | Literal["all"]]
    """Whose rounds."""
    parts: tuple[Part, ...] = get_args(Part)
    """What of them."""
    backbone: Literal["conv", "resnet18"] = "conv"
    """Of ccfc: conv on 28x28 grey images, or resnet18 on 32x32 colour ones."""
    against: Literal["torch"] | None = None
    """Also time local training in PyTorch, on the CPU."""
    clients: Annotated[int | None, shown("those of the method")] = None
    """Clients."""
    examples: Annotated[int | None, shown("those of the method")] = None
    """Examples a client."""
    batch_size: Annotated[int | None, shown("that of the method")] = None
    """Examples in a local step."""
    repeats: int = 5
    """Timed rounds of each side, after one to warm up."""


def cases_of(args: Args) -> list[Case]:
    """Returns what is timed."""
    found = []
    for method in methods_of(args):
        sizes = sizes_of(args, method)
        options = {"backbone": args.backbone} if method == "ccfc" else {}
        found += TRAINING[method].cases(sizes, **options)
    return found


def methods_of(args: Args) -> tuple[Method, ...]:
    return get_args(Method) if args.method == "all" else (args.method,)


def sizes_of(args: Args, method: Method) -> Sizes:
    """Returns the method's sizes, but for those that are given."""
    given = {name: getattr(args, name) for name in Sizes._fields}
    return TRAINING[method].SIZES._replace(
        **{name: x for name, x in given.items() if x is not None}
    )


def check(args: Args) -> None:
    """Checks the flags.

    Raises:
        ValueError: one line that names the flag and what it accepts.
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
    start = time.perf_counter()
    jax.block_until_ready(fn())
    return time.perf_counter() - start


def alternate(functions: dict[str, Callable], repeats: int) -> dict[str, list[float]]:
    """Returns the seconds of each function's calls, which take turns after one each to
    warm up.
    """
    for fn in functions.values():
        seconds(fn)
    times = {name: [] for name in functions}
    for _ in range(repeats):
        for name, fn in functions.items():
            times[name].append(seconds(fn))
    return times


def measure(case: Case, args: Args) -> str:
    """Times a case; returns its row of the table."""
    side = Side(case)
    compile_seconds, memory = side.compile()
    factors = jax.random.normal(jax.random.key(0), (2, 2048, 2048))
    matmul = jax.jit(jnp.matmul)
    functions: dict[str, Callable] = {"jax": side.round}
    if args.against:
        functions["torch"] = case.loop(num_cores())
    functions["product"] = lambda: matmul(*factors)
    times = alternate(functions, args.repeats)
    middle = {name: statistics.median(each) for name, each in times.items()}
    count = flops(case)
    rate = 2 * 2048**3 / middle["product"]

    def spread(name: str) -> str:
        each = times[name]
        return f"{middle[name]:.3f} | {min(each):.3f} to {max(each):.3f}"

    cells = [
        case.name,
        case.of,
        spread("jax"),
        f"{case.num_examples / middle['jax']:.0f}",
        f"{count / middle['jax'] / 1e9:.0f} of {rate / 1e9:.0f}",
        f"{count / rate:.3f}",
        f"{compile_seconds:.1f}",
        f"{memory / 2**20:.0f}",
    ]
    if args.against:
        cells += [spread("torch"), f"**{middle['jax'] / middle['torch']:.2f}**"]
    return f"| {' | '.join(cells)} |"


def measure_server(step: server.Step, args: Args) -> str:
    """Times a server's step; returns its row."""
    run = jax.jit(step.run)
    once = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree))
    functions = {
        "server": lambda: run(step.uploads),
        "pass": lambda: once(step.uploads),
    }
    times = alternate(functions, args.repeats)
    middle = {name: statistics.median(each) for name, each in times.items()}
    each = times["server"]
    cells = [
        step.name,
        step.of,
        f"{middle['server']:.4f} | {min(each):.4f} to {max(each):.4f}",
        f"{server.megabytes(step):.1f}",
        f"{middle['pass']:.4f}",
    ]
    return f"| {' | '.join(cells)} |"


def header(args: Args) -> str:
    """Returns the first two lines of the table of local training."""
    names = ["part", "of", "s a round", "min to max", "examples a s"]
    names += ["GFLOP/s, of a product's", "floor s", "compile s", "MiB"]
    if args.against:
        names += ["PyTorch s", "min to max", "ratio"]
    return titles(names)


def titles(names: list[str]) -> str:
    return f"| {' | '.join(names)} |\n|{' --- |' * len(names)}"


def benchmark(args: Args) -> None:
    """Times what was asked for and prints tables, a row as soon as it is known."""
    check(args)
    print(f"{jax.devices()[0].device_kind}, {num_cores()} cores, JAX {jax.__version__}")
    if "local" in args.parts:
        print(header(args), flush=True)
        for case in cases_of(args):
            print(measure(case, args), flush=True)
    if "server" in args.parts:
        print(f"\n{titles(SERVER_COLUMNS)}", flush=True)
        for method in methods_of(args):
            for step in server.steps(method, sizes_of(args, method)):
                print(measure_server(step, args), flush=True)
    if "rounds" in args.parts:
        print(f"\n{titles(ROUND_COLUMNS)}", flush=True)
        for method in methods_of(args):
            for row in rounds.rows(method, rounds=args.repeats):
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    # Compile time is one of the figures: none of it may come from an earlier run.
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        take_cores()
        with exit_on_system_error(), jax.default_matmul_precision("highest"):
            benchmark(tyro.cli(Args, description=__doc__))
    except (ValueError, RuntimeError) as error:
        exit_with_error(str(error))
