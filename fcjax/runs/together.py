"""Runs of one data set side by side, from one or more results folders: what they found,
and their embeddings of a few examples."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fcjax import data
from fcjax.sweep import frozen
from fcjax.sweep.folder import Folder, Point, Row, parsed, read
from fcjax.sweep.load import FLAGS, load

MOST_POINTS = 2000
"""Examples that are embedded, drawn at random: what is measured of them is quadratic in
their number."""


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
        """What the commands for one run take."""
        values = {n: float(self.row[n]) for n in [*self.folder.settings, "seed"]}
        return " ".join(f"{name}={value:g}" for name, value in values.items())


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
        """The runs that ended well; all of them where none did."""
        found = [i for i, member in enumerate(self.members) if member.is_ok]
        return found or list(range(len(self.members)))

    @property
    def scored(self) -> bool:
        """Whether the data had labels."""
        return all(member.row.get("nmi") is not None for member in self.members)

    def values(self, name: str) -> Float[np.ndarray, "R"]:
        """Returns a column of results.csv, NaN where a cell is empty."""
        cells = (member.row.get(name) for member in self.members)
        return np.array([np.nan if x is None else x for x in cells], float)

    def dataset(self, data_dir: Path | None) -> data.Dataset:
        """Returns the examples; raises ValueError where they are others now."""
        folder = self.members[0].folder
        dataset, _ = load(folder.flags(data_dir=data_dir))
        if len(dataset.examples) != self.clusters.shape[1]:
            raise ValueError(
                f"{folder.directory} is of {self.clusters.shape[1]} examples, but the "
                f"data set has {len(dataset.examples)} now"
            )
        return dataset

    def embedded(self, examples: np.ndarray) -> list[Float[np.ndarray, "n D"] | None]:
        """Returns what each run's network makes of examples; None of a run whose
        clients have none in common."""
        paths = (m.folder.model_path(m.point) for m in self.members)
        return [
            frozen.predict(frozen.read(path), examples).embedding
            if path.exists()
            else None
            for path in paths
        ]


def gather(
    folders: Sequence[Path],
    where: Sequence[str] = (),
    *,
    keep: Callable[[Row], bool] = lambda row: True,
) -> Together:
    """Returns the finished runs of some folders.

    Args:
        folders: that commands left.
        where: NAME=VALUE, the only ones that are taken of each folder.
        keep: which of these rows.

    Raises:
        ValueError: no folder, one without a finished run, runs of different data, or
            none that is left.
    """
    if not folders:
        raise ValueError("which folders? see --help")
    members = [
        Member(folder, row)
        for folder in map(read, folders)
        for row in folder.rows_of(**parsed(where))
        if keep(row)
    ]
    if not members:
        raise ValueError(f"no run of {', '.join(map(str, folders))} is asked for")
    check_same_data(members)
    each = [found(member) for member in members]
    clusters, holders = (np.stack(x) for x in zip(*each, strict=True))
    own = holders.max() >= 0
    return Together(tuple(members), clusters, holders if own else None)


def check_same_data(members: Sequence[Member]) -> None:
    """Raises ValueError where runs are not of the same examples."""

    def data_of(member: Member) -> dict[str, object]:
        # A file may have been named from elsewhere; and whether labels are read
        # changes no example.
        config, row = member.folder.config, member.row
        flags = {k: config.get(k) for k in FLAGS if k not in ("dataset", "labels")}
        return {"dataset": row["dataset"], "samples": row["samples"], **flags}

    first, *others = members
    for other in others:
        one, two = data_of(first), data_of(other)
        for name in one:
            if one[name] != two[name]:
                raise ValueError(
                    f"{first.folder.directory} and {other.folder.directory} are of "
                    f"different data: {name} is {one[name]} and {two[name]}"
                )


def found(member: Member) -> tuple[np.ndarray, np.ndarray]:
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
