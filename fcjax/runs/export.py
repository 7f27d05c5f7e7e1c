"""A finished run in formats that other programs read: `fcjax export RUN`.

network.safetensors   the weights by path; metadata: fcjax (version), config (JSON)
config.json           the same configuration, with the run's swept values
embeddings.npz        in the order of the data set: embedding [P, D], cluster [P],
                      client [P] (-1: nobody's), label [P] if there are any; and
                      centers [K, D], the mean embedding of each cluster (NaN: empty)
assignments.csv       the same without the embedding, for spreadsheets: example (its
                      file or row), client, cluster, distance to the cluster's center

The extra split has no rows in it.
"""

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import safetensors.numpy
import tyro

import fcjax
from fcjax import data
from fcjax.results.store import parsed, read
from fcjax.runs import assigned
from fcjax.runs.assigned import Assigned
from fcjax.sweep.ending import refusing
from fcjax.sweep.flags import shown
from fcjax.sweep.words import flags_in


@dataclasses.dataclass(frozen=True)
class Args:
    """Writes the network and the embeddings of a finished run for use without fcjax."""

    run: tyro.conf.Positional[Path]
    """The results folder, --out of the run."""
    where: Annotated[tuple[str, ...], shown("the only run")] = ()
    """Which run of a grid: p=0.25 seed=3."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    #: Folder of network.safetensors, config.json, embeddings.npz and assignments.csv;
    #: an earlier export in it is written over.
    out: Annotated[Path | None, shown("RUN/export")] = None


def main(args: Args) -> None:
    """Writes the files; raises ValueError where the run does not allow it."""
    folder = read(args.run)
    point = folder.point(**parsed(args.where))
    if not folder.model_path(point).exists():
        raise ValueError(
            f"{args.run} kept no global model to export: its clients are on their own, "
            "and their clusters are in assignments.npz"
        )
    found = assigned.of_run(folder, point, data_dir=args.data_dir)
    assert found.model is not None
    (row,) = folder.rows_of(**point)
    settings = {name: row[name] for name in folder.columns}
    config = {**folder.config, **settings, "seed": int(point["seed"])}
    config["preprocessing"] = preprocessing(found.dataset, found.model.scaling)
    out = args.out or args.run / "export"
    try:
        write(out, config, found)
    except OSError as error:
        raise ValueError(f"--out {out} cannot be written ({error})") from error
    if found.moved:
        print(
            f"{found.moved} examples are assigned otherwise than in the run: the data\n"
            "set is another one now, or they lie between clusters on this device"
        )
    print(f"network and embeddings of the run with {folder.told(point)}: {out}")


def preprocessing(
    dataset: data.Dataset, scaling: data.Scaling | None
) -> dict[str, Any]:
    """Returns what becomes of an example before it enters the network, for JSON.

    Args:
        dataset: of the run.
        scaling: what feature vectors went through.

    Returns:
        `shape` of an example, `scaling` in words, `notes` on what was converted, and
        for feature vectors `low` and `span`, a number a column.
    """
    found = {"shape": dataset.examples.shape[1:], "notes": dataset.notes}
    if scaling is not None:
        columns = {"low": scaling.low.tolist(), "span": scaling.span.tolist()}
        return {**found, "scaling": "columns less low, divided by span", **columns}
    told = "values in [0, 1], as they are"
    if dataset.examples.dtype == np.uint8:
        told = "values 0 to 255, divided by 255"
    return {**found, "scaling": told}


def write(out: Path, config: Mapping[str, Any], found: Assigned) -> None:
    """Writes the files; those of before stay until all are complete."""
    assert found.model is not None
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    metadata = {"fcjax": fcjax.__version__, "config": text}
    with tempfile.TemporaryDirectory(prefix=".", dir=out) as name:
        folder = Path(name)
        network = safetensors.numpy.save(dict(found.model.weights), metadata)
        (folder / "network.safetensors").write_bytes(network)
        (folder / "config.json").write_text(text)
        assigned.write_embeddings(folder / "embeddings.npz", found)
        assigned.write_table(folder / "assignments.csv", found)
        for file in list(folder.iterdir()):
            file.replace(out / file.name)


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
