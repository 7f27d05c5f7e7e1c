"""How many runs fit, by what their programs take."""

import json
import math
from functools import cache

import jax
import pytest

from fcjax.federated import clients
from fcjax.parallel import mesh
from fcjax.sweep import costs, fit
from fcjax.sweep.costs import Chip
from tests.sweep.drifting import LEARN_ROUNDS, USE_ROUNDS, prepare, vectors


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (lambda n: 60 + 10 * n, 9),  # bytes for any number of runs and 10 for each
        (lambda n: 10 * n if n < 6 else math.inf, 3),  # 15, 7 and 3 are compiled
        (lambda n: 200 + n, 0),
        (lambda n: math.inf, 0),
        (lambda n: n, 100),
        (lambda n: 100 + 5 * n, 10),
        (lambda n: 140 if n == 1 else 200, 1),
    ],
)
def test_as_many_as_fit_are_found_by_few_compilations(size, expected):
    tried = []

    def bytes_of(count):
        tried.append(count)
        return size(count)

    assert fit.largest_that_fits(cache(bytes_of), limit=150.0, most=100) == expected
    assert len(tried) <= 4


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
        return fit.with_measured_width(found).batches[0].runs_per_call

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


def test_what_a_grid_takes_is_printed_and_written(tmp_path, monkeypatch, capsys):
    """Traced as for a GPU, where clients and runs go side by side."""
    for module in (mesh, clients):
        monkeypatch.setattr(module, "platform", lambda: "gpu")
    experiment = prepare(tmp_path / "out", vectors(tmp_path), seed=(0, 1, 2))
    (batch,) = experiment.batches
    chip = Chip(costs.of_gpu(100.0, 200.0, 400.0), bandwidth=1e9, memory=10**9)
    result = fit.fit_batch(jax.local_devices()[:1], chip, batch, experiment)
    assert (result["runs"], result["runs_a_device"], result["calls"]) == (3, 3, 1)
    assert list(result["programs"]) == [1, 3]
    names = ["init", "learn begin", "learn", "use begin", "use", "assign", "embed"]
    rows = {row["program"]: row for row in result["programs"][3]}
    assert list(rows) == names
    times = (rows["learn"]["times"], rows["use"]["times"])
    assert times == (LEARN_ROUNDS, USE_ROUNDS)
    json.dumps(result)
    # The products of all rows with the centres, two operations a feature.
    slots = batch.num_clients * batch.padded_size
    operations = 3 * 2 * slots * batch.num_clusters * experiment.pool.shape[1]
    assert rows["assign"]["operations"] == operations
    assert rows["assign"]["operations_by_precision"] == {"highest": operations}
    assert rows["assign"]["least_seconds"] == operations / 100
    least = sum(row["times"] * row["least_seconds"] for row in rows.values())
    assert result["least_seconds"] == pytest.approx(least)
    assert "3 runs per device" in capsys.readouterr().out
    # The same grid on a device that holds not even one run.
    result = fit.fit_batch(
        jax.local_devices()[:1], chip._replace(memory=100), batch, experiment
    )
    assert result["runs_a_device"] == 0
    assert "one run does not fit" in capsys.readouterr().out


def test_clients_that_are_spread_count_for_their_own_device(tmp_path, monkeypatch):
    """Ten clients on four devices: each device has three, and some are repeated."""
    for module in (mesh, clients):
        monkeypatch.setattr(module, "platform", lambda: "gpu")
    experiment = prepare(
        tmp_path / "out", vectors(tmp_path), clients=(10,), p=(0.0,), seed=(0,)
    )
    (batch,) = experiment.batches

    def operations(num_devices):
        devices = jax.local_devices()[:num_devices]
        (found,) = fit.compile_for(devices, batch, experiment, only="assign")
        return found.counts.operations.total()

    assert operations(4) * 10 == operations(1) * 3 > 0
    # A round sends one sum.
    (round,) = fit.compile_for(jax.local_devices(), batch, experiment, only="learn")
    assert round.collectives == {"all-reduce": 1}


def test_kernels_and_bytes_are_counted_in_the_largest_loop_body():
    """Two loop bodies: one kernel; a fusion, a library call and a copy.

    Each of the three reads four numbers of 4 bytes and writes four.
    """
    text = """
%small (a: f32[4]) -> f32[4] {
  %a = f32[4] parameter(0)
  ROOT %b = f32[4]{0} fusion(%a), kind=kLoop, calls=%f
}

%large.1 (t: (s32[], f32[4])) -> (s32[], f32[4]) {
  %t = (s32[], f32[4]{0}) parameter(0)
  %g = f32[4]{0} get-tuple-element(%t), index=1
  %c = (f32[4]{0}, s8[64]{0}) custom-call(%g), custom_call_target="gemm"
  %h = f32[4]{0} get-tuple-element(%c), index=0
  %d = f32[4]{0} fusion(%h), kind=kInput, calls=%f, metadata={op_name="w(b)"}
  %e = f32[4]{0} copy(%d)
  ROOT %r = (s32[], f32[4]{0}) tuple(%i, %e)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4] parameter(0)
  %y = f32[4] fusion(%x), kind=kLoop, calls=%f
  %w = f32[4] while(%y), condition=%cond, body=%small
  ROOT %v = (s32[], f32[4]{0}) while(%w), condition=%cond.1, body=%large.1
}
"""
    kernels = {"custom-call": 1, "fusion": 1, "copy": 1}
    assert fit.largest_body(text) == (kernels, 3 * 2 * 4 * 4)
    assert fit.largest_body(text.partition("ENTRY")[0]) == ({}, 0)
