"""Federated deep clustering in JAX.

The losses, clustering and metrics import nothing but JAX and the scientific stack:

    from fcjax.losses import cluster_contrastive
    from fcjax.cluster import kmeans
    from fcjax.metrics import nmi

What a command left is opened by `fcjax.open("runs/...")`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from fcjax.types import FederatedClustering, Federation, Grid, Network, Stage

if TYPE_CHECKING:
    from fcjax.results.store import Folder

__all__ = ["FederatedClustering", "Federation", "Grid", "Network", "Stage", "open"]
__version__ = "0.1.0"


def open(directory: str | Path) -> "Folder":
    """Returns what a command left in its results folder: the tables `.results` and
    `.history`, and of each run `.assignments()`, `.embedding()` and `.model()`.

    Raises:
        ValueError: it holds no finished run, or one that is too old to be read.

    Examples:
        >>> import fcjax
        >>> fcjax.open("runs/spherical").results[["method", "clients", "rounds"]]
              method  clients  rounds
        0  spherical        4       2
    """
    # Late: a loss needs nothing of what lies around a run.
    from fcjax.results.store import read

    return read(directory)
