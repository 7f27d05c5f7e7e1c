"""Loading by name: digits, small TFDS folders made here, and the real ones."""

import io
import json
import logging
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2

from fcjax.data import Dataset, load, load_extra, stratified_subset
from fcjax.data.dataset import validate

REAL = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "tfds"
needs_real = pytest.mark.skipif(
    not REAL.is_dir(), reason="needs the prepared TFDS folder ../shared/data/tfds"
)


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def named(path, **content):
    return {"pythonClassName": f"tensorflow_datasets.core.features.{path}", **content}


def prepare(
    data_dir,
    splits,
    *,
    channels=1,
    label="label",
    form="array_record",
    name="tiny",
    version="1.0.0",
    further=(),
):
    """Writes {split: [(encoded image, label, *further)]} as a TFDS data set."""
    folder = data_dir / name / version
    folder.mkdir(parents=True)
    for split, examples in splits.items():
        path = folder / f"{name}-{split}.{form}-00000-of-00001"
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for image, *numbers in examples:
            example = tf_example_pb2.Example()
            feature = example.features.feature
            feature["image"].bytes_list.value.append(image)
            for called, number in zip((label, *further), numbers, strict=True):
                feature[called].int64_list.value.append(number)
            writer.write(example.SerializeToString())
        writer.close()
    shape = {"dimensions": ["-1", "-1", str(channels)]}
    features = {
        "image": named("image_feature.Image", image={"dtype": "uint8", "shape": shape}),
    }
    for called in (label, *further):
        classes = {"numClasses": "100"}
        features[called] = named("class_label_feature.ClassLabel", classLabel=classes)
    info = {
        "name": name,
        "version": version,
        "fileFormat": form,
        "splits": [
            {
                "name": split,
                "numBytes": "1",
                "shardLengths": [str(len(examples))],
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            }
            for split, examples in splits.items()
        ],
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
    tree = named("features_dict.FeaturesDict", featuresDict={"features": features})
    (folder / "features.json").write_text(json.dumps(tree))
    return folder


def grey(*values):
    return [(png(np.full((3, 4), v, np.uint8)), v % 10) for v in values]


def refuse(message, name, **kwargs):
    with pytest.raises(ValueError, match=message) as caught:
        load(name, **kwargs)
    assert "\n" not in str(caught.value)


def test_digits():
    got = load("digits")
    assert got.name == "digits"
    assert got.examples.shape == (1797, 8, 8, 1)
    assert got.examples.dtype == np.uint8
    # The first digit is a 0; its first row is 0 0 5 13 9 1 0 0 on the 0..16 scale.
    np.testing.assert_array_equal(
        got.examples[0, 0, :, 0], [0, 0, 80, 207, 143, 16, 0, 0]
    )
    assert got.labels is not None
    np.testing.assert_array_equal(got.labels[:12], [*range(10), 0, 1])
    counts = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(got.labels).tolist() == counts


def test_tfds_splits_come_in_order(tmp_path):
    prepare(tmp_path, {"test": grey(7, 3), "train": grey(21, 250, 4)})
    got = load("tiny", data_dir=tmp_path)
    assert got.examples.shape == (5, 3, 4, 1)
    assert got.examples.dtype == np.uint8
    np.testing.assert_array_equal(got.examples[:, 2, 3, 0], [21, 250, 4, 7, 3])
    np.testing.assert_array_equal(got.labels, [1, 0, 4, 7, 3])
    train = load("tiny", data_dir=str(tmp_path), split="train")
    np.testing.assert_array_equal(train.examples[:, 0, 0, 0], [21, 250, 4])
    test = load("tiny", data_dir=tmp_path, split="test")
    np.testing.assert_array_equal(test.labels, [7, 3])
    assert "tensorflow" not in sys.modules


def test_cifar20_is_cifar100_by_its_super_classes(tmp_path):
    import tensorflow_datasets as tfds

    version = str(tfds.builder_cls("cifar100").VERSION)
    images = np.arange(3, dtype=np.uint8)[:, None, None, None] * np.ones(
        (1, 32, 32, 3), np.uint8
    )
    fine, coarse = (99, 7, 40), (13, 2, 19)
    examples = list(zip(map(png, images), fine, coarse, strict=True))
    prepare(
        *(tmp_path, {"train": examples[:2], "test": examples[2:]}),
        name="cifar100",
        version=version,
        channels=3,
        further=("coarse_label",),
    )
    for name, labels in (("cifar100", fine), ("cifar20", coarse)):
        got = load(name, data_dir=tmp_path)
        np.testing.assert_array_equal(got.labels, labels)
        np.testing.assert_array_equal(got.examples, images)


def test_tfds_colour_and_more_than_one_chunk(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (2500, 2, 2, 3), np.uint8)
    prepare(
        tmp_path, {"train": [(png(x), int(x.sum()) % 10) for x in images]}, channels=3
    )
    got = load("tiny", data_dir=tmp_path)
    np.testing.assert_array_equal(got.examples, images)
    np.testing.assert_array_equal(got.labels, images.sum((1, 2, 3), dtype=int) % 10)


def test_loading_says_nothing_and_leaves_the_logger_alone(tmp_path, capfd, caplog):
    prepare(tmp_path, {"train": grey(1)})
    caplog.set_level(logging.INFO, "absl")
    load("tiny", data_dir=tmp_path)
    refuse("not prepared", "kmnist", data_dir=tmp_path)
    assert (*capfd.readouterr(), caplog.records) == ("", "", [])
    assert logging.getLogger("absl").level == logging.INFO


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mnst", r"--dataset 'mnst' is unknown; .*nearest: mnist"),
        ("digit", r"'digit' is unknown; .*nearest: digits"),
        ("emnist/digts", r"'emnist/digts' is unknown; .*nearest: emnist/digits"),
        ("zzzzqqq", r"'zzzzqqq' is unknown; give digits or a TFDS name$"),
        ("", r"'' is unknown"),
        ("some/odd/path", r"'some/odd/path' is unknown"),
        ("huggingface:mnist", r"'huggingface:mnist' is unknown"),
        ("mnist:9.9.9", r"mnist:9\.9\.9 cannot be opened in .* only: 3\.0\.1"),
        ("imdb_reviews", r"needs a feature 'image' of 8-bit pixels.* text, label"),
    ],
)
def test_names_that_cannot_be_loaded(name, message, tmp_path):
    refuse(message, name, data_dir=tmp_path)


