"""The script from its flags to the files it leaves, and what it says to bad input."""

import dataclasses
import json
import re
import sys
from collections import UserDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score

from experiments.spherical import Spherical
from fcjax.cli import arguments
from fcjax.cli.errors import with_flags
from fcjax.cli.main import main
from fcjax.data import heterogeneous, load
from fcjax.data.split import Split
from fcjax.methods import SCRIPTS
from fcjax.methods.base import MethodSpec
from fcjax.sweep import experiment, train
from fcjax.sweep.plan import Task
from fcjax.types import FederatedClustering, Stage, State
from tests.sweep.drifting import described_by, rows


def tasks(script, *words):
    return arguments.read(SCRIPTS[script], words)[0]


def prepare(*words, describe=None):
    (task,) = tasks("ccfc", *words)
    if describe is not None:
        task = dataclasses.replace(task, method=described_by(describe)())
    return experiment.prepare(task)


def execute(out, *words, describe=None):
    """Runs the script in this process."""
    train.execute(prepare(f"--out={out}", *words, describe=describe))


# --- bad input

RULES = "are two partition rules; give only one"
RANGE = "--class-range must end in 2..10 if clients have as many clusters as classes"
DRAWN = "--classes-per-client must lie in 2..10 if clients have as many clusters"
TWICE = ["clients 2 2", "clusters 3 2 3", "p 0.5 0.5", "client-size 40 40"]
TWICE += ["failure-rate 0 0", "seed 1 1", "batch-size 4 4"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        # What dealing itself refuses: see tests/data/test_refused.py.
        ("--p=1.5", r"^--p must lie in \[0, 1\], got 1.5"),
        ("--classes-per-client=1 --standalone", f"{DRAWN}.* set --clusters"),
        ("--classes-per-client 2 11 --standalone", DRAWN),
        ("--class-range 2 3", r"^--class-range requires --overlap"),
        (
            "--overlap=0 --class-range 2 11 --standalone",
            rf"^{RANGE}, got \(11,\); or set --clusters$",
        ),
        ("--overlap=0 --class-range 1 1 --standalone", RANGE),
        ("--alpha=1 --class-share=1", f"^--alpha and --class-share {RULES}$"),
        (
            "--classes-per-client=2 --overlap=0",
            f"^--classes-per-client and --overlap {RULES}$",
        ),
        ("--client-size=0", r"--client-size must be at least 1, got 0"),
        ("--client-size 10 9", r"--client-size must be at least --clusters 10, got 9"),
        ("--clients=0", r"--clients must be at least 1, got 0"),
        ("--clusters=1", r"--clusters must be at least 2, got 1"),
        ("--clusters=180", r"--clusters 180 with --clients 10 .* digits has 1797"),
        ("--clients 5 1798", r"--clients 1798 require at least 17980 examples"),
        ("--failure-rate=1", r"^--failure-rate 1.0 makes all 10 clients fail"),
        ("--no-labels", r"--clusters is required"),
        (
            "--no-labels --clusters=2 --p 0 0.5",
            "^--p must be 0 for data",
        ),
        (
            "--no-labels --clusters=2 --overlap 0",
            "^--overlap requires labels",
        ),
        ("--local-epochs=0", r"--local-epochs must be at least 1, got 0"),
        ("--batch-size 9 0", r"--batch-size must be at least 1, got 0"),
        ("--learning-rate=inf", r"--learning-rate must be finite"),
        ("--model-weight=-1", r"--model-weight must be finite and at least 0"),
        (
            "--pretrain-rounds=0 --cluster-rounds=0",
            "^--pretrain-rounds and --cluster-rounds must not both be 0",
        ),
        ("--evaluate-every=0", r"--evaluate-every must be at least 1"),
        ("--runs-per-call=0", r"--runs-per-call must be at least 1, got 0"),
        ("--shard=2/2", r"--shard must be i/n with i from 0 to n - 1, got '2/2'"),
        ("--shard=1/2", r"--shard 1/2 has no run, since the grid has 1 runs"),
        *(
            (f"--{flag}", f"--{flag.split()[0]} takes one or more different values")
            for flag in TWICE
        ),
    ],
)
def test_bad_input_gets_one_line_that_names_the_flag(
    flags, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r".") as error:
        prepare(*flags.split())
    assert re.search(message, told := with_flags(str(error.value)))
    assert "\n" not in told
    assert list(tmp_path.iterdir()) == []


