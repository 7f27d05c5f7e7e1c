"""Scores of every client on its own examples, and what they come to together."""

from collections.abc import Collection, Mapping

import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Shaped

from fcjax.evaluation.scores import NAMES, scores

# Anonymous axes: shapes that differ are reported in one line by the functions.
ClientNames = Integer[np.ndarray | Array, "_ _"]
ClientMask = Bool[np.ndarray | Array, "_ _"]


def per_client(
    labels: ClientNames,
    assignments: ClientNames,
    mask: ClientMask,
    *,
    names: Collection[str] = NAMES,
) -> dict[str, Float[np.ndarray, "_"]]:
    """Scores of every client on its own examples, with a match of its own.

    Args:
      labels: [M, N] true classes.
      assignments: [M, N] clusters.
      mask: [M, N] True at a client's own examples, False at padding.
      names: which scores.

    Returns:
      A dict from their names to arrays [M].

    Raises:
      ValueError: if shapes differ or a client holds no example.

    Examples:
      >>> labels = np.array([[0, 0, 1, 1], [0, 1, 1, 1]])
      >>> assignments = np.array([[5, 5, 5, 3], [3, 5, 5, 5]])
      >>> mask = np.array([[True, True, True, True], [True, True, False, False]])
      >>> print(per_client(labels, assignments, mask, names=("acc",))["acc"])
      [0.75 1.  ]
    """
    labels, assignments, mask = map(np.asarray, (labels, assignments, mask))
    _check_clients(mask, labels=labels, assignments=assignments)
    rows = [
        scores(labels[client, own], assignments[client, own], names=names)
        for client, own in enumerate(mask)
    ]
    return {name: np.array([row[name] for row in rows]) for name in names}


def client_mean(
    client_scores: Mapping[str, Float[np.ndarray, "M"]],
) -> dict[str, float]:
    """Mean of `per_client` scores, every client alike, as FedCRef takes it.

    Args:
      client_scores: a dict of arrays [M].

    Returns:
      A dict of floats with the same keys.

    Examples:
      >>> client_mean({"acc": np.array([0.75, 1.0])})
      {'acc': 0.875}
    """
    return {name: float(np.mean(values)) for name, values in client_scores.items()}


def client_pooled(
    client_scores: Mapping[str, Float[np.ndarray, "M"]],
    mask: Bool[np.ndarray | Array, "M _"],
) -> dict[str, float]:
    """Mean of `per_client` scores, each client weighted by its number of examples.

    For acc this is FDSC's Eq. 9: hits pooled over clients, each with its own match.

    Args:
      client_scores: a dict of arrays [M].
      mask: [M, N] True at a client's own examples.

    Returns:
      A dict of floats with the same keys.

    Examples:
      >>> mask = np.array([[True, True, True], [True, False, False]])
      >>> client_pooled({"acc": np.array([1.0, 0.0])}, mask)  # (3 * 1 + 1 * 0) / 4
      {'acc': 0.75}
    """
    sizes = np.asarray(mask).sum(axis=1)
    return {
        name: float(np.average(values, weights=sizes))
        for name, values in client_scores.items()
    }


def imbalance_ratio(labels: ClientNames, mask: ClientMask) -> Float[np.ndarray, "_"]:
    """Size of each client's largest class over that of its smallest.

    The classes are those found anywhere in the federation: a client that misses one
    has a ratio of infinity. Table 4 of the CCFC paper reports 1.18 to 1.53 for MNIST
    with p = 0.

    Args:
      labels: [M, N] true classes.
      mask: [M, N] True at a client's own examples, False at padding.

    Returns:
      [M] ratios in [1, inf].

    Raises:
      ValueError: if shapes differ or a client holds no example.

    Examples:
      >>> labels, mask = np.array([[0, 0, 1], [0, 1, 1]]), np.ones((2, 3), bool)
      >>> print(imbalance_ratio(labels, mask))
      [2. 2.]
    """
    labels, mask = np.asarray(labels), np.asarray(mask)
    _check_clients(mask, labels=labels)
    classes = np.unique(labels[mask])
    counts = ((labels[..., None] == classes) & mask[..., None]).sum(axis=1)
    with np.errstate(divide="ignore"):
        return counts.max(axis=1) / counts.min(axis=1)


def _check_clients(
    mask: Shaped[np.ndarray, "_ _"], **arrays: Shaped[np.ndarray, "_ _"]
) -> None:
    for name, array in arrays.items():
        if array.shape != mask.shape:
            raise ValueError(f"{name} {array.shape} and mask {mask.shape} differ")
    if len(mask) == 0:
        raise ValueError("no clients to score")
    empty = np.flatnonzero(~mask.any(axis=1))
    if empty.size:
        raise ValueError(f"clients without examples: {empty.tolist()}")
