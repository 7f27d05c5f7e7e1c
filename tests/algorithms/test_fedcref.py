"""FedCRef against Algorithm 1 as a plain loop over clients, clusters and pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from fcjax import engine, evaluation
from fcjax.algorithms.fedcref import fedcref
from fcjax.algorithms.fedcref_start import given
from fcjax.models import from_linen
from fcjax.types import Grid
from tests.algorithms.federations import federate
from tests.algorithms.test_fedcref_association import by_equation
from tests.algorithms.test_fedcref_refinement import by_algorithm

K = 3
RATE = 0.5
WIDTHS = (6, 4)


class Tiny(nn.Module):
    @nn.compact
    def __call__(self, x, *, train, mask):
        del train, mask
        return nn.sigmoid(nn.Dense(WIDTHS[0])(nn.tanh(nn.Dense(WIDTHS[1])(x))))


NETWORK = from_linen(Tiny())


def build(start, **options):
    settings = {
        "num_clusters": K,
        "num_rounds": 4,
        "local_epochs": 3,
        "federated_rounds": 3,
        "first_epochs": 1,
        "federated_epochs": 2,
        "batch_size": 100,  # one batch, so that no order matters
        "threshold": 0.6,
        **options,
    }
    return fedcref(NETWORK, optax.sgd(RATE, momentum=0.9), start, **settings)


def data(seed=0):
    """Five clients of two or three of four prototypes, and a start with errors."""
    rng = np.random.default_rng(seed)
    prototypes = rng.random((4, WIDTHS[0]))
    sets = [(0, 1), (1, 2), (0, 2, 3), (1, 3), (0, 3)]
    labels = np.concatenate([np.repeat(s, 8) for s in sets])
    pool = prototypes[labels] + 0.05 * rng.normal(size=(len(labels), WIDTHS[0]))
    sizes = [8 * len(s) for s in sets]
    rows = np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1])
    federation = federate(pool.clip(0, 1), rows)
    local = jnp.array([len(s) for s in sets], jnp.int32)
    federation = federation._replace(local_clusters=local)
    start = np.zeros(federation.indices.shape, int)
    for i, own in enumerate(np.asarray(federation.indices)):
        number = np.searchsorted(sets[i], labels[own])
        moved = rng.random(len(own)) < 0.2
        start[i] = np.where(moved, (number + 1) % len(sets[i]), number)
    return federation, labels, start


def start_of(clusters):
    return given("given", lambda key, federation: jnp.asarray(clusters, jnp.int32))


def gradient_steps(variables, velocity, x, count):
    def loss(params):
        decoded, _ = NETWORK.apply({"params": params}, x, train=False)
        return jnp.mean((decoded - x) ** 2)

    params = variables["params"]
    for _ in range(count):
        gradient = jax.grad(loss)(params)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, gradient)
        params = jax.tree.map(lambda p, v: p - RATE * v, params, velocity)
    return {"params": params}, velocity


def zeros(variables):
    return jax.tree.map(jnp.zeros_like, variables["params"])


def error(variables, x):
    decoded, _ = NETWORK.apply(variables, x, train=False)
    return np.asarray(jnp.mean((decoded - x) ** 2, axis=1))


def by_algorithm_1(key, federation, clusters, is_active):
    """One iteration, with the draws of new weights as the method makes them."""
    local_key, community_key = jax.random.split(key)
    rows, mask = np.asarray(federation.indices), np.asarray(federation.mask)
    local = np.asarray(federation.local_clusters)
    x = [federation.pool[own[m]] for own, m in zip(rows, mask, strict=True)]
    own = [c[m] for c, m in zip(clusters, mask, strict=True)]
    example, num_clients = federation.pool[:1], len(rows)
    slots = [(i, q) for i in range(num_clients) for q in range(K)]
    exists = {(i, q): bool((own[i] == q).any()) for i, q in slots}

    models = {}
    for i, q in slots:
        one = jax.random.fold_in(jax.random.fold_in(local_key, i), q)
        drawn = NETWORK.init(jax.random.split(one)[0], example)
        if exists[i, q]:
            models[i, q], _ = gradient_steps(drawn, zeros(drawn), x[i][own[i] == q], 3)

    accepted = {}
    for i in range(num_clients):
        errors = np.full((len(x[i]), len(slots)), np.nan)
        for s, slot in enumerate(slots):
            if exists[slot]:
                errors[:, s] = error(models[slot], x[i])
        of_own = errors[np.arange(len(x[i])), i * K + own[i]]
        everyone = np.ones(len(x[i]), bool)
        found = by_equation(errors, of_own, own[i], everyone, K, 75, 0.6)
        for q in range(K):
            for s, slot in enumerate(slots):
                accepted[(i, q), slot] = found[q, s] and slot[0] != i
    edges = [(a, b) for a in slots for b in slots if accepted[a, b] and accepted[b, a]]

    community = {slot: {slot} for slot in slots}
    for a, b in edges:
        merged = community[a] | community[b]
        for slot in merged:
            community[slot] = merged
    groups = []
    for slot in slots:
        if len(community[slot]) > 1 and sorted(community[slot]) not in groups:
            groups.append(sorted(community[slot]))

    init_key = jax.random.split(community_key)[0]
    federated = []
    for number, members in enumerate(groups):
        model = NETWORK.init(jax.random.fold_in(init_key, number), example)
        velocity = {slot: zeros(model) for slot in members}
        for count in (1, 2, 2):
            trained, sizes = [], []
            for i, q in members:
                part = x[i][own[i] == q]
                new, velocity[i, q] = gradient_steps(model, velocity[i, q], part, count)
                trained.append(new)
                sizes.append(len(part))
            shares = np.array(sizes) / sum(sizes)
            model = jax.tree.map(
                lambda *leaves, shares=shares: sum(map(jnp.multiply, shares, leaves)),
                *trained,
            )
        federated.append(model)

    refined = []
    for i in range(num_clients):
        if not is_active[i]:
            refined.append(own[i])
            continue
        candidates = [models[i, q] for q in range(K) if exists[i, q]] + federated
        errors = np.stack([error(model, x[i]) for model in candidates], axis=1)
        there = np.ones(len(candidates), bool)
        refined.append(by_algorithm(errors, there, local[i])[0])
    same = [evaluation.scores(a, b)["acc"] for a, b in zip(own, refined, strict=True)]
    return refined, edges, groups, np.array(same)


def test_iterations_are_those_of_algorithm_1():
    federation, _, clusters = data()
    method = build(start_of(clusters), stability=0.95)
    key = jax.random.key(0)
    first, stage = method.stages
    state = first.begin(key, method.init(key, federation), federation)
    state, metrics = first.round(key, state, federation)
    assert metrics["isolated"] == 11
    state = stage.begin(key, state, federation)
    is_active, mask = np.ones(5, bool), np.asarray(federation.mask)
    run = jax.jit(stage.round)
    seen_edges = 0
    for number in range(3):
        key = jax.random.key(number)
        before = np.asarray(state.clusters)
        state, metrics = run(key, state, federation)
        expected, edges, groups, same = by_algorithm_1(
            key, federation, before, is_active
        )
        found = np.zeros((5, K, 5, K), bool)
        for (i, q), (j, p) in edges:
            found[i, q, j, p] = True
        np.testing.assert_array_equal(state.communities.edges, found)
        for own, m, exact in zip(state.clusters, mask, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(own)[m], exact)
        is_active &= same < 0.95
        np.testing.assert_array_equal(state.is_active, is_active)
        assert metrics["communities"] == len(groups)
        assert metrics["edges"] == len(edges) / 2
        assert metrics["active"] == is_active.sum()
        seen_edges += len(edges)
    assert seen_edges > 0


def rounds(method, key, federation, count):
    """The state after the start and so many iterations, and the last metrics."""
    first, stage = method.stages
    state = first.begin(key, method.init(key, federation), federation)
    state, metrics = first.round(key, state, federation)
    state = stage.begin(key, state, federation)
    run = jax.jit(stage.round)
    for number in range(count):
        state, metrics = run(jax.random.fold_in(key, number), state, federation)
    return state, metrics


def test_a_first_refinement_that_changes_little_settles_a_client(key):
    """Line 29 compares it with the start: one client keeps all of its examples where
    they are, the other moves 3 of 16."""
    classes = np.repeat([0, 1, 0, 1], 8)
    pool = np.where(classes[:, None] == 1, 0.9, 0.1) * np.ones((32, WIDTHS[0]))
    federation = federate(pool, np.split(np.arange(32), 2), num_clusters=2)
    start = classes.reshape(2, 16).copy()
    start[1, 8:11] = 0  # an example of the second class, three times in the first
    moved = {"local_epochs": 100, "threshold": 0.0}
    for stability, still_active in ((0.85, [False, True]), (0.8, [False, False])):
        method = build(start_of(start), stability=stability, **moved)
        state, metrics = rounds(method, key, federation, 1)
        np.testing.assert_array_equal(state.clusters[0], start[0])
        assert (np.asarray(state.clusters[1]) != start[1]).sum() == 3
        np.testing.assert_array_equal(state.is_active, still_active)
        assert metrics["active"] == sum(still_active)
        assert method.stages[1].done(state) == (not any(still_active))


def test_a_client_that_settled_keeps_its_clusters_and_trains_once_more(key):
    federation, _, clusters = data()
    method = build(start_of(clusters), stability=0.0)  # all settle at once
    one, two, three = (rounds(method, key, federation, n)[0] for n in (1, 2, 3))
    assert not one.is_active.any()
    np.testing.assert_array_equal(one.clusters, two.clusters)
    np.testing.assert_array_equal(two.clusters, three.clusters)
    changed = jax.tree.leaves(
        jax.tree.map(lambda a, b: bool((a != b).any()), one.models, two.models)
    )
    assert all(changed)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), two.models, three.models)
    assert all(jax.tree.leaves(same))
    assert one.trend.active == 0
    assert method.stages[1].done(one)


def test_iterations_after_all_have_settled_change_nobodys_clusters(key):
    """Models are of the final clusters from the second iteration on, so that nothing
    varies from the third, and the fifth is the third steady one at the latest."""
    federation, _, clusters = data()

    def ended(**options):
        def of(hyper):
            del hyper
            settings = {"stability": 0.0, "num_rounds": 8, **options}
            return build(start_of(clusters), **settings)

        names = ("indices", "mask", "present", "local_clusters")
        one = federation._replace(
            **{name: getattr(federation, name)[None] for name in names}
        )
        seen = []
        state = engine.run(of, Grid({}, key[None], one), on_round=seen.append)
        return state, len(seen) - 1  # but for the start

    settled, count = ended()
    on, longer = ended(stop_when_settled=False)
    assert count == 1
    assert 3 <= longer <= 5
    np.testing.assert_array_equal(on.clusters, settled.clusters)


def test_true_associations_make_communities_of_classes(key):
    federation, labels, clusters = data()

    def same_class(federation, clusters):
        del federation, clusters
        sets = [[0, 1, -9], [1, 2, -9], [0, 2, 3], [1, 3, -9], [0, 3, -9]]
        of_cluster = jnp.array(sets)
        return of_cluster[:, :, None, None] == of_cluster[None, None]

    pure = np.zeros_like(clusters)
    for i, own in enumerate(np.asarray(federation.indices)):
        pure[i] = np.unique(labels[own], return_inverse=True)[1]
    method = build(start_of(pure), associate=same_class)
    _, metrics = rounds(method, key, federation, 1)
    assert metrics["communities"] == 4
    assert metrics["isolated"] == 0
    # Three clients hold class 0, three 1, two 2, three 3.
    assert metrics["edges"] == 3 + 3 + 1 + 3


def test_only_models_cross_and_their_bytes_are_counted(key):
    federation, _, clusters = data()
    method = build(start_of(clusters))
    _, metrics = rounds(method, key, federation, 1)
    size = 4 * (6 * 4 + 4 + 4 * 6 + 6)
    crossing = {n: v for n, v in metrics.items() if n.startswith(("up_", "down_"))}
    assert set(crossing) == {
        "up_local_models",
        "up_community_models",
        "down_community_models",
        "up_associations",
    }
    # Eleven new models go to four other clients each.
    np.testing.assert_array_equal(crossing["up_local_models"], [11 * 4, size])
    members = 11 - int(metrics["isolated"])
    np.testing.assert_array_equal(crossing["up_community_models"], [3 * members, size])
    down = 3 * members + 5 * int(metrics["communities"])
    np.testing.assert_array_equal(crossing["down_community_models"], [down, size])


def test_an_absent_client_keeps_all_and_nobody_sees_it(key):
    federation, _, clusters = data()
    absent = federation._replace(
        present=jnp.array([[True] * 5, [True, True, False, True, True]])
    )
    method = build(start_of(clusters))
    state, _ = rounds(method, key, absent, 0)
    after, metrics = rounds(method, key, absent, 1)
    np.testing.assert_array_equal(after.clusters[2], state.clusters[2])
    assert not after.communities.edges[2].any()
    assert not after.communities.edges[:, :, 2].any()
    assert after.is_stale[2]
    assert after.num_refinements[2] == 0
    assert metrics["participants"] == 4
    poisoned = absent._replace(pool=absent.pool.at[absent.indices[2]].set(jnp.nan))
    other, _ = rounds(method, key, poisoned, 1)
    for i in (0, 1, 3, 4):
        np.testing.assert_array_equal(other.clusters[i], after.clusters[i])


def test_the_codes_model_of_a_community_is_its_first_members_last(key):
    federation, _, clusters = data()
    mean, _ = rounds(build(start_of(clusters)), key, federation, 1)
    last, _ = rounds(
        build(start_of(clusters), last_local_model=True), key, federation, 1
    )
    np.testing.assert_array_equal(mean.communities.edges, last.communities.edges)


def test_an_empty_cluster_stays_in_play(key):
    federation, _, clusters = data()
    clusters[1] = 0  # one of its two clusters has nothing
    method = build(start_of(clusters))
    state, metrics = rounds(method, key, federation, 1)
    alone = int(metrics["isolated"])
    members = np.asarray(state.communities.edges).any(axis=(2, 3)).sum()
    assert alone + members == 10
    # There is a second candidate if a community was found: it may fill it again.
    state, _ = rounds(method, key, federation, 3)
    assert np.isin(np.asarray(state.clusters[1]), [0, 1]).all()


def test_a_grid_with_clients_on_no_device_of_their_own_runs_to_its_end(key):
    federation, _, clusters = data()
    grid = Grid(
        {"threshold": jnp.array([0.0, 0.6])},
        jax.random.split(key, 2),
        federation._replace(
            **{
                name: jnp.stack([getattr(federation, name)] * 2)
                for name in ("indices", "mask", "present", "local_clusters")
            }
        ),
    )

    def of(hyper):
        return build(start_of(clusters), threshold=hyper["threshold"])

    seen = []
    state = engine.run(of, grid, on_round=seen.append)
    counts = [np.asarray(r.metrics["communities"]) for r in seen[1:]]
    assert all(count[0] == 0 for count in counts)
    assert any(count[1] > 0 for count in counts)
    assert state.clusters.shape == (2, *federation.indices.shape)
