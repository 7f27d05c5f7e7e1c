"""Spectral clustering, neighbour graphs, connected components and affinities.

All functions work under `jax.jit` and `jax.vmap`.

References:
    FDSC, Eq. 7, for the neighbour graph A of the raw examples.
    Ng, Jordan and Weiss, On spectral clustering: analysis and an algorithm, NIPS 2001.
    Yu and Shi, Multiclass spectral clustering, ICCV 2003.
    Ji, Zhang, Li, Salzmann and Reid, `Deep Subspace Clustering Networks
    <https://arxiv.org/abs/1709.02508>`_ (DSC-Net), NeurIPS 2017; code
    panji1990/Deep-subspace-clustering-networks.
    Vidal and Favaro, Low rank subspace clustering (LRSC), 2014.
    Haeffele, You and Vidal, `A Critique of Self-Expressive Deep Subspace Clustering
    <https://arxiv.org/abs/2010.03697>`_, ICLR 2021.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from fcjax.cluster.kmeans import check_num_clusters, kmeans
from fcjax.shapes import checked
from fcjax.types import PRNGKey, Scalar

# --- Neighbors


@checked
def neighbor_graph(
    x: Float[Array, "N D"],
    num_neighbors: int,
    *,
    mask: Bool[Array, "N"] | None = None,
) -> Bool[Array, "N N"]:
    """Returns the graph that joins each example with its nearest neighbours.

    Distances are Euclidean. The smaller index wins a tie. Distances are sums of squared
    differences, so repeated examples are at exactly equal distances.

    Args:
        x: the examples [N, D]; computed in float32.
        num_neighbors: the number of neighbours of each example. If fewer other examples
            exist, all of them are neighbours.
        mask: bool [N], False for examples without any edge; None uses all examples.

    Returns:
        bool [N, N], symmetric: True if either example is a neighbour of the other. The
        diagonal is False.

    Raises:
        ValueError: num_neighbors is below 1.

    Examples:
        >>> print(neighbor_graph(jnp.array([[0.0], [1.0], [5.0]]), 1).astype(int))
        [[0 1 0]
         [1 0 1]
         [0 1 0]]
    """
    if num_neighbors < 1:
        raise ValueError(f"num_neighbors must be at least 1, got {num_neighbors}")
    if mask is None:
        mask = jnp.ones(len(x), bool)
    return _graph(x, mask, min(num_neighbors, len(x) - 1))


@partial(jax.jit, static_argnames="num_neighbors")
def _graph(
    x: Float[Array, "N D"], mask: Bool[Array, "N"], num_neighbors: int
) -> Bool[Array, "N N"]:
    samples = jnp.arange(len(x))
    x = jnp.where(mask[:, None], x, 0).astype(jnp.float32)

    def choose(sample):
        # One example at a time, because all differences at once would be N x N x D.
        distances = jnp.sum((x - x[sample][None]) ** 2, axis=1)
        is_candidate = mask & (samples != sample)
        _, nearest = jax.lax.top_k(
            -jnp.where(is_candidate, distances, jnp.inf), num_neighbors
        )
        return jnp.zeros(len(x), bool).at[nearest].set(True) & is_candidate

    neighbors = jax.lax.map(choose, samples) & mask[:, None]
    return neighbors | neighbors.T


# --- Components


@checked
def connected_components(edges: Bool[Array, "V V"]) -> Int[Array, "V"]:
    """Numbers the connected components of a graph.

    Labels start as the indices of the nodes. Each pass gives every node the smallest
    label among its neighbours, then the label of that label. The passes stop when no
    label changes. There are at most as many passes as edges in the longest shortest
    path.

    Args:
        edges: bool [V, V], symmetric; the diagonal is ignored.

    Returns:
        int32 [V], the smallest index in the component of each node. Equal numbers are
        one component.

    Examples:
        >>> edges = jnp.zeros((4, 4), bool).at[1, 3].set(True)
        >>> print(connected_components(edges | edges.T))
        [0 1 2 1]
    """
    nodes = jnp.arange(len(edges), dtype=jnp.int32)

    def spread(carry):
        labels, _ = carry
        of_neighbors = jnp.where(edges, labels[None], labels[:, None]).min(axis=1)
        least = jnp.minimum(labels, of_neighbors)
        least = jnp.minimum(least, least[least])
        return least, jnp.any(least != labels)

    labels, _ = lax.while_loop(lambda carry: carry[1], spread, (nodes, jnp.array(True)))
    return labels


# --- Spectral

Assign = Literal["kmeans", "discretize"]
"""How the spectral embedding becomes clusters; scikit-learn uses the same names."""


@checked
def spectral_embedding(
    affinity: Float[Array, "N N"],
    num_clusters: int,
    *,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, "N K"]:
    """Returns the leading eigenvectors of D^-1/2 A D^-1/2, with rows of unit length.

    As in Ng, Jordan and Weiss and in scikit-learn, the diagonal of the affinity A is
    taken as zero. So neither the degrees D nor the matrix contain self-similarities.

    Args:
        affinity: the affinity A [N, N], symmetric and non-negative; computed in
            float32.
        num_clusters: the number K of eigenvectors, at most N.
        mask: bool [N], False for examples to ignore, whose affinities may have any
            values; None uses all examples.

    Returns:
        The eigenvectors as columns [N, K], the largest eigenvalue first. A row is zero
        if its example is masked, has no affinity, or has no part in these eigenvectors.
        If fewer than K examples remain, the columns beyond them are zero. Signs are
        arbitrary. The basis of equal eigenvalues is arbitrary too, for example with
        several connected components.

    Raises:
        ValueError: num_clusters is below 1 or above N.

    Examples:
        >>> affinity = jnp.kron(jnp.eye(2), jnp.ones((2, 2)))  # two pairs
        >>> rows = spectral_embedding(affinity, 2)
        >>> print(jnp.abs(rows @ rows.T).round(2)[0])  # does not depend on the basis
        [1. 1. 0. 0.]
    """
    check_num_clusters(num_clusters, len(affinity))
    if mask is None:
        mask = jnp.ones(len(affinity), bool)
    return _embedding(affinity, mask, num_clusters)


@checked
def spectral_clustering(
    key: PRNGKey,
    affinity: Float[Array, "N N"],
    num_clusters: int,
    *,
    mask: Bool[Array, "N"] | None = None,
    assign_labels: Assign = "kmeans",
    num_init: int = 10,
) -> Int[Array, "N"]:
    """Clusters examples by their spectral embedding.

    With k-means this is the algorithm of Ng, Jordan and Weiss, which FDSC cites. The
    code of DSC-Net uses the discretisation of Yu and Shi instead. scikit-learn scales
    rows to unit length only for the discretisation.

    Args:
        key: the random key of k-means or of the discretisation.
        affinity: the affinity [N, N], symmetric and non-negative.
        num_clusters: the number K of clusters, at most N.
        mask: bool [N], False for examples to ignore; None uses all examples.
        assign_labels: "kmeans" or "discretize"; see `discretize`.
        num_init: the number of seedings of k-means, or of random starts of
            `discretize`.

    Returns:
        int32 [N], in [0, K). The clusters of masked examples are meaningless.

    Raises:
        ValueError: num_clusters is below 1 or above N, or assign_labels is unknown.

    Examples:
        >>> affinity = jnp.kron(jnp.eye(2), jnp.ones((2, 2)))  # two pairs
        >>> clusters = spectral_clustering(jax.random.key(0), affinity, 2)
        >>> print(clusters == clusters[0])
        [ True  True False False]
    """
    if assign_labels not in ("kmeans", "discretize"):
        raise ValueError(
            f"assign_labels must be 'kmeans' or 'discretize', got {assign_labels!r}"
        )
    embedding = spectral_embedding(affinity, num_clusters, mask=mask)
    if assign_labels == "discretize":
        return discretize(key, embedding, mask=mask, num_init=num_init)
    result = kmeans(key, embedding, num_clusters, mask=mask, num_init=num_init)
    return result.assignments


@checked
def discretize(
    key: PRNGKey,
    embedding: Float[Array, "N K"],
    *,
    mask: Bool[Array, "N"] | None = None,
    num_init: int = 10,
    num_iters: int = 20,
) -> Int[Array, "N"]:
    """Turns a spectral embedding into clusters by the best rotation.

    This is the algorithm of Yu and Shi. It alternates two steps until no cluster
    changes. First, the cluster of a row is the largest entry of the rotated row. Then
    the rotation becomes the one that brings the rows closest to their clusters. The
    first rotation is made of a random row and of rows that are as orthogonal as
    possible to it and to each other.

    scikit-learn's `discretize` has one start and first scales all columns to the same
    length. `spectral_embedding` needs no such scaling, because its eigenvectors have
    the same length before the rows are scaled.

    Args:
        key: the random key of the starts.
        embedding: the eigenvectors as columns [N, K]; rows are scaled to unit length
            and computed in float32.
        mask: bool [N], False for rows to ignore, which may have any values; None uses
            all rows.
        num_init: the number of starts; the clusters closest to the rows are returned.
        num_iters: the maximum number of iterations per start.

    Returns:
        int32 [N], in [0, K). Masked rows and rows of zeros are in cluster 0, which is
        meaningless for them. Clusters may be empty.

    Examples:
        >>> turned = jnp.array([[0.6, 0.8], [0.8, -0.6]])
        >>> rows = turned[jnp.array([0, 1, 1])]
        >>> clusters = discretize(jax.random.key(0), rows)
        >>> print(clusters == clusters[0])
        [ True False False]
    """
    if mask is None:
        mask = jnp.ones(len(embedding), bool)
    return _discretize(key, embedding, mask, num_iters, num_init)


@partial(jax.jit, static_argnames="num_init")
def _discretize(
    key: PRNGKey,
    embedding: Float[Array, "N K"],
    mask: Bool[Array, "N"],
    num_iters: Int[Array, ""],
    num_init: int,
) -> Int[Array, "N"]:
    num_clusters = embedding.shape[1]
    rows = jnp.where(mask[:, None], embedding, 0).astype(jnp.float32)
    rows = unit_rows(rows, jnp.ones(num_clusters), mask)
    counts = jnp.any(rows != 0, axis=1)
    product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

    def orthogonal_rows(key):
        ranks = jnp.cumsum(counts)
        first = rows[jnp.argmax(ranks > jax.random.uniform(key) * ranks[-1])]

        def add(carry, _):
            similarity, last = carry
            similarity += jnp.abs(product(rows, last))
            row = rows[jnp.argmin(jnp.where(counts, similarity, jnp.inf))]
            return (similarity, row), row

        carry = (jnp.zeros(len(rows)), first)
        _, added = jax.lax.scan(add, carry, None, length=num_clusters - 1)
        return jnp.concatenate([first[None], added]).T

    def nearest(rotation):
        return jnp.argmax(product(rows, rotation), axis=1).astype(jnp.int32)

    def sums(clusters):
        """Returns the sum of the rows of each cluster."""
        return jax.ops.segment_sum(rows, clusters, num_clusters)

    def turn(carry):
        iteration, clusters, _ = carry
        u, _, vt = jnp.linalg.svd(sums(clusters))
        new_clusters = nearest(product(vt.T, u.T))
        return iteration + 1, new_clusters, jnp.any(new_clusters != clusters)

    def unfinished(carry):
        iteration, _, changed = carry
        return changed & (iteration < num_iters)

    def begin(key):
        start = (0, nearest(orthogonal_rows(key)), jnp.array(True))
        clusters = jax.lax.while_loop(unfinished, turn, start)[1]
        return clusters, jnp.linalg.svd(sums(clusters), compute_uv=False).sum()

    clusters, closeness = jax.vmap(begin)(jax.random.split(key, num_init))
    # As in k-means, rounding must not choose between starts with equal results.
    return clusters[jnp.argmax(closeness >= closeness.max() * (1 - 1e-5))]


@partial(jax.jit, static_argnames="num_clusters")
def _embedding(
    affinity: Float[Array, "N N"], mask: Bool[Array, "N"], num_clusters: int
) -> Float[Array, "N K"]:
    diagonal = jnp.eye(len(affinity), dtype=bool)
    edges = mask[:, None] & mask[None] & ~diagonal
    a = jnp.where(edges, affinity, 0).astype(jnp.float32)
    degrees = a.sum(axis=1)
    scale = jnp.where(degrees > 0, 1 / jnp.sqrt(jnp.where(degrees > 0, degrees, 1)), 0)
    a = scale[:, None] * a * scale[None]
    # The eigenvalues of unmasked examples lie in [-1, 1], so masked examples come last.
    a = jnp.where(diagonal & ~mask[:, None], -2, a)

    _, eigenvectors = jnp.linalg.eigh(a)
    leading = eigenvectors[:, ::-1][:, :num_clusters]
    return unit_rows(leading, jnp.ones(num_clusters), degrees > 0)


def unit_rows(
    eigenvectors: Float[Array, "N R"],
    weights: Float[Array, "R"],
    present: Bool[Array, "N"],
) -> Float[Array, "N R"]:
    """Returns the rows of weighted eigenvectors, scaled to unit length.

    A row is zero if it is not present, or if it has no part in the eigenvectors of
    positive weight. The latter happens for components whose eigenvectors are not among
    the leading ones.

    Args:
        eigenvectors: the eigenvectors as columns [N, R].
        weights: the non-negative weight of each eigenvector [R].
        present: bool [N], False for rows that become zero.

    Returns:
        The rows [N, R], of length 1 or 0.
    """
    share = jnp.linalg.norm(jnp.where(weights[None] > 0, eigenvectors, 0), axis=1)
    # Rounding in float32 leaves about 1e-6 in place of a zero part.
    present = present & (share > 1e-5)
    rows = jnp.where(present[:, None], eigenvectors * weights[None], 0)
    norms = jnp.linalg.norm(rows, axis=1, keepdims=True)
    return rows / jnp.where(norms > 0, norms, 1)


# --- Affinity


@checked
def symmetric_affinity(coefficients: Float[Array, "N N"]) -> Float[Array, "N N"]:
    """Returns |C| + |C|^T, the affinity of LRSC, which is non-negative and symmetric.

    Args:
        coefficients: the coefficients C [N, N].

    Returns:
        The affinity [N, N].

    Examples:
        >>> print(symmetric_affinity(jnp.array([[0.0, -1.0], [3.0, 0.0]])))
        [[0. 4.]
         [4. 0.]]
    """
    size = jnp.abs(coefficients)
    return size + size.T


@checked
def subspace_affinity(
    coefficients: Float[Array, "N N"],
    num_clusters: int,
    *,
    keep: Scalar,
    dimension: int,
    power: Scalar,
    unit_diagonal: bool = False,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, "N N"]:
    """Returns the affinity that DSC-Net's code computes from its coefficients C.

    The steps are, in order:

    1. Small entries of each column become zero (`keep`).
    2. C becomes (C + C^T) / 2.
    3. A truncated singular value decomposition gives U sqrt(S), with rows scaled to
       unit length.
    4. The affinity is the inner products of these rows. Negative products become 0. The
       others are raised to `power` and divided by the largest.

    Much of the reported gain of deep subspace clustering comes from these steps and not
    from the network (Haeffele, You and Vidal). A fair comparison gives the baselines
    the same steps, or omits them for all methods.

    Some examples have no affinity to any example, including themselves: masked
    examples, examples without a coefficient, and examples without a part in the leading
    singular vectors. Their rows and columns are zero. (DSC-Net's code scales rounding
    errors there.) All affinities are zero if fewer than two examples remain.

    Args:
        coefficients: C [N, N] with Z = C Z for codes Z with one example per row, as in
            DSC-Net's code. FDSC writes Z = Z R with one example per column; then C is
            R^T. Computed in float32.
        num_clusters: the number K of clusters.
        keep: the share of a column's L1 norm that its largest entries must exceed. The
            largest entries stay, up to the one that exceeds the share; the first of
            equal entries comes first. Values of 1 and more keep all entries. DSC-Net
            uses 0.04 for COIL and 0.2 for ORL.
        dimension: the dimension d of one subspace. The rank is d K + 1, or the number
            of unmasked examples minus 1 if this is smaller. DSC-Net uses 12 for COIL
            and 3 for ORL.
        power: the exponent, above 0; a larger power reduces moderate affinities more.
            DSC-Net uses 8 for COIL and 1 for ORL.
        unit_diagonal: whether the diagonal of C becomes ones before the decomposition,
            as for COIL20.
        mask: bool [N], False for examples to ignore, whose coefficients may have any
            values; None uses all examples.

    Returns:
        The affinity [N, N], in [0, 1], symmetric. The diagonal is 1, or 0 for examples
        without any affinity.

    Examples:
        >>> swap = jnp.array([[0.0, 1.0], [1.0, 0.0]])
        >>> c = jnp.kron(jnp.eye(2), swap)  # 0 and 1 express each other, so do 2 and 3
        >>> options = dict(keep=1.0, dimension=1, power=1.0, unit_diagonal=True)
        >>> print(subspace_affinity(c, 2, **options).round(2)[0])
        [1. 1. 0. 0.]
    """
    if mask is None:
        mask = jnp.ones(len(coefficients), bool)
    return _affinity(
        coefficients, mask, keep, power, num_clusters * dimension + 1, unit_diagonal
    )


@partial(jax.jit, static_argnames=("rank", "unit_diagonal"))
def _affinity(
    coefficients: Float[Array, "N N"],
    mask: Bool[Array, "N"],
    keep: Scalar,
    power: Scalar,
    rank: int,
    unit_diagonal: bool,
) -> Float[Array, "N N"]:
    pairs = mask[:, None] & mask[None]
    c = _threshold(jnp.where(pairs, coefficients, 0).astype(jnp.float32), keep)
    c = (c + c.T) / 2
    if unit_diagonal:
        c = jnp.where(jnp.eye(len(c), dtype=bool), mask[:, None], c)

    # C is symmetric, so its singular values are the absolute values of its eigenvalues,
    # and its left singular vectors are its eigenvectors.
    eigenvalues, eigenvectors = jnp.linalg.eigh(c)
    rank = min(rank, len(c) - 1)
    sizes, largest = jax.lax.top_k(jnp.abs(eigenvalues), rank)
    sizes = jnp.where(jnp.arange(rank) < mask.sum() - 1, sizes, 0)
    present = jnp.any(c != 0, axis=1)
    u = unit_rows(eigenvectors[:, largest], jnp.sqrt(sizes), present)
    z = jnp.matmul(u, u.T, precision=jax.lax.Precision.HIGHEST)
    z = jnp.where(z > 0, z, 0) ** power
    z = z / jnp.where(z.max() > 0, z.max(), 1)
    return (z + z.T) / 2


def _threshold(c: Float[Array, "N N"], keep: Scalar) -> Float[Array, "N N"]:
    """Keeps the largest entries of each column that together exceed the share."""
    order = jnp.argsort(-jnp.abs(c), axis=0)
    sizes = jnp.abs(jnp.take_along_axis(c, order, axis=0))
    covered = jnp.cumsum(sizes, axis=0)
    needed = (covered - sizes <= keep * covered[-1:]) | (keep >= 1)
    stays = jnp.put_along_axis(
        jnp.zeros(c.shape, bool), order, needed, axis=0, inplace=False
    )
    return jnp.where(stays, c, 0)
