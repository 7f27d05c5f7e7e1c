"""DEC's three equations by hand, against NumPy and PyTorch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from fcjax.losses import assignment_kl, student_t, target_distribution


@pytest.fixture
def embedded(key):
    """Nine embeddings and three centroids."""
    z_key, c_key = jax.random.split(key)
    return 2 * jax.random.normal(z_key, (9, 4)), jax.random.normal(c_key, (3, 4))


@pytest.fixture
def assignments(key):
    """Of nine examples to three clusters, and a target of the same."""
    return tuple(
        jax.nn.softmax(2 * jax.random.normal(k, (9, 3))) for k in jax.random.split(key)
    )


MASK = np.array([True, False, True, True, True, False, True, False, True])


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


def loss_of(z, centroids, p, mask=None):
    """Equation 2 of equation 1, as DEC descends on it."""
    return assignment_kl(p, student_t(z, centroids, mask=mask), mask=mask)


# --- Student's t


def test_student_t_by_hand():
    """At distances 0 and 3, and at 1 and 2."""
    z, centroids = jnp.array([[0.0], [1.0]]), jnp.array([[0.0], [3.0]])
    # dof 1: 1 / (1 + d^2), so 1 : 1/10 and 1/2 : 1/5.
    expected = [[10 / 11, 1 / 11], [5 / 7, 2 / 7]]
    np.testing.assert_allclose(student_t(z, centroids), expected, rtol=1e-6)
    # dof 3: (1 + d^2 / 3)^-2, so 1 : 1/16 and 9/16 : 9/49.
    expected = [[16 / 17, 1 / 17], [49 / 65, 16 / 65]]
    np.testing.assert_allclose(student_t(z, centroids, dof=3.0), expected, rtol=1e-6)


@pytest.mark.parametrize("dof", [0.5, 1.0, 10.0])
def test_student_t_is_equation_1(embedded, dof):
    q = student_t(*embedded, dof=dof)
    np.testing.assert_allclose(q, equation_1(*embedded, dof), rtol=1e-5)
    np.testing.assert_allclose(q.sum(axis=1), 1, rtol=1e-6)


def test_student_t_far_from_all_centroids():
    """The ratio of distances stays: (1e15 / 2e15)^2 at dof 1, to the 11th at 10."""
    z, centroids = jnp.array([[1e15]]), jnp.array([[0.0], [-1e15]])
    for dof, ratio in ((1.0, 4.0), (10.0, 2.0**11)):
        q = student_t(z, centroids, dof=dof)
        expected = [[ratio / (ratio + 1), 1 / (ratio + 1)]]
        np.testing.assert_allclose(q, expected, rtol=1e-4)
        for argnum in (0, 1):
            gradient = jax.grad(
                lambda z, c, dof=dof: student_t(z, c, dof=dof)[0, 0], argnum
            )(z, centroids)
            assert np.isfinite(gradient).all()


def test_student_t_keeps_short_distances_far_from_the_origin():
    """Both lie at whole numbers, so their differences are exact."""
    z, centroids = jnp.array([[10_001.0]]), jnp.array([[10_000.0], [10_004.0]])
    np.testing.assert_allclose(student_t(z, centroids), [[5 / 6, 1 / 6]], rtol=1e-6)


def test_student_t_at_a_centroid():
    """q = (1 + b)/(2 + b), b the square of z - c2; of z = c1 only c2's part is left."""
    z, centroids = jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 2.0], [3.0, 2.0]])
    gradients = jax.grad(lambda z, c: student_t(z, c)[0, 0], (0, 1))(z, centroids)
    # b = 4; d q / d b = 1 / (2 + b)^2 = 1/36, and d b / d z = 2 (z - c2) = -4.
    np.testing.assert_allclose(gradients[0], [[-1 / 9, 0.0]], atol=1e-7)
    np.testing.assert_allclose(gradients[1], [[0.0, 0.0], [1 / 9, 0.0]], atol=1e-7)


def test_degrees_of_freedom_may_be_swept(embedded):
    swept = jax.jit(jax.vmap(lambda dof: student_t(*embedded, dof=dof)))
    values = (0.5, 1.0, 10.0)
    expected = [equation_1(*embedded, dof) for dof in values]
    np.testing.assert_allclose(swept(jnp.array(values)), expected, rtol=1e-5)


# --- the target


