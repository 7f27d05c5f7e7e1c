"""The tables and figures of the SDA-FDC paper: runs, measures and reported scores."""

from functools import partial

from experiments.papers import label_shares, measures
from experiments.papers.ccfc.studies import FAILURE_RATES, SCORES, of_table, presets
from experiments.papers.sda_fdc.rows import (
    ALIKE,
    DCN_CENTRAL,
    DISJOINT,
    KM_CENTRAL,
    OF_DCN,
    OF_GANS,
    SDA_FC_KM,
    SDA_FDC,
)
from experiments.papers.study import Paper, Row, Study
from fcjax.methods.paper_scores_sda_fdc import (
    CENTRAL,
    FEDERATED,
    KAPPA,
    LEVELS,
    NMI,
    PAPER_NAMES,
    scores_of,
)

METHODS = (KM_CENTRAL, DCN_CENTRAL, SDA_FC_KM, DISJOINT, SDA_FDC)
CURVES = (SDA_FC_KM, SDA_FDC)
"""The methods of Figure 4."""
TRUTH = Row("truth", measure_data=label_shares.of_classes)
OF_KM = "k-means scales examples to L2 norm 1, as in the authors' code"
PENDIGITS = (
    "pendigits is the two files of UCI together, 10,992 examples: cat pendigits.tra "
    "pendigits.tes > pendigits.csv, then --datasets pendigits=pendigits.csv"
)
COMPLETE = {"p": (1.0,)}
"""Heterogeneity p = 1: every client has one class of its own."""


def table(title: str, score: str, paper: Paper) -> Study:
    """Returns Table 2 or 3: a score of all methods for each p."""
    return Study(
        title,
        datasets=tuple(NMI),
        rows=METHODS,
        presets=presets(*2 * ({"p": LEVELS},)),
        measure=measures.scores,
        by=("dataset", "p", "method"),
        values=(score,),
        paper=paper,
        by_path=("pendigits",),
        notes=(*OF_GANS, OF_DCN, ALIKE, OF_KM, PENDIGITS),
    )


def of_figure() -> Paper:
    """Returns the scores of the tables that the curves of Figure 4 go through.

    These are the scores without failing clients. The paper prints no other values.

    Returns:
        The scores by data set, method, p and failure rate.
    """
    return {
        ("mnist", PAPER_NAMES[method], p, 0.0): scores
        for row in CURVES
        for method in row.flags["methods"]
        for p, scores in scores_of("mnist", method).items()
    }


STUDIES = {
    "sda-fdc-table2": table(
        "NMI of SDA-FDC, its ablation and the baselines for each p",
        "nmi",
        of_table("nmi", NMI, central=CENTRAL, federated=FEDERATED),
    ),
    "sda-fdc-table3": table(
        "kappa of SDA-FDC, its ablation and the baselines for each p",
        "kappa",
        of_table("kappa", KAPPA, central=CENTRAL, federated=FEDERATED),
    ),
    "sda-fdc-figure2": Study(
        "cluster sizes by matched class: SDA-FC-KM, SDA-FDC and true classes, p = 1",
        datasets=("pendigits",),
        rows=(SDA_FC_KM, SDA_FDC, TRUTH),
        presets=presets(COMPLETE, COMPLETE, smoke_seeds=(0,), seeds=(0,)),
        measure=label_shares.of_clusters,
        by=("dataset", "method", "label"),
        values=("share",),
        draw=label_shares.draw,
        by_path=("pendigits",),
        notes=(*OF_GANS, OF_DCN, OF_KM, PENDIGITS),
    ),
    "sda-fdc-figure3": Study(
        "all examples by client: pixels, codes of SDA-FDC (disjoint), codes of SDA-FDC",
        datasets=("mnist",),
        rows=(SDA_FDC,),
        presets=presets(COMPLETE, COMPLETE, smoke_seeds=(0,), seeds=(0,)),
        draw_runs="sda_fdc.figures.figure3",
        notes=(*OF_GANS, OF_DCN, ALIKE),
    ),
    "sda-fdc-figure4": Study(
        "scores against the failure rate of the clients, one line per p",
        datasets=("mnist",),
        rows=CURVES,
        presets=presets(
            {"p": (0.0, 1.0), "failure_rate": (0.0, 0.3, 0.6)},
            {"p": LEVELS, "failure_rate": FAILURE_RATES},
            smoke_seeds=(0,),
        ),
        measure=measures.scores,
        by=("dataset", "method", "p", "failure_rate"),
        values=SCORES,
        paper=of_figure(),
        draw=partial(measures.draw_scores, level="failure_rate", values=SCORES),
        notes=(*OF_GANS, OF_DCN, OF_KM),
    ),
}
