import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs

from fcjax.cluster import assign_nearest, kmeans, lloyd, used_clusters
from fcjax.cluster.seeding import UNUSED


@pytest.fixture(scope="module")
def digits():
    return jnp.array(load_digits().data / 16, jnp.float32)


@pytest.fixture(scope="module")
def blobs():
    x, _ = make_blobs(300, 8, centers=6, cluster_std=3.0, random_state=0)
    return jnp.array(x, jnp.float32)


def assert_same(result, expected, rtol=1e-4, atol=1e-4):
    """The same clusters in the same order."""
    np.testing.assert_allclose(
        result.centroids, expected.centroids, rtol=rtol, atol=atol
    )
    np.testing.assert_array_equal(result.assignments, expected.assignments)
    np.testing.assert_allclose(result.inertia, expected.inertia, rtol=rtol, atol=atol)


def sklearn_lloyd(x, centroids, weights=None):
    model = KMeans(len(centroids), init=np.array(centroids), n_init=1, tol=0)
    return model.fit(np.array(x), sample_weight=weights)


def test_by_hand(key):
    x = jnp.array([[0.0, 0.0], [0.0, 2.0], [9.0, 0.0], [9.0, 4.0]])
    result = kmeans(key, x, 2)
    first = result.assignments[0]
    np.testing.assert_array_equal(
        result.assignments, [first, first, 1 - first, 1 - first]
    )
    np.testing.assert_allclose(result.centroids[first], [0, 1], atol=1e-6)
    np.testing.assert_allclose(result.centroids[1 - first], [9, 2], atol=1e-6)
    # Twice 1^2 and twice 2^2.
    np.testing.assert_allclose(result.inertia, 10, rtol=1e-6)
    assert result.assignments.dtype == jnp.int32
    assert result.centroids.dtype == result.inertia.dtype == jnp.float32


@pytest.mark.parametrize(("name", "num_clusters"), [("digits", 10), ("blobs", 6)])
def test_as_good_as_sklearn(request, key, name, num_clusters):
    x = request.getfixturevalue(name)
    reference = KMeans(num_clusters, n_init=10, tol=0, random_state=0).fit(np.array(x))
    inertia = kmeans(key, x, num_clusters).inertia
    assert inertia <= reference.inertia_ * (1 + 1e-3)


@pytest.mark.parametrize("name", ["digits", "blobs"])
def test_lloyd_equals_sklearn(request, key, name):
    x = request.getfixturevalue(name)
    # Digits lie on a lattice, where a row can be as near to one seed as to another.
    start = x[jnp.arange(0, 200, 20)]
    start += 0.01 * jax.random.normal(key, start.shape)
    result = lloyd(x, start, num_iters=300)
    reference = sklearn_lloyd(x, start)
    np.testing.assert_allclose(result.centroids, reference.cluster_centers_, atol=1e-4)
    np.testing.assert_allclose(result.inertia, reference.inertia_, rtol=1e-4)
    np.testing.assert_array_equal(result.assignments, reference.labels_)


def test_weights_equal_sklearn(blobs, key):
    weights = jax.random.uniform(key, (300,), maxval=3).at[::7].set(0)
    start = blobs[:6]
    result = lloyd(blobs, start, weights=weights, num_iters=300)
    reference = sklearn_lloyd(blobs, start, np.array(weights))
    np.testing.assert_allclose(result.centroids, reference.cluster_centers_, atol=1e-4)
    np.testing.assert_allclose(result.inertia, reference.inertia_, rtol=1e-4)
    best = KMeans(6, n_init=10, tol=0, random_state=0)
    best = best.fit(np.array(blobs), sample_weight=np.array(weights))
    inertia = kmeans(key, blobs, 6, weights=weights).inertia
    assert inertia <= best.inertia_ * (1 + 1e-3)


def test_integer_weights_equal_repeated_rows(blobs, key):
    counts = np.arange(300) % 4
    repeated = blobs[np.repeat(np.arange(300), counts)]
    weights = jnp.array(counts, jnp.float32)
    # The draws agree too: both have the same cumulative weights.
    result = kmeans(key, blobs, 6, weights=weights)
    expected = kmeans(key, repeated, 6)
    np.testing.assert_allclose(result.centroids, expected.centroids, atol=1e-4)
    np.testing.assert_allclose(result.inertia, expected.inertia, rtol=1e-5)


@pytest.mark.parametrize("num_init", [1, 10])
def test_masked_equals_subset(blobs, key, num_init):
    mask = np.random.default_rng(0).random(300) < 0.6
    result = kmeans(key, blobs, 6, mask=jnp.array(mask), num_init=num_init)
    expected = kmeans(key, blobs[mask], 6, num_init=num_init)
    nearest = assign_nearest(blobs, result.centroids)
    np.testing.assert_array_equal(result.assignments, nearest)
    assert_same(result._replace(assignments=nearest[mask]), expected)


