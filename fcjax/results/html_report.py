"""The HTML report of a run, report.html.

It opens in any browser, without a network and without JavaScript. Its text and layout
are in the template report.html of this package.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from jaxtyping import Int

import fcjax
from fcjax.data.source import short_name
from fcjax.federated.kmeans import UNLIKE
from fcjax.results import tables
from fcjax.results.figures import images
from fcjax.results.run import INTERNAL_SCORES, Run, ScoredExamples, below_kmeans
from fcjax.results.selection import (
    DESCRIPTIONS,
    Ensemble,
    choose_run,
    confidence_text,
    consensus_of,
    how_many,
)
from fcjax.results.store import Folder

MOST_POINTS = 2000
"""Examples on the map."""

TITLES = {
    "silhouette": "silhouette, higher is better",
    "calinski_harabasz": "Calinski-Harabasz, higher is better",
    "davies_bouldin": "Davies-Bouldin, lower is better",
    "acc": "ACC against labels",
    "nmi": "NMI against labels",
}
"""Of the scores on the page."""

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
TEMPLATES.filters["commas"] = "{:,}".format


class Cluster(NamedTuple):
    """One sheet of the page."""

    name: str
    rows: Int[np.ndarray, "n"]
    """Of its examples, the nearest to its center first."""


class Summary(NamedTuple):
    """Summary to the first questions of a user without labels."""

    short: dict[str, str]
    """From each question to a sentence or two."""
    run: Run
    """The run to take."""
    trade_off: Mapping[float, float]
    """Of `Suggestion`; empty where the runs suggest no number."""


def write(runs: Ensemble, out: Path) -> Run:
    """Writes report.html, assignments.csv and embeddings.npz of the run that it shows,
    and returns the run; see `Results.report`.
    """
    answer = summarize(runs)
    run = answer.run
    scored = run.scored_examples
    out.mkdir(parents=True, exist_ok=True)
    scored.write(out)
    text = render(run, scored, out, answer)
    (out / "report.html").write_text(text, encoding="utf-8")
    return run


def summarize(runs: Ensemble) -> Summary:
    """Summary how many clusters there are, which run to take, and how sure it is."""
    number, number_text, trade_off = suggestion_of(runs)
    if number is not None:
        same = runs.values("clusters") == number
        runs = runs.take(np.flatnonzero(same).tolist())
    best, by = choose_run(runs)
    run = runs.runs[best]
    settings = [name for name in run.folder.settings if name != "seed"]
    alike = [
        i
        for i, other in enumerate(runs.runs)
        if all(other.row[name] == run.row[name] for name in settings)
    ]
    which = "There is one."
    if by is not None:
        which = f"The one {DESCRIPTIONS[by]}: {run.name}."
    elif len(runs.runs) > 1:
        which = f"{run.name}; of {len(runs.runs)} {len(runs.ok)} ended well."
    if len(runs.by_data_setting) > 1:
        which += (
            " Runs of other heterogeneity, clients or failures were not compared with "
            "it: --where chooses among those."
        )
    try:
        voters = runs.take(alike).voters
        sure = confidence_text(voters, consensus_of(voters))
    except ValueError as error:
        sure = f"unknown: {error}"
    short = {
        "How many clusters?": number_text,
        "Which run?": which,
        "How sure?": sentence(sure),
    }
    return Summary(short, run, trade_off)


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def suggestion_of(runs: Ensemble) -> tuple[int | None, str, dict[float, float]]:
    """Returns the suggested number of clusters, None without one, a sentence or two on
    it, and the trade-offs of all numbers.
    """
    numbers = np.unique(runs.values("clusters")).astype(int)
    if len(numbers) == 1:
        (one,) = numbers
        several = f"--clusters {max(2, one - 2)} {one} {one + 2} --seed 0 1 2"
        told = f"One number was tried, {one}: try several, such as {several}."
        return None, told, {}
    try:
        found = how_many(runs)
    except ValueError as error:
        return None, f"These runs do not say: {error}.", {}
    each = [sentence(text) for text in (found.reason, found.left_out) if text]
    return found.number, " ".join(each), found.trade_off


def clusters_of(
    found: ScoredExamples, *, num_clusters: int, scope: str
) -> list[Cluster]:
    """Returns the clusters of a run, empty ones too. Where clients cluster on their own
    these are the communities of their clusters, or without any each client's own.
    """
    # Those without a distance keep the order of the data set.
    nearest = np.argsort(found.distances, kind="stable")
    if found.communities is None and scope != "global":
        owned = np.stack([found.clients, found.clusters], axis=1)[nearest]
        return [
            Cluster(f"Client {i}, cluster {k}", nearest[(owned == [i, k]).all(axis=1)])
            for i, k in np.unique(owned[(owned >= 0).all(axis=1)], axis=0)
        ]
    kind, groups = "Cluster", found.clusters
    if found.communities is not None:
        kind, groups = "Community", found.communities
        num_clusters = int(groups.max()) + 1
    groups = groups[nearest]
    return [Cluster(f"{kind} {k}", nearest[groups == k]) for k in range(num_clusters)]


def render(run: Run, scored: ScoredExamples, out: Path, answer: Summary) -> str:
    """Returns the text of the page.

    Args:
        run: that it shows.
        scored: the examples of the run.
        out: the folder of the page, from where its links lead.
        answer: of `summarize`.
    """
    folder, row, config = run.folder, run.row, run.folder.config
    num_clusters = int(row["clusters"])
    clusters = clusters_of(scored, num_clusters=num_clusters, scope=row["scope"])
    sizes = {cluster.name: len(cluster.rows) for cluster in clusters}
    held = np.bincount(scored.clients[scored.clients >= 0])
    settings = run.params | {k: v for k, v in config.items() if k != "swept"}
    drawn, num_points = map_of(scored, num_clusters=num_clusters)
    return TEMPLATES.get_template("report.html").render(
        scores(folder, row),
        short=answer.short,
        trade_off=images.curve(
            "agreement of the seeds, less that on parts",
            answer.trade_off,
            marked=float(num_clusters),
        ),
        title=f"{short_name(config['dataset'])} in {num_clusters} clusters",
        folder=folder,
        row=row,
        found=scored,
        held=sorted({held.min(), held.max()}),
        command=run.command_arguments,
        warnings=warnings(folder, row, scored, sizes),
        clusters=clusters,
        about=partial(about, scored),
        inline=images,
        map=drawn,
        num_points=num_points,
        link=partial(os.path.relpath, start=out),
        out=out,
        model=folder.model_path(run.params),
        settings=sorted(settings.items()),
        version=fcjax.__version__,
    )


def varied(folder: Folder) -> list[str]:
    """Returns what tells the settings of the grid apart."""
    rows = folder.rows
    return [n for n in folder.settings if len({float(row[n]) for row in rows}) > 1]


def scores(folder: Folder, row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the scores of every setting for a table, and curves over --clusters of
    those settings that differ from the shown run's in nothing else.

    Returns:
        `by`, what tells settings apart; `lines` of `tables.summarize`, the same as
        `texts`, and which of the lines is `shown`; `best`, from each score
        to its best mean, None where fewer than two are compared; `internal`, the scores
        without labels; `curves` of them.
    """
    by = varied(folder) or ["clusters"]
    names = [name for name in TITLES if row.get(name) is not None]
    runs = [{**r, "runs": 1, "occupied": occupied(folder, r)} for r in folder.rows]
    summary = tables.summarize(runs, by=by, values=["runs", "occupied", *names])
    lines = summary.reset_index().to_dict("records")
    best = {}
    for name in names:
        known = summary[name].dropna()
        best_of = min if name == "davies_bouldin" else max
        best[name] = best_of(known) if len(known) > 1 else None

    internal = [name for name in names if name in INTERNAL_SCORES]
    others = [name for name in by if name != "clusters"]
    alike = [line for line in lines if all(line[n] == row[n] for n in others)]
    over = {}
    if "clusters" in by and len(alike) > 1:
        for name in internal:
            over[name] = {float(line["clusters"]): line[name] for line in alike}
    return {
        "by": by,
        "titles": TITLES,
        "lines": lines,
        "texts": tables.format_summary(summary).to_dict("records"),
        "shown": next(x for x in lines if all(x[n] == row[n] for n in by)),
        "best": best,
        "internal": internal,
        "curves": [
            images.curve(TITLES[name], values, marked=float(row["clusters"]))
            for name, values in over.items()
        ],
    }


