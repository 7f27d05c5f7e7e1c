"""What a run found, example by example, in the order of its data set."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from fcjax import data
from fcjax.data.images import image_files
from fcjax.data.source import Loaded, Source, load_source
from fcjax.results import exported, store
from fcjax.results.store import Folder, Point


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
    model: exported.Frozen | None
    """None where clients are on their own."""
    prediction: exported.Prediction | None
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


def of_run(folder: Folder, point: Point, *, data_dir: Path | None) -> Assigned:
    """Returns the examples of a run, embedded by its global model if it kept one.

    Args:
        folder: that a command left.
        point: which run.
        data_dir: where TFDS data sets are prepared.

    Raises:
        ValueError: the data set has another size now, or cannot be read.
    """
    (dataset, extra), names = named(folder.source(data_dir))
    found, count = folder.assigned(point), len(dataset.examples)
    if len(found["cluster"]) != count + len(extra):
        raise ValueError(
            f"{folder.directory} is of {len(found['cluster'])} examples, but the data "
            f"set has {count + len(extra)} now"
        )
    model = prediction = None
    if folder.model_path(point).exists():
        model = exported.read(folder.model_path(point))
        prediction = exported.predict(model, dataset.examples)
    held = found["client"][:count], found["cluster"][:count]
    kept = folder.communities(point)
    same = None if kept is None else store.of_examples(kept.community, *held)
    return Assigned(dataset, names, *held, same, model, prediction)


def named(source: Source) -> tuple[Loaded, list[str]]:
    """Returns the data set, and the names of its examples: the files of a folder of
    images, or else the row numbers in the whole data set."""
    dataset, extra = load_source(dataclasses.replace(source, limit=None))
    own = {"split": source.split, "client_folders": source.client_folders}
    names = np.array(example_names(source.dataset, len(dataset.examples), **own))
    if source.limit is not None:
        every = dataset._replace(examples=np.arange(len(names)))
        kept = data.stratified_subset(every, source.limit)
        names = names[kept.examples]
        dataset = kept._replace(examples=dataset.examples[kept.examples])
    return (dataset, extra), names.tolist()


def write_embeddings(path: Path, found: Assigned) -> None:
    """Writes embeddings.npz, see `export`, of a run that has a model."""
    assert found.model is not None
    assert found.prediction is not None
    labels = found.dataset.labels
    np.savez(
        path,
        embedding=found.prediction.embedding,
        cluster=found.clusters,
        client=found.clients,
        centers=found.model.centers,
        **({} if labels is None else {"label": labels}),  # pyright: ignore[reportArgumentType]
    )


def write_table(path: Path, found: Assigned) -> None:
    """Writes assignments.csv: example, client, cluster, distance (empty where there is
    none), and community and label if there are any."""
    columns = {
        "example": found.names,
        "client": found.clients,
        "cluster": found.clusters,
        "distance": found.distances,
        "community": found.communities,
        "label": found.dataset.labels,
    }
    table = pd.DataFrame({k: v for k, v in columns.items() if v is not None})
    table.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")


def example_names(
    dataset: str, count: int, *, split: str = "all", client_folders: bool = False
) -> list[str]:
    """Returns the files of a folder of images, or the places of the examples."""
    folder = Path(dataset)
    if folder.is_dir():
        files = image_files(folder, split=split, client_folders=client_folders).files
        if len(files) == count:
            return [str(file.relative_to(folder)) for file in files]
    return [str(i) for i in range(count)]
