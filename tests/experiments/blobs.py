"""Rows of numbers in a file, which scripts take for a data set, and what they leave."""

import csv
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import confusion_matrix


def write_blobs(
    folder: Path, sizes: tuple[int, ...], *, width: int = 5, apart: float = 9.0
) -> Path:
    """Writes so many rows of each class, in their order; returns the file."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    noise = np.random.default_rng(0).normal(size=(len(labels), width))
    np.savez(folder / "vectors.npz", x=noise + apart * np.eye(width)[labels], y=labels)
    return folder / "vectors.npz"


def matched(classes: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Returns the clusters called as the classes that they match, one each of three."""
    overlap = confusion_matrix(classes, clusters, labels=np.arange(3))
    names, found = linear_sum_assignment(-overlap)
    return names[np.argsort(found)][clusters]


def rows(path: Path) -> list[dict[str, str]]:
    """Returns those of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
