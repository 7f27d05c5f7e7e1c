"""The figure of synthetic examples on little data, and what it says of copies."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
import reproduce
import sda_fdc
import sda_fdc_examples
import sda_fdc_methods
import trained
import tyro
from matplotlib.image import imread
from papers import sda_fdc_copies
from scipy.stats import mannwhitneyu
from sklearn.neighbors import NearestNeighbors

from fcjax import data, models
from fcjax.grid import experiment
from fcjax.models.gan import Gan
from fcjax.types import Network

TINY = [
    "--clients=2",
    "--gan-rounds=2",
    "--gan-batch-size=8",
    "--p=1",
    "--checkpoint-interval=0",
]
SIZES = (21, 24, 30)


def save(folder, examples):
    file = folder / "data.npz"
    np.savez(file, x=examples, y=np.repeat([0, 1, 2], SIZES))
    return f"--dataset={file}"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """75 images in three classes."""
    rng = np.random.default_rng(0)
    examples = rng.integers(0, 256, (75, 8, 8, 1), np.uint8)
    return save(tmp_path_factory.mktemp("images"), examples)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    examples = np.random.default_rng(0).uniform(size=(75, 5)).astype(np.float32)
    return save(tmp_path_factory.mktemp("vectors"), examples)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Networks of images that compile in no time."""
    dcgan = partial(models.dcgan, channels=2, hidden_size=8)
    monkeypatch.setattr(sda_fdc_methods.models, "dcgan", dcgan)


def flags(*more):
    return tyro.cli(sda_fdc.Args, args=[*TINY, *more])


def held_by(path):
    """What is dealt, what is held out, and whose rows are whose."""
    dataset = data.load(path.removeprefix("--dataset="))
    dealt, held_out = sda_fdc_examples.halves(dataset, seed=0)
    return dealt, held_out, data.heterogeneous(dealt.labels, 2, 1.0, seed=0).clients


def distances(a, b):
    a, b = (x.reshape(len(x), -1) / 255 for x in (a, b))
    found = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(b)
    return found.kneighbors(a)[0][:, 0]


def test_rows_are_measured_on_what_clients_hold_and_make(images, tmp_path, monkeypatch):
    of_clients, read = sda_fdc_examples.of_clients, []

    def listen(*args):
        read.extend(of_clients(*args))
        return read

    monkeypatch.setattr(sda_fdc_examples, "of_clients", listen)
    rows = sda_fdc_examples.figure_synthetic(flags(images), tmp_path)
    dealt, held_out, clients = held_by(images)
    assert [row["client"] for row in rows] == ["all", 0, 1]
    assert [row["train"] for row in rows[1:]] == list(map(len, clients))
    assert rows[0]["train"] == sum(map(len, clients))
    assert rows[0]["held_out"] == 10 + 12 + 15
    (found,) = read
    for client, own, row in zip(found, clients, rows[1:], strict=True):
        np.testing.assert_array_equal(client.examples, dealt.examples[own])
        assert client.synthetic.shape == (len(own), 8, 8, 1)
        assert client.synthetic.dtype == np.uint8
        made = distances(client.synthetic, client.examples)
        assert row["synthetic_distance"] == pytest.approx(np.median(made))
    examples, made = (np.concatenate(x) for x in list(zip(*found, strict=True))[1::2])
    near = [distances(x, examples) for x in (held_out.examples, made)]
    # The U of the first sample counts the pairs in which it is the larger.
    expected = mannwhitneyu(*near).statistic / (37 * len(made))
    assert rows[0]["copy_probability"] == pytest.approx(expected)
    assert rows[0]["held_out_distance"] == pytest.approx(np.median(near[0]))
    assert min(imread(tmp_path / "synthetic.png").shape[:2]) > 200
    assert min(imread(tmp_path / "nearest.png").shape[:2]) > 200


def test_a_generator_that_remembers_is_found(vectors, tmp_path, monkeypatch):
    """It makes one of its client's examples for each category, whatever it learns."""
    dealt, _, clients = held_by(vectors)
    remembered = jnp.asarray(dealt.examples[clients[0][:3]])

    def remember(variables, noise, *, train, mask=None):
        del train, mask
        return remembered[noise[:, :3].argmax(axis=1)], variables

    gan = models.mlp_gan(5)
    generator = Network(lambda *_: {"params": jnp.zeros(1)}, remember)
    remembering = Gan(generator, gan.discriminator)
    monkeypatch.setattr(sda_fdc_methods.models, "mlp_gan", lambda _: remembering)
    both, first, second = sda_fdc_examples.figure_synthetic(flags(vectors), tmp_path)
    for row in (both, first):
        assert row["copy_probability"] == 1
        assert row["synthetic_distance"] == 0
        assert row["closest_share"] == 1
    # Those are copies of the other's, and to the second client as good as fresh draws.
    assert 0 < second["copy_probability"] < 1
    assert second["synthetic_distance"] > 0
    # Feature vectors are not drawn.
    assert not list(tmp_path.glob("*.png"))


def test_who_never_answers_has_no_row(vectors, tmp_path):
    args = flags(vectors, "--clients=3", "--failure-rate=0.4", "--p=0")
    rows = sda_fdc_examples.figure_synthetic(args, tmp_path)
    dataset, _, _ = held_by(vectors)
    (present,) = data.failures(3, 0.4, seed=0)
    answering = np.flatnonzero(present).tolist()
    assert len(answering) == 2
    assert [row["client"] for row in rows] == ["all", *answering]
    held = data.heterogeneous(dataset.labels, 3, 0.0, seed=0).clients
    assert rows[0]["train"] == sum(len(held[i]) for i in answering)


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
    other, _ = sda_fdc_examples.halves(dataset, seed=1)
    assert (other.examples != dealt.examples).any()


def test_as_many_of_each_class_or_all_there_are():
    examples = np.arange(20, dtype=np.float32)[:, None]
    dataset = data.Dataset("numbers", examples, np.repeat([0, 1, 2], (4, 6, 10)))
    drawn = sda_fdc_examples.like_labels(
        dataset, np.array([2, 2, 2, 0, 0, 0, 0, 0]), seed=0
    )
    drawn = drawn[:, 0].astype(int).tolist()
    assert sorted(drawn[:4]) == [0, 1, 2, 3]
    assert len(set(drawn[4:])) == 3
    assert min(drawn[4:]) >= 10


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--p", "0", "1"], r"--p takes one value .* \(0.0, 1.0\)"),
        (["--seed", "0", "1"], r"--seed takes one value .* \(0, 1\)"),
        (["--no-labels", "--clusters=3"], "--no-labels"),
        (["--gan-rounds=0"], "--gan-rounds must be at least 1"),
    ],
)
def test_flags_that_no_figure_can_show(vectors, tmp_path, more, message):
    with pytest.raises(ValueError, match=message):
        sda_fdc_examples.figure_synthetic(flags(vectors, *more), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_the_study_has_flags_that_a_figure_takes(preset):
    study = sda_fdc_copies.STUDIES["sda-fdc-copies"]
    args = reproduce.Args("sda-fdc-copies", preset=preset, datasets=("digits",))
    (job,) = reproduce.jobs(study, args)
    assert study.maps == "sda_fdc_examples.figure_synthetic"
    dataset = trained.load(job.flags)
    method = (
        experiment.prepare(
            job.flags, job.describe, lambda _: (dataset, dataset.examples[:0])
        )
        .groups[0]
        .method
    )
    assert method.name == "sda-fdc"  # whose GANs the figure trains
