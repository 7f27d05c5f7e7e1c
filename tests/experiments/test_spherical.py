"""The template: its numbers, its script, and that --method finds what a copy breaks."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from sklearn.datasets import load_digits

from experiments import spherical
from fcjax import engine
from fcjax.types import State
from tests import conftest
from tests import test_contract as contract
from tests.algorithms.federations import federate
from tests.methods import of_file

TEMPLATE = Path(__file__).parents[2] / "experiments" / "spherical.py"


def test_rounds_are_those_of_a_loop_over_examples(key):
    pool = load_digits().data[:400] / 16
    clients = np.split(np.random.default_rng(0).permutation(400), [30, 180, 250])
    federation = federate(pool, clients, absent=(2,), num_clusters=10)
    method = spherical.spherical_kmeans(num_clusters=10, momentum=0.3)
    state = jax.jit(method.init)(key, federation)
    unit = pool / np.linalg.norm(pool, axis=1, keepdims=True)
    answering = unit[np.concatenate([clients[0], clients[1], clients[3]])]
    # Pixels are not negative: none is nearest to this one, which stays where it is.
    first = state.server.centroids.at[9].set(-1 / 8)
    state = State(state.server._replace(centroids=first))
    centroids = np.array(first, float)
    round = jax.jit(method.stages[0].round)
    for _ in range(4):
        sums, old = np.zeros((10, 64)), centroids.copy()
        for row in answering:
            sums[np.argmax(centroids @ row)] += row
        for k, total in enumerate(sums):
            if np.any(total):
                new = total / np.linalg.norm(total) + 0.3 * centroids[k]
                centroids[k] = new / np.linalg.norm(new)
        state, metrics = round(key, state, federation)
        loss = 1 - (answering @ old.T).max(axis=1).mean()
        assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(state.server.centroids, centroids, atol=1e-5)
    np.testing.assert_array_equal(state.server.centroids[9], np.full(64, -1 / 8))
    clusters = jax.jit(method.assign)(state, federation)
    for rows, found in zip(clients, clusters, strict=True):
        expected = np.argmax(unit[rows] @ centroids.T, axis=1)
        np.testing.assert_array_equal(found[: len(rows)], expected)


# --- copies of it


def changed(folder: Path, old: str, new: str) -> Path:
    """A copy of the template with one thing changed."""
    text = TEMPLATE.read_text()
    assert text.count(old) == 1
    file = folder / "mine.py"
    file.write_text(text.replace(old, new))
    return file


@pytest.mark.parametrize(
    ("old", "new", "error", "told", "test"),
    [
        (
            *("x * mask[:, None]", "x", AssertionError, r"\.centroids"),
            contract.test_spread_over_devices_a_run_is_what_it_is_alone,
        ),
        (
            *("participating.astype(float)", "jnp.ones(participating.shape)"),
            *(AssertionError, r"\.centroids"),
            lambda _, x: contract.test_what_an_absent_client_holds_changes_nothing(x),
        ),
        (
            *("+ momentum * before", "+ (momentum * before if momentum > 1 else 0)"),
            *(jax.errors.TracerBoolConversionError, "boolean conversion"),
            lambda _, x: contract.test_a_scalar_can_be_swept(x),
        ),
    ],
    ids=["counts padding", "lets absent clients in", "branches on a scalar"],
)
def test_what_a_copy_breaks_is_found(tmp_path, old, new, error, told, test):
    method = of_file(changed(tmp_path, old, new))
    with pytest.raises(error, match=told):
        test(method, contract.Trained(engine.Program(method), [], None, ()))


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
        of_file(changed(tmp_path, old, new))
    assert str(error.value).startswith(f"--method {tmp_path}")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path):
    option = SimpleNamespace(method=tmp_path / "no.py")
    session = SimpleNamespace(config=SimpleNamespace(option=option))
    with pytest.raises(pytest.UsageError, match=r"--method .*No such file") as error:
        conftest.pytest_sessionstart(session)
    assert "\n" not in str(error.value)


def test_the_suite_holds_the_method_of_the_file_alone(tmp_path):
    file = changed(tmp_path, "x * mask[:, None]", "x")
    command = [sys.executable, "-m", "pytest", "tests/test_contract.py"]
    command += ["--collect-only", "-p", "no:cacheprovider", "--method", str(file)]
    folder = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    name = "tests/test_contract.py::test_a_run_depends_on_its_key"
    collected = [line for line in run.stdout.splitlines() if "::" in line]
    assert f"{name}[mine]" in collected
    # Tests of other methods are not collected. The method has no uploads, so pytest
    # lists the two tests of uploads without a method, and skips them.
    assert sum("[NOTSET]" in line for line in collected) == 2
    assert all("[mine" in line or "[NOTSET]" in line for line in collected)


UPLOADING = """
    def uploads(key, state, federation):
        def one_client(x, mask, present):
            c = state.server.centroids
            nearest = jnp.matmul(x, c.T, precision="highest").argmax(axis=1)
            counts = jax.ops.segment_sum(mask.astype(int), nearest, num_clusters)
            sums = jax.ops.segment_sum(x * mask[:, None], nearest, num_clusters)
            points = jnp.where(present, sums / counts[:, None], jnp.nan)
            return types.Uploads(points, counts)

        present = server.participants(federation)
        x = embed(state, federation)
        return clients.for_each(one_client, x, federation.mask, present)

    return types.FederatedClustering(init, (stage,), embed, assign, uploads=uploads)
"""


@pytest.mark.parametrize(
    ("new", "summary"),
    [(None, "2 skipped"), (UPLOADING, "2 passed")],
    ids=["no uploads", "centroids"],
)
def test_upload_tests_of_a_file(tmp_path, new, summary):
    """The guide's line for the template, and for copies that upload centroids."""
    old = "\n    return types.FederatedClustering(init, (stage,), embed, assign)\n"
    file = TEMPLATE if new is None else changed(tmp_path, old, new)
    command = [sys.executable, "-m", "pytest", "tests/test_contract.py", "-k", "upload"]
    command += ["-p", "no:cacheprovider", "--method", str(file)]
    folder = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert summary in run.stdout.splitlines()[-1], run.stdout
    assert run.returncode == 0
