"""What a program costs: devices, operations, bytes.

Counts the bytes that a compiled program moves and sends, from its text.

XLA's own count (`cost_analysis`) takes the body of a loop once, and what lies in a
TPU's scratch memory as if it were in the device's.

Counts the operations of a program's matrix products and convolutions.

The count is made on the jaxpr, before XLA compiles the program. The jaxpr has every
product, also the products that XLA hands to cuBLAS or cuDNN, and the length of every
`scan`.
"""

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.experimental import topologies
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.interpreters.partial_eval import dce_jaxpr

# --- Devices


class Chip(NamedTuple):
    """A chip's published peak rates, for dense operands."""

    rates: Mapping[str, float]
    """Operations per second by precision, as `operations.Operations.counts` has it."""
    bandwidth: float
    """Bytes per second of the chip's memory."""
    memory: int
    """Bytes of the chip's memory."""

    def least_seconds(self, counts: Mapping[str, int], moved: int) -> float:
        """Returns a lower bound on the seconds that a program takes.

        Args:
            counts: the program's operations by precision, which run one after another.
            moved: the bytes that the program reads and writes, during the operations.

        Examples:
            >>> chip = Chip({"highest": 10.0, "default": 80.0}, 5.0, memory=100)
            >>> chip.least_seconds({"highest": 20, "default": 80}, moved=5)
            3.0
        """
        arithmetic = sum(number / self.rates[name] for name, number in counts.items())
        return max(arithmetic, moved / self.bandwidth)


def of_tpu(bfloat16: float) -> dict[str, float]:
    """Returns the rates of a TPU, which multiplies float32 operands in several passes
    over bfloat16 parts: see `jax.lax.Precision`.

    Args:
        bfloat16: operations per second in bfloat16.
    """
    passes = {"highest": 6, "high": 3, "default": 1, "bfloat16": 1}
    return {name: bfloat16 / number for name, number in passes.items()}


def of_gpu(float32: float, tf32: float, bfloat16: float) -> dict[str, float]:
    """Returns the rates of an NVIDIA GPU. At the precisions "high" and "default" JAX
    lets tensor cores multiply float32 operands as TF32: see `jax.lax.Precision`.

    Args:
        float32: operations per second in float32, without tensor cores.
        tf32, bfloat16: operations per second of tensor cores.
    """
    return {"highest": float32, "high": tf32, "default": tf32, "bfloat16": bfloat16}


TPUS = {
    "v5e": Chip(of_tpu(197e12), 819e9, 16 * 2**30),
    "v5p": Chip(of_tpu(459e12), 2765e9, 95 * 2**30),
    "v6e": Chip(of_tpu(918e12), 1640e9, 32 * 2**30),
}
"""https://cloud.google.com/tpu/docs/v5e, v5p, v6e"""

HOPPER_RATES = of_gpu(66.9e12, 494.7e12, 989.4e12)
"""NVIDIA's white paper "H100 Tensor Core GPU Architecture". An H200 computes alike."""

GPUS = {
    "a100": Chip(of_gpu(19.5e12, 156e12, 312e12), 1555e9, 42331013120),
    "h100": Chip(HOPPER_RATES, 3352e9, 84942979072),
    "h200": Chip(HOPPER_RATES, 4800e9, 151397597184),
}
"""The data sheets of the SXM boards (A100: 40 GB), without sparsity. CUDA reports the
memory."""

A100 = (
    "core_count: 108 fpus_per_core: 64 clock_rate_ghz: 1.41 l2_cache_size: 41943040 "
    "shared_memory_per_core: 167936 shared_memory_per_block_optin: 166912 "
    "cuda_compute_capability { major: 8 feature_extension: NONE }"
)
HOPPER = (
    "core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98 l2_cache_size: 52428800 "
    "shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448 "
    "cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }"
)
CORES = {"a100": A100, "h100": HOPPER, "h200": HOPPER}
"""What differs between GPUs in XLA's description of one, beside the memory."""