def test_a_state_beyond_all_memory_is_refused_before_anything_is_written(tmp_path):
    """A method whose clients keep a million matrices of all pairs of their examples:
    1797 squared, a million float32 of each, 12 TiB."""
    out, size = tmp_path / "out", 0

    def matrices(settings):
        def init(key, federation):
            shape = federation.indices.shape
            return State((), jnp.zeros((*shape, shape[1], 10**6)))

        stage = Stage("by hand", init, init, settings["rounds"], init)
        return FederatedClustering(init, (stage,), init, init)

    def describe(*_):
        return MethodSpec("by hand", {"rounds": 1}, matrices, "client-mean", {}, size)

    flags = [f"--out={out}", "--clients=1", "--p=0", "--clusters=2"]
    told = r"^the state of one run needs 35.2 TiB, .*`client_size`"
    with pytest.raises(ValueError, match=told) as error:
        prepare(*flags, describe=describe)
    assert "\n" not in str(error.value)
    assert not out.exists()
    # Two examples: 15 MiB, under each of the flags, whatever a round holds beside it.
    prepare(*flags, "--limit=2", describe=describe)
    size = 2**60
    prepare(*flags, "--client-size=2", describe=describe)


def test_the_script_ends_with_the_error_and_leaves_nothing(
    tmp_path, monkeypatch, capsys
):
    flags = ["--p=7", f"--out={tmp_path / 'out'}"]
    monkeypatch.setattr(sys, "argv", ["experiments/ccfc.py", *flags])
    with pytest.raises(SystemExit) as ended:
        main(SCRIPTS["ccfc"])
    line = "ccfc.py: error: --p must lie in [0, 1], got 7.0\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, line)
    assert not (tmp_path / "out").exists()


# --- what becomes of the flags


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="promised on a CPU alone")
def test_clients_are_padded_alike_whatever_else_is_in_the_grid():
    def slots(*flags):
        return {
            (point["p"], point["seed"]): batch.padded_size
            for batch in prepare(*flags).batches
            for point in batch.points
        }

    grid = slots("--p", "0", "0.5", "1", "--seed", "0", "1")
    for (p, seed), number in grid.items():
        assert slots(f"--p={p}", f"--seed={seed}") == {(p, seed): number}
    assert 1 < len(set(grid.values())) < len(grid)


def test_explicit_flags_win_over_presets_and_data_sets():
    def settings(*flags):
        return prepare(*flags).batches[0].method.settings

    assert settings()["learning_rate"] == (5e-3,)
    assert settings()["pretrain_rounds"] == 100
    assert settings("--preset=smoke")["pretrain_rounds"] == 2
    assert settings("--preset=smoke", "--pretrain-rounds=3")["pretrain_rounds"] == 3
    paper = settings("--preset=paper")
    names = ("cluster_rounds", "num_init", "own_init")
    assert [paper[name] for name in names] == [30, 10, True]
    assert not settings("--preset=paper", "--own-init=False")["own_init"]
    assert not settings("--preset=paper", "--pretrain-rounds=0")["own_init"]
    assert not settings()["own_init"]
    names = ("backbone", "view", "schedule")
    assert [paper[name] for name in names] == ["conv", "crop", "constant"]
    assert [settings()[name] for name in names] == ["conv-small", "affine", "cosine"]
    assert paper["learning_rate"] == (1e-3,)
    names = ("", "--clients=100", "--clients=101", "--preset=paper --clients=101")
    many = [settings(*x.split())["optimizer_state"] for x in names]
    assert many == ["kept", "kept", "reset", "kept"]
    many = settings("--clients=101", "--optimizer-state=kept")
    assert many["optimizer_state"] == "kept"
    assert settings()["decorrelation_weight"] == (0.1,)
    assert paper["decorrelation_weight"] == (0.0,)
    assert settings("--model-weight", "0", "0.1")["model_weight"] == (0.0, 0.1)
    assert prepare().batches[0].method.scope == "global"
    assert prepare("--standalone").batches[0].method.scope == "client-pooled"


class Read(UserDict):
    """The settings of a run, and which of them were asked for."""

    def __init__(self, values):
        super().__init__(values)
        self.names = set()

    def __getitem__(self, name):
        self.names.add(name)
        return super().__getitem__(name)


