"""The cells of the table of all methods, and the commands that train them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from fcjax.methods import SCRIPTS

Preset = Literal["default", "paper"]


LEVELS: Mapping[str, tuple[float, ...]] = {
    "p": (0.0, 0.25, 0.5, 0.75, 1.0),
    "alpha": (0.1,),
    "classes_per_client": (2.0,),
}
"""The partition rules and their levels."""


class DataSet(NamedTuple):
    """A data set of the table."""

    source: Mapping[str, Any] = MappingProxyType({})
    """The settings of `fcjax.data.Source` that load it. Empty for a file of the
    user."""
    is_natural: bool = False
    """Whether the clients come with the data."""

    @property
    def rules(self) -> Mapping[str, tuple[float, ...]]:
        """The partition rules of the data set, and their levels."""
        return {"natural": (1.0,)} if self.is_natural else LEVELS


DATA: Mapping[str, DataSet] = {
    "digits": DataSet({"dataset": "digits"}),
    "orl": DataSet(),
    "mnist-2000-16px": DataSet({"dataset": "mnist", "limit": 2_000, "resize": 16}),
    "fashion-2000-16px": DataSet(
        {"dataset": "fashion_mnist", "limit": 2_000, "resize": 16}
    ),
    "embeddings": DataSet(),
    "natural-clients": DataSet(is_natural=True),
    "pendigits": DataSet(),
    "mnist-2000": DataSet({"dataset": "mnist", "limit": 2_000}),
    "cifar10-2000": DataSet({"dataset": "cifar10", "limit": 2_000}),
    "mnist-10000-16px": DataSet({"dataset": "mnist", "limit": 10_000, "resize": 16}),
    "mnist-10000": DataSet({"dataset": "mnist", "limit": 10_000}),
}
"""The data sets by name, in the order of training."""
CLIENTS = 10
"""Number of clients of a partition."""
EXTREMES = (0.0, 1.0)
"""The levels of p that come first: a random partition, and one class per client."""
BLOCKS = ((0,), (1, 2), (3, 4))
"""The seeds, in the order of training. All methods with a network have the first seed
before any such method has the second."""
SEEDS = sum(BLOCKS, ())
"""All seeds of the table."""


class Program(NamedTuple):
    """The program that trains a method."""

    arguments: tuple[str, ...]
    """The arguments of the Python interpreter, without the flags of a grid."""
    is_central: bool = False
    """Whether all examples are in one place, so that the partition has no effect."""
    is_quick: bool = False
    """Whether the method trains no network."""
    is_own: bool = False
    """Whether the user gave the program."""


class Group(NamedTuple):
    """The cells of a method that one command trains."""

    preset: Preset
    dataset: str
    rule: str
    levels: tuple[float, ...]
    method: str
    seeds: tuple[int, ...]

    def folder(self, out: Path) -> Path:
        """Returns the results folder. All seeds of a method share it."""
        return out / self.preset / self.dataset / self.rule / self.method

    def failure(self, out: Path) -> Path:
        """Returns the file that says why the command has failed."""
        cells = "-".join(f"{x:g}" for x in (*self.levels, *self.seeds))
        return self.folder(out).with_name(f"{self.method}-{cells}-failed.json")

    @property
    def cells(self) -> list[tuple[float, int]]:
        """The level and the seed of each run."""
        return [(level, seed) for level in self.levels for seed in self.seeds]


def programs() -> dict[str, Program]:
    """Returns the programs of all methods of fcjax, by the name of the method."""
    found = {}
    for script, (methods, _) in SCRIPTS.items():
        for method in methods:
            named = ("--methods", method.name) if len(methods) > 1 else ()
            found[method.name] = Program(
                ("-m", "fcjax", script, *named),
                is_central=method.is_central,
                is_quick=script == "baselines",
            )
    return found


def groups_of(
    methods: Mapping[str, Program],
    *,
    datasets: Collection[str],
    presets: Sequence[Preset],
    seeds: int,
) -> list[Group]:
    """Lists all groups in the order of training.

    The smallest data set comes first. On each data set, the user's programs come first,
    and then the methods without a network. The other methods follow. The order of a
    program of the user and of a method with a network is: the first seed at both ends
    of p, the first seed at all other levels, and then one block of seeds after another.

    Args:
        methods: the programs by method.
        datasets: the names of the data sets.
        presets: the settings of the methods.
        seeds: the number of seeds.

    Returns:
        The groups.
    """

    def each() -> Iterator[tuple[tuple[int, ...], Group]]:
        for place, dataset in enumerate(x for x in DATA if x in datasets):
            rules = DATA[dataset].rules
            for (method, program), (rule, levels) in product(
                methods.items(), rules.items()
            ):
                if program.is_central and rule not in ("p", "natural"):
                    continue
                levels = levels[:1] if program.is_central else levels
                # The start of a command takes longer than a quick method.
                blocks = [(levels, SEEDS)]
                if not program.is_quick:
                    first = tuple(x for x in levels if rule == "p" and x in EXTREMES)
                    rest = tuple(x for x in levels if x not in first)
                    later = [(levels, block) for block in BLOCKS[1:]]
                    blocks = [(first, BLOCKS[0]), (rest, BLOCKS[0]), *later]
                for (turn, (part, block)), (track, preset) in product(
                    enumerate(blocks), enumerate(presets)
                ):
                    known = tuple(seed for seed in block if seed < seeds)
                    rank = list(rules).index(rule)
                    kind = not program.is_own, not program.is_quick
                    order = (track, place, *kind, turn, rank)
                    if known and part:
                        yield order, Group(preset, dataset, rule, part, method, known)

    return [group for _, group in sorted(each(), key=lambda pair: pair[0])]


def flags_of(group: Group, program: Program, *, files: Mapping[str, str]) -> list[str]:
    """Returns the command that trains a group, without --out.

    Args:
        group: the cells.
        program: the program of the method.
        files: the files of the user by data set.

    Returns:
        The arguments of the Python interpreter.
    """
    dataset = DATA[group.dataset]
    source = dataset.source or {"dataset": files[group.dataset]}
    named = ((f"--{name}", value) for name, value in source.items())
    flags: list[Any] = [*program.arguments, *chain.from_iterable(named)]
    if group.preset != "default":
        flags += ["--preset", group.preset]
    if not dataset.is_natural:
        flags += [] if program.is_central else ["--clients", CLIENTS]
        flags += [f"--{group.rule.replace('_', '-')}", *group.levels]
    flags += ["--seed", *group.seeds, "--no-plot"]
    return [f"{x:g}" if isinstance(x, float) else str(x) for x in flags]
