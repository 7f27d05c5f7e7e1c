"""The HTML report of a run, report.html.

The report is one file, which a browser opens without network and without JavaScript.
The template report.html of this package has its text and layout.
"""

import os
import shlex
import tempfile
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
from jaxtyping import Int
from PIL import Image

import fcjax
from fcjax.data.source import short_name
from fcjax.federated.kmeans import UNLIKE
from fcjax.metrics.internal import INTERNAL_SCORES
from fcjax.privacy.guarantee import spent
from fcjax.results import drawing, store, tables
from fcjax.results.environment import PACKAGES
from fcjax.results.figures import images, in_words
from fcjax.results.figures.matrices import confusion_counts, cross_counts
from fcjax.results.run import Run, ScoredExamples, below_kmeans
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
"""Largest number of examples on the map."""
MOST_CLIENTS = 100
"""Largest number of clients in the table of the partition."""

TITLES = {
    "silhouette": "silhouette, higher is better",
    "calinski_harabasz": "Calinski-Harabasz, higher is better",
    "davies_bouldin": "Davies-Bouldin, lower is better",
    "acc": "ACC against labels",
    "nmi": "NMI against labels",
}
"""Headers of the scores in the table of all settings."""
LABEL_SCORES = ("nmi", "acc", "kappa", "ari", "ami")
COMMUNITY_SCORES = ("client_acc", "global_nmi", "global_acc")
"""Scores of methods whose clients cluster separately."""
ENVIRONMENT = {
    "commit": "commit of fcjax",
    **{name: name for name in PACKAGES},
    "python": "Python",
    "devices": "devices",
    "backend": "JAX backend",
    "processor": "processor",
    "cores": "CPU cores",
}
"""Rows of the table of the environment, by key of environment.json."""

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)
TEMPLATES.filters["commas"] = "{:,}".format


class Cluster(NamedTuple):
    """A cluster with one sheet of examples."""

    name: str
    """The heading, such as "Cluster 0"."""
    examples: Int[np.ndarray, "n"]
    """Indices of the examples, ordered by the distance to the center."""


class Summary(NamedTuple):
    """The summary at the top of the report."""

    text: dict[str, str]
    """By question ("How many clusters?"), the answer in one or two sentences."""
    run: Run
    """The run that the report shows."""
    trade_off: Mapping[float, float]
    """`Suggestion.trade_off`; empty if the runs suggest no number of clusters."""


class Heatmap(NamedTuple):
    """A matrix of counts as an HTML table with coloured cells."""

    columns: list[str]
    """Headers of the columns."""
    rows: list[tuple[str, list[tuple[int, float, bool]], int]]
    """Per row: the header, the cells, and the sum. A cell has the count, the opacity of
    its colour, and whether it is outlined."""


def write(runs: Ensemble, whole: Ensemble, out: Path) -> Run:
    """Writes the HTML report of the best run, with assignments.csv and embeddings.npz.

    Args:
        runs: the runs of one method, of which one is shown.
        whole: all runs of their folder.
        out: folder of the three files; created if it is missing.

    Returns:
        The run that the report shows, see `Results.report`.
    """
    summary = summarize(runs, whole)
    run = summary.run
    scored = run.scored_examples
    out.mkdir(parents=True, exist_ok=True)
    scored.write(out)
    text = render(run, scored, out, summary)
    (out / "report.html").write_text(text, encoding="utf-8")
    return run


