"""Figures of a partition, a run and a grid, each a function that writes one file.

Drawn without pyplot, so that no global state of matplotlib is touched. The ending of
the path sets the format.
"""

from fcjax.results.figures.curves import against, intervals, learning_curves
from fcjax.results.figures.images import contact_sheet, image_rows, tsne
from fcjax.results.figures.matrices import (
    agreements,
    associations,
    confusion,
    partition,
    confidence,
)

__all__ = [
    "against",
    "agreements",
    "associations",
    "confusion",
    "contact_sheet",
    "image_rows",
    "intervals",
    "learning_curves",
    "partition",
    "confidence",
    "tsne",
]
