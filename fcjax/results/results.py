"""`Results`: the finished runs of one or several methods, in memory or in folders."""

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fcjax import metrics
from fcjax.data.source import SOURCE
from fcjax.metrics.agreement import SURE, Consensus, holm, pairwise_agreement
from fcjax.results import (
    comparison,
    drawing,
    figures,
    html_report,
    selection,
    store,
    tables,
)
from fcjax.results.run import Run, main_scores
from fcjax.results.selection import Criterion, Ensemble, Suggestion
from fcjax.results.store import Folder

PER_CLUSTER = 16
"""Largest number of examples per cluster in unsure.png."""


class Results:
    """The finished runs of one or several methods, in memory or in folders.

    The methods that compare runs need no labels. They return data frames and objects,
    and write files only if a path is given.

    Args:
        folders: results folders, or grids in memory.

    Examples:
        >>> import fcjax
        >>> results = fcjax.open("runs/spherical")
        >>> results.runs[["method", "p", "seed", "status"]]
              method     p  seed status
        0  spherical  0.25     0     ok
        >>> results
        <Results of 1 run: spherical on rows; scores nmi, acc>
    """

    def __init__(self, folders: Sequence[Folder]):
        self._runs = [
            Run(folder, row)
            for folder in folders
            for row in folder.requested(folder.rows)
        ]

    @property
    def folders(self) -> list[Folder]:
        """The results folders, or grids in memory, of the runs."""
        return list(dict.fromkeys(run.folder for run in self._runs))

    def __repr__(self) -> str:
        """Returns methods, data set, swept settings and scores in one line."""
        if not self._runs:
            return "<Results: no runs>"
        axes = dict.fromkeys(
            name for x in self.folders for name in [*x.settings, "seed"]
        )
        swept = {
            name: dict.fromkeys(
                value for x in self._runs if (value := x.row.get(name)) is not None
            )
            for name in axes
        }
        parts = [
            f"{name} {', '.join(f'{value:g}' for value in values)}"
            for name, values in swept.items()
            if len(values) > 1
        ]
        scores = dict.fromkeys(name for run in self._runs for name in main_scores(run))
        number = f"{len(self)} run{'s' * (len(self) > 1)}"
        parts.append(f"scores {', '.join(scores) or 'none'}")
        return f"<Results of {number}: {self._title}; {'; '.join(parts)}>"

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: int) -> Run:
        """Returns a run by its index in `runs`."""
        return self._runs[index]

    def _take(self, runs: Sequence[Run]) -> "Results":
        """Returns the results of these runs."""
        results = Results([])
        results._runs = list(runs)
        return results

    @property
    def runs(self) -> pd.DataFrame:
        """One row per run, as in results.csv."""
        return pd.DataFrame([run.row for run in self._runs])

    @property
    def history(self) -> pd.DataFrame:
        """One row per run and round, as in history.csv, with the method."""
        rounds = []
        for folder in self.folders:
            points = [run.params for run in self._runs if run.folder is folder]
            rows = folder.of_runs(folder.rounds, points)
            rounds += [{**row, "method": folder.config["method"]} for row in rows]
        return pd.DataFrame(rounds)

    def where(self, **params: Any) -> "Results":
        """Returns the runs with the given values of settings or of `method`.

        Args:
            **params: values by setting, such as p=0.25, num_clusters=10 or
                method="ccfc".

        Returns:
            The runs that have all values.

        Raises:
            ValueError: no run has the values.
        """

        def has(run: Run, name: str, value: Any) -> bool:
            if name == "method":
                return run.folder.config["method"] == value
            # The column of `num_clusters` has the name of its flag.
            name = "clusters" if name == "num_clusters" else name
            return name in run.folder.columns and bool(np.isclose(run.row[name], value))

        runs = [
            run
            for run in self._runs
            if all(has(run, name, value) for name, value in params.items())
        ]
        if not runs:
            text = ", ".join(f"{name} {value}" for name, value in params.items())
            raise ValueError(f"no run has {text}; see `runs` for the existing values")
        return self._take(runs)

    def run(self, **params: Any) -> Run:
        """Returns the only run with the given values.

        Args:
            **params: values by setting, see `where`.

        Returns:
            The run.

        Raises:
            ValueError: no run or several runs have the values.
        """
        results = self.where(**params)
        if len(results) > 1:
            axes = (name for folder in results.folders for name in folder.names)
            names = dict.fromkeys(("method", *axes))
            values = {name: results.runs[name].unique() for name in names}
            text = " and ".join(
                f"{name} ({', '.join(map(str, x))})"
                for name, x in values.items()
                if len(x) > 1
            )
            raise ValueError(f"{len(results)} runs match; choose one by {text}")
        return results[0]

    def summary(self, by: str | Sequence[str] | None = None) -> pd.DataFrame:
        """Returns the mean of each score over seeds, with its 95 % interval.

        Args:
            by: columns whose values define a row, besides the method. None takes all
                columns that vary except for the seed.

        Returns:
            One row per setting: the mean of each score, half the width of its 95 %
            Student-t interval (for three seeds or more), and the number of seeds.
        """
        axes = dict.fromkeys(name for x in self.folders for name in x.settings)
        by = [*axes] if by is None else [by] if isinstance(by, str) else [*by]
        by = ["method", *by]
        rows = [run.row for run in self._runs]
        labelled = any(row["nmi"] is not None for row in rows)
        # The silhouette of the embedding cannot be compared between methods.
        unlabelled = ("silhouette", "input_silhouette")
        names = ("nmi", "acc", "kappa") if labelled else unlabelled
        # The methods may have different axes.
        rows = [{**dict.fromkeys(by), **row} for row in rows]
        summary = tables.summarize(rows, by=by, values=names)
        seeds = summary.filter([f"{name}_seeds" for name in names]).max(axis=1)
        widths = [f"{name}_half_width" for name in names]
        table = summary.filter([*names, *widths]).assign(seeds=seeds)
        return table.dropna(axis=1, how="all")

    def ensemble(self) -> Ensemble:
        """Returns the runs with the clusters of their examples.

        Returns:
            The ensemble, with the examples of all runs in the same order.

        Raises:
            ValueError: the runs have different data, or a folder has no
                assignments.npz.
        """
        check_same_data(self._runs)
        return selection.ensemble(self._runs)

    def rank(self, by: Criterion = "input") -> pd.DataFrame:
        """Ranks the runs without labels, the best run first.

        Heterogeneity, number and size of the clients, and failure rate are settings of
        the data. A user cannot choose them, so each of their values has its own
        ranking.

        Args:
            by: the criterion. "input": silhouette on the raw examples. "agreement":
                mean adjusted Rand index with the other runs. "agreement_nmi": mean NMI
                with the other runs. "consensus": agreement with the consensus of all
                runs. "others": rank of the silhouette in the embeddings of the other
                runs. "silhouette": silhouette in the run's own embedding, which does
                not compare runs. "loss": last loss, where smaller is better.

        Returns:
            One row per run with all criteria, or NaN for criteria without a value. The
            index of the table is the index in `runs`.

        Raises:
            ValueError: no run has a value of the criterion.
        """
        runs, rankings = self.ensemble(), []
        for group in runs.by_data_setting:
            ranks = selection.rank_runs(runs.take(group), by)
            rankings.append(ranks.set_axis([group[i] for i in ranks.index]))
        return pd.concat(rankings)

    def choose(self, by: Criterion = "input") -> Run:
        """Returns the best run without labels.

        Args:
            by: the criterion, see `rank`.

        Returns:
            The run.

        Raises:
            ValueError: the runs have different settings of the data, such as several p.

        Examples:
            >>> import fcjax
            >>> fcjax.open("runs/spherical").choose().name
            'spherical p 0.25, seed 0'
        """
        if len(groups := self.ensemble().by_data_setting) > 1:
            first = "; ".join(self._runs[group[0]].name for group in groups)
            raise ValueError(
                f"the runs have {len(groups)} settings of the data ({first}): select "
                "one setting with `where`"
            )
        return self._runs[int(self.rank(by).index[0])]

    def consensus(
        self,
        num_clusters: int | None = None,
        *,
        seed: int = 0,
        out: str | Path | None = None,
    ) -> Consensus:
        """Combines the runs into one clustering.

        Examples that are often in the same cluster of a run are clustered together.
        Runs that collapsed or diverged are left out. The clusters have the numbers of
        the clusters of one run, by the best one-to-one match. This is the run that
        `choose` and `report` take among the runs with as many clusters. Without such a
        run, or if its clients cluster separately, the numbers have no meaning.

        Args:
            num_clusters: number of clusters; None takes the number of the runs.
            seed: seed of k-means on the spectral embedding.
            out: folder for assignments.csv, consensus.npz, confidence.png and, for
                images, unsure.png with the examples of the lowest confidence.

        Returns:
            The cluster of each example, with its confidence.

        Raises:
            ValueError: fewer than two runs ended well, or the runs have different
                numbers of clusters and `num_clusters` is None.
        """
        runs = self.ensemble().voters
        combined = selection.consensus_of(runs, num_clusters, seed=seed)
        if like := selection.numbering_run(runs, num_clusters):
            clusters = runs.clusters[runs.runs.index(like)]
            combined = selection.numbered_like(combined, clusters)
        if out is not None:
            Path(out).mkdir(parents=True, exist_ok=True)
            write_consensus(Path(out), runs, combined)
        return combined

    def how_many(self, out: str | Path | None = None) -> Suggestion:
        """Suggests the number of clusters on which the seeds agree most.

        The runs must differ only in the number of clusters and the seed, with two seeds
        or more for each number. Runs that collapsed or diverged are left out.

        Args:
            out: folder for how_many.csv and how_many.png.

        Returns:
            The suggested number with the reason; the number is None if none stands out.

        Raises:
            ValueError: fewer than two numbers can be compared, the runs differ in other
                settings, or the clients have no common embedding.
        """
        suggestion = selection.how_many(self.ensemble())
        if out is not None:
            out = Path(out)
            out.mkdir(parents=True, exist_ok=True)
            path = out / "how_many.csv"
            suggestion.table.to_csv(path, index=False, float_format="%.3f")
            figures.against(
                *(suggestion.pairs, out / "how_many.png"),
                level="clusters",
                by=(),
                values=("between", "within", "trade-off"),
                title=f"{self._title}: stability of the number of clusters",
            )
        return suggestion

    def compare(
        self,
        other: "Results",
        by: str | Sequence[str] = (),
        *,
        scores: Sequence[str] = ("nmi",),
        but: Collection[str] = (),
        out: str | Path | None = None,
    ) -> pd.DataFrame:
        """Compares two methods by pairs of runs with the same seed and settings.

        The seed decides the partition and all random draws, so the runs of a pair have
        the same partition.

        Args:
            other: runs of the second method; `self` has the runs of the first method.
            by: columns whose values define a row. Empty takes all columns that vary in
                both except for the seed.
            scores: columns of `runs`, where higher is better.
            but: settings that may differ between the runs of a pair.
            out: folder for comparison.csv and comparison.png.

        Returns:
            One row per setting and score: both means, their difference with its
            bootstrap interval, the probability that the first method is ahead with a
            further seed, the p-value of the paired t-test, the p-value after Holm's
            correction for all rows, the number of further seeds for a decision, and
            the better method.

        Raises:
            ValueError: a side has runs of several folders, the data differs, or there
                are no pairs.
        """
        for side in (self, other):
            if len(side.folders) > 1:
                raise ValueError(
                    "compare takes one method on each side, got runs of several "
                    "folders; select one method with `where`"
                )
        check_same_data([self[0], other[0]])
        by = [by] if isinstance(by, str) else list(by)
        scores = list(dict.fromkeys(scores))
        table = comparison.compare_runs(
            self._runs, other._runs, by=by, scores=scores, but=but
        )
        if out is not None:
            first, second = self[0].row, other[0].row
            title = f"{first['method']} and {second['method']} on {first['dataset']}"
            write_comparison(Path(out), table, title)
        return table

    def compare_between(
        self,
        between: str,
        by: str | Sequence[str] = (),
        *,
        scores: Sequence[str] = ("nmi",),
        out: str | Path | None = None,
    ) -> pd.DataFrame:
        """Compares all pairs of values of one setting, or all pairs of methods.

        Args:
            between: the setting, such as "p", for runs of one method; "method" for runs
                of several.
            by: columns whose values define a row, see `compare`.
            scores: columns of `runs`, where higher is better.
            out: folder for comparison.csv and comparison.png.

        Returns:
            One row per pair, setting and score, as `compare` returns. The first two
            columns name both values. Holm's correction is for all rows.

        Raises:
            ValueError: `between` has fewer than two values, or a pair has no runs with
                the same seed and settings, see `compare`.
        """
        columns = {"method": {run.row["method"] for run in self._runs}}
        if len(self.folders) == 1:
            columns = {x: {*self.runs[x]} for x in self.folders[0].settings}
        values = {x: sorted(found) for x, found in columns.items() if len(found) > 1}
        if between not in values:
            raise ValueError(
                f"`between` takes {' '.join(values) or 'a setting of two values'}, got "
                f"{between}"
            )
        by = [by] if isinstance(by, str) else list(by)
        if between != "method":
            by = by or [x for x in values if x not in ("method", between)]
        parts = []
        for first, second in combinations(values[between], 2):
            one, two = (self.where(**{between: value}) for value in (first, second))
            part = one.compare(two, by, scores=scores, but={between})
            part.insert(0, f"first {between}", first)
            part.insert(1, f"second {between}", second)
            parts.append(part)
        table = pd.concat(parts, ignore_index=True)
        table["holm"] = holm(table.p_value.tolist())
        table["better"] = [comparison.better(x) for x in table.to_dict("records")]
        if out is not None:
            title = f"values of {between}: first minus second"
            write_comparison(Path(out), table, title)
        return table

    def report(self, out: str | Path) -> Run:
        """Writes the HTML report of the best run.

        The report has the scores of all runs and, for the best run, examples of each
        cluster, the clients of each cluster, and a map of the embedding. For data with
        labels it also has the k-means baseline, the confusion matrix, the partition and
        the learning curves. The number of clusters and the confidence are judged by all
        runs of the folder, also if only some of them are selected.

        Args:
            out: folder for report.html, assignments.csv and embeddings.npz.

        Returns:
            The run that the report shows. It is the run of `choose` among the runs with
            the number of clusters that `how_many` finds most stable. If `how_many` has
            no result, it is the run of `choose` among all runs. Labels are not used.

        Raises:
            ValueError: the runs are of several folders, or the data cannot be read.
        """
        if len(self.folders) > 1:
            raise ValueError(
                f"report takes the runs of one folder, got {len(self.folders)} "
                "folders; select one method with `where`"
            )
        whole = Results(self.folders).ensemble()
        return html_report.write(self.ensemble(), whole, Path(out))

    def draw(self, out: str | Path) -> Run:
        """Draws the figures of the grid and of the best run.

        The figures of the grid are learning curves, and scores against each setting
        that varies. The figures of the run are the partition, the confusion matrix,
        examples of the clusters, a map of the embedding, and the association graph.

        Args:
            out: folder of the figures.

        Returns:
            The run of the figures, see `choose`.
        """
        run = self[selection.choose_run(self.ensemble())[0]]
        scored, names = run.scored_examples, [*run.folder.settings, "seed"]
        embedding = scored.prediction and scored.prediction.embedding
        drawing.figures_of_run(
            *(Path(out), scored.dataset, scored.clients, scored.clusters, embedding),
            run.folder.communities(run.params),
            scope=run.row["scope"],
            title=drawing.figure_title([run.row], names),
        )
        drawing.figures_of_grid(run.folder, Path(out))
        return run

    def export(self, out: str | Path) -> None:
        """Writes the files of the only run, see `Run.export`.

        Args:
            out: folder of the files.

        Raises:
            ValueError: there are several runs, the clients have no common model, or
                `out` cannot be written.
        """
        self.run().export(out)

    @property
    def _title(self) -> str:
        """Method and data set, for the titles of figures."""
        methods = dict.fromkeys(run.row["method"] for run in self._runs)
        return f"{', '.join(methods)} on {self[0].row['dataset']}"


