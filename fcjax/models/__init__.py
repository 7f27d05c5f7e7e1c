"""Networks: the only place that imports Flax."""

from fcjax.models.autoencoder import AutoEncoder, autoencoder
from fcjax.models.conv_autoencoder import conv_autoencoder
from fcjax.models.gan import Gan, dcgan, mlp_gan
from fcjax.models.heads import (
    byol_head,
    cluster_projector,
    encoder,
    orchestra_projector,
    projector,
    rotation_head,
    simsiam_predictor,
    simsiam_projector,
)
from fcjax.models.microbatch import microbatched
from fcjax.models.mlp import MLP, mlp_simsiam
from fcjax.models.network import from_linen
from fcjax.models.norm import batch_norm
from fcjax.models.realnvp import Flow, realnvp
from fcjax.models.reconstructor import reconstructor
from fcjax.models.resnet import ResNet, resnet18, resnet34, resnet50
from fcjax.models.simsiam import Encoder, conv_encoder, simsiam

__all__ = [
    "MLP",
    "AutoEncoder",
    "Encoder",
    "Flow",
    "Gan",
    "ResNet",
    "autoencoder",
    "batch_norm",
    "byol_head",
    "cluster_projector",
    "conv_autoencoder",
    "conv_encoder",
    "dcgan",
    "encoder",
    "from_linen",
    "microbatched",
    "mlp_gan",
    "mlp_simsiam",
    "orchestra_projector",
    "projector",
    "realnvp",
    "reconstructor",
    "resnet18",
    "resnet34",
    "resnet50",
    "rotation_head",
    "simsiam",
    "simsiam_predictor",
    "simsiam_projector",
]
