"""Reproduces a table or figure of a paper: trains what it takes, beside the paper's.

python experiments/reproduce.py ccfc-table1
python experiments/reproduce.py ccfc-table1 --preset paper --data-dir DIR
python experiments/reproduce.py ccfc-table3 --datasets mnist --limit 10000
python experiments/reproduce.py fedmcc-table1 --datasets imagenet-10=FOLDER
python experiments/reproduce.py sda-fdc-table2 --datasets pendigits=pendigits.csv
python experiments/reproduce.py fdsc-table2 --datasets orl=ORL_32x32.mat
python experiments/reproduce.py fedcref-table6 --datasets kmnist49=kmnist49.npz
"""

import dataclasses
import difflib
import importlib
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tyro

from experiments.papers.ccfc import studies as ccfc_studies
from experiments.papers.fdsc import studies as fdsc_studies
from experiments.papers.fedcref import studies as fedcref_studies
from experiments.papers.fedmcc import studies as fedmcc_studies
from experiments.papers.sda_fdc import copies as sda_fdc_copies
from experiments.papers.sda_fdc import studies as sda_fdc_studies
from experiments.papers.study import Measured, Paper, Row, Study
from fcjax import data
from fcjax.devices import Backend
from fcjax.evaluation import tables
from fcjax.evaluation.tables import Estimate
from fcjax.sweep import command
from fcjax.sweep.flags import Common, shown
from fcjax.sweep.folder import Folder
from fcjax.sweep.load import short_name

STUDIES = {
    **ccfc_studies.STUDIES,
    **fedmcc_studies.STUDIES,
    **sda_fdc_studies.STUDIES,
    **sda_fdc_copies.STUDIES,
    **fdsc_studies.STUDIES,
    **fedcref_studies.STUDIES,
}
STAND_IN = "digits"


@dataclasses.dataclass(frozen=True)
class Args:
    table: tyro.conf.Positional[str]
    """One of the names above."""
    #: smoke: some minutes, on digits instead of the paper's data, with shortened
    #: training; paper: the paper's data and settings.
    preset: Literal["smoke", "paper"] = "smoke"
    #: Which of the paper's data sets, or digits, which stands in for the first of them.
    #: NAME=PATH says where one is that has no name to be loaded by: imagenet-10=FOLDER.
    datasets: Annotated[
        tuple[str, ...], shown("smoke: digits; paper: all with a name")
    ] = ()
    methods: Annotated[tuple[str, ...], shown("all that are here")] = ()
    """Which rows to run, by the paper's names."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    limit: Annotated[int | None, shown("all")] = None
    """Use so many examples, drawn in proportion to the classes."""
    seed: Annotated[tuple[int, ...], shown("smoke: 0 1 2; paper: 0 to 4")] = ()
    """Seeds of training and of the partition."""
    #: Folder of the runs, which tables share; what is made of them is in OUT/TABLE.
    out: Annotated[Path | None, shown("runs/reproduce/PRESET")] = None
    backend: Backend = "shard_map"
    """How runs are spread over the devices."""
    runs_per_call: Annotated[int | None, shown("what fits, by an estimate")] = None
    """Runs of a grid that go side by side."""


class Job(NamedTuple):
    """A row of a table on a data set."""

    row: Row
    dataset: str
    """As the table has it."""
    flags: Common
    describe: Any
    """Of the script that trains it; None where nothing is trained."""


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
    """Trains, prints, writes and draws a table or figure."""
    found, folder = jobs(study, args), out_of(args) / args.table
    print(f"{note(study, args)}\n{args.table}: {study.title}", flush=True)
    if study.maps:
        summary = [line for job in found for line in mapped(study, job, folder)]
        tables.show(summary)
        tables.write(summary, folder, differences=True)
    else:
        tabulate(study, found, args, folder)
    print(f"{note(study, args)}\n{args.table} in {folder}")


def mapped(study: Study, job: Job, folder: Path) -> list[dict[str, Any]]:
    """Trains a row, draws its embeddings and returns the numbers shown."""
    module, _, function = study.maps.rpartition(".")
    module = importlib.import_module(f"experiments.papers.{module}")
    draw = getattr(module, function)
    return [{"dataset": job.dataset, **line} for line in draw(job.flags, folder)]


def tabulate(study: Study, found: list[Job], args: Args, folder: Path) -> None:
    """Trains what is not there yet, and writes and draws what is measured of it."""
    # Rows may be the same runs: networks of several sizes are one in a smoke run.
    tasks = list(dict.fromkeys((j.flags, j.describe) for j in found if j.describe))
    results = dict(zip(tasks, command.run(lambda: tasks), strict=True))
    rows = [
        {**line, "dataset": job.dataset, "method": job.row.label}
        for job in found
        for line in measured(study, job, results.get((job.flags, job.describe)))
    ]
    paper = beside(study.paper, datasets_of(study, args))
    summary = tables.summarize(rows, by=study.by, values=study.values, paper=paper)
    summary = complete(summary, paper, by=study.by)
    tables.show(summary, differences=True)
    tables.write(summary, folder, differences=True)
    if study.draw:
        study.draw(rows, folder, paper=paper)


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
        check_prepared(dataset, args)
        for row in study.rows:
            if args.methods and row.label not in args.methods:
                continue
            if row.script:
                script = importlib.import_module(f"experiments.{row.script}")
                paper = dataset if dataset == STAND_IN else shown_as[0]
                flags = script.Args(**flags_of(study, row, dataset, args, paper=paper))
                found.append(Job(row, shown_as[1], flags, script.describe))
            elif row.untrained:
                flags = Common(dataset, data_dir=args.data_dir, limit=args.limit)
                found.append(Job(row, shown_as[1], flags, None))
    return found


def flags_of(
    study: Study, row: Row, dataset: str, args: Args, *, paper: str
) -> dict[str, Any]:
    """Returns the flags of a row's script; `paper` is what the paper calls the data."""
    preset = study.presets[args.preset]
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
        **preset.by_dataset.get(paper, {}),
        **row.flags,
        **row.presets.get(args.preset, {}),
    }
    if row.central:
        flags["p"] = flags["p"][:1]
    # Another network, or less data, is another configuration and has its own folder.
    kind = (flags[name] for name in ("split", "backbone") if name in flags)
    words = (short_name(dataset), row.runs or row.label, *kind)
    name = re.sub(r"\W+", "-", " ".join(words).lower()).strip("-")
    return {**flags, "out": out_of(args) / name}