def described(topology: str) -> tuple[list[Any], Chip]:
    """Returns the devices of a topology, to compile for, and what one of them is.

    Args:
        topology: see above.

    Raises:
        ValueError: there is no such topology, or no compiler for it.
    """
    name, _, shape = topology.partition(":")
    if name in TPUS:
        # The compiler would look for a machine with TPUs around this one, and would be
        # the only one on it.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        asked = {"topology_name": topology, "platform": "tpu"}
        chip, compiler = TPUS[name], '"jax[tpu]"'
    elif name in GPUS and shape.isdecimal() and int(shape):
        asked = {"platform": "cuda", "target_config": _gpu(name)}
        asked["topology"] = f"1x1x{shape}"
        chip, compiler = GPUS[name], CUDA_COMPILER
    else:
        raise ValueError(
            f"--on must be one of {', '.join(TPUS)} and a shape, as v5e:2x2, or one of "
            f"{', '.join(GPUS)} and a number, as h100:8, got {topology}"
        )
    try:
        found = topologies.get_topology_desc(**asked)
    except Exception as error:
        line = str(error).partition("\n")[0]
        shapes = f"shapes: {', '.join(SHAPES[name])}; " if name in TPUS else ""
        told = f"{shapes}its compiler: pip install {compiler}"
        raise ValueError(f"--on {topology}: {line} ({told})") from error
    return list(found.devices), chip


CUDA_COMPILER = "jax-cuda13-plugin nvidia-cuda-nvcc nvidia-nvvm"
SHAPES = {
    **dict.fromkeys(
        ("v5e", "v6e"), ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
    ),
    "v5p": ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8"),
}
"""That the chips are rented in, the smallest first."""


def larger(topology: str) -> list[str]:
    """Returns the topologies of the same chips with more of them, the smallest first.

    Examples:
        >>> larger("v5e:8x8")
        ['v5e:8x16', 'v5e:16x16']
        >>> larger("h100:8")
        ['h100:16', 'h100:32', 'h100:64']
    """
    name, _, shape = topology.partition(":")
    if name in GPUS:
        return [f"{name}:{int(shape) * factor}" for factor in (2, 4, 8)]

    def count(shape: str) -> int:
        return math.prod(map(int, shape.split("x")))

    return [f"{name}:{x}" for x in SHAPES[name] if count(x) > count(shape)]


def _gpu(name: str) -> str:
    """Returns XLA's description of a GPU, a GpuTargetConfigProto as text."""
    chip = GPUS[name]
    return f"""
        gpu_device_info {{
            {CORES[name]}
            memory_bandwidth: {int(chip.bandwidth)} device_memory_size: {chip.memory}
            threads_per_block_limit: 1024 threads_per_warp: 32
            threads_per_core_limit: 2048 shared_memory_per_block: 49152
            registers_per_core_limit: 65536 registers_per_block_limit: 65536
            block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
            block_dim_limit_z: 65535 thread_dim_limit_x: 1024 thread_dim_limit_y: 1024
            thread_dim_limit_z: 64
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 12 }}
        device_description_str: "{name.upper()}"
    """


# --- Bytes

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


# --- Operations


class Operations(NamedTuple):
    """The operations of one call of a program, on each device."""

    counts: Counter[str]
    """Multiplications and additions by precision: the values of `jax.lax.Precision` in
    lower case for float32 operands, "bfloat16" for operands of 16 bits or fewer."""
    open_loops: int
    """Number of loops of unknown length. The body of such a loop is counted once."""


Known = Sequence[int | None]
"""The value of each scalar integer that the program fixes, None for other variables."""


def count(program: ClosedJaxpr) -> Operations:
    """Counts the operations of a program.

    A multiplication with an addition counts as two operations. Only matrix products
    and convolutions are counted, not the decompositions of linear algebra. Taps of a
    convolution that see padding, and equations without effect on the results, are left
    out. The cheapest branch of a `cond` is counted, unless the branch is known.

    Args:
        program: the traced program, as `jax.stages.Traced.jaxpr`. Shapes inside of a
            `shard_map` are those of one device.

    Returns:
        The operations by precision, and the number of loops of unknown length.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> product = jax.make_jaxpr(jnp.matmul)(jnp.ones((4, 8)), jnp.ones((8, 3)))
        >>> count(product).counts  # 2 * 4 * 8 * 3
        Counter({'default': 192})
    """
    live, _ = dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))
    return _of_jaxpr(live, [None] * len(live.invars))[0]


