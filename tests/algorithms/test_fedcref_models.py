import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.algorithms import fedcref_models
from fcjax.algorithms.fedcref_models import Models
from tests.algorithms.test_fedcref import NETWORK, RATE, K, data, error

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
    found = fedcref_models.errors_under(MODELS, stacked, exist, federation)
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
        return fedcref_models.of_clusters(
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
