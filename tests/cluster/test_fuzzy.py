import jax
import jax.numpy as jnp
import numpy as np
import pytest
from skfuzzy import cmeans
from sklearn.datasets import load_digits, make_blobs

from fcjax.cluster import fuzzy_cmeans, fuzzy_lloyd, kmeans


@pytest.fixture(scope="module")
def digits():
    x = load_digits().data
    return jnp.array(x / np.linalg.norm(x, axis=1, keepdims=True), jnp.float32)


@pytest.fixture(scope="module")
def blobs():
    x, _ = make_blobs(300, 8, centers=6, cluster_std=3.0, random_state=0)
    return jnp.array(x, jnp.float32)


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


def test_two_rows_and_two_centroids_by_hand():
    x, centroids = jnp.array([[0.0], [3.0]]), jnp.array([[1.0], [5.0]])
    # m = 2: shares go as 1 / d^2. Row 0 has 1 and 1/25, row 3 has 1/4 and 1/4.
    result = fuzzy_lloyd(x, centroids, fuzzifier=2.0, num_iters=0)
    expected = [[25 / 26, 1 / 26], [0.5, 0.5]]
    np.testing.assert_allclose(result.memberships, expected, rtol=1e-6)
    objective = (25 / 26) ** 2 * 1 + (1 / 26) ** 2 * 25 + 0.25 * 4 + 0.25 * 4
    np.testing.assert_allclose(result.objective, objective, rtol=1e-6)
    # One step: the mean by u^2.
    moved = fuzzy_lloyd(x, centroids, fuzzifier=2.0, num_iters=1).centroids
    first = 0.25 * 3 / ((25 / 26) ** 2 + 0.25)
    second = 0.25 * 3 / ((1 / 26) ** 2 + 0.25)
    np.testing.assert_allclose(moved[:, 0], [first, second], rtol=1e-6)


@pytest.mark.parametrize("fuzzifier", [1.1, 1.5, 2.0])
def test_memberships_are_bezdeks_formula(blobs, fuzzifier):
    result = fuzzy_lloyd(blobs, blobs[:6] + 0.1, fuzzifier=fuzzifier, num_iters=3)
    expected = naive_memberships(blobs, result.centroids, fuzzifier)
    np.testing.assert_allclose(result.memberships, expected, atol=1e-5)
    np.testing.assert_array_equal(result.assignments, expected.argmax(axis=1))


@pytest.mark.parametrize(
    ("name", "num_clusters", "fuzzifier"),
    [("digits", 10, 1.1), ("digits", 10, 1.3), ("blobs", 6, 1.1), ("blobs", 6, 2.0)],
)
def test_the_same_start_ends_where_scikit_fuzzy_ends(
    request, name, num_clusters, fuzzifier
):
    x = request.getfixturevalue(name)
    # Off the rows themselves, where the printed formula is 0 / 0.
    start = x[:num_clusters] + 0.01
    centroids, memberships, objective = skfuzzy_from(x, start, fuzzifier)
    result = fuzzy_lloyd(
        x, start, fuzzifier=fuzzifier, num_iters=10_000, tolerance=1e-6
    )
    np.testing.assert_allclose(result.centroids, centroids, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result.memberships, memberships, atol=1e-4)
    np.testing.assert_allclose(result.objective, objective, rtol=1e-4)


def test_as_good_as_the_best_start_of_scikit_fuzzy(key, blobs):
    start = np.random.default_rng(0).choice(len(blobs), (10, 6))
    best = min(skfuzzy_from(blobs, blobs[rows] + 0.01, 1.1)[2] for rows in start)
    assert fuzzy_cmeans(key, blobs, 6).objective <= best * (1 + 1e-3)


def test_a_fuzzifier_near_one_is_k_means(key, blobs):
    fuzzy = fuzzy_cmeans(key, blobs, 6, fuzzifier=1.005, tolerance=1e-6)
    hard = kmeans(key, blobs, 6)
    np.testing.assert_allclose(fuzzy.objective, hard.inertia, rtol=1e-2)
    np.testing.assert_allclose(fuzzy.memberships.max(axis=1).mean(), 1, atol=0.01)


def test_masked_rows_count_nothing(key, blobs):
    mask = jnp.arange(len(blobs)) < 250
    spoilt = jnp.where(mask[:, None], blobs, jnp.nan)
    for masked, subset in (
        (fuzzy_cmeans(key, spoilt, 6, mask=mask), fuzzy_cmeans(key, blobs[:250], 6)),
        (
            fuzzy_lloyd(spoilt, blobs[:6], mask=mask),
            fuzzy_lloyd(blobs[:250], blobs[:6]),
        ),
    ):
        np.testing.assert_allclose(masked.centroids, subset.centroids, atol=1e-4)
        np.testing.assert_allclose(
            masked.memberships[:250], subset.memberships, atol=1e-4
        )
        np.testing.assert_allclose(masked.objective, subset.objective, rtol=1e-5)


def test_a_weight_of_two_is_a_row_twice(blobs):
    few = blobs[:60]
    weights = jnp.where(jnp.arange(60) < 20, 2.0, 1.0)
    twice = jnp.concatenate([few, few[:20]])
    weighted = fuzzy_lloyd(few, few[:5], weights=weights, tolerance=1e-6)
    repeated = fuzzy_lloyd(twice, few[:5], tolerance=1e-6)
    np.testing.assert_allclose(weighted.centroids, repeated.centroids, atol=1e-4)
    np.testing.assert_allclose(weighted.objective, repeated.objective, rtol=1e-5)


def test_vmapped_is_looped(blobs):
    keys = jax.random.split(jax.random.key(3), 3)
    fuzzifiers = jnp.array([1.1, 1.3, 2.0])

    def cluster(key, fuzzifier):
        return fuzzy_cmeans(key, blobs, 6, fuzzifier=fuzzifier, num_init=2)

    together = jax.vmap(cluster)(keys, fuzzifiers)
    for run in range(3):
        alone = cluster(keys[run], fuzzifiers[run])
        np.testing.assert_allclose(together.centroids[run], alone.centroids, atol=1e-4)
        np.testing.assert_allclose(
            together.memberships[run], alone.memberships, atol=1e-4
        )


def test_rows_at_centroids_and_equal_rows_stay_finite(key):
    x = jnp.array([[0.0, 0.0]] * 4 + [[1.0, 1.0]] * 4)
    result = fuzzy_cmeans(key, x, 3)
    for leaf in result:
        assert np.isfinite(leaf).all()
    np.testing.assert_allclose(result.memberships.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(result.objective, 0, atol=1e-6)


def test_the_number_of_clusters_is_checked(key, blobs):
    for count in (0, 301):
        with pytest.raises(ValueError, match="num_clusters must be between 1"):
            fuzzy_cmeans(key, blobs, count)
