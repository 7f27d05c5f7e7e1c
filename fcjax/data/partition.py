"""Partitions of a data set over clients, one function per rule, and client failures.

Partitions are made in NumPy and follow from their seed alone.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from fcjax.ragged import GROUPS

# --- What all rules share


def _by_class(labels: np.ndarray) -> list[np.ndarray]:
    """Returns the indices of the examples of each class, classes in ascending order."""
    return [np.flatnonzero(labels == c) for c in np.unique(labels)]


def _even(total: int, parts: int) -> list[int]:
    return [total // parts + (part < total % parts) for part in range(parts)]


def _check_num_clients(num_clients: int, num_examples: int) -> None:
    if not 1 <= num_clients <= num_examples:
        raise ValueError(
            f"num_clients must lie in 1..{num_examples}, the number of examples, "
            f"got {num_clients}"
        )


def _check_sizes(clients: Sequence[np.ndarray], num_examples: int, level: str) -> None:
    if 0 in (sizes := list(map(len, clients))):
        raise ValueError(
            f"num_clients {len(clients)} leaves client {sizes.index(0)} with no "
            f"examples at {level}; give fewer clients or more examples than "
            f"{num_examples}"
        )


def _check_shares(level: str, label: int, num_examples: int, num_clients: int) -> None:
    if num_examples < num_clients:
        raise ValueError(
            f"{level} has {num_clients} clients share class {label}, of which there "
            f"are {num_examples} examples; give fewer of either"
        )


# --- Partition


class Partition(NamedTuple):
    """Indices into the pool; only `class_ranges` gives an example to several clients.

    Examples:
      >>> clients = (np.array([0, 2]), np.array([1]))
      >>> partition = Partition(clients, left_out=np.array([3]))
      >>> [len(rows) for rows in partition.clients]
      [2, 1]
    """

    clients: tuple[np.ndarray, ...]
    """The indices [n_i] of each client's examples, none twice."""
    left_out: np.ndarray
    """The indices [D] of the examples without a client, ascending."""
    local_clusters: tuple[int, ...] | None = None
    """The number of clusters of each client, if the rule draws a number of classes per
    client; None if all clients have the same number."""


