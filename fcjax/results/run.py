"""`Run`: one finished run, in a folder or in memory."""

import json
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.numpy
from jaxtyping import Float, Int

import fcjax
from fcjax import metrics
from fcjax.data import Dataset, Scaling
from fcjax.data.dataset import pixels, scaled
from fcjax.results import exported, probing, store
from fcjax.results.store import Folder, Row

INTERNAL_SCORES = ("silhouette", "davies_bouldin", "calinski_harabasz")
LIKELY_WORSE = 0.7
"""Share of k-means' silhouette among the examples below which a run is likely worse
than k-means: measured in docs/benchmarks/without_labels.md."""


class Run:
    """One finished run.

    Attributes:
        folder: the results of its grid.
        params: the values that tell it apart from the other runs of its grid.
        row: its row of the results by column; None is an empty cell.

    Examples:
        >>> import fcjax
        >>> run = fcjax.open("runs/spherical")[0]
        >>> run.labels_.shape, run.embedding_.shape
        ((60,), (60, 2))
    """

    def __init__(self, folder: Folder, row: Row):
        self.folder, self.row = folder, row
        self.params = {name: row[name] for name in folder.names}

    @property
    def result(self) -> pd.Series:
        """Its row of the results: scores, settings, seconds."""
        return pd.Series(self.row)

    @property
    def is_ok(self) -> bool:
        """Whether the run neither collapsed nor diverged."""
        return self.row["status"] == "ok"

    @property
    def name(self) -> str:
        """Method, settings that vary, and seed, in words."""
        return f"{self.row['method']} {self.folder.describe(self.params)}"

    @property
    def command_arguments(self) -> str:
        """The folder and the run as command-line arguments: `RUN --where p=0 seed=1`.
        Each value is written so that it is read back exactly.
        """
        names = dict.fromkeys([*self.folder.settings, "seed"])
        values = (f"{name}={repr(self.row[name]).removesuffix('.0')}" for name in names)
        return f"{shlex.quote(str(self.folder.directory))} --where {' '.join(values)}"

    @cached_property
    def _columns(self) -> dict[str, np.ndarray]:
        return self.folder.assignment_arrays(self.params)

    @property
    def assignments(self) -> pd.DataFrame:
        """One row per example: client and cluster, and where the method finds them the
        community of the cluster.
        """
        return pd.DataFrame(self._columns)

    @property
    def labels_(self) -> np.ndarray:
        """The cluster of every example, int [P]; -1 where an example has none. Where
        clients cluster on their own, a cluster number holds within its client.
        """
        return self._columns["cluster"]

    @property
    def clients_(self) -> np.ndarray:
        """The client of every example, int [P], from 0; -1 where no client holds it."""
        return self._columns["client"]

    @property
    def embedding_(self) -> np.ndarray:
        """The embedding of every example by the global model, float [P, D].

        Raises:
            ValueError: the clients have no common model, or the folder was opened and
                its data, an array, is not in it: then `transform` embeds the array.
        """
        model = self.model
        return exported.predict(model, self.dataset.examples).embedding

    @property
    def dataset(self) -> Dataset:
        """The data set of the run.

        Raises:
            ValueError: it cannot be read, or it has another size now.
        """
        dataset, count = self.folder.examples.dataset, self.row["samples"]
        if len(dataset.examples) != count:
            raise ValueError(
                f"{self.folder.directory} is of {count} examples, but the data set has "
                f"{len(dataset.examples)} now"
            )
        return dataset

    @cached_property
    def model(self) -> exported.ExportedModel:
        """The global model.

        Raises:
            ValueError: the clients have no common model.
        """
        return self.folder.model(**self.params)

    @property
    def has_model(self) -> bool:
        """Whether the clients have a common model."""
        return self.folder.has_model(self.params)

    @property
    def history(self) -> pd.DataFrame:
        """One row per round: stage, loss, traffic, and scores where they were taken."""
        return pd.DataFrame(self.folder.of_runs(self.folder.rounds, [self.params]))

    def predict(self, x: Any) -> np.ndarray:
        """Returns the clusters of new examples, int [n].

        Args:
            x: examples of the shape and the scale of those that were clustered.

        Raises:
            ValueError: the clients have no common model, or the shape differs.
        """
        return exported.predict(self.model, self._like(x)).clusters

    def transform(self, x: Any) -> np.ndarray:
        """Returns the embedding of new examples, float [n, D]; see `predict`."""
        return exported.predict(self.model, self._like(x)).embedding

    def _like(self, x: Any) -> np.ndarray:
        """New examples as the model takes them."""
        x, model = np.asarray(x), self.model
        if model.scaling is not None:
            return scaled(x, model.scaling)[0]
        return pixels(x[..., None] if x.ndim == len(model.shape) else x)[0]

    def scores(self, y: Any) -> dict[str, float]:
        """Returns the scores of the clusters against true labels: ACC, NMI, kappa, ARI
        and AMI.

        Args:
            y: true labels, [P]. Examples without a cluster do not count.
        """
        y = np.unique(np.asarray(y), return_inverse=True)[1]
        if y.shape != self.labels_.shape:
            raise ValueError(
                f"y must have one label per example, {len(self.labels_)}, got {y.shape}"
            )
        held = self.labels_ >= 0
        return metrics.scores(y[held], self.labels_[held])

    @cached_property
    def scored_examples(self) -> "ScoredExamples":
        """The examples of the data set with their clusters, see `ScoredExamples`.

        Raises:
            ValueError: the data set cannot be read, or has another size now.
        """
        return ScoredExamples(self)

    def probe(
        self,
        num_neighbors: Sequence[int] = (3, 5, 7, 9, 100, 1000, 7000),
        label_fraction: Sequence[float] = (0.01, 0.1),
        num_draws: int = 5,
    ) -> probing.Probe:
        """Measures the embedding of the run against the labels of its data set.

        Args:
            num_neighbors: how many neighbours vote; more than there are training
                examples are left out.
            label_fraction: shares of the training labels that linear classifiers
                learn from, above 0 and at most 1.
            num_draws: how many times each share is drawn.

        Returns:
            Four tables, see `probing.Probe`.

        Raises:
            ValueError: the data has no labels, or the clients have no common model.

        Examples:
            >>> import fcjax
            >>> probe = fcjax.open("runs/spherical")[0].probe(num_neighbors=[3])
            >>> probe.neighbors.columns.tolist()
            ['neighbors', 'accuracy']
        """
        scored = self.scored_examples
        if scored.dataset.labels is None:
            raise ValueError(f"{self.folder.directory} has no labels to probe with")
        return probing.probe(
            exported.predict(self.model, scored.dataset.examples).embedding,
            scored.dataset.labels,
            is_test=probing.test_rows(self.folder.source(), scored.dataset),
            clusters=scored.clusters,
            clients=scored.clients,
            num_clusters=int(self.row["clusters"]),
            num_neighbors=num_neighbors,
            label_fraction=label_fraction,
            num_draws=num_draws,
        )

    def export(self, out: str | Path) -> None:
        """Writes the run for programs other than fcjax: network.safetensors,
        config.json, embeddings.npz and assignments.csv, see `fcjax export`. Earlier
        files stay until all new ones are complete.

        Raises:
            ValueError: the clients have no common model, or `out` cannot be written.
        """
        scored, model, out = self.scored_examples, self.model, Path(out)
        names = self.folder.columns
        settings = {name: self.row[name] for name in names}
        config = {**self.folder.config, **settings, "seed": int(self.row["seed"])}
        config["preprocessing"] = _preprocessing(scored.dataset, model.scaling)
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        metadata = {"fcjax": fcjax.__version__, "config": text}
        network = safetensors.numpy.save(dict(model.weights), metadata)
        try:
            out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".", dir=out) as name:
                folder = Path(name)
                (folder / "network.safetensors").write_bytes(network)
                (folder / "config.json").write_text(text)
                scored.write(folder)
                for file in list(folder.iterdir()):
                    file.replace(out / file.name)
        except OSError as error:
            raise ValueError(f"out {out} cannot be written ({error})") from error

    def save(self, path: str | Path) -> None:
        """Writes the global model into a file, which `fcjax.results.exported.read`
        loads.
        """
        self.folder.save_model(self.params, Path(path))


