"""The figure of synthetic examples on little data, and what it says of copies."""

from functools import partial

import numpy as np
import pytest
from matplotlib.image import imread

from experiments.papers.sda_fdc import examples as sda_fdc_examples
from fcjax import data, nn
from fcjax.methods import SDAFDC
from fcjax.methods import sda_fdc as sda_fdc_methods
from fcjax.sweep.plan import Task

SIZES = (21, 24, 30)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """75 in three classes; one of three clients never answers."""
    path = tmp_path_factory.mktemp("images") / "data.npz"
    examples = np.random.default_rng(0).integers(0, 256, (75, 8, 8, 1), np.uint8)
    np.savez(path, x=examples, y=np.repeat([0, 1, 2], SIZES))
    return Task.of(
        SDAFDC,
        dataset=str(path),
        **{"clients": (3,), "failure_rate": (0.4,), "p": (1.0,)},
        **{"gan_rounds": (2,), "gan_batch_size": (8,), "checkpoint_interval": 0.0},
    )


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Networks of images that compile in no time."""
    dcgan = partial(nn.dcgan, channels=2, hidden_size=8)
    monkeypatch.setattr(sda_fdc_methods.nn, "dcgan", dcgan)


def held_by(args):
    """What is dealt, what is held out, and whose rows are whose."""
    dealt, held_out = sda_fdc_examples.halves(data.load(args.source.dataset), seed=0)
    held = data.heterogeneous(
        dealt.labels, args.split.clients[0], args.split.p[0], seed=0
    )
    return dealt, held_out, held.clients


def nearest(a, b):
    a, b = (x.reshape(len(x), -1) / 255 for x in (a, b))
    return np.linalg.norm(a[:, None] - b[None], axis=2).min(axis=1)


def test_rows_are_measured_on_what_clients_hold_and_make(images, tmp_path, monkeypatch):
    of_clients, read = sda_fdc_examples.of_clients, []

    def listen(*args):
        read.extend(of_clients(*args))
        return read

    monkeypatch.setattr(sda_fdc_examples, "of_clients", listen)
    every, *rows = sda_fdc_examples.figure_synthetic(images, tmp_path)
    dealt, held_out, clients = held_by(images)
    (present,) = data.failures(3, 0.4, seed=0)
    answering = np.flatnonzero(present).tolist()
    assert [row["client"] for row in (every, *rows)] == ["all", *answering]
    clients = [clients[i] for i in answering]
    assert every["train"] == sum(map(len, clients))
    (found,) = read
    for client, own, row in zip(found, clients, rows, strict=True):
        np.testing.assert_array_equal(client.examples, dealt.examples[own])
        assert client.synthetic.shape == (len(own), 8, 8, 1)
        made = nearest(client.synthetic, client.examples)
        assert row["synthetic_distance"] == pytest.approx(np.median(made))
    held = np.concatenate([client.examples for client in found])
    real = nearest(held_out.examples, held)
    assert every["held_out_distance"] == pytest.approx(np.median(real))
    made = nearest(np.concatenate([client.synthetic for client in found]), held)
    # The share of pairs in which the held out example is the farther one.
    expected = (real[:, None] > made).mean() + (real[:, None] == made).mean() / 2
    assert every["copy_probability"] == pytest.approx(expected)
    for name in ("synthetic.png", "nearest.png"):
        assert min(imread(tmp_path / name).shape[:2]) > 200


def test_halves_of_every_class():
    examples = np.arange(75)[:, None] + np.zeros((1, 2), np.float32)
    dataset = data.Dataset("numbers", examples, np.repeat([0, 1, 2], SIZES))
    dealt, held_out = sda_fdc_examples.halves(dataset, seed=0)
    assert np.bincount(dealt.labels).tolist() == [11, 12, 15]
    assert np.bincount(held_out.labels).tolist() == [10, 12, 15]
    rows = [half.examples[:, 0] for half in (dealt, held_out)]
    assert sorted(np.concatenate(rows)) == list(range(75))
    for half, own in zip((dealt, held_out), rows, strict=True):
        np.testing.assert_array_equal(half.labels, dataset.labels[own.astype(int)])
