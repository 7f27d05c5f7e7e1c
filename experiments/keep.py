"""Copies the tables of finished runs into the ledger, experiments/results.

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

from experiments.ledger import FILES, MAX_BYTES
from fcjax.cli.arguments import parse
from fcjax.cli.errors import exit_on_error
from fcjax.data.sources import is_tfds
from fcjax.results import store
from fcjax.results.shards import scores
from fcjax.results.store import Folder, Row, differing, read
from fcjax.settings import shown

CHECKOUT = Path(__file__).resolve().parents[1]
LAST = 10
"""Number of last rounds of each stage that history.csv always has."""


@dataclasses.dataclass(frozen=True)
class Args:
    """Copies the tables of finished results folders into the ledger.

    A folder is refused if its commit is not in the history of the repository, as nobody
    could run it again.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """The results folders."""
    to: Annotated[Path | None, shown("experiments/results of the checkout")] = None
    """The folder of the ledger, with one folder per method."""
    name: Annotated[str | None, shown("DATASET-WHAT VARIES")] = None
    """The name of the entry within the folder of its method."""


class Entry(NamedTuple):
    """The tables of runs of one configuration."""

    config: Mapping[str, Any]
    """config.json."""
    rows: Sequence[Row]
    """results.csv."""
    rounds: Sequence[Row]
    """history.csv."""
    starts: Sequence[Mapping[str, Any]]
    """environment.json."""


def main(args: Args) -> None:
    """Copies the tables of the results folders into the ledger.

    Args:
        args: the command-line arguments.

    Raises:
        ValueError: a folder is refused, or an argument is wrong. The message is one
            line.
    """
    if not args.runs:
        raise ValueError("no results folder is given: name one or more")
    if args.name is not None and not re.fullmatch(r"\w[\w.+-]*", args.name):
        raise ValueError(f"--name takes letters, digits and .+-_, got {args.name!r}")
    ledger = args.to or CHECKOUT / "experiments" / "results"
    keep(args.runs, ledger, checkout=CHECKOUT, name=args.name)


def keep(
    runs: Sequence[Path], ledger: Path, *, checkout: Path, name: str | None = None
) -> None:
    """Adds finished runs to the ledger and prints the path of each entry.

    Args:
        runs: the results folders.
        ledger: the folder of the ledger.
        checkout: the repository whose history must have the commits of the runs.
        name: the name of the entry. None makes a name from the data set and the swept
            settings.

    Raises:
        ValueError: a results folder is refused. Then nothing is written.
    """
    if not (checkout / ".git").exists():
        raise ValueError(
            f"{checkout} is no checkout of the repository: clone it, and run keep there"
        )
    with ExitStack() as stack:
        entries: dict[Path, Entry] = {}
        for run in runs:
            source = finished(run, checkout)
            # The lock keeps another command from continuing the runs meanwhile.
            stack.enter_context(source.locked())
            path = Path(source.config["method"]) / (name or name_of(source))
            known = entries.get(path) or entry_in(ledger / path)
            entries[path] = merge(known, source, ledger / path)
        # All entries are written elsewhere first, so that an error leaves the ledger
        # as it was.
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        notes = {
            path: write(entry, temporary / path) for path, entry in entries.items()
        }
        for path, note in notes.items():
            folder = ledger / path
            folder.mkdir(parents=True, exist_ok=True)
            for file in FILES:
                shutil.copy(temporary / path / file, folder / file)
            size = sum((folder / file).stat().st_size for file in FILES) / 2**10
            print(f"{len(entries[path].rows)} runs in {folder}, {size:.0f} KiB")
            if note:
                print(note)
            if folder.resolve().is_relative_to(checkout):
                print(f"next: add the command of {path} to {ledger / 'notes.toml'}")
                print("then: python experiments/ledger.py write")


def finished(run: Path, checkout: Path) -> Folder:
    """Opens a results folder whose runs are finished and whose commits are known.

    Args:
        run: the results folder.
        checkout: the repository whose history must have the commits.

    Returns:
        The opened folder.

    Raises:
        ValueError: a run is not finished, or a commit is missing in the history.
    """
    source = read(run)
    finished_keys = {source.key(row) for row in source.rows}
    rows = {source.key(row): row for row in source.rounds}
    unfinished = [row for key, row in rows.items() if key not in finished_keys]
    if unfinished:
        raise ValueError(
            f"{run} has an unfinished run ({point(unfinished[0], source)}): repeat its "
            "command to finish the run"
        )
    starts = store.starts(run)
    if not starts:
        raise ValueError(
            f"{run} has no environment.json, so its commit is unknown: run it again "
            "with this version"
        )
    for start in starts:
        commit = start["commit"]
        if commit is None:
            problem = "was run outside of a checkout, so its commit is unknown"
        elif start["changed"]:
            problem = f"was run with uncommitted changes to {commit[:7]}"
        elif not is_ancestor(commit, checkout):
            problem = f"was run at {commit[:7]}, a commit that is not in this history"
        else:
            continue
        raise ValueError(
            f"{run} {problem} (started {start['began']}): run it again at a commit of "
            "this history"
        )
    return source


