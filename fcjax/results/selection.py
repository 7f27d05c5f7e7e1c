"""What several runs of one data set say together, without labels: which run to take,
one clustering of all, and how many clusters there are.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy import stats

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
"""Examples that are embedded, drawn at random: silhouettes are quadratic in their
number."""


class Ensemble(NamedTuple):
    """R runs of the same P examples."""

    runs: tuple[Run, ...]
    clusters: Int[np.ndarray, "R P"]
    """-1 where there is none. Where clients clustered on their own a cluster of one is
    a cluster of its own, but for those that the run found to be the same."""
    clients: Int[np.ndarray, "R P"] | None
    """The client of each example, where no cluster of one client is known to be that of
    another in any run; None where there is one clustering of all."""

    def take(self, chosen: Sequence[int]) -> "Ensemble":
        """Returns these of the runs."""
        kept = list(chosen)
        return Ensemble(
            tuple(self.runs[i] for i in kept),
            self.clusters[kept],
            None if self.clients is None else self.clients[kept],
        )

    @property
    def ok(self) -> list[int]:
        """The runs that neither collapsed nor diverged."""
        return [i for i, run in enumerate(self.runs) if run.is_ok]

    @property
    def by_data_setting(self) -> list[list[int]]:
        """The runs, grouped by how the data lies on the clients: heterogeneity, number
        and size of the clients, failures. Nobody can choose these settings, so runs
        that differ in one of them are not compared.
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
        """The runs that are ok; raises ValueError where there are fewer than two."""
        if len(self.ok) < 2:
            raise ValueError(
                f"it takes two runs or more that ended well, got {len(self.ok)} of "
                f"{len(self.runs)}: more seeds make them, as --seed 0 1 2"
            )
        return self.take(self.ok)

    @property
    def is_labelled(self) -> bool:
        return all(run.row.get("nmi") is not None for run in self.runs)

    def values(self, name: str) -> Float[np.ndarray, "R"]:
        """Returns a column of results.csv, NaN where a cell is empty."""
        cells = (run.row.get(name) for run in self.runs)
        return np.array([np.nan if x is None else x for x in cells], float)

    @property
    def dataset(self) -> Dataset:
        return self.runs[0].dataset

    def sample(self) -> Int[np.ndarray, "n"]:
        """Returns which examples are embedded, always the same ones."""
        order = np.random.default_rng(0).permutation(self.clusters.shape[1])
        return np.sort(order[:MOST_EMBEDDED])

    def embeddings(
        self, rows: Int[np.ndarray, "n"]
    ) -> list[Float[np.ndarray, "n D"]] | None:
        """Returns the embedding of these examples by the global model of each run; None
        where a run has no global model.
        """
        if not all(run.has_model for run in self.runs):
            return None
        examples = self.dataset.examples[rows]
        return [exported.predict(x.model, examples).embedding for x in self.runs]


