"""The loss of a batch of each contrastive method, its gradient, and what is sent, by
one step. FedMCC's second stage is in `test_fedmcc`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.algorithms.averaging import Local
from fcjax.algorithms.fedmcc import FeatureKMeans, cc, feature_kmeans, fedmcc, mcc
from fcjax.algorithms.fedu import fedsimclr, fedsimsiam, fedu
from fcjax.methods import CC, MCC, FedMCC, FedSimCLR, FedSimSiam, FedU
from fcjax.types import State
from tests.algorithms import plain
from tests.algorithms.federations import both_ways, federate, in_round, rounds, traffic
from tests.algorithms.plain import (
    columns,
    cosine,
    crosswise,
    entropies,
    kernels,
    matrix,
    noisy,
    nt_xent,
)

TAU_I, TAU_C, MOMENTUM = 0.3, 0.9, 0.8
# A batch of 8 of which 6 count: what the others hold must not matter.
LOCAL = Local(optax.sgd(1.0), noisy, num_epochs=1, batch_size=8)
POOL = np.random.default_rng(0).normal(size=(14, 4)).astype(np.float32)
HEADS = (matrix(5, centre=True), matrix(3), matrix(3))
KMEANS = feature_kmeans(FeatureKMeans(2))


def through(w, views, *heads):
    """What the centred encoder and some heads make of both views."""
    features = [x @ w["encoder"] for x in views]
    features = [h - h.mean(axis=0, keepdims=True) for h in features]
    return [jnp.linalg.multi_dot([h, *(w[k] for k in heads)]) for h in features]


def simsiam(w, target, views):
    """Half of D(p_a, z_b) and of D(p_b, z_a), projections being constants."""
    z_a, z_b = map(jax.lax.stop_gradient, through(w, views, "projector"))
    p_a, p_b = through(w, views, "projector", "predictor")
    return -(cosine(p_a, z_b) + cosine(p_b, z_a)).mean() / 2


def simclr(w, target, views):
    return nt_xent(through(w, views, "projector"), TAU_I)


def byol(w, target, views):
    """Predictions are drawn to the other view's target: |p - z|^2 of unit vectors."""
    p_a, p_b = through(w, views, "projector", "predictor")
    z_a, z_b = through(target, views, "projector")
    return (2 - 2 * cosine(p_a, z_b) + 2 - 2 * cosine(p_b, z_a)).mean()


def equation_8(w, target, views):
    """FedMCC's first stage."""
    z, t = (through(v, views, "projector") for v in (w, target))
    return crosswise(z, t, TAU_I)


def soft(w, views):
    return [jax.nn.softmax(y) for y in through(w, views, "cluster_projector")]


def equation_6(w, target, views):
    """MCC's: Eq. 8 and Eq. 9, the entropies of both networks subtracted."""
    c, t_c = (soft(v, views) for v in (w, target))
    clusters = crosswise(columns(c), columns(t_c), TAU_C) - entropies((*c, *t_c))
    return equation_8(w, target, views) + clusters


def both_of_cc(w, target, views):
    """The sum of CC's two losses, the entropies of both views subtracted."""
    c = soft(w, views)
    return simclr(w, target, views) + nt_xent(columns(c), TAU_C) - entropies(c)


def half_of_cc(w, target, views):
    """CC's loss, and half of its gradient: what MCC has at half the weight of entropies
    where the target is the online network, see `cluster_level`."""
    loss = both_of_cc(w, target, views)
    return (loss + jax.lax.stop_gradient(loss)) / 2


TAUS = {"instance_temperature": TAU_I, "cluster_temperature": TAU_C}


def by_mcc(**options):
    settings = MCC(**TAUS, momentum=MOMENTUM, **options).plain()
    return mcc(settings, *HEADS[:2], matrix(3, soft=True), LOCAL)


