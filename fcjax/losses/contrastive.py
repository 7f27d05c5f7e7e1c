"""Contrastive losses on embeddings and on soft assignments, as pure functions.

* `cluster_contrastive`, `model_contrastive`: CCFC; `negative_cosine`: SimSiam.
* `nt_xent`, `cluster_nt_xent`, `cluster_entropy`: SimCLR, CC and FedMCC.
* `decorrelation`: CCFC++.
* `cluster_agreement`: Orchestra.

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

from fcjax.shapes import checked
from fcjax.types import Scalar

# --- Contrastive


@checked
def normalize(x: Float[Array, "*B D"], *, eps: float = 1e-12) -> Float[Array, "*B D"]:
    """Scales each row to unit L2 norm.

    The value is x / max(norm, eps), as in `torch.nn.functional.normalize`, so a zero
    row stays zero. The gradient differs from torch for rows of norm at most eps: here
    it is zero, in torch it is 1 / eps.

    Args:
        x: array [..., D]; the last axis is scaled.
        eps: smallest norm to divide by, a positive Python float.

    Returns:
        An array of the shape and type of `x`. The norm of each row is 1, or below 1
        where the norm of the row of `x` is below eps.

    Examples:
        >>> print(normalize(jnp.array([[0.0, -5.0], [0.0, 0.0]])))
        [[ 0. -1.]
         [ 0.  0.]]
    """
    squared_norm = jnp.sum(x**2, axis=-1, keepdims=True)
    has_direction = squared_norm > eps**2
    # The square root has an infinite derivative at 0, so short rows must not reach it.
    norm = jnp.sqrt(jnp.where(has_direction, squared_norm, 1))
    return jnp.where(has_direction, x / norm, jax.lax.stop_gradient(x) / eps)


@checked
def negative_cosine(
    predictions: Float[Array, "B D"], projections: Float[Array, "B D"]
) -> Float[Array, "B"]:
    """Computes minus the cosine similarity of each prediction and its projection.

    This is equation 1 of SimSiam, with the stop-gradient of equation 2 on
    `projections`.

    Args:
        predictions: outputs of the predictor [B, D].
        projections: outputs of the projector [B, D], in the same order. No gradient
            flows through them.

    Returns:
        float32 [B], in [-1, 1]. Where one of the two rows is zero, the value and its
        gradient are 0.

    Examples:
        >>> z = jnp.array([[2.0, 0.0], [-3.0, 0.0]])
        >>> print(negative_cosine(jnp.array([[1.0, 0.0], [1.0, 0.0]]), z))
        [-1.  1.]
    """
    p = normalize(predictions.astype(jnp.float32))
    z = normalize(jax.lax.stop_gradient(projections).astype(jnp.float32))
    return -jnp.sum(p * z, axis=-1)


@checked
def cluster_contrastive(
    predictions: Float[Array, "B D"],
    projections: Float[Array, "B D"],
    labels: Int[Array, "B"],
    *,
    num_clusters: int,
    include_self: bool = True,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """Computes CCFC's cluster-contrastive loss.

    The loss pulls the examples of each pseudo-cluster together. The loss of one cluster
    is minus the mean of cos(p_i, z_j) over ordered pairs (i, j) of its examples. The
    result is the mean over clusters with at least two examples in the batch. The mean
    over pairs is computed from the inner product `<sum_i p_i, sum_j z_j>`, so no B x B
    matrix is formed.

    These are equations 1 and 2 of CCFC. Where paper and code differ, this function
    follows the code. The code includes the pairs i = j; `include_self=False` gives
    equation 1 of the paper. The code averages over the clusters with at least two
    examples, equation 2 over all k clusters.

    Args:
        predictions: outputs p of the predictor [B, D].
        projections: outputs z of the encoder [B, D], in the same order. No gradient
            flows through them.
        labels: pseudo-labels [B]. Examples with a label outside [0, num_clusters) are
            ignored.
        num_clusters: number k of clusters.
        include_self: whether each example is also paired with itself.
        mask: [B], False at examples to ignore. By default no example is ignored.

    Returns:
        A float32 scalar in [-1, 1]. If no cluster has two examples, the loss and its
        gradient are 0.

    Examples:
        >>> z = jnp.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, -3.0]])
        >>> loss = cluster_contrastive(z, z, jnp.array([0, 0, 1, 1]), num_clusters=2)
        >>> print(f"{loss:.2f}")  # -(1 + 0) / 2: opposite vectors in the second cluster
        -0.50
    """
    members = jax.nn.one_hot(labels, num_clusters, dtype=jnp.float32)
    if mask is not None:
        members = members * mask[:, None]
        predictions = _zero_masked(predictions, mask)
        projections = _zero_masked(projections, mask)
    counts = members.sum(axis=0)
    p = normalize(predictions.astype(jnp.float32))
    z = normalize(jax.lax.stop_gradient(projections).astype(jnp.float32))
    similarity = jnp.sum(_cluster_sums(members, p) * _cluster_sums(members, z), axis=-1)
    pairs = counts**2
    if not include_self:
        self_similarity = jnp.sum(p * z, axis=-1, keepdims=True)
        similarity -= _cluster_sums(members, self_similarity)[:, 0]
        pairs -= counts
    contributes = counts >= 2
    mean = similarity / jnp.where(contributes, pairs, 1)
    return -jnp.sum(mean, where=contributes) / jnp.maximum(contributes.sum(), 1)


@checked
def model_contrastive(
    predictions: Float[Array, "B D"],
    anchor_predictions: Float[Array, "B D"],
    *,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """Computes CCFC's model-contrastive loss between local and global predictions.

    The loss is minus the mean cosine similarity of the predictions of a local model and
    of the frozen global model. This is equation 5 of CCFC, averaged over the batch as
    in the code. Equation 4 averages within each pseudo-cluster first.

    Args:
        predictions: outputs of the local predictor [B, D].
        anchor_predictions: outputs of the global predictor [B, D] for the same
            examples. No gradient flows through them.
        mask: [B], False at examples to ignore. By default no example is ignored.

    Returns:
        A float32 scalar in [-1, 1]. If the mask is False everywhere, the loss and its
        gradient are 0.

    Examples:
        >>> local = jnp.array([[1.0, 0.0], [0.0, 1.0]])
        >>> anchor = jnp.array([[2.0, 0.0], [2.0, 0.0]])
        >>> print(f"{model_contrastive(local, anchor):.2f}")  # -(1 + 0) / 2
        -0.50
    """
    if mask is None:
        return negative_cosine(predictions, anchor_predictions).mean()
    losses = negative_cosine(
        _zero_masked(predictions, mask), _zero_masked(anchor_predictions, mask)
    )
    return losses.sum() / jnp.maximum(mask.sum(), 1)


def _zero_masked(x: Float[Array, "B D"], mask: Bool[Array, "B"]) -> Float[Array, "B D"]:
    """Returns `x` with zeros in the masked rows."""
    # Zeros, unlike NaN * 0, change neither sums nor gradients.
    return jnp.where(mask[:, None], x, 0)


def _cluster_sums(
    members: Float[Array, "B K"], x: Float[Array, "B D"]
) -> Float[Array, "K D"]:
    """Returns the sum of the rows of `x` in each cluster."""
    return jnp.matmul(members.T, x, precision=jax.lax.Precision.HIGHEST)


# --- NT-Xent of examples and of clusters


@checked
def nt_xent(
    z_a: Float[Array, "B D"],
    z_b: Float[Array, "B D"],
    *,
    temperature: Scalar,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """Computes the NT-Xent loss of two views of a batch (SimCLR, CC).

    Every one of the 2B views is an anchor once. Its loss is the cross-entropy of the
    softmax over the 2B - 1 other views, where the other view of the same example is the
    correct one. The logits are cosine similarities divided by `temperature`. The result
    is the mean over anchors: equations 2 and 3 of CC, as in its code.

    FedMCC's equation 1 uses only the anchors of the first view and leaves the positive
    pair out of the denominator, so that its loss can be negative.

    Args:
        z_a: embeddings of the first view of each example [B, D], of any length.
        z_b: embeddings of the second view [B, D], in the same order.
        temperature: divisor of the cosine similarities, above 0.
        mask: [B], False at examples to ignore, both as anchors and as negatives. By
            default no example is ignored.

    Returns:
        A float32 scalar, at least 0. If fewer than two examples remain, the loss and
        its gradient are 0.

    Examples:
        >>> z = jnp.eye(2)
        >>> print(f"{nt_xent(z, z, temperature=1.0):.4f}")  # log(e + 2) - 1
        0.5514
    """
    if mask is None:
        mask = jnp.ones(len(z_a), bool)
    z = jnp.concatenate([z_a, z_b]).astype(jnp.float32)
    counted = jnp.concatenate([mask, mask])
    # Zero rows add nothing to any gradient, and the replaced NaN cannot reach it.
    z = normalize(jnp.where(counted[:, None], z, 0))
    similarity = jnp.matmul(z, z.T, precision=jax.lax.Precision.HIGHEST) / temperature
    row, column = jnp.arange(len(z))[:, None], jnp.arange(len(z))[None]
    # Not -inf: the gradient would be inf - inf if all examples are masked.
    lowest = jnp.finfo(jnp.float32).min
    logits = jnp.where(counted[None] & (row != column), similarity, lowest)
    log_normalizer = jax.nn.logsumexp(logits, axis=1)
    # The positive comes from the same product, so that the loss of a single example is
    # exactly 0.
    paired = column == (row + len(z_a)) % len(z)
    positive = jnp.sum(similarity, axis=1, where=paired)
    total = jnp.sum(log_normalizer - positive, where=counted)
    return total / jnp.maximum(counted.sum(), 1)


@checked
def cluster_nt_xent(
    c_a: Float[Array, "B K"],
    c_b: Float[Array, "B K"],
    *,
    temperature: Scalar,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """Computes the NT-Xent loss of two views of the clusters (CC).

    This is `nt_xent` applied to the columns of the soft assignments: column k holds the
    probability of cluster k for each example of the batch. Equations 4 and 5 of CC,
    without the entropy term, which is `cluster_entropy`.

    Args:
        c_a: soft assignments of the first view [B, K]. Each row is a probability
            distribution.
        c_b: soft assignments of the second view [B, K], in the same order.
        temperature: divisor of the cosine similarities, above 0.
        mask: [B], False at examples to ignore. By default no example is ignored.

    Returns:
        A float32 scalar, at least 0. It is log(2K - 1) if all columns are equal, also
        if the mask ignores all examples; its gradient is then 0.

    Examples:
        >>> c = jnp.full((4, 2), 0.5)
        >>> print(f"{cluster_nt_xent(c, c, temperature=1.0):.4f}")  # log 3
        1.0986
    """
    if mask is not None:
        c_a, c_b = (jnp.where(mask[:, None], c, 0) for c in (c_a, c_b))
    return nt_xent(c_a.T, c_b.T, temperature=temperature)


@checked
def cluster_entropy(
    c: Float[Array, "B K"], *, mask: Bool[Array, "B"] | None = None
) -> Float[Array, ""]:
    """Computes the entropy of the mean soft assignment of a batch.

    The entropy is large if the batch spreads evenly over the clusters: equation 3 of
    FedMCC. It should be maximized, so a loss subtracts it, as the code of CC does.
    Equations 2, 6 and 9 of FedMCC print a plus sign, which would reward a collapse to
    one cluster.

    Args:
        c: soft assignments [B, K]. Each row is a probability distribution.
        mask: [B], False at examples to ignore. By default no example is ignored.

    Returns:
        A float32 scalar in nats, from 0 (one cluster has everything) to log K (all
        clusters are equally large). If the mask is False everywhere, the value and its
        gradient are 0.

    Examples:
        >>> print(f"{cluster_entropy(jnp.eye(2)):.4f}")  # log 2: even clusters
        0.6931
    """
    c = c.astype(jnp.float32)
    if mask is not None:
        c = jnp.where(mask[:, None], c, 0)
    shares = c.sum(axis=0)
    total = shares.sum()
    shares /= jnp.where(total > 0, total, 1)
    # The derivative of the logarithm would be infinite at a share of 0.
    tiny = jnp.finfo(jnp.float32).tiny
    return -jnp.sum(shares * jnp.log(jnp.maximum(shares, tiny)))


# --- Decorrelation


@checked
def decorrelation(
    z: Float[Array, "B D"], *, mask: Bool[Array, "B"] | None = None
) -> Float[Array, ""]:
    """Computes CCFC++'s decorrelation loss: the mean squared feature covariance.

    The loss is |C|_F^2 / D^2, where C [D, D] is the covariance of the features over the
    batch, diagonal included. It is large if the embeddings lie in few directions.

    If every feature has variance 1, as after a batch norm without scale and shift, the
    loss is 1 / r. Here r = (tr C)^2 / |C|_F^2 is the participation ratio of the
    eigenvalues of C, an effective rank. The loss is then 1 if all embeddings lie on a
    line, and at least 1 / D and 1 / (B - 1).

    This form is our choice: the equation of CCFC++ was not available, and the method
    has no public code. It follows the only third-party implementation that we know of.
    FedDecorr, the likely origin, excludes the diagonal and standardizes the features.
    After a batch norm as above its gradient has the same direction, but its value is
    about B times as large.

    Args:
        z: embeddings [B, D], not scaled to unit length.
        mask: [B], False at rows to ignore. By default no row is ignored.

    Returns:
        A float32 scalar, at least 0. If all rows are equal or masked, the loss and its
        gradient are 0.

    Examples:
        >>> line = jnp.array([[1.0, 1.0], [-1.0, -1.0]])
        >>> cross = jnp.array([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
        >>> print(decorrelation(line), decorrelation(cross))
        1.0 0.5
    """
    z = z.astype(jnp.float32)
    is_used = jnp.ones(len(z), bool) if mask is None else mask
    # XLA replaces a division by a scalar with a reciprocal for some numbers of devices
    # and not for others, with different rounding. An explicit reciprocal is the same.
    share = jnp.float32(1) / jnp.maximum(is_used.sum(), 1).astype(jnp.float32)
    z = jnp.where(is_used[:, None], z, 0)
    centred = jnp.where(is_used[:, None], z - z.sum(axis=0)[None] * share, 0)
    # The D x D and the B x B product have the same norm: compute the smaller one.
    gram = centred.T if z.shape[1] <= len(z) else centred
    product = jnp.matmul(gram, gram.T, precision=jax.lax.Precision.HIGHEST) * share
    return jnp.sum(product**2) / z.shape[1] ** 2


# --- Agreement


@checked
def cluster_agreement(
    projections: Float[Array, "B D"],
    target_projections: Float[Array, "B D"],
    centroids: Float[Array, "K D"],
    *,
    temperature: Scalar = 0.1,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """Computes Orchestra's cross-entropy of target and online cluster assignments.

    The loss is the mean over the batch of the cross-entropy of softmax(c_k . v / T)
    with respect to softmax(c_k . u / T). Here v and u are the projections and the
    target projections, scaled to unit length.

    Args:
        projections: outputs of the trained network [B, D].
        target_projections: outputs of the target network for the other view [B, D], in
            the same order. No gradient flows through them.
        centroids: cluster centroids [K, D]; Orchestra has them of unit length. No
            gradient flows through them.
        temperature: T, the divisor of the logits, above 0.
        mask: [B], False at rows to ignore. By default no row is ignored.

    Returns:
        A float32 scalar. It is at least the mean entropy of the target assignments,
        which it reaches if both assignments agree. If the mask is False everywhere, the
        loss and its gradient are 0.

    Examples:
        >>> centroids, z = jnp.eye(2), jnp.array([[1.0, 1.0]])
        >>> print(f"{cluster_agreement(z, z, centroids):.3f}")  # log 2
        0.693
    """
    is_used = jnp.ones(len(projections), bool) if mask is None else mask
    v, u = (
        normalize(jnp.where(is_used[:, None], x.astype(jnp.float32), 0))
        for x in (projections, jax.lax.stop_gradient(target_projections))
    )
    directions = jax.lax.stop_gradient(centroids.astype(jnp.float32)).T

    def logits(z):
        cosines = jnp.matmul(z, directions, precision=jax.lax.Precision.HIGHEST)
        return cosines / temperature

    target, log_probabilities = jax.nn.softmax(logits(u)), jax.nn.log_softmax(logits(v))
    cross_entropies = -jnp.sum(target * log_probabilities, axis=1)
    return jnp.sum(cross_entropies, where=is_used) / jnp.maximum(is_used.sum(), 1)
