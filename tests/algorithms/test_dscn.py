"""DSCN and DLRSC: every client by itself, against gradient descent written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.algorithms.fdsc import dlrsc, dscn
from fcjax.methods import DLRSC, DSCN
from tests.algorithms import subspaces
from tests.algorithms.federations import federate
from tests.algorithms.subspaces import assert_close, parts_of, velocity_of

ROWS = [np.arange(7), np.arange(7, 11), np.arange(11, 20), np.arange(20, 26)]
POOL = np.random.default_rng(0).normal(size=(26, 4)).astype(np.float32)
ABSENT = 3
FEDERATION = federate(POOL, ROWS, absent=(ABSENT,))


ROUNDS = {"num_rounds": 2, "pretrain_rounds": 1, "fit_steps": subspaces.FIT_STEPS}
METHOD = subspaces.build(dscn, DSCN, **ROUNDS)


@pytest.fixture(scope="module")
def history():
    return subspaces.follow(METHOD, FEDERATION)


@pytest.fixture(scope="module")
def low_rank():
    rounds = {"num_rounds": 1, "pretrain_rounds": 0, "fit_steps": 0}
    method = subspaces.build(dlrsc, DLRSC, rank_factor=2, **rounds)
    (round,) = subspaces.follow(method, FEDERATION)
    return round


def assert_each_descends(round, **options):
    losses, norms = [], []
    for client in range(ABSENT):
        x = POOL[ROWS[client]]
        parts, velocity, value = subspaces.by_itself(round, client, x, **options)
        assert_close(parts_of(round.after, client, len(x)), parts)
        assert_close(velocity_of(round.after, client, len(x)), velocity)
        losses.append(value)
        norms.append(subspaces.code_norm(x, parts))
    assert float(round.metrics["loss"]) == pytest.approx(np.mean(losses), rel=1e-5)
    assert float(round.metrics["code_norm"]) == pytest.approx(np.mean(norms), rel=1e-5)


def test_every_client_descends_by_itself(history):
    """Two rounds of the whole network share one momentum. The steps are those of a
    client of FDSC, which `test_fdsc.py` holds to the same loop."""
    stages = [round.stage for round in history]
    assert stages == ["pretrain", "start", "train", "train", "fit"]
    for round in history:
        assert_each_descends(round)
    first = history[1].before.clients.parts["coefficients"]
    np.testing.assert_array_equal(first, np.float32(1e-8))
    for one, other in ((0, 1), (1, 2), (3, 4)):  # a stage begins where one ended
        jax.tree.map(
            np.testing.assert_array_equal,
            history[one].after.clients.parts,
            history[other].before.clients.parts,
        )
        for leaf in jax.tree.leaves(history[other].before.clients.opt_state):
            assert not leaf.any()


def test_nothing_crosses_the_boundary_and_an_absent_client_stands_still(history):
    for round in history:
        assert set(round.metrics) == {"loss", "code_norm", "participants"}
        assert int(round.metrics["participants"]) == ABSENT
        pair = (round.before.clients, round.after.clients)
        for one, other in zip(*map(jax.tree.leaves, pair), strict=True):
            np.testing.assert_array_equal(one[ABSENT], other[ABSENT])


def test_clients_begin_apart_and_codes_and_clusters_are_of_what_they_hold(history):
    first, last = history[0].before, history[-1].after
    kernels = np.asarray(first.clients.parts["encoder"]["params"]["kernel"])
    assert len(np.unique(kernels[:, 0, 0])) == len(ROWS)
    z = np.asarray(METHOD.embed(last, FEDERATION))
    for client, rows in enumerate(ROWS):
        expected = POOL[rows] @ parts_of(last, client, len(rows))["encoder"]
        np.testing.assert_allclose(z[client, : len(rows)], expected, atol=1e-5)
    subspaces.assert_clusters_are_of_the_coefficients(METHOD, last, FEDERATION)


def expressed_by_factor(parts, x):
    """C = U U^T but for its diagonal, and lambda_1 weighs |U|^2."""
    u = parts["coefficients"]
    expressed = {**parts, "coefficients": u @ u.T}
    rest = subspaces.equation_8(expressed, x, penalty=0.0)
    return rest + subspaces.PENALTY * jnp.sum(u**2)


def test_dlrsc_descends_in_a_factor_of_few_columns(low_rank):
    factor = low_rank.before.clients.parts["coefficients"]
    assert factor.shape == (len(ROWS), FEDERATION.mask.shape[1], 2 * 2)
    assert np.abs(factor).max() < 1e-3  # 1e-4 times normal draws
    assert 0.5e-4 < factor.std() < 2e-4
    assert_each_descends(low_rank, objective=expressed_by_factor)
