"""The timed cases: PyTorch does the same work, with the settings of the scripts, and
their operations are those counted by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks.speed import ccfc, fdsc, fedcref, fedmcc, sda_fdc
from experiments.benchmarks.speed.case import Sizes, check_parity, flops
from fcjax.federated import training

pytestmark = pytest.mark.nightly

CUT = (6, 7, 3)  # to which the decoder of FDSC cuts its images
EIGHT, TWELVE, SIXTEEN = (Sizes(2, size, size) for size in (8, 12, 16))


def of_clusters(**options):
    """FedCRef with two clusters of four examples a client: a batch is a cluster."""
    sizes = Sizes(clients=2, examples=8, batch_size=4)
    return fedcref.cases(sizes, (4, 4, 1), num_clusters=2, **options)


def with_noise_of_jax(number, noise_size):
    """A case of SDA-FDC in which PyTorch is given the noise of the only step of every
    client's epoch."""
    torch = pytest.importorskip("torch")
    case = sda_fdc.cases(TWELVE, side=8)[number]

    def draw(key, noise, slots, counted):
        del slots, counted
        return jax.random.normal(key, noise.shape), 0.0

    _, keys, _, _, mask = case.arguments
    zeros = jnp.zeros((12, noise_size))
    options = {"batch_size": 12, "num_epochs": 1}
    drawn = [
        training.epochs(key, zeros, draw, own, **options)[0]
        for key, own in zip(keys, mask, strict=True)
    ]

    def noise(client, size):
        return torch.from_numpy(np.array(drawn[client][:size]))

    return case._replace(loop=partial(case.loop, noise=noise))


@pytest.mark.parametrize(
    ("case", "num_rounds", "moved"),
    [
        (lambda: ccfc.cases(SIXTEEN, "conv")[0], 2, 1e-3),
        (lambda: ccfc.cases(SIXTEEN, "resnet18")[0], 2, 1e-3),
        # In four rounds the optimiser takes a step, and then the target.
        (lambda: fedmcc.cases(TWELVE, side=8)[0], 4, 5e-4),
        (lambda: fedmcc.cases(TWELVE, side=8)[1], 4, 5e-4),
        (lambda: with_noise_of_jax(0, 62), 2, 1e-3),
        (lambda: with_noise_of_jax(1, 5), 2, 1e-3),
        (lambda: sda_fdc.cases(TWELVE, side=8, pooled_batch_size=24)[2], 2, 1e-3),
        (lambda: sda_fdc.cases(TWELVE, side=8, pooled_batch_size=24)[3], 2, 1e-3),
        (lambda: fdsc.cases(EIGHT, CUT)[0], 2, 1e-3),
        (lambda: fdsc.cases(EIGHT, CUT)[1], 2, 1e-3),
        (lambda: of_clusters(num_epochs=3)[0], 2, 1e-3),
        (lambda: of_clusters()[1], 2, None),  # the errors, by which nothing is trained
    ],
)
def test_torch_does_the_same_work(case, num_rounds, moved):
    pytest.importorskip("torch", reason="PyTorch comes with the bench extra alone")
    losses = np.array(check_parity(case(), num_rounds=num_rounds))
    # The optimiser took a step.
    assert moved is None or abs(losses[1, 0] - losses[0, 0]) > moved


# --- operations by hand: forward, to the weights and, but for the first layer, to the
# input


@pytest.mark.parametrize(
    ("backbone", "sizes", "encoder"),
    [
        ("conv", Sizes(2, 24, 8), 16 * (64 * 14**2 + 64 * 128 * 7**2 + 128 * 256 * 9)),
        # The published multiply-adds at 32 pixels with the small stem.
        ("resnet18", Sizes(1, 8, 8), 0.556e9),
    ],
)
def test_flops_of_ccfc(backbone, sizes, encoder):
    features = {"conv": 2304, "resnet18": 512}[backbone]
    dense = [(features, 256), (256, 256), (256, 16), (16, 256)]
    forward = 2 * (encoder + sum(a * b for a, b in dense))
    # Forward and backward of two views, three each, and two forward of the anchor.
    by_hand = sizes.clients * sizes.examples * (2 * 3 + 2) * forward
    (case,) = ccfc.cases(sizes, backbone)
    assert flops(case) == pytest.approx(by_hand, rel=0.01)
