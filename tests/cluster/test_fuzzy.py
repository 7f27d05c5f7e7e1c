import jax.numpy as jnp
import numpy as np
import pytest
from skfuzzy import cmeans
from sklearn.datasets import load_digits

from fcjax.cluster import fuzzy_cmeans, fuzzy_lloyd


@pytest.fixture(scope="module")
def digits():
    x = load_digits().data[:600]
    return jnp.array(x / np.linalg.norm(x, axis=1, keepdims=True), jnp.float32)


def naive_memberships(x, centroids, fuzzifier):
    """Bezdek's formula as it is printed, in float64."""
    x, centroids = np.asarray(x, np.float64), np.asarray(centroids, np.float64)
    distance = np.linalg.norm(x[:, None] - centroids[None], axis=-1)
    ratio = distance[:, :, None] / distance[:, None, :]
    return 1 / (ratio ** (2 / (fuzzifier - 1))).sum(axis=-1)


def skfuzzy_from(x, centroids, fuzzifier):
    """Where scikit-fuzzy ends from the memberships that the centroids give."""
    start = naive_memberships(x, centroids, fuzzifier).T
    data = np.asarray(x, np.float64).T
    found = cmeans(data, len(centroids), fuzzifier, 1e-9, 10_000, init=start)
    return found[0], found[1].T, found[4][-1]


def test_memberships_are_bezdeks_formula(blobs):
    for fuzzifier in (1.1, 1.5, 2.0):
        result = fuzzy_lloyd(blobs, blobs[:6] + 0.1, fuzzifier=fuzzifier, num_iters=3)
        expected = naive_memberships(blobs, result.centroids, fuzzifier)
        np.testing.assert_allclose(result.memberships, expected, atol=1e-5)
        np.testing.assert_array_equal(result.assignments, expected.argmax(axis=1))


@pytest.mark.parametrize(
    ("name", "fuzzifier"), [("digits", 1.1), ("blobs", 1.1), ("blobs", 2.0)]
)
def test_the_same_start_ends_where_scikit_fuzzy_ends(request, name, fuzzifier):
    x = request.getfixturevalue(name)
    # Off the rows themselves, where the printed formula is 0 / 0.
    start = x[:6] + 0.01
    centroids, memberships, objective = skfuzzy_from(x, start, fuzzifier)
    result = fuzzy_lloyd(
        x, start, fuzzifier=fuzzifier, num_iters=10_000, tolerance=1e-6
    )
    np.testing.assert_allclose(result.centroids, centroids, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result.memberships, memberships, atol=1e-4)
    np.testing.assert_allclose(result.objective, objective, rtol=1e-4)


def test_a_weight_of_two_is_a_row_twice(blobs):
    weights = jnp.where(jnp.arange(300) < 100, 2.0, 1.0)
    twice = jnp.concatenate([blobs, blobs[:100]])
    weighted = fuzzy_lloyd(blobs, blobs[:6], weights=weights, tolerance=1e-6)
    repeated = fuzzy_lloyd(twice, blobs[:6], tolerance=1e-6)
    np.testing.assert_allclose(weighted.centroids, repeated.centroids, atol=1e-4)
    np.testing.assert_allclose(weighted.objective, repeated.objective, rtol=1e-5)


def test_rows_at_centroids_and_equal_rows_stay_finite(key):
    x = jnp.array([[0.0, 0.0]] * 4 + [[1.0, 1.0]] * 4)
    result = fuzzy_cmeans(key, x, 3)
    for leaf in result:
        assert np.isfinite(leaf).all()
    np.testing.assert_allclose(result.memberships.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(result.objective, 0, atol=1e-6)
