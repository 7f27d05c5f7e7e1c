"""Reproduces a table or figure of a paper: trains what it takes, beside the paper's.

python experiments/reproduce.py ccfc-table1
python experiments/reproduce.py ccfc-table1 --preset paper --data-dir DIR
python experiments/reproduce.py ccfc-table3 --datasets mnist --limit 10000
python experiments/reproduce.py fedmcc-table1 --datasets imagenet-10=FOLDER
python experiments/reproduce.py sda-fdc-table2 --datasets pendigits=pendigits.csv
python experiments/reproduce.py fdsc-table2 --datasets orl=ORL_32x32.mat
python experiments/reproduce.py fedcref-table6 --datasets kmnist49=kmnist49.npz
python experiments/reproduce.py ccfc-table1 --from experiments/results
"""

import dataclasses
import difflib
import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pandas as pd
import tyro

from experiments import ledger
from experiments.papers import apart, measures
from experiments.papers.ccfc import studies as ccfc_studies
from experiments.papers.fdsc import studies as fdsc_studies
from experiments.papers.fedcref import studies as fedcref_studies
from experiments.papers.fedmcc import studies as fedmcc_studies
from experiments.papers.sda_fdc import copies as sda_fdc_copies
from experiments.papers.sda_fdc import studies as sda_fdc_studies
from experiments.papers.study import Measured, Row, Study
from fcjax import data
from fcjax.cli.arguments import parse
from fcjax.cli.errors import exit_on_error
from fcjax.cli.main import run
from fcjax.data.source import Source, short_name
from fcjax.methods import SCRIPTS, KMeans
from fcjax.parallel.mesh import Backend
from fcjax.results import tables
from fcjax.results.store import Folder
from fcjax.settings import shown
from fcjax.sweep.plan import Task

STUDIES = {
    **ccfc_studies.STUDIES,
    **fedmcc_studies.STUDIES,
    **sda_fdc_studies.STUDIES,
    **sda_fdc_copies.STUDIES,
    **fdsc_studies.STUDIES,
    **fedcref_studies.STUDIES,
}
STAND_IN = "digits"
OWN = "the paper's data and settings"


