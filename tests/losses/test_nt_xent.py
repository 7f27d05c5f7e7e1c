"""Contrast of views by hand and against CC's code written anew."""

import jax
import jax.numpy as jnp
import numpy as np

from fcjax.losses import cluster_entropy, cluster_nt_xent, nt_xent


def contrast(z_a, z_b, temperature):
    """The code of CC: for each of 2B anchors one positive and 2B - 2 negatives."""
    z = np.concatenate([z_a, z_b]).astype(np.float64)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    count, losses = len(z), []
    for i in range(count):
        positive = (i + len(z_a)) % count
        negatives = [j for j in range(count) if j not in (i, positive)]
        scores = [z[i] @ z[j] / temperature for j in [positive, *negatives]]
        losses.append(-scores[0] + np.log(np.sum(np.exp(scores))))
    return np.mean(losses)


def entropy(c):
    """FedMCC's equation 3: norms are sums, as entries are not negative."""
    shares = np.asarray(c, np.float64).sum(axis=0) / np.asarray(c, np.float64).sum()
    return -np.sum(shares * np.log(shares))


def test_values_are_those_of_the_code_of_cc(key):
    views = 2 * jax.random.normal(key, (2, 7, 4))  # rows of many lengths
    assignments = jax.nn.softmax(views)
    columns = [np.asarray(c).T for c in assignments]
    for loss, given, rows in (
        (jax.jit(nt_xent), views, views),
        (jax.jit(cluster_nt_xent), assignments, columns),
    ):
        for temperature in (0.1, 0.5, 1.0):
            value = loss(*given, temperature=temperature)
            np.testing.assert_allclose(value, contrast(*rows, temperature), rtol=1e-5)
    c = assignments[0]
    np.testing.assert_allclose(cluster_entropy(c), entropy(c), rtol=1e-5)
    one_has_all = jnp.zeros((7, 4)).at[:, 1].set(1)
    assert cluster_entropy(one_has_all) == 0


def test_nt_xent_of_fewer_than_two_is_zero(key):
    """A positive alone is always told from no negative."""
    views = jax.random.normal(key, (2, 7, 4))
    step = jax.jit(jax.value_and_grad(nt_xent, argnums=(0, 1)))
    for given, mask in ((views, jnp.arange(7) < 1), (views[:, :1], None)):
        value, gradients = step(*given, temperature=0.01, mask=mask)
        assert value == 0
        np.testing.assert_array_equal(gradients, 0)


def test_an_empty_cluster_has_finite_gradients():
    c = jnp.array([[0.2, 0.0, 0.8], [0.9, 0.0, 0.1], [0.6, 0.0, 0.4]])
    for loss in (lambda c: cluster_nt_xent(c, c, temperature=1.0), cluster_entropy):
        gradient = jax.jit(jax.grad(loss))(c)
        assert np.isfinite(gradient).all()
        assert np.abs(gradient).max() > 0