def summarize(runs: Ensemble, whole: Ensemble) -> Summary:
    """Returns the number of clusters, the run to take, and the confidence, in words.

    No answer uses labels.

    Args:
        runs: the runs of one method, of which one is shown. If they suggest a number of
            clusters, only runs with this number are compared; if no number stands out,
            those with the most stable number.
        whole: all runs of their folder. A user who asks for one run still learns what
            all runs together say of it.

    Returns:
        The answers in words, the chosen run, and the trade-off of each number of
        clusters.
    """
    number, number_text, trade_off = suggestion_of(runs)
    candidates = runs
    if trade_off:
        if number is None:
            number = int(max(trade_off, key=lambda k: trade_off[k]))
            number_text += f" This report shows the most stable number, {number}."
        same = runs.values("clusters") == number
        candidates = runs.take(np.flatnonzero(same).tolist())
    best, by = choose_run(candidates)
    run = candidates.runs[best]
    which = "There is one run."
    if by is not None:
        which = (
            f"The run {DESCRIPTIONS[by]}, {compared(candidates, whole)}: {run.name}."
        )
    elif len(candidates.runs) > 1:
        number_ok = len(candidates.ok)
        which = f"{run.name}. Of {len(candidates.runs)} runs {number_ok} ended well."
    elif len(whole.runs) > 1:
        which = f"{run.name}, which was selected."
    if len(candidates.by_data_setting) > 1:
        which += (
            " Runs with other heterogeneity, clients or failures were not compared "
            "with this run. Choose among them with --where."
        )
    if len(whole.runs) > len(runs.runs):
        _, number_text, trade_off = suggestion_of(alike(run, whole, but=("clusters",)))
    try:
        voters = alike(run, whole).voters
        confidence = confidence_text(voters, consensus_of(voters))
        confidence += (
            ". Runs with fewer clusters agree on more examples, so do not compare this "
            "share between numbers of clusters. Runs may agree on wrong clusters, so "
            "look at the examples"
        )
    except ValueError as error:
        confidence = f"unknown: {error}"
    text = {
        "How many clusters?": number_text,
        "Which run?": which,
        "How sure?": sentence(confidence),
    }
    return Summary(text, run, trade_off)


def compared(candidates: Ensemble, whole: Ensemble) -> str:
    """Returns in words among which runs `choose_run` chooses.

    Args:
        candidates: the runs that `choose_run` gets.
        whole: all runs of their folder.

    Returns:
        The number of runs, and their common values of settings that vary in the folder,
        for example "of the 3 runs with 4 clusters".
    """
    group = candidates.take(candidates.by_data_setting[0])
    rows = [group.runs[i].row for i in group.ok]
    common = []
    for name in [*group.runs[0].folder.settings, "seed"]:
        values = {row[name] for row in rows}
        if len(values) == 1 < len({run.row[name] for run in whole.runs}):
            (value,) = values
            text = value if isinstance(value, str) else f"{value:g}"
            is_clusters = name == "clusters"
            common.append(f"{text} clusters" if is_clusters else f"{name} {text}")
    text = f"of the {len(rows)} runs"
    return f"{text} with {', '.join(common)}" if common else text


def alike(run: Run, runs: Ensemble, but: Collection[str] = ()) -> Ensemble:
    """Returns the runs that have the settings of one run, except the seed.

    Args:
        run: one of the runs.
        runs: the runs of one folder.
        but: further settings that may differ.

    Returns:
        The runs.
    """
    names = [name for name in run.folder.settings if name not in ("seed", *but)]
    return runs.take(
        [
            i
            for i, other in enumerate(runs.runs)
            if all(other.row[name] == run.row[name] for name in names)
        ]
    )


def sentence(text: str) -> str:
    """Returns the text with an upper-case first letter and a full stop.

    Args:
        text: a text without a full stop. It has at least one character.

    Returns:
        The sentence.
    """
    return f"{text[0].upper()}{text[1:]}."


def suggestion_of(runs: Ensemble) -> tuple[int | None, str, dict[float, float]]:
    """Returns the suggested number of clusters, a text on it, and all trade-offs.

    Args:
        runs: the runs of one method.

    Returns:
        The number of clusters, the text, and `Suggestion.trade_off`. The number is None
        if no number stands out. For runs with one number of clusters, and for runs that
        cannot be compared, the number is None and the trade-off is empty.
    """
    numbers = np.unique(runs.values("clusters")).astype(int)
    if len(numbers) == 1:
        (number,) = numbers
        flags = f"--clusters {max(2, number - 2)} {number} {number + 2} --seed 0 1 2"
        text = f"All runs have {number} clusters. To compare numbers, run {flags}."
        return None, text, {}
    try:
        suggestion = how_many(runs)
    except ValueError as error:
        return None, f"These runs suggest no number: {error}.", {}
    texts = [sentence(x) for x in (suggestion.reason, suggestion.left_out) if x]
    return suggestion.number, " ".join(texts), suggestion.trade_off


