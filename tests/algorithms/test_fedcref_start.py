import jax
import jax.numpy as jnp
import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from fcjax.algorithms.central import by_kmeans
from fcjax.algorithms.fedcref_start import given, on_clients
from tests.algorithms.federations import federate

SETS = ((0, 1), (1, 2, 3), (0, 3), (4,))
K = 3


def blobs():
    """Clients of one to three of five far places, as many clusters as places each."""
    rng = np.random.default_rng(0)
    labels = np.concatenate([np.repeat(own, 9 + own[0]) for own in SETS])
    sizes = [len(own) * (9 + own[0]) for own in SETS]
    pool = 5 * rng.normal(size=(5, 2))[labels] + 0.1 * rng.normal(size=(len(labels), 2))
    federation = federate(pool, np.split(np.arange(len(pool)), np.cumsum(sizes)[:-1]))
    counts = jnp.array([len(own) for own in SETS], jnp.int32)
    return federation._replace(local_clusters=counts)


def kmeans(num_used):
    return by_kmeans(num_clusters=K, num_used=num_used, unit_length=False)


def run(start, federation, key):
    (phase,) = start.phases
    local = federation.local_clusters
    state = phase.begin(key, start.init(key, federation), federation, local)
    state, loss = phase.round(key, state, federation, local)
    return start.assign(state, federation), loss


def test_each_client_has_the_clusters_of_its_own_rows_alone(key):
    federation = blobs()
    clusters, loss = run(on_clients(kmeans, num_clusters=K), federation, key)
    for i, mask in enumerate(np.asarray(federation.mask)):
        x = np.asarray(federation.pool[federation.indices[i]])[mask]
        count = len(SETS[i])
        alone = KMeans(count, n_init=10, random_state=0).fit(x)
        found = np.asarray(clusters[i])[mask]
        assert adjusted_rand_score(alone.labels_, found) == 1
        assert set(found) <= set(range(K))
        assert len(set(found)) == count
        np.testing.assert_allclose(loss[i], alone.inertia_ / len(x), rtol=1e-4)


def test_what_others_hold_changes_nothing(key):
    federation = blobs()
    start = on_clients(kmeans, num_clusters=K, client_axis="map")
    whole, _ = run(start, federation, key)
    rows = federation.indices[1]
    spoilt = federation._replace(pool=federation.pool.at[rows].set(jnp.nan))
    other, _ = run(start, spoilt, key)
    own = jnp.array([0, 2, 3])
    np.testing.assert_array_equal(whole[own], other[own])


def test_given_clusters_are_those_from_its_only_round_on(key):
    federation = blobs()
    drawn = []

    def clusters(key, federation):
        drawn.append(key)
        return jnp.ones(federation.indices.shape, jnp.int32)

    start = given("made", clusters)
    (phase,) = start.phases
    assert (phase.name, phase.num_rounds) == ("made", 1)
    before = start.assign(start.init(key, federation), federation)
    np.testing.assert_array_equal(before, -1)
    found, loss = run(start, federation, key)
    np.testing.assert_array_equal(found, 1)
    np.testing.assert_array_equal(loss, np.zeros(4))
    assert [jax.random.key_data(x).tolist() for x in drawn] == [
        jax.random.key_data(key).tolist()
    ]
