"""The tables and figures of the CCFC paper: runs, measures and reported scores."""

from collections.abc import Mapping
from functools import partial

from experiments.papers import measures
from experiments.papers.sda_fdc.rows import (
    OF_DCN,
    OF_GANS,
    PPFC_GAN,
    SCRIPT,
    SDA_FC_FCM,
    SDA_FC_KM,
    SHORT,
)
from experiments.papers.study import Paper, Preset, Row, Study
from fcjax.methods.paper_scores_ccfc import (
    CENTRAL,
    CLIENTS,
    FEDERATED,
    KAPPA,
    LEVELS,
    NEIGHBORS,
    NMI,
    Scores,
    scores_of,
)

SCFC = {"sample_contrastive": True}
FEDAVG = {"model_weight": (0.0,)}
ALONE = {"standalone": True, **FEDAVG}
VARIANTS = {  # The columns of Table 4: double dagger, dagger, and the full method.
    "SCFC standalone": {**SCFC, **ALONE},
    "CCFC standalone": ALONE,
    "SCFC FedAvg": {**SCFC, **FEDAVG},
    "CCFC FedAvg": FEDAVG,
    "SCFC": SCFC,
    "CCFC": {},
}
FAILURE_RATES = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Failure rates of Figure 6. The paper's text does not give its values."""
MODEL_WEIGHTS = (0.0, 0.001, 0.01, 0.1, 1.0, 10.0)
"""Weights lambda of Figure 7. The paper's text does not give its values."""


def of_table(
    name: str,
    scores: Scores,
    *,
    central: tuple[str, ...] = CENTRAL,
    federated: tuple[str, ...] = FEDERATED,
) -> Paper:
    """Returns the scores of Table 1 or 2, or of a table with the same layout.

    Args:
        name: name of the score.
        scores: the scores as the paper prints them, by data set.
        central: names of the central methods, in the order of the columns.
        federated: names of the federated methods, in the order of the columns.

    Returns:
        The scores by data set, p (None for central methods) and method.
    """
    paper = {}
    for dataset, (first, levels) in scores.items():
        rows = [(None, central, first)]
        rows += [(p, federated, row) for p, row in zip(LEVELS, levels, strict=True)]
        for p, methods, row in rows:
            for method, score in zip(methods, row, strict=True):
                paper[dataset, p, method] = {name: score}
    return paper


def of_clients() -> Paper:
    """Returns the kappas of Table 4 by data set, method and client, and their means."""
    paper = {}
    for method, column in zip(VARIANTS, zip(*CLIENTS, strict=True), strict=True):
        for client, score in enumerate(column, start=1):
            paper["mnist", method, client] = {"kappa": score}
        paper["mnist", method, "mean"] = {"kappa": sum(column) / len(column)}
    return paper


def of_figure(level: float, methods: tuple[str, ...]) -> Paper:
    """Returns the scores of Tables 1 and 2 that a curve of a figure goes through.

    The paper does not print the other values of the figure.

    Args:
        level: the swept value of the tables' runs.
        methods: the methods of the figure.

    Returns:
        The scores by data set, method, p and level.
    """
    return {
        ("mnist", method, p, level): scores
        for method in methods
        for p, scores in scores_of("mnist", method).items()
    }


FULL = {script: {"preset": "paper"} for script in ("ccfc", "baselines", SCRIPT)}
IID = {"p": (0.0,)}


def presets(
    smoke: Mapping[str, tuple],
    paper: Mapping[str, tuple],
    *,
    smoke_seeds: tuple[int, ...] = (0, 1, 2),
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    rounds: tuple[int, int] = (30, 10),
) -> dict[str, Preset]:
    """Returns both presets from their grids.

    Args:
        smoke: the grid of the smoke preset.
        paper: the grid of the paper preset.
        smoke_seeds: the seeds of the smoke preset.
        seeds: the seeds of the paper preset.
        rounds: the numbers of rounds of CCFC's two stages in the smoke preset.

    Returns:
        The presets by name.
    """
    pretrain, cluster = rounds
    short = {
        "ccfc": {"pretrain_rounds": (pretrain,), "cluster_rounds": (cluster,)},
        SCRIPT: SHORT,
    }
    return {
        "smoke": Preset(smoke, smoke_seeds, short),
        "paper": Preset(paper, seeds, FULL),
    }


def of_maps(title: str, figure: str, *, rounds: tuple[int, int]) -> Study:
    """Returns a study that draws embeddings, with one run per panel.

    Args:
        title: title of the study.
        figure: name of the function in `ccfc.figures`.
        rounds: the numbers of rounds of CCFC's two stages in the smoke preset.

    Returns:
        The study.
    """
    one = {"smoke_seeds": (0,), "seeds": (0,), "rounds": rounds}
    return Study(
        title,
        datasets=("mnist",),
        rows=(Row("CCFC", "ccfc"),),
        presets=presets(IID, IID, **one),
        draw_runs=f"ccfc.figures.{figure}",
    )


