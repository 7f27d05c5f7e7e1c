"""Partitions of a data set over clients, one function per rule, and client failures.

Partitions are NumPy arrays. They depend on the data and the seed only.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from fcjax.data.dataset import counted
from fcjax.ragged import GROUPS

# --- What all rules share


def _by_class(labels: np.ndarray) -> list[np.ndarray]:
    """Returns the indices of the examples of each class, classes in ascending order."""
    return [np.flatnonzero(labels == c) for c in np.unique(labels)]


def _even(total: int, parts: int) -> list[int]:
    """Returns nearly equal whole numbers that sum to `total`, the larger ones first."""
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
            f"{level} assigns class {label} to {num_clients} clients, but the class "
            f"has {num_examples} examples; give a smaller value of either"
        )


# --- Partition


class Partition(NamedTuple):
    """Indices into the pool of examples, one array per client.

    Only `class_ranges` gives one example to several clients.

    Examples:
      >>> clients = (np.array([0, 2]), np.array([1]))
      >>> partition = Partition(clients, left_out=np.array([3]))
      >>> [len(rows) for rows in partition.clients]
      [2, 1]
    """

    clients: tuple[np.ndarray, ...]
    """The indices [n_i] of the examples of each client, without repetition."""
    left_out: np.ndarray
    """The indices [D] of the examples without a client, in ascending order."""
    local_clusters: tuple[int, ...] | None = None
    """The number of clusters of each client, if the rule draws a number of classes per
    client; None if all clients have the same number of clusters."""


def heterogeneous(
    labels: Int[np.ndarray, " P"], num_clients: int, p: float, *, seed: int
) -> Partition:
    """Returns the p-partition: a share p of each client's examples has its home class.

    Let s = floor(P / M), head = round(s p) and tail = round(s (1 - p)), halves to even.
    Client i takes the first `head` examples of class i in the order of the data set.
    All other examples form a pool. The pool is sorted by class, permuted once with
    `seed`, and distributed in consecutive blocks of `tail`. At p = 1, client i has all
    examples of class i. This is the published rule for M = K, with as many clients as
    classes. For other numbers of clients:

    - M > K: the home class of client i is i mod K. Clients with the same home class
      take consecutive heads. At p = 1 they take nearly equal contiguous shares; the
      first ones are larger by one example.
    - M < K: the home classes of client i are all classes c with c mod M = i. The head
      is split evenly over these h classes; the first `head mod h` classes give one
      example more. At p = 1 the client has all examples of its home classes.
    - If a home class is too small, the client gets the missing examples from the pool.
      If the pool is too small (head + tail can exceed s by one), the last clients get
      fewer examples.

    Args:
      labels: [P] integer classes, numbered in ascending order.
      num_clients: the number M of clients.
      p: heterogeneity in [0, 1]; 0 is a random partition, 1 gives every client its
        class.
      seed: the seed of the permutation.

    Returns:
      The partition.

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
    # At p = 1, the clients with the same home class share all of its examples.
    sharing = [range(c % num_clients, num_clients, len(rows)) for c in range(len(rows))]
    shares = [_even(len(x), len(n)) for x, n in zip(rows, sharing, strict=True)]
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
    """Returns a partition whose shares of each class are drawn from Dirichlet(alpha).

    Every example has a client. If a client gets no example, it takes one example of the
    client that is then largest. So the draw is never repeated.

    Args:
      labels: [P] integer classes.
      num_clients: the number M of clients.
      alpha: the concentration, above 0; a small alpha is heterogeneous, a large alpha
        is even.
      seed: the seed of the shares and of the order within a class.

    Returns:
      The partition.

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
        ends = np.cumsum(rng.dirichlet(np.full(num_clients, alpha)))
        shares.append(np.split(indices, (ends[:-1] * len(indices)).astype(int)))
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
    """Adds further examples to the clients, at random and evenly.

    Use it for examples without labels, which no rule of heterogeneity can partition. If
    the examples do not divide evenly, the first clients get one more.

    Args:
      partition: a partition by any rule.
      rows: [E] indices into the pool that are not in the partition.
      seed: the seed of the order.

    Returns:
      The partition with the added examples behind each client's other examples.

    Examples:
      >>> clients = (np.array([0]), np.array([1]))
      >>> partition = Partition(clients, left_out=np.array([], int))
      >>> partition = add_evenly(partition, np.array([2, 3, 4]), seed=0)
      >>> [len(rows) for rows in partition.clients]
      [3, 2]
    """
    if len(rows) == 0:
        return partition
    permuted = np.random.default_rng(seed).permutation(rows)
    shares = np.array_split(permuted, len(partition.clients))
    clients = map(np.concatenate, zip(partition.clients, shares, strict=True))
    return partition._replace(clients=tuple(clients))


def subsample_clients(
    partition: Partition, labels: Int[np.ndarray, " P"], size: int, *, seed: int
) -> Partition:
    """Returns the partition with at most `size` examples per client.

    This is FDSC's batch size b: one fixed subset of each client's examples. The classes
    stay in proportion, see `proportional_counts`. If `size` is at least the client's
    number of classes, every class keeps at least one example; the largest class gives
    it up. A client with at most `size` examples keeps all of them. The removed examples
    have no client.

    Args:
      partition: a partition by any rule.
      labels: [P] classes of all examples of the pool.
      size: the maximum number of examples per client, at least 1.
      seed: the seed of the draws. With one seed, a smaller subset of a class is part of
        a larger one.

    Returns:
      The partition.

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
        selected = np.zeros(len(rows), bool)
        for indices, quota in zip(_by_class(labels[rows]), quotas, strict=True):
            selected[rng.permutation(indices)[:quota]] = True
        clients.append(rows[selected])
    all_indices = np.concatenate([*partition.clients, partition.left_out])
    left_out = np.setdiff1d(all_indices, np.concatenate(clients))
    return partition._replace(clients=tuple(clients), left_out=left_out)


