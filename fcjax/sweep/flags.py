"""The flags that every script has, and what stands for those that are not given."""

import dataclasses
import inspect
import math
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

import tyro

from fcjax.data.source import Source
from fcjax.methods import Script, script_with
from fcjax.methods.base import Method, Preset
from fcjax.parallel.mesh import Backend
from fcjax.settings import Default, Sweep, default, shown
from fcjax.sweep.sinks import Sink


@dataclasses.dataclass(frozen=True)
class Split:
    """For other clients: how many, how unlike, and which of them fail.

    Examples:
        >>> Split(p=[0, 0.5], clients=20).clients
        20
    """

    clients: Sweep[int] = default(10)
    """How many clients the data is dealt to, where it has none of its own."""
    natural: Annotated[tuple[int, ...], tyro.conf.Fixed] = ()
    """No flag: 1 where the clients are the data's own, see `deal.owned`."""
    max_clients: Annotated[int | None, shown("all")] = None
    """At most so many of the data's own clients, drawn at random, alike in all runs."""
    min_client_size: int = 1
    """Of the data's own clients those alone that have so many examples."""
    clusters: Annotated[Sweep[int], shown("the number of classes")] = ()
    """How many clusters to find; of clients on their own as many as they hold."""
    p: Annotated[Sweep[float], shown("0.25; 0 without labels")] = ()
    """Heterogeneity: 0 deals at random, 1 a class a client; 0:1:0.25 are five."""
    alpha: Annotated[Sweep[float], shown("deal by --p")] = ()
    """Deal by Dirichlet shares of this concentration instead of by --p."""
    class_share: Annotated[Sweep[float], shown("deal by --p")] = ()
    """Each client holds this share of the classes, consecutive ones."""
    classes_per_client: Annotated[Sweep[int], shown("deal by --p")] = ()
    """Each client holds so many classes, drawn at random."""
    overlap: Annotated[Sweep[float], shown("deal by --p")] = ()
    """Clients hold classes of a range and share so much of each; 0 shares nothing."""
    class_range: Annotated[
        tuple[int, int] | None, shown("2 to half of the classes")
    ] = None
    """With --overlap: the least and the most classes that a client holds."""
    samples_per_class: int = 500
    """With --overlap: examples of each class that a client holds, at most."""
    client_size: Annotated[Sweep[int], shown("all that it is dealt")] = ()
    """Use at most so many examples a client, classes in proportion."""
    partition_seed: Annotated[int | None, shown("the run's own --seed")] = None
    """Seed of the partition and of failures."""
    failure_rate: Sweep[float] = default(0.0)
    """Share of the clients that do not answer; their data is scored all the same."""
    failures: Literal["fixed", "per-round"] = "fixed"
    """The same clients for the whole run, or as many drawn anew in every round."""


@dataclasses.dataclass(frozen=True)
class Run:
    """For seeds, the paper's settings, or a run of before again."""

    #: smoke: a minute; default: what suits the data; paper: the paper's settings.
    #: Flags that are given win over all of them.
    preset: Preset = "default"
    config: Annotated[Path | None, shown("none")] = None
    """The config.json of a run: its flags, over which those that are given win."""
    seed: tuple[int, ...] = (0,)
    """Seeds of training; 0:16 are the sixteen from 0 to 15."""
    evaluate_every: Annotated[int | None, shown("1; ccfc 4, fdsc 25")] = None
    """Score every so many rounds, and the last of a stage; by default its last ten."""
    precision: Literal["highest", "high", "default"] = "highest"
    """Of the networks' matrix products; distances and averages stay at float32."""


