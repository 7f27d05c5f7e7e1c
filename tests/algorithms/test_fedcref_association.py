import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from fcjax.algorithms import fedcref_association
from fcjax.algorithms.fedcref_association import accepts, first_matches


def by_equation(errors, own, clusters, mask, num_clusters, percentile, threshold):
    """Eq. 2 and step 3, a cluster and a model at a time."""
    found = np.zeros((num_clusters, errors.shape[1]), bool)
    for q in range(num_clusters):
        members = mask & (clusters == q)
        for model in range(errors.shape[1]):
            d = np.abs(own[members] - errors[members, model])
            if len(d) == 0 or d.max() == d.min():
                continue
            scaled = (d - d.min()) / (d.max() - d.min())
            found[q, model] = np.percentile(scaled, percentile) <= threshold
    return found


def examples(seed, num_models=7, count=60):
    rng = np.random.default_rng(seed)
    own = rng.gamma(2.0, 1.0, count)
    # Of heavier and lighter tails, so that some are accepted.
    shapes = rng.uniform(0.05, 1.5, num_models)
    errors = own[:, None] + rng.gamma(shapes, 1.0, (count, num_models))
    clusters = rng.integers(0, 3, count)
    return errors.astype("f4"), own.astype("f4"), clusters, rng.random(count) < 0.8


@pytest.mark.parametrize(("percentile", "threshold"), [(75, 0.2), (90, 0.3), (50, 0.1)])
def test_accepted_models_are_those_of_the_equation(percentile, threshold):
    accepted = 0
    for seed in range(10):
        errors, own, clusters, mask = examples(seed)
        errors[~mask] = np.nan
        found = accepts(
            *map(jnp.asarray, (errors, own, clusters, mask)),
            num_clusters=4,  # the last one has no example
            percentile=float(percentile),
            threshold=threshold,
        )
        expected = by_equation(errors, own, clusters, mask, 4, percentile, threshold)
        np.testing.assert_array_equal(found, expected)
        assert not found[3].any()
        accepted += expected.mean()
    assert 0.5 < accepted < 9  # of ten


def test_by_hand_a_percentile_on_the_threshold_is_accepted():
    # Differences 0, 1, 2, 3, 10: scaled 0, .1, .2, .3, 1; the 75th percentile is .3.
    own = jnp.zeros(5)
    errors = jnp.array([0.0, 1.0, 2.0, 3.0, 10.0])[:, None]
    args = (errors, own, jnp.zeros(5, int), jnp.ones(5, bool))
    test = jax.jit(
        lambda threshold: accepts(
            *args, num_clusters=1, percentile=75.0, threshold=threshold
        )[0, 0]
    )
    assert test(0.3001)
    assert not test(0.2999)


def test_equal_differences_and_single_examples_are_never_accepted():
    clusters = jnp.array([0, 0, 0, 1])
    errors = jnp.array([[5.0], [5.0], [5.0], [1.0]])
    own = jnp.zeros(4)
    found = accepts(
        *(errors, own, clusters, jnp.ones(4, bool)),
        num_clusters=2,
        percentile=75.0,
        threshold=1.0,
    )
    assert not found.any()


def test_a_threshold_may_be_traced():
    errors, own, clusters, mask = map(jnp.asarray, examples(0))

    def count(threshold):
        found = accepts(
            *(errors, own, clusters, mask),
            num_clusters=3,
            percentile=75.0,
            threshold=threshold,
        )
        return found.sum()

    counts = jax.vmap(count)(jnp.array([0.0, 0.1, 0.3, 1.0]))
    assert counts[0] == 0
    assert (jnp.diff(counts) >= 0).all()
    assert counts[-1] == 21


def test_both_clusters_must_accept():
    # Client 0 and 1 with a cluster each: 0 accepts the model of 1, not the reverse.
    heavy, flat = [0.0, 0.1, 0.1, 0.1, 0.1, 9.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    errors = jnp.zeros((2, 6, 2))
    errors = errors.at[0, :, 1].set(jnp.array(heavy))
    one_sided = errors.at[1, :, 0].set(jnp.array(flat))
    both = errors.at[1, :, 0].set(jnp.array(heavy))
    clusters, mask = jnp.zeros((2, 6), int), jnp.ones((2, 6), bool)
    options = {"num_clusters": 1, "percentile": 75.0, "threshold": 0.2}
    assert not fedcref_association.mutual(one_sided, clusters, mask, **options).any()
    found = fedcref_association.mutual(both, clusters, mask, **options)[:, 0, :, 0]
    np.testing.assert_array_equal(found, [[False, True], [True, False]])


def by_code(accepted):
    """What a double loop over clients and clusters with a break finds."""
    num_clients, num_clusters = accepted.shape[:2]
    found = np.zeros_like(accepted)
    for i in range(num_clients):
        for j in range(i + 1, num_clients):
            for q in range(num_clusters):
                for p in range(num_clusters):
                    if accepted[i, q, j, p]:
                        found[i, q, j, p] = found[j, p, i, q] = True
                        break
    return found


def test_first_matches_are_those_of_a_loop_that_stops():
    rng = np.random.default_rng(3)
    for density in (0.1, 0.5, 1.0):
        accepted = rng.random((5, 3, 5, 3)) < density
        accepted |= accepted.transpose(2, 3, 0, 1)
        found = first_matches(jnp.asarray(accepted))
        np.testing.assert_array_equal(found, by_code(accepted))


def test_communities_are_components_of_two_clusters_or_more():
    rng = np.random.default_rng(4)
    for density in (0.0, 0.02, 0.1):
        edges = rng.random((6, 4, 6, 4)) < density
        edges |= edges.transpose(2, 3, 0, 1)
        edges[np.arange(6), :, np.arange(6)] = False
        groups = jax.jit(fedcref_association.communities)(jnp.asarray(edges))
        numbers = np.asarray(groups.numbers).ravel()
        _, expected = connected_components(edges.reshape(24, 24), directed=False)
        sizes = np.bincount(expected)[expected]
        np.testing.assert_array_equal(numbers < 0, sizes == 1)
        members = numbers[sizes > 1]
        pairs = np.unique(np.stack([members, expected[sizes > 1]]), axis=1)
        assert pairs.shape[1] == len(np.unique(members)) == numbers.max() + 1
        ranks = np.asarray(groups.ranks).ravel()
        for number in np.unique(members):
            own = ranks[numbers == number]
            np.testing.assert_array_equal(own, np.arange(len(own)))
