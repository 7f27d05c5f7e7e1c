"""The command `fcjax partition`, which exports partitions for other programs."""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from tyro.conf import OmitArgPrefixes

from fcjax.cli.errors import flag_of, with_quoted_flags
from fcjax.data import Dataset, Partition, load
from fcjax.data.dataset import counted
from fcjax.data.source import Source
from fcjax.data.split import Split
from fcjax.results.store import write_arrays
from fcjax.settings import as_tuple, given
from fcjax.sweep.options import Options
from fcjax.sweep.report import value_range


@dataclasses.dataclass(frozen=True)
class ExportPartitions:
    """Writes partitions to files, for programs that do not use fcjax.

    The methods of fcjax get the same partitions from the same flags. Give the number of
    clients and the partition rule, because some methods have other defaults.

    Files in --out:
      examples.npz    x, the examples as loaded, and y, the classes of labelled data
      p=0,seed=0.csv  one file per level of the partition rule and seed; its columns are
                      example (index into x), client (-1 for none), and cluster (empty)

    Example: fcjax partition --clients 10 --p 0 0.5 --seed 0:3 --out partitions/digits
    """

    out: Path
    """Folder for the files. It must be new or empty."""
    seed: tuple[int, ...] = (0,)
    """Random seeds, one file per seed and level. 0:3 are the seeds 0 to 2."""
    data: OmitArgPrefixes[Source] = Source()
    clients: OmitArgPrefixes[Split] = Split()

    def __call__(self) -> None:
        """Writes the files, and prints their paths and the next step."""
        out, target = self.out, self.out.resolve()
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ValueError(
                f"`out` {out} must be new or an empty folder; give another folder"
            )
        Options(seed=self.seed).check()
        if self.data.extra_split is not None:
            raise ValueError(
                "`extra_split` has examples that are only trained on, which are not "
                "exported; omit `extra_split`"
            )
        split, dataset = self.clients.resolve(load(self.data))
        clients = clients_by_name(split, dataset, self.seed)
        labels = dataset.labels
        arrays = {"x": dataset.examples, **({} if labels is None else {"y": labels})}
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as temporary:
            folder = Path(temporary) / "partitions"
            write_arrays(folder / "examples.npz", arrays)
            for name, column in clients.items():
                examples = range(len(column))
                table = {"example": examples, "client": column, "cluster": None}
                pd.DataFrame(table).to_csv(
                    folder / f"{name}.csv", index=False, lineterminator="\n"
                )
            folder.replace(target)

        print(with_quoted_flags(dataset.describe()))
        for name in ("clusters", "failure_rate", "failures"):
            if name in given(self.clients):
                print(f"warning: {flag_of(name)} has no effect on partitions")
        print(f"examples: {out / 'examples.npz'} (arrays {' and '.join(arrays)})")
        number = counted(len(clients), "file")
        print(f"partitions: {number}, the first is {out / next(iter(clients))}.csv")
        print(f"clients: {as_tuple(split.clients)[0]} per partition")
        left_out = [int((column < 0).sum()) for column in clients.values()]
        print(f"examples without a client: {value_range(left_out)} per partition")
        print("next: fill the column cluster, and run fcjax matrix --assignments")


def clients_by_name(
    split: Split, dataset: Dataset, seeds: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """Partitions a data set for each level of the partition rule and each seed.

    Args:
        split: the settings of the clients, after `Split.resolve`.
        dataset: the data set of P examples.
        seeds: the seeds.

    Returns:
        The client of each example, int [P], -1 for none. The names are the level and
        the seed, such as "p=0.5,seed=2".

    Raises:
        ValueError: a setting is not accepted, an example has several clients, or two
            levels have the same name.
    """
    split.check(dataset)
    sizes = {
        name: as_tuple(getattr(split, name)) for name in ("clients", "client_size")
    }
    for name, values in sizes.items():
        if len(values) > 1:
            text = " ".join(map(str, values))
            raise ValueError(f"`{name}` takes one number in this command, got {text}")
    point = {name: values[0] for name, values in sizes.items() if values}
    rule, partition = split.rule, split.partitioner(dataset)
    result = {}
    for level in split.levels(dataset):
        for seed in seeds:
            name = f"{rule}={level:g},seed={seed}"
            if name in result:
                raise ValueError(f"`{rule}` has two levels with the name {name}")
            held = partition({rule: level, **point, "seed": seed})
            result[name] = client_of_example(held, len(dataset.examples))
    return result


def client_of_example(partition: Partition, num_examples: int) -> np.ndarray:
    """Returns the client of each example of a partition.

    Args:
        partition: the partition.
        num_examples: P, the number of examples.

    Returns:
        int [P], the client of each example, -1 for none.

    Raises:
        ValueError: an example has several clients.

    Examples:
        >>> clients = (np.array([0, 2]), np.array([1]))
        >>> client_of_example(Partition(clients, left_out=np.array([3])), 4).tolist()
        [0, 1, 0, -1]
    """
    clients = np.full(num_examples, -1)
    for client, indices in enumerate(partition.clients):
        if (clients[indices] >= 0).any():
            raise ValueError(
                "`overlap` gives an example to several clients, and a file has one "
                "client per example; give another partition rule"
            )
        clients[indices] = client
    return clients
