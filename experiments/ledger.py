"""The ledger of finished runs in experiments/results, and the pages made from it.

python experiments/ledger.py write

The command writes BENCHMARKS.md, docs/benchmarks.md, docs/methods/which.md and
docs/benchmarks/runs. `reproduce.py --from` finds the runs of a paper's table here. An
entry of the ledger is a folder METHOD/NAME with FILES, which keep.py writes.
"""

import dataclasses
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tyro

from experiments.papers.fdsc import printed as fdsc
from experiments.papers.fedcref import printed as fedcref
from experiments.papers.fedmcc import printed as fedmcc
from experiments.papers.sizes import SIZES, blank
from fcjax.cli.arguments import parse
from fcjax.cli.errors import exit_on_error
from fcjax.data.source import short_name
from fcjax.data.sources import load_source
from fcjax.results import store
from fcjax.results.store import Folder, Row, read
from fcjax.results.tables import half_width
from fcjax.settings import as_tuple
from fcjax.sweep import experiment, plan
from fcjax.sweep.plan import Task

CHECKOUT = Path(__file__).resolve().parents[1]
FILES = ("config.json", "results.csv", "history.csv", "environment.json")
MAX_BYTES = 512 * 2**10
"""Largest size of an entry."""
UNSET = None, "", [], ()
"""Values of a setting that is not given."""
NOT_RECORDED = "not recorded"
"""Value of a setting that the run did not store."""
IGNORED = {
    *("dataset", "limit"),  # `is_of` and the number of examples compare these
    *("evaluate_every", "swept", "seed", "start_stage", "reported"),
    *("preset", "defaults"),
}
"""Settings that are not compared."""
OLDER = {
    "ccfc": {"schedule": "constant", "cluster_by": "ccfc"},
    "fed-cc": {"cluster_by": "mcc"},
}
"""Values of settings that did not exist when the older entries were trained."""
Differences = Mapping[str, tuple[Any, Any]]
"""The value in the run and the requested value, by setting."""


class Match(NamedTuple):
    """Runs of one entry that differ from a request in the same settings."""

    runs: Folder
    """The entry, with the matching runs only."""
    lines: tuple[Mapping[str, Any], ...]
    """The lines of the table that the runs belong to, as values by column."""
    seeds: tuple[int, ...]
    """The seeds of the runs, which are the same in each line."""
    differs: Differences

    @property
    def place(self) -> str:
        """The lines of the table as text."""
        texts = (" ".join(f"{k} {text(v)}" for k, v in x.items()) for x in self.lines)
        return ", ".join(texts)

    def describe(self, seeds: Sequence[int], *, but: Collection[str] = ()) -> str:
        """Returns the name of the entry and the settings that differ from the request.

        Args:
            seeds: the requested seeds. Other seeds count as a difference.
            but: settings that are left out.

        Returns:
            Text such as "km/digits: seed 0 1 in place of 0 1 2".
        """
        differs = {k: v for k, v in self.differs.items() if k not in but}
        if set(self.seeds) != set(seeds):
            differs["seed"] = self.seeds, tuple(seeds)
        texts = (
            f"{k} {text(x)} in place of {text(y)}" for k, (x, y) in differs.items()
        )
        return f"{name_of(self.runs)}{': ' if differs else ''}{', '.join(texts)}"


def entries(ledger: Path) -> list[Folder]:
    """Returns all entries of a ledger, sorted by name.

    Args:
        ledger: a folder such as experiments/results.

    Returns:
        One opened results folder per entry.

    Raises:
        ValueError: `ledger` is no folder, or an entry has no finished run.
    """
    if not ledger.is_dir():
        raise ValueError(f"--from {ledger} is no folder")
    return [read(path.parent) for path in sorted(ledger.glob("*/*/config.json"))]


def name_of(entry: Folder) -> str:
    """Returns the name of an entry, METHOD/NAME.

    Args:
        entry: the entry, a results folder.

    Returns:
        The last two parts of the folder's path.
    """
    return "/".join(entry.directory.parts[-2:])


