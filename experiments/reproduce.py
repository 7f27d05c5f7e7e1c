"""Reproduces a table or figure of a paper, and shows the paper's scores next to ours.

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
from experiments.papers import measures, significance
from experiments.papers.ccfc import studies as ccfc_studies
from experiments.papers.fdsc import studies as fdsc_studies
from experiments.papers.fedcref import studies as fedcref_studies
from experiments.papers.fedmcc import studies as fedmcc_studies
from experiments.papers.sda_fdc import copies as sda_fdc_copies
from experiments.papers.sda_fdc import studies as sda_fdc_studies
from experiments.papers.study import Measurement, Row, Study
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
"""Data set of the smoke preset. It needs no download."""
PAPER_SETTINGS = "the paper's data and settings"
"""First line of a table that has no differences from the paper to note."""


@dataclasses.dataclass(frozen=True)
class Args:
    """Reproduces a table or figure of a paper."""

    table: tyro.conf.Positional[str]
    """Name of the table or figure, one of the names above."""
    preset: Annotated[
        Literal["smoke", "paper"] | None, shown("smoke; with --from paper")
    ] = None
    """smoke: a few minutes of training on digits instead of the paper's data. paper:
    the paper's data and settings."""
    from_ledger: Annotated[
        Path | None,
        tyro.conf.arg(name="from", help_behavior_hint="(default: train the runs)"),
    ] = None
    """Train nothing. Take the finished runs in this folder (experiments/results or
    another ledger) that are nearest to the preset, and list their differences from the
    preset."""
    datasets: Annotated[
        tuple[str, ...], shown("smoke: digits; paper: all with a loader")
    ] = ()
    """Data sets of the paper to use. digits replaces the paper's first data set.
    NAME=PATH gives the file or folder of a data set that has no loader:
    imagenet-10=FOLDER."""
    methods: Annotated[tuple[str, ...], shown("all that fcjax has")] = ()
    """Rows to run, by their names in the paper."""
    data_dir: Annotated[Path | None, shown("the folder of TFDS")] = None
    """Folder with the prepared TFDS data sets."""
    limit: Annotated[int | None, shown("all")] = None
    """Number of examples to use, a sub-sample stratified by class."""
    seed: Annotated[tuple[int, ...], shown("smoke: 0 1 2; paper: 0 to 4")] = ()
    """Seeds of training and of the partition."""
    out: Annotated[
        Path | None, shown("runs/reproduce/PRESET; with --from runs/reproduce/kept")
    ] = None
    """Folder of the runs. Tables share their runs. A table and its figures are in
    OUT/TABLE."""
    backend: Backend = "shard_map"
    """How the runs are spread over the devices."""
    runs_per_call: Annotated[int | None, shown("estimated from the memory")] = None
    """Number of runs in one batch (vmapped)."""


class Job(NamedTuple):
    """One row of a table on one data set."""

    row: Row
    dataset: str
    """Name of the data set in the table."""
    task: Task
    is_trained: bool
    """Whether a script trains the row."""


def main(args: Args) -> None:
    """Reproduces the table or figure that the arguments name.

    Args:
        args: the command-line arguments.

    Raises:
        ValueError: an argument is wrong. The message is one line that names the flag.
    """
    if args.table not in STUDIES:
        near = difflib.get_close_matches(args.table, STUDIES, n=1, cutoff=0)
        raise ValueError(
            f"TABLE {args.table!r} is unknown; the nearest is {near[0]}; the tables "
            f"are {', '.join(STUDIES)}"
        )
    reproduce(STUDIES[args.table], args)


