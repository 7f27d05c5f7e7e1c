"""What deep subspace networks share: their loss against PyTorch, and clusters of each
client's coefficients against scikit-learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import SpectralClustering

from fcjax import models
from fcjax.algorithms import subspace
from fcjax.algorithms.subspace import SubspaceNetwork, dense, low_rank
from fcjax.evaluation import ari
from tests.algorithms.subspaces import plain_affinity

MASK = np.array([True, True, False, True, True, False, True])
N, F, D = len(MASK), 5, 3
PENALTY, EXPRESSION, SCALE = 0.3, 2.5, 4.0


def build(expression, scale=SCALE):
    """Linear, with biases."""
    return SubspaceNetwork(
        models.autoencoder(F, widths=(), latent_size=D),
        expression,
        penalty_weight=PENALTY,
        expression_weight=EXPRESSION,
        pixel_scale=scale,
    )


@pytest.fixture
def x():
    return np.random.default_rng(0).uniform(size=(N, F)).astype(np.float32)


def parts_of(network, key, x):
    """Drawn anew, with coefficients of some size."""
    parts = subspace.init(network, key, jnp.asarray(x[:1]), N)
    c = parts["coefficients"]["params"]
    c = 0.5 * jax.random.normal(jax.random.fold_in(key, 1), c.shape)
    return {**parts, "coefficients": {"params": c}}


def layer(variables):
    params = variables["params"]["Dense_0"]["Dense_0"]
    return [np.asarray(params[name]) for name in ("kernel", "bias")]


def torch_loss(parts, x, kind):
    """Of the examples that count alone: the loss, and its gradients by part."""
    torch = pytest.importorskip("torch")

    def tensors(arrays):
        return [torch.tensor(np.asarray(x), requires_grad=True) for x in arrays]

    encoder, decoder = (tensors(layer(parts[name])) for name in ("encoder", "decoder"))
    (held,) = tensors([parts["coefficients"]["params"]])
    own = torch.tensor(MASK)
    x = SCALE * torch.tensor(x)[own]
    c = held @ held.T if kind == "low_rank" else held
    c = c[own][:, own] * (1 - torch.eye(int(own.sum())))
    penalty = (
        (held[own] ** 2).sum() if kind == "low_rank" else torch.norm(c, "fro") ** 2
    )
    z = x @ encoder[0] + encoder[1]
    decoded = c @ z @ decoder[0] + decoder[1]
    loss = ((x - decoded) ** 2).sum() + PENALTY * penalty
    loss = loss + EXPRESSION * ((z - c @ z) ** 2).sum()
    loss.backward()
    kernels = {"encoder": encoder, "decoder": decoder, "coefficients": [held]}
    return loss.item(), {k: [t.grad.numpy() for t in v] for k, v in kernels.items()}


@pytest.mark.parametrize("kind", ["dense", "low_rank"])
def test_the_loss_and_its_gradients_are_those_of_torch(kind, key, x):
    network = build(dense() if kind == "dense" else low_rank(4))
    parts = parts_of(network, key, x)
    value, gradients = jax.jit(
        jax.value_and_grad(
            lambda parts: subspace.subspace_loss(
                network, parts, jnp.asarray(x), jnp.asarray(MASK)
            )
        )
    )(parts)
    expected, by_part = torch_loss(parts, x, kind)
    assert float(value) == pytest.approx(expected, rel=1e-5)
    for name, leaves in by_part.items():
        found = sorted(jax.tree.leaves(gradients[name]), key=np.ndim)
        for leaf, grad in zip(found, sorted(leaves, key=np.ndim), strict=True):
            bound = 1e-5 * np.abs(grad).max()
            np.testing.assert_allclose(leaf, grad, rtol=1e-5, atol=bound)


def test_pretraining_decodes_the_codes_themselves(key, x):
    network = build(dense())
    parts = parts_of(network, key, x)
    found = subspace.autoencoder_loss(network, parts, jnp.asarray(x), jnp.asarray(MASK))
    (w, b), (v, a) = (layer(parts[name]) for name in ("encoder", "decoder"))
    errors = SCALE * x - ((SCALE * x @ w + b) @ v + a)
    assert float(found) == pytest.approx(np.sum(errors[MASK] ** 2), rel=1e-5)


def test_pixels_are_scaled_from_0_to_1(key):
    """A network of scale 255 sees bytes as they are."""
    pixels = np.random.default_rng(1).integers(0, 256, (4, F), np.uint8)
    network = build(dense(), scale=255.0)
    encoder = subspace.init(network, key, jnp.asarray(pixels[:1]), 4)["encoder"]
    w, b = layer(encoder)
    found = subspace.encode(network, encoder, jnp.asarray(pixels))
    np.testing.assert_allclose(found, pixels @ w + b, rtol=1e-4, atol=1e-3)


# --- what coefficients are held in


def test_low_rank_coefficients_by_hand():
    """U U^T of rows (1, 2), (3, -1), (0, 2): 1 of the first two, 4 and -2."""
    u = jnp.array([[1.0, 2.0], [3.0, -1.0], [0.0, 2.0]])
    network, everyone = build(low_rank(2)), jnp.ones(3, bool)
    parts = {"coefficients": {"params": u}}
    np.testing.assert_allclose(
        subspace.coefficients_of(network, parts, everyone),
        [[0, 1, 4], [1, 0, -2], [4, -2, 0]],
    )
    np.testing.assert_allclose(
        subspace.coefficients_of(network, parts, jnp.array([True, False, True])),
        [[0, 0, 4], [0, 0, 0], [4, 0, 0]],
    )
    penalty = network.expression.penalty
    assert float(penalty(u, everyone)) == 1 + 4 + 9 + 1 + 0 + 4
    spoilt = u.at[1].set(jnp.nan)
    assert float(penalty(spoilt, jnp.array([True, False, True]))) == 1 + 4 + 0 + 4


@pytest.mark.parametrize(("rank", "columns"), [(2, 2), (6, 6), (60, 6)])
def test_a_factor_has_no_more_columns_than_rows(rank, columns, key):
    factor = low_rank(rank).init(key, 6)
    assert factor.shape == (6, columns)
    assert 0 < np.abs(factor).max() < 1e-3


def test_a_factor_does_not_depend_on_the_padding(key):
    np.testing.assert_array_equal(
        low_rank(3).init(key, 9)[:5], low_rank(3).init(key, 5)
    )


def test_dense_coefficients_begin_as_in_the_code_whose_weights_they_have(key):
    """1e-8 in the PyTorch port of DSC-Net."""
    found = dense().init(key, 4)
    np.testing.assert_array_equal(found, np.full((4, 4), np.float32(1e-8)))


@pytest.mark.parametrize("first", [0.0, 1e-8])
def test_coefficients_leave_zero(first, key, x):
    """At C = 0 the gradient is that of lambda_2 |Z - C Z|^2, -2 lambda_2 Z Z^T, where
    the decoder is dead, as one of ReLUs is whose biases are 0."""
    network, own = build(dense()), np.outer(MASK, MASK) & ~np.eye(N, dtype=bool)
    parts = parts_of(network, key, x)
    dead = jax.tree.map(jnp.zeros_like, parts["decoder"])
    coefficients = {"params": jnp.full((N, N), first)}
    gradient = jax.grad(
        lambda held: subspace.subspace_loss(
            network,
            {**parts, "decoder": dead, "coefficients": held},
            jnp.asarray(x),
            jnp.asarray(MASK),
        )
    )(coefficients)["params"]
    w, b = layer(parts["encoder"])
    z = SCALE * x @ w + b
    expected = np.where(own, -2 * EXPRESSION * z @ z.T, 0)
    assert np.abs(expected[own]).min() > 1e-3
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


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


def cluster(coefficients, mask, assign_labels="kmeans"):
    return np.asarray(
        jax.jit(
            lambda c, m: subspace.cluster(
                *(c, m),
                affinity=plain_affinity,
                num_clusters=3,
                assign_labels=assign_labels,
            )
        )(coefficients, mask)
    )


@pytest.mark.parametrize("assign_labels", ["kmeans", "discretize"])
def test_clusters_are_those_of_sklearn_for_each_client(assign_labels):
    found = cluster(COEFFICIENTS, OWN, assign_labels)
    assert found.shape == OWN.shape
    assert found.min() >= 0
    assert found.max() < 3
    for client, (c, groups) in enumerate(CLIENTS):
        c = c[: len(groups), : len(groups)].astype(np.float64)
        reference = SpectralClustering(
            3, affinity="precomputed", assign_labels=assign_labels, random_state=0
        )
        expected = reference.fit_predict(np.abs(c) + np.abs(c).T)
        assert ari(expected, found[client, : len(groups)]) == 1
        assert ari(groups, found[client, : len(groups)]) == 1


def test_clusters_of_a_client_are_its_own_affair():
    """And the same whenever they are asked for."""
    together = cluster(COEFFICIENTS, OWN)
    reordered = cluster(COEFFICIENTS[::-1], OWN[::-1])[::-1]
    for client, own in enumerate(np.asarray(OWN)):
        np.testing.assert_array_equal(together[client][own], reordered[client][own])


def test_coefficients_that_say_nothing_find_no_classes():
    """Examples that come class by class: their order is no one's business."""
    num_clients, size = 6, 60
    same = jnp.full((num_clients, size, size), 1e-4)
    mask = jnp.ones((num_clients, size), bool)
    found = np.asarray(
        subspace.cluster(same, mask, affinity=plain_affinity, num_clusters=3)
    )
    classes = np.repeat(np.arange(3), size // 3)
    assert abs(np.mean([ari(classes, own) for own in found])) < 0.1