def is_ancestor(commit: str, checkout: Path) -> bool:
    """Returns whether the history of HEAD has a commit.

    Args:
        commit: hash of the commit.
        checkout: a checkout of the repository.

    Returns:
        True if the commit is in the history.
    """
    command = ["git", "merge-base", "--is-ancestor", commit, "HEAD"]
    return not subprocess.run(command, cwd=checkout, capture_output=True).returncode


def name_of(source: Folder) -> str:
    """Returns the data set and the swept settings, joined by hyphens.

    Args:
        source: the results folder.

    Returns:
        The name of the entry, for example "mnist-p".
    """
    return "-".join([str(source.rows[0]["dataset"]), *source.settings])


def entry_of(source: Folder) -> Entry:
    """Returns the tables of a results folder, without paths of this machine.

    A data set that was given by its path gets the name of the file.

    Args:
        source: the results folder.

    Returns:
        The tables of the folder.
    """
    name = source.config["dataset"]
    if "/" in name and not is_tfds(name):
        name = Path(name).name
        # A local folder can have the name of a TFDS data set without being that one.
        name = f"./{name}" if name == "digits" or is_tfds(name) else name
    # The path of the data is of no use on another machine.
    starts = [
        {k: v for k, v in start.items() if k != "data_dir"}
        for start in store.starts(source.directory)
    ]
    return Entry({**source.config, "dataset": name}, source.rows, source.rounds, starts)


def entry_in(folder: Path) -> Entry | None:
    """Returns the tables of an entry, or None if the folder has none.

    Args:
        folder: folder of an entry in the ledger.

    Returns:
        The tables.
    """
    if not (folder / "config.json").exists():
        return None
    results, starts = read(folder), store.starts(folder)
    return Entry(results.config, results.rows, results.rounds, starts)


def merge(old: Entry | None, source: Folder, folder: Path) -> Entry:
    """Adds the runs of a results folder to an entry and replaces equal ones.

    Args:
        old: the entry; None makes a new one.
        source: the results folder, as `finished` returns it.
        folder: the path of the entry, for error messages.

    Returns:
        The entry with all runs.

    Raises:
        ValueError: the configuration differs, or the scores of a run differ.
    """
    new, run = entry_of(source), source.directory
    if old is None:
        return new
    if names := differing(old.config, new.config):
        texts = (
            f"{name} {new.config.get(name)} instead of {old.config.get(name)}"
            for name in names
        )
        raise ValueError(
            f"{run} has another configuration than {folder} ({'; '.join(texts)}): give "
            "another --name"
        )
    known = {source.key(row): row for row in old.rows}
    for row in new.rows:
        before, after = known.get(source.key(row), {}), scores(row)
        # The comparison is by text, as NaN of a diverged run does not equal itself.
        names = [k for k in after if k in before and str(before[k]) != str(after[k])]
        if names:
            raise ValueError(
                f"{run} has other scores ({', '.join(names)}) than {folder} for the "
                f"run with {point(row, source)}: give another --name"
            )
    new_keys = {source.key(row) for row in new.rows}

    def unchanged(rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if source.key(row) not in new_keys]

    return Entry(
        new.config,
        [*unchanged(old.rows), *new.rows],
        [*unchanged(old.rounds), *new.rounds],
        [*old.starts, *(start for start in new.starts if start not in old.starts)],
    )


def write(entry: Entry, folder: Path) -> str:
    """Writes an entry, with fewer rounds in history.csv if the files are too large.

    Args:
        entry: the tables.
        folder: the path to write to.

    Returns:
        A line that says which rounds history.csv has, empty if it has all.

    Raises:
        ValueError: the entry is larger than MAX_BYTES with the last rounds alone.
    """
    results, every = Folder(folder, entry.config), 1
    results.begin()
    store.write_environment(folder, [dict(start) for start in entry.starts])
    results.add_rows(entry.rows)
    results.add_rounds(entry.rounds)
    longest = max((row["round"] for row in entry.rounds), default=0)
    while sum((folder / name).stat().st_size for name in FILES) > MAX_BYTES:
        if every > longest:
            raise ValueError(
                f"{len(entry.rows)} runs take more than {MAX_BYTES // 2**10} KiB, even "
                f"with only the last {LAST} rounds of each stage: split them into "
                "several entries with --name"
            )
        # Powers of two, so that an entry that was thinned before stays consistent.
        every *= 2
        results.rounds = []
        results.add_rounds(thinned(entry.rounds, results, every=every))
    if every == 1:
        return ""
    return f"history.csv has one round in {every}, and the last {LAST} of each stage"


def thinned(rounds: Sequence[Row], results: Folder, *, every: int) -> list[Row]:
    """Returns one round in `every`, and the last rounds, of each stage of each run.

    Args:
        rounds: rows of history.csv.
        results: the folder of the rounds, which identifies the run of a row.
        every: the distance between two of the returned rounds.

    Returns:
        The remaining rows, in the same order. Each stage keeps its last `LAST` rounds.
    """
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


def point(row: Row, source: Folder) -> str:
    """Returns the swept settings of a run as text.

    Args:
        row: a row of results.csv.
        source: the results folder of the row.

    Returns:
        Names and values, for example "p 0.25, seed 0".
    """
    return source.describe({name: row[name] for name in source.names})


if __name__ == "__main__":
    with exit_on_error():
        main(parse(Args))
