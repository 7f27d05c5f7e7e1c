"""The commands for finished runs: arguments around the methods of `Results`.

A command is a dataclass of its arguments; calling it does the work. It raises a
ValueError of one line where the runs do not allow it.
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import tyro

from fcjax import data
from fcjax.results import drawing, exported, selection, shards, tables
from fcjax.results.probing import shown_linear
from fcjax.results.results import draw_agreements, gather
from fcjax.results.selection import DEFAULT, Criterion
from fcjax.results.store import example_names, parsed
from fcjax.settings import shown
from fcjax.sweep import report
from fcjax.sweep.progress import log_to_stdout


@dataclasses.dataclass(frozen=True)
class Choose:
    """Ranks finished runs of the same data without labels, and says which to take.

    Heterogeneity, the number and size of the clients, and failures are settings of the
    data, not of the method. There is one choice for each of their values.

    agreement: how far a run agrees with the others, by the adjusted Rand index;
    agreement_nmi: by NMI; consensus: with what all say together, as `fcjax consensus`
    has it. others: its silhouette in the embeddings of the other runs, by rank. input:
    its silhouette among the examples as they are. silhouette: in its own embedding,
    which does not compare runs. loss: the last one, the smaller the better. Where the
    data has labels the rank correlation of each with NMI and ACC is printed, and its
    regret: the best run's NMI less that of the run it takes.

    choice.csv   a line a run, the best first: what each criterion says of it
    choice.png   how far each two of them agree, for one setting of the data
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Results folders, --out of the runs."""
    by: Criterion = DEFAULT
    """The criterion that ranks the runs."""
    where: Annotated[tuple[str, ...], shown("all runs")] = ()
    """Only runs with these values: p=0.25 clusters=10."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    out: Annotated[Path | None, shown("the first folder")] = None
    """Folder of choice.csv and choice.png; written over."""

    def __call__(self) -> None:
        results = gather(self.runs, parsed(self.where), data_dir=self.data_dir)
        ranks, runs = results.rank(self.by), results.ensemble()
        groups = runs.by_data_setting
        tables_of = [ranks.loc[[i for i in ranks.index if i in g]] for g in groups]
        for table in tables_of:
            best = results[int(table.index[0])]
            print(f"by {self.by}: {best.name}")
            print(f"see it: fcjax report {best.address}")
        out = self.out or self.runs[0]
        out.mkdir(parents=True, exist_ok=True)
        for table in tables_of:
            folders = [Path(folder).name for folder in table["folder"]]
            tables.show(table.assign(folder=folders), ".3f")
            if runs.is_labelled:
                tables.show(selection.against_labels(table), ".3f")
        ranks.to_csv(out / "choice.csv", index=False, float_format="%.6g")
        print(f"all criteria of each run: {out / 'choice.csv'}")
        if len(groups) == 1 and len(ranks) > 1:
            draw_agreements(runs, ranks.index.tolist(), out / "choice.png")
            print(f"agreement of each two runs: {out / 'choice.png'}")


