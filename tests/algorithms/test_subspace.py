"""What deep subspace networks share: their loss against PyTorch, and clusters of each
client's coefficients against scikit-learn."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.cluster import SpectralClustering

from fcjax import losses, nn
from fcjax.algorithms import fdsc
from fcjax.algorithms.fdsc import Setup, dense, low_rank
from fcjax.methods import FDSC, LRSC
from fcjax.metrics import ari

MASK = np.array([True, True, False, True, True, False, True])
N, F, D = len(MASK), 5, 3
PENALTY, EXPRESSION, SCALE = 0.3, 2.5, 4.0


X = np.random.default_rng(0).uniform(size=(N, F)).astype(np.float32)


def build(expression, scale=SCALE):
    """Linear, with biases."""
    autoencoder = nn.autoencoder(F, widths=(), latent_size=D)
    weights = {"penalty_weight": PENALTY, "expression_weight": EXPRESSION}
    settings = FDSC().plain(**weights, pixel_scale=scale)
    return Setup(autoencoder, expression, optax.sgd(0.1), settings, num_clusters=3)


def layer(variables):
    dense = variables["params"]["Dense_0"]["Dense_0"]
    return [np.asarray(dense[name]) for name in ("kernel", "bias")]


def torch_loss(parts, kind):
    """Of the examples that count alone: the loss, and its gradients by part."""
    torch = pytest.importorskip("torch")

    def tensors(arrays):
        return [torch.tensor(np.asarray(x), requires_grad=True) for x in arrays]

    encoder, decoder = (tensors(layer(parts[name])) for name in ("encoder", "decoder"))
    (held,) = tensors([parts["coefficients"]])
    own = torch.tensor(MASK)
    x = SCALE * torch.tensor(X)[own]
    c = held @ held.T if kind == "low_rank" else held
    c = c[own][:, own] * (1 - torch.eye(int(own.sum())))
    penalty = (held[own] if kind == "low_rank" else c).square().sum()
    z = x @ encoder[0] + encoder[1]
    decoded = c @ z @ decoder[0] + decoder[1]
    loss = ((x - decoded) ** 2).sum() + PENALTY * penalty
    loss = loss + EXPRESSION * ((z - c @ z) ** 2).sum()
    loss.backward()
    kernels = {"encoder": encoder, "decoder": decoder, "coefficients": [held]}
    return loss.item(), {k: [t.grad.numpy() for t in v] for k, v in kernels.items()}


@pytest.mark.parametrize("kind", ["dense", "zero", "low_rank"])
def test_the_loss_and_its_gradients_are_those_of_torch(kind, key):
    """With coefficients of some size, and at C = 0, which they leave."""
    network = build(low_rank(4) if kind == "low_rank" else dense())
    parts = fdsc.init(network, key, jnp.asarray(X[:1]), N)
    size = 0.0 if kind == "zero" else 0.5
    c = size * jax.random.normal(key, parts["coefficients"].shape)
    parts = {**parts, "coefficients": c}
    loss = partial(fdsc.subspace_loss, network)
    slope = jax.jit(jax.value_and_grad(loss))
    value, gradients = slope(parts, jnp.asarray(X), jnp.asarray(MASK))
    expected, by_part = torch_loss(parts, kind)
    assert float(value) == pytest.approx(expected, rel=1e-5)
    assert np.abs(by_part["coefficients"][0]).max() > 1e-3
    for name, leaves in by_part.items():
        found = sorted(jax.tree.leaves(gradients[name]), key=np.ndim)
        for leaf, grad in zip(found, sorted(leaves, key=np.ndim), strict=True):
            bound = 1e-5 * np.abs(grad).max()
            np.testing.assert_allclose(leaf, grad, rtol=1e-5, atol=bound)


def test_pixels_are_scaled_from_0_to_1(key):
    """A network of scale 255 sees bytes as they are."""
    pixels = np.random.default_rng(1).integers(0, 256, (4, F), np.uint8)
    network = build(dense(), scale=255.0)
    parts = fdsc.init(network, key, jnp.asarray(pixels[:1]), 4)
    w, b = layer(parts["encoder"])
    found = fdsc.encode_examples(network, parts["encoder"], jnp.asarray(pixels))
    np.testing.assert_allclose(found, pixels @ w + b, rtol=1e-4, atol=1e-3)


# --- what coefficients are held in


def test_low_rank_coefficients_by_hand():
    """U U^T of rows (1, 2), (3, -1), (0, 2): 1 of the first two, 4 and -2; then without
    the second one, which may hold anything."""
    u = jnp.array([[1.0, 2.0], [3.0, -1.0], [0.0, 2.0]])
    network, everyone = build(low_rank(2)), jnp.ones(3, bool)
    for held, mask, expected, square in (
        (u, everyone, [[0, 1, 4], [1, 0, -2], [4, -2, 0]], 1 + 4 + 9 + 1 + 0 + 4),
        (u.at[1].set(jnp.nan), everyone.at[1].set(False), [[0, 0, 4], [0] * 3], 9),
    ):
        found = losses.off_diagonal(network.expression.matrix(held), mask)
        np.testing.assert_allclose(found[: len(expected)], expected)
        assert float(network.expression.penalty(held, mask)) == square


def test_what_coefficients_begin_with(key):
    """1e-8 as in the PyTorch port of DSC-Net, whose weights they have; a factor has no
    more columns than rows, and does not depend on the padding."""
    np.testing.assert_array_equal(
        dense().init(key, 4), np.full((4, 4), np.float32(1e-8))
    )
    for rank, columns in ((2, 2), (60, 6)):
        factor = low_rank(rank).init(key, 6)
        assert factor.shape == (6, columns)
        assert 0 < np.abs(factor).max() < 1e-3
    longer, factor = (low_rank(3).init(key, count) for count in (9, 5))
    np.testing.assert_array_equal(longer[:5], factor)


# --- clusters


def blocks(seed, sizes, padded):
    """Coefficients within groups, weak ones between: and the groups."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    same = groups[:, None] == groups
    c = np.where(same, rng.uniform(0.5, 1, same.shape), 0.02) * rng.choice(
        [-1, 1], same.shape
    )
    whole = np.full((padded, padded), np.nan, np.float32)
    whole[: len(c), : len(c)] = c * (1 - np.eye(len(c)))
    return whole, groups


