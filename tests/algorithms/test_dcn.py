"""DCN against its steps written out in NumPy, for linear networks."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.cluster import KMeans

from fcjax import training
from fcjax.algorithms.dcn import DCNState, by_dcn
from fcjax.cluster import kmeans
from fcjax.models.autoencoder import AutoEncoder
from tests.algorithms.plain import matrix

RATE, MOMENTUM, WEIGHT, BATCH, K = 0.02, 0.9, 3.0, 4, 3
MASK = np.array([[True] * 6 + [False], [True, False, True, True, True, False, False]])
AUTOENCODER = AutoEncoder(matrix(2), matrix(5))


def clustering(weight=WEIGHT, **options):
    return by_dcn(
        AUTOENCODER,
        optax.sgd(RATE, momentum=MOMENTUM),
        num_clusters=K,
        batch_size=BATCH,
        cluster_weight=weight,
        num_init=3,
        **options,
    )


BEGUN, ENDED = 5, 6
"""Of the joint phase in the states of `trained`."""


@pytest.fixture(scope="module")
def x():
    """Ten examples of images [5, 1], stacked on two clients; others are no number."""
    x = np.random.default_rng(0).normal(size=(2, 7, 5, 1)).astype(np.float32)
    x[~MASK] = np.nan
    return x


@pytest.fixture(scope="module")
def joint():
    """A round of the joint phase, by its cluster weight."""
    return jax.jit(lambda weight, *args: clustering(weight).phases[2].round(*args))


@pytest.fixture(scope="module")
def trained(x, joint):
    """States before and after every phase, and their losses."""
    found = clustering()
    args, keys = (
        (jnp.asarray(x), jnp.asarray(MASK)),
        jax.random.split(jax.random.key(4)),
    )
    states = [found.init(jax.random.key(0), args[0][0, :1])]
    losses = []
    for i, phase in enumerate(found.phases):
        states.append(jax.jit(phase.begin)(keys[0], states[-1], *args))
        step = (lambda *args: joint(WEIGHT, *args)) if i == 2 else jax.jit(phase.round)
        state, loss = step(keys[1], states[-1], *args)
        states.append(state)
        losses.append(loss)
    return states, losses, keys[1]


def kernels(tree):
    """Of the encoder and the decoder, or what an optimiser keeps of them."""
    return [
        np.asarray(tree[part]["kernel"], np.float64) for part in AUTOENCODER._fields
    ]


def trace(state: DCNState):
    (momentum,) = (s.trace for s in state.opt_state if hasattr(s, "trace"))
    return kernels(momentum)


def nearest(z, centroids):
    return ((z[:, None] - centroids[None]) ** 2).sum(axis=-1).argmin(axis=1)


def descend(w, momentum, rows, own, weight):
    """A step down Eq. 3: |x - x'|^2 + weight / 2 |z - c|^2, the mean of a batch."""
    encoder, decoder = w
    z = rows @ encoder
    out, off = z @ decoder - rows, z - own
    loss = ((out**2).sum(axis=1) + weight / 2 * (off**2).sum(axis=1)).mean()
    to_out, n = 2 * out / len(rows), len(rows)
    to_z = to_out @ decoder.T + weight * off / n
    gradients = (rows.T @ to_z, z.T @ to_out)
    momentum = [g + MOMENTUM * m for g, m in zip(gradients, momentum, strict=True)]
    return [a - RATE * m for a, m in zip(w, momentum, strict=True)], momentum, loss


def batches(key, mask):
    """The true slots of an epoch in their order."""
    order_key, _ = jax.random.split(jax.random.fold_in(key, 0))
    order = np.asarray(training.shuffle(order_key, jnp.asarray(mask)))[: mask.sum()]
    return [order[i : i + BATCH] for i in range(0, len(order), BATCH)]


