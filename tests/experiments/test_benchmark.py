"""The benchmarks: both sides do the same work, what they print, one line of error."""

import dataclasses
import importlib.util
import subprocess
import sys

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

from experiments.benchmarks import benchmark, device_day, precision
from experiments.benchmarks import benchmark_clustering as clustering
from experiments.benchmarks import benchmark_growth as growth
from experiments.benchmarks import benchmark_memory as memory
from tests.experiments.blobs import rows

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    ("module", "flags", "message"),
    [
        (benchmark, ["ccfc", "--repeats=0"], "--repeats must be at least 1, got 0"),
        (benchmark, ["ccfc", "--against=torch"], "needs PyTorch: pip install -e"),
        (clustering, ["--repeats=0"], "--repeats must be at least 1, got 0"),
        (clustering, ["--methods=fcm"], "needs scikit-fuzzy: pip install -e"),
        (growth, [], "STUDIES is missing"),
        (growth, ["runs", "--rounds=0"], "--rounds must be at least 1, got 0"),
        (growth, ["runs", "--values=0"], "--values must be at least 1, got 0"),
        (memory, ["--batch", "8", "0"], r"--batch must be at least 1, got \(8, 0\)"),
        (memory, ["--microbatch=0"], "--microbatch must be at least 1, got 0"),
        (memory, ["--repeats=-1"], "--repeats must be at least 0, got -1"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, module, flags, message):
    main = benchmark.benchmark if module is benchmark else module.main
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=message) as error:
        main(module.tyro.cli(module.Args, args=flags))
    assert "\n" not in str(error.value)


# --- accelerators


def test_a_second_start_keeps_the_rows_of_the_finished_parts(tmp_path, capsys):
    args = device_day.Args(
        out=tmp_path / "day.md", parts=("ccfc-pretrain",), dry_run=True, minutes=3
    )
    device_day.device_day(args)
    first = args.out.read_text().splitlines()
    assert [line for line in first if line.startswith("| ccfc pretrain | ")]
    rows = [line for line in first if line.startswith("| ccfc")]
    assert all(line.count("|") == first[8].count("|") for line in rows)
    device_day.device_day(dataclasses.replace(args, minutes=0.5))  # too short to train
    second = args.out.read_text().splitlines()
    assert [line for line in second if line.startswith("| ccfc")] == rows
    kept = args.out.with_suffix(".json")
    kept.write_text(kept.read_text().replace('"commit": "', '"commit": "other'))
    with pytest.raises(ValueError, match="has commit other"):
        device_day.device_day(args)


def test_operands_are_rounded_to_tf32_except_at_highest_precision():
    """In a process of its own, as the rounding stays. 1 + 2^-11 rounds to 1."""
    program = """
import jax.numpy as jnp
from jax import lax
from experiments.benchmarks.precision import round_operands
round_operands(lax.dot_general_p, 10)
x = jnp.array([1 + 2**-11, 1 + 2**-10])
print(*jnp.matmul(x, jnp.eye(2)).tolist())
print(*jnp.matmul(x, jnp.eye(2), precision="highest").tolist())
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    rounded, exact = (
        [float(x) for x in line.split()] for line in result.stdout.splitlines()
    )
    assert rounded == [1, 1 + 2**-10]
    assert exact == [1 + 2**-11, 1 + 2**-10]


def test_precision_names_its_methods(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["precision.py", "10", "cfcc"])
    with pytest.raises(SystemExit):
        precision.main()
    assert "unknown method 'cfcc'" in capsys.readouterr().err


# --- rounds


# --- clustering


@pytest.mark.parametrize(
    ("method", "tolerance"),
    [(clustering.km, 1e-5), (clustering.fcm, 1e-5), (clustering.k_fed, 0.05)],
)
def test_both_sides_do_the_same_work(method, tolerance):
    x = load_digits().data.astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    ours, theirs = method(x, clustering.Args(iterations=5))
    np.testing.assert_allclose(ours(), theirs(), rtol=tolerance)


def test_a_run_prints_a_line_a_method(capsys):
    clustering.main(clustering.Args(iterations=2, repeats=1))
    out = capsys.readouterr().out
    *lines, last = out.splitlines()
    names = [line.split(":")[0] for line in lines]
    assert names == ["digits", "km", "fcm", "k-fed"]
    assert last.startswith("peak memory ")
    assert out.count(", ratio ") == 3
    clustering.main(clustering.Args(methods=("km",), side="theirs", repeats=1))
    assert ", ratio " not in capsys.readouterr().out


# --- growth


def test_slopes_by_hand():
    """Seconds grow with the square of the size, memory not at all."""
    sizes = [10, 100, 1000]
    table = pd.DataFrame(
        {"examples": sizes, "seconds": [0.5, 50, 5000], "peak GiB": [2.0, 2.0, 2.0]}
    )
    seconds, peak = growth.summary("examples", table)
    assert (seconds["slope"], seconds["ideal"]) == (2, 1)
    assert (seconds["from"], seconds["to"]) == ("0.5 at 10", "5e+03 at 1,000")
    assert peak["slope"] == 0
    above, below = growth.figure({"examples": table}).axes
    ideal = {line.get_label(): list(line.get_ydata()) for line in above.lines}
    assert ideal["ideal, slope 1"] == [0.5, 5, 50]
    assert "measured, slope 2.00" in ideal
    assert below.get_xscale() == below.get_yscale() == "log"


def test_sizes_of_two_commands_are_one_table(tmp_path, capsys):
    for size in (400, 200):
        args = growth.Args(("examples",), values=(size,), rounds=2, out=tmp_path)
        growth.main(args)
    assert "open next: " in capsys.readouterr().out
    assert (tmp_path / "growth.png").stat().st_size > 10_000
    small, large = rows(tmp_path / "examples.csv")
    assert (small["examples"], large["examples"]) == ("200", "400")
    for row in (small, large):
        assert 0 < float(row["min"]) <= float(row["seconds"]) <= float(row["max"])
        assert 0.1 < float(row["peak GiB"]) < 20


# --- memory


def test_one_part_is_the_whole(key):
    """Both kinds do the same work."""
    views = [jax.random.uniform(k, (4, 28, 28, 1)) for k in jax.random.split(key)]
    online = jax.jit(memory.initialize_of("conv"))(key, views[0][:1])
    target = online["params"]
    results = [
        memory.compile_step("conv", 4, size)(online, target, tuple(views))
        for size in (None, 4)
    ]
    jax.tree.map(np.testing.assert_array_equal, *results)
    gradient, _ = results[0]
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient)) > 1e-3
