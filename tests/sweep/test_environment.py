"""What a results folder says of the machine and the code that made it."""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import jax
import numpy as np
import pytest

import fcjax
from experiments import spherical
from fcjax.methods import ExactKMeans
from fcjax.results import store
from fcjax.results.environment import method_file
from fcjax.sweep import experiment, train
from fcjax.sweep.plan import Task
from tests.data.test_sources import png, prepare
from tests.sweep import drifting
from tests.sweep.drifting import run, vectors


def test_a_start_says_what_it_ran_with_and_how_long(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_OPTIMIZATION_LEVEL", "O1")  # read when JAX was imported
    (start,) = store.starts(run(tmp_path / "out", vectors(tmp_path)))
    head = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    assert start["commit"] == subprocess.check_output(head, text=True).strip()
    assert start["jax"] == jax.__version__
    assert start["devices"] == "4 x cpu"
    assert start["processor"]
    devices = "--xla_force_host_platform_device_count=4"  # of all tests
    assert devices in start["compiler"].pop("XLA_FLAGS")
    assert start["compiler"] == {"JAX_OPTIMIZATION_LEVEL": "O1"}
    began = datetime.fromisoformat(start["began"])
    assert 0 <= start["seconds"] <= (datetime.now(UTC) - began).total_seconds() + 1


def test_examples_are_told_apart_by_shape_type_and_values():
    zeros = np.zeros((2, 3), np.uint8)
    others = [zeros.T, zeros.astype(bool), np.eye(2, 3, dtype=np.uint8)]
    assert len({store.digest(x) for x in (zeros, *others)}) == 4
    apart = np.zeros((2, 6), np.uint8)[:, ::2]  # the same ones, not side by side
    assert store.digest(apart) == store.digest(zeros)


def test_other_examples_under_the_same_name_are_refused(tmp_path):
    """Else a table would hold runs of both, and a page clusters of the others."""
    data, out = vectors(tmp_path), tmp_path / "out"
    run(out, data)
    vectors(tmp_path, seed=1)
    with pytest.raises(ValueError, match="holds results of other examples"):
        run(out, data, seed=(0, 1))
    run(out, data, resume=False)
    with np.load(data) as old:
        np.savez(data, x=old["x"], y=old["y"][::-1])
    with pytest.raises(ValueError, match="holds results of other labels"):
        run(out, data)
    (out / "environment.json").write_text("[{")
    with pytest.raises(ValueError, match=r"environment\.json is damaged"):
        run(out, data)


def test_what_ends_in_an_error_and_what_goes_on_are_starts_each(tmp_path, monkeypatch):
    data, out = vectors(tmp_path), tmp_path / "out"

    def broken(*_, **__):
        raise RuntimeError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(train, "train", broken)
        with pytest.raises(RuntimeError, match="no more"):
            run(out, data)
    run(out, data)
    run(out, data)  # there is nothing left to run
    assert [type(start["seconds"]) for start in store.starts(out)] == [int, int]
    run(out, data, resume=False)
    assert len(store.starts(out)) == 1


def test_a_killed_start_lasted_until_its_last_round(tmp_path):
    data, out = vectors(tmp_path), tmp_path / "out"
    run(out, data)
    path = out / "environment.json"
    (start,) = json.loads(path.read_text())
    killed = {**start, "began": "2026-01-01 00:00:00+00:00", "seconds": None}
    path.write_text(json.dumps([killed]))
    last = datetime(2026, 1, 1, 0, 2, tzinfo=UTC).timestamp()
    os.utime(out / "history.csv", (last, last))
    run(out, data, seed=(0, 1))
    assert store.starts(out)[0]["seconds"] == 120


def test_the_directory_of_a_prepared_data_set_is_remembered(tmp_path):
    """`fcjax.open(...).embedding()` finds the data where the run found it."""
    images = [(png(np.full((4, 4), k, np.uint8)), k % 2) for k in range(16)]
    sets, out = tmp_path / "sets", tmp_path / "out"
    prepare(sets, {"train": images})
    flags = {"dataset": "tiny", "clients": (2,), "p": (0.0,), "plot": False}
    task = Task.of(spherical.Spherical, **flags, data_dir=sets, out=out)
    train.execute(experiment.prepare(task))
    (start,) = store.starts(out)
    assert start["data_dir"] == str(sets.resolve())
    assert fcjax.open(out)[0].embedding_.shape == (16, 16)
    sets.rename(tmp_path / "moved")
    with pytest.raises(ValueError, match="tiny"):
        _ = fcjax.open(out)[0].embedding_
    assert fcjax.open(out, data_dir=tmp_path / "moved")[0].embedding_.shape == (16, 16)


def test_a_changed_file_of_a_method_is_reported(tmp_path, monkeypatch, capsys):
    """Finished runs are reused, but the user learns that they are of other code."""
    file, data, out = tmp_path / "mine.py", vectors(tmp_path), tmp_path / "out"

    def printed(text, **flags):
        file.write_text(text)
        spec = importlib.util.spec_from_file_location("mine", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "mine", module)
        spec.loader.exec_module(module)
        flags = {"dataset": str(data), "clients": 3, "plot": False, **flags}
        task = Task.of(module.Drifting, **flags, out=out)
        train.execute(experiment.prepare(task))
        return capsys.readouterr().out

    old = Path(drifting.__file__).read_text()
    new = old + "# An edit.\n"
    warning = "warning: the file of the method has changed since the runs in"
    printed(old)
    (start,) = store.starts(out)
    expected = hashlib.blake2b(old.encode(), digest_size=8).hexdigest()
    assert start["method_file"] == expected
    again = printed(old)
    assert "reusing 1 finished run" in again
    assert warning not in again
    assert warning in printed(new)
    assert warning not in printed(new, resume=False)
    assert warning not in printed(new)
    # The commit covers the methods of fcjax.
    assert method_file(ExactKMeans) == {}