def is_of(entry: Folder, dataset: str, *, by_path: bool) -> bool:
    """Returns whether an entry has runs of a data set.

    Args:
        entry: the entry.
        dataset: the name of the data set in the paper's table.
        by_path: whether the data set is loaded from a file. Then the file's name has to
            begin with `dataset`.

    Returns:
        True or False.
    """
    name = str(entry.rows[0]["dataset"])
    if not by_path:
        return name == short_name(dataset)
    name, start = (re.sub("[-_]", "", x.lower()) for x in (name, dataset))
    return name.startswith(start)


def is_thinned(entry: Folder) -> bool:
    """Returns whether history.csv lacks some rounds.

    Args:
        entry: the entry, a results folder.

    Returns:
        True if history.csv has fewer rows than the runs have rounds.
    """
    return len(entry.rounds) < sum(row["rounds"] for row in entry.rows)


def runs_of(
    entries: Sequence[Folder],
    task: Task,
    *,
    by: Collection[str],
    same: Collection[str],
    seeds: Collection[int] = (),
) -> list[Match]:
    """Returns the runs whose settings are nearest to those of a task.

    Each line of a table takes runs of one entry. These runs differ in the seed, and in
    swept settings that are no column of the table. Among several such groups of runs
    the one with the fewest differences from the task is taken, then the largest one.

    Args:
        entries: the entries of the data set.
        task: the request.
        by: the columns that make a line of the table.
        same: further settings, besides the method and `by`, that may not differ.
        seeds: the only seeds to take; empty takes all.

    Returns:
        One item per entry and set of differences.
    """
    requests = settings_of_task(task)
    same = {"method", *by, *same}
    # The outer keys are the lines of the table. The inner keys are the groups of runs
    # that differ in nothing but the seed.
    lines: dict[tuple, dict[tuple, list[Row]]] = {}
    differences: dict[tuple, Differences] = {}
    for index, entry in enumerate(entries):
        for row in entry.rows:
            settings = settings_of_run(entry, row)
            differs = min(
                (differing(settings, request) for request in requests),
                key=lambda differs: (bool(same & differs.keys()), len(differs)),
            )
            if same & differs.keys() or (seeds and row["seed"] not in seeds):
                continue
            group = index, repr(differs)
            differences[group] = differs
            line = tuple(
                (k, settings[k]) for k in by if k in settings and k != "method"
            )
            lines.setdefault(line, {}).setdefault(group, []).append(row)

    def distance(item: tuple[tuple, list[Row]]) -> tuple[int, int]:
        group, rows = item
        return len(differences[group]), -len(rows)

    nearest: dict[tuple, list[tuple[tuple, list[Row]]]] = {}
    for line, groups in lines.items():
        group, rows = min(groups.items(), key=distance)
        seeds_of_line = tuple(sorted({int(row["seed"]) for row in rows}))
        nearest.setdefault((group, seeds_of_line), []).append((line, rows))
    matches = []
    for (group, seeds_of_line), rows_by_line in nearest.items():
        entry = entries[group[0]]
        rows = [row for _, rows in rows_by_line for row in rows]
        points = [{name: row[name] for name in entry.names} for row in rows]
        runs = Folder(entry.directory, entry.config, points)
        columns = tuple(dict(line) for line, _ in rows_by_line)
        matches.append(Match(runs, columns, seeds_of_line, differences[group]))
    return matches


def settings_of_task(task: Task) -> list[dict[str, Any]]:
    """Returns the settings of a task, with a tuple for each swept setting.

    The data sets of the papers need not be installed.

    Args:
        task: the request.

    Returns:
        One item per pair of a number of clients and a number of clusters. An item has
        the settings by name, without the settings in `IGNORED`.

    Raises:
        ValueError: the data set is not in `SIZES` and cannot be loaded.
    """
    source = task.source
    if source.dataset in SIZES:
        sizes = {"split": source.split, "resize": source.resize, "limit": source.limit}
        dataset = blank(source.dataset, **sizes)
    else:
        dataset, _ = load_source(source)
    task, dataset = task.for_data(dataset)
    items = []
    for method, num_clients, num_clusters, levels in plan.specs(task, dataset):
        here = {"clients": num_clients, "clusters": num_clusters}
        swept = {k: v for k, v in method.settings.items() if isinstance(v, tuple)}
        points = plan.span(task, levels, swept, here)
        spans = {name: tuple({p[name]: None for p in points}) for name in points[0]}
        if task.split.client_size:
            spans["client_size"] = as_tuple(task.split.client_size)
        # Papers compute in float32, and so do runs on a CPU.
        exact = task.replace(precision=task.options.precision or "highest")
        config = experiment.configuration(exact, method, points[0])
        settings = {**config, **spans, "samples": len(dataset.examples)}
        items.append({k: v for k, v in settings.items() if k not in IGNORED})
    return items