CLIENTS = [blocks(0, (6, 5, 7), 18), blocks(1, (4, 6, 5), 18), blocks(2, (6, 6, 6), 18)]
COEFFICIENTS = jnp.stack([c for c, _ in CLIENTS])
OWN = jnp.array([np.arange(18) < len(groups) for _, groups in CLIENTS])


@pytest.mark.parametrize("assign_labels", ["kmeans", "discretize"])
def test_clusters_are_those_of_sklearn_for_each_client(assign_labels):
    settings = LRSC().plain(assign_labels=assign_labels)
    find = jax.jit(partial(fdsc.cluster, settings, 3))
    found = np.asarray(find(COEFFICIENTS, OWN))
    for client, (c, groups) in enumerate(CLIENTS):
        c = c[: len(groups), : len(groups)].astype(np.float64)
        reference = SpectralClustering(
            3, affinity="precomputed", assign_labels=assign_labels, random_state=0
        )
        expected = reference.fit_predict(np.abs(c) + np.abs(c).T)
        assert ari(expected, found[client, : len(groups)]) == 1
        assert ari(groups, found[client, : len(groups)]) == 1


def test_coefficients_that_say_nothing_find_no_classes():
    """Examples that come class by class: their order is no one's business."""
    num_clients, size = 6, 60
    same = jnp.full((num_clients, size, size), 1e-4)
    mask = jnp.ones((num_clients, size), bool)
    found = np.asarray(fdsc.cluster(LRSC().plain(), 3, same, mask))
    classes = np.repeat(np.arange(3), size // 3)
    assert abs(np.mean([ari(classes, own) for own in found])) < 0.1


@pytest.mark.parametrize(
    ("locality", "scale", "expected"),
    [
        # 1e6 / 255^2: the whole objective divided by 255^2 is that of pixels of 0 to 1.
        *[("sum", 1.0, 15.3787), ("sum", 255.0, 1e6)],
        *[("mean", 1.0, 1e6), ("mean", 255.0, 1e6 * 255**2)],
    ],
)
def test_lambda_3_is_converted_to_the_scale_of_the_pixels(locality, scale, expected):
    settings = FDSC().plain(locality=locality, pixel_scale=scale)
    assert fdsc.locality_weight(settings) == pytest.approx(expected)
