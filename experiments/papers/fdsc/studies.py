"""The tables and figures of the FDSC paper: runs, measures and reported scores."""

from collections.abc import Mapping
from typing import Any

from experiments.papers import measures
from experiments.papers.fdsc.printed import (
    BY_CLIENTS,
    BY_SIZE,
    CLUSTER_SCORES,
    DISPLAY_NAMES,
    SCORES,
    Scores,
    scores_of,
)
from experiments.papers.study import Paper, Preset, Row, Study

SCRIPT = "fdsc"
ALONE = ("dscn", "dlrsc")
"""The standalone methods: each client trains its own network and shares nothing."""
SHORT = {"num_rounds": (30,)}
"""Settings of a smoke run."""
SHORT_ALONE = {"num_rounds": (12,)}
"""Rounds of a standalone method in a smoke run: as many as one client of FDSC joins."""
OF_MNIST = {"split": "train", "clients": (20,)}
Q: Mapping[str, tuple[int, ...]] = {
    name: tuple(by_q) for name, by_q in CLUSTER_SCORES.items()
}
"""Numbers of classes per client q, by data set."""
BY_PATH = ("orl", "coil20", "coil100")
SHORT_FIGURE = {**SHORT_ALONE, "num_participants": (5,)}
"""Settings of a smoke run of a figure, for FDSC and DSCN. All five clients are in every
round."""
PROCESSED = "with post-processing"

READ_AS = (
    "Adam replaces SGD, because the paper gives neither learning rate nor momentum of "
    "SGD",
    "the squared norms have no factor 1/2, as in the public code of DSC-Net, whose "
    "weights the paper uses",
    "lambda_3 = 1e6 multiplies the squared Frobenius norm of A - C for pixels in 0 to "
    "255, which equals 15.4 for pixels in 0 to 1; the paper prints the matrix A - C "
    "without a norm",
    "A is the graph of 5 nearest neighbours; the paper does not give the number of "
    "neighbours",
    "the server's weights are renormalised over the participating clients",
    "the auto-encoder is pre-trained without coefficients, with a shared encoder; the "
    "paper does not describe the initialisation",
    "before the first and after the last round, every client fits decoder and "
    "coefficients to the encoder in 100 steps; without these steps all codes can "
    "collapse to zero",
    "clients of DSCN take as many steps as a client of FDSC on average; DLRSC has the "
    "4,900 steps of its authors; both have the 100 steps before and after as well",
    "each client knows the number of its classes",
)
OF_PROCESSING = (
    "every method clusters |C| + |C|^T; the paper does not mention DSC-Net's "
    "post-processing of the coefficients; fdsc-post-processing has results with it"
)
OF_BATCHES = (
    "a batch is a fixed subset of b examples per client, and a client clusters only "
    "this subset, because the coefficients connect each example to all others"
)
OF_PATHS = (
    "ORL and COIL are files with images of 32 x 32 pixels: --datasets "
    "orl=ORL_32x32.mat; the beginning of the file name selects the settings"
)
OF_Q = "the paper does not give q for this table; the runs have q = 10"


def row(name: str, *, post_processing: bool = False) -> Row:
    """Returns the row of a method, with or without DSC-Net's post-processing."""
    label, flags = DISPLAY_NAMES[name], {"methods": (name,)}
    if post_processing:
        label, flags = f"{label} {PROCESSED}", {**flags, "post_processing": True}
    return Row(label, SCRIPT, flags, {"smoke": SHORT_ALONE} if name in ALONE else {})


def presets(
    grid: Mapping[str, tuple],
    by_dataset: Mapping[str, Mapping[str, Any]],
    *,
    short: Mapping[str, Any] = SHORT,
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
) -> dict[str, Preset]:
    """Returns both presets of a study.

    Args:
        grid: flags that span the grid.
        by_dataset: flags that replace flags of the grid, by data set of the paper.
        short: flags that shorten the training of the smoke preset.
        seeds: the seeds of the paper preset.

    Returns:
        The presets by name.
    """
    # A client of digits has fewer than 500 examples, so 500 means all of them. Every
    # grid has the same flags, so that studies share the folders of their runs.
    common = {"clients": (5,), "classes_per_client": (10,), "client_size": (500,)}
    grid = {**common, **grid}
    return {
        "smoke": Preset(grid, (0,), {SCRIPT: short}, by_dataset),
        "paper": Preset(grid, seeds, {}, by_dataset),
    }


def of_clustering() -> Paper:
    """Returns the scores of Table 2 by data set, q and method."""
    return {
        (dataset, q, method): scores_of(scores)
        for dataset, by_q in CLUSTER_SCORES.items()
        for q, methods in by_q.items()
        for method, scores in methods.items()
    }


