import fedmcc
import pytest
from speed import fedmcc as speed
from speed.case import Sizes, check_parity, flops


@pytest.mark.parametrize("number", [0, 1])
def test_torch_does_the_same_work(number):
    pytest.importorskip("torch", reason="PyTorch comes with the bench extra alone")
    sizes = Sizes(clients=2, examples=12, batch_size=12)
    losses = check_parity(speed.cases(sizes, side=8)[number], num_rounds=4)
    # The optimiser took a step, and then the target.
    assert abs(losses[1][0] - losses[0][0]) > 5e-4


def test_settings_are_those_of_the_script():
    shape = (28, 28, 1)
    settings = fedmcc.defaults_of(fedmcc.Args(), "fedmcc", shape)
    assert settings["backbone"] == "conv"
    assert settings["optimizer"] == "adam"
    assert settings["momentum"] == speed.MOMENTUM
    assert settings["learning_rate"] == speed.LEARNING_RATE
    assert settings["cluster_learning_rate"] == speed.LEARNING_RATE
    assert settings["instance_temperature"] == speed.INSTANCE_TEMPERATURE
    assert settings["cluster_temperature"] == speed.CLUSTER_TEMPERATURE


def test_flops_by_hand():
    sizes = Sizes(clients=3, examples=20, batch_size=8)
    representation, cluster = speed.cases(sizes)
    pixels, steps = (14**2, 7**2, 3**2), 3 * 3
    first, *others = (
        16 * side * inputs * outputs
        for side, inputs, outputs in zip(pixels, (1, 16, 32), (16, 32, 64), strict=True)
    )
    encoder = first + sum(others)
    projector, clusters = 576 * 256 + 256 * 128, 576 * 256 + 256 * 10

    # Multiply-adds of an example. Online forward, to the weights and, but for the
    # first layer, to the input; the target forward.
    view = 4 * (encoder + projector) - first
    contrast = 2 * (3 * 16 * 16 * 128)  # of a step: of both losses' 2 x 8 rows
    by_hand = 2 * steps * (2 * 8 * view + contrast)
    assert flops(representation) == pytest.approx(by_hand, rel=0.01)

    view = encoder + 4 * clusters - 576 * 256
    contrast = 2 * (3 * 20 * 20 * 8)
    by_hand = 2 * steps * (2 * 8 * view + contrast)
    assert flops(cluster) == pytest.approx(by_hand, rel=0.01)