def _of_jaxpr(jaxpr: Any, inputs: Known) -> tuple[Operations, Known]:
    """Returns the operations of a jaxpr, and the values of its outputs."""
    consts = getattr(jaxpr, "consts", [])
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    known: dict[Var, int | None] = dict(zip(jaxpr.invars, inputs, strict=True))
    known |= zip(jaxpr.constvars, map(_integer, consts), strict=False)

    def values(atoms: Iterable[Any]) -> Known:
        return [
            _integer(x.val) if isinstance(x, Literal) else known.get(x) for x in atoms
        ]

    found = []
    for eqn in jaxpr.eqns:
        own, outputs = _of_equation(eqn, values(eqn.invars))
        found.append(own)
        known |= zip(eqn.outvars, outputs, strict=False)
    return _sum(found), values(jaxpr.outvars)


def _of_equation(eqn: JaxprEqn, inputs: Known) -> tuple[Operations, Known]:
    name, params, unknown = eqn.primitive.name, eqn.params, [None] * len(eqn.outvars)
    match name:
        case "dot_general":
            return _products(eqn, _dot(eqn)), unknown
        case "conv_general_dilated":
            return _products(eqn, _convolution(eqn)), unknown
        case "scan":
            num_fixed = params["num_consts"]
            varied = [None] * (len(inputs) - num_fixed)
            body, _ = _of_jaxpr(params["jaxpr"], [*inputs[:num_fixed], *varied])
            return _times(body, params["length"]), unknown
        case "while":
            return _while(eqn, inputs), unknown
        case "cond":
            index, branches = inputs[0], params["branches"]
            if index is not None:
                return _of_jaxpr(
                    branches[np.clip(index, 0, len(branches) - 1)], inputs[1:]
                )
            each = [_of_jaxpr(branch, inputs[1:])[0] for branch in branches]
            return min(each, key=lambda own: own.counts.total()), unknown
        case "custom_linear_solve":  # the other jaxprs are for gradients
            solve = params["jaxprs"].solve
            return _of_jaxpr(solve, [None] * len(solve.in_avals))[0], unknown
        case "optimization_barrier":
            return _sum([]), inputs
        case "convert_element_type":
            return _sum([]), inputs
        case "select_n":
            cases = [x for x in inputs[1:] if x is not None]
            return _sum([]), [min(cases) if len(cases) == len(inputs) - 1 else None]
    inner = list(_jaxprs(params.values()))
    if len(inner) == 1 and len(_inputs(inner[0])) == len(inputs):
        return _of_jaxpr(inner[0], inputs)
    each = [_of_jaxpr(x, [None] * len(_inputs(x)))[0] for x in inner]
    return _sum(each), unknown


def _while(eqn: JaxprEqn, inputs: Known) -> Operations:
    params = eqn.params
    of_cond, of_body = params["cond_nconsts"], params["body_nconsts"]
    fixed = inputs[of_cond:][:of_body]
    varied = [None] * (len(inputs) - of_cond - of_body)
    body, _ = _of_jaxpr(params["body_jaxpr"], [*fixed, *varied])
    length = _length(eqn, inputs)
    if length is not None:
        return _times(body, length)
    asked, _ = _of_jaxpr(params["cond_jaxpr"], [*inputs[:of_cond], *varied])
    once = _sum([body, asked])
    return once._replace(open_loops=once.open_loops + 1)


