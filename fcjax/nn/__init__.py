"""Neural networks; no other folder of the library imports Flax."""

from fcjax.nn.autoencoders import (
    AutoEncoder,
    autoencoder,
    conv_autoencoder,
    reconstructor,
)
from fcjax.nn.generative import Flow, Gan, dcgan, mlp_gan, realnvp
from fcjax.nn.heads import (
    MLP,
    Encoder,
    byol_head,
    cluster_projector,
    conv_encoder,
    encoder,
    mlp_simsiam,
    orchestra_projector,
    projector,
    rotation_head,
    simsiam,
    simsiam_predictor,
    simsiam_projector,
)
from fcjax.nn.layers import batch_norm, from_linen, microbatched
from fcjax.nn.resnet import ResNet, resnet18, resnet34, resnet50

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