def clusters_of(
    scored: ScoredExamples, *, num_clusters: int, scope: str
) -> list[Cluster]:
    """Returns the clusters of a run, with empty ones.

    Args:
        scored: the examples of the run.
        num_clusters: number of clusters K.
        scope: scope of the method. If it is not "global", the clusters are the
            communities of the clients' clusters. Without communities they are the
            clusters of each client.

    Returns:
        The clusters. Examples without a distance keep the order of the data set.
    """
    nearest = np.argsort(scored.distances, kind="stable")
    if scored.communities is None and scope != "global":
        pairs = np.stack([scored.clients, scored.clusters], axis=1)[nearest]
        return [
            Cluster(f"Client {i}, cluster {k}", nearest[(pairs == [i, k]).all(axis=1)])
            for i, k in np.unique(pairs[(pairs >= 0).all(axis=1)], axis=0)
        ]
    kind, groups = "Cluster", scored.clusters
    if scored.communities is not None:
        kind, groups = "Community", scored.communities
        num_clusters = int(groups.max()) + 1
    groups = groups[nearest]
    return [Cluster(f"{kind} {k}", nearest[groups == k]) for k in range(num_clusters)]


def members_of(scored: ScoredExamples, *, scope: str) -> Heatmap | None:
    """Returns the number of examples of each client in each cluster.

    Args:
        scored: the examples of the run.
        scope: scope of the method.

    Returns:
        The table, with the first `MOST_CLIENTS` clients. None if the clients have no
        common clusters.
    """
    groups = scored.communities
    if groups is None:
        if scope != "global":
            return None
        groups = scored.clusters
    is_member = (groups >= 0) & (scored.clients >= 0)
    if not is_member.any():
        return None
    clients, names, counts = cross_counts(scored.clients[is_member], groups[is_member])
    return heatmap(
        np.array(scored.client_names)[clients[:MOST_CLIENTS]],
        names,
        counts[:MOST_CLIENTS],
        counts / counts.sum(axis=1, keepdims=True),
    )


def render(run: Run, scored: ScoredExamples, out: Path, summary: Summary) -> str:
    """Returns the HTML text of the report.

    Args:
        run: the run that the report shows.
        scored: the examples of the run.
        out: folder of the report; links are relative to it.
        summary: the result of `summarize`.

    Returns:
        The HTML text.
    """
    folder, row, config = run.folder, run.row, run.folder.config
    num_clusters = int(row["clusters"])
    clusters = clusters_of(scored, num_clusters=num_clusters, scope=row["scope"])
    sizes = {cluster.name: len(cluster.examples) for cluster in clusters}
    client_sizes = np.bincount(scored.clients[scored.clients >= 0])
    settings = run.params | {k: v for k, v in config.items() if k != "swept"}
    svg, num_points = "", 0
    embedding, is_labelled = "", scored.dataset.labels is not None
    if is_labelled:  # a map of this run may have been drawn at the end of the run
        title = drawing.figure_title([row], [*folder.settings, "seed"])
        embedding = drawn_figure(folder.directory / "figures/embedding.png", title)
    if not embedding:
        svg, num_points = map_of(scored, num_clusters=num_clusters)
    return TEMPLATES.get_template("report.html").render(
        scores(folder, row),
        summary=summary.text,
        trade_off=images.curve(
            "trade-off (agreement of seeds on clusters minus on halves)",
            summary.trade_off,
            marked=float(num_clusters),
        ),
        title=f"{short_name(config['dataset'])} in {num_clusters} clusters",
        folder=folder,
        row=row,
        scored=scored,
        partition=partition_text(row, folder.names[0]),
        client_sizes=sorted({client_sizes.min(), client_sizes.max()}),
        command=run.command_arguments,
        warnings=warnings(folder, row, scored, sizes),
        clusters=clusters,
        members=members_of(scored, scope=row["scope"]),
        num_clients=len(scored.client_names),
        about=partial(about, scored),
        inline=images,
        map=svg,
        num_points=num_points,
        embedding=embedding,
        labelled=labelled_parts(run, scored) if is_labelled else None,
        environment=environment_of(run),
        link=partial(os.path.relpath, start=out),
        out=out,
        model=folder.model_path(run.params),
        settings=sorted(settings.items()),
        version=fcjax.__version__,
    )


def partition_text(row: Mapping[str, Any], rule: str) -> str:
    """Returns the partition of a run in words, such as "has heterogeneity p 0.25".

    Args:
        row: the row of the run in results.csv.
        rule: the column of the heterogeneity, such as "p", "alpha" or "natural".

    Returns:
        The words that follow "the partition" in a sentence.
    """
    if rule == "p" and row["p"] == 0:
        return "is random (heterogeneity p 0)"
    if rule == "natural":
        return "is that of the data: each client has its own examples"
    return f"has {in_words(rule)} {row[rule]:g}"


