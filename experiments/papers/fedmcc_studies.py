"""What is run for the tables and figures of the FedMCC paper, and how they are read."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from . import measures
from .fedmcc import (
    AVERAGED_TARGET,
    CENTRAL,
    CENTRALIZED,
    FEDERATED,
    FEW_LABELS,
    IID,
    LOCAL_EPOCHS,
    MOMENTUM,
    NON_IID,
    PROBED,
    RESNET18,
    RESNET50,
    SCORES,
    Scores,
    by_score,
    of_clustering,
    of_clustering_everywhere,
)
from .study import Paper, Preset, Row, Study

SCRIPT = "fedmcc"
SHARES = (IID, NON_IID)
LARGE = {"resize": 224}
BY_DATASET = {  # Section IV-A; an image of MNIST goes through the same network
    "cifar10": LARGE,
    "cifar100": LARGE,
    "cifar20": LARGE,
    "stl10": {**LARGE, "extra_split": "unlabelled"},
    "imagenet-10": LARGE,
    "imagenet-dogs": LARGE,
    "tiny-imagenet": LARGE,
    "mnist": {"resize": 32, "backbone": "resnet18"},
}
SHORT = {"num_rounds": (10,), "cluster_rounds": (5,)}
"""Of a smoke run."""
TRAIN = {"split": "train"}
OF_SHARES = "class_share 1: IID, each of 5 clients has all classes; 0.2: two in ten"
SMALL = "smoke: a small convolutional network stands in for each ResNet"


def methods(name: str, **flags: Any) -> dict[str, Any]:
    return {"methods": (name,), **flags}


def rounds(smoke: int, paper: int, **flags: Any) -> dict[str, Mapping[str, Any]]:
    """Returns a row's flags by preset: how many rounds it trains."""
    sizes = {"smoke": smoke, "paper": paper}
    return {name: {"num_rounds": (size,), **flags} for name, size in sizes.items()}


def presets(
    smoke: Mapping[str, tuple],
    paper: Mapping[str, tuple],
    *,
    smoke_seeds: tuple[int, ...] = (0, 1),
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    split: Mapping[str, str] | None = None,
) -> dict[str, Preset]:
    """Returns both presets from the grid of each; `split` says which examples of the
    paper's data are trained on."""
    split = split or {}
    parts = dict.fromkeys(BY_DATASET, split) if split else {}
    whole = {name: {**flags, **split} for name, flags in BY_DATASET.items()}
    full = {script: {"preset": "paper"} for script in (SCRIPT, "baselines")}
    return {
        "smoke": Preset(smoke, smoke_seeds, {SCRIPT: SHORT}, parts),
        "paper": Preset(paper, seeds, full, whole),
    }


def of_shares(*shares: float, **options: Any) -> dict[str, Preset]:
    grid = {"class_share": shares}
    return presets(grid, grid, **options)


ONE_STAGE = rounds(15, 110)  # as many as both stages together
BY_KMEANS = methods("fedu", cluster_by="k-means")
FEDMCC = Row("FedMCC", SCRIPT, methods("fedmcc"))
FED_CC = Row("Fed + CC", SCRIPT, methods("fed-cc"), ONE_STAGE)
FEDU_KMEANS = Row("FedU + K-means", SCRIPT, BY_KMEANS)
CLUSTERED = (
    FEDU_KMEANS,
    Row("FedU + MCC", SCRIPT, methods("fedu")),
    FED_CC,
    FEDMCC,
    Row("NCC (central)"),
)


def clustering(title: str, share: float) -> Study:
    """Returns Table I or II."""
    return Study(
        title,
        datasets=FEDERATED,
        rows=CLUSTERED,
        presets=of_shares(share),
        measure=measures.scores,
        by=("dataset", "class_share", "method"),
        values=SCORES,
        paper=of_clustering(share),
        by_path=("imagenet-10",),
        notes=(
            OF_SHARES,
            "cifar100 in the paper: FedU has the same figures in Tables I and II, "
            "likely a slip, and NCC those of 20 super-classes (cifar20 in Table VI)",
        ),
    )