def ensemble(runs: Sequence[Run]) -> Ensemble:
    """Returns runs with the clusters of their examples, aligned.

    Raises:
        ValueError: a folder has tables alone, without assignments.
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
    "agreement": "that agrees most with the others",
    "agreement_nmi": "that agrees most with the others, by NMI,",
    "consensus": "that agrees most with the consensus of all runs",
    "others": "with the highest silhouette in the embeddings of the others",
    "input": "with the highest silhouette among the examples as they are",
    "silhouette": "with the highest silhouette of its own",
    "loss": "with the smallest loss",
}
"""Which run each criterion chooses."""


def choose_run(runs: Ensemble) -> tuple[int, Criterion | None]:
    """Chooses one of the runs, see `Results.choose`.

    Returns:
        The run's place, and the criterion that chose it: `DEFAULT`, or the agreement of
        the runs where `DEFAULT` says nothing, as for clients with clusters of their
        own. It is None if fewer than two runs ended well. Of runs of different data
        settings, such as several p, those of the first run's settings are chosen from.
    """
    group = runs.by_data_setting[0]
    own = runs.take(group)
    if len(own.ok) < 2:
        return group[(own.ok or [0])[0]], None
    for name in (DEFAULT, "agreement"):
        values = CRITERIA[name](own.take(own.ok))
        if not np.isnan(values).all():
            return group[own.ok[ranking(values)[0]]], name
    return group[own.ok[0]], None


def criteria(runs: Ensemble) -> dict[Criterion, Float[np.ndarray, "R"]]:
    """Returns the value of each criterion for every run, the larger the better; NaN
    where it says nothing, as of a run that collapsed or diverged.
    """
    values, good = {}, runs.take(runs.ok)
    for name in CRITERIA:
        values[name] = np.full(len(runs.runs), np.nan)
        if runs.ok:
            values[name][runs.ok] = CRITERIA[name](good)
    return values


def by_agreement(runs: Ensemble, measure: Callable) -> Float[np.ndarray, "R"]:
    pairs = pairwise_agreement(runs.clusters, holders=runs.clients, measure=measure)
    return mean_agreement(pairs)


def by_consensus(runs: Ensemble) -> Float[np.ndarray, "R"]:
    """Returns how far each run agrees with the consensus of all, of as many clusters as
    it looks for.
    """
    if len(runs.runs) < 2:
        return np.full(len(runs.runs), np.nan)
    together = cache(lambda k: consensus(runs.clusters, k).clusters)
    return np.array(
        [
            agreement(
                own,
                together(int(run.row["clusters"])),
                blocks=None if runs.clients is None else runs.clients[i],
            )
            for i, (run, own) in enumerate(zip(runs.runs, runs.clusters, strict=True))
        ]
    )


def by_others(runs: Ensemble) -> Float[np.ndarray, "R"]:
    rows = runs.sample()
    embeddings = runs.embeddings(rows)
    if embeddings is None:
        return np.full(len(runs.runs), np.nan)
    clusters = runs.clusters[:, rows]
    return pooled_ranks(np.array([silhouettes(z, clusters) for z in embeddings]))


def by_input(runs: Ensemble) -> Float[np.ndarray, "R"]:
    rows = runs.sample()
    flat = runs.dataset.examples[rows].reshape(len(rows), -1).astype(float)
    values = silhouettes(flat, runs.clusters[:, rows])
    if runs.clients is not None:  # clients' own clusters lie on top of each other
        values[(runs.clients >= 0).any(axis=1)] = np.nan
    return values


def by_loss(runs: Ensemble) -> Float[np.ndarray, "R"]:
    """Returns minus the loss of the last round. Losses of different methods or settings
    are not alike.
    """
    each = [x.folder.of_runs(x.folder.rounds, [x.params]) for x in runs.runs]
    return -np.array([rounds[-1]["loss"] if rounds else np.nan for rounds in each])


CRITERIA: Mapping[Criterion, Callable[[Ensemble], Float[np.ndarray, "R"]]] = {
    "agreement": partial(by_agreement, measure=ari),
    "agreement_nmi": partial(by_agreement, measure=nmi),
    "consensus": by_consensus,
    "others": by_others,
    "input": by_input,
    "silhouette": lambda runs: runs.values("silhouette"),
    "loss": by_loss,
}
"""The value of each criterion for runs that ended well, the larger the better."""


def ranking(values: Float[np.ndarray, "R"]) -> list[int]:
    """Returns the runs, that with the largest value first, those without one last."""
    return np.argsort(
        np.where(np.isnan(values), np.inf, -values), kind="stable"
    ).tolist()


def rank_runs(runs: Ensemble, by: Criterion) -> pd.DataFrame:
    """Returns one row per run, the best first: which run it is, the criteria, its
    scores. The index is the run's place.

    Raises:
        ValueError: the criterion says nothing of any run.
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
        line |= {name: float(each[i]) for name, each in values.items()}
        lines.append(line | {name: run.row[name] for name in scores})
    return pd.DataFrame(lines).iloc[ranking(values[by])]


