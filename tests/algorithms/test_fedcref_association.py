from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from fcjax.algorithms.fedcref_models import (
    accepts,
    associate,
    communities,
    first_matches,
)
from fcjax.methods import FedCRef
from tests.algorithms.federations import federate


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


@pytest.mark.parametrize(("percentile", "threshold"), [(75.0, 0.2), (50.0, 0.1)])
def test_accepted_models_are_those_of_the_equation(percentile, threshold):
    test = FedCRef().plain(percentile=percentile, threshold=threshold)
    run = jax.jit(partial(accepts, test, num_clusters=4))
    accepted = 0
    for seed in range(10):
        errors, own, clusters, mask = args = examples(seed)
        errors[~mask] = np.nan
        found = run(*map(jnp.asarray, args))
        # The last of the four has no example.
        expected = by_equation(errors, own, clusters, mask, 4, percentile, threshold)
        np.testing.assert_array_equal(found, expected)
        accepted += expected.mean()
    assert 0.5 < accepted < 9  # of ten


def test_by_hand_a_percentile_on_the_threshold_is_accepted():
    # Differences 0, 1, 2, 3, 10: scaled 0, .1, .2, .3, 1; the 75th percentile is .3.
    # Equal differences and single examples are never accepted.
    errors = jnp.array([0.0, 1.0, 2.0, 3.0, 10.0, 5.0, 5.0, 5.0, 1.0])[:, None]
    clusters = jnp.array([0] * 5 + [1] * 3 + [2])

    @jax.jit
    def accepted(threshold):
        return accepts(
            FedCRef().plain(threshold=threshold),
            *(errors, jnp.zeros(9), clusters, jnp.ones(9, bool)),
            num_clusters=3,
        )[:, 0]

    for threshold, first in ((0.3001, True), (0.2999, False), (1.0, True)):
        np.testing.assert_array_equal(accepted(threshold), [first, False, False])


def test_both_clusters_must_accept():
    """Of two clients with a cluster each: 0 accepts the model of 1."""
    heavy, flat = [0.0, 0.1, 0.1, 0.1, 0.1, 9.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    federation = federate(np.zeros((12, 1)), np.split(np.arange(12), 2))
    known = (jnp.zeros((2, 6), int), jnp.ones((2, 1), bool), federation)
    for others, accepts_too in ((flat, False), (heavy, True)):
        errors = jnp.zeros((2, 6, 2)).at[0, :, 1].set(jnp.array(heavy))
        errors = errors.at[1, :, 0].set(jnp.array(others))
        found = associate(FedCRef().plain(), errors, *known)
        expected = [[False, accepts_too], [accepts_too, False]]
        np.testing.assert_array_equal(found[:, 0, :, 0], expected)


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


def random_graph(rng, shape, density):
    found = rng.random((*shape, *shape)) < density
    return found | found.transpose(2, 3, 0, 1)


def test_first_matches_are_those_of_a_loop_that_stops():
    rng = np.random.default_rng(3)
    for density in (0.1, 0.5, 1.0):
        accepted = random_graph(rng, (5, 3), density)
        found = first_matches(jnp.asarray(accepted))
        np.testing.assert_array_equal(found, by_code(accepted))


def test_communities_are_components_of_two_clusters_or_more():
    rng = np.random.default_rng(4)
    find = jax.jit(communities)
    for density in (0.0, 0.02, 0.1):
        edges = random_graph(rng, (6, 4), density)
        edges[np.arange(6), :, np.arange(6)] = False
        numbers, ranks = (np.ravel(x) for x in find(jnp.asarray(edges)))
        _, expected = connected_components(edges.reshape(24, 24), directed=False)
        sizes = np.bincount(expected)[expected]
        np.testing.assert_array_equal(numbers < 0, sizes == 1)
        members = numbers[sizes > 1]
        pairs = np.unique(np.stack([members, expected[sizes > 1]]), axis=1)
        assert pairs.shape[1] == len(np.unique(members)) == numbers.max() + 1
        for number in np.unique(members):
            own = ranks[numbers == number]
            np.testing.assert_array_equal(own, np.arange(len(own)))
