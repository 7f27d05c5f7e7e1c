import fdsc as script
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fdsc_methods import locality_of, network_of
from speed import case as speed
from speed.fdsc import MNIST, cases

from fcjax.algorithms.fdsc import fdsc
from fcjax.types import Federation

SIZES = speed.Sizes(clients=2, examples=8, batch_size=8)
SHAPE = (6, 7, 3)
"""The decoder cuts its images to it."""
PRETRAIN, TRAIN = 0, 1


@pytest.mark.parametrize("number", [PRETRAIN, TRAIN])
def test_torch_does_the_same_work(number):
    pytest.importorskip("torch", reason="PyTorch comes with the bench extra alone")
    losses = np.array(speed.check_parity(cases(SIZES, SHAPE)[number]))
    assert abs(losses[1, 0] - losses[0, 0]) > 1e-3  # the optimiser took steps


def test_training_is_that_of_the_method():
    """A round of `fdsc` with all clients, from what the case starts from."""
    case = cases(SIZES, SHAPE)[TRAIN]
    (parts, _), x, mask, adjacency = case.arguments
    method = fdsc(
        network_of(MNIST, SHAPE),
        optax.adam(MNIST["learning_rate"]),
        num_clusters=2,
        affinity=lambda coefficients, mask: coefficients,
        num_rounds=1,
        num_participants=2,
        local_steps=MNIST["local_steps"],
        **locality_of(MNIST),
    )
    federation = Federation(
        pool=x.reshape(-1, *SHAPE),
        indices=jnp.arange(16).reshape(2, 8),
        mask=mask,
        present=jnp.ones((1, 2), bool),
        local_clusters=jnp.full(2, 2),
    )
    state = jax.jit(method.init)(jax.random.key(0), federation)
    np.testing.assert_array_equal(state.adjacency, adjacency)
    state = state._replace(
        encoder=jax.tree.map(lambda x: x[0], parts["encoder"]),
        private={name: parts[name] for name in ("decoder", "coefficients")},
    )
    round = jax.jit(method.stages[0].round)
    _, metrics = round(jax.random.key(0), state, federation)
    loss = speed.Side(case).round() * 8 * 6 * 7 * 3  # of all pixels of a client
    assert loss == pytest.approx(float(metrics["loss"]), rel=1e-5)


def test_settings_are_those_of_the_script():
    settings = script.defaults_of(script.Args(dataset="mnist"), "fdsc2", 20, 10)
    assert {name: settings[name] for name in MNIST} == MNIST


def test_flops_by_hand():
    """Of the auto-encoder: codes are 7x7x10, the first layer's images no gradient's."""
    pretrain, train = (speed.flops(case) for case in cases(SIZES))
    first, second = 5**2 * 1 * 20 * 14**2, 3**2 * 20 * 10 * 7**2
    third, fourth = 4**2 * 10 * 20 * 7**2, 4**2 * 20 * 1 * 14**2
    steps, images = 2 * 7, 8
    products = 2 * first + 3 * (second + third + fourth)
    assert pretrain == pytest.approx(2 * steps * images * products, rel=0.01)
    # C Z and its two gradients, once to decode and once to compare with Z.
    products = 2 * 3 * images * images * 7 * 7 * 10
    assert train - pretrain == pytest.approx(2 * steps * products, rel=0.01)