def against_labels(ranks: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per criterion: its rank correlation with NMI and ACC over runs,
    and its regret, the best NMI less that of the chosen run; a random choice last.

    Args:
        ranks: of `rank_runs`, for data with labels.
    """
    ranks = ranks.sort_index()
    values = ranks[[*CRITERIA]].dropna(axis=1, how="all")
    scores = ranks[["nmi", "acc"]].astype(float)
    lines = [
        {
            "criterion": name,
            **{
                f"{score} rank correlation": correlation(
                    each.to_numpy(), own.to_numpy()
                )
                for score, own in scores.items()
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
    """Returns Spearman's rank correlation over the runs with a value; NaN where either
    does not vary.
    """
    known = ~np.isnan(values)
    values, scores = values[known], scores[known]
    if len(values) < 2 or np.ptp(values) == 0 or np.ptp(scores) == 0:
        return np.nan
    return float(stats.spearmanr(values, scores)[0])  # pyright: ignore[reportArgumentType]


def regret(values: Float[np.ndarray, "R"], scores: Float[np.ndarray, "R"]) -> float:
    """Returns the best score less that of the run with the largest value."""
    return float(scores.max() - scores[ranking(values)[0]])


def why_not(name: Criterion, runs: Ensemble) -> str:
    """Returns why a criterion says nothing of any run."""
    few = {"agreement": 2, "agreement_nmi": 2, "consensus": 2, "others": 3}
    least = few.get(name, 1)
    if len(runs.ok) < least:
        number = f"{least} run{'s' * (least > 1)}"
        return f"`by` {name} takes {number} that ended well, got {len(runs.ok)}"
    if runs.clients is not None:
        return f"`by` {name} takes one clustering of all; clients here have their own"
    return f"`by` {name} says nothing of these runs"


# --- One clustering of all

SURE = 0.9
"""The confidence from which on an example is called sure."""
SCORES = ("nmi", "acc", "ari")


def consensus_of(
    runs: Ensemble, num_clusters: int | None = None, *, seed: int = 0
) -> Consensus:
    """Returns the consensus of runs that ended well, see `Results.consensus`."""
    if num_clusters is None:
        if runs.clients is not None:
            raise ValueError(
                "clients looked for clusters of their own: give `num_clusters`, the "
                "number of clusters of all"
            )
        numbers = np.unique(runs.values("clusters")).astype(int)
        if len(numbers) > 1:
            several = " ".join(map(str, numbers))
            raise ValueError(
                f"the runs look for {several} clusters: choose by `where` clusters="
                f"{numbers[0]}, or by `num_clusters`"
            )
        num_clusters = int(numbers[0])
    if num_clusters < 2:
        raise ValueError(f"num_clusters must be at least 2, got {num_clusters}")
    return consensus(runs.clusters, num_clusters, holders=runs.clients, seed=seed)


def consensus_scores(runs: Ensemble, together: Consensus) -> pd.DataFrame:
    """Returns the scores of a consensus, and the mean and the best of its runs."""
    labels, held = runs.dataset.labels, together.clusters >= 0
    assert labels is not None
    # As results.csv has them: where clients are on their own, a mean of theirs.
    each = pd.DataFrame({name: runs.values(name) for name in SCORES})
    rows = {
        "of the consensus": metrics.scores(
            labels[held], together.clusters[held], names=SCORES
        ),
        "of the runs, mean": each.mean(),
        "of the runs, best": each.max(),
    }
    return pd.DataFrame(rows).T.rename_axis("clusters").reset_index()


def confidence_text(runs: Ensemble, together: Consensus) -> str:
    """Returns how sure the consensus is, in a sentence."""
    known = together.confidence[~np.isnan(together.confidence)]
    number, missing = len(runs.runs), len(together.confidence) - len(known)
    told = (
        f"of {len(known):,} examples the {number} runs are sure of "
        f"{np.mean(known >= SURE):.0%}, which they put together with the others of "
        f"their cluster {SURE:.0%} of the time or more; of {np.mean(known < 0.5):.0%} "
        "less than half"
    )
    return f"{told}; {missing:,} others are in no run's clusters" if missing else told


# --- How many clusters

LEAST = 0.01
"""A difference of trade-offs that is none, however alike the seeds are."""


class Suggestion(NamedTuple):
    """How many clusters the runs suggest."""

    number: int | None
    """None where no number stands out."""
    reason: str
    """Why, in a sentence."""
    stabilities: Mapping[int, Stability]
    """The agreement of the seeds for each number of clusters that was compared."""
    left_out: str
    """A sentence on the numbers that could not be compared; empty without any."""

    @property
    def trade_off(self) -> dict[float, float]:
        """For each number of clusters, how far seeds agree on the clusters less how far
        they agree on parts of the clusters.
        """
        each = self.stabilities.items()
        return {float(number): float(np.mean(x.trade_off)) for number, x in each}

    @property
    def table(self) -> pd.DataFrame:
        """One row per number of clusters: means over pairs of runs."""
        means = ("between", "within", "trade_off")
        return pd.DataFrame(
            [
                {
                    "clusters": number,
                    **{name: np.mean(getattr(each, name)) for name in means},
                    "pairs": len(each.between),
                }
                for number, each in self.stabilities.items()
            ]
        )

    @property
    def pairs(self) -> list[dict[str, Any]]:
        """One row per pair of runs."""
        return [
            {"clusters": k, "between": one, "within": other, "trade-off": one - other}
            for k, each in self.stabilities.items()
            for one, other in zip(each.between, each.within, strict=True)
        ]


def how_many(runs: Ensemble) -> Suggestion:
    """Suggests a number of clusters, see `Results.how_many`."""
    runs = runs.voters
    check_alike(runs.runs)
    numbers = runs.values("clusters").astype(int)
    values, counts = np.unique(numbers, return_counts=True)
    if len(values) < 2:
        raise ValueError(
            f"all runs look for {values[0]} clusters: try several, with --clusters "
            f"{max(2, values[0] - 2)} {values[0]} {values[0] + 2} --seed 0 1 2"
        )
    if np.sum(counts > 1) < 2:
        raise ValueError(
            "two seeds or more tell how stable a number of clusters is, with --seed 0 "
            f"1 2; {values[counts.argmin()]} has one run that ended well"
        )
    rows = runs.sample()
    embeddings = runs.embeddings(rows)
    if embeddings is None:
        raise ValueError(
            "clients cluster on their own here: they have no common embedding in which "
            "clusters could be divided"
        )
    stable, left_out = {}, []
    for number, count in zip(values.tolist(), counts, strict=True):
        (own,) = np.nonzero(numbers == number)
        clusters = runs.clusters[np.ix_(own, rows)]
        each = stability(clusters, [embeddings[i] for i in own]) if count > 1 else None
        if each is None or np.isnan(each.within).any():
            left_out.append(str(number))
        else:
            stable[number] = each
    reason = "one run that ended well, or too few examples to be divided"
    if len(stable) < 2:
        raise ValueError(f"{', '.join(left_out)} clusters have {reason}")
    said = f"left out: {', '.join(left_out)} clusters ({reason})" if left_out else ""
    return Suggestion(*suggested(stable), stable, said)


def check_alike(runs: Sequence[Run]) -> None:
    """Raises ValueError where runs of one number of clusters differ in more than their
    seed, or numbers are of different methods or settings.
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
                f"the runs differ in {name}, too: choose by `where` {name}="
                f"{several[0][0]}"
            )
    settled = ("dataset", "labels", "preset", "swept", "defaults")
    first, *others = (run.folder for run in runs)
    for other in others:
        names = [x for x in differing(first.config, other.config) if x not in settled]
        if names:
            raise ValueError(
                f"{first.directory} and {other.directory} differ in {names[0]}, too"
            )


def suggested(stable: Mapping[int, Stability]) -> tuple[int | None, str]:
    """Returns the number with the best trade-off, and why. It is None where the number
    does not stand out from the next one by more than the standard error of their
    difference.
    """
    means = {k: float(np.mean(each.trade_off)) for k, each in stable.items()}
    best, second = sorted(means, key=lambda k: -means[k])[:2]
    # A run is in several pairs: the error is that of as many values as runs.
    errors = [
        np.std(stable[k].trade_off, ddof=1) / np.sqrt(stable[k].num_runs)
        for k in (best, second)
    ]
    error = float(np.linalg.norm(errors))
    if means[best] <= 0 or means[best] - means[second] <= max(error, LEAST):
        return (
            None,
            f"no number stands out: {best} has {means[best]:.2f}, {second} has "
            f"{means[second]:.2f}, with a standard error of {error:.2f} between them",
        )
    reason = (
        f"seeds agree most on {best} clusters (trade-off {means[best]:.2f}; next "
        f"{second}, {means[second]:.2f})"
    )
    ends = {min(stable): "fewer", max(stable): "more"}
    if best in ends:
        reason += f"; it is the end of the numbers that were tried: try {ends[best]}"
    return best, reason
