"""Dealing by classes: each client holds some of them, evenly shared with the others."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Int

from fcjax.data.partition import Partition, check_num_clients, check_sizes

TOLERANCE = 0.005
"""A share of classes so near to 1 / M, relative to it, is meant to be it."""


def class_blocks(
    labels: Int[np.ndarray, " P"], num_clients: int, class_share: float, *, seed: int
) -> Partition:
    """Returns a partition where each client holds consecutive classes, evenly shared.

    With K classes in ascending order and start_i = floor(i K / M), client i holds those
    from start_i on, after the last one the first: as many as start_{i+1} - start_i, and
    at least max(1, round(class_share K)), halves to even. So a share of 1 is FedMCC's
    IID, as many examples of every class for each client, and 1 / M its non-IID,
    disjoint blocks (of 10 classes two clients hold 0 to 4 and 5 to 9), where nothing is
    rounded up so that this is true of any K >= M; between them neighbours overlap.

    Every row is held. The rows of a class are permuted and split over its holders; what
    does not come out even goes, a row each, to those with the fewest rows so far, the
    first ones at a tie.

    Args:
      labels: any integers.
      num_clients: M; where it is above K, clients share a class.
      class_share: in [1 / M, 1]; within 0.5 % of 1 / M it is taken for that, so that it
        may be written in three digits.
      seed: of the order within a class.

    Raises:
      ValueError: class_share lies outside [1 / M, 1], M is not in 1..P, or a client is
        left with nothing.

    References:
      FedMCC (Federated Momentum Contrastive Clustering), section IV-A.

    Examples:
      >>> labels = np.array([0, 0, 1, 1, 2, 2, 3, 3])
      >>> partition = class_blocks(labels, 2, 0.5, seed=0)
      >>> [sorted(set(labels[rows].tolist())) for rows in partition.clients]
      [[0, 1], [2, 3]]
    """
    check_num_clients(num_clients, len(labels))
    relative = class_share * num_clients
    if not (relative >= 1 - TOLERANCE and class_share <= 1):
        raise ValueError(
            f"class_share must lie in [1/num_clients, 1], which is "
            f"[{1 / num_clients:.3g}, 1] for num_clients {num_clients}, "
            f"got {class_share}"
        )
    classes = np.unique(labels)
    least = round(class_share * len(classes)) if relative > 1 + TOLERANCE else 1
    starts = [i * len(classes) // num_clients for i in range(num_clients + 1)]
    holders: list[list[int]] = [[] for _ in classes]
    for client, (start, end) in enumerate(pairwise(starts)):
        for c in range(start, start + max(1, least, end - start)):
            holders[c % len(classes)].append(client)

    rng = np.random.default_rng(seed)
    clients = _split(labels, holders, num_clients, rng)
    check_sizes(clients, len(labels), f"class_share {class_share}")
    return Partition(clients, np.empty(0, np.int64))


def drawn_classes(
    labels: Int[np.ndarray, " P"],
    num_clients: int,
    classes_per_client: int,
    *,
    seed: int,
) -> Partition:
    """Returns a partition where each client holds q classes drawn at random.

    FDSC says that samples of q categories were "randomly selected" for each client, of
    about P / M samples, and no more. Here one client after another draws q different
    classes from those that the fewest clients hold so far, ties at random. So the
    numbers of holders of two classes never differ by more than one, and every class has
    a holder where q M >= K. Classes that nobody drew are left out.

    The rows of a class are permuted and split over its holders; what does not come out
    even goes, a row each, to those with the fewest rows so far, the first ones at a
    tie. With q = K every client holds as many rows of each class, but for one.

    Args:
      labels: any integers.
      num_clients: M.
      classes_per_client: q, in 1..K.
      seed: of the drawn classes and of the order within a class.

    Returns:
      Clients that hold at least one row of each of exactly q classes.

    Raises:
      ValueError: q is not in 1..K, M is not in 1..P, or a class has fewer rows than
        holders.

    References:
      FDSC (federated deep subspace clustering), section 4.2.

    Examples:
      >>> labels = np.array([0, 0, 1, 1, 2, 2, 3, 3])
      >>> partition = drawn_classes(labels, 2, 3, seed=0)
      >>> [len(set(labels[rows].tolist())) for rows in partition.clients]
      [3, 3]
    """
    check_num_clients(num_clients, len(labels))
    classes, counts = np.unique(labels, return_counts=True)
    if not 1 <= classes_per_client <= len(classes):
        raise ValueError(
            f"classes_per_client must lie in 1..{len(classes)}, the number of "
            f"classes, got {classes_per_client}"
        )
    rng = np.random.default_rng(seed)
    holders: list[list[int]] = [[] for _ in classes]
    for client in range(num_clients):
        shuffled = rng.permutation(len(classes))
        fewest = sorted(shuffled, key=lambda c: len(holders[c]))
        for c in fewest[:classes_per_client]:
            holders[c].append(client)
    for c, count, clients in zip(classes, counts, holders, strict=True):
        if count < len(clients):
            raise ValueError(
                f"classes_per_client {classes_per_client} with num_clients "
                f"{num_clients} has {len(clients)} clients share class {c}, of which "
                f"there are {count} examples; give fewer of either"
            )
    clients = _split(labels, holders, num_clients, rng)
    nobodys = [c for c, clients in zip(classes, holders, strict=True) if not clients]
    return Partition(clients, np.flatnonzero(np.isin(labels, nobodys)))


def _split(
    labels: np.ndarray,
    holders: Sequence[Sequence[int]],
    num_clients: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, ...]:
    """Returns the rows of each client; `holders` are those of each class."""
    held: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    sizes = [0] * num_clients
    for c, clients in zip(np.unique(labels), holders, strict=True):
        if not clients:
            continue
        rows = rng.permutation(np.flatnonzero(labels == c))
        clients = sorted(clients, key=sizes.__getitem__)
        shares = np.array_split(rows, len(clients))
        for client, own in zip(clients, shares, strict=True):
            held[client].append(own)
            sizes[client] += len(own)
    return tuple(map(np.concatenate, held))
