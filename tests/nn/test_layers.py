"""Which layers networks have, what these begin with, and what cannot be built."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fcjax import nn as m
from fcjax.nn.layers import conv


def layers_of(params, kind="kernel"):
    """Those that have a kernel, or a scale, in the order of their names."""

    def is_layer(node):
        return isinstance(node, dict) and kind in node

    found = jax.tree.leaves(params, is_leaf=is_layer)
    return [layer for layer in found if is_layer(layer)]


IMAGE, FACES = (28, 28, 1), (48, 42, 1)
ROWS, GAN, VECTORS = m.autoencoder(784), m.dcgan(IMAGE), m.mlp_simsiam()
DIGITS = m.conv_autoencoder(IMAGE)
YALE = m.conv_autoencoder(FACES, channels=(10, 20, 30), kernel_sizes=[5, 3, 3])


@pytest.mark.parametrize(
    ("network", "takes", "kernels", "size"),
    [
        # Every layer has a bias: 785 * 500 + 501 * 500 + 501 * 2000 + 2001 * 10
        (ROWS.encoder, (784,), "784x500 500x500 500x2000 2000x10", 1_665_010),
        (ROWS.decoder, (10,), "10x2000 2000x500 500x500 500x784", 1_665_784),
        (DIGITS.encoder, IMAGE, "5x5x1x20 3x3x20x10", 2_330),
        (DIGITS.decoder, (490,), "4x4x10x20 4x4x20x1", 3_541),
        # DSC-Net's on Extended Yale B: 48x42 become 6x6.
        (YALE.encoder, FACES, "5x5x1x10 3x3x10x20 3x3x20x30", 7_510),
        (YALE.decoder, (1080,), "4x4x30x20 4x4x20x10 4x4x10x1", 12_991),
        # 72 * 1024 + 2 * 1024 + 1024 * 6272 + 2 * 6272 + 16 * 128 * 64 + 2 * 64
        # + 16 * 64 + 1: PyTorch's has 1024 + 6272 + 64 biases more before batch norms.
        (GAN.generator, (72,), "4x4x128x64 4x4x64x1 72x1024 1024x6272", 6_643_073),
        # 16 * (64 + 64 * 128 + 128 * 256) + 2 * (64 + 128 + 256) + 2304 * 1024
        # + 2 * 1024 + 1024 + 1: there 64 + 128 + 256 + 1024 more.
        (
            GAN.discriminator,
            IMAGE,
            "4x4x1x64 4x4x64x128 4x4x128x256 2304x1024 1024x1",
            3_019_649,
        ),
        # 15 * 256 + 256 * 256 + 256 * 16 + 16 and 4 * 256 of batch norms
        (m.mlp_gan(16).generator, (15,), "15x256 256x256 256x16", 74_512),
        (m.mlp_gan(16).discriminator, (16,), "16x256 256x256 256x1", 70_913),
        # 28 pixels become 14, 7 and 3: 256 * 3 * 3 = 2304 inputs of the projector.
        # All layers have a bias, five batch norms two vectors, z's has none.
        (
            m.simsiam(m.conv_encoder()),
            IMAGE,
            "4x4x1x64 4x4x64x128 4x4x128x256 2304x256 256x256 256x16 16x256",
            1_322_608,
        ),
        (VECTORS, (54,), "256x256 256x256 256x16 16x256 54x256 256x256", 221_488),
        # CC: hidden as wide as the features, 128 out, K of clusters.
        (m.projector(), (512,), "512x512 512x128", 328_320),
        (m.projector(64, hidden_size=256), (512,), "512x256 256x64", 147_776),
        (m.cluster_projector(10), (512,), "512x512 512x10", 267_786),
        # EasyFL's BYOL and PatrickHua's SimSiam.
        (m.byol_head(), (512,), "512x4096 4096x2048", 10_500_096),
        (m.simsiam_projector(), (512,), "512x2048 2048x2048", 5_255_168),
        (m.simsiam_predictor(), (512,), "512x512 512x2048", 1_314_304),
    ],
)
def test_layers_and_parameters_are_those_of_the_paper(network, takes, kernels, size):
    params = jax.eval_shape(network.init, jax.random.key(0), jnp.zeros((1, *takes)))
    layers = layers_of(params["params"])
    found = ["x".join(map(str, layer["kernel"].shape)) for layer in layers]
    assert " ".join(found) == kernels
    assert sum(leaf.size for leaf in jax.tree.leaves(params["params"])) == size


@pytest.mark.parametrize(
    ("shape", "doublings", "side"),
    [
        ((32, 32, 3), 2, (8, 8)),
        ((96, 96, 3), 4, (6, 6)),
        ((8, 8, 1), 2, (2, 2)),
        # As the longer side asks for.
        ((64, 32, 1), 3, (8, 4)),
    ],
)
def test_a_gan_of_other_images_doubles_and_halves_as_often(shape, doublings, side):
    """The generator doubles from `side`; the discriminator halves once more."""
    gan, colours = m.dcgan(shape), shape[2]

    def both(key):
        noise = jnp.ones((5, 72))
        drawing = gan.generator.init(key, noise)
        images, _ = gan.generator.apply(drawing, noise, train=True)
        judging = gan.discriminator.init(key, images)
        logits, _ = gan.discriminator.apply(judging, images, train=True)
        return drawing["params"], judging["params"], images, logits

    drawing, judging, images, logits = jax.eval_shape(both, jax.random.key(0))
    assert (images.shape, logits.shape) == ((5, *shape), (5,))
    widths = [64 * 2**i for i in range(doublings + 1)]
    drawing, judging = (
        [layer["kernel"].shape for layer in layers_of(params)]
        for params in (drawing, judging)
    )
    drawn = widths[-2] * side[0] * side[1]
    found = [shape[-1] for shape in drawing]
    assert found == [*widths[-3::-1], colours, 1024, drawn]
    assert [shape[-1] for shape in judging] == [*widths, 1024, 1]


def pytorchs(shape):
    return np.prod(shape[:-1]) ** -0.5


def glorots(shape):
    """Of in and out, both over the kernel's pixels."""
    return (6 / (np.prod(shape[:-2]) * (shape[-2] + shape[-1]))) ** 0.5


