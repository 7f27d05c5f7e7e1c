"""Small federations, and their rounds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcjax.types import Federation, Now


def federate(
    pool, clients: Sequence[np.ndarray], *, absent=(), num_clusters=3
) -> Federation:
    """Clients that hold rows of a pool; shorter ones repeat their own."""
    width = max(map(len, clients))
    return Federation(
        pool=jnp.asarray(pool, jnp.float32),
        indices=jnp.array([np.resize(rows, width) for rows in clients], jnp.int32),
        mask=jnp.array([np.arange(width) < len(rows) for rows in clients]),
        present=jnp.array([[i not in absent for i in range(len(clients))]]),
        local_clusters=jnp.full(len(clients), num_clusters, jnp.int32),
        now=Now(jnp.int32(0), jnp.int32(0), jnp.array(True)),
    )


def in_round(
    federation: Federation, number: int, *, before: int = 0, is_evaluated: bool = True
) -> Federation:
    """The federation in a round of a stage, from 0, after those of other stages."""
    rounds = jnp.int32(before + number), jnp.int32(number)
    now = Now(*rounds, jnp.array(is_evaluated))
    return federation._replace(now=now)


def rounds(method, key, federation, count: int = 1):
    """The state and the metrics after so many rounds of the only stage."""
    (stage,) = method.stages
    state = stage.begin(key, method.init(key, federation), federation)
    round, metrics = jax.jit(stage.round), {}
    for number in range(count):
        state, metrics = round(key, state, in_round(federation, number))
    return state, metrics


class Round(NamedTuple):
    stage: str
    before: Any
    after: Any
    metrics: dict


def follow(method, federation, *, first=0, state=None) -> list[Round]:
    """All rounds from a stage on; the state before a stage's first one is that with
    which it begins."""
    key, found = jax.random.key(0), []
    earlier = sum(stage.num_rounds for stage in method.stages[:first])
    if state is None:
        state = jax.jit(method.init)(key, federation)
    for number, stage in enumerate(method.stages[first:], start=first):
        stage_key, before = jax.random.fold_in(key, number), earlier + len(found)
        now = in_round(federation, 0, before=before)
        state = jax.jit(stage.begin)(stage_key, state, now)
        round = jax.jit(stage.round)
        for i in range(stage.num_rounds):
            if stage.done(state):
                break
            old, now = state, in_round(federation, i, before=before)
            state, metrics = round(jax.random.fold_in(stage_key, i), old, now)
            found.append(Round(stage.name, *jax.device_get((old, state, metrics))))
    return found


def traffic(metrics) -> dict[str, list[int]]:
    """How many messages of how many bytes crossed, by name."""
    return {k: list(v) for k, v in metrics.items() if k.startswith(("up_", "down_"))}


def both_ways(count: int, **sizes: int) -> dict[str, list[int]]:
    """The traffic of parts of so many numbers that come down and all go up again."""
    return {
        f"{way}_{name}": [count, 4 * size]
        for way in ("up", "down")
        for name, size in sizes.items()
    }
