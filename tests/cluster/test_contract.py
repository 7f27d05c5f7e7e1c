"""What holds for every clustering: masks, jit, vmap, traced scalars, and which numbers
are refused.

Here a function is compared with itself; what it finds, the file of its name says.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import cluster

COUNT, ROOM = 24, 40
"""How many rows count, of how many."""


def spectral_clustering(key, _, affinity, **mask):
    """Which rows share a cluster, whatever its number."""
    clusters = cluster.spectral_clustering(key, affinity, 3, **mask)
    return [clusters[:, None] == clusters[None]]


def spectral_embedding(_, __, affinity, **mask):
    """The products of its rows, which are free of signs."""
    rows = cluster.spectral_embedding(affinity, 3, **mask)
    return [rows @ rows.T]


def subspace_affinity(dimension, unit_diagonal, s, c, **mask):
    options = {"dimension": dimension, "unit_diagonal": unit_diagonal, **mask}
    return [cluster.subspace_affinity(c, 3, keep=s - 1, power=2 * s, **options)]


CLUSTERINGS = {
    "discretize": (
        lambda key, _, x, **mask: [cluster.discretize(key, x, **mask)],
        "axes -> each0",
    ),
    "fuzzy_cmeans": (
        lambda key, s, x, **mask: cluster.fuzzy_cmeans(
            key, x, 3, fuzzifier=s, num_init=2, tolerance=1e-6, **mask
        ),
        "rows -> all each each all",
    ),
    "fuzzy_lloyd": (
        lambda _, s, x, c, **mask: cluster.fuzzy_lloyd(
            x, c, fuzzifier=s, tolerance=1e-6, **mask
        ),
        "rows centroids -> all each each all",
    ),
    "kmeans": (
        # One seeding, so that nothing hides a different draw.
        lambda key, _, x, **mask: cluster.kmeans(key, x, 4, num_init=1, **mask),
        "rows -> all each all",
    ),
    "lloyd": (
        lambda _, __, x, c, **mask: cluster.lloyd(x, c, **mask),
        "rows centroids -> all each all",
    ),
    "neighbor_graph": (
        lambda _, __, x, **mask: [cluster.neighbor_graph(x, 4, **mask)],
        "rows -> pairs0",
    ),
    "running_means": (
        lambda _, s, c, x, labels, **mask: cluster.running_means(
            c, s * jnp.arange(4.0), x, labels, **mask
        ),
        "centroids rows labels -> all all",
    ),
    "silhouette": (
        lambda _, __, *x, **mask: [cluster.silhouette(*x, num_clusters=4, **mask)],
        "rows labels -> all",
    ),
    "spectral_clustering": (spectral_clustering, "affinity -> pairs"),
    "spectral_embedding": (spectral_embedding, "affinity -> pairs0"),
    "subspace_affinity": (
        lambda _, *given, **mask: subspace_affinity(2, False, *given, **mask),
        "coefficients -> pairs0",
    ),
    # 9 * 3 + 1 singular values are more than there are of rows that count.
    "subspace_affinity of all singular values": (
        lambda _, *given, **mask: subspace_affinity(9, True, *given, **mask),
        "coefficients -> pairs0",
    ),
}
"""Functions of a key, a scalar and arrays of some kinds; what they give is each row's,
of pairs of rows or of them all; 0 where it is zero if masked."""


def draw(kinds, rng):
    """Of three blobs, or blocks with weak edges in between, in a random order."""
    labels = rng.permutation(COUNT) % 3
    within = labels[:, None] == labels[None]
    noise = rng.random((COUNT, COUNT))
    kept = {
        "rows": 4 * np.eye(3, 5)[labels] + rng.normal(size=(COUNT, 5)),
        "labels": rng.integers(0, 3, COUNT),
        "centroids": rng.normal(size=(4, 5)),
        "affinity": (within + 0.05) * (noise + noise.T),
        "coefficients": within * noise + 0.3 * rng.normal(size=noise.shape),
        "axes": np.linalg.eigh(within + noise + noise.T)[1][:, -3:],
    }
    return [kept[kind] for kind in kinds]


def padded(array, mask, spoiler):
    if len(array) != COUNT:
        return array
    wide = np.full([ROOM if n == COUNT else n for n in array.shape], spoiler)
    if array.dtype == int:
        # Of a cluster that others have, and of one that nobody has.
        wide = np.arange(ROOM) % 2 * 2 + 1
    wide[np.ix_(mask, mask) if array.shape == (COUNT, COUNT) else mask] = array
    return wide


@pytest.mark.parametrize("name", CLUSTERINGS)
def test_masked_rows_may_hold_anything_client_by_client(name):
    """Under jit and vmap a client has what its rows that count have by themselves, by a
    scalar of its own; the last one has no row at all."""
    function, kinds = CLUSTERINGS[name]
    takes, gives = (side.split() for side in kinds.split("->"))
    rng = np.random.default_rng(0)
    spoilers = [np.nan, np.inf, 1e30, 1e6] * 2 + [1e6]
    keys = jax.random.split(jax.random.key(0), len(spoilers))
    scalars = jnp.tile(jnp.array([1.1, 1.5, 2.0]), 3)
    masks = np.stack([rng.permutation(ROOM) < COUNT for _ in spoilers])
    clients = [draw(takes, rng) for _ in spoilers]
    given = [
        np.stack([padded(*one) for one in zip(arrays, masks, spoilers, strict=True)])
        for arrays in zip(*clients, strict=True)
    ]
    masks[-1] = False
    together = jax.jit(
        jax.vmap(lambda key, s, mask, *arrays: function(key, s, *arrays, mask=mask))
    )(keys, scalars, masks, *map(jnp.asarray, given))
    alone = jax.jit(function)
    rtol = 1e-5 if name in ("running_means", "silhouette") else 1e-4
    atol = 5e-4 if "coefficients" in takes else rtol
    for client, arrays in enumerate(clients[:-1]):
        expected = alone(keys[client], scalars[client], *map(jnp.asarray, arrays))
        mask = masks[client]
        counted = {"all": ..., "each": mask, "pairs": np.ix_(mask, mask)}
        for kind, results, own in zip(gives, together, expected, strict=True):
            found, places = np.array(results[client], float), counted[kind.rstrip("0")]
            np.testing.assert_allclose(found[places], own, rtol, atol)
            found[places] = 0
            assert not (kind.endswith("0") and found.any())
    for kind, results in zip(gives, together, strict=True):
        assert np.isfinite(results[-1]).all()
        assert not (kind.endswith("0") and results[-1].any())


X = jnp.ones((5, 5))
FIVE = "5, the number of examples"
REFUSED = [
    (lambda key, n: cluster.kmeans(key, X, n), (0, 6), FIVE),
    (lambda key, n: cluster.kmeans(key, X, 3, num_used=n), (0, 4), "num_clusters 3"),
    (lambda key, n: cluster.fuzzy_cmeans(key, X, n), (0, 6), FIVE),
    (lambda key, n: cluster.spectral_embedding(X, n), (0, 6), FIVE),
    (lambda key, n: cluster.spectral_clustering(key, X, n), (0, 6), FIVE),
    (lambda key, n: cluster.count_clusters(key, X, most=n), (1, 6), f"2 and {FIVE}"),
    (lambda key, n: cluster.neighbor_graph(X, n), (0, -1), "at least 1"),
]


@pytest.mark.parametrize(
    ("function", "number", "range_"),
    [(f, number, range_) for f, numbers, range_ in REFUSED for number in numbers],
)
def test_a_number_out_of_range_is_refused(key, function, number, range_):
    with pytest.raises(ValueError, match=rf"{range_}, got {number}$"):
        function(key, number)
