"""Partitions of a data set over clients.

Who holds what, and who answers: partitions and failures as data.

Partitions are made in NumPy, follow from their seed alone and always terminate.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from fcjax.ragged import GROUPS

# --- Partition


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


def add_evenly(
    partition: Partition, rows: Int[np.ndarray, " E"], *, seed: int
) -> Partition:
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
      >>> partition = add_evenly(partition, np.array([2, 3, 4]), seed=0)
      >>> [len(rows) for rows in partition.clients]
      [3, 2]
    """
    if len(rows) == 0:
        return partition
    drawn = np.random.default_rng(seed).permutation(rows)
    shares = np.array_split(drawn, len(partition.clients))
    clients = map(np.concatenate, zip(partition.clients, shares, strict=True))
    return partition._replace(clients=tuple(clients))


def subsample_clients(
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
      >>> thin = subsample_clients(partition, labels, 3, seed=0)
      >>> np.bincount(labels[thin.clients[0]]).tolist(), len(thin.left_out)
      ([2, 1], 3)
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    rng = np.random.default_rng(seed)
    clients = []
    for rows in partition.clients:
        classes, counts = np.unique(labels[rows], return_counts=True)
        quotas = proportional_counts(counts, min(size, len(rows)))
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


def proportional_counts(counts: np.ndarray, size: int) -> np.ndarray:
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


# --- Partition by class

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


# --- Partition by client

FEW = GROUPS * (GROUPS - 1)
"""Clients for which groups would be too uneven."""


def natural(clients: Int[np.ndarray, " P"]) -> Partition:
    """Returns the partition in which everybody holds what is theirs.

    Clients come by their size, the largest first, those of one size in their order;
    more than `FEW` in eight groups to which they are dealt in turn, so that all parts
    of them are alike.

    Args:
      clients: whose each row is; what is below 0 is nobody's.

    Raises:
      ValueError: all rows are nobody's.

    Examples:
      >>> partition = natural(np.array([7, 3, 3, -1, 9]))
      >>> [rows.tolist() for rows in partition.clients], partition.left_out
      ([[1, 2], [0], [4]], array([3]))
    """
    order = np.argsort(clients, kind="stable")
    names, starts = np.unique(clients[order], return_index=True)
    parts = np.split(order, starts[1:])
    held = [rows for name, rows in zip(names, parts, strict=True) if name >= 0]
    if not held:
        raise ValueError("no row has a client")
    held.sort(key=len, reverse=True)  # stable
    if len(held) > FEW:
        held = [held[rank] for rank in _in_groups(len(held))]
    return Partition(tuple(held), np.flatnonzero(clients < 0))


def _in_groups(count: int) -> np.ndarray:
    """Returns the ranks group by group; where they do not come out even, the last group
    has fewer of the smallest."""
    rows, groups = np.divmod(np.arange(count + -count % GROUPS), GROUPS)
    whole = len(rows) // GROUPS - (len(rows) - count)
    groups = groups[(groups < GROUPS - 1) | (rows < whole)]
    return np.argsort(groups, kind="stable")


def select_clients(
    clients: Int[np.ndarray, " P"],
    *,
    most: int | None = None,
    least_size: int = 1,
    seed: int = 0,
) -> tuple[Int[np.ndarray, " P"], str]:
    """Leaves small clients out, then all but some that are drawn at random.

    Args:
      clients: as in `natural`.
      most: how many clients stay at most; None is all.
      least_size: the fewest rows of a client that stays.
      seed: of the draw.

    Returns:
      The clients, -1 where one was left out; and a line on how many they are, and on
      who was left out.

    Raises:
      ValueError: `most` or `least_size` are below 1, or nobody would stay.

    Examples:
      >>> kept, told = select_clients(np.array([7, 3, 3, -1, 9]), least_size=2)
      >>> print(kept)
      [-1  3  3 -1 -1]
      >>> print(told)
      clients of the data: 1 of 3, of 2 examples; 2 left out; nobody's examples: 3
    """
    for flag, number in (("most", most), ("least_size", least_size)):
        if number is not None and number < 1:
            raise ValueError(f"{flag} must be at least 1, got {number}")
    names, counts = np.unique(clients[clients >= 0], return_counts=True)
    staying = np.flatnonzero(counts >= least_size)
    if len(staying) == 0:
        raise ValueError(
            f"least_size must be at most {counts.max(initial=0)}, the size of "
            f"the largest client, got {least_size}"
        )
    if most is not None and most < len(staying):
        rng = np.random.default_rng(seed)
        staying = np.sort(rng.choice(staying, most, replace=False))
    sizes = counts[staying]
    kept = np.where(np.isin(clients, names[staying]), clients, -1)
    of = " to ".join(map(str, sorted({int(sizes.min()), int(sizes.max())})))
    told = f"clients of the data: {len(staying)} of {len(names)}, of {of} examples"
    if len(staying) < len(names):
        told += f"; {len(names) - len(staying)} left out"
    if (kept < 0).any():
        told += f"; nobody's examples: {(kept < 0).sum()}"
    return kept, told


# --- Partition by range

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


def examples_per_class(size: int, num_holders: int, overlap: float) -> int:
    """Returns how many rows of a class each of its holders has in the end: its own, and
    what the others give to the common pool, see `class_ranges`.

    Args:
      size: q, of its own.
      num_holders: n, at least 1.
      overlap: O, in [0, 1).

    Raises:
      ValueError: O is not in [0, 1).

    Examples:
      >>> examples_per_class(100, 7, 0.0), examples_per_class(100, 7, 0.5)
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
