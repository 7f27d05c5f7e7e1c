"""Measures an iteration of k-means in fcjax and scikit-learn, up to 1,000,000 rows.

    python experiments/benchmarks/benchmark_rows.py --out runs/rows

Both programs read the same memory-mapped array of clustered Gaussian rows. They start
at the same centroids. The difference of two numbers of iterations is the time of an
iteration without start and compilation. The programs alternate, each in a process of
its own. The CSV file has one row per measurement. Measurements of an earlier command
with the same --out are kept.
"""

import dataclasses
import json
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import tyro
from matplotlib.figure import Figure
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from fcjax.cli.errors import exit_with_error
from fcjax.results.figures import curves
from fcjax.results.tables import to_text

Side = Literal["fcjax", "scikit-learn"]
NUM_FEATURES, NUM_CLUSTERS = 768, 100
FEW, MANY = 2, 5
"""The two numbers of iterations. They are larger for fewer rows, see `numbers`."""
BLOCK = 10_000
"""Rows that are written together."""


@dataclasses.dataclass(frozen=True)
class Args:
    """Measures seconds and memory of an iteration of k-means."""

    out: Path = Path("runs/rows")
    """Folder for the arrays, the CSV file and the figure."""
    rows: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    """Numbers of rows."""
    clients: tuple[int, ...] = (100,)
    """Numbers of clients for fcjax. All clients have equally many rows."""
    repeats: int = 3
    """Number of measurements per side and size."""
    side: Side | None = None
    """Measure only this program, at the first size, in this process."""


def write_rows(path: Path, count: int) -> None:
    """Writes clustered Gaussian rows as a .npy file, block by block.

    Args:
        path: the file.
        count: the number of rows.
    """
    random = np.random.default_rng(0)
    means = random.normal(size=(NUM_CLUSTERS, NUM_FEATURES)).astype(np.float32)
    shape = (count, NUM_FEATURES)
    rows = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    for start in range(0, count, BLOCK):
        part = rows[start : start + BLOCK]
        labels = random.integers(NUM_CLUSTERS, size=len(part))
        noise = random.standard_normal(part.shape, dtype=np.float32)
        part[:] = means[labels] + 3 * noise
    rows.flush()


def numbers(count: int) -> tuple[int, int]:
    """Returns the two numbers of iterations for a number of rows.

    Args:
        count: the number of rows.

    Returns:
        The smaller and the larger number.
    """
    return FEW, MANY if count > 200_000 else 4 * MANY


def seconds_of_fcjax(x: np.ndarray, num_clients: int) -> tuple[float, float]:
    """Measures exact federated k-means on all cores.

    Args:
        x: the rows.
        num_clients: the number of clients. Client i has rows i, i + M, i + 2 M, ...

    Returns:
        Seconds per iteration, and the inertia per row before the last iteration.
    """
    from fcjax.parallel.exact import take_cores

    take_cores()
    import jax
    import jax.numpy as jnp

    from fcjax import engine
    from fcjax.algorithms.baselines import exact_cmeans
    from fcjax.data.federation import federate, place
    from fcjax.data.partition import natural
    from fcjax.federated.kmeans import no_clusters
    from fcjax.methods import ExactKMeans
    from fcjax.types import Grid, State

    pool, _ = place(x, 0, where="device", devices=jax.local_devices())
    partition = natural(np.arange(len(x)) % num_clients)
    present = np.ones((1, 1, num_clients), bool)
    federations = federate(pool, [partition], present, num_clusters=NUM_CLUSTERS)
    grid = Grid({}, jax.random.key(0)[None], federations)
    start = jnp.array(x[:NUM_CLUSTERS])
    settings = ExactKMeans(unit_length=False, num_rounds=numbers(len(x))[1]).plain()

    def begin(key, state: State, federation):
        clusters = no_clusters(*start.shape)._replace(centroids=start)
        return State(state.server._replace(clusters=clusters))

    def build(_):
        method = exact_cmeans(settings, num_clusters=NUM_CLUSTERS, tolerance=0.0)
        return method._replace(stages=(method.stages[0]._replace(begin=begin),))

    few, _ = numbers(len(x))
    ends, losses = [], []

    def on_round(round: engine.Round) -> None:
        ends.append(time.perf_counter())
        losses.append(float(round.metrics["loss"][0]))

    engine.run(build, grid, on_round=on_round)
    return (ends[-1] - ends[few - 1]) / (len(ends) - few), losses[-1]