@dataclasses.dataclass(frozen=True)
class Output:
    """For where results go, and what is drawn and logged."""

    out: Annotated[Path | None, shown("runs/METHOD-DATASET-HASH")] = None
    """Results folder."""
    resume: bool = True
    """Reuse finished runs of the folder and go on from its checkpoint."""
    checkpoint_interval: float = 60.0
    """Seconds between two checkpoints."""
    plot: bool = True
    """Draw learning curves and the embedding of the first run."""
    log: Annotated[tuple[Sink, ...], shown("none")] = ()
    """Also log every round to these (pip install tensorboardX, or wandb)."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """For little memory, devices that are not here, or several machines."""

    pool: Literal["auto", "device", "host"] = "auto"
    """Where the examples lie: on the device if they fit, or streamed from the host."""
    backend: Backend = "shard_map"
    """How runs are spread over the devices."""
    runs_per_call: Annotated[int | None, shown("what fits; on a CPU one a core")] = None
    """Runs of the grid that go side by side; the others follow. Bounds memory."""
    on: Annotated[str | None, shown("run it here")] = None
    """Say what the grid takes on these, as v5e:4x4 or h100:8 (`fcjax fit`)."""
    shard: Annotated[str | None, shown("all runs")] = None
    """i/n: every n-th run of the grid from run i on; see `fcjax collect`."""
    #: HOST:PORT of the first of several processes that run one program, or auto on a
    #: cluster that JAX knows (docs/guides/clusters.md).
    coordinator: Annotated[str | None, shown("a single process")] = None
    process: Annotated[str | None, shown("what the cluster says")] = None
    """Which process this is, i/n, where --coordinator is HOST:PORT."""
    coordinator_timeout: float = 120.0
    """Seconds that a process waits for the others to come."""


@dataclasses.dataclass(frozen=True)
class Common(Machine, Output, Run, Split, Source):  # the fields of the last come first
    """The flags of every script; those that take several values span the grid."""


GROUPS = {
    "data": Source,
    "clients": Split,
    "run": Run,
    "output": Output,
    "machine": Machine,
}
"""By name, as `--help` has them: each says in a line when it is needed."""


@dataclasses.dataclass(frozen=True)
class Several:
    """For scripts of several methods."""

    methods: tuple[str, ...] = ()
    """Which methods to run, each into a results folder of its own."""


@cache
def flags_of(script: Script | type[Method], method: type[Method] | None = None) -> Any:
    """Returns the dataclass of all flags of a script, or of one of its methods."""
    if not isinstance(script, Script):
        return flags_of(script_with(script), script)
    # In Python's order of inheritance a class stands before its bases.
    every = sorted(script.methods[::-1], key=lambda x: -len(x.__mro__))
    methods = (method,) if method else every
    bases = (*methods, *([Several] if len(script.methods) > 1 else ()), Common)
    first = next(iter(script.methods))
    shared = [set(x.__mro__) for x in script.methods]
    family = next(x for x in first.__mro__ if all(x in each for each in shared))
    about = inspect.cleandoc(family.__doc__ or "").partition("\n\nExamples:")[0]
    hints: dict[str, Any] = {}
    namespace: dict[str, Any] = {"__doc__": about, "__module__": first.__module__}
    for name, value in first.partition_defaults.items():
        # Without the text of its default, which is another.
        hints[name] = get_type_hints(Common)[name]
        namespace[name] = value if value == () else default(value)
    if len(script.methods) > 1:
        names: Any = Literal[tuple(x.name for x in script.methods)]
        hints["methods"] = tuple[names, ...]
        namespace["methods"] = tuple(x.name for x in script.default)
    hints |= {"script": ClassVar[Script], "is_one": ClassVar[bool]}
    namespace |= {"script": script, "is_one": len(methods) == 1}
    namespace["__annotations__"] = hints
    return dataclasses.dataclass(frozen=True)(type("Args", bases, namespace))


def of_method(args: Any, name: str | None = None) -> Any:
    """Returns the flags of one method of a script: of `name`, or of the first that the
    flags ask for."""
    script = getattr(args, "script", None)
    if script is None or (args.is_one and name in (None, args.name)):
        return args
    name = name or args.methods[0]
    (method,) = [x for x in script.methods if x.name == name]
    flags = flags_of(script, method)
    return flags(**{x.name: getattr(args, x.name) for x in dataclasses.fields(flags)})


def script_of(flags: type) -> str:
    """Returns the name of the script whose dataclass of flags this is."""
    return Path(getattr(sys.modules.get(flags.__module__), "__file__", "")).stem


def command(args: Common) -> dict[str, Any]:
    """Returns the script and those of its flags, as they were given, that decide what
    is found, for `--config`: not where it goes, nor on what it is computed."""
    left_out = {"config", *Output.__annotations__, *Machine.__annotations__}
    own = {}
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        # What stands for a flag of presets may be given, too, and then wins over them.
        is_plain = value == field.default and not isinstance(field.default, Default)
        is_open = isinstance(value, Default) or is_plain
        if field.name not in left_out and not is_open:
            own[field.name] = str(value) if isinstance(value, Path) else value
    return {"script": script_of(type(args)), "flags": own}


def flag_of(name: str, *, is_switch: bool = False) -> str:
    """Returns a flag as it is written on a command line.

    Examples:
        >>> flag_of("num_rounds"), flag_of("plot", is_switch=True)
        ('--num-rounds', '--[no-]plot')
    """
    return ("--[no-]" if is_switch else "--") + name.replace("_", "-")


def check_values(
    name: str,
    values: tuple,
    *,
    least: int | float = -math.inf,
    most: int | float = math.inf,
) -> None:
    """Checks the values of a flag that spans the grid.

    Raises:
        ValueError: there is none, one comes twice, or one is out of its limits.
    """
    flag = flag_of(name)
    if len(set(values)) != len(values) or not values:
        raise ValueError(f"{flag} takes one or more different values, got {values}")
    if min(values) < least:
        raise ValueError(f"{flag} must be at least {least}, got {min(values)}")
    if max(values) > most:
        raise ValueError(f"{flag} must be at most {most}, got {max(values)}")


def own_names(script: type[Common]) -> list[str]:
    """Returns the flags that a script adds for its methods."""
    common = {field.name for field in dataclasses.fields(Common)} | {"methods"}
    return [x.name for x in dataclasses.fields(script) if x.name not in common]


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
