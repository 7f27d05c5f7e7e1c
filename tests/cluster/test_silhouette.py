import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import silhouette_score

from fcjax.cluster import count_clusters, silhouette


def test_by_hand():
    # The first cluster's rows are 2 apart, the other is at 10 and at 8 from them.
    x = jnp.array([[0.0], [2.0], [10.0]])
    found = silhouette(x, jnp.array([0, 0, 1]), num_clusters=2)
    np.testing.assert_allclose(found, ((10 - 2) / 10 + (8 - 2) / 8 + 0) / 3, rtol=1e-6)
    assert found.shape == ()
    assert found.dtype == jnp.float32


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_as_sklearn(offset):
    """With empty clusters and one of a single row."""
    x, classes = load_digits(return_X_y=True)
    x, classes = x[:400] / 16 + offset, 2 * classes[:400] + 1
    classes[7] = 0
    found = jax.jit(silhouette, static_argnames="num_clusters")(
        jnp.asarray(x, jnp.float32), jnp.asarray(classes), num_clusters=25
    )
    assert float(found) == pytest.approx(silhouette_score(x, classes), abs=1e-4)


def test_masked_rows_count_nowhere():
    rng = np.random.default_rng(0)
    x, classes = rng.normal(size=(60, 3)), rng.integers(0, 4, 60)
    mask = rng.random(60) < 0.5
    # A cluster of masked rows alone.
    mask[classes == 3] = False
    expected = silhouette_score(x[mask], classes[mask])
    x[~mask] = np.nan
    found = silhouette(
        jnp.asarray(x, jnp.float32),
        jnp.asarray(classes),
        num_clusters=4,
        mask=jnp.asarray(mask),
    )
    assert float(found) == pytest.approx(expected, abs=1e-5)


def test_what_has_no_silhouette_counts_0():
    x = jnp.array([[0.0], [1.0], [5.0]])
    assert silhouette(x, jnp.zeros(3, int), num_clusters=3) == 0
    assert silhouette(x, jnp.arange(3), num_clusters=3) == 0
    equal = jnp.ones((4, 2))
    assert silhouette(equal, jnp.array([0, 0, 1, 1]), num_clusters=2) == 0
    nothing = jnp.zeros(3, bool)
    assert silhouette(x, jnp.array([0, 0, 1]), num_clusters=2, mask=nothing) == 0


@pytest.mark.parametrize("num_blobs", [2, 3, 5])
def test_blobs_are_counted(key, num_blobs):
    x, _ = make_blobs(150, 20, centers=num_blobs, random_state=num_blobs)
    found = count_clusters(key, jnp.asarray(x, jnp.float32), most=6, num_init=3)
    assert found == num_blobs
    assert found.dtype == jnp.int32
    assert found.shape == ()


def test_clients_are_counted_apart(key):
    """Some of their rows masked, and those are another blob."""
    clients = [
        make_blobs(90, 20, centers=n + 1, random_state=n, shuffle=False)
        for n in (2, 3, 4)
    ]
    x = np.stack([x for x, _ in clients])
    mask = np.stack([own < own.max() for _, own in clients])
    counted = jax.vmap(lambda x, mask: count_clusters(key, x, most=5, mask=mask))
    found = jax.jit(counted)(jnp.asarray(x, jnp.float32), jnp.asarray(mask))
    np.testing.assert_array_equal(found, [2, 3, 4])
    found = counted(jnp.where(mask[..., None], x, jnp.nan), jnp.asarray(mask))
    np.testing.assert_array_equal(found, [2, 3, 4])


def test_the_fewest_of_equally_many(key):
    # Two points: a third cluster stays empty or lies on one of them.
    x = jnp.repeat(jnp.array([[0.0, 0.0], [3.0, 4.0]]), 5, axis=0)
    assert count_clusters(key, x, most=4) == 2


@pytest.mark.parametrize("most", [1, 11])
def test_the_most_must_be_possible(key, most):
    with pytest.raises(ValueError, match=f"between 2 and the 10 rows, got {most}$"):
        count_clusters(key, jnp.zeros((10, 2)), most=most)