def test_mask_and_weights_multiply(blobs, key):
    mask = jnp.arange(300) % 3 > 0
    weights = jax.random.uniform(key, (300,))
    result = kmeans(key, blobs, 6, mask=mask, weights=weights)
    assert_same(result, kmeans(key, blobs, 6, weights=jnp.where(mask, weights, 0)))


@pytest.mark.parametrize("value", [1e6, 1e30, np.inf, np.nan])
@pytest.mark.parametrize("num_padding", [1, 212])
def test_padding_changes_nothing(blobs, value, num_padding):
    padded = jnp.concatenate([blobs, jnp.full((num_padding, 8), value)])
    mask = jnp.arange(len(padded)) < 300
    for seed in range(20):
        key = jax.random.key(seed)
        # One seeding, so that nothing hides a different draw.
        result = kmeans(key, padded, 6, mask=mask, num_init=1)
        expected = kmeans(key, blobs, 6, num_init=1)
        assert_same(result._replace(assignments=result.assignments[:300]), expected)
        assert result.assignments.min() >= 0
        assert result.assignments.max() < 6


def test_padding_in_between_changes_nothing(blobs, key):
    padded = jnp.full((900, 8), 1e3).at[2::3].set(blobs)
    result = kmeans(key, padded, 6, mask=jnp.arange(900) % 3 == 2, num_init=1)
    expected = kmeans(key, blobs, 6, num_init=1)
    assert_same(result._replace(assignments=result.assignments[2::3]), expected)


@pytest.fixture
def federation(blobs, key):
    """Two runs of three clients, of 50 rows or fewer."""
    mask = jnp.arange(50)[None] < jnp.array([50, 30, 50, 4, 20, 1])[:, None]
    keys = jax.random.split(key, (2, 3))
    return keys, blobs.reshape(2, 3, 50, 8), mask.reshape(2, 3, 50)


def cluster_client(key, x, mask):
    return kmeans(key, x, 4, mask=mask)


def test_vmapped_equals_looped(federation):
    result = jax.jit(jax.vmap(jax.vmap(cluster_client)))(*federation)
    for g, m in np.ndindex(2, 3):
        client, *arrays = jax.tree.map(lambda a, i=(g, m): a[i], (result, *federation))
        assert_same(client, cluster_client(*arrays))


def test_mapped_equals_looped(federation):
    clients = jax.tree.map(lambda a: a[0], federation)
    result = jax.jit(lambda *a: jax.lax.map(lambda b: cluster_client(*b), a))(*clients)
    for m in range(3):
        client, *arrays = jax.tree.map(lambda a, i=m: a[i], (result, *clients))
        assert_same(client, cluster_client(*arrays))


def test_deterministic(blobs, key):
    first, second = kmeans(key, blobs, 6), kmeans(key, blobs, 6)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_more_seedings_do_not_hurt(blobs):
    keys = jax.random.split(jax.random.key(1), 20)
    one = jnp.array([kmeans(key, blobs, 6, num_init=1).inertia for key in keys])
    ten = jnp.array([kmeans(key, blobs, 6).inertia for key in keys])
    assert ten.max() < one.mean()
    assert ten.std() < one.std()


def test_far_from_the_origin(blobs, key):
    result = kmeans(key, blobs + 1e4, 6)
    expected = kmeans(key, blobs, 6)
    np.testing.assert_allclose(result.inertia, expected.inertia, rtol=1e-3)


def test_iterations_are_bounded(blobs):
    start = blobs[:6]
    one = lloyd(blobs, start, num_iters=1)
    nearest = np.array(assign_nearest(blobs, start))
    means = [np.array(blobs)[nearest == c].mean(axis=0) for c in range(6)]
    np.testing.assert_allclose(one.centroids, means, atol=1e-4)
    none = lloyd(blobs, start, num_iters=0)
    np.testing.assert_allclose(none.centroids, start, atol=1e-5)


def test_an_empty_cluster_keeps_its_centroid():
    x = jnp.array([[0.0], [1.0], [10.0]])
    start = jnp.array([[0.0], [50.0], [9.0]])
    result = lloyd(x, start)
    np.testing.assert_allclose(result.centroids, [[0.5], [50.0], [10.0]], atol=1e-5)
    np.testing.assert_array_equal(result.assignments, [0, 0, 2])
    # A cluster whose rows are all masked is empty too.
    result = lloyd(x, start, mask=jnp.array([True, True, False]))
    np.testing.assert_allclose(result.centroids, [[0.5], [50.0], [9.0]], atol=1e-5)
    np.testing.assert_allclose(result.inertia, 0.5, rtol=1e-5)


def test_all_points_equal(key):
    result = kmeans(key, jnp.full((20, 3), 0.1), 4)
    np.testing.assert_allclose(result.centroids, 0.1, rtol=1e-5)
    np.testing.assert_allclose(result.inertia, 0, atol=1e-8)


