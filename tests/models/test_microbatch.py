"""A batch in parts against a plain loop over the parts: no scan, no checkpoint."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.losses import nt_xent
from fcjax.models import conv_encoder, encoder, microbatched, projector
from fcjax.types import Network

SIZE = 4
ENCODER, PROJECTOR = encoder(conv_encoder((3,))), projector(5)


def apply(variables, x, *, train, mask=None):
    """Encoder and projector as one network of both their variables."""
    e, p = (
        {collection: tree[i] for collection, tree in variables.items() if tree[i]}
        for i in range(2)
    )
    h, e = ENCODER.apply(e, x, train=train, mask=mask)
    z, p = PROJECTOR.apply(p, h, train=train, mask=mask)
    return z, {collection: (e[collection], p.get(collection)) for collection in e}


def init(key, x):
    e_key, p_key = jax.random.split(key)
    e = ENCODER.init(e_key, x)
    h, _ = ENCODER.apply(e, x, train=False)
    p = PROJECTOR.init(p_key, h)
    return {collection: (e[collection], p.get(collection)) for collection in e}


WHOLE = Network(init, apply)


def loop_apply(variables, x, *, train, mask=None):
    """Part by part in Python; nobody of a part that does not count is looked at."""
    outputs = []
    for start in range(0, len(x), SIZE):
        part = x[start : start + SIZE]
        counts = None if mask is None else mask[start : start + SIZE]
        if counts is not None and not np.asarray(counts).any():
            y, _ = WHOLE.apply(variables, part, train=train)
        else:
            y, variables = WHOLE.apply(
                variables,
                part,
                train=train,
                mask=None if counts is None else jnp.asarray(counts),
            )
        outputs.append(y)
    return jnp.concatenate(outputs), variables


LOOP = Network(init, loop_apply)
PARTS = microbatched(WHOLE, SIZE)


@pytest.fixture(scope="module")
def views():
    return jax.random.uniform(jax.random.key(1), (2, 11, 8, 8, 1))


@pytest.fixture(scope="module")
def variables(views):
    """After a step, so that running statistics are none's first ones."""
    variables = jax.jit(init)(jax.random.key(0), views[0])
    return jax.jit(partial(apply, train=True))(variables, views[1])[1]


def coupled(network, variables, views, mask=None):
    """Loss, gradient and new variables of two views that see each other."""
    statistics = {k: v for k, v in variables.items() if k != "params"}

    def loss(params, views):
        new = {"params": params, **statistics}
        z_a, new = network.apply(new, views[0], train=True, mask=mask)
        z_b, new = network.apply(new, views[1], train=True, mask=mask)
        counts = None if mask is None else jnp.asarray(mask)
        return nt_xent(z_a, z_b, temperature=0.5, mask=counts), new

    (value, new), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(
        variables["params"], views
    )
    return value, gradients, new


coupled_parts = jax.jit(partial(coupled, PARTS))
coupled_whole = jax.jit(partial(coupled, WHOLE))