def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_first_the_autoencoder_alone(trained, x):
    (_, begun, ended, *_), losses, key = trained
    w, momentum, values = kernels(begun.variables["params"]), trace(begun), []
    rows = x.reshape(14, 5).astype(np.float64)
    for slots in batches(key, MASK.ravel()):
        w, momentum, value = descend(w, momentum, rows[slots], 0.0, 0.0)
        values.append(value)
    assert [len(slots) for slots in batches(key, MASK.ravel())] == [4, 4, 2]
    assert_close(kernels(ended.variables["params"]), w)
    assert_close(trace(ended), momentum)
    assert float(losses[0]) == pytest.approx(np.mean(values), rel=1e-5)
    assert ended.centroids == ended.counts == ended.assignments == ()


def test_then_k_means_of_the_codes_that_count(trained, x):
    before, ended, loss = trained[0][2], trained[0][4], trained[1][1]
    encoder, _ = kernels(before.variables["params"])
    z = x[MASK].reshape(-1, 5) @ encoder
    own = nearest(z, np.asarray(ended.centroids))
    means = [z[own == k].mean(axis=0) for k in range(K)]
    np.testing.assert_allclose(ended.centroids, means, atol=1e-5)
    inertia = ((z - np.asarray(ended.centroids)[own]) ** 2).sum()
    assert float(loss) == pytest.approx(inertia / len(z), rel=1e-4)
    best = kmeans(jax.random.key(9), jnp.asarray(z, "float32"), K, num_init=20)
    assert inertia <= 1.5 * float(best.inertia)
    jax.tree.map(np.testing.assert_array_equal, before.variables, ended.variables)


def test_then_networks_and_clusters_by_turns(trained, x, joint):
    """The networks with what is stored; then codes, assignments and centroids anew, one
    example after another."""
    begun, key = trained[0][BEGUN], trained[2]
    w, momentum = kernels(begun.variables["params"]), trace(begun)
    rows = x.reshape(14, 5).astype(np.float64)
    centroids, counts = np.asarray(begun.centroids, np.float64), np.full(K, 100.0)
    own, stored = MASK.ravel(), np.asarray(begun.assignments).ravel()
    np.testing.assert_array_equal(stored[own], nearest(rows @ w[0], centroids)[own])
    np.testing.assert_array_equal(begun.counts, counts)

    stored = (stored + own) % K  # as if long ago: not what they would be now
    begun = begun._replace(assignments=jnp.asarray(stored.reshape(2, 7)))
    ended, loss = joint(WEIGHT, key, begun, jnp.asarray(x), jnp.asarray(MASK))
    values = []
    for slots in batches(key, own):
        w, momentum, value = descend(
            w, momentum, rows[slots], centroids[stored[slots]], WEIGHT
        )
        values.append(value)
        z = rows[slots] @ w[0]
        assert (stored[slots] != nearest(z, centroids)).any()
        stored[slots] = nearest(z, centroids)
        for code, k in zip(z, stored[slots], strict=True):
            counts[k] += 1
            centroids[k] += (code - centroids[k]) / counts[k]
    assert_close(kernels(ended.variables["params"]), w)
    assert_close(trace(ended), momentum)
    assert_close([ended.centroids, ended.counts], [centroids, counts])
    assert counts.sum() == 310
    np.testing.assert_array_equal(np.asarray(ended.assignments)[MASK], stored[own])
    assert float(loss) == pytest.approx(np.mean(values), rel=1e-4)


def test_without_a_weight_the_networks_learn_as_alone(trained, x, joint):
    begun, key = trained[0][BEGUN], trained[2]
    args = (jnp.asarray(x), jnp.asarray(MASK))
    with_clusters, loss = joint(0.0, key, begun, *args)
    alone, loss_alone = jax.jit(clustering().phases[0].round)(key, begun, *args)
    for a, b in zip(with_clusters[:2], alone[:2], strict=True):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), a, b)
    assert float(loss) == pytest.approx(float(loss_alone), rel=1e-6)
    assert np.abs(with_clusters.centroids - begun.centroids).max() > 0


