"""DSCN and DLRSC: every client by itself, against gradient descent written out."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.algorithms.dlrsc import dlrsc
from fcjax.algorithms.dscn import dscn
from fcjax.algorithms.fdsc import fdsc
from fcjax.algorithms.subspace import SubspaceNetwork, dense
from fcjax.models.autoencoder import AutoEncoder
from tests.algorithms.federations import federate
from tests.algorithms.plain import matrix
from tests.algorithms.subspaces import (
    NUM_CLUSTERS,
    descend,
    equation_8,
    plain_affinity,
    wide_network,
    worst_accuracies,
)

ROWS = [np.arange(7), np.arange(7, 11), np.arange(11, 20), np.arange(20, 26)]
POOL = np.random.default_rng(0).normal(size=(26, 4)).astype(np.float32)
ABSENT = 3
FEDERATION = federate(POOL, ROWS, absent=(ABSENT,))
RATE, MOMENTUM, STEPS = 1e-3, 0.9, 3
PENALTY, EXPRESSION = 0.7, 1.3
PARTS = ("encoder", "decoder", "coefficients")


def build(method=dscn, **options):
    network = SubspaceNetwork(
        AutoEncoder(matrix(3), matrix(4)),
        dense(),
        penalty_weight=PENALTY,
        expression_weight=EXPRESSION,
    )
    options = {"num_rounds": 2, "pretrain_rounds": 1, **options}
    return method(
        network,
        optax.sgd(RATE, momentum=MOMENTUM),
        num_clusters=2,
        affinity=plain_affinity,
        local_steps=STEPS,
        **options,
    )


def follow(method, federation, state=None):
    """By stage, the states before, between and after its rounds; all metrics."""
    key, states, metrics = jax.random.key(0), {}, []
    if state is None:
        state = jax.jit(method.init)(key, federation)
    for stage in method.stages:
        states[stage.name] = [jax.jit(stage.begin)(key, state, federation)]
        round = jax.jit(stage.round)
        for _ in range(stage.num_rounds):
            state, measured = round(key, states[stage.name][-1], federation)
            states[stage.name].append(state)
            metrics.append(jax.device_get(measured))
    return jax.device_get(states), metrics


@pytest.fixture(scope="module")
def trained():
    return follow(build(), FEDERATION)


@pytest.fixture(scope="module")
def low_rank():
    return follow(build(dlrsc, rank_factor=2), FEDERATION)


def of_client(tree, client):
    return jax.tree.map(lambda x: x[client], tree)


def parts_of(state, client):
    size, private = len(ROWS[client]), of_client(state.private, client)
    return {
        "encoder": private["encoder"]["params"]["kernel"],
        "decoder": private["decoder"]["params"]["kernel"],
        "coefficients": private["coefficients"]["params"][:size],
    }


def assert_close(found, expected):
    for name, value in expected.items():
        bound = 1e-5 * float(np.abs(value).max())
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=bound)


def still(parts):
    return {name: np.zeros_like(part) for name, part in parts.items()}


def test_every_client_descends_by_itself(trained):
    """The stage of the auto-encoder, then two rounds that share one momentum."""
    states, metrics = trained
    measured = np.zeros(3)
    for client in range(ABSENT):
        x, size = POOL[ROWS[client]], len(ROWS[client])

        def reconstruction(parts, x=x):
            return jnp.sum((x - x @ parts["encoder"] @ parts["decoder"]) ** 2)

        def whole(parts, x=x):
            graph = jnp.zeros((len(x), len(x)))
            return equation_8(parts, x, graph, penalty=PENALTY, expression=EXPRESSION)

        def square(state, client=client, size=size):
            parts = parts_of(state, client)
            return {**parts, "coefficients": parts["coefficients"][:, :size]}

        options = {"rate": RATE, "momentum": MOMENTUM, "num_steps": STEPS}
        parts = square(states["pretrain"][0])
        c = parts.pop("coefficients")
        np.testing.assert_array_equal(c, np.float32(1e-8))
        parts, _, first = descend(parts, still(parts), reconstruction, **options)
        assert_close(square(states["pretrain"][1]), {**parts, "coefficients": c})

        parts = square(states["train"][0])
        parts, velocity, second = descend(parts, still(parts), whole, **options)
        assert_close(square(states["train"][1]), parts)
        parts, _, third = descend(parts, velocity, whole, **options)
        assert_close(square(states["train"][2]), parts)
        measured += np.array([first, second, third]) / ABSENT
    found = [float(row["loss"]) for row in metrics]
    np.testing.assert_allclose(found, measured, rtol=1e-5)


def counted(method):
    """A method of Adam, which counts its steps: by part, those of each client over all
    stages."""
    key, federation = jax.random.key(0), federate(POOL, ROWS)
    state, steps = method.init(key, federation), dict.fromkeys(PARTS, 0)
    for stage in method.stages:
        state = jax.jit(stage.begin)(key, state, federation)
        for i in range(stage.num_rounds):
            state, _ = jax.jit(stage.round)(jax.random.key(i), state, federation)
        (adam, *_) = state.opt_state
        for name in adam.mu:
            steps[name] = steps[name] + np.asarray(adam.count)
    return steps


def test_a_client_by_itself_takes_the_steps_of_one_of_fdsc():
    """Of which all are in every round: 5 rounds of 3 steps before, 4 with coefficients,
    and twice 11 steps of what is not sent."""
    network = SubspaceNetwork(
        AutoEncoder(matrix(3), matrix(4)), dense(), PENALTY, EXPRESSION
    )
    options = {
        "num_clusters": 2,
        "affinity": plain_affinity,
        "pretrain_rounds": 5,
        "num_rounds": 4,
        "local_steps": 3,
        "fit_steps": 11,
    }
    expected = {
        "encoder": 5 * 3 + 4 * 3,
        "decoder": 5 * 3 + 11 + 4 * 3 + 11,
        "coefficients": 11 + 4 * 3 + 11,
    }
    federated = fdsc(network, optax.adam(1e-3), **options, num_participants=4)
    for method in (
        federated,
        dscn(network, optax.adam(1e-3), **options),
        dlrsc(network, optax.adam(1e-3), **options),
    ):
        for name, steps in counted(method).items():
            np.testing.assert_array_equal(steps, [expected[name]] * 4)


def test_fdsc_of_one_client_is_dscn():
    """Nothing but the server is between them."""
    alone = federate(POOL, [np.arange(9)])
    network = SubspaceNetwork(
        AutoEncoder(matrix(3), matrix(4)), dense(), PENALTY, EXPRESSION
    )
    options = {
        "num_clusters": 2,
        "affinity": plain_affinity,
        "pretrain_rounds": 2,
        "num_rounds": 3,
        "local_steps": STEPS,
        "fit_steps": 4,
    }
    optimizer = optax.sgd(RATE, momentum=MOMENTUM)
    federated = fdsc(network, optimizer, **options, num_participants=1)
    own = dscn(network, optimizer, **options)
    begun = federated.init(jax.random.key(0), alone)
    encoder = jax.tree.map(lambda x: x[None], begun.encoder)
    private = {"encoder": encoder, **begun.private}
    together, of_fdsc = follow(federated, alone, begun)
    apart, of_dscn = follow(
        own, alone, own.init(jax.random.key(0), alone)._replace(private=private)
    )
    assert set(together) == set(apart) == {"pretrain", "start", "train", "fit"}
    ended, expected = apart["fit"][-1].private, together["fit"][-1]
    assert_close(
        parts_of_tree(ended),
        parts_of_tree({"encoder": expected.encoder, **expected.private}),
    )
    for row, other in zip(of_dscn, of_fdsc, strict=True):
        assert float(row["loss"]) == pytest.approx(float(other["loss"]), rel=1e-5)


def parts_of_tree(parts):
    (encoder,), (decoder,), (coefficients,) = (
        jax.tree.leaves(parts[name]) for name in PARTS
    )
    return {
        "encoder": np.squeeze(encoder),
        "decoder": np.squeeze(decoder),
        "coefficients": np.squeeze(coefficients),
    }


def test_code_norms_are_means_over_clients(trained):
    states, metrics = trained
    after = states["train"][-1]
    norms = [
        np.linalg.norm(POOL[ROWS[i]] @ parts_of(after, i)["encoder"], axis=1).mean()
        for i in range(ABSENT)
    ]
    assert float(metrics[-1]["code_norm"]) == pytest.approx(np.mean(norms), rel=1e-5)


def test_nothing_crosses_the_boundary(trained):
    for row in trained[1]:
        assert set(row) == {"loss", "code_norm", "participants"}
        assert int(row["participants"]) == ABSENT


def test_an_absent_client_stands_still(trained):
    states, _ = trained
    for stage in states.values():
        jax.tree.map(
            np.testing.assert_array_equal,
            of_client((stage[0].private, stage[0].opt_state), ABSENT),
            of_client((stage[-1].private, stage[-1].opt_state), ABSENT),
        )


@pytest.mark.parametrize("client", [0, 2])
def test_a_client_alone_is_what_it_is_among_others(client, trained):
    """From what it held in the beginning; the first one by the key alone."""
    states, _ = trained
    alone = FEDERATION._replace(
        indices=FEDERATION.indices[client][None],
        mask=FEDERATION.mask[client][None],
        present=jnp.ones((1, 1), bool),
    )
    begun = jax.tree.map(
        lambda x: jnp.asarray(x)[client][None], states["pretrain"][0].private
    )
    method = build()
    state = method.init(jax.random.key(0), alone)
    if client:
        state = state._replace(private=begun)
    else:
        jax.tree.map(np.testing.assert_array_equal, state.private, begun)
    again, _ = follow(method, alone, state)
    assert_close(
        dict(enumerate(jax.tree.leaves(of_client(again["train"][-1].private, 0)))),
        dict(
            enumerate(jax.tree.leaves(of_client(states["train"][-1].private, client)))
        ),
    )


def test_clients_begin_apart_and_codes_are_of_the_own_encoder(trained):
    first, last = trained[0]["pretrain"][0], trained[0]["train"][-1]
    kernels = np.asarray(first.private["encoder"]["params"]["kernel"])
    assert len(np.unique(kernels[:, 0, 0])) == len(ROWS)
    z = np.asarray(build().embed(last, FEDERATION))
    for client, rows in enumerate(ROWS):
        expected = POOL[rows] @ parts_of(last, client)["encoder"]
        np.testing.assert_allclose(z[client, : len(rows)], expected, atol=1e-5)


# --- DLRSC


def test_the_coefficients_of_dlrsc_have_few_columns(low_rank):
    states, _ = low_rank
    width = FEDERATION.mask.shape[1]
    factor = states["train"][0].private["coefficients"]["params"]
    assert factor.shape == (len(ROWS), width, 2 * 2)
    assert np.abs(factor).max() < 1e-3  # 1e-4 times normal draws
    assert 0.5e-4 < factor.std() < 2e-4
    many = build(dlrsc, rank_factor=10).init(jax.random.key(0), FEDERATION)
    assert many.private["coefficients"]["params"].shape == (len(ROWS), width, width)
    default = build(dlrsc).init(jax.random.key(0), FEDERATION)
    assert default.private["coefficients"]["params"].shape == (len(ROWS), width, width)


def test_dlrsc_descends_in_its_factor(low_rank):
    """C = U U^T but for its diagonal, and lambda_1 weighs |U|^2."""
    states, metrics = low_rank
    values = []
    for client in range(ABSENT):
        x = POOL[ROWS[client]]

        def loss(parts, x=x):
            u = parts["coefficients"]
            expressed = {**parts, "coefficients": u @ u.T}
            graph = jnp.zeros((len(x), len(x)))
            rest = equation_8(expressed, x, graph, penalty=0.0, expression=EXPRESSION)
            return rest + PENALTY * jnp.sum(u**2)

        parts = parts_of(states["train"][0], client)
        parts, _, value = descend(
            parts, still(parts), loss, rate=RATE, momentum=MOMENTUM, num_steps=STEPS
        )
        assert_close(parts_of(states["train"][1], client), parts)
        values.append(value)
    assert float(metrics[1]["loss"]) == pytest.approx(np.mean(values), rel=1e-5)


# --- what is recovered


def test_independent_subspaces_are_recovered():
    """By SGD: from coefficients near zero it ends at those of least norm, which are
    zero between independent subspaces."""

    def with_penalty(affinity, penalty_weight):
        return dscn(
            wide_network()._replace(penalty_weight=penalty_weight),
            optax.sgd(1e-6, momentum=0.9),
            num_clusters=NUM_CLUSTERS,
            affinity=affinity,
            num_rounds=60,
            local_steps=10,
            pretrain_rounds=20,
        )

    worst = worst_accuracies(with_penalty, (1.0,))
    assert min(worst.values()) >= 0.98, worst
