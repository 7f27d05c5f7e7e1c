"""Networks in named parts, which a stage may train, track, send or freeze apart."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Bool, Float

from fcjax.models.microbatch import microbatched
from fcjax.types import Network, PRNGKey, PyTree

Parts = dict[str, PyTree]
"""The variables of networks, by part."""
Views = tuple[Float[Array, "B *F"], Float[Array, "B *F"]]


class Networks(NamedTuple):
    """Networks by part: encoder, projector, predictor, cluster_projector."""

    named: Mapping[str, Network]
    microbatch: int | None = None
    """Examples that they take at a time in training, see `models.microbatched`."""


def initialize(
    key: PRNGKey, networks: Mapping[str, Network], x: Float[Array, "1 *F"]
) -> Parts:
    """Draws the variables of networks of which each is fed by the one before."""
    parts = {}
    for number, (name, network) in enumerate(networks.items()):
        parts[name] = network.init(jax.random.fold_in(key, number), x)
        x, _ = network.apply(parts[name], x, train=False)
    return parts


def forward(
    networks: Networks,
    parts: Parts,
    path: tuple[str, ...],
    x: Float[Array, "B *F"],
    mask: Bool[Array, "B"],
) -> tuple[Float[Array, "B D"], Parts]:
    """Applies some parts in training, one after another.

    Returns:
        What the last one returns, and the parts with new batch statistics.
    """
    named = {name: networks.named[name] for name in path}
    network = chained(named)
    # Parts that follow each other are bounded as one: what lies between is not kept.
    if networks.microbatch is not None:
        network = microbatched(network, networks.microbatch)
    variables = swap({name: parts[name] for name in path})
    x, variables = network.apply(variables, x, train=True, mask=mask)
    return x, {**parts, **swap(variables)}


def chained(named: Mapping[str, Network]) -> Network:
    """Returns networks of which each is fed by the one before as a single one, whose
    variables are those of all by kind and then by part."""

    def init(key, x):
        return swap(initialize(key, named, x))

    def apply(variables, x, *, train, mask=None):
        parts = swap(variables)
        for name, network in named.items():
            x, parts[name] = network.apply(parts[name], x, train=train, mask=mask)
        return x, swap(parts)

    return Network(init, apply)


def both(
    networks: Networks,
    parts: Parts,
    path: tuple[str, ...],
    views: Views,
    mask: Bool[Array, "B"],
) -> tuple[tuple[Float[Array, "B D"], Float[Array, "B D"]], Parts]:
    """Applies some parts to both views, the batch statistics of each being its own."""
    a, parts = forward(networks, parts, path, views[0], mask)
    b, parts = forward(networks, parts, path, views[1], mask)
    return (a, b), parts


def target_of(online: Parts, target: Parts) -> Parts:
    """Returns the variables of target networks, which no gradient reaches.

    Args:
        online: whose batch statistics stand in; in training none are used.
        target: the parameters of the parts that have a target network.
    """
    return jax.lax.stop_gradient(
        {name: {**online[name], "params": params} for name, params in target.items()}
    )


def swap(nested: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """From parts to kinds of variables and back: what is at [a][b] comes to [b][a]."""
    swapped: dict[str, dict[str, Any]] = {}
    for outer, inner in nested.items():
        for name, value in inner.items():
            swapped.setdefault(name, {})[outer] = value
    return swapped
