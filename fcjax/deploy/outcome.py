"""The results folder of a federation, on the machine of the server.

The folder has the files of a simulated run, so `fcjax.open` reads it. It has no
examples and no clusters of single examples: these stay at the sites.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcjax import metrics
from fcjax.data import Scaling
from fcjax.deploy.app import App
from fcjax.deploy.parties import Done, Program
from fcjax.federated.kmeans import heterogeneity
from fcjax.federated.server import total_bytes
from fcjax.results import exported, store
from fcjax.results.environment import environment
from fcjax.results.store import Folder, Row, write_arrays
from fcjax.sweep.score import (
    IN_USE,
    ROUND_SCORES,
    SCORES,
    participation,
    round_off,
    status,
)
from fcjax.types import State

MAX_CLASSES = 10_000
"""Larger class numbers are not counted."""


class Tally(NamedTuple):
    """The sums that a site uploads at the end.

    Examples:
        >>> clusters, embedding = np.array([0, 1, 1]), np.ones((3, 2))
        >>> tally = Tally.of(clusters, embedding, np.array([0, 1, 0]), num_clusters=2)
        >>> print(tally.counts, tally.classes.tolist())
        [1 2] [[1, 0], [1, 1]]
    """

    counts: np.ndarray
    """The number of examples in each cluster, [K]."""
    embeddings: np.ndarray
    """The sum of the embeddings in each cluster, [K, D]."""
    classes: np.ndarray
    """The number of examples in each cluster and class, [K, C]; C is 0 without
    labels."""

    @classmethod
    def of(
        cls,
        clusters: np.ndarray,
        embedding: np.ndarray,
        labels: np.ndarray | None,
        *,
        num_clusters: int,
    ) -> "Tally":
        """Counts the examples of a site.

        Args:
            clusters: the cluster of each example, [N].
            embedding: their embeddings, [N, D].
            labels: their classes, whole numbers from 0; None without labels.
            num_clusters: K.

        Returns:
            The sums.
        """
        known = clusters >= 0
        members = clusters[known] == np.arange(num_clusters)[:, None]
        classes = np.zeros((num_clusters, 0), int)
        if labels is not None and labels.min() >= 0 and labels.max() < MAX_CLASSES:
            one_hot = labels[known][:, None] == np.arange(labels.max() + 1)
            classes = members.astype(int) @ one_hot.astype(int)
        sums = members.astype(np.float64) @ embedding[known]
        return cls(members.sum(axis=1), sums, classes)

    def check(self, num_clusters: int, num_features: int) -> None:
        """Checks the sums of another party.

        Args:
            num_clusters: K.
            num_features: D.

        Raises:
            ValueError: an array has another shape, or a number is negative or not
                finite.
        """
        shapes = (self.counts.shape, self.embeddings.shape, self.classes.shape[:1])
        expected = ((num_clusters,), (num_clusters, num_features), (num_clusters,))
        is_small = self.classes.ndim == 2 and self.classes.shape[1] <= MAX_CLASSES
        if shapes != expected or not is_small:
            raise ValueError(f"its sums have shapes {shapes} instead of {expected}")
        whole = all(x.dtype.kind in "iu" for x in (self.counts, self.classes))
        if not whole or min(self.counts.min(), self.classes.min(initial=0)) < 0:
            raise ValueError("its numbers of examples are not whole numbers from 0")
        if not np.isfinite(self.embeddings).all():
            raise ValueError("its sums are not finite")


class Outcome:
    """Writes the results folder of a federation.

    Args:
        content: the content of plan.toml.
        directory: the results folder.

    Raises:
        ValueError: the folder has results of other settings, or of a finished run.
    """

    def __init__(self, content: App, directory: Path):
        self.content = content
        self.folder = Folder(directory, content.config, [content.point])
        if self.folder.rows:
            raise ValueError(
                f"{directory} has a finished federation; choose another out"
            )
        self.folder.begin()
        self.state_path = directory / "checkpoints" / "federation.npz"

    def resume(
        self, program: Program, name: str
    ) -> tuple[Done, str, list[np.ndarray]] | None:
        """Reads the state of an earlier process.

        Args:
            program: the program of the server.
            name: the name of a new federation.

        Returns:
            The last step, the name of the federation and the scaling of the columns;
            None without an earlier process.
        """
        if not self.state_path.exists():
            return None
        with np.load(self.state_path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        if str(arrays["digest"]) != self.content.plan.digest:
            raise ValueError(
                f"{self.folder.directory} has the state of another plan; choose "
                "another out"
            )
        step = int(arrays["step"])
        position = program.steps[step]
        shapes, _ = program.state_shapes(("round", position.stage))
        structure = jax.tree.structure(shapes)
        leaves = [jnp.asarray(arrays[f"state{i}"]) for i in range(structure.num_leaves)]
        done = Done(
            step=step,
            state=jax.tree.unflatten(structure, leaves),
            metrics={},
            present=arrays["present"],
            is_done=bool(arrays["is_done"]),
            sent=0,
            received=0,
        )
        columns = [arrays[x] for x in ("low", "span") if x in arrays]
        return done, str(arrays["federation"]), columns

    def save(self, done: Done, name: str, columns: list[np.ndarray]) -> None:
        """Writes the state after a step.

        Args:
            done: the step.
            name: the name of the federation.
            columns: the scaling of the columns; [] for images.
        """
        leaves = jax.tree.leaves(done.state)
        arrays = {f"state{i}": np.asarray(x) for i, x in enumerate(leaves)}
        arrays |= dict(zip(("low", "span"), columns, strict=False))
        arrays |= {
            "step": np.array(done.step),
            "present": done.present,
            "is_done": np.array(done.is_done),
            "digest": np.array(self.content.plan.digest),
            "federation": np.array(name),
        }
        write_arrays(self.state_path, arrays, compressed=False)

    def add(self, program: Program, done: Done, seconds: float) -> str:
        """Adds a step to the history.

        Args:
            program: the program of the server.
            done: the step.
            seconds: its wall time.

        Returns:
            A line about the step; "" if no site had anything to do.
        """
        position = program.steps[done.step]
        stage = program.stages[position.stage]
        text = f"{stage.name} round {position.round}/{stage.num_rounds}"
        if position.round == 0:
            text = f"{stage.name} begins"
        if not done.sent and not done.received and position.round == 0:
            return ""
        sites = int(done.present[program.round_of(position)].sum())
        text += f": {sites} sites, {done.sent:,} bytes down, {done.received:,} bytes up"
        if position.round:
            values = {
                name: total_bytes(x) if name.startswith(("up_", "down_")) else x
                for name, x in done.metrics.items()
            }
            row: Row = {"stage": stage.name, **self.content.point}
            row |= {name: np.asarray(x).item() for name, x in values.items()}
            row |= dict.fromkeys((*ROUND_SCORES, *IN_USE))
            row |= {"seconds": round_off(seconds)}
            row |= {"sent_bytes": done.sent, "received_bytes": done.received}
            self.folder.add_history(position, [row])
            text += f", loss {row['loss']:.4g}"
        return f"{text}, {seconds:.1f} s"

    def finish(
        self,
        program: Program,
        done: Done,
        tallies: Mapping[int, Tally],
        columns: list[np.ndarray],
        num_examples: int,
    ) -> str:
        """Writes the scores and the model of a finished federation.

        Args:
            program: the program of the server.
            done: the last step.
            tallies: the sums of the sites, by number of the site.
            columns: the scaling of the columns; [] for images.
            num_examples: the number of examples of all sites.

        Returns:
            A line with the scores, and with the sites that were absent.
        """
        plan, point, folder = self.content.plan, self.content.point, self.folder
        counts = np.sum([x.counts for x in tallies.values()], axis=0)
        sums = np.sum([x.embeddings for x in tallies.values()], axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            centers = (sums / counts[:, None]).astype(np.float32)
        # The model assigns the examples of nobody, as after a simulation of M clients.
        _, own = program.state_shapes(("assign", 0))
        count = plan.clients
        own = jax.tree.map(lambda x: np.zeros((count, *x.shape[1:]), x.dtype), own)
        state = State(done.state, own)
        model = exported.export_model(
            plan.build, plan.hyper, state, shape=plan.shape, num_clusters=plan.clusters
        )
        weights = exported.select_weights(model, plan.hyper, state)
        scaling = Scaling(columns[0], columns[1]) if columns else None
        weights = {name: np.asarray(x) for name, x in weights.items()}
        folder.add_model(point, model, weights, centers, scaling)
        scores = scores_of(tallies)
        each = np.stack([x.counts for x in tallies.values()])
        scores["heterogeneity"] = float(heterogeneity(jnp.asarray(each, jnp.float32)))
        (history,) = folder.history_of([point])
        share = counts.max() / max(1, counts.sum())
        in_use = {
            "occupied_clusters": int((counts > 0).sum()),
            "largest_share": round_off(share),
        }
        last = {**history[-1], **in_use}
        last |= {name: scores.get(name) for name in ROUND_SCORES}
        folder.rounds[-1] = last
        store.write_rows(folder.directory / "history.csv", folder.rounds)
        cells = {name: None for name in (*SCORES, "heterogeneity")}
        cells |= {name: round_off(x) for name, x in scores.items()}
        row = {
            "method": plan.method_class.name,
            "dataset": "sites",
            "samples": num_examples,
            "left_out": 0,
            "clients": plan.clients,
            "clusters": plan.clusters,
            **point,
            "scope": "global",
            **cells,
            "best_nmi": scores.get("nmi"),
            "participation": participation(history, num_clients=plan.clients),
            "rounds": len(history),
            "status": status([*history[:-1], last], num_clusters=plan.clusters),
            "seconds": round_off(sum(x["seconds"] for x in history)),
            "compile_seconds": 0.0,
        }
        store.write_environment(folder.directory, [{**environment(), "seconds": None}])
        folder.add_rows([{**row, **point}])
        self.state_path.unlink(missing_ok=True)
        shown = ", ".join(f"{k} {cells[k]:.3f}" for k in SCORES if cells[k] is not None)
        text = f"results: {folder.directory} {shown}".rstrip()
        if row["participation"] < 1:
            text += f"; {row['participation']:.0%} of the answers in the rounds arrived"
        if absent := sorted({*range(plan.clients)} - {*tallies}):
            text += (
                f"; no answer at the end, so no new clusters, at "
                f"{'site' if len(absent) == 1 else 'sites'} "
                f"{', '.join(map(str, absent))}"
            )
        return text


def scores_of(tallies: Mapping[int, Tally]) -> dict[str, float]:
    """Scores the clusters of all sites from their sums.

    Args:
        tallies: the sums by number of the site.

    Returns:
        The scores; empty if a site has no labels.

    Examples:
        >>> first = Tally(np.array([2, 1]), np.zeros((2, 1)), np.array([[2], [1]]))
        >>> classes = np.array([[0, 0], [0, 3]])
        >>> second = Tally(np.array([0, 3]), np.zeros((2, 1)), classes)
        >>> print(round(scores_of({0: first, 1: second})["acc"], 3))  # five of six
        0.833
    """
    widths = [x.classes.shape[1] for x in tallies.values()]
    if not min(widths, default=0):
        return {}
    padded = [
        np.pad(x.classes, ((0, 0), (0, max(widths) - x.classes.shape[1])))
        for x in tallies.values()
    ]
    total = np.sum(padded, axis=0)
    clusters, labels = np.indices(total.shape).reshape(2, -1)
    repeats = total.reshape(-1)
    return metrics.scores(
        labels.repeat(repeats), clusters.repeat(repeats), names=SCORES
    )
