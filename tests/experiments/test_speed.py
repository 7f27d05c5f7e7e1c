"""The timed cases: PyTorch does the same work, with the settings of the scripts, and
their operations are those counted by hand."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import fedcref as fedcref_script
from experiments import fedmcc as fedmcc_script
from experiments.benchmarks.speed import ccfc, fdsc, fedcref, fedmcc, sda_fdc
from experiments.benchmarks.speed.case import Side, Sizes, check_parity, flops
from fcjax.algorithms.fdsc import PRIVATE, pick
from fcjax.algorithms.fdsc import fdsc as fdsc_method
from fcjax.data import Dataset
from fcjax.federated import training
from fcjax.methods.base import Problem
from fcjax.methods.fdsc import autoencoder_of, optimizer_of
from fcjax.sweep.flags import of_method
from fcjax.types import Federation, State

pytestmark = pytest.mark.nightly

GREY = (28, 28, 1)
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


@pytest.mark.parametrize("kind", ["images", "rows"])
def test_optimizers_of_gans_are_the_same(kind):
    """A round of one batch cannot tell, as both begin anew in it."""
    torch = pytest.importorskip("torch")
    settings, shape = sda_fdc.OF_IMAGES.plain(), GREY
    if kind == "rows":
        settings, shape = sda_fdc.OF_ROWS.plain(), (16,)
    optimizers = sda_fdc.optimizers_of(settings, shape)
    for name, optimizer in optimizers._asdict().items():
        rate = getattr(settings, f"{name}_learning_rate")
        ours, theirs = jnp.zeros(()), torch.zeros((), requires_grad=True)
        state = optimizer.init(ours)
        adam = torch.optim.Adam([theirs], lr=rate, betas=sda_fdc.BETAS[kind])
        for gradient in (1.0, -0.5, 4.0):
            updates, state = optimizer.update(jnp.array(gradient), state, ours)
            ours = optax.apply_updates(ours, updates)
            theirs.grad = torch.tensor(gradient)
            adam.step()
        assert float(ours) == pytest.approx(theirs.item(), rel=1e-5)


def test_training_of_fdsc_is_that_of_the_method():
    """A round of `fdsc` with all clients, from what the case starts from."""
    case = fdsc.cases(EIGHT, CUT)[1]
    (parts, _), x, mask, adjacency = case.arguments
    settings = fdsc.SETTINGS.plain(
        **{"num_rounds": 1, "pretrain_rounds": 0, "fit_steps": 0},
        num_participants=2,
    )
    method = fdsc_method(
        *(autoencoder_of(CUT), optimizer_of(settings), settings), num_clusters=2
    )
    federation = Federation(
        pool=x.reshape(-1, *CUT),
        indices=jnp.arange(16).reshape(2, 8),
        mask=mask,
        present=jnp.ones((1, 2), bool),
        local_clusters=jnp.full(2, 2),
    )
    state = jax.jit(method.init)(jax.random.key(0), federation)
    np.testing.assert_array_equal(state.clients.adjacency, adjacency)
    encoder = jax.tree.map(lambda x: x[0], parts["encoder"])
    state = State(
        state.server._replace(encoder=encoder),
        state.clients._replace(parts=pick(parts, PRIVATE)),
    )
    state = method.stages[0].begin(jax.random.key(0), state, federation)
    round = jax.jit(method.stages[0].round)
    _, metrics = round(jax.random.key(0), state, federation)
    loss = Side(case).round() * 8 * 6 * 7 * 3  # of all pixels of a client
    assert loss == pytest.approx(float(metrics["loss"]), rel=1e-5)


def defaults(script, name, shape=GREY, *, dataset="digits", per_client=1000):
    """The settings of a method by default, of ten clients that hold ten classes."""
    made = Dataset(dataset, np.zeros((100, *shape), np.float32), np.arange(100) % 10)
    problem = Problem(dataset, made, 10, 10, per_client, per_client // 2)
    found = of_method(script.Args(), name).resolve(problem).settings
    return {k: v[0] if isinstance(v, tuple) else v for k, v in found.items()}


FEDMCC = {
    **{"backbone": "conv", "optimizer": "adam", "momentum": fedmcc.MOMENTUM},
    **dict.fromkeys(("learning_rate", "cluster_learning_rate"), fedmcc.LEARNING_RATE),
    "instance_temperature": fedmcc.INSTANCE_TEMPERATURE,
    "cluster_temperature": fedmcc.CLUSTER_TEMPERATURE,
}
FEDCREF = {
    **{"local_epochs": fedcref.LOCAL_EPOCHS, "batch_size": fedcref.BATCH_SIZE},
    "learning_rate": fedcref.LEARNING_RATE,
}


def test_settings_are_those_of_the_scripts():
    for settings, expected in (
        (defaults(fedmcc_script, "fedmcc"), FEDMCC),
        (defaults(fedcref_script, "fedcref"), FEDCREF),
    ):
        assert {name: settings[name] for name in expected} == expected


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
