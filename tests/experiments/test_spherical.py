"""The template: its numbers, its script, and that --method finds what a copy breaks."""

import csv
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import spherical
from sklearn.datasets import load_digits

from fcjax import engine, script
from tests import test_contract as contract
from tests.algorithms.federations import federate, rounds
from tests.methods import of_file

TEMPLATE = Path(__file__).parents[2] / "experiments" / "spherical.py"


def one_round(centroids, pool, clients, *, momentum=0.0, absent=()):
    """The state after a round from these centroids, and the round's metrics."""
    method = spherical.spherical_kmeans(num_clusters=len(centroids), momentum=momentum)
    federation = federate(pool, clients, absent=absent)
    start = spherical.State(jnp.array(centroids), jnp.float32(jnp.inf), jnp.int32(0))
    return method.stages[0].round(jax.random.key(0), start, federation)


def test_a_round_by_hand():
    # At unit length (0.6, 0.8), (0.8, 0.6) and (1, 0), and of an absent client (0, 1).
    pool = np.array([[3.0, 4.0], [4.0, 3.0], [5.0, 0.0], [0.0, 9.0]])
    clients = [np.array([0, 1]), np.array([2]), np.array([3])]
    start = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]
    state, metrics = one_round(start, pool, clients, absent=(2,))
    # The first has (0.8, 0.6) + (1, 0) = 0.6 (3, 1), the last one nothing.
    root = np.sqrt(10)
    expected = np.array([[3 / root, 1 / root], [0.6, 0.8], [-1.0, 0.0]])
    np.testing.assert_allclose(state.centroids, expected, atol=1e-6)
    assert metrics["loss"] == pytest.approx(1 - (0.8 + 0.8 + 1) / 3)
    assert metrics["participants"] == 2
    step = np.linalg.norm(expected - np.array(start))
    assert state.moved == pytest.approx(step)
    # With momentum 1 half way between the two directions.
    state, _ = one_round(start, pool, clients, momentum=1.0, absent=(2,))
    np.testing.assert_allclose(state.centroids[1], [1 / root, 3 / root], atol=1e-6)
    np.testing.assert_array_equal(state.centroids[2], [-1.0, 0.0])


def test_rounds_are_those_of_a_loop_over_examples(key):
    pool = load_digits().data[:400] / 16
    clients = np.split(np.random.default_rng(0).permutation(400), [30, 180, 250])
    federation = federate(pool, clients, absent=(2,), num_clusters=10)
    method = spherical.spherical_kmeans(num_clusters=10, momentum=0.3)
    centroids = np.array(method.init(key, federation).centroids, float)
    unit = pool / np.linalg.norm(pool, axis=1, keepdims=True)
    answering = np.concatenate([clients[0], clients[1], clients[3]])
    gaps = np.abs(unit[answering][None] - centroids[:, None]).max(axis=2)
    assert gaps.min(axis=1).max() < 1e-5  # it starts at rows of those that answer

    for _ in range(4):
        sums = np.zeros((10, 64))
        for row in unit[answering]:
            sums[np.argmax(centroids @ row)] += row
        for k, total in enumerate(sums):
            if np.any(total):
                new = total / np.linalg.norm(total) + 0.3 * centroids[k]
                centroids[k] = new / np.linalg.norm(new)
    state, _ = rounds(method, key, federation, 4)
    np.testing.assert_allclose(state.centroids, centroids, atol=1e-5)
    clusters = method.assign(state, federation)
    for rows, found in zip(clients, clusters, strict=True):
        expected = np.argmax(unit[rows] @ centroids.T, axis=1)
        np.testing.assert_array_equal(found[: len(rows)], expected)


def test_the_script_sweeps_and_scores(tmp_path):
    labels = np.repeat(np.arange(4), 30)
    noise = np.random.default_rng(0).normal(size=(120, 6))
    np.savez(tmp_path / "x.npz", x=20 + noise + 12 * np.eye(6)[labels], y=labels)
    args = spherical.Args(
        dataset=str(tmp_path / "x.npz"),
        clients=(4,),
        p=(0.0, 1.0),
        momentum=(0.0, 0.5),
        plot=False,
        out=tmp_path / "out",
    )
    script.run(lambda: [(args, spherical.describe)])
    with (tmp_path / "out" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # It is the central method, however the examples are dealt.
    assert [float(row["nmi"]) > 0.99 for row in rows] == [True] * 4
    assert {(row["p"], row["momentum"]) for row in rows} == {
        (p, momentum) for p in ("0.0", "1.0") for momentum in ("0.0", "0.5")
    }


def test_the_template_is_short():
    assert len(TEMPLATE.read_text().splitlines()) <= 80


def broken(folder: Path, old: str, new: str) -> Path:
    """A copy of the template with one thing changed."""
    text = TEMPLATE.read_text()
    assert text.count(old) == 1
    file = folder / "mine.py"
    file.write_text(text.replace(old, new))
    return file


def trained(file: Path) -> contract.Trained:
    return contract.Trained(engine.Program(of_file(file)), [], None, ())


def test_a_copy_that_counts_padding_is_found(tmp_path):
    file = broken(tmp_path, "x * mask[:, None]", "x")
    with pytest.raises(AssertionError, match=r"\.centroids"):
        contract.test_padding_changes_nothing(trained(file))


def test_a_copy_that_lets_absent_clients_in_is_found(tmp_path):
    file = broken(tmp_path, "own, here.astype(float)", "own, jnp.ones(here.shape)")
    with pytest.raises(AssertionError, match=r"\.centroids"):
        contract.test_what_an_absent_client_holds_changes_nothing(trained(file))


def test_a_copy_that_branches_on_a_scalar_is_found(tmp_path):
    file = broken(
        tmp_path, "+ momentum * old", "+ (momentum * old if momentum > 1 else 0)"
    )
    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"mine\.py"):
        contract.test_a_scalar_can_be_swept(trained(file), None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def contract", "def my_contract", r"a function contract\(scalar\)"),
        ("import jax\n", "import jaxx\n", "No module named 'jaxx'"),
        ("momentum=scalar", "inertia=scalar", "keyword argument 'inertia'"),
    ],
)
def test_a_file_that_is_no_method_is_refused_in_one_line(tmp_path, old, new, message):
    with pytest.raises(ValueError, match=message) as error:
        of_file(broken(tmp_path, old, new))
    assert str(error.value).startswith(f"--method {tmp_path}")
    assert "\n" not in str(error.value)


def run_contract(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "tests/test_contract.py", *options]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", "--method", str(file)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )


def test_the_suite_holds_the_method_of_the_file_alone(tmp_path):
    file = broken(tmp_path, "x * mask[:, None]", "x")
    run = run_contract(file, "-k", "padding or outside")
    assert "FAILED" in run.stdout
    assert "test_padding_changes_nothing[mine]" in run.stdout
    assert "passed" not in run.stdout  # what is of other methods is left out
    run = run_contract(tmp_path / "no.py")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "No such file" in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1