def test_an_unprepared_data_set_names_the_command(tmp_path):
    command = (
        'pip install tensorflow && python -c "import tensorflow_datasets as tfds; '
        f"tfds.builder('emnist/digits', data_dir='{tmp_path}', "
        "file_format='array_record').download_and_prepare()\""
    )
    with pytest.raises(ValueError, match=r"not prepared in .* --data-dir") as caught:
        load("emnist/digits", data_dir=tmp_path)
    assert str(caught.value).endswith(f"run: {command}")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["digits", "tiny"])
@pytest.mark.parametrize("split", ["", "validation", "train[:5]"])
def test_bad_splits(name, split, tmp_path):
    refuse("--split must be all, train or test, got", name, split=split)


def test_splits_that_are_not_there(tmp_path):
    refuse("--split must be all for digits .*'test'", "digits", split="test")
    prepare(tmp_path, {"train": grey(1), "extra": grey(2)})
    message = "--split test is not in tiny, which has train, extra"
    refuse(message, "tiny", data_dir=tmp_path, split="test")
    assert load("tiny", data_dir=tmp_path).examples.shape == (1, 3, 4, 1)


def test_mixed_sizes(tmp_path):
    odd = (png(np.zeros((4, 4), np.uint8)), 0)
    prepare(tmp_path, {"train": [*grey(1, 2), odd]})
    message = r"images of mixed sizes, \(3, 4, 1\) and \(4, 4, 1\); all must"
    refuse(message, "tiny", data_dir=tmp_path)


def test_no_label(tmp_path):
    prepare(tmp_path, {"train": grey(1)}, label="angle")
    message = r"needs a feature 'label' .* its features: (image, angle|angle, image)"
    refuse(message, "tiny", data_dir=tmp_path)


def test_another_file_format(tmp_path):
    prepare(tmp_path, {"train": grey(1)}, form="tfrecord")
    refuse("in a format that only TensorFlow reads", "tiny", data_dir=tmp_path)


def test_a_damaged_image(tmp_path):
    prepare(tmp_path, {"train": [*grey(1), (b"not an image", 1)]})
    refuse("tiny is damaged in .*; move that folder away", "tiny", data_dir=tmp_path)


