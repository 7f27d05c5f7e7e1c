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

from fcjax.data import Dataset, Source, load, load_extra, stratified_subset

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


def prepare(data_dir, splits, *, name="tiny", version="1.0.0", **options):
    """Writes {split: [(encoded image, *labels)]} as a TFDS data set."""
    labels, form = options.get("labels", ["label"]), options.get("form", "array_record")
    folder = data_dir / name / version
    folder.mkdir(parents=True)
    for split, examples in splits.items():
        path = folder / f"{name}-{split}.{form}-00000-of-00001"
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for image, *numbers in examples:
            example = tf_example_pb2.Example()
            feature = example.features.feature
            feature["image"].bytes_list.value.append(image)
            for label, number in zip(labels, numbers, strict=True):
                feature[label].int64_list.value.append(number)
            writer.write(example.SerializeToString())
        writer.close()
    shape = {"dimensions": ["-1", "-1", str(options.get("channels", 1))]}
    pixels = named("image_feature.Image", image={"dtype": "uint8", "shape": shape})
    classes = named("class_label_feature.ClassLabel", classLabel={"numClasses": "100"})
    features = {"image": pixels, **dict.fromkeys(labels, classes)}
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    shards = {"numBytes": "1", "filepathTemplate": template}
    found = [
        {"name": split, "shardLengths": [str(len(examples))], **shards}
        for split, examples in splits.items()
    ]
    info = {"name": name, "version": version, "fileFormat": form, "splits": found}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    tree = named("features_dict.FeaturesDict", featuresDict={"features": features})
    (folder / "features.json").write_text(json.dumps(tree))
    return folder


def grey(*values):
    return [(png(np.full((3, 4), v, np.uint8)), v % 10) for v in values]


def test_digits():
    got = load("digits")
    assert got.examples.shape == (1797, 8, 8, 1)
    # The first digit is a 0; its first row is 0 0 5 13 9 1 0 0 on the 0..16 scale.
    assert got.examples[0, 0, :, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]
    np.testing.assert_array_equal(got.labels[:12], [*range(10), 0, 1])
    counts = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(got.labels).tolist() == counts


def test_tfds_splits_come_in_order(tmp_path):
    splits = {"test": grey(7, 3), "train": grey(21, 250, 4), "extra": grey(2, 9)}
    prepare(tmp_path, splits)
    got = load("tiny", data_dir=tmp_path)
    assert (got.examples.shape, got.examples.dtype) == ((5, 3, 4, 1), np.uint8)
    np.testing.assert_array_equal(got.examples[:, 2, 3, 0], [21, 250, 4, 7, 3])
    np.testing.assert_array_equal(got.labels, [1, 0, 4, 7, 3])
    train = load("tiny", data_dir=str(tmp_path), split="train")
    np.testing.assert_array_equal(train.examples[:, 0, 0, 0], [21, 250, 4])
    extra = load_extra(Source("tiny", extra_split="extra", data_dir=tmp_path))
    np.testing.assert_array_equal(extra[:, 0, 0, 0], [2, 9])
    with pytest.raises(ValueError, match="dataset tiny has no split more"):
        load_extra(Source("tiny", extra_split="more", data_dir=tmp_path))
    assert "tensorflow" not in sys.modules


def test_colours_super_classes_and_more_than_one_chunk(tmp_path):
    import tensorflow_datasets as tfds

    version = str(tfds.builder_cls("cifar100").VERSION)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (1100, 2, 2, 3), np.uint8)
    fine, coarse = rng.integers(0, 100, 1100), rng.integers(0, 20, 1100)
    examples = list(zip(map(png, images), fine, coarse, strict=True))
    options = {"name": "cifar100", "version": version, "channels": 3}
    prepare(tmp_path, {"train": examples}, labels=["label", "coarse_label"], **options)
    for name, labels in (("cifar100", fine), ("cifar20", coarse)):
        got = load(name, data_dir=tmp_path)
        np.testing.assert_array_equal(got.labels, labels)
        np.testing.assert_array_equal(got.examples, images)


