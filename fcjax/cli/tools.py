"""The commands for finished runs, such as `fcjax choose` and `fcjax compare`.

A command is a dataclass: its fields are the flags, and calling it runs the command.
Each command raises a ValueError with a message of one line if the runs do not fit.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import tyro

from fcjax import data
from fcjax.cli.errors import with_quoted_flags
from fcjax.metrics import agreement
from fcjax.results import drawing, exported, selection, shards, tables
from fcjax.results.probing import format_linear
from fcjax.results.results import draw_agreements, gather
from fcjax.results.run import Run
from fcjax.results.selection import DEFAULT, Criterion
from fcjax.results.store import example_names, parse_where
from fcjax.settings import shown
from fcjax.sweep import report
from fcjax.sweep.progress import log_to_stdout

Folders = Annotated[
    tyro.conf.Positional[tuple[Path, ...]],
    tyro.conf.arg(metavar="FOLDER [FOLDER ...]", help_behavior_hint="(required)"),
]
Folder = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
Conditions = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]
DataDir = Annotated[Path | None, shown("TFDS's own folder")]

MEANINGS: Mapping[Criterion, str] = {
    "agreement": "mean adjusted Rand index with the other runs",
    "agreement_nmi": "mean NMI with the other runs",
    "consensus": "adjusted Rand index with the consensus of all runs",
    "others": "rank of the run's clusters by silhouette in the embeddings of the other "
    "runs, 0 to 1",
    "input": "silhouette of the run's clusters by the distances of the raw examples",
    "silhouette": "silhouette of the run's clusters in the run's embedding",
    "loss": "minus the last loss",
}
"""The value of a run by each criterion. A larger value is better."""


@dataclasses.dataclass(frozen=True)
class Choose:
    """Ranks finished runs without labels and names the best run.

    All runs must be of the same data set. Runs are only compared if they have the same
    heterogeneity, number and size of clients, and failures, because these are settings
    of the data. Each combination of these settings has its own best run.

    Criteria for --by:
      agreement      mean adjusted Rand index with the clusters of the other runs
      agreement_nmi  the same with NMI in place of the adjusted Rand index
      consensus      adjusted Rand index with the consensus of all runs
      others         silhouette in the embeddings of the other runs, as a rank
      input          silhouette of the clusters among the raw examples
      silhouette     silhouette in the run's own embedding (not comparable between runs)
      loss           the last training loss; smaller is better

    For data with labels, a second table says how well each criterion finds good runs.

    Files in --out:
      choice.csv  one row per run, the best run first, with the value of each criterion
      choice.png  the agreement of each pair of runs (for one setting of the data)
    """

    runs: Folders
    """Results folders of finished runs, of one or several methods."""
    by: Criterion = DEFAULT
    """The criterion that ranks the runs."""
    where: Annotated[Conditions, shown("all runs")] = ()
    """Use only the runs with these values, for example p=0.25 clusters=10."""
    data_dir: DataDir = None
    """Folder of the prepared TFDS data sets."""
    out: Annotated[Path | None, shown("the first folder")] = None
    """Folder for choice.csv and choice.png. Existing files are replaced."""

    def __call__(self) -> None:
        """Prints the best run and the ranking, and writes the files."""
        results = gather(self.runs, parse_where(self.where), data_dir=self.data_dir)
        ranks, runs = results.rank(self.by), results.ensemble()
        groups = runs.by_data_setting
        rankings = [ranks.loc[[i for i in ranks.index if i in g]] for g in groups]
        best_runs = [results[int(ranking.index[0])] for ranking in rankings]
        for ranking, run in zip(rankings, best_runs, strict=True):
            print(best_run_sentence(ranking, run, self.by))
        out = self.out or self.runs[0]
        out.mkdir(parents=True, exist_ok=True)
        for ranking in rankings:
            folders = [Path(folder).name for folder in ranking["folder"]]
            table = ranking.assign(folder=folders).dropna(axis=1, how="all")
            print()
            tables.show(table, ".3f")
        used = {k: v for k, v in MEANINGS.items() if np.any(ranks[k].notna())}
        print_legend("columns, larger is better", used)
        for ranking in rankings if runs.is_labelled else ():
            print()
            tables.show(selection.against_labels(ranking), ".3f")
        if runs.is_labelled:
            meanings = {
                "rank correlation": "Spearman correlation of the criterion with NMI or "
                "ACC, over the runs; 1 is best",
                "regret": "NMI of the best run minus NMI of the run that the criterion "
                "chooses; 0 is best",
            }
            print_legend("columns", meanings)
        print()
        ranks.to_csv(out / "choice.csv", index=False, float_format="%.6g")
        print(f"ranking: {out / 'choice.csv'}")
        if len(groups) == 1 and len(ranks) > 1:
            draw_agreements(runs, ranks.index.tolist(), out / "choice.png")
            print(f"agreement of each pair of runs: {out / 'choice.png'}")
        for run in best_runs:
            print(f"next: fcjax report {run.command_arguments}")


COMPARISON = {
    "difference": "first minus second",
    "low, high": "95% bootstrap interval of the difference; the p-value decides",
    "probability": "chance that the first is better with a new seed",
    "p_value": "of a paired t-test",
    "more_seeds": "estimated number of further seeds to detect this difference",
    "seeds": "number of pairs with the same seed and settings",
    "holm": "p_value after Holm's correction for all rows",
}
"""The meaning of the columns of `Results.compare`, for its legend."""


def print_legend(title: str, meanings: Mapping[str, str]) -> None:
    """Prints the meaning of the columns of a table, one line per column.

    Args:
        title: the line above the columns, without a colon.
        meanings: the meaning of each column, by its name.
    """
    print(f"{title}:")
    for column, meaning in meanings.items():
        print(f"  {column}: {meaning}")


def best_run_sentence(ranking: pd.DataFrame, run: Run, by: Criterion) -> str:
    """Returns the best run of a ranking and its value, as a sentence.

    Args:
        ranking: the runs in descending order of the criterion, with one column per
            criterion.
        run: the best run.
        by: the criterion.

    Returns:
        One sentence, which also gives the number of compared runs and of equal values.
    """
    values = ranking[by].dropna()
    ties = int(np.isclose(values, values.iloc[0]).sum()) - 1
    text = f"The best run by {by} is {run.name} ({MEANINGS[by]}: {values.iloc[0]:.3f}"
    if len(values) == 1:
        return f"{text}; no other run can be compared)."
    if ties:
        return f"{text}, the same value as {ties} of the other runs)."
    return f"{text}, the largest of {len(values)} runs)."


@dataclasses.dataclass(frozen=True)
class Compare:
    """Tests whether the runs of one folder are better than the runs of another folder.

    Runs are compared in pairs with the same seed and the same other settings, because
    a seed decides the partition and all random draws. Each row of the table has the
    mean difference of the scores over the seeds and a paired t-test. The p-values are
    corrected for the number of rows (Holm). Below 0.05 a difference counts as detected.
    With --between and one folder, all pairs of values of one setting are compared, with
    one correction for all rows.

    Files in --out:
      comparison.csv  one row per setting and score
      comparison.png  the differences and their intervals
    """

    first: Annotated[Folder, tyro.conf.arg(metavar="FIRST")]
    """Results folder of the first method."""
    second: Annotated[
        tyro.conf.Positional[Path | None],
        tyro.conf.arg(metavar="SECOND", help_behavior_hint="(not with --between)"),
    ] = None
    """Results folder of the second method. It may be the first folder again; then
    --first-where and --second-where choose the runs."""
    between: Annotated[str | None, shown("compare two folders")] = None
    """Compare all pairs of values of this setting in FIRST, for example p."""
    by: Annotated[Names, shown("all that vary, without the seed")] = ()
    """Settings whose values have a row each, for example p clusters."""
    score: Names = ("nmi",)
    """Scores to compare: columns of results.csv in which a larger value is better."""
    first_where: Annotated[Conditions, shown("all runs")] = ()
    """Use only these runs of the first folder, for example model_weight=0.1."""
    second_where: Annotated[Conditions, shown("all runs")] = ()
    """Use only these runs of the second folder."""
    out: Annotated[Path | None, shown("the first folder")] = None
    """Folder for comparison.csv and comparison.png. Existing files are replaced."""

    def __call__(self) -> None:
        """Prints which method is better and the table, and writes the files."""
        if self.between is not None:
            return self.compare_values(self.between)
        if self.second is None:
            raise ValueError("SECOND is missing; give a second folder, or --between")
        wheres = self.first_where, self.second_where
        folders = self.first, self.second
        one, two = (
            gather([folder], parse_where(where))
            for folder, where in zip(folders, wheres, strict=True)
        )
        out = self.out or self.first
        but = {*parse_where(self.first_where), *parse_where(self.second_where)}
        table = one.compare(two, self.by, scores=self.score, but=but, out=out)
        names = side_names([x.runs.method[0] for x in (one, two)], folders, wheres)
        for _, rows in table.groupby("score", sort=False):
            print(comparison_sentence(rows, *names, num_tests=len(table)))
        print()
        tables.show(table, ".3f")
        means = (f"mean score of {name}" for name in names)
        first_and_second = dict(zip(("first", "second"), means, strict=True))
        print_legend("columns", first_and_second | COMPARISON)
        num_pairs = table.groupby("score").seeds.sum().max()
        for runs, folder in zip((one, two), folders, strict=True):
            if missing := len(runs) - num_pairs:
                print(
                    f"note: {missing} of {len(runs)} runs in {folder} have no partner "
                    "with the same seed and settings"
                )
        print()
        print(f"table: {out / 'comparison.csv'}")
        print(f"differences and intervals: {out / 'comparison.png'}")

    def compare_values(self, name: str) -> None:
        """Compares all pairs of values of a setting, with one Holm correction.

        Args:
            name: the setting.

        Raises:
            ValueError: a second folder is given, or no setting has two such values.
        """
        if self.second is not None or self.second_where:
            raise ValueError("--between takes one folder, without --second-where")
        runs = gather([self.first], parse_where(self.first_where))
        out = self.out or self.first
        table = runs.compare_between(name, self.by, scores=self.score, out=out)
        print(
            f"{sum(table.holm < agreement.SURE)} of {len(table)} differences between "
            f"values of {name} are detected (holm < 0.05; holm: p-value of a paired "
            "t-test after Holm's correction for all rows)."
        )
        tables.show(table, ".3f")
        print_legend("columns", COMPARISON)
        print()
        print(f"table: {out / 'comparison.csv'}")
        print(f"differences and intervals: {out / 'comparison.png'}")


def side_names(
    methods: Sequence[str], folders: Sequence[Path], wheres: Sequence[Sequence[str]]
) -> list[str]:
    """Returns names for both sides of a comparison that tell them apart.

    Args:
        methods: names of the two methods.
        folders: results folders of the two sides.
        wheres: conditions that choose the runs of each side, such as "p=0.25".

    Returns:
        The names of the methods. Equal names are followed by the conditions or the
        folder.
    """
    if methods[0] != methods[1]:
        return [*methods]
    notes = [" ".join(where) for where in wheres]
    if notes[0] == notes[1]:
        notes = [str(folder) for folder in folders]
    return [
        f"{x} ({note or 'all runs'})" for x, note in zip(methods, notes, strict=True)
    ]


def comparison_sentence(
    rows: pd.DataFrame, first: str, second: str, *, num_tests: int
) -> str:
    """Returns which side is better, as a sentence.

    Args:
        rows: the rows of a comparison for one score.
        first: name of the first side.
        second: name of the second side.
        num_tests: number of p-values that Holm's correction takes into account.

    Returns:
        One or two sentences.
    """
    by = [*rows.columns[: rows.columns.get_loc("score")]]  # pyright: ignore[reportArgumentType]
    lines = rows.to_dict("records")
    score = label_of(lines[0]["score"])
    if len(lines) > 1:
        places: dict[str, list[str]] = {"better": [], "worse": [], "undecided": []}
        for line in lines:
            places[verdict(line)].append(setting_of(line, by))
        texts = {
            "better": f"{first} is better than {second}",
            "worse": f"{second} is better than {first}",
            "undecided": f"no difference between {first} and {second} is detected",
        }
        separator = ", " if len(by) == 1 else " | "
        parts = [
            f"{texts[name]} at {separator.join(settings)}"
            for name, settings in places.items()
            if settings
        ]
        return f"By {score}, {'; '.join(parts)}.{hint_of_seeds(lines)}"
    (line,) = lines
    where = f" at {setting_of(line, by)}" if by else ""
    size = abs(line["difference"])
    if line["seeds"] == 1:
        return (
            f"One seed cannot decide between {first} and {second}{where}: the "
            f"difference is {line['difference']:+.3f} {score}.{hint_of_seeds(lines)}"
        )
    test = "Holm's correction" if num_tests > 1 else "a paired t-test"
    p_value = "p < 0.001" if line["holm"] < 0.001 else f"p = {line['holm']:.3f}"
    low, high = line["low"], line["high"]
    if line["difference"] < 0 and verdict(line) != "undecided":
        first, second, low, high = second, first, -high, -low
    numbers = (
        f"95% interval {low:.3f} to {high:.3f}, {line['seeds']} seeds, {p_value} "
        f"{'after' if num_tests > 1 else 'by'} {test}"
    )
    if verdict(line) != "undecided":
        return (
            f"{first} is better than {second} by {size:.3f} {score}{where} ({numbers})."
        )
    return (
        f"No difference between {first} and {second} is detected{where}: {first} minus "
        f"{second} is {line['difference']:+.3f} {score} ({numbers})."
        f"{hint_of_seeds(lines)}"
    )


def verdict(line: Mapping[Any, Any]) -> str:
    """Returns whether the first side is "better", "worse" or "undecided" in a row.

    Args:
        line: a row of `Results.compare`.

    Returns:
        The word. A difference counts if its p-value after Holm's correction is below
        0.05.
    """
    if not line["holm"] < agreement.SURE:
        return "undecided"
    return "better" if line["difference"] > 0 else "worse"


def setting_of(line: Mapping[Any, Any], by: Sequence[Any]) -> str:
    """Returns the setting of a row in words, for example "p 0.25, clusters 10".

    Args:
        line: a row of `Results.compare`.
        by: columns of the setting.

    Returns:
        Names and values of these columns.
    """
    return ", ".join(f"{name} {line[name]:g}" for name in by)


def hint_of_seeds(lines: Sequence[Mapping[Any, Any]]) -> str:
    """Returns the advice to run more seeds, if no difference is detected.

    Args:
        lines: the rows of `Results.compare` for one score.

    Returns:
        A sentence that begins with a space; "" if there is no advice.
    """
    if max(line["seeds"] for line in lines) == 1:
        return " Run both methods with more seeds, for example --seed 0:5."
    if len(lines) == 1 and verdict(lines[0]) == "undecided":
        more = float(lines[0]["more_seeds"] or 0)
        if more > 0:  # It is NaN if no number of seeds is enough.
            return f" More seeds needed for a difference of this size: {more:.0f}."
    return ""


def label_of(score: str) -> str:
    """Returns the name of a score in running text.

    Args:
        score: name of the score, for example "nmi".

    Returns:
        The name, in capitals for NMI, ACC and ARI.
    """
    return score.upper() if score in ("nmi", "acc", "ari") else score


@dataclasses.dataclass(frozen=True)
class Consensus:
    """Combines the clusters of finished runs into one clustering, without labels.

    Examples are clustered by how often the runs put them together. The confidence of an
    example is how often the runs put the example together with the other examples of
    its cluster. Runs that collapsed or diverged are left out. For data with labels, a
    table compares the scores of the consensus with the scores of the runs.

    The clusters have the numbers of the matching clusters of one run, which is printed.
    So assignments.csv can be joined with that of the run's report (fcjax report
    --where). The numbers are arbitrary if no run has as many clusters, or if clients
    cluster separately.

    Files in --out:
      assignments.csv  one row per example: cluster and confidence; for data with
                       clients also the client's name
      consensus.npz    the same as arrays
      confidence.png   the distribution of the confidence, and the accuracy by labels
      unsure.png       the examples of each cluster with the lowest confidence (images)
    """

    runs: Folders
    """Results folders of finished runs, of one or several methods."""
    clusters: Annotated[int | None, shown("the number of clusters of the runs")] = None
    """Number of clusters, at least 2."""
    where: Annotated[Conditions, shown("all runs")] = ()
    """Use only the runs with these values, for example p=0.25 clusters=10."""
    seed: int = 0
    """Seed of the k-means step of the spectral clustering."""
    data_dir: DataDir = None
    """Folder of the prepared TFDS data sets."""
    out: Annotated[Path | None, shown("consensus/ in the first folder")] = None
    """Folder for the four files. Existing files are replaced."""

    def __call__(self) -> None:
        """Prints the confidence and scores of the consensus, and writes the files."""
        results = gather(self.runs, parse_where(self.where), data_dir=self.data_dir)
        out = self.out or self.runs[0] / "consensus"
        together = results.consensus(self.clusters, seed=self.seed, out=out)
        voters = results.ensemble().voters
        num_clusters = len(np.unique(together.clusters[together.clusters >= 0]))
        text = selection.confidence_text(voters, together)
        print(f"The consensus has {num_clusters} clusters; {text}.")
        if like := selection.numbering_run(voters, self.clusters):
            print(
                f"Its clusters are numbered like those of {like.name}, by best match."
            )
        if voters.dataset.labels is not None:
            print()
            tables.show(selection.consensus_scores(voters, together), ".3f")
            meanings = {
                "nmi": "normalized mutual information with the labels",
                "acc": "accuracy after clusters are matched to classes",
                "ari": "adjusted Rand index with the labels",
            }
            print_legend("columns, 1 is best", meanings)
        print()
        print(f"cluster and confidence of each example: {out / 'assignments.csv'}")
        print(f"confidence as a figure: {out / 'confidence.png'}")
        if (out / "unsure.png").exists():
            print(f"examples with the lowest confidence: {out / 'unsure.png'}")


@dataclasses.dataclass(frozen=True)
class Draw:
    """Draws the figures of a finished run again.

    These are learning curves, scores against the settings that vary, the partition, the
    confusion matrix, examples of each cluster, the embedding, and the association graph
    of the clients' clusters.
    """

    run: Folder
    """Results folder of the run."""
    where: Annotated[Conditions, shown("the run that fcjax choose names")] = ()
    """The run, if the folder has several, for example p=0.25 seed=3."""
    data_dir: DataDir = None
    """Folder of the prepared TFDS data sets."""
    out: Annotated[Path | None, shown("figures/ in the folder of the run")] = None
    """Folder for the figures. Existing files are replaced."""

    def __call__(self) -> None:
        """Draws the figures and prints their folder."""
        out = self.out or self.run / "figures"
        results = gather([self.run], parse_where(self.where), data_dir=self.data_dir)
        print(f"figures of the run {results.draw(out).name}: {out}")


@dataclasses.dataclass(frozen=True)
class Export:
    """Writes the network and the embeddings of a finished run for other programs.

    Files in --out:
      network.safetensors  the weights by path; metadata: fcjax (version), config (JSON)
      config.json          the configuration with the settings of this run
      embeddings.npz       embedding [P, D], cluster [P], client [P] (-1: no client) and
                           label [P] in the order of the data set; centers [K, D], the
                           mean embedding of each cluster (NaN: empty cluster, or
                           a private run)
      assignments.csv      example (file or row), client, cluster, and distance to the
                           center of the cluster

    Examples of --extra-split are not exported.
    """

    run: Folder
    """Results folder of the run."""
    where: Annotated[Conditions, shown("the only run")] = ()
    """The run, if the folder has several, for example p=0.25 seed=3."""
    data_dir: DataDir = None
    """Folder of the prepared TFDS data sets."""
    out: Annotated[Path | None, shown("export/ in the folder of the run")] = None
    """Folder for the four files. Existing files are replaced."""

    def __call__(self) -> None:
        """Writes the files and prints their folder."""
        out = self.out or self.run / "export"
        run = gather([self.run], parse_where(self.where), data_dir=self.data_dir).run()
        run.export(out)
        print(f"network and embeddings of the run {run.name}: {out}")
        if num_reassigned := run.scored_examples.num_reassigned:
            print(
                f"warning: {num_reassigned} examples have another cluster than at "
                "the end of training, because the data has changed or because they lie "
                "between two clusters and this device rounds differently"
            )


@dataclasses.dataclass(frozen=True)
class HowMany:
    """Suggests a number of clusters from finished runs, without labels.

    The runs must differ in --clusters and --seed alone, with at least two seeds per
    number of clusters. A number of clusters is stable if runs with different seeds
    agree on the clusters but not on parts of the clusters. Runs that collapsed or
    diverged are left out.

    Files in --out:
      how_many.csv  one row per number of clusters
      how_many.png  the same as curves with intervals
    """

    runs: Folders
    """Results folders of finished runs."""
    where: Annotated[Conditions, shown("all runs")] = ()
    """Use only the runs with these values, for example p=0.25."""
    data_dir: DataDir = None
    """Folder of the prepared TFDS data sets."""
    out: Annotated[Path | None, shown("the first folder")] = None
    """Folder for how_many.csv and how_many.png. Existing files are replaced."""

    def __call__(self) -> None:
        """Prints the suggested number and the table, and writes the files."""
        out = self.out or self.runs[0]
        results = gather(self.runs, parse_where(self.where), data_dir=self.data_dir)
        print("comparing the runs; with many numbers of clusters this takes minutes")
        suggestion = results.how_many(out)
        print(how_many_sentence(suggestion))
        voters = results.ensemble().voters
        numbers, silhouettes = (
            voters.values(name) for name in ("clusters", "input_silhouette")
        )
        means = {
            int(k): float(np.mean(silhouettes[numbers == k]))
            for k in np.unique(numbers)
            if not np.isnan(silhouettes[numbers == k]).any()
        }
        if caveat := how_many_caveat(suggestion, means):
            print(caveat)
        print()
        tables.show(suggestion.table, ".3f")
        meanings = {
            "between": "mean adjusted Rand index of the clusters of two seeds",
            "within": "the same for halves of the clusters",
            "trade_off": "between minus within, the stability",
            "pairs": "number of pairs of runs",
        }
        print_legend("columns", meanings)
        if suggestion.left_out:
            print(suggestion.left_out)
        print()
        print(f"table: {out / 'how_many.csv'}")
        print(f"curves: {out / 'how_many.png'}")


def how_many_sentence(suggestion: selection.Suggestion) -> str:
    """Returns the suggested number of clusters and its stability, as a sentence.

    Args:
        suggestion: the suggestion of `selection`, with its table of stabilities.

    Returns:
        One to three sentences.
    """
    table = suggestion.table.sort_values("trade_off", ascending=False, kind="stable")
    best, second = table.to_dict("records")[:2]
    if suggestion.number is None:
        if best["trade_off"] <= 0:
            return (
                "Suggested number of clusters: none. No number is stable; the largest "
                f"stability is {best['trade_off']:.2f} ({best['clusters']} clusters)."
            )
        return (
            f"Suggested number of clusters: none. {best['clusters']} (stability "
            f"{best['trade_off']:.2f}) and {second['clusters']} "
            f"({second['trade_off']:.2f}) are too close; more seeds may decide."
        )
    text = (
        f"Suggested number of clusters: {best['clusters']} (the largest stability, "
        f"{best['trade_off']:.2f}; next is {second['clusters']} with "
        f"{second['trade_off']:.2f})."
    )
    tried = suggestion.table["clusters"]
    for end, word in ((tried.min(), "smaller"), (tried.max(), "larger")):
        if best["clusters"] == end:
            text += f" Try {word} numbers, too: {end} is at the end of the range."
    return text


CLEARLY_HIGHER = 0.02
"""Smallest difference of mean silhouettes that `how_many_caveat` reports."""


def how_many_caveat(
    suggestion: selection.Suggestion, silhouettes: Mapping[Any, float]
) -> str:
    """Returns the reasons to doubt the suggested number of clusters.

    Args:
        suggestion: the suggestion of `selection`.
        silhouettes: by number of clusters, the mean silhouette of the runs on the raw
            examples; empty if it is unknown.

    Returns:
        One line; "" without a suggested number or without a reason.
    """
    number, reasons = suggestion.number, []
    if number is None:
        return ""
    between = float(np.mean(suggestion.stabilities[number].between))
    if between > 0.95:
        reasons.append(
            f"seeds nearly always agree on {number} clusters (mean adjusted Rand index "
            f"{between:.2f}), as they often do for few clusters"
        )
    best = max(silhouettes, key=lambda k: silhouettes[k], default=number)
    if silhouettes.get(best, 0) - silhouettes.get(number, np.inf) > CLEARLY_HIGHER:
        reasons.append(
            f"the silhouette on the raw examples is highest for {best} clusters "
            f"({silhouettes[best]:.2f}; {number} clusters: {silhouettes[number]:.2f})"
        )
    return f"caveat: {'; '.join(reasons)}" if reasons else ""


@dataclasses.dataclass(frozen=True)
class Report:
    """Writes an HTML report of a finished run.

    The report shows the scores of all runs in the folder, examples of each cluster, and
    a map of the embedding. Any browser opens the report, also without a network.

    Files in --out:
      report.html      the report
      assignments.csv  example, client, cluster and distance in the run that is shown;
                       for data with clients also the client's name
      embeddings.npz   embeddings of this run, as `fcjax export` writes them
    """

    run: Folder
    """Results folder of the run."""
    where: Annotated[
        Conditions,
        shown(
            "the most stable number of clusters by fcjax how-many, and of its runs the "
            "one that fcjax choose names"
        ),
    ] = ()
    """The run, if the folder has several, for example p=0.25 clusters=10 seed=3."""
    data_dir: DataDir = None
    """Folder of the prepared TFDS data sets."""
    out: Annotated[Path | None, shown("the folder of the run")] = None
    """Folder for the three files. Existing files are replaced."""

    def __call__(self) -> None:
        """Writes the report and prints its path."""
        out = self.out or self.run
        results = gather([self.run], parse_where(self.where), data_dir=self.data_dir)
        name = results.report(out).name
        print(f"report of the run {name}, for any browser: {out / 'report.html'}")


@dataclasses.dataclass(frozen=True)
class Predict:
    """Assigns new examples to the clusters of a finished run."""

    run: Folder
    """Results folder of the run."""
    dataset: str
    """The new examples: digits, a TFDS data set or a path. Labels are not used. The
    class column of a table is no feature, unless --no-labels is given. Values are in
    their original units, before any scaling; columns are found by their names."""
    image_shape: Annotated[tuple[int, ...], shown("feature vectors")] = ()
    """Height, width and, for colour, channels of images that are rows of a table."""
    resize: Annotated[int | None, shown("as in the run")] = None
    """Height and width of resized images, in pixels (bilinear, without cropping)."""
    labels: bool = True
    """Whether a table has a class column."""
    label_column: Annotated[str | None, shown("as in the run")] = None
    """Column of a table with the class: its name, or its number without a header."""
    client_column: Annotated[str | None, shown("none")] = None
    """Column of a table that names the client of each example; not a feature."""
    array: Annotated[str | None, shown("a usual name, such as x")] = None
    """Array of the examples in an .npz, .h5, .h5ad or .safetensors."""
    drop_columns: Annotated[tuple[str, ...] | None, shown("as in the run")] = None
    """Columns of a table that are not used. The flag without a name keeps all."""
    missing: Literal["refuse", "drop"] = "refuse"
    """Missing values of a table: stop with an error, or drop their examples. The run
    does not store the medians of its training data, so median is not accepted."""
    data_dir: DataDir = None
    """Folder of the prepared TFDS data sets."""
    where: Annotated[Conditions, shown("the only run")] = ()
    """The run, if the folder has several, for example p=0.25 seed=3."""
    out: Annotated[Path | None, shown("predictions.csv in the folder of the run")] = (
        None
    )
    """The table to write. Its columns are the example, its cluster, and its distance in
    the embedding to the center of this cluster and of each cluster. Distances are nan
    for empty clusters and in private runs."""

    def __call__(self) -> None:
        """Writes the table and prints its path."""
        run = gather([self.run], parse_where(self.where)).run()
        source, model = run.folder.source(), run.model
        label_column, dropped = self.label_column, self.drop_columns
        if self.labels and label_column is None:
            label_column = source.label_column
        if source.one_hot:
            raise ValueError(
                "the run used `one_hot`, and new examples may have other texts; write "
                "the columns of 0 and 1 into the table and train on this table"
            )
        dataset = data.load(
            self.dataset,
            data_dir=self.data_dir,
            image_shape=self.image_shape,
            labels=self.labels,
            label_column=label_column,
            client_column=self.client_column,
            array=self.array,
            drop_columns=source.drop_columns if dropped is None else dropped,
            missing=self.missing,
            scaling=model.scaling,
            resize=source.resize if self.resize is None else self.resize,
            keep_index=source.keep_index,
        )
        prediction = exported.predict(model, dataset.examples)
        clusters, distances = prediction.clusters, prediction.distances
        names = example_names(dataset)
        distance = distances[np.arange(len(names)), clusters]
        table = pd.DataFrame(
            {"example": names, "cluster": clusters, "distance": distance}
        )
        table[[f"to_{k}" for k in range(len(model.centers))]] = distances
        out = self.out or self.run / "predictions.csv"
        out.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(
            out, index=False, float_format="%.6g", na_rep="nan", lineterminator="\n"
        )
        print(f"clusters of {len(names)} examples by the run {run.name}: {out}")


@dataclasses.dataclass(frozen=True)
class Probe:
    """Measures with labels how good the embedding of a finished run is.

    Classifiers are trained on the frozen embedding of a part of the examples and tested
    on the other examples: k nearest neighbours, and a linear classifier from all labels
    and from a share of the labels.
    """

    run: Folder
    """Results folder of the run."""
    num_neighbors: tuple[int, ...] = (3, 5, 7, 9, 100, 1000, 7000)
    """Numbers of neighbours that vote. Numbers above the number of training examples
    are left out."""
    label_fraction: tuple[float, ...] = (0.01, 0.1)
    """Shares of the training labels for the linear classifiers, above 0 and at most 1.
    Each class keeps at least one label."""
    num_draws: int = 5
    """Number of random draws of each share of the labels, at least 1."""
    where: Annotated[Conditions, shown("the only run")] = ()
    """The run, if the folder has several, for example p=0.25 seed=3."""
    data_dir: DataDir = None
    """Folder of the prepared TFDS data sets."""

    def __call__(self) -> None:
        """Prints the tables of accuracies and scores."""
        run = gather([self.run], parse_where(self.where), data_dir=self.data_dir).run()
        result = run.probe(self.num_neighbors, self.label_fraction, self.num_draws)
        num_trained = len(run.scored_examples.clusters) - result.num_tested
        print(
            f"Embedding of the run {run.name}: classifiers are trained on "
            f"{num_trained} examples and tested on {result.num_tested}."
        )
        print("\nAccuracy of k nearest neighbours:")
        tables.show(result.neighbors, ".4f")
        print(
            "\nAccuracy of linear classifiers (from a share of the labels: mean ± 95% "
            f"interval over {self.num_draws} draws):"
        )
        tables.show(format_linear(result.linear))
        print("\nScores of the run's clusters, and of k-means on the pooled embedding:")
        tables.show(result.clusters, ".4f")
        print("\nMean of the clients' scores, with a match of clusters per client:")
        tables.show(result.clients, ".4f")


@dataclasses.dataclass(frozen=True)
class Privacy:
    """Measures what the uploads of the clients of a finished run reveal.

    The run needs --keep-uploads. A centroid of one example is this example. A synthetic
    example may be a copy. Membership inference is an attack that guesses whether an
    example is in the run: by its distance to the nearest upload, or to the nearest
    cluster center. It needs examples of the data set that are not in the run, so a run
    with --limit or --split train. The weights of uploaded networks are not examined.

    Files in --out:
      privacy.csv         one row with all measurements
      privacy_points.csv  one row per uploaded point: client, number of examples,
                          distance to the nearest example of the client
      privacy.png         for images, the closest uploads above their nearest examples,
                          with their distance relative to two neighbouring examples;
                          else the distribution of the relative distances
    """

    run: Folder
    """Results folder of the run."""
    min_members: int = 5
    """Count the centroids of fewer examples than this number, at least 1."""
    where: Annotated[Conditions, shown("the only run")] = ()
    """The run, if the folder has several, for example p=0.25 seed=3."""
    data_dir: DataDir = None
    """Folder of the prepared TFDS data sets."""
    out: Annotated[Path | None, shown("the folder of the run")] = None
    """Folder for the three files. Existing files are replaced."""

    def __call__(self) -> None:
        """Prints the measurements and writes the files."""
        out = self.out or self.run
        run = gather([self.run], parse_where(self.where), data_dir=self.data_dir).run()
        summary = run.privacy_report(out, min_members=self.min_members).summary
        print(f"Uploads of the run {run.name}:")
        for line in lines_of_uploads(summary):
            print(f"  {line}")
        print()
        if "uploads_auc" not in summary:
            print(
                "Membership inference is left out, because all examples of the data "
                "set are in the run: run with --limit or --split train."
            )
        else:
            print(
                "Membership inference (AUC; 0.5: the attack guesses, 1: the attack is "
                f"always right), {summary['members']:,} examples of the run and "
                f"{summary['non_members']:,} other examples:"
            )
            for name, text in {
                "uploads": "by the nearest upload:        ",
                "centers": "by the nearest cluster center:",
            }.items():
                value, low, high = (summary[f"{name}_{x}"] for x in AUC_COLUMNS)
                print(f"  {text} {value:.3f} (95 % interval {low:.3f} to {high:.3f})")
        print()
        print(f"measurements: {out / 'privacy.csv'}")
        print(f"uploaded points: {out / 'privacy_points.csv'}")
        print(f"closest uploads, or all distances: {out / 'privacy.png'}")


AUC_COLUMNS = ("auc", "low", "high")
"""Endings of the columns of an attack in privacy.csv."""


def lines_of_uploads(summary: Mapping[str, Any]) -> list[str]:
    """Returns the measurements of the uploads as lines of text.

    Args:
        summary: the summary of a `PrivacyReport`.

    Returns:
        The lines, each with a label, a value and a unit.
    """
    kind, count = summary["kind"], summary["points"]
    lines = [f"uploaded {kind}: {count:,} of {summary['uploading_clients']:,} clients"]
    if kind == "centroids":
        lines += [
            f"centroids of one example: {summary['one_member']:,} of {count:,}",
            f"centroids of fewer than {summary['min_members']} examples: "
            f"{summary['few_members']:,} of {count:,}",
        ]
    lines += [
        f"copies of an example: {summary['copies']:,} of {count:,}",
        f"distance to the nearest example of the client: {summary['distance']:.3f} "
        f"(median; two neighbouring examples: {summary['neighbor_distance']:.3f})",
    ]
    if kind != "centroids":
        lines.append(
            f"nearest example is of the same client: {summary['own_client']:.1%} of "
            f"{count:,} ({summary['own_client_by_chance']:.1%} if clients are alike)"
        )
    if "copy_probability" in summary:
        lines.append(
            "probability of being nearer to the run than an example outside of the "
            f"run: {summary['copy_probability']:.2f} (0.5: no copies, 1: copies)"
        )
    return lines


@dataclasses.dataclass(frozen=True)
class Collect:
    """Merges the shards of one grid (--shard) into one results folder.

    Shards with different configurations are an error.
    """

    folders: Folders
    """Results folders of the shards, or folders that contain them."""
    out: Annotated[Path | None, shown("the folder that contains the shards")] = None
    """The merged results folder."""
    plot: bool = True
    """Draw learning curves and scores against the settings that vary."""

    def __call__(self) -> None:
        """Merges the shards and prints the summary table."""
        if not self.folders:
            raise ValueError("at least one results folder is required; see --help")
        folders = shards.find(self.folders)
        parents = {
            folder.parent for folder in folders if folder.name.startswith("shard-")
        }
        if self.out is None and len(parents) != 1:
            raise ValueError(
                "--out is required, because the folders are not the shards of one grid"
            )
        out = self.out or parents.pop()
        results = shards.merge(folders, out)
        for line in shards.missing(folders):
            print(f"warning: {line}")
        with log_to_stdout(with_quoted_flags):
            report.log_results(results)
        if self.plot:
            drawing.grid_figures(
                out / "figures", results.rows, results.rounds, by=results.settings
            )
        print(f"merged results of {len(results.rows)} runs: {out}")


@dataclasses.dataclass(frozen=True)
class Deploy:
    """Writes a Flower app of a finished run, for a federation of several machines.

    The app has the method and the settings of the run. Every site uses its own data
    (docs/guides/federation.md).
    """

    run: Folder
    """Results folder of the run."""
    to: Path
    """The folder of the app."""
    where: Annotated[Conditions, shown("the only run")] = ()
    """The run, if the folder has several, for example p=0.25 seed=3."""
    data_dir: DataDir = None
    """Folder of the prepared TFDS data sets."""

    def __call__(self) -> None:
        """Writes the app."""
        # Loaded here, because no other tool needs it.
        from fcjax.deploy import app

        run = gather([self.run], parse_where(self.where), data_dir=self.data_dir).run()
        content = app.app_of_run(run)
        app.write(content, self.to)
        for line in app.next_steps(content, self.to):
            print(line)


TOOLS = {
    "report": Report,
    "draw": Draw,
    "predict": Predict,
    "export": Export,
    "probe": Probe,
    "privacy": Privacy,
    "choose": Choose,
    "consensus": Consensus,
    "how-many": HowMany,
    "compare": Compare,
    "collect": Collect,
    "deploy": Deploy,
}
"""The tools for finished runs, by command name."""
