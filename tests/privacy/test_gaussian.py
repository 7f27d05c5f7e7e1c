"""Clipping, noise and sampling of clients' updates."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.federated import server
from fcjax.privacy.accounting import Part
from fcjax.privacy.gaussian import Updates, add_noise, clip_norm
from fcjax.types import Federation, Now

KEY = jax.random.key(3)


def federation(num_clients):
    rows = jnp.zeros((num_clients, 1), int)
    return Federation(
        pool=jnp.zeros((1, 1)),
        indices=rows,
        mask=rows == 0,
        present=jnp.ones((1, num_clients), bool),
        local_clusters=jnp.ones(num_clients, int),
        now=Now(jnp.int32(0), jnp.int32(0), jnp.array(True)),
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0, 4.0], [1.5, 2.0]),
        ([0.3, 0.4], [0.3, 0.4]),
        ([0.0, 0.0], [0.0, 0.0]),
        ([jnp.nan, 5.0], [0.0, 2.5]),
        ([jnp.inf, 0.3], [0.0, 0.3]),
        ([3e30, 4e30], [1.5, 2.0]),  # its square is infinite in float32
    ],
)
def test_clipping(values, expected):
    clipped = clip_norm({"a": jnp.array(values[:1]), "b": jnp.array(values[1:])}, 2.5)
    found = jnp.concatenate([clipped["a"], clipped["b"]])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def updates_of(noise_at="server", noise=0.0, rate=1.0):
    part = Part("rounds", share=0.5, times=8, sample_rate=rate)
    return Updates(noise, part, clip=2.0, noise_at=noise_at)


def averaged(updates, trained, before, key=KEY):
    """The new global network after a round with the given networks of the clients."""
    present = updates.sample(key, federation(len(trained)))
    keys = jax.random.split(key, len(trained))
    uploads = [
        updates.upload(k, x, before, present.sum())
        for k, x in zip(keys, trained, strict=True)
    ]
    mean = server.weighted_mean(jnp.stack(uploads), present.astype(float))
    return updates.receive(key, mean, before, present)


def test_without_noise_it_is_the_mean_of_clipped_updates():
    before, trained = jnp.array([1.0, 1.0]), jnp.array([[1.0, 5.0], [2.0, 1.0]])
    # The updates are (0, 4), clipped to (0, 2), and (1, 0).
    found = averaged(updates_of(), trained, before)
    np.testing.assert_allclose(found, [1.5, 2.0])


def test_one_client_more_moves_the_sum_by_at_most_the_clip():
    updates, before = updates_of(), jnp.zeros(20)
    draw = np.random.default_rng(0)
    trained = draw.normal(size=(50, 20)) * 10 ** draw.uniform(-3, 3, size=(50, 1))
    upload = jax.jit(
        lambda x: optax.tree.norm(updates.upload(KEY, x, before, jnp.int32(1)))
    )
    assert max(upload(jnp.asarray(x)) for x in trained) <= 2.0 * (1 + 1e-6)


@pytest.mark.parametrize("noise_at", ["server", "clients"])
def test_the_noise_of_the_mean_has_the_calibrated_scale(noise_at):
    updates, before = updates_of(noise_at, noise=1.5), jnp.zeros(20_000)
    found = averaged(updates, jnp.zeros((10, 20_000)), before)
    # 1.5 sqrt(8 / 0.5) = 6 times the clip 2, over 10 clients. The standard deviation of
    # a standard deviation of n draws is 1 / sqrt(2 n).
    np.testing.assert_allclose(found.std(), 1.2, rtol=4 / np.sqrt(2 * 20_000))
    np.testing.assert_allclose(found.mean(), 0, atol=4 * 1.2 / np.sqrt(20_000))


@pytest.mark.parametrize("noise_at", ["server", "clients"])
def test_a_round_without_clients_is_noise_alone(noise_at):
    updates = updates_of(noise_at, noise=1.5, rate=1e-9)
    found = averaged(updates, jnp.full((4, 20_000), jnp.nan), jnp.ones(20_000))
    expected = updates.scale / (4 * 1e-9)
    np.testing.assert_allclose((found - 1).std(), expected, rtol=0.03)


def test_clients_are_sampled_independently_at_the_given_rate():
    updates, everyone = updates_of(rate=0.3), federation(200)
    sample = jax.jit(lambda key: updates.sample(key, everyone))
    drawn = jnp.stack([sample(jax.random.fold_in(KEY, i)) for i in range(50)])
    assert abs(drawn.mean() - 0.3) < 4 * np.sqrt(0.21 / drawn.size)
    sizes = drawn.sum(axis=1)
    assert sizes.min() < sizes.max()  # a Poisson sample has no fixed size


def test_noise_of_arrays_is_independent():
    found = add_noise(KEY, {"a": jnp.zeros(5000), "b": jnp.zeros(5000)}, 2.0)
    assert abs(np.corrcoef(found["a"], found["b"])[0, 1]) < 4 / np.sqrt(5000)
    np.testing.assert_allclose(found["a"].std(), 2, rtol=0.05)


def test_two_budgets_draw_independent_noise():
    """Otherwise two results of one seed would reveal the sum without noise."""
    noises = [
        averaged(updates_of(noise=noise), jnp.zeros((4, 5000)), jnp.zeros(5000))
        for noise in (1.0, 2.0)
    ]
    assert abs(np.corrcoef(*noises)[0, 1]) < 4 / np.sqrt(5000)
