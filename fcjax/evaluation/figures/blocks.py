"""How much of what ties samples lies within classes: heat maps side by side."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from fcjax.evaluation.figures import style

_INCHES = 3.6
_MOST_NAMED = 20
"""More classes have no room for all their names."""


def blocks(
    matrices: Mapping[str, Float[np.ndarray, "K K"]],
    path: str | Path,
    *,
    names: Sequence | np.ndarray,
    scale: str,
) -> Figure:
    """Draws matrices of pairs of classes on one scale, 0 to 1.

    A diagonal darker than the rest is the block structure that subspace clustering
    looks for.

    Args:
      matrices: by title; NaN where there is no such pair, which is left grey.
      path: where to write the figure; the ending sets the format.
      names: of the K classes.
      scale: what the values are, beside the bar of colours.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if there is no matrix, a value lies outside [0, 1], or there are not
        K names.
    """
    if not matrices:
        raise ValueError("no matrices to draw")
    for title, matrix in matrices.items():
        if len(names) != len(matrix):
            raise ValueError(f"{title}: {len(names)} names of {len(matrix)} classes")
        if np.any(matrix < 0) or np.any(matrix > 1):
            raise ValueError(f"{title}: values must lie in [0, 1]")
    size = (_INCHES * len(matrices) + 0.9, _INCHES + 0.8)
    figure = Figure(size, layout="compressed")
    all_axes = figure.subplots(1, len(matrices), squeeze=False)[0]
    listed = range(0, len(names), math.ceil(len(names) / _MOST_NAMED))
    for axes, (title, matrix) in zip(all_axes, matrices.items(), strict=True):
        image = axes.imshow(matrix, cmap="Blues", vmin=0, vmax=1, aspect="equal")
        axes.set_facecolor("0.85")
        axes.set_title(title, fontsize=12, color=style.INK)
        axes.set_xlabel("class", fontsize=10)
        axes.set_xticks(listed, [str(names[i]) for i in listed])
        axes.set_yticks(listed, [str(names[i]) for i in listed])
        axes.tick_params(labelsize=9, length=0, labelcolor=style.INK)
        axes.spines[:].set(color="0.8", linewidth=0.8)
    all_axes[0].set_ylabel("class", fontsize=10)
    bar = figure.colorbar(image, ax=list(all_axes), shrink=0.8, pad=0.02)
    bar.set_label(scale, fontsize=10)
    bar.ax.tick_params(labelsize=9, color="0.6", labelcolor=style.INK)
    bar.outline.set(edgecolor="0.8", linewidth=0.8)  # pyright: ignore
    return style.write(figure, path)
