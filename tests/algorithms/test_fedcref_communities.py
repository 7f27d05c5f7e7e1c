import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.algorithms import fedcref_communities
from fcjax.algorithms.fedcref_association import Groups
from tests.algorithms.test_fedcref import NETWORK, data, gradient_steps, zeros
from tests.algorithms.test_fedcref_models import MODELS, assert_same, part

# One community of three clusters and another of two.
NUMBERS = jnp.array([[0, 1, -1], [-1, 0, -1], [1, -1, 0], [-1] * 3, [-1] * 3])
RANKS = jnp.array([[0, 0, 0], [0, 1, 0], [1, 0, 2], [0] * 3, [0] * 3])
GROUPS = Groups(NUMBERS.astype(jnp.int32), RANKS.astype(jnp.int32))
EPOCHS = (1, 2, 2)


@pytest.fixture(scope="module")
def given():
    federation, _, clusters = data()
    return federation, jnp.asarray(clusters)


def train_communities(key, federation, clusters, **options):
    return fedcref_communities.train(
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
