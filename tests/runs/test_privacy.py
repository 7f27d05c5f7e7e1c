"""The command `fcjax privacy`, and the uploads in a results folder."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fcjax
from fcjax.cli import tools
from fcjax.cli.arguments import read
from fcjax.methods import SCRIPTS
from fcjax.results import shards
from fcjax.sweep import experiment, train


def run(out, method, *flags):
    """Runs `fcjax baselines` with one method, and returns its results folder."""
    words = [f"--methods={method}", f"--out={out}", "--no-plot", "--clients=5", *flags]
    (task,) = read(SCRIPTS["baselines"], words).tasks
    train.execute(experiment.prepare(task), progress=False)
    return out / method


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """k-FED of 200 digits at p = 1."""
    out = tmp_path_factory.mktemp("digits") / "run"
    return run(out, "k-fed", "--limit=200", "--p=1", "--keep-uploads")


def test_the_command_prints_its_measurements_and_names_its_files(digits, capsys):
    capsys.readouterr()
    tools.Privacy(digits, min_members=3)()
    printed = capsys.readouterr().out
    row = pd.read_csv(digits / "privacy.csv").iloc[0]
    assert row[["method", "p", "seed", "points"]].tolist() == ["k-fed", 1, 0, 50]
    lines = [line.strip() for line in printed.splitlines()]
    assert lines[0] == "Uploads of the run k-fed p 1, seed 0:"
    assert lines[1] == "uploaded centroids: 50 of 5 clients"
    assert f"centroids of one example: {row.one_member} of 50" in lines
    assert f"centroids of fewer than 3 examples: {row.few_members} of 50" in lines
    assert f"copies of an example: {row.copies} of 50" in lines
    interval = f"{row.uploads_low:.3f} to {row.uploads_high:.3f}"
    (line,) = (line for line in lines if line.startswith("by the nearest upload:"))
    assert line.split() == [
        *["by", "the", "nearest", "upload:"],
        *f"{row.uploads_auc:.3f} (95 % interval {interval})".split(),
    ]
    points = pd.read_csv(digits / "privacy_points.csv")
    assert (points.members < 3).sum() == row.few_members
    assert lines[-1].endswith(f": {digits / 'privacy.png'}")
    with Image.open(digits / "privacy.png") as image:
        title = image.text["Title"]
    assert title.startswith("k-fed on digits, heterogeneity p 1, seed 0: closest")


def test_shards_bring_their_uploads(tmp_path):
    grid = tmp_path / "grid"
    flags = ["--limit=100", "--p=0", "--seed", "0", "1", "--keep-uploads"]
    for i in (0, 1):
        folder = run(grid, "k-fed", *flags, f"--shard={i}/2")
    shards.merge(shards.find([folder]), folder)
    runs = fcjax.open(folder)
    first, second = (runs[i].privacy_report().points for i in (0, 1))
    assert len(first) == len(second) == 50
    assert not first.equals(second)


def test_vectors_get_a_histogram_and_all_data_no_attack(tmp_path, capsys):
    rng = np.random.default_rng(0)
    path = tmp_path / "rows.npz"
    np.savez(path, x=rng.normal(size=(60, 4)), y=rng.integers(3, size=60))
    flags = [f"--dataset={path}", "--keep-uploads"]
    out = run(tmp_path / "run", "exact-km", *flags)
    capsys.readouterr()
    tools.Privacy(out, out=tmp_path / "new" / "folder")()
    printed = capsys.readouterr().out
    assert "because all examples of the data set are in the run: run with" in printed
    written = {x.name for x in (tmp_path / "new" / "folder").iterdir()}
    assert written == {"privacy.csv", "privacy_points.csv", "privacy.png"}
    assert not (out / "privacy.csv").exists()
    with Image.open(tmp_path / "new" / "folder" / "privacy.png") as image:
        assert image.text["Title"].endswith(": uploads")


def test_no_resume_removes_the_uploads(tmp_path):
    flags = ["k-fed", "--limit=100", "--p=0"]
    out = run(tmp_path, *flags, "--keep-uploads")
    assert (out / "uploads").exists()
    run(tmp_path, *flags, "--no-resume")
    assert not (out / "uploads").exists()
    with pytest.raises(ValueError, match="no stored uploads"):
        fcjax.open(out)[0].privacy_report()