@pytest.mark.parametrize("left", [0.0, 0.5, None])
def test_a_truncated_or_missing_file(left, tmp_path):
    folder = prepare(tmp_path, {"train": grey(*range(100))})
    path = folder / "tiny-train.array_record-00000-of-00001"
    if left is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: int(left * path.stat().st_size)])
    refuse("tiny is damaged in .*download_and_prepare", "tiny", data_dir=tmp_path)


def test_damaged_metadata(tmp_path):
    folder = prepare(tmp_path, {"train": grey(1)})
    (folder / "features.json").write_text("{")
    refuse(
        "tiny cannot be opened in .*: Expecting property name",
        "tiny",
        data_dir=tmp_path,
    )


# Class counts of the published test sets.
MNIST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@needs_real
@pytest.mark.parametrize(
    ("name", "shape", "counts"),
    [
        ("mnist", (10_000, 28, 28, 1), MNIST),
        ("cifar10", (10_000, 32, 32, 3), [1000] * 10),
    ],
)
def test_real_data(name, shape, counts):
    got = load(name, data_dir=REAL, split="test")
    assert got.examples.shape == shape
    assert got.examples.dtype == np.uint8
    assert got.labels is not None
    assert np.bincount(got.labels).tolist() == counts


def test_validate():
    images, labels = np.zeros((3, 2, 2, 1), np.float32), np.arange(3)
    assert validate(Dataset("x", images, labels)).examples is images
    assert validate(Dataset("x", images, None)).labels is None
    for bad in (np.nan, np.inf, -np.inf):
        damaged = images.copy()
        damaged[1, 1, 0, 0] = bad
        with pytest.raises(ValueError, match="--dataset x has NaN or infinite values"):
            validate(Dataset("x", damaged, labels))
    with pytest.raises(ValueError, match="--dataset x has no examples"):
        validate(Dataset("x", images[:0], labels[:0]))
    with pytest.raises(ValueError, match=r"3 examples but labels of shape \(2,\)"):
        validate(Dataset("x", images, labels[:2]))


def numbered(labels):
    images = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1)
    return Dataset("x", images, labels)


@pytest.mark.parametrize(
    ("limit", "counts"),
    [(10, [5, 3, 2]), (20, [10, 6, 4]), (1, [1, 0, 0]), (3, [1, 1, 1]), (7, [4, 2, 1])],
)
def test_a_subset_keeps_the_proportions(limit, counts):
    # Shares 1/2, 3/10, 1/5; at 3 the remainders .5 .9 .6 give 1, 1, 1.
    labels = np.random.default_rng(0).permutation(np.repeat([2, 5, 8], [50, 30, 20]))
    got = stratified_subset(numbered(labels), limit)
    assert got.labels is not None
    assert [(got.labels == c).sum() for c in (2, 5, 8)] == counts
    rows = got.examples.ravel()
    assert (np.diff(rows.astype(int)) > 0).all()
    np.testing.assert_array_equal(got.labels, labels[rows])


def test_a_subset_follows_from_its_seed():
    data = numbered(np.arange(200) % 4)
    first, again = (
        stratified_subset(data, 50, seed=1),
        stratified_subset(data, 50, seed=1),
    )
    np.testing.assert_array_equal(first.examples, again.examples)
    other = stratified_subset(data, 50, seed=2)
    assert not np.array_equal(first.examples, other.examples)


def test_a_subset_of_everything_and_without_labels():
    data = numbered(np.arange(30) % 7)
    for got, all_rows in zip(stratified_subset(data, 30), data, strict=True):
        np.testing.assert_array_equal(got, all_rows)
    plain = stratified_subset(data._replace(labels=None), 12)
    assert plain.labels is None
    assert len(np.unique(plain.examples)) == 12


@pytest.mark.parametrize("limit", [0, -1, 31])
def test_a_limit_out_of_range(limit):
    with pytest.raises(ValueError, match=rf"--limit must lie in 1\.\.30.* got {limit}"):
        stratified_subset(numbered(np.zeros(30, int)), limit)


def test_an_extra_split_is_loaded_without_labels(tmp_path):
    prepare(tmp_path, {"train": grey(1), "extra": grey(2, 7)})
    got = load_extra("tiny", "extra", data_dir=tmp_path)
    np.testing.assert_array_equal(got[:, 0, 0, 0], [2, 7])
    with pytest.raises(ValueError, match="--extra-split more is not in tiny"):
        load_extra("tiny", "more", data_dir=tmp_path)
    with pytest.raises(ValueError, match="--extra-split is for TFDS"):
        load_extra("digits", "extra")
