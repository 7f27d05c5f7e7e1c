"""The tables and figures of the FedCRef paper: runs, measures and reported scores."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from experiments.papers import measures
from experiments.papers.fedcref import printed
from experiments.papers.fedcref.printed import (
    EMNIST,
    FASHION,
    KMNIST,
    KMNIST49,
    accuracies,
    means,
)
from experiments.papers.study import Paper, Preset, Row, Study

SCRIPT = "fedcref"
PARTITION = {"class_range": (2, 5), "overlap": (0.0,), "evaluate_every": 1}
SMOKE = {**PARTITION, "clients": (8,), "samples_per_class": 60}
PAPER = {**PARTITION, "clients": (25,), "samples_per_class": 500}
SHORT = {
    "preset": "smoke",
    "num_rounds": (3,),
    "local_epochs": (60,),
    "federated_rounds": (15,),
}
"""Settings of a smoke run.

The local model of a cluster takes 120 steps. With 10 steps no clusters are associated.
With 200 steps the model memorises the wrong examples. The model of a community member
takes 200 steps."""
TRAIN = {"split": "train"}
OF_DATA: Mapping[str, Mapping[str, Any]] = {
    EMNIST: TRAIN,
    KMNIST: TRAIN,
    KMNIST49: {"class_range": (2, 15)},
    FASHION: {**TRAIN, "threshold": (0.15,)},
}
PAPER_DATA = {**OF_DATA, FASHION: {**OF_DATA[FASHION], "local_epochs": (30,)}}

CENTRAL = Row(
    printed.CENTRAL_DEC,
    SCRIPT,
    {"methods": ("dec",), "clusters": (6, 8, 10, 12, 14)},
    {"smoke": {"clusters": (8, 10, 12)}},
)
UIFCA = Row(printed.UIFCA, SCRIPT, {"methods": ("uifca",)})
FROM_DEC = Row(printed.OURS_DEC, SCRIPT, {"methods": ("fedcref",), "start": "dec"})
OURS = Row(printed.OURS, SCRIPT, {"methods": ("fedcref",), "start": "dirty"})
PERFECT = Row(printed.PERFECT, SCRIPT, {**OURS.flags, "associations": "perfect"})
# This row needs its own folder: two rows of a table cannot write into one folder.
BY_THETA = Row(
    "by theta",
    SCRIPT,
    {**OURS.flags, "threshold": (0.1, 0.3)},
    {"smoke": {"threshold": (0.1,)}},
    runs=f"{OURS.label} by theta",
)
BY_ALPHA = Row(
    "by alpha",
    SCRIPT,
    {**OURS.flags, "percentile": (75.0, 85.0, 90.0)},
    {"smoke": {"percentile": (75.0, 90.0)}},
    runs=OURS.label,
)

READ_AS = (
    "clients of a community train 2 epochs in the first federated round and 7 in later "
    "rounds, with batch size 32, as in the authors' code; the paper gives neither",
    "the model of a community is the average of the last round; the authors' code "
    "sends one member's weights after its last local training",
    "an example that no selected model accepts goes to the nearest selected model, as "
    "in the paper; the authors' code assigns these examples by a second vote",
    "every pair of clusters that passes the test is an edge; the authors' code takes "
    "only the first match of a cluster (--associations first-match)",
    "the limits are 10 % change of communities and isolated clusters, and stability "
    "0.8, as in the paper; the authors' code has 15 % for isolated clusters, stability "
    "0.85, and stops after 10 reclusterings per client on average",
    "training stops when no client is active, as in the paper; the authors' code does "
    "not check this (--no-stop-when-settled)",
    "ACC of FedCRef is a mean over clients, with a separate match for each client",
    "the data is the training split, as in the authors' code",
)
OF_CENTRAL = (
    "ACC of central DEC and UIFCA is over all examples with one match; client_acc is "
    "a mean over clients, as for FedCRef; global_acc takes each community, and each "
    "isolated cluster, as one cluster",
    "for each seed, central DEC shows the K with the highest ACC, which needs labels; "
    "the paper calls its K optimal without a reason; the number of categories of "
    "central DEC is this K",
)
OF_LEVELS = "the paper does not print its values of K"
OF_KMNIST49 = (
    "KMNIST-49 is a file with the training images of the 31 classes, of 49, that have "
    "6,000 images: --datasets kmnist49=kmnist49.npz"
)
OF_MINUTES = (
    "minutes are training time on the machine in use, without compilation; runs in one "
    "batch have equal shares of the time"
)
OF_ITERATIONS = (
    "iteration 0 is the start; a run that ended repeats its last values, so every mean "
    "is over all seeds"
)


def presets(
    paper: Mapping[str, tuple], smoke: Mapping[str, tuple]
) -> dict[str, Preset]:
    """Returns both presets.

    Args:
        paper: flags that span the grid of the paper preset.
        smoke: flags that span the grid of the smoke preset.

    Returns:
        The presets by name.
    """
    full = {SCRIPT: {"preset": "paper"}}
    return {
        "smoke": Preset({**SMOKE, **smoke}, (0,), {SCRIPT: SHORT}, OF_DATA),
        "paper": Preset({**PAPER, **paper}, (0, 1, 2, 3, 4), full, PAPER_DATA),
    }


DIRTY = {"dirtiness": (0.3,)}
BY_NOTHING = presets({}, {})
BY_DIRTINESS = presets({"dirtiness": (0.0, 0.3, 0.5)}, {"dirtiness": (0.0, 0.3)})
AT_DIRTINESS = presets(DIRTY, DIRTY)
BY_OVERLAP = presets(
    {**DIRTY, "overlap": (0.0, 0.3, 0.5)}, {**DIRTY, "overlap": (0.0, 0.5)}
)
BY_CLIENTS = presets({**DIRTY, "clients": (20, 30, 40)}, {**DIRTY, "clients": (6, 8)})


def on_emnist(names: tuple[str, ...], table: Mapping[Any, printed.Line]) -> Paper:
    """Returns the scores of a table by data set and swept values.

    Args:
        names: the columns of the table.
        table: the scores as the paper prints them, by one or several swept values.

    Returns:
        The scores by setting.
    """
    return {
        (EMNIST, *(level if isinstance(level, tuple) else (level,))): means(names, line)
        for level, line in table.items()
    }


def with_perfect(table: Mapping[Any, printed.Line]) -> Paper:
    """Returns the scores of a table on EMNIST, with rows for perfect associations."""
    rows_by_level = [accuracies((EMNIST, level), line) for level, line in table.items()]
    return {
        setting: scores for rows in rows_by_level for setting, scores in rows.items()
    }


def table(
    title: str,
    rows: tuple[Row, ...],
    by: tuple[str, ...],
    values: tuple[str, ...],
    of_presets: Mapping[str, Preset],
    paper: Paper,
    *notes: str,
) -> Study:
    """Returns a table of the final scores, on the data sets that the paper has.

    Args:
        title: title of the study.
        rows: the rows.
        by: the columns that define a setting, without `dataset`.
        values: the columns to average.
        of_presets: the presets.
        paper: the scores that the paper reports.
        *notes: notes for the reader.

    Returns:
        The study.
    """
    datasets = tuple(dict.fromkeys(setting[0] for setting in paper))
    return Study(
        title,
        datasets=datasets,
        rows=rows,
        presets=of_presets,
        measure=measures.refinement_scores,
        by=("dataset", *by),
        values=values,
        paper=paper,
        by_path=tuple(name for name in datasets if name == KMNIST49),
        notes=(*READ_AS, *notes),
    )


def curves(
    title: str,
    row: Row,
    by: tuple[str, ...],
    values: tuple[str, ...],
    of_presets: Mapping[str, Preset],
) -> Study:
    """Returns a figure of scores over iterations. The paper does not print the values.

    Args:
        title: title of the study.
        row: the row.
        by: the columns that get one curve per value.
        values: the columns to draw.
        of_presets: the presets.

    Returns:
        The study.
    """
    return Study(
        title,
        datasets=(EMNIST,),
        rows=(row,),
        presets=of_presets,
        measure=measures.iteration_scores,
        by=("dataset", "method", *by, "iteration"),
        values=values,
        draw=partial(
            measures.draw_scores, level="iteration", values=values, by=by, log=False
        ),
        notes=(*READ_AS, OF_ITERATIONS),
    )


STUDIES = {
    "fedcref-table3": table(
        "ACC and number of categories: central DEC, FedCRef from DEC, UIFCA",
        (CENTRAL, FROM_DEC, UIFCA),
        ("method",),
        ("acc", "client_acc", "global_acc", "categories"),
        BY_NOTHING,
        {
            (EMNIST, method): {name: mean for name, (mean, _) in line.items()}
            for method, line in printed.OVERALL.items()
        },
        *OF_CENTRAL,
        OF_LEVELS,
    )._replace(measure=measures.categories),
    "fedcref-table4": table(
        "ACC, communities and isolated clusters of FedCRef from DEC",
        (FROM_DEC,),
        ("method",),
        printed.FOUND_AND_ACC,
        BY_NOTHING,
        on_emnist(printed.FOUND_AND_ACC, {printed.OURS_DEC: printed.FROM_DEC}),
    ),
    "fedcref-table5": table(
        "communities, wrong associations, isolated clusters by dirtiness",
        (OURS,),
        ("dirtiness",),
        printed.FOUND,
        BY_DIRTINESS,
        {
            (dataset, level): means(printed.FOUND, line)
            for dataset, lines in printed.FOUND_BY_DIRTINESS.items()
            for level, line in lines.items()
        },
        OF_KMNIST49,
    ),
    "fedcref-table6": table(
        "ACC by dirtiness, and with perfect associations",
        (OURS, PERFECT),
        ("dirtiness", "method"),
        printed.ACC,
        BY_DIRTINESS,
        {
            setting: scores
            for dataset, lines in printed.ACC_BY_DIRTINESS.items()
            for level, line in lines.items()
            for setting, scores in accuracies((dataset, level), line).items()
        },
        OF_KMNIST49,
    ),
    "fedcref-table7": table(
        "ACC and communities by the percentile alpha and the threshold theta",
        (BY_ALPHA, BY_THETA),
        ("percentile", "threshold"),
        printed.FOUND_AND_ACC[1:],
        AT_DIRTINESS,
        on_emnist(printed.FOUND_AND_ACC[1:], printed.BY_THRESHOLD),
    ),
    "fedcref-table8": table(
        "communities, wrong associations, isolated clusters by overlap",
        (OURS,),
        ("overlap",),
        printed.FOUND,
        BY_OVERLAP,
        on_emnist(printed.FOUND, printed.FOUND_BY_OVERLAP),
    ),
    "fedcref-table9": table(
        "ACC by overlap, and with perfect associations",
        (OURS, PERFECT),
        ("overlap", "method"),
        printed.ACC,
        BY_OVERLAP,
        with_perfect(printed.ACC_BY_OVERLAP),
    ),
    "fedcref-table10": table(
        "communities, wrong associations, isolated clusters by number of clients",
        (OURS,),
        ("clients",),
        printed.FOUND,
        BY_CLIENTS,
        on_emnist(printed.FOUND, printed.FOUND_BY_CLIENTS),
    ),
    "fedcref-table11": table(
        "ACC by the number of clients, and with perfect associations",
        (OURS, PERFECT),
        ("clients", "method"),
        printed.ACC,
        BY_CLIENTS,
        with_perfect(printed.ACC_BY_CLIENTS),
    ),
    "fedcref-table12": table(
        "iterations and minutes by the number of clients",
        (OURS,),
        ("clients",),
        printed.CONVERGENCE,
        BY_CLIENTS,
        on_emnist(printed.CONVERGENCE, printed.CONVERGED_BY_CLIENTS),
        OF_MINUTES,
    ),
    "fedcref-figure7": Study(
        "ACC of central DEC against K",
        datasets=(EMNIST,),
        rows=(CENTRAL,),
        presets=BY_NOTHING,
        measure=measures.scores,
        by=("dataset", "method", "clusters"),
        values=("acc",),
        draw=partial(measures.draw_scores, level="clusters", values=("acc",), by=()),
        notes=(OF_LEVELS, *OF_CENTRAL[:1]),
    ),
    "fedcref-figure8": curves(
        "scores over the iterations of FedCRef from DEC",
        FROM_DEC,
        (),
        ("communities", "acc", "wrong_associations", "isolated", "active"),
        BY_NOTHING,
    ),
    "fedcref-figure9": curves(
        "communities, ACC and isolated clusters over the iterations by overlap",
        OURS,
        ("overlap",),
        ("communities", "acc", "isolated"),
        BY_OVERLAP,
    ),
    "fedcref-figure10": curves(
        "scores over the iterations by the number of clients",
        OURS,
        ("clients",),
        ("communities", "acc", "wrong_associations", "isolated"),
        BY_CLIENTS,
    ),
}
