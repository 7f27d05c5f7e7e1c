"""The data frame of the table: one row per run that is finished or has failed."""

import json
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from experiments.matrix.groups import (
    CLIENTS,
    DATA,
    SEEDS,
    Group,
    Program,
    flags_of,
)
from fcjax import metrics
from fcjax.cli.partition import clients_by_name
from fcjax.data import Dataset
from fcjax.data.split import Split
from fcjax.results import store
from fcjax.results.store import Folder

Frame: TypeAlias = Any
"""A pandas DataFrame or Series. Type checkers know too little about their methods."""
CELL = ("preset", "dataset", "rule", "level", "method", "seed")
"""The columns that identify a row."""
SCORES = ("nmi", "acc", "kappa", "ari", "global_nmi", "kmeans_nmi", "heterogeneity")
ENVIRONMENT = (
    *("commit", "changed", "devices", "processor", "python", "jax", "fcjax", "began"),
)
"""The columns with the origin of a run."""
COLUMNS = (
    *CELL,
    *("is_central", "status", "scope", *SCORES, "rounds", "seconds", "compile_seconds"),
    *("bytes_up", "bytes_down", "examples", "command", *ENVIRONMENT),
)
"""The columns of the frame."""


def frame_of(
    groups: Sequence[Group],
    programs: Mapping[str, Program],
    *,
    out: Path,
    files: Mapping[str, str],
) -> Frame:
    """Reads the results of all groups.

    Args:
        groups: the groups.
        programs: the programs by method.
        out: the folder of the table.
        files: the files of the user by data set.

    Returns:
        One row per finished or failed run, with the columns `COLUMNS`. `bytes_up` and
        `bytes_down` are the traffic of all clients in all rounds. A failed run has no
        scores, and its status begins with "failed: ".
    """
    names = {dataset: Path(path).name for dataset, path in files.items()}
    rows = []
    for group in groups:
        rows_by_cell = {}
        if group.failure(out).exists():
            reason = json.loads(group.failure(out).read_text())["reason"]
            rows_by_cell = {
                cell: {"status": f"failed: {reason}"} for cell in group.cells
            }
        rows_by_cell |= finished_rows(group, group.folder(out))
        for (level, seed), row in rows_by_cell.items():
            alone = group._replace(levels=(level,), seeds=(seed,))
            flags = flags_of(alone, programs[group.method], files=names)
            cell = alone._asdict() | {"level": level, "seed": seed}
            cell["is_central"] = programs[group.method].is_central
            rows.append(row | cell | {"command": f"python {shlex.join(flags)}"})
    return pd.DataFrame(rows, columns=COLUMNS)


def finished_rows(group: Group, folder: Path) -> dict[tuple[float, int], Any]:
    """Reads the finished runs of a group.

    Args:
        group: the group.
        folder: its results folder.

    Returns:
        A row per finished run of the group, by level and seed.
    """
    rows = {
        (level, row["seed"]): row
        for row in store.read_rows(folder / "results.csv")
        if (level := float(row[group.rule]), row["seed"]) in group.cells
    }
    if not rows:
        return {}
    results = read(folder)
    traffic = bytes_of(results)
    of_starts = origin_of(store.starts(folder))
    found = {}
    for cell, row in rows.items():
        up, down = traffic.get(results.key(row), (np.nan, np.nan))
        more = {"examples": row["samples"], "bytes_up": up, "bytes_down": down}
        found[cell] = row | more | of_starts
    return found


