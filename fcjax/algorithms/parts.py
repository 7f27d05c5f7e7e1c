"""Networks in named parts, which a stage may train, track, send or freeze apart."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import jax
from jaxtyping import Array, Bool, Float

from fcjax.models.microbatch import microbatched
from fcjax.types import Network, PRNGKey, PyTree

Parts = dict[str, PyTree]
"""The variables of several networks: by kind, as those of any one, and then by part."""
Views = tuple[Float[Array, "B *F"], Float[Array, "B *F"]]


class Networks(NamedTuple):
    """Networks by part: encoder, projector, predictor, cluster_projector."""

    named: Mapping[str, Network]
    microbatch: int | None = None
    """Examples that they take at a time, see `models.microbatched`."""


def initialize(
    key: PRNGKey, networks: Mapping[str, Network], x: Float[Array, "1 *F"]
) -> Parts:
    """Draws the variables of networks of which each is fed by the one before."""
    parts: Parts = {}
    for number, (name, network) in enumerate(networks.items()):
        variables = network.init(jax.random.fold_in(key, number), x)
        x, _ = network.apply(variables, x, train=False)
        parts = put(parts, name, variables)
    return parts


def forward(
    networks: Networks,
    parts: Parts,
    path: tuple[str, ...],
    x: Float[Array, "B *F"],
    mask: Bool[Array, "B"],
    *,
    train: bool = True,
) -> tuple[Float[Array, "B D"], Parts]:
    """Applies some parts, one after another.

    Returns:
        What the last one returns, and the parts with new batch statistics.
    """
    network = chained({name: networks.named[name] for name in path})
    # Parts that follow each other are bounded as one: what lies between is not kept.
    if networks.microbatch is not None:
        network = microbatched(network, networks.microbatch)
    x, variables = network.apply(pick(parts, path), x, train=train, mask=mask)
    return x, merge(parts, variables)


def chained(named: Mapping[str, Network]) -> Network:
    """Returns networks of which each is fed by the one before as a single one."""

    def init(key, x):
        return initialize(key, named, x)

    def apply(variables, x, *, train, mask=None):
        for name, network in named.items():
            own = part(variables, name)
            x, own = network.apply(own, x, train=train, mask=mask)
            variables = put(variables, name, own)
        return x, variables

    return Network(init, apply)


def both(
    networks: Networks,
    parts: Parts,
    path: tuple[str, ...],
    views: Views,
    mask: Bool[Array, "B"],
    *,
    train: bool = True,
) -> tuple[tuple[Float[Array, "B D"], Float[Array, "B D"]], Parts]:
    """Applies some parts to both views, the batch statistics of each being its own."""
    a, parts = forward(networks, parts, path, views[0], mask, train=train)
    b, parts = forward(networks, parts, path, views[1], mask, train=train)
    return (a, b), parts


def target_of(online: Parts, target: Mapping[str, PyTree]) -> Parts:
    """Returns the variables of target networks, which no gradient reaches.

    Args:
        online: whose batch statistics stand in; in training none are used.
        target: the parameters of the parts that have a target network.
    """
    return jax.lax.stop_gradient(merge(online, {"params": target}))


def part(parts: Parts, name: str) -> PyTree:
    """Returns the variables of one of the networks."""
    return {kind: named[name] for kind, named in parts.items() if name in named}


def put(parts: Parts, name: str, variables: PyTree) -> Parts:
    """Returns the parts with the variables of one of the networks."""
    return merge(parts, {kind: {name: value} for kind, value in variables.items()})


def pick(parts: Parts, names: Iterable[str]) -> Parts:
    """Returns the parts of these names."""
    picked: Parts = {}
    for name in names:
        picked = put(picked, name, part(parts, name))
    return picked


def merge(parts: Parts, others: Parts) -> Parts:
    """Returns the parts of both, where both have one that of the others."""
    return {
        kind: {**parts.get(kind, {}), **others.get(kind, {})}
        for kind in {**parts, **others}
    }