@dataclasses.dataclass(frozen=True)
class Compare:
    """Compares the finished runs of two folders that have the same seed, and the same
    of whatever else both vary: a seed decides the partition and all draws.

    Each line has the difference of the scores and its bootstrap interval, the chance
    that the first is ahead with a further seed, the p-value of the paired t-test after
    Holm's correction for all lines, and how many more seeds would decide.

    comparison.csv   a line a setting: the difference, its interval, what it says
    comparison.png   the same as a figure
    """

    first: tyro.conf.Positional[Path]
    """Results folder of the one."""
    second: tyro.conf.Positional[Path]
    """Of the other; the same folder, where --first-where and --second-where tell them
    apart."""
    by: Annotated[tuple[str, ...], shown("what both vary but the seed")] = ()
    """What makes a line: p clusters."""
    score: tuple[str, ...] = ("nmi",)
    """Columns of results.csv; the larger the better."""
    first_where: Annotated[tuple[str, ...], shown("all its runs")] = ()
    """Only these runs of the first: model_weight=0.1."""
    second_where: Annotated[tuple[str, ...], shown("all its runs")] = ()
    """Only these runs of the second."""
    out: Annotated[Path | None, shown("the first folder")] = None
    """Folder of comparison.csv and comparison.png; written over."""

    def __call__(self) -> None:
        wheres = self.first_where, self.second_where
        folders = self.first, self.second
        one, two = (
            gather([folder], parsed(where))
            for folder, where in zip(folders, wheres, strict=True)
        )
        out = self.out or self.first
        but = {*parsed(self.first_where), *parsed(self.second_where)}
        table = one.compare(two, self.by, scores=self.score, but=but, out=out)
        named = [
            f"{runs.runs.method[0]} of {folder} {' '.join(where)}".rstrip()
            for runs, folder, where in zip((one, two), folders, wheres, strict=True)
        ]
        print(f"the first, {named[0]}, less the second, {named[1]}")
        tables.show(table, ".3f")
        used = table.groupby("score").seeds.sum().max()
        for runs, name in zip((one, two), named, strict=True):
            if left := len(runs) - used:
                print(f"runs without a partner: {left} of {len(runs)} runs of {name}")
        if table.seeds.max() == 1:
            print("one seed decides nothing: run more seeds, with --seed 0 1 2 3 4")
        print(f"the differences with their intervals: {out / 'comparison.png'}")


@dataclasses.dataclass(frozen=True)
class Consensus:
    """Clusters examples by how often finished runs put them together, and says how sure
    it is of each. Runs that collapsed or diverged have no vote.

    Where the data has labels the scores are printed beside those of the single runs.

    assignments.csv   every example: its cluster, and how often the runs have it there
    consensus.npz     the same for NumPy
    unsure.png        for each cluster the examples of which the runs are least sure
    confidence.png    how many examples are how sure, and with labels how right
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Results folders, --out of the runs; of any method."""
    clusters: Annotated[int | None, shown("as many as the runs look for")] = None
    """How many clusters."""
    where: Annotated[tuple[str, ...], shown("all runs")] = ()
    """Only runs with these values: p=0.25 clusters=10."""
    seed: int = 0
    """Of k-means of the spectral embedding."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    out: Annotated[Path | None, shown("consensus/ of the first folder")] = None
    """Folder of the four files; written over."""

    def __call__(self) -> None:
        results = gather(self.runs, parsed(self.where), data_dir=self.data_dir)
        out = self.out or self.runs[0] / "consensus"
        together = results.consensus(self.clusters, seed=self.seed, out=out)
        voters = results.ensemble().voters
        print(selection.confidence_text(voters, together))
        if voters.dataset.labels is not None:
            tables.show(selection.consensus_scores(voters, together), ".3f")
        print(f"every example, and which ones are unsure: {out / 'assignments.csv'}")


@dataclasses.dataclass(frozen=True)
class Draw:
    """Draws a finished run again: learning curves, scores against whatever varies, the
    partition, the confusion matrix, a contact sheet of the clusters, the embedding, and
    the association graph of clients' clusters.
    """

    run: tyro.conf.Positional[Path]
    """The results folder, --out of the run."""
    where: Annotated[tuple[str, ...], shown("that of fcjax choose")] = ()
    """Which run of a grid: p=0.25 seed=3."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    out: Annotated[Path | None, shown("RUN/figures")] = None
    """Folder of the figures."""

    def __call__(self) -> None:
        out = self.out or self.run / "figures"
        results = gather([self.run], parsed(self.where), data_dir=self.data_dir)
        print(f"figures of the run {results.draw(out).name}: {out}")