def origin_of(starts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Joins the commands that have added runs to a folder.

    A folder does not say which command made which of its runs.

    Args:
        starts: the items of environment.json.

    Returns:
        The columns `ENVIRONMENT`: the different values, separated by semicolons, the
        first date, and whether any command had uncommitted changes or no commit.
    """
    origin: dict[str, Any] = {
        name: "; ".join(dict.fromkeys(str(start.get(name)) for start in starts))
        for name in ENVIRONMENT
    }
    changed = any(start["changed"] or not start["commit"] for start in starts)
    return origin | {"changed": changed, "began": str(starts[0]["began"])}


@cache
def read(folder: Path) -> Folder:
    """Opens a results folder once, although several groups share it."""
    return store.read(folder)


def bytes_of(results: Folder) -> dict[tuple, tuple[float, float]]:
    """Sums the traffic of all rounds of each run.

    Args:
        results: the results folder.

    Returns:
        The bytes from the clients and to the clients, by the key of the run.
    """
    traffic: dict[tuple, tuple[float, float]] = {}
    for row in results.rounds:
        key = results.key(row)
        sums = [
            sum(value or 0 for name, value in row.items() if name.startswith(way))
            for way in ("up_", "down_")
        ]
        up, down = traffic.get(key, (0.0, 0.0))
        traffic[key] = up + sums[0], down + sums[1]
    return traffic


def rows_of_assignments(
    name: str, folder: Path, datasets: Mapping[str, Dataset]
) -> list[dict[str, Any]]:
    """Scores the clusters of another program.

    Args:
        name: the name of the method.
        folder: a folder with one folder per data set. These have the files
            RULE=LEVEL,seed=SEED.csv of `fcjax partition`, with the column `cluster`
            filled. The files may be in folders of their own.
        datasets: the data sets by name.

    Returns:
        One row per file.

    Raises:
        ValueError: there is no file, a file lacks a column or an example, or it has
            another partition than the table.
    """
    paths = sorted(folder.glob("*/**/*=*,seed=*.csv"))
    if not paths:
        raise ValueError(
            f"{folder} has no file DATASET/p=0.25,seed=0.csv; see `fcjax partition`"
        )
    rows = []
    for path in paths:
        name_of_data = path.relative_to(folder).parts[0]
        dataset = datasets[name_of_data]
        if dataset.labels is None:
            raise ValueError(f"{name_of_data} has no labels to score clusters with")
        rule, level, seed = named(path)
        levels = DATA[name_of_data].rules.get(rule, ())
        if level not in levels or seed not in SEEDS:
            raise ValueError(f"{path} is no partition of the table; see its levels")
        table: Frame = pd.read_csv(path)
        for column in ("example", "client", "cluster"):
            if column not in table:
                raise ValueError(f"{path} has no column {column}")
        is_known = table["example"].isin(range(len(dataset.examples)))
        table = table[is_known].sort_values("example", ignore_index=True)
        if rule != "natural":
            kind = int if rule == "classes_per_client" else float
            settings: dict[str, Any] = {rule: (kind(level),)}
            split = Split(clients=CLIENTS, **settings)
            (expected,) = clients_by_name(split, dataset, (seed,)).values()
            if not np.array_equal(table["client"], expected[table["example"]]):
                raise ValueError(
                    f"{path} has another partition than the table; make it by `fcjax "
                    f"partition` with {CLIENTS} clients"
                )
        found: Frame = table.dropna(subset=["cluster"]).drop_duplicates("example")
        if len(found) < len(dataset.examples):
            raise ValueError(
                f"{path} has a cluster for {len(found):,} of "
                f"{len(dataset.examples):,} examples; every example needs a cluster"
            )
        labels = dataset.labels[found["example"].to_numpy()]
        scores = metrics.scores(labels, pd.factorize(found["cluster"])[0])
        cell = ("default", name_of_data, rule, level, name, seed)
        more = {"is_central": False, "status": "ok", "scope": "global"}
        more |= {"global_nmi": scores["nmi"], "examples": len(labels)}
        more |= {"command": "clusters of another program"}
        rows.append({**dict(zip(CELL, cell, strict=True)), **scores, **more})
    return rows


def named(path: Path) -> tuple[str, float, int]:
    """Reads rule, level and seed from the name of a file.

    Args:
        path: the file.

    Returns:
        The rule, the level and the seed.

    Examples:
        >>> named(Path("digits/p=0.25,seed=3.csv"))
        ('p', 0.25, 3)
    """
    where = dict(part.split("=") for part in path.stem.split(","))
    seed = int(where.pop("seed"))
    ((rule, level),) = where.items()
    return rule, float(level), seed
