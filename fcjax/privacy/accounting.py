"""Privacy budgets: the noise for an epsilon, and the epsilon of a noise.

All arithmetic on epsilon and delta is done by Google's library dp-accounting. This
module only describes the mechanism to that library.

Neighbouring data sets differ by one example, or by one client with all of its examples,
which is added or removed.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fcjax.types import Scalar


class Part(NamedTuple):
    """Noisy sums of one kind, such as the sums of all rounds of a stage.

    Examples:
        >>> Part("rounds", share=0.5, times=8).noise_multiplier(1.0)
        4.0
    """

    name: str
    """The name of the sums."""
    share: float
    """Share of the budget, above 0. The shares of all parts sum to 1."""
    times: int
    """Number of noisy sums."""
    sample_rate: float = 1.0
    """Probability that a client participates in a sum."""

    def noise_multiplier(self, noise: Scalar) -> Scalar:
        """Returns the noise multiplier of each sum.

        Args:
            noise: the noise multiplier of a single sum that would use the whole budget.

        Returns:
            The standard deviation of the Gaussian noise, divided by the sensitivity of
            the sum. Without sampling, all sums together cost as much as a single sum
            with the multiplier `noise`.
        """
        return noise * self.sample_rate * math.sqrt(self.times / self.share)

    def event(self, noise: float) -> Any:
        """Describes the noisy sums to dp-accounting.

        Args:
            noise: see `noise_multiplier`.

        Returns:
            The `dp_accounting.DpEvent`: Gaussian noise on sums over a Poisson sample of
            the clients.
        """
        import dp_accounting

        event = dp_accounting.GaussianDpEvent(float(self.noise_multiplier(noise)))
        if self.sample_rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(self.sample_rate, event)
        return dp_accounting.SelfComposedDpEvent(event, self.times)


Parts = tuple[Part, ...]


def event_of(parts: Sequence[Part], noise: float) -> Any:
    """Describes a whole run to dp-accounting.

    Args:
        parts: the noisy sums of the run.
        noise: the noise multiplier of the run, see `Part.noise_multiplier`.

    Returns:
        The `dp_accounting.DpEvent`: the composition of all noisy sums.
    """
    import dp_accounting

    return dp_accounting.ComposedDpEvent([part.event(noise) for part in parts])


@cache
def noise_of(parts: Parts, epsilon: float, delta: float) -> float:
    """Computes the noise multiplier of a run for a privacy budget.

    Without sampling, the sums compose to a single Gaussian mechanism, whose noise is
    computed exactly (Balle and Wang, 2018). With sampling, the accountant of privacy
    loss distributions is used.

    Args:
        parts: the noisy sums of the run.
        epsilon: the budget, above 0.
        delta: the probability delta of the guarantee, in (0, 1).

    Returns:
        The noise multiplier, see `Part.noise_multiplier`.

    Raises:
        ValueError: the shares of the parts do not sum to 1.

    Examples:
        >>> parts = (Part("sums", share=1.0, times=1),)
        >>> round(noise_of(parts, epsilon=1.0, delta=1e-5), 2)
        3.73
    """
    import dp_accounting
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    check_shares(parts)
    if all(part.sample_rate == 1 for part in parts):
        return get_sigma_gaussian(epsilon, delta)

    def search(accountant, least, guess, tolerance):
        return dp_accounting.calibrate_dp_mechanism(
            accountant,
            lambda noise: event_of(parts, noise),
            epsilon,
            delta,
            bracket_interval=dp_accounting.LowerEndpointAndGuess(least, guess),
            tol=tolerance,
        )

    # The Renyi accountant is fast and needs more noise, so it bounds the search. The
    # lower end keeps the noise multiplier of a sampled sum above 0.3.
    least = max(0.3 / float(part.noise_multiplier(1.0)) for part in parts)
    if epsilon_of(parts, least, delta) <= epsilon:
        return least
    most = search(renyi_accountant, least, 2 * least, 1e-3 * least)
    return search(accountant_of_losses, least, most, 1e-3 * most)


def epsilon_of(parts: Parts, noise: float, delta: float) -> float:
    """Computes the epsilon of a run with a given noise.

    Args:
        parts: the noisy sums of the run.
        noise: the noise multiplier of the run, see `Part.noise_multiplier`.
        delta: the probability delta of the guarantee, in (0, 1).

    Returns:
        The smallest known epsilon of the guarantee.

    Raises:
        ValueError: the shares of the parts do not sum to 1.

    Examples:
        >>> parts = (Part("moments", 0.25, times=1), Part("steps", 0.75, times=6))
        >>> round(epsilon_of(parts, 3.73, delta=1e-5), 2)
        1.0
    """
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    check_shares(parts)
    if all(part.sample_rate == 1 for part in parts):
        return get_epsilon_gaussian(noise, delta)
    return accountant_of_losses().compose(event_of(parts, noise)).get_epsilon(delta)


def check_shares(parts: Parts) -> None:
    """Checks that the parts use the budget exactly once.

    Args:
        parts: the noisy sums of the run.

    Raises:
        ValueError: the shares do not sum to 1.
    """
    total = sum(part.share for part in parts)
    if not math.isclose(total, 1, rel_tol=1e-6):
        raise ValueError(f"the shares of `parts` must sum to 1, got {total:g}")


def accountant_of_losses() -> Any:
    """Returns the accountant of privacy loss distributions.

    Its intervals are ten times as wide as the default, which saves most of the time.
    The epsilon is an upper bound for any width.
    """
    # Imported late, because only private runs need it and it takes a second.
    from dp_accounting import pld

    return pld.PLDAccountant(value_discretization_interval=1e-3)


def renyi_accountant() -> Any:
    """Returns the Renyi accountant with whole orders, whose sums are finite."""
    from dp_accounting import rdp

    return rdp.RdpAccountant([*range(2, 65), 128, 256, 512])


def traced_noise_of(
    parts: Parts, epsilon: Scalar, epsilons: Sequence[float], delta: float
) -> Scalar:
    """Looks up the noise of a run whose epsilon is traced.

    Args:
        parts: the noisy sums of the run.
        epsilon: the budget of the run, one of `epsilons`; it may be traced.
        epsilons: all budgets of the grid.
        delta: the probability delta of the guarantee.

    Returns:
        The noise multiplier, a scalar.
    """
    noises = jnp.array([noise_of(parts, each, delta) for each in epsilons])
    nearest = jnp.argmin(jnp.abs(jnp.asarray(epsilon) - np.array(epsilons, np.float32)))
    return noises[nearest]