def measured(study: Study, job: Job, results: Folder | None) -> list[Measured]:
    """Returns what a job's runs have, without p where no p changes it."""
    if results is None:
        return job.row.untrained(job.flags) if job.row.untrained else []
    assert study.measure is not None
    lines = study.measure(job.flags, results)
    return [{**line, "p": None} for line in lines] if job.row.central else lines


def datasets_of(study: Study, args: Args) -> dict[str, tuple[str, str]]:
    """Returns from each data set that is used to the paper's that it is or stands for,
    and what the table calls it."""
    named = [name for name in study.datasets if name not in study.by_path]
    default = (STAND_IN,) if args.preset == "smoke" else named
    first, found = study.datasets[0], {}
    for given in args.datasets or default:
        name, _, path = given.partition("=")
        if name not in (study.by_path if path else (STAND_IN, *named)):
            accepted = [STAND_IN, *named, *(f"{x}=PATH" for x in study.by_path)]
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


def beside(paper: Paper, datasets: Mapping[str, tuple[str, str]]) -> Paper:
    """Returns the paper's figures for the data sets that are used, by the names that
    they have in the table."""
    return {
        (called, *key[1:]): scores
        for of_paper, called in datasets.values()
        for key, scores in paper.items()
        if key[0] == of_paper
    }


def complete(
    summary: list[dict[str, Any]], paper: Paper, *, by: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Returns the lines in the order of the paper's, with empty cells of ours where
    only the paper has a figure; those that it does not have come last."""
    ours = {tables.setting_of(line, by): line for line in summary}
    lines = []
    for setting in dict.fromkeys([*paper, *ours]):
        line = dict(ours.get(setting) or zip(by, setting, strict=True))
        for name, score in paper.get(setting, {}).items():
            line.setdefault(name, Estimate(math.nan, None, 0, score))
        lines.append(line)
    return lines


def note(study: Study, args: Args) -> str:
    """Returns in what the runs differ from the paper's, and what is not run."""
    said = []
    if STAND_IN in datasets_of(study, args):
        said.append(
            f"{STAND_IN} (1,797 images) stands in for {study.datasets[0]}: the paper's "
            "figures are for its own data, so that differences show the shape and "
            "reproduce nothing"
        )
    if args.preset == "smoke":
        said.append("smoke: training is shortened; --preset paper is the paper's")
    if args.limit is not None:
        said.append(f"--limit: {args.limit} examples, where the paper takes all")
    differs = [f"note: {x}" for x in said] or ["the paper's data and settings"]
    missing = [row.label for row in study.rows if not (row.script or row.untrained)]
    used = {name for name, _ in datasets_of(study, args).values()}
    absent = [name for name in study.by_path if name not in used]
    also = [*study.notes]
    if absent and args.preset == "paper":
        also.append(
            f"left out, as no data is called so: {', '.join(absent)}; --datasets "
            f"{absent[0]}=PATH takes a file, or a folder with one for each class"
        )
    if missing:
        also.append(f"not implemented, the paper's figures alone: {', '.join(missing)}")
    return "\n".join([*differs, *(f"note: {line}" for line in also)])


def out_of(args: Args) -> Path:
    return args.out or Path("runs") / "reproduce" / args.preset


def description() -> str:
    """Returns what --help begins with: the tables, a line each."""
    width = max(map(len, STUDIES))
    lines = [f"{name:{width}}  {study.title}" for name, study in STUDIES.items()]
    return "\n\n".join(["Reproduces a table or figure of a paper:", *lines])


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=description()))
    except ValueError as error:
        sys.exit(f"reproduce.py: error: {error}")
