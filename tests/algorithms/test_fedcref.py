"""FedCRef against Algorithm 1 as a plain loop over clients, clusters and pairs."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from fcjax import engine, methods
from fcjax.algorithms.averaging import chain
from fcjax.algorithms.central import by_kmeans
from fcjax.algorithms.fedcref import fedcref, given_clusters, on_clients
from fcjax.methods import FedCRef
from fcjax.metrics import scores
from fcjax.types import Federation, Grid, State
from tests.algorithms.federations import federate, in_round, traffic
from tests.algorithms.plain import matrix
from tests.algorithms.test_fedcref_phases import by_algorithm, by_code, by_equation

K = 3
RATE, EPOCHS = 0.05, (1, 2, 2)
OPTIMIZER = optax.sgd(RATE, momentum=0.9)
KEY = jax.random.key(0)


NETWORK = chain({"first": matrix(4), "last": matrix(6)})
draw = jax.jit(NETWORK.init)

SETS = [(0, 1), (1, 2), (0, 2, 3), (1, 3), (0, 3)]
SIZES = [8 * len(own) for own in SETS]


def data():
    """Five clients of two or three of four prototypes, and by row of the pool a start
    with errors."""
    rng = np.random.default_rng(0)
    prototypes = rng.random((4, 6))
    labels, number, count = np.repeat(
        [(c, n, len(s)) for s in SETS for n, c in enumerate(s)], 8, axis=0
    ).T
    pool = prototypes[labels] + 0.05 * rng.normal(size=(len(labels), 6))
    rows = np.split(np.arange(len(labels)), np.cumsum(SIZES)[:-1])
    federation = federate(pool.clip(0, 1), rows)
    federation = federation._replace(
        local_clusters=jnp.array([len(s) for s in SETS], jnp.int32),
        present=jnp.ones((2, 5), bool),
    )
    moved = rng.random(len(labels)) < 0.2
    return federation, labels, (number + moved) % count


FEDERATION, LABELS, OF_ROW = data()
START = OF_ROW[FEDERATION.indices]
X = np.split(np.asarray(FEDERATION.pool), np.cumsum(SIZES)[:-1])


def at_start(key, federation):
    del key
    return jnp.asarray(OF_ROW, jnp.int32)[federation.indices]


settings = partial(
    FedCRef().plain,
    **{"local_epochs": 3, "federated_rounds": len(EPOCHS), "num_rounds": 4},
    **{"first_epochs": EPOCHS[0], "federated_epochs": EPOCHS[1], "threshold": 0.6},
    batch_size=100,  # one batch, so that no order matters
)


def build(association=None, **options):
    return fedcref(
        *(settings(**options), NETWORK, OPTIMIZER, given_clusters("given", at_start)),
        num_clusters=K,
        association=association,
    )


@cache
def iteration(**options):
    """Compiled; the stability is one more argument."""

    @jax.jit
    def run(stability, key, state, federation):
        _, stage = build(stability=stability, **options).stages
        return stage.round(key, state, federation)

    return run


def iterate(count, *, stability=0.8, clusters=START, federation=FEDERATION, **options):
    """The states and the metrics from the start on, of which there are no metrics."""
    method = build(**options)
    start, own = method.init(KEY, federation)
    state = State(start, own._replace(start=jnp.asarray(clusters, jnp.int32)))
    now = in_round(federation, 0, before=1)
    found = [(method.stages[1].begin(KEY, state, now), {})]
    for number in range(count):
        key, run = jax.random.fold_in(KEY, number), iteration(**options)
        now = in_round(federation, number, before=1)
        found.append(run(stability, key, found[-1][0], now))
    return found


# --- The start


def kmeans(num_used):
    settings = methods.KMeans(unit_length=False).plain()
    return by_kmeans(settings, num_clusters=K, num_used=num_used)


def started(start):
    (phase,) = start.phases
    state = phase.begin(KEY, start.init(KEY, FEDERATION), FEDERATION)
    state, loss = phase.round(KEY, state, FEDERATION)
    return start.assign(state, FEDERATION), loss


def test_each_client_has_the_clusters_of_its_own_rows_alone():
    clusters, loss = started(on_clients(kmeans, num_clusters=K))
    for x, found, value, own in zip(X, own_of(clusters), loss, SETS, strict=True):
        alone = KMeans(len(own), n_init=10, random_state=0).fit(x)
        assert adjusted_rand_score(alone.labels_, found) == 1
        assert set(found) <= set(range(K))
        np.testing.assert_allclose(value, alone.inertia_ / len(x), rtol=1e-4)


# --- Algorithm 1


def gradient_steps(variables, velocity, x, count):
    """Down the mean of (x' - x)^2, with momentum."""
    params = variables["params"]
    for _ in range(count):
        w, v = (params[name]["kernel"] for name in ("first", "last"))
        off = 2 * (x @ w @ v - x) / x.size
        gradient = {
            "first": {"kernel": x.T @ off @ v.T},
            "last": {"kernel": (x @ w).T @ off},
        }
        velocity = jax.tree.map(lambda m, g: 0.9 * m + g, velocity, gradient)
        params = jax.tree.map(lambda p, m: p - RATE * m, params, velocity)
    return {"params": params}, velocity


def draw_model(key):
    drawn = draw(key, FEDERATION.pool[:1])
    return jax.tree.map(lambda x: np.asarray(x, np.float64), drawn)


def zeros(variables):
    return jax.tree.map(np.zeros_like, variables["params"])


def error(variables, x):
    w, v = (variables["params"][name]["kernel"] for name in ("first", "last"))
    return ((x @ w @ v - x) ** 2).mean(axis=1)


def by_fedavg(key, parts):
    """The mean, and what each member had after its last training."""
    model = draw_model(key)
    velocity, own = [zeros(model)] * len(parts), []
    shares = np.array([len(x) for x in parts]) / sum(map(len, parts))
    for count in EPOCHS:
        trained = [
            gradient_steps(model, v, x, count)
            for v, x in zip(velocity, parts, strict=True)
        ]
        own, velocity = zip(*trained, strict=True)
        model = jax.tree.map(lambda *x: sum(map(np.multiply, shares, x)), *own)
    return model, own


def by_algorithm_1(key, clusters, is_active, is_stale, held, *, of_code):
    """One iteration, with the draws of new weights as the method makes them."""
    local_key, community_key = jax.random.split(key)
    own = own_of(clusters)
    models = {}
    for i, q in np.ndindex(5, K):
        part = X[i][own[i] == q]
        if len(part) and is_stale[i]:
            one = jax.random.fold_in(jax.random.fold_in(local_key, i), q)
            drawn = draw_model(jax.random.split(one)[0])
            models[i, q], _ = gradient_steps(drawn, zeros(drawn), part, 3)
        elif len(part):
            models[i, q] = held[i, q]

    accepted = np.zeros((5, K, 5, K), bool)
    for i, x in enumerate(X):
        errors = np.full((len(x), 5, K), np.nan)
        for (j, p), model in models.items():
            errors[:, j, p] = error(model, x)
        everyone = np.ones(len(x), bool)
        of_own = errors[np.arange(len(x)), i, own[i]]
        errors = errors.reshape(len(x), 5 * K)
        found = by_equation(errors, of_own, own[i], everyone, K, 75, 0.6)
        accepted[i] = found.reshape(K, 5, K)
        accepted[i, :, i] = False
    edges = accepted & accepted.transpose(2, 3, 0, 1)
    if of_code:
        edges = by_code(edges)

    _, component = connected_components(edges.reshape(5 * K, 5 * K), directed=False)
    component = component.reshape(5, K)
    groups = [np.argwhere(component == n) for n in np.unique(component)]
    groups = sorted(x.tolist() for x in groups if len(x) > 1)

    init_key, federated = jax.random.split(community_key)[0], []
    for number, members in enumerate(groups):
        parts = [X[i][own[i] == q] for i, q in members[: 2 if of_code else None]]
        mean, last = by_fedavg(jax.random.fold_in(init_key, number), parts)
        federated.append(last[0] if of_code else mean)

    refined = list(own)
    for i in np.flatnonzero(is_active):
        candidates = [models[i, q] for q in range(K) if (i, q) in models] + federated
        errors = np.stack([error(model, X[i]) for model in candidates], axis=1)
        there, count = np.ones(len(candidates), bool), len(SETS[i])
        refined[i] = by_algorithm(errors, there, count, renumber=of_code)[0]
    return models, edges, groups, refined


def own_of(clusters):
    return [np.asarray(own)[:n] for own, n in zip(clusters, SIZES, strict=True)]


def assert_close(one, other):
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


CODE = {
    "associations": "first-match",
    "leftovers": "renumbered",
    **{"community_model": "last-local", "max_members": 2},
}


@pytest.mark.parametrize("options", [{}, CODE], ids=["paper", "code"])
def test_iterations_are_those_of_algorithm_1(options):
    """A first refinement that changes little settles a client: line 29 compares it with
    the start. Who settles trains once more, on the clusters that it keeps."""
    found = iterate(3, stability=0.85, **options)
    is_active, is_stale, models = np.ones(5, bool), np.ones(5, bool), {}
    graphs, active = [], []
    for number, (state, metrics) in enumerate(found[1:]):
        before, own = found[number][0].clients.clusters, state.clients
        key = jax.random.fold_in(KEY, number)
        models, edges, groups, refined = by_algorithm_1(
            key, before, is_active, is_stale, models, of_code=bool(options)
        )
        for slot, model in models.items():
            assert_close(jax.tree.map(lambda x, at=slot: x[at], own.models), model)
        np.testing.assert_array_equal(own.communities.edges, edges)
        for a, b in zip(own_of(own.clusters), refined, strict=True):
            np.testing.assert_array_equal(a, b)
        same = map(scores, own_of(before), refined)
        is_stale = is_active
        is_active = is_active & np.array([score["acc"] < 0.85 for score in same])
        np.testing.assert_array_equal(own.is_active, is_active)
        assert metrics["communities"] == len(groups)
        assert metrics["isolated"] == len(models) - sum(map(len, groups))
        assert metrics["edges"] == edges.sum() / 2
        assert metrics["active"] == is_active.sum()
        assert build().stages[1].done(state) == (not is_active.any())
        graphs.append(edges)
        active.append(is_active.sum())
    assert np.any(graphs)
    assert 0 < active[-1] < active[0] < 5


def test_iterations_after_all_have_settled_change_nobody_s_clusters():
    """Models are of the final clusters from the second iteration on, so that nothing
    varies from the third, and the fifth is the third steady one at the latest."""
    _, *states = (state for state, _ in iterate(5, stability=0.0))  # all settle at once
    each = [state.clients for state in states]
    for own in each:
        np.testing.assert_array_equal(own.clusters, each[0].clusters)
    for own in each[1:]:
        assert_close(own.models, each[1].models)
    assert build().stages[1].done(states[0])
    goes_on = build(stop_when_settled=False).stages[1]
    is_over = [bool(goes_on.done(state)) for state in states]
    assert 2 <= is_over.index(True) <= 4


def test_true_associations_make_communities_of_classes():
    of_cluster = jnp.array([(*own, -9)[:K] for own in SETS])

    def same_class(federation, clusters):
        del federation, clusters
        return of_cluster[:, :, None, None] == of_cluster[None, None]

    rows = np.asarray(FEDERATION.indices)
    pure = [np.unique(LABELS[own], return_inverse=True)[1] for own in rows]
    options = {"association": same_class, "max_members": 2}
    *_, (_, metrics) = iterate(1, clusters=np.stack(pure), **options)
    assert metrics["communities"] == 4
    assert metrics["isolated"] == 0
    # Three clients hold class 0, three 1, two 2, three 3.
    assert metrics["edges"] == 3 + 3 + 1 + 3
    # The models of all four are trained on two clusters, three times.
    assert metrics["up_community_models"][0] == 4 * 2 * 3


def test_only_models_cross_and_their_bytes_are_counted():
    *_, (_, metrics) = iterate(1)
    size = 4 * (6 * 4 + 4 * 6)
    members = 3 * (11 - int(metrics["isolated"]))
    assert traffic(metrics) == {
        # Eleven new models go to four other clients each.
        "up_local_models": [11 * 4, size],
        "up_community_models": [members, size],
        "down_community_models": [members + 5 * int(metrics["communities"]), size],
        "up_associations": [5, 5 * K**2],
    }


def test_an_absent_client_keeps_all_and_nobody_sees_it():
    present = jnp.array([[True] * 5, [True, True, False, True, True]])
    absent = FEDERATION._replace(present=present)
    (before, _), (after, metrics) = iterate(1, federation=absent)
    own = after.clients
    np.testing.assert_array_equal(own.clusters[2], before.clients.clusters[2])
    assert not own.communities.edges[2].any()
    assert not own.communities.edges[:, :, 2].any()
    assert own.is_stale[2]
    assert own.num_refinements[2] == 0
    assert metrics["participants"] == 4


def test_spread_over_devices_iterations_are_those_of_the_loop():
    """And a client of padding on each; one is absent throughout, and by the threshold
    of the second run nothing is near enough."""
    one = FEDERATION._replace(present=jnp.arange(5)[None] != 1)
    twice = jax.tree.map(lambda x: jnp.stack([x] * 2), one[1:])
    runs = Federation(one.pool, *twice)
    hyper = {"threshold": jnp.array([0.6, 0.0])}
    grid = Grid(hyper, jax.random.split(KEY, 2), runs)

    def of(hyper):
        return build(**hyper, stability=2.0)

    def refined(backend):
        rounds, program = [], engine.Program(of, backend=backend)
        state = program.run(grid, on_round=lambda x: rounds.append(x.metrics))
        return program.communities(grid, state), state.clients.clusters, rounds

    (looped, clusters, expected), (spread, own, rounds) = map(
        refined, ("loop", "shard_map")
    )
    mask = np.asarray(runs.mask)
    np.testing.assert_array_equal(own[mask], clusters[mask])
    np.testing.assert_array_equal(spread.of_cluster, looped.of_cluster)
    np.testing.assert_array_equal(spread.edges, looped.edges)
    assert spread.edges.shape == (2, 5, K, 5, K)
    assert looped.edges[0].any()
    assert not looped.edges[0, 1].any()
    assert not looped.edges[1].any()
    for one, other in zip(rounds, expected, strict=True):
        assert one.keys() == other.keys()
        for name in other:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5, err_msg=name)
        # Client 1 answers in no round, nor do those that fill up a device.
        assert other["active"].tolist() == [4] * 2
    # At first all clusters of those who are there are alone.
    assert expected[0]["isolated"].tolist() == [11 - 2] * 2