def probed(label: str, method: str, size: int, runs: str = "", **flags: Any) -> Row:
    """Returns a row whose features are measured, of a ResNet of so many layers. Their
    second stage is one round of k-means, the shortest there is, which is not read."""
    return Row(
        label,
        SCRIPT,
        methods(method, cluster_by="k-means", **flags),
        {"paper": {"backbone": f"resnet{size}-imagenet"}},
        runs=f"{runs or label} + k-means",
    )


def single(label: str, size: int) -> Row:
    """Returns FedU of the only client that answers: BYOL, as in FedU's own paper."""
    return probed(label, "fedu", size, "Single client", failure_rate=(0.8,))


def linear_evaluation(title: str, size: int, table: Mapping[str, Scores]) -> Study:
    """Returns Table III or IV."""
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
    """Returns Table V by data set, share of the labels, class share and method."""
    columns = [(x, share) for x in measures.LABEL_FRACTIONS for share in SHARES]
    return {
        ("cifar10", *column, method): {"accuracy": percent / 100}
        for method, row in FEW_LABELS.items()
        for column, percent in zip(columns, row, strict=True)
        if percent is not None
    }


def of_central() -> Paper:
    """Returns Table VI by data set and method."""
    return {
        (dataset, method): scores
        for method, row in CENTRALIZED.items()
        for dataset, scores in zip(CENTRAL, by_score(row), strict=True)
        if scores
    }


def of_target() -> Paper:
    """Returns Table VII by data set, class share and method, beside FedMCC's own."""
    found = {}
    for setting, row in AVERAGED_TARGET.items():
        own = (*setting, FEDMCC.label)
        found[own] = of_clustering_everywhere()[own]
        found[*setting, AVERAGED.label] = by_score(row)[0]
    return found


def of_setting(value: float, row: Scores) -> Paper:
    """Returns a line of Table VIII or IX by data set, class share and its value."""
    return {
        (*column, value): scores
        for column, scores in zip(PROBED, by_score(row), strict=True)
    }


