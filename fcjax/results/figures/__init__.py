"""Figures of a partition, a run and a grid: each function writes one file.

The ending of the path sets the format. The functions do not use pyplot, so that the
global state of matplotlib stays as it is.
"""

from fcjax.results.figures.curves import (
    against,
    histogram,
    in_words,
    intervals,
    learning_curves,
)
from fcjax.results.figures.images import contact_sheet, image_rows, tsne
from fcjax.results.figures.matrices import (
    agreements,
    associations,
    confidence,
    confusion,
    partition,
)

__all__ = [
    "against",
    "agreements",
    "associations",
    "confidence",
    "confusion",
    "contact_sheet",
    "histogram",
    "image_rows",
    "in_words",
    "intervals",
    "learning_curves",
    "partition",
    "tsne",
]
