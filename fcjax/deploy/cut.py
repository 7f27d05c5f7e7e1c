"""Cuts a step of a method into the parts of the server and of a client.

A step is the beginning of a stage or a round. Its function treats the clients of a
simulation as arrays with a client axis. Clients exchange values only through
`fcjax.federated.server`. If the step is traced with the axis `SITES`, each exchange is
an `all_gather` or a `psum` of JAX. Every other operation has one place:

- An operation that reads data or the state of a client is done by the client.
- An operation that reads values of the server, but none of a client, is done by the
  server.
- An operation that reads neither, such as the draw of a key, is done where its result
  is needed.

A client downloads the server's values that its operations read, and uploads the
operands of the exchanges. So a real federation does the operations of the simulation,
and nothing leaves a client except these operands. An upload that depends on a download,
which depends on an earlier upload, begins a new phase. Most rounds have one phase.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn, jaxpr_as_fun, jaxprs_in_params
from jax.extend.core import Literal as Constant

from fcjax.parallel.mesh import SECURE, SITES, num_bytes
from fcjax.types import PyTree

COMMON, SERVER, CLIENT = "common", "server", "client"
"""The places of a value: known to all, on the server, or on each client."""
BEFORE = -1
"""The phase of the values that the server has before the first upload."""


class Operation(NamedTuple):
    """An operation of a step. Values have numbers."""

    call: Callable[..., Sequence[Any]]
    """(operands) -> results"""
    operands: tuple[int, ...]
    results: tuple[int, ...]
    exchange: str = ""
    """"all_gather", "psum" or "axis_index" for an operation that depends on the
    sites."""


class Phase(NamedTuple):
    """The downloads, uploads and stored values of one phase, by their numbers."""

    down: tuple[int, ...]
    """Values that each client downloads before it computes."""
    up: tuple[int, ...]
    """Values that each client uploads."""
    memory: tuple[int, ...]
    """Values that a client keeps for its later phases."""
    sums: tuple[bool, ...] = ()
    """Whether the server needs only the sum of an upload over all clients."""


class Step(NamedTuple):
    """A step of a method, cut into parts."""

    operations: tuple[Operation, ...]
    constants: dict[int, Any]
    inputs: dict[str, PyTree]
    """By place, a tree of the numbers of the inputs."""
    outputs: dict[str, PyTree]
    """By place, a tree of the numbers of the results."""
    shapes: dict[int, Any]
    """The shape and type of every value."""
    places: dict[int, tuple[str, int]]
    """The place of every value, and the phase in which it is computed."""
    phases: tuple[Phase, ...]

    def client(
        self,
        phase: int,
        common: PyTree,
        own: PyTree,
        site: jax.Array,
        down: Sequence[Any],
        memory: Sequence[Any],
    ) -> tuple[list[Any], list[Any], PyTree]:
        """Computes the part of a client in a phase.

        Args:
            phase: the number of the phase, from 0.
            common: the values that all parties know.
            own: the data and the state of the client.
            site: the number of the client, from 0.
            down: the downloads of this phase.
            memory: the memory after the previous phase; [] before the first phase.

        Returns:
            The uploads, the memory, and after the last phase the results of the client;
            otherwise ().
        """
        before = self.phases[phase - 1].memory if phase else ()
        known = self._known({COMMON: common, CLIENT: own})
        known |= dict.fromkeys(self._results_of("axis_index"), site)
        known |= dict(zip(before, memory, strict=True))
        known |= dict(zip(self.phases[phase].down, down, strict=True))
        is_last = phase == len(self.phases) - 1
        results = self.outputs[CLIENT] if is_last else ()
        wanted = (list(self.phases[phase].up), list(self.phases[phase].memory), results)
        return self._compute(known, wanted)

    def server(
        self, common: PyTree, own: PyTree, uploads: Sequence[Sequence[Any]]
    ) -> PyTree:
        """Computes the part of the server after some phases.

        Args:
            common: the values that all parties know.
            own: the state of the server.
            uploads: for each finished phase, the uploads of all clients, stacked.

        Returns:
            The downloads of the next phase, or after the last phase the results of the
            server.
        """
        known = self._known({COMMON: common, SERVER: own})
        for phase, arrays in enumerate(uploads):
            operations = exchanges(self.operations, self.places, phase)
            for op, stacked in zip(operations, arrays, strict=True):
                if op.exchange == "psum":
                    # One after another, as in the simulation.
                    rows = (stacked[i : i + 1] for i in range(len(stacked)))
                    stacked = reduce(jnp.add, rows, jnp.zeros_like(stacked[:1]))
                known[op.results[0]] = stacked
        is_last = len(uploads) == len(self.phases)
        down = () if is_last else self.phases[len(uploads)].down
        return self._compute(known, self.outputs[SERVER] if is_last else list(down))

    @property
    def is_for_server_alone(self) -> bool:
        """Whether no client has anything to do: no upload, and no new state."""
        _, before = self.inputs[CLIENT]
        is_same = jax.tree.leaves(before) == jax.tree.leaves(self.outputs[CLIENT])
        return is_same and not any(phase.up for phase in self.phases)

    def bytes_of(self, numbers: Iterable[int]) -> int:
        """Counts the bytes of values.

        Args:
            numbers: the numbers of the values.

        Returns:
            The bytes.
        """
        return num_bytes([self.shapes[x] for x in numbers])

    def _known(self, values: dict[str, PyTree]) -> dict[int, Any]:
        known = dict(self.constants)
        for place, tree in values.items():
            numbers, leaves = jax.tree.leaves(self.inputs[place]), jax.tree.leaves(tree)
            known |= dict(zip(numbers, leaves, strict=True))
        return known

    def _results_of(self, exchange: str) -> list[int]:
        return [op.results[0] for op in self.operations if op.exchange == exchange]

    def _compute(self, known: dict[int, Any], wanted: PyTree) -> PyTree:
        """Does the operations that the wanted values need."""
        needed, todo = {*jax.tree.leaves(wanted)} - known.keys(), []
        for op in reversed(self.operations):
            if needed & {*op.results}:
                assert not op.exchange
                todo.append(op)
                needed |= {*op.operands} - known.keys()
        values = dict(known)
        for op in reversed(todo):
            results = op.call(*(values[x] for x in op.operands))
            values |= dict(zip(op.results, results, strict=True))
        return jax.tree.map(lambda x: jnp.asarray(values[x]), wanted)


def cut(
    fn: Callable[..., tuple[PyTree, PyTree]],
    num_sites: int,
    common: PyTree,
    server: PyTree,
    client: PyTree,
    *,
    secure: bool = False,
) -> Step:
    """Cuts a step into the parts of the server and of a client.

    Args:
        fn: (common, server, client) -> (results of the server, results of a client).
            The values of a client have a leading client axis of length 1.
        num_sites: the number of clients, at least 2.
        common: arrays or shapes of the values that all parties know.
        server: arrays or shapes of the state of the server.
        client: arrays or shapes of the data and the state of a client.
        secure: whether clients upload the terms of an average multiplied by their
            weights, so that the server needs only their sums. The rounding differs
            from that of the simulation.

    Returns:
        The step.

    Raises:
        ValueError: the server needs data of the clients that no client uploads.

    Examples:
        >>> from fcjax.federated import server
        >>> def step(common, total, x):
        ...     return total + server.gather(x.sum(axis=1)).sum(), x
        >>> x = jnp.array([[1.0, 2.0]])
        >>> parts = cut(step, 2, (), jnp.float32(0), x)
        >>> up, memory, _ = parts.client(0, (), x, jnp.int32(0), [], [])
        >>> print(up[0])
        [3.]
        >>> print(parts.server((), jnp.float32(1), [[jnp.array([3.0, 5.0])]]))
        9.0
    """
    axes = [(SITES, num_sites), *([(SECURE, 1)] if secure else [])]
    trace = jax.make_jaxpr(fn, axis_env=axes, return_shape=True)
    closed, shapes = trace(common, server, client)
    program = _Flattened()
    inputs = [program.new(x.aval) for x in closed.jaxpr.invars]
    outputs = program.add(closed, inputs)
    of_place: dict[str, PyTree] = {}
    for place, tree in ((COMMON, common), (SERVER, server), (CLIENT, client)):
        leaves, structure = jax.tree.flatten(tree)
        numbers, inputs = inputs[: len(leaves)], inputs[len(leaves) :]
        of_place[place] = jax.tree.unflatten(structure, numbers)
    first, second = jax.tree.unflatten(jax.tree.structure(shapes), outputs)
    step = Step(
        needed(program.operations, outputs),
        program.constants,
        of_place,
        {SERVER: first, CLIENT: second},
        program.shapes,
        {},
        (),
    )
    step = step._replace(places=_places(step))
    for number in jax.tree.leaves(first):
        if step.places[number][0] == CLIENT:
            raise ValueError("the server reads data that no client uploads")
    return step._replace(phases=_phases(step))


UPLOADS = ("all_gather", "psum")
"""The exchanges in which clients upload."""


def exchanges(
    operations: Iterable[Operation], places: dict[int, tuple[str, int]], phase: int
) -> list[Operation]:
    """Returns the uploads of a phase.

    Args:
        operations: the operations of a step.
        places: the place and the phase of every value.
        phase: the phase.

    Returns:
        Their operations.
    """
    return [
        op
        for op in operations
        if op.exchange in UPLOADS and places[op.results[0]][1] == phase
    ]


def needed(
    operations: Sequence[Operation], results: Sequence[int]
) -> tuple[Operation, ...]:
    """Returns the operations on which results depend, so that nothing else is uploaded.

    Args:
        operations: the operations of a step.
        results: the numbers of the results.

    Returns:
        The operations in their order.
    """
    wanted, kept = {*results}, []
    for op in reversed(operations):
        if wanted & {*op.results}:
            kept.append(op)
            wanted |= {*op.operands}
    return tuple(reversed(kept))


class _Flattened:
    """The operations of a traced function, with the exchanges at the top level."""

    def __init__(self):
        self.operations: list[Operation] = []
        self.constants: dict[int, Any] = {}
        self.shapes: dict[int, Any] = {}

    def new(self, aval: Any) -> int:
        """Returns the number of a new value."""
        number = len(self.shapes)
        self.shapes[number] = aval
        return number

    def constant(self, value: Any, aval: Any) -> int:
        """Returns the number of a new constant."""
        number = self.new(aval)
        self.constants[number] = value
        return number

    def add(self, closed: ClosedJaxpr, inputs: Sequence[int]) -> list[int]:
        """Adds the operations of a program, and returns the numbers of its results."""
        jaxpr, consts = closed.jaxpr, closed.consts
        numbers = dict(zip(jaxpr.invars, inputs, strict=True))
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            numbers[var] = self.constant(value, var.aval)

        def number_of(x):
            if isinstance(x, Constant):
                return self.constant(x.val, x.aval)
            return numbers[x]

        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            if name in ("jit", "pjit") and _has_exchange(eqn):
                results = self.add(eqn.params["jaxpr"], [*map(number_of, eqn.invars)])
                numbers |= dict(zip(eqn.outvars, results, strict=True))
                continue
            is_exchange = _is_exchange(eqn)
            if not is_exchange and _has_exchange(eqn):
                raise ValueError(
                    f"an exchange of clients is within a {name}, which cannot be cut"
                )
            # JAX has several names for a sum over an axis.
            name = "psum" if is_exchange and name.startswith("psum") else name
            if is_exchange and name not in (*UPLOADS, "axis_index"):
                raise ValueError(f"{name} is not an exchange that can be cut")
            results = [self.new(x.aval) for x in eqn.outvars]
            numbers |= dict(zip(eqn.outvars, results, strict=True))
            operands = [x for x in eqn.invars if not isinstance(x, Constant)]
            operands = list(dict.fromkeys(operands))
            if is_exchange:
                # A sum may have several operands. A number has none.
                rows = [(number_of(x),) for x in eqn.invars] or [()]
                for row, result in zip(rows, results, strict=True):
                    self.operations.append(Operation(lambda: (), row, (result,), name))
                continue
            single = jaxpr.replace(
                constvars=[],
                invars=operands,
                outvars=_named(eqn),
                eqns=[eqn],
                debug_info=jaxpr.debug_info.with_unknown_names(),
            )
            kept = [
                number
                for number, var in zip(results, eqn.outvars, strict=True)
                if var in single.outvars
            ]
            self.operations.append(
                Operation(
                    jaxpr_as_fun(ClosedJaxpr(single, ())),
                    tuple(numbers[x] for x in operands),
                    tuple(kept),
                )
            )
        return [number_of(x) for x in jaxpr.outvars]


def _named(eqn: JaxprEqn) -> list[Any]:
    """Returns the results of an operation that others can read."""
    return [x for x in eqn.outvars if type(x).__name__ != "DropVar"]


def _is_exchange(eqn: JaxprEqn) -> bool:
    axes = eqn.params.get("axis_name", eqn.params.get("axes", ()))
    return axes == SITES or (isinstance(axes, tuple) and SITES in axes)


def _has_exchange(eqn: JaxprEqn) -> bool:
    return any(
        _is_exchange(inner) or _has_exchange(inner)
        for jaxpr in jaxprs_in_params(eqn.params)
        for inner in jaxpr.eqns
    )


def _places(step: Step) -> dict[int, tuple[str, int]]:
    """Finds the place and the phase of every value."""
    places: dict[int, tuple[str, int]] = dict.fromkeys(step.constants, (COMMON, 0))
    for place, phase in ((COMMON, 0), (SERVER, BEFORE), (CLIENT, 0)):
        places |= {x: (place, phase) for x in jax.tree.leaves(step.inputs[place])}
    for op in step.operations:
        of_operands = [places[x] for x in op.operands]
        on_server = [phase for place, phase in of_operands if place == SERVER]
        on_client = [phase for place, phase in of_operands if place == CLIENT]
        # A client has a value of the server from the next phase on.
        at_client = max([0, *on_client, *(phase + 1 for phase in on_server)])
        if op.exchange in UPLOADS:
            place = (SERVER, at_client)
        elif op.exchange or on_client:
            place = (CLIENT, at_client)
        elif on_server:
            place = (SERVER, max(on_server))
        else:
            place = (COMMON, 0)
        places |= {x: place for x in op.results}
    return places


def _phases(step: Step) -> tuple[Phase, ...]:
    """Finds the values that cross, and those that clients remember, in each phase."""
    makers = {x: op for op in step.operations for x in op.results}
    # Values that a client computes from its number alone, such as its key. They are
    # computed again in every phase.
    free = {x for x, (place, _) in step.places.items() if place == COMMON}
    for op in step.operations:
        if op.exchange == "axis_index" or (not op.exchange and free >= {*op.operands}):
            free |= {*op.results}

    def client_phase(number):
        place, phase = step.places[number]
        return phase + 1 if place == SERVER else phase

    def sources(wanted: Iterable[int], stops: Callable[[int], bool]) -> set[int]:
        """Returns the values at which the computation of the wanted values begins."""
        found, seen, todo = set(), set(), [*wanted]
        while todo:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            if stops(number) or number not in makers:
                found.add(number)
            else:
                todo += makers[number].operands
        return found

    uploads: dict[int, list[int]] = {}
    sums: dict[int, list[bool]] = {}
    for op in step.operations:
        if op.exchange in UPLOADS:
            phase = step.places[op.results[0]][1]
            uploads.setdefault(phase, []).append(op.operands[0])
            sums.setdefault(phase, []).append(op.exchange == "psum")
    results = jax.tree.leaves(step.outputs[CLIENT])
    last = max([0, *uploads, *map(client_phase, results)])

    # From the last phase to the first: what does a client have to have?
    reads: dict[int, set[int]] = {}
    remembered: dict[int, set[int]] = {phase: set() for phase in range(last + 1)}
    for phase in range(last, -1, -1):
        wanted = {*uploads.get(phase, ())} | remembered[phase]
        if phase == last:
            wanted |= {*results}

        def stops(number, phase=phase):
            place, when = step.places[number]
            is_earlier = place == CLIENT and when < phase and number not in free
            return place == SERVER or is_earlier

        found = sources(wanted, stops)
        reads[phase] = {x for x in found if step.places[x][0] == SERVER}
        for number in found:
            place, when = step.places[number]
            is_made = number in makers and number not in free
            if place == CLIENT and when < phase and is_made:
                remembered[when].add(number)

    def smallest(number: int) -> int:
        """Returns the smallest value from which a client can compute a value."""
        while number in makers and not makers[number].exchange:
            own = [x for x in makers[number].operands if x not in free]
            if len(own) != 1 or step.bytes_of(own) > step.bytes_of([number]):
                break
            number = own[0]
        return number

    # A value is downloaded once. It is not downloaded if the client can compute it
    # from its other downloads.
    downloaded: list[int] = []
    downs: dict[int, list[int]] = {}
    for phase in range(last + 1):
        new = sorted({*map(smallest, reads[phase])} - {*downloaded})
        for number in reversed(new):
            others = {*downloaded, *new} - {number}
            found = sources([number], lambda x, others=others: x in others)
            if all(x in others or step.places[x][0] == COMMON for x in found):
                new.remove(number)
        downs[phase] = new
        downloaded += new

    phases, memory = [], set()
    for phase in range(last + 1):
        memory |= {*downs[phase]} | remembered[phase]
        later = {x for x in range(phase + 1, last + 1)}
        kept = () if not later else tuple(sorted(memory))
        up = tuple(uploads.get(phase, ()))
        phases.append(Phase(tuple(downs[phase]), up, kept, tuple(sums.get(phase, ()))))
    return tuple(phases)
