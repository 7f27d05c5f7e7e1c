"""The ledger of runs that the repository keeps, and which of them a row of a paper's
table asks for.

An entry is a folder METHOD/NAME with FILES, which keep.py writes.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.papers.sizes import SIZES, blank
from fcjax.data.source import load_source, short_name
from fcjax.results.store import Folder, Row, read
from fcjax.settings import as_tuple
from fcjax.sweep import experiment, plan
from fcjax.sweep.plan import Task

FILES = ("config.json", "results.csv", "history.csv", "environment.json")
MOST_BYTES = 512 * 2**10
"""Of an entry."""
NONE = None, "", [], ()
"""What a setting has that is not given."""
UNCOMPARED = {
    *("dataset", "limit"),  # by `is_of`, and by how many examples there are
    *("evaluate_every", "swept", "seed", "start_stage", "reported"),
    *("preset", "defaults"),
}
Differences = Mapping[str, tuple[Any, Any]]
"""By setting, what a run has and what is asked for."""


class Found(NamedTuple):
    """Runs of an entry that differ alike from what is asked for."""

    runs: Folder
    """The entry, of which these are asked for alone."""
    lines: tuple[Mapping[str, Any], ...]
    """Of the table, which they are in: the columns that say so."""
    seeds: tuple[int, ...]
    """The same ones in each line."""
    differs: Differences

    @property
    def place(self) -> str:
        """Which lines these are."""
        each = (" ".join(f"{k} {shown(v)}" for k, v in x.items()) for x in self.lines)
        return ", ".join(each)

    def told(self, seeds: Sequence[int], *, but: Collection[str] = ()) -> str:
        """Returns the entry, and what its runs have in place of what was asked for,
        these seeds too; of settings that do not matter nothing is said.
        """
        differs = {k: v for k, v in self.differs.items() if k not in but}
        if set(self.seeds) != set(seeds):
            differs["seed"] = self.seeds, tuple(seeds)
        said = (
            f"{k} {shown(x)} in place of {shown(y)}" for k, (x, y) in differs.items()
        )
        return f"{name_of(self.runs)}{': ' if differs else ''}{', '.join(said)}"


def entries(ledger: Path) -> list[Folder]:
    """Returns what the ledger keeps, in the order of the names.

    Raises:
        ValueError: there is no such folder, or an entry has no finished run.
    """
    if not ledger.is_dir():
        raise ValueError(f"--from {ledger} is no folder")
    return [read(path.parent) for path in sorted(ledger.glob("*/*/config.json"))]


def name_of(entry: Folder) -> str:
    """Returns METHOD/NAME."""
    return "/".join(entry.directory.parts[-2:])


def is_of(entry: Folder, dataset: str, *, by_path: bool) -> bool:
    """Whether the runs are of this data set: by its name, or where it has none to be
    loaded by, by what the name of the file begins with.
    """
    kept = str(entry.rows[0]["dataset"])
    if not by_path:
        return kept == short_name(dataset)
    kept, asked = (re.sub("[-_]", "", name.lower()) for name in (kept, dataset))
    return kept.startswith(asked)


def is_thinned(entry: Folder) -> bool:
    """Whether history.csv has but some rounds of a run."""
    return len(entry.rounds) < sum(row["rounds"] for row in entry.rows)


def runs_of(
    entries: Sequence[Folder],
    task: Task,
    *,
    by: Collection[str],
    same: Collection[str],
    seeds: Collection[int] = (),
) -> list[Found]:
    """Returns the runs that come nearest to those of a task.

    A line of a table takes runs of one entry that differ in nothing but the seed and
    what the flags span without the line saying it; of several such the ones with the
    fewest settings other than the flags', and of these the most runs.

    Args:
        entries: of the data set.
        task: what is asked for.
        by: the columns that tell lines apart.
        same: the settings that must be as asked for, beside those and the method.
        seeds: the only ones to be taken; none are all.
    """
    wanted = asked(task)
    same = {"method", *by, *same}
    # By line, and by what tells runs of one line apart but for their seeds.
    lines: dict[tuple, dict[tuple, list[Row]]] = {}
    differences: dict[tuple, Differences] = {}
    for place, entry in enumerate(entries):
        for row in entry.rows:
            have = held(entry, row)
            differs = min(
                (differing(have, want) for want in wanted),
                key=lambda found: (bool(same & found.keys()), len(found)),
            )
            if same & differs.keys() or (seeds and row["seed"] not in seeds):
                continue
            alike = place, repr(differs)
            differences[alike] = differs
            line = tuple((k, have[k]) for k in by if k in have and k != "method")
            lines.setdefault(line, {}).setdefault(alike, []).append(row)

    def far(group: tuple[tuple, list[Row]]) -> tuple[int, int]:
        alike, rows = group
        return len(differences[alike]), -len(rows)

    nearest: dict[tuple, list[tuple[tuple, list[Row]]]] = {}
    for line, groups in lines.items():
        alike, rows = min(groups.items(), key=far)
        its_seeds = tuple(sorted({int(row["seed"]) for row in rows}))
        nearest.setdefault((alike, its_seeds), []).append((line, rows))
    found = []
    for (alike, its_seeds), own in nearest.items():
        entry, rows = entries[alike[0]], [row for _, rows in own for row in rows]
        points = [{name: row[name] for name in entry.names} for row in rows]
        runs = Folder(entry.directory, entry.config, points)
        own_lines = tuple(dict(line) for line, _ in own)
        found.append(Found(runs, own_lines, its_seeds, differences[alike]))
    return found


def asked(task: Task) -> list[dict[str, Any]]:
    """Returns the settings that a task stands for, a tuple where the grid spans one;
    more than once where other clients or levels have other settings. The papers' data
    need not be there.
    """
    source = task.source
    if source.dataset in SIZES:
        sizes = {"split": source.split, "resize": source.resize, "limit": source.limit}
        dataset = blank(source.dataset, **sizes)
    else:
        dataset, _ = load_source(source)
    task, dataset = task.for_data(dataset)
    found = []
    for method, num_clients, num_clusters, levels in plan.specs(task, dataset):
        here = {"clients": num_clients, "clusters": num_clusters}
        swept = {k: v for k, v in method.settings.items() if isinstance(v, tuple)}
        points = plan.span(task, levels, swept, here)
        spans = {name: tuple({p[name]: None for p in points}) for name in points[0]}
        if task.split.client_size:
            spans["client_size"] = as_tuple(task.split.client_size)
        config = experiment.configuration(task, method, points[0])
        settings = {**config, **spans, "samples": len(dataset.examples)}
        found.append({k: v for k, v in settings.items() if k not in UNCOMPARED})
    return found


def held(entry: Folder, row: Row) -> dict[str, Any]:
    """Returns the settings of a kept run."""
    swept = {name: row[name] for name in entry.columns}
    settings = {**entry.config, **swept, "samples": row["samples"]}
    if settings["method"] == "ccfc":  # of before there was a flag
        settings.setdefault("schedule", "constant")
    return {k: v for k, v in settings.items() if k not in UNCOMPARED}


def differing(have: Mapping[str, Any], want: Mapping[str, Any]) -> Differences:
    """Returns the settings that a run has otherwise than asked for."""
    found = {}
    for name in {**want, **have}:
        one, other = have.get(name), want.get(name)
        agrees = one in other if isinstance(other, tuple) else one == other
        if not agrees and not (one in NONE and other in NONE):
            found[name] = one, other
    return found


def shown(value: Any) -> str:
    if value in NONE:
        return "none"
    if isinstance(value, list | tuple):
        return " ".join(map(shown, value))
    return str(value) if isinstance(value, bool | str) else f"{value:g}"
