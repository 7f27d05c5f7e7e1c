"""Checkpoints on a real disk, through orbax."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from fcjax import engine
from fcjax.checkpoints import Checkpoints, Position
from fcjax.types import FederatedClustering, Federation, Grid, Stage


def state_of(value):
    return {
        "weights": jnp.full((2, 3), value, jnp.float32) / 3,
        "half": jnp.full((2,), value, jnp.bfloat16),
        "count": (jnp.array([value, 2 * value], jnp.int32), jnp.array([True, False])),
    }


def shapes(stage):
    return jax.eval_shape(state_of, 1)


def assert_bits(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def saved(folder, *positions):
    """The checkpoints of some positions, each of a state that its round tells."""
    checkpoints = Checkpoints(folder, interval=0.0)
    for position in positions:
        checkpoints.save(Position(*position), state_of(position[1]), force=False)
    checkpoints.wait()
    return checkpoints


def test_the_bits_come_back(tmp_path):
    saved(tmp_path, (2, 7))
    position, state = Checkpoints(tmp_path).restore(shapes)
    assert position == Position(2, 7)
    assert_bits(state, state_of(7))


def test_nothing_to_go_on_from_is_the_beginning_and_silent(tmp_path, capsys):
    assert Checkpoints(tmp_path / "none").restore(shapes) == (
        (0, 0),
        None,
    )
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "none").exists()


def test_without_an_interval_every_round_is_saved_and_the_newest_two_stay(tmp_path):
    saved(tmp_path, (0, 8), (0, 9), (0, 10), (1, 1))
    assert names(tmp_path) == ["00-000010", "01-000001"]


def test_within_the_interval_only_what_is_forced_is_saved(tmp_path):
    checkpoints = Checkpoints(tmp_path, interval=1000.0)
    checkpoints.save(Position(0, 1), state_of(1), force=False)
    checkpoints.save(Position(0, 2), state_of(2), force=True)
    checkpoints.save(Position(0, 3), state_of(3), force=False)
    checkpoints.wait()
    assert names(tmp_path) == ["00-000002"]


def test_what_is_written_is_the_state_at_the_time_of_the_call(tmp_path):
    """The next round takes its memory before the write has begun."""
    checkpoints = Checkpoints(tmp_path, interval=0.0)
    overwrite = jax.jit(lambda x: jax.tree.map(jnp.add, x, x), donate_argnums=0)
    state = jax.block_until_ready(jax.tree.map(jnp.array, state_of(5)))
    checkpoints.save(Position(0, 1), state, force=True)
    jax.block_until_ready(overwrite(state))
    assert state["weights"].is_deleted()
    checkpoints.wait()
    assert_bits(Checkpoints(tmp_path).restore(shapes)[1], state_of(5))


@pytest.fixture
def held_writes(monkeypatch):
    """Background writes that wait for a signal, and those of an error."""
    go, write = threading.Event(), ocp.save_async

    class Held:
        def __init__(self, *args, **options):
            self.args, self.options = args, options

        def result(self):
            assert go.wait(60)
            return write(*self.args, **self.options).result()

    monkeypatch.setattr(ocp, "save_async", Held)
    return go


def test_a_save_returns_before_the_write(tmp_path, held_writes):
    checkpoints = Checkpoints(tmp_path, interval=0.0)
    checkpoints.save(Position(0, 1), state_of(1), force=True)
    assert names(tmp_path) == []
    held_writes.set()
    checkpoints.wait()
    assert names(tmp_path) == ["00-000001"]


def test_the_older_ones_stay_until_a_newer_one_is_complete(tmp_path, held_writes):
    held_writes.set()
    checkpoints = saved(tmp_path, (0, 1), (0, 2))
    held_writes.clear()
    checkpoints.save(Position(0, 3), state_of(3), force=True)
    assert names(tmp_path) == ["00-000001", "00-000002"]
    held_writes.set()
    checkpoints.wait()
    assert names(tmp_path) == ["00-000002", "00-000003"]


def test_an_error_of_the_background_write_surfaces(tmp_path, monkeypatch):
    class Full:
        def result(self):
            raise OSError("no space left")

    monkeypatch.setattr(ocp, "save_async", lambda *_, **__: Full())
    checkpoints = Checkpoints(tmp_path, interval=0.0)
    checkpoints.save(Position(0, 1), state_of(1), force=True)
    with pytest.raises(OSError, match="no space left"):
        checkpoints.save(Position(0, 2), state_of(2), force=True)
    checkpoints.wait()  # told once


def test_a_truncated_checkpoint_falls_back_to_the_one_before(tmp_path, capsys):
    saved(tmp_path, (0, 1), (0, 2))
    for path in (tmp_path / "00-000002").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    position, state = Checkpoints(tmp_path).restore(shapes)
    assert position == Position(0, 1)
    assert_bits(state, state_of(1))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"skipping the damaged checkpoint {tmp_path / '00-000002'}")
    assert second == f"going on from checkpoint {tmp_path / '00-000001'}"


def test_what_a_kill_left_half_written_is_not_there(tmp_path):
    """The name that orbax gives an unfinished folder, and a neighbour's file."""
    saved(tmp_path, (0, 1))
    partial = tmp_path / "00-000002.orbax-checkpoint-tmp"
    partial.mkdir()
    (partial / "data").write_text("half of it")
    (tmp_path / "notes").write_text("not ours")
    checkpoints = Checkpoints(tmp_path, interval=0.0)
    assert checkpoints.restore(shapes)[0] == Position(0, 1)
    assert names(tmp_path) == ["00-000001", "notes"]
    for number in (2, 3):
        checkpoints.save(Position(0, number), state_of(number), force=True)
    checkpoints.wait()
    assert names(tmp_path) == ["00-000002", "00-000003", "notes"]