def occupied(folder: Folder, row: Mapping[str, Any]) -> int | None:
    """Returns how many clusters of a run hold examples, None of clients' own."""
    if row["scope"] != "global":
        return None
    clusters = folder.assignment_arrays({n: row[n] for n in folder.names})["cluster"]
    return len(np.unique(clusters[clusters >= 0]))


def warnings(
    folder: Folder,
    row: Mapping[str, Any],
    found: ScoredExamples,
    sizes: Mapping[str, int],
) -> list[str]:
    """Returns what to be careful about, a sentence or two each.

    Args:
        folder: that a command left.
        row: of the run that is shown.
        found: its examples.
        sizes: by the name of a cluster, how many examples it has.
    """
    status, has_diverged = row["status"], row["status"] not in ("ok", "collapsed")
    others = [each["status"] for each in folder.rows if each is not row]
    failed = len(others) - others.count("ok")
    empty, single = ([k for k, n in sizes.items() if n == m] for m in (0, 1))
    is_own = row["scope"] != "global" and found.communities is None
    groups = found.clusters if found.communities is None else found.communities
    missing, below = int((groups < 0).sum()), below_kmeans(row)
    unlike = row.get("heterogeneity") or 0.0
    noted = {
        "This run collapsed: nearly all examples are in one cluster, or have nearly "
        "the same embedding. Its clusters say little; another seed or learning rate "
        "may do better.": status == "collapsed",
        f"This run {status}: its loss or its weights grew without bound. Its clusters "
        "say nothing; a smaller learning rate may help.": has_diverged,
        f"Below k-means of the examples as they are, or likely so: {below}.": below,
        f"The clients hold different clusters: their heterogeneity is {unlike:.2f} "
        "(0: like a random partition, 1: as unlike as possible). Clusters that clients "
        "train are unreliable then; those of federated k-means are not.": unlike
        > UNLIKE,
        f"{failed} of the {len(others)} other runs collapsed or diverged; results.csv "
        "says which ones.": failed,
        f"Empty clusters, {len(empty)} of {len(sizes)}: {listed(empty)}. The data may "
        "have fewer groups, or training was too short.": empty,
        f"Clusters of a single example: {listed(single)}.": single,
        "Every client clustered its own examples: cluster 0 of one client and cluster "
        "0 of another have nothing to do with each other.": is_own,
        f"Examples in none of the clusters below: {missing:,}.": missing,
        f"Of {found.num_reassigned:,} examples the network says another cluster now than in the "
        "run: the data has changed since, or they lie between clusters.": found.num_reassigned,
    }
    return [text for text, holds in noted.items() if holds]