def test_what_does_not_count_changes_nothing(trained, x, joint):
    """Whether it is a number or not."""
    begun, ended = trained[0][BEGUN : ENDED + 1]
    np.testing.assert_array_equal(np.asarray(ended.assignments)[~MASK], -1)
    finite = jnp.asarray(np.where(np.isnan(x), 7.0, x))
    again, _ = joint(WEIGHT, trained[2], begun, finite, jnp.asarray(MASK))
    jax.tree.map(np.testing.assert_array_equal, again, ended)
    for leaf in jax.tree.leaves(ended):
        assert np.isfinite(leaf).all()
    begin = clustering().phases[2].begin
    jax.tree.map(
        np.testing.assert_array_equal,
        begin(trained[2], trained[0][4], finite, jnp.asarray(MASK)),
        begin(trained[2], trained[0][4], jnp.asarray(x), jnp.asarray(MASK)),
    )


def test_examples_may_be_stacked_or_flat(trained, x, joint):
    begun, ended = trained[0][BEGUN : ENDED + 1]
    flat = begun._replace(assignments=begun.assignments.reshape(-1))
    args = (jnp.asarray(x.reshape(14, 5, 1)), jnp.asarray(MASK.ravel()))
    state, _ = joint(WEIGHT, trained[2], flat, *args)
    state = state._replace(assignments=state.assignments.reshape(2, 7))
    jax.tree.map(np.testing.assert_array_equal, state, ended)


def test_an_example_that_comes_late_is_drawn_to_the_centroid_nearest_then(
    trained, x, joint
):
    """Nothing is stored of it yet."""
    begin = clustering().phases[2].begin
    late = MASK.copy()
    late[1, 2:] = False
    key, state = trained[2], trained[0][ENDED]
    x = jnp.asarray(np.where(np.isnan(x), 0.0, x))
    early = begin(key, state, x, jnp.asarray(late))._replace(
        # As if much had been learnt since: every example has another cluster.
        centroids=-3 * state.centroids[::-1]
    )
    encoder, _ = kernels(early.variables["params"])
    z = np.asarray(x).reshape(14, 5) @ encoder
    assigned = nearest(z, np.asarray(early.centroids))
    stored = np.where(late.ravel(), np.asarray(early.assignments).ravel(), assigned)
    assert (stored != nearest(z, np.asarray(state.centroids)))[~late.ravel()].any()
    # All examples are one batch.
    w, *_ = descend(
        kernels(early.variables["params"]),
        trace(early),
        np.asarray(x, np.float64).reshape(14, 5)[MASK.ravel()],
        np.asarray(early.centroids)[stored][MASK.ravel()],
        WEIGHT,
    )
    whole = by_dcn(
        AUTOENCODER,
        optax.sgd(RATE, momentum=MOMENTUM),
        num_clusters=K,
        batch_size=14,
        cluster_weight=WEIGHT,
    )
    found, _ = whole.phases[2].round(key, early, x, jnp.asarray(MASK))
    assert_close(kernels(found.variables["params"]), w)


# --- k-means of all codes


def descended(z, centroids):
    """Lloyd's steps from these centroids to where they stand still."""
    while True:
        own = nearest(z, centroids)
        means = [z[own == k].mean(axis=0) for k in range(K) if (own == k).any()]
        moved = centroids.copy()
        moved[np.unique(own)] = means
        if np.allclose(moved, centroids, atol=1e-12):
            return centroids, own
        centroids = moved


def test_every_so_many_epochs_k_means_goes_on_from_the_centroids(trained, x):
    """Every second of four: of all codes that count, with the networks as they are."""
    args, keys = (jnp.asarray(x), jnp.asarray(MASK)), jax.random.split(trained[2], 4)
    # As if they had run far along: k-means has something to do.
    begun = trained[0][BEGUN]
    begun = begun._replace(centroids=begun.centroids[::-1] + 0.5)
    refreshed = jax.jit(clustering(refresh_every=2).phases[2].round)
    running = jax.jit(clustering(refresh_every=5).phases[2].round)
    state = begun
    for number, key in enumerate(keys, start=1):
        before, (state, loss) = state, refreshed(key, state, *args)
        along, loss_along = running(key, before, *args)
        assert int(state.num_rounds) == number
        assert float(loss) == float(loss_along)
        if number % 2:
            jax.tree.map(np.testing.assert_array_equal, state, along)
            continue
        for a, b in ((state.variables, along.variables), (state.counts, along.counts)):
            jax.tree.map(np.testing.assert_array_equal, a, b)
        encoder, _ = kernels(state.variables["params"])
        z = x[MASK].reshape(-1, 5) @ encoder
        centroids, own = descended(z, np.asarray(along.centroids, np.float64))
        np.testing.assert_allclose(state.centroids, centroids, atol=1e-4)
        np.testing.assert_array_equal(np.asarray(state.assignments)[MASK], own)
        np.testing.assert_array_equal(np.asarray(state.assignments)[~MASK], -1)
        assert np.abs(centroids - np.asarray(along.centroids)).max() > 1e-2