def heterogeneous(
    labels: Int[np.ndarray, " P"], num_clients: int, p: float, *, seed: int
) -> Partition:
    """Returns the p-partition: a share p of each client comes from its home class.

    With s = floor(P / M), head = round(s p) and tail = round(s (1 - p)), halves to
    even, client i takes the first `head` examples of class i in dataset order. All
    other examples are pooled class by class, permuted once with `seed` and distributed
    in consecutive blocks of `tail`. At p = 1 client i has all of class i. This is the
    published rule for M = K, as many clients as classes. For other numbers of clients:

    - M > K: the home class of client i is i mod K. Clients that share a class take
      consecutive heads, and at p = 1 nearly equal contiguous shares, the first ones
      larger by one example.
    - M < K: the home classes of client i are all c with c mod M = i. The head is
      split evenly over them; the first `head mod h` of the h classes give one example
      more. At p = 1 the client has all of these classes.
    - If a home class is too small, the client's block from the pool is larger by the
      missing examples. If the pool is too small (head + tail can exceed s by one), the
      last clients get fewer.

    Args:
      labels: any integers; classes are numbered in ascending order.
      num_clients: M.
      p: heterogeneity in [0, 1]; 0 is a random split, 1 gives every client its class.
      seed: of the permutation.

    Raises:
      ValueError: p lies outside [0, 1], or a client gets no example.

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
    _check_num_clients(num_clients, len(labels))
    rows = _by_class(labels)
    # At p = 1 the clients with the same home class share all of it.
    at_home = [range(c % num_clients, num_clients, len(rows)) for c in range(len(rows))]
    shares = [_even(len(own), len(n)) for own, n in zip(rows, at_home, strict=True)]
    size = len(labels) // num_clients
    head, tail = round(size * p), round(size * (1 - p))

    clients: list[list[np.ndarray]] = []
    for client in range(num_clients):
        homes = range(client % len(rows), len(rows), num_clients)
        quotas = _even(head, len(homes))
        if p == 1:
            quotas = [shares[c][client // len(rows)] for c in homes]
        clients.append(
            [rows[c][:quota] for c, quota in zip(homes, quotas, strict=True)]
        )
        for c, quota in zip(homes, quotas, strict=True):
            rows[c] = rows[c][quota:]

    rest = np.random.default_rng(seed).permutation(np.concatenate(rows))
    start = 0
    for parts in clients if p < 1 else []:
        block = tail + head - sum(map(len, parts))
        parts.append(rest[start : start + block])
        start += block
    indices = tuple(map(np.concatenate, clients))
    _check_sizes(indices, len(labels), f"p {p}")
    return Partition(indices, np.sort(rest[start:]))


def dirichlet(
    labels: Int[np.ndarray, " P"], num_clients: int, alpha: float, *, seed: int
) -> Partition:
    """Returns a partition with the shares of each class drawn from Dirichlet(alpha).

    Every example has a client. A client without any example after the draw gets one of
    the client that is largest at that moment, so the draw is never repeated.

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
      >>> sum(len(rows) for rows in partition.clients)  # every example once
      8
    """
    if not 0 < alpha < np.inf:
        raise ValueError(f"alpha must be positive and finite, got {alpha}")
    _check_num_clients(num_clients, len(labels))
    rng = np.random.default_rng(seed)
    shares = []
    for indices in _by_class(labels):
        indices = rng.permutation(indices)
        drawn = np.cumsum(rng.dirichlet(np.full(num_clients, alpha)))
        shares.append(np.split(indices, (drawn[:-1] * len(indices)).astype(int)))
    clients = [np.concatenate(parts) for parts in zip(*shares, strict=True)]
    for client in range(num_clients):
        if len(clients[client]) == 0:
            largest = int(np.argmax(list(map(len, clients))))
            clients[client] = clients[largest][-1:]
            clients[largest] = clients[largest][:-1]
    return Partition(tuple(clients), np.empty(0, np.int64))


def add_evenly(
    partition: Partition, rows: Int[np.ndarray, " E"], *, seed: int
) -> Partition:
    """Adds further examples at random, evenly, the first clients first.

    For examples without labels, which no rule of heterogeneity can place.

    Args:
      partition: of any rule.
      rows: indices into the pool that are not in the partition.
      seed: of the order.

    Returns:
      The partition with the added examples behind each client's others.

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
    """Returns the partition with at most `size` examples per client; all others are
    left out.

    FDSC's batch size b: one fixed subset of each client's examples. Classes stay in
    proportion, see `proportional_counts`. If `size` is at least the client's number of
    classes, every class keeps at least one example, at the cost of the class that keeps
    most. A client with fewer examples keeps all.

    Args:
      partition: of any rule.
      labels: of all examples of the pool.
      size: at least 1.
      seed: of the draws. With one seed, a smaller subset of a class is part of a larger
        one.

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
        counts = np.unique(labels[rows], return_counts=True)[1]
        quotas = proportional_counts(counts, min(size, len(rows)))
        while size >= len(counts) and quotas.min() == 0:
            quotas[quotas.argmin()] += 1
            quotas[quotas.argmax()] -= 1
        kept = np.zeros(len(rows), bool)
        for indices, quota in zip(_by_class(labels[rows]), quotas, strict=True):
            kept[rng.permutation(indices)[:quota]] = True
        clients.append(rows[kept])
    everything = np.concatenate([*partition.clients, partition.left_out])
    left_out = np.setdiff1d(everything, np.concatenate(clients))
    return partition._replace(clients=tuple(clients), left_out=left_out)


def proportional_counts(counts: np.ndarray, size: int) -> np.ndarray:
    """Splits `size` in proportion to the counts: each gets the floor of its share, and
    one more goes to the largest remainders, the first one at a tie.
    """
    quotas, remainders = np.divmod(counts * size, counts.sum())
    largest = np.argsort(-remainders, kind="stable")
    quotas[largest[: size - quotas.sum()]] += 1
    return quotas


def failures(
    num_clients: int, rate: float, *, seed: int, num_rounds: int = 1
) -> Bool[np.ndarray, "R M"]:
    """Returns which clients are present; in each round round(rate M) others fail.

    The last row of `Federation.present` holds for all further rounds, so with one row
    the same clients fail for the whole run, as in the CCFC and SDA-FDC papers. With one
    seed, the clients that fail at a low rate also fail, in that round, at a higher one.

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


# --- Partition by class

TOLERANCE = 0.005
"""The relative distance up to which a share of classes counts as 1 / M."""