def of_level(table: Mapping[int, Mapping[str, Scores]]) -> Paper:
    """Returns the scores of Table 3 or 4 by data set, swept value and method."""
    return {
        ("mnist", level, method): scores_of(scores)
        for level, methods in table.items()
        for method, scores in methods.items()
    }


def clustering(title: str, rows: tuple[Row, ...], paper: Paper, *notes: str) -> Study:
    """Returns Table 2, or a table with the same layout.

    Args:
        title: title of the study.
        rows: the rows.
        paper: the scores that the paper reports.
        *notes: notes for the reader.

    Returns:
        The study.
    """
    by_dataset = {
        name: {"classes_per_client": q, "client_size": ()} for name, q in Q.items()
    }
    mnist = {**OF_MNIST, "classes_per_client": Q["mnist"]}
    return Study(
        title,
        datasets=tuple(Q),
        rows=rows,
        presets=presets(
            {"classes_per_client": (5, 10)},
            {**by_dataset, "mnist": mnist},
        ),
        measure=measures.scores,
        by=("dataset", "classes_per_client", "method"),
        values=SCORES,
        paper=paper,
        by_path=BY_PATH,
        notes=(*READ_AS, *notes, OF_BATCHES, "b = 500 on MNIST", OF_PATHS),
    )


def by_level(
    title: str,
    level: str,
    table: Mapping[int, Mapping[str, Scores]],
    smoke: tuple[int, ...],
) -> Study:
    """Returns Table 3 or 4: scores against a swept flag.

    Args:
        title: title of the study.
        level: name of the swept flag.
        table: the scores that the paper reports, by value of the flag.
        smoke: values of the flag in the smoke preset.

    Returns:
        The study.
    """
    return Study(
        title,
        datasets=("mnist",),
        rows=(row("fdsc1"), row("fdsc2")),
        presets=presets({level: smoke}, {"mnist": {**OF_MNIST, level: tuple(table)}}),
        measure=measures.scores,
        by=("dataset", level, "method"),
        values=SCORES,
        paper=of_level(table),
        notes=(*READ_AS, OF_PROCESSING, OF_BATCHES, OF_Q),
    )


def of_maps(
    title: str, figure: str, by_dataset: Mapping[str, Mapping[str, Any]], *notes: str
) -> Study:
    """Returns a study that trains one run of FDSC2 and one of DSCN, and draws a figure.

    Args:
        title: title of the study.
        figure: name of the function in `fdsc.figures`.
        by_dataset: flags by data set of the paper.
        *notes: notes for the reader.

    Returns:
        The study.
    """
    return Study(
        title,
        datasets=tuple(by_dataset),
        rows=(row("fdsc2"),),
        presets=presets({}, by_dataset, short=SHORT_FIGURE, seeds=(0,)),
        draw_runs=f"fdsc.figures.{figure}",
        by_path=tuple(name for name in by_dataset if name in BY_PATH),
        notes=(*READ_AS, *notes),
    )


STUDIES = {
    "fdsc-table2": clustering(
        "ACC, NMI, AMI and ARI of FDSC and baselines by data set and q",
        tuple(map(row, DISPLAY_NAMES)),
        of_clustering(),
        OF_PROCESSING,
    ),
    "fdsc-table3": by_level(
        "ACC, NMI, AMI and ARI of FDSC by the number of clients m",
        "clients",
        BY_CLIENTS,
        (5, 10),
    ),
    "fdsc-table4": by_level(
        "ACC, NMI, AMI and ARI of FDSC by the batch size b",
        "client_size",
        BY_SIZE,
        (100, 250),
    ),
    "fdsc-post-processing": clustering(
        "all methods with and without DSC-Net's post-processing of the coefficients "
        "(not in the paper)",
        tuple(
            row(name, post_processing=on)
            for name in DISPLAY_NAMES
            for on in (False, True)
        ),
        {},
        "without post-processing a method clusters |C| + |C|^T, the affinity of LRSC",
    ),
    "fdsc-figure3": of_maps(
        "t-SNE of the codes of four clients by FDSC and DSCN, with Table 1's numbers",
        "figure3",
        {"mnist": OF_MNIST},
        "the scores are of k-means on the maps; the paper does not say how it clusters "
        "the maps",
        OF_BATCHES,
        "b = 500; the paper does not give b for this figure",
    ),
    "fdsc-figure4": of_maps(
        "mean absolute coefficients by pair of classes: DSCN, FDSC1 and FDSC2",
        "figure4",
        {
            "mnist": {**OF_MNIST, "split": "test"},
            "coil20": {
                "clients": (7,),
                "classes_per_client": (20,),
                "client_size": (200,),
            },
        },
        "the classes of MNIST's test split differ in size, so a client has about 50 "
        "images of each class, not exactly 50",
        "COIL20 has 7 clients instead of 20: it has 72 images of each class, a client "
        "takes 10 of them, and clients share no image",
        OF_PATHS,
    ),
}