def test_in_the_end_k_means_is_begun_anew(trained, x):
    """From new seeds: centroids that have all run far away are no hindrance."""
    *_, joint, last = clustering(joint_rounds=1).phases
    assert (joint.name, last.name, last.num_rounds) == ("joint", "final k-means", 1)
    args = (jnp.asarray(x), jnp.asarray(MASK))
    ended = trained[0][ENDED]
    far = ended._replace(centroids=ended.centroids + 100)
    begun = last.begin(trained[2], far, *args)
    state, loss = jax.jit(last.round)(trained[2], begun, *args)
    encoder, _ = kernels(ended.variables["params"])
    z = x[MASK].reshape(-1, 5) @ encoder
    own = nearest(z, np.asarray(state.centroids))
    means = [z[own == k].mean(axis=0) for k in range(K)]
    np.testing.assert_allclose(state.centroids, means, atol=1e-5)
    inertia = ((z - np.asarray(state.centroids)[own]) ** 2).sum()
    assert float(loss) == pytest.approx(inertia / len(z), rel=1e-4)
    best = KMeans(K, n_init=50, random_state=0).fit(z).inertia_
    assert inertia <= 1.5 * best
    jax.tree.map(np.testing.assert_array_equal, ended.variables, state.variables)


# --- what is returned


def test_an_example_goes_to_the_centroid_nearest_to_its_code(trained, x):
    state, found = trained[0][-1], clustering()
    rows = jnp.asarray(x[0, :6])
    encoder, _ = kernels(state.variables["params"])
    z = x[0, :6].reshape(6, 5) @ encoder
    np.testing.assert_allclose(found.embed(state, rows), z, atol=1e-5)
    np.testing.assert_array_equal(
        found.assign(state, found.embed(state, rows)),
        nearest(z, np.asarray(state.centroids)),
    )
    np.testing.assert_array_equal(found.assign(trained[0][1], jnp.zeros((2, 2))), -1)


def test_down_come_the_encoder_and_the_centroids(trained):
    state = trained[0][-1]
    sent = clustering().results(state)
    assert set(sent) == {"encoder", "centroids"}
    np.testing.assert_array_equal(sent["centroids"], state.centroids)
    assert jax.tree.map(jnp.shape, sent["encoder"]) == {"params": {"kernel": (5, 2)}}


def test_the_phases_and_their_rounds():
    def rounds(**options):
        phases = clustering(**options).phases
        return {phase.name: phase.num_rounds for phase in phases}

    assert rounds(pretrain_rounds=7, joint_rounds=2) == {
        "autoencoder": 7,
        "k-means": 1,
        "joint": 2,
        "final k-means": 1,
    }
    # SDA-FDC (disjoint): the clusters are those of the codes of the auto-encoder.
    assert rounds(pretrain_rounds=7, joint_rounds=0) == {"autoencoder": 7, "k-means": 1}


def test_pixels_are_taken_from_0_to_1(joint):
    x = np.random.default_rng(1).integers(0, 256, (6, 5), np.uint8)
    found = clustering()
    state = found.init(jax.random.key(0), jnp.asarray(x[:1]))
    encoder, _ = kernels(state.variables["params"])
    np.testing.assert_allclose(
        found.embed(state, jnp.asarray(x)), (x / 255) @ encoder, atol=1e-5
    )
