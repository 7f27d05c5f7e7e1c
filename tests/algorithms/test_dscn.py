"""DSCN and DLRSC: every client by itself, against gradient descent written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.algorithms.fdsc import dlrsc, dscn
from fcjax.methods import DLRSC, DSCN
from tests.algorithms import subspaces
from tests.algorithms.federations import federate, follow
from tests.algorithms.subspaces import parts_of

ROWS = [np.arange(7), np.arange(7, 11), np.arange(11, 20), np.arange(20, 26)]
POOL = np.random.default_rng(0).normal(size=(26, 4)).astype(np.float32)
ABSENT = 3
FEDERATION = federate(POOL, ROWS, absent=(ABSENT,))


SCALE = 1.5
"""Of the pixels, with which all of a network works."""
ROUNDS = {"num_rounds": 2, "pretrain_rounds": 1, "fit_steps": subspaces.FIT_STEPS}
METHOD = subspaces.build(dscn, DSCN, **ROUNDS, pixel_scale=SCALE)


@pytest.fixture(scope="module")
def history():
    return follow(METHOD, FEDERATION)


@pytest.fixture(scope="module")
def low_rank():
    rounds = {"num_rounds": 1, "pretrain_rounds": 0, "fit_steps": 0}
    options = {"rank_factor": 2, "pixel_scale": SCALE}
    method = subspaces.build(dlrsc, DLRSC, **options, **rounds)
    (round,) = follow(method, FEDERATION)
    return round


OWN = {client: (SCALE * POOL[ROWS[client]],) for client in range(ABSENT)}


def test_every_client_descends_by_itself(history):
    """Two rounds of the whole network share one momentum. The steps are those of a
    client of FDSC, which `test_fdsc.py` holds to the same loop."""
    stages = [round.stage for round in history]
    assert stages == ["pretrain", "start", "train", "train", "fit"]
    for round in history:
        subspaces.assert_descend(round, OWN)


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
        expected = SCALE * POOL[rows] @ parts_of(last, client, len(rows))["encoder"]
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
    subspaces.assert_descend(low_rank, OWN, objective=expressed_by_factor)
