import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path

import benchmark
import chex
import jax
import numpy as np
import pytest
from speed import ccfc, server
from speed.case import Sizes, check_parity, flops

SCRIPT = Path(__file__).parents[2] / "experiments" / "benchmark.py"
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
    command = [
        sys.executable,
        str(SCRIPT),
        "ccfc",
        "--parts",
        "local",
        "--clients",
        "1",
    ]
    command += ["--examples", "6", "--batch-size", "4", "--repeats", "1"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    *_, header, _, row = result.stdout.splitlines()
    assert header.count("|") == row.count("|") == 10
    assert row.startswith("| ccfc conv | 1 clients x 6 images of 28x28, batch 4 |")


def test_server_steps_average():
    """Clients that hold copies of one network have it for their mean; models of their
    own are averaged by community."""
    sizes = Sizes(clients=12, examples=4, batch_size=4)
    for method in ("ccfc", "fedmcc", "fdsc"):
        (step,) = server.steps(method, sizes)
        networks, found = step.uploads, step.run(step.uploads)
        if method == "ccfc":
            networks, found = networks[0], found[0]
        chex.assert_trees_all_close(
            found, jax.tree.map(lambda x: x[0], networks), rtol=1e-5
        )
    (step,) = server.steps("fedcref", sizes)
    count = 12 * 4
    means, models = (
        jax.tree.leaves(x)[0] for x in (step.run(step.uploads), step.uploads)
    )
    expected = np.mean(np.asarray(models)[3:count:10], axis=0)
    np.testing.assert_allclose(means[3], expected, atol=1e-6)
    assert server.steps("sda-fdc", sizes) == []