# --- Labels


def labelled_parts(run: Run, scored: ScoredExamples) -> dict[str, Any]:
    """Returns the parts of the report that need labels.

    Args:
        run: the run that the report shows.
        scored: the examples of the run, with labels.

    Returns:
        `scores`: per score its name, its value, and the value of k-means on the raw
        examples (None if it is unknown). `curves`: the learning curves as a data URI.
        `confusion` and `partition`: see `Heatmap`. `num_clients`: the number of
        clients with examples. `num_scored`: the number of examples in the confusion
        matrix.
    """
    labels, clients, clusters = scored.dataset.labels, scored.clients, scored.clusters
    assert labels is not None
    if run.row["scope"] != "global":
        clusters = drawing.match_by_client(scored.dataset, clients, clusters)
    has_cluster, has_client = clusters >= 0, clients >= 0
    table = confusion_counts(labels[has_cluster], clusters[has_cluster])
    pairs = {*zip(table.matched.tolist(), range(len(table.matched)), strict=True)}
    shares = table.counts / table.counts.sum(axis=1, keepdims=True)
    client_names, classes, counts = cross_counts(
        clients[has_client], labels[has_client]
    )
    names = (*LABEL_SCORES, *COMMUNITY_SCORES)
    names = LABEL_SCORES if run.row["scope"] == "global" else names
    values = {name: run.row.get(name) for name in names}
    confusion = heatmap(table.classes, table.clusters, table.counts, shares, pairs)
    return {
        "scores": [
            (in_words(name), value, run.row.get(f"kmeans_{name}"))
            for name, value in values.items()
            if value is not None
        ],
        "curves": curves_of(run.folder),
        "confusion": confusion,
        "partition": heatmap(
            *(np.array(scored.client_names)[client_names[:MOST_CLIENTS]], classes),
            counts[:MOST_CLIENTS],
            counts / max(1, counts.max()),
        ),
        "num_clients": len(client_names),
        "num_scored": int(has_cluster.sum()),
    }


def heatmap(
    rows: np.ndarray,
    columns: np.ndarray,
    counts: np.ndarray,
    shares: np.ndarray,
    outlined: Collection[tuple[int, int]] = (),
) -> Heatmap:
    """Returns a matrix of counts for the template.

    Args:
        rows: [R] names of the rows.
        columns: [C] names of the columns.
        counts: [R, C] the counts.
        shares: [R or more, C] the colour of each cell, from 0 (none) to 1 (full).
        outlined: row and column of each cell with an outline.

    Returns:
        The table.
    """
    opacities = np.round(0.65 * shares, 3)
    lines = []
    for i, (name, values) in enumerate(zip(rows, counts.tolist(), strict=True)):
        cells = [
            (count, float(opacities[i, j]), (i, j) in outlined)
            for j, count in enumerate(values)
        ]
        lines.append((str(name), cells, sum(values)))
    return Heatmap([str(name) for name in columns], lines)


def curves_of(folder: Folder) -> str:
    """Returns the learning curves of a grid as a data URI.

    The figure is drawn only if learning_curves.png is missing or has another title.

    Args:
        folder: the results folder of the grid.

    Returns:
        The data URI of a PNG image; "" if the folder has neither figure nor rounds.
    """
    rows, rounds = folder.requested(folder.rows), folder.requested(folder.rounds)
    title = drawing.figure_title(rows, [*folder.settings, "seed"])
    figure = drawn_figure(folder.directory / "figures/learning_curves.png", title)
    if figure or not rounds:
        return figure
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "learning_curves.png"
        drawing.learning_curves(path, rows, rounds, by=folder.settings)
        return images.data_uri(path.read_bytes())


def drawn_figure(path: Path, title: str) -> str:
    """Returns an existing PNG figure as a data URI.

    Args:
        path: the PNG file.
        title: the title that the figure should have in its PNG metadata.

    Returns:
        The data URI; "" if the file is missing or has another title.
    """
    if not path.exists():
        return ""
    with Image.open(path) as figure:
        is_same = figure.info.get("Title") == title
    return images.data_uri(path.read_bytes()) if is_same else ""