def reproduce(study: Study, args: Args) -> None:
    """Trains or reads the runs of a table or figure, then prints, writes and draws it.

    Args:
        study: the table or figure.
        args: the command-line arguments.

    Raises:
        ValueError: an argument is wrong, or a ledger cannot give the table.
    """
    ledger_runs = None
    if args.from_ledger:
        if study.measure not in measures.NEED_ONLY_SCORES:
            raise ValueError(
                f"--from: {args.table} needs models or assignments, but a ledger has "
                "only scores; leave --from out to train the runs"
            )
        ledger_runs = ledger.entries(args.from_ledger)
    job_list, folder = jobs(study, args), out_of(args) / args.table
    note_lines = notes(study, args)
    print(f"{format_notes(note_lines)}\n{args.table}: {study.title}", flush=True)
    if study.draw_runs:
        rows = [line for job in job_list for line in draw_figure(study, job, folder)]
        values = [name for name in rows[0] if f"paper_{name}" in rows[0]]
        by = [name for name in rows[0] if not name.startswith("paper_")]
        by = [name for name in by if name not in values]
        summary = tables.summarize(rows, by=by, values=values)
        table = tables.format_summary(summary, differences=True)
        write(table, summary, folder, notes=note_lines)
    else:
        note_lines = tabulate(study, job_list, args, folder, ledger_runs)
    print(f"{format_notes(note_lines)}\ntable: {folder / 'table.md'}")
    if study.draw or study.draw_runs:
        print(f"figures: {folder}/*.png")


def draw_figure(study: Study, job: Job, folder: Path) -> list[dict[str, Any]]:
    """Draws the embeddings of a row's runs and returns the rows of the table.

    Args:
        study: the figure.
        job: the row and its data set.
        folder: folder of the figure.

    Returns:
        The rows of the table.
    """
    module, _, function = study.draw_runs.rpartition(".")
    module = importlib.import_module(f"experiments.papers.{module}")
    draw = getattr(module, function)
    return [{"dataset": job.dataset, **line} for line in draw(job.task, folder)]


def tabulate(
    study: Study,
    job_list: list[Job],
    args: Args,
    folder: Path,
    ledger_runs: Sequence[Folder] | None = None,
) -> list[str]:
    """Measures runs, then writes and draws the table.

    Args:
        study: the table or figure.
        job_list: the rows of the table on each data set.
        args: the command-line arguments.
        folder: folder of the table.
        ledger_runs: the entries of a ledger. None trains the runs that are not
            finished.

    Returns:
        The notes below the table.

    Raises:
        ValueError: there is no row to show.
    """
    note_lines = notes(study, args)
    if ledger_runs is None:
        runs = train_jobs(job_list)
    else:
        runs, run_notes = runs_from_ledger(study, job_list, ledger_runs, args.seed)
        note_lines += run_notes
    rows = [
        {**line, "dataset": shown_dataset(job, results), "method": job.row.label}
        for job, folders in zip(job_list, runs, strict=True)
        for results in folders
        for line in measure_job(study, job, results)
    ]
    # The paper's rows come first, so that the table has the order of the paper.
    rows = [*paper_rows(study, datasets_of(study, args), args.methods), *rows]
    if not rows:
        raise ValueError(
            "the table has no data set; give a file or folder by --datasets NAME=PATH"
        )
    summary = tables.summarize(rows, by=study.by, values=study.values)
    marks = significance.compare_with_best(rows, by=study.by, value=study.values[0])
    shown_table = tables.format_summary(summary, differences=True)
    if len(marks):
        column = f"{study.values[0]}, difference from best"
        shown_table[column] = marks.reindex(summary.index).fillna("").to_numpy()
        note_lines.append(
            f"{column}: mean over the seeds that both methods have; "
            f"{significance.NOT_SIGNIFICANT!r} if p >= 0.05 in the paired t-test with "
            "Holm's correction over this table"
        )
    write(shown_table, summary, folder, notes=note_lines)
    if study.draw:
        study.draw(rows, folder)
    return note_lines


def write(
    table: pd.DataFrame, summary: pd.DataFrame, folder: Path, *, notes: Sequence[str]
) -> None:
    """Prints a table, and writes it with its summary in full precision.

    Args:
        table: the table of texts, which is printed.
        summary: the numbers of the table in full precision, for table.csv.
        folder: folder of the files.
        notes: lines below the table.
    """
    tables.show(table)
    tables.write(table, folder, notes)
    summary.to_csv(folder / "table.csv")


def train_jobs(job_list: list[Job]) -> list[list[Folder | None]]:
    """Trains the runs that are not finished.

    Args:
        job_list: the rows of the table on each data set.

    Returns:
        The results folder of each job, None for a job without training.
    """
    # Rows can share runs: a smoke run has one network in place of several sizes.
    tasks = list(
        {repr(job.task): job.task for job in job_list if job.is_trained}.values()
    )
    results = dict(zip(map(repr, tasks), run(lambda: tasks), strict=True))
    return [[results.get(repr(job.task))] for job in job_list]


