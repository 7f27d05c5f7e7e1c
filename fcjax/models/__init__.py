"""Networks: the only place that imports Flax."""

from fcjax.models.heads import (
    byol_head,
    cluster_projector,
    encoder,
    projector,
    simsiam_predictor,
    simsiam_projector,
)
from fcjax.models.microbatch import microbatched
from fcjax.models.mlp import MLP, mlp_simsiam
from fcjax.models.network import from_linen
from fcjax.models.norm import batch_norm
from fcjax.models.resnet import ResNet, resnet18, resnet34, resnet50
from fcjax.models.simsiam import conv_encoder, simsiam

__all__ = [
    "MLP",
    "ResNet",
    "batch_norm",
    "byol_head",
    "cluster_projector",
    "conv_encoder",
    "encoder",
    "from_linen",
    "microbatched",
    "mlp_simsiam",
    "projector",
    "resnet18",
    "resnet34",
    "resnet50",
    "simsiam",
    "simsiam_predictor",
    "simsiam_projector",
]
