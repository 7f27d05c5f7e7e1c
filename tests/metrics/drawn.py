"""Points to draw, and what a figure says."""

import numpy as np
from matplotlib.image import imread


def texts(labels):
    return [label.get_text() for label in labels]


def ticks(axis):
    return texts(axis.get_ticklabels())


def titles(figure):
    return [axes.get_title() for axes in figure.axes]


def names(figure):
    """Those of its one legend."""
    (legend,) = figure.legends
    return texts(legend.get_texts())


def picture(path):
    """Height and width of what was written."""
    return imread(path).shape[:2]


def blobs(*, classes, each=20, features=5):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), each)
    centres = 10 * rng.normal(size=(classes, features))
    points = centres[labels] + rng.normal(size=(len(labels), features))
    return points.astype(np.float32), labels
