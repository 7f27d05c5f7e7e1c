"""What a run costs, counted and not timed: operations, and programs that are compiled.
What crosses devices is counted in test_spread.py."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

from fcjax import engine, nn
from fcjax.algorithms.ccfc import ccfc
from fcjax.methods import CCFC
from fcjax.parallel.exact import compiler_options
from fcjax.sweep import costs
from fcjax.types import Federation, Now
from tests.sweep import drifting

EXAMPLES = 32


@pytest.mark.parametrize(
    ("platform", "num_clients"),
    # A CPU takes one client after another, in a loop whose body counts once.
    [("cpu", 1), ("tpu", 3), ("gpu", 1)],
)
def test_a_round_of_pre_training_does_its_arithmetic_and_no_more(
    key, platform, num_clients
):
    """Two views forward and backward, both forward through the anchor, then every
    example forward for the embedding's spread. A client holds one batch, so that it
    takes one step."""
    federation = Federation(
        jnp.zeros((EXAMPLES, 28, 28, 1), jnp.uint8),
        jnp.tile(jnp.arange(EXAMPLES), (num_clients, 1)),
        jnp.ones((num_clients, EXAMPLES), bool),
        jnp.ones((1, num_clients), bool),
        jnp.full(num_clients, 10),
        Now(jnp.int32(0), jnp.int32(0), jnp.array(False)),
    )
    method = ccfc(
        CCFC(pretrain_rounds=2, cluster_rounds=2, batch_size=EXAMPLES).plain(),
        nn.simsiam(nn.conv_encoder()),
        optax.adam(1e-3),
        lambda key, x: x,
        num_clusters=10,
    )
    mesh = AbstractMesh(
        (1,),
        ("run",),
        axis_types=(AxisType.Auto,),
        abstract_device=AbstractDevice(platform, 1, platform),
    )
    with use_abstract_mesh(mesh), jax.default_matmul_precision("high"):
        state = jax.eval_shape(method.init, key, federation)
        round = jax.jit(method.stages[0].round).trace(key, state, federation)
    counts = costs.count(round.jaxpr).operations

    def expected(*taps):
        """For the pairs of an output and a kernel row on an axis, of each layer."""
        features = (1, 64, 128, 256)
        first, *others = (
            2 * pairs**2 * features[i] * features[i + 1] for i, pairs in enumerate(taps)
        )
        hidden = sum(others) + 2 * (2304 * 256 + 256 * 256)
        predictor = 2 * (256 * 16 + 16 * 256)
        forward = first + hidden + predictor
        # Nothing needs the gradient in the images.
        step = forward + 2 * forward - first
        return num_clients * EXAMPLES * (2 * step + 2 * forward + first + hidden)

    # Four kernel rows for 14, 7 and 3 outputs, with those on padding. A CPU fills up a
    # tile of images for the gradient of a kernel.
    operations = expected(56, 28, 12)
    most = operations * (1.01 if platform == "cpu" else 1)
    assert operations <= counts["high"] <= most
    # The decorrelation of either view: a product of the batch with itself, and its
    # gradient's two.
    gram = 2 * EXAMPLES**2 * 256
    assert counts["highest"] == num_clients * 2 * 3 * gram


@pytest.fixture(scope="module")
def grids(tmp_path_factory):
    """How to build a method of two stages, of two rounds and of four, and two grids of
    one run each, which differ in their seed."""
    folder = tmp_path_factory.mktemp("guard")
    flags = {"seed": (0, 1), "learn_rounds": (2,)}
    data = drifting.vectors(folder)
    prepared = drifting.prepare(folder / "out", data, **flags, runs_per_call=1)
    (batch,) = prepared.batches
    return batch.build, [part.grid(prepared.pool) for part in batch.split()]


def test_programs_of_a_run(grids):
    """One to begin with, and of each stage its beginning, its end and its round; a
    second grid of the same shapes, of other keys, has them all. A process has eight
    more, once: some slice the grid's arrays and fold the key."""
    # What XLA is asked first depends on the cores of the machine.
    compiler_options("cpu", num_bytes=0)
    compiled, counts = [], []

    def listen(event, duration_secs, **_):
        if event.endswith("backend_compile_duration"):
            compiled.append(duration_secs)

    build, (one, other) = grids
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for program in (engine.Program(build), engine.Program(build)):
            for grid in (one, other):
                program.run(grid)
                counts.append(len(compiled))
                compiled.clear()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    own = 1 + 2 * 3
    assert counts[1:] == [0, own, 0]
    assert counts[0] <= own + 8


def test_what_a_round_moves(grids, capfd):
    """To the device the numbers of stage and round, whatever the data; to the host
    what is shown of it: a few numbers, each an array of one run."""
    build, (one, other) = grids
    program = engine.Program(build)
    program.run(one)
    rounds, moved = [], []

    def look(round):
        rounds.append(round.metrics)
        moved.append(capfd.readouterr().err.count("host-to-device transfer"))

    capfd.readouterr()
    with jax.transfer_guard("log_explicit"):
        jax.device_put(np.zeros(1))
        assert capfd.readouterr().err.count("host-to-device transfer") == 1
        program.run(other, on_round=look)
    # Before the first round of a stage come its beginning and the question whether it
    # is over, and before the run its own beginning.
    most = (6, 2, 4, 2, 2, 2)
    for count, limit in zip(moved, most, strict=True):
        assert count <= limit, moved
    for metrics in rounds:
        assert sum(x.nbytes for x in metrics.values()) <= 100
