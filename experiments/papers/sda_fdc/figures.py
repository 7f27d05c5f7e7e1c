"""Draws the t-SNE figure of the SDA-FDC paper: Figure 3.

It is drawn from the exported models of the runs of the tables.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from experiments.figure_runs import load_one
from experiments.papers.maps import Panel, draw_maps
from fcjax import data, metrics
from fcjax.cli.main import run
from fcjax.data.source import short_name
from fcjax.methods import SDAFDC, SDAFDCDisjoint
from fcjax.methods.paper_scores_sda_fdc import scores_of
from fcjax.results import exported
from fcjax.settings import as_tuple
from fcjax.sweep.plan import Task

PANELS = {
    SDAFDCDisjoint: ("SDA-FDC (disjoint)", "-disjoint"),
    SDAFDC: ("SDA-FDC", ""),
}
"""By method: title of the panel, and suffix of the results folder."""


def figure3(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 3: pixels, codes of SDA-FDC (disjoint) and codes of SDA-FDC.

    Colours are the clients. At p = 1 these are the classes as well.

    Args:
        task: one value per flag. The methods are set here. The runs of SDA-FDC
            (disjoint) are in a folder next to --out, with the suffix -disjoint.
        folder: folder of `figure3.png`. It is created.

    Returns:
        One row per panel of codes: panel, nmi, kappa, paper_nmi, paper_kappa. The
        paper's scores are for MNIST.

    Raises:
        ValueError: a flag has several values, or the data has no labels.
    """
    dataset = load_one(task)
    (p, *_) = (*as_tuple(task.split.p), -1)
    rows, panels = [], []
    for method, (title, ending) in PANELS.items():
        out = task.options.out and task.options.out.with_name(
            task.options.out.name + ending
        )
        codes, clients, clusters = embed_examples(
            task.with_method(method).replace(out=out), dataset
        )
        if not panels:
            pixels = dataset.examples.reshape(len(clients), -1)
            panels.append(Panel("raw pixels", pixels, clients))
        all_scores = metrics.scores(np.asarray(dataset.labels), clusters)
        paper_scores = scores_of("mnist", method.name).get(p, {})
        scores = {name: float(all_scores[name]) for name in ("nmi", "kappa")}
        paper = {f"paper_{name}": paper_scores.get(name) for name in scores}
        rows.append({"panel": title, **scores, **paper})
        text = f"NMI {scores['nmi']:.3f}, kappa {scores['kappa']:.3f}"
        panels.append(Panel(f"{title}\n{text}", codes, clients))
    seed = task.options.seed[0]
    level = f", p = {p:g}" if p >= 0 else ""
    title = f"SDA-FDC on {short_name(task.source.dataset)}{level}, seed {seed}"
    path = folder / "figure3.png"
    draw_maps(panels, path, seed=seed, groups="client", title=title)
    return rows


def embed_examples(
    task: Task, dataset: data.Dataset
) -> tuple[Float[np.ndarray, "P D"], Int[np.ndarray, "P"], Int[np.ndarray, "P"]]:
    """Trains a run, or reads the finished run, and embeds all examples.

    Args:
        task: the method and its options.
        dataset: the data set.

    Returns:
        Code, client and cluster of each example. The client is -1 for an example that
        no client has.
    """
    (results,) = run(lambda: [task])
    (row,) = results.requested(results.rows)
    point = {name: row[name] for name in results.names}
    prediction = exported.predict(results.model(**point), dataset.examples)
    clients = results.assignment_arrays(point)["client"]
    return prediction.embedding, clients, prediction.clusters