def runs_from_ledger(
    study: Study,
    job_list: list[Job],
    ledger_runs: Sequence[Folder],
    seeds: tuple[int, ...],
) -> tuple[list[list[Folder]], list[str]]:
    """Finds the runs in a ledger that are nearest to each job.

    Args:
        study: the table or figure.
        job_list: the rows of the table on each data set.
        ledger_runs: the entries of the ledger.
        seeds: the accepted seeds. Empty accepts all seeds.

    Returns:
        The runs of each job, and notes on their origin and their differences from the
        job.
    """
    note_lines, runs = [], []
    if study.measure is measures.iteration_scores:
        thinned = [entry for entry in ledger_runs if ledger.is_thinned(entry)]
        ledger_runs = [entry for entry in ledger_runs if entry not in thinned]
        note_lines += [
            f"{ledger.name_of(x)} is left out: its history lacks some of the rounds"
            for x in thinned
        ]
    for job in job_list:
        dataset, row = job.task.source.dataset, job.row
        by_path = dataset in study.by_path
        entries = [x for x in ledger_runs if ledger.is_of(x, dataset, by_path=by_path)]
        # No p changes a central method, so a difference in p does not matter.
        unused_columns = {"p"} if row.central else set()
        nearest_runs = ledger.runs_of(
            entries,
            job.task,
            by=[name for name in study.by if name not in unused_columns],
            same={*row.flags, *variant_flags(row.script)},
            seeds=seeds,
        )
        runs.append([match.runs for match in nearest_runs])
        for match in nearest_runs:
            where = f", {match.place}" if len(nearest_runs) > 1 else ""
            differences = match.describe(job.task.options.seed, but=unused_columns)
            note_lines.append(f"{row.label}, {job.dataset}{where}: runs {differences}")
    if not any(runs):
        note_lines.append("the ledger has no runs for this table")
    return runs, note_lines


FOLDER_SHARED_FLAGS = ("methods", "p", "seed")
"""Flags with several values that do not give a study a results folder of its own."""