def test_a_process_killed_while_it_writes_leaves_what_can_be_restored(tmp_path):
    """The state is large enough that its write is not over at once."""
    script = f"""
        import os, pathlib, jax.numpy as jnp
        from fcjax.checkpoints import Checkpoints, Position
        checkpoints = Checkpoints(pathlib.Path({str(tmp_path)!r}), interval=0.0)
        for number in (1, 2):
            checkpoints.save(
                Position(0, number), jnp.full(2**22, number, jnp.float32), force=True
            )
        os._exit(9)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert run.returncode == 9
    structure = jax.ShapeDtypeStruct((2**22,), jnp.float32)
    position, state = Checkpoints(tmp_path).restore([structure].__getitem__)
    assert position.round >= 1
    np.testing.assert_array_equal(state, position.round)
    assert all("tmp" not in name for name in names(tmp_path))


def test_the_engine_waits_for_the_last_write_even_when_it_is_stopped(tmp_path):
    def stage(name):
        return Stage(
            name,
            begin=lambda key, state, federation: state,
            round=lambda key, state, federation: (state + 1, {}),
            num_rounds=2,
            done=lambda state: jnp.array(False),
        )

    def build(hyper):
        return FederatedClustering(
            init=lambda key, federation: jnp.float32(hyper),
            stages=(stage("one"), stage("two")),
            embed=lambda state, federation: state,
            assign=lambda state, federation: state,
        )

    ones = jnp.ones((2, 1, 1), int)
    federation = Federation(jnp.ones((1, 1)), ones, ones > 0, ones > 0, ones[..., 0])
    keys = jax.random.split(jax.random.key(0), 2)
    grid = Grid(jnp.array([0.0, 10.0]), keys, federation)

    def stop(round):
        if round.position == (1, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(
            build,
            grid,
            on_round=stop,
            checkpoints=Checkpoints(tmp_path, interval=0.0),
        )
    assert names(tmp_path) == ["00-000002", "01-000001"]
    state = engine.run(build, grid, checkpoints=Checkpoints(tmp_path, interval=0.0))
    np.testing.assert_array_equal(state, [4.0, 14.0])
    assert names(tmp_path) == ["01-000001", "01-000002"]