def _length(eqn: JaxprEqn, inputs: Known) -> int | None:
    """Returns the length of a `fori_loop`: a counter goes by 1 from one known integer
    to another. Returns None for other loops."""
    condition, body = (eqn.params[x].jaxpr for x in ("cond_jaxpr", "body_jaxpr"))
    of_cond, of_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    if [x.primitive.name for x in condition.eqns] != ["lt"]:
        return None
    given = [*inputs[:of_cond], *inputs[of_cond + of_body :]]
    counter, limit = condition.eqns[0].invars
    places = {x: i for i, x in enumerate(condition.invars)}
    carried, results = body.invars[of_body:], body.outvars
    place = places.get(counter, -1) - of_cond if isinstance(counter, Var) else -1
    if place < 0:
        return None
    steps = {x.outvars[0]: x for x in body.eqns if x.primitive.name == "add"}
    step = steps.get(results[place]) if isinstance(results[place], Var) else None
    if step is None or step.invars[0] is not carried[place]:
        return None
    if not isinstance(step.invars[1], Literal) or step.invars[1].val != 1:
        return None
    if isinstance(limit, Literal):
        last = _integer(limit.val)
    else:
        last, of_limit = given[places[limit]], places[limit] - of_cond
        if of_limit >= 0 and results[of_limit] is not carried[of_limit]:
            return None
    first = given[places[counter]]
    return None if first is None or last is None else max(0, last - first)


def _integer(value: Any) -> int | None:
    """Returns the value of a scalar integer or boolean, None for other constants."""
    is_integer = np.ndim(value) == 0 and np.result_type(value).kind in "iub"
    return int(value) if is_integer else None


def _jaxprs(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, ClosedJaxpr | Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from _jaxprs(value)


def _inputs(jaxpr: Any) -> Sequence[Var]:
    return jaxpr.jaxpr.invars if isinstance(jaxpr, ClosedJaxpr) else jaxpr.invars


def _sum(parts: Sequence[Operations]) -> Operations:
    counts = sum((part.counts for part in parts), Counter[str]())
    return Operations(counts, sum(part.open_loops for part in parts))


def _times(body: Operations, length: int) -> Operations:
    counts = Counter({name: length * number for name, number in body.counts.items()})
    return body._replace(counts=counts)


def _products(eqn: JaxprEqn, number: int) -> Operations:
    return Operations(Counter({_precision(eqn): number}), 0)


def _precision(eqn: JaxprEqn) -> str:
    """Returns the precision of a product: the higher one of its two operands'."""
    operands: Any = eqn.invars[:2]
    if all(x.aval.dtype.itemsize <= 2 for x in operands):
        return "bfloat16"
    given = eqn.params["precision"]
    pair = given if isinstance(given, tuple) else (given,)
    asked = [x for x in pair if isinstance(x, lax.Precision)]
    return max(asked, key=lambda x: x.value, default=lax.Precision.DEFAULT).name.lower()


def _shape(atom: Any) -> tuple[int, ...]:
    return atom.aval.shape


def _dot(eqn: JaxprEqn) -> int:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left = _shape(eqn.invars[0])
    return 2 * prod(_shape(eqn.outvars[0])) * prod(left[i] for i in contracted)


def _convolution(eqn: JaxprEqn) -> int:
    """Returns the operations of a convolution, grouped or not. The kernel's number of
    input features is the number in a group."""
    params = eqn.params
    left, kernel = (_shape(x) for x in eqn.invars[:2])
    out = _shape(eqn.outvars[0])
    numbers = params["dimension_numbers"]
    pairs = pixels = 1
    for axis, (stride, (before, _), holes, spread) in enumerate(
        zip(
            params["window_strides"],
            params["padding"],
            params["lhs_dilation"],
            params["rhs_dilation"],
            strict=True,
        )
    ):
        extent, size, outputs = (
            shape[spec[2 + axis]]
            for shape, spec in zip((left, kernel, out), numbers, strict=True)
        )
        last = (extent - 1) * holes
        places = (
            i * stride + tap * spread - before
            for i in range(outputs)
            for tap in range(size)
        )
        pairs *= sum(0 <= place <= last and place % holes == 0 for place in places)
        pixels *= outputs
    return 2 * prod(out) // pixels * kernel[numbers.rhs_spec[1]] * pairs
