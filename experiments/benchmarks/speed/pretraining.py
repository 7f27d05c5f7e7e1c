"""The pre-training that all simulators run. It needs neither JAX nor PyTorch."""

import argparse
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Report = Callable[[float], None]
"""Function (mean loss over the clients) -> None, called at the end of each round."""


class Problem(NamedTuple):
    """Data, initial network and settings of CCFC's pre-training."""

    images: np.ndarray
    """All images, uint8 [P, S, S, 1]."""
    clients: tuple[np.ndarray, ...]
    """Indices of the images of each client."""
    variables: dict[str, Any]
    """Initial variables of the convolutional network, NumPy arrays by name."""
    batch_size: int = 32
    learning_rate: float = 1e-3
    model_weight: float = 1e-3
    is_augmented: bool = True
    """Whether the two views of an image are random. Otherwise both are the image."""


def read(path: Path) -> Problem:
    """Reads a problem, which is written by `pickle`."""
    return pickle.loads(path.read_bytes())


def main(run: Callable[[Path, int, Report], None], description: str | None) -> None:
    """Runs one side of simulators.py from the command line.

    Args:
        run: function (file of the problem, number of rounds, report) -> None.
        description: text of the help.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problem", type=Path, help="file written by simulators.py")
    parser.add_argument("out", type=Path, help="CSV file of end times and mean losses")
    parser.add_argument("rounds", type=int, help="number of rounds")
    args = parser.parse_args()
    if not args.problem.is_file():
        parser.error(f"{args.problem} is not a file; simulators.py writes it")

    def report(loss: float) -> None:
        with args.out.open("a") as file:
            file.write(f"{time.time()},{loss}\n")

    run(args.problem, args.rounds, report)
