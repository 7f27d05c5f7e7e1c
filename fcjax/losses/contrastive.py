"""Contrastive losses on embeddings, as pure functions.

References:
    Liu, Yan and Zhang, `CCFC: Bridging Federated Clustering and Contrastive Learning
    <https://arxiv.org/abs/2401.06634>`_, 2024, section 3; code Jarvisyan/CCFC-pytorch.
    Chen and He, `Exploring Simple Siamese Representation Learning
    <https://arxiv.org/abs/2011.10566>`_, 2021, equations 1 and 2.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


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
