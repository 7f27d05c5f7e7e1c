"""Dealing by ranges of classes: each client holds some of them, so many rows of each,
and holders of a class may share a part of theirs."""

import math

import numpy as np
from jaxtyping import Int

from fcjax.data.partition import Partition, check_num_clients

MAX_DRAWS = 100
"""A client whose classes are another's after so many draws keeps them."""


def class_ranges(
    labels: Int[np.ndarray, " P"],
    num_clients: int,
    overlap: float,
    *,
    class_range: tuple[int, int],
    samples_per_class: int,
    seed: int,
) -> Partition:
    """Returns FedCRef's partition: some classes a client, and S rows of each.

    One client after another draws its number of classes uniformly from LOW .. HIGH,
    and as many classes without replacement. Both are drawn anew while another client
    holds just these classes, at most 100 times: so where there are few sets of
    classes, small numbers, of which there are fewest, are a little rarer.

    The n holders of a class have q = min(S, floor(rows of the class / n)) rows of it
    each, drawn without replacement. Then each of them gives its first

        floor(O q / (n + O - n O))

    to a common pool that all of them get in full, so that of what each holds in the end
    a share O, but for rounding down, is held by all. With one holder nothing changes.
    Classes and own rows do not depend on O.

    Args:
      labels: any integers.
      num_clients: M.
      overlap: O, in [0, 1).
      class_range: (LOW, HIGH), both included.
      samples_per_class: S.
      seed: of the classes and of the rows.

    Returns:
      Clients whose rows are different ones, class by class, their own before those of
      others; `local_clusters` says how many classes each of them holds. Rows that
      nobody holds are left out.

    Raises:
      ValueError: O is not in [0, 1), LOW .. HIGH not within 1 .. K, S below 1, M not in
        1 .. P, or a class has fewer rows than holders.

    References:
      FedCRef, section 5.2; the pool of shared rows is that of its code.

    Examples:
      >>> labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
      >>> options = dict(class_range=(2, 2), samples_per_class=2, seed=0)
      >>> partition = class_ranges(labels, 2, 0.0, **options)
      >>> partition.local_clusters, [len(rows) for rows in partition.clients]
      ((2, 2), [4, 4])
    """
    check_num_clients(num_clients, len(labels))
    classes = np.unique(labels)
    low, high = class_range
    if not 1 <= low <= high <= len(classes):
        raise ValueError(
            f"class_range must be two of 1..{len(classes)}, the number of classes, "
            f"the lower one first, got {low} {high}"
        )
    if samples_per_class < 1:
        raise ValueError(
            f"samples_per_class must be at least 1, got {samples_per_class}"
        )
    rng = np.random.default_rng(seed)
    chosen = _sets_of_classes(len(classes), num_clients, low, high, rng)
    held: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for number, c in enumerate(classes):
        rows = rng.permutation(np.flatnonzero(labels == c))
        holders = [client for client, own in enumerate(chosen) if number in own]
        if not holders:
            continue
        size = min(samples_per_class, len(rows) // len(holders))
        if size == 0:
            raise ValueError(
                f"class_range {low} {high} with num_clients {num_clients} has "
                f"{len(holders)} clients share class {c}, of which there are "
                f"{len(rows)} examples; give fewer of either"
            )
        own = rows[: size * len(holders)].reshape(len(holders), size)
        common = own[:, : _num_shared(size, len(holders), overlap)]
        for place, client in enumerate(holders):
            others = np.delete(common, place, axis=0).ravel()
            held[client].append(np.concatenate([own[place], others]))
    clients = tuple(map(np.concatenate, held))
    left_out = np.setdiff1d(np.arange(len(labels)), np.concatenate(clients))
    return Partition(clients, left_out, tuple(map(len, chosen)))


def rows_held(size: int, num_holders: int, overlap: float) -> int:
    """Returns how many rows of a class each of its holders has in the end: its own, and
    what the others give to the common pool, see `class_ranges`.

    Args:
      size: q, of its own.
      num_holders: n, at least 1.
      overlap: O, in [0, 1).

    Raises:
      ValueError: O is not in [0, 1).

    Examples:
      >>> rows_held(100, 7, 0.0), rows_held(100, 7, 0.5)  # 100 + 6 * 12
      (100, 172)
    """
    return size + (num_holders - 1) * _num_shared(size, num_holders, overlap)


def _sets_of_classes(
    num_classes: int, num_clients: int, low: int, high: int, rng: np.random.Generator
) -> list[frozenset[int]]:
    chosen: list[frozenset[int]] = []
    for _ in range(num_clients):
        for _ in range(MAX_DRAWS):
            count = rng.integers(low, high + 1)
            drawn = frozenset(rng.permutation(num_classes)[:count].tolist())
            if drawn not in chosen:
                break
        chosen.append(drawn)
    return chosen


def _num_shared(size: int, num_holders: int, overlap: float) -> int:
    if not 0 <= overlap < 1:
        raise ValueError(f"overlap must lie in [0, 1), got {overlap}")
    wanted = overlap * size / (num_holders + overlap - num_holders * overlap)
    # What is whole in decimals may come out a little less.
    return math.floor(wanted + 1e-9)
