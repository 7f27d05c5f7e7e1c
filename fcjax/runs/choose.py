"""Which of several runs to take, without labels: `fcjax choose RUN [RUN ...]`.

choice.csv   a line a run, the best first: what each criterion says of it
choice.png   how far each two of them agree; if all have the same settings of the data
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
import pandas as pd
import tyro
from jaxtyping import Float
from scipy import stats

from fcjax.metrics.agreement import (
    agreement,
    consensus,
    mean_agreement,
    pairwise_agreement,
    pooled_ranks,
)
from fcjax.metrics.external import ari, nmi
from fcjax.metrics.internal import silhouettes
from fcjax.results import figures, tables
from fcjax.runs.together import Together, drawn, gather
from fcjax.sweep.ending import refusing
from fcjax.sweep.flags import shown
from fcjax.sweep.words import flags_in

Criterion = Literal[
    "agreement", "agreement_nmi", "consensus", "others", "input", "silhouette", "loss"
]
DEFAULT: Criterion = "input"
WORDS: Mapping[Criterion, str] = {
    "agreement": "that agrees most with the others",
    "agreement_nmi": "that agrees most with the others, by NMI,",
    "consensus": "that agrees most with what all say together",
    "others": "with the highest silhouette in the embeddings of the others",
    "input": "with the highest silhouette among the examples as they are",
    "silhouette": "with the highest silhouette of its own",
    "loss": "with the smallest loss",
}
"""Which run each takes."""


@dataclasses.dataclass(frozen=True)
class Args:
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
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Results folders, --out of the runs."""
    by: Criterion = DEFAULT
    """What decides."""
    where: Annotated[tuple[str, ...], shown("all runs")] = ()
    """Only runs with these values: p=0.25 clusters=10."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    out: Annotated[Path | None, shown("the first folder")] = None
    """Folder of choice.csv and choice.png; written over."""


def main(args: Args) -> None:
    """Raises ValueError with one line where the runs cannot be compared."""
    runs, rows, best = gather(args.runs, args.where), [], []
    groups = [runs.take(own) for own in runs.of_same_data]
    found_of = [criteria(group, data_dir=args.data_dir) for group in groups]
    for group, found in zip(groups, found_of, strict=True):
        if np.isnan(found[args.by]).all():
            raise ValueError(why_not(args.by, group))
    out = args.out or args.runs[0]
    out.mkdir(parents=True, exist_ok=True)
    for group, found in zip(groups, found_of, strict=True):
        order = ranking(found[args.by])
        best.append(group.members[order[0]])
        own = [row(group, found, i) for i in order]
        rows += own
        tables.show([shown_row(each) for each in own])
        if group.scored:
            tables.show(against_labels(group, found))
        if len(groups) == 1 and len(order) > 1:
            pairs = pairwise_agreement(group.clusters, holders=group.holders)
            names = [group.members[i].told for i in order]
            figures.agreements(pairs[np.ix_(order, order)], names, out / "choice.png")
    pd.DataFrame(rows).to_csv(out / "choice.csv", index=False, float_format="%.6g")
    for member in best:
        print(f"by {args.by}: {member.told}")
        print(f"see it: fcjax page {member.where}")


def chosen(runs: Together, *, data_dir: Path | None) -> tuple[int, Criterion | None]:
    """Chooses one of the runs, see `Args`.

    Returns:
        The run's place, and the criterion that chose it: `DEFAULT`, or the agreement of
        the runs where `DEFAULT` says nothing, as for clients with clusters of their
        own. It is None if fewer than two runs ended well. Of runs of different data
        settings, such as several p, those of the first run's settings are chosen from.
    """
    own = runs.of_same_data[0]
    place, by = chosen_of_same_data(runs.take(own), data_dir=data_dir)
    return own[place], by


def chosen_of_same_data(
    runs: Together, *, data_dir: Path | None
) -> tuple[int, Criterion | None]:
    """As `chosen`, for runs of one setting of the data."""
    if len(runs.ok) < 2:
        return (runs.ok or [0])[0], None
    good = runs.take(runs.ok)
    for name in (DEFAULT, "agreement"):
        values = criterion(name, good, sample=partial(sampled, good, data_dir))
        if not np.isnan(values).all():
            return runs.ok[ranking(values)[0]], name
    return runs.ok[0], None


def criteria(
    runs: Together, *, data_dir: Path | None
) -> dict[Criterion, Float[np.ndarray, "R"]]:
    """Returns what each criterion says of every run, the larger the better; NaN where
    it says nothing, as of a run that collapsed or diverged."""
    found, good = {}, runs.take(runs.ok)
    sample = cache(partial(sampled, good, data_dir))  # two of them look at it
    for name in get_args(Criterion):
        found[name] = np.full(len(runs.members), np.nan)
        if runs.ok:
            found[name][runs.ok] = criterion(name, good, sample=sample)
    return found


def sampled(runs: Together, data_dir: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns a few examples [n, *F] and their clusters in all runs [R, n]."""
    rows = drawn(runs.clusters.shape[1])
    return runs.dataset(data_dir)[0].examples[rows], runs.clusters[:, rows]


def criterion(
    name: Criterion,
    runs: Together,
    *,
    sample: Callable[[], tuple[np.ndarray, np.ndarray]],
) -> Float[np.ndarray, "R"]:
    """Returns what one of them says of runs that ended well; `sample` is asked where it
    looks at examples."""
    match name:
        case "agreement":
            return by_agreement(runs, ari)
        case "agreement_nmi":
            return by_agreement(runs, nmi)
        case "consensus":
            return by_consensus(runs)
        case "silhouette":
            return runs.values("silhouette")
        case "loss":
            return -last_loss(runs)
        case "others":
            return by_others(runs, *sample())
        case "input":
            return by_input(runs, *sample())


