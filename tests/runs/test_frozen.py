"""A method in a file: one program for all runs, and the weights of each."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.runs import frozen
from fcjax.types import FederatedClustering


class State(NamedTuple):
    params: dict[str, dict[str, jax.Array]]
    opt_state: jax.Array
    key: jax.Array


def build(hyper):
    """Embeds by one matrix; a swept temperature decides on the assignment."""

    def embed(state, federation):
        return federation.pool[federation.indices] @ state.params["layer"]["kernel"]

    def assign(state, federation):
        z = embed(state, federation) / hyper["temperature"]
        return jnp.argmin(abs(z - 1), axis=-1)

    def init(key, federation):
        raise NotImplementedError

    return FederatedClustering(init, (), embed, assign)


def run(kernel, temperature):
    hyper = {
        "learning_rate": jnp.float32(0.1),
        "temperature": jnp.float32(temperature),
    }
    params = {
        "layer": {"kernel": jnp.array(kernel), "unused": jnp.ones((3, 7))},
    }
    return hyper, State(params, jnp.zeros((5, 1000)), jax.random.key(0))


RUNS = [
    run([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], 1.0),
    run([[0.0, 2.0], [3.0, 0.0], [0.0, 0.0]], 4.0),
]


@pytest.fixture(scope="module")
def program():
    structure = jax.eval_shape(lambda: RUNS[0])
    return frozen.freeze(build, *structure, shape=(3,), num_clusters=2)


def written(path, program, number):
    hyper, state = RUNS[number]
    weights = frozen.pick(program, hyper, state)
    weights = {name: np.asarray(leaf) for name, leaf in weights.items()}
    frozen.write(path, program, weights, np.zeros((2, 2)))
    return path


def test_the_weights_are_what_embedding_and_assigning_needs(program):
    assert program.paths == ("hyper/temperature", "params/layer/kernel")


def test_runs_share_a_program_and_differ_in_weights_and_settings(program, tmp_path):
    x = np.array([[1.0, 4.0, 9.0], [5.0, 1.0, 9.0]], np.float32)
    first, second = (
        frozen.predict(frozen.read(written(tmp_path / f"{i}.npz", program, i)), x)
        for i in range(2)
    )
    np.testing.assert_array_equal(first.embedding, [[1, 4], [5, 1]])
    np.testing.assert_array_equal(first.clusters, [0, 1])
    # Kernel: (x1, x2) -> (3 x2, 2 x1). Over 4: (3, 0.5) and (0.75, 2.5).
    np.testing.assert_array_equal(second.embedding, [[12, 2], [3, 10]])
    np.testing.assert_array_equal(second.clusters, [1, 0])


def test_more_examples_than_a_batch_keep_their_order(program, tmp_path):
    model = frozen.read(written(tmp_path / "model.npz", program, 0))
    x = np.arange(3 * 600, dtype=np.float32).reshape(600, 3)
    np.testing.assert_array_equal(frozen.predict(model, x).embedding, x[:, :2])


@pytest.mark.parametrize("damage", ["short", "flipped", "without"])
def test_a_damaged_file_is_one_error(program, tmp_path, damage):
    path = written(tmp_path / "model.npz", program, 1)
    content = bytearray(path.read_bytes())
    if damage == "short":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        place = content.index(b"kernel.npy") + 200
        content[place] ^= 1
        path.write_bytes(content)
    else:
        np.savez(path, centers=np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"model\.npz is not a readable model"):
        frozen.read(path)