def test_target_by_hand():
    """Cluster sizes of 1 and 1, then of 5/4 and 3/4."""
    q = jnp.array([[0.75, 0.25], [0.25, 0.75]])
    expected = [[9 / 10, 1 / 10], [1 / 10, 9 / 10]]
    np.testing.assert_allclose(target_distribution(q), expected, rtol=1e-6)
    # 1/4 / 5/4 = 1/5 to 1/4 / 3/4 = 1/3, and 9/16 / 5/4 = 9/20 to 1/16 / 3/4 = 1/12.
    q = jnp.array([[0.5, 0.5], [0.75, 0.25]])
    expected = [[3 / 8, 5 / 8], [27 / 32, 5 / 32]]
    np.testing.assert_allclose(target_distribution(q), expected, rtol=1e-6)


def test_target_is_equation_3(assignments):
    q, _ = assignments
    p = target_distribution(q)
    np.testing.assert_allclose(p, equation_3(q), rtol=1e-5)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-6)


def test_target_is_held_fixed(assignments):
    q, other = assignments
    gradient = jax.grad(lambda q: jnp.sum(other * target_distribution(q)))(q)
    np.testing.assert_array_equal(gradient, 0)


def test_target_of_an_unused_cluster():
    q = jnp.array([[0.75, 0.0, 0.25], [0.25, 0.0, 0.75]])
    expected = [[0.9, 0.0, 0.1], [0.1, 0.0, 0.9]]
    np.testing.assert_allclose(target_distribution(q), expected, rtol=1e-6)


def test_target_of_a_cluster_that_is_hardly_used():
    """q^2 is 1e-60, but q^2 / f is 1e-30 / 2 and in range."""
    q = jnp.array([[1.0, 1e-30], [1.0, 1e-30]])
    np.testing.assert_allclose(target_distribution(q)[:, 1], 1e-30, rtol=1e-5)


def test_target_counts_unmasked_rows_alone(assignments):
    q, _ = assignments
    spoilt = jnp.where(jnp.asarray(MASK)[:, None], q, jnp.nan)
    p = target_distribution(spoilt, mask=jnp.asarray(MASK))
    np.testing.assert_allclose(p[MASK], equation_3(q[MASK]), rtol=1e-5)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-6)
    nobody = target_distribution(spoilt, mask=jnp.zeros(9, bool))
    np.testing.assert_allclose(nobody.sum(axis=1), 1, rtol=1e-6)


# --- the divergence


def test_kl_by_hand():
    p = jnp.array([[0.5, 0.5], [1.0, 0.0]])
    q = jnp.array([[0.25, 0.75], [0.5, 0.5]])
    # 1/2 log 2 + 1/2 log 2/3, and log 2 + 0 log 0.
    expected = (np.log(4 / 3) / 2 + np.log(2)) / 2
    np.testing.assert_allclose(assignment_kl(p, q), expected, rtol=1e-6)
    np.testing.assert_allclose(assignment_kl(q, q), 0, atol=1e-7)


def test_kl_is_equation_2(assignments):
    p, q = assignments
    np.testing.assert_allclose(assignment_kl(p, q), equation_2(p, q), rtol=1e-5)
    assert abs(equation_2(p, q) - equation_2(q, p)) > 0.01


def test_kl_of_zeros_is_finite():
    """A 0 that the target has not is float32's smallest; one that it has is nothing."""
    p, q = jnp.array([[1.0, 0.0]]), jnp.array([[0.0, 1.0]])
    value, gradients = jax.value_and_grad(assignment_kl, argnums=(0, 1))(p, q)
    np.testing.assert_allclose(value, -np.log(np.finfo(np.float32).tiny), rtol=1e-6)
    assert np.isfinite(gradients).all()
    value, gradient = jax.value_and_grad(assignment_kl, argnums=1)(p, p)
    assert value == 0
    np.testing.assert_allclose(gradient, [[-1.0, 0.0]], atol=1e-6)


def test_kl_of_nobody_is_zero(assignments):
    value, gradient = jax.value_and_grad(assignment_kl, argnums=1)(
        *assignments, mask=jnp.zeros(9, bool)
    )
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


# --- what DEC descends on: the divergence of embeddings and centroids


