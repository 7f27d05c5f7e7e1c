import jax
import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from fcjax.algorithms.central import by_kmeans
from fcjax.algorithms.fedcref import given, on_clients
from tests.algorithms.test_fedcref import FEDERATION, KEY, SETS, K, X, own_of


def kmeans(num_used):
    return by_kmeans(num_clusters=K, num_used=num_used, unit_length=False)


def run(start):
    (phase,) = start.phases
    state = phase.begin(KEY, start.init(KEY, FEDERATION), FEDERATION)
    state, loss = phase.round(KEY, state, FEDERATION)
    return start.assign(state, FEDERATION), loss


def test_each_client_has_the_clusters_of_its_own_rows_alone():
    clusters, loss = run(on_clients(kmeans, num_clusters=K))
    for x, found, value, own in zip(X, own_of(clusters), loss, SETS, strict=True):
        alone = KMeans(len(own), n_init=10, random_state=0).fit(x)
        assert adjusted_rand_score(alone.labels_, found) == 1
        assert set(found) <= set(range(K))
        np.testing.assert_allclose(value, alone.inertia_ / len(x), rtol=1e-4)


def test_given_clusters_are_those_from_its_only_round_on():
    def clusters(key, federation):
        return jax.random.randint(key, federation.indices.shape, 0, K)

    start = given("made", clusters)
    assert [(phase.name, phase.num_rounds) for phase in start.phases] == [("made", 1)]
    before = start.assign(start.init(KEY, FEDERATION), FEDERATION)
    np.testing.assert_array_equal(before, -1)
    found, loss = run(start)
    np.testing.assert_array_equal(found, clusters(KEY, FEDERATION))
    np.testing.assert_array_equal(loss, np.zeros(5))
