"""Who holds what, and who answers: partitions and failures as data.

Partitions are made in NumPy, follow from their seed alone and always terminate.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int


class Partition(NamedTuple):
    """Rows of the pool; only `class_ranges` gives one of them to several clients.

    Examples:
      >>> clients = (np.array([0, 2]), np.array([1]))
      >>> partition = Partition(clients, left_out=np.array([3]))
      >>> [len(rows) for rows in partition.clients]
      [2, 1]
    """

    clients: tuple[np.ndarray, ...]
    """The rows [n_i] of each client, no row twice."""
    left_out: np.ndarray
    """The rows [D] that no client holds, ascending."""
    local_clusters: tuple[int, ...] | None = None
    """How many clusters each client looks for, where the rule tells: as many as it was
    given classes. None where that is the same number for all."""


def heterogeneous(
    labels: Int[np.ndarray, " P"], num_clients: int, p: float, *, seed: int
) -> Partition:
    """Returns the p-partition: a share p of each client comes from its home class.

    With s = floor(P / M), head = round(s p) and tail = round(s (1 - p)), halves to
    even, client i takes the first `head` rows of class i in dataset order. All other
    rows are pooled class by class, permuted once with `seed` and handed out in
    consecutive blocks of `tail`. At p = 1 client i holds all of class i. This is the
    published rule, where the M clients are as many as the K classes. Beyond it:

    - M > K: the home class of client i is i mod K; clients that share a class take
      consecutive heads, and at p = 1 nearly equal contiguous shares, the first ones
      larger by one row.
    - M < K: the home classes of client i are those c with c mod M = i; the head is
      split evenly over them, the first `head mod h` of the h classes giving one row
      more, and at p = 1 the client holds all of them.
    - A home class that runs out gives what it has, and the client's block from the
      pool grows by the rows it misses. Where the pool runs out (head + tail can
      exceed s by one), the last clients get fewer.

    Args:
      labels: any integers; classes are numbered in ascending order.
      num_clients: M.
      p: heterogeneity in [0, 1]; 0 is a random split, 1 gives every client its class.
      seed: of the permutation.

    Raises:
      ValueError: p lies outside [0, 1], or a client is left with nothing.

    References:
      Liu et al., CCFC: Bridging Federated Clustering and Contrastive Learning, 2024.

    Examples:
      >>> labels = np.array([0, 0, 1, 1])
      >>> partition = heterogeneous(labels, 2, 1.0, seed=0)
      >>> [rows.tolist() for rows in partition.clients]
      [[0, 1], [2, 3]]
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p must lie in [0, 1], got {p}")
    check_num_clients(num_clients, len(labels))
    rows = [np.flatnonzero(labels == c) for c in np.unique(labels)]
    # At p = 1 the clients whose home a class is share all of it.
    at_home = [range(c % num_clients, num_clients, len(rows)) for c in range(len(rows))]
    shares = [_even(len(own), len(n)) for own, n in zip(rows, at_home, strict=True)]
    size = len(labels) // num_clients
    head, tail = round(size * p), round(size * (1 - p))

    held: list[list[np.ndarray]] = []
    for client in range(num_clients):
        homes = range(client % len(rows), len(rows), num_clients)
        quotas = _even(head, len(homes))
        if p == 1:
            quotas = [shares[c][client // len(rows)] for c in homes]
        held.append([])
        for c, quota in zip(homes, quotas, strict=True):
            held[client].append(rows[c][:quota])
            rows[c] = rows[c][quota:]

    rest = np.random.default_rng(seed).permutation(np.concatenate(rows))
    start = 0
    for parts in held if p < 1 else []:
        block = tail + head - sum(map(len, parts))
        parts.append(rest[start : start + block])
        start += block
    clients = tuple(map(np.concatenate, held))
    check_sizes(clients, len(labels), f"p {p}")
    return Partition(clients, np.sort(rest[start:]))


def dirichlet(
    labels: Int[np.ndarray, " P"], num_clients: int, alpha: float, *, seed: int
) -> Partition:
    """Returns a partition with the shares of each class drawn from Dirichlet(alpha).

    Every row is held. A client that the draw leaves with nothing gets one row of the
    client that is largest at that moment, so there is no drawing until it fits.

    Args:
      labels: any integers.
      num_clients: M.
      alpha: concentration, positive; small is heterogeneous, large is even.
      seed: of the shares and of the order within a class.

    Raises:
      ValueError: alpha is not positive and finite, or M is not in 1..P.

    References:
      Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019.

    Examples:
      >>> labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
      >>> partition = dirichlet(labels, 3, 0.1, seed=0)
      >>> sum(len(rows) for rows in partition.clients)  # every row is held once
      8
    """
    if not 0 < alpha < np.inf:
        raise ValueError(f"alpha must be positive and finite, got {alpha}")
    check_num_clients(num_clients, len(labels))
    rng = np.random.default_rng(seed)
    held: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for c in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == c))
        shares = rng.dirichlet(np.full(num_clients, alpha))
        cuts = (np.cumsum(shares)[:-1] * len(rows)).astype(int)
        for parts, own in zip(held, np.split(rows, cuts), strict=True):
            parts.append(own)
    clients = list(map(np.concatenate, held))
    for client in range(num_clients):
        if len(clients[client]) == 0:
            largest = int(np.argmax(list(map(len, clients))))
            clients[client] = clients[largest][-1:]
            clients[largest] = clients[largest][:-1]
    return Partition(tuple(clients), np.empty(0, np.int64))


