"""Keeps finished runs in the repository's ledger, experiments/results: small tables.

python experiments/keep.py runs/ccfc-digits-1a2b3c4d
python experiments/keep.py runs/grid/k-fed runs/grid/ffcm --name digits-all-p
python experiments/reproduce.py ccfc-table1 --from experiments/results
"""

import dataclasses
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from experiments.ledger import FILES, MOST_BYTES
from fcjax.cli.arguments import parse
from fcjax.cli.errors import exit_on_error
from fcjax.data.sources import is_tfds
from fcjax.results import store
from fcjax.results.shards import scores
from fcjax.results.store import Folder, Row, differing, read
from fcjax.settings import shown

CHECKOUT = Path(__file__).resolve().parents[1]
LAST = 10
"""Rounds of a stage that history.csv always keeps."""


@dataclasses.dataclass(frozen=True)
class Args:
    """Puts finished results folders into the ledger; refuses what the history of the
    repository could not run again.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Results folders."""
    to: Annotated[Path | None, shown("experiments/results of the checkout")] = None
    """The ledger: a folder a method, in which every entry has one."""
    name: Annotated[str | None, shown("DATASET-WHAT VARIES")] = None
    """What the entry is called, after its method."""


class Entry(NamedTuple):
    """What the ledger keeps of runs of one configuration."""

    config: Mapping[str, Any]
    rows: Sequence[Row]
    rounds: Sequence[Row]
    starts: Sequence[Mapping[str, Any]]


def main(args: Args) -> None:
    """Raises ValueError with one line where something cannot be kept."""
    if not args.runs:
        raise ValueError("which folders? see --help")
    if args.name is not None and not re.fullmatch(r"\w[\w.+-]*", args.name):
        raise ValueError(f"--name takes letters, digits and .+-_, got {args.name!r}")
    ledger = args.to or CHECKOUT / "experiments" / "results"
    keep(args.runs, ledger, checkout=CHECKOUT, name=args.name)


def keep(
    runs: Sequence[Path], ledger: Path, *, checkout: Path, name: str | None = None
) -> None:
    """Adds finished runs to the ledger, and says where.

    Args:
        runs: results folders.
        ledger: where to.
        checkout: whose history must have the commits of the runs.
        name: of the entry, after the method; None is by data set and what varies.

    Raises:
        ValueError: one of them cannot be kept. Then nothing is written.
    """
    if not (checkout / ".git").exists():
        raise ValueError("runs are kept by a checkout of the repository, not a wheel")
    with ExitStack() as stack:
        entries: dict[Path, Entry] = {}
        for run in runs:
            source = finished(run, checkout)
            stack.enter_context(source.locked())  # nobody goes on meanwhile
            called = Path(source.config["method"]) / (name or name_of(source))
            known = entries.get(called) or kept_in(ledger / called)
            entries[called] = joined(known, source, ledger / called)
        staged = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        notes = {x: write(entry, staged / x) for x, entry in entries.items()}
        for called, note in notes.items():
            folder = ledger / called
            folder.mkdir(parents=True, exist_ok=True)
            for file in FILES:
                shutil.copy(staged / called / file, folder / file)
            size = sum((folder / file).stat().st_size for file in FILES) / 2**10
            print(f"{len(entries[called].rows)} runs in {folder}, {size:.0f} KiB")
            if note:
                print(note)
            if folder.resolve().is_relative_to(checkout):
                print(f"name it in BENCHMARKS.md: results/{called}")


def finished(run: Path, checkout: Path) -> Folder:
    """Returns a results folder whose runs have ended, at commits of the history.

    Raises:
        ValueError: it is not one.
    """
    source = read(run)
    ended = {source.key(row) for row in source.rows}
    open_runs = {source.key(row): row for row in source.rounds}.items()
    begun = [row for key, row in open_runs if key not in ended]
    if begun:
        raise ValueError(
            f"{run} has a run that has not ended ({told(begun[0], source)}): run its "
            "command again to the end"
        )
    starts = store.starts(run)
    if not starts:
        raise ValueError(
            f"{run} is of an earlier fcjax, which wrote no environment.json: nothing "
            "says at which commit it was run"
        )
    for start in starts:
        commit = start["commit"]
        if commit is None:
            problem = "was run outside a checkout, at no commit"
        elif start["changed"]:
            problem = f"was run with uncommitted changes of {commit[:7]}"
        elif not is_ancestor(commit, checkout):
            problem = f"was run at {commit[:7]}, which this history does not have"
        else:
            continue
        raise ValueError(
            f"{run} {problem} (the start of {start['began']}): run it at a commit that "
            "is here"
        )
    return source


