"""Tables III to V of the FedMCC paper: classifiers of the features."""

from collections.abc import Mapping
from typing import Any

from experiments.papers import measures
from experiments.papers.fedmcc.presets import (
    OF_SHARES,
    SCRIPT,
    SHARES,
    methods,
    of_shares,
)
from experiments.papers.fedmcc.printed import (
    FEW_LABELS,
    PROBED,
    RESNET18,
    RESNET50,
    Scores,
)
from experiments.papers.study import Paper, Row, Study

TRAIN = {"split": "train"}
SMALL = "--preset smoke: a small convolutional network replaces each ResNet"


def probed(label: str, method: str, size: int, runs: str = "", **flags: Any) -> Row:
    """Returns a row whose features are classified.

    The second stage is one round of k-means, the shortest second stage. Its clusters
    are not used.

    Args:
        label: name of the row in the table.
        method: name of the method in the script.
        size: number of layers of the ResNet, 18 or 50.
        runs: name of the results folder. Empty takes the label.
        **flags: further flags of the script.

    Returns:
        The row.
    """
    return Row(
        label,
        SCRIPT,
        methods(method, cluster_by="k-means", **flags),
        {"paper": {"backbone": f"resnet{size}-imagenet"}},
        runs=f"{runs or label} + k-means",
    )


def single(label: str, size: int) -> Row:
    """Returns FedU with one participating client: BYOL, as in FedU's own paper."""
    return probed(label, "fedu", size, "Single client", failure_rate=(0.8,))


def linear_evaluation(title: str, size: int, table: Mapping[str, Scores]) -> Study:
    """Returns Table III or IV: the accuracy of linear classifiers.

    Args:
        title: title of the study.
        size: number of layers of the ResNet, 18 or 50.
        table: the scores that the paper reports, by method.

    Returns:
        The study.
    """
    rows = {
        "Single client": single("Single client", size),
        "FedSimCLR": probed("FedSimCLR", "fedsimclr", size),
        "FedCA": Row("FedCA"),
        "FedSimSiam": probed("FedSimSiam", "fedsimsiam", size),
        "FedU": probed("FedU", "fedu", size),
        "FedEMA (lambda = 0.8)": probed(
            "FedEMA (lambda = 0.8)", "fedema", size, scale=(0.8,)
        ),
        "FedEMA (tau = 0.7)": probed(
            "FedEMA (tau = 0.7)", "fedema", size, autoscale=(0.7,)
        ),
        "FedMCC": probed("FedMCC", "fedmcc", size),
        "FedMCC (tuned)": probed("FedMCC (tuned)", "fedmcc", size, momentum=(0.988,)),
    }
    return Study(
        title,
        datasets=("cifar10", "cifar100"),
        rows=tuple(rows[label] for label in table),
        presets=of_shares(*SHARES, split=TRAIN),
        measure=measures.linear_accuracy,
        by=("dataset", "class_share", "method"),
        values=("accuracy",),
        paper={
            (*column, method): {"accuracy": percent / 100}
            for method, row in table.items()
            for column, percent in zip(PROBED, row, strict=True)
            if percent is not None
        },
        notes=(OF_SHARES, SMALL),
    )


def of_labels() -> Paper:
    """Returns the scores of Table V by data set, label share, class share, method."""
    columns = [(x, share) for x in measures.LABEL_FRACTIONS for share in SHARES]
    return {
        ("cifar10", *column, method): {"accuracy": percent / 100}
        for method, row in FEW_LABELS.items()
        for column, percent in zip(columns, row, strict=True)
        if percent is not None
    }


STUDIES = {
    "fedmcc-table3": linear_evaluation(
        "accuracy of linear classifiers of the features, ResNet-50", 50, RESNET50
    ),
    "fedmcc-table4": linear_evaluation(
        "accuracy of linear classifiers of the features, ResNet-18", 18, RESNET18
    ),
    "fedmcc-table5": Study(
        "accuracy with 1 % and 10 % of the labels, on frozen features",
        datasets=("cifar10",),
        rows=(
            single("Single client (Res18)", 18),
            single("Single client (Res50)", 50),
            probed("FedSimCLR (Res50)", "fedsimclr", 50, "FedSimCLR"),
            Row("FedCA (Res50)"),
            probed("FedU (Res50)", "fedu", 50, "FedU"),
            probed("FedU (Res18)", "fedu", 18, "FedU"),
            probed("FedEMA (lambda = 1, Res18)", "fedema", 18, scale=(1.0,)),
            probed("FedMCC (Res18)", "fedmcc", 18, "FedMCC"),
            probed(
                "FedMCC (Res18, tuned)",
                "fedmcc",
                18,
                "FedMCC (tuned)",
                momentum=(0.988,),
            ),
        ),
        presets=of_shares(*SHARES, split=TRAIN),
        measure=measures.few_labels_accuracy,
        by=("dataset", "label_fraction", "class_share", "method"),
        values=("accuracy",),
        paper=of_labels(),
        notes=(
            OF_SHARES,
            SMALL,
            "the protocols differ: fcjax trains only a linear classifier, the paper "
            "also fine-tunes the network",
        ),
    ),
}
