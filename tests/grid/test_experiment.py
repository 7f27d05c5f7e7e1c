"""The script from its flags to the files it leaves, and what it says to bad input."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import ccfc
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tyro

from fcjax import evaluation, session
from fcjax.data import heterogeneous, load
from fcjax.grid import experiment
from fcjax.grid.plan import Method
from fcjax.types import FederatedClustering, Stage

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "experiments" / "ccfc.py"
TINY = [
    "--limit=120",
    "--clients=3",
    "--pretrain-rounds=3",
    "--cluster-rounds=2",
    "--local-epochs=1",
    "--batch-size=20",
    "--latent-size=8",
    "--checkpoint-interval=0",
]


VECTORS = [
    "--clients=3",
    "--pretrain-rounds=3",
    "--cluster-rounds=2",
    "--local-epochs=1",
    "--batch-size=10",
    "--latent-size=4",
    "--checkpoint-interval=0",
]
"""For `vectors`, whose networks compile sooner than those of images."""


def vectors(folder):
    """Writes 16, 20 and 26 rows of three classes."""
    labels = np.repeat([0, 1, 2], [16, 20, 26])
    noise = np.random.default_rng(0).normal(size=(62, 5))
    np.savez(folder / "vectors.npz", x=noise + 3 * np.eye(5)[labels], y=labels)
    return folder / "vectors.npz"


def prepare(*flags, describe=ccfc.describe):
    return experiment.prepare(tyro.cli(ccfc.Args, args=[*flags]), describe)


def execute(out, *flags, describe=ccfc.describe):
    """Runs the script in this process."""
    session.execute(prepare(f"--out={out}", *flags, describe=describe))


def run(out, *flags):
    """Runs the script in a process of its own, which shares what is compiled here;
    returns what it printed."""
    command = [sys.executable, str(SCRIPT), f"--out={out}", *flags]
    cache = jax.config.values["jax_compilation_cache_dir"]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": cache}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def without_times(table):
    timing = {"seconds", "compile_seconds"}
    return [{k: v for k, v in row.items() if k not in timing} for row in table]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dataset=digit"], r"--dataset 'digit' is unknown.* nearest.* digits"),
        (["--dataset=mnist", "--data-dir=nowhere"], r"not prepared.*download_and_prep"),
        (["--p=1.5"], r"--p must lie in \[0, 1\], got 1.5"),
        (["--p=nan"], r"--p must lie in \[0, 1\]"),
        (["--alpha=0"], r"--alpha must be positive"),
        (
            ["--class-share=0.05"],
            r"--class-share must lie in .* \[0.1, 1\] .* got 0.05",
        ),
        (["--alpha=1", "--class-share=1"], r"--alpha and --class-share are two rules"),
        (
            ["--alpha=1", "--classes-per-client=2"],
            r"--alpha and --classes-per-client are two rules",
        ),
        (["--classes-per-client=0"], r"--classes-per-client must lie in 1..10, .* 0"),
        (["--classes-per-client=11"], r"--classes-per-client must lie in 1..10, .* 11"),
        (
            ["--classes-per-client=1", "--standalone"],
            r"--classes-per-client must lie in 2..10 where .* give --clusters",
        ),
        (["--client-size=0"], r"--client-size must be at least 1, got 0"),
        (["--client-size=9"], r"--client-size must be at least --clusters 10, got 9"),
        (["--clients=0"], r"--clients must be at least 1, got 0"),
        (["--clusters=1"], r"--clusters must be at least 2, got 1"),
        (["--clusters=180"], r"--clusters 180 with --clients 10 .* digits has 1797"),
        (["--clients=1798"], r"--clusters 10 with --clients 1798 .* digits has 1797"),
        (["--limit=1798"], r"--limit must lie in 1..1797"),
        (["--failure-rate=1"], r"--failure-rate 1.0 fails all 10 clients"),
        (["--failure-rate=2"], r"--failure-rate"),
        (["--split=test"], r"--split must be all for digits"),
        (["--local-epochs=0"], r"--local-epochs must be at least 1, got 0"),
        (["--batch-size=-3"], r"--batch-size must be at least 1, got -3"),
        (["--learning-rate=inf"], r"--learning-rate must be finite"),
        (["--model-weight=-1"], r"--model-weight must be finite and at least 0"),
        (["--evaluate-every=0"], r"--evaluate-every must be at least 1"),
        (["--runs-per-call=0"], r"--runs-per-call must be at least 1, got 0"),
        (["--clients", "5", "1798"], r"--clients 1798 take at least"),
        (["--batch-size", "9", "0"], r"--batch-size must be at least 1, got 0"),
        (["--shard=2/2"], r"--shard is i/n with i from 0 to n - 1, got '2/2'"),
        (["--shard=half"], r"--shard is i/n .* got 'half'"),
        (["--shard=1/2"], r"--shard 1/2: the grid has 1 runs"),
    ],
)
def test_bad_input_gets_one_line_that_names_the_flag(
    flags, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message) as error:
        prepare(*flags)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def matrices(settings):
    """A method whose clients keep a million matrices of all pairs of their examples."""

    def init(key, federation):
        num_clients, size = federation.indices.shape
        return jnp.zeros((num_clients, size, size, 10**6))

    stage = Stage("by hand", init, init, settings["rounds"], init)
    return FederatedClustering(init, (stage,), init, init)


def describe_matrices(args, dataset, num_clients, num_clusters):
    return Method("by hand", {"rounds": 1}, matrices, "client-mean", {})


def test_a_state_beyond_all_memory_is_refused_before_anything_is_written(tmp_path):
    """1797 examples squared, a million float32 of each: 12 TiB."""
    out = tmp_path / "out"
    flags = [f"--out={out}", "--clients=1", "--p=0", "--clusters=2"]
    with pytest.raises(
        ValueError, match=r"^the state of one run takes 3 x 11.7 TiB, .*--client-size"
    ) as error:
        prepare(*flags, describe=describe_matrices)
    assert "\n" not in str(error.value)
    assert not out.exists()
    # Two examples: 15 MiB, under each of the flags.
    prepare(*flags, "--client-size=2", describe=describe_matrices)
    prepare(*flags, "--limit=2", describe=describe_matrices)


def test_what_a_round_holds_beside_the_state_is_no_reason_to_refuse():
    def describe(*args):
        return describe_matrices(*args)._replace(working_bytes=2**60)

    found = prepare("--clusters=2", "--client-size=2", describe=describe)
    assert len(found.groups) == 1


def test_data_that_is_not_a_number_is_refused():
    dataset = load("digits")
    images = dataset.examples / 255.0
    images[3, 2, 2] = np.nan
    from fcjax.data.dataset import validate

    with pytest.raises(ValueError, match=r"NaN|infinite"):
        validate(dataset._replace(examples=images))


def test_the_script_prints_the_error_and_leaves_nothing(tmp_path):
    command = [sys.executable, str(SCRIPT), "--p=7", f"--out={tmp_path / 'out'}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr == "ccfc.py: error: --p must lie in [0, 1], got 7.0\n"
    assert not (tmp_path / "out").exists()


def test_explicit_flags_win_over_presets_and_data_sets():
    def settings(*flags):
        return prepare(*flags).groups[0].method.settings

    assert settings()["local_epochs"] == 4
    assert settings("--preset=smoke")["local_epochs"] == 1
    assert settings("--preset=smoke", "--local-epochs=3")["local_epochs"] == 3
    paper = settings("--preset=paper")
    assert (paper["cluster_rounds"], paper["num_init"], paper["own_init"]) == (
        30,
        10,
        True,
    )
    assert not settings("--preset=paper", "--own-init=False")["own_init"]
    assert not settings("--preset=paper", "--pretrain-rounds=0")["own_init"]
    assert not settings()["own_init"]
    assert settings()["backbone"] == "conv"
    assert settings("--model-weight", "0", "0.1")["model_weight"] == (0.0, 0.1)


def test_a_run_leaves_what_it_promises(tmp_path):
    out = tmp_path / "out"
    flags = ("--p", "0", "0.5", "--seed", "0", "1", "--failure-rate=0.34")
    printed = run(out, *TINY, *flags, "--runs-per-call=4")
    assert "±" in printed
    assert (out / "figures" / "learning_curves.png").stat().st_size > 10_000
    assert (out / "figures" / "embedding.png").stat().st_size > 10_000
    assert json.loads((out / "config.json").read_text())["backbone"] == "conv"

    results, history = rows(out / "results.csv"), rows(out / "history.csv")
    assert len(results) == 4
    assert len(history) == 4 * 5
    assert [row["stage"] for row in history[::4]] == ["pretrain"] * 3 + ["cluster"] * 2

    # The figures of a row follow from the file of assignments and the true labels.
    dataset = experiment.data.stratified_subset(load("digits"), 120)
    saved = np.load(out / "assignments.npz")
    for i, row in enumerate(results):
        found = np.flatnonzero(
            (saved["p"] == float(row["p"])) & (saved["seed"] == float(row["seed"]))
        )
        cluster, client = saved["cluster"][found[0]], saved["client"][found[0]]
        nmi = evaluation.nmi(dataset.labels, cluster)
        assert float(row["nmi"]) == pytest.approx(nmi, abs=1e-6)
        assert float(row["best_nmi"]) == max(float(r["nmi"]) for r in history[i::4])
        partition = heterogeneous(
            dataset.labels, 3, float(row["p"]), seed=int(row["seed"])
        )
        for number, held in enumerate(partition.clients):
            np.testing.assert_array_equal(
                np.flatnonzero(client == number), sorted(held)
            )

    # One client of three never answers: two send and receive.
    for row in history:
        assert row["participants"] == "2"
        assert row["up_network"] == row["down_network"]
        # K centroids of D = 8 float32, from two clients, once more before the first
        # round of the second stage.
        times = 2 if (row["stage"], row["round"]) == ("cluster", "1") else 1
        assert row["up_centroids"] == str(times * 2 * 10 * 8 * 4)


def test_standalone_clients_are_scored_one_by_one(tmp_path):
    out, data = tmp_path / "alone", vectors(tmp_path)
    flags = [*VECTORS, "--pretrain-rounds=0", "--standalone", "--no-plot", "--p=0"]
    execute(out, f"--dataset={data}", *flags)
    (row,) = rows(out / "results.csv")
    assert row["scope"] == "client-pooled"
    labels = np.load(data)["y"]
    saved = np.load(out / "assignments.npz")
    cluster, client = saved["cluster"][0], saved["client"][0]
    each = [evaluation.nmi(labels[client == i], cluster[client == i]) for i in range(3)]
    assert float(row["nmi"]) == pytest.approx(np.mean(each), abs=1e-5)
    history = rows(out / "history.csv")
    assert not any(name.startswith(("up_", "down_")) for name in history[0])