AVERAGED = Row(
    "FedMCC, targets averaged", SCRIPT, methods("fedmcc", average_target=True)
)
EPOCHS = {"smoke": 20, "paper": 500}
"""Of a client in Table VIII."""
LEVELS = {"smoke": (2, 5, 10), "paper": (10, 25, 50, 75, 100)}
"""Rounds of Figure 6, whose own the text does not give."""
BY_EPOCHS = tuple(
    Row(
        f"E = {epochs}",
        SCRIPT,
        methods("fedmcc", local_epochs=(epochs,)),
        {name: {"num_rounds": (size // epochs,)} for name, size in EPOCHS.items()},
        runs="FedMCC" if epochs == 5 else "",
    )
    for epochs, _ in LOCAL_EPOCHS
)
CENTRAL_METHODS = {
    # In pixels: those of 224 a side are 36 GB of CIFAR.
    "k-means": Row(
        "k-means",
        "baselines",
        methods("km", unit_length=False, resize=32, extra_split=None),
    ),
    "CC": Row("CC", SCRIPT, methods("cc"), {"smoke": {"num_rounds": (50,)}}),
    "MCC": Row("MCC", SCRIPT, methods("mcc"), {"smoke": {"num_rounds": (50,)}}),
}
ALONE = {"clients": (1,), "p": (0.0,)}
STUDIES = {
    "fedmcc-table1": clustering("NMI, ACC and ARI of clusterings, IID", IID),
    "fedmcc-table2": clustering("the same with two classes in ten a client", NON_IID),
    "fedmcc-table3": linear_evaluation(
        "accuracy of linear classifiers of the features, ResNet-50", 50, RESNET50
    ),
    "fedmcc-table4": linear_evaluation("the same, ResNet-18", 18, RESNET18),
    "fedmcc-table5": Study(
        "accuracy from 1 % and 10 % of the labels, the features being frozen",
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
            "ours trains a linear classifier alone, the paper the network with it: the "
            "two are not one protocol",
        ),
    ),
    "fedmcc-table6": Study(
        "NMI, ACC and ARI of central clusterings",
        datasets=CENTRAL,
        rows=tuple(CENTRAL_METHODS.get(name, Row(name)) for name in CENTRALIZED),
        presets=presets(ALONE, ALONE),
        measure=measures.scores,
        by=("dataset", "method"),
        values=SCORES,
        paper=of_central(),
        by_path=("imagenet-10", "imagenet-dogs", "tiny-imagenet"),
        notes=("k-means takes images of 32 pixels a side",),
    ),
    "fedmcc-table7": Study(
        "FedMCC whose target networks are averaged too, and FedMCC",
        datasets=("cifar10", "cifar100", "mnist"),
        rows=(FEDMCC, AVERAGED),
        presets=of_shares(*SHARES),
        measure=measures.scores,
        by=("dataset", "class_share", "method"),
        values=SCORES,
        paper=of_target(),
        notes=(OF_SHARES,),
    ),
    "fedmcc-table8": Study(
        "FedMCC by E, local epochs in a round, of 500 in all",
        datasets=("cifar10", "cifar100"),
        rows=BY_EPOCHS,
        presets=of_shares(*SHARES),
        measure=measures.scores,
        by=("dataset", "class_share", "local_epochs"),
        values=SCORES,
        paper={
            setting: scores
            for (epochs, _), row in LOCAL_EPOCHS.items()
            for setting, scores in of_setting(epochs, row).items()
        },
        notes=(OF_SHARES, f"smoke: {EPOCHS['smoke']} local epochs in all"),
    ),
    "fedmcc-table9": Study(
        "FedMCC by m, the momentum of the target networks",
        datasets=("cifar10", "cifar100"),
        rows=(FEDMCC,),
        presets=presets(
            *2 * ({"class_share": SHARES, "momentum": tuple(MOMENTUM)},),
        ),
        measure=measures.scores,
        by=("dataset", "class_share", "momentum"),
        values=SCORES,
        paper={
            setting: scores
            for m, row in MOMENTUM.items()
            for setting, scores in of_setting(m, row).items()
        },
        notes=(OF_SHARES,),
    ),
    "fedmcc-figure4": Study(
        "soft assignments of FedMCC after some rounds, IID",
        datasets=("cifar10",),
        rows=(
            FEDMCC._replace(
                presets={
                    "smoke": {"num_rounds": (0, 2, 10)},
                    "paper": {"num_rounds": (0, 10, 50, 100)},
                }
            ),
        ),
        presets=of_shares(IID, smoke_seeds=(0,), seeds=(0,)),
        maps="projections.figure4",
    ),
    "fedmcc-figure5": Study(
        "features of MCC at the beginning and at the end, by cluster",
        datasets=("stl10",),
        rows=(
            CENTRAL_METHODS["MCC"]._replace(
                presets={
                    "smoke": {"num_rounds": (1, 50)},
                    "paper": {"num_rounds": (1, 500)},
                }
            ),
        ),
        presets=presets(ALONE, ALONE, smoke_seeds=(0,), seeds=(0,)),
        maps="projections.figure5",
    ),
    "fedmcc-figure6": Study(
        "ACC against rounds of the first or only stage",
        datasets=("mnist",),
        rows=tuple(
            row._replace(presets={k: {"num_rounds": v} for k, v in LEVELS.items()})
            for row in (FEDMCC, FED_CC, FEDU_KMEANS)
        ),
        presets=of_shares(*SHARES),
        measure=measures.scores,
        by=("dataset", "class_share", "method", "num_rounds"),
        values=("acc",),
        paper={
            ("mnist", share, row.label, 100): {
                "acc": of_clustering(share)["mnist", share, row.label]["acc"]
            }
            for share in SHARES
            for row in (FEDMCC, FED_CC, FEDU_KMEANS)
        },
        draw=partial(
            measures.against,
            level="num_rounds",
            values=("acc",),
            apart=("dataset", "class_share"),
            by=("method",),
        ),
        notes=(
            OF_SHARES,
            "each point is a run that ends there; the paper's is of Tables I and II",
        ),
    ),
    "fedmcc-one-stage": Study(
        "FedMCC against L_I + L_C at once, which the paper gives no figure of",
        datasets=("cifar10", "mnist"),
        rows=(
            FEDMCC,
            Row("L_I + L_C", SCRIPT, methods("fedmcc-one-stage"), ONE_STAGE),
        ),
        presets=of_shares(*SHARES),
        measure=measures.scores,
        by=("dataset", "class_share", "method"),
        values=SCORES,
        paper={
            key: scores
            for key, scores in of_clustering_everywhere().items()
            if key[0] in ("cifar10", "mnist") and key[2] == "FedMCC"
        },
        notes=(OF_SHARES,),
    ),
}