METHODS = (
    Row("KM", "baselines", {"methods": ("km",)}, central=True),
    Row("FCM", "baselines", {"methods": ("fcm",)}, central=True),
    # Assignment by the server's nearest centroid. With k-FED's own assignment by local
    # clusters, NMI is 0.12 above the paper's at p = 1 (docs/benchmarks/baselines.md).
    Row("k-FED", "baselines", {"methods": ("k-fed",), "inherit": False}),
    Row("FFCM", "baselines", {"methods": ("ffcm",)}),
    SDA_FC_KM,
    SDA_FC_FCM,
    PPFC_GAN,
    Row("CCFC", "ccfc"),
)
SCORES = ("nmi", "kappa", "surviving_nmi", "surviving_kappa")
OF_PPFC_GAN = ("PPFC-GAN is a later name of SDA-FDC", *OF_GANS, OF_DCN)
STUDIES = {
    "ccfc-table1": Study(
        "NMI of all methods for each p",
        datasets=tuple(NMI),
        rows=METHODS,
        presets=presets({"p": LEVELS}, {"p": LEVELS}),
        measure=measures.scores,
        by=("dataset", "p", "method"),
        values=("nmi",),
        paper=of_table("nmi", NMI),
        notes=OF_PPFC_GAN,
    ),
    "ccfc-table2": Study(
        "kappa of all methods for each p",
        datasets=tuple(KAPPA),
        rows=METHODS,
        presets=presets({"p": LEVELS}, {"p": LEVELS}),
        measure=measures.scores,
        by=("dataset", "p", "method"),
        values=("kappa",),
        paper=of_table("kappa", KAPPA),
        notes=OF_PPFC_GAN,
    ),
    "ccfc-table3": Study(
        "k-nearest-neighbour accuracy in each representation, p = 0",
        datasets=("mnist",),
        rows=(
            Row("Raw pixels", measure_data=measures.knn_accuracy_of_pixels),
            PPFC_GAN,
            Row("SCFC", "ccfc", SCFC),
            Row("CCFC", "ccfc"),
        ),
        presets=presets(IID, IID),
        measure=measures.knn_accuracy,
        by=("dataset", "method", "k"),
        values=("accuracy",),
        paper={
            ("mnist", method, k): {"accuracy": percent / 100}
            for method, row in NEIGHBORS.items()
            for k, percent in zip(measures.NEIGHBORS, row, strict=True)
        },
        notes=OF_PPFC_GAN,
    ),
    "ccfc-table4": Study(
        "kappa of each client without each component, p = 0, one run",
        datasets=("mnist",),
        rows=tuple(Row(label, "ccfc", flags) for label, flags in VARIANTS.items()),
        presets=presets(IID, IID, smoke_seeds=(0,), seeds=(0,)),
        measure=measures.client_scores,
        by=("dataset", "method", "client"),
        values=("imbalance", "kappa"),
        paper=of_clients(),
    ),
    "ccfc-figure3": of_maps(
        "one client's examples: pixels, standalone, FedAvg's global and local model",
        "figure3",
        rounds=(60, 20),
    ),
    "ccfc-figure4": of_maps(
        "all examples: pixels, SCFC, CCFC", "figure4", rounds=(60, 20)
    ),
    "ccfc-figure5": of_maps(
        "two classes in the clients' local models for each p, with CH scores",
        "figure5",
        rounds=(40, 12),
    ),
    "ccfc-figure6": Study(
        "scores against the failure rate of the clients, one line per p",
        datasets=("mnist",),
        rows=tuple(row for row in METHODS if row.label in FEDERATED),
        presets=presets(
            {"p": (0.0, 0.5), "failure_rate": (0.0, 0.3, 0.6)},
            {"p": LEVELS, "failure_rate": FAILURE_RATES},
        ),
        measure=measures.scores,
        by=("dataset", "method", "p", "failure_rate"),
        values=SCORES,
        paper=of_figure(0.0, FEDERATED),
        draw=partial(measures.draw_scores, level="failure_rate", values=SCORES),
        notes=OF_PPFC_GAN,
    ),
    "ccfc-figure7": Study(
        "scores of CCFC against lambda, the model-contrastive weight, one line per p",
        datasets=("mnist",),
        rows=(Row("CCFC", "ccfc"),),
        presets=presets(
            {"p": (0.0, 0.5), "model_weight": (0.001, 0.1, 10.0)},
            {"p": LEVELS, "model_weight": MODEL_WEIGHTS},
        ),
        measure=measures.scores,
        by=("dataset", "method", "p", "model_weight"),
        values=SCORES[:2],
        paper=of_figure(0.001, ("CCFC",)),
        draw=partial(measures.draw_scores, level="model_weight", values=SCORES[:2]),
    ),
}
