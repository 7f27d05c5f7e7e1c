"""Contrast of views by hand, against CC's code written anew, and against PyTorch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from fcjax.losses import cluster_entropy, cluster_nt_xent, nt_xent

E1, E2 = [1.0, 0.0], [0.0, 1.0]


@pytest.fixture
def views(key):
    """Two views of seven examples, with rows of many lengths."""
    return tuple(2 * jax.random.normal(k, (7, 4)) for k in jax.random.split(key))


@pytest.fixture
def assignments(views):
    """Of seven examples to four clusters, in two views."""
    return tuple(jax.nn.softmax(z) for z in views)


def unit(rows):
    rows = np.asarray(rows, np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def contrast(z_a, z_b, temperature):
    """The code of CC: for each of 2B anchors one positive and 2B - 2 negatives."""
    z = unit(np.concatenate([z_a, z_b]))
    count, losses = len(z), []
    for i in range(count):
        positive = (i + len(z_a)) % count
        negatives = [j for j in range(count) if j not in (i, positive)]
        scores = [z[i] @ z[j] / temperature for j in [positive, *negatives]]
        losses.append(-scores[0] + np.log(np.sum(np.exp(scores))))
    return np.mean(losses)


def equation_1(u, v, temperature):
    """FedMCC's equation 1 as it is printed."""
    u, v = unit(u), unit(v)
    losses = []
    for i in range(len(u)):
        others = [j for j in range(len(u)) if j != i]
        scores = [u[i] @ w[j] / temperature for j in others for w in (u, v)]
        losses.append(-u[i] @ v[i] / temperature + np.log(np.sum(np.exp(scores))))
    return np.mean(losses)


def entropy(c):
    """FedMCC's equation 3: norms are sums, as entries are not negative."""
    shares = np.asarray(c, np.float64).sum(axis=0) / np.asarray(c, np.float64).sum()
    return -np.sum(shares * np.log(shares))


# --- by hand and against NumPy


def test_nt_xent_by_hand():
    """The first example agrees in both views and the second opposes itself.

    Similarities of an anchor to its positive and its two negatives are 1, 0, 0 and
    -1, 0, 0.
    """
    z_a, z_b = jnp.array([E1, [0.0, 3.0]]), jnp.array([[2.0, 0.0], [0.0, -0.5]])
    for tau in (0.5, 1.0):
        near = np.log(1 + 2 * np.exp(-1 / tau))
        far = np.log(1 + 2 * np.exp(1 / tau))
        loss = nt_xent(z_a, z_b, temperature=tau)
        np.testing.assert_allclose(loss, (near + far) / 2, rtol=1e-6)


def test_cluster_nt_xent_by_hand():
    """Certain in one view, undecided in the other: columns e1, e2 and twice (1, 1).

    With r = 1 / sqrt 2, anchors of the first view meet r, 0, r and those of the second
    r, r, 1, the positive first.
    """
    c_a, c_b, r = jnp.array([E1, E2]), jnp.full((2, 2), 0.5), 0.5**0.5
    expected = (np.log(2 + np.exp(-r)) + np.log(2 + np.exp(1 - r))) / 2
    loss = cluster_nt_xent(c_a, c_b, temperature=1.0)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_cluster_entropy_by_hand():
    """Shares of 1/2, 3/8 and 1/8."""
    c = jnp.array([[1.0, 0.0, 0.0], [0.0, 0.75, 0.25]])
    expected = -(np.log(1 / 2) / 2 + 3 * np.log(3 / 8) / 8 + np.log(1 / 8) / 8)
    np.testing.assert_allclose(cluster_entropy(c), expected, rtol=1e-6)
    np.testing.assert_allclose(cluster_entropy(jnp.eye(5)), np.log(5), rtol=1e-6)
    assert cluster_entropy(jnp.array([[0.0, 1.0], [0.0, 1.0]])) == 0


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
def test_values_are_those_of_the_code_of_cc(views, assignments, temperature):
    loss = nt_xent(*views, temperature=temperature)
    np.testing.assert_allclose(loss, contrast(*views, temperature), rtol=1e-5)
    columns = [np.asarray(c).T for c in assignments]
    loss = cluster_nt_xent(*assignments, temperature=temperature)
    np.testing.assert_allclose(loss, contrast(*columns, temperature), rtol=1e-5)
    c = assignments[0]
    np.testing.assert_allclose(cluster_entropy(c), entropy(c), rtol=1e-5)


