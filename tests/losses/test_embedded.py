"""DEC's three equations by hand and against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.losses import assignment_kl, student_t, target_distribution


@pytest.fixture
def embedded(key):
    """Nine embeddings and three centroids."""
    rows = 2 * jax.random.normal(key, (12, 4))
    return rows[:9], rows[9:]


@pytest.fixture
def assignments(key):
    """Of nine examples to three clusters, and a target of the same."""
    return jax.nn.softmax(2 * jax.random.normal(key, (2, 9, 3)))


def equation_1(z, centroids, dof):
    z, centroids = np.asarray(z, np.float64), np.asarray(centroids, np.float64)
    q = np.empty((len(z), len(centroids)))
    for i, row in enumerate(z):
        for j, centroid in enumerate(centroids):
            distance = np.linalg.norm(row - centroid)
            q[i, j] = (1 + distance**2 / dof) ** (-(dof + 1) / 2)
    return q / q.sum(axis=1, keepdims=True)


def equation_3(q):
    weight = np.asarray(q, np.float64) ** 2 / np.asarray(q, np.float64).sum(axis=0)
    return weight / weight.sum(axis=1, keepdims=True)


def equation_2(p, q):
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    return np.mean([(a * np.log(a / b)).sum() for a, b in zip(p, q, strict=True)])


# --- Student's t


def test_student_t_is_equation_1(embedded):
    for dof in (0.5, 1.0, 10.0):
        q = student_t(*embedded, dof=dof)
        np.testing.assert_allclose(q, equation_1(*embedded, dof), rtol=1e-5)


def test_student_t_far_from_all_centroids():
    """The ratio of distances stays: (1e15 / 2e15)^2 at dof 1, to the 11th at 10."""
    z, centroids = jnp.array([[1e15]]), jnp.array([[0.0], [-1e15]])
    for dof, ratio in ((1.0, 4.0), (10.0, 2.0**11)):
        q, backwards = jax.vjp(
            lambda z, c, dof=dof: student_t(z, c, dof=dof), z, centroids
        )
        expected = [[ratio / (ratio + 1), 1 / (ratio + 1)]]
        np.testing.assert_allclose(q, expected, rtol=1e-4)
        for gradient in backwards(jnp.array([[1.0, 0.0]])):
            assert np.isfinite(gradient).all()


def test_student_t_keeps_short_distances_far_from_the_origin():
    """Both lie at whole numbers, so their differences are exact."""
    z, centroids = jnp.array([[10_001.0]]), jnp.array([[10_000.0], [10_004.0]])
    np.testing.assert_allclose(student_t(z, centroids), [[5 / 6, 1 / 6]], rtol=1e-6)


def test_a_masked_row_belongs_to_all_alike(embedded):
    """It moves no centroid, even where whoever asks forgets the mask."""
    z, centroids = embedded
    q, backwards = jax.vjp(
        lambda c: student_t(z.at[1].set(jnp.nan), c, mask=jnp.arange(9) != 1), centroids
    )
    np.testing.assert_allclose(q[1], 1 / 3, rtol=1e-6)
    asked = jnp.zeros((9, 3)).at[1, 0].set(1)
    np.testing.assert_array_equal(backwards(asked)[0], 0)


# --- the target


def test_target_of_an_unused_cluster_by_hand():
    q = jnp.array([[0.75, 0.0, 0.25], [0.25, 0.0, 0.75]])
    expected = [[0.9, 0.0, 0.1], [0.1, 0.0, 0.9]]
    np.testing.assert_allclose(target_distribution(q), expected, rtol=1e-6)


def test_target_is_equation_3(assignments):
    q, _ = assignments
    np.testing.assert_allclose(target_distribution(q), equation_3(q), rtol=1e-5)


def test_target_of_a_cluster_that_is_hardly_used():
    """q^2 is 1e-60, but q^2 / f is 1e-30 / 2 and in range."""
    q = jnp.array([[1.0, 1e-30], [1.0, 1e-30]])
    np.testing.assert_allclose(target_distribution(q)[:, 1], 1e-30, rtol=1e-5)


# --- the divergence


def test_kl_is_equation_2(assignments):
    p, q = assignments
    np.testing.assert_allclose(assignment_kl(p, q), equation_2(p, q), rtol=1e-5)


def test_kl_of_zeros_is_finite():
    """A 0 that the target has not is float32's smallest; one that it has is nothing."""
    p, q = jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]])
    step = jax.value_and_grad(assignment_kl, argnums=(0, 1))
    value, gradients = step(p, q)
    np.testing.assert_allclose(value, -np.log(np.finfo(np.float32).tiny), rtol=1e-6)
    assert np.isfinite(gradients).all()
    value, gradients = step(p, p)
    assert value == 0
    np.testing.assert_allclose(gradients[1], [[-1.0, 0.0]], atol=1e-6)


# --- what DEC descends on: the divergence of embeddings and centroids


def test_gradients_are_those_of_the_paper(embedded):
    """DEC's equations 4 and 5, of the sum over examples and a target held fixed."""

    def loss_of(z, centroids):
        q = student_t(z, centroids)
        return assignment_kl(target_distribution(q), q)

    gradients = jax.grad(loss_of, (0, 1))(*embedded)
    q = equation_1(*embedded, 1.0)
    z, centroids = (np.asarray(a, np.float64) for a in embedded)
    differences = z[:, None] - centroids[None]
    pull = (equation_3(q) - q) / (1 + (differences**2).sum(axis=-1))
    each = 2 * pull[:, :, None] * differences
    np.testing.assert_allclose(9 * gradients[0], each.sum(axis=1), atol=1e-5)
    np.testing.assert_allclose(9 * gradients[1], -each.sum(axis=0), atol=1e-5)
