"""The flags that every script has, and what stands for those that are not given."""

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import tyro

from fcjax.devices import Backend
from fcjax.sweep.sinks import Sink

Preset = Literal["smoke", "default", "paper"]


def shown(default: str):
    """Tells `--help` what a flag that is not given stands for."""
    return tyro.conf.arg(help_behavior_hint=f"(default: {default})")


@dataclasses.dataclass(frozen=True)
class Common:
    """The flags of every script; those that take several values span the grid."""

    #: digits (8x8, embedded), a prepared TFDS data set (mnist, emnist/digits), or a
    #: path: .npz (x or images; y or labels), .mat (fea; gnd), .csv .tra .tes .data
    #: .txt or .parquet (the class last), IDX (.gz or not; labels beside it, or a folder
    #: of the four files), a folder of images, whose subfolders are the classes, or
    #: hf:PATH, what Hugging Face's datasets saved (pip install "fcjax[hf]", for
    #: .parquet too). Where the data says whose an example is (--client-column, an array
    #: client of an .npz, folders CLIENT/CLASS/), these are the clients, unless --p or
    #: another rule of dealing is given. Values of images are 0 to 255, or 0 to 1 where
    #: none is above. Rows of numbers are feature vectors, each column scaled to 0 to 1,
    #: or images with --image-shape. A folder named as a TFDS data set is ./mnist, not
    #: mnist.
    dataset: str = "digits"
    image_shape: Annotated[tuple[int, ...], shown("feature vectors")] = ()
    """H W or H W C of the images that rows of numbers in a file hold, row by row."""
    resize: Annotated[int | None, shown("as they are")] = None
    """Resize images to so many pixels a side, bilinear, without cropping."""
    labels: bool = True
    """Whether the data has classes, which are scored against and never trained on."""
    #: Column of a .csv (by its header), .parquet or hf:PATH that says whose an example
    #: is; it is no feature. An empty cell or -1 is nobody.
    client_column: Annotated[str | None, shown("none")] = None
    #: Take at most so many of the data's own clients, drawn at random, the same ones in
    #: every run; the examples of the others are nobody's.
    max_clients: Annotated[int | None, shown("all")] = None
    #: Take those of the data's own clients alone that have so many examples; the
    #: examples of the others are nobody's.
    min_client_size: int = 1
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    split: Literal["all", "train", "test"] = "all"
    """Which examples; all joins train and test, as the papers do."""
    limit: Annotated[int | None, shown("all")] = None
    """Use so many examples, drawn in proportion to the classes."""
    #: A TFDS split that is dealt out and trained on too, but not scored (stl10 has
    #: unlabelled).
    extra_split: Annotated[str | None, shown("none")] = None
    #: Where the examples lie: on the device if they fit by an estimate that is printed,
    #: else on the host, from where batches stream.
    pool: Literal["auto", "device", "host"] = "auto"
    clients: tuple[int, ...] = (10,)
    """How many clients the data is dealt to, where it has none of its own."""
    natural: Annotated[tuple[int, ...], tyro.conf.Suppress] = ()
    """No flag: 1 where the clients are the data's own, see `deal.owned`."""
    #: How many clusters to find. Clients that cluster on their own look for as many as
    #: they hold classes where --classes-per-client or --overlap says how many.
    clusters: Annotated[tuple[int, ...], shown("the number of classes")] = ()
    p: Annotated[tuple[float, ...], shown("0.25; 0 without labels")] = ()
    """Heterogeneity: 0 deals at random, 1 gives every client a class of its own."""
    alpha: Annotated[tuple[float, ...], shown("deal by --p")] = ()
    """Deal by Dirichlet shares of this concentration instead of by --p."""
    #: Deal by classes instead of by --p: each client holds this share of them,
    #: consecutive ones; 1 is even in every class (IID), 1/CLIENTS disjoint blocks.
    class_share: Annotated[tuple[float, ...], shown("deal by --p")] = ()
    classes_per_client: Annotated[tuple[int, ...], shown("deal by --p")] = ()
    """Deal by classes drawn at random, so many for each client, instead of by --p."""
    #: Deal by ranges of classes instead of by --p: each client draws how many classes
    #: it holds, and which. Of the examples that a client has of a class, this share is
    #: held by all others who hold the class, too; 0 shares nothing.
    overlap: Annotated[tuple[float, ...], shown("deal by --p")] = ()
    #: With --overlap: the least and the most classes that a client holds. Clients that
    #: cluster on their own look for as many clusters as they hold classes.
    class_range: Annotated[
        tuple[int, int] | None, shown("2 to half of the classes")
    ] = None
    #: With --overlap: examples of each class that a client holds, before any are
    #: shared; fewer where there are not so many for all who hold it.
    samples_per_class: int = 500
    #: Use at most so many examples a client, classes in proportion; the others are left
    #: out.
    client_size: Annotated[tuple[int, ...], shown("all that it is dealt")] = ()
    seed: tuple[int, ...] = (0,)
    """Seeds of training; 0:16 are the sixteen from 0 to 15."""
    partition_seed: Annotated[int | None, shown("the run's own --seed")] = None
    """Seed of the partition and of failures."""
    failure_rate: tuple[float, ...] = (0.0,)
    """Share of the clients that do not answer; their data is scored all the same."""
    #: Which clients those are. fixed: the same ones for the whole run, as in the CCFC
    #: paper; per-round: as many, drawn anew in every round.
    failures: Literal["fixed", "per-round"] = "fixed"
    #: smoke: a minute; default: what suits the data; paper: the paper's settings. An
    #: explicit flag wins over all of them. What they choose is printed.
    preset: Preset = "default"
    out: Annotated[Path | None, shown("runs/METHOD-DATASET-HASH")] = None
    """Results folder."""
    resume: bool = True
    """Reuse finished runs of the folder and go on from its checkpoint."""
    #: Score every so many rounds, and the last one of a stage; by default the last ten,
    #: too.
    evaluate_every: Annotated[int | None, shown("1; ccfc 4, fdsc 25")] = None
    checkpoint_interval: float = 60.0
    """Seconds between two checkpoints."""
    backend: Backend = "shard_map"
    """How runs are spread over the devices."""
    runs_per_call: Annotated[int | None, shown("what fits; on a CPU one a core")] = None
    """Runs of the grid that go side by side; the others follow. Bounds memory."""
    #: Devices that need not be there, as v5e:4x4 or h100:8: compile for them and say
    #: what the grid takes, in place of running it (`fcjax fit`).
    on: Annotated[str | None, shown("run it here")] = None
    #: i/n: run every n-th run of the grid, beginning with run i (0 to n - 1), into
    #: OUT/shard-i-of-n. The shards are merged by experiments/collect.py.
    shard: Annotated[str | None, shown("all runs")] = None
    #: One process of several that run one program, on one or more hosts that share
    #: --out: HOST:PORT of process 0, or auto on a cluster that JAX knows (Slurm, Open
    #: MPI, Cloud TPU). All are given the same flags but --process.
    coordinator: Annotated[str | None, shown("a single process")] = None
    process: Annotated[str | None, shown("what the cluster says")] = None
    """Which process this is, i/n, where --coordinator is HOST:PORT."""
    coordinator_timeout: float = 120.0
    """Seconds that a process waits for the others to come."""
    precision: Literal["highest", "high", "default"] = "highest"
    """Of the networks' matrix products; distances and averages stay at float32."""
    plot: bool = True
    """Draw learning curves and the embedding of the first run."""
    log: Annotated[tuple[Sink, ...], shown("none")] = ()
    """Also log every round to these (pip install "fcjax[tensorboard]", "[wandb]")."""


