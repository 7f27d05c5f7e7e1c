"""A finished run as one file that embeds and assigns new examples.

The file holds an exported program and the weights that it takes, so that reading it
needs neither the method's code nor its settings. The runs of a grid share the program,
which takes much longer to export than a run's weights to write.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractDevice, AbstractMesh
from jaxtyping import Float, Int

from fcjax.data import Scaling
from fcjax.data.augment import to_float
from fcjax.types import FederatedClustering, Federation, PyTree, State

BATCH = 256
"""Examples a call; the last batch is filled up with copies of its first."""

WEIGHTS = "weights/"
"""What the names of the weights begin with in the file."""


ANYWHERE = AbstractMesh(
    *((), ()), abstract_device=AbstractDevice("any", num_cores=None, platform="any")
)
"""What is traced for it asks for nothing that is good on one platform alone."""


class Program(NamedTuple):
    """How a method embeds and assigns, without the weights of any run."""

    serialized: bytes
    """From (weights by path, float32 [BATCH, *F]) to (z [BATCH, D], clusters [BATCH]),
    for CPU, CUDA, ROCm and TPU."""
    paths: tuple[str, ...]
    """Of the weights: variables/params/Dense_0/kernel, centroids."""


class ExportedModel(NamedTuple):
    """What a model says of examples, and where its clusters lie."""

    apply: Callable[..., Any]
    """A batch of `BATCH` float32 examples -> embedding and clusters."""
    weights: Mapping[str, np.ndarray]
    """By path, see `Program`."""
    centers: Float[np.ndarray, "K D"]
    """The mean embedding of each cluster's examples; NaN where it has none."""
    shape: tuple[int, ...]
    """(*F), of one example."""
    scaling: Scaling | None
    """What feature vectors went through before."""


class Prediction(NamedTuple):
    """Of n examples."""

    embedding: Float[np.ndarray, "n D"]
    clusters: Int[np.ndarray, "n"]
    distances: Float[np.ndarray, "n K"]
    """Euclidean, from the embedding to the center of every cluster."""


def export_model(
    build: Callable[[PyTree], FederatedClustering],
    hyper: PyTree,
    state: State,
    *,
    shape: tuple[int, ...],
    num_clusters: int,
) -> Program:
    """Exports how the global models of a grid embed and assign.

    Args:
        build: from one run's hyper-parameters to its method, which embeds and assigns
            rows that no client holds.
        hyper: of one run, arrays or their `jax.ShapeDtypeStruct`: no value is read.
        state: of one run, likewise.
        shape: (*F), of one example.
        num_clusters: K.

    Returns:
        One program for all runs of these shapes. Its weights are the leaves of the
        state that embedding or assigning needs, and those of `hyper`, as hyper/NAME.
    """
    structure, named = (
        jax.tree.structure((hyper, state.server)),
        leaves_by_path(hyper, state),
    )
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state.clients)

    def apply(weights, x):
        leaves = [
            weights[path] if path in weights else jnp.zeros(leaf.shape, leaf.dtype)
            for path, leaf in named.items()
        ]
        values, global_model = jax.tree.unflatten(structure, leaves)
        model = State(global_model, nothing)
        method = build(values)
        everyone = Federation(
            pool=x,
            indices=jnp.arange(BATCH)[None],
            mask=jnp.ones((1, BATCH), bool),
            present=jnp.ones((1, 1), bool),
            local_clusters=jnp.full(1, num_clusters),
        )
        return method.embed(model, everyone)[0], method.assign(model, everyone)[0]

    def export(paths, **options):
        weights = {
            path: jax.ShapeDtypeStruct(named[path].shape, named[path].dtype)
            for path in paths
        }
        example = jax.ShapeDtypeStruct((BATCH, *shape), jnp.float32)
        with jax.sharding.use_abstract_mesh(ANYWHERE):
            return jax.export.export(jax.jit(apply), **options)(weights, example)

    paths = sorted(named)  # as JAX flattens a dictionary
    used = export(paths).module_kept_var_idx
    paths = [path for i, path in enumerate(paths) if i in used]
    exported = export(paths, platforms=("cpu", "cuda", "rocm", "tpu"))
    return Program(bytes(exported.serialize()), tuple(paths))


