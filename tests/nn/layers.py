"""Small networks, and their layers read one by one from the variables, by NumPy."""

from collections import Counter
from types import SimpleNamespace

import numpy as np

from fcjax import nn as m

CODEC = m.autoencoder(7, widths=(6, 5), latent_size=2)
IMAGES = m.conv_autoencoder((6, 5, 2), channels=(3, 2))
GAN = m.dcgan((8, 12, 2), channels=3, hidden_size=10)
VECTORS = m.mlp_gan(4, widths=(6, 5))
SIAMESE = m.simsiam(m.conv_encoder((3,)), hidden_size=8, latent_size=6, bottleneck=2)
BASIC = m.encoder(m.ResNet((1, 1), width=4))
BOTTLENECK = m.encoder(m.ResNet((1, 1), block="bottleneck", width=2))
IMAGENET = m.encoder(m.ResNet((1, 2), stem="imagenet", width=3))

PLAIN, NORMED = "dense relu dense", "dense norm relu dense"
HIDDEN = "dense norm leaky dense norm leaky"
DRAWING = f"{NORMED} norm relu 6x2x3 double norm relu double sigmoid"
JUDGING = "halve norm leaky " * 3 + "first flat dense norm leaky dense only"
SMALL = "conv norm relu BasicBlock:conv BasicBlock:halve mean"
WIDE = "conv norm relu Bottleneck:conv Bottleneck:halve mean"
LARGE = "halve norm relu pool BasicBlock:conv BasicBlock:halve BasicBlock:conv mean"
NETWORKS = {
    "encoder": (CODEC.encoder, (7,), f"{PLAIN} relu dense"),
    "decoder": (CODEC.decoder, (2,), f"{PLAIN} relu dense"),
    "codes": (IMAGES.encoder, (6, 5, 2), "halve relu halve relu first flat"),
    "images": (IMAGES.decoder, (8,), "2x2x2 double relu double relu 6x5"),
    "generator": (GAN.generator, (7,), DRAWING),
    "discriminator": (GAN.discriminator, (8, 12, 2), JUDGING),
    "vector generator": (VECTORS.generator, (7,), f"{HIDDEN} dense sigmoid"),
    "vector discriminator": (VECTORS.discriminator, (4,), f"{HIDDEN} dense only"),
    "reconstructor": (m.reconstructor(7, widths=(4,)), (7,), f"{PLAIN} sigmoid"),
    "MLP": (m.encoder(m.MLP((6, 4))), (9,), HIDDEN),
    "basic": (BASIC, (6, 6, 3), SMALL),
    "bottleneck": (BOTTLENECK, (6, 6, 3), WIDE),
    "imagenet": (IMAGENET, (12, 12, 3), LARGE),
    "simsiam": (SIAMESE, (8, 8, 1), f"halve norm leaky flat {NORMED} norm | {NORMED}"),
    "projector": (m.projector(3, hidden_size=6), (5,), PLAIN),
    "cluster projector": (m.cluster_projector(4), (5,), f"{PLAIN} softmax"),
    "BYOL": (m.byol_head(3, hidden_size=6), (5,), NORMED),
    "SimSiam's head": (m.simsiam_projector(3, hidden_size=6), (5,), f"{NORMED} norm"),
    "SimSiam's predictor": (m.simsiam_predictor(3, hidden_size=6), (5,), NORMED),
}
"""A network, the shape of an example, and its layers: words that are methods of
`Layers` or operations, a size such as 3x2, a block of which one convolution strides or
not, or | after an output."""
BLOCKS = {
    "BasicBlock": "{} norm relu conv norm",
    "Bottleneck": "conv norm relu {} norm relu conv norm",
}


def convolve(x, kernel, stride, padding):
    around = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, around), kernel.shape[:2], axis=(1, 2)
    )
    return np.einsum("bhwcij,ijco->bhwo", windows[:, ::stride, ::stride], kernel)