def test_views_may_change_places_and_rows_their_lengths(views):
    z_a, z_b = views
    loss = nt_xent(z_a, z_b, temperature=0.5)
    np.testing.assert_allclose(nt_xent(z_b, z_a, temperature=0.5), loss, rtol=1e-6)
    scaled = z_a * jnp.arange(1.0, 8.0)[:, None]
    np.testing.assert_allclose(nt_xent(scaled, z_b, temperature=0.5), loss, rtol=1e-6)


def test_fedmccs_printed_equation_is_another_and_may_be_negative(views):
    """Orthogonal examples that agree: log 2 - 1 / tau as printed, log(1 + 2 / e^2)
    in CC's code."""
    z = jnp.array([E1, E2])
    np.testing.assert_allclose(equation_1(z, z, 0.5), np.log(2) - 2, rtol=1e-6)
    loss = nt_xent(z, z, temperature=0.5)
    np.testing.assert_allclose(loss, np.log(1 + 2 * np.exp(-2)), rtol=1e-6)
    z_a, z_b = views
    printed = equation_1(z_a, z_b, 0.5)
    # Anchors of one view alone: it matters which one comes first.
    assert abs(printed - equation_1(z_b, z_a, 0.5)) > 0.01
    assert abs(printed - nt_xent(z_a, z_b, temperature=0.5)) > 0.01


@pytest.mark.parametrize(("sign", "reached"), [(-1, np.log(3)), (1, 0.0)])
def test_less_entropy_is_collapse(key, sign, reached):
    """Descent on -H spreads a batch over its clusters; on the printed +H it ends in
    one of them."""
    logits = 0.5 * jax.random.normal(key, (8, 3))

    @jax.jit
    def descend(logits):
        def loss(logits):
            return sign * cluster_entropy(jax.nn.softmax(logits))

        return jax.lax.fori_loop(
            0, 300, lambda _, logits: logits - 10 * jax.grad(loss)(logits), logits
        )

    after = cluster_entropy(jax.nn.softmax(descend(logits)))
    np.testing.assert_allclose(after, reached, atol=0.02)
    assert 0.2 < cluster_entropy(jax.nn.softmax(logits)) < np.log(3) - 0.001


# --- against PyTorch


def torch_nt_xent(torch, z_a, z_b, temperature):
    """Cross-entropy over all similarities without the diagonal."""
    functional = torch.nn.functional
    z = functional.normalize(torch.cat([z_a, z_b]))
    count = len(z)
    scores = z @ z.T / temperature
    scores = scores[~torch.eye(count, dtype=torch.bool)].reshape(count, count - 1)
    positive = torch.arange(count).roll(count // 2)
    # Behind the diagonal every column has moved one to the left.
    positive -= (positive > torch.arange(count)).long()
    return functional.cross_entropy(scores, positive)


@pytest.mark.parametrize("name", ["nt_xent", "cluster_nt_xent"])
def test_values_and_gradients_are_those_of_torch(views, assignments, name):
    torch = pytest.importorskip("torch")
    given = views if name == "nt_xent" else assignments
    loss = {"nt_xent": nt_xent, "cluster_nt_xent": cluster_nt_xent}[name]
    value, gradients = jax.value_and_grad(
        lambda a, b: loss(a, b, temperature=0.5), argnums=(0, 1)
    )(*given)
    copies = [torch.tensor(np.asarray(x), requires_grad=True) for x in given]
    rows = copies if name == "nt_xent" else [x.T for x in copies]
    expected = torch_nt_xent(torch, *rows, 0.5)
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), atol=1e-5)
    for gradient, copy in zip(gradients, copies, strict=True):
        np.testing.assert_allclose(gradient, copy.grad.numpy(), atol=1e-5)


# --- all three as functions of two views, by name


def losses_of(mask=None):
    return {
        "nt_xent": partial(nt_xent, temperature=0.5, mask=mask),
        "cluster_nt_xent": partial(cluster_nt_xent, temperature=1.0, mask=mask),
        "cluster_entropy": lambda a, b: (
            cluster_entropy(a, mask=mask) + cluster_entropy(b, mask=mask)
        ),
    }


NAMES = list(losses_of())


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_differences(assignments, name):
    loss = losses_of()[name]
    # check_grads itself passes NumPy arrays.
    check_grads(
        lambda a, b: loss(jnp.asarray(a), jnp.asarray(b)),
        assignments,
        order=1,
        modes=["rev"],
        atol=1e-2,
        rtol=1e-2,
    )