@dataclasses.dataclass(frozen=True)
class Export:
    """Writes the network and the embeddings of a finished run for use without fcjax.

    network.safetensors   the weights by path; metadata: fcjax (version), config (JSON)
    config.json           the same configuration, with the run's swept values
    embeddings.npz        in the order of the data set: embedding [P, D], cluster [P],
                          client [P] (-1: nobody's), label [P] if there are any; and
                          centers [K, D], each cluster's mean embedding (NaN: empty)
    assignments.csv       the same without the embedding: example (its file or row),
                          client, cluster, distance to the cluster's center

    The extra split has no rows in it.
    """

    run: tyro.conf.Positional[Path]
    """The results folder, --out of the run."""
    where: Annotated[tuple[str, ...], shown("the only run")] = ()
    """Which run of a grid: p=0.25 seed=3."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    out: Annotated[Path | None, shown("RUN/export")] = None
    """Folder of network.safetensors, config.json, embeddings.npz and assignments.csv;
    an earlier export in it is written over."""

    def __call__(self) -> None:
        out = self.out or self.run / "export"
        run = gather([self.run], parsed(self.where), data_dir=self.data_dir).run()
        run.export(out)
        print(f"network and embeddings of the run {run.name}: {out}")
        if run.scored.moved:
            print(
                f"{run.scored.moved} examples are assigned otherwise than in the run: "
                "the data has changed, or they lie between clusters on this device"
            )


@dataclasses.dataclass(frozen=True)
class HowMany:
    """Says for which number of clusters finished runs come out alike with every seed,
    and have no parts that do, too.

    It takes runs of several --clusters and at least two seeds each, that are alike in
    all else. Runs that collapsed or diverged do not count.

    how_many.csv   a line a number of clusters
    how_many.png   the same as curves, with their bands
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Results folders, --out of the runs."""
    where: Annotated[tuple[str, ...], shown("all runs")] = ()
    """Only runs with these values: p=0.25."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    out: Annotated[Path | None, shown("the first folder")] = None
    """Folder of how_many.csv and how_many.png; written over."""

    def __call__(self) -> None:
        out = self.out or self.runs[0]
        results = gather(self.runs, parsed(self.where), data_dir=self.data_dir)
        suggestion = results.how_many(out)
        print(suggestion.reason)
        tables.show(suggestion.table, ".3f")
        if suggestion.left_out:
            print(suggestion.left_out)
        print(f"the same as curves: {out / 'how_many.png'}")


@dataclasses.dataclass(frozen=True)
class Report:
    """Writes report.html, which shows what a folder run found: its scores beside those
    of the other runs, a sheet of examples for each cluster, and a map of them all.

    report.html         opens in any browser, without a network and without JavaScript
    assignments.csv   of the run that it shows: example, client, cluster, distance
    embeddings.npz    of the same run, as `fcjax export` writes it
    """

    run: tyro.conf.Positional[Path]
    """The results folder, --out of the run."""
    where: Annotated[tuple[str, ...], shown("that of fcjax choose")] = ()
    """Which run of a grid: p=0.25 clusters=10 seed=3."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    out: Annotated[Path | None, shown("RUN")] = None
    """Folder of report.html, assignments.csv and embeddings.npz; written over."""

    def __call__(self) -> None:
        out = self.out or self.run
        results = gather([self.run], parsed(self.where), data_dir=self.data_dir)
        print(f"report of the run {results.report(out).name}: {out / 'report.html'}")


@dataclasses.dataclass(frozen=True)
class Predict:
    """Assigns the examples of a data set to the clusters of a finished run."""

    run: tyro.conf.Positional[Path]
    """The results folder, --out of the run."""
    dataset: str
    """digits, a TFDS data set or a path, as for the experiments; labels are not used,
    but the last column of a table is taken for one unless there is --no-labels."""
    image_shape: Annotated[tuple[int, ...], shown("feature vectors")] = ()
    """H W or H W C of the images that rows of numbers in a file hold, row by row."""
    resize: Annotated[int | None, shown("as in the run")] = None
    """Resize images to so many pixels a side, bilinear, without cropping."""
    labels: bool = True
    """Whether the last column of a table is the class."""
    client_column: Annotated[str | None, shown("none")] = None
    """Column of a table that says whose an example is, and is no feature."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    where: Annotated[tuple[str, ...], shown("the only run")] = ()
    """Which run of a grid: p=0.25 seed=3."""
    out: Annotated[Path | None, shown("RUN/predictions.csv")] = None
    """The table to write: example, cluster, distance to the center of its own cluster
    and of each other, in the embedding."""

    def __call__(self) -> None:
        run = gather([self.run], parsed(self.where)).run()
        source, model = run.folder.source(), run.model
        dataset = data.load(
            self.dataset,
            data_dir=self.data_dir,
            image_shape=self.image_shape or None,
            labelled=self.labels,
            client_column=self.client_column,
            scaling=model.scaling,
            resize=source.resize if self.resize is None else self.resize,
            keep_index=source.keep_index,
        )
        found = exported.predict(model, dataset.examples)
        names = example_names(self.dataset, len(dataset.examples))
        own = found.distances[np.arange(len(names)), found.clusters]
        table = pd.DataFrame(
            {"example": names, "cluster": found.clusters, "distance": own}
        )
        table[[f"to_{k}" for k in range(len(model.centers))]] = found.distances
        out = self.out or self.run / "predictions.csv"
        out.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(
            out, index=False, float_format="%.6g", na_rep="nan", lineterminator="\n"
        )
        print(f"{len(names)} examples by the run {run.name}: {out}")


