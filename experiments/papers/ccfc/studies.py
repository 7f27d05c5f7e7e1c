"""What is run for the tables and figures of the CCFC paper, and how they are read."""

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
VARIANTS = {  # Table 4's columns: double dagger, dagger, and the whole method
    "SCFC standalone": {**SCFC, **ALONE},
    "CCFC standalone": ALONE,
    "SCFC FedAvg": {**SCFC, **FEDAVG},
    "CCFC FedAvg": FEDAVG,
    "SCFC": SCFC,
    "CCFC": {},
}
FAILURE_RATES = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Of Figure 6, whose own the text does not give."""
MODEL_WEIGHTS = (0.0, 0.001, 0.01, 0.1, 1.0, 10.0)
"""Of Figure 7, whose own the text does not give."""


def of_table(
    name: str,
    scores: Scores,
    *,
    central: tuple[str, ...] = CENTRAL,
    federated: tuple[str, ...] = FEDERATED,
) -> Paper:
    """Returns Table 1 or 2, or one that is set alike, by data set, p (None where the
    data is central) and method.
    """
    found = {}
    for dataset, (first, levels) in scores.items():
        rows = [(None, central, first)]
        rows += [(p, federated, row) for p, row in zip(LEVELS, levels, strict=True)]
        for p, methods, row in rows:
            for method, score in zip(methods, row, strict=True):
                found[dataset, p, method] = {name: score}
    return found


def of_clients() -> Paper:
    """Returns Table 4 by data set, method and client, with the means over clients."""
    found = {}
    for method, column in zip(VARIANTS, zip(*CLIENTS, strict=True), strict=True):
        for client, score in enumerate(column, start=1):
            found["mnist", method, client] = {"kappa": score}
        found["mnist", method, "mean"] = {"kappa": sum(column) / len(column)}
    return found


def of_figure(level: float, methods: tuple[str, ...]) -> Paper:
    """Returns what Tables 1 and 2 have for a figure's curves, by data set, method, p
    and the level that the tables were made at; the figure's own values are nowhere in
    print.
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
    rounds: tuple[int, int] = (100, 30),
) -> dict[str, Preset]:
    """Returns both presets from the grid of each; `rounds` are those of the stages of
    CCFC in a smoke run.
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
    """Returns a figure of embeddings, which trains one run a panel."""
    one = {"smoke_seeds": (0,), "seeds": (0,), "rounds": rounds}
    return Study(
        title,
        datasets=("mnist",),
        rows=(Row("CCFC", "ccfc"),),
        presets=presets(IID, IID, **one),
        maps=f"ccfc.figures.{figure}",
    )


METHODS = (
    Row("KM", "baselines", {"methods": ("km",)}, central=True),
    Row("FCM", "baselines", {"methods": ("fcm",)}, central=True),
    # By the nearest centroid of the server: with k-FED's own labels, which clusters of
    # clients inherit, NMI is 0.12 above the paper's at p = 1
    # (docs/benchmarks/baselines.md).
    Row("k-FED", "baselines", {"methods": ("k-fed",), "inherit": False}),
    Row("FFCM", "baselines", {"methods": ("ffcm",)}),
    SDA_FC_KM,
    SDA_FC_FCM,
    PPFC_GAN,
    Row("CCFC", "ccfc"),
)
SCORES = ("nmi", "kappa", "surviving_nmi", "surviving_kappa")
OF_PPFC_GAN = ("PPFC-GAN is SDA-FDC by a later name", *OF_GANS, OF_DCN)
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
        "accuracy of k neighbours' votes in each representation, p = 0",
        datasets=("mnist",),
        rows=(
            Row("Raw pixels", untrained=measures.neighbors_of_pixels),
            PPFC_GAN,
            Row("SCFC", "ccfc", SCFC),
            Row("CCFC", "ccfc"),
        ),
        presets=presets(IID, IID),
        measure=measures.neighbors,
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
        measure=measures.clients,
        by=("dataset", "method", "client"),
        values=("imbalance", "kappa"),
        paper=of_clients(),
    ),
    "ccfc-figure3": of_maps(
        "one client's examples: pixels, trained alone, FedAvg's global and local model",
        "figure3",
        rounds=(60, 20),
    ),
    "ccfc-figure4": of_maps(
        "all examples: pixels, by SCFC, by CCFC", "figure4", rounds=(60, 20)
    ),
    "ccfc-figure5": of_maps(
        "two classes by the clients' local models for each p, with their CH scores",
        "figure5",
        rounds=(40, 12),
    ),
    "ccfc-figure6": Study(
        "scores against the share of clients that fail, a line for each p",
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
        draw=partial(measures.against, level="failure_rate", values=SCORES),
        notes=OF_PPFC_GAN,
    ),
    "ccfc-figure7": Study(
        "CCFC against lambda, the weight of the model-contrastive term, for each p",
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
        draw=partial(measures.against, level="model_weight", values=SCORES[:2]),
    ),
}
