"""The exported model of a run: one file that embeds and clusters new examples.

The file has an exported JAX program and its weights. Reading the file needs neither the
code nor the settings of the method. The runs of a grid share one program, because its
export takes much longer than writing weights.
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
from fcjax.data.dataset import chunks
from fcjax.types import FederatedClustering, Federation, PyTree, State

BATCH = 256
"""Number of examples per call of the program. The last batch is padded with copies."""

WEIGHTS = "weights/"
"""Prefix of the names of the weights in the file."""

ANYWHERE = AbstractMesh(
    *((), ()), abstract_device=AbstractDevice("any", num_cores=None, platform="any")
)
"""A mesh without a platform: programs that are traced for it run on all platforms."""


class Program(NamedTuple):
    """The exported program of a method, without weights."""

    serialized: bytes
    """Function of (weights by path, examples float32 [BATCH, *F]) that returns
    (embeddings [BATCH, D], clusters [BATCH]), for CPU, CUDA, ROCm and TPU."""
    paths: tuple[str, ...]
    """Paths of the weights, such as variables/params/Dense_0/kernel or centroids."""


class ExportedModel(NamedTuple):
    """The model of a run, ready to embed and cluster examples."""

    apply: Callable[..., Any]
    """Function of float32 examples [BATCH, *F] that returns embeddings and clusters."""
    weights: Mapping[str, np.ndarray]
    """Weights by path, see `Program`."""
    centers: Float[np.ndarray, "K D"]
    """Mean embedding of each cluster; NaN for empty clusters."""
    shape: tuple[int, ...]
    """Shape (*F) of one example."""
    scaling: Scaling | None
    """Scaling of feature vectors; None for images."""


class Prediction(NamedTuple):
    """Embeddings and clusters of n examples."""

    embedding: Float[np.ndarray, "n D"]
    """The embeddings."""
    clusters: Int[np.ndarray, "n"]
    """The clusters, in 0 .. K - 1."""
    distances: Float[np.ndarray, "n K"]
    """Euclidean distance of each embedding to the center of each cluster."""


def export_model(
    build: Callable[[PyTree], FederatedClustering],
    hyper: PyTree,
    state: State,
    *,
    shape: tuple[int, ...],
    num_clusters: int,
) -> Program:
    """Exports the functions of a grid that embed and cluster with the global model.

    Args:
        build: function from the hyper-parameters of a run to its method, which embeds
            and clusters examples without a client.
        hyper: hyper-parameters of one run, as arrays or `jax.ShapeDtypeStruct`; only
            shapes and types are used.
        state: state of one run; only shapes and types are used.
        shape: shape (*F) of one example.
        num_clusters: number of clusters K.

    Returns:
        One program for all runs of these shapes. Its weights are the required leaves of
        the server state, and those of `hyper` as hyper/NAME.
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

    # JAX flattens a dictionary in the order of its sorted keys.
    paths = sorted(named)
    used = export(paths).module_kept_var_idx
    paths = [path for i, path in enumerate(paths) if i in used]
    exported = export(paths, platforms=("cpu", "cuda", "rocm", "tpu"))
    return Program(bytes(exported.serialize()), tuple(paths))


def select_weights(program: Program, hyper: PyTree, state: State) -> dict[str, Any]:
    """Returns the weights of a program by path, for one run or for stacked runs.

    Args:
        program: the exported program, which names the paths of its weights.
        hyper: hyper-parameters of one run, or stacked hyper-parameters of several runs.
        state: state of one run, or stacked states of several runs.

    Returns:
        The weights. Stacked weights have a leading axis for the runs.
    """
    named = leaves_by_path(hyper, state)
    return {path: named[path] for path in program.paths}


