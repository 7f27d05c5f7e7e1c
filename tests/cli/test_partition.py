"""Partitions for other programs: those of a run, in files, or one line and no file."""

import numpy as np
import pandas as pd
import pytest

from fcjax.data import load

SEEDS = ("--seed", "0:2")


@pytest.fixture(autouse=True)
def _in_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def few(tmp_path):
    """Bo has three of eight examples, Al and Cy two each, and one is nobody's."""
    rows = [f"{i},{who},{i % 3},{i % 2}" for i, who in enumerate("BABCB CA")]
    (tmp_path / "few.csv").write_text("\n".join(["a,who,b,class", *rows]))
    return ("--dataset", "few.csv", "--client-column", "who")


def read(path):
    """The clients in a file, whose other columns are checked."""
    table = pd.read_csv(path)
    assert list(table) == ["example", "client", "cluster"]
    assert table["example"].tolist() == list(range(len(table)))
    assert table["cluster"].isna().all()
    return table["client"].to_numpy()


@pytest.mark.parametrize(
    ("method", "rule", "levels", "flags"),
    [
        ("exact-km", "p", (0, 0.5), ()),
        ("k-fed", "classes_per_client", (2, 3), ("--client-size", "20")),
        ("exact-km", "alpha", (0.1,), ("--partition-seed", "4")),
    ],
)
def test_partitions_are_those_of_a_run(fcjax, tmp_path, method, rule, levels, flags):
    flags = ("--limit", "300", "--clients", "7", *SEEDS, *flags)
    flags += ("--" + rule.replace("_", "-"), *map(str, levels))
    _, code = fcjax("partition", *flags, "--out", "new/here")
    assert not code
    run = ("--methods", method, "--preset", "smoke", "--no-plot", "--out", "run")
    _, code = fcjax("baselines", *flags, *run)
    assert not code
    runs = np.load(tmp_path / "run" / method / "assignments.npz")
    files = {
        f"{rule}={level:g},seed={seed}.csv": client
        for level, seed, client in zip(
            runs[rule], runs["seed"], runs["client"], strict=True
        )
    }
    folder = tmp_path / "new" / "here"
    assert len(files) == 2 * len(levels)
    assert {x.name for x in folder.iterdir()} == {*files, "examples.npz"}
    assert not [x for x in folder.parent.iterdir() if x != folder]
    for name, clients in files.items():
        np.testing.assert_array_equal(read(folder / name), clients)
    assert (clients == -1).any() == (rule != "alpha")  # 300 of 7 x 42 examples at p


def test_examples_are_as_loaded(fcjax, tmp_path):
    flags = ("--limit", "50", "--resize", "4", "--clients", "3", "--out", "x")
    printed, _ = fcjax("partition", *flags)
    arrays, dataset = (
        np.load(tmp_path / "x" / "examples.npz"),
        load("digits", limit=50, resize=4),
    )
    np.testing.assert_array_equal(arrays["x"], dataset.examples)
    np.testing.assert_array_equal(arrays["y"], dataset.labels)
    lines = printed.splitlines()
    assert lines[0] == "data set: digits"
    assert lines[-5:] == [
        "examples: x/examples.npz (arrays x and y)",
        "partitions: 1 file, the first is x/p=0.25,seed=0.csv",
        "clients: 3 per partition",
        "examples without a client: 2 per partition",
        "next: fill the column cluster, and run fcjax matrix --assignments",
    ]


def test_clients_of_the_data_without_labels(fcjax, few, tmp_path):
    (tmp_path / "x").mkdir()  # an empty folder is used
    flags = ("--no-labels", "--failure-rate", "0.5", "--out", "x")
    printed, code = fcjax("partition", *few, *flags)
    assert not code
    clients = read(tmp_path / "x" / "natural=1,seed=0.csv")
    assert clients.tolist() == [0, 1, 0, 2, 0, -1, 2, 1]  # the largest client first
    assert [*np.load(tmp_path / "x" / "examples.npz")] == ["x"]
    assert "warning: --failure-rate has no effect on partitions\n" in printed


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--overlap 0.5 --out x", "--overlap gives an example to several clients"),
        ("--out full", "--out full must be new or an empty folder"),
        ("--out full/file", "--out full/file must be new or an empty folder"),
        (
            "--clients 3 5 --out x",
            "--clients takes one number in this command, got 3 5",
        ),
        ("--client-size 3 5 --out x", "--client-size takes one number in this command"),
        ("--p 1e-7 1.00000001e-7 --out x", "two levels with the name p=1e-07,seed=0"),
        ("--extra-split test --out x", "omit --extra-split"),
        ("--seed -1 --out x", "--seed must be at least 0, got -1"),
        ("--p 2 --out x", "--p must lie in [0, 1], got 2"),
        ("--p 0 --alpha 1 --out x", "are two partition rules"),
        ("--wings 2 --out x", "unknown flag --wings"),
        ("--seed 0", "--out is missing; see --help"),
    ],
)
def test_a_wrong_flag_gets_one_line_and_writes_nothing(fcjax, tmp_path, flags, told):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    line, code = fcjax("partition", *flags.split())
    assert (code, line.count("\n")) == (2, 1), line
    assert told in line
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_leaves_no_folder(fcjax, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", fail)
    line, code = fcjax("partition", "--limit", "50", "--out", "x")
    assert code == 1
    assert "No space left" in line
    assert not [*tmp_path.iterdir()]