def proportional_counts(counts: np.ndarray, size: int) -> np.ndarray:
    """Splits `size` in proportion to the counts.

    Each count gets its share, rounded down. The rest goes to the largest remainders,
    one each; the first count wins a tie.

    Args:
      counts: [C] non-negative counts.
      size: the total to split.

    Returns:
      [C] whole numbers that sum to `size`.
    """
    quotas, remainders = np.divmod(counts * size, counts.sum())
    largest = np.argsort(-remainders, kind="stable")
    quotas[largest[: size - quotas.sum()]] += 1
    return quotas


def failures(
    num_clients: int, rate: float, *, seed: int, num_rounds: int = 1
) -> Bool[np.ndarray, "R M"]:
    """Returns the participating clients of each round; the other clients fail.

    In each round, round(rate M) clients fail. The last row holds for all further
    rounds, see `Federation.present`. So with one row, the same clients fail for the
    whole run, as in the CCFC and SDA-FDC papers. With one seed, the clients that fail
    at a low rate also fail at a higher rate in the same round.

    Args:
      num_clients: the number M of clients.
      rate: the share of clients that fail, in [0, 1].
      seed: the seed of the draws. The first rounds do not depend on `num_rounds`.
      num_rounds: the number R of rounds.

    Returns:
      bool [R, M], True for participating clients.

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
            f"failure_rate {rate} makes all {num_clients} clients fail; give a smaller "
            "rate, so that at least 1 client participates"
        )
    rng = np.random.default_rng(seed)
    present = np.ones((num_rounds, num_clients), bool)
    for row in present:
        row[rng.permutation(num_clients)[:num_absent]] = False
    return present


# --- Partition by class

TOLERANCE = 0.005
"""The relative tolerance within which a share of classes counts as 1 / M."""


def class_blocks(
    labels: Int[np.ndarray, " P"], num_clients: int, class_share: float, *, seed: int
) -> Partition:
    """Returns a partition in which each client has consecutive classes, evenly shared.

    Let there be K classes in ascending order, and start_i = floor(i K / M). Client i
    has the classes from start_i on, cyclically. It has start_{i+1} - start_i classes,
    and at least max(1, round(class_share K)), halves to even.

    A share of 1 is FedMCC's IID case: all clients have equally many examples of every
    class. A share of 1 / M is its non-IID case with disjoint blocks; two clients have
    the classes 0 to 4 and 5 to 9 of 10. In this case nothing is rounded up, so the
    blocks are disjoint for any K >= M. For shares in between, neighbouring blocks
    overlap. Every example has a client.

    Args:
      labels: [P] integer classes.
      num_clients: the number M of clients; if it is above K, clients share a class.
      class_share: the share of classes per client, in [1 / M, 1]. A value within 0.5 %
        of 1 / M counts as 1 / M, so three digits are enough.
      seed: the seed of the order within a class.

    Returns:
      The partition.

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
    clients_of_class: list[list[int]] = [[] for _ in classes]
    for client, (start, end) in enumerate(pairwise(starts)):
        for c in range(start, start + max(1, least, end - start)):
            clients_of_class[c % len(classes)].append(client)

    rng = np.random.default_rng(seed)
    clients = _split(labels, clients_of_class, num_clients, rng)
    _check_sizes(clients, len(labels), f"class_share {class_share}")
    return Partition(clients, np.empty(0, np.int64))


