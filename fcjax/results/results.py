"""`Results`: the finished runs of one or several methods, in memory or folders."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fcjax import metrics
from fcjax.data.source import SOURCE
from fcjax.metrics.agreement import SURE, Consensus, pairwise_agreement
from fcjax.results import (
    comparison,
    drawing,
    figures,
    html_report,
    selection,
    store,
    tables,
)
from fcjax.results.run import Run
from fcjax.results.selection import Criterion, Ensemble, Suggestion
from fcjax.results.store import Folder

PER_CLUSTER = 16
"""Examples of each cluster that `Results.consensus` draws."""


class Results:
    """The finished runs of one or several methods, in memory or in folders.

    The methods that compare runs need no labels. In memory they return frames and
    objects; they write files where a path is given.

    Examples:
        >>> import fcjax
        >>> results = fcjax.open("runs/spherical")
        >>> results.runs[["method", "p", "seed", "status"]]
              method     p  seed status
        0  spherical  0.25     0     ok
    """

    def __init__(self, folders: Sequence[Folder]):
        self._runs = [
            Run(folder, row)
            for folder in folders
            for row in folder.requested(folder.rows)
        ]

    @property
    def folders(self) -> list[Folder]:
        """The folders, or grids in memory, that the runs are of."""
        return list(dict.fromkeys(run.folder for run in self._runs))

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: int) -> Run:
        """Returns a run by its place in `runs`."""
        return self._runs[index]

    def _take(self, runs: Sequence[Run]) -> "Results":
        taken = Results([])
        taken._runs = list(runs)
        return taken

    @property
    def runs(self) -> pd.DataFrame:
        """One row per run, as in results.csv."""
        return pd.DataFrame([run.row for run in self._runs])

    @property
    def history(self) -> pd.DataFrame:
        """One row per round of a run, as in history.csv, with the method."""
        rounds = []
        for folder in self.folders:
            points = [run.params for run in self._runs if run.folder is folder]
            rows = folder.of_runs(folder.rounds, points)
            rounds += [{**row, "method": folder.config["method"]} for row in rows]
        return pd.DataFrame(rounds)

    def where(self, **params: Any) -> "Results":
        """Returns the runs that have these values, of a setting or of `method`.

        Raises:
            ValueError: no run has them.
        """

        def has(run: Run, name: str, value: Any) -> bool:
            if name == "method":
                return run.folder.config["method"] == value
            return name in run.folder.columns and bool(np.isclose(run.row[name], value))

        runs = [
            run
            for run in self._runs
            if all(has(run, name, value) for name, value in params.items())
        ]
        if not runs:
            told = ", ".join(f"{name} {value}" for name, value in params.items())
            raise ValueError(f"no run has {told}")
        return self._take(runs)

    def run(self, **params: Any) -> Run:
        """Returns the only run that has these values, see `where`.

        Raises:
            ValueError: no run has them, or several: the line names the columns in which
                those differ.
        """
        left = self.where(**params)
        if len(left) > 1:
            axes = (name for folder in left.folders for name in folder.names)
            each = {n: left.runs[n].unique() for n in dict.fromkeys(("method", *axes))}
            told = " and ".join(
                f"{name} ({', '.join(map(str, values))})"
                for name, values in each.items()
                if len(values) > 1
            )
            raise ValueError(f"{len(left)} runs are left; choose one by {told}")
        return left[0]

    def summary(self, by: str | Sequence[str] | None = None) -> pd.DataFrame:
        """Returns the mean of each score over seeds, half its 95 % interval where there
        are three seeds or more, and the number of seeds.

        Args:
            by: columns that tell the rows apart besides the method; None takes all that
                vary but the seed.
        """
        axes = dict.fromkeys(name for x in self.folders for name in x.settings)
        by = [*axes] if by is None else [by] if isinstance(by, str) else [*by]
        by = ["method", *by]
        rows = [run.row for run in self._runs]
        labelled = any(row["nmi"] is not None for row in rows)
        names = ("nmi", "acc", "kappa") if labelled else ("silhouette",)
        # A method may lack an axis that another has.
        rows = [{**dict.fromkeys(by), **row} for row in rows]
        found = tables.summarize(rows, by=by, values=names)
        seeds = found.filter([f"{name}_seeds" for name in names]).max(axis=1)
        widths = [f"{name}_half_width" for name in names]
        table = found.filter([*names, *widths]).assign(seeds=seeds)
        return table.dropna(axis=1, how="all")

    def ensemble(self) -> Ensemble:
        """Returns the runs with the clusters of their examples, aligned.

        Raises:
            ValueError: the runs are of different data, or a folder has no assignments.
        """
        check_same_data(self._runs)
        return selection.ensemble(self._runs)

    def rank(self, by: Criterion = "input") -> pd.DataFrame:
        """Ranks the runs without labels, the best first.

        Heterogeneity, the number and size of the clients, and failures are settings of
        the data, not of the method: each of their values has a ranking of its own.

        Args:
            by: the criterion. "agreement": how far a run agrees with the others, by the
                adjusted Rand index; "agreement_nmi": by NMI; "consensus": with the
                consensus of all. "others": its silhouette in the embeddings of the
                other runs, by rank; "input": its silhouette among the examples as they
                are; "silhouette": in its own embedding, which does not compare runs.
                "loss": the last loss, the smaller the better.

        Returns:
            One row per run, with all criteria; NaN where one says nothing of a run. The
            index is the run's place in `runs`.

        Raises:
            ValueError: the criterion says nothing of any run.
        """
        runs, tables = self.ensemble(), []
        for group in runs.by_data_setting:
            ranks = selection.rank_runs(runs.take(group), by)
            tables.append(ranks.set_axis([group[i] for i in ranks.index]))
        return pd.concat(tables)

    def choose(self, by: Criterion = "input") -> Run:
        """Returns the best run without labels, see `rank`.

        Raises:
            ValueError: the runs have different settings of the data, such as several p;
                choose among one of them by `where`.

        Examples:
            >>> import fcjax
            >>> fcjax.open("runs/spherical").choose().name
            'spherical p 0.25, seed 0'
        """
        if len(groups := self.ensemble().by_data_setting) > 1:
            first = "; ".join(self._runs[group[0]].name for group in groups)
            raise ValueError(
                f"the runs have {len(groups)} settings of the data ({first}): choose "
                "one by `where`"
            )
        return self._runs[int(self.rank(by).index[0])]

    def consensus(
        self,
        num_clusters: int | None = None,
        *,
        seed: int = 0,
        out: str | Path | None = None,
    ) -> Consensus:
        """Clusters examples by how often the runs put them together.

        Runs that collapsed or diverged have no vote.

        Args:
            num_clusters: number of clusters; None takes the number of the runs.
            seed: of k-means of the spectral embedding.
            out: folder for assignments.csv, consensus.npz, confidence.png and, of
                images, unsure.png: the examples of which the runs are least sure.

        Returns:
            The cluster of every example, and the confidence in it.

        Raises:
            ValueError: fewer than two runs ended well, or they look for different
                numbers of clusters and none is given.
        """
        runs = self.ensemble().voters
        together = selection.consensus_of(runs, num_clusters, seed=seed)
        if out is not None:
            Path(out).mkdir(parents=True, exist_ok=True)
            write_consensus(Path(out), runs, together)
        return together

    def how_many(self, out: str | Path | None = None) -> Suggestion:
        """Suggests the number of clusters on which the seeds agree most.

        The runs differ in their number of clusters and their seeds alone, with two
        seeds or more each. Runs that collapsed or diverged do not count.

        Args:
            out: folder for how_many.csv and how_many.png.

        Returns:
            The number, None where no number stands out, and the reason.

        Raises:
            ValueError: fewer than two numbers can be compared, the runs differ in other
                settings, or clients have no common embedding.
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
                title="stability of each number of clusters",
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
        """Compares two methods by their runs with the same seed and settings: a seed
        decides the partition and all draws.

        Args:
            other: the runs of the second method; `self` holds those of the first.
            by: columns that make a row; empty takes all that both vary but the seed.
            scores: columns of `runs`, the larger the better.
            but: settings in which two runs that are compared may differ.
            out: folder for comparison.csv and comparison.png.

        Returns:
            One row per setting and score: both means, their difference with its
            bootstrap interval, the probability that the first is ahead with a further
            seed, the p-value of the paired t-test, the same after Holm's correction for
            all rows, the number of further seeds that would decide, and which is
            better.

        Raises:
            ValueError: either side holds runs of several folders, the data differs, or
                no two runs are partners.
        """
        for side in (self, other):
            if len(side.folders) > 1:
                raise ValueError("compare takes one method on each side")
        check_same_data([self[0], other[0]])
        by = [by] if isinstance(by, str) else list(by)
        scores = list(dict.fromkeys(scores))
        table = comparison.compare_runs(
            self._runs, other._runs, by=by, scores=scores, but=but
        )
        if out is not None:
            write_comparison(Path(out), table)
        return table

    def report(self, out: str | Path) -> Run:
        """Writes an HTML report: the scores of the runs, examples of each cluster of
        the best run, and a map of its embedding.

        Args:
            out: folder for report.html, assignments.csv and embeddings.npz.

        Returns:
            The run that the report shows: of the suggested number of clusters the run
            that `choose` takes.
        """
        if len(self.folders) > 1:
            raise ValueError("report takes the runs of one method")
        return html_report.write(self.ensemble(), Path(out))

    def draw(self, out: str | Path) -> Run:
        """Draws the figures of the grids, and those of the best run: learning curves,
        scores against whatever varies, the partition, the confusion matrix, examples
        of the clusters, the embedding, and the association graph.

        Args:
            out: folder of the figures.

        Returns:
            The run whose figures they are, see `report`.
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
        """Writes the only run for other programs, see `Run.export`."""
        self.run().export(out)


def gather(
    folders: Sequence[Path],
    where: Mapping[str, Any] | None = None,
    *,
    data_dir: Path | None = None,
) -> Results:
    """Returns the finished runs of some folders that have these values.

    Args:
        folders: results folders.
        where: axis values, as numbers or as text.
        data_dir: where TFDS data sets are prepared.

    Raises:
        ValueError: no folder, one twice, one without a finished run, or no run of a
            folder has the values.
    """
    if not folders:
        raise ValueError("which folders? see --help")
    places = [folder.resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            raise ValueError(f"{folder} is given twice")
    opened = [store.read(folder, data_dir=data_dir) for folder in folders]
    chosen = [folder.rows_of(**(where or {})) for folder in opened]
    runs = Results([])
    runs._runs = [
        Run(folder, row)
        for folder, rows in zip(opened, chosen, strict=True)
        for row in rows
    ]
    return runs


def check_same_data(runs: Sequence[Run]) -> None:
    """Raises ValueError where runs are not of the same examples."""

    def data_of(run: Run) -> dict[str, object]:
        config = run.folder.config
        settings = {name: config.get(name) for name in SOURCE}
        # A file may have been named from elsewhere.
        settings["dataset"] = Path(config["dataset"]).name
        if settings["limit"] is None:
            del settings["labels"]  # a part is drawn by them
        return {**settings, "samples": run.row["samples"], **run.folder.digests()}

    first, *others = runs
    one = data_of(first)
    for other in others:
        two = data_of(other) if other.folder is not first.folder else one
        for name in one:
            if name in two and one[name] != two[name]:
                raise ValueError(
                    f"{first.folder.directory} and {other.folder.directory} are of "
                    f"different data: {name} is {one[name]} and {two[name]}"
                )


def write_consensus(out: Path, runs: Ensemble, together: Consensus) -> None:
    """Writes the files of `Results.consensus`."""
    scored = runs.runs[0].scored_examples
    dataset, labels = scored.dataset, scored.dataset.labels
    columns = {
        "example": scored.names,
        "cluster": together.clusters,
        "confidence": together.confidence,
        "label": labels,
    }
    table = pd.DataFrame({k: v for k, v in columns.items() if v is not None})
    table.to_csv(out / "assignments.csv", index=False, float_format="%.6g")
    np.savez_compressed(out / "consensus.npz", **together._asdict())
    right = None
    if labels is not None:
        held = together.clusters >= 0
        right = np.zeros(len(labels), bool)
        own = metrics.match(labels[held], together.clusters[held])
        right[held] = own == labels[held]
    title = f"consensus of runs on {dataset.name}"
    path = out / "confidence.png"
    figures.confidence(together.confidence, path, right=right, title=title)
    rows, titles = least_confident(together)
    if dataset.examples.ndim == 4 and rows:
        images = [dataset.examples[each] for each in rows]
        title = f"least sure examples of {dataset.name}, by cluster"
        figures.image_rows(images, titles, out / "unsure.png", title=title)


def least_confident(together: Consensus) -> tuple[list[np.ndarray], list[str]]:
    """Returns of each cluster the examples of which the runs are least sure, those of
    which all are sure left out; and the titles of the rows.
    """
    rows, names = [], []
    for k in np.unique(together.clusters[together.clusters >= 0]):
        own = np.flatnonzero((together.clusters == k) & (together.confidence < 1))
        own = own[np.argsort(together.confidence[own], kind="stable")][:PER_CLUSTER]
        if len(own):
            rows.append(own)
            names.append(f"cluster {k}, from {together.confidence[own[0]]:.0%}")
    return rows, names


def write_comparison(out: Path, table: pd.DataFrame) -> None:
    """Writes the files of `Results.compare`."""
    out.mkdir(parents=True, exist_ok=True)
    numbers = table.drop(columns="better")
    numbers.to_csv(out / "comparison.csv", index=False, float_format="%.6g")
    by = list(table.columns[: table.columns.get_loc("score")])  # pyright: ignore[reportArgumentType]
    names = [
        ", ".join([*(f"{name} {line[name]:g}" for name in by), line["score"]])
        for line in table.to_dict("records")
    ]
    intervals = zip(table.difference, table.low, table.high, strict=True)
    sure = (table.holm < SURE).tolist()
    figures.intervals(
        {n: (*x, s) for n, x, s in zip(names, intervals, sure, strict=True)},
        out / "comparison.png",
        title=f"{' and '.join(table.score.unique())}: the first less the second",
    )


def draw_agreements(runs: Ensemble, order: Sequence[int], path: Path) -> None:
    """Draws how far each two runs agree, by the adjusted Rand index."""
    pairs = pairwise_agreement(runs.clusters, holders=runs.clients)
    names = [runs.runs[i].name for i in order]
    figures.agreements(pairs[np.ix_(order, order)], names, path)
