"""The training of deep subspace networks, written out plainly."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.methods import FDSC
from fcjax.nn.autoencoders import AutoEncoder
from tests.algorithms.plain import matrix

RATE, MOMENTUM, PENALTY, EXPRESSION = 1e-3, 0.9, 0.7, 1.3
OPTIMIZER = optax.sgd(RATE, momentum=MOMENTUM)
TINY = AutoEncoder(matrix(3), matrix(4))
LOCAL_STEPS, FIT_STEPS = 3, 4
WEIGHTS = {"penalty_weight": PENALTY, "expression_weight": EXPRESSION}


def build(method, settings=FDSC, **options):
    """The networks of one matrix each, with two clusters per client."""
    options = WEIGHTS | {"local_steps": LOCAL_STEPS} | options
    settings = settings().plain(**options)
    return method(settings, TINY, OPTIMIZER, num_clusters=2)


TRAINED = {
    "pretrain": ("encoder", "decoder"),
    "start": ("decoder", "coefficients"),
    "train": ("encoder", "decoder", "coefficients"),
    "fit": ("decoder", "coefficients"),
}


def parts_of(state, client, size):
    """What a client trains from: arrays without what its padding holds."""
    own = jax.tree.map(lambda x: x[client], state.clients.parts)
    encoder = own.get("encoder", state.server)
    return {
        "encoder": encoder["params"]["kernel"],
        "decoder": own["decoder"]["params"]["kernel"],
        "coefficients": own["coefficients"][:size, :size],
    }


def velocity_of(state, client, size):
    (trace, *_) = [s.trace for s in state.clients.opt_state if hasattr(s, "trace")]
    found = {name: jax.tree.leaves(own)[0][client] for name, own in trace.items()}
    if "coefficients" in found:
        found["coefficients"] = found["coefficients"][:size, :size]
    return found


def reconstruction(parts, x, *others):
    del others
    return jnp.sum((x - x @ parts["encoder"] @ parts["decoder"]) ** 2)


def equation_8(
    parts, x, adjacency=0.0, locality=0.0, *, alpha=1.0, beta=1.0, penalty=PENALTY
):
    """FDSC's objective without halves, of a client whose networks are one matrix each
    and whose examples all count; C expresses rows."""
    c = parts["coefficients"] * (1 - np.eye(len(x), dtype=np.float32))
    z = x @ parts["encoder"]
    return (
        jnp.sum((x - c @ z @ parts["decoder"]) ** 2)
        + penalty * jnp.sum(c**2)
        + EXPRESSION * jnp.sum((z - c @ z) ** 2)
        + locality * jnp.sum((alpha * adjacency - beta * c) ** 2)
    )


@cache
def slope(loss):
    """Of the first parts alone."""

    def of(parts, others, *data):
        return loss({**others, **parts}, *data)

    return jax.jit(jax.value_and_grad(of))


def by_itself(round, client, x, *data, objective=equation_8):
    """A client's steps of gradient descent with momentum, from nothing but what it
    holds: its parts, its velocity, and the mean loss before the steps."""
    whole = parts_of(round.before, client, len(x))
    parts = {name: whole[name] for name in TRAINED[round.stage]}
    velocity = velocity_of(round.before, client, len(x))
    step = slope(reconstruction if round.stage == "pretrain" else objective)
    values = []
    for _ in range(FIT_STEPS if round.stage in ("start", "fit") else LOCAL_STEPS):
        value, gradient = step(parts, whole, x, *data)
        values.append(float(value))
        velocity = {k: gradient[k] + MOMENTUM * velocity[k] for k in parts}
        parts = {k: parts[k] - RATE * velocity[k] for k in parts}
    return {**whole, **parts}, velocity, np.mean(values)


def assert_descend(round, own, *, objective=equation_8) -> list:
    """Client after client, with nothing but its own examples and what belongs to them:
    `own` has these by number. The encoders that they end with."""
    encoders, losses, norms = [], [], []
    for client, (x, *data) in own.items():
        parts, velocity, value = by_itself(round, client, x, *data, objective=objective)
        losses.append(value)
        norms.append(np.linalg.norm(x @ parts["encoder"], axis=1).mean())
        encoders.append(parts["encoder"])
        found = parts_of(round.after, client, len(x))
        if "encoder" not in round.after.clients.parts:  # it is the server's
            del parts["encoder"]
        assert_close(found, parts)
        assert_close(velocity_of(round.after, client, len(x)), velocity)
    assert float(round.metrics["loss"]) == pytest.approx(np.mean(losses), rel=1e-5)
    assert float(round.metrics["code_norm"]) == pytest.approx(np.mean(norms), rel=1e-5)
    return encoders


def assert_close(found, expected):
    """To a hundred thousandth of the largest entry."""
    for name, value in expected.items():
        bound = 1e-5 * float(np.abs(value).max())
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=bound)


def assert_clusters_are_of_the_coefficients(method, state, federation):
    """Two groups on each client, which take turns; what is on the diagonal does not
    count."""
    mask = np.asarray(federation.mask)
    turns = np.arange(mask.shape[1]) % 2
    same = turns[:, None] == turns
    c = jnp.asarray(same + 100 * np.eye(len(turns)), jnp.float32)
    coefficients = jnp.broadcast_to(c, (len(mask), *c.shape))
    parts = {**state.clients.parts, "coefficients": coefficients}
    state = state._replace(clients=state.clients._replace(parts=parts))
    found = np.asarray(method.assign(state, federation))
    for own, clusters in zip(mask, found, strict=True):
        are_one = clusters[own][:, None] == clusters[own]
        np.testing.assert_array_equal(are_one, same[own][:, own])
