import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.algorithms import cluster_models
from fcjax.algorithms.association import Groups
from fcjax.algorithms.cluster_models import Models
from tests.algorithms.test_fedcref import (
    NETWORK,
    RATE,
    K,
    data,
    error,
    gradient_steps,
    zeros,
)

MODELS = Models(NETWORK, optax.sgd(RATE, momentum=0.9), 100, K)


@pytest.fixture(scope="module")
def given():
    federation, _, clusters = data()
    return federation, jnp.asarray(clusters)


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def part(tree, *at):
    return jax.tree.map(lambda x: x[at], tree)


def test_errors_are_those_of_a_loop_over_models_and_examples(given, key):
    federation, _ = given
    exist = jnp.array([True, False, True, True, False])
    keys = jax.random.split(key, 5)
    models = [NETWORK.init(k, federation.pool[:1]) for k in keys]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *models)
    # What does not exist may hold anything.
    stacked = jax.tree.map(lambda x: x.at[jnp.array([1, 4])].set(jnp.nan), stacked)
    found = cluster_models.errors_under(MODELS, stacked, exist, federation)
    assert found.shape == (*federation.indices.shape, 5)
    for i, rows in enumerate(federation.indices):
        for v, model in enumerate(models):
            expected = error(model, federation.pool[rows]) if exist[v] else 0
            np.testing.assert_allclose(found[i, :, v], expected, rtol=1e-5)


def test_a_clusters_model_knows_its_own_examples_alone(given, key):
    federation, clusters = given
    chosen = jnp.ones((5, K), bool).at[3, 0].set(False)

    @jax.jit
    def train(pool):
        changed = federation._replace(pool=pool)
        small = MODELS._replace(batch_size=5)  # a batch has others to fill it up
        return cluster_models.of_clusters(
            small, key, clusters, chosen, changed, num_epochs=3
        )

    own = federation.indices[0][(clusters[0] == 1) & federation.mask[0]]
    others = jnp.ones(len(federation.pool), bool).at[own].set(False)
    theirs = others.at[federation.indices[0]].set(False)
    pool = federation.pool
    models, losses = train(pool)
    for spoilt in (
        jnp.where(others[:, None], 1 - pool, pool),
        jnp.where(theirs[:, None], jnp.nan, pool),
    ):
        again, values = train(spoilt)
        assert_same(part(models, 0, 1), part(again, 0, 1))
        assert losses[0, 1] == values[0, 1]
    again, _ = train(pool.at[own[0]].add(0.1))
    changed = [
        (a[0, 1] != b[0, 1]).any()
        for a, b in zip(*map(jax.tree.leaves, (models, again)), strict=True)
    ]
    assert all(changed)
    assert_same(part(models, 1), part(again, 1))


# One community of three clusters and another of two.
NUMBERS = jnp.array([[0, 1, -1], [-1, 0, -1], [1, -1, 0], [-1] * 3, [-1] * 3])
RANKS = jnp.array([[0, 0, 0], [0, 1, 0], [1, 0, 2], [0] * 3, [0] * 3])
GROUPS = Groups(NUMBERS.astype(jnp.int32), RANKS.astype(jnp.int32))
EPOCHS = (1, 2, 2)


def train_communities(key, federation, clusters, **options):
    return cluster_models.of_communities(
        *(MODELS, key, clusters, GROUPS, federation),
        first_epochs=EPOCHS[0],
        num_epochs=EPOCHS[1],
        num_rounds=len(EPOCHS),
        **options,
    )


def by_fedavg(key, federation, clusters, number, members):
    """The mean, and what each member had after its last training."""
    model = NETWORK.init(
        jax.random.fold_in(jax.random.split(key)[0], number), federation.pool[:1]
    )
    velocity, own = [zeros(model)] * len(members), []
    for count in EPOCHS:
        own, sizes = [], []
        for m, (i, q) in enumerate(members):
            rows = federation.indices[i][(clusters[i] == q) & federation.mask[i]]
            x = federation.pool[rows]
            trained, velocity[m] = gradient_steps(model, velocity[m], x, count)
            own.append(trained)
            sizes.append(len(x) + 0.0)
        shares = np.array(sizes) / sum(sizes)
        model = jax.tree.map(
            lambda *x, shares=shares: sum(map(jnp.multiply, shares, x)), *own
        )
    return model, own


def test_a_community_may_be_trained_on_its_first_members(given, key):
    federation, clusters = given
    found = train_communities(key, federation, clusters, max_members=2)
    for number, members in enumerate([[(0, 0), (1, 1)], [(0, 1), (2, 0)]]):
        expected, _ = by_fedavg(key, federation, clusters, number, members)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
            part(found, number),
            expected,
        )
    third = federation.indices[2][(clusters[2] == 2) & federation.mask[2]]
    assert len(third) > 0
    spoilt = federation._replace(pool=federation.pool.at[third].add(0.2))
    again = train_communities(key, spoilt, clusters, max_members=2)
    assert_same(part(found, jnp.arange(2)), part(again, jnp.arange(2)))
    of_all = train_communities(key, spoilt, clusters)
    leaves = zip(*map(jax.tree.leaves, (part(of_all, 0), part(found, 0))), strict=True)
    assert all((a != b).any() for a, b in leaves)


def test_the_last_local_model_is_the_first_members(given, key):
    federation, clusters = given
    found = train_communities(key, federation, clusters, last_local_model=True)
    all_members = [[(0, 0), (1, 1), (2, 2)], [(0, 1), (2, 0)]]
    for number, members in enumerate(all_members):
        mean, own = by_fedavg(key, federation, clusters, number, members)
        for x, first, other in zip(
            *map(jax.tree.leaves, (part(found, number), own[0], mean)), strict=True
        ):
            np.testing.assert_allclose(x, first, rtol=1e-4, atol=1e-5)
            assert np.abs(x - other).max() > 1e-4
