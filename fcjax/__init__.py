"""Federated deep clustering in JAX.

    from fcjax.methods import CCFC

    clusters = CCFC().fit_predict(x, clients=site, num_clusters=10)

`fcjax.run` runs grids, and `fcjax.open` opens what a command or a grid left in a
folder. The losses, clustering and metrics import nothing but JAX and the scientific
stack:

    from fcjax.losses import cluster_contrastive
    from fcjax.cluster import kmeans
    from fcjax.metrics import nmi
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fcjax.types import FederatedClustering, Federation, Grid, Network, Stage

if TYPE_CHECKING:
    from fcjax.api import fit as fit
    from fcjax.api import open, run
    from fcjax.data.split import Split
    from fcjax.results.results import Results, Run

__all__ = [
    "FederatedClustering",
    "Federation",
    "Grid",
    "Network",
    "Results",
    "Run",
    "Split",
    "Stage",
    "open",
    "run",
]
__version__ = "0.1.0"

LATE = {
    **dict.fromkeys(("fit", "open", "run"), "fcjax.api"),
    **dict.fromkeys(("Results", "Run"), "fcjax.results.results"),
    "Split": "fcjax.data.split",
}
"""Names that are imported when they are first used: a loss needs nothing of what lies
around a run."""
ROOMS = ("cluster", "data", "losses", "methods", "metrics", "nn")


def __getattr__(name: str) -> Any:
    if name in LATE:
        return getattr(import_module(LATE[name]), name)
    if name in ROOMS:
        return import_module(f"fcjax.{name}")
    raise AttributeError(f"module 'fcjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *ROOMS, "__version__"]
