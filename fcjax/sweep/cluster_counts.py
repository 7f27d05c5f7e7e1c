"""How many clusters are looked for, and whether the data is enough for them."""

import numpy as np

from fcjax import data
from fcjax.sweep.flags import Common


def numbers_of_clusters(args: Common, dataset: data.Dataset) -> tuple[int, ...]:
    if args.clusters:
        return args.clusters
    if dataset.labels is None:
        raise ValueError("--clusters is required where the data has no labels")
    num_classes = len(np.unique(dataset.labels))
    if num_classes < 2:
        raise ValueError(f"--clusters is required: all of {dataset.name} has one class")
    return (num_classes,)


def check_size(
    num_clients: int, num_clusters: int, args: Common, dataset: data.Dataset
) -> None:
    num_examples = len(dataset.examples)
    if num_clusters * num_clients > num_examples:
        raise ValueError(
            f"--clusters {num_clusters} with --clients {num_clients} take at least "
            f"{num_clusters * num_clients} examples, {args.dataset} has {num_examples}"
        )
    size = min(args.client_size, default=num_clusters)
    if size < num_clusters:
        raise ValueError(
            f"--client-size must be at least --clusters {num_clusters}, got {size}"
        )
