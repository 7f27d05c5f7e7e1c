"""How a grid is run: seeds, results, and the use of the machine."""

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
    """For seeds, evaluation and precision."""

    seed: tuple[int, ...] = (0,)
    """Seeds of training; 0:16 are the sixteen from 0 to 15."""
    evaluate_every: Annotated[int | None, shown("1; ccfc 4, fdsc 25")] = None
    """Score every so many rounds, and the last of a stage; by default its last ten."""
    precision: Literal["highest", "high", "default"] = "highest"
    """Of the networks' matrix products; distances and averages stay at float32."""


@dataclasses.dataclass(frozen=True)
class Output:
    """For where results go, and what is drawn and logged."""

    out: Annotated[Path | None, shown("runs/METHOD-DATASET-HASH")] = None
    """Results folder."""
    resume: bool = True
    """Reuse finished runs of the folder and go on from its checkpoint."""
    checkpoint_interval: float = 60.0
    """Seconds between two checkpoints."""
    plot: bool = True
    """Draw learning curves and the embedding of the first run."""
    log: Annotated[tuple[Sink, ...], shown("none")] = ()
    """Also log every round to these (pip install tensorboardX, or wandb)."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """For little memory, devices that are not here, or several machines."""

    pool: Literal["auto", "device", "host"] = "auto"
    """Where the examples lie: on the device if they fit, or streamed from the host."""
    backend: Backend = "shard_map"
    """How runs are spread over the devices."""
    runs_per_call: Annotated[int | None, shown("what fits; on a CPU one a core")] = None
    """Runs of the grid that go side by side; the others follow. Bounds memory."""
    on: Annotated[str | None, shown("run it here")] = None
    """Say what the grid takes on these, as v5e:4x4 or h100:8 (`fcjax fit`)."""
    shard: Annotated[str | None, shown("all runs")] = None
    """i/n: every n-th run of the grid from run i on; see `fcjax collect`."""


@dataclasses.dataclass(frozen=True)
class Options(Machine, Output, Training):
    """For seeds, results folders, and the use of the machine.

    Examples:
        >>> Options(seed=(0, 1, 2)).precision
        'highest'
    """

    def __post_init__(self):
        object.__setattr__(self, "seed", as_tuple(self.seed))
        if self.out is not None:
            object.__setattr__(self, "out", Path(self.out))

    def check(self) -> None:
        """Raises ValueError where an option is out of its range."""
        check_values("seed", self.seed, least=0, most=2**31 - 1)
        for name, least in {
            **{"evaluate_every": 1, "runs_per_call": 1, "checkpoint_interval": 0}
        }.items():
            value = getattr(self, name)
            if value is not None and not value >= least:  # NaN is not, either
                raise ValueError(f"`{name}` must be at least {least}, got {value}")
        sinks.check(self.log)


def share(name: str, text: str) -> tuple[int, int]:
    """Returns (i, n) of "i/n".

    Raises:
        ValueError: it is not of that form, or i is not one of 0 to n - 1.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or int(found[1]) >= int(found[2]):
        raise ValueError(f"`{name}` is i/n with i from 0 to n - 1, got {text!r}")
    return int(found[1]), int(found[2])