def given(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line, with numbers for each range of them.

    Examples:
        >>> given(["--p", "0", "--seed", "0:3", "7"])
        ['--p', '0', '--seed', '0', '1', '2', '7']
    """
    found: list[str] = []
    for word in words:
        flag, is_one, value = word.rpartition("=")
        if not re.fullmatch(r"\d+:\d+", value):
            found.append(word)
            continue
        first, end = map(int, value.split(":"))
        found += [flag] * bool(is_one)
        found += map(str, range(first, end)) if first < end else [value]
    return found


def check_values(name: str, values: tuple, *, least: int | None = None) -> None:
    """Checks the values of a flag that spans the grid.

    Raises:
        ValueError: there is none, one comes twice, or one is below `least`.
    """
    flag = "--" + name.replace("_", "-")
    if len(set(values)) != len(values) or not values:
        raise ValueError(f"{flag} takes one or more different values, got {values}")
    if least is not None and min(values) < least:
        raise ValueError(f"{flag} must be at least {least}, got {min(values)}")


class Limits(NamedTuple):
    """What the numbers of a flag may be, where its annotation holds one; counts are at
    least 1 without, other numbers at least 0."""

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf


Counts = Annotated[tuple[int, ...], Limits(least=1)]
Positive = Annotated[tuple[float, ...], Limits(above=0)]
Shares = Annotated[tuple[float, ...], Limits(most=1)]


class Default(tuple):
    """The values of a flag that was not given."""


def default(*values: Any) -> Any:
    """Returns what a flag of several values stands for where it is not given; presets
    and the data may then choose otherwise, see `settings_of`."""
    return Default(values)


def settings_of(
    args: Common, *changes: Mapping[str, Any], names: Collection[str] | None = None
) -> dict[str, Any]:
    """Returns the settings of a method: each flag as it was given, else as the last of
    `changes` has it that does, else its default.

    Args:
        args: the script's flags.
        changes: by flag, what presets and the data choose.
        names: of the flags that the method has; None is all that the script adds.

    Returns:
        By flag, its value; a tuple of the values where it may be swept.

    Raises:
        ValueError: a number is negative, infinite, or zero where it counts something.
    """
    chosen = {name: value for change in changes for name, value in change.items()}
    common = {field.name for field in dataclasses.fields(Common)} | {"methods"}
    settings, hints = {}, get_type_hints(type(args), include_extras=True)
    for name in (field.name for field in dataclasses.fields(args)):
        if name in common or (names is not None and name not in names):
            continue
        value = getattr(args, name)
        if value is None:
            value = chosen.get(name)
        elif value == () or isinstance(value, Default):
            value = (chosen[name],) if name in chosen else tuple(value)
        if value == ():  # it belongs to another flag, which stands for it
            continue
        check_numbers(name, value, hints[name])
        settings[name] = value
    return settings


def chosen(args: Common, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the settings that presets or the data have chosen: neither was
    the flag given, nor is it the default."""
    found = {}
    for name, value in settings.items():
        given = getattr(args, name, value)
        values = value if isinstance(value, tuple) else (value,)
        is_open = given is None or given == () or isinstance(given, Default)
        if is_open and values not in (given, (given,)):
            found[name] = values[0]
    return found


def check_numbers(name: str, value: Any, hint: Any) -> None:
    """Raises ValueError where a number of a flag is not one that it can take."""
    found = [x for x in getattr(hint, "__metadata__", ()) if isinstance(x, Limits)]
    flag = "--" + name.replace("_", "-")
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        is_count = isinstance(number, int) and not name.endswith(("_rounds", "_steps"))
        (least, above, most) = found[0] if found else Limits(int(is_count))
        least = max(least, 0)
        finite = "finite and " if isinstance(number, float) else ""
        if not least <= number < math.inf:
            raise ValueError(f"{flag} must be {finite}at least {least}, got {number}")
        if number <= above:
            raise ValueError(f"{flag} must be above {above}, got {number}")
        if number > most:
            raise ValueError(f"{flag} must be at most {most}, got {number}")


def taken_by(build: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the settings of a run that a builder takes by their names."""
    names = inspect.signature(build).parameters
    return {name: values[name] for name in names if name in values}
