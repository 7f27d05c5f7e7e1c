"""A batch in parts against a plain loop over the parts: no scan, no checkpoint."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.losses import nt_xent
from fcjax.nn import MLP, encoder, microbatched, projector
from fcjax.types import Network

SIZE = 4
WHOLE = encoder(MLP((6, 5)))


def loop_apply(variables, x, *, train, mask=None):
    """Part by part in Python; nobody of a part that does not count is looked at."""
    outputs = []
    for start in range(0, len(x), SIZE):
        part = x[start : start + SIZE]
        counts = None if mask is None else mask[start : start + SIZE]
        if counts is not None and not np.asarray(counts).any():
            y, _ = WHOLE.apply(variables, part, train=train)
        else:
            counts = None if counts is None else jnp.asarray(counts)
            y, variables = WHOLE.apply(variables, part, train=train, mask=counts)
        outputs.append(y)
    return jnp.concatenate(outputs), variables


LOOP = Network(WHOLE.init, loop_apply)
PARTS = microbatched(WHOLE, SIZE)
MASKS = {
    "all count": None,
    "of two parts": [1, 1, 0, 1, 0, 1, 1, 0],
    "none of the first part": [0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1],
    "none of the last part": [1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0],
}
MASKS = {name: mask and np.array(mask, bool) for name, mask in MASKS.items()}


@pytest.fixture(scope="module")
def views():
    return jax.random.uniform(jax.random.key(1), (2, 11, 7))


@pytest.fixture(scope="module")
def variables(views):
    """After a step, so that running statistics are none's first ones."""
    variables = jax.jit(WHOLE.init)(jax.random.key(0), views[0])
    return jax.jit(partial(WHOLE.apply, train=True))(variables, views[1])[1]


def coupled(network, variables, views, mask=None):
    """Loss, gradient and new variables of two views that see each other."""
    statistics = {k: v for k, v in variables.items() if k != "params"}

    def loss(params, views):
        new = {"params": params, **statistics}
        z_a, new = network.apply(new, views[0], train=True, mask=mask)
        z_b, new = network.apply(new, views[1], train=True, mask=mask)
        counts = None if mask is None else jnp.asarray(mask)
        return nt_xent(z_a, z_b, temperature=0.5, mask=counts), new

    both = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    (value, new), gradients = both(variables["params"], views)
    return value, gradients, new


coupled_parts = jax.jit(partial(coupled, PARTS))
coupled_whole = jax.jit(partial(coupled, WHOLE))


@cache
def coupled_loop(name):
    return jax.jit(partial(coupled, LOOP, mask=MASKS[name]))


def assert_close(actual, expected, *, relative=1e-4):
    """Relative to the largest entry of each leaf, or of all where a leaf has only
    rounding, as the gradient of a bias before batch norm."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(expected)]
    largest = max(np.abs(leaf).max() for leaf in leaves)
    for one, other in zip(jax.tree.leaves(actual), leaves, strict=True):
        scale = max(np.abs(other).max(), 1e-2 * largest)
        np.testing.assert_allclose(one, other, rtol=0, atol=relative * scale)


def assert_same(result, expected):
    np.testing.assert_allclose(result[0], expected[0], rtol=1e-5)
    for gradient, reference in zip(result[1], expected[1], strict=True):
        assert_close(gradient, reference)
    assert_close(result[2], expected[2], relative=1e-5)


@pytest.mark.parametrize("name", MASKS)
def test_gradients_and_statistics_are_those_of_the_loop(views, variables, name):
    """Parts of 4, 4 and 3 examples, or of 4 and 4, whatever uncounted ones show."""
    mask, shown = MASKS[name], views
    if mask is not None:
        views = views[:, : len(mask)]
        shown = jnp.where(mask[None, :, None], views, 5.0)
    result = coupled_parts(variables, shown, mask)
    assert_same(result, coupled_loop(name)(variables, views))
    moved = jax.tree.map(
        lambda a, b: np.abs(a - b).max() > 1e-3,
        result[2]["batch_stats"],
        variables["batch_stats"],
    )
    assert all(jax.tree.leaves(moved))
    # The whole batch has other statistics, and so another gradient.
    whole, *_ = coupled_whole(variables, views, mask)
    assert abs(whole - result[0]) > 1e-5


def test_a_batch_of_nobody_teaches_nothing(views, variables):
    value, gradients, new = coupled_parts(variables, views, np.zeros(11, bool))
    assert value == 0
    for gradient in jax.tree.leaves(gradients):
        np.testing.assert_array_equal(gradient, 0)
    jax.tree.map(np.testing.assert_array_equal, new, variables)


@pytest.mark.parametrize(
    ("network", "size", "train"),
    [(WHOLE, 1, False), (WHOLE, 4, False), (WHOLE, 11, True), (projector(5), 2, True)],
    ids=["evaluation", "evaluation in three", "one part", "no statistics"],
)
def test_what_parts_do_not_change(key, views, variables, network, size, train):
    """A batch of one part goes as it is, to the last bit."""
    parts = microbatched(network, size)
    if network is not WHOLE:
        variables = network.init(key, views[0])
    expected, new = network.apply(variables, views[0], train=train)
    y, after = parts.apply(variables, views[0], train=train)
    tolerance = {"rtol": 0} if size == 11 else {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(y, expected, **tolerance)
    jax.tree.map(np.testing.assert_array_equal, after, new)
