"""Helpers for stages: fixed numbers of rounds, and the rounds to evaluate."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fcjax.federated import clients
from fcjax.types import Federation, PRNGKey, Stage

State = TypeVar("State")


class EvaluationSchedule(NamedTuple):
    """The rounds of a stage after which the clusters are evaluated.

    Examples:
        >>> schedule = EvaluationSchedule(every=4, last=2)
        >>> [n for n in range(1, 11) if schedule.includes(n, 10)]
        [4, 8, 9, 10]
    """

    every: int = 1
    """Number of rounds between two evaluations."""
    last: int = 1
    """Number of rounds at the end of the stage that are always evaluated."""

    def includes(
        self, number: int | Int[Array, ""], num_rounds: int | Int[Array, ""]
    ) -> bool | Bool[Array, ""]:
        """Tells whether the clusters are evaluated after a round.

        Args:
            number: the number of the round in its stage, from 1.
            num_rounds: the number of rounds of the stage.

        Returns:
            True for an evaluated round.
        """
        return (number % self.every == 0) | (number > num_rounds - self.last)


def evaluation_schedule(interval: int | None, default: int) -> EvaluationSchedule:
    """Chooses the rounds to evaluate: by the user's interval or by the method's.

    Args:
        interval: the user's number of rounds between two evaluations; None takes the
            default of the method.
        default: the method's number of rounds between two evaluations. With this
            default the last ten rounds of a stage are evaluated, too.

    Returns:
        The schedule.
    """
    if interval is None:
        return EvaluationSchedule(default, last=10)
    return EvaluationSchedule(interval)


EVERY_ROUND = EvaluationSchedule()


def keep_state(_: PRNGKey, state: State, *data: object) -> State:
    """Begins a stage, or a phase, with the last state of the previous one.

    Args:
        state: the last state of the previous stage or phase.
        *data: further arguments, which are ignored.

    Returns:
        The given state.
    """
    return state


def never_done(_: object) -> Bool[Array, ""]:
    """Returns False: the stage runs all of its rounds."""
    return jnp.array(False)


def all_rounds(
    name: str, round: Callable, num_rounds: int, *, begin: Callable = keep_state
) -> Stage:
    """Returns a stage that runs all of its rounds and never ends early.

    Args:
        name: the name of the stage.
        round: (key, state, federation) -> (state, metrics), see `Stage`.
        num_rounds: the number of rounds.
        begin: (key, state, federation) -> the first state of the stage.

    Returns:
        The stage.
    """
    return Stage(name, begin, round, num_rounds, never_done)


def ever_participating(federation: Federation) -> Bool[Array, "A"]:
    """Returns the clients of all devices that participate in at least one round.

    The other clients never participate, so that a server must not wait for them.

    Args:
        federation: the federation.

    Returns:
        True [A] at clients that participate at least once.
    """
    return federation.present.any(axis=0)


def ever_present(federation: Federation) -> Bool[Array, "M"]:
    """Returns the clients of this device that participate in at least one round.

    Args:
        federation: the federation.

    Returns:
        True [M] at clients that participate at least once.
    """
    ever = ever_participating(federation)
    return clients.on_this_device(ever, len(federation.indices))