@pytest.mark.parametrize("name", NAMES)
def test_same_under_jit_and_vmap(assignments, name):
    a, b = assignments
    both = jax.value_and_grad(losses_of()[name])
    expected = [both(a, b), both(b**2, a)]
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, jax.jit(both)(a, b), expected[0])
    stacked = jax.jit(jax.vmap(both))(jnp.stack([a, b**2]), jnp.stack([b, a]))
    for i in range(2):
        jax.tree.map(lambda x, y, i=i: close(x[i], y), stacked, expected[i])


def test_temperatures_may_be_swept(views):
    swept = jax.jit(jax.vmap(lambda t: nt_xent(*views, temperature=t)))
    expected = [contrast(*views, t) for t in (0.1, 0.5, 1.0)]
    np.testing.assert_allclose(swept(jnp.array([0.1, 0.5, 1.0])), expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_lower_precision_is_computed_in_float32(assignments, name, dtype):
    """In float16 the squares of a long row would overflow."""
    scale = 1.0 if name == "cluster_entropy" else 1000.0
    a, b = ((scale * c).astype(dtype) for c in assignments)
    loss = losses_of()[name]
    value, gradient = jax.value_and_grad(loss)(a, b)
    expected = loss(a.astype(jnp.float32), b.astype(jnp.float32))
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert gradient.dtype == dtype
    assert np.isfinite(gradient.astype(jnp.float32)).all()


@pytest.mark.parametrize("name", NAMES)
def test_masked_rows_may_hold_anything(assignments, name):
    mask = np.array([True, False, True, True, False, False, True])
    spoilt = [c.at[1].set(jnp.nan).at[4].set(1e20) for c in assignments]
    loss = losses_of(jnp.asarray(mask))[name]
    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(*spoilt)
    subset = jax.value_and_grad(losses_of()[name], argnums=(0, 1))
    expected, references = subset(*(c[mask] for c in assignments))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for gradient, reference in zip(gradients, references, strict=True):
        np.testing.assert_allclose(gradient[mask], reference, atol=1e-6)
        np.testing.assert_array_equal(gradient[~mask], 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_full_mask_is_no_mask(assignments, name):
    full = losses_of(jnp.ones(7, bool))[name](*assignments)
    assert full == losses_of()[name](*assignments)


# --- where little is left


@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize("temperature", [0.5, 0.01])
def test_nt_xent_of_fewer_than_two_is_zero(views, counted, temperature):
    """A positive alone is always told from no negative."""
    mask = jnp.arange(7) < counted
    value, gradients = jax.value_and_grad(
        lambda a, b: nt_xent(a, b, temperature=temperature, mask=mask), argnums=(0, 1)
    )(*views)
    assert value == 0
    np.testing.assert_array_equal(gradients[0], 0)
    np.testing.assert_array_equal(gradients[1], 0)


def test_nt_xent_of_one_row_is_zero():
    z = jnp.array([[0.3, -0.7, 0.2]])
    value, gradient = jax.value_and_grad(nt_xent)(z, 2 * z - 1, temperature=0.01)
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


def test_clusters_that_are_all_alike():
    """Every column is a positive to every other: log(2K - 1)."""
    c = jnp.full((6, 4), 0.25)
    loss = cluster_nt_xent(c, c, temperature=1.0)
    np.testing.assert_allclose(loss, np.log(7), rtol=1e-6)
    # So it is where nobody counts, and then nobody is moved.
    value, gradient = jax.value_and_grad(cluster_nt_xent)(
        c, c, temperature=1.0, mask=jnp.zeros(6, bool)
    )
    np.testing.assert_allclose(value, np.log(7), rtol=1e-6)
    np.testing.assert_array_equal(gradient, 0)


def test_entropy_of_nobody_is_zero():
    c = jnp.full((6, 4), 0.25)
    mask = jnp.zeros(6, bool)
    value, gradient = jax.value_and_grad(cluster_entropy)(c, mask=mask)
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_cluster_has_finite_gradients(name):
    c = jnp.array([[0.2, 0.0, 0.8], [0.9, 0.0, 0.1], [0.6, 0.0, 0.4]])
    value, gradients = jax.value_and_grad(losses_of()[name], argnums=(0, 1))(c, c)
    assert np.isfinite(value)
    assert np.isfinite(gradients).all()
    assert np.abs(gradients).max() > 0
