"""Runs on resized images: from a folder of mixed sizes to predictions on new ones."""

import csv
import json

import baselines
import numpy as np
import pytest
from PIL import Image

from fcjax import session
from fcjax.data import load
from fcjax.grid import experiment
from fcjax.runs import draw, predict, probe
from fcjax.runs.finished import Finished
from tests.data.test_sources import png, prepare


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run(out, *, method="k-fed", **flags):
    """Runs k-FED in this process."""
    args = baselines.Args(
        methods=(method,), clients=(2,), p=(0.0,), out=out, plot=False, **flags
    )
    session.execute(experiment.prepare(args, baselines.describe))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Bars, lying and standing, in pictures of three sizes and little noise."""
    folder = tmp_path_factory.mktemp("data") / "bars"
    rng = np.random.default_rng(0)
    for i in range(24):
        height, width = [(8, 8), (12, 10), (9, 16)][i % 3]
        image = rng.integers(0, 30, (height, width), np.uint8)
        name = ("lying", "standing")[i // 12]
        if name == "lying":
            image[height // 4 : height // 2] = 250
        else:
            image[:, width // 4 : width // 2] = 250
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "out"
    run(out, dataset=str(folder), resize=6)
    return out


def test_a_folder_of_mixed_sizes_from_its_path_to_its_clusters(
    folder, finished, tmp_path
):
    (row,) = rows(finished / "results.csv")
    assert float(row["nmi"]) == 1
    config = json.loads((finished / "config.json").read_text())
    assert config["resize"] == 6
    with pytest.raises(ValueError, match=r"mixed sizes.*which --resize gives them$"):
        run(tmp_path / "out", dataset=str(folder))
    assert not (tmp_path / "out").exists()


def test_another_size_is_another_configuration(folder, finished):
    with pytest.raises(ValueError, match=r"another configuration \(resize differ\)"):
        run(finished, dataset=str(folder), resize=7)


def test_new_images_are_resized_as_those_of_the_run(folder, finished, tmp_path):
    predict.main(predict.Args(finished, str(folder), out=tmp_path / "all"))
    predicted = rows(tmp_path / "all")
    with np.load(finished / "assignments.npz") as file:
        clusters = file["cluster"][0]
    assert [int(row["cluster"]) for row in predicted] == clusters.tolist()
    assert predicted[0]["example"] == "lying/0.png"

    # The same bars as arrays of one size that no image of the run had.
    new = np.zeros((2, 20, 14), np.uint8)
    new[0, 5:10] = 250
    new[1, :, 4:7] = 250
    np.savez(tmp_path / "new.npz", x=new)
    predict.main(
        predict.Args(finished, str(tmp_path / "new.npz"), out=tmp_path / "few")
    )
    few = [int(row["cluster"]) for row in rows(tmp_path / "few")]
    assert few == [clusters[0], clusters[-1]]


def test_new_images_can_be_resized_to_what_a_run_without_it_had(folder, tmp_path):
    """Also a run of before the flag, whose configuration does not have it."""
    images = load(str(folder), resize=6)
    np.savez(tmp_path / "six.npz", x=images.examples, y=images.labels)
    run(tmp_path / "out", dataset=str(tmp_path / "six.npz"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.pop("resize") is None
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))

    with pytest.raises(ValueError, match=r"which --resize gives them$"):
        predict.main(predict.Args(tmp_path / "out", str(folder)))
    predict.main(
        predict.Args(tmp_path / "out", str(folder), resize=6, out=tmp_path / "table")
    )
    with np.load(tmp_path / "out" / "assignments.npz") as file:
        clusters = file["cluster"][0].tolist()
    assert [int(row["cluster"]) for row in rows(tmp_path / "table")] == clusters
    assert Finished(tmp_path / "out").flags(data_dir=None).resize is None
    draw.main(draw.Args(tmp_path / "out", out=tmp_path / "figures"))
    assert (tmp_path / "figures" / "clusters.png").exists()


def test_a_run_is_read_back_with_its_size(finished, tmp_path, capsys):
    assert Finished(finished).flags(data_dir=None).resize == 6
    draw.main(draw.Args(finished, out=tmp_path / "figures"))
    assert (tmp_path / "figures" / "clusters.png").exists()
    probe.main(probe.Args(finished, num_neighbors=(3,), num_draws=2))
    assert "4 examples by 20" in capsys.readouterr().out


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_is_refused(size, tmp_path):
    with pytest.raises(ValueError, match=f"^--resize must be at least 1, got {size}$"):
        run(tmp_path / "out", resize=size)
    assert not (tmp_path / "out").exists()


def test_an_extra_split_is_resized_too(tmp_path):
    encoded = [
        (png(np.full((4 + i % 3, 5), 20 * i, np.uint8)), i % 2) for i in range(12)
    ]
    prepare(tmp_path / "data", {"train": encoded[:8], "extra": encoded[8:]})
    flags = {"data_dir": tmp_path / "data", "extra_split": "extra", "resize": 3}
    args = baselines.Args(dataset="tiny", **flags)
    dataset, extra = experiment.load(args)
    assert dataset.examples.shape == (8, 3, 3, 1)
    np.testing.assert_array_equal(extra[:, 0, 0, 0], [160, 180, 200, 220])
    assert extra.shape == (4, 3, 3, 1)
