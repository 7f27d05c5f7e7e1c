"""The server and the sites of a real federation, without a transport.

All parties build the same algorithm from the same `Plan`, and cut its steps, see
`fcjax.deploy.cut`. The server sends a request with arrays to the sites, and every site
answers with arrays. The random keys of a round derive from the seed, the round and the
number of the site, as in the simulation.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcjax import __version__
from fcjax.algorithms.rounds import EvaluationSchedule
from fcjax.data import Dataset
from fcjax.deploy.cut import CLIENT, Step, cut
from fcjax.engine import Position, at_round
from fcjax.methods.base import Method, Problem
from fcjax.parallel.exact import compiler_options
from fcjax.parallel.mesh import num_bytes, platform
from fcjax.types import FederatedClustering, Federation, Grid, PyTree, Stage, State

# --- What all parties agree on


@dataclasses.dataclass(frozen=True)
class Plan:
    """The settings that the server and all sites of a federation share.

    Examples:
        >>> plan = Plan(
        ...     method="fcjax.methods:ExactKMeans",
        ...     clients=2,
        ...     clusters=3,
        ...     shape=(4,),
        ...     settings={"num_rounds": 5, "unit_length": False},
        ... )
        >>> [(stage.name, stage.num_rounds) for stage in plan.build(plan.hyper).stages]
        [('cluster', 5)]
    """

    method: str
    """The class of the method, as MODULE:CLASS."""
    clients: int
    """Number of sites, at least 2."""
    clusters: int
    """Number of clusters."""
    shape: tuple[int, ...]
    """Shape of an example: (features,) or (height, width, channels)."""
    settings: Mapping[str, Any]
    """The value of every setting of the method."""
    traced: tuple[str, ...] = ()
    """The settings that are inputs of the compiled programs, as in a grid."""
    data: str = ""
    """The name of the simulated data set. Some methods choose their views by it."""
    seed: int = 0
    """The random seed."""
    precision: str = "highest"
    """The precision of the matrix products."""
    evaluate_every: int = 1
    """The number of rounds between two evaluations in the simulation. Some methods
    compute their clusters only in these rounds."""
    last_evaluated: int = 10
    """The number of rounds at the end of a stage that are always evaluated."""
    images: bool = False
    """Whether the examples are images of bytes."""
    secure: bool = False
    """Whether the server learns averages as sums only, see `fcjax.deploy.secure`."""

    @property
    def digest(self) -> str:
        """A digest of the plan and of the version of fcjax."""
        text = json.dumps([__version__, dataclasses.asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def dtype(self) -> np.dtype:
        """The type of the values of the examples."""
        return np.dtype(np.uint8 if self.images else np.float32)

    @property
    def hyper(self) -> dict[str, jax.Array]:
        """The values of the traced settings, by name."""
        return {name: jnp.float32(self.settings[name]) for name in self.traced}

    @property
    def method_class(self) -> type[Method]:
        """The class of the method."""
        module, _, name = self.method.partition(":")
        return getattr(import_module(module), name)

    def kinds(self) -> list[tuple[str, int]]:
        """Returns the kinds of steps, see `Program.kind_of`."""
        numbers = range(len(self.build(self.hyper).stages))
        kinds = [(name, index) for index in numbers for name in ("begin", "round")]
        return [("init", 0), *kinds, ("assign", 0)]

    def build(self, hyper: Mapping[str, Any]) -> FederatedClustering:
        """Builds the algorithm.

        Args:
            hyper: the values of the traced settings.

        Returns:
            The algorithm.
        """
        example = np.zeros((1, *self.shape), self.dtype)
        problem = Problem(
            data=self.data,
            dataset=Dataset(self.data, example, None),
            num_clients=self.clients,
            num_clusters=self.clusters,
            examples_per_client=1,
            examples_per_cluster=1,
        )
        settings = SimpleNamespace(**{**self.settings, **hyper})
        return self.method_class.algorithm(settings, problem)


class Program:
    """The steps of a plan, cut for a server or for a site.

    Args:
        plan: the plan.
        num_examples: N, the number of examples of the site. A server may take any
            number.
    """

    def __init__(self, plan: Plan, num_examples: int):
        self.plan, self.num_examples = plan, num_examples
        self.stages: tuple[Stage, ...] = plan.build(plan.hyper).stages
        self._before = np.cumsum([0, *(x.num_rounds for x in self.stages)]).tolist()
        self.steps = [
            Position(index, number)
            for index, stage in enumerate(self.stages)
            for number in range(stage.num_rounds + 1)
        ]
        """All steps in order. Round 0 is the beginning of a stage. A stage that ends
        early skips some of its rounds."""
        self.cut = cache(self._cut)
        self.client_part, self.server_part = (
            cache(self._client_part),
            cache(self._server_part),
        )

    @property
    def num_rounds(self) -> int:
        """The number of rounds of all stages, at least 1."""
        return max(1, self._before[-1])

    def round_of(self, position: Position) -> int:
        """Returns the number of a round over all stages, from 0."""
        number = self._before[position.stage] + max(0, position.round - 1)
        return min(number, self.num_rounds - 1)  # the last stage may have no round

    def common(self, position: Position | None, present: np.ndarray) -> PyTree:
        """Returns the values that all parties know.

        Args:
            position: the step; None for the first state.
            present: the clients of all rounds so far that this party knows of, [R, M].

        Returns:
            The traced settings, the key, the number of the round and `present`.
        """
        keys, plan = jax.random.key(self.plan.seed)[None], self.plan
        nothing = Federation((), (), (), (), ())  # pyright: ignore[reportArgumentType]
        grid = Grid({}, keys, nothing)
        if position is None:
            at = at_round(grid, "init")
        else:
            stage, number = self.stages[position.stage], position.round
            schedule = EvaluationSchedule(plan.evaluate_every, plan.last_evaluated)
            at = at_round(
                grid,
                stage.name,
                number=number,
                earlier=self._before[position.stage],
                is_evaluated=number > 0
                and bool(schedule.includes(number, stage.num_rounds)),
            )
        now = jax.tree.map(lambda x: x[0], at.federations.now)
        return plan.hyper, at.keys[0], now, jnp.asarray(present)

    def _function(self, kind: tuple[str, int]) -> Callable:
        """Returns the step of a kind as a function for `cut`."""
        name, index = kind

        def step(common, server, client):
            hyper, key, now, present = common
            (pool, indices, mask, local_clusters), own = client
            federation = Federation(pool, indices, mask, present, local_clusters, now)
            method = self.plan.build(hyper)
            if name == "init":
                state = method.init(key, federation)
                return state.server, state.clients
            before = State(server, own)
            if name == "assign":
                clusters = method.assign(before, federation)
                return (), (clusters[0], method.embed(before, federation)[0])
            stage = method.stages[index]
            if name == "begin":
                state, metrics = stage.begin(key, before, federation), {}
            else:
                state, metrics = stage.round(key, before, federation)
            return (state.server, metrics, stage.done(state)), state.clients

        return step

    def kind_of(self, position: Position | None) -> tuple[str, int]:
        """Returns the kind of a step: its name and the index of its stage."""
        if position is None:
            return "init", 0
        return "round" if position.round else "begin", position.stage

    def _cut(self, kind: tuple[str, int]) -> Step:
        server, own = self.state_shapes(kind)
        shapes = jax.eval_shape(
            lambda: (self.data_shapes(), self.common(None, self.nobody()))
        )
        data, common = shapes
        with jax.default_matmul_precision(self.plan.precision):
            return cut(
                self._function(kind),
                *(self.plan.clients, common, server, (data, own)),
                secure=self.plan.secure,
            )

    def state_shapes(self, kind: tuple[str, int]) -> tuple[PyTree, PyTree]:
        """Returns the shapes of the states of the server and a client before a step.

        Args:
            kind: the kind of the step.

        Returns:
            The shapes of both states.
        """
        name, index = kind
        if name == "init":
            return (), ()
        before = ("init", 0)
        if name == "assign":
            before = ("begin", len(self.stages) - 1)
        elif name == "round":
            before = ("begin", index)
        elif index > 0:
            before = ("begin", index - 1)
        step = self.cut(before)
        server, own = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(step.shapes[x].shape, step.shapes[x].dtype),
            (step.outputs["server"], step.outputs[CLIENT]),
        )
        return (server if before[0] == "init" else server[0]), own

    def nobody(self) -> np.ndarray:
        """Returns an array [R, M] of clients that have not participated yet."""
        return np.zeros((self.num_rounds, self.plan.clients), bool)

    def data_shapes(self) -> tuple:
        """Returns arrays with the shapes of the data of a site, see `data_of`."""
        return data_of(
            jnp.zeros((self.num_examples, *self.plan.shape), self.plan.dtype),
            self.plan.clusters,
        )

    def _client_part(self, kind: tuple[str, int], phase: int) -> Callable:
        return self._compiled(kind, partial(self.cut(kind).client, phase))

    def _server_part(self, kind: tuple[str, int]) -> Callable:
        return self._compiled(kind, self.cut(kind).server)

    def _compiled(self, kind: tuple[str, int], part: Callable) -> Callable:
        # The inputs of the simulation decide the compiler options of its program.
        data = num_bytes(self.data_shapes()) * self.plan.clients
        options = compiler_options(
            platform(), num_bytes=data + num_bytes(self.state_shapes(kind))
        )
        run = jax.jit(part, compiler_options=options)

        def call(*args):
            with jax.default_matmul_precision(self.plan.precision):
                return run(*args)

        return call


def data_of(pool: Any, num_clusters: int) -> tuple:
    """Returns the data of a site as its part of a federation.

    Args:
        pool: the examples of the site.
        num_clusters: the number of clusters of the site.

    Returns:
        The pool, and with a client axis of length 1 the indices, the mask and the
        number of local clusters.
    """
    indices = jnp.arange(len(pool))[None]
    return pool, indices, indices >= 0, jnp.full(1, num_clusters, jnp.int32)


# --- A site


@dataclasses.dataclass
class Memory:
    """The state that a site keeps between two requests.

    Examples:
        >>> Memory.from_arrays(Memory(rounds=[0, 1]).to_arrays()).rounds
        [0, 1]
    """

    states: dict[int, list[np.ndarray]] = dataclasses.field(default_factory=dict)
    """The leaves of the last two states, by the number of steps before them. A step
    that the server did not finish is repeated from the older one."""
    rounds: list[int] = dataclasses.field(default_factory=list)
    """The rounds in which the site took part."""
    next: tuple[int, int] = (0, 0)
    """The step and the phase that may follow with the values of `kept`."""
    kept: list[np.ndarray] = dataclasses.field(default_factory=list)
    """Values for the next phase of a step."""
    terms: list[np.ndarray] = dataclasses.field(default_factory=list)
    """The site's terms of secure sums, until they are asked for."""

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns the memory as arrays by name."""
        arrays = {"rounds": np.array(self.rounds, int), "next": np.array(self.next)}
        lists = {f"state{step}": leaves for step, leaves in self.states.items()}
        lists |= {"kept": self.kept, "terms": self.terms}
        for name, leaves in lists.items():
            arrays[f"{name}:"] = np.array(len(leaves))
            arrays |= {f"{name}:{i}": leaf for i, leaf in enumerate(leaves)}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Memory":
        """Returns the memory that `to_arrays` wrote; an empty one for no arrays."""
        if not arrays:
            return cls()
        lists = {
            name[:-1]: [arrays[f"{name}{i}"] for i in range(int(count))]
            for name, count in arrays.items()
            if name.endswith(":")
        }
        kept, terms = lists.pop("kept"), lists.pop("terms")
        states = {int(name.removeprefix("state")): x for name, x in lists.items()}
        step, phase = arrays["next"].tolist()
        return cls(states, arrays["rounds"].tolist(), (step, phase), kept, terms)


class Site:
    """A site: its examples, and what it remembers.

    Args:
        plan: the plan of the federation.
        number: the number of the site, from 0.
        examples: its examples, [N, *F].
        memory: the memory after the last request; empty at the start.

    Attributes:
        memory: what the site remembers.
        lost: whether the site had no state of an earlier step that it took part in.

    Raises:
        ValueError: the examples do not fit the plan. One line says why.
    """

    def __init__(
        self,
        plan: Plan,
        number: int,
        examples: np.ndarray,
        memory: Memory | None = None,
    ):
        if not 0 <= number < plan.clients:
            raise ValueError(
                f"the number of a site must lie in 0..{plan.clients - 1}, got {number}"
            )
        if examples.shape[1:] != plan.shape or examples.dtype != plan.dtype:
            raise ValueError(
                f"the plan needs examples of shape {plan.shape} and type {plan.dtype}, "
                f"but site {number} has {examples.shape[1:]} and {examples.dtype}"
            )
        if not np.isfinite(examples).all():
            raise ValueError(f"site {number} has values that are not finite")
        self.plan, self.number, self.examples = plan, number, examples
        self.memory = memory or Memory()
        self.program, self.lost = Program(plan, len(examples)), False
        self._data = data_of(jnp.asarray(examples), plan.clusters)

    def answer(
        self, step: int, phase: int, down: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Does the site's part of a phase.

        Args:
            step: the number of the step in `Program.steps`.
            phase: the phase of the step.
            down: the arrays from the server.

        Returns:
            The arrays to upload.

        Raises:
            ValueError: the request does not follow the last one, or its arrays have
                other shapes than the step needs.
        """
        program, memory = self.program, self.memory
        position = program.steps[step]
        kind = program.kind_of(position)
        parts = program.cut(kind)
        check_arrays(down, [parts.shapes[x] for x in parts.phases[phase].down])
        if phase > 0 and memory.next != (step, phase):
            raise ValueError(f"phase {phase} of step {step} is not the next one")
        run = program.client_part(kind, phase)
        up, kept, results = run(
            program.common(position, self._present(position)),
            (self._data, self._state(step, kind)),
            jnp.int32(self.number),
            [*map(jnp.asarray, down)],
            memory.kept if phase else [],
        )
        memory.kept, memory.next = [*map(np.asarray, kept)], (step, phase + 1)
        if phase == len(parts.phases) - 1:
            older = [x for x in memory.states if x <= step]
            memory.states = {x: memory.states[x] for x in older[-1:]}
            leaves = jax.tree.leaves(results)
            memory.states[step + 1] = [*map(np.asarray, leaves)]
            memory.kept = []
            if position.round:
                memory.rounds.append(program.round_of(position))
        return [*map(np.asarray, up)]

    def assign(self, down: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Assigns the examples of the site to clusters, with the final state.

        Args:
            down: the arrays from the server, see `Server.final`.

        Returns:
            The cluster [N] and the embedding [N, D] of every example.
        """
        program, kind, last = self.program, ("assign", 0), len(self.program.steps)
        parts = program.cut(kind)
        check_arrays(down, [parts.shapes[x] for x in parts.phases[0].down])
        _, _, (clusters, embedding) = program.client_part(kind, 0)(
            program.common(None, program.nobody()),
            (self._data, self._state(last, kind)),
            jnp.int32(self.number),
            [*map(jnp.asarray, down)],
            [],
        )
        return np.asarray(clusters), np.asarray(embedding)

    def _present(self, position: Position) -> np.ndarray:
        """Returns the rounds [R, M] in which this site took part, this one included."""
        present, now = self.program.nobody(), self.program.round_of(position)
        self.memory.rounds = [x for x in self.memory.rounds if x < now]
        present[self.memory.rounds, self.number] = True
        present[now] = True
        return present

    def _state(self, step: int, kind: tuple[str, int]) -> PyTree:
        """Returns the newest state before a step."""
        program = self.program
        _, shapes = program.state_shapes(kind)
        leaves, structure = jax.tree.flatten(shapes)
        older = [x for x in self.memory.states if x <= step]
        values = self.memory.states[max(older)] if older else []
        if [x.shape for x in values] == [x.shape for x in leaves]:
            return jax.tree.unflatten(structure, [*map(jnp.asarray, values)])
        before = {program.kind_of(x) for x in program.steps[:step]}
        if all(program.cut(x).is_for_server_alone for x in before):
            common = program.common(None, program.nobody())
            own, number = (self._data, ()), jnp.int32(self.number)
            return program.client_part(("init", 0), 0)(common, own, number, [], [])[2]
        # A new or restarted site begins like a client that has not taken part yet.
        self.lost = True
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def check_arrays(arrays: Sequence[np.ndarray], shapes: Sequence[Any]) -> None:
    """Checks the number, shapes and types of arrays from another party.

    Args:
        arrays: the arrays.
        shapes: their expected shapes and types.

    Raises:
        ValueError: an array differs.
    """
    got = [(x.shape, np.dtype(x.dtype)) for x in arrays]
    expected = [(tuple(x.shape), np.dtype(x.dtype)) for x in shapes]
    if got != expected:
        pairs = zip(got, expected, strict=False)
        which = next((f"{a} instead of {b}" for a, b in pairs if a != b), "")
        raise ValueError(
            f"a message has {len(got)} arrays of {len(expected)} that the plan needs"
            + (f", and one of shape and type {which}" if which else "")
        )


# --- The server

Ask = Callable[[int, int, list[np.ndarray]], dict[int, list[np.ndarray]]]
"""(step, phase, arrays) -> the answers by number of the site. Sites that do not answer,
or whose answer is not accepted, are missing."""


class Done(NamedTuple):
    """A finished step, the argument of `on_step`."""

    step: int
    """The number of the step in `Program.steps`."""
    state: PyTree
    """The state of the server."""
    metrics: dict[str, np.ndarray]
    """The metrics of a round, as in the simulation."""
    present: np.ndarray
    """The sites of each round so far, [R, M]."""
    is_done: bool
    """Whether the stage has ended."""
    sent: int
    """Bytes of the arrays that were sent to the sites."""
    received: int
    """Bytes of the arrays that the sites uploaded."""


class Server:
    """The server of a federation.

    Args:
        plan: the plan.
        num_examples: a number of examples, for example that of the largest site.
        at_least: the smallest number of sites for a step.
    """

    def __init__(self, plan: Plan, num_examples: int, *, at_least: int = 1):
        self.plan, self.at_least = plan, at_least
        self.program = Program(plan, num_examples)

    def run(
        self,
        ask: Ask,
        *,
        start: Done | None = None,
        on_step: Callable[[Done], None] = lambda _: None,
    ) -> Done:
        """Runs all steps.

        If a site stops answering within a step, the step begins again without it. A
        site whose answers are missing has weight 0, as in the simulation.

        Args:
            ask: sends a request to the sites.
            start: the last finished step of an earlier process.
            on_step: called after every step.

        Returns:
            The last step.

        Raises:
            RuntimeError: fewer than `at_least` sites answered.
        """
        program = self.program
        done = start or self._first()
        for step in range(done.step + 1, len(program.steps)):
            position = program.steps[step]
            if position.round and done.is_done:
                continue
            answer = None
            while answer is None:
                answer = self._step(step, done, ask)
            done = answer
            on_step(done)
        return done

    def final(self, done: Done) -> list[np.ndarray]:
        """Returns the arrays that a site needs to assign its examples.

        Args:
            done: the last step.

        Returns:
            The arrays.
        """
        common = self.program.common(None, self.program.nobody())
        down = self.program.server_part(("assign", 0))(common, done.state, [])
        return [*map(np.asarray, down)]

    def _first(self) -> Done:
        program = self.program
        nobody = program.nobody()
        common = program.common(None, nobody)
        state = program.server_part(("init", 0))(common, (), [[]])
        return Done(-1, state, {}, nobody, False, 0, 0)

    def _step(self, step: int, before: Done, ask: Ask) -> Done | None:
        """Runs a step; returns None if a site stopped answering within the step."""
        program, num_sites = self.program, self.plan.clients
        position = program.steps[step]
        kind = program.kind_of(position)
        parts = program.cut(kind)
        present, now = before.present.copy(), program.round_of(position)
        present[now] = True
        common = program.common(position, present)
        run, uploads = program.server_part(kind), []
        sites, sent, received = None, 0, 0
        phases = () if parts.is_for_server_alone else parts.phases
        for number, phase in enumerate(phases):
            down = [*map(np.asarray, run(common, before.state, uploads))]
            answers = ask(step, number, down)
            expected = [parts.shapes[x] for x in phase.up]
            for up in answers.values():
                check_arrays(up, expected)
            if len(answers) < self.at_least:
                raise RuntimeError(
                    f"{len(answers)} of {num_sites} sites answered, but the federation "
                    f"needs {self.at_least}"
                )
            if sites is not None and sites - answers.keys():
                return None
            sites = {*answers} if sites is None else sites
            sent += len(sites) * sum(x.nbytes for x in down)
            received += sum(x.nbytes for up in answers.values() for x in up)
            missing = [np.zeros(x.shape, x.dtype) for x in expected]
            each = [answers.get(site, missing) for site in range(num_sites)]
            uploads.append([np.concatenate(x) for x in zip(*each, strict=True)])
        uploads += [[]] * (len(parts.phases) - len(uploads))
        present[now] = [site in (sites or ()) for site in range(num_sites)]
        state, metrics, is_done = run(common, before.state, uploads)
        return Done(
            step=step,
            state=state,
            metrics=jax.tree.map(np.asarray, metrics),
            present=present,
            is_done=bool(is_done),
            sent=sent,
            received=received,
        )