def settings_of_run(entry: Folder, row: Row) -> dict[str, Any]:
    """Returns the settings of one run of an entry.

    Settings that did not exist when the entry was trained have the values of `OLDER`.

    Args:
        entry: the entry, a results folder.
        row: the row of the run in results.csv.

    Returns:
        The settings by name, without the settings in `IGNORED`.
    """
    swept = {name: row[name] for name in entry.columns}
    settings = {**entry.config, **swept, "samples": row["samples"]}
    settings = {**OLDER.get(settings["method"], {}), **settings}
    return {k: v for k, v in settings.items() if k not in IGNORED}


def differing(settings: Mapping[str, Any], request: Mapping[str, Any]) -> Differences:
    """Returns the settings of a run that differ from a request.

    Args:
        settings: the settings of the run, by name.
        request: the requested settings, by name. A tuple has all accepted values.

    Returns:
        The value in the run, or `NOT_RECORDED`, and the requested value, by setting.
        All values of `UNSET` are equal to each other and to `NOT_RECORDED`.
    """
    differs = {}
    for name in {**request, **settings}:
        value, accepted = settings.get(name, NOT_RECORDED), request.get(name)
        agrees = value in accepted if isinstance(accepted, tuple) else value == accepted
        is_unset = value in (*UNSET, NOT_RECORDED)
        if not agrees and not (is_unset and accepted in UNSET):
            differs[name] = value, accepted
    return differs


def text(value: Any) -> str:
    """Returns the value of a setting as text.

    Args:
        value: None, a number, a text, a truth value, or a list or tuple of these.

    Returns:
        The text. It is "none" for a value of `UNSET`. Items of a list are separated by
        spaces.
    """
    if value in UNSET:
        return "none"
    if isinstance(value, list | tuple):
        return " ".join(map(text, value))
    return str(value) if isinstance(value, bool | str) else f"{value:g}"


# --- The pages of the ledger.