class ScoredExamples:
    """The P scored examples of a run: those of its data set, without an extra split.

    Attributes:
        dataset: the data set.
        names: of the examples, [P]: the files of a folder of images, or row numbers.
        clients: of the examples, int [P]; -1 where no client holds an example.
        clusters: of the examples, int [P]; -1 where an example has none.
        communities: which clients' clusters are the same, int [P], -1 without one; None
            where the method does not find communities.
        model: the global model; None where clients have models of their own.
        prediction: of the global model, which may assign other clusters than the run
            where the data has changed; None without a model.
    """

    def __init__(self, run: Run):
        self.dataset, self.names = run.dataset, run.folder.examples.names
        count = len(self.dataset.examples)
        self.clients, self.clusters = run.clients_[:count], run.labels_[:count]
        same = run.folder.communities(run.params)
        self.communities = None
        if same is not None:
            own = same.community, self.clients, self.clusters
            self.communities = store.communities_of_examples(*own)
        self.model = run.model if run.has_model else None
        self.prediction = None
        if self.model is not None:
            self.prediction = exported.predict(self.model, self.dataset.examples)

    @property
    def num_reassigned(self) -> int:
        """The number of examples that the model assigns to another cluster than the
        run did.
        """
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

    def write(self, out: Path) -> None:
        """Writes assignments.csv, with one row per example, and embeddings.npz of a run
        with a global model.
        """
        columns = {
            "example": self.names,
            "client": self.clients,
            "cluster": self.clusters,
            "distance": self.distances,
            "community": self.communities,
            "label": self.dataset.labels,
        }
        table = pd.DataFrame({k: v for k, v in columns.items() if v is not None})
        path = out / "assignments.csv"
        table.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
        if self.model is None or self.prediction is None:
            return
        labels = self.dataset.labels
        np.savez(
            out / "embeddings.npz",
            embedding=self.prediction.embedding,
            cluster=self.clusters,
            client=self.clients,
            centers=self.model.centers,
            **({} if labels is None else {"label": labels}),  # pyright: ignore[reportArgumentType]
        )