def class_blocks(
    labels: Int[np.ndarray, " P"], num_clients: int, class_share: float, *, seed: int
) -> Partition:
    """Returns a partition where each client has consecutive classes, evenly shared.

    With K classes in ascending order and start_i = floor(i K / M), client i has the
    classes from start_i on, cyclically: start_{i+1} - start_i of them, and at least
    max(1, round(class_share K)), halves to even. A share of 1 is FedMCC's IID case:
    every client has equally many examples of every class. A share of 1 / M is its
    non-IID case, disjoint blocks (two clients have classes 0 to 4 and 5 to 9 of 10);
    then nothing is rounded up, so the blocks are disjoint for any K >= M. For shares in
    between, neighbours overlap.

    Every example has a client, see `_split`.

    Args:
      labels: any integers.
      num_clients: M; if it is above K, clients share a class.
      class_share: in [1 / M, 1]; a value within 0.5 % of 1 / M counts as 1 / M, so
        three digits are enough.
      seed: of the order within a class.

    Raises:
      ValueError: class_share lies outside [1 / M, 1], M is not in 1..P, or a client
        gets no example.

    References:
      FedMCC (Federated Momentum Contrastive Clustering), section IV-A.

    Examples:
      >>> labels = np.array([0, 0, 1, 1, 2, 2, 3, 3])
      >>> partition = class_blocks(labels, 2, 0.5, seed=0)
      >>> [sorted(set(labels[rows].tolist())) for rows in partition.clients]
      [[0, 1], [2, 3]]
    """
    _check_num_clients(num_clients, len(labels))
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
    _check_sizes(clients, len(labels), f"class_share {class_share}")
    return Partition(clients, np.empty(0, np.int64))


def drawn_classes(
    labels: Int[np.ndarray, " P"],
    num_clients: int,
    classes_per_client: int,
    *,
    seed: int,
) -> Partition:
    """Returns a partition where each client has q classes drawn at random.

    FDSC says only that samples of q categories were "randomly selected" for each
    client, about P / M samples. Here one client after another draws q different classes
    among the ones with the fewest clients so far, ties at random. So the numbers of
    clients of two classes never differ by more than one, and every class has a client
    if q M >= K. Classes that no client drew are left out.

    The examples of a class are split as `_split` does. With q = K all clients have
    equally many examples of each class, up to one.

    Args:
      labels: any integers.
      num_clients: M.
      classes_per_client: q, in 1..K.
      seed: of the drawn classes and of the order within a class.

    Returns:
      Clients with at least one example of each of exactly q classes.

    Raises:
      ValueError: q is not in 1..K, M is not in 1..P, or a class has fewer examples than
        clients.

    References:
      FDSC (federated deep subspace clustering), section 4.2.

    Examples:
      >>> labels = np.array([0, 0, 1, 1, 2, 2, 3, 3])
      >>> partition = drawn_classes(labels, 2, 3, seed=0)
      >>> [len(set(labels[rows].tolist())) for rows in partition.clients]
      [3, 3]
    """
    _check_num_clients(num_clients, len(labels))
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
    level = f"classes_per_client {classes_per_client} with num_clients {num_clients}"
    for c, count, clients in zip(classes, counts, holders, strict=True):
        _check_shares(level, int(c), int(count), len(clients))
    clients = _split(labels, holders, num_clients, rng)
    left_out = np.setdiff1d(np.arange(len(labels)), np.concatenate(clients))
    return Partition(clients, left_out)


def _split(
    labels: np.ndarray,
    holders: Sequence[Sequence[int]],
    num_clients: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, ...]:
    """Returns the indices of each client; `holders` are the clients of each class.

    The examples of a class are permuted and split over its clients. If they do not
    divide evenly, the clients with the fewest examples so far get one more, the first
    ones at a tie.
    """
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    sizes = [0] * num_clients
    for indices, clients in zip(_by_class(labels), holders, strict=True):
        if not clients:
            continue
        clients = sorted(clients, key=sizes.__getitem__)
        shares = np.array_split(rng.permutation(indices), len(clients))
        for client, share in zip(clients, shares, strict=True):
            parts[client].append(share)
            sizes[client] += len(share)
    return tuple(map(np.concatenate, parts))


# --- Partition by client

FEW = GROUPS * (GROUPS - 1)
"""Up to so many clients are not grouped, as the groups would be too uneven."""


def natural(clients: Int[np.ndarray, " P"]) -> Partition:
    """Returns the natural partition: each client has its own examples.

    Clients are in order of size, the largest first, ties in order of their number. More
    than `FEW` clients form eight groups, to which they are assigned in turn, so that
    all groups are alike.

    Args:
      clients: the client of each example; a number below 0 is none.

    Raises:
      ValueError: no example has a client.

    Examples:
      >>> partition = natural(np.array([7, 3, 3, -1, 9]))
      >>> [rows.tolist() for rows in partition.clients], partition.left_out
      ([[1, 2], [0], [4]], array([3]))
    """
    order = np.argsort(clients, kind="stable")
    names, starts = np.unique(clients[order], return_index=True)
    parts = np.split(order, starts[1:])[(names < 0).sum() :]
    if not parts:
        raise ValueError("no example has a client")
    parts.sort(key=len, reverse=True)  # stable
    if len(parts) > FEW:
        parts = [parts[rank] for rank in _in_groups(len(parts))]
    return Partition(tuple(parts), np.flatnonzero(clients < 0))


