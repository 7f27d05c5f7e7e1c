import itertools

import fedcref as script
import numpy as np
import pytest
from speed import case as speed
from speed.fedcref import BATCH_SIZE, LEARNING_RATE, LOCAL_EPOCHS, cases

SIZES = speed.Sizes(clients=2, examples=8, batch_size=4)


def small(**options):
    """Two clusters of four examples in each client: a batch is a cluster."""
    return cases(SIZES, (4, 4, 1), num_clusters=2, **options)


def test_torch_trains_the_same_models():
    pytest.importorskip("torch", reason="PyTorch comes with the bench extra alone")
    losses = np.array(speed.check_parity(small(num_epochs=3)[0]))
    assert abs(losses[1, 0] - losses[0, 0]) > 1e-3  # the optimiser took steps


def test_torch_finds_the_same_errors():
    pytest.importorskip("torch", reason="PyTorch comes with the bench extra alone")
    speed.check_parity(small()[1])


def test_settings_are_those_of_the_script():
    settings = script.defaults_of(script.Args(), "fedcref", cluster_size=500)
    assert settings["local_epochs"] == LOCAL_EPOCHS
    assert settings["learning_rate"] == LEARNING_RATE
    assert settings["batch_size"] == BATCH_SIZE


def test_flops_by_hand():
    """Of each layer its outputs, the gradient of its weights and, but for the first,
    of its inputs; batches of a cluster's five examples are 4 and 1, filled up to 4."""
    sizes = speed.Sizes(clients=2, examples=10, batch_size=4)
    train, errors = cases(sizes, (4, 4, 1), num_clusters=2, num_epochs=3)
    widths = (16, 100, 64, 32, 64, 100, 16)
    weights = [a * b for a, b in itertools.pairwise(widths)]
    models, epochs, in_batches = 4, 3, 8
    products = 3 * sum(weights) - weights[0]
    expected = 2 * models * epochs * in_batches * products
    assert speed.flops(train) == pytest.approx(expected, rel=0.01)
    expected = 2 * models * 20 * sum(weights)
    assert speed.flops(errors) == pytest.approx(expected, rel=0.01)
