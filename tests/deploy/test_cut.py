"""`cut` against the function itself, with all clients in one array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.deploy.cut import cut
from fcjax.federated import clients, server

X = jnp.array([[1.0, 2.0], [3.0, 5.0], [0.0, 4.0]])
"""One row per client."""


def run(step, common, state, each):
    """Runs all parts of a step; returns the results of the server and the clients."""
    memory, uploads = [[] for _ in each], []
    for phase in range(len(step.phases)):
        down = step.server(common, state, uploads)
        answers = [
            step.client(phase, common, own, jnp.int32(site), down, memory[site])
            for site, own in enumerate(each)
        ]
        memory = [x[1] for x in answers]
        each_up = zip(*(up for up, _, _ in answers), strict=True)
        uploads.append([jnp.concatenate(x) for x in each_up])
    return step.server(common, state, uploads), [x[2] for x in answers]


def both(fn, common, state, own, *, secure=False):
    """Returns the results of `fn` for all clients at once, and cut for each client."""
    count = len(jax.tree.leaves(own)[0])
    each = [jax.tree.map(lambda x, i=i: x[i : i + 1], own) for i in range(count)]
    step = cut(fn, count, common, state, each[0], secure=secure)
    first, second = run(step, common, state, each)
    stacked = jax.tree.map(lambda *x: jnp.concatenate(x), *second)
    return fn(common, state, own), (first, stacked), step


def assert_same(whole, parts):
    assert jax.tree.structure(whole) == jax.tree.structure(parts)
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_mean_takes_one_phase_and_uploads_rows_and_weights():
    def fn(common, state, x):
        mean = server.weighted_mean({"w": x}, x[:, 0] + 1)
        return mean["w"] + state, x * 2

    whole, parts, step = both(fn, (), jnp.float32(10), X)
    assert_same(whole, parts)
    (phase,) = step.phases
    assert phase.down == phase.memory == ()
    assert phase.sums == (False, False)
    assert step.bytes_of(phase.up) == 8 + 4  # a row and its weight


def test_a_secure_mean_uploads_weighted_rows_of_which_the_server_needs_the_sum():
    def fn(common, state, x):
        mean = server.weighted_mean({"w": x}, x[:, 0])  # the last weight is 0
        return mean["w"] + state + server.gather(x[:, 1]).sum(), x * 2

    whole, parts, step = both(fn, (), jnp.float32(10), X, secure=True)
    np.testing.assert_allclose(whole[0], parts[0], rtol=1e-6)
    (phase,) = step.phases
    assert phase.sums == (True, True, False)
    up, _, _ = step.client(0, (), X[1:2], jnp.int32(1), [], [])
    np.testing.assert_array_equal(up[0], [[9.0, 15.0]])  # 3 * (3, 5)
    # A sum in place of one row, and zeros in place of the others.
    total = jnp.array([[10.0, 17.0], [0.0, 0.0], [0.0, 0.0]])
    weights, rows = jnp.array([4.0, 0.0, 0.0]), X[:, 1]
    np.testing.assert_allclose(
        step.server((), jnp.float32(10), [[total, weights, rows]]), whole[0], rtol=1e-6
    )


def test_an_upload_that_needs_a_download_of_an_upload_begins_a_phase():
    def fn(common, state, x):
        center = server.gather(x).mean(axis=0)
        squares = ((x * x - center[None]) ** 2).sum(axis=1)
        return server.gather(squares).sum() + state, squares + center[0]

    whole, parts, step = both(fn, (), jnp.float32(1), X)
    assert_same(whole, parts)
    assert len(step.phases) == 2
    assert step.bytes_of(step.phases[0].down) == 0
    assert step.bytes_of(step.phases[1].down) == 8  # the center, not the rows of all


def test_a_result_of_the_clients_may_need_a_last_download():
    def fn(common, state, x):
        center = server.gather(x).mean(axis=0)
        return center, x - center[None]

    whole, parts, step = both(fn, (), (), X)
    assert_same(whole, parts)
    assert [bool(phase.up) for phase in step.phases] == [True, False]


def test_clients_remember_their_own_values_between_phases():
    def fn(common, state, x):
        z = jnp.sin(x)
        total = server.gather(z.sum(axis=1)).sum()
        return server.gather(z.sum(axis=1) * total).sum(), z

    whole, parts, step = both(fn, (), (), X)
    assert_same(whole, parts)
    assert step.phases[0].memory
    assert not step.phases[1].memory


def test_keys_are_those_of_the_clients_numbers():
    def fn(key, state, x):
        keys = clients.keys(key, len(x))
        noise = clients.for_each(lambda key, x: x + jax.random.normal(key), keys, x)
        return server.gather(noise), noise

    whole, parts, _ = both(fn, jax.random.key(3), (), X)
    assert_same(whole, parts)


def test_a_download_is_the_smaller_of_a_value_and_its_copies():
    def fn(common, state, x):
        copies = clients.repeat({"w": state}, len(x))
        return server.gather(x + copies["w"] + copies["w"] ** 2).sum(), x

    whole, parts, step = both(fn, (), jnp.array([1.0, 2.0]), X)
    assert_same(whole, parts)
    assert step.bytes_of(step.phases[0].down) == 8


def test_an_upload_that_nobody_reads_is_not_sent():
    def fn(common, state, x):
        server.gather(x)
        return server.gather(x.sum(axis=1)).sum(), x

    whole, parts, step = both(fn, (), (), X)
    assert_same(whole, parts)
    assert step.bytes_of(step.phases[0].up) == 4


def test_a_server_that_reads_examples_cannot_be_cut():
    def fn(common, state, x):
        return x.sum() + state, x

    with pytest.raises(
        ValueError, match="the server reads data that no client uploads"
    ):
        cut(fn, 3, (), jnp.float32(0), X[:1])


def test_an_exchange_within_a_loop_cannot_be_cut():
    def fn(common, state, x):
        return jax.lax.fori_loop(
            0, 2, lambda _, s: s + server.gather(x).sum(), state
        ), x

    with pytest.raises(ValueError, match=r"within a .*, which cannot be cut"):
        cut(fn, 3, (), jnp.float32(0), X[:1])


def test_a_step_without_clients_needs_none():
    def fn(common, state, own):
        return state + 1, own[1]

    step = cut(fn, 2, (), jnp.float32(0), (X[:1], X[:1]))
    assert step.is_for_server_alone
    assert step.server((), jnp.float32(1), [[]]) == 2
