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

import csv
import dataclasses
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import safetensors.numpy
import tyro
from jaxtyping import Float, Int

import fcjax
from fcjax import data
from fcjax.grid import communities, experiment
from fcjax.grid.flags import shown
from fcjax.results import Point
from fcjax.runs import frozen
from fcjax.runs.finished import Finished
from fcjax.runs.predict import example_names


@dataclasses.dataclass(frozen=True)
class Args:
    """Writes the network and the embeddings of a finished run for use without fcjax."""

    run: tyro.conf.Positional[Path]
    """The results folder, --out of the run."""
    where: Annotated[tuple[str, ...], shown("the first run of the grid")] = ()
    """Which run of a grid: p=0.25 seed=3."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    #: Folder of network.safetensors, config.json, embeddings.npz and assignments.csv;
    #: an earlier export in it is written over.
    out: Annotated[Path | None, shown("RUN/export")] = None


class Assigned(NamedTuple):
    """The examples of a data set, without an extra split, as a run assigned them."""

    dataset: data.Dataset
    names: list[str]
    """[P], the files of a folder of images, or else rows of the data set."""
    clients: Int[np.ndarray, "P"]
    """-1 where nobody holds an example."""
    clusters: Int[np.ndarray, "P"]
    """-1 where the method gives none."""
    communities: Int[np.ndarray, "P"] | None
    """Which of the clients' clusters are the same, -1 where none is; None where the
    method does not find out."""
    model: frozen.Frozen | None
    """None where clients are on their own."""
    prediction: frozen.Prediction | None
    """Of the model, which may assign otherwise where the data has changed."""

    @property
    def moved(self) -> int:
        """How many examples the model assigns otherwise than the run did."""
        if self.prediction is None:
            return 0
        return int((self.prediction.clusters != self.clusters).sum())

    @property
    def distances(self) -> Float[np.ndarray, "P"]:
        """Euclidean, from an embedding to the center of its cluster; NaN without."""
        found = np.full(len(self.clusters), np.nan)
        if self.prediction is not None:
            (rows,) = np.nonzero(self.clusters >= 0)
            found[rows] = self.prediction.distances[rows, self.clusters[rows]]
        return found


def main(args: Args) -> None:
    """Writes the files; raises ValueError where the run does not allow it."""
    finished = Finished(args.run)
    point = finished.point(args.where)
    if not finished.model_path(point).exists():
        raise ValueError(
            f"{args.run} kept no global model to export: its clients are on their own, "
            "and their clusters are in assignments.npz"
        )
    found = assigned(finished, point, data_dir=args.data_dir)
    assert found.model is not None
    config = {
        **finished.config,
        **point,
        "seed": int(point["seed"]),
        "preprocessing": preprocessing(found.dataset, found.model.scaling),
    }
    out = args.out or args.run / "export"
    try:
        write(out, config, found)
    except OSError as error:
        raise ValueError(f"--out {out} cannot be written ({error})") from error
    if found.moved:
        print(
            f"{found.moved} examples are assigned otherwise than in the run: the data"
        )
        print("set is another one now, or they lie between clusters on this device")
    print(f"network and embeddings of the run with {finished.told(point)}: {out}")


def assigned(finished: Finished, point: Point, *, data_dir: Path | None) -> Assigned:
    """Returns the examples of a run, embedded by its global model if it kept one.

    Args:
        finished: the results folder.
        point: which run.
        data_dir: where TFDS data sets are prepared.

    Raises:
        ValueError: the data set has another size now, or cannot be read.
    """
    flags = finished.flags(data_dir=data_dir)
    dataset, extra = experiment.load(dataclasses.replace(flags, limit=None))
    names = np.array(example_names(flags.dataset, len(dataset.examples)))
    if flags.limit is not None:
        every = dataset._replace(examples=np.arange(len(names)))
        rows = data.stratified_subset(every, flags.limit).examples
        labels = None if dataset.labels is None else dataset.labels[rows]
        dataset = dataset._replace(examples=dataset.examples[rows], labels=labels)
        names = names[rows]
    clients, clusters = finished.assignments(point)
    count = len(dataset.examples)
    if len(clusters) != count + len(extra):
        raise ValueError(
            f"{finished.directory} is of {len(clusters)} examples, but the data set "
            f"has {count + len(extra)} now"
        )
    model = prediction = None
    if finished.model_path(point).exists():
        model = frozen.read(finished.model_path(point))
        prediction = frozen.predict(model, dataset.examples)
    held = clients[:count], clusters[:count]
    kept = finished.communities(point)
    same = None if kept is None else communities.of_examples(kept.community, *held)
    return Assigned(dataset, names.tolist(), *held, same, model, prediction)


def arrays(found: Assigned) -> dict[str, np.ndarray]:
    """Returns what embeddings.npz holds; raises ValueError where there is no model."""
    if found.model is None or found.prediction is None:
        raise ValueError("clients on their own have no common embedding")
    labels = found.dataset.labels
    return {
        "embedding": found.prediction.embedding,
        "cluster": found.clusters,
        "client": found.clients,
        "centers": found.model.centers,
        **({} if labels is None else {"label": labels}),
    }


def write_table(path: Path, found: Assigned) -> None:
    """Writes assignments.csv: example, client, cluster, distance (empty where there is
    none), and community and label if there are any."""
    labels, same = found.dataset.labels, found.communities
    columns = {
        "example": found.names,
        "client": found.clients,
        "cluster": found.clusters,
        "distance": ["" if np.isnan(d) else f"{d:.6g}" for d in found.distances],
        **({} if same is None else {"community": same}),
        **({} if labels is None else {"label": labels}),
    }
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


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
    told = "values in [0, 1], as they are"
    if dataset.examples.dtype == np.uint8:
        told = "values 0 to 255, divided by 255"
    found = {"shape": dataset.examples.shape[1:], "notes": dataset.notes}
    if scaling is None:
        return {**found, "scaling": told}
    return {
        **found,
        "scaling": "columns less low, divided by span",
        "low": scaling.low.tolist(),
        "span": scaling.span.tolist(),
    }


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
        np.savez(folder / "embeddings.npz", **arrays(found))  # pyright: ignore[reportArgumentType]
        write_table(folder / "assignments.csv", found)
        for file in list(folder.iterdir()):
            file.replace(out / file.name)


if __name__ == "__main__":
    try:
        main(tyro.cli(Args))
    except ValueError as error:
        sys.exit(f"fcjax export: error: {error}")
