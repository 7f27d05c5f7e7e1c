"""What is run for the tables and figures of the FDSC paper, and how it is read."""

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
"""Methods of clients that train a network each and share nothing."""
SHORT = {"num_rounds": (30,)}
"""Of a smoke run."""
SHORT_ALONE = {"num_rounds": (12,)}
"""As many as a client of a federated smoke run takes part in."""
OF_MNIST = {"split": "train", "clients": (20,)}
Q: Mapping[str, tuple[int, ...]] = {
    name: tuple(by_q) for name, by_q in CLUSTER_SCORES.items()
}
"""q by data set."""
BY_PATH = ("orl", "coil20", "coil100")
SHORT_FIGURE = {**SHORT_ALONE, "num_participants": (5,)}
"""For FDSC and DSCN alike, as all five clients are in every round."""
PROCESSED = "with post-processing"

READ_AS = (
    "Adam in place of SGD, of which the paper has neither rate nor momentum",
    "squared norms without halves, as in the public code of DSC-Net, whose weights "
    "the paper has",
    "lambda_3 = 1e6 weighs the squared Frobenius norm of A - C for pixels of 0 to 255, "
    "which is 15.4 for pixels of 0 to 1: the paper prints the matrix, no number; "
    "A is the graph of 5 neighbours, whose number it does not print",
    "the server's weights are renormalised over the clients of a round",
    "the auto-encoder is trained first without coefficients, its encoder shared, and "
    "before the rounds and after them every client fits decoder and coefficients to "
    "the encoder, 100 steps: the paper does not say how they begin, nor what clients "
    "do that missed the last round, and without this all codes can go to zero",
    "clients of DSCN take as many steps as one of FDSC does on average, those before "
    "the rounds and after them included; DLRSC has its authors' 4,900 and those",
    "each client is told how many classes it holds",
)
OF_PROCESSING = (
    "|C| + |C|^T is clustered, of all methods: the paper says nothing of DSC-Net's "
    f"processing of the coefficients; fdsc-post-processing has them {PROCESSED} too"
)
OF_BATCHES = (
    "a batch is a fixed subset of b examples a client, which are all that it clusters: "
    "coefficients tie each example to all others"
)
OF_PATHS = (
    "ORL and COIL are files of images of 32 x 32, as for the weights: --datasets "
    "orl=ORL_32x32.mat; settings go by what the name of the file begins with"
)
OF_Q = "q is not in print for it, 10 is taken"


def row(name: str, *, post_processing: bool = False) -> Row:
    """Returns a method, called as scripts do, with DSC-Net's processing or without."""
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
    """Returns what is run of a study: on a grid, in place of which each of the paper's
    data sets may have its own flags, and in a smoke run with shortened training.
    """
    # Of digits 500 examples are all that a client holds. Each grid has the flag: runs
    # share a folder where the same flags span their grids.
    common = {"clients": (5,), "classes_per_client": (10,), "client_size": (500,)}
    grid = {**common, **grid}
    return {
        "smoke": Preset(grid, (0,), {SCRIPT: short}, by_dataset),
        "paper": Preset(grid, seeds, {}, by_dataset),
    }


def of_clustering() -> Paper:
    """Returns Table 2 by data set, q and method."""
    return {
        (dataset, q, method): scores_of(scores)
        for dataset, by_q in CLUSTER_SCORES.items()
        for q, methods in by_q.items()
        for method, scores in methods.items()
    }


def of_level(table: Mapping[int, Mapping[str, Scores]]) -> Paper:
    """Returns Table 3 or 4 by data set, level and method."""
    return {
        ("mnist", level, method): scores_of(scores)
        for level, methods in table.items()
        for method, scores in methods.items()
    }


def clustering(title: str, rows: tuple[Row, ...], paper: Paper, *notes: str) -> Study:
    """Returns Table 2, or one that is set alike."""
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
    """Returns Table 3 or 4."""
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
    """Returns a figure of FDSC2 and DSCN, which trains one run of each."""
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
        "all methods with DSC-Net's processing of the coefficients and without it; not "
        "in the paper",
        tuple(
            row(name, post_processing=on)
            for name in DISPLAY_NAMES
            for on in (False, True)
        ),
        {},
        "without it |C| + |C|^T is clustered, which is LRSC's own affinity",
    ),
    "fdsc-figure3": of_maps(
        "t-SNE of the codes of four clients by FDSC and DSCN, with Table 1's numbers",
        "figure3",
        {"mnist": OF_MNIST},
        "the numbers are of k-means on the maps, which the paper does not name",
        OF_BATCHES,
        "b = 500, of which the paper says nothing here",
    ),
    "fdsc-figure4": of_maps(
        "mean coefficients by pair of classes, of DSCN, FDSC1 and FDSC2",
        "figure4",
        {
            "mnist": {**OF_MNIST, "split": "test"},
            "coil20": {
                "clients": (7,),
                "classes_per_client": (20,),
                "client_size": (200,),
            },
        },
        "the test split of MNIST does not have as many images of each class, so that a "
        "client has about 50 of each, not 50",
        "COIL20 has 7 clients, and not 20: clients share no image, and it has 72 of "
        "each class, of which a client takes 10",
        OF_PATHS,
    ),
}