def test_an_unprepared_data_set_names_the_command_and_nothing_else_is_said(
    tmp_path, capfd, caplog
):
    caplog.set_level(logging.INFO, "absl")
    command = (
        'pip install tensorflow && python -c "import tensorflow_datasets as tfds; '
        f"tfds.builder('emnist/digits', data_dir='{tmp_path}', "
        "file_format='array_record').download_and_prepare()\""
    )
    with pytest.raises(ValueError, match=r"not prepared in .* data_dir") as caught:
        load("emnist/digits", data_dir=tmp_path)
    assert str(caught.value).endswith(f"run: {command}")
    assert os.listdir(tmp_path) == []
    prepare(tmp_path, {"train": grey(1)})
    load("tiny", data_dir=tmp_path)
    assert (*capfd.readouterr(), caplog.records) == ("", "", [])


ODD, DAMAGED = (png(np.zeros((4, 4), np.uint8)), 0), (b"not an image", 1)
RECORDS = "tiny-train.array_record-00000-of-00001"
MIXED = r"has images of mixed sizes, \(3, 4, 1\) and \(4, 4, 1\); all images must"
BROKEN = "is damaged in .*; move that folder away and run: pip .*download_and_prepare"


@pytest.mark.parametrize(
    ("train", "options", "damage", "message"),
    [
        ([*grey(1), ODD], {}, None, MIXED),
        (
            grey(1),
            {"labels": ["angle"]},
            None,
            "must have a feature .* 'label' .* its features are .*angle",
        ),
        (grey(1), {"form": "tfrecord"}, None, ".* a format that only TensorFlow reads"),
        ([*grey(1), DAMAGED], {}, None, BROKEN),
        (grey(1), {}, lambda folder: (folder / RECORDS).unlink(), BROKEN),
        (grey(1), {}, lambda folder: (folder / RECORDS).write_bytes(b""), BROKEN),
        (grey(*range(100)), {}, lambda f: os.truncate(f / RECORDS, 20_000), BROKEN),
        (grey(1), {}, lambda f: (f / "features.json").write_text("{"), ".*: Expecting"),
    ],
)
def test_tfds_folders_that_cannot_be_read(train, options, damage, message, tmp_path):
    folder = prepare(tmp_path, {"train": train}, **options)
    if damage is not None:
        damage(folder)
    with pytest.raises(ValueError, match=f"^dataset tiny {message}") as caught:
        load("tiny", data_dir=tmp_path)
    assert "\n" not in str(caught.value)


@needs_real
def test_real_data():
    got = load("mnist", data_dir=REAL, split="test")
    assert (got.examples.shape, got.examples.dtype) == ((10_000, 28, 28, 1), np.uint8)
    # Class counts of the published test set.
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(got.labels).tolist() == counts


def numbered(labels):
    images = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1)
    return Dataset("x", images, labels)


@pytest.mark.parametrize(
    ("limit", "counts"),
    [(10, [5, 3, 2]), (1, [1, 0, 0]), (3, [1, 1, 1]), (7, [4, 2, 1])],
)
def test_a_subset_keeps_the_proportions(limit, counts):
    # Shares 1/2, 3/10, 1/5; at 3 the remainders .5 .9 .6 give 1, 1, 1.
    labels = np.random.default_rng(0).permutation(np.repeat([2, 5, 8], [50, 30, 20]))
    got = stratified_subset(numbered(labels), limit)
    assert [(got.labels == c).sum() for c in (2, 5, 8)] == counts
    rows = got.examples.ravel()
    np.testing.assert_array_equal(got.labels, labels[rows])


def test_a_subset_of_everything_and_without_labels():
    data = numbered(np.arange(30) % 7)
    for got, all_rows in zip(stratified_subset(data, 30), data, strict=True):
        np.testing.assert_array_equal(got, all_rows)
    plain = data._replace(labels=None)
    found = [stratified_subset(plain, 12, seed=seed) for seed in (0, 0, 1)]
    first, again, other = (got.examples for got in found)
    assert found[0].labels is None
    assert len(np.unique(first)) == 12
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
