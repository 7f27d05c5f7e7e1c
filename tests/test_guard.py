"""What a run costs, counted and not timed: operations, and programs that are compiled.
What crosses devices is counted in test_spread.py."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax import Grid, engine, models
from fcjax.algorithms.ccfc import ccfc
from fcjax.types import Federation

CLIENTS, EXAMPLES = 2, 32


@pytest.fixture
def federation():
    images = np.random.default_rng(0).integers(0, 256, (64, 28, 28, 1), np.uint8)
    return Federation(
        jnp.asarray(images),
        jnp.arange(64).reshape(CLIENTS, EXAMPLES),
        jnp.ones((CLIENTS, EXAMPLES), bool),
        jnp.ones((1, CLIENTS), bool),
        jnp.full(CLIENTS, 10),
    )


def method(_=None):
    return ccfc(
        models.simsiam(models.conv_encoder()),
        optax.adam(1e-3),
        lambda key, x: x,
        num_clusters=10,
        pretrain_rounds=2,
        cluster_rounds=2,
        batch_size=EXAMPLES,
    )


def grid_of(federation, seed):
    keys = jax.random.split(jax.random.key(seed), 1)
    runs = jax.tree.map(lambda x: x[None], federation._replace(pool=()))
    return Grid({}, keys, runs._replace(pool=federation.pool))


def test_a_round_does_little_but_its_arithmetic(key, federation):
    """Two views forward and backward, both through the anchor, then every example once
    for its centroids. XLA counts a loop's body once: with one client and one batch each
    has one turn. It leaves out taps that see padding, and what nothing uses."""
    alone = federation._replace(
        indices=federation.indices[:1],
        mask=federation.mask[:1],
        present=federation.present[:, :1],
        local_clusters=federation.local_clusters[:1],
    )
    convolutions = 2 * 16 * (64 * 14**2 + 64 * 128 * 7**2 + 128 * 256 * 3**2)
    dense = 2 * (2304 * 256 + 256 * 256 + 256 * 16 + 16 * 256)
    analytic = EXAMPLES * (2 * 3 + 2 + 1) * (convolutions + dense)
    state = jax.eval_shape(method().init, key, alone)
    round = jax.jit(method().stages[0].round).lower(key, state, alone)
    counted = round.compile().cost_analysis()["flops"]
    assert 0.6 * analytic < counted < 1.3 * analytic


def test_programs_of_a_run(key, federation):
    """One to begin with, and of each stage its beginning, its end and its round; a
    second grid of the same shapes, of other keys, has them all."""
    compiled = []

    def listen(event, duration_secs, **_):
        if event.endswith("backend_compile_duration"):
            compiled.append(duration_secs)

    program = engine.Program(method)
    grids = [grid_of(federation, seed) for seed in range(2)]
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        program.run(grids[0])
        first = len(compiled)
        program.run(grids[1])
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) == first
    assert first <= 12


def test_what_a_round_moves(federation, capfd):
    """To the device the numbers of stage and round, whatever the data; to the host
    what is shown of it: a few numbers, each an array of one run."""
    program, grids = engine.Program(method), [grid_of(federation, s) for s in range(2)]
    program.run(grids[0])
    rounds, moved = [], []

    def look(round):
        rounds.append(round.metrics)
        moved.append(capfd.readouterr().err.count("host-to-device transfer"))

    capfd.readouterr()
    with jax.transfer_guard("log_explicit"):
        jax.device_put(np.zeros(1))
        assert capfd.readouterr().err.count("host-to-device transfer") == 1
        program.run(grids[1], on_round=look)
    # Before the first round of a stage come its beginning and the question whether it
    # is over, and before the run its own beginning.
    for count, most in zip(moved, (6, 2, 4, 2), strict=True):
        assert count <= most, moved
    for metrics in rounds:
        assert sum(x.nbytes for x in metrics.values()) <= 100
