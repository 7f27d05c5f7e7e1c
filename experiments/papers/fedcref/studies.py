"""What is run for the tables and figures of the FedCRef paper, and how it is read."""

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
DEALT = {"class_range": (2, 5), "overlap": (0.0,), "evaluate_every": 1}
SMOKE = {**DEALT, "clients": (8,), "samples_per_class": 60}
PAPER = {**DEALT, "clients": (25,), "samples_per_class": 500}
SHORT = {
    "preset": "smoke",
    "num_rounds": (3,),
    "local_epochs": (60,),
    "federated_rounds": (15,),
}
"""Of a smoke run. A cluster's model takes 120 steps: with ten nothing is associated,
with 200 it knows the wrong examples by heart. A member of a community takes 200."""
TRAIN = {"split": "train"}
OF_DATA: Mapping[str, Mapping[str, Any]] = {
    EMNIST: TRAIN,
    KMNIST: TRAIN,
    KMNIST49: {"class_range": (2, 15)},
    FASHION: {**TRAIN, "threshold": (0.15,)},
}
IN_FULL = {**OF_DATA, FASHION: {**OF_DATA[FASHION], "local_epochs": (30,)}}

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
# A folder of their own, as two rows of a table cannot write into one.
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
    "clients of a community train 2 epochs in the first federated round and 7 in the "
    "others, in batches of 32, as in the authors' code: the paper has neither",
    "a community's model is what the last round aggregates; the authors' code sends "
    "one member's weights after its last local training",
    "examples that no selected model took go to the nearest of these, as the paper "
    "says; the authors' code renumbers them by a second vote",
    "every pair of clusters that passes the test is an edge; the authors' code takes "
    "the first match of a cluster, --associations first-match",
    "communities and isolated clusters may change by 10 % and a client is stable at "
    "0.8, as the paper says; the authors' code has 15 % for isolated clusters, 0.85, "
    "and stops when clients have reclustered 10 times on average",
    "it is over when no client is active, as the paper's text says; the authors' code "
    "does not look at that, --no-stop-when-settled",
    "ACC of FedCRef is a mean over clients, each with a match of its own",
    "the data is the training split, as in the authors' code",
)
OF_CENTRAL = (
    "ACC of central DEC and UIFCA is over all examples with one match; client_acc has "
    "it as FedCRef's is taken. global_acc takes communities as clusters, an isolated "
    "cluster being one by itself",
    "central DEC has of each seed the K of the highest ACC, which takes the labels: "
    "the paper calls its K optimal and does not say how it was chosen; the categories "
    "that it identifies are taken to be that K",
)
OF_LEVELS = "the paper's K are not in print"
OF_KMNIST49 = (
    "KMNIST-49 is a file of the training images of those 31 of its 49 classes that "
    "have 6,000: --datasets kmnist49=kmnist49.npz"
)
OF_MINUTES = (
    "minutes are those of the machine that trained, without compilation; runs that go "
    "side by side have equal shares of them"
)
OF_ITERATIONS = (
    "iteration 0 is the start; a run that has ended keeps its last values, so that "
    "means are over all seeds"
)


def presets(
    paper: Mapping[str, tuple], smoke: Mapping[str, tuple]
) -> dict[str, Preset]:
    """Returns both presets from what spans the grid of each."""
    full = {SCRIPT: {"preset": "paper"}}
    return {
        "smoke": Preset({**SMOKE, **smoke}, (0,), {SCRIPT: SHORT}, OF_DATA),
        "paper": Preset({**PAPER, **paper}, (0, 1, 2, 3, 4), full, IN_FULL),
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
    """Returns a table of the paper by data set and level, of one number or several."""
    return {
        (EMNIST, *(level if isinstance(level, tuple) else (level,))): means(names, line)
        for level, line in table.items()
    }


def with_perfect(table: Mapping[Any, printed.Line]) -> Paper:
    """Returns the same with the lines of perfect associations."""
    lines = [accuracies((EMNIST, level), line) for level, line in table.items()]
    return {setting: found for of_level in lines for setting, found in of_level.items()}


def table(
    title: str,
    rows: tuple[Row, ...],
    by: tuple[str, ...],
    values: tuple[str, ...],
    of_presets: Mapping[str, Preset],
    paper: Paper,
    *notes: str,
) -> Study:
    """Returns a table of what runs end with, on the data sets that the paper has."""
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
    """Returns a figure of what changes over the iterations, whose values are nowhere
    in print.
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
        "ACC and categories of central DEC, FedCRef from DEC and UIFCA",
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
            setting: found
            for dataset, lines in printed.ACC_BY_DIRTINESS.items()
            for level, line in lines.items()
            for setting, found in accuracies((dataset, level), line).items()
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
        "what changes over the iterations of FedCRef from DEC",
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
        "what changes over the iterations by the number of clients",
        OURS,
        ("clients",),
        ("communities", "acc", "wrong_associations", "isolated"),
        BY_CLIENTS,
    ),
}
