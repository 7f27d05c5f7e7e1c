import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import SpectralClustering
from sklearn.cluster._spectral import discretize as sklearn_discretize
from sklearn.manifold import spectral_embedding as sklearn_embedding
from sklearn.metrics import adjusted_rand_score

from fcjax.cluster import discretize, spectral_clustering, spectral_embedding


def random_affinity(seed, n):
    a = np.random.default_rng(seed).random((n, n)) ** 4
    return ((a + a.T) / 2).astype(np.float32)


def block_affinity(seed, n, num_clusters):
    """Blocks in a random order, with weak edges in between."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % num_clusters)
    within = labels[:, None] == labels[None]
    a = within * rng.random((n, n)) + 0.05 * rng.random((n, n))
    return ((a + a.T) / 2).astype(np.float32), labels


def gram(embedding):
    """Which is free of signs and rotations."""
    embedding = np.array(embedding, np.float64)
    return embedding @ embedding.T


@pytest.mark.parametrize("num_clusters", [1, 5])
def test_embedding_equals_sklearn_whatever_the_diagonal(num_clusters):
    affinity = random_affinity(0, 40)
    embedding = spectral_embedding(jnp.array(affinity), num_clusters)
    assert embedding.shape == (40, num_clusters)
    expected = sklearn_embedding(
        affinity.astype(np.float64),
        n_components=num_clusters,
        drop_first=False,
        random_state=0,
    )
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(gram(embedding), gram(expected), atol=1e-4)
    changed = spectral_embedding(jnp.array(affinity) + 7 * jnp.eye(40), num_clusters)
    np.testing.assert_array_equal(changed, embedding)


def test_masked_samples_come_after_all_others():
    """With as many clusters as samples even the negative eigenvalues come first."""
    counted = np.random.default_rng(0).permutation(20)[:12]
    affinity = random_affinity(2, 12)
    padded = np.full((20, 20), np.nan, np.float32)
    padded[np.ix_(counted, counted)] = affinity
    mask = np.isin(np.arange(20), counted)
    embedding = spectral_embedding(jnp.array(padded), 12, mask=jnp.array(mask))
    normed = affinity - np.diag(np.diag(affinity))
    normed /= np.sqrt(np.outer(normed.sum(axis=0), normed.sum(axis=0)))
    leading = np.linalg.eigh(normed)[1][:, ::-1]
    leading /= np.linalg.norm(leading, axis=1, keepdims=True)
    np.testing.assert_allclose(np.abs(embedding)[counted], np.abs(leading), atol=1e-4)
    np.testing.assert_array_equal(np.array(embedding)[~mask], 0)


def test_a_sample_like_no_other_is_zero(key):
    affinity, labels = block_affinity(0, 30, 3)
    affinity[7], affinity[:, 7], affinity[7, 7] = 0, 0, 2
    embedding = np.array(spectral_embedding(jnp.array(affinity), 3))
    np.testing.assert_array_equal(embedding[7], 0)
    assert np.all(np.isfinite(embedding))
    assignments = np.array(spectral_clustering(key, jnp.array(affinity), 3))
    others = np.arange(30) != 7
    assert adjusted_rand_score(labels[others], assignments[others]) == 1


@pytest.mark.parametrize("assign_labels", ["kmeans", "discretize"])
@pytest.mark.parametrize("num_clusters", [2, 8])
def test_blocks_equal_sklearn(key, num_clusters, assign_labels):
    affinity, labels = block_affinity(num_clusters, 80, num_clusters)
    assignments = spectral_clustering(
        key, jnp.array(affinity), num_clusters, assign_labels=assign_labels
    )
    reference = SpectralClustering(
        num_clusters,
        affinity="precomputed",
        assign_labels=assign_labels,
        random_state=0,
    )
    assert adjusted_rand_score(assignments, reference.fit_predict(affinity)) == 1
    assert adjusted_rand_score(assignments, labels) == 1
    assert assignments.dtype == jnp.int32


# --- discretisation


def eigenvectors(seed, n, num_clusters, noise):
    """Of blocks with weak edges and noise: orthonormal columns, as scikit-learn scales
    columns to one length and Yu and Shi do not."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % num_clusters)
    a = (labels[:, None] == labels) + noise * rng.random((n, n))
    return np.linalg.eigh((a + a.T) / 2)[1][:, -num_clusters:], labels


class First(np.random.RandomState):
    """Draws a certain row."""

    def __init__(self, row):
        super().__init__(0)
        self.row = row

    def randint(self, *_):
        return self.row


def closeness(vectors, labels):
    """What Yu and Shi maximise: the sum of singular values of indicator^T rows."""
    rows = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    indicator = np.eye(vectors.shape[1])[labels]
    return np.linalg.svd(indicator.T @ rows, compute_uv=False).sum()


@pytest.mark.parametrize(("num_clusters", "noise"), [(2, 0.5), (5, 2.0), (8, 4.0)])
def test_discretisation_is_that_of_sklearn(key, num_clusters, noise):
    """Begun once it is what scikit-learn finds from one of the rows; begun often, what
    is nearest of all that scikit-learn finds."""
    vectors, labels = eigenvectors(num_clusters, 40, num_clusters, noise)
    expected = [
        sklearn_discretize(vectors, random_state=First(row)) for row in range(40)
    ]
    if noise > 1:
        assert len({tuple(found) for found in expected}) > 1
    rows = jnp.array(vectors, jnp.float32)
    once = discretize(key, rows, num_init=1)
    assert once.dtype == jnp.int32
    assert max(adjusted_rand_score(found, once) for found in expected) == 1
    best = discretize(key, rows, num_init=200)
    nearest = max(closeness(vectors, found) for found in expected)
    assert closeness(vectors, np.array(best)) == pytest.approx(nearest, rel=2e-5)
    if noise <= 0.5:
        assert adjusted_rand_score(labels, best) == 1


def test_discretisation_of_few_rows_or_none_is_finite(key):
    rows = jnp.eye(4)[jnp.array([0, 1, 0, 0, 0])].at[2:].set(0)
    found = np.array(discretize(key, rows))
    assert found[0] != found[1]
    assert set(found.tolist()) <= {0, 1, 2, 3}
    np.testing.assert_array_equal(discretize(key, jnp.zeros((5, 3))), 0)
    np.testing.assert_array_equal(discretize(key, jnp.ones((5, 1))), 0)