@dataclasses.dataclass(frozen=True)
class Args:
    table: tyro.conf.Positional[str]
    """One of the names above."""
    preset: Annotated[
        Literal["smoke", "paper"] | None, shown("smoke; with --from paper")
    ] = None
    """smoke: some minutes, on digits instead of the paper's data, with shortened
    training; paper: the paper's data and settings."""
    kept: Annotated[
        Path | None, tyro.conf.arg(name="from", help_behavior_hint="(default: train)")
    ] = None
    """Train nothing: take what is nearest to the preset's runs from a folder of kept
    ones, experiments/results or another ledger, and say what they have otherwise."""
    datasets: Annotated[
        tuple[str, ...], shown("smoke: digits; paper: all with a name")
    ] = ()
    """Which of the paper's data sets, or digits, which stands in for the first of them.
    NAME=PATH says where one is that has no name to be loaded by: imagenet-10=FOLDER."""
    methods: Annotated[tuple[str, ...], shown("all that are here")] = ()
    """Which rows to run, by the paper's names."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    limit: Annotated[int | None, shown("all")] = None
    """Use so many examples, drawn in proportion to the classes."""
    seed: Annotated[tuple[int, ...], shown("smoke: 0 1 2; paper: 0 to 4")] = ()
    """Seeds of training and of the partition."""
    out: Annotated[
        Path | None, shown("runs/reproduce/PRESET; with --from runs/reproduce/kept")
    ] = None
    """Folder of the runs, which tables share; what is made of them is in OUT/TABLE."""
    backend: Backend = "shard_map"
    """How runs are spread over the devices."""
    runs_per_call: Annotated[int | None, shown("what fits, by an estimate")] = None
    """Runs of a grid that go side by side."""


class Job(NamedTuple):
    """A row of a table on a data set."""

    row: Row
    dataset: str
    """As the table has it."""
    task: Task
    is_trained: bool
    """Whether a script trains it."""


def main(args: Args) -> None:
    """Raises ValueError with one line that says which flag is wrong."""
    if args.table not in STUDIES:
        near = difflib.get_close_matches(args.table, STUDIES, n=1, cutoff=0)
        raise ValueError(
            f"TABLE {args.table!r} is unknown; the nearest is {near[0]}, all are "
            f"{', '.join(STUDIES)}"
        )
    reproduce(STUDIES[args.table], args)


def reproduce(study: Study, args: Args) -> None:
    """Trains or reads, prints, writes and draws a table or figure."""
    kept = None
    if args.kept:
        if study.measure not in measures.OF_ROWS:
            raise ValueError(
                f"--from: {args.table} is made of models or assignments, and a ledger "
                "keeps scores alone; without --from it trains what it needs"
            )
        kept = ledger.entries(args.kept)
    found, folder = jobs(study, args), out_of(args) / args.table
    said = notes(study, args)
    print(f"{told(said)}\n{args.table}: {study.title}", flush=True)
    if study.maps:
        lines = [line for job in found for line in mapped(study, job, folder)]
        values = [name for name in lines[0] if f"paper_{name}" in lines[0]]
        by = [name for name in lines[0] if not name.startswith("paper_")]
        by = [name for name in by if name not in values]
        summary = tables.summarize(lines, by=by, values=values)
        table = tables.format_summary(summary, differences=True)
        write(table, summary, folder, notes=said)
    else:
        said = tabulate(study, found, args, folder, kept)
    print(f"{told(said)}\n{args.table} in {folder}")


def mapped(study: Study, job: Job, folder: Path) -> list[dict[str, Any]]:
    """Trains a row, draws its embeddings and returns the numbers shown."""
    module, _, function = study.maps.rpartition(".")
    module = importlib.import_module(f"experiments.papers.{module}")
    draw = getattr(module, function)
    return [{"dataset": job.dataset, **line} for line in draw(job.task, folder)]


def tabulate(
    study: Study,
    found: list[Job],
    args: Args,
    folder: Path,
    kept: Sequence[Folder] | None = None,
) -> list[str]:
    """Writes and draws what is measured of runs: kept ones, or where these are None of
    runs that it trains, unless they are there. Returns what the table says below it.
    """
    said = notes(study, args)
    if kept is None:
        runs = trained(found)
    else:
        runs, of_runs = taken(study, found, kept, args.seed)
        said += of_runs
    rows = [
        {**line, "dataset": job.dataset, "method": job.row.label}
        for job, folders in zip(found, runs, strict=True)
        for results in folders
        for line in measured(study, job, results)
    ]
    # The table has the paper's settings first, in the order of the paper.
    rows = [*reported(study, datasets_of(study, args)), *rows]
    if not rows:
        raise ValueError("no data set to show; --datasets NAME=PATH says where one is")
    summary = tables.summarize(rows, by=study.by, values=study.values)
    marks = apart.from_best(rows, by=study.by, value=study.values[0])
    table = tables.format_summary(summary, differences=True)
    if len(marks):
        name = f"{study.values[0]}, from the best"
        table[name] = marks.reindex(summary.index).fillna("").to_numpy()
        said.append(
            f"{name}: of the seeds that both have; {apart.NOT_SEEN!r} where the paired "
            "t-test, after Holm's correction over this table, does not tell them apart"
        )
    write(table, summary, folder, notes=said)
    if study.draw:
        study.draw(rows, folder)
    return said


def write(
    table: pd.DataFrame, summary: pd.DataFrame, folder: Path, *, notes: Sequence[str]
) -> None:
    """Prints and writes a table, and its summary in full precision."""
    tables.show(table)
    tables.write(table, folder, notes)
    summary.to_csv(folder / "table.csv")


def trained(found: list[Job]) -> list[list[Folder | None]]:
    """Trains what is not there yet; returns the runs of each job."""
    # Rows may be the same runs: networks of several sizes are one in a smoke run.
    asked = list({repr(job.task): job.task for job in found if job.is_trained}.values())
    results = dict(zip(map(repr, asked), run(lambda: asked), strict=True))
    return [[results.get(repr(job.task))] for job in found]


def taken(
    study: Study, found: list[Job], kept: Sequence[Folder], seeds: tuple[int, ...]
) -> tuple[list[list[Folder]], list[str]]:
    """Returns the kept runs of each job, and where they come from and what they have
    otherwise, a line each; `seeds` are the only ones to be taken, none are all.
    """
    said, runs = [], []
    if study.measure is measures.over_iterations:
        cut = [entry for entry in kept if ledger.is_thinned(entry)]
        kept = [entry for entry in kept if entry not in cut]
        said += [f"{ledger.name_of(x)} keeps some rounds: left out" for x in cut]
    for job in found:
        dataset, row = job.task.source.dataset, job.row
        by_path = dataset in study.by_path
        own = [x for x in kept if ledger.is_of(x, dataset, by_path=by_path)]
        levels = {"p"} if row.central else set()  # no p changes it
        chosen = ledger.runs_of(
            own,
            job.task,
            by=[name for name in study.by if name not in levels],
            same={*row.flags, *variants(row.script)},
            seeds=seeds,
        )
        runs.append([each.runs for each in chosen])
        for each in chosen:
            where = f", {each.place}" if len(chosen) > 1 else ""
            of_runs = each.told(job.task.options.seed, but=levels)
            said.append(f"{row.label}, {job.dataset}{where}, is {of_runs}")
    if not any(runs):
        said.append("nothing of this table is kept")
    return runs, said


SHARED = ("methods", "p", "seed")
"""Flags of several values that do not give a study a results folder of its own."""


def variants(script: str) -> set[str]:
    """Returns the flags by which rows of any table are variants of a script's methods,
    in words or yes and no: runs of one are never shown for another's.
    """
    return {
        name
        for study in STUDIES.values()
        for row in study.rows
        if row.script == script
        for name, value in row.flags.items()
        if isinstance(value, bool | str)
    }


def jobs(study: Study, args: Args) -> list[Job]:
    """Returns what is to be measured, of each data set and row.

    Raises:
        ValueError: a data set or method is not one of the table's, or not there.
    """
    labels = [row.label for row in study.rows if row.script or row.untrained]
    for method in args.methods:
        if method not in labels:
            raise ValueError(f"--methods takes {', '.join(labels)}, got {method!r}")
    found = []
    for dataset, shown_as in datasets_of(study, args).items():
        if not args.kept:
            check_prepared(dataset, args)
        for row in study.rows:
            if args.methods and row.label not in args.methods:
                continue
            if row.script:
                paper = dataset if dataset == STAND_IN else shown_as[0]
                flags = flags_of(study, row, dataset, args, paper=paper)
                found.append(Job(row, shown_as[1], task_of(row.script, flags), True))
            elif row.untrained:
                source = Source(dataset, data_dir=args.data_dir, limit=args.limit)
                found.append(Job(row, shown_as[1], Task(KMeans(), source), False))
    return found


def flags_of(
    study: Study, row: Row, dataset: str, args: Args, *, paper: str
) -> dict[str, Any]:
    """Returns the flags of a row's script; `paper` is what the paper calls the data."""
    preset = study.presets[preset_of(args)]
    own = {
        **preset.by_dataset.get(paper, {}),
        **row.flags,
        **row.presets.get(preset_of(args), {}),
    }
    flags = {
        "dataset": dataset,
        "data_dir": args.data_dir,
        "limit": args.limit,
        "seed": args.seed or preset.seeds,
        "backend": args.backend,
        "runs_per_call": args.runs_per_call,
        "plot": False,  # `fcjax draw` does, of any finished run
        **preset.grid,
        **preset.flags.get(row.script, {}),
        **own,
    }
    if row.central:
        flags["p"] = flags["p"][:1]
    # Another network, less data, or other axes are another experiment with a folder of
    # its own. Studies that vary p and the seed alone share their runs.
    kind = [flags[name] for name in ("split", "backbone") if name in flags]
    axes = {k: flags[k] for k in (*preset.grid, *own)}
    kind += [k for k, x in axes.items() if isinstance(x, tuple) and k not in SHARED]
    words = (short_name(dataset), row.runs or row.label, *kind)
    name = re.sub(r"\W+", "-", " ".join(words).lower()).strip("-")
    return {**flags, "out": out_of(args) / name}


