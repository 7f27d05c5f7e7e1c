"""The tables and figures of the FedMCC paper: runs, measures and reported scores."""

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

ONE_STAGE = rounds(smoke=(15,), paper=(110,))  # The rounds of both stages together.
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
    """Returns Table I or II: clustering scores at a class share."""
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
            "cifar100 in the paper: the scores of FedU are the same in Tables I and "
            "II, likely a mistake; the scores of NCC are for 20 super-classes "
            "(cifar20 in Table VI)",
        ),
    )


def of_central() -> Paper:
    """Returns the scores of Table VI by data set and method."""
    return {
        (dataset, method): scores
        for method, row in CENTRALIZED.items()
        for dataset, scores in zip(CENTRAL, by_score(row), strict=True)
        if scores
    }


def of_target() -> Paper:
    """Returns the scores of Table VII by data set, class share and method."""
    scores = {}
    for setting, row in AVERAGED_TARGET.items():
        key = (*setting, FEDMCC.label)
        scores[key] = of_clustering_everywhere()[key]
        scores[*setting, AVERAGED.label] = by_score(row)[0]
    return scores


def of_setting(value: float, row: Scores) -> Paper:
    """Returns a row of Table VIII or IX by data set, class share and swept value."""
    return {
        (*column, value): scores
        for column, scores in zip(PROBED, by_score(row), strict=True)
    }


AVERAGED = Row(
    "FedMCC, targets averaged", SCRIPT, methods("fedmcc", average_target=True)
)
EPOCHS = {"smoke": 20, "paper": 500}
"""Local epochs of a client in Table VIII, over all rounds."""
LEVELS = rounds(smoke=(2, 5, 10), paper=(10, 25, 50, 75, 100))
"""Numbers of rounds in Figure 6. The paper's text does not give its values."""
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
    # k-means gets small images: images of CIFAR with 224 x 224 pixels take 36 GB.
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
    "fedmcc-table1": clustering("NMI, ACC and ARI of federated methods, IID", IID),
    "fedmcc-table2": clustering(
        "NMI, ACC and ARI of federated methods, two of ten classes per client", NON_IID
    ),
    **probes.STUDIES,
    "fedmcc-table6": Study(
        "NMI, ACC and ARI of central methods",
        datasets=CENTRAL,
        rows=tuple(CENTRAL_METHODS.get(name, Row(name)) for name in CENTRALIZED),
        presets=presets(ALONE, ALONE),
        measure=measures.scores,
        by=("dataset", "method"),
        values=SCORES,
        paper=of_central(),
        by_path=("imagenet-10", "imagenet-dogs", "tiny-imagenet"),
        notes=("k-means runs on images of 32 x 32 pixels",),
    ),
    "fedmcc-table7": Study(
        "FedMCC with and without averaging of the target networks",
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
        "FedMCC by E, the local epochs per round, with 500 local epochs in total",
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
        notes=(
            OF_SHARES,
            f"--preset smoke: {EPOCHS['smoke']} local epochs in total",
        ),
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
        "soft assignments of FedMCC after different numbers of rounds, IID",
        datasets=("cifar10",),
        rows=(
            FEDMCC._replace(presets=rounds(smoke=(0, 2, 10), paper=(0, 10, 50, 100))),
        ),
        presets=of_shares(IID, smoke_seeds=(0,), seeds=(0,)),
        draw_runs="fedmcc.figures.figure4",
    ),
    "fedmcc-figure5": Study(
        "features of MCC at the start and end of training, by cluster",
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
        "ACC against the number of rounds of the first (or only) stage",
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
            "each point is a run with this number of rounds; the paper's point is from "
            "Tables I and II",
        ),
    ),
    "fedmcc-one-stage": Study(
        "FedMCC in two stages and in one stage with L_I + L_C (not in the paper)",
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