def variant_flags(script: str) -> set[str]:
    """Returns the flags whose values define the variants of a script's methods.

    Runs of one variant are never shown for another variant. Only text and boolean flags
    define a variant.

    Args:
        script: name of the script.

    Returns:
        The names of the flags.
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
    """Returns the rows to measure on each data set.

    Args:
        study: the table or figure.
        args: the command-line arguments.

    Returns:
        One job per data set and row.

    Raises:
        ValueError: the table does not have a data set or method of the arguments, or a
            data set is not prepared.
    """
    labels = [row.label for row in study.rows if row.script or row.measure_data]
    for method in args.methods:
        if method not in labels:
            raise ValueError(f"--methods takes {', '.join(labels)}, got {method!r}")
    job_list = []
    for dataset, shown_as in datasets_of(study, args).items():
        if not args.from_ledger:
            check_prepared(dataset, args)
        for row in study.rows:
            if args.methods and row.label not in args.methods:
                continue
            if row.script:
                paper = dataset if dataset == STAND_IN else shown_as[0]
                flags = flags_of(study, row, dataset, args, paper=paper)
                job_list.append(Job(row, shown_as[1], task_of(row.script, flags), True))
            elif row.measure_data:
                source = Source(dataset, data_dir=args.data_dir, limit=args.limit)
                job_list.append(Job(row, shown_as[1], Task(KMeans(), source), False))
    return job_list


def flags_of(
    study: Study, row: Row, dataset: str, args: Args, *, paper: str
) -> dict[str, Any]:
    """Returns the flags of a row's script.

    Args:
        study: the table or figure.
        row: the row.
        dataset: name or path of the data set.
        args: the command-line arguments.
        paper: the paper's name of the data set.

    Returns:
        The flags with their values.
    """
    preset = study.presets[preset_of(args)]
    row_flags = {
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
        "plot": False,  # `fcjax draw` draws any finished run later.
        **preset.grid,
        **preset.flags.get(row.script, {}),
        **row_flags,
    }
    if row.central:
        flags["p"] = flags["p"][:1]
    # Another network, less data, or another swept flag is another experiment, with a
    # results folder of its own. Studies that vary only p and the seed share their runs.
    suffix = [flags[name] for name in ("split", "backbone") if name in flags]
    axes = {k: flags[k] for k in (*preset.grid, *row_flags)}
    suffix += [
        k
        for k, x in axes.items()
        if isinstance(x, tuple) and k not in FOLDER_SHARED_FLAGS
    ]
    words = (short_name(dataset), row.runs or row.label, *suffix)
    name = re.sub(r"\W+", "-", " ".join(words).lower()).strip("-")
    return {**flags, "out": out_of(args) / name}


def task_of(script: str, flags: Mapping[str, Any]) -> Task:
    """Returns the task of a row's flags, without settings of other methods.

    Args:
        script: name of the script.
        flags: the flags of the row.

    Returns:
        The task.
    """
    methods = {x.name: x for x in SCRIPTS[script.replace("_", "-")].methods}
    (default, *_) = methods
    (name,) = flags.get("methods", (default,))
    names = {
        name: {x.name for x in dataclasses.fields(x)} for name, x in methods.items()
    }
    left_out = {"methods"}.union(*names.values()) - names[name]
    return Task.of(
        methods[name], **{k: x for k, x in flags.items() if k not in left_out}
    )


def measure_job(study: Study, job: Job, results: Folder | None) -> list[Measurement]:
    """Returns the measurements of a job's runs. A central method gets no p.

    Args:
        study: the table or figure.
        job: one row of the table on one data set.
        results: results folder of the job's runs; None if the row needs no training.

    Returns:
        Measurements, one per row of the table before averaging.
    """
    if results is None:
        return job.row.measure_data(job.task) if job.row.measure_data else []
    assert study.measure is not None
    rows = study.measure(job.task, results)
    return [{**line, "p": None} for line in rows] if job.row.central else rows


def datasets_of(study: Study, args: Args) -> dict[str, tuple[str, str]]:
    """Returns the data sets of a table.

    Args:
        study: the table or figure.
        args: the command-line arguments.

    Returns:
        By name or path of each data set: the paper's data set that it is or replaces,
        and its name in the table.

    Raises:
        ValueError: --datasets has a name that the table does not have.
    """
    # A ledger has no paths: its runs are found by the name of the data set.
    by_path = () if args.from_ledger else study.by_path
    named = [name for name in study.datasets if name not in by_path]
    default = (STAND_IN,) if preset_of(args) == "smoke" else named
    first, names = study.datasets[0], {}
    for argument in args.datasets or default:
        name, _, path = argument.partition("=")
        if name not in (by_path if path else (STAND_IN, *named)):
            accepted = [STAND_IN, *named, *(f"{x}=PATH" for x in by_path)]
            raise ValueError(f"--datasets takes {' '.join(accepted)}, got {argument!r}")
        short = short_name(name)
        is_own = name != STAND_IN
        shown_as = (name, short) if is_own else (first, f"{short} for {first}")
        names[path or name] = shown_as
    return names


def check_prepared(dataset: str, args: Args) -> None:
    """Checks that a data set can be loaded.

    Args:
        dataset: name or path of the data set.
        args: the command-line arguments, of which `data_dir` is used.

    Raises:
        ValueError: the data set cannot be loaded. The message says what to do.
    """
    if dataset == STAND_IN or Path(dataset).exists():
        return
    try:
        data.load(dataset, data_dir=args.data_dir, split="test")
    except ValueError as error:
        raise ValueError(f"{error}; or choose another one by --datasets") from error


def shown_dataset(job: Job, results: Folder | None) -> str:
    """Returns the name of a data set in the table.

    Runs in a ledger may have fewer or smaller examples than the paper's. The name tells
    them apart, and they are not compared with the paper or with other rows.

    Args:
        job: the row and its data set.
        results: the runs of the row, None without runs.

    Returns:
        Such as "mnist", or "mnist, 2,000 examples, 16 x 16 pixels".
    """
    if results is None:
        return job.dataset
    limit, resize = results.config.get("limit"), results.config.get("resize")
    parts = [job.dataset]
    if limit != job.task.source.limit:
        parts.append(f"{limit:,} examples" if limit else "all examples")
    if resize != job.task.source.resize and resize is not None:
        parts.append(f"{resize} x {resize} pixels")
    return ", ".join(parts)


def paper_rows(
    study: Study, datasets: Mapping[str, tuple[str, str]], methods: Sequence[str] = ()
) -> list[Measurement]:
    """Returns the paper's scores of the data sets in use, one row per setting.

    Args:
        study: the table or figure.
        datasets: what `datasets_of` returns.
        methods: the names of the methods to show; none shows all.

    Returns:
        One row per setting: the columns `Study.by`, and `paper_NAME` for each score.
    """
    shown = methods if "method" in study.by else ()
    return [
        {
            **dict(zip(study.by, (shown_name, *setting[1:]), strict=True)),
            **{f"paper_{name}": score for name, score in scores.items()},
        }
        for paper_name, shown_name in datasets.values()
        for setting, scores in study.paper.items()
        if setting[0] == paper_name
        and (not shown or setting[study.by.index("method")] in shown)
    ]


def notes(study: Study, args: Args) -> list[str]:
    """Returns notes on the differences from the paper and on missing rows.

    Args:
        study: the table or figure.
        args: the command-line arguments.

    Returns:
        The notes, one line per note.
    """
    differences = []
    if STAND_IN in datasets_of(study, args):
        differences.append(
            f"{STAND_IN} (1,797 images) replaces {study.datasets[0]}: compare trends "
            "with the paper, not values"
        )
    if args.from_ledger:
        differences.append(
            f"the runs are from {args.from_ledger}; the notes below the table list "
            f"their differences from --preset {preset_of(args)}"
        )
    elif preset_of(args) == "smoke":
        differences.append(
            "--preset smoke has short training and fcjax's default settings, not the "
            "paper's; --preset paper has the paper's settings"
        )
    if args.limit is not None:
        differences.append(
            f"--limit: {args.limit} examples; the paper uses all examples"
        )
    differences = differences or [PAPER_SETTINGS]
    missing = [row.label for row in study.rows if not (row.script or row.measure_data)]
    used = {name for name, _ in datasets_of(study, args).values()}
    absent = [name for name in study.by_path if name not in used]
    more = [*study.notes]
    if absent and preset_of(args) == "paper" and not args.from_ledger:
        more.append(
            f"left out, because they have no loader: {', '.join(absent)}; --datasets "
            f"{absent[0]}=PATH takes a file, or a folder with one subfolder per class"
        )
    if missing and not args.methods:
        more.append(
            f"not implemented, only the paper's scores are shown: {', '.join(missing)}"
        )
    return [*differences, *more]


def format_notes(notes: Sequence[str]) -> str:
    """Returns the notes as text, one line per note.

    Args:
        notes: the notes, without a label.

    Returns:
        The lines, each with the label "note:", except for `PAPER_SETTINGS`.
    """
    return "\n".join(
        line if line == PAPER_SETTINGS else f"note: {line}" for line in notes
    )


def preset_of(args: Args) -> Literal["smoke", "paper"]:
    """Returns the preset: paper with --from, else smoke, unless --preset is given.

    Args:
        args: the command-line arguments.

    Returns:
        The name of the preset.
    """
    return args.preset or ("paper" if args.from_ledger else "smoke")


def out_of(args: Args) -> Path:
    """Returns the folder of the runs.

    Args:
        args: the command-line arguments.

    Returns:
        `out` if it is given, and a folder in runs/reproduce otherwise.
    """
    name = "kept" if args.from_ledger else preset_of(args)
    return args.out or Path("runs") / "reproduce" / name


def description() -> str:
    """Returns the first lines of --help: one line per table."""
    width = max(map(len, STUDIES))
    lines = [f"{name:{width}}  {study.title}" for name, study in STUDIES.items()]
    return "\n\n".join(["Reproduces a table or figure of a paper:", *lines])


if __name__ == "__main__":
    with exit_on_error():
        main(parse(Args, description=description()))