def task_of(script: str, flags: Mapping[str, Any]) -> Task:
    """Returns the task of a row's flags. A setting of other methods of the command is
    left out.
    """
    methods = {x.name: x for x in SCRIPTS[script.replace("_", "-")].methods}
    (default, *_) = methods
    (name,) = flags.get("methods", (default,))
    names = {
        name: {x.name for x in dataclasses.fields(x)} for name, x in methods.items()
    }
    others = {"methods"}.union(*names.values()) - names[name]
    return Task.of(methods[name], **{k: x for k, x in flags.items() if k not in others})


def measured(study: Study, job: Job, results: Folder | None) -> list[Measured]:
    """Returns what a job's runs have, without p where no p changes it."""
    if results is None:
        return job.row.untrained(job.task) if job.row.untrained else []
    assert study.measure is not None
    lines = study.measure(job.task, results)
    return [{**line, "p": None} for line in lines] if job.row.central else lines


def datasets_of(study: Study, args: Args) -> dict[str, tuple[str, str]]:
    """Returns from each data set that is used to the paper's that it is or stands for,
    and what the table calls it.
    """
    by_path = () if args.kept else study.by_path  # kept runs go by names
    named = [name for name in study.datasets if name not in by_path]
    default = (STAND_IN,) if preset_of(args) == "smoke" else named
    first, found = study.datasets[0], {}
    for given in args.datasets or default:
        name, _, path = given.partition("=")
        if name not in (by_path if path else (STAND_IN, *named)):
            accepted = [STAND_IN, *named, *(f"{x}=PATH" for x in by_path)]
            raise ValueError(f"--datasets takes {' '.join(accepted)}, got {given!r}")
        called = short_name(name)
        is_own = name != STAND_IN
        shown_as = (name, called) if is_own else (first, f"{called} for {first}")
        found[path or name] = shown_as
    return found