def by_agreement(runs: Together, measure: Callable) -> Float[np.ndarray, "R"]:
    pairs = pairwise_agreement(runs.clusters, holders=runs.holders, measure=measure)
    return mean_agreement(pairs)


def by_consensus(runs: Together) -> Float[np.ndarray, "R"]:
    """Returns how far each run agrees with the consensus of all, of as many clusters as
    it looks for."""
    if len(runs.members) < 2:
        return np.full(len(runs.members), np.nan)
    numbers = [int(member.row["clusters"]) for member in runs.members]
    both = {k: consensus(runs.clusters, k).clusters for k in set(numbers)}
    holders = runs.holders
    return np.array(
        [
            agreement(own, both[k], blocks=None if holders is None else holders[i])
            for i, (own, k) in enumerate(zip(runs.clusters, numbers, strict=True))
        ]
    )


def by_others(
    runs: Together, examples: np.ndarray, clusters: np.ndarray
) -> Float[np.ndarray, "R"]:
    embeddings = runs.embedded(examples)
    known = [z for z in embeddings if z is not None]
    if len(known) < len(embeddings):
        return np.full(len(embeddings), np.nan)
    return pooled_ranks(np.array([silhouettes(z, clusters) for z in known]))


def by_input(
    runs: Together, examples: np.ndarray, clusters: np.ndarray
) -> Float[np.ndarray, "R"]:
    flat = examples.reshape(len(examples), -1).astype(float)
    found = silhouettes(flat, clusters)
    if runs.holders is not None:  # clients' own clusters lie on top of each other
        found[(runs.holders >= 0).any(axis=1)] = np.nan
    return found


def last_loss(runs: Together) -> Float[np.ndarray, "R"]:
    """Returns the loss of the last round. Losses of different methods or settings are
    not alike."""
    last = []
    for member in runs.members:
        (history,) = member.folder.history_of([member.point])
        last.append(float(history[-1]["loss"]) if history else np.nan)
    return np.array(last)


def ranking(values: Float[np.ndarray, "R"]) -> list[int]:
    """Returns the runs, that with the largest value first, those without one last."""
    return np.argsort(
        np.where(np.isnan(values), np.inf, -values), kind="stable"
    ).tolist()


def row(
    runs: Together, found: Mapping[Criterion, np.ndarray], i: int
) -> dict[str, object]:
    """Returns the line of a run: which it is, what the criteria say, its scores."""
    member = runs.members[i]
    names = dict.fromkeys([*member.folder.settings, "seed"])
    scores = ("nmi", "acc") if runs.scored else ()
    return {
        "folder": str(member.folder.directory),
        "method": member.row["method"],
        **{name: member.row[name] for name in names},
        "status": member.row["status"],
        **{name: float(values[i]) for name, values in found.items()},
        **{name: member.row[name] for name in scores},
    }


def shown_row(row: Mapping[str, object]) -> dict[str, object]:
    """Returns a line as it is printed: three digits, nothing where there is no value,
    and of the folder its name."""

    def cell(value: object) -> object:
        if not isinstance(value, float):
            return value
        return "" if np.isnan(value) else f"{value:.3f}"

    found = {name: cell(value) for name, value in row.items()}
    return {**found, "folder": Path(str(row["folder"])).name}


def against_labels(
    runs: Together, found: Mapping[Criterion, np.ndarray]
) -> list[dict[str, object]]:
    """Returns a line a criterion: its rank correlation with NMI and ACC over the runs,
    and its regret; that of a random choice last."""
    scores = {name: runs.values(name) for name in ("nmi", "acc")}
    lines = []
    for name, values in found.items():
        known = ~np.isnan(values)
        if not known.any():
            continue
        line: dict[str, object] = {"criterion": name}
        for score, each in scores.items():
            rho = correlation(values[known], each[known])
            line[f"{score} rank correlation"] = "" if np.isnan(rho) else f"{rho:+.2f}"
        line["regret"] = f"{regret(values, scores['nmi']):.3f}"
        lines.append(line)
    by_chance = scores["nmi"].max() - scores["nmi"].mean()
    return [*lines, {"criterion": "(a random run)", "regret": f"{by_chance:.3f}"}]


def correlation(
    values: Float[np.ndarray, "R"], scores: Float[np.ndarray, "R"]
) -> float:
    """Returns Spearman's rank correlation, NaN where either does not vary."""
    if len(values) < 2 or np.ptp(values) == 0 or np.ptp(scores) == 0:
        return np.nan
    return float(stats.spearmanr(values, scores)[0])  # pyright: ignore[reportArgumentType]


def regret(values: Float[np.ndarray, "R"], scores: Float[np.ndarray, "R"]) -> float:
    """Returns the best score less that of the run with the largest value."""
    return float(scores.max() - scores[ranking(values)[0]])


def why_not(name: Criterion, runs: Together) -> str:
    """Returns why a criterion says nothing of any run."""
    least = {"agreement": 2, "agreement_nmi": 2, "consensus": 2, "others": 3}.get(
        name, 1
    )
    if len(runs.ok) < least:
        number = f"{least} run{'s' * (least > 1)}"
        return f"--by {name} takes {number} that ended well, got {len(runs.ok)}"
    if runs.holders is not None:
        return f"--by {name} takes one clustering of all; clients here have their own"
    return f"--by {name} says nothing of these runs"


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
