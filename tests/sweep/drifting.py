"""A method of a few sums, which compiles in a second, and sessions of it: for tests of
what lies around a method."""

import csv

import jax
import jax.numpy as jnp
import numpy as np

from fcjax.cli.main import main
from fcjax.federated import server
from fcjax.methods.base import Method, MethodSpec, Shared
from fcjax.settings import Sweep, as_tuple, default, frozen
from fcjax.sweep import experiment, train
from fcjax.sweep.plan import Task
from fcjax.types import FederatedClustering, Stage, State

LEARN_ROUNDS, USE_ROUNDS = 3, 4


@frozen
class Drifting(Method):
    name = "near"
    kind: str = "near"
    rate: Sweep[float] = default(0.3)
    weight: Sweep[float] = default(0.5)
    learn_rounds: Sweep[int] = default(LEARN_ROUNDS)
    shares: bool = False

    def resolve(self, problem):
        return describe(self, *problem[1:4])


def described_by(describe, base=Method):
    """A class of methods from (method, data set, number of clients, number of clusters)
    to what it resolves to."""

    @frozen
    class Made(base):
        name = "by hand"

        def resolve(self, problem):
            return describe(self, *problem[1:4])

    return Made


def drifting(values, *, use, width, num_clusters):
    """Two stages: what clients learn, and clusters that move towards it; `use` is what
    the second makes of what it is given."""

    def init(key, federation):
        return State((), jnp.zeros((len(federation.indices), width)))

    def total(x, present):
        """The sum over the clients that answer, and their number."""
        everyone, answered = server.gather((x, present))
        return jnp.sum(everyone, where=answered[:, None]), answered.sum(dtype=jnp.int32)

    def learn(key, state, federation):
        present = server.participants(federation)
        own = federation.pool[federation.indices].mean(axis=(1, 2))
        step = own[:, None] + jax.random.normal(key, (1, width))
        x = state.clients + values["rate"] * step
        x = jnp.where(present[:, None], x, state.clients)
        loss, count = total(x, present)
        up = jnp.stack([count, jnp.int32(4)])
        return State((), x), {"loss": loss, "participants": count, "up_x": up}

    def centers_of(key, federation):
        return jax.random.normal(key, (num_clusters, federation.pool.shape[-1]))

    def begin(key, state, federation):
        return State(centers_of(key, federation), state.clients)

    def cluster(key, state, federation):
        x, count = total(state.clients, server.participants(federation))
        moved = use(x) + centers_of(key, federation)
        metrics = {"loss": moved.mean(), "participants": count}
        state = State(state.server + moved, state.clients)
        return state, {**metrics, f"size_{use.__name__}": 1.0}

    def embed(state, federation):
        return federation.pool[federation.indices]

    def assign(state, federation):
        if isinstance(state.server, tuple):
            return jnp.full(federation.indices.shape, -1, jnp.int32)
        return (embed(state, federation) @ state.server.T).argmax(axis=-1)

    def stage(name, begin, round, num_rounds):
        return Stage(name, begin, round, num_rounds, lambda state: jnp.array(False))

    first = stage("learn", lambda key, state, _: state, learn, values["learn_rounds"])
    second = stage("use", begin, cluster, USE_ROUNDS)
    return FederatedClustering(init, (first, second), embed, assign)


def far(x):
    return -x


def describe(
    args, dataset, num_clients, num_clusters, *, width=2, scope="client-mean", **more
):
    """near sweeps a weight, far has none. There is no model to export but of a global
    scope, which takes longer."""
    settings = {"rate": args.rate, "learn_rounds": args.learn_rounds}
    settings = {name: tuple(as_tuple(x)) for name, x in settings.items()}
    if args.shares:
        more["shared"] = Shared("learn", 1, dict(settings))
    settings |= {"weight": tuple(as_tuple(args.weight))} if args.kind == "near" else {}

    def build(values):
        def near(x):
            return values["weight"] * x

        use = near if args.kind == "near" else far
        return drifting(values, use=use, width=width, num_clusters=num_clusters)

    return MethodSpec(args.kind, settings, build, scope, {}, **more)


def vectors(folder, *, seed=0):
    """Writes 16, 20 and 26 rows of three classes."""
    labels = np.repeat([0, 1, 2], [16, 20, 26])
    noise = np.random.default_rng(seed).normal(size=(62, 5))
    np.savez(folder / "vectors.npz", x=noise + 3 * np.eye(5)[labels], y=labels)
    return folder / "vectors.npz"


def prepare(out, data, *, describe=describe, method="near", **flags):
    flags = {"clients": 3, "plot": False, "kind": method, **flags}
    made = described_by(describe, Drifting)
    return experiment.prepare(Task.of(made, dataset=str(data), out=out, **flags))


def run(out, data, **flags):
    train.execute(prepare(out, data, **flags))
    return out


class Killed(Exception):
    pass


def killed():
    raise Killed


def run_until(position, out, data, *, at, kill=killed, **flags):
    """Runs until this round is done of the call that begins with the run `at`; all is
    kept of the rounds before."""
    prepared = prepare(out, data, **flags, checkpoint_interval=0.0)
    add = prepared.folder.add_history

    def add_or_kill(reached, rows):
        if reached == position and at.items() <= rows[0].items():
            kill()
        add(reached, rows)

    prepared.folder.add_history = add_or_kill
    train.execute(prepared)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def without_times(table):
    timing = {"seconds", "compile_seconds"}
    return [{k: v for k, v in row.items() if k not in timing} for row in table]


def assert_same(folder, other):
    """All but the times are the same, to the order of columns and the last digit."""
    for name in ("results.csv", "history.csv"):
        ours, theirs = rows(folder / name), rows(other / name)
        assert without_times(ours) == without_times(theirs)
        assert list(ours[0]) == list(theirs[0])
    one, two = (np.load(x / "assignments.npz") for x in (folder, other))
    for name in two:
        np.testing.assert_array_equal(one[name], two[name])


if __name__ == "__main__":
    main(Drifting)
