"""Networks: the only place that imports Flax."""

from fcjax.models.mlp import MLP, mlp_simsiam
from fcjax.models.network import from_linen
from fcjax.models.norm import batch_norm
from fcjax.models.resnet import ResNet, resnet18, resnet34, resnet50
from fcjax.models.simsiam import conv_encoder, simsiam

__all__ = [
    "MLP",
    "ResNet",
    "batch_norm",
    "conv_encoder",
    "from_linen",
    "mlp_simsiam",
    "resnet18",
    "resnet34",
    "resnet50",
    "simsiam",
]
