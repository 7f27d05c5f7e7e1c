"""FedU and FedEMA: how far an encoder has gone, and what of its own a client then goes
on with. Their loss, BYOL's, is in `test_descent`, and who mixes what in which round in
`test_averaging`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import nn
from fcjax.algorithms.fedu import (
    EMAMemory,
    Memory,
    average_with_global,
    begin,
    begin_fedema,
    divergence,
    remember,
    remember_divergence,
    take_over,
)


def at(*shape, value):
    return {"kernel": jnp.full(shape, value), "bias": jnp.full(shape[-1:], 9.0)}


CONVOLUTIONS = {
    "stem": at(1, 1, 2, 8, value=1.0),  # of norm 4
    "block": {
        "first": at(3, 3, 1, 1, value=2.0),  # of norm 6
        "shortcut": at(1, 1, 1, 4, value=50.0),
    },
    "dense": at(4, 4, value=50.0),
}
NO_CONVOLUTION = {"one": at(2, 2, value=1.0), "two": at(1, 9, value=-2.0)}  # 2, 6


@pytest.mark.parametrize(
    ("layers", "expected"), [(CONVOLUTIONS, 5), ({"layers": NO_CONVOLUTION}, 4)]
)
def test_divergence_is_the_mean_norm_over_convolutions_that_are_no_shortcut(
    layers, expected
):
    """Of all kernels where no convolution is."""
    ended = {"params": {"encoder": layers}}
    began = jax.tree.map(jnp.zeros_like, ended)
    assert float(divergence(began, ended)) == pytest.approx(expected)


@pytest.mark.parametrize(("block", "count"), [("basic", 2), ("bottleneck", 3)])
def test_shortcuts_of_a_resnet_are_left_out(block, count):
    """A stem and two blocks: convolutions move by 3, shortcuts by far more."""
    layers = nn.resnet.ResNet((1, 1), block=block, width=2)
    x = jnp.zeros((1, 8, 8, 3))
    shapes = jax.eval_shape(nn.encoder(layers).init, jax.random.key(0), x)
    body, seen = [f"Conv_{i}" for i in range(count)], []

    def move(path, leaf):
        *_, outer, conv, name = (entry.key for entry in path)
        if name != "kernel":
            return np.zeros(leaf.shape)
        is_body = outer == "layers" or conv in body
        seen.append(is_body)
        return np.full(leaf.shape, (3.0 if is_body else 100.0) / np.sqrt(leaf.size))

    ended = jax.tree_util.tree_map_with_path(move, shapes)
    assert sum(seen) == 1 + 2 * count
    assert len(seen) > sum(seen)  # there are shortcuts
    ended = {"params": {"encoder": ended["params"]}}
    began = jax.tree.map(np.zeros_like, ended)
    assert float(divergence(began, ended)) == pytest.approx(3)


def parts(encoder, predictor=0.0, mean=0.0):
    """Of an encoder of one kernel of two numbers."""
    kernels = {"encoder": encoder, "predictor": predictor}
    params = {k: {"kernel": jnp.full((2, 1), x)} for k, x in kernels.items()}
    return {"params": params, "batch_stats": {"encoder": {"mean": jnp.float32(mean)}}}


def kernel(found, name="encoder"):
    return np.asarray(found["params"][name]["kernel"])


ROOT = 2**0.5  # the norm of a kernel that moves by 1


# --- FedU


@pytest.mark.parametrize(
    ("threshold", "expected"), [(0.0, 7), (3.0, 7), (3.1, 5), (jnp.inf, 5)]
)
def test_a_client_goes_on_with_its_own_predictor_from_the_threshold_on(
    threshold, expected
):
    sent = parts(encoder=1.0, predictor=5.0)
    own = {"params": parts(0.0, predictor=7.0)["params"]["predictor"]}
    found = take_over(threshold, sent, Memory(own, jnp.float32(3)), jnp.int32(1))
    np.testing.assert_array_equal(kernel(found, "predictor"), expected)
    np.testing.assert_array_equal(kernel(found), 1)
    # Whoever has not trained takes over the server's at any threshold.
    first = take_over(0.0, sent, begin(sent), jnp.int32(0))
    np.testing.assert_array_equal(kernel(first, "predictor"), 5)


def test_a_client_remembers_its_predictor_and_how_far_its_encoder_went():
    memory = remember(parts(1.0, predictor=5.0), parts(4.0, predictor=6.0))
    np.testing.assert_array_equal(memory.predictor["params"]["kernel"], 6)
    assert float(memory.divergence) == pytest.approx(3 * ROOT)


# --- FedEMA


@pytest.mark.parametrize(
    ("options", "gone", "since", "share"),
    [
        ((0.7, None), 2.0, 1, 0.7),  # the second round: tau itself
        ((0.7, None), 1.0, 1, 0.35),  # lambda stays tau over the first divergence
        ((0.7, None), 9.0, 1, 1.0),  # at most all of its own
        ((0.7, None), 2.0, 2, 0.0),  # who was absent goes on from the server's
        ((0.7, 0.25), 2.0, 1, 0.5),  # a lambda for all
        ((0.7, 0.0), 2.0, 1, 0.0),
    ],
)
def test_a_client_mixes_in_more_of_its_own_the_farther_it_has_gone(
    options, gone, since, share
):
    """Own parameters of 1 with the server's of 3, whose statistics it takes."""
    memory = EMAMemory(
        parts(1.0, mean=8.0), jnp.float32(gone), jnp.float32(2), jnp.int32(4)
    )
    sent = parts(3.0, mean=9.0)
    found = average_with_global(*options, sent, memory, jnp.int32(4 + since))
    np.testing.assert_allclose(kernel(found), 3 - 2 * share, rtol=1e-6)
    assert float(found["batch_stats"]["encoder"]["mean"]) == 9


def test_the_first_divergence_is_remembered():
    sent = parts(1.0)
    began = average_with_global(0.7, None, sent, begin_fedema(sent), jnp.int32(0))
    np.testing.assert_array_equal(kernel(began), 1)
    memory, ends = begin_fedema(sent), (3.0, 6.0)
    for number, (end, gone) in enumerate(zip(ends, (2, 5), strict=True)):
        memory = remember_divergence(began, parts(end), memory, jnp.int32(number))
        np.testing.assert_array_equal(kernel(memory.online), end)
        assert float(memory.divergence) == pytest.approx(gone * ROOT)
        assert float(memory.first_divergence) == pytest.approx(2 * ROOT)
        assert int(memory.number) == number