def _preprocessing(dataset: Dataset, scaling: Scaling | None) -> dict[str, Any]:
    """Returns how an example is converted for the network, for JSON: `shape`, `scaling`
    in words, `notes`, and for feature vectors `low` and `span` per column.
    """
    found = {"shape": dataset.examples.shape[1:], "notes": dataset.notes}
    if scaling is not None:
        columns = {"low": scaling.low.tolist(), "span": scaling.span.tolist()}
        return {**found, "scaling": "columns less low, divided by span", **columns}
    is_bytes = dataset.examples.dtype == np.uint8
    told = "values 0 to 255, divided by 255" if is_bytes else "values in [0, 1]"
    return {**found, "scaling": told}


def below_kmeans(scores: Mapping[str, Any]) -> str:
    """Returns how a run is below k-means, or "" where it is not.

    It compares NMI with labels, and without labels the silhouettes among the examples,
    which make it likely. `scores` are of results.csv, or means of them.
    """
    own, plain = scores.get("nmi"), scores.get("kmeans_nmi")
    if own is not None and plain is not None:
        return f"NMI {own:.3f}, k-means {plain:.3f}" if own < plain else ""
    own, plain = (scores.get(x) for x in ("input_silhouette", "kmeans_silhouette"))
    if own is None or plain is None or own >= LIKELY_WORSE * plain:
        return ""
    return f"silhouette {own:.2f} among the examples, k-means {plain:.2f}"


def comparable_clusters(
    run: Run,
) -> tuple[Int[np.ndarray, "P"], Int[np.ndarray, "P"]]:
    """Returns the clusters of a run's examples as clusters of all clients, and the
    client of each example where clients clustered on their own and nothing says which
    clusters are the same, else -1.
    """
    count = int(run.row["samples"])
    client, cluster = run.clients_[:count], run.labels_[:count]
    nobody = np.full(count, -1)
    if run.row["scope"] == "global":
        return cluster, nobody
    held = (client >= 0) & (cluster >= 0)
    own = client * (cluster.max() + 1) + cluster
    if "community" not in run.assignments:
        return np.where(held, own, -1), np.where(held, client, -1)
    community = run.assignments["community"].to_numpy()[:count]
    own = np.where(community >= 0, community, community.max() + 1 + own)
    return np.where(held, own, -1), nobody