DATA = {
    "mnist": "MNIST",
    "digits": "digits",
    "fashion": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "ORL_32x32": "ORL faces",
    "pendigits": "Pendigits",
    "fashion2000": "Fashion-MNIST (other images)",
}
METHODS = {
    "ccfc": "CCFC",
    "fedmcc": "FedMCC",
    "fed-cc": "Fed + CC",
    "fedu": "FedU",
    "fedu+k-means": "FedU + k-means",
    "fedsimclr+k-means": "FedSimCLR + k-means",
    "fedsimsiam+k-means": "FedSimSiam + k-means",
    "orchestra": "Orchestra",
    "dcn": "DCN",
    "lrsc": "LRSC",
    "dscn": "DSCN",
    "fdsc1": "FDSC1",
    "fdsc2": "FDSC2",
    "fedcref": "FedCRef",
    "km": "k-means",
    "k-fed": "k-FED",
    "fedema": "FedEMA",
    "fedsimsiam": "FedSimSiam",
    "fedsimclr": "FedSimCLR",
    "fedmcc-one-stage": "FedMCC, one stage",
    "cc": "CC",
    "mcc": "MCC",
    "sda-fdc": "SDA-FDC",
    "sda-fdc-disjoint": "SDA-FDC, disjoint",
    "sda-fc-km": "SDA-FC, k-means",
    "sda-fc-fcm": "SDA-FC, fuzzy c-means",
    "dcn-disjoint": "DCN, disjoint",
    "dlrsc": "DLRSC",
    "dec": "DEC",
    "uifca": "UIFCA",
    "fcm": "fuzzy c-means",
    "ffcm": "FFCM",
    "ffcm-mean": "FFCM by means",
    "exact-km": "exact k-means",
    "exact-fcm": "exact fuzzy c-means",
}
SECTIONS = {
    "CCFC": ["ccfc"],
    "FedMCC, Fed + CC, FedU, FedSimCLR and FedSimSiam": [
        *("fedmcc", "fed-cc", "fedu"),
        *("fedu+k-means", "fedsimclr+k-means", "fedsimsiam+k-means"),
    ],
    "Orchestra": ["orchestra"],
    "DCN": ["dcn"],
    "FDSC, DSCN and LRSC": ["lrsc", "dscn", "fdsc1", "fdsc2"],
    "FedCRef": ["fedcref"],
}
"""Headings of BENCHMARKS.md and the methods below each."""
HETEROGENEITY = {
    "p": "p = {:g}",
    "alpha": "alpha = {:g}",
    "class_share": "class share {:g}",
    "classes_per_client": "q = {:g}",
    "dirtiness": "dirtiness {:g}",
}
"""Columns of results.csv for how much the clients differ, and how to print them."""
BEGIN, END = "<!-- ledger: begin -->\n", "<!-- ledger: end -->"
"""`python experiments/ledger.py write` replaces the text between these marks."""
HAND_WRITTEN = ("BENCHMARKS.md", "docs/methods/which.md")
"""Pages whose text outside of the marks is written by hand."""
RUNS = "docs/benchmarks/runs"


@dataclasses.dataclass(frozen=True)
class Line:
    """Runs of an entry that differ in nothing but the seed."""

    entry: Folder
    note: Mapping[str, Any]
    """The item of notes.toml."""
    rows: Sequence[Row]
    varying: Sequence[str]
    """The settings that vary within the entry, without the seed."""

    @property
    def method(self) -> str:
        """The method's name in results.csv."""
        return self.entry.directory.parent.name

    @property
    def is_study(self) -> bool:
        """Whether the entry compares settings and so stays out of the tables."""
        return self.note.get("study", False)

    @property
    def metric(self) -> str:
        """ACC where each client is scored by its own match of clusters, else NMI."""
        return "nmi" if self.rows[0]["scope"] == "global" else "acc"

    @property
    def source(self) -> tuple[Any, ...]:
        """The data set, the number of its examples and the pixels: k-means' key."""
        row = self.rows[0]
        return row["dataset"], row["samples"], self.entry.config.get("resize")

    @property
    def data(self) -> str:
        """The data set, the number of examples that the clients hold and the pixels."""
        dataset, samples, resize = self.source
        left_out = self.rows[0]["left_out"]
        # A few examples are left out where the clients need equal sizes.
        samples -= left_out if left_out > samples / 100 else 0
        name = f"{DATA[dataset]}, {samples:,}"
        return f"{name}, {resize} px" if resize else name

    @property
    def heterogeneity(self) -> str:
        """The setting that says how much the clients differ; empty without clients."""
        if self.method == "km":
            return ""
        row = self.rows[0]
        names = [x for x in HETEROGENEITY if x in self.varying and row[x] is not None]
        names = names or [x for x in HETEROGENEITY if x in row and row[x] is not None]
        return HETEROGENEITY[names[-1]].format(row[names[-1]]) if names else ""

    def mean(self, name: str) -> str:
        """Returns the mean of a score over the seeds.

        Args:
            name: the column of the score in results.csv.

        Returns:
            The mean as text, with three decimals.
        """
        return f"{np.mean([row[name] for row in self.rows]):.3f}"

    def score(self, name: str) -> str:
        """Returns the mean of a score, and the 95 % interval from three seeds on.

        Args:
            name: the column of the score in results.csv.

        Returns:
            Text such as "0.812 ± 0.055".
        """
        interval = half_width(np.array([row[name] for row in self.rows]))
        return self.mean(name) + ("" if np.isnan(interval) else f" ± {interval:.3f}")

    @property
    def paper(self) -> float | None:
        """The paper's score in `metric`, if the paper prints one."""
        row = self.rows[0]
        if self.method in fdsc.DISPLAY_NAMES:
            scores = fdsc.CLUSTER_SCORES["orl" if "ORL" in row["dataset"] else "mnist"]
            name = fdsc.DISPLAY_NAMES[self.method]
            return scores[int(row["classes_per_client"])][name][0]
        if self.method == "fedcref":
            return fedcref.ACC_BY_DIRTINESS[fedcref.EMNIST][row["dirtiness"]][1][0]
        if row.get("class_share") is not None and row["dataset"] == "mnist":
            label = METHODS[self.method].replace("k-means", "K-means")
            index = fedmcc.FEDERATED.index("mnist") * len(fedmcc.SCORES)
            scores = fedmcc.CLUSTERING[row["class_share"]].get(label)
            nmi = scores[index] if scores and row["samples"] >= 10_000 else None
            return nmi and nmi / 100
        return row.get(f"paper_{self.metric}")


