import importlib.util
import subprocess
import sys
from pathlib import Path

import benchmark
import numpy as np
import pytest

SMALL = (2, 1, 24, 16, 16, 3)
SCRIPT = Path(__file__).parents[1] / "experiments" / "benchmark.py"


@pytest.mark.parametrize(
    ("backbone", "shape"), [("conv", (2, 2, 16, 28, 28, 1)), ("resnet18", SMALL)]
)
def test_torch_does_the_same_work(backbone, shape):
    pytest.importorskip("torch", reason="PyTorch comes with the bench extra alone")
    views = np.random.default_rng(0).random(shape, np.float32)
    losses = np.array(benchmark.check_parity(views, backbone=backbone, steps=2))
    assert abs(losses[1, 0] - losses[0, 0]) > 1e-3  # the optimiser took a step


def test_flops_by_hand():
    convolutions = 2 * 16 * (64 * 14**2 + 64 * 128 * 7**2 + 128 * 256 * 3**2)
    dense = 2 * (2304 * 256 + 256 * 256 + 256 * 16 + 16 * 256)
    assert benchmark.forward_flops("conv") == convolutions + dense


def test_flops_of_resnet18_are_the_published_ones():
    """0.56 G multiply-adds at 32 pixels with the small stem."""
    assert benchmark.forward_flops("resnet18") / 2 == pytest.approx(0.556e9, rel=0.01)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--against", "torch"], "needs PyTorch: pip install -e"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, flags, message):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    args = benchmark.tyro.cli(benchmark.Args, args=["ccfc", *flags])
    with pytest.raises(ValueError, match=message) as error:
        benchmark.benchmark(args)
    assert "\n" not in str(error.value)


def test_script_prints_a_table():
    command = [sys.executable, str(SCRIPT), "ccfc", "--clients", "1"]
    command += ["--examples", "6", "--batch-size", "4", "--repeats", "1"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "jax training" in result.stdout
    assert "torch" not in result.stdout
