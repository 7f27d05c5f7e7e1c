"""Options of a grid: seeds, results folder and devices. The fields are flags."""

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Literal

from fcjax.parallel.mesh import Backend
from fcjax.settings import as_tuple, check_values, shown
from fcjax.sweep import sinks
from fcjax.sweep.sinks import Sink


@dataclasses.dataclass(frozen=True)
class Training:
    """Options for seeds, evaluation and precision."""

    seed: tuple[int, ...] = (0,)
    """Random seeds, one run per seed. 0:16 are the seeds 0 to 15."""
    evaluate_every: Annotated[int | None, shown("1; 4 for ccfc, 25 for fdsc")] = None
    """Rounds between two evaluations. The last round of a stage is always evaluated;
    if this is not set, its last ten rounds are."""
    precision: Annotated[
        Literal["highest", "high", "default", "bfloat16"] | None,
        shown("highest on a CPU, default on a GPU or TPU"),
    ] = None
    """Precision of the matrix products of networks. highest is float32. default uses
    the tensor cores, which round operands: TF32 on a GPU, bfloat16 on a TPU. bfloat16
    also stores the activations in bfloat16, with half the memory traffic. Parameters,
    batch statistics, distances and averages always use float32."""


@dataclasses.dataclass(frozen=True)
class Output:
    """Options for the results folder, figures and logs."""

    out: Annotated[Path | None, shown("runs/METHOD-DATASET-HASH")] = None
    """Results folder."""
    resume: bool = True
    """Reuse the finished runs in the results folder and resume from its checkpoint.
    Otherwise the folder is overwritten."""
    checkpoint_interval: float = 60.0
    """Seconds between two checkpoints, at least 0."""
    plot: bool = True
    """Draw the learning curves and the embedding of the first run."""
    keep_uploads: bool = False
    """Store the last uploads of the clients, for `fcjax privacy`: centroids or
    synthetic examples."""
    dry_run: bool = False
    """Print the data, the clients, the settings and the compiled programs, and stop."""
    to: Annotated[Path | None, shown("run the grid here")] = None
    """Write a Flower app of the run to this folder, for a federation of several
    machines, and stop (docs/guides/federation.md)."""
    log: Annotated[tuple[Sink, ...], shown("none")] = ()
    """Log every round to these services, too. Each needs its package: pip install
    tensorboardX, or pip install wandb."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """Options for memory, devices and several machines."""

    pool: Literal["auto", "device", "host"] = "auto"
    """Memory that holds the data set: the device, or the host, which streams batches to
    the device. auto uses the device if the data set fits."""
    backend: Backend = "shard_map"
    """JAX transformation that spreads the runs over the devices. loop trains one run
    after another on one device."""
    runs_per_call: Annotated[
        int | None, shown("as many as fit; on a CPU one per core")
    ] = None
    """Runs that are trained at the same time, at least 1. The other runs follow. Fewer
    runs need less memory."""
    on: Annotated[str | None, shown("run the grid here")] = None
    """Estimate time and memory on these devices instead of running the grid: v5e:4x4 or
    h100:8. The devices need not exist here."""
    shard: Annotated[str | None, shown("all runs")] = None
    """Run only a part of the grid, i/n: every n-th run, from run i on, counted from 0.
    `fcjax collect` merges the parts."""


@dataclasses.dataclass(frozen=True)
class Options(Machine, Output, Training):
    """All options of a grid: seeds, results folder and devices.

    Examples:
        >>> Options(seed=(0, 1, 2)).seed
        (0, 1, 2)
    """

    def __post_init__(self):
        object.__setattr__(self, "seed", as_tuple(self.seed))
        if self.out is not None:
            object.__setattr__(self, "out", Path(self.out))

    def check(self) -> None:
        """Checks the ranges of all options.

        Raises:
            ValueError: an option is outside of its range, or a logging service is not
                available.
        """
        check_values("seed", self.seed, least=0, most=2**31 - 1)
        for name, least in {
            **{"evaluate_every": 1, "runs_per_call": 1, "checkpoint_interval": 0}
        }.items():
            value = getattr(self, name)
            if value is not None and not value >= least:  # refuses NaN, too
                raise ValueError(f"`{name}` must be at least {least}, got {value}")
        sinks.check(self.log)


def share(name: str, text: str) -> tuple[int, int]:
    """Parses "i/n", the number of a part and the number of parts.

    Args:
        name: the parameter, for the error message.
        text: the text to parse.

    Returns:
        (i, n) with 0 <= i < n.

    Raises:
        ValueError: the text does not have this form, or i is not in 0 to n - 1.

    Examples:
        >>> share("shard", "0/2")
        (0, 2)
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or int(match[1]) >= int(match[2]):
        raise ValueError(f"`{name}` must be i/n with i from 0 to n - 1, got {text!r}")
    return int(match[1]), int(match[2])
