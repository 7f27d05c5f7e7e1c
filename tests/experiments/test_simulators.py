"""CCFC's pre-training in simulators: every side is plain weighted averaging."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from experiments.benchmarks import simulators
from experiments.benchmarks.simulators import Args, check, measure, table
from experiments.benchmarks.speed import pretraining
from experiments.benchmarks.speed.pretraining import Problem
from fcjax import nn
from fcjax.data.augment import ccfc_grey

SIZES = (6, 26)


def small_problem():
    """Two clients with one batch each, so that the order of the examples is free, and
    without random views."""
    images = np.random.default_rng(0).integers(0, 256, (32, 8, 8, 1), np.uint8)
    images[: SIZES[0]] //= 8  # The clients disagree.
    variables = nn.simsiam(nn.conv_encoder()).init(
        jax.random.key(0), jnp.zeros((1, 8, 8, 1))
    )
    clients = tuple(np.split(np.arange(32), [SIZES[0]]))
    return Problem(images, clients, jax.device_get(variables), is_augmented=False)


def averaged_by_hand(problem, shares):
    """The mean losses of two rounds in plain PyTorch."""
    from experiments.benchmarks.speed.pretraining_torch import Trainer

    trainer, losses = Trainer(problem), []
    weights = {k: x.clone() for k, x in trainer.model.state_dict().items()}
    for _ in range(2):
        of_clients, total = [], {k: 0 for k in weights}
        for client, share in enumerate(shares):
            trainer.model.load_state_dict(weights)
            of_clients.append(trainer.train(client))
            for name, x in trainer.model.state_dict().items():
                total[name] = total[name] + share * x
        weights = total
        losses.append(np.mean(of_clients))
    return losses


@pytest.mark.nightly
@pytest.mark.parametrize("side", ["fcjax", "flower", "pfl"])
def test_every_side_averages_by_size(side, tmp_path):
    for name in ("torch", *simulators.NEEDS[side].split(", ")):
        pytest.importorskip(name, reason="the simulators are not installed by fcjax")
    problem = small_problem()
    by_hand = averaged_by_hand(problem, np.array(SIZES) / 32)
    rows = measure(side, problem, Args(tmp_path / "out.csv", rounds=1, limit=300))
    # The second loss is of the averaged network, before an optimizer's second step.
    assert rows["loss"].to_numpy() == pytest.approx(by_hand, abs=1e-4)
    assert abs(averaged_by_hand(problem, (0.5, 0.5))[1] - by_hand[1]) > 1e-3
    assert rows["peak_gib"][0] > 0.1


@pytest.mark.nightly
def test_views_in_torch_have_the_distribution_of_views_in_jax():
    torch = pytest.importorskip("torch")
    from experiments.benchmarks.speed.pretraining_torch import random_view

    torch.manual_seed(0)
    image = np.zeros((28, 28), np.float32)
    image[10:18, 8:14] = 1
    in_torch = random_view(torch.from_numpy(image).expand(3000, 1, -1, -1))[:, 0]
    keys = jax.random.split(jax.random.key(0), 3000)
    view = jax.jit(jax.vmap(ccfc_grey, in_axes=(0, None)))
    in_jax = view(keys, jnp.asarray(image)[..., None])[..., 0]
    assert len(np.unique(in_torch, axis=0)) == 3000
    for statistic in (
        lambda x: x.mean(axis=0),  # size, position and angle
        lambda x: x.sum(axis=(1, 2)).mean() / 20,  # sizes of crops
        lambda x: x.sum(axis=(1, 2)).std() / 5,
        lambda x: (abs(np.diff(x)).max(axis=(1, 2)) < 0.45).mean() * 2,  # blurs
    ):
        a, b = (statistic(np.asarray(x)) for x in (in_torch, in_jax))
        assert a == pytest.approx(b, abs=0.1)


def test_the_table_leaves_out_first_rounds():
    rows = pd.DataFrame(
        [[10, "pfl", n, s, 2 * s, 1.5, ""] for n, s in ((1, 9.0), (2, 1.0), (3, 3.0))]
        + [[10, "flower", 1, 50.0, np.nan, 2.0, "stopped after 60 s"]],
        columns=[
            "clients",
            "side",
            "round",
            "seconds",
            "cpu_seconds",
            "peak_gib",
            "note",
        ],
    )
    pfl, flower = (list(line.values())[2:] for line in table(rows))
    assert pfl == ["9.0", "2.00", "1.00 to 3.00", "4.00", "1.50"]
    assert flower == ["50.0", "none", "stopped after 60 s", "none", "2.00"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"rounds": 0}, "--rounds must be at least 1, got 0"),
        ({"clients": ()}, "--clients takes numbers from 1 on"),
        ({"flower_python": sys.executable}, "cannot import nothing"),
    ],
)
def test_wrong_flags_are_one_line(flags, message, tmp_path, monkeypatch):
    monkeypatch.setitem(simulators.NEEDS, "flower", "nothing")
    with pytest.raises(ValueError, match=message) as error:
        check(Args(tmp_path / "out.csv", sides=("flower",), **flags))
    assert "\n" not in str(error.value)


def test_a_side_without_a_problem_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["side.py", "gone", "out.csv", "1"])
    with pytest.raises(SystemExit) as error:
        pretraining.main(lambda *_: None, "")
    assert error.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "side.py: error: gone is not a file; simulators.py writes it"