@pytest.mark.parametrize(
    ("methods", "elsewhere"),
    [
        *(
            (SCRIPTS[name].methods, set())
            for name in ("ccfc", "baselines", "sda-fdc", "orchestra")
        ),
        ((Spherical,), set()),
        # What only colour images, a certain affinity or a dirty start have.
        (SCRIPTS["fedmcc"].methods, {"scale"}),
        (SCRIPTS["fdsc"].methods, {"dimension", "power", "keep", "unit_diagonal"}),
        (SCRIPTS["fedcref"].methods, {"dirtiness"}),
    ],
)
def test_every_setting_of_a_method_reaches_its_builder(methods, elsewhere):
    dataset, own, settings = load("digits"), set(), set()
    for kind in methods:
        own |= {field.name for field in dataclasses.fields(kind)} - {"preset"}
        task = Task(kind(), split=kind().adapt(Split(clients=8), labelled=True))
        method = task.method.resolve(task.problem(dataset, 8, 10))
        swept = {k: v for k, v in method.settings.items() if isinstance(v, tuple)}
        first = {name: each[0] for name, each in swept.items()}
        values = Read({**method.settings, **first})
        method.build(values)
        assert values.names >= set(values), kind
        settings |= set(values)
    assert own - settings == elsewhere


# --- what a run leaves


def test_a_run_leaves_what_it_promises(finished):
    printed = (finished.parent / "printed.txt").read_text()
    both = sorted(f"{float(row['nmi']):.3f}" for row in rows(finished / "results.csv"))
    assert f" {', '.join(both)} |" in printed  # two seeds have no interval
    for name in ("learning_curves.png", "embedding.png"):
        assert (finished / "figures" / name).stat().st_size > 10_000
    config = json.loads((finished / "config.json").read_text())
    assert config["backbone"] == "mlp"
    swept = "p clients pretrain_rounds cluster_rounds local_epochs batch_size "
    swept += "latent_size failure_rate seed"
    assert config["swept"] == swept.split()
    defaults = "clusters decorrelation_weight learning_rate "
    defaults += "max_heterogeneity model_weight num_init"
    assert config["defaults"] == defaults.split()

    results, history = rows(finished / "results.csv"), rows(finished / "history.csv")
    assert [row["seed"] for row in results] == ["0", "1"]
    assert not {"client_size", "classes_per_client"} & {*config, *results[0]}
    kmeans = [row for row in history if row["stage"] == "k-means"]
    stages = ["pretrain"] * 4 + ["k-means"] * len(kmeans) + ["cluster"] * 4
    assert [row["stage"] for row in history] == stages
    assert {row["seed"] for row in kmeans} == {"0", "1"}

    # The figures of a row follow from the file of assignments and the true labels.
    labels = np.load(finished.parent / "rows.npz")["y"]
    saved = np.load(finished / "assignments.npz")
    for i, row in enumerate(results):
        (found,) = np.flatnonzero(saved["seed"] == int(row["seed"]))
        nmi = normalized_mutual_info_score(labels, saved["cluster"][found])
        assert float(row["nmi"]) == pytest.approx(nmi, abs=1e-6)
        scores = [float(r["nmi"]) for r in history[i::2] if r["nmi"]]
        assert float(row["best_nmi"]) == max(scores)
        dealt = heterogeneous(labels, 3, 0.0, seed=int(row["seed"]))
        for client, own in enumerate(dealt.clients):
            assert set(saved["client"][found][own]) == {client}

    # One client of three never answers: two send and receive.
    for row in history:
        assert row["participants"] == "2"
        if row["stage"] == "k-means":
            continue
        assert row["up_network"] == row["down_network"]
        if row["stage"] == "pretrain":
            assert not row["up_sums"]
            continue
        # Sums of K clusters of D = 8 float32, from two clients, once more when the
        # second stage began.
        times = 2 if row["round"] == "1" else 1
        assert row["up_sums"] == str(times * 2 * 4 * 8 * 4)


def test_a_setting_that_none_of_the_methods_uses_is_told(tmp_path, capsys):
    words = "lrsc dscn --num-rounds 3 --rank-factor 2 --keep 4 --clients 4"
    flags = ["--limit=100", "--fit-steps=1", "--no-plot", f"--out={tmp_path}"]
    main(SCRIPTS["fdsc"], ["--methods", *words.split(), *flags])
    told = [x for x in capsys.readouterr().out.splitlines() if "no effect" in x]
    assert told == [
        f"warning: {flag} has no effect, because lrsc and dscn do not use it"
        for flag in ("--keep", "--rank-factor")
    ]