@dataclasses.dataclass(frozen=True)
class Probe:
    """Probes the embedding of a finished run on its labels."""

    run: tyro.conf.Positional[Path]
    """The results folder, --out of the run."""
    num_neighbors: tuple[int, ...] = (3, 5, 7, 9, 100, 1000, 7000)
    """How many neighbours vote; more than there are training examples are left out."""
    label_fraction: tuple[float, ...] = (0.01, 0.1)
    """Shares of the training labels that linear classifiers learn from, above 0 and at
    most 1; of each class at least one label."""
    num_draws: int = 5
    """How many times each share is drawn."""
    where: Annotated[tuple[str, ...], shown("the only run")] = ()
    """Which run of a grid: p=0.25 seed=3."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""

    def __call__(self) -> None:
        run = gather([self.run], parsed(self.where), data_dir=self.data_dir).run()
        found = run.probe(self.num_neighbors, self.label_fraction, self.num_draws)
        num_trained = len(run.scored.clusters) - found.num_tested
        print(f"{run.name}: {found.num_tested} examples by {num_trained}")
        tables.show(found.neighbors, ".4f")
        print(
            "linear classifiers of the frozen embedding; from a share of the labels "
            f"the mean ± 95 % interval over {self.num_draws} draws"
        )
        tables.show(shown_linear(found.linear))
        print("the run's clusters, and those of k-means on its embedding in one place")
        tables.show(found.clusters, ".4f")
        print("mean of the clients' own scores, each with a match of its own")
        tables.show(found.clients, ".4f")


@dataclasses.dataclass(frozen=True)
class Collect:
    """Merges shards of one grid; refuses those of different configurations."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Results folders, or folders that hold shards of a grid."""
    out: Annotated[
        Path | None, shown("where the shards are, if that is one folder")
    ] = None
    """The merged results folder."""
    plot: bool = True
    """Draw learning curves and scores against what varies."""

    def __call__(self) -> None:
        if not self.folders:
            raise ValueError("which folders? see --help")
        folders = shards.find(self.folders)
        parents = {
            folder.parent for folder in folders if folder.name.startswith("shard-")
        }
        if self.out is None and len(parents) != 1:
            raise ValueError(
                "--out is required where the folders are no shards of one grid"
            )
        out = self.out or parents.pop()
        results = shards.merge(folders, out)
        for line in shards.missing(folders):
            print(f"warning: {line}")
        labelled = any(row["nmi"] is not None for row in results.rows)
        with log_to_stdout():
            report.log_results(results, labelled=labelled)
        if self.plot:
            drawing.grid_figures(
                out / "figures", results.rows, results.rounds, by=results.settings
            )
        print(f"{len(results.rows)} runs in {out}")


TOOLS = {
    "report": Report,
    "draw": Draw,
    "predict": Predict,
    "export": Export,
    "probe": Probe,
    "choose": Choose,
    "consensus": Consensus,
    "how-many": HowMany,
    "compare": Compare,
    "collect": Collect,
}
"""By command."""