def test_fewer_distinct_points_than_clusters(key):
    x = jnp.tile(jnp.array([[0.0, 1.0], [5.0, 5.0], [-3.0, 2.0]]), (5, 1))
    result = kmeans(key, x, 7)
    np.testing.assert_allclose(result.inertia, 0, atol=1e-8)
    np.testing.assert_allclose(result.centroids[result.assignments], x, atol=1e-5)
    assert {tuple(c) for c in np.round(result.centroids).tolist()} == {
        (0.0, 1.0),
        (5.0, 5.0),
        (-3.0, 2.0),
    }


def test_masked_rows_are_never_seeds(key):
    x = jnp.array([[0.0], [1.0], [100.0], [200.0], [300.0]])
    mask = jnp.array([True, True, False, False, False])
    result = kmeans(key, x, 4, mask=mask)
    assert set(np.round(result.centroids[:, 0]).tolist()) == {0.0, 1.0}
    weights = jnp.array([0.0, 0.0, 1.0, 2.0, 0.0])
    result = kmeans(key, x, 4, weights=weights)
    assert set(np.round(result.centroids[:, 0]).tolist()) == {100.0, 200.0}


def test_nothing_left_is_finite(key):
    result = kmeans(key, jnp.ones((5, 2)), 3, mask=jnp.zeros(5, bool))
    np.testing.assert_array_equal(result.centroids, 0)
    assert result.inertia == 0


def test_as_many_clusters_as_rows(key):
    x = jax.random.normal(key, (6, 2))
    result = kmeans(key, x, 6)
    assert sorted(result.assignments.tolist()) == list(range(6))
    np.testing.assert_allclose(result.inertia, 0, atol=1e-8)


@pytest.mark.parametrize("num_clusters", [0, 6])
def test_number_of_clusters_out_of_range(key, num_clusters):
    with pytest.raises(ValueError, match=rf"the 5 rows, got {num_clusters}$"):
        kmeans(key, jnp.ones((5, 2)), num_clusters)


def test_assign_nearest_by_hand():
    x = jnp.array([[0.0, 0.0], [4.0, 0.0], [1.0, 1.0], [2.0, 0.0]])
    centroids = jnp.array([[0.0, 1.0], [4.0, 1.0], [2.0, -1.5]])
    np.testing.assert_array_equal(assign_nearest(x, centroids), [0, 1, 0, 2])
    assert assign_nearest(x, centroids).dtype == jnp.int32


# --- fewer clusters used than there are


def test_used_clusters_are_those_of_fewer(blobs, key):
    """Seed by seed: with one seeding, and number by number where trials change."""
    most = 9
    used = jnp.array([1, 2, 3, 7, 8, 9])
    mask = jnp.arange(300) % 5 > 0
    x = jnp.where(mask[:, None], blobs, jnp.nan)

    def cluster(num_used):
        return kmeans(key, x, most, num_used=num_used, mask=mask, num_init=1)

    found = jax.jit(jax.vmap(cluster))(used)
    for i, k in enumerate(used.tolist()):
        result = jax.tree.map(lambda a, i=i: a[i], found)
        expected = kmeans(key, blobs, k, mask=mask, num_init=1)
        np.testing.assert_allclose(
            result.centroids[:k], expected.centroids, rtol=1e-4, atol=1e-4
        )
        own, others = result.assignments[mask], expected.assignments[mask]
        np.testing.assert_array_equal(own, others)
        np.testing.assert_allclose(result.inertia, expected.inertia, rtol=1e-4)
        np.testing.assert_array_equal(used_clusters(result.centroids), np.arange(9) < k)
        assert np.isfinite(result.centroids).all()


def test_the_best_of_several_seedings_is_used(digits, key):
    result = kmeans(key, digits, 10, num_used=6)
    expected = kmeans(key, digits, 6)
    assert_same(result._replace(centroids=result.centroids[:6]), expected)
    np.testing.assert_array_equal(
        assign_nearest(digits, result.centroids), result.assignments
    )


def test_all_used_is_as_ever(blobs, key):
    assert_same(kmeans(key, blobs, 6, num_used=6), kmeans(key, blobs, 6))


def test_unused_clusters_cost_no_digits():
    """Far from the origin, where the rows are less than 1e-4 of their distance."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(500, 784)) + 1e4).astype(np.float32)
    centroids = np.full((5, 784), UNUSED, np.float32)
    centroids[:3] = x[:3]
    squares = ((x[:, None].astype(float) - centroids[None, :3]) ** 2).sum(axis=-1)
    found = assign_nearest(jnp.asarray(x), jnp.asarray(centroids))
    np.testing.assert_array_equal(found, squares.argmin(axis=1))


@pytest.mark.parametrize("num_used", [0, 4])
def test_number_of_used_clusters_out_of_range(key, num_used):
    with pytest.raises(ValueError, match=rf"num_clusters, 3, got {num_used}$"):
        kmeans(key, jnp.ones((5, 2)), 3, num_used=num_used)