def drawn_classes(
    labels: Int[np.ndarray, " P"],
    num_clients: int,
    classes_per_client: int,
    *,
    seed: int,
) -> Partition:
    """Returns a partition in which each client has q random classes.

    FDSC only says that samples of q categories were "randomly selected" for each
    client, about P / M samples. Here one client after another draws q different classes
    among those with the fewest clients so far; ties are random. So the numbers of
    clients of two classes differ by at most one, and every class has a client if q M >=
    K. Classes without a client are left out.

    The examples of a class are split evenly over its clients. If q = K, all clients
    have equally many examples of each class, up to one.

    Args:
      labels: [P] integer classes.
      num_clients: the number M of clients.
      classes_per_client: the number q of classes per client, in 1..K.
      seed: the seed of the classes and of the order within a class.

    Returns:
      A partition in which each client has at least one example of each of its q
      classes.

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
    clients_of_class: list[list[int]] = [[] for _ in classes]
    for client in range(num_clients):
        shuffled = rng.permutation(len(classes))
        fewest = sorted(shuffled, key=lambda c: len(clients_of_class[c]))
        for c in fewest[:classes_per_client]:
            clients_of_class[c].append(client)
    level = f"classes_per_client {classes_per_client} with num_clients {num_clients}"
    for c, count, clients in zip(classes, counts, clients_of_class, strict=True):
        _check_shares(level, int(c), int(count), len(clients))
    clients = _split(labels, clients_of_class, num_clients, rng)
    left_out = np.setdiff1d(np.arange(len(labels)), np.concatenate(clients))
    return Partition(clients, left_out)


def _split(
    labels: np.ndarray,
    clients_of_class: Sequence[Sequence[int]],
    num_clients: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, ...]:
    """Splits the examples of each class over its clients.

    The examples of a class are permuted first. If they do not divide evenly, the
    clients with the fewest examples so far get one more; the first client wins a tie.

    Args:
      labels: [P] integer classes.
      clients_of_class: the clients of each class.
      num_clients: the number of clients.
      rng: the generator of the permutations.

    Returns:
      The indices of the examples of each client.
    """
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    sizes = [0] * num_clients
    for indices, clients in zip(_by_class(labels), clients_of_class, strict=True):
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
"""Up to this number of clients, clients are not grouped, because groups would be
uneven."""


def natural(clients: Int[np.ndarray, " P"]) -> Partition:
    """Returns the natural partition, in which the data itself defines the clients.

    Clients are sorted by size, the largest first; the smaller number wins a tie. More
    than `FEW` clients form eight groups of similar sizes: the sorted clients are
    assigned to the groups in turn.

    Args:
      clients: [P] the client of each example; a negative number means no client.

    Returns:
      The partition.

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
    """Returns the ranks of the clients, group by group.

    If they do not divide evenly, the last group has fewer of the smallest clients.
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
    """Removes small clients, then selects a number of the others at random.

    Args:
      clients: [P] the client of each example; a negative number means no client.
      most: the maximum number of clients; None keeps all.
      least_size: the minimum number of examples of a client.
      seed: the seed of the random selection.

    Returns:
      The client of each example, -1 for examples of removed clients; and a line with
      the numbers of selected and removed clients.

    Raises:
      ValueError: `most` or `least_size` is below 1, or no client is large enough.

    Examples:
      >>> clients, note = select_clients(np.array([7, 3, 3, -1, 9]), least_size=2)
      >>> print(clients)
      [-1  3  3 -1 -1]
      >>> print(note)
      natural partition: 1 of 3 clients, 2 examples per client; 3 examples unassigned
    """
    for flag, number in (("most", most), ("least_size", least_size)):
        if number is not None and number < 1:
            raise ValueError(f"{flag} must be at least 1, got {number}")
    names, counts = np.unique(clients[clients >= 0], return_counts=True)
    selected = np.flatnonzero(counts >= least_size)
    if len(selected) == 0:
        raise ValueError(
            f"least_size must be at most {counts.max(initial=0)}, the size of "
            f"the largest client, got {least_size}"
        )
    if most is not None and most < len(selected):
        rng = np.random.default_rng(seed)
        selected = np.sort(rng.choice(selected, most, replace=False))
    sizes = counts[selected]
    result = np.where(np.isin(clients, names[selected]), clients, -1)
    size_range = " to ".join(map(str, sorted({int(sizes.min()), int(sizes.max())})))
    note = (
        f"natural partition: {len(selected)} of {len(names)} clients, {size_range} "
        "examples per client"
    )
    if num_unassigned := int((result < 0).sum()):
        note += f"; {counted(num_unassigned, 'example')} unassigned"
    return result, note


# --- Partition by range

MAX_DRAWS = 100
"""The number of draws after which a client may have the same classes as another
client."""


def class_ranges(
    labels: Int[np.ndarray, " P"],
    num_clients: int,
    overlap: float,
    *,
    class_range: tuple[int, int],
    samples_per_class: int,
    seed: int,
) -> Partition:
    """Returns FedCRef's partition: random classes per client, S examples of each class.

    One client after another draws its number of classes uniformly from LOW..HIGH, then
    this many classes without replacement. The draw is repeated while another client has
    exactly the same classes, at most 100 times. So if there are few sets of classes,
    small numbers of classes are a little rarer, because they have the fewest sets.

    Each of the n clients of a class gets q = min(S, floor(examples of the class / n))
    examples of it, drawn without replacement. Then each of them gives its first

        floor(O q / (n + O - n O))

    examples to a common pool, which all of them get in full. So they share the fraction
    O of each client's final examples of the class, up to rounding down. For n = 1
    nothing changes. The classes and the q examples do not depend on O.

    Args:
      labels: [P] integer classes.
      num_clients: the number M of clients.
      overlap: the shared fraction O, in [0, 1).
      class_range: the minimum and maximum number of classes per client (LOW, HIGH).
      samples_per_class: the maximum number S of examples per client and class.
      seed: the seed of the classes and of the examples.

    Returns:
      The partition. The examples of a client are in the order of the classes; of each
      class the client's own q examples come before the shared ones. `local_clusters` is
      each client's number of classes. Examples without a client are left out.

    Raises:
      ValueError: O is not in [0, 1), LOW..HIGH is not within 1..K, S is below 1, M is
        not in 1..P, or a class has fewer examples than clients.

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
            f"class_range must be two numbers in 1..{len(classes)}, the number of "
            f"classes, the smaller one first, got {low} {high}"
        )
    if samples_per_class < 1:
        raise ValueError(
            f"samples_per_class must be at least 1, got {samples_per_class}"
        )
    rng = np.random.default_rng(seed)
    class_sets = _sets_of_classes(len(classes), num_clients, low, high, rng)
    level = f"class_range {low} {high} with num_clients {num_clients}"
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for number, indices in enumerate(_by_class(labels)):
        indices = rng.permutation(indices)
        members = [i for i, class_set in enumerate(class_sets) if number in class_set]
        if not members:
            continue
        _check_shares(level, int(classes[number]), len(indices), len(members))
        size = min(samples_per_class, len(indices) // len(members))
        exclusive = indices[: size * len(members)].reshape(len(members), size)
        common = exclusive[:, : _num_shared(size, len(members), overlap)]
        for row, client in enumerate(members):
            shared = np.delete(common, row, axis=0).ravel()
            parts[client].append(np.concatenate([exclusive[row], shared]))
    clients = tuple(map(np.concatenate, parts))
    left_out = np.setdiff1d(np.arange(len(labels)), np.concatenate(clients))
    return Partition(clients, left_out, tuple(map(len, class_sets)))


def examples_per_class(size: int, num_clients: int, overlap: float) -> int:
    """Returns each client's final number of examples of a class in `class_ranges`.

    Args:
      size: the number q of examples of each client without the common pool.
      num_clients: the number n of clients of the class, at least 1.
      overlap: the shared fraction O, in [0, 1).

    Returns:
      The number of examples.

    Raises:
      ValueError: O is not in [0, 1).

    Examples:
      >>> examples_per_class(100, 7, 0.0), examples_per_class(100, 7, 0.5)
      (100, 172)
    """
    return size + (num_clients - 1) * _num_shared(size, num_clients, overlap)


def _sets_of_classes(
    num_classes: int, num_clients: int, low: int, high: int, rng: np.random.Generator
) -> list[frozenset[int]]:
    """Draws the classes of each client; see `class_ranges`."""
    class_sets: list[frozenset[int]] = []
    for _ in range(num_clients):
        for _ in range(MAX_DRAWS):
            count = rng.integers(low, high + 1)
            class_set = frozenset(rng.permutation(num_classes)[:count].tolist())
            if class_set not in class_sets:
                break
        class_sets.append(class_set)
    return class_sets


def _num_shared(size: int, num_clients: int, overlap: float) -> int:
    """Returns the number of examples that a client gives to the common pool."""
    if not 0 <= overlap < 1:
        raise ValueError(f"overlap must lie in [0, 1), got {overlap}")
    number = overlap * size / (num_clients + overlap - num_clients * overlap)
    # A whole number in decimals may be slightly smaller in binary.
    return math.floor(number + 1e-9)


RULES = {
    "p": heterogeneous,
    "alpha": dirichlet,
    "class_share": class_blocks,
    "classes_per_client": drawn_classes,
    "overlap": class_ranges,
    "natural": lambda clients, *_, seed: natural(clients),
}
"""The partition rules, by the name of their setting. A rule maps (labels, number of
clients, value of the setting, seed) to a partition. `class_ranges` has further
settings. `natural` takes the client of each example in place of the labels."""
