"""A page that shows the clusters of a run: `fcjax page RUN`.

page.html         opens in any browser, without a network and without JavaScript
assignments.csv   of the run that it shows: example, client, cluster, distance
embeddings.npz    of the same run, as `fcjax export` writes it

What it says, and how it looks, is the template page.html beside this file.
"""

import dataclasses
import os
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jinja2
import numpy as np
import tyro
from jaxtyping import Int

import fcjax
from fcjax.data.source import short_name
from fcjax.results import tables
from fcjax.results.figures import images
from fcjax.results.store import Folder, Row
from fcjax.runs import assigned, choose, consensus, how_many
from fcjax.runs.assigned import Assigned
from fcjax.runs.together import Member, Together, gather, written
from fcjax.sweep import score
from fcjax.sweep.ending import refusing
from fcjax.sweep.flags import shown
from fcjax.sweep.score import INTERNAL_SCORES
from fcjax.sweep.words import flags_in

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


@dataclasses.dataclass(frozen=True)
class Args:
    """Writes page.html, which shows what a folder run found: its scores beside those
    of the other runs, a sheet of examples for each cluster, and a map of them all."""

    run: tyro.conf.Positional[Path]
    """The results folder, --out of the run."""
    where: Annotated[tuple[str, ...], shown("that of fcjax choose")] = ()
    """Which run of a grid: p=0.25 clusters=10 seed=3."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    out: Annotated[Path | None, shown("RUN")] = None
    """Folder of page.html, assignments.csv and embeddings.npz; written over."""


class Cluster(NamedTuple):
    """One sheet of the page."""

    name: str
    rows: Int[np.ndarray, "n"]
    """Of its examples, the nearest to its center first."""


class Answers(NamedTuple):
    """To what somebody without labels asks first."""

    short: dict[str, str]
    """From each question to a sentence or two."""
    member: Member
    """The run to take."""
    trade_off: Mapping[float, float]
    """From a number of clusters to how far seeds agree on them less how far on their
    parts; of none where the runs do not tell."""


def main(args: Args) -> None:
    """Writes the page; raises ValueError where the folder is not a folder run."""
    answer = answers(args.run, args.where, data_dir=args.data_dir)
    folder, row, point = (getattr(answer.member, x) for x in ("folder", "row", "point"))
    found = assigned.of_run(folder, point, data_dir=args.data_dir)
    out = args.out or args.run
    out.mkdir(parents=True, exist_ok=True)
    assigned.write_table(out / "assignments.csv", found)
    if found.prediction is not None:
        assigned.write_embeddings(out / "embeddings.npz", found)
    (out / "page.html").write_text(
        render(folder, row, found, out, answer), encoding="utf-8"
    )
    print(f"page of the run with {folder.told(point)}: {out / 'page.html'}")


def answers(run: Path, where: Sequence[str], *, data_dir: Path | None) -> Answers:
    """Asks what somebody without labels does; raises ValueError where a value is
    misspelled, or no run has them."""
    runs = gather([run], where)
    number, told_number, trade_off = counted(runs, data_dir=data_dir)
    if number is not None:
        same = runs.values("clusters") == number
        runs = runs.take(np.flatnonzero(same).tolist())
    best, by = choose.chosen(runs, data_dir=data_dir)
    member = runs.members[best]
    settings = [name for name in member.folder.settings if name != "seed"]
    alike = [
        i
        for i, other in enumerate(runs.members)
        if all(other.row[name] == member.row[name] for name in settings)
    ]
    count, well = len(runs.members), len(runs.ok)
    which = "There is one."
    if by is not None:
        which = f"The one {choose.WORDS[by]}: {member.told}."
    elif count > 1:
        which = f"{member.told}; of {count} {well} ended well."
    if len(runs.of_same_data) > 1:
        which += (
            " Runs of other heterogeneity, clients or failures were not compared with "
            "it: --where chooses among those."
        )
    try:
        both = runs.take(alike).voters
        sure = consensus.told(both, consensus.of_runs(both, None))
    except ValueError as error:
        sure = f"unknown: {error}"
    short = {
        "How many clusters?": told_number,
        "Which run?": which,
        "How sure?": sentence(sure),
    }
    return Answers(short, member, trade_off)


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def counted(
    runs: Together, *, data_dir: Path | None
) -> tuple[int | None, str, dict[float, float]]:
    """Returns how many clusters are suggested, None where no number is, a sentence or
    two on it, and what it is read off, see `Answers`."""
    numbers = np.unique(runs.values("clusters")).astype(int)
    if len(numbers) == 1:
        (one,) = numbers
        near = f"{max(2, one - 2)} {one} {one + 2}"
        several = f"--clusters {near} --seed 0 1 2"
        told = f"One number was tried, {one}: try several, such as {several}."
        return None, told, {}
    try:
        found, left_out = how_many.measured(runs, data_dir=data_dir)
    except ValueError as error:
        return None, f"These runs do not say: {error}.", {}
    suggestion = how_many.suggested(found)
    each = [sentence(text) for text in (suggestion.told, left_out) if text]
    means = {float(k): float(np.mean(x.trade_off)) for k, x in found.items()}
    return suggestion.number, " ".join(each), means


def clusters_of(found: Assigned, *, num_clusters: int, scope: str) -> list[Cluster]:
    """Returns the clusters of a run, empty ones too. Where clients cluster on their own
    these are the communities of their clusters, or without any each client's own."""
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