def _in_groups(count: int) -> np.ndarray:
    """Returns the ranks group by group; if they do not divide evenly, the last group
    has fewer of the smallest clients.
    """
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
    """Leaves out small clients, then draws some of the others at random.

    Args:
      clients: as in `natural`.
      most: the largest number of clients that stay; None is all.
      least_size: the smallest number of examples of a client that stays.
      seed: of the draw.

    Returns:
      The clients, -1 for examples of a client that is left out; and a line on the
      numbers of clients that stay and that are left out.

    Raises:
      ValueError: `most` or `least_size` are below 1, or no client would stay.

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
"""After so many draws a client may have the same classes as another."""


def class_ranges(
    labels: Int[np.ndarray, " P"],
    num_clients: int,
    overlap: float,
    *,
    class_range: tuple[int, int],
    samples_per_class: int,
    seed: int,
) -> Partition:
    """Returns FedCRef's partition: some classes per client, S examples of each class.

    One client after another draws its number of classes uniformly from LOW .. HIGH,
    and that many classes without replacement. Both are drawn again while another client
    has exactly these classes, at most 100 times. So with few sets of classes, small
    numbers of classes, which have the fewest sets, are a little rarer.

    The n clients of a class have q = min(S, floor(examples of the class / n)) examples
    of it each, drawn without replacement. Then each of them gives its first

        floor(O q / (n + O - n O))

    to a common pool that all of them get in full. So in the end all of them share the
    fraction O of each client's examples, up to rounding down. With one client nothing
    changes. The classes and the q examples do not depend on O.

    Args:
      labels: any integers.
      num_clients: M.
      overlap: O, in [0, 1).
      class_range: (LOW, HIGH), both included.
      samples_per_class: S.
      seed: of the classes and of the examples.

    Returns:
      Clients without repeated examples, class by class, the client's q examples before
      the shared ones; `local_clusters` is each client's number of classes. Examples
      without a client are left out.

    Raises:
      ValueError: O is not in [0, 1), LOW .. HIGH not within 1 .. K, S below 1, M not in
        1 .. P, or a class has fewer examples than clients.

    References:
      FedCRef, section 5.2; the common pool is in its code.

    Examples:
      >>> labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
      >>> options = dict(class_range=(2, 2), samples_per_class=2, seed=0)
      >>> partition = class_ranges(labels, 2, 0.0, **options)
      >>> partition.local_clusters, [len(rows) for rows in partition.clients]
      ((2, 2), [4, 4])
    """
    _check_num_clients(num_clients, len(labels))
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
    level = f"class_range {low} {high} with num_clients {num_clients}"
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for number, indices in enumerate(_by_class(labels)):
        indices = rng.permutation(indices)
        holders = [client for client, drawn in enumerate(chosen) if number in drawn]
        if not holders:
            continue
        _check_shares(level, int(classes[number]), len(indices), len(holders))
        size = min(samples_per_class, len(indices) // len(holders))
        own = indices[: size * len(holders)].reshape(len(holders), size)
        common = own[:, : _num_shared(size, len(holders), overlap)]
        for place, client in enumerate(holders):
            others = np.delete(common, place, axis=0).ravel()
            parts[client].append(np.concatenate([own[place], others]))
    clients = tuple(map(np.concatenate, parts))
    left_out = np.setdiff1d(np.arange(len(labels)), np.concatenate(clients))
    return Partition(clients, left_out, tuple(map(len, chosen)))


def examples_per_class(size: int, num_holders: int, overlap: float) -> int:
    """Returns the number of examples of a class that each of its clients has in the
    end, with the common pool, see `class_ranges`.

    Args:
      size: q, the examples of each client without the pool.
      num_holders: n, the clients of the class, at least 1.
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
    # A product that is whole in decimals may be a little less in binary.
    return math.floor(wanted + 1e-9)


RULES = {
    "p": heterogeneous,
    "alpha": dirichlet,
    "class_share": class_blocks,
    "classes_per_client": drawn_classes,
    "overlap": class_ranges,
    "natural": lambda clients, *_, seed: natural(clients),
}
"""The rules of partition by the name of their setting: (labels, number of clients, the
setting's value, seed) -> the partition. `class_ranges` has further settings, and
`natural` takes the client of each example in place of labels."""