def select_weights(program: Program, hyper: PyTree, state: State) -> dict[str, Any]:
    """Returns the leaves that a program takes by path, of one run or stacked."""
    named = leaves_by_path(hyper, state)
    return {path: named[path] for path in program.paths}


def leaves_by_path(hyper: PyTree, state: State) -> dict[str, Any]:
    """Returns the leaves of `(hyper, state.server)` in their order: what the clients
    keep is no part of a global model.
    """
    leaves = jax.tree_util.tree_leaves_with_path({"hyper": hyper})
    leaves += jax.tree_util.tree_leaves_with_path(state.server)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in leaves
    }


def to_arrays(
    program: Program,
    weights: Mapping[str, np.ndarray],
    centers: Float[np.ndarray, "K D"],
    scaling: Scaling | None = None,
) -> dict[str, np.ndarray]:
    """Returns the arrays of a model's file; `weights` are one run's."""
    return {
        "program": np.frombuffer(program.serialized, np.uint8),
        "centers": centers,
        **({} if scaling is None else scaling._asdict()),
        **{WEIGHTS + name: np.asarray(weights[name]) for name in program.paths},
    }


def read(model: Path | Mapping[str, np.ndarray]) -> ExportedModel:
    """Loads a finished run's model from its file, or from the arrays of one.

    Raises:
        ValueError: the file is damaged, or exported for another kind of device.
    """
    try:
        with (
            nullcontext(model) if isinstance(model, Mapping) else np.load(model) as file
        ):
            arrays = dict(file)
        apply, shape = _loaded(arrays["program"].tobytes())
        own = {k: x for k, x in arrays.items() if k.startswith(WEIGHTS)}
        weights = {name.removeprefix(WEIGHTS): x for name, x in own.items()}
        vectors = "low" in arrays
        scaling = Scaling(arrays["low"], arrays["span"]) if vectors else None
        run = partial(apply, jax.device_put(weights))
        return ExportedModel(run, weights, arrays["centers"], shape, scaling)
    except Exception as error:  # zip, NumPy and flatbuffers share no type
        raise ValueError(f"{model} is not a readable model: {error}") from error


@lru_cache(maxsize=8)
def _loaded(serialized: bytes) -> tuple[Callable[..., Any], tuple[int, ...]]:
    """A program, compiled once for all runs that share it, and (*F)."""
    exported = jax.export.deserialize(bytearray(serialized))
    return jax.jit(exported.call), exported.in_avals[-1].shape[1:]


def predict(model: ExportedModel, examples: np.ndarray) -> Prediction:
    """Embeds and assigns examples [n, *F], in the order given.

    Raises:
        ValueError: they have another shape than those the model was trained on.
    """
    if examples.shape[1:] != model.shape:
        raise ValueError(
            f"examples of shape {examples.shape[1:]} do not fit a model of "
            f"{model.shape}"
        )
    embedding, clusters, distances = [], [], []
    for start in range(0, len(examples), BATCH):
        rows = np.arange(start, min(start + BATCH, len(examples)))
        batch = to_float(jnp.asarray(examples[np.resize(rows, BATCH)]))
        z, cluster = (np.asarray(part)[: len(rows)] for part in model.apply(batch))
        embedding.append(z)
        clusters.append(cluster)
        distances.append(np.linalg.norm(z[:, None] - model.centers, axis=-1))
    return Prediction(*map(np.concatenate, (embedding, clusters, distances)))


def cluster_centers(
    embedding: Float[np.ndarray, "n D"],
    clusters: Int[np.ndarray, "n"],
    *,
    num_clusters: int,
) -> Float[np.ndarray, "K D"]:
    """Returns the mean embedding of each cluster, NaN where it is empty."""
    centers = np.full((num_clusters, embedding.shape[1]), np.nan)
    for k in np.unique(clusters):
        centers[k] = embedding[clusters == k].mean(axis=0)
    return centers