def environment_of(run: Run) -> dict[str, str]:
    """Returns commit, versions, device and times of a run; {} for runs in memory.

    If the command was started several times with different values, all of them are
    listed.

    Args:
        run: the run that the report shows.

    Returns:
        The text of each value, by its title in the table of the environment. Times are
        in seconds.
    """
    starts = store.starts(run.folder.directory)
    if not starts:
        return {}

    def text(start: Mapping[str, Any], name: str) -> str:
        value = start.get(name)
        if name == "commit":
            changed = ", with uncommitted changes" if start.get("changed") else ""
            return f"{value}{changed}" if value else "unknown (no git checkout)"
        return "unknown" if value is None else str(value)

    values = {
        title: dict.fromkeys(text(start, name) for start in starts)
        for name, title in ENVIRONMENT.items()
    }
    seconds = [start.get("seconds") for start in starts]
    known = sum(x for x in seconds if x is not None)
    compiler = starts[-1].get("compiler") or {}
    return {
        **{title: "; ".join(each) for title, each in values.items()},
        **{name: shlex.quote(value) for name, value in compiler.items()},
        "started": "; ".join(str(start.get("began")) for start in starts),
        "wall time of the command": f"{known:,} s in {len(starts)} start(s)",
        "training time of this run": f"{run.row['seconds']:,.1f} s",
        "compilation time": f"{run.row['compile_seconds']:,.1f} s",
    }


# --- Scores


def varied(folder: Folder) -> list[str]:
    """Returns the settings of the grid that have several values.

    Args:
        folder: the results folder of the grid.

    Returns:
        The names of the settings, without the seed.
    """
    rows = folder.rows
    return [n for n in folder.settings if len({float(row[n]) for row in rows}) > 1]