def is_ancestor(commit: str, checkout: Path) -> bool:
    """Whether the history of HEAD has a commit."""
    command = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    return not subprocess.run(command, cwd=checkout, capture_output=True).returncode


def name_of(source: Folder) -> str:
    """Returns DATASET-WHAT VARIES."""
    return "-".join([str(source.rows[0]["dataset"]), *source.settings])


def entry_of(source: Folder) -> Entry:
    """Returns what is kept of a results folder: of a data set that was given by its
    path the name of the file.
    """
    name = source.config["dataset"]
    if "/" in name and not is_tfds(name):
        name = Path(name).name
        # A folder that is called as a named data set is not that one.
        name = f"./{name}" if name == "digits" or is_tfds(name) else name
    # A directory of one machine says nothing on another one.
    starts = [
        {k: v for k, v in start.items() if k != "data_dir"}
        for start in store.starts(source.directory)
    ]
    return Entry({**source.config, "dataset": name}, source.rows, source.rounds, starts)


def kept_in(folder: Path) -> Entry | None:
    """Returns what is there already."""
    if not (folder / "config.json").exists():
        return None
    kept, starts = read(folder), store.starts(folder)
    return Entry(kept.config, kept.rows, kept.rounds, starts)


def joined(old: Entry | None, source: Folder, folder: Path) -> Entry:
    """Returns an entry with further runs, which replace those that it has.

    Args:
        old: what is there.
        source: of `finished`.
        folder: of the entry.

    Raises:
        ValueError: they have another configuration, or other scores of the same run.
    """
    new, run = entry_of(source), source.directory
    if old is None:
        return new
    if names := differing(old.config, new.config):
        each = (
            f"{name} {new.config.get(name)}, there {old.config.get(name)}"
            for name in names
        )
        raise ValueError(
            f"{folder} keeps another configuration than that of {run} "
            f"({'; '.join(each)}): give it another --name"
        )
    known = {source.key(row): row for row in old.rows}
    for row in new.rows:
        one, other = known.get(source.key(row), {}), scores(row)
        # As text: of a run that diverged both have NaN.
        names = [k for k in other if k in one and str(one[k]) != str(other[k])]
        if names:
            raise ValueError(
                f"{folder} keeps the run with {told(row, source)}, and {run} has other "
                f"scores of it ({', '.join(names)} differ): give it another --name"
            )
    added = {source.key(row) for row in new.rows}

    def others(rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if source.key(row) not in added]

    return Entry(
        new.config,
        [*others(old.rows), *new.rows],
        [*others(old.rounds), *new.rounds],
        [*old.starts, *(start for start in new.starts if start not in old.starts)],
    )


def write(entry: Entry, folder: Path) -> str:
    """Writes an entry, with fewer rounds where all are too large.

    Returns:
        What became of the rounds, if anything did.

    Raises:
        ValueError: it is too large whatever rounds are left out.
    """
    results, every = Folder(folder, entry.config), 1
    results.begin()
    store.write_environment(folder, [dict(start) for start in entry.starts])
    results.add_rows(entry.rows)
    results.add_rounds(entry.rounds)
    longest = max((row["round"] for row in entry.rounds), default=0)
    while sum((folder / name).stat().st_size for name in FILES) > MOST_BYTES:
        if every > longest:
            raise ValueError(
                f"{len(entry.rows)} runs take more than {MOST_BYTES // 2**10} KiB with "
                f"the last {LAST} rounds of each stage alone: keep fewer in an entry, "
                "by --name"
            )
        # By powers of two: what an entry has left out before is left out still.
        every *= 2
        results.rounds = []
        results.add_rounds(thinned(entry.rounds, results, every=every))
    if every == 1:
        return ""
    return f"history.csv keeps a round in {every}, and the last {LAST} of each stage"


def thinned(rounds: Sequence[Row], results: Folder, *, every: int) -> list[Row]:
    """Returns every so many rounds of each stage of each run, and the last ones."""
    last: dict[tuple, int] = {}
    for row in rounds:
        stage = (row["stage_index"], *results.key(row))
        last[stage] = max(last.get(stage, 0), row["round"])
    return [
        row
        for row in rounds
        if row["round"] % every == 0
        or row["round"] > last[row["stage_index"], *results.key(row)] - LAST
    ]


def told(row: Row, source: Folder) -> str:
    return source.describe({name: row[name] for name in source.names})


if __name__ == "__main__":
    with exit_on_error():
        main(parse(Args))
