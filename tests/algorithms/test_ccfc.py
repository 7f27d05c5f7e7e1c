"""CCFC against its algorithm box, written out with plain loops and NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.cluster import KMeans

from fcjax.algorithms import ccfc as module
from fcjax.federated import clients
from fcjax.methods import CCFC
from fcjax.types import Network
from tests.algorithms import plain
from tests.algorithms.federations import both_ways, federate, in_round, traffic
from tests.algorithms.plain import cosine, unit

POOL = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
ROWS = (np.arange(8), np.arange(8, 20))  # 8 and 12 examples
KEYS = jax.random.split(jax.random.key(4), 3)
WEIGHT, RATE = 0.5, 0.1


def linear(variables, x, *, train, mask=None):
    """z = x A, p = z B; counts the calls that train in its batch statistics."""
    calls = variables["batch_stats"]["calls"] + train
    return outputs(variables["params"], x), {
        **variables,
        "batch_stats": {"calls": calls},
    }


def outputs(w, x):
    return x @ w["a"], x @ w["a"] @ w["b"]


def draw(key, x=None):
    keys = jax.random.split(key)
    a, b = (jax.random.normal(k, (n, 3)) for k, n in zip(keys, (4, 3), strict=True))
    return {"params": {"a": a, "b": b}, "batch_stats": {"calls": jnp.float32(0)}}


def build(
    augment=lambda key, x: x, optimizer=None, schedule=module.CONSTANT, **options
):
    settings = CCFC(**{"batch_size": 12, "model_weight": WEIGHT, **options}).plain()
    network, optimizer = Network(draw, linear), optimizer or optax.sgd(RATE)
    last = {"num_clusters": 3, "schedule": schedule}
    return module.ccfc(settings, network, optimizer, augment, **last)


@pytest.fixture(scope="module")
def federation():
    return federate(POOL, ROWS)


@jax.jit
@jax.value_and_grad
def two_views(w, anchor, views):
    """SimSiam's loss, with lambda times the pull to the anchor's predictions."""
    (z1, p1), (z2, p2) = (outputs(w, x) for x in views)
    (_, g1), (_, g2) = (outputs(anchor, x) for x in views)
    z1, z2 = map(jax.lax.stop_gradient, (z1, z2))
    contrast = -(cosine(p1, z2) + cosine(p2, z1)) / 2
    return (contrast - WEIGHT * (cosine(p1, g1) + cosine(p2, g2)) / 2).mean()


def equation_4(w, anchor, x, labels, include_self):
    """Eq. 1 over the clusters of two members or more, with the pull of Eq. 4."""
    (z, p), (_, g) = outputs(w, x), outputs(anchor, x)
    similarity = unit(p) @ unit(jax.lax.stop_gradient(z)).T
    means = []
    for members in (np.flatnonzero(labels == k) for k in range(3)):
        pairs = [(i, j) for i in members for j in members if include_self or i != j]
        if len(members) > 1:
            means.append(-similarity[tuple(np.transpose(pairs))].mean())
    return sum(means) / len(means) - WEIGHT * cosine(p, g).mean()


def descend(w, gradient):
    return jax.tree.map(lambda w, g: w - RATE * g, w, gradient)


def assert_round(new, metrics, trained, values):
    """A mean of what clients with 8 and 12 of 20 examples trained, and their loss."""
    one, two = trained
    for name, w in new.server.variables["params"].items():
        expected = 0.4 * one[name] + 0.6 * two[name]
        np.testing.assert_allclose(w, expected, rtol=1e-5, atol=1e-6)
    assert float(metrics["loss"]) == pytest.approx(np.mean(values), rel=1e-5)


def test_a_round_of_pre_training_is_a_step_on_two_views_of_all_examples(federation):
    method = build(plain.noisy)
    state = method.init(jax.random.key(3), federation)
    new, metrics = jax.jit(method.stages[0].round)(KEYS[0], state, federation)
    clients_key, _ = jax.random.split(KEYS[0])
    w, values, trained = state.server.variables["params"], [], []
    for client, held in enumerate(ROWS):
        key, *_ = jax.random.split(jax.random.fold_in(clients_key, client), 3)
        ((slots, step_key),) = plain.epochs(key, np.arange(12) < len(held))
        views = plain.views(step_key, POOL[held[slots]])
        assert np.abs(views[0] - views[1]).max() > 0.1
        value, gradient = two_views(w, w, views)
        values.append(value)
        trained.append(descend(w, gradient))
    assert_round(new, metrics, trained, values)
    # Both views pass in training mode; the anchor in none.
    assert new.server.variables["batch_stats"]["calls"] == 2
    # 4 x 3 + 3 x 3 weights and a counter; 3 x 3 centroids.
    assert traffic(metrics) == both_ways(2, network=22, centroids=9)


@pytest.mark.parametrize("as_printed", [False, True], ids=["the code", "the paper"])
def test_a_round_contrasts_clusters_under_the_labels_of_the_global_model(
    federation, as_printed
):
    """By cosine or by distance. Of two steps the second is away from the anchor."""
    method = build(include_self=not as_printed, euclidean=as_printed, local_epochs=2)
    centroids = np.array([[3.0, 0, 0], [0, 0.4, 0.1], [-0.3, 0, 0.5]], np.float32)
    state = method.init(jax.random.key(3), federation)
    clusters = state.server.clusters._replace(centroids=jnp.asarray(centroids))
    before = state.server._replace(clusters=clusters)
    state = state._replace(server=before)
    w = state.server.variables["params"]
    z, _ = map(np.asarray, outputs(w, POOL))
    distance = np.linalg.norm(unit(z)[:, None] - centroids[None], axis=-1)
    angle = np.stack([-cosine(z, c) for c in centroids], axis=1)
    assert (distance.argmin(axis=1) != angle.argmin(axis=1)).any()
    labels = np.argmin(distance if as_printed else angle, axis=1)
    found = np.asarray(jax.jit(method.assign)(state, federation))
    for client, held in enumerate(ROWS):
        np.testing.assert_array_equal(found[client, : len(held)], labels[held])
    embedded = np.asarray(jax.jit(method.embed)(state, federation))
    np.testing.assert_allclose(embedded[1], unit(z[ROWS[1]]), rtol=1e-5, atol=1e-6)

    new, metrics = jax.jit(method.stages[1].round)(KEYS[0], state, federation)
    values, trained = [], []
    for held in ROWS:
        loss = partial(equation_4, labels=labels[held], include_self=not as_printed)
        loss, own = jax.jit(jax.value_and_grad(loss)), w
        for _ in range(2):
            value, gradient = loss(own, w, POOL[held])
            own = descend(own, gradient)
            values.append(value)
        trained.append(own)
    assert_round(new, metrics, trained, values)


def test_optimizers_outlive_a_round_and_start_anew_with_the_second_stage(federation):
    method = build(pretrain_rounds=0, optimizer=optax.adam(RATE))
    stage, state = method.stages[1], method.init(jax.random.key(3), federation)
    round = jax.jit(stage.round)
    for number in range(2):
        state, _ = round(KEYS[number], state, in_round(federation, number))
    np.testing.assert_array_equal(state.clients[0].count, [2, 2])
    begun = jax.jit(stage.begin)(KEYS[2], state, federation)
    np.testing.assert_array_equal(begun.clients[0].count, [0, 0])
    assert not np.any(begun.clients[0].mu["a"])


@pytest.mark.parametrize("by_clusters", [False, True])
def test_a_reset_optimizer_is_a_new_one_in_every_round(federation, by_clusters):
    """Two rounds are those of a kept optimizer that is initialized between them."""
    adam = {"pretrain_rounds": 2, "optimizer": optax.adam(RATE), "local_epochs": 2}
    kept, reset = (build(optimizer_state=x, **adam) for x in ("kept", "reset"))
    start = kept.init(jax.random.key(3), federation)
    # Two moments of the 21 weights, and the number of steps, of two clients.
    assert sum(x.size for x in jax.tree.leaves(start.clients)) == 2 * (2 * 21 + 1)
    assert reset.init(jax.random.key(3), federation).clients == ()

    def second(method, state, forget=lambda x: x):
        stage = method.stages[by_clusters]
        state, round = stage.begin(KEYS[2], state, federation), jax.jit(stage.round)
        for number in range(2):
            now = in_round(federation, number, before=2 * by_clusters)
            state, _ = round(KEYS[number], forget(state), now)
        return state

    found = second(reset, start._replace(clients=()))
    expected = second(kept, start, lambda state: state._replace(clients=start.clients))
    assert found.clients == ()
    compare = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(compare, found.server, expected.server)
    other = second(kept, start).server.variables["params"]["a"]
    assert np.abs(other - found.server.variables["params"]["a"]).max() > 1e-3


def test_standalone_clients_reset_their_optimizers_and_keep_their_networks(federation):
    adam = {"optimizer": optax.adam(RATE), "standalone": True, "pretrain_rounds": 2}
    kept, reset = (build(optimizer_state=x, **adam) for x in ("kept", "reset"))
    found, expected = (m.init(jax.random.key(3), federation) for m in (reset, kept))
    new = expected.clients.opt_state
    for number in range(2):
        now = in_round(federation, number)
        found, _ = jax.jit(reset.stages[0].round)(KEYS[number], found, now)
        state = expected._replace(clients=expected.clients._replace(opt_state=new))
        expected, _ = jax.jit(kept.stages[0].round)(KEYS[number], state, now)
    assert found.clients.opt_state == ()
    compare = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(compare, found.clients.variables, expected.clients.variables)


def test_scfc_goes_on_with_rounds_of_pre_training():
    pretrain, cluster = build(sample_contrastive=True).stages
    assert cluster.round is pretrain.round


@pytest.mark.parametrize("is_scfc", [False, True])
@pytest.mark.parametrize(("num_rounds", "share"), [(4, 1.0), (5, 0.5), (6, 0.25)])
def test_the_schedule_is_of_the_second_stage(is_scfc, num_rounds, share, federation):
    """A client takes one step of SGD, which is in proportion to its size."""

    def moved(**options):
        options |= {"optimizer": optax.sgd(10.0), "sample_contrastive": is_scfc}
        method = build(pretrain_rounds=5, **options)
        start = method.init(jax.random.key(3), federation)
        second = num_rounds > 4  # after five rounds of pre-training
        before = 5 if second else 0
        stage = method.stages[second]
        now = in_round(federation, num_rounds - before, before=before)
        after, _ = jax.jit(stage.round)(KEYS[0], start, now)
        before, after = start.server.variables, after.server.variables
        return after["params"]["a"] - before["params"]["a"]

    whole = moved()
    assert np.abs(whole).max() > 1e-2
    scheduled = moved(schedule=lambda number: 0.5 / 2**number)
    np.testing.assert_allclose(scheduled, share * whole, atol=1e-6)


def test_own_init_needs_a_round_of_pre_training():
    with pytest.raises(ValueError, match="`own_init` needs a round of pre-training"):
        build(own_init=True, pretrain_rounds=0)


def test_unrelated_networks_are_averaged_and_drawn_to_the_servers_first_one(federation):
    """Steps of size zero leave what a first round starts from, and report its loss."""
    method = build(own_init=True, optimizer=optax.sgd(0.0), pretrain_rounds=5)
    assert [stage.num_rounds for stage in method.stages[:2]] == [1, 4]
    state = method.init(jax.random.key(3), federation)
    new, metrics = jax.jit(method.stages[0].round)(KEYS[0], state, federation)

    clients_key, server_key = jax.random.split(KEYS[0])
    keys = [jax.random.split(k, 3)[2] for k in clients.fold_in(clients_key, 2)]
    taken = clients.fold_in(server_key, 10)  # by the server's k-means
    drawn_by, taken = ({str(jax.random.key_data(k)) for k in x} for x in (keys, taken))
    assert not drawn_by & taken
    drawn = [draw(key)["params"] for key in keys]
    anchor = state.server.variables["params"]
    values = [
        two_views(w, anchor, (POOL[held], POOL[held]))[0]
        for w, held in zip(drawn, ROWS, strict=True)
    ]
    assert_round(new, metrics, drawn, values)


# --- the beginning of the second stage


def in_order(centroids):
    return centroids[np.argsort(centroids[:, 0])]


def best_centroids(x):
    """Three centroids by scikit-learn, in the order of their first feature."""
    return in_order(KMeans(3, n_init=20, random_state=0).fit(x).cluster_centers_)


@pytest.mark.parametrize("standalone", [False, True])
def test_the_second_stage_begins_with_what_the_averaged_network_finds(standalone):
    """Algorithm 1 as printed: no round before it, and nobody's label is arbitrary. A
    round with steps of size zero finds the same. Who does not answer has no say."""
    rng = np.random.default_rng(2)
    pool = rng.normal(size=(3, 4))[np.arange(20) % 3] + 0.05 * rng.normal(size=(20, 4))
    federation, options = federate(pool, ROWS), {"optimizer": optax.sgd(0.0)}
    method = build(pretrain_rounds=0, standalone=standalone, **options)
    start, stage = method.init(jax.random.key(3), federation), method.stages[1]

    def models(state):
        return state.clients if standalone else state.server

    def centroids(state):
        return (state.clients if standalone else state.server.clusters).centroids

    a = np.asarray(models(start).variables["params"]["a"])
    z = unit(pool @ (a[0] if standalone else a))
    mined = [best_centroids(z[held]) for held in ROWS]
    begin, round = jax.jit(stage.begin), jax.jit(stage.round)
    for everyone in (False, True):
        federation = federation._replace(present=jnp.array([[True, everyone]]))
        expected = [best_centroids(np.concatenate(mined))] if everyone else mined[:1]
        if standalone:
            expected = [mined[0], mined[1] * everyone]
        begun = begin(KEYS[0], start, federation)
        for state in (begun, round(KEYS[1], start, federation)[0]):
            found = np.asarray(centroids(state)).reshape(-1, 3, 3)
            for own, wanted in zip(map(in_order, found), expected, strict=True):
                np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=1e-5)
    assigned = np.asarray(jax.jit(method.assign)(begun, federation))
    assert len(np.unique(assigned[federation.mask])) == 3


# --- rounds that are not scored


def test_clients_mine_no_centroids_that_nothing_needs(federation):
    """Of the first round, four of pre-training and two by clusters; the networks are
    those of rounds that all mine."""
    options = {"own_init": True, "pretrain_rounds": 5, "cluster_rounds": 2}
    found = {}
    method = build(**options)
    for evaluated in ((0, 3, 4, 6), range(7)):
        state, key, number = method.init(jax.random.key(3), federation), KEYS[0], 0
        found[len(evaluated)] = []
        for stage in method.stages:
            now = in_round(federation, number)
            state, round = stage.begin(key, state, now), jax.jit(stage.round)
            for i in range(stage.num_rounds):
                key, _ = jax.random.split(key)
                options = {"before": number - i, "is_evaluated": number in evaluated}
                now = in_round(federation, i, **options)
                before, number = state, number + 1
                state, metrics = round(key, state, now)
                old, new = (x.server.clusters.centroids for x in (before, state))
                moved = bool(jnp.any(old != new))
                sent = [int(metrics[f"{way}_centroids"][0]) for way in ("up", "down")]
                found[len(evaluated)].append((moved, sent, state.server.variables))
    some, all_of_them = found[4], found[7]
    # Before the first round by clusters the two have uploaded once more.
    mines, rests = (True, [2, 2]), (False, [0, 0])
    expected = [mines, rests, rests, mines, mines, (True, [4, 2]), mines]
    assert [x[:2] for x in some] == expected
    assert [x[:2] for x in all_of_them] == [mines] * 5 + expected[5:]
    for one, other in zip(some, all_of_them, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one[2], other[2])


# --- federated k-means

KMEANS = {"cluster_by": "k-means", "pretrain_rounds": 0}


def with_heterogeneity(state, value):
    clusters = state.server.clusters._replace(heterogeneity=jnp.float32(value))
    return state._replace(server=state.server._replace(clusters=clusters))


@pytest.mark.parametrize("scfc", [False, True])
def test_k_means_comes_before_the_rounds_that_need_clusters(scfc):
    method = build(**KMEANS, sample_contrastive=scfc)
    names = ["pretrain", "cluster", "k-means"] if scfc else ["pretrain", "k-means"]
    assert [stage.name for stage in method.stages] == [*names, "cluster"][:3]


def test_unlike_clients_skip_cluster_contrast_and_keep_their_clusters(federation):
    method = build(**KMEANS, max_heterogeneity=0.3)
    _, kmeans, contrast = method.stages
    start = method.init(jax.random.key(3), federation)
    begun = kmeans.begin(KEYS[0], start, federation)
    for value, skips in ((0.29, False), (0.31, True)):
        state = with_heterogeneity(begun, value)
        after = contrast.begin(KEYS[1], state, federation)
        assert bool(contrast.done(after)) == skips
        old, new = (x.server.clusters for x in (state, after))
        assert np.array_equal(old.centroids, new.centroids) == skips


def begin_contrast(federation, schedule, **options):
    """Returns a method with its state at the start of cluster contrast, and the labels
    before."""
    method = build(**options, cluster_rounds=3, schedule=schedule)
    state = method.init(jax.random.key(3), federation)
    for stage in method.stages[1:-1]:
        state = stage.begin(KEYS[0], state, federation)
    labels = np.asarray(method.assign(state, federation))
    return method, method.stages[-1].begin(KEYS[1], state, federation), labels


def means_of(z, labels, mask):
    """Returns the directions of the means of clusters [M, N]."""
    members = [(labels == k) & np.asarray(mask) for k in range(3)]
    return np.stack([unit(np.asarray(z, float)[m].mean(axis=0)) for m in members])


def test_alike_clients_contrast_the_clusters_of_k_means(federation):
    """From the means of these clusters on, a round trains as in the paper."""
    fall, networks = optax.cosine_decay_schedule(1.0, 3), []
    for options in (KMEANS, {**KMEANS, "cluster_by": "ccfc"}):
        method, state, labels = begin_contrast(federation, fall, **options)
        if not networks:
            means = means_of(method.embed(state, federation), labels, federation.mask)
            np.testing.assert_allclose(
                state.server.clusters.centroids, means, atol=1e-6
            )
        clusters = state.server.clusters._replace(centroids=jnp.asarray(means))
        state = state._replace(server=state.server._replace(clusters=clusters))
        start = state.server.variables["params"]["a"]
        before = sum(stage.num_rounds for stage in method.stages[:-1])
        now = in_round(federation, 0, before=before)
        state, _ = method.stages[-1].round(KEYS[1], state, now)
        networks.append(state.server.variables)
        assert jnp.abs(networks[-1]["params"]["a"] - start).max() > 1e-3
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), *networks)


def test_centroids_take_a_lloyd_step_in_a_round_of_cluster_contrast(federation):
    """The learning rate is 0, so the network does not change and the step must be that
    of all clients' embedding."""
    method, state, _ = begin_contrast(federation, lambda _: 0.0, **KMEANS)
    near = jnp.asarray(unit(np.random.default_rng(1).normal(size=(3, 3))), jnp.float32)
    clusters = state.server.clusters._replace(centroids=near)
    state = state._replace(server=state.server._replace(clusters=clusters))
    labels = np.asarray(method.assign(state, federation))
    expected = means_of(method.embed(state, federation), labels, federation.mask)
    before = sum(stage.num_rounds for stage in method.stages[:-1])
    for number in range(2):
        now = in_round(federation, number, before=before)
        new, metrics = method.stages[-1].round(KEYS[1], state, now)
        np.testing.assert_allclose(new.server.clusters.centroids, expected, atol=1e-6)
        # Two clients send sums [3, 3] and counts, and did when the stage began.
        times = 2 if number == 0 else 1
        assert metrics["up_sums"].tolist() == [2 * times, 3 * 3 * 4]
        assert metrics["up_counts"].tolist() == [2 * times, 3 * 4]
        assert metrics["down_centroids"].tolist() == [2, 3 * 3 * 4]


