"""The t-SNE figure of the SDA-FDC paper: Figure 3 as a function, drawn from the models
that finished runs of its tables leave.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from experiments.papers.maps import Panel, maps
from experiments.trained import load_one
from fcjax import data, metrics
from fcjax.cli.main import run
from fcjax.data.source import short_name
from fcjax.methods import SDAFDC, SDAFDCDisjoint
from fcjax.methods.printed_sda_fdc import scores_of
from fcjax.results import exported
from fcjax.settings import as_tuple
from fcjax.sweep.plan import Task

PANELS = {
    SDAFDCDisjoint: ("SDA-FDC (disjoint)", "-disjoint"),
    SDAFDC: ("SDA-FDC", ""),
}
"""Title and what the name of the results folder ends in, by method."""


def figure3(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 3: examples as pixels, as codes of SDA-FDC (disjoint) and as codes
    of SDA-FDC. Colours are the clients, at p = 1 the classes too.

    Args:
        task: one value a flag; the methods are set here. Runs of the ablation lie
            beside --out, in a folder of that name that ends in -disjoint.
        folder: of `figure3.png`; created.

    Returns:
        One row per panel of codes: panel, nmi, kappa, and the paper's on MNIST as
        paper_nmi and paper_kappa.

    Raises:
        ValueError: a flag has several values, or the data has no labels.
    """
    dataset = load_one(task)
    (level, *_) = (*as_tuple(task.split.p), -1)
    rows, panels = [], []
    for method, (title, ending) in PANELS.items():
        out = task.options.out and task.options.out.with_name(
            task.options.out.name + ending
        )
        codes, clients, clusters = coded(task.by(method).but(out=out), dataset)
        if not panels:
            pixels = dataset.examples.reshape(len(clients), -1)
            panels.append(Panel("raw pixels", pixels, clients))
        found = metrics.scores(np.asarray(dataset.labels), clusters)
        reported = scores_of("mnist", method.name).get(level, {})
        scores = {name: float(found[name]) for name in ("nmi", "kappa")}
        paper = {f"paper_{name}": reported.get(name) for name in scores}
        rows.append({"panel": title, **scores, **paper})
        told = f"NMI {scores['nmi']:.3f}, kappa {scores['kappa']:.3f}"
        panels.append(Panel(f"{title}\n{told}", codes, clients))
    title = f"{short_name(task.source.dataset)}, seed {task.options.seed[0]}"
    path = folder / "figure3.png"
    maps(panels, path, seed=task.options.seed[0], groups="client", title=title)
    return rows


def coded(
    task: Task, dataset: data.Dataset
) -> tuple[Float[np.ndarray, "P D"], Int[np.ndarray, "P"], Int[np.ndarray, "P"]]:
    """Trains a run, or takes the finished one, and returns of every example its code,
    the client that holds it (-1: nobody) and its cluster.
    """
    (results,) = run(lambda: [task])
    (row,) = results.requested(results.rows)
    point = {name: row[name] for name in results.names}
    found = exported.predict(results.model(**point), dataset.examples)
    clients = results.assignment_arrays(point)["client"]
    return found.embedding, clients, found.clusters
