"""Sinkhorn's scaling beside a plain transcription, what it keeps and where it does not,
and Orchestra's local clustering."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.cluster import equal_clusters, sinkhorn


def plainly(scores, *, most=100, sharpness=25.0):
    """As Orchestra's code goes about it, in double precision: the change is looked at
    in iterations 0, 10, 20 and so on."""
    count, num_clusters = scores.shape
    p = np.exp(sharpness * (scores - scores.max(axis=1, keepdims=True)))
    p = (p / p.sum(axis=1, keepdims=True)).T
    c, error, i = np.full(count, 1 / count), np.inf, 0
    while error >= 0.01 and i < most:
        r = 1 / num_clusters / (p @ c)
        new = 1 / count / (r @ p)
        if i % 10 == 0:
            error = np.abs(c / new - 1).sum()
        c, i = new, i + 1
    return count * np.diag(c) @ p.T @ np.diag(r)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.fixture
def spread():
    """Cosines of 128 rows to 16 centroids, all of them drawn at random."""
    rng = np.random.default_rng(0)
    rows, centroids = (unit(rng.normal(size=(n, 512))) for n in (128, 16))
    return jnp.array(rows @ centroids.T, jnp.float32)


@pytest.fixture
def tight():
    """Of ten tight clusters."""
    rng = np.random.default_rng(1)
    centres = unit(rng.normal(size=(10, 32)))
    rows = unit(centres[rng.integers(10, size=128)] + 0.03 * rng.normal(size=(128, 32)))
    picked = rows[rng.choice(128, 16, replace=False)]
    return jnp.array(rows @ picked.T, jnp.float32)


@pytest.mark.parametrize("kind", ["spread", "tight"])
@pytest.mark.parametrize("most", [10, 100])
def test_it_is_the_plain_iteration(kind, most, request):
    scores = request.getfixturevalue(kind)
    found = jax.jit(sinkhorn, static_argnames="num_iters")(scores, num_iters=most)
    np.testing.assert_allclose(
        found, plainly(np.asarray(scores, float), most=most), atol=1e-5
    )
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)


def test_a_column_that_underflows_in_all_rows_has_its_share():
    """exp(-250) is 0 in single precision."""
    found = sinkhorn(jnp.array([[10.0, 0.0], [10.0, 0.0]]))
    np.testing.assert_allclose(found, 0.5)


def test_a_masked_row_counts_nothing_whatever_it_holds(spread):
    mask = jnp.arange(160) < 128
    padded = jnp.concatenate([spread, jnp.full((32, 16), jnp.nan)])
    found = sinkhorn(padded, mask=mask)
    np.testing.assert_allclose(found[:128], sinkhorn(spread), atol=1e-6)
    assert not found[128:].any()


def test_equal_clusters_are_those_that_are_equal():
    """Six rows in each of three directions: random rows may begin in the same one, and
    the scores of a cluster that has too many are lowered until it has not."""
    rng = np.random.default_rng(4)
    rows = unit(np.repeat(np.eye(3), 6, axis=0) + 0.02 * rng.normal(size=(18, 3)))
    rows = jnp.array(rows)
    for seed in range(5):
        found = equal_clusters(jax.random.key(seed), rows, 3, sharpness=5.0)
        nearest = np.argmax(rows @ found.T, axis=1)
        assert sorted(np.bincount(nearest, minlength=3)) == [6, 6, 6]
        np.testing.assert_allclose(jnp.linalg.norm(found, axis=1), 1, rtol=1e-5)


def test_equal_clusters_of_masked_rows_and_of_fewer_rows_than_clusters():
    rows = jnp.concatenate([jnp.eye(4), jnp.full((5, 4), jnp.nan)])
    mask = jnp.arange(9) < 4
    found = np.asarray(equal_clusters(jax.random.key(0), rows, 8, mask=mask))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    # All are rows of the four, or means of some of them.
    assert (np.abs(found) <= 1).all()
    with pytest.raises(ValueError, match="10"):
        equal_clusters(jax.random.key(0), jnp.eye(9), 10)
