"""Runs of one data set side by side, from one or more results folders: what they found,
and their embeddings of a few examples."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fcjax import data
from fcjax.data.source import SOURCE
from fcjax.results import exported, store
from fcjax.results.store import Folder, Point, Row, parsed, read
from fcjax.runs import assigned
from fcjax.sweep.plan import RULES

MOST_POINTS = 2000
"""Examples that are embedded, drawn at random: what is measured of them is quadratic in
their number."""


OF_DATA = (*RULES, "clients", "client_size", "failure_rate")
"""Settings of the data, which are no settings of a method."""


class Member(NamedTuple):
    """A run."""

    folder: Folder
    row: Row
    """Of results.csv."""

    @property
    def point(self) -> Point:
        return {name: self.row[name] for name in self.folder.names}

    @property
    def is_ok(self) -> bool:
        """Whether it neither collapsed nor diverged."""
        return self.row["status"] == "ok"

    @property
    def told(self) -> str:
        return f"{self.row['method']} {self.folder.told(self.point)}"

    @property
    def where(self) -> str:
        """The folder and the run, as the commands for one run take them."""
        names = dict.fromkeys([*self.folder.settings, "seed"])
        values = " ".join(f"{name}={written(self.row[name])}" for name in names)
        return f"{shlex.quote(str(self.folder.directory))} --where {values}"


class Together(NamedTuple):
    """R runs of the same P examples."""

    members: tuple[Member, ...]
    clusters: Int[np.ndarray, "R P"]
    """-1 where there is none. Where clients clustered on their own a cluster of one is
    a cluster of its own, but for those that the run found to be the same."""
    holders: Int[np.ndarray, "R P"] | None
    """Who holds each example, where no cluster of one client is known to be that of
    another in any run; None where there is one clustering of all."""

    def take(self, chosen: Sequence[int]) -> "Together":
        """Returns these of the runs."""
        kept = list(chosen)
        return Together(
            tuple(self.members[i] for i in kept),
            self.clusters[kept],
            None if self.holders is None else self.holders[kept],
        )

    @property
    def ok(self) -> list[int]:
        """The runs that ended well."""
        return [i for i, member in enumerate(self.members) if member.is_ok]

    @property
    def of_same_data(self) -> list[list[int]]:
        """The runs, grouped by how the data lies on the clients: heterogeneity, number
        and size of the clients, failures. Nobody can choose these settings, so runs
        that differ in one of them are not compared."""
        groups: dict[tuple, list[int]] = {}
        for i, member in enumerate(self.members):
            key = tuple(member.row.get(name) for name in OF_DATA)
            groups.setdefault(key, []).append(i)
        return list(groups.values())

    @property
    def voters(self) -> "Together":
        """The runs that ended well; raises ValueError where fewer than two did."""
        if len(self.ok) < 2:
            raise ValueError(
                f"it takes two runs or more that ended well, got {len(self.ok)} of "
                f"{len(self.members)}: more seeds make them, as --seed 0 1 2"
            )
        return self.take(self.ok)

    @property
    def scored(self) -> bool:
        """Whether the data had labels."""
        return all(member.row.get("nmi") is not None for member in self.members)

    def values(self, name: str) -> Float[np.ndarray, "R"]:
        """Returns a column of results.csv, NaN where a cell is empty."""
        cells = (member.row.get(name) for member in self.members)
        return np.array([np.nan if x is None else x for x in cells], float)

    def dataset(self, data_dir: Path | None) -> tuple[data.Dataset, list[str]]:
        """Returns the examples and their names, see `assigned.named`; raises ValueError
        where they are others now."""
        folder = self.members[0].folder
        (dataset, _), names = assigned.named(folder.source(data_dir))
        if len(dataset.examples) != self.clusters.shape[1]:
            raise ValueError(
                f"{folder.directory} is of {self.clusters.shape[1]} examples, but the "
                f"data set has {len(dataset.examples)} now"
            )
        return dataset, names

    def embedded(self, examples: np.ndarray) -> list[Float[np.ndarray, "n D"] | None]:
        """Returns what each run's network makes of examples; None of a run whose
        clients have none in common."""
        paths = (m.folder.model_path(m.point) for m in self.members)
        return [
            exported.predict(exported.read(path), examples).embedding
            if path.exists()
            else None
            for path in paths
        ]


def gather(folders: Sequence[Path], where: Sequence[str] = ()) -> Together:
    """Returns the finished runs of some folders, with what they found.

    Args:
        folders: that commands left.
        where: NAME=VALUE, the only ones that are taken of each folder.

    Raises:
        ValueError: as `members`, or a folder has tables alone, as the ledger.
    """
    found = members(folders, where)
    for member in found:
        if not (member.folder.directory / "assignments.npz").exists():
            raise ValueError(f"{member.folder.directory} kept no assignments")
    each = [clusters_of(member) for member in found]
    clusters, holders = (np.stack(x) for x in zip(*each, strict=True))
    own = holders.max() >= 0
    return Together(tuple(found), clusters, holders if own else None)


def members(folders: Sequence[Path], where: Sequence[str] = ()) -> list[Member]:
    """Returns the finished runs of some folders, of which it reads the tables alone.

    Raises:
        ValueError: no folder, one twice, one without a finished run, or runs of
            different data.
    """
    if not folders:
        raise ValueError("which folders? see --help")
    places = [folder.resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            raise ValueError(f"{folder} is given twice")
    found = [
        Member(folder, row)
        for folder in map(read, folders)
        for row in folder.rows_of(**parsed(where))
    ]
    check_same_data(found)
    return found


def check_same_data(members: Sequence[Member]) -> None:
    """Raises ValueError where runs are not of the same examples."""

    def data_of(member: Member) -> dict[str, object]:
        config, row = member.folder.config, member.row
        flags = {name: config.get(name) for name in SOURCE}
        # A file may have been named from elsewhere.
        flags["dataset"] = Path(config["dataset"]).name
        if flags["limit"] is None:
            del flags["labels"]  # a part is drawn by them
        found = {**flags, "samples": row["samples"]}
        starts = store.starts(member.folder.directory)
        for name in store.DIGESTS:
            if starts and name in starts[-1]:  # else of an earlier fcjax
                found[f"the digest of its {name}"] = starts[-1][name]
        return found

    first, *others = members
    one = data_of(first)
    for other in others:
        two = data_of(other)
        for name in one:
            if name in two and one[name] != two[name]:
                raise ValueError(
                    f"{first.folder.directory} and {other.folder.directory} are of "
                    f"different data: {name} is {one[name]} and {two[name]}"
                )


def written(value: float | int) -> str:
    """Returns a swept value as it is read back, the same one."""
    return repr(value).removesuffix(".0")


def clusters_of(member: Member) -> tuple[np.ndarray, np.ndarray]:
    """Returns the clusters of a run's examples, and who holds them where clients
    clustered on their own and nothing says which clusters are the same; else -1."""
    count = int(member.row["samples"])
    columns = member.folder.assigned(member.point)
    client, cluster = columns["client"][:count], columns["cluster"][:count]
    nobody = np.full(count, -1)
    if member.row["scope"] == "global":
        return cluster, nobody
    held = (client >= 0) & (cluster >= 0)
    own = client * (cluster.max() + 1) + cluster
    if "community" not in columns:
        return np.where(held, own, -1), np.where(held, client, -1)
    community = columns["community"][:count]
    own = np.where(community >= 0, community, community.max() + 1 + own)
    return np.where(held, own, -1), nobody


def drawn(count: int) -> Int[np.ndarray, "n"]:
    """Returns which examples are embedded, always the same ones."""
    return np.sort(np.random.default_rng(0).permutation(count)[:MOST_POINTS])
