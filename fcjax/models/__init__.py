"""Networks: the only place that imports Flax."""

from fcjax.models.network import from_linen
from fcjax.models.simsiam import simsiam

__all__ = ["from_linen", "simsiam"]
