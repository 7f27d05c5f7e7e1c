"""A method in a file: one program for all runs, and the weights of each."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.results import exported
from fcjax.results.store import write_arrays
from fcjax.types import FederatedClustering, State


class Server(NamedTuple):
    params: dict[str, dict[str, jax.Array]]
    key: jax.Array


def build(hyper):
    """Embeds by one matrix; a swept temperature decides on the assignment."""

    def embed(state, federation):
        kernel = state.server.params["layer"]["kernel"]
        return federation.pool[federation.indices] @ kernel

    def assign(state, federation):
        z = embed(state, federation) / hyper["temperature"]
        return jnp.argmin(abs(z - 1), axis=-1)

    return FederatedClustering(embed, (), embed, assign)  # begun it is never


def run(kernel, temperature):
    hyper = {"learning_rate": jnp.float32(0.1), "temperature": jnp.float32(temperature)}
    layer = {"kernel": jnp.array(kernel), "unused": jnp.ones((3, 7))}
    server = Server({"layer": layer}, jax.random.key(0))
    return hyper, State(server, jnp.zeros((5, 1000)))


RUNS = [
    run([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], 1.0),
    run([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]], 4.0),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The program of the runs, which all need only this, in a file each."""
    structure = jax.eval_shape(lambda: RUNS[0])
    program = exported.export_model(build, *structure, shape=(3,), num_clusters=2)
    assert program.paths == ("hyper/temperature", "params/layer/kernel")
    folder = tmp_path_factory.mktemp("frozen")
    paths = [folder / "0.npz", folder / "1.npz"]
    for path, run in zip(paths, RUNS, strict=True):
        weights = jax.tree.map(np.asarray, exported.select_weights(program, *run))
        arrays = exported.to_arrays(program, weights, np.zeros((2, 2)))
        write_arrays(path, arrays, compressed=False)
    return paths


def test_runs_share_a_program_and_differ_in_weights_and_settings(files):
    x = np.array([[1.0, 4.0, 9.0], [5.0, 1.0, 9.0]], np.float32)
    first, second = (exported.predict(exported.read(path), x) for path in files)
    np.testing.assert_array_equal(first.embedding, [[1, 4], [5, 1]])
    np.testing.assert_array_equal(first.clusters, [0, 1])
    # Kernel: (x1, x2) -> (3 x2, 2 x1). Over 4: (3, 0.5) and (0.75, 2.5).
    np.testing.assert_array_equal(second.embedding, [[12, 2], [3, 10]])
    np.testing.assert_array_equal(second.clusters, [1, 0])
    # More examples than a batch keep their order.
    x = np.arange(3 * 600, dtype=np.float32).reshape(600, 3)
    found = exported.predict(exported.read(files[0]), x)
    np.testing.assert_array_equal(found.embedding, x[:, :2])


@pytest.mark.parametrize("damage", ["short", "flipped", "without"])
def test_a_damaged_file_is_one_error(files, tmp_path, damage):
    path, content = tmp_path / "model.npz", bytearray(files[1].read_bytes())
    if damage == "without":
        np.savez(path, centers=np.zeros((2, 2)))
    else:
        content[content.index(b"kernel.npy") + 200] ^= damage == "flipped"
        path.write_bytes(content[: len(content) // (1 + (damage == "short"))])
    with pytest.raises(ValueError, match=r"model\.npz is not a readable model"):
        exported.read(path)
