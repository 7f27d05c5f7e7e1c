"""Counts the bytes that a compiled program moves and sends, from its text.

XLA's own count (`cost_analysis`) takes the body of a loop once, and what lies in a
TPU's scratch memory as if it were in the device's.
"""

import re
from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}
"""Of an element; of whole numbers the name says it: s32, u8."""

COLLECTIVES = (
    *("all-reduce", "all-gather", "all-to-all", "reduce-scatter"),
    "collective-permute",
)
FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota")
"""Instructions that move nothing."""
PICKS = ("slice", "dynamic-slice", "gather")
"""Those that read as much of their first operand as they return."""

ARRAY = re.compile(r"\b([a-z]+\d*[a-z0-9]*)\[([\d,]*)\](\{[^}]*\})?")
HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
CALLED = re.compile(r"(?:calls|body|to_apply|\w+_computations?)=(\{[^}]*|%[\w.\-]+)")


class Cost(NamedTuple):
    """Of one call of a program, on each device."""

    moved: int
    """Bytes of the device's memory that its instructions read and write."""
    collectives: Counter[str]
    """How often devices exchange something, by kind."""
    sent: Counter[str]
    """Bytes that they exchange, by kind."""
    open_loops: int
    """Loops whose length is not known, and whose body is counted once."""


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    shape: str
    kind: str
    operands: tuple[str, ...]
    rest: str


def cost(text: str) -> Cost:
    """Returns what a program costs, with the bodies of loops counted by their lengths.

    Args:
        text: of a compiled program, as `jax.stages.Compiled.as_text`.
    """
    computations, entry = read(text)
    known: dict[str, Cost] = {}

    def of(name: str) -> Cost:
        if name not in known:
            own = {x.name: x.shape for x in computations[name]}
            known[name] = total(instruction(x, own) for x in computations[name])
        return known[name]

    def length_of(loop: Instruction) -> int | None:
        """As XLA says, or by its condition: JAX counts from 0 by 1."""
        told = re.search(r'known_trip_count"?:?\{"?n"?:"?(\d+)', loop.rest)
        if told:
            return int(told[1])
        condition = re.search(r"condition=%([\w.\-]+)", loop.rest)
        *given, root = computations[condition[1]] if condition else [loop]
        constants = {x.name: x.rest for x in given if x.kind == "constant"}
        limit = [constants[name] for name in root.operands if name in constants]
        if root.kind == "compare" and "direction=LT" in root.rest and limit:
            return int(limit[0].partition(")")[0].removeprefix("("))
        return None

    def instruction(x: Instruction, shapes: dict[str, str]) -> tuple[int, Cost]:
        inner = [of(name) for name in called(x) if x.kind != "fusion"]
        if x.kind == "while":
            found, length = total((1, each) for each in inner), length_of(x)
            if length is None:
                return 1, found._replace(open_loops=found.open_loops + 1)
            return length, found
        if x.kind == "conditional":
            return 1, min(inner, key=lambda each: each.moved)
        if x.kind in ("call", "async-start"):
            return 1, total((1, each) for each in inner)
        kind = x.kind.removesuffix("-start")
        sent = {}
        if kind in COLLECTIVES:
            sent[kind] = sum(num_bytes(shapes[name]) for name in x.operands)
        moved = bytes_moved(x, shapes, computations)
        return 1, Cost(moved, Counter(dict.fromkeys(sent, 1)), Counter(sent), 0)

    return of(entry)


def total(parts: Iterator[tuple[int, Cost]]) -> Cost:
    """Adds up costs, each taken so many times."""
    moved = open_loops = 0
    collectives, sent = Counter[str](), Counter[str]()
    for times, part in parts:
        moved += times * part.moved
        open_loops += part.open_loops
        for sums, own in ((collectives, part.collectives), (sent, part.sent)):
            sums.update({kind: times * number for kind, number in own.items()})
    return Cost(moved, collectives, sent, open_loops)