OF_SIMCLR = FedSimCLR(instance_temperature=TAU_I).plain()
OF_FEDU = FedU(momentum=MOMENTUM).plain()
OF_FEDMCC = FedMCC(instance_temperature=TAU_I, momentum=MOMENTUM).plain()
METHODS = {  # and how far the target is from the copy that it is in the beginning
    "fedsimsiam": (
        fedsimsiam(FedSimSiam().plain(), *HEADS, KMEANS, LOCAL),
        *(simsiam, 0),
    ),
    "fedsimclr": (fedsimclr(OF_SIMCLR, *HEADS[:2], KMEANS, LOCAL), simclr, 0),
    "fedu": (fedu(OF_FEDU, *HEADS, KMEANS, LOCAL), byol, 1),
    "fedmcc": (fedmcc(OF_FEDMCC, *HEADS[:2], KMEANS, LOCAL), equation_8, 1),
    "mcc": (by_mcc(), equation_6, 1),
    "mcc at the ratio of cc": (by_mcc(entropy_weight=0.5), half_of_cc, 0),
}


def assert_all_cross(w, metrics):
    """One client's messages: the encoder's mean and its count go along with its kernel,
    no target does."""
    sizes = {name: w.size for name, w in w.items()}
    sizes["encoder"] += 5 + 1
    assert traffic(metrics) == both_ways(1, **sizes)


@pytest.mark.parametrize(("method", "loss", "apart"), METHODS.values(), ids=METHODS)
def test_a_step_descends_the_loss_of_two_views(method, loss, apart):
    rng = np.random.default_rng(1)
    federation = federate(POOL, (np.arange(6), np.arange(6, 14)), absent=(1,))
    state = method.init(jax.random.key(2), federation)
    own = state.clients
    moved = jax.tree.map(
        lambda x: x + apart * rng.normal(size=x.shape).astype(np.float32), own.target
    )
    # In its first round a client begins with a copy.
    state = State(state.server, own._replace(target=moved))
    key = jax.random.key(1)
    later = in_round(federation, 1)
    new, metrics = jax.jit(method.stages[0].round)(key, state, later)

    ((slots, step_key),) = plain.steps(key, np.arange(8) < 6)
    views = plain.views(step_key, POOL[slots])
    before, after = kernels(state.server.online), kernels(new.server.online)
    target = {name: part["kernel"][0] for name, part in moved.items()}
    value, gradient = jax.jit(jax.value_and_grad(loss))(before, target, views)
    assert float(metrics["loss"]) == pytest.approx(float(value), rel=1e-5)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    ended = {name: w - gradient[name] for name, w in before.items()}
    assert max(np.abs(gradient[name]).max() for name in before) > 1e-2
    jax.tree.map(close, after, ended)
    for name, t in target.items():
        expected = MOMENTUM * t + (1 - MOMENTUM) * ended[name]
        close(new.clients.target[name]["kernel"][0], expected)
    assert_all_cross(before, metrics)
    # Both views pass in the online encoder; none of the target's into its statistics.
    assert float(new.server.online["batch_stats"]["encoder"]["calls"]) == 2


def test_extra_rows_of_cc_come_first_and_by_the_instance_loss_alone():
    """One client; rows from 9 on are extra. A round has a batch of each kind."""
    federation, key = federate(POOL, (np.arange(14),)), jax.random.key(1)
    local = LOCAL._replace(optimizer=optax.sgd(0.5), batch_size=20)
    networks = (*HEADS[:2], matrix(3, soft=True))
    method = cc(CC(**TAUS).plain(), *networks, local, num_clustered=9)
    state, metrics = rounds(method, key, federation)
    before = expected = kernels(method.init(key, federation).server.online)
    extra = np.arange(14) >= 9
    for number, (loss, mask) in enumerate(((simclr, extra), (both_of_cc, ~extra))):
        ((slots, step_key),) = plain.steps(key, mask, number=number)
        pair, w = plain.views(step_key, POOL[slots]), expected
        of_pair = jax.jit(jax.value_and_grad(partial(loss, target=None, views=pair)))
        value, gradient = of_pair(w)
        expected = jax.tree.map(lambda w, g: w - 0.5 * g, w, gradient)
    after = kernels(state.server.online)
    for name, w in expected.items():
        np.testing.assert_allclose(after[name], w, rtol=1e-4, atol=1e-5)
    assert float(metrics["loss"]) == pytest.approx(float(value), rel=1e-5)
    assert_all_cross(before, metrics)