def scores(folder: Folder, row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the table of the scores of all settings, and curves over --clusters.

    Args:
        folder: the results folder.
        row: the row of the run that the report shows.

    Returns:
        `by`: the columns that define a setting. `lines` and `texts`: the result of
        `tables.summarize`, as numbers and as text. `current`: the line of the run.
        `best`: by score, its best mean; None for a single setting. `internal`: the
        scores without labels. `curves`: these scores over the number of clusters, for
        settings that are otherwise those of the run.
    """
    by = varied(folder) or ["clusters"]
    # A collapsed run has no silhouette: None, or NaN before its folder is read.
    values = {name: row.get(name) for name in TITLES}
    names = [name for name, x in values.items() if x is not None and not np.isnan(x)]
    runs = [{**r, "runs": 1, "occupied": occupied(folder, r)} for r in folder.rows]
    summary = tables.summarize(runs, by=by, values=["runs", "occupied", *names])
    lines = summary.reset_index().to_dict("records")
    best = {}
    for name in names:
        means = summary[name].dropna()
        best_of = min if name == "davies_bouldin" else max
        best[name] = best_of(means) if len(means) > 1 else None

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
        "current": next(x for x in lines if all(x[n] == row[n] for n in by)),
        "best": best,
        "internal": internal,
        "curves": [
            images.curve(TITLES[name], values, marked=float(row["clusters"]))
            for name, values in over.items()
        ],
    }


def occupied(folder: Folder, row: Mapping[str, Any]) -> int | None:
    """Returns the number of clusters with examples; None if clients cluster alone.

    Args:
        folder: the results folder, with the assignments of the run.
        row: the row of the run in results.csv.

    Returns:
        The number of clusters with at least one example, from 0 to K. None if the scope
        of the method is not "global".
    """
    if row["scope"] != "global":
        return None
    point = {n: row[n] for n in folder.names}
    clusters = folder.assignment_arrays(point)["cluster"]
    return len(np.unique(clusters[clusters >= 0]))


# --- Warnings and clusters


def warnings(
    folder: Folder,
    row: Mapping[str, Any],
    scored: ScoredExamples,
    sizes: Mapping[str, int],
) -> list[str]:
    """Returns the warnings about a run, one or two sentences each.

    Args:
        folder: the results folder.
        row: the row of the run that the report shows.
        scored: the examples of the run.
        sizes: by name of a cluster, its number of examples.

    Returns:
        The warnings; most runs have none.
    """
    status, has_diverged = row["status"], row["status"] not in ("ok", "collapsed")
    others = [other["status"] for other in folder.rows if other is not row]
    failed = len(others) - others.count("ok")
    empty, single = ([k for k, n in sizes.items() if n == m] for m in (0, 1))
    is_separate = row["scope"] != "global" and scored.communities is None
    groups = scored.clusters if scored.communities is None else scored.communities
    missing, below = int((groups < 0).sum()), below_kmeans(row)
    surely = "" if row.get("nmi") is not None else "likely "
    unlike, moved = row.get("heterogeneity") or 0.0, scored.num_reassigned
    texts = {
        f"{spent(folder.rows).capitalize()}. The guarantee does not cover this report, "
        "because the report uses the examples without noise. Show it only to those who "
        "may see them.": (row.get("epsilon") is not None),
        "This run collapsed: nearly all examples are in one cluster, or have nearly "
        "the same embedding. Do not use its clusters. Try another seed or learning "
        "rate.": status == "collapsed",
        f"This run {status}: its loss or its weights grew without bound. Do not use "
        "its clusters. Try a smaller learning rate.": has_diverged,
        f"This run is {surely}worse than k-means on the raw examples: {below}.": below,
        f"The clients hold different clusters: their heterogeneity is {unlike:.2f} "
        "(0: like a random partition, 1: each client has clusters of its own). The "
        "clusters of methods that train on clients are unreliable then. Federated "
        "k-means is reliable.": unlike > UNLIKE,
        f"{failed} of the {len(others)} other runs collapsed or diverged; see the "
        "column status of results.csv.": failed,
        f"Empty clusters, {len(empty)} of {len(sizes)}: {listed(empty)}. The data may "
        "have fewer groups, or training was too short.": empty,
        f"Clusters of a single example: {listed(single)}.": single,
        "Each client clustered its own examples: cluster 0 of one client and cluster "
        "0 of another client are unrelated.": is_separate,
        f"Examples without a cluster in this report: {missing:,}.": missing,
        f"The exported model assigns {moved:,} examples to another cluster than the "
        "run. The data has changed, or these examples lie between clusters.": moved,
    }
    return [text for text, applies in texts.items() if applies]


def listed(names: Sequence[str], most: int = 10) -> str:
    """Returns names joined by commas.

    Args:
        names: the names.
        most: the largest number of names in the text.

    Returns:
        The text. It ends with "and N more" if N names are left out.
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def about(scored: ScoredExamples, examples: Int[np.ndarray, "n"]) -> dict[str, Any]:
    """Returns numbers on a cluster.

    Args:
        scored: the examples of the run.
        examples: [n] indices of the examples of the cluster.

    Returns:
        `share`: share of all examples. `clients`: number of clients that have examples
        in the cluster. `distance`: mean distance to the center, None without centers.
        For data with labels, `label`: the most frequent class, and `purity`: its share.
    """
    clients, distance = scored.clients[examples], scored.distances[examples].mean()
    numbers = {
        "share": len(examples) / len(scored.clusters),
        "clients": len(np.unique(clients[clients >= 0])),
        "distance": distance if np.isfinite(distance) else None,
    }
    if scored.dataset.labels is not None:
        labels, counts = np.unique(scored.dataset.labels[examples], return_counts=True)
        purity = counts.max() / len(examples)
        numbers |= {"label": labels[counts.argmax()], "purity": purity}
    return numbers


def map_of(scored: ScoredExamples, *, num_clusters: int) -> tuple[str, int]:
    """Returns a t-SNE map of the embedding as SVG, and its number of examples.

    The map has at most `MOST_POINTS` random examples that have a cluster.

    Args:
        scored: the examples of the run.
        num_clusters: number of clusters K, which is the number of colours.

    Returns:
        The SVG element as text, and the number of examples on the map. The result is
        ("", 0) without a common embedding or with fewer than four examples.
    """
    if scored.prediction is None:
        return "", 0
    z = scored.prediction.embedding
    (examples,) = np.nonzero(np.isfinite(z).all(axis=1) & (scored.clusters >= 0))
    if len(examples) < 4:
        return "", 0
    examples = np.random.default_rng(0).permutation(examples)[:MOST_POINTS]
    points = images.project(z[examples].astype(np.float32), 0)
    titles = [f"{scored.names[i]}, cluster {scored.clusters[i]}" for i in examples]
    groups = scored.clusters[examples]
    svg = images.scatter(points, groups, titles, num_groups=num_clusters)
    return svg, len(examples)