def listed(names: Sequence[str], most: int = 10) -> str:
    """Returns names in a row, the first ones of many."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def about(found: ScoredExamples, rows: Int[np.ndarray, "n"]) -> dict[str, Any]:
    """Returns a cluster in numbers: its `share` of the examples; `clients`, how many
    hold it; the mean `distance` to its center, None where there is none; and where the
    data has labels the most frequent `label`, and the `purity`, its share in it.
    """
    holders, distance = found.clients[rows], found.distances[rows].mean()
    told = {
        "share": len(rows) / len(found.clusters),
        "clients": len(np.unique(holders[holders >= 0])),
        "distance": distance if np.isfinite(distance) else None,
    }
    if found.dataset.labels is not None:
        labels, counts = np.unique(found.dataset.labels[rows], return_counts=True)
        told |= {"label": labels[counts.argmax()], "purity": counts.max() / len(rows)}
    return told


def map_of(found: ScoredExamples, *, num_clusters: int) -> tuple[str, int]:
    """Returns the map of the embedding and how many examples are on it; nothing where
    clients have no common one, or too few examples have one.
    """
    if found.prediction is None:
        return "", 0
    z = found.prediction.embedding
    (rows,) = np.nonzero(np.isfinite(z).all(axis=1) & (found.clusters >= 0))
    if len(rows) < 4:
        return "", 0
    rows = np.random.default_rng(0).permutation(rows)[:MOST_POINTS]
    points = images.project(z[rows].astype(np.float32), 0)
    titles = [f"{found.names[row]}, cluster {found.clusters[row]}" for row in rows]
    groups = found.clusters[rows]
    return images.scatter(points, groups, titles, num_groups=num_clusters), len(rows)
