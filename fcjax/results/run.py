"""`Run`: one finished run, in a folder or in memory."""

import json
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.numpy
from jaxtyping import Float, Int

import fcjax
from fcjax import metrics
from fcjax.data import Dataset, Scaling
from fcjax.data.dataset import about, order_of, pixels, scaled
from fcjax.results import drawing, exported, leakage, probing, store
from fcjax.results.store import Folder, Row

LIKELY_WORSE = 0.7
"""A run is likely worse than k-means if its silhouette on the raw examples is below
this share of that of k-means; measured in docs/benchmarks/without_labels.md."""


class Run:
    """One finished run.

    Args:
        folder: results folder of the grid.
        row: row of results.csv by column; None is an empty cell.

    Attributes:
        folder: results folder of the grid.
        params: axis values, which identify the run in its grid.
        row: row of results.csv by column.

    Examples:
        >>> import fcjax
        >>> run = fcjax.open("runs/spherical")[0]
        >>> run.labels_.shape, run.embedding_.shape
        ((60,), (60, 2))
        >>> run
        <Run spherical p 0.25, seed 0 on rows: nmi 1.000, acc 1.000>
    """

    def __init__(self, folder: Folder, row: Row):
        self.folder, self.row = folder, row
        self.params = {name: row[name] for name in folder.names}

    def __repr__(self) -> str:
        """Returns method, data set, settings and scores in one line."""
        shown = [f"{name} {value:.3f}" for name, value in main_scores(self).items()]
        text = f"{self.name} on {self.row['dataset']}: {', '.join(shown) or 'no score'}"
        return f"<Run {text}>"

    @property
    def result(self) -> pd.Series:
        """The row of results.csv: scores, settings and seconds."""
        return pd.Series(self.row)

    @property
    def is_ok(self) -> bool:
        """Whether the run neither collapsed nor diverged."""
        return self.row["status"] == "ok"

    @property
    def name(self) -> str:
        """Method, settings and seed as text, such as "ccfc p 0.25, seed 0"."""
        return f"{self.row['method']} {self.folder.describe(self.params)}"

    @property
    def command_arguments(self) -> str:
        """The command-line arguments of the run, such as `RUN --where p=0 seed=1`.

        The values are exact, also for floats.
        """
        names = dict.fromkeys([*self.folder.settings, "seed"])
        values = (f"{name}={repr(self.row[name]).removesuffix('.0')}" for name in names)
        return f"{shlex.quote(str(self.folder.directory))} --where {' '.join(values)}"

    @cached_property
    def _columns(self) -> dict[str, np.ndarray]:
        """Arrays of assignments.npz for this run."""
        return self.folder.assignment_arrays(self.params)

    @property
    def assignments(self) -> pd.DataFrame:
        """One row per example: client, cluster, and for some methods the community.

        The index of a table is the row of the example, from 0, also if `missing` or
        `limit` leaves rows out. Other examples are numbered on from 0.
        """
        return pd.DataFrame(self._columns, index=self.folder.rows_of_examples)

    @property
    def labels_(self) -> np.ndarray:
        """The cluster of each example, int [P]; -1 for none.

        If clients cluster separately, the same number means different clusters for
        different clients.
        """
        return self._columns["cluster"]

    @property
    def clients_(self) -> np.ndarray:
        """The client of each example, int [P], from 0; -1 for none."""
        return self._columns["client"]

    @property
    def embedding_(self) -> np.ndarray:
        """The embedding of each example by the global model, float [P, D].

        Returns:
            The embeddings, computed at each call.

        Raises:
            ValueError: the clients have no common model, or the data set was an array
                and the folder was opened later. In the second case, `transform` embeds
                the array.
        """
        model = self.model
        return exported.predict(model, self.dataset.examples).embedding

    @property
    def dataset(self) -> Dataset:
        """The data set of the run.

        Returns:
            The data set, without an extra split.

        Raises:
            ValueError: the data set cannot be read, or its size has changed.
        """
        dataset, count = self.folder.examples.dataset, self.row["samples"]
        if len(dataset.examples) != count:
            raise ValueError(
                f"{self.folder.directory} is of {count} examples, but the data set has "
                f"{len(dataset.examples)} examples now; restore the data set"
            )
        return dataset

    @cached_property
    def model(self) -> exported.ExportedModel:
        """The exported global model.

        Returns:
            The model, read at the first call.

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
        """One row per round: stage, loss, traffic, and scores of evaluated rounds."""
        return pd.DataFrame(self.folder.of_runs(self.folder.rounds, [self.params]))

    def predict(self, x: Any) -> np.ndarray:
        """Returns the clusters of new examples.

        Args:
            x: [n, ...] examples in their original units, as in the file, array or
                DataFrame of the training, before any scaling. The run scales them as
                its training data. The columns of a DataFrame are found by their names
                if the run was trained on a table with names; other columns are
                ignored. All other columns must be in the order of the training. A
                `Dataset` is refused, because its values are scaled already.

        Returns:
            The clusters, int [n].

        Raises:
            ValueError: the clients have no common model, the shape or a column differs,
                or a value is missing, NaN or infinite.

        Examples:
            >>> import pandas as pd
            >>> from fcjax.methods import ExactKMeans
            >>> x = pd.DataFrame({"age": [30, 31, 70, 72], "kg": [50, 51, 80, 80]})
            >>> site = ["north", "south", "north", "south"]
            >>> method = ExactKMeans(unit_length=False)
            >>> run = method.fit(x, clients=site, num_clusters=2)
            >>> new = pd.DataFrame({"kg": [49, 82], "age": [29, 75]})
            >>> (run.predict(new) == run.labels_[[0, 2]]).tolist()
            [True, True]
        """
        return exported.predict(self.model, self._like(x)).clusters

    def transform(self, x: Any) -> np.ndarray:
        """Returns the embedding of new examples.

        Args:
            x: [n, ...] examples in their original units, before any scaling, see
                `predict`.

        Returns:
            The embedding, float [n, D].

        Raises:
            ValueError: the clients have no common model, the shape or a column differs,
                or a value is missing, NaN or infinite.
        """
        return exported.predict(self.model, self._like(x)).embedding

    def _like(self, x: Any) -> np.ndarray:
        """Returns new examples in the format of the model."""
        if isinstance(x, Dataset):
            raise ValueError(
                "x is a Dataset, whose values are scaled already; pass the array or "
                "DataFrame in its original units"
            )
        model = self.model
        with about("x"):
            if isinstance(x, pd.DataFrame):
                x = _values_of(x, model.scaling.columns if model.scaling else ())
            x = np.asarray(x)
            if model.scaling is not None:
                if x.ndim != 2:
                    raise ValueError(f"must have shape [n, F], got {x.shape}")
                return scaled(x, scaling=model.scaling)[0]
            return pixels(x[..., None] if x.ndim == len(model.shape) else x)[0]

    def scores(self, y: Any) -> dict[str, float]:
        """Returns the scores of the clusters against true labels.

        Args:
            y: [P] true labels. Examples without a cluster are ignored.

        Returns:
            ACC, NMI, kappa, ARI and AMI, by name.

        Raises:
            ValueError: the number of labels is not the number of examples.
        """
        y = np.unique(np.asarray(y), return_inverse=True)[1]
        if y.shape != self.labels_.shape:
            raise ValueError(
                f"y must have one label per example, {len(self.labels_)}, got {y.shape}"
            )
        has_cluster = self.labels_ >= 0
        return metrics.scores(y[has_cluster], self.labels_[has_cluster])

    @cached_property
    def scored_examples(self) -> "ScoredExamples":
        """The examples of the data set with clients, clusters and embeddings.

        Returns:
            The examples, computed at the first call.

        Raises:
            ValueError: the data set cannot be read, or its size has changed.
        """
        return ScoredExamples(self)

    def probe(
        self,
        num_neighbors: Sequence[int] = (3, 5, 7, 9, 100, 1000, 7000),
        label_fraction: Sequence[float] = (0.01, 0.1),
        num_draws: int = 5,
    ) -> probing.Probe:
        """Evaluates the embedding of the run with the labels of its data set.

        Args:
            num_neighbors: numbers of neighbours of the k-nearest-neighbour classifiers.
                Numbers above the number of training examples are left out.
            label_fraction: shares of the training labels for linear classifiers, above
                0 and at most 1.
            num_draws: number of random subsets for each share.

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
            raise ValueError(
                f"{self.folder.directory} has no labels, and a probe needs labels"
            )
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

    def privacy_report(
        self, out: str | Path | None = None, *, min_members: int = 5
    ) -> leakage.PrivacyReport:
        """Measures what the last uploads of the clients reveal about their examples.

        The run needs `keep_uploads=True`. Labels are not used. The weights of uploaded
        networks are not examined.

        Args:
            out: folder for privacy.csv, privacy_points.csv and privacy.png.
            min_members: centroids of fewer examples are counted, at least 1.

        Returns:
            The measurements. Membership inference needs examples of the data set that
            are not in the run, so a run with `limit` or with `split="train"`.

        Raises:
            ValueError: the run has not kept its uploads, it has differential privacy,
                the clients of the method upload no points, or `min_members` is out of
                range.

        Examples:
            >>> import fcjax
            >>> from fcjax.methods import KFed
            >>> runs = fcjax.run(KFed(), "digits", limit=200, keep_uploads=True)
            >>> report = runs[0].privacy_report()
            >>> report.summary["points"], report.summary["non_members"]
            (100, 1597)
        """
        if "mechanism" in self.folder.config:
            raise ValueError(
                f"the run {self.name} has differential privacy, and its noisy uploads "
                "are not stored; run it without `epsilon` to see what it protects"
            )
        uploads = self.folder.uploads(self.params)
        if uploads is None:
            raise ValueError(
                f"the run {self.name} has no stored uploads; run the same command "
                "again with `keep_uploads=True` and `resume=False`"
            )
        if not len(uploads.points):
            raise ValueError(
                f"the clients of {self.row['method']} upload neither centroids nor "
                "synthetic examples, so there is nothing to measure"
            )
        dataset = self.dataset
        clients = self.clients_[: len(dataset.examples)]
        others = leakage.non_members(self.folder.source(), dataset, clients)
        predict = partial(exported.predict, self.model)
        report = leakage.examine(
            uploads, dataset, clients, others, predict, min_members=min_members
        )
        if out is not None:
            names = [*self.folder.settings, "seed"]
            leakage.write(
                Path(out),
                report,
                uploads,
                dataset,
                predict,
                run={name: self.row[name] for name in ("method", "dataset", *names)},
                title=drawing.figure_title([self.row], names),
            )
        return report

    def export(self, out: str | Path) -> None:
        """Writes the model and the embeddings of the run for programs without fcjax.

        The files are network.safetensors, config.json, embeddings.npz and
        assignments.csv, see `fcjax export`. Old files are replaced after all new files
        are complete.

        Args:
            out: folder of the files.

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
        """Writes the exported model to a file for `fcjax.results.exported.read`.

        Args:
            path: file to write.

        Raises:
            ValueError: the clients have no common model.
        """
        self.folder.save_model(self.params, Path(path))


def _values_of(frame: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """Returns the columns of the training; all columns if they have no names."""
    names = [str(name).strip() for name in frame.columns]
    values = []
    for i in order_of(columns, names) if columns else range(len(names)):
        try:
            column: Any = frame.iloc[:, i]
            numbers: Any = pd.to_numeric(column)
        except (ValueError, TypeError):
            raise ValueError(
                f"has values that are not numbers in column {names[i]}; accepted are "
                "numbers"
            ) from None
        values.append(numbers.to_numpy(np.float64, na_value=np.nan))
    return np.column_stack(values)


def main_scores(run: Run) -> dict[str, float]:
    """Returns the scores of a run that are shown first.

    Args:
        run: the run.

    Returns:
        NMI and ACC by name for data with labels, otherwise the silhouettes in the
        embedding and on the raw examples. Scores that the run lacks are left out.
    """
    for names in (("nmi", "acc"), ("silhouette", "input_silhouette")):
        scores = {name: run.row.get(name) for name in names}
        if found := {name: x for name, x in scores.items() if x is not None}:
            return found
    return {}


class ScoredExamples:
    """The P scored examples of a run: its data set without an extra split.

    Args:
        run: the run.

    Attributes:
        dataset: the data set.
        names: [P] name of each example: its file in a folder of images, or its index.
        clients: [P] client of each example, int; -1 for none.
        is_natural: whether the clients are those of the data set.
        clusters: [P] cluster of each example, int; -1 for none.
        communities: [P] community of each example, int, -1 for none; None for methods
            without communities.
        model: the exported global model; None if the clients have no common model.
        prediction: embedding and clusters by the model; None without a model. The
            clusters may differ from `clusters` if the data has changed.
    """

    def __init__(self, run: Run):
        self.dataset, self.names = run.dataset, run.folder.examples.names
        count = len(self.dataset.examples)
        self.clients, self.clusters = run.clients_[:count], run.labels_[:count]
        self.is_natural = run.folder.names[0] == "natural"
        communities = run.folder.communities(run.params)
        self.communities = None
        if communities is not None:
            self.communities = store.communities_of_examples(
                communities.community, self.clients, self.clusters
            )
        self.model = run.model if run.has_model else None
        self.prediction = None
        if self.model is not None:
            self.prediction = exported.predict(self.model, self.dataset.examples)

    @property
    def client_names(self) -> list[str]:
        """The name of each client: its name in the data set, or its number."""
        numbers = range(self.clients.max() + 1)
        names, of_data = self.dataset.client_names, self.dataset.clients
        if not self.is_natural or of_data is None or not names:
            return [str(number) for number in numbers]
        # The clients of a run are sorted by size, those of the data by name.
        return [str(names[of_data[np.argmax(self.clients == i)]]) for i in numbers]

    @property
    def client_name_of_example(self) -> np.ndarray | None:
        """[P] the name of each example's client, "" for none.

        None if the clients are not those of the data set.
        """
        # The last name is that of client -1, which is none.
        names = np.array([*self.client_names, ""])
        return names[self.clients] if self.is_natural else None

    @property
    def has_centers(self) -> bool:
        """Whether the model has the means of the clusters. Private runs have none."""
        return self.model is not None and bool(np.isfinite(self.model.centers).any())

    @property
    def num_reassigned(self) -> int:
        """Number of examples that the model assigns to another cluster than the run."""
        if self.prediction is None:
            return 0
        return int((self.prediction.clusters != self.clusters).sum())

    @property
    def distances(self) -> Float[np.ndarray, "P"]:
        """Euclidean distance of each embedding to the center of its cluster, or NaN."""
        distances = np.full(len(self.clusters), np.nan)
        if self.prediction is not None:
            (i,) = np.nonzero(self.clusters >= 0)
            distances[i] = self.prediction.distances[i, self.clusters[i]]
        return distances

    def write(self, out: Path) -> None:
        """Writes assignments.csv, and embeddings.npz if there is a global model.

        Args:
            out: folder of the files, which exists.
        """
        columns = {
            "example": self.names,
            "client": self.clients,
            "client_name": self.client_name_of_example,
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
    """Returns the conversion of an example for the network, for JSON.

    The keys are `shape`, `scaling` (in words), `notes`, and for feature vectors `low`
    and `span` per column.
    """
    steps = {"shape": dataset.examples.shape[1:], "notes": dataset.notes}
    if scaling is not None:
        columns = {"low": scaling.low.tolist(), "span": scaling.span.tolist()}
        return {**steps, "scaling": "(column - low) / span", **columns}
    is_bytes = dataset.examples.dtype == np.uint8
    text = "values 0 to 255, divided by 255" if is_bytes else "values in [0, 1]"
    return {**steps, "scaling": text}


def below_kmeans(scores: Mapping[str, Any]) -> str:
    """Returns the scores of a run that is worse than k-means on the raw examples.

    Args:
        scores: columns of results.csv, or their means. With labels, the NMI of run and
            k-means are compared. Without labels, their silhouettes on the raw examples
            are compared, which makes a worse run likely but not certain.

    Returns:
        Both scores as text; "" if the run is not worse.
    """
    value, kmeans = scores.get("nmi"), scores.get("kmeans_nmi")
    if value is not None and kmeans is not None:
        return f"NMI {value:.3f}, k-means {kmeans:.3f}" if value < kmeans else ""
    value, kmeans = (scores.get(x) for x in ("input_silhouette", "kmeans_silhouette"))
    if value is None or kmeans is None or value >= LIKELY_WORSE * kmeans:
        return ""
    return f"silhouette on the raw examples {value:.2f}, k-means {kmeans:.2f}"


def comparable_clusters(
    run: Run,
) -> tuple[Int[np.ndarray, "P"], Int[np.ndarray, "P"]]:
    """Returns clusters with numbers that mean the same for all clients.

    Args:
        run: the run.

    Returns:
        The cluster of each example, -1 for none. Then the client of each example, if
        clients cluster separately and the run does not associate their clusters;
        otherwise -1. Both are int [P].
    """
    count = int(run.row["samples"])
    client, cluster = run.clients_[:count], run.labels_[:count]
    no_client = np.full(count, -1)
    if run.row["scope"] == "global":
        return cluster, no_client
    has_cluster = (client >= 0) & (cluster >= 0)
    number = client * (cluster.max() + 1) + cluster
    if "community" not in run.assignments:
        return np.where(has_cluster, number, -1), np.where(has_cluster, client, -1)
    community = run.assignments["community"].to_numpy()[:count]
    number = np.where(community >= 0, community, community.max() + 1 + number)
    return np.where(has_cluster, number, -1), no_client
