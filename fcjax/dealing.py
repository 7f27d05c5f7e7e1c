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
}
"""By flag, (labels, number of clients, the flag's value, seed) -> the partition."""


def rule_of(args: Common) -> str:
    """Returns which of the rules is asked for, p where neither other one is.

    Raises:
        ValueError: both others are.
    """
    if args.alpha and args.class_share:
        raise ValueError("--alpha and --class-share are two rules of dealing, give one")
    return "alpha" if args.alpha else "class_share" if args.class_share else "p"


def levels(args: Common, dataset: data.Dataset) -> tuple[float, ...]:
    """Returns the values of the rule that the grid has."""
    default = 0.0 if dataset.labels is None else 0.25
    return getattr(args, rule_of(args)) or (default,)


def seed_of(point: Point, args: Common) -> int:
    return int(point["seed"]) if args.partition_seed is None else args.partition_seed


def dealer(
    args: Common, dataset: data.Dataset, num_extra: int
) -> Callable[[Point], data.Partition]:
    """Returns a function that deals the data by its rule, and the extra rows behind it
    evenly; runs that are dealt alike share one partition."""
    rule, labels, count = rule_of(args), dataset.labels, len(dataset.examples)
    dealt: dict[tuple, data.Partition] = {}

    def deal(point: Point) -> data.Partition:
        if labels is None and (rule != "p" or point["p"] != 0):
            raise ValueError("--p must be 0 where the data has no labels to deal by")
        seed = seed_of(point, args)
        key = (point[rule], point["clients"], seed)
        if key not in dealt:
            known = np.zeros(count, int) if labels is None else labels
            held = RULES[rule](known, int(point["clients"]), point[rule], seed=seed)
            dealt[key] = data.deal(held, np.arange(count, count + num_extra), seed=seed)
        return dealt[key]

    return deal