def test_gradients_are_those_of_the_paper(embedded, assignments):
    """DEC's equations 4 and 5, of the sum over examples."""
    (z, centroids), (p, _) = embedded, assignments
    gradients = jax.grad(loss_of, (0, 1))(z, centroids, p)
    q = equation_1(z, centroids, 1.0)
    differences = np.asarray(z, np.float64)[:, None] - np.asarray(centroids)[None]
    pull = (np.asarray(p) - q) / (1 + (differences**2).sum(axis=-1))
    each = 2 * pull[:, :, None] * differences
    np.testing.assert_allclose(9 * gradients[0], each.sum(axis=1), atol=1e-5)
    np.testing.assert_allclose(9 * gradients[1], -each.sum(axis=0), atol=1e-5)


def test_values_and_gradients_are_those_of_torch(embedded):
    torch = pytest.importorskip("torch")
    z, centroids = (torch.tensor(np.asarray(a), requires_grad=True) for a in embedded)
    q = 1 / (1 + torch.cdist(z, centroids) ** 2)
    q = q / q.sum(dim=1, keepdim=True)
    p = torch.tensor(equation_3(q.detach().numpy()), dtype=torch.float32)
    expected = torch.nn.functional.kl_div(q.log(), p, reduction="batchmean")
    expected.backward()

    def loss(z, centroids):
        q = student_t(z, centroids)
        return assignment_kl(target_distribution(q), q)

    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(*embedded)
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    np.testing.assert_allclose(gradients[0], z.grad.numpy(), atol=1e-6)
    np.testing.assert_allclose(gradients[1], centroids.grad.numpy(), atol=1e-6)


def test_gradients_are_differences(embedded, assignments):
    p, _ = assignments
    # check_grads itself passes NumPy arrays.
    check_grads(
        lambda z, c: loss_of(jnp.asarray(z), jnp.asarray(c), p),
        embedded,
        order=1,
        modes=["rev"],
        atol=1e-2,
        rtol=1e-2,
    )


def test_same_under_jit_and_vmap(embedded, assignments):
    (z, centroids), (p, other) = embedded, assignments
    both = jax.value_and_grad(loss_of, argnums=(0, 1))
    expected = [both(z, centroids, p), both(2 * z, centroids - 1, other)]
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, jax.jit(both)(z, centroids, p), expected[0])
    stacked = jax.jit(jax.vmap(both))(
        jnp.stack([z, 2 * z]),
        jnp.stack([centroids, centroids - 1]),
        jnp.stack([p, other]),
    )
    for i in range(2):
        jax.tree.map(lambda x, y, i=i: close(x[i], y), stacked, expected[i])
    targets = jax.jit(jax.vmap(target_distribution))(jnp.stack([p, other]))
    close(targets, [equation_3(p), equation_3(other)])


@pytest.mark.parametrize("spoiler", [np.nan, np.inf, 1e30])
def test_masked_rows_may_hold_anything(embedded, assignments, spoiler):
    (z, centroids), (p, _), mask = embedded, assignments, jnp.asarray(MASK)
    spoilt = [jnp.where(mask[:, None], rows, spoiler) for rows in (z, p)]
    value, gradients = jax.value_and_grad(loss_of, argnums=(0, 1))(
        spoilt[0], centroids, spoilt[1], mask
    )
    expected = equation_2(p[MASK], equation_1(z[MASK], centroids, 1.0))
    references = jax.grad(loss_of, (0, 1))(z[MASK], centroids, p[MASK])
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradients[0][MASK], references[0], atol=1e-6)
    np.testing.assert_array_equal(gradients[0][~MASK], 0)
    np.testing.assert_allclose(gradients[1], references[1], atol=1e-6)


def test_a_masked_row_belongs_to_all_alike(embedded):
    """It moves no centroid, even where whoever asks forgets the mask."""
    z, centroids = embedded
    q = student_t(z.at[1].set(jnp.nan), centroids, mask=jnp.asarray(MASK))
    np.testing.assert_allclose(q[~MASK], 1 / 3, rtol=1e-6)
    gradient = jax.grad(
        lambda c: student_t(z, c, mask=jnp.asarray(MASK))[~MASK][:, 0].sum()
    )(centroids)
    np.testing.assert_array_equal(gradient, 0)


def test_lower_precision_is_computed_in_float32(embedded, assignments):
    z, centroids, p = (a.astype(jnp.bfloat16) for a in (*embedded, assignments[0]))
    q = student_t(z, centroids)
    expected = equation_1(*(a.astype(jnp.float32) for a in (z, centroids)), 1.0)
    np.testing.assert_allclose(q, expected, rtol=1e-5)
    for computed in (q, target_distribution(p), assignment_kl(p, q)):
        assert computed.dtype == jnp.float32
