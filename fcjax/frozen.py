"""A finished run as one file that embeds and assigns new examples.

The file holds a program exported with its weights inside, so that reading it needs
neither the method's code nor its settings.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fcjax.data import Scaling
from fcjax.data.augment import to_float
from fcjax.types import FederatedClustering, Federation, PyTree

BATCH = 256
"""Examples a call; the last batch is filled up with copies of its first."""


class Frozen(NamedTuple):
    """What a model says of examples, and where its clusters lie."""

    apply: Callable[..., Any]
    """A batch of `BATCH` float32 examples -> embedding and clusters."""
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


def freeze(
    method: FederatedClustering,
    state: PyTree,
    *,
    shape: tuple[int, ...],
    num_clusters: int,
) -> bytes:
    """Exports the global model of a finished run.

    Args:
        method: one that embeds and assigns rows that no client holds.
        state: of one run.
        shape: (*F), of one example.
        num_clusters: K.

    Returns:
        A serialised program from float32 [BATCH, *F] to (z [BATCH, D], clusters
        [BATCH]), for CPU, CUDA, ROCm and TPU.
    """

    def apply(x):
        everyone = Federation(
            pool=x,
            indices=jnp.arange(BATCH)[None],
            mask=jnp.ones((1, BATCH), bool),
            present=jnp.ones((1, 1), bool),
            local_clusters=jnp.full(1, num_clusters),
        )
        return method.embed(state, everyone)[0], method.assign(state, everyone)[0]

    example = jax.ShapeDtypeStruct((BATCH, *shape), jnp.float32)
    platforms = ("cpu", "cuda", "rocm", "tpu")
    exported = jax.export.export(jax.jit(apply), platforms=platforms)(example)
    return bytes(exported.serialize())


def write(
    path: Path,
    program: bytes,
    centers: Float[np.ndarray, "K D"],
    scaling: Scaling | None = None,
) -> None:
    """Writes what `read` reads, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    arrays = {"program": np.frombuffer(program, np.uint8), "centers": centers}
    with temporary.open("wb") as file:
        np.savez(file, **arrays, **({} if scaling is None else scaling._asdict()))
    temporary.replace(path)


def read(path: Path) -> Frozen:
    """Loads a finished run's model.

    Raises:
        ValueError: the file is damaged, or exported for another kind of device.
    """
    try:
        with np.load(path) as file:
            exported = jax.export.deserialize(bytearray(file["program"].tobytes()))
            centers = file["centers"]
            vectors = "low" in file
            scaling = Scaling(file["low"], file["span"]) if vectors else None
    except Exception as error:  # zip, NumPy and flatbuffers share no type
        raise ValueError(f"{path} is not a readable model: {error}") from error
    shape = exported.in_avals[0].shape[1:]
    return Frozen(exported.call, centers, shape, scaling)


def predict(model: Frozen, examples: np.ndarray) -> Prediction:
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
