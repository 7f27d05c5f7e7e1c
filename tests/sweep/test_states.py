"""States on a real disk, through orbax."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from fcjax import engine
from fcjax.engine import Position
from fcjax.sweep.checkpoints import Checkpoints
from tests.sweep import drifting


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


def after(position, state, *, is_last=False):
    """A round, of which nothing else is saved."""
    return engine.Round(None, Position(*position), {}, state, is_last)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def saved(folder, *positions):
    """The checkpoints of some positions, each of a state that its round tells."""
    checkpoints = Checkpoints(folder, interval=0.0)
    for position in positions:
        checkpoints.save(after(position, state_of(position[1])))
    checkpoints.wait()
    return checkpoints


def test_nothing_to_go_on_from_is_the_beginning_and_silent(tmp_path, capsys):
    assert Checkpoints(tmp_path / "none").restore(shapes) is None
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("interval", "expected"),
    [(0.0, ["00-000010", "01-000001"]), (1000.0, ["00-000009"])],
)
def test_the_newest_two_stay_of_those_that_are_due_or_forced(
    tmp_path, interval, expected
):
    checkpoints = Checkpoints(tmp_path, interval=interval)
    for position in ((0, 8), (0, 9), (0, 10), (1, 1)):
        checkpoints.save(after(position, state_of(1), is_last=position == (0, 9)))
    checkpoints.wait()
    assert names(tmp_path) == expected


def test_the_bits_come_back_of_the_state_at_the_time_of_the_call(tmp_path):
    """The next round takes its memory before the write has begun."""
    checkpoints = Checkpoints(tmp_path, interval=0.0)
    overwrite = jax.jit(lambda x: jax.tree.map(jnp.add, x, x), donate_argnums=0)
    state = jax.block_until_ready(jax.tree.map(jnp.array, state_of(5)))
    checkpoints.save(after((2, 7), state))
    jax.block_until_ready(overwrite(state))
    assert state["weights"].is_deleted()
    checkpoints.wait()
    position, found = Checkpoints(tmp_path).restore(shapes)
    assert position == Position(2, 7)
    assert_bits(found, state_of(5))


def test_an_error_of_the_background_write_surfaces(tmp_path, monkeypatch):
    class Full:
        def result(self):
            raise OSError("no space left")

    monkeypatch.setattr(ocp, "save_async", lambda *_, **__: Full())
    checkpoints = Checkpoints(tmp_path, interval=0.0)
    checkpoints.save(after((0, 1), state_of(1)))
    with pytest.raises(OSError, match="no space left"):
        checkpoints.save(after((0, 2), state_of(2)))
    checkpoints.wait()  # told once


@pytest.mark.parametrize(
    ("size", "files"),
    # Large arrays lie in files of their own, for which orbax raises a bare Exception.
    [(6, "**/*"), (100_000, "state/ocdbt.process_*/d/*")],
)
def test_a_truncated_checkpoint_falls_back_to_the_one_before(
    tmp_path, capsys, size, files
):
    checkpoints = Checkpoints(tmp_path, interval=0.0)
    for number in (1, 2):
        checkpoints.save(after((0, number), number * jnp.arange(float(size))))
    checkpoints.wait()
    for path in (tmp_path / "00-000002").glob(files):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    structure = jax.ShapeDtypeStruct((size,), jnp.float32)
    position, state = Checkpoints(tmp_path).restore([structure].__getitem__)
    assert position == Position(0, 1)
    assert_bits(state, jnp.arange(float(size)))
    told = f"warning: skipping the damaged checkpoint {tmp_path / '00-000002'}"
    assert capsys.readouterr().out.startswith(told)


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
        checkpoints.save(after((0, number), state_of(number)))
    checkpoints.wait()
    assert names(tmp_path) == ["00-000002", "00-000003", "notes"]


def test_a_process_killed_while_it_writes_leaves_what_can_be_restored(tmp_path):
    """The state is large enough that its write is not over at once."""
    script = """if True:
        import os, pathlib, sys, jax.numpy as jnp
        from fcjax.engine import Position, Round
        from fcjax.sweep.checkpoints import Checkpoints
        checkpoints = Checkpoints(pathlib.Path(sys.argv[1]), interval=0.0)
        for number in (1, 2):
            state = jnp.full(2**22, number, jnp.float32)
            checkpoints.save(Round(None, Position(0, number), {}, state, True))
        os._exit(9)
    """
    run = subprocess.run(
        [sys.executable, "-c", script, tmp_path], cwd=Path(__file__).parents[1]
    )
    assert run.returncode == 9
    structure = jax.ShapeDtypeStruct((2**22,), jnp.float32)
    position, state = Checkpoints(tmp_path).restore([structure].__getitem__)
    assert position.round >= 1
    np.testing.assert_array_equal(state, position.round)
    assert all("tmp" not in name for name in names(tmp_path))


def test_the_last_write_is_waited_for_even_when_the_engine_is_stopped(tmp_path):
    folder, data = tmp_path / "checkpoints", drifting.vectors(tmp_path)
    prepared = drifting.prepare(tmp_path / "out", data, learn_rounds=(2,))
    (batch,) = prepared.batches

    def run(stop=None):
        def on_round(round):
            if round.position == stop:
                raise KeyboardInterrupt
            states.save(round)

        with Checkpoints(folder, interval=0.0) as states:
            grid = batch.grid(prepared.pool)
            engine.run(batch.build, grid, start=states.restore, on_round=on_round)

    with pytest.raises(KeyboardInterrupt):
        run(stop=(1, 2))
    assert names(folder) == ["00-000002", "01-000001"]
    run()
    assert names(folder) == ["01-000003", "01-000004"]
