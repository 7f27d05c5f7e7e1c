"""Rounds: stages that run all of theirs, as most do, and who answers in any."""

from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
from jaxtyping import Array, Bool

from fcjax.types import Federation, PRNGKey, Stage

State = TypeVar("State")


def go_on(_: PRNGKey, state: State, *data: object) -> State:
    """Begins a stage, or a phase, with the state that the one before has ended in."""
    return state


def never(_: object) -> Bool[Array, ""]:
    """Ends no stage before its last round."""
    return jnp.array(False)


def all_rounds(
    name: str, round: Callable, num_rounds: int, *, begin: Callable = go_on
) -> Stage:
    """Returns a stage that runs all of its rounds.

    Args:
        name, round, num_rounds, begin: as in `Stage`.
    """
    return Stage(name, begin, round, num_rounds, never)


def ever_present(federation: Federation) -> Bool[Array, "A"]:
    """Returns who of all clients, on whatever device, answers in any round: nobody
    waits for the others, nor counts them."""
    return federation.present.any(axis=0)
