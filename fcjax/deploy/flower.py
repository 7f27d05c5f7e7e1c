"""Runs a federation with Flower: the program of a site, and that of the server.

Flower starts both programs, and carries their messages. Messages are arrays and
numbers, never code. The server sends three kinds of requests:

query.join     A site tells its number, the digest of its plan, the number of its
               examples and, for feature vectors, statistics of each column.
train.step     A site does its part of a step, see `fcjax.deploy.parties`.
evaluate.end   A site assigns its examples to clusters. It writes its own file, and
               answers with sums: examples per cluster and class, and the sum of the
               embeddings of each cluster.

A site stores its state in its own folder, so it can be stopped at any time and started
again. The server saves its state after each step.
"""

import itertools
import secrets
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp import Grid, ServerApp

from fcjax.data import Dataset, Scaling, Source, load
from fcjax.data.dataset import scaled
from fcjax.deploy import app, secure
from fcjax.deploy.app import App
from fcjax.deploy.cut import CLIENT
from fcjax.deploy.outcome import Outcome, Tally
from fcjax.deploy.parties import Done, Memory, Server, Site, check_arrays
from fcjax.parallel.exact import take_cores
from fcjax.results.store import example_names, write_arrays
from fcjax.sweep.train import enable_compilation_cache

REQUEST, ARRAYS, COLUMNS = "request", "arrays", "columns"
"""The names of the parts of a message."""
SECURE_SITES = 3
"""The smallest number of sites of a secure sum. With two sites, each knows the other's
term."""
POLL = 0.3
"""Seconds between two questions whether a reply has come."""

# --- A site


def client_app(plan: Path, mods: Sequence[Mod] = ()) -> ClientApp:
    """Returns the program of a site.

    The node configuration of the SuperNode names the site and its data: `site`, its
    number from 0 (or `partition-id`); `data`, a file or folder that `fcjax.data.load`
    reads; `out`, the folder for the memory and the clusters of the site. Each setting
    of `fcjax.data.Source` may follow, such as `label-column`.

    Args:
        plan: the file plan.toml.
        mods: Flower's modifiers of messages, such as `message_size_mod`.

    Returns:
        The program.
    """
    prepare_jax()
    program, content = ClientApp(mods=[*mods]), app.read(plan)

    @program.query("join")
    def join(message: Message, context: Context) -> Message:
        return answer(message, lambda: LocalSite(content, context).join())

    # The requests of SecAgg+.
    @program.train(mods=[secaggplus_mod])
    def terms(message: Message, context: Context) -> Message:
        return secure.masked_terms(message, LocalSite(content, context).terms())

    @program.train("step")
    def step(message: Message, context: Context) -> Message:
        return answer(message, lambda: LocalSite(content, context).step(message))

    @program.evaluate("end")
    def end(message: Message, context: Context) -> Message:
        return answer(message, lambda: LocalSite(content, context).end(message))

    return program


def prepare_jax() -> None:
    """Uses the devices and the compilation cache of a simulation."""
    take_cores()
    enable_compilation_cache()


def answer(message: Message, compute: Callable[[], RecordDict]) -> Message:
    """Answers a request.

    Args:
        message: the request.
        compute: () -> the content of the answer, see `content_or_problem`.

    Returns:
        The answer.
    """
    return Message(content_or_problem(compute), reply_to=message)


def content_or_problem(compute: Callable[[], RecordDict]) -> RecordDict:
    """Computes the content of an answer; an error becomes one line for the server.

    A ValueError of fcjax has no values of the data, so its text is sent. Flower would
    send the text of any other error, which may have values or names of files.

    Args:
        compute: () -> the content.

    Returns:
        The content, or the problem.
    """
    try:
        return compute()
    except ValueError as error:
        problem = str(error)
    except Exception as error:
        traceback.print_exc()
        problem = f"it failed with {type(error).__name__}; its log says why"
    return RecordDict({REQUEST: ConfigRecord({"problem": problem})})