def dcgans(shape):
    return 0.02


def kaimings(shape):
    """Scaled by the outputs: variance 2 / (k k O)."""
    return (2 / (shape[0] * shape[1] * shape[3])) ** 0.5


@pytest.mark.parametrize(
    ("network", "takes", "law", "scale"),
    [
        *(
            (network, takes, "uniform", pytorchs)
            for network, takes in [
                (m.autoencoder(25, widths=(400,), latent_size=300).encoder, (25,)),
                (m.simsiam(m.conv_encoder((64, 128))), (8, 8, 1)),
                (m.byol_head(64, hidden_size=64), (25,)),
            ]
        ),
        (DIGITS.encoder, IMAGE, "uniform", glorots),
        (DIGITS.decoder, (490,), "uniform", glorots),
        (m.reconstructor(50), (50,), "uniform", glorots),
        (m.dcgan((8, 8, 3)).generator, (72,), "norm", dcgans),
        (m.dcgan((8, 8, 3)).discriminator, (8, 8, 3), "norm", dcgans),
        (m.mlp_gan(16).generator, (15,), "norm", dcgans),
        (m.mlp_gan(16).discriminator, (16,), "norm", dcgans),
        (m.encoder(m.ResNet((1, 1))), (4, 4, 3), "norm", kaimings),
    ],
)
def test_what_weights_begin_with(key, network, takes, law, scale):
    """PyTorch's in +-1/sqrt(fan_in), biases as well; all others with biases of 0."""
    params = jax.jit(network.init)(key, jnp.zeros((1, *takes)))["params"]
    starts, ends = [], (-1, 2) if law == "uniform" else ()
    for layer in layers_of(params):
        if scale is not pytorchs:
            np.testing.assert_array_equal(layer.get("bias", 0), 0)
        for leaf in layer.values() if scale is pytorchs else [layer["kernel"]]:
            shares = np.ravel(leaf) / np.float32(scale(layer["kernel"].shape))
            assert stats.kstest(shares, law, ends).pvalue > 1e-3
            starts.append(tuple(np.round(shares[:4], 4)))
    # Every leaf is drawn by itself.
    assert len(set(starts)) == len(starts)
    for layer in layers_of(params, "scale"):
        np.testing.assert_array_equal(layer["scale"], 1)
        np.testing.assert_array_equal(layer["bias"], 0)


def codec(*shape, channels=(20, 10), sizes=(5, 3)):
    return m.conv_autoencoder(shape, channels=channels, kernel_sizes=sizes)


def convolved(*shape, size, padding=1):
    conv(jnp.ones((1, *shape, 1)), jnp.ones((size, size, 1, 1)), padding=padding)


SMALL = jax.random.key(0), jnp.ones((1, 7, 7, 1))
RESIZED = r".*32x32"


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda: codec(8, 8, 1, channels=(4,)),
            r"one entry for each layer.*\(4,\) and",
        ),
        (lambda: codec(8, 8, 1, channels=(), sizes=()), "at least one layer"),
        (lambda: codec(8, 8, 1, sizes=(5, 4)), r"odd, got \(5, 4\)"),
        (lambda: codec(8, 8, 1, sizes=(-1, 3)), r"odd, got \(-1, 3\)"),
        (lambda: codec(8, 2, 1), "2 layers that halve .* at least 3 pixels, got 8x2"),
        (
            lambda: codec(4, 28, 1, channels=(1, 2, 3), sizes=(3, 3, 3)),
            "at least 5 pixels, got 4x28",
        ),
        (lambda: m.dcgan((30, 30, 1)), f"of 4 and at least 8, .*got 30x30; {RESIZED}"),
        (lambda: m.dcgan((28, 30, 3)), f"of 4 and at least 8, .*got 28x30; {RESIZED}"),
        (lambda: m.dcgan((4, 4, 1)), f"of 4 and at least 8, .*got 4x4; {RESIZED}"),
        (
            lambda: m.dcgan((16, 96, 3)),
            f"of 16 and at least 32, .*got 16x96; {RESIZED}",
        ),
        (lambda: m.microbatched(m.projector(), 0), "size must be at least 1, got 0"),
        (lambda: m.realnvp((5,), num_couplings=1), "at least 2, got 1"),
        (lambda: m.realnvp((1,)), "two features or pixels"),
        (lambda: m.realnvp((1, 1, 3)), "two features or pixels"),
        (lambda: m.realnvp((8, 8)), "shape of a flow must be"),
        (lambda: convolved(2, 2, size=5), "5x5 does not fit into images of 2x2"),
        (lambda: convolved(5, 2, size=3, padding=0), "3x3 does not fit into images"),
        # Three halvings leave nothing of 7 pixels but a kernel that does not fit.
        (lambda: jax.eval_shape(m.simsiam(m.conv_encoder()).init, *SMALL), "kernel"),
    ],
)
def test_what_cannot_be_built_is_one_line(build, said):
    with pytest.raises(ValueError, match=said) as error:
        build()
    assert "\n" not in str(error.value)