def bytes_moved(
    x: Instruction, shapes: dict[str, str], computations: dict[str, list[Instruction]]
) -> int:
    """Returns the bytes of the device's memory that an instruction reads and writes."""
    if x.kind in FREE or x.kind.endswith("-done"):
        return 0
    if x.kind in ("copy-start", "slice-start"):
        # From, to, and what the two halves of the copy agree by.
        ends = arrays(x.shape)[:2]
        return min(end.num_bytes for end in ends) * sum(end.is_main for end in ends)
    read = sum(
        part if part is not None else whole
        for i, name in enumerate(x.operands)
        if name in shapes and (whole := num_bytes(shapes[name], main=True))
        for part in [bytes_read(x, i, computations)]
    )
    return read + bytes_written(x, shapes, computations)


def bytes_read(
    x: Instruction, place: int, computations: dict[str, list[Instruction]]
) -> int | None:
    """Returns how much of an operand an instruction reads; None is all of it."""
    if x.kind in PICKS and place == 0:
        return num_bytes(x.shape)
    if x.kind == "dynamic-update-slice" and place == 0:
        return 0
    if x.kind != "fusion":
        return None
    body = computations[called(x)[0]]
    (own,) = (
        y.name
        for y in body
        if y.kind == "parameter" and y.rest.startswith(f"({place})")
    )
    parts = [
        bytes_read(y, i, computations)
        for y in body
        for i, name in enumerate(y.operands)
        if name == own
    ]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def bytes_written(
    x: Instruction, shapes: dict[str, str], computations: dict[str, list[Instruction]]
) -> int:
    """Returns how much an instruction writes: of an update in place its slice."""
    if not num_bytes(x.shape, main=True):
        return 0
    if x.kind == "dynamic-update-slice":
        return num_bytes(shapes[x.operands[1]])
    if x.kind == "fusion":
        body = computations[called(x)[0]]
        root = body[-1]
        if root.kind == "dynamic-update-slice":
            return num_bytes({y.name: y.shape for y in body}[root.operands[1]])
    return num_bytes(x.shape, main=True)


def read(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """Returns the instructions of each computation, and which is the program's own."""
    computations: dict[str, list[Instruction]] = {}
    entry, current = "", []
    for line in text.splitlines():
        if header := HEADER.match(line):
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif line.startswith("  ") and " = " in line:
            current.append(parse(line))
    return computations, entry


def parse(line: str) -> Instruction:
    name, _, right = line.strip().removeprefix("ROOT ").partition(" = ")
    end = closing(right) if right.startswith("(") else right.index(" ")
    shape, right = right[:end], right[end:].strip()
    kind, _, _ = right.partition("(")
    inside = right[len(kind) :]
    end = closing(inside)
    operands = tuple(re.findall(r"%([\w.\-]+)", inside[:end]))
    return Instruction(name.lstrip("%"), shape, kind, operands, inside)


def closing(text: str) -> int:
    """Returns the place behind the parenthesis that closes the first."""
    depth = 0
    for i, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return i + 1
    raise ValueError(f"no end of {text[:80]}")


def called(x: Instruction) -> list[str]:
    if x.kind not in ("while", "fusion", "call", "conditional", "async-start"):
        return []  # sums are taken by what they apply, too
    names = ", ".join(CALLED.findall(x.rest))
    return re.findall(r"%([\w.\-]+)", names)


class Shape(NamedTuple):
    """Of one array."""

    kind: str
    size: tuple[int, ...]
    is_main: bool
    """Whether it lies in the device's memory, not in a scratch memory of the core."""

    @property
    def num_bytes(self) -> int:
        digits = re.search(r"\d+", self.kind)
        width = BYTES.get(self.kind) or (max(1, int(digits[0]) // 8) if digits else 0)
        return width * prod(self.size)


def arrays(shape: str) -> list[Shape]:
    return [
        Shape(kind, tuple(int(n) for n in size.split(",") if n), "S(" not in layout)
        for kind, size, layout in ARRAY.findall(shape)
    ]


def num_bytes(shape: str, *, main: bool = False) -> int:
    """Returns the bytes of a shape's arrays, or of those in the device's memory."""
    return sum(x.num_bytes for x in arrays(shape) if x.is_main or not main)
