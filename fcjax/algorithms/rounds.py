"""Rounds: stages that run all of theirs, as most do, which are scored, and who answers
in any.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fcjax.types import Federation, PRNGKey, Stage

State = TypeVar("State")


class EvaluationSchedule(NamedTuple):
    """Which rounds of a stage are scored.

    Examples:
        >>> every_fourth = EvaluationSchedule(every=4, last=2)
        >>> [n for n in range(1, 11) if every_fourth.includes(n, 10)]
        [4, 8, 9, 10]
    """

    every: int = 1
    last: int = 1
    """How many at the end of the stage are, too."""

    def includes(
        self, number: int | Int[Array, ""], num_rounds: int | Int[Array, ""]
    ) -> bool | Bool[Array, ""]:
        """Returns whether a round is, from 1, of a stage of so many."""
        return (number % self.every == 0) | (number > num_rounds - self.last)


def evaluation_schedule(asked: int | None, every: int) -> EvaluationSchedule:
    """Returns which rounds are evaluated.

    Args:
        asked: the user's interval in rounds; None leaves it to the method.
        every: the method's own interval; it also evaluates the last ten rounds of a
            stage.
    """
    return (
        EvaluationSchedule(every, last=10)
        if asked is None
        else EvaluationSchedule(asked)
    )


EVERY_ROUND = EvaluationSchedule()


def keep_state(_: PRNGKey, state: State, *data: object) -> State:
    """Begins a stage, or a phase, with the state that the one before has ended in."""
    return state


def never_done(_: object) -> Bool[Array, ""]:
    """Ends no stage before its last round."""
    return jnp.array(False)


def all_rounds(
    name: str, round: Callable, num_rounds: int, *, begin: Callable = keep_state
) -> Stage:
    """Returns a stage that runs all of its rounds.

    Args:
        name, round, num_rounds, begin: as in `Stage`.
    """
    return Stage(name, begin, round, num_rounds, never_done)


def ever_participating(federation: Federation) -> Bool[Array, "A"]:
    """Returns who of all clients, on whatever device, answers in any round: nobody
    waits for the others, nor counts them.
    """
    return federation.present.any(axis=0)