def assert_close(actual, expected, *, relative=1e-4):
    """Relative to the largest entry of each leaf, or of all where a leaf has only
    rounding, as the gradient of a bias before batch norm."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(expected)]
    largest = max(np.abs(leaf).max() for leaf in leaves)
    for one, other in zip(jax.tree.leaves(actual), leaves, strict=True):
        scale = max(np.abs(other).max(), 1e-2 * largest)
        np.testing.assert_allclose(one, other, rtol=0, atol=relative * scale)


MASKS = {
    "all count": None,
    "of two parts": [1, 1, 0, 1, 0, 1, 1, 0],
    "some": [1, 1, 0, 1, 0, 1, 1, 0, 1, 1, 0],
    "none of the first part": [0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1],
    "none of the second part": [1, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1],
    "none of the last part": [1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0],
}


@pytest.mark.parametrize("name", MASKS)
def test_gradients_and_statistics_are_those_of_the_loop(views, variables, name):
    """Parts of 4, 4 and 3 examples, or of 4 and 4."""
    mask = MASKS[name] and np.array(MASKS[name], bool)
    views = views if mask is None else views[:, : len(mask)]
    given = None if mask is None else jnp.asarray(mask)
    value, gradients, new = coupled_parts(variables, views, given)
    expected, references, looped = jax.jit(partial(coupled, LOOP, mask=mask))(
        variables, views
    )
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for gradient, reference in zip(gradients, references, strict=True):
        assert_close(gradient, reference)
    assert_close(new, looped, relative=1e-5)
    moved = jax.tree.map(
        lambda a, b: np.abs(a - b).max() > 1e-3,
        new["batch_stats"],
        variables["batch_stats"],
    )
    assert all(jax.tree.leaves(moved))
    # The whole batch has other statistics, and so another gradient.
    whole, *_ = coupled_whole(variables, views, given)
    assert abs(whole - expected) > 1e-5


def test_a_batch_of_nobody_teaches_nothing(views, variables):
    mask = jnp.zeros(11, bool)
    value, gradients, new = coupled_parts(variables, views, mask)
    assert value == 0
    for gradient in jax.tree.leaves(gradients):
        np.testing.assert_array_equal(gradient, 0)
    jax.tree.map(np.testing.assert_array_equal, new, variables)


def test_what_uncounted_examples_show_changes_nothing(views, variables):
    """Not the counted outputs, nor gradients, nor statistics."""
    mask = jnp.array(MASKS["none of the second part"], bool)
    spoilt = jnp.where(mask[None, :, None, None, None], views, 5.0)
    clean, other = (coupled_parts(variables, x, mask) for x in (views, spoilt))
    np.testing.assert_allclose(other[0], clean[0], rtol=1e-5)
    assert_close(other[1][0], clean[1][0])
    assert_close(other[2], clean[2], relative=1e-5)


@pytest.mark.parametrize("size", [1, 4, 11, 100])
def test_evaluation_is_that_of_the_whole(views, variables, size):
    expected, _ = WHOLE.apply(variables, views[0], train=False)
    y, after = microbatched(WHOLE, size).apply(variables, views[0], train=False)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, after, variables)


@pytest.mark.parametrize("size", [11, 100])
def test_a_batch_of_one_part_goes_as_it_is(views, variables, size):
    expected = WHOLE.apply(variables, views[0], train=True)
    actual = microbatched(WHOLE, size).apply(variables, views[0], train=True)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def test_it_begins_as_the_network(key, views):
    actual = PARTS.init(key, views[0])
    jax.tree.map(np.testing.assert_array_equal, actual, init(key, views[0]))


@pytest.mark.parametrize("axis", ["vmap", "map"])
def test_clients_with_their_own_variables(views, variables, axis):
    stacked = jax.tree.map(lambda x: jnp.stack([x, 1.1 * x, 0.8 * x]), variables)
    names = ("some", "none of the first part", "none of the last part")
    masks = np.array([MASKS[name] for name in names], bool)

    @jax.jit
    def together(stacked, masks):
        def one(variables, mask):
            return coupled(PARTS, variables, views, mask)

        if axis == "vmap":
            return jax.vmap(one)(stacked, masks)
        return jax.lax.map(lambda client: one(*client), (stacked, masks))

    results = together(stacked, jnp.asarray(masks))
    for i, mask in enumerate(masks):
        mine = jax.tree.map(lambda x, i=i: x[i], stacked)
        alone = jax.jit(partial(coupled, LOOP, mask=mask))(mine, views)
        value, gradients, new = jax.tree.map(lambda x, i=i: x[i], results)
        np.testing.assert_allclose(value, alone[0], rtol=1e-5)
        assert_close(gradients[0], alone[1][0])
        assert_close(new, alone[2], relative=1e-5)


def test_outputs_may_be_a_tree(views, variables):
    """As SimSiam's are."""

    def both(variables, x, *, train, mask=None):
        z, variables = apply(variables, x, train=train, mask=mask)
        return {"z": z, "norms": jnp.sum(z**2, axis=1)}, variables

    y, _ = microbatched(Network(init, both), SIZE).apply(
        variables, views[0], train=True
    )
    z, _ = loop_apply(variables, views[0], train=True)
    np.testing.assert_allclose(y["z"], z, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(y["norms"], (z**2).sum(axis=1), rtol=1e-4)


def test_networks_without_statistics(key):
    x = jax.random.normal(key, (9, 3))
    variables = PROJECTOR.init(key, x)
    expected, _ = PROJECTOR.apply(variables, x, train=True)
    y, after = microbatched(PROJECTOR, 2).apply(variables, x, train=True)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, after, variables)


def test_parts_have_an_example():
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        microbatched(WHOLE, 0)