def double(x, kernel):
    """Every input pixel adds its kernel around twice its place, less the padding."""
    batch, height, width, _ = x.shape
    padded = np.zeros((batch, 2 * height + 2, 2 * width + 2, kernel.shape[3]))
    for h, w, i, j in np.ndindex(height, width, 4, 4):
        padded[:, 2 * h + i, 2 * w + j] += x[:, h, w] @ kernel[i, j]
    return padded[:, 1:-1, 1:-1]


def in_numpy():
    def norm(x, train, mean, var, scale=1.0, bias=0.0):
        if train:
            axes = tuple(range(x.ndim - 1))
            mean, var = x.mean(axis=axes), x.var(axis=axes)
        return scale * (x - mean) / np.sqrt(var + 1e-5) + bias

    def pool(x):
        around = ((0, 0), (1, 1), (1, 1), (0, 0))
        padded = np.pad(x, around, constant_values=-np.inf)
        view = np.lib.stride_tricks.sliding_window_view
        return view(padded, (3, 3), axis=(1, 2))[:, ::2, ::2].max(axis=(4, 5))

    return SimpleNamespace(
        array=lambda leaf: np.asarray(leaf, np.float64),
        conv=convolve,
        double=double,
        norm=norm,
        pool=pool,
        relu=lambda x: np.maximum(x, 0),
        leaky=lambda x: np.where(x > 0, x, 0.2 * x),
        sigmoid=lambda x: 1 / (1 + np.exp(-x)),
        softmax=lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True),
        mean=lambda x: x.mean((1, 2)),
        first=lambda x: x.transpose(0, 3, 1, 2),  # features, as PyTorch has them
        flat=lambda x: x.reshape(len(x), -1),
        only=lambda x: x[:, 0],
    )


class Layers:
    """Of a network's variables, its layers in the order of their numbers."""

    def __init__(self, ops, variables, train):
        self.ops, self.train, self.counts = ops, train, Counter()
        # The layers of a module that stands alone in a network are a level below.
        self.params, self.stats = (
            variables.get(kind, {}).get("layers", variables.get(kind, {}))
            for kind in ("params", "batch_stats")
        )

    def outputs(self, x, words):
        found = [x]
        for word in words.split():
            if word == "|":
                found.append(found[-1])
            elif ":" in word:
                found[-1] = self.block(found[-1], *word.split(":"))
            elif word[0].isdigit():
                found[-1] = self.sized(found[-1], [int(n) for n in word.split("x")])
            else:
                layer = getattr(self, word, None) or getattr(self.ops, word)
                found[-1] = layer(found[-1])
        return found

    def name(self, kind):
        self.counts[kind] += 1
        return f"{kind}_{self.counts[kind] - 1}"

    def next(self, kind):
        layer = self.params[self.name(kind)]
        return layer.get("Dense_0", layer)

    def dense(self, x):
        layer = self.next("Dense")
        return x @ layer["kernel"] + layer.get("bias", 0)

    def conv(self, x, stride=1):
        layer = self.next("Conv")
        padding = (len(layer["kernel"]) - 1) // 2
        y = self.ops.conv(x, layer["kernel"], stride, padding)
        return y + layer.get("bias", 0)

    def halve(self, x):
        return self.conv(x, stride=2)

    def double(self, x):
        layer = self.next("ConvTranspose")
        return self.ops.double(x, layer["kernel"]) + layer.get("bias", 0)

    def norm(self, x):
        name = self.name("BatchNorm")
        learnt = self.params.get(name, {})
        return self.ops.norm(x, self.train, **self.stats[name], **learnt)

    def block(self, x, kind, step):
        name = self.name(kind)
        own = {"params": self.params[name], "batch_stats": self.stats[name]}
        own = Layers(self.ops, own, self.train)
        (y,) = own.outputs(x, BLOCKS[kind].format(step))
        if "shortcut" in own.params:
            stride = 2 if step == "halve" else 1
            x = self.ops.conv(x, own.params["shortcut"]["kernel"], stride, 0)
            x = own.norm(x)
        return self.ops.relu(x + y)

    def sized(self, x, sides):
        """Vectors as images, features first, and images cut below and on the right."""
        if len(sides) == 2:
            return x[:, : sides[0], : sides[1]]
        return x.reshape(-1, *sides).transpose(0, 2, 3, 1)
