import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path

import benchmark
import numpy as np
import pytest
from speed import ccfc
from speed.case import Sizes, check_parity, flops

SCRIPT = Path(__file__).parents[1] / "experiments" / "benchmark.py"
VIEWS = 2 * 3 + 2
"""Forward passes' worth of a step: forward and backward of two views, three each, and
two forward of the anchor."""


@pytest.mark.parametrize("backbone", ["conv", "resnet18"])
def test_torch_does_the_same_work(backbone):
    pytest.importorskip("torch", reason="PyTorch comes with the bench extra alone")
    (case,) = ccfc.cases(Sizes(2, 16, 16), backbone)
    losses = np.array(check_parity(case))
    assert abs(losses[1, 0] - losses[0, 0]) > 1e-3  # the optimiser took a step


def test_flops_by_hand():
    convolutions = 2 * 16 * (64 * 14**2 + 64 * 128 * 7**2 + 128 * 256 * 3**2)
    dense = [(2304, 256), (256, 256), (256, 16), (16, 256)]
    forward = convolutions + sum(2 * a * b for a, b in dense)
    (case,) = ccfc.cases(Sizes(clients=2, examples=24, batch_size=8))
    assert flops(case) == pytest.approx(2 * 24 * VIEWS * forward, rel=0.01)


def test_flops_of_resnet18_are_the_published_ones():
    """0.56 G multiply-adds at 32 pixels with the small stem; the heads are added."""
    (case,) = ccfc.cases(Sizes(clients=1, examples=8, batch_size=8), "resnet18")
    heads = [(512, 256), (256, 256), (256, 16), (16, 256)]
    forward = 2 * 0.556e9 + sum(2 * a * b for a, b in heads)
    assert flops(case) == pytest.approx(8 * VIEWS * forward, rel=0.01)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--against", "torch"], "needs PyTorch: pip install -e"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, flags, message):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    args = benchmark.tyro.cli(benchmark.Args, args=["ccfc", *flags])
    with pytest.raises(ValueError, match=message) as error:
        benchmark.benchmark(args)
    assert "\n" not in str(error.value)


def test_all_are_the_parts_of_every_method():
    args = benchmark.Args("all", clients=2, examples=8, batch_size=8)
    cases = benchmark.cases_of(args)
    groups = itertools.groupby(cases, key=lambda case: case.name.split()[0])
    names = [name for name, _ in groups]
    assert names == ["ccfc", "fedmcc", "sda-fdc", "fdsc", "fedcref"]


def test_script_prints_a_table():
    command = [sys.executable, str(SCRIPT), "ccfc", "--clients", "1"]
    command += ["--examples", "6", "--batch-size", "4", "--repeats", "1"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    *_, header, _, row = result.stdout.splitlines()
    assert header.count("|") == row.count("|") == 10
    assert row.startswith("| ccfc conv | 1 clients x 6 images of 28x28, batch 4 |")
