"""Budgets against mechanisms that are written down with dp-accounting by hand."""

import math

import dp_accounting
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import pld, rdp

from fcjax.privacy.accounting import Part, epsilon_of, noise_of, traced_noise_of

DELTA = 1e-5
KMEANS = (Part("mean", 0.25, 1), Part("steps", 0.75, 6))
TRAINING = (Part("rounds", 0.7, 20, 0.25), Part("steps", 0.3, 4))


def composed(*events):
    return dp_accounting.ComposedDpEvent(list(events))


def gaussian(multiplier, times, rate=1.0):
    event = dp_accounting.GaussianDpEvent(multiplier)
    if rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    return dp_accounting.SelfComposedDpEvent(event, times)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
def test_epsilon_of_several_gaussian_sums(epsilon):
    noise = noise_of(KMEANS, epsilon, DELTA)
    mean, steps = noise * 2, noise * math.sqrt(8)  # sqrt(1 / 0.25), sqrt(6 / 0.75)
    assert KMEANS[0].noise_multiplier(noise) == pytest.approx(mean)
    assert KMEANS[1].noise_multiplier(noise) == pytest.approx(steps)
    event = composed(gaussian(mean, 1), gaussian(steps, 6))
    expected = pld.PLDAccountant().compose(event).get_epsilon(DELTA)
    assert epsilon == pytest.approx(expected, rel=1e-3)
    assert epsilon_of(KMEANS, noise, DELTA) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_epsilon_of_sampled_rounds(epsilon):
    noise = noise_of(TRAINING, epsilon, DELTA)
    rounds = noise * 0.25 * math.sqrt(20 / 0.7)
    event = composed(
        gaussian(rounds, 20, 0.25), gaussian(noise * math.sqrt(4 / 0.3), 4)
    )
    exact = pld.PLDAccountant().compose(event).get_epsilon(DELTA)
    assert 0.97 * epsilon < exact <= epsilon * 1.0001
    # The Renyi accountant is another bound on the same mechanism.
    assert rdp.RdpAccountant().compose(event).get_epsilon(DELTA) > exact


def test_sampling_needs_less_noise_than_all_clients():
    everyone = (Part("rounds", 1.0, 20),)
    sampled = (Part("rounds", 1.0, 20, 0.1),)
    all_noise = everyone[0].noise_multiplier(noise_of(everyone, 1.0, DELTA))
    noise = sampled[0].noise_multiplier(noise_of(sampled, 1.0, DELTA))
    assert noise < all_noise / 3


def test_a_large_budget_of_sampled_rounds_keeps_some_noise():
    sampled = (Part("rounds", 1.0, 1, 0.01),)
    noise = noise_of(sampled, 50.0, DELTA)
    assert sampled[0].noise_multiplier(noise) >= 0.3
    assert epsilon_of(sampled, noise, DELTA) <= 50


def test_the_traced_noise_is_that_of_its_epsilon():
    epsilons = (8.0, 0.5, 1.0)
    for epsilon in epsilons:
        found = traced_noise_of(KMEANS, jnp.float32(epsilon), epsilons, DELTA)
        np.testing.assert_allclose(found, noise_of(KMEANS, epsilon, DELTA), rtol=1e-6)


@pytest.mark.parametrize("parts", [KMEANS + KMEANS, KMEANS[:1]])
def test_parts_use_the_budget_once(parts):
    with pytest.raises(ValueError, match="`parts` must sum to 1"):
        noise_of(parts, 1.0, DELTA)
    with pytest.raises(ValueError, match="`parts` must sum to 1"):
        epsilon_of(parts, 1.0, DELTA)