def check_prepared(dataset: str, args: Args) -> None:
    """Raises ValueError with what to do where a data set cannot be loaded."""
    if dataset == STAND_IN or Path(dataset).exists():
        return
    try:
        data.load(dataset, data_dir=args.data_dir, split="test")
    except ValueError as error:
        raise ValueError(f"{error}; or choose others by --datasets") from error


def reported(study: Study, datasets: Mapping[str, tuple[str, str]]) -> list[Measured]:
    """Returns one row per setting that the paper has a score of, for the data sets that
    are used, by the names that they have in the table.
    """
    return [
        {
            **dict(zip(study.by, (called, *setting[1:]), strict=True)),
            **{f"paper_{name}": score for name, score in scores.items()},
        }
        for of_paper, called in datasets.values()
        for setting, scores in study.paper.items()
        if setting[0] == of_paper
    ]


def notes(study: Study, args: Args) -> list[str]:
    """Returns in what the runs differ from the paper's, and what is not run."""
    said = []
    if STAND_IN in datasets_of(study, args):
        said.append(
            f"{STAND_IN} (1,797 images) stands in for {study.datasets[0]}: the paper's "
            "figures are for its own data, so that differences show the shape and "
            "reproduce nothing"
        )
    if args.kept:
        said.append(
            f"runs that {args.kept} keeps; what they have otherwise than --preset "
            f"{preset_of(args)} is said below the table"
        )
    elif preset_of(args) == "smoke":
        said.append("smoke: training is shortened; --preset paper is the paper's")
    if args.limit is not None:
        said.append(f"--limit: {args.limit} examples, where the paper takes all")
    said = said or [OWN]
    missing = [row.label for row in study.rows if not (row.script or row.untrained)]
    used = {name for name, _ in datasets_of(study, args).values()}
    absent = [name for name in study.by_path if name not in used]
    also = [*study.notes]
    if absent and preset_of(args) == "paper" and not args.kept:
        also.append(
            f"left out, as no data is called so: {', '.join(absent)}; --datasets "
            f"{absent[0]}=PATH takes a file, or a folder with one for each class"
        )
    if missing:
        also.append(f"not implemented, the paper's figures alone: {', '.join(missing)}")
    return [*said, *also]


def told(notes: Sequence[str]) -> str:
    return "\n".join(line if line == OWN else f"note: {line}" for line in notes)


def preset_of(args: Args) -> Literal["smoke", "paper"]:
    return args.preset or ("paper" if args.kept else "smoke")


def out_of(args: Args) -> Path:
    name = "kept" if args.kept else preset_of(args)
    return args.out or Path("runs") / "reproduce" / name


def description() -> str:
    """Returns what --help begins with: the tables, a line each."""
    width = max(map(len, STUDIES))
    lines = [f"{name:{width}}  {study.title}" for name, study in STUDIES.items()]
    return "\n\n".join(["Reproduces a table or figure of a paper:", *lines])


if __name__ == "__main__":
    with exit_on_error():
        main(parse(Args, description=description()))
