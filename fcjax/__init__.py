"""Federated deep clustering in JAX.

    from fcjax.methods import CCFC

    clusters = CCFC().fit_predict(x, clients=site, num_clusters=10)

`fcjax.run` runs grids of experiments, and `fcjax.open` opens a results folder. Losses,
clustering and metrics can be used alone. They import only JAX and the scientific stack:

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
    from fcjax.privacy.guarantee import Privacy
    from fcjax.results.results import Results, Run

__all__ = [
    "FederatedClustering",
    "Federation",
    "Grid",
    "Network",
    "Privacy",
    "Results",
    "Run",
    "Split",
    "Stage",
    "open",
    "run",
]
__version__ = "0.2.0.dev0"

LAZY = {
    **dict.fromkeys(("fit", "open", "run"), "fcjax.api"),
    **dict.fromkeys(("Results", "Run"), "fcjax.results.results"),
    "Privacy": "fcjax.privacy.guarantee",
    "Split": "fcjax.data.split",
}
"""Names that are imported at their first use, and their modules. This keeps the import
of a loss or a metric fast."""
SUBPACKAGES = (
    "cluster",
    "data",
    "federated",
    "losses",
    "methods",
    "metrics",
    "nn",
    "privacy",
)


def __getattr__(name: str) -> Any:
    if name in LAZY:
        return getattr(import_module(LAZY[name]), name)
    if name in SUBPACKAGES:
        return import_module(f"fcjax.{name}")
    raise AttributeError(f"module 'fcjax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *SUBPACKAGES, "__version__"]
