"""Secure sums with Flower's SecAgg+: the server learns sums, and no site's terms.

The sites mask their terms with random numbers that cancel in the sum. SecAgg+ sums
integers. So a term is divided by a power of two above the largest term of all sites,
and rounded to 22 bits. Values that are no terms of a sum, such as seeds of k-means and
losses, are uploaded without a mask.

References:
    Bell et al., Secure single-server aggregation with (poly)logarithmic overhead, 2020.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.compat.common import recorddict_compat
from flwr.server import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid

LEVELS = 2**22
"""The number of levels to which a term is rounded, from -1 to 1 times its scale."""


def scales_of(terms: Sequence[np.ndarray]) -> np.ndarray:
    """Returns a power of two above the largest value of each array, or 0.

    Args:
        terms: the terms of a site.

    Returns:
        One number per array, float32; NaN for an array that is not finite.

    Examples:
        >>> print(scales_of([np.array([0.5, -3.0]), np.zeros(2)]))
        [4. 0.]
    """
    largest = np.array([np.abs(x).max(initial=0) for x in terms], np.float32)
    exponents = np.ceil(np.log2(np.where(largest > 0, largest, 1)))
    scales = np.where(largest > 0, np.exp2(exponents), 0)
    return np.where(np.isfinite(largest), scales, np.nan).astype(np.float32)


def masked_terms(message: Message, terms: Sequence[np.ndarray]) -> Message:
    """Answers Flower's request for the terms of a site; Flower's mod masks them.

    Args:
        message: the request, with the scale of each array.
        terms: the terms of the site.

    Returns:
        The answer.
    """
    request = recorddict_compat.recorddict_to_fitins(message.content, keep_input=True)
    (scales,) = parameters_to_ndarrays(request.parameters)
    units = [x / (scale or 1) for x, scale in zip(terms, scales, strict=True)]
    vector = np.concatenate([np.ravel(x) for x in units]).astype(np.float64)
    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), 1, {})
    content = recorddict_compat.fitres_to_recorddict(result, keep_input=True)
    return Message(content, reply_to=message)


class _Terms(FedAvg):
    """Asks given nodes for their terms, and keeps the mean that SecAgg+ computes."""

    def __init__(self, nodes: Sequence[int], scales: np.ndarray):
        super().__init__()
        self.nodes, self.scales = nodes, scales
        self.mean = np.zeros(0)
        self.answered: list[int] = []

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any):
        """Returns the nodes with their request."""
        request = FitIns(ndarrays_to_parameters([self.scales]), {})
        return [(_Node(node), request) for node in self.nodes]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any):
        """Keeps the mean."""
        self.answered = [node.node_id for node, _ in results]
        (self.mean,) = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


class _Node:
    """A node as SecAgg+ needs it."""

    def __init__(self, node_id: int):
        self.node_id = node_id


def secure_sums(
    grid: Grid,
    context: Context,
    nodes: Sequence[int],
    scales: np.ndarray,
    shapes: Sequence[tuple[int, ...]],
    *,
    timeout: float,
) -> tuple[list[np.ndarray], list[int]]:
    """Computes the sums of the terms of some sites with SecAgg+.

    Args:
        grid: Flower's connection to the nodes.
        context: Flower's context of the server.
        nodes: the nodes of the sites, at least 3.
        scales: the scale of each array.
        shapes: the shape of each array.
        timeout: seconds to wait in each of the four exchanges of SecAgg+.

    Returns:
        The sums, and the nodes whose terms they have. Both are empty if too few nodes
        answered.
    """
    strategy = _Terms(nodes, scales)
    legacy = LegacyContext(context, strategy=strategy)
    legacy.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord(
        {Key.CURRENT_ROUND: 1}
    )
    legacy.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord([scales])
    workflow = SecAggPlusWorkflow(
        num_shares=1.0,
        reconstruction_threshold=0.5,
        max_weight=1.0,
        clipping_range=1.0,
        quantization_range=LEVELS,
        timeout=timeout,
    )
    workflow(grid, legacy)
    if not strategy.answered:
        return [], []
    total = strategy.mean * len(strategy.answered)
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    parts = zip(np.split(total, ends), scales, shapes, strict=True)
    sums = [
        (part * scale).reshape(shape).astype(np.float32) for part, scale, shape in parts
    ]
    return sums, strategy.answered
