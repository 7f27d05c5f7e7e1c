"""Figures of a partition, a run and a grid, each a function that writes one file.

Drawn without pyplot, so that no global state of matplotlib is touched. The ending of
the path sets the format.
"""

from fcjax.results.figures.curves import against, intervals, learning_curves
from fcjax.results.figures.images import Panel, contact_sheet, image_rows, maps, tsne
from fcjax.results.figures.matrices import (
    agreements,
    associations,
    blocks,
    confusion,
    partition,
    sureness,
)

__all__ = [
    "Panel",
    "against",
    "agreements",
    "associations",
    "blocks",
    "confusion",
    "contact_sheet",
    "image_rows",
    "intervals",
    "learning_curves",
    "maps",
    "partition",
    "sureness",
    "tsne",
]
