"""Comparison of several runs of one data set without labels.

The functions choose a run, combine all runs into a consensus clustering, and suggest a
number of clusters.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy import stats
from scipy.optimize import linear_sum_assignment

from fcjax import metrics
from fcjax.data import Dataset
from fcjax.metrics.agreement import (
    Consensus,
    Stability,
    agreement,
    consensus,
    mean_agreement,
    pairwise_agreement,
    pooled_ranks,
    stability,
)
from fcjax.metrics.external import ari, nmi
from fcjax.metrics.internal import silhouettes
from fcjax.results import exported
from fcjax.results.run import Run, comparable_clusters
from fcjax.results.store import differing

MOST_EMBEDDED = 2000
"""Largest number of examples for silhouettes, whose cost is quadratic in the number."""


class Ensemble(NamedTuple):
    """R runs of the same P examples."""

    runs: tuple[Run, ...]
    """The R runs."""
    clusters: Int[np.ndarray, "R P"]
    """The cluster of each example in each run, -1 for none. If clients cluster
    separately, clusters of different clients have different numbers, except for those
    that the run associated with each other."""
    clients: Int[np.ndarray, "R P"] | None
    """The client of each example in each run, if clients cluster separately and the
    runs do not associate their clusters. None for clusterings of all examples."""

    def take(self, indices: Sequence[int]) -> "Ensemble":
        """Returns the ensemble of the runs with these indices.

        Args:
            indices: indices of the runs, in the order of the result.

        Returns:
            The ensemble of these runs.
        """
        indices = list(indices)
        return Ensemble(
            tuple(self.runs[i] for i in indices),
            self.clusters[indices],
            None if self.clients is None else self.clients[indices],
        )

    @property
    def ok(self) -> list[int]:
        """The indices of the runs that neither collapsed nor diverged."""
        return [i for i, run in enumerate(self.runs) if run.is_ok]

    @property
    def by_data_setting(self) -> list[list[int]]:
        """The indices of the runs, grouped by the settings of the data.

        These are heterogeneity, number and size of the clients, and the failure rate.
        A user cannot choose these settings, so runs of different groups are not
        compared.
        """
        groups: dict[tuple, list[int]] = {}
        for i, run in enumerate(self.runs):
            rule, *_ = run.folder.names
            names = (rule, "clients", "client_size", "failure_rate")
            key = (rule, *map(run.row.get, names))
            groups.setdefault(key, []).append(i)
        return list(groups.values())

    @property
    def voters(self) -> "Ensemble":
        """The ensemble of the runs that neither collapsed nor diverged.

        Raises:
            ValueError: there are fewer than two such runs.
        """
        if len(self.ok) < 2:
            raise ValueError(
                f"{len(self.ok)} of {len(self.runs)} runs ended well, and at least two "
                "are needed: run several seeds, such as --seed 0 1 2"
            )
        return self.take(self.ok)

    @property
    def is_labelled(self) -> bool:
        """Whether all runs have scores with labels."""
        return all(run.row.get("nmi") is not None for run in self.runs)

    def values(self, name: str) -> Float[np.ndarray, "R"]:
        """Returns a column of results.csv, with NaN for empty cells.

        Args:
            name: the name of the column.

        Returns:
            [R] the value of each run.
        """
        cells = (run.row.get(name) for run in self.runs)
        return np.array([np.nan if x is None else x for x in cells], float)

    @property
    def dataset(self) -> Dataset:
        """The data set of the runs."""
        return self.runs[0].dataset

    def sample(self) -> Int[np.ndarray, "n"]:
        """Returns the indices of at most `MOST_EMBEDDED` examples, always the same."""
        order = np.random.default_rng(0).permutation(self.clusters.shape[1])
        return np.sort(order[:MOST_EMBEDDED])

    def embeddings(
        self, indices: Int[np.ndarray, "n"]
    ) -> list[Float[np.ndarray, "n D"]] | None:
        """Returns the embeddings of these examples by the global model of each run.

        The result is None if a run has no global model.

        Args:
            indices: [n] indices of the examples.

        Returns:
            One array [n, D] per run. D may differ between runs.
        """
        if not all(run.has_model for run in self.runs):
            return None
        examples = self.dataset.examples[indices]
        return [exported.predict(x.model, examples).embedding for x in self.runs]


def ensemble(runs: Sequence[Run]) -> Ensemble:
    """Returns the runs with the clusters of their examples.

    Args:
        runs: runs of the same examples.

    Returns:
        The ensemble.

    Raises:
        ValueError: the folder of a run has no assignments.npz.
    """
    clusters, clients = (
        np.stack(x) for x in zip(*map(comparable_clusters, runs), strict=True)
    )
    is_own = clients.max() >= 0
    return Ensemble(tuple(runs), clusters, clients if is_own else None)


# --- Which run

Criterion = Literal[
    "agreement", "agreement_nmi", "consensus", "others", "input", "silhouette", "loss"
]
DEFAULT: Criterion = "input"
DESCRIPTIONS: Mapping[Criterion, str] = {
    "agreement": "with the highest agreement (ARI) with the other runs",
    "agreement_nmi": "with the highest agreement (NMI) with the other runs",
    "consensus": "with the highest agreement with the consensus of all runs",
    "others": "with the highest silhouette in the embeddings of the other runs",
    "input": "with the highest silhouette on the raw examples",
    "silhouette": "with the highest silhouette in its own embedding",
    "loss": "with the smallest loss",
}
"""Description of the run that each criterion chooses."""


def choose_run(runs: Ensemble) -> tuple[int, Criterion | None]:
    """Chooses a run without labels, see `Results.choose`.

    Runs with other settings of the data than the first run, such as another p, are left
    out.

    Args:
        runs: the runs.

    Returns:
        The index of the run, and the criterion that chose it. The criterion is
        `DEFAULT`, or "agreement" if `DEFAULT` has no values, as for clients that
        cluster separately. It is None if fewer than two runs ended well.
    """
    indices = runs.by_data_setting[0]
    group = runs.take(indices)
    if len(group.ok) < 2:
        return indices[(group.ok or [0])[0]], None
    for name in (DEFAULT, "agreement"):
        values = CRITERIA[name](group.take(group.ok))
        if not np.isnan(values).all():
            return indices[group.ok[ranking(values)[0]]], name
    return indices[group.ok[0]], None


def criteria(runs: Ensemble) -> dict[Criterion, Float[np.ndarray, "R"]]:
    """Returns the values of all criteria for all runs; higher is better.

    A run that collapsed or diverged has NaN.

    Args:
        runs: the runs.

    Returns:
        [R] values by name of the criterion.
    """
    values, ok_runs = {}, runs.take(runs.ok)
    for name in CRITERIA:
        values[name] = np.full(len(runs.runs), np.nan)
        if runs.ok:
            values[name][runs.ok] = CRITERIA[name](ok_runs)
    return values


def by_agreement(runs: Ensemble, measure: Callable) -> Float[np.ndarray, "R"]:
    """Returns the mean agreement of each run with the other runs.

    Args:
        runs: the runs.
        measure: the agreement of two clusterings, such as `ari` or `nmi`.

    Returns:
        [R] the mean agreements.
    """
    pairs = pairwise_agreement(
        runs.clusters, client_of_example=runs.clients, measure=measure
    )
    return mean_agreement(pairs)


def by_consensus(runs: Ensemble) -> Float[np.ndarray, "R"]:
    """Returns the agreement of each run with the consensus of all runs.

    The consensus has the same number of clusters as the run.

    Args:
        runs: the runs.

    Returns:
        [R] the agreement as adjusted Rand index; NaN for a single run.
    """
    if len(runs.runs) < 2:
        return np.full(len(runs.runs), np.nan)
    combined = cache(lambda k: consensus(runs.clusters, k).clusters)
    return np.array(
        [
            agreement(
                clusters,
                combined(int(run.row["clusters"])),
                blocks=None if runs.clients is None else runs.clients[i],
            )
            for i, (run, clusters) in enumerate(
                zip(runs.runs, runs.clusters, strict=True)
            )
        ]
    )


def by_others(runs: Ensemble) -> Float[np.ndarray, "R"]:
    """Returns the pooled rank of each run's silhouette in all embeddings.

    Args:
        runs: the runs.

    Returns:
        [R] the ranks; NaN if a run has no global model.
    """
    indices = runs.sample()
    embeddings = runs.embeddings(indices)
    if embeddings is None:
        return np.full(len(runs.runs), np.nan)
    clusters = runs.clusters[:, indices]
    return pooled_ranks(np.array([silhouettes(z, clusters) for z in embeddings]))


def by_input(runs: Ensemble) -> Float[np.ndarray, "R"]:
    """Returns the silhouette of each run on the raw examples.

    Args:
        runs: the runs.

    Returns:
        [R] the silhouettes, in [-1, 1]; NaN for runs whose clients cluster separately.
    """
    indices = runs.sample()
    flat = runs.dataset.examples[indices].reshape(len(indices), -1).astype(float)
    values = silhouettes(flat, runs.clusters[:, indices])
    if runs.clients is not None:  # clusters of different clients overlap
        values[(runs.clients >= 0).any(axis=1)] = np.nan
    return values


def by_loss(runs: Ensemble) -> Float[np.ndarray, "R"]:
    """Returns the negative loss of the last round of each run.

    Losses of different methods or settings are not comparable.

    Args:
        runs: the runs.

    Returns:
        [R] the negative losses; NaN for runs without rounds.
    """
    histories = [x.folder.of_runs(x.folder.rounds, [x.params]) for x in runs.runs]
    losses = [rounds[-1]["loss"] if rounds else np.nan for rounds in histories]
    return -np.array(losses)


CRITERIA: Mapping[Criterion, Callable[[Ensemble], Float[np.ndarray, "R"]]] = {
    "agreement": partial(by_agreement, measure=ari),
    "agreement_nmi": partial(by_agreement, measure=nmi),
    "consensus": by_consensus,
    "others": by_others,
    "input": by_input,
    "silhouette": lambda runs: runs.values("silhouette"),
    "loss": by_loss,
}
"""By criterion, the function that returns its values; higher is better."""


def ranking(values: Float[np.ndarray, "R"]) -> list[int]:
    """Returns the indices of the runs by descending value, with NaN at the end.

    Args:
        values: [R] the value of each run.

    Returns:
        The R indices. Runs of equal value keep their order.
    """
    return np.argsort(
        np.where(np.isnan(values), np.inf, -values), kind="stable"
    ).tolist()


def rank_runs(runs: Ensemble, by: Criterion) -> pd.DataFrame:
    """Returns a table of the runs, the best run first.

    Args:
        runs: the runs.
        by: the criterion that ranks the runs.

    Returns:
        One row per run, with its settings, all criteria, and for data with labels NMI
        and ACC. The index of the table is the index of the run.

    Raises:
        ValueError: no run has a value of the criterion.
    """
    values = criteria(runs)
    if np.isnan(values[by]).all():
        raise ValueError(why_not(by, runs))
    lines = []
    for i, run in enumerate(runs.runs):
        names = dict.fromkeys([*run.folder.settings, "seed"])
        scores = ("nmi", "acc") if runs.is_labelled else ()
        folder = "" if run.folder.in_memory else str(run.folder.directory)
        line = {"folder": folder, "method": run.row["method"]}
        line |= {name: run.row[name] for name in (*names, "status")}
        line |= {name: float(column[i]) for name, column in values.items()}
        lines.append(line | {name: run.row[name] for name in scores})
    return pd.DataFrame(lines).iloc[ranking(values[by])]


def against_labels(ranks: pd.DataFrame) -> pd.DataFrame:
    """Returns a table that compares the criteria with the scores with labels.

    Args:
        ranks: the result of `rank_runs`, for data with labels.

    Returns:
        One row per criterion: its rank correlation with NMI and ACC over the runs, and
        its regret, which is the best NMI minus the NMI of the chosen run. The last row
        is a random choice.
    """
    ranks = ranks.sort_index()
    values = ranks[[*CRITERIA]].dropna(axis=1, how="all")
    scores: Any = ranks[["nmi", "acc"]].astype(float)
    lines = [
        {
            "criterion": name,
            **{
                f"{score} rank correlation": correlation(
                    each.to_numpy(), column.to_numpy()
                )
                for score, column in scores.items()
            },
            "regret": regret(each.to_numpy(), scores["nmi"].to_numpy()),
        }
        for name, each in values.items()
    ]
    by_chance = scores["nmi"].max() - scores["nmi"].mean()
    return pd.DataFrame([*lines, {"criterion": "(a random run)", "regret": by_chance}])


def correlation(
    values: Float[np.ndarray, "R"], scores: Float[np.ndarray, "R"]
) -> float:
    """Returns Spearman's rank correlation over the runs with a value.

    The result is NaN if values or scores are constant.

    Args:
        values: [R] the value of a criterion for each run; NaN for none.
        scores: [R] the score of each run, such as its NMI.

    Returns:
        The correlation, in [-1, 1].
    """
    known = ~np.isnan(values)
    values, scores = values[known], scores[known]
    if len(values) < 2 or np.ptp(values) == 0 or np.ptp(scores) == 0:
        return np.nan
    return float(stats.spearmanr(values, scores)[0])  # pyright: ignore[reportArgumentType]


def regret(values: Float[np.ndarray, "R"], scores: Float[np.ndarray, "R"]) -> float:
    """Returns the best score minus the score of the run with the largest value.

    Args:
        values: [R] the value of a criterion for each run; NaN for none.
        scores: [R] the score of each run, such as its NMI.

    Returns:
        The difference, at least 0.
    """
    return float(scores.max() - scores[ranking(values)[0]])


def why_not(name: Criterion, runs: Ensemble) -> str:
    """Returns the reason why no run has a value of a criterion.

    Args:
        name: the criterion.
        runs: the runs.

    Returns:
        The reason, for an error message.
    """
    required = {"agreement": 2, "agreement_nmi": 2, "consensus": 2, "others": 3}
    least = required.get(name, 1)
    if len(runs.ok) < least:
        number = f"{least} run{'s' * (least > 1)}"
        return f"`by` {name} needs {number} that ended well, got {len(runs.ok)}"
    if runs.clients is not None:
        return (
            f"`by` {name} needs common clusters, but these clients cluster separately"
        )
    return f"`by` {name} has no values for these runs"


# --- Consensus

SURE = 0.9
"""Smallest confidence of an example that counts as sure."""
SCORES = ("nmi", "acc", "ari")
"""Scores of `consensus_scores`."""


def consensus_of(
    runs: Ensemble, num_clusters: int | None = None, *, seed: int = 0
) -> Consensus:
    """Returns the consensus clustering of runs that ended well.

    Args:
        runs: the runs.
        num_clusters: number of clusters; None takes the number of the runs.
        seed: seed of k-means on the spectral embedding.

    Returns:
        The cluster of each example, with its confidence.

    Raises:
        ValueError: the runs do not determine the number of clusters, or it is below 2.
    """
    if num_clusters is None:
        if runs.clients is not None:
            raise ValueError(
                "clients cluster separately in these runs: pass `num_clusters`, the "
                "number of clusters of all examples"
            )
        numbers = np.unique(runs.values("clusters")).astype(int)
        if len(numbers) > 1:
            several = " ".join(map(str, numbers))
            raise ValueError(
                f"the runs have different numbers of clusters ({several}): select runs "
                f"with `where` clusters={numbers[0]}, or pass `num_clusters`"
            )
        num_clusters = int(numbers[0])
    if num_clusters < 2:
        raise ValueError(f"num_clusters must be at least 2, got {num_clusters}")
    return consensus(
        runs.clusters, num_clusters, client_of_example=runs.clients, seed=seed
    )


def numbering_run(runs: Ensemble, num_clusters: int | None = None) -> Run | None:
    """Returns the run whose numbers of clusters the consensus takes.

    It is the run of `choose_run` among the runs with as many clusters as the consensus.

    Args:
        runs: the runs that form the consensus.
        num_clusters: number of clusters of the consensus; None for that of the runs.

    Returns:
        The run. None if no run has this number of clusters, or if the clients of the
        run cluster separately.
    """
    numbers = runs.values("clusters")
    same = np.flatnonzero(numbers == (num_clusters or numbers[0])).tolist()
    if not same:
        return None
    index = same[choose_run(runs.take(same))[0]]
    is_separate = runs.clients is not None and runs.clients[index].max() >= 0
    return None if is_separate else runs.runs[index]


def numbered_like(combined: Consensus, clusters: Int[np.ndarray, "P"]) -> Consensus:
    """Returns the consensus with its clusters numbered like those of a run.

    The match is one to one and maximizes the number of examples with the same number.

    Args:
        combined: the consensus.
        clusters: [P] clusters of the run, -1 for none.

    Returns:
        The same consensus with other numbers. The confidence of an example stays.

    Examples:
        >>> combined = Consensus(np.array([2, 2, 0, 1, -1]), np.ones(5))
        >>> print(numbered_like(combined, np.array([0, 0, 1, 1, 0])).clusters)
        [ 0  0  1  2 -1]
    """
    size = max(combined.clusters.max(), clusters.max()) + 1
    counts = np.zeros((size, size), int)
    both = (combined.clusters >= 0) & (clusters >= 0)
    np.add.at(counts, (combined.clusters[both], clusters[both]), 1)
    _, numbers = linear_sum_assignment(counts, maximize=True)
    renamed = np.where(combined.clusters >= 0, numbers[combined.clusters], -1)
    return combined._replace(clusters=renamed)


def consensus_scores(runs: Ensemble, combined: Consensus) -> pd.DataFrame:
    """Returns a table of the scores of the consensus, and the runs' mean and best.

    Args:
        runs: the runs, whose data has labels.
        combined: the consensus of the runs.

    Returns:
        One row per clustering, with the columns `SCORES`.
    """
    labels, has_cluster = runs.dataset.labels, combined.clusters >= 0
    assert labels is not None
    # In results.csv, the scores of clients that cluster separately are means.
    of_runs = pd.DataFrame({name: runs.values(name) for name in SCORES})
    rows = {
        "consensus": metrics.scores(
            labels[has_cluster], combined.clusters[has_cluster], names=SCORES
        ),
        "mean of the runs": of_runs.mean(),
        "best of the runs": of_runs.max(),
    }
    return pd.DataFrame(rows).T.rename_axis("clusters").reset_index()


def confidence_text(runs: Ensemble, combined: Consensus) -> str:
    """Returns a sentence on the confidence of the consensus.

    Args:
        runs: the runs that form the consensus.
        combined: the consensus of the runs.

    Returns:
        The share of examples with high confidence, in percent, and the number of
        examples with less and with low confidence.
    """
    confidence = combined.confidence[~np.isnan(combined.confidence)]
    number, missing = len(runs.runs), len(combined.confidence) - len(confidence)
    text = (
        f"the {number} runs agree on {np.mean(confidence >= SURE):.0%} of "
        f"{len(confidence):,} examples (confidence {SURE} or more); "
        f"{np.sum(confidence < SURE):,} examples are unsure, "
        f"{np.sum(confidence < 0.5):,} of them with a confidence below 0.5"
    )
    return f"{text}; {missing:,} examples have no cluster" if missing else text


# --- Number of clusters

LEAST = 0.01
"""Smallest difference of trade-offs that counts, even if the seeds agree."""


class Suggestion(NamedTuple):
    """The number of clusters that the runs suggest."""

    number: int | None
    """The number of clusters; None if no number stands out."""
    reason: str
    """The reason, as a sentence."""
    stabilities: Mapping[int, Stability]
    """By number of clusters, the agreement of the seeds."""
    left_out: str
    """A sentence on the numbers that could not be compared; "" if there are none."""

    @property
    def trade_off(self) -> dict[float, float]:
        """By number of clusters, the agreement of seeds on clusters minus on halves."""
        items = self.stabilities.items()
        return {float(number): float(np.mean(x.trade_off)) for number, x in items}

    @property
    def table(self) -> pd.DataFrame:
        """One row per number of clusters, with means over the pairs of runs."""
        means = ("between", "within", "trade_off")
        return pd.DataFrame(
            [
                {
                    "clusters": number,
                    **{name: np.mean(getattr(value, name)) for name in means},
                    "pairs": len(value.between),
                }
                for number, value in self.stabilities.items()
            ]
        )

    @property
    def pairs(self) -> list[dict[str, Any]]:
        """One row per pair of runs: both agreements, and their difference."""
        return [
            {"clusters": k, "between": one, "within": other, "trade-off": one - other}
            for k, value in self.stabilities.items()
            for one, other in zip(value.between, value.within, strict=True)
        ]


def how_many(runs: Ensemble) -> Suggestion:
    """Suggests the number of clusters on which the seeds agree most.

    Args:
        runs: runs that differ only in the number of clusters and the seed.

    Returns:
        The suggestion, see `Results.how_many`.

    Raises:
        ValueError: fewer than two numbers can be compared, the runs differ in other
            settings, or there is no common embedding.
    """
    runs = runs.voters
    check_alike(runs.runs)
    numbers = runs.values("clusters").astype(int)
    values, counts = np.unique(numbers, return_counts=True)
    if len(values) < 2:
        raise ValueError(
            f"all runs have {values[0]} clusters: run several numbers, such as "
            f"--clusters {max(2, values[0] - 2)} {values[0]} {values[0] + 2} "
            "--seed 0 1 2"
        )
    if np.sum(counts > 1) < 2:
        raise ValueError(
            f"one run with {values[counts.argmin()]} clusters ended well, and at least "
            "two are needed: run several seeds, such as --seed 0 1 2"
        )
    indices = runs.sample()
    embeddings = runs.embeddings(indices)
    if embeddings is None:
        raise ValueError(
            "clients cluster separately in these runs: without a common embedding no "
            "number of clusters can be suggested"
        )
    stabilities, left_out = {}, []
    for number, count in zip(values.tolist(), counts, strict=True):
        (same,) = np.nonzero(numbers == number)
        clusters = runs.clusters[np.ix_(same, indices)]
        value = None
        if count > 1:
            value = stability(clusters, [embeddings[i] for i in same])
        if value is None or np.isnan(value.within).any():
            left_out.append(str(number))
        else:
            stabilities[number] = value
    reason = "one run that ended well, or clusters too small to divide"
    if len(stabilities) < 2:
        raise ValueError(f"{', '.join(left_out)} clusters have {reason}")
    text = f"left out: {', '.join(left_out)} clusters ({reason})" if left_out else ""
    return Suggestion(*suggest(stabilities), stabilities, text)


def check_alike(runs: Sequence[Run]) -> None:
    """Checks that runs differ only in the number of clusters and the seed.

    Args:
        runs: the runs. A setting may depend on the number of clusters.

    Raises:
        ValueError: the runs differ in the method or another setting.
    """
    for name in ("method", *runs[0].folder.columns):
        if name in ("clusters", "seed"):
            continue
        by_number: dict[int, set] = {}
        for run in runs:
            by_number.setdefault(int(run.row["clusters"]), set()).add(run.row.get(name))
        several = [sorted(x, key=str) for x in by_number.values() if len(x) > 1]
        if several:
            raise ValueError(
                f"the runs also differ in {name}: select runs with `where` {name}="
                f"{several[0][0]}"
            )
    ignored = ("dataset", "labels", "preset", "swept", "defaults")
    first, *others = (run.folder for run in runs)
    for other in others:
        names = [x for x in differing(first.config, other.config) if x not in ignored]
        if names:
            raise ValueError(
                f"{first.directory} and {other.directory} also differ in {names[0]}: "
                "compare folders with the same settings"
            )


def suggest(stabilities: Mapping[int, Stability]) -> tuple[int | None, str]:
    """Returns the number of clusters with the best trade-off, and the reason.

    The number is None if its trade-off exceeds the next one by no more than the
    standard error of their difference.

    Args:
        stabilities: the stability of the runs, by number of clusters; at least two
            numbers.

    Returns:
        The number of clusters or None, and the reason as a sentence.
    """
    means = {k: float(np.mean(x.trade_off)) for k, x in stabilities.items()}
    best, second = sorted(means, key=lambda k: -means[k])[:2]
    # A run is in several pairs, so there are only as many independent values as runs.
    errors = [
        np.std(stabilities[k].trade_off, ddof=1) / np.sqrt(stabilities[k].num_runs)
        for k in (best, second)
    ]
    error = float(np.linalg.norm(errors))
    if means[best] <= 0 or means[best] - means[second] <= max(error, LEAST):
        return (
            None,
            f"no number of clusters stands out: trade-off {means[best]:.2f} for {best} "
            f"clusters, {means[second]:.2f} for {second}; standard error of the "
            f"difference {error:.2f}",
        )
    reason = (
        f"seeds agree most on {best} clusters (trade-off {means[best]:.2f}; next best "
        f"{second} clusters, {means[second]:.2f})"
    )
    ends = {min(stabilities): "fewer", max(stabilities): "more"}
    if best in ends:
        reason += f"; no run has {ends[best]} clusters: run {ends[best]}, too"
    return best, reason
