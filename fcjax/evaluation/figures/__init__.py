"""Figures of a partition, a run and a grid, each a function that writes one file.

Drawn without pyplot, so that no global state of matplotlib is touched. The ending of
the path sets the format.
"""

from fcjax.evaluation.figures.associations import associations
from fcjax.evaluation.figures.bars import bars
from fcjax.evaluation.figures.curves import against, learning_curves
from fcjax.evaluation.figures.heatmaps import (
    agreements,
    blocks,
    confusion,
    partition,
)
from fcjax.evaluation.figures.intervals import intervals
from fcjax.evaluation.figures.latent import tsne
from fcjax.evaluation.figures.panels import Panel, maps
from fcjax.evaluation.figures.sheets import contact_sheet, image_rows
from fcjax.evaluation.figures.sureness import sureness

__all__ = [
    "Panel",
    "against",
    "agreements",
    "associations",
    "bars",
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
