"""Feature columns are scaled as said, in chunks, and a data set describes itself."""

import numpy as np
import pandas as pd
import pytest

import fcjax
from fcjax import data
from fcjax.api import dataset_of
from fcjax.data import dataset
from fcjax.data.dataset import Dataset, scaled
from fcjax.methods import CCFC, ExactKMeans

COLUMNS = np.array([[1.0, 7.0, 100.0], [3.0, 7.0, 200.0], [5.0, 7.0, 600.0]])


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("minmax", [[0, 0, 0], [0.5, 0, 0.2], [1, 0, 1]]),
        # Means 3 and 300; squared deviations 8 / 3 and 140,000 / 3.
        (
            "standard",
            [[-1.224745, 0, -0.925820], [0, 0, -0.462910], [1.224745, 0, 1.388730]],
        ),
        ("none", COLUMNS),
    ],
)
@pytest.mark.parametrize("chunk", [3, 6, 1000])
def test_columns_are_scaled(scale, expected, chunk, monkeypatch):
    monkeypatch.setattr(dataset, "CHUNK", chunk)
    found, _, scaling = scaled(COLUMNS, scale)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)
    again, *_ = scaled(COLUMNS[1:2], scaling=scaling)  # by the scaling of all rows
    np.testing.assert_allclose(again, expected[1:2], atol=1e-6)


def test_standard_scaling_of_large_values_does_not_cancel():
    found, *_ = scaled(np.array([[1e8 - 1.0], [1e8 + 1.0]]), "standard")
    np.testing.assert_allclose(found, [[-1], [1]], atol=1e-6)


def test_unscaled_memory_mapped_vectors_stay_on_disk(tmp_path):
    np.save(tmp_path / "x.npy", COLUMNS.astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert np.shares_memory(scaled(mapped, "none")[0], mapped)


@pytest.mark.parametrize("chunk", [3, 1000])
def test_values_that_are_not_finite_are_counted_in_chunks(chunk, monkeypatch):
    monkeypatch.setattr(dataset, "CHUNK", chunk)
    values = COLUMNS.copy()
    values[1, 0], values[2, 1:] = np.nan, np.inf
    with pytest.raises(ValueError, match="3 NaN or infinite values, the first in exa"):
        dataset.images_or_vectors(values, None)


def test_a_data_set_describes_itself(tmp_path):
    (tmp_path / "visits.csv").write_text(
        "age,site,class\n30,north,a\n50,<b>,b\n20,north,a\n40,,b\n"
    )
    found = data.load(
        tmp_path / "visits.csv", client_column="site", scale_columns="none"
    )
    assert found.describe().split("\n  ")[1:] == [
        "examples: 4 feature vectors of 1 column",
        "values: float32, 20 to 50",
        "labels: 2 classes of 2 examples",
        "clients: 2 clients of 1 to 2 examples: <b>, north; 1 example without a client",
        "first row read as header: age,site,class",
        "class: column class, because of its name",
        "classes: 0 = a, 1 = b",
    ]
    assert repr(Dataset("x", np.zeros((2, 4, 4, 3), np.uint8), None)) == (
        "data set: x\n"
        "  examples: 2 images of 4x4 pixels, 3 channels\n"
        "  values: uint8, 0 to 0\n"
        "  labels: none\n"
        "  clients: none in the data"
    )


def test_a_frame_is_scaled_as_said():
    frame = pd.DataFrame({"a": [1.0, 3.0, 5.0], "b": [7.0, 8.0, 9.0]})
    found = dataset_of(frame, "none").examples
    np.testing.assert_array_equal(found, frame.to_numpy(np.float32))
    found = data.from_frame(frame, scale_columns="standard").examples
    np.testing.assert_allclose(found[:, 0], [-1.224745, 0, 1.224745], atol=1e-6)


def test_methods_that_train_networks_take_columns_between_0_and_1():
    x = np.random.default_rng(0).normal(size=(40, 3))
    with pytest.raises(ValueError, match="ccfc needs feature columns between 0 and 1;"):
        fcjax.run(CCFC(preset="smoke"), x, num_clusters=2, scale_columns="standard")
    far = np.concatenate([x, x + 100])
    clusters = fcjax.run(ExactKMeans(), far, num_clusters=2, scale_columns="none")[
        0
    ].labels_
    assert set(clusters[:40]) != set(clusters[40:])
