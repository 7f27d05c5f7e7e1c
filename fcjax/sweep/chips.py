"""Devices that need not be there: TPUs by their shape, as v5e:2x2."""

import os
from typing import Any, NamedTuple


class Chip(NamedTuple):
    """As its maker says."""

    operations: float
    """A second, of bfloat16."""
    bandwidth: float
    """Bytes a second, of its memory."""
    memory: int
    """Bytes."""

    def least_seconds(self, operations: int, moved: int) -> float:
        """Returns what so many operations and bytes need at the least, one beside the
        other."""
        return max(operations / self.operations, moved / self.bandwidth)


CHIPS = {
    "v5e": Chip(197e12, 819e9, 16 * 2**30),
    "v5p": Chip(459e12, 2765e9, 95 * 2**30),
    "v6e": Chip(918e12, 1640e9, 32 * 2**30),
}
"""https://cloud.google.com/tpu/docs/v5e, v5p, v6e"""


def described(topology: str) -> tuple[list[Any], Chip]:
    """Returns the devices of a topology, to compile for, and what one of them is.

    Args:
        topology: a chip and a shape, as v5e:2x2.

    Raises:
        ValueError: there is no such topology, or no compiler for it.
    """
    from jax.experimental import topologies

    name = topology.partition(":")[0]
    if name not in CHIPS:
        raise ValueError(
            f"--on must be one of {', '.join(CHIPS)} and a shape, as v5e:2x2, "
            f"got {topology}"
        )
    # The compiler would look for a machine with TPUs around this one, and would be the
    # only one on it.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    try:
        found = topologies.get_topology_desc(topology_name=topology, platform="tpu")
    except Exception as error:
        line = str(error).partition("\n")[0]
        raise ValueError(
            f"--on {topology}: {line} (compilers for TPUs: pip install fcjax[tpu])"
        ) from error
    return list(found.devices), CHIPS[name]