def gather(
    folders: Sequence[Path],
    where: Mapping[str, Any] | None = None,
    *,
    data_dir: Path | None = None,
) -> Results:
    """Returns the finished runs of some folders with the given axis values.

    Args:
        folders: results folders.
        where: axis values, as numbers or as text.
        data_dir: folder of prepared TFDS data sets.

    Returns:
        The runs.

    Raises:
        ValueError: there is no folder, a folder occurs twice or has no finished run, or
            no run of a folder has the values.
    """
    if not folders:
        raise ValueError("at least one results folder is required; see --help")
    places = [folder.resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            raise ValueError(f"{folder} is given twice")
    opened = [store.read(folder, data_dir=data_dir) for folder in folders]
    rows_of = [folder.rows_of(**(where or {})) for folder in opened]
    results = Results([])
    results._runs = [
        Run(folder, row)
        for folder, rows in zip(opened, rows_of, strict=True)
        for row in rows
    ]
    return results


def check_same_data(runs: Sequence[Run]) -> None:
    """Checks that all runs have the same examples.

    Args:
        runs: the runs.

    Raises:
        ValueError: two runs have different data.
    """

    def data_of(run: Run) -> dict[str, object]:
        config = run.folder.config
        settings = {name: config.get(name) for name in SOURCE}
        # The same file may have different paths.
        settings["dataset"] = Path(config["dataset"]).name
        if settings["limit"] is None:
            # Labels matter only for the choice of a subset.
            del settings["labels"]
        return {**settings, "samples": run.row["samples"], **run.folder.digests()}

    first, *others = runs
    data = data_of(first)
    for run in others:
        other = data_of(run) if run.folder is not first.folder else data
        for name in data:
            if name in other and data[name] != other[name]:
                raise ValueError(
                    f"{first.folder.directory} and {run.folder.directory} are of "
                    f"different data: {name} is {data[name]} and {other[name]}"
                )


def write_consensus(out: Path, runs: Ensemble, combined: Consensus) -> None:
    """Writes the files of `Results.consensus` into the folder `out`.

    Args:
        out: the folder, which exists.
        runs: the runs that form the consensus.
        combined: the consensus of the runs.
    """
    scored = runs.runs[0].scored_examples
    dataset, labels = scored.dataset, scored.dataset.labels
    columns = {
        "example": scored.names,
        "client_name": scored.client_name_of_example,
        "cluster": combined.clusters,
        "confidence": combined.confidence,
        "label": labels,
    }
    table = pd.DataFrame({k: v for k, v in columns.items() if v is not None})
    table.to_csv(out / "assignments.csv", index=False, float_format="%.6g")
    np.savez_compressed(out / "consensus.npz", **combined._asdict())
    right = None
    if labels is not None:
        has_cluster = combined.clusters >= 0
        right = np.zeros(len(labels), bool)
        matched = metrics.match(labels[has_cluster], combined.clusters[has_cluster])
        right[has_cluster] = matched == labels[has_cluster]
    name = runs.runs[0].row["dataset"]
    title = f"consensus of {len(runs.runs)} runs on {name}"
    path = out / "confidence.png"
    figures.confidence(combined.confidence, path, right=right, title=title)
    rows, titles = least_confident(combined)
    if dataset.examples.ndim == 4 and any(map(len, rows)):
        images = [dataset.examples[indices] for indices in rows]
        title += ": examples of lowest confidence"
        figures.image_rows(images, titles, out / "unsure.png", title=title)


def least_confident(combined: Consensus) -> tuple[list[np.ndarray], list[str]]:
    """Returns the examples of lowest confidence of each cluster.

    Args:
        combined: the consensus. Examples with a confidence of 1 are left out.

    Returns:
        Per cluster, the indices of at most `PER_CLUSTER` examples by ascending
        confidence, none if all have a confidence of 1; and per cluster, the title of
        its row of images.
    """
    rows, names = [], []
    confidence = combined.confidence
    for k in np.unique(combined.clusters[combined.clusters >= 0]):
        indices = np.flatnonzero((combined.clusters == k) & (confidence < 1))
        order = np.argsort(confidence[indices], kind="stable")
        indices = indices[order][:PER_CLUSTER]
        rows.append(indices)
        least = f"from {confidence[indices[0]]:.0%}" if len(indices) else "all sure"
        names.append(f"cluster {k}, {least}")
    return rows, names


def shown_value(value: Any) -> str:
    """Returns the value of a setting as text."""
    return value if isinstance(value, str) else f"{value:g}"


def write_comparison(out: Path, table: pd.DataFrame, title: str) -> None:
    """Writes the files of `Results.compare` into the folder `out`.

    Args:
        out: the folder; a missing folder is created.
        table: the result of `compare_runs`.
        title: title of the figure.
    """
    out.mkdir(parents=True, exist_ok=True)
    numbers = table.drop(columns="better")
    numbers.to_csv(out / "comparison.csv", index=False, float_format="%.6g")
    by = list(table.columns[: table.columns.get_loc("score")])  # pyright: ignore[reportArgumentType]
    names = [
        ", ".join(
            [*(f"{name} {shown_value(line[name])}" for name in by), line["score"]]
        )
        for line in table.to_dict("records")
    ]
    intervals = zip(table.difference, table.low, table.high, strict=True)
    significant = (table.holm < SURE).tolist()
    scores = " and ".join(map(figures.in_words, table.score.unique()))
    figures.intervals(
        {n: (*x, s) for n, x, s in zip(names, intervals, significant, strict=True)},
        out / "comparison.png",
        xlabel=f"{scores}\nfirst minus second",
        title=title,
    )


def draw_agreements(runs: Ensemble, order: Sequence[int], path: Path) -> None:
    """Draws the adjusted Rand index of each pair of runs, with runs in this order.

    Args:
        runs: the runs.
        order: indices of the runs, from top to bottom of the matrix.
        path: file to write; the ending sets the format.
    """
    pairs = pairwise_agreement(runs.clusters, client_of_example=runs.clients)
    names = [runs.runs[i].name for i in order]
    title = f"agreement of pairs of runs on {runs.runs[0].row['dataset']}"
    figures.agreements(pairs[np.ix_(order, order)], names, path, title)