def seconds_of_sklearn(x: np.ndarray, _: int) -> tuple[float, float]:
    """Measures k-means of scikit-learn on all cores.

    Args:
        x: the rows.

    Returns:
        Seconds per iteration, and the inertia per row after the last iteration.
    """
    start, seconds, inertia = np.array(x[:NUM_CLUSTERS]), {}, 0.0
    for num_iters in (1, *numbers(len(x))):  # the first one starts the threads
        kmeans = KMeans(
            NUM_CLUSTERS,  # pyright: ignore[reportArgumentType]
            init=start,  # pyright: ignore[reportArgumentType]
            n_init=1,  # pyright: ignore[reportArgumentType]
            max_iter=num_iters,
            tol=0,
            algorithm="lloyd",
        )
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            kmeans.fit(x)
        inertia = kmeans.inertia_ / len(x)  # pyright: ignore[reportOptionalOperand]
        seconds[kmeans.n_iter_] = time.perf_counter() - begin
    (_, _), (few, early), (many, late) = seconds.items()
    return (late - early) / (many - few), inertia


def measure(side: Side, path: Path, num_clients: int) -> dict[str, float]:
    """Measures one program in this process.

    Args:
        side: the program.
        path: the .npy file of the rows.
        num_clients: the number of clients.

    Returns:
        Seconds per iteration, peak memory of the process in GiB and the inertia.
    """
    x = np.load(path, mmap_mode="r")
    for start in range(0, len(x), BLOCK):  # reads the file before the measurement
        x[start : start + BLOCK].max()
    of_side = {"fcjax": seconds_of_fcjax, "scikit-learn": seconds_of_sklearn}[side]
    seconds, inertia = of_side(x, num_clients)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": seconds, "peak GiB": peak, "inertia": inertia}


def figure(table: pd.DataFrame) -> Figure:
    """Draws seconds and memory against the number of rows.

    Args:
        table: the measurements.

    Returns:
        The figure: seconds on the left, memory on the right.
    """
    chart = Figure(figsize=(8, 3.4), layout="constrained")
    labels = {"seconds": "seconds per iteration", "peak GiB": "peak memory, GiB"}
    for (column, label), axes in zip(labels.items(), chart.subplots(1, 2), strict=True):
        for name, part in table.groupby("program"):
            middle = part.groupby("rows")[column].median()
            x, y = middle.index.to_numpy(), middle.to_numpy()
            axes.plot(x, y, marker="o", label=name)
        if column == "peak GiB":
            sizes = np.sort(table["rows"].unique().tolist())
            data = 4 * NUM_FEATURES * sizes / 2**30
            axes.plot(sizes, data, color="0.7", label="the data alone")
        axes.set(xscale="log", yscale="log", xlabel="rows", ylabel=label)
        axes.legend(frameon=False, fontsize=8)
        curves.plain_axes(axes)
    return chart


def main(args: Args) -> None:
    """Measures all sizes, prints the table and draws the figure.

    Args:
        args: the command-line arguments.

    Raises:
        ValueError: an argument is wrong. The message names the flag.
    """
    if min((*args.rows, *args.clients, args.repeats)) < 1:
        raise ValueError("--rows, --clients and --repeats must be at least 1")
    if args.side:
        path = args.out / f"rows-{args.rows[0]}.npy"
        print(json.dumps(measure(args.side, path, args.clients[0])))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    csv = args.out / "rows.csv"
    rows = pd.read_csv(csv).to_dict("records") if csv.exists() else []
    for count in args.rows:
        path = args.out / f"rows-{count}.npy"
        if not path.exists():
            write_rows(path, count)
        each = [("fcjax", number) for number in args.clients] + [("scikit-learn", 1)]
        for side, number in each * args.repeats:
            command = [sys.executable, __file__, "--side", side, "--out", args.out]
            command += ["--rows", count, "--clients", number]
            run = subprocess.run(
                [str(x) for x in command], stdout=subprocess.PIPE, text=True, check=True
            )
            name = f"fcjax, {number} clients" if side == "fcjax" else side
            result = json.loads(run.stdout.splitlines()[-1])
            rows.append({"program": name, "rows": count, **result})
            print(rows[-1], flush=True)
            pd.DataFrame(rows).to_csv(csv, index=False, float_format="%.6g")
    table = pd.DataFrame(rows)
    summary = table.groupby(["rows", "program"], as_index=False).median()
    print(to_text(summary.round(4).to_dict("records")))
    title = f"An iteration of k-means: {NUM_FEATURES} values, {NUM_CLUSTERS} clusters"
    curves.write(figure(table), args.out / "rows.png", title)
    print(f"open next: {args.out / 'rows.png'}")


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except (ValueError, RuntimeError) as error:
        exit_with_error(str(error))
