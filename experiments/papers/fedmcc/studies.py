"""What is run for the tables and figures of the FedMCC paper, and how they are read."""

from functools import partial

from experiments.papers import measures
from experiments.papers.fedmcc import probes
from experiments.papers.fedmcc.presets import (
    OF_SHARES,
    SCRIPT,
    SHARES,
    methods,
    of_shares,
    presets,
    rounds,
)
from experiments.papers.fedmcc.printed import (
    AVERAGED_TARGET,
    CENTRAL,
    CENTRALIZED,
    FEDERATED,
    IID,
    LOCAL_EPOCHS,
    MOMENTUM,
    NON_IID,
    PROBED,
    SCORES,
    Scores,
    by_score,
    of_clustering,
    of_clustering_everywhere,
)
from experiments.papers.study import Paper, Row, Study

ONE_STAGE = rounds(smoke=(15,), paper=(110,))  # as many as both stages together
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
LEVELS = rounds(smoke=(2, 5, 10), paper=(10, 25, 50, 75, 100))
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
    "CC": Row("CC", SCRIPT, methods("cc"), rounds(smoke=(50,), paper=(500,))),
    "MCC": Row("MCC", SCRIPT, methods("mcc"), rounds(smoke=(50,), paper=(500,))),
}
ALONE = {"clients": (1,), "p": (0.0,)}
STUDIES = {
    "fedmcc-table1": clustering("NMI, ACC and ARI of clusterings, IID", IID),
    "fedmcc-table2": clustering("the same with two classes in ten a client", NON_IID),
    **probes.STUDIES,
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
            FEDMCC._replace(presets=rounds(smoke=(0, 2, 10), paper=(0, 10, 50, 100))),
        ),
        presets=of_shares(IID, smoke_seeds=(0,), seeds=(0,)),
        draw_runs="fedmcc.figures.figure4",
    ),
    "fedmcc-figure5": Study(
        "features of MCC at the beginning and at the end, by cluster",
        datasets=("stl10",),
        rows=(
            CENTRAL_METHODS["MCC"]._replace(
                presets=rounds(smoke=(1, 50), paper=(1, 500))
            ),
        ),
        presets=presets(ALONE, ALONE, smoke_seeds=(0,), seeds=(0,)),
        draw_runs="fedmcc.figures.figure5",
    ),
    "fedmcc-figure6": Study(
        "ACC against rounds of the first or only stage",
        datasets=("mnist",),
        rows=tuple(
            row._replace(presets=LEVELS) for row in (FEDMCC, FED_CC, FEDU_KMEANS)
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
            measures.draw_scores,
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