def test_clusters_are_those_of_k_means_of_the_half_whitened_embedding(federation):
    method = build(**KMEANS, cluster_rounds=0)
    assert [stage.name for stage in method.stages] == ["pretrain", "k-means"]
    state, rounds = method.init(jax.random.key(3), federation), 0
    stage = method.stages[1]
    state = stage.begin(KEYS[0], state, federation)
    begun = state.server.clusters
    while not stage.done(state):
        state, rounds = stage.round(KEYS[1], state, federation)[0], rounds + 1
        assert rounds < 100
    z = unit(np.asarray(outputs(state.server.variables["params"], POOL)[0], float))
    variances, vectors = np.linalg.eigh(np.cov(z.T, bias=True))
    half = unit((z - z.mean(axis=0)) @ vectors[:, ::-1] / variances[::-1] ** 0.25)
    directions = np.asarray(begun.whitening.directions)
    signs = np.sign(np.sum(directions * vectors[:, ::-1], axis=0))
    start = np.asarray(begun.centroids) * signs  # a direction has no sign of its own
    central = KMeans(3, init=start, n_init=1, tol=0).fit(half)
    found = np.asarray(method.assign(state, federation))
    for client, held in enumerate(ROWS):
        labels = found[client, : len(held)]
        np.testing.assert_array_equal(labels, central.labels_[held])


def test_clients_that_train_alone_have_no_server_for_k_means():
    with pytest.raises(ValueError, match="standalone"):
        build(standalone=True, cluster_by="k-means")
