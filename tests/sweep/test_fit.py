"""How many runs fit, by what their programs take."""

import json

import jax
import pytest

from fcjax.sweep import costs, fit
from fcjax.sweep.costs import Chip
from tests.sweep.drifting import LEARN_ROUNDS, USE_ROUNDS, describe, prepare, vectors


def counted(size):
    tried = []

    def bytes_of(count):
        tried.append(count)
        return size(count)

    return bytes_of, tried


@pytest.mark.parametrize(
    ("size", "first", "expected", "tries"),
    [
        # 60 bytes for any number of runs and 10 for each: 150 hold 9.
        (lambda n: 60 + 10 * n, 1, 9, [1, 2, 9]),
        (lambda n: 60 + 10 * n, 40, 9, [40, 13, 9]),
        # Above 5 the compiler says no more than no.
        (lambda n: 10 * n if n < 6 else None, 1, 5, [1, 15, 8, 4, 6, 5]),
        (lambda n: 200 + n, 1, 0, [1]),
        (lambda n: None, 1, 0, [1]),
        (lambda n: n, 1, 100, [1, 100]),
        # Of one that fits it is not known how much of it is for any number.
        (lambda n: 100 + 5 * n, 7, 10, [7, 8, 10]),
    ],
)
def test_as_many_as_fit_are_found_by_few_compilations(size, first, expected, tries):
    bytes_of, tried = counted(size)
    assert fit.largest(bytes_of, limit=150.0, most=100, first=first) == expected
    assert tried == tries


def test_a_grid_goes_side_by_side_as_its_programs_fit(tmp_path, monkeypatch):
    """On devices that say what memory they have, which those of a test do not."""
    path, num_devices = vectors(tmp_path), len(jax.local_devices())
    seeds = tuple(range(6 * num_devices))
    experiment = prepare(tmp_path / "out", path, seed=seeds)
    (batch,) = experiment.batches

    def most_bytes(count):
        part = batch.take(range(count * num_devices))
        each = fit.compile_for(jax.local_devices(), part, experiment)
        return max(fitted.num_bytes for fitted in each)

    def width(memory, **flags):
        monkeypatch.setattr(fit, "device_memory", lambda: memory)
        found = prepare(tmp_path / "out", path, seed=seeds, **flags)
        return fit.widened(found).batches[0].side_by_side

    # Arguments, results and temporaries, by XLA's own count of the largest program.
    part = batch.take(range(num_devices))
    for fitted in fit.compile_for(jax.local_devices(), part, experiment):
        memory = fitted.memory
        assert fitted.num_bytes >= memory.argument_size_in_bytes
        if not memory.alias_size_in_bytes:
            known = memory.argument_size_in_bytes + memory.output_size_in_bytes
            assert fitted.num_bytes >= known
    for count in (2, 3):
        assert width(int(most_bytes(count) / fit.SHARE) + 1) == count * num_devices
    assert width(int(most_bytes(3) / fit.SHARE) - 1) == 2 * num_devices
    assert width(10**9) == len(seeds)
    assert width(None) == width(10**9, runs_per_call=num_devices) == num_devices


def test_what_a_grid_takes_is_printed_and_written(tmp_path, capsys):
    """For the devices here, of which nothing is known but their programs."""
    experiment = prepare(tmp_path / "out", vectors(tmp_path), seed=(0, 1, 2))
    (batch,) = experiment.batches
    chip = Chip(costs.of_gpu(100.0, 200.0, 400.0), bandwidth=1e9, memory=10**9)
    devices = jax.local_devices()[:1]
    told = fit.fit_batch("h100:1", devices, chip, batch, experiment)
    assert (told["runs"], told["runs_a_device"], told["calls"]) == (3, 3, 1)
    assert list(told["programs"]) == [1, 3]
    names = ["init", "learn begin", "learn", "use begin", "use", "assign", "embed"]
    rows = {row["program"]: row for row in told["programs"][3]}
    assert list(rows) == names
    times = (rows["learn"]["times"], rows["use"]["times"])
    assert times == (LEARN_ROUNDS, USE_ROUNDS)
    json.dumps(told)
    # The products of all rows with the centres, two operations a feature.
    slots = batch.num_clients * batch.num_slots
    operations = 2 * slots * batch.num_clusters * experiment.pool.shape[1]
    # A CPU takes run after run.
    assert rows["assign"]["operations"] == 3 * operations
    assert rows["assign"]["operations_by_precision"] == {"highest": 3 * operations}
    assert rows["assign"]["least_seconds"] == 3 * operations / 100
    least = sum(row["times"] * row["least_seconds"] for row in rows.values())
    assert told["least_seconds"] == pytest.approx(least)
    printed = capsys.readouterr().out
    assert "1 run side by side; each device:" in printed
    assert "3 a device, as many as there are" in printed


def test_what_is_too_large_is_said_with_how_many_devices_would_do(
    tmp_path, monkeypatch, capsys
):
    """A run of 20 clients: 5 on each of four devices, 3 on each of eight."""
    pytest.importorskip("libtpu")

    def wide(*args):
        return describe(*args, width=2**16)

    experiment = prepare(
        tmp_path / "out", vectors(tmp_path), clients=(20,), p=(0.0,), describe=wide
    )
    (batch,) = experiment.batches

    def most_bytes(topology):
        devices, _ = costs.described(topology)
        each = fit.compile_for(devices, batch, experiment)
        return max(fitted.num_bytes for fitted in each)

    fewer, more = most_bytes("v5e:2x4"), most_bytes("v5e:2x2")
    chip = Chip(costs.of_tpu(1.0), 1.0, memory=int((fewer + more) / 2 / fit.SHARE))
    monkeypatch.setitem(costs.TPUS, "v5e", chip)
    devices, _ = costs.described("v5e:2x2")
    told = fit.fit_batch("v5e:2x2", devices, chip, batch, experiment)
    assert told["runs_a_device"] == 0
    assert told["enough"] == "v5e:2x4, 8 devices,"
    printed = capsys.readouterr().out
    assert "one run alone is too large here; v5e:2x4, 8 devices, would do" in printed


def test_clients_that_are_spread_count_for_their_own_device(tmp_path):
    """Ten clients on four devices: each device has three, and some are repeated."""
    experiment = prepare(
        tmp_path / "out", vectors(tmp_path), clients=(10,), p=(0.0,), seed=(0,)
    )
    (batch,) = experiment.batches

    def operations(num_devices):
        devices = jax.local_devices()[:num_devices]
        (found,) = fit.compile_for(devices, batch, experiment, only="assign")
        return found.operations.counts.total()

    assert operations(4) * 10 == operations(1) * 3 > 0
