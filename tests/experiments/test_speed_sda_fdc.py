from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import sda_fdc
from speed import sda_fdc as speed
from speed.case import Sizes, check_parity, flops

from fcjax import training

NUM_EXAMPLES = 12
SIZES = Sizes(clients=2, examples=NUM_EXAMPLES, batch_size=NUM_EXAMPLES)


def drawn_by_jax(case, noise_size):
    """The noise of the only step of every client's epoch."""

    def draw(key, noise, slots, counted):
        del slots, counted
        return jax.random.normal(key, noise.shape), 0.0

    _, keys, _, _, mask = case.arguments
    zeros = jnp.zeros((NUM_EXAMPLES, noise_size))
    options = {"batch_size": NUM_EXAMPLES, "num_epochs": 1}
    return [
        training.epochs(key, zeros, draw, own, **options)[0]
        for key, own in zip(keys, mask, strict=True)
    ]


@pytest.mark.parametrize(("number", "noise_size"), [(0, 62), (1, 5)])
def test_torch_trains_the_same_gans(number, noise_size):
    torch = pytest.importorskip(
        "torch", reason="PyTorch comes with the bench extra alone"
    )
    case = speed.cases(SIZES, side=8)[number]
    drawn = drawn_by_jax(case, noise_size)

    def noise(client, size):
        return torch.from_numpy(np.array(drawn[client][:size]))

    losses = check_parity(case._replace(loop=partial(case.loop, noise=noise)))
    assert abs(losses[1][0] - losses[0][0]) > 1e-3  # the optimisers took a step


@pytest.mark.parametrize("number", [2, 3])
def test_torch_clusters_the_same(number):
    pytest.importorskip("torch", reason="PyTorch comes with the bench extra alone")
    case = speed.cases(SIZES, side=8, pooled_batch_size=2 * NUM_EXAMPLES)[number]
    losses = check_parity(case)
    assert abs(losses[1][0] - losses[0][0]) > 1e-3


@pytest.mark.parametrize("kind", ["images", "rows"])
def test_optimizers_are_the_same(kind):
    """A round of one batch cannot tell, as both begin anew in it."""
    torch = pytest.importorskip(
        "torch", reason="PyTorch comes with the bench extra alone"
    )
    settings = speed.SETTINGS | {"gan_batch_size": 8}
    shape = (28, 28, 1)
    if kind == "rows":
        settings, shape = settings | speed.OF_ROWS, (16,)
    adversarial = speed.adversarial_of(settings, shape, num_clusters=10)
    for name in ("generator", "discriminator"):
        optimizer = getattr(adversarial, f"{name}_optimizer")
        ours, theirs = jnp.zeros(()), torch.zeros((), requires_grad=True)
        state = optimizer.init(ours)
        adam = torch.optim.Adam(
            [theirs], lr=settings[f"{name}_learning_rate"], betas=speed.BETAS[kind]
        )
        for gradient in (1.0, -0.5, 4.0):
            updates, state = optimizer.update(jnp.array(gradient), state, ours)
            ours = optax.apply_updates(ours, updates)
            theirs.grad = torch.tensor(gradient)
            adam.step()
        assert float(ours) == pytest.approx(theirs.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("shape", "settings"),
    [((28, 28, 1), speed.SETTINGS), ((16,), speed.OF_ROWS)],
)
def test_settings_are_those_of_the_script(shape, settings):
    args = sda_fdc.Args()
    defaults = sda_fdc.defaults_of(args, "sda-fdc", shape, per_client=1000)
    assert {name: defaults[name] for name in settings} == settings
    assert defaults["gan_batch_size"] == 64
    assert defaults["batch_size"] == 128


def test_flops_by_hand():
    """Forward, to the weights and, but for the first layer, to the input."""
    sizes = Sizes(clients=2, examples=30, batch_size=8)
    gan, of_rows, autoencoder, joint = speed.cases(sizes, pooled_batch_size=16)
    first = 784 * 500
    encoder = first + 500 * 500 + 500 * 2000 + 2000 * 10
    by_hand = 4 * 16 * (6 * 2 * encoder - 2 * first)  # 4 steps
    assert flops(autoencoder) == by_hand
    # Each batch is encoded anew; the clusters take 10 x 10 products an example.
    by_hand += 4 * 16 * (2 * encoder)
    assert flops(joint) == pytest.approx(by_hand, rel=0.01)

    # The discriminator judges real and fake and learns from both, the second time to
    # the weights alone; then fake again, to the input alone.
    first = 16 * 256
    judge, maker = first + 256 * 256 + 256, 15 * 256 + 256 * 256 + 256 * 16
    step = 2 * (3 * judge - first) + 2 * judge + (3 * maker - 15 * 256)
    assert flops(of_rows) == 2 * 4 * 2 * 8 * step

    convolutions = [16 * 64 * 14**2, 16 * 64 * 128 * 7**2, 16 * 128 * 256 * 3**2]
    judge = sum(convolutions) + 2304 * 1024 + 1024
    first, doubled = 72 * 1024, [16 * 128 * 64 * 7**2, 16 * 64 * 14**2]
    maker = first + 1024 * 6272 + sum(doubled)
    step = 2 * (3 * judge - convolutions[0]) + 2 * judge + 3 * maker - first
    assert flops(gan) == 2 * 4 * 2 * 8 * step
