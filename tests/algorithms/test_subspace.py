"""Coefficients of subspace clustering: how they are held, their clusters against
scikit-learn, and LRSC's closed form against a numerical optimum."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import SpectralClustering

from fcjax import losses
from fcjax.algorithms import fdsc
from fcjax.algorithms.fdsc import low_rank, low_rank_coefficients, lrsc
from fcjax.cluster import subspace_affinity
from fcjax.methods import FDSC, LRSC
from fcjax.metrics import ari
from tests.algorithms.federations import federate, rounds


def test_low_rank_coefficients_by_hand():
    """U U^T of rows (1, 2), (3, -1), (0, 2): 1 of the first two, 4 and -2; then without
    the second one, which may hold anything."""
    u = jnp.array([[1.0, 2.0], [3.0, -1.0], [0.0, 2.0]])
    expression, everyone = low_rank(2), jnp.ones(3, bool)
    for held, mask, expected, square in (
        (u, everyone, [[0, 1, 4], [1, 0, -2], [4, -2, 0]], 1 + 4 + 9 + 1 + 0 + 4),
        (u.at[1].set(jnp.nan), everyone.at[1].set(False), [[0, 0, 4], [0] * 3], 9),
    ):
        found = losses.off_diagonal(expression.matrix(held), mask)
        np.testing.assert_allclose(found[: len(expected)], expected)
        assert float(expression.penalty(held, mask)) == square


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


def test_post_processing_is_that_of_the_settings():
    names = {"keep": 0.5, "dimension": 3, "power": 2.0, "unit_diagonal": True}
    settings = LRSC().plain(post_processing=True, **names)
    found = fdsc.affinity(settings, 3, COEFFICIENTS[1], OWN[1])
    expected = subspace_affinity(COEFFICIENTS[1], num_clusters=3, mask=OWN[1], **names)
    np.testing.assert_array_equal(found, expected)


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


# --- LRSC

MASK = np.array([True, True, False, True, True, True, True, False, True])


def objective(c, x, fidelity):
    nuclear = np.linalg.svd(c, compute_uv=False).sum()
    return nuclear + fidelity / 2 * np.sum((x - c @ x) ** 2)


def proximal_gradient(x, fidelity, num_steps=4000):
    """Singular values of each step are drawn to zero by as much as the step is long."""
    rate = 1 / (fidelity * np.linalg.norm(x, 2) ** 2)
    c = np.zeros((len(x), len(x)))
    for _ in range(num_steps):
        c = c + rate * fidelity * (x - c @ x) @ x.T
        u, singular, vt = np.linalg.svd(c)
        c = (u * np.maximum(singular - rate, 0)) @ vt
    return c


def examples(noise):
    """Seven of rank 3 in five dimensions, but for noise."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(7, 3)) @ rng.normal(size=(3, 5))
    return x + noise * rng.normal(size=x.shape)


closed_form = jax.jit(low_rank_coefficients)


# Of 3 singular values without noise, of 5 with, so many are kept.
@pytest.mark.parametrize(
    ("fidelity", "noise", "rank"),
    [(0.01, 0.3, 0), (0.02, 0.0, 1), (0.1, 0.3, 2), (10.0, 0.0, 3), (10.0, 0.3, 4)],
)
def test_the_closed_form_is_the_optimum(fidelity, noise, rank):
    x = examples(noise)
    expected = proximal_gradient(x, fidelity)
    assert np.linalg.matrix_rank(expected, tol=1e-6) == rank
    # Among other examples, which do not count and may hold anything.
    rows = np.full((len(MASK), 5), np.nan)
    rows[MASK] = x
    found, minimum = closed_form(
        jnp.asarray(rows, jnp.float32), fidelity, mask=jnp.asarray(MASK)
    )
    found, own = np.asarray(found, np.float64), np.ix_(MASK, MASK)
    np.testing.assert_allclose(found[own], expected, atol=2e-5)
    assert not found[~MASK].any()
    assert not found[:, ~MASK].any()
    for c in (expected, found[own]):
        assert float(minimum) == pytest.approx(objective(c, x, fidelity), rel=1e-5)


def test_clients_stay_by_themselves(key):
    """The loss is the mean over those that answer, and nothing is sent."""
    x = examples(0.3)
    rows = [np.arange(4), np.arange(7), np.arange(2, 7)]
    federation = federate(x, rows, absent=(1,))
    method = lrsc(LRSC().plain(fidelity=0.7, unit_length=False), num_clusters=2)
    state, metrics = rounds(method, key, federation)
    assert set(metrics) == {"loss", "participants"}
    assert int(metrics["participants"]) == 2
    minima = [objective(proximal_gradient(x[r], 0.7), x[r], 0.7) for r in rows]
    assert float(metrics["loss"]) == pytest.approx((minima[0] + minima[2]) / 2, 1e-5)
    np.testing.assert_array_equal(state.clients[1], 0)
    np.testing.assert_allclose(
        state.clients[2, :5, :5], proximal_gradient(x[rows[2]], 0.7), atol=2e-5
    )
    np.testing.assert_allclose(method.embed(state, federation)[0, :4], x[:4], 1e-5)