class LocalSite:
    """A site within one process: its data, its folder and its memory.

    Args:
        content: the content of plan.toml.
        context: Flower's context of the SuperNode.

    Raises:
        ValueError: the node configuration has no number or no data.
    """

    def __init__(self, content: App, context: Context):
        self.content, self.plan = content, content.plan
        config = {k.replace("-", "_"): v for k, v in context.node_config.items()}
        number = config.pop("site", config.pop("partition_id", None))
        config.pop("num_partitions", None)
        if number is None or "data" not in config:
            raise ValueError(
                "a SuperNode lacks its number or its data: --node-config 'site=0 "
                'data="FILE"\''
            )
        self.number = int(number)
        default = f"{tempfile.gettempdir()}/fcjax-{self.plan.digest}-{self.number}"
        self.folder = Path(str(config.pop("out", default)))
        settings = content.source | {"scale_columns": "none", "dataset": config["data"]}
        settings |= {k: x for k, x in config.items() if k != "data"}
        self._settings = settings

    @cached_property
    def dataset(self) -> Dataset:
        """The data of the site, read when a request needs it.

        Returns:
            The data set, without scaling.

        Raises:
            ValueError: the data cannot be read. The line has no value of the data,
                because it is sent to the server. The log of the site has the whole
                line.
        """
        settings = dict(self._settings)
        try:
            for name in ("image_shape", "drop_columns"):
                settings[name] = tuple(settings.get(name, ()))
            return load(Source(**settings))
        except (ValueError, TypeError, OSError) as error:
            print(f"site {self.number} cannot read its data: {error}", file=sys.stderr)
            raise ValueError(
                f"site {self.number} cannot read its data; its log says why"
            ) from None

    @property
    def _is_scaled(self) -> bool:
        return self.dataset.examples.ndim == 2

    def join(self) -> RecordDict:
        """Answers who the site is, with statistics of its columns."""
        x = self.dataset.examples
        site = Site(self.plan, self.number, x)  # checks the examples
        self._check_folder()
        request = {
            "site": site.number,
            "digest": self.plan.digest,
            "examples": len(x),
        }
        columns: list[np.ndarray] = []
        if self._is_scaled:
            columns = statistics(x, self.content.source["scale_columns"])
        return content_of(request, columns)

    def _check_folder(self) -> None:
        """Creates the folder of the site, before the first step needs it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            print(f"site {self.number} cannot write to out: {error}", file=sys.stderr)
            raise ValueError(
                f"site {self.number} cannot write to its folder `out`; its log says why"
            ) from None

    def step(self, message: Message) -> RecordDict:
        """Answers a request of a step."""
        request, arrays, columns = parts_of(message.content)
        site = self._site(request, columns)
        step, phase = int(request["step"]), int(request["phase"])
        up = site.answer(step, phase, arrays)
        if self.plan.secure:
            parts = site.program.cut(site.program.kind_of(site.program.steps[step]))
            sums = parts.phases[phase].sums
            site.memory.terms = [*itertools.compress(up, sums)]
            up = [x for x, is_sum in zip(up, sums, strict=True) if not is_sum]
            up.append(secure.scales_of(site.memory.terms))
        self._save(site.memory, str(request["federation"]))
        return content_of({"site": site.number, "lost": site.lost}, up)

    def terms(self) -> list[np.ndarray]:
        """Returns the terms of the last step for a secure sum."""
        memory, _ = self._read()
        return memory.terms

    def end(self, message: Message) -> RecordDict:
        """Assigns the examples of the site, and answers with sums."""
        request, arrays, columns = parts_of(message.content)
        site = self._site(request, columns)
        clusters, embedding = site.assign(arrays)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "assignments.csv"
        names = example_names(self.dataset)
        table = pd.DataFrame({"example": names, "cluster": clusters})
        table.to_csv(path, index=False, lineterminator="\n")
        print(f"site {site.number}: clusters of {len(table)} examples: {path}")
        # Names of classes could have other numbers at other sites.
        has_names = any(x.startswith("classes:") for x in self.dataset.notes)
        labels = None if has_names else self.dataset.labels
        tally = Tally.of(clusters, embedding, labels, num_clusters=self.plan.clusters)
        return content_of({"site": site.number}, [*tally])

    def _site(self, request: Mapping[str, Any], columns: list[np.ndarray]) -> Site:
        if request["digest"] != self.plan.digest:
            raise ValueError(
                f"site {self.number} has another plan or another version of fcjax "
                f"({self.plan.digest}) than the server ({request['digest']})"
            )
        x = self.dataset.examples
        if self._is_scaled:
            low, span = columns
            x, _, _ = scaled(x, scaling=Scaling(low, span))
        return Site(self.plan, self.number, x, self._load(str(request["federation"])))

    @property
    def _path(self) -> Path:
        return self.folder / "memory.npz"

    def _load(self, federation: str) -> Memory:
        if not self._path.exists():
            return Memory()
        memory, owner = self._read()
        return memory if owner == federation else Memory()

    def _read(self) -> tuple[Memory, str]:
        """Reads the stored memory, and the name of its federation."""
        with np.load(self._path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return Memory.from_arrays(arrays), str(arrays["federation"])

    def _save(self, memory: Memory, federation: str) -> None:
        arrays = memory.to_arrays() | {"federation": np.array(federation)}
        write_arrays(self._path, arrays, compressed=False)


def statistics(x: np.ndarray, scale: str) -> list[np.ndarray]:
    """Returns what a site uploads for the scaling of its columns.

    Args:
        x: the examples of the site, [N, F].
        scale: the scaling, see `fcjax.data.Source`.

    Returns:
        For "minmax" the minima and the maxima. For "standard" the number of examples,
        sums, sums of squares, minima and maxima. Nothing for "none".
    """
    x = x.astype(np.float64)
    ends = [x.min(axis=0), x.max(axis=0)]
    if scale == "none":
        return []
    if scale == "minmax":
        return ends
    return [*ends, np.array(len(x), float), x.sum(axis=0), np.square(x).sum(axis=0)]


def merged(each: Sequence[Sequence[np.ndarray]], num_features: int) -> Scaling:
    """Computes the scaling of the columns from the statistics of all sites.

    Args:
        each: the result of `statistics` of each site.
        num_features: F.

    Returns:
        The scaling.

    Examples:
        >>> sites = [statistics(np.array([[1.0], [3.0]]), "minmax")]
        >>> sites += [statistics(np.array([[5.0]]), "minmax")]
        >>> scaling = merged(sites, 1)
        >>> print(scaling.low, scaling.span)
        [1.] [4.]
    """
    if not each[0]:
        return Scaling(np.zeros(num_features), np.ones(num_features))
    low = np.min([x[0] for x in each], axis=0)
    high = np.max([x[1] for x in each], axis=0)
    constant = low == high
    if len(each[0]) == 2:
        return Scaling(low, np.where(constant, 1, high - low))
    count, total, squares = (np.sum([x[i] for x in each], axis=0) for i in (2, 3, 4))
    mean = np.where(constant, low, total / count)
    variance = np.maximum(squares / count - mean**2, 0)
    return Scaling(mean, np.where(constant, 1, np.sqrt(variance)))


# --- Messages


def content_of(
    request: Mapping[str, Any],
    arrays: Sequence[np.ndarray],
    columns: Sequence[np.ndarray] = (),
) -> RecordDict:
    """Returns the content of a message.

    Args:
        request: numbers and texts by name.
        arrays: the arrays.
        columns: the scaling of the columns.

    Returns:
        The content.
    """
    records: dict[str, Any] = {REQUEST: ConfigRecord(dict(request))}
    for name, values in ((ARRAYS, arrays), (COLUMNS, columns)):
        if values:
            records[name] = ArrayRecord([*map(np.asarray, values)])
    return RecordDict(records)


def parts_of(
    content: RecordDict,
) -> tuple[dict[str, Any], list[np.ndarray], list[np.ndarray]]:
    """Returns the parts of a message, see `content_of`.

    Args:
        content: the content of the message.

    Returns:
        The request, the arrays and the columns.

    Raises:
        ValueError: the message has no request, an array cannot be read, or a site
            reports a problem.
    """
    try:
        request = dict(content.config_records[REQUEST])
        arrays, columns = (
            content.array_records[name].to_numpy_ndarrays()
            if name in content.array_records
            else []
            for name in (ARRAYS, COLUMNS)
        )
    except (KeyError, TypeError, ValueError, EOFError) as error:
        raise ValueError(f"a message is malformed: {error}") from None
    if "problem" in request:
        raise ValueError(str(request["problem"]))
    return request, arrays, columns


# --- The server


def server_app(plan: Path) -> ServerApp:
    """Returns the program of the server.

    The run configuration has `out`, the results folder; `at-least`, the smallest number
    of sites for a step; `timeout`, the seconds to wait in a step; and `wait`, the
    seconds to wait for the sites at the beginning.

    Args:
        plan: the file plan.toml.

    Returns:
        The program.
    """
    prepare_jax()
    program, content = ServerApp(), app.read(plan)

    @program.main()
    def main(grid: Grid, context: Context) -> None:
        Federation(content, grid, context).run()

    return program


class Federation:
    """A federation as the server sees it.

    Args:
        content: the content of plan.toml.
        grid: Flower's connection to the nodes.
        context: Flower's context of the server, with the run configuration, see
            `server_app`.
    """

    def __init__(self, content: App, grid: Grid, context: Context):
        self.content, self.plan, self.grid = content, content.plan, grid
        self.context, options = context, context.run_config
        self.out = Path(str(options["out"]))
        self.at_least = int(options["at-least"])
        self.timeout = float(options["timeout"])
        self.wait = float(options["wait"])
        self.nodes: dict[int, int] = {}
        """The node of each site, by number of the site."""
        self.refused: set[int] = set()
        """Nodes that may not take part."""
        self.joining: dict[str, int] = {}
        """The nodes that have not said yet who they are, by message."""
        self.examples: dict[int, int] = {}
        """The number of examples of each site."""
        self.columns: list[np.ndarray] = []
        self.federation = secrets.token_hex(8)
        """The name of this federation. A site forgets the state of others."""

    def run(self) -> None:
        """Runs the federation, from the last saved step on."""
        outcome = Outcome(self.content, self.out)
        statistics = self.gather_sites()
        if len(self.plan.shape) == 1:
            scaling = merged([*statistics.values()], *self.plan.shape)
            self.columns = [scaling.low, scaling.span]
        server = Server(self.plan, max(self.examples.values()), at_least=self.at_least)
        start = outcome.resume(server.program, self.federation)
        if start is not None:
            done, self.federation, self.columns = start
            print(f"resumed after step {done.step + 1} of {len(server.program.steps)}")
        began = time.monotonic()

        def on_step(done: Done) -> None:
            nonlocal began
            seconds, began = time.monotonic() - began, time.monotonic()
            if line := outcome.add(server.program, done, seconds):
                print(line)
            outcome.save(done, self.federation, self.columns)

        done = server.run(
            lambda step, phase, down: self.ask(server, step, phase, down),
            start=start and start[0],
            on_step=on_step,
        )
        tallies = self.end(server, done)
        total = sum(self.examples.values())
        print(outcome.finish(server.program, done, tallies, self.columns, total))

    def gather_sites(self) -> dict[int, list[np.ndarray]]:
        """Waits for the sites; returns the statistics of the columns by site."""
        end, found = time.monotonic() + self.wait, {}
        while True:
            found |= self.join()
            if len(self.nodes) == self.plan.clients:
                break
            if time.monotonic() > end:
                if len(self.nodes) >= self.at_least:
                    break
                raise RuntimeError(
                    f"{len(self.nodes)} of {self.plan.clients} sites joined in "
                    f"{self.wait:g} seconds, but the federation needs {self.at_least}"
                )
            time.sleep(POLL)
        sizes = ", ".join(f"{i}: {n:,}" for i, n in sorted(self.examples.items()))
        print(f"{len(self.nodes)} of {self.plan.clients} sites; examples: {sizes}")
        return found

    def join(self) -> dict[int, list[np.ndarray]]:
        """Asks new nodes who they are, and reads the answers that have come.

        A node that does not answer delays no other site.

        Returns:
            The statistics of the columns of new sites, by number of the site.
        """
        alive = {*self.grid.get_node_ids()}
        self.nodes = {site: x for site, x in self.nodes.items() if x in alive}
        self.refused &= alive  # a node that was started again is asked again
        known = {*self.nodes.values()} | self.refused | {*self.joining.values()}
        self.joining |= self.push("query.join", [*(alive - known)], RecordDict())
        found = {}
        for node, reply in self.pull(self.joining).items():
            if reply.has_error():  # it is asked again
                continue
            try:
                request, arrays, _ = parts_of_reply(reply)
                site = int(request["site"])
                if request["digest"] != self.plan.digest:
                    raise ValueError(
                        f"site {site} has another plan or another version of fcjax "
                        f"({request['digest']}) than the server ({self.plan.digest})"
                    )
                if site in self.nodes:
                    raise ValueError(f"two nodes say that they are site {site}")
                check_statistics(arrays, self.content)
            except (ValueError, KeyError) as error:
                self.refused.add(node)
                print(f"node {node} may not take part: {error}")
                continue
            if site in self.examples:
                print(f"site {site} is back")
            self.nodes[site], self.examples[site] = node, int(request["examples"])
            found[site] = arrays
        return found

    def ask(
        self, server: Server, step: int, phase: int, down: list[np.ndarray]
    ) -> dict[int, list[np.ndarray]]:
        """Sends a request of a step to all sites, see `fcjax.deploy.parties.Ask`."""
        if phase == 0:
            self.join()
        program = server.program
        position = program.steps[step]
        parts = program.cut(program.kind_of(position))
        up, sums = parts.phases[phase].up, parts.phases[phase].sums
        shapes = [parts.shapes[x] for x in up]
        in_clear = shapes
        if self.plan.secure:
            in_clear = [x for x, is_sum in zip(shapes, sums, strict=True) if not is_sum]
            in_clear.append(jax.ShapeDtypeStruct((sum(sums),), np.float32))
        request = {
            "digest": self.plan.digest,
            "federation": self.federation,
            "step": step,
            "phase": phase,
        }
        content = content_of(request, down, self.columns)
        sites = {node: site for site, node in self.nodes.items()}
        answers = {}
        for node, reply in self.send("train.step", [*sites], content).items():
            site = sites[node]
            try:
                answered, arrays, _ = parts_of_reply(reply)
                check_arrays(arrays, in_clear)
                if any(x.dtype.kind == "f" and np.isnan(x).any() for x in arrays):
                    raise ValueError("its upload has NaN")
            except (ValueError, KeyError) as error:
                print(f"site {site} is left out of this step: {error}")
                continue
            if answered.get("lost"):
                print(f"site {site} lost its state, and begins again like a new site")
            answers[site] = arrays
        for site in {*sites.values()} - {*answers}:
            self.nodes.pop(site, None)  # it is asked again who it is
        return self.with_sums(answers, shapes, sums) if self.plan.secure else answers

    def with_sums(
        self,
        answers: dict[int, list[np.ndarray]],
        shapes: Sequence[Any],
        sums: Sequence[bool],
    ) -> dict[int, list[np.ndarray]]:
        """Adds secure sums to the answers of the sites.

        Args:
            answers: by site, the arrays in the clear and the scales of the terms.
            shapes: the shapes of all uploads.
            sums: which of them are terms of sums.

        Returns:
            All uploads of the sites whose terms are in the sums. One site has the sums
            in place of its terms, the others have zeros.
        """
        if not any(sums):
            return {site: arrays[:-1] for site, arrays in answers.items()}
        if len(answers) < SECURE_SITES:
            raise RuntimeError(
                f"{len(answers)} sites answered, but secure sums need {SECURE_SITES}"
            )
        sites = {self.nodes[site]: site for site in answers}
        scales = np.max([arrays[-1] for arrays in answers.values()], axis=0)
        of_sums = [*itertools.compress(shapes, sums)]
        totals, answered = secure.secure_sums(
            self.grid,
            self.context,
            [*sites],
            scales,
            [x.shape for x in of_sums],
            timeout=self.timeout,
        )
        found = {}
        for number, node in enumerate(answered):
            clear = iter(answers[sites[node]][:-1])
            terms = iter(totals if number == 0 else map(np.zeros_like, totals))
            found[sites[node]] = [next(terms if x else clear) for x in sums]
        return found

    def end(self, server: Server, done: Done) -> dict[int, Tally]:
        """Asks all sites to assign their examples, and returns their sums."""
        self.join()
        parts, down = server.program.cut(("assign", 0)), server.final(done)
        _, embedding = parts.outputs[CLIENT]
        size = (self.plan.clusters, parts.shapes[embedding].shape[-1])
        request = {"digest": self.plan.digest, "federation": self.federation}
        content = content_of(request, down, self.columns)
        sites = {node: site for site, node in self.nodes.items()}
        tallies = {}
        for node, reply in self.send("evaluate.end", [*sites], content).items():
            try:
                _, arrays, _ = parts_of_reply(reply)
                tally = Tally(*arrays)
                tally.check(*size)
                tallies[sites[node]] = tally
            except (ValueError, KeyError, TypeError) as error:
                print(f"site {sites[node]} has no clusters: {error}")
        return tallies

    def send(
        self, kind: str, nodes: Sequence[int], content: RecordDict
    ) -> dict[int, Message]:
        """Sends one content to some nodes, and returns their replies by node."""
        waiting, found = self.push(kind, nodes, content), {}
        end = time.monotonic() + self.timeout
        while waiting and time.monotonic() < end:
            found |= self.pull(waiting)
            if waiting:
                time.sleep(POLL)
        sites = {node: site for site, node in self.nodes.items()}
        for node in waiting.values():
            print(f"site {sites[node]} did not answer in {self.timeout:g} seconds")
        return found

    def push(
        self, kind: str, nodes: Sequence[int], content: RecordDict
    ) -> dict[str, int]:
        """Sends one content to some nodes; returns the node of each message."""
        if not nodes:
            return {}
        ttl = 2 * self.timeout
        messages = [Message(content, node, kind, ttl=ttl) for node in nodes]
        ids = [*self.grid.push_messages(messages)]
        if len(ids) < len(nodes) or None in ids:
            raise RuntimeError("Flower did not take a message; its log says why")
        return dict(zip(ids, nodes, strict=True))

    def pull(self, waiting: dict[str, int]) -> dict[int, Message]:
        """Returns the replies that have come, and removes them from `waiting`."""
        replies = self.grid.pull_messages([*waiting]) if waiting else []
        return {waiting.pop(x.metadata.reply_to_message_id): x for x in replies}


def parts_of_reply(
    reply: Message,
) -> tuple[dict[str, Any], list[np.ndarray], list[np.ndarray]]:
    """Returns the parts of a reply, see `parts_of`.

    Args:
        reply: the reply.

    Returns:
        The request, the arrays and the columns.

    Raises:
        ValueError: Flower or the site reports a problem, or the reply cannot be read.
    """
    if reply.has_error():
        raise ValueError(reply.error.reason)
    return parts_of(reply.content)


def check_statistics(arrays: Sequence[np.ndarray], content: App) -> None:
    """Checks the statistics of the columns of a site.

    Args:
        arrays: the statistics, see `statistics`.
        content: the content of plan.toml.

    Raises:
        ValueError: their number or shape is wrong, or a value is not finite.
    """
    shape = content.plan.shape
    if len(shape) > 1:
        return
    expected = statistics(np.zeros((1, *shape)), content.source["scale_columns"])
    check_arrays(arrays, expected)
    if not all(np.isfinite(x).all() for x in arrays):
        raise ValueError("the statistics of its columns are not finite")
