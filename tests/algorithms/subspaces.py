"""Examples from independent linear subspaces, which self-expression recovers, and the
training of deep subspace networks written out plainly."""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fcjax.methods import FDSC
from fcjax.metrics import accuracy
from fcjax.nn.autoencoders import AutoEncoder
from tests.algorithms.federations import federate
from tests.algorithms.plain import matrix

NUM_CLUSTERS, DIMENSION, NUM_FEATURES = 3, 2, 30
SIZES = (10, 8, 10, 9)  # of each subspace on the clients
SEEDS = tuple(range(5))


def independent_subspaces(seed):
    """A federation, and the labels [M, N] of its slots.

    Bases are random: subspaces meet in the origin alone, but are not orthogonal.
    Coefficients have a mean, so that an example has few opposites: the affinity of
    DSC-Net takes these for unlike. Examples are float, which the library takes as they
    are: a shift into [0, 1] would leave no subspace.
    """
    rng = np.random.default_rng(seed)
    bases = np.linalg.qr(rng.normal(size=(NUM_CLUSTERS, NUM_FEATURES, DIMENSION)))[0]
    of_client = [np.repeat(np.arange(NUM_CLUSTERS), n) for n in SIZES]
    labels = np.concatenate([rng.permutation(own) for own in of_client])
    coefficients = rng.normal(2, size=(len(labels), DIMENSION))
    pool = np.einsum("nfd,nd->nf", bases[labels], coefficients)
    ends = NUM_CLUSTERS * np.cumsum(SIZES)
    rows = np.split(np.arange(len(labels)), ends[:-1])
    federation = federate(pool, rows, num_clusters=NUM_CLUSTERS)
    return federation, labels[np.asarray(federation.indices)]


PROCESSING = {
    **{"post_processing": True, "unit_diagonal": False},
    **{"keep": 0.97, "dimension": DIMENSION + 1, "power": 2.0},
}
AFFINITIES = {"plain": {"post_processing": False}, "processed": PROCESSING}


def worst_accuracies(build) -> dict[str, float]:
    """Returns by affinity the least ACC of any client with any seed. `build` takes the
    settings of the affinity; the clusters of each client are matched by themselves."""
    federations, labels = zip(*map(independent_subspaces, SEEDS), strict=True)
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *federations)
    mask = np.asarray(federations[0].mask)

    @jax.jit
    def clusters(keys, federations):
        def one(key, federation):
            method = build(**AFFINITIES["plain"])
            (stage,) = method.stages
            state = stage.begin(key, method.init(key, federation), federation)
            state, _ = stage.round(key, state, federation)
            return {
                name: build(**affinity).assign(state, federation)
                for name, affinity in AFFINITIES.items()
            }

        return jax.vmap(one)(keys, federations)

    keys = jax.vmap(jax.random.key)(jnp.array(SEEDS))
    found = jax.device_get(clusters(keys, stacked))
    return {
        name: min(
            accuracy(labels[seed][i][own], ids[seed, i][own])
            for seed in range(len(SEEDS))
            for i, own in enumerate(mask)
        )
        for name, ids in found.items()
    }


# --- rounds written out

RATE, MOMENTUM, PENALTY, EXPRESSION = 1e-3, 0.9, 0.7, 1.3
OPTIMIZER = optax.sgd(RATE, momentum=MOMENTUM)
TINY = AutoEncoder(matrix(3), matrix(4))
LOCAL_STEPS, FIT_STEPS = 3, 4
WEIGHTS = {"penalty_weight": PENALTY, "expression_weight": EXPRESSION}


def build(method, settings=FDSC, **options):
    """The networks of one matrix each, with two clusters per client."""
    options = WEIGHTS | {"local_steps": LOCAL_STEPS} | options
    settings = settings().plain(**options)
    return method(TINY, OPTIMIZER, settings, num_clusters=2)


TRAINED = {
    "pretrain": ("encoder", "decoder"),
    "start": ("decoder", "coefficients"),
    "train": ("encoder", "decoder", "coefficients"),
    "fit": ("decoder", "coefficients"),
}


class Round(NamedTuple):
    stage: str
    before: Any
    after: Any
    metrics: dict


def follow(method, federation, *, first=0, state=None) -> list[Round]:
    """All rounds from a stage on; the state before a stage's first one is that with
    which it begins."""
    key, rounds = jax.random.key(0), []
    if state is None:
        state = jax.jit(method.init)(key, federation)
    for number, stage in enumerate(method.stages[first:], start=first):
        stage_key = jax.random.fold_in(key, number)
        state = jax.jit(stage.begin)(stage_key, state, federation)
        round = jax.jit(stage.round)
        for i in range(stage.num_rounds):
            old = state
            state, metrics = round(jax.random.fold_in(stage_key, i), old, federation)
            rounds.append(Round(stage.name, *jax.device_get((old, state, metrics))))
    return rounds


def parts_of(state, client, size):
    """What a client trains from: arrays without what its padding holds."""
    own = jax.tree.map(lambda x: x[client], state.clients.parts)
    shared = hasattr(state.server, "encoder")
    encoder = state.server.encoder if shared else own["encoder"]
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


def code_norm(x, parts):
    return np.linalg.norm(x @ parts["encoder"], axis=1).mean()


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
