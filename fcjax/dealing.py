"""By which rule the data of a run is dealt to its clients, as the flags say."""

from collections.abc import Callable

import numpy as np

from fcjax import data
from fcjax.flags import Common
from fcjax.results import Point

RULES = {
    "p": data.heterogeneous,
    "alpha": data.dirichlet,
    "class_share": data.class_blocks,
    "classes_per_client": data.drawn_classes,
}
"""By flag, (labels, number of clients, the flag's value, seed) -> the partition."""


def rule_of(args: Common) -> str:
    """Returns which of the rules is asked for, p where no other one is.

    Raises:
        ValueError: two others are.
    """
    asked = [name for name in RULES if name != "p" and getattr(args, name)]
    if len(asked) > 1:
        one, other = ("--" + name.replace("_", "-") for name in asked[:2])
        raise ValueError(f"{one} and {other} are two rules of dealing, give one")
    return asked[0] if asked else "p"


def levels(args: Common, dataset: data.Dataset) -> tuple[float | int, ...]:
    """Returns the values of the rule that the grid has."""
    default = 0.0 if dataset.labels is None else 0.25
    return getattr(args, rule_of(args)) or (default,)


def seed_of(point: Point, args: Common) -> int:
    return int(point["seed"]) if args.partition_seed is None else args.partition_seed


def dealer(
    args: Common, dataset: data.Dataset, num_extra: int
) -> Callable[[Point], data.Partition]:
    """Returns a function that deals the data by its rule, and the extra rows behind it
    evenly, and leaves each client the examples it may use; runs that are dealt alike
    share one partition."""
    rule, labels, count = rule_of(args), dataset.labels, len(dataset.examples)
    known = np.zeros(count, int) if labels is None else labels
    extra = np.arange(count, count + num_extra)
    # To a client's subset the extra rows are one class more.
    kinds = np.concatenate([known, np.full(num_extra, int(known.max()) + 1)])
    dealt: dict[tuple, data.Partition] = {}

    def deal(point: Point) -> data.Partition:
        if labels is None and (rule != "p" or point["p"] != 0):
            raise ValueError("--p must be 0 where the data has no labels to deal by")
        seed, size = seed_of(point, args), point.get("client_size")
        key = (point[rule], point["clients"], size, seed)
        if key not in dealt:
            held = RULES[rule](known, int(point["clients"]), point[rule], seed=seed)
            held = data.deal(held, extra, seed=seed)
            if size is not None:
                held = data.thinned(held, kinds, int(size), seed=seed)
            dealt[key] = held
        return dealt[key]

    return deal