def lines_of(ledger: Path) -> list[Line]:
    """Returns the runs of all entries, grouped by their settings.

    Args:
        ledger: the folder of the ledger.

    Returns:
        One item per entry and setting.

    Raises:
        ValueError: notes.toml lacks an entry, or describes one that is not there.
    """
    path = ledger / "notes.toml"
    notes = tomllib.loads(path.read_text())
    folders = {name_of(entry): entry for entry in entries(ledger)}
    if names := sorted(notes.keys() ^ folders.keys()):
        raise ValueError(f"{path} and the folders differ: {', '.join(names)}")
    lines = []
    for name, entry in folders.items():
        columns = [x for x in entry.names if x not in ("seed", "clusters")]
        varying = [x for x in columns if len({row[x] for row in entry.rows}) > 1]
        groups: dict[tuple, list[Row]] = {}
        for row in sorted(entry.rows, key=lambda row: [row[x] for x in varying]):
            groups.setdefault(tuple(row[x] for x in varying), []).append(row)
        lines += [Line(entry, notes[name], rows, varying) for rows in groups.values()]
    return lines


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Returns the lines of a Markdown table.

    Args:
        header: the titles of the columns.
        rows: one cell per column for each row.

    Returns:
        The header, the separator, and one line per row.
    """
    lines = [header, ["---"] * len(header), *rows]
    return [
        f"| {' | '.join(map(str, line))} |".replace("|  |", "| |") for line in lines
    ]


def link(line: Line, label: str, *, to: str) -> str:
    """Returns a Markdown link to an entry's section.

    Args:
        line: runs of the entry.
        label: the text of the link.
        to: the path of docs/benchmarks/runs from the page.

    Returns:
        [label](path#anchor).
    """
    anchor = re.sub(r"[^\w-]", "", line.entry.directory.name.lower())
    return f"[{label}]({to}/{page_of(line.method)}#{anchor})"


def page_of(method: str) -> str:
    """Returns the file name of a method's page in docs/benchmarks/runs.

    Args:
        method: the method's name in results.csv, such as "fedu+k-means".

    Returns:
        The file name, with "-" in place of "+".
    """
    return f"{method.replace('+', '-')}.md"


def k_means_of(lines: Sequence[Line]) -> dict[tuple[Any, ...], Line]:
    """Returns the k-means runs by the source of their data.

    Args:
        lines: the runs of all entries.

    Returns:
        The runs of the method `km`, by `Line.source`.
    """
    return {line.source: line for line in lines if line.method == "km"}


def baseline(line: Line, k_means: Line | None, metric: str) -> str:
    """Returns the score of k-means for the data of a line.

    Args:
        line: the runs that are compared with k-means.
        k_means: separate k-means runs on the same data. None takes the NMI of k-means
            that is in the rows of `line`.
        metric: "nmi" or "acc".

    Returns:
        The mean as text; "" if it is unknown.
    """
    if k_means:
        return k_means.mean(metric)
    has_own = metric == "nmi" and line.rows[0].get("kmeans_nmi") is not None
    return line.mean("kmeans_nmi") if has_own else ""


def benchmarks(lines: Sequence[Line]) -> Iterator[str]:
    """Yields the tables of BENCHMARKS.md.

    Args:
        lines: the runs of all entries.

    Yields:
        str: the lines of Markdown, with one table per heading of `SECTIONS`.
    """
    baselines = k_means_of(lines)
    for title, methods in SECTIONS.items():
        shown = [x for m in methods for x in lines if x.method == m and not x.is_study]
        metric = shown[0].metric
        rows = []
        for line in shown:
            parts = (line.data, line.heterogeneity, line.note.get("setting"))
            rows.append(
                [
                    link(line, METHODS[line.method], to=RUNS),
                    ", ".join(filter(None, parts)),
                    baseline(line, baselines.get(line.source), metric),
                    line.score(metric),
                    f"{line.paper:.3f}" if line.paper else "",
                    len(line.rows),
                ]
            )
        header = ["method", "data", "k-means", metric.upper(), "paper", "seeds"]
        yield from ["", f"## {title}", "", *table(header, rows)]


def best_methods(lines: Sequence[Line]) -> Iterator[str]:
    """Yields the table of docs/methods/which.md: the best method by data set.

    The best method has the highest mean NMI. Only methods with one clustering of all
    clients are compared.

    Args:
        lines: the runs of all entries.

    Yields:
        str: the lines of Markdown, with one row per data set and heterogeneity.
    """
    baselines = k_means_of(lines)
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if line.method != "km" and line.metric == "nmi" and not line.is_study:
            alike = line.heterogeneity in ("p = 0", "class share 1")
            key = line.data, "IID" if alike else line.heterogeneity
            groups.setdefault(key, []).append(line)
    rows = []
    for (data, heterogeneity), group in sorted(groups.items()):
        best = max(group, key=lambda line: float(line.mean("nmi")))
        setting = best.note.get("setting")
        label = METHODS[best.method] + (f", {setting}" if setting else "")
        k_means = baseline(best, baselines.get(best.source), "nmi")
        # Exact federated k-means equals k-means of all examples.
        if k_means and float(best.mean("nmi")) < float(k_means):
            label += ": below k-means"
        rows.append(
            [
                data,
                heterogeneity,
                k_means,
                link(best, label, to="../benchmarks/runs"),
                best.score("nmi"),
                len(best.rows),
            ]
        )
    header = ["data", "heterogeneity", "k-means", "best method", "its NMI", "seeds"]
    yield from table(header, rows)


def page(lines: Sequence[Line]) -> Iterator[str]:
    """Yields the lines of a method's page in docs/benchmarks/runs.

    Args:
        lines: the runs of the entries of one method.

    Yields:
        str: the lines of Markdown, with one section per entry.
    """
    yield f"# Runs of {METHODS[lines[0].method]}"
    yield ""
    yield "<!-- Written by `python experiments/ledger.py write`. -->"
    yield ""
    yield "Each section is one entry of the ledger. It has the commands, when and where"
    yield "they ran, and the scores of the last round. ± is the 95 % interval over"
    yield "seeds. A command with several methods has the wall time of this one here."
    for name in dict.fromkeys(name_of(line.entry) for line in lines):
        yield from section([line for line in lines if name_of(line.entry) == name])


def section(lines: Sequence[Line]) -> Iterator[str]:
    """Yields the section of one entry.

    Args:
        lines: the runs of the entry.

    Yields:
        str: the lines of Markdown: the commands, the starts, and the scores.
    """
    first = lines[0]
    commands = first.note["command"]
    starts = store.starts(first.entry.directory)
    yield from ["", f"## {first.entry.directory.name}", ""]
    yield f"{first.data} examples, {first.rows[0]['clients']} clients."
    if note := first.note.get("note"):
        yield note
    if "kmeans_nmi" in first.rows[0] and first.rows[0]["kmeans_nmi"] is not None:
        values = [x["kmeans_nmi"] for line in lines for x in line.rows]
        yield f"The runs' own k-means baseline has an NMI of {np.mean(values):.3f}."
    yield f"Files: `experiments/results/{name_of(first.entry)}`."
    yield from ["", "```bash", *as_tuple(commands), "```", ""]
    header = ["start (UTC)", "wall time, s", "commit", "device", "cores"]
    yield from table(header, [start_row(start) for start in starts])
    libraries = ("python", "fcjax", "jax", "flax", "optax", "scikit-learn")
    versions = (
        ", ".join(f"{x} {start[x]}" for x in libraries if x in start)
        for start in starts
    )
    yield from ["", *(f"Versions: {text}." for text in dict.fromkeys(versions)), ""]
    scores = ("nmi", "acc", "kappa")
    settings = [name.replace("_", " ") for name in first.varying]
    values = [[text(x.rows[0][name]) for name in x.varying] for x in lines]
    means = [
        [*value, len(line.rows), *map(line.score, scores)]
        for value, line in zip(values, lines, strict=True)
    ]
    yield from table([*settings, "seeds", "NMI", "ACC", "kappa"], means)
    seeds = [
        [*value, row["seed"], *(f"{row[name]:.3f}" for name in scores)]
        for value, line in zip(values, lines, strict=True)
        for row in sorted(line.rows, key=lambda row: row["seed"])
    ]
    yield from ["", *table([*settings, "seed", "NMI", "ACC", "kappa"], seeds)]


def start_row(start: Mapping[str, Any]) -> list[Any]:
    """Returns when and where a command was started, as cells of a table.

    Args:
        start: the start's item in environment.json.

    Returns:
        The start time, the wall time in seconds, the commit, the device and the number
        of CPU cores. On a CPU the device is the processor. A missing wall time is "not
        recorded".
    """
    device = start["devices"]
    if device.endswith("cpu"):
        device = start["processor"]
    began = datetime.fromisoformat(start["began"])
    seconds = start.get("seconds") or "not recorded"
    commit = f"`{start['commit'][:7]}`"
    return [f"{began:%Y-%m-%d %H:%M}", seconds, commit, device, start["cores"]]


def pages(ledger: Path, checkout: Path = CHECKOUT) -> dict[Path, str]:
    """Returns the text of all pages that are made from the ledger, by path.

    Args:
        ledger: the folder of the ledger.
        checkout: has the hand-written parts of HAND_WRITTEN.

    Returns:
        The text by path.

    Raises:
        ValueError: notes.toml and the folders differ, or a page lacks its marks.
    """
    lines = lines_of(ledger)
    texts = {}
    for name, tables in zip(HAND_WRITTEN, (benchmarks, best_methods), strict=True):
        before, begin, rest = (checkout / name).read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise ValueError(
                f"{name} lacks {BEGIN.strip()!r} or {END!r}: add both lines"
            )
        body = "\n".join(tables(lines)).strip()
        texts[checkout / name] = f"{before}{begin}\n{body}\n\n{end}{after}"
    # The site has its own copy, as links are relative to the page.
    copy = texts[checkout / "BENCHMARKS.md"].replace("](docs/", "](")
    texts[checkout / "docs" / "benchmarks.md"] = copy
    for method in dict.fromkeys(line.method for line in lines):
        body = "\n".join(page([line for line in lines if line.method == method]))
        texts[checkout / RUNS / page_of(method)] = f"{body}\n"
    return texts


@dataclasses.dataclass(frozen=True)
class Args:
    """Writes the pages that are made from the ledger in experiments/results."""

    action: tyro.conf.Positional[Literal["write"]]
    """write: replaces BENCHMARKS.md, docs/benchmarks.md, docs/benchmarks/runs and the
    table in docs/methods/which.md."""


def main(args: Args) -> None:
    """Writes the pages that are made from the ledger.

    Args:
        args: the command-line arguments.

    Raises:
        ValueError: an entry is incomplete. The message is one line.
    """
    assert args.action == "write"
    texts = pages(CHECKOUT / "experiments" / "results")
    for path, content in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    print(f"{len(texts)} pages written, the first is BENCHMARKS.md")


if __name__ == "__main__":
    with exit_on_error():
        main(parse(Args))