def leaves_by_path(hyper: PyTree, state: State) -> dict[str, Any]:
    """Returns the leaves of `hyper` and of the server state by path, in tree order.

    The state of the clients is not part of a global model.

    Args:
        hyper: hyper-parameters by name.
        state: the state of server and clients.

    Returns:
        The leaves. A path is, for example, "hyper/NAME" or
        "variables/params/Dense_0/kernel".
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
    """Returns the arrays of the file of a model.

    Args:
        program: the exported program.
        weights: weights of the run by path.
        centers: [K, D] mean embedding of each cluster.
        scaling: scaling of feature vectors; None for images.

    Returns:
        The arrays by name.
    """
    return {
        "program": np.frombuffer(program.serialized, np.uint8),
        "centers": centers,
        **({} if scaling is None else _arrays_of(scaling)),
        **{WEIGHTS + name: np.asarray(weights[name]) for name in program.paths},
    }


def _arrays_of(scaling: Scaling) -> dict[str, np.ndarray]:
    """Returns the arrays of a scaling; the names of the columns only if they exist."""
    arrays = {"low": scaling.low, "span": scaling.span}
    return arrays | ({"columns": np.array(scaling.columns)} if scaling.columns else {})


def read(model: Path | Mapping[str, np.ndarray]) -> ExportedModel:
    """Loads the exported model of a run.

    Args:
        model: the file, or its arrays by name.

    Returns:
        The model.

    Raises:
        ValueError: the file is damaged, or the program is for other devices.
    """
    try:
        with (
            nullcontext(model) if isinstance(model, Mapping) else np.load(model) as file
        ):
            arrays = dict(file)
        apply, shape = _loaded(arrays["program"].tobytes())
        weights = {
            name.removeprefix(WEIGHTS): x
            for name, x in arrays.items()
            if name.startswith(WEIGHTS)
        }
        scaling = None
        if "low" in arrays:
            # Files of arrays and of an older fcjax have no names of columns.
            columns = tuple(map(str, arrays.get("columns", ())))
            scaling = Scaling(arrays["low"], arrays["span"], columns)
        run = partial(apply, jax.device_put(weights))
        return ExportedModel(run, weights, arrays["centers"], shape, scaling)
    except Exception as error:  # zip, NumPy and flatbuffers have no common type
        raise ValueError(f"{model} is not a readable model: {error}") from error


@lru_cache(maxsize=8)
def _loaded(serialized: bytes) -> tuple[Callable[..., Any], tuple[int, ...]]:
    """Returns the compiled program, cached for all runs that share it, and (*F)."""
    exported = jax.export.deserialize(bytearray(serialized))
    return jax.jit(exported.call), exported.in_avals[-1].shape[1:]


def predict(model: ExportedModel, examples: np.ndarray) -> Prediction:
    """Embeds and clusters examples.

    Args:
        model: the exported model.
        examples: [n, *F] examples in the format of the training data.

    Returns:
        Embeddings, clusters and distances, in the order of the examples.

    Raises:
        ValueError: the shape of an example differs from that of the training data, or
            a value is NaN or infinite.
    """
    if examples.shape[1:] != model.shape:
        raise ValueError(
            f"examples of shape {examples.shape[1:]} do not fit a model for examples "
            f"of shape {model.shape}"
        )
    _check_finite(model, examples)
    embedding, clusters, distances = [], [], []
    for start in range(0, len(examples), BATCH):
        indices = np.arange(start, min(start + BATCH, len(examples)))
        batch = to_float(jnp.asarray(examples[np.resize(indices, BATCH)]))
        z, cluster = (np.asarray(part)[: len(indices)] for part in model.apply(batch))
        embedding.append(z)
        clusters.append(cluster)
        distances.append(np.linalg.norm(z[:, None] - model.centers, axis=-1))
    return Prediction(*map(np.concatenate, (embedding, clusters, distances)))


def _check_finite(model: ExportedModel, examples: np.ndarray) -> None:
    """Raises ValueError if a value is NaN or infinite: its cluster would mean nothing.

    The line names the first such example and, for feature vectors, its column.
    """
    for rows in chunks(examples) if examples.dtype.kind == "f" else ():
        wrong = np.argwhere(~np.isfinite(examples[rows]))
        if not len(wrong):
            continue
        first, place = rows.start + int(wrong[0, 0]), ""
        if model.scaling is not None:
            column = int(wrong[0, 1])
            names = model.scaling.columns
            place = f" in column {names[column] if names else column + 1}"
        raise ValueError(
            f"x has a NaN or infinite value{place} of example {first + 1} of "
            f"{len(examples)}; all values must be finite, so replace them or remove "
            "their examples"
        )


def cluster_centers(
    embedding: Float[np.ndarray, "n D"],
    clusters: Int[np.ndarray, "n"],
    *,
    num_clusters: int,
) -> Float[np.ndarray, "K D"]:
    """Returns the mean embedding of each cluster; NaN for empty clusters.

    Args:
        embedding: [n, D] the embeddings.
        clusters: [n] the cluster of each embedding, in [0, K).
        num_clusters: K, the number of clusters.

    Returns:
        [K, D] the centers.
    """
    centers = np.full((num_clusters, embedding.shape[1]), np.nan)
    for k in np.unique(clusters):
        centers[k] = embedding[clusters == k].mean(axis=0)
    return centers
