"""By which rule the data of a run is dealt to its clients, as the flags say."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fcjax import data
from fcjax.data.partition_by_range import rows_held
from fcjax.sweep.flags import Common, Default, flag_of
from fcjax.sweep.folder import Point

RULES = {
    "p": data.heterogeneous,
    "alpha": data.dirichlet,
    "class_share": data.class_blocks,
    "classes_per_client": data.drawn_classes,
    "overlap": data.class_ranges,
    "natural": lambda clients, *_, seed: data.natural(clients),
}
"""By flag, (labels, number of clients, the flag's value, seed) -> the partition; what
else overlap takes has flags of its own, and natural takes whose the rows are."""
BELONGING = {
    "overlap": ("class_range", "samples_per_class"),
    "natural": ("max_clients", "min_client_size"),
}
"""By rule, what else it takes."""


def owned(args: Common, dataset: data.Dataset) -> tuple[Common, data.Dataset]:
    """Returns the flags and the data once it is known whether the clients are the
    data's own: those are dealt where it has them, unless another rule is asked for.

    Raises:
        ValueError: a flag of such clients is given and they are not dealt, or a number
            of clients where they are.
    """
    some = {"max_clients": args.max_clients, "min_client_size": args.min_client_size}
    given = [name for name, value in some.items() if value != getattr(Common, name)]
    values = {name: getattr(args, name) for name in RULES}
    defaults = [name for name, x in values.items() if isinstance(x, Default)]
    asked = [name for name, x in values.items() if x and name not in defaults]
    if given and (asked or dataset.clients is None):
        flag = flag_of(given[0])
        why = "says of none" if dataset.clients is None else f"is dealt by --{asked[0]}"
        raise ValueError(
            f"{flag} is of the data's own clients, but {args.dataset} "
            f"{why.replace('_', '-')}"
        )
    if dataset.clients is None:
        return args, dataset
    if asked:
        flag = asked[0].replace("_", "-")
        told = f"clients of the data not dealt: --{flag} is given"
        return args, dataset._replace(notes=(*dataset.notes, told))
    if not isinstance(args.clients, Default):
        raise ValueError(
            "--clients is how many the data is dealt to, but it has clients of its "
            "own; give --max-clients, or --p 0 to deal it at random"
        )
    clients, told = data.some_of(
        dataset.clients, most=args.max_clients, least_size=args.min_client_size
    )
    dataset = dataset._replace(clients=clients, notes=(*dataset.notes, told))
    count = len(np.unique(clients[clients >= 0]))
    changes = {**dict.fromkeys(defaults, ()), "natural": (1,), "clients": (count,)}
    return dataclasses.replace(args, **changes), dataset


def rule_of(args: Common) -> str:
    """Returns which of the rules is asked for, p where no other one is.

    Raises:
        ValueError: two are given, or what belongs to one that is not.
    """
    values = {name: getattr(args, name) for name in RULES}
    asked = [
        x for x, value in values.items() if value and not isinstance(value, Default)
    ]
    asked = asked or [x for x, value in values.items() if value]
    if len(asked) > 1:
        one, other = (flag_of(name) for name in asked[:2])
        raise ValueError(f"{one} and {other} are two rules of dealing, give one")
    rule = asked[0] if asked else "p"
    if args.class_range is not None and rule != "overlap":
        raise ValueError("--class-range is of clients dealt by --overlap, give both")
    return rule


def configuration(args: Common) -> dict[str, Any]:
    """Returns the rule and what else it takes, as config.json holds it."""
    rule = rule_of(args)
    own = {name: getattr(args, name) for name in BELONGING.get(rule, ())}
    return {"partition": rule, **own}


def levels(args: Common, dataset: data.Dataset) -> tuple[float | int, ...]:
    """Returns the values of the rule that the grid has."""
    default = 0.0 if dataset.labels is None else 0.25
    return getattr(args, rule_of(args)) or (default,)


def levels_by_classes(
    args: Common, dataset: data.Dataset
) -> dict[int, tuple[float | int, ...]]:
    """Returns the levels by the most classes that a client is given at them; none where
    the rule does not tell."""
    rule, found = rule_of(args), levels(args, dataset)
    if rule == "classes_per_client":
        return {int(number): (number,) for number in found}
    if rule == "overlap" and dataset.labels is not None:
        return {class_range(args, dataset.labels)[1]: found}
    return {}


def class_range(args: Common, labels: np.ndarray) -> tuple[int, int]:
    """Returns the least and the most classes of a client that is dealt by --overlap."""
    return args.class_range or (2, max(2, len(np.unique(labels)) // 2))


def num_held(args: Common, dataset: data.Dataset) -> int:
    """Returns how many examples all clients have together, before --client-size."""
    if args.natural and dataset.clients is not None:
        return int((dataset.clients >= 0).sum())
    return len(dataset.examples)


def rows_of_client(args: Common, dataset: data.Dataset, num_clients: int) -> float:
    """Returns how many examples a client trains on, in the middle, one at least.

    It is what the rule deals at its first level, whatever the seed draws: of --overlap
    for the middle of the class range, so many holders of each class, and classes that
    are all of one size. Those of --extra-split are not counted.

    Args:
        args: the flags; --client-size holds, the largest of several.
        dataset: what is dealt.
        num_clients: M.
    """
    size, labels = num_held(args, dataset), dataset.labels
    rows = size / num_clients
    if rule_of(args) == "overlap" and labels is not None:
        num_classes, classes = len(np.unique(labels)), middle_classes(args, labels)
        holders = max(round(num_clients * classes / num_classes), 1)
        each = min(args.samples_per_class, size // num_classes // holders)
        rows = classes * rows_held(each, holders, args.overlap[0])
    return max(1.0, float(min(rows, max(args.client_size, default=rows))))


def cluster_size(
    args: Common, dataset: data.Dataset, num_clients: int, num_clusters: int
) -> int:
    """Returns how many examples there are of each cluster of a client, in the middle.

    Args:
        args, dataset, num_clients: as in `rows_of_client`.
        num_clusters: K, what clients look for where it is not what they hold.
    """
    own, labels = float(num_clusters), dataset.labels
    if rule_of(args) == "overlap" and labels is not None and not args.clusters:
        own = middle_classes(args, labels)
    return round(rows_of_client(args, dataset, num_clients) / own)


def middle_classes(args: Common, labels: np.ndarray) -> float:
    """Returns how many classes a client dealt by --overlap has, in the middle."""
    return max(sum(class_range(args, labels)) / 2, 1.0)


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
    by_rule = RULES[rule]
    if rule == "overlap":
        by_rule = partial(
            by_rule,
            class_range=class_range(args, known),
            samples_per_class=args.samples_per_class,
        )
    dealt_by = dataset.clients if rule == "natural" else known
    extra = np.arange(count, count + num_extra)
    # To a client's subset the extra rows are one class more.
    kinds = np.concatenate([known, np.full(num_extra, int(known.max()) + 1)])
    dealt: dict[tuple, data.Partition] = {}

    def deal(point: Point) -> data.Partition:
        if labels is None and rule not in ("natural", "p"):
            flag = flag_of(rule)
            raise ValueError(f"{flag} deals by labels, and the data has none")
        if labels is None and rule == "p" and point["p"] != 0:
            raise ValueError("--p must be 0 where the data has no labels to deal by")
        seed, size = seed_of(point, args), point.get("client_size")
        key = (point[rule], point["clients"], size, seed)
        if key not in dealt:
            held = by_rule(dealt_by, int(point["clients"]), point[rule], seed=seed)
            if args.clusters:  # then all look for so many
                held = held._replace(local_clusters=None)
            held = data.deal(held, extra, seed=seed)
            if size is not None:
                held = data.thinned(held, kinds, int(size), seed=seed)
            dealt[key] = held
        return dealt[key]

    return deal
