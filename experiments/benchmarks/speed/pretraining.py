"""The pre-training that all simulators run, as a file that needs neither JAX nor torch.

`simulators.py` writes the file. Each simulator reads the file in its own environment
and writes the time and the loss of each round.
"""

import argparse
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
    """All images, uint8 [P, H, W, 1]. Height and width are equal."""
    clients: tuple[np.ndarray, ...]
    """Indices of the images of each client."""
    variables: dict[str, Any]
    """Initial variables of the convolutional network, as nested mappings."""
    batch_size: int = 32
    learning_rate: float = 1e-3
    model_weight: float = 1e-3
    is_augmented: bool = True
    """Whether the two views of an image are random. Otherwise both are the image."""


def save(path: Path, problem: Problem) -> None:
    """Writes a problem into an .npz file.

    Args:
        path: the file.
        problem: the problem.
    """
    ends = np.cumsum([len(rows) for rows in problem.clients])
    arrays: dict[str, Any] = {
        "images": problem.images,
        "indices": np.concatenate(problem.clients),
        "ends": ends,
        "settings": np.array(problem[3:], float),
        **flat(problem.variables),
    }
    np.savez(path, **arrays)


def flat(tree: dict[str, Any], prefix: str = "variables") -> dict[str, np.ndarray]:
    """Returns the arrays of nested mappings by path, such as "variables/a/b"."""
    arrays = {}
    for name, value in tree.items():
        path = f"{prefix}/{name}"
        arrays |= flat(value, path) if hasattr(value, "items") else {path: value}
    return {name: np.asarray(value) for name, value in arrays.items()}


def read(path: Path | str) -> Problem:
    """Reads a problem that `save` wrote.

    Args:
        path: the file.

    Returns:
        The problem.
    """
    tree: dict[str, Any] = {}
    with np.load(path) as file:
        for name in file.files:
            *parents, last = name.split("/")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = file[name]
    batch_size, *rates, is_augmented = tree["settings"].tolist()
    return Problem(
        tree["images"],
        tuple(np.split(tree["indices"], tree["ends"][:-1])),
        tree["variables"],
        int(batch_size),
        *rates,
        is_augmented=bool(is_augmented),
    )


def main(run: Callable[[Path, int, Report], None], description: str | None) -> None:
    """Runs a side by its command-line arguments.

    Args:
        run: function (file of the problem, number of rounds, report) -> None.
        description: text of the help.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "problem", type=Path, help="file of the problem, from simulators.py --problem"
    )
    parser.add_argument("out", type=Path, help="CSV file for the times and losses")
    parser.add_argument("--rounds", type=int, default=6, help="number of rounds (6)")
    args = parser.parse_args()
    if not args.problem.is_file():
        parser.error(f"{args.problem} is not a file; simulators.py --problem writes it")
    if args.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {args.rounds}")

    def report(loss: float) -> None:
        with args.out.open("a") as file:
            file.write(f"{time.time()},{loss}\n")

    run(args.problem, args.rounds, report)