def render(
    folder: Folder, row: Row, found: Assigned, out: Path, answer: Answers
) -> str:
    """Returns the text of the page.

    Args:
        folder: that a command left.
        row: of the run that it shows.
        found: the examples of that run.
        out: the folder of the page, from where its links lead.
        answer: of `answers`.
    """
    num_clusters, config = int(row["clusters"]), folder.config
    clusters = clusters_of(found, num_clusters=num_clusters, scope=row["scope"])
    sizes = {cluster.name: len(cluster.rows) for cluster in clusters}
    held = np.bincount(found.clients[found.clients >= 0])
    point = {name: row[name] for name in folder.names}
    settings = point | {k: v for k, v in config.items() if k != "swept"}
    own = [f"{n}={written(row[n])}" for n in [*varied(folder), "seed"]]
    drawn, num_points = map_of(found, num_clusters=num_clusters)
    return TEMPLATES.get_template("page.html").render(
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
        found=found,
        held=sorted({held.min(), held.max()}),
        command=f"{shlex.quote(str(folder.directory))} --where {' '.join(own)}",
        warnings=warnings(folder, row, found, sizes),
        clusters=clusters,
        about=partial(about, found),
        inline=images,
        map=drawn,
        num_points=num_points,
        link=partial(os.path.relpath, start=out),
        out=out,
        model=folder.model_path(point),
        settings=sorted(settings.items()),
        version=fcjax.__version__,
    )


def varied(folder: Folder) -> list[str]:
    """Returns what tells the settings of the grid apart."""
    rows = folder.rows
    return [n for n in folder.settings if len({float(row[n]) for row in rows}) > 1]


def scores(folder: Folder, row: Row) -> dict[str, Any]:
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
        "texts": tables.shown(summary).to_dict("records"),
        "shown": next(x for x in lines if all(x[n] == row[n] for n in by)),
        "best": best,
        "internal": internal,
        "curves": [
            images.curve(TITLES[name], values, marked=float(row["clusters"]))
            for name, values in over.items()
        ],
    }


def occupied(folder: Folder, row: Row) -> int | None:
    """Returns how many clusters of a run hold examples, None of clients' own."""
    if row["scope"] != "global":
        return None
    clusters = folder.assigned({n: row[n] for n in folder.names})["cluster"]
    return len(np.unique(clusters[clusters >= 0]))


def warnings(
    folder: Folder, row: Row, found: Assigned, sizes: Mapping[str, int]
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
    missing, below = int((groups < 0).sum()), score.below(row)
    noted = {
        "This run collapsed: nearly all examples are in one cluster, or have nearly "
        "the same embedding. Its clusters say little; another seed or learning rate "
        "may do better.": status == "collapsed",
        f"This run {status}: its loss or its weights grew without bound. Its clusters "
        "say nothing; a smaller learning rate may help.": has_diverged,
        f"Below k-means of the examples as they are, or likely so: {below}.": below,
        f"{failed} of the {len(others)} other runs collapsed or diverged; results.csv "
        "says which ones.": failed,
        f"Empty clusters, {len(empty)} of {len(sizes)}: {listed(empty)}. The data may "
        "have fewer groups, or training was too short.": empty,
        f"Clusters of a single example: {listed(single)}.": single,
        "Every client clustered its own examples: cluster 0 of one client and cluster "
        "0 of another have nothing to do with each other.": is_own,
        f"Examples in none of the clusters below: {missing:,}.": missing,
        f"Of {found.moved:,} examples the network says another cluster now than in the "
        "run: the data has changed since, or they lie between clusters.": found.moved,
    }
    return [text for text, holds in noted.items() if holds]


def listed(names: Sequence[str], most: int = 10) -> str:
    """Returns names in a row, the first ones of many."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def about(found: Assigned, rows: Int[np.ndarray, "n"]) -> dict[str, Any]:
    """Returns a cluster in numbers: its `share` of the examples; `clients`, how many
    hold it; the mean `distance` to its center, None where there is none; and where the
    data has labels the most frequent `label`, and the `purity`, its share in it."""
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


def map_of(found: Assigned, *, num_clusters: int) -> tuple[str, int]:
    """Returns the map of the embedding and how many examples are on it; nothing where
    clients have no common one, or too few examples have one."""
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


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