def deal(partition: Partition, rows: Int[np.ndarray, " E"], *, seed: int) -> Partition:
    """Hands further rows out at random, as evenly as can be, the first clients first.

    For examples without labels, which no rule of heterogeneity can place.

    Args:
      partition: as any rule deals it.
      rows: of the pool, none of which the partition has.
      seed: of the order.

    Returns:
      The partition with those rows behind each client's own.

    Examples:
      >>> clients = (np.array([0]), np.array([1]))
      >>> partition = Partition(clients, left_out=np.array([], int))
      >>> partition = deal(partition, np.array([2, 3, 4]), seed=0)
      >>> [len(rows) for rows in partition.clients]
      [3, 2]
    """
    if len(rows) == 0:
        return partition
    drawn = np.random.default_rng(seed).permutation(rows)
    shares = np.array_split(drawn, len(partition.clients))
    clients = map(np.concatenate, zip(partition.clients, shares, strict=True))
    return partition._replace(clients=tuple(clients))


def thinned(
    partition: Partition, labels: Int[np.ndarray, " P"], size: int, *, seed: int
) -> Partition:
    """Returns the partition with at most `size` rows a client; what then nobody holds
    is left out.

    FDSC's batch size b: one fixed subset of what a client holds. Classes stay in
    proportion: each gets the floor of its share, and the rows still missing go to those
    with the largest remainders, the first class at a tie. Where `size` is at least the
    number of classes that the client holds, one that would vanish keeps a row instead
    of the class that keeps most. A client of fewer rows keeps all.

    Args:
      partition: as any rule deals it.
      labels: of all rows of the pool.
      size: at least 1.
      seed: of the draws. With one seed a class keeps, of a larger quota, what it keeps
        of a smaller one.

    Raises:
      ValueError: `size` is below 1.

    References:
      FDSC (federated deep subspace clustering), section 4.6, Table 4.

    Examples:
      >>> partition = Partition((np.arange(6),), left_out=np.array([], int))
      >>> labels = np.array([0, 0, 0, 0, 1, 1])
      >>> thin = thinned(partition, labels, 3, seed=0)
      >>> np.bincount(labels[thin.clients[0]]).tolist(), len(thin.left_out)
      ([2, 1], 3)
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    rng = np.random.default_rng(seed)
    clients = []
    for rows in partition.clients:
        classes, counts = np.unique(labels[rows], return_counts=True)
        quotas = in_proportion(counts, min(size, len(rows)))
        while size >= len(counts) and quotas.min() == 0:
            quotas[quotas.argmin()] += 1
            quotas[quotas.argmax()] -= 1
        kept = np.zeros(len(rows), bool)
        for c, quota in zip(classes, quotas, strict=True):
            kept[rng.permutation(np.flatnonzero(labels[rows] == c))[:quota]] = True
        clients.append(rows[kept])
    dealt = np.concatenate([*partition.clients, partition.left_out])
    left_out = np.setdiff1d(dealt, np.concatenate(clients))
    return partition._replace(clients=tuple(clients), left_out=left_out)


def in_proportion(counts: np.ndarray, size: int) -> np.ndarray:
    """Returns how many of each count are of `size` in all: the floor of its share, and
    one more for those with the largest remainders, the first one at a tie."""
    quotas, remainders = np.divmod(counts * size, counts.sum())
    largest = np.argsort(-remainders, kind="stable")
    quotas[largest[: size - quotas.sum()]] += 1
    return quotas


def failures(
    num_clients: int, rate: float, *, seed: int, num_rounds: int = 1
) -> Bool[np.ndarray, "R M"]:
    """Returns who is present: in each round round(rate M) clients, drawn anew, are not.

    The last row of `Federation.present` stands for all further rounds, so that a single
    one fails the same clients for the whole run, as the CCFC and SDA-FDC papers do.
    With one seed, the clients absent at a low rate are absent, in that round, at a
    higher one too.

    Args:
      num_clients: M.
      rate: in [0, 1].
      seed: of the draws; the first rounds are the same whatever their number.
      num_rounds: R.

    Raises:
      ValueError: rate lies outside [0, 1], or every client fails.

    Examples:
      >>> present = failures(10, 0.3, seed=0, num_rounds=2)
      >>> print(present.shape, present.sum(axis=1))
      (2, 10) [7 7]
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must lie in [0, 1], got {rate}")
    num_absent = round(rate * num_clients)
    if num_absent == num_clients:
        raise ValueError(
            f"failure_rate {rate} fails all {num_clients} clients, one must be left"
        )
    rng = np.random.default_rng(seed)
    present = np.ones((num_rounds, num_clients), bool)
    for row in present:
        row[rng.permutation(num_clients)[:num_absent]] = False
    return present


def check_sizes(clients: tuple[np.ndarray, ...], num_examples: int, level: str) -> None:
    for client, own in enumerate(clients):
        if len(own) == 0:
            raise ValueError(
                f"num_clients {len(clients)} leaves client {client} with no examples "
                f"at {level}; give fewer clients or more examples than {num_examples}"
            )


def check_num_clients(num_clients: int, num_examples: int) -> None:
    if not 1 <= num_clients <= num_examples:
        raise ValueError(
            f"num_clients must lie in 1..{num_examples}, the number of examples, "
            f"got {num_clients}"
        )


def _even(total: int, parts: int) -> list[int]:
    return [total // parts + (part < total % parts) for part in range(parts)]
