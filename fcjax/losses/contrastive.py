"""Contrastive losses on embeddings and on clusters, as pure functions.

References:
    Liu, Yan and Zhang, `CCFC: Bridging Federated Clustering and Contrastive Learning
    <https://arxiv.org/abs/2401.06634>`_, 2024, section 3; code Jarvisyan/CCFC-pytorch.
    Yan, Liu, Ning and Zhang, `CCFC++: Enhancing Federated Clustering through Feature
    Decorrelation <https://arxiv.org/abs/2402.12852>`_, 2024.
    Chen and He, `Exploring Simple Siamese Representation Learning
    <https://arxiv.org/abs/2011.10566>`_, 2021, equations 1 and 2.
    Li et al., `Contrastive Clustering <https://arxiv.org/abs/2009.09687>`_ (CC), AAAI
    2021, sections 3.2 and 3.3; code Yunfan-Li/Contrastive-Clustering.
    Chen et al., `A Simple Framework for Contrastive Learning of Visual Representations
    <https://arxiv.org/abs/2002.05709>`_ (SimCLR), ICML 2020, section 2.1.
    Miao and Koyuncu, `Federated Momentum Contrastive Clustering
    <https://arxiv.org/abs/2206.05093>`_ (FedMCC), 2022, equations 1 to 3.
    Shi et al., Towards Understanding and Mitigating Dimensional Collapse in
    Heterogeneous Federated Learning (FedDecorr), ICLR 2023.
    Lubana, Tang, Kawsar, Dick and Mathur, `Orchestra
    <https://arxiv.org/abs/2205.11506>`_, ICML 2022; code akhilmathurs/orchestra.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fcjax.types import Scalar

# --- Contrastive


def normalize(x: Float[Array, "*B D"], *, eps: float = 1e-12) -> Float[Array, "*B D"]:
    """Scales each row to unit L2 norm.

    The value is that of `torch.nn.functional.normalize`, x / max(norm, eps), so a zero
    row stays zero. The gradient differs there: rows no longer than eps pass none, where
    torch passes 1 / eps.

    Args:
        x: rows of any length, on the last axis.
        eps: a positive Python float.

    Returns:
        An array of the shape and type of `x`, with rows of norm 1 (below 1 only where
        the norm of a row is below eps).

    Examples:
        >>> print(normalize(jnp.array([[0.0, -5.0], [0.0, 0.0]])))
        [[ 0. -1.]
         [ 0.  0.]]
    """
    squared_norm = jnp.sum(x**2, axis=-1, keepdims=True)
    has_direction = squared_norm > eps**2
    # The square root has an infinite derivative at 0: short rows must not reach it.
    norm = jnp.sqrt(jnp.where(has_direction, squared_norm, 1))
    return jnp.where(has_direction, x / norm, jax.lax.stop_gradient(x) / eps)


def negative_cosine(
    predictions: Float[Array, "B D"], projections: Float[Array, "B D"]
) -> Float[Array, "B"]:
    """Minus the cosine similarity of each prediction to its projection.

    SimSiam's equation 1, with the stop-gradient of its equation 2 on `projections`.

    Returns:
        float32 [B], in [-1, 1]; 0 with zero gradient where either row is zero.

    Examples:
        >>> z = jnp.array([[2.0, 0.0], [-3.0, 0.0]])
        >>> print(negative_cosine(jnp.array([[1.0, 0.0], [1.0, 0.0]]), z))
        [-1.  1.]
    """
    p = normalize(predictions.astype(jnp.float32))
    z = normalize(jax.lax.stop_gradient(projections).astype(jnp.float32))
    return -jnp.sum(p * z, axis=-1)


def cluster_contrastive(
    predictions: Float[Array, "B D"],
    projections: Float[Array, "B D"],
    labels: Int[Array, "B"],
    *,
    num_clusters: int,
    include_self: bool = True,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """Pulls the examples of each pseudo-cluster together.

    Averages, over the clusters with at least two examples in the batch, minus the mean
    of cos(p_i, z_j) over ordered pairs (i, j) of the cluster; no gradient flows through
    z. The mean over pairs is an inner product of two sums, `<sum_i p_i, sum_j z_j>`, so
    no B x B matrix is formed.

    This is CCFC's equations 1 and 2. Where paper and code differ, the code is followed:
    it counts the pairs i = j too (`include_self=False` gives the paper's equation 1)
    and averages over the clusters that contribute, not over all k as equation 2 does.

    Args:
        predictions: outputs p of the predictor.
        projections: outputs z of the encoder, in the same order.
        labels: pseudo-labels; a row whose label is outside [0, num_clusters) counts
            nowhere.
        num_clusters: number k of clusters.
        include_self: whether an example is also paired with itself.
        mask: False at rows that count nowhere; all rows count by default.

    Returns:
        A float32 scalar in [-1, 1]; 0 with zero gradient where no cluster has two
        examples.

    Examples:
        >>> z = jnp.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, -3.0]])
        >>> loss = cluster_contrastive(z, z, jnp.array([0, 0, 1, 1]), num_clusters=2)
        >>> print(f"{loss:.2f}")  # -(1 + 0) / 2: the second cluster's are opposite
        -0.50
    """
    members = jax.nn.one_hot(labels, num_clusters, dtype=jnp.float32)
    if mask is not None:
        members = members * mask[:, None]
        predictions = _keep(predictions, mask)
        projections = _keep(projections, mask)
    counts = members.sum(axis=0)
    p = normalize(predictions.astype(jnp.float32))
    z = normalize(jax.lax.stop_gradient(projections).astype(jnp.float32))
    similarity = jnp.sum(_cluster_sums(members, p) * _cluster_sums(members, z), axis=-1)
    pairs = counts**2
    if not include_self:
        own = jnp.sum(p * z, axis=-1, keepdims=True)
        similarity -= _cluster_sums(members, own)[:, 0]
        pairs -= counts
    contributes = counts >= 2
    mean = similarity / jnp.where(contributes, pairs, 1)
    return -jnp.sum(mean, where=contributes) / jnp.maximum(contributes.sum(), 1)


def model_contrastive(
    predictions: Float[Array, "B D"],
    anchor_predictions: Float[Array, "B D"],
    *,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """Pulls a local model's predictions towards those of the frozen global model.

    CCFC's equation 5, averaged over the batch as the code does; its equation 4 averages
    within each pseudo-cluster first. No gradient flows through `anchor_predictions`.

    Args:
        predictions: outputs of the local predictor.
        anchor_predictions: outputs of the global predictor for the same examples.
        mask: False at rows that count nowhere; all rows count by default.

    Returns:
        A float32 scalar in [-1, 1]; 0 with zero gradient where no row counts.

    Examples:
        >>> local = jnp.array([[1.0, 0.0], [0.0, 1.0]])
        >>> anchor = jnp.array([[2.0, 0.0], [2.0, 0.0]])
        >>> print(f"{model_contrastive(local, anchor):.2f}")  # -(1 + 0) / 2
        -0.50
    """
    if mask is None:
        return negative_cosine(predictions, anchor_predictions).mean()
    losses = negative_cosine(_keep(predictions, mask), _keep(anchor_predictions, mask))
    return losses.sum() / jnp.maximum(mask.sum(), 1)


def _keep(x: Float[Array, "B D"], mask: Bool[Array, "B"]) -> Float[Array, "B D"]:
    # A zero row adds nothing to any sum, and hides a NaN from values and gradients.
    return jnp.where(mask[:, None], x, 0)


def _cluster_sums(
    members: Float[Array, "B K"], x: Float[Array, "B D"]
) -> Float[Array, "K D"]:
    return jnp.matmul(members.T, x, precision=jax.lax.Precision.HIGHEST)


# --- NT-Xent, of examples and of clusters


def nt_xent(
    z_a: Float[Array, "B D"],
    z_b: Float[Array, "B D"],
    *,
    temperature: Scalar,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """Tells the other view of an example from all views of the others.

    The mean, over 2B anchors, of the cross-entropy of the positive pair among the
    2B - 1 other rows of both views, by cosine similarity over `temperature`: CC's
    equations 2 and 3, as in its code. FedMCC's equation 1 takes the anchors of the
    first view alone and leaves the positive out of the denominator; its loss can then
    be negative.

    Args:
        z_a: one view of each example; rows of any length.
        z_b: the other view, in the same order.
        temperature: above 0.
        mask: False at examples that count nowhere, neither as anchors nor as negatives;
            all count by default.

    Returns:
        A float32 scalar of at least 0; 0 with zero gradient where fewer than two
        examples count.

    Examples:
        >>> z = jnp.eye(2)
        >>> print(f"{nt_xent(z, z, temperature=1.0):.4f}")  # log(e + 2) - 1
        0.5514
    """
    if mask is None:
        mask = jnp.ones(len(z_a), bool)
    z = jnp.concatenate([z_a, z_b]).astype(jnp.float32)
    counted = jnp.concatenate([mask, mask])
    # A zero row adds nothing to any gradient, and hides a NaN from it.
    z = normalize(jnp.where(counted[:, None], z, 0))
    similarity = jnp.matmul(z, z.T, precision=jax.lax.Precision.HIGHEST) / temperature
    row, column = jnp.arange(len(z))[:, None], jnp.arange(len(z))[None]
    # Not -inf: where nothing counts, the gradient would be inf - inf.
    lowest = jnp.finfo(jnp.float32).min
    others = jnp.where(counted[None] & (row != column), similarity, lowest)
    among = jax.nn.logsumexp(others, axis=1)
    # Out of the same product, so that a positive alone is told without any loss.
    paired = column == (row + len(z_a)) % len(z)
    positive = jnp.sum(similarity, axis=1, where=paired)
    total = jnp.sum(among - positive, where=counted)
    return total / jnp.maximum(counted.sum(), 1)


def cluster_nt_xent(
    c_a: Float[Array, "B K"],
    c_b: Float[Array, "B K"],
    *,
    temperature: Scalar,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """Tells a cluster of one view from the other clusters of both.

    `nt_xent` of the columns of soft assignments, each of which says how much every
    example of the batch belongs to a cluster: CC's equations 4 and 5, without its
    entropy, which is `cluster_entropy`.

    Args:
        c_a: soft assignments of one view; rows are probabilities.
        c_b: those of the other view, in the same order.
        temperature: above 0.
        mask: False at examples that count nowhere; all count by default.

    Returns:
        A float32 scalar of at least 0; log(2K - 1) where all clusters are alike.

    Examples:
        >>> c = jnp.full((4, 2), 0.5)
        >>> print(f"{cluster_nt_xent(c, c, temperature=1.0):.4f}")  # log 3
        1.0986
    """
    if mask is not None:
        c_a, c_b = (jnp.where(mask[:, None], c, 0) for c in (c_a, c_b))
    return nt_xent(c_a.T, c_b.T, temperature=temperature)


def cluster_entropy(
    c: Float[Array, "B K"], *, mask: Bool[Array, "B"] | None = None
) -> Float[Array, ""]:
    """How evenly a batch spreads over the clusters: the entropy of its mean assignment.

    FedMCC's equation 3. It is to be maximised, so a loss subtracts it, as CC's code
    does; FedMCC's equations 2, 6 and 9 print a plus, which would reward collapse.

    Args:
        c: soft assignments; rows are probabilities.
        mask: False at examples that do not count; all count by default.

    Returns:
        A float32 scalar in nats, from 0 (one cluster has all) to log K (all are equal);
        0 with zero gradient where no example counts.

    Examples:
        >>> print(f"{cluster_entropy(jnp.eye(2)):.4f}")  # log 2: each has one example
        0.6931
    """
    c = c.astype(jnp.float32)
    if mask is not None:
        c = jnp.where(mask[:, None], c, 0)
    shares = c.sum(axis=0)
    total = shares.sum()
    shares /= jnp.where(total > 0, total, 1)
    # The logarithm's derivative at a share of 0 would be infinite.
    tiny = jnp.finfo(jnp.float32).tiny
    return -jnp.sum(shares * jnp.log(jnp.maximum(shares, tiny)))


# --- Decorrelation


def decorrelation(
    z: Float[Array, "B D"], *, mask: Bool[Array, "B"] | None = None
) -> Float[Array, ""]:
    """How few directions a batch of embeddings lies in.

    |C|_F^2 / D^2 of the covariance C of the features, over the batch and with its
    diagonal. Where every feature has variance 1, as behind a batch norm without scale
    and shift, this is 1 / r, r being the participation ratio (tr C)^2 / |C|_F^2 of the
    eigenvalues of C, an effective rank: 1 on a line, at least 1 / D and 1 / (B - 1).

    [choice] CCFC++'s equation was not to be had, and it has no public code. This is the
    reading of the only third-party implementation that was found. FedDecorr, the
    likely ancestor, leaves the diagonal out and standardises the features, which behind
    such a batch norm has the same gradient, and scales otherwise: its value is some B
    times as large.

    Args:
        z: embeddings, not of unit length.
        mask: False at rows that count nowhere; all rows count by default.

    Returns:
        A float32 scalar of at least 0; 0 with zero gradient where no two rows that
        count differ.

    Examples:
        >>> line = jnp.array([[1.0, 1.0], [-1.0, -1.0]])
        >>> cross = jnp.array([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
        >>> print(decorrelation(line), decorrelation(cross))
        1.0 0.5
    """
    z = z.astype(jnp.float32)
    kept = jnp.ones(len(z), bool) if mask is None else mask
    # A reciprocal of our own: XLA makes one of a division by a scalar, or does not,
    # by how many devices the program is for, and the two are rounded differently.
    share = jnp.float32(1) / jnp.maximum(kept.sum(), 1).astype(jnp.float32)
    z = jnp.where(kept[:, None], z, 0)
    centred = jnp.where(kept[:, None], z - z.sum(axis=0)[None] * share, 0)
    # Of B and D the smaller: both products have the same norm.
    gram = centred.T if z.shape[1] <= len(z) else centred
    product = jnp.matmul(gram, gram.T, precision=jax.lax.Precision.HIGHEST) * share
    return jnp.sum(product**2) / z.shape[1] ** 2


# --- Agreement


def cluster_agreement(
    projections: Float[Array, "B D"],
    target_projections: Float[Array, "B D"],
    centroids: Float[Array, "K D"],
    *,
    temperature: Scalar = 0.1,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """How well projections tell the soft cluster that a target has for an example.

    The cross-entropy of softmax(c_k . v / T) against softmax(c_k . u / T), v and u the
    projections and the target's at unit length, the mean over the batch. No gradient
    flows through the target's or the centroids.

    Args:
        projections: of the network that is trained.
        target_projections: of the other view, in the same order.
        centroids: of the clusters, in Orchestra of unit length.
        temperature: T.
        mask: False at rows that count nowhere; all rows count by default.

    Returns:
        A float32 scalar of at least the mean entropy of the target's assignments, which
        it has where both agree; 0 with zero gradient where no row counts.

    Examples:
        >>> centroids, z = jnp.eye(2), jnp.array([[1.0, 1.0]])
        >>> print(f"{cluster_agreement(z, z, centroids):.3f}")  # log 2
        0.693
    """
    kept = jnp.ones(len(projections), bool) if mask is None else mask
    v, u = (
        normalize(jnp.where(kept[:, None], x.astype(jnp.float32), 0))
        for x in (projections, jax.lax.stop_gradient(target_projections))
    )
    directions = jax.lax.stop_gradient(centroids.astype(jnp.float32)).T

    def logits(z):
        cosines = jnp.matmul(z, directions, precision=jax.lax.Precision.HIGHEST)
        return cosines / temperature

    target, own = jax.nn.softmax(logits(u)), jax.nn.log_softmax(logits(v))
    each = -jnp.sum(target * own, axis=1)
    return jnp.sum(each, where=kept) / jnp.maximum(kept.sum(), 1)
