"""Who holds what, and who answers: partitions and failures as data.

Partitions are made in NumPy, follow from their seed alone and always terminate.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Shaped

from fcjax.data.host import HostPool
from fcjax.types import Federation

Pool = Shaped[Array, "P *F"] | Shaped[np.ndarray, "P *F"] | HostPool


class Partition(NamedTuple):
    """Rows of the pool, each of them held at most once."""

    clients: tuple[np.ndarray, ...]
    """The rows [n_i] of each client."""
    left_out: np.ndarray
    """The rows [D] that no client holds, ascending."""


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
      Yan et al., CCFC: Bridging Federated Clustering and Contrastive Learning, 2024.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"--p must lie in [0, 1], got {p}")
    _check_num_clients(num_clients, len(labels))
    classes = np.unique(labels)
    rows = [np.flatnonzero(labels == c) for c in classes]
    size = len(labels) // num_clients
    head, tail = round(size * p), round(size * (1 - p))

    starts = [0] * len(classes)
    held: list[list[np.ndarray]] = []
    for client in range(num_clients):
        homes = range(client % len(classes), len(classes), num_clients)
        if p == 1:
            quotas = [
                _even(
                    len(rows[c]), len(range(c % num_clients, num_clients, len(rows)))
                )[client // len(rows)]
                for c in homes
            ]
        else:
            quotas = _even(head, len(homes))
        held.append([])
        for c, quota in zip(homes, quotas, strict=True):
            held[client].append(rows[c][starts[c] : starts[c] + quota])
            starts[c] += len(held[client][-1])

    rest = np.concatenate([r[start:] for r, start in zip(rows, starts, strict=True)])
    rest = np.random.default_rng(seed).permutation(rest)
    start = 0
    for parts in held if p < 1 else []:
        block = tail + head - sum(map(len, parts))
        parts.append(rest[start : start + block])
        start += block
    clients = tuple(map(np.concatenate, held))
    for client, own in enumerate(clients):
        if len(own) == 0:
            raise ValueError(
                f"--clients {num_clients} leaves client {client} with no examples at "
                f"--p {p}; give fewer clients or more examples than {len(labels)}"
            )
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
    """
    if not 0 < alpha < np.inf:
        raise ValueError(f"--alpha must be positive and finite, got {alpha}")
    _check_num_clients(num_clients, len(labels))
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
    """
    if len(rows) == 0:
        return partition
    drawn = np.random.default_rng(seed).permutation(rows)
    shares = np.array_split(drawn, len(partition.clients))
    clients = map(np.concatenate, zip(partition.clients, shares, strict=True))
    return partition._replace(clients=tuple(clients))


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
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"--failure-rate must lie in [0, 1], got {rate}")
    num_absent = round(rate * num_clients)
    if num_absent == num_clients:
        raise ValueError(
            f"--failure-rate {rate} fails all {num_clients} clients, one must be left"
        )
    rng = np.random.default_rng(seed)
    present = np.ones((num_rounds, num_clients), bool)
    for row in present:
        row[rng.permutation(num_clients)[:num_absent]] = False
    return present


def federate(
    pool: Pool,
    partitions: Sequence[Partition],
    present: Sequence[Bool[np.ndarray, "R M"]] | Bool[np.ndarray, "G R M"],
    *,
    num_clusters: int,
    num_slots: int | None = None,
) -> Federation:
    """Returns a grid of G partitions of one pool as a `Federation`.

    Args:
      pool: all examples; the type is kept.
      partitions: one a run, all with the same number of clients.
      present: who answers in each run, as `failures` returns it.
      num_clusters: how many clusters every client looks for.
      num_slots: N, at least the largest client; by default just that.

    Returns:
      indices and mask [G, M, N], where a shorter client repeats its own rows
      cyclically; present [G, R, M]; local_clusters
      [G, M].

    Raises:
      ValueError: the partitions differ in their number of clients, or `present` does
        not fit them.
    """
    if len({len(partition.clients) for partition in partitions}) != 1:
        raise ValueError(
            "all partitions of a grid must have the same --clients, got "
            f"{[len(partition.clients) for partition in partitions]}"
        )
    grid = [part.clients for part in partitions]
    return _stack(pool, grid, present, num_clusters, num_slots)


def federate_left_out(
    pool: Pool,
    partitions: Sequence[Partition],
    *,
    num_clusters: int,
    num_slots: int | None = None,
) -> Federation | None:
    """Returns the rows that no client holds as one client, so they can be scored.

    Returns:
      indices and mask [G, 1, D], where D is `num_slots` or the largest number of rows
      that a run leaves out; a shorter run repeats its own rows, a run without any has
      row 0, always under a False mask. None where D is 0.
    """
    left_out = [(partition.left_out,) for partition in partitions]
    if num_slots is None:
        num_slots = max(len(rows) for (rows,) in left_out)
    if num_slots == 0:
        return None
    present = np.ones((len(left_out), 1, 1), bool)
    return _stack(pool, left_out, present, num_clusters, num_slots)


def _check_num_clients(num_clients: int, num_examples: int) -> None:
    if not 1 <= num_clients <= num_examples:
        raise ValueError(
            f"--clients must lie in 1..{num_examples}, the number of examples, "
            f"got {num_clients}"
        )


def _even(total: int, parts: int) -> list[int]:
    return [total // parts + (part < total % parts) for part in range(parts)]


def _stack(
    pool: Pool,
    grid: Sequence[tuple[np.ndarray, ...]],
    present: Sequence[np.ndarray] | np.ndarray,
    num_clusters: int,
    num_slots: int | None,
) -> Federation:
    sizes = np.array([[len(rows) for rows in clients] for clients in grid])
    width = sizes.max() if num_slots is None else num_slots
    if width < sizes.max():
        raise ValueError(f"{width} slots are too few for {sizes.max()} rows")
    # np.resize repeats cyclically, and makes row 0 of nothing.
    indices = np.stack(
        [np.stack([np.resize(r, width) for r in clients]) for clients in grid]
    )
    if indices.max() >= pool.shape[0]:
        raise ValueError(
            f"row {indices.max()} of a partition is not in the pool of {pool.shape[0]}"
        )
    if len({rounds.shape for rounds in present}) != 1:
        raise ValueError("all runs of a grid must have the same rounds in `present`")
    here = np.stack(list(present))
    if (len(here), here.shape[-1]) != sizes.shape:
        raise ValueError(
            f"`present` is for {len(here)} runs of {here.shape[-1]} clients, the "
            f"partitions are {sizes.shape[0]} runs of {sizes.shape[1]} clients"
        )
    return Federation(
        pool=jnp.asarray(pool) if isinstance(pool, np.ndarray) else pool,  # pyright: ignore[reportArgumentType]
        indices=jnp.asarray(indices, jnp.int32),
        mask=jnp.asarray(np.arange(width) < sizes[..., None]),
        present=jnp.asarray(here),
        local_clusters=jnp.full(sizes.shape, num_clusters, jnp.int32),
    )
