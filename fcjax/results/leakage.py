"""Measures what the clients' uploads reveal about their examples (`fcjax privacy`).

There are three measurements. A centroid of few examples, or near an example, reveals
this example. A synthetic example may be a copy. An attacker who knows an example may
find out whether it is in the run (membership inference). The weights of uploaded
networks are not examined.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, Shaped
from sklearn.metrics import pairwise_distances

from fcjax.data import Dataset, load
from fcjax.data.source import ARRAY, Source
from fcjax.data.sources import load_extra
from fcjax.metrics.leakage import auc, copying, flat, nearest
from fcjax.results import figures
from fcjax.results.exported import Prediction
from fcjax.types import Uploads

COPY = 0.01
"""A point is a copy of an example if their distance is at most this share of the
typical distance of neighbouring examples."""
MOST_ATTACKED = 10_000
"""Largest number of members, and of non-members, for membership inference; more are
sampled at random."""
MOST_QUERIES = 1000
"""Largest number of examples per client whose nearest other example is searched."""
PAIRS = 12
"""Number of uploaded points in the figure of the closest pairs."""


class PrivacyReport(NamedTuple):
    """The measurements of the uploads of a run."""

    summary: dict[str, Any]
    """The values of privacy.csv by column; None for values that are not defined:

    - `kind`: "centroids" or "synthetic examples".
    - `uploading_clients`, `points`: number of clients with uploads, and of points.
    - `one_member`, `few_members`: number of centroids of one example, and of fewer than
      `min_members` examples.
    - `distance`: median distance of a point to the nearest example of its client.
    - `neighbor_distance`: median distance of an example to the nearest other example of
      its client.
    - `copies`: number of points at a distance of at most `COPY * neighbor_distance`.
    - `own_client`, `own_client_by_chance`: share of synthetic examples whose nearest
      example is of their client, and the client's mean share of all examples.
    - `copy_probability`, `closest_share`: see `fcjax.metrics.leakage.copying`; the
      held-out examples are the non-members.
    - `members`, `non_members`: number of attacked examples.
    - `uploads_auc`, `uploads_low`, `uploads_high`: AUC of membership inference by the
      nearest uploaded point, with its 95 % interval.
    - `centers_auc`, `centers_low`, `centers_high`: the same by the nearest cluster
      center of the global model.
    """
    points: pd.DataFrame
    """One row per uploaded point: `client`, `point` (number of the point of the
    client), `members` (-1 for synthetic examples), `distance` to the nearest example of
    the client, and the index of this `example` in the data set."""


def examine(
    uploads: Uploads,
    dataset: Dataset,
    clients: Int[np.ndarray, "P"],
    others: Shaped[np.ndarray, "Q *F"],
    predict: Callable[[np.ndarray], Prediction],
    *,
    min_members: int,
) -> PrivacyReport:
    """Measures what uploads reveal about the examples of their clients.

    Args:
        uploads: the last uploads of the clients as NumPy arrays.
        dataset: the data set of the run.
        clients: the client of each example; -1 for none.
        others: examples that no client has, see `non_members`.
        predict: embeds and clusters examples with the global model.
        min_members: centroids of fewer examples are counted.

    Returns:
        The measurements.

    Raises:
        ValueError: `min_members` is below 1, or no client has uploaded a point.
    """
    if min_members < 1:
        raise ValueError(f"`min_members` must be at least 1, got {min_members}")
    is_synthetic = bool((np.asarray(uploads.members) < 0).all())
    z = _space(dataset.examples, predict, is_synthetic)
    points = nearest_examples(uploads, z, clients)
    typical = neighbor_distance(z, clients)
    counts = points.members.to_numpy()
    few = (counts == 1, counts < min_members)
    one_member, few_members = (None if is_synthetic else int(x.sum()) for x in few)
    summary = {
        "kind": "synthetic examples" if is_synthetic else "centroids",
        "uploading_clients": points.client.nunique(),
        "points": len(points),
        "one_member": one_member,
        "few_members": few_members,
        "min_members": min_members,
        "distance": float(points.distance.median()),
        "neighbor_distance": typical,
        "copies": int((points.distance <= COPY * typical).sum()),
    }
    vectors = np.asarray(uploads.points)[points.client, points.point]
    is_member = np.isin(clients, points.client.unique())
    members = dataset.examples[is_member]
    if is_synthetic:
        _, to_member = nearest(vectors, z[is_member])
        summary |= owners(points, vectors, z, clients)
        if len(others) > 1:
            _, held_out = nearest(flat(_sample(others)), z[is_member])
            scores = copying(to_member, held_out)
            names = ("copy_probability", "closest_share")
            summary |= {name: scores[name] for name in names}
    summary |= attack(vectors, _sample(members), _sample(others), predict, is_synthetic)
    return PrivacyReport(summary, points)


def nearest_examples(
    uploads: Uploads, z: Float[np.ndarray, "P D"], clients: Int[np.ndarray, "P"]
) -> pd.DataFrame:
    """Finds the nearest example of the client for each uploaded point.

    Args:
        uploads: the last uploads of the clients as NumPy arrays.
        z: the examples in the space of the points.
        clients: the client of each example; -1 for none.

    Returns:
        The table `PrivacyReport.points`.

    Raises:
        ValueError: no client has uploaded a point.

    Examples:
        >>> centroids = np.array([[[1.0], [np.nan]], [[5.0], [8.0]]])
        >>> uploads = Uploads(centroids, np.array([[2, 0], [1, 2]]))
        >>> z, clients = np.array([[0.5], [1.5], [5.0], [7.0]]), np.array([0, 0, 1, 1])
        >>> print(nearest_examples(uploads, z, clients).to_string(index=False))
         client  point  members  distance  example
              0      0        2       0.5        0
              1      0        1       0.0        2
              1      1        2       1.0        3
    """
    tables = []
    for client, (points, members) in enumerate(zip(*uploads, strict=True)):
        (known,) = np.nonzero(np.isfinite(points).all(axis=1))
        own = np.flatnonzero(clients == client)
        if len(known) and len(own):
            rows, distances = nearest(points[known], z[own])
            columns = {
                "client": client,
                "point": known,
                "members": members[known],
                "distance": distances,
                "example": own[rows],
            }
            tables.append(pd.DataFrame(columns))
    if not tables:
        raise ValueError("no client of the run has uploaded a point")
    return pd.concat(tables, ignore_index=True)


def neighbor_distance(
    z: Float[np.ndarray, "P D"], clients: Int[np.ndarray, "P"]
) -> float:
    """Returns the median distance of an example to the nearest other of its client.

    Args:
        z: the examples as points.
        clients: the client of each example; -1 for none. At most `MOST_QUERIES`
            examples per client are examined, drawn at random.

    Returns:
        The distance; NaN if every client has a single example.

    Examples:
        >>> neighbor_distance(np.array([[0.0], [1.0], [4.0]]), np.array([0, 0, 0]))
        1.0
    """
    rng, found = np.random.default_rng(0), []
    for client in np.unique(clients[clients >= 0]):
        own = z[clients == client]
        own = own - own.mean(axis=0, dtype=np.float64)
        queries = rng.permutation(len(own))[:MOST_QUERIES]
        distances = pairwise_distances(own[queries], own)
        distances[np.arange(len(queries)), queries] = np.inf
        found.append(distances.min(axis=1))
    distances = np.concatenate(found)
    distances = distances[np.isfinite(distances)]
    return float(np.median(distances)) if len(distances) else float("nan")


def owners(
    points: pd.DataFrame,
    vectors: Float[np.ndarray, "n D"],
    z: Float[np.ndarray, "P D"],
    clients: Int[np.ndarray, "P"],
) -> dict[str, float]:
    """Returns how often the nearest example is an example of the uploading client.

    Args:
        points: the table `PrivacyReport.points`.
        vectors: the uploaded points.
        z: the examples in the space of the points.
        clients: the client of each example; -1 for none.

    Returns:
        `own_client`, the share of these points; `own_client_by_chance`, the mean share
        of the client in all examples, which is expected if the clients do not differ
        and the generators do not copy.
    """
    z, clients = z[clients >= 0], clients[clients >= 0]
    rows, _ = nearest(vectors, z)
    shares = np.bincount(clients) / len(clients)
    is_own = clients[rows] == points.client
    by_chance = shares[points.client].mean()
    return {"own_client": float(is_own.mean()), "own_client_by_chance": by_chance}


def attack(
    vectors: Float[np.ndarray, "n D"],
    members: Shaped[np.ndarray, "A *F"],
    others: Shaped[np.ndarray, "B *F"],
    predict: Callable[[np.ndarray], Prediction],
    is_synthetic: bool,
) -> dict[str, Any]:
    """Runs two attacks of membership inference.

    An attack gives each example a score and considers examples of high score as
    members. The first score is minus the distance to the nearest uploaded point. The
    second score is minus the distance to the nearest cluster center, which an attacker
    knows who has the global model alone.

    Args:
        vectors: the uploaded points.
        members: examples of the clients with uploads.
        others: examples that no client has.
        predict: embeds and clusters examples with the global model.
        is_synthetic: whether the points are synthetic examples.

    Returns:
        The numbers of members and non-members, and the AUC of both attacks, as in
        `PrivacyReport.summary`. Without two examples of each kind there is no AUC.
    """
    numbers: dict[str, Any] = {"members": len(members), "non_members": len(others)}
    if min(len(members), len(others)) < 2:
        return numbers
    scores: dict[str, list[np.ndarray]] = {"uploads": [], "centers": []}
    for examples in (members, others):
        prediction = predict(examples)
        z = flat(examples) if is_synthetic else prediction.embedding
        scores["uploads"].append(-nearest(z, vectors)[1])
        scores["centers"].append(-np.nanmin(prediction.distances, axis=1))
    for name, (of_members, of_others) in scores.items():
        result = auc(of_members, of_others)
        keys = (f"{name}_{part}" for part in ("auc", "low", "high"))
        numbers |= dict(zip(keys, result, strict=True))
    return numbers


def non_members(
    source: Source, dataset: Dataset, clients: Int[np.ndarray, "P"]
) -> Shaped[np.ndarray, "Q *F"]:
    """Returns the examples of the same data set that no client of the run has.

    They are the examples without a client, and those that `limit` or `split` left out.
    Examples with the same bytes count once, and not at all if a client has such an
    example or if it was only trained on (`extra_split`).

    Args:
        source: the source of the data set of the run.
        dataset: the data set of the run.
        clients: the client of each example of the run; -1 for none.

    Returns:
        The examples, possibly none. For an array in memory, these are only the examples
        without a client.

    Raises:
        ValueError: the whole data set cannot be read.
    """
    candidates = [dataset.examples[clients < 0]]
    if source.dataset != ARRAY and (source.limit is not None or source.split != "all"):
        whole = dataclasses.replace(source, limit=None, split="all")
        candidates.append(load(whole, scaling=dataset.scaling).examples)
    seen = {x.tobytes() for x in dataset.examples[clients >= 0]}
    if source.extra_split is not None:
        seen |= {x.tobytes() for x in load_extra(source)}
    examples, chosen = np.concatenate(candidates), []
    for i, example in enumerate(examples):
        content = example.tobytes()
        if content not in seen:
            seen.add(content)
            chosen.append(i)
    return examples[np.array(chosen, int)]


def write(
    out: Path,
    report: PrivacyReport,
    uploads: Uploads,
    dataset: Dataset,
    predict: Callable[[np.ndarray], Prediction],
    *,
    run: dict[str, Any],
    title: str,
) -> None:
    """Writes privacy.csv, privacy_points.csv and privacy.png.

    For points in the space of images, the figure has the closest points above their
    nearest examples. Otherwise it is a histogram of the distances.

    Args:
        out: folder of the files. A missing folder is created.
        report: the measurements.
        uploads: the last uploads of the clients as NumPy arrays.
        dataset: the data set of the run.
        predict: embeds and clusters examples with the global model.
        run: the first columns of privacy.csv, which identify the run.
        title: method, data set, heterogeneity and seed.
    """
    out.mkdir(parents=True, exist_ok=True)
    summary, points = report
    table = pd.DataFrame([{**run, **summary}])
    for name, frame in (("privacy.csv", table), ("privacy_points.csv", points)):
        path = out / name
        frame.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
    kind = str(summary["kind"])
    relative = points.distance / summary["neighbor_distance"]
    closest = points.iloc[np.argsort(points.distance, kind="stable")[:PAIRS]]
    examples = dataset.examples[closest.example]
    vectors = np.asarray(uploads.points)[closest.client, closest.point]
    z = _space(examples, predict, kind != "centroids")
    path = out / "privacy.png"
    if examples.ndim == 4 and _is_pixels(z, flat(examples)):
        # Centroids of rows of length 1 get the brightness of the nearest example.
        rows, lengths = (
            np.linalg.norm(x, axis=1, keepdims=True) for x in (flat(examples), z)
        )
        images = np.clip(vectors * rows / np.maximum(lengths, 1e-12), 0, 1)
        images = images.reshape(examples.shape)
        figures.image_rows(
            [images.astype(np.float32), examples],
            [f"uploaded {kind.removesuffix('s')}", "nearest example of the client"],
            path,
            captions=[f"{relative[i]:.2f}" for i in closest.index],
            title=f"{title}: closest uploads, relative distance",
        )
        return
    figures.histogram(
        relative.to_numpy(),
        path,
        xlabel="distance to the nearest example of the client / distance of "
        "neighbouring\nexamples (no unit)",
        ylabel=f"number of uploaded {kind}",
        title=f"{title}: uploads",
    )


def _space(
    examples: np.ndarray, predict: Callable[[np.ndarray], Prediction], is_flat: bool
) -> Float[np.ndarray, "n D"]:
    """Returns examples in the space of the uploads, see `fcjax.types.Uploads`."""
    return flat(examples) if is_flat else predict(examples).embedding


def _is_pixels(z: Float[np.ndarray, "n D"], rows: Float[np.ndarray, "n F"]) -> bool:
    """Returns whether points are the flat examples, perhaps scaled to length 1."""
    if z.shape != rows.shape:
        return False
    norms = np.linalg.norm(z, axis=1) * np.linalg.norm(rows, axis=1)
    return bool(np.allclose((z * rows).sum(axis=1), norms, rtol=1e-3))


def _sample(examples: Shaped[np.ndarray, "n *F"]) -> Shaped[np.ndarray, "_ *F"]:
    """Returns at most `MOST_ATTACKED` examples, drawn at random."""
    order = np.random.default_rng(0).permutation(len(examples))
    return examples[np.sort(order[:MOST_ATTACKED])]
