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


def updates_of(noise_at="server", noise=0.0, rate=1.0, quantile=None):
    part = Part("rounds", share=0.5, times=8, sample_rate=rate)
    return Updates(noise, part, clip=2.0, noise_at=noise_at, quantile=quantile)


def averaged(updates, trained, before, key=KEY):
    """The new global network after a round with the given networks of the clients."""
    return round_of(updates, trained, before, jnp.float32(2.0), key)[0]


def round_of(updates, trained, before, clip, key=KEY):
    """The new global network after a round, and the clip of the next round."""
    present = updates.sample(key, federation(len(trained)))
    keys = jax.random.split(key, len(trained))
    uploads = [
        updates.upload(k, x, before, present.sum(), clip)
        for k, x in zip(keys, trained, strict=True)
    ]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *uploads)
    mean = server.weighted_mean(stacked, present.astype(float))
    return updates.receive(key, mean, before, present, clip)


def test_without_noise_it_is_the_mean_of_clipped_updates():
    before, trained = jnp.array([1.0, 1.0]), jnp.array([[1.0, 5.0], [2.0, 1.0]])
    # The updates are (0, 4), clipped to (0, 2), and (1, 0).
    found = averaged(updates_of(), trained, before)
    np.testing.assert_allclose(found, [1.5, 2.0])


@pytest.mark.parametrize(("quantile", "bound"), [(None, 2.0), (0.5, 2.0615528)])
def test_one_client_more_moves_the_sum_by_at_most_the_bound(quantile, bound):
    """The bound with the bit of the adaptive clip is 2 sqrt(1 + 0.25^2)."""
    updates, before = updates_of(quantile=quantile), jnp.zeros(20)
    draw = np.random.default_rng(0)
    trained = draw.normal(size=(50, 20)) * 10 ** draw.uniform(-3, 3, size=(50, 1))

    @jax.jit
    def norm(x):
        clip = jnp.float32(2.0)
        return optax.tree.norm(updates.upload(KEY, x, before, jnp.int32(1), clip))

    norms = [float(norm(jnp.asarray(x))) for x in trained]
    assert max(norms) <= bound * (1 + 1e-6)
    assert max(norms) >= bound * (1 - 1e-6)


def test_the_adaptive_clip_follows_the_share_of_short_updates():
    updates, before = updates_of(quantile=0.5), jnp.zeros(1)
    # Three of four updates are short: C = 2 exp(-0.2 (0.75 - 0.5)).
    trained = jnp.array([[1.0], [0.5], [1.9], [3.0]])
    network, clip = round_of(updates, trained, before, jnp.float32(2.0))
    np.testing.assert_allclose(network, [(1 + 0.5 + 1.9 + 2) / 4], rtol=1e-6)
    np.testing.assert_allclose(clip, 2 * np.exp(-0.05), rtol=1e-5)


def test_the_adaptive_clip_ends_at_the_quantile_of_the_norms():
    updates = updates_of(quantile=0.8)
    norms = jnp.linspace(0.1, 10, 100)[:, None]

    @jax.jit
    def step(clip):
        before, number, everyone = jnp.zeros(1), jnp.int32(100), jnp.ones(100, bool)
        uploads = jax.vmap(lambda x: updates.upload(KEY, x, before, number, clip))(
            norms
        )
        mean = server.weighted_mean(uploads, jnp.ones(100))
        return updates.receive(KEY, mean, before, everyone, clip)[1]

    clip = jnp.float32(0.5)
    for _ in range(200):
        clip = step(clip)
    # Any clip between the 80th and the 81st norm has 80 short updates.
    assert 7.9 < clip < 8.2


def test_the_noise_covers_the_bit():
    updates, before = updates_of(noise=1.5, quantile=0.5), jnp.zeros(20_000)
    found = averaged(updates, jnp.zeros((10, 20_000)), before)
    expected = 1.2 * np.sqrt(1 + 0.25**2)
    np.testing.assert_allclose(found.std(), expected, rtol=4 / np.sqrt(2 * 20_000))


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
    expected = updates.scale(2.0) / (4 * 1e-9)
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
