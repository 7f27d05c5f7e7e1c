"""The phases of FedCRef by hand, and those of its algorithm boxes as loops, which
`test_fedcref` holds whole iterations to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import metrics
from fcjax.algorithms import fedcref as module
from fcjax.algorithms.fedcref_models import accepts, associate
from fcjax.methods import FedCRef
from tests.algorithms.federations import federate

# --- Association


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


# --- Refinement


def by_algorithm(errors, models, num_local, *, renumber=False):
    """Algorithm 2, as it is printed, or with the code's vote of what is left over."""
    left, free = set(range(len(errors))), list(np.flatnonzero(models))
    clusters, selected = np.full(len(errors), -1), []
    for p in range(num_local):
        if not left or not free:
            break
        best = {k: free[int(np.argmin(errors[k, free]))] for k in left}
        winner = max(free, key=lambda m: (sum(b == m for b in best.values()), -m))
        taken = {k for k in left if best[k] == winner}
        if not taken:
            break
        clusters[list(taken)] = p
        selected.append(winner)
        free.remove(winner)
        left -= taken
    left = sorted(left)
    if renumber and left:
        again = np.isin(np.arange(len(models)), selected)
        clusters[left] = by_algorithm(errors[left], again, num_local)[0]
        return clusters, selected
    for k in left:
        clusters[k] = int(np.argmin(errors[k, selected]))
    return clusters, selected


# Six examples, three models, K_i = 2. Model 0 is the best of three, model 1 of two,
# model 2 of one, which is left over and nearer to model 1.
BY_HAND = jnp.array(
    [
        [0.1, 0.9, 0.8],
        [0.1, 0.9, 0.8],
        [0.1, 0.8, 0.9],
        [0.9, 0.1, 0.8],
        [0.9, 0.1, 0.8],
        [0.8, 0.4, 0.1],
    ]
)


# It is numbered anew: among the selected models 0 and 1 it elects model 1 first, whose
# number is then 0, so that it joins the cluster of model 0.
RENUMBERED = [0, 0, 0, 1, 1, 0]
LOST = BY_HAND.at[:, 0].set(jnp.nan)  # the others are the best of three each
BEST_OF_ALL = jnp.broadcast_to(jnp.array([[0.5, 0.1, 0.9]]), (6, 3))


@pytest.mark.parametrize(
    ("errors", "num_local", "renumber", "clusters", "selected"),
    [
        (BY_HAND, 2, False, [0, 0, 0, 1, 1, 1], [0, 1, -1]),
        (BY_HAND, 2, True, RENUMBERED, [0, 1, -1]),
        (BEST_OF_ALL, 3, False, [0] * 6, [1, -1, -1]),
        (LOST, 3, False, [1, 1, 0, 0, 0, 1], [1, 2, -1]),
        (LOST, 3, True, [1, 1, 0, 0, 0, 1], [1, 2, -1]),
    ],
    ids=["nearest", "renumbered", "one-is-best", "lost", "lost-renumbered"],
)
def test_by_hand_leftovers_go_to_selected_models(
    errors, num_local, renumber, clusters, selected
):
    found = module.refine(
        *(errors, jnp.ones(3, bool), jnp.ones(6, bool), jnp.int32(num_local)),
        num_clusters=3,
        renumber_leftovers=renumber,
    )
    np.testing.assert_array_equal(found[0], clusters)
    np.testing.assert_array_equal(found[1], selected)


def test_agreement_is_the_accuracy_of_the_best_match():
    rng = np.random.default_rng(1)
    for _ in range(10):
        before, after = rng.integers(0, 4, (2, 60))
        after = np.where(rng.random(60) < 0.6, (before + 1) % 4, after)
        mask = rng.random(60) < 0.7
        found = module.agreement(
            *map(jnp.asarray, (before, after, mask)), num_clusters=5
        )
        expected = metrics.scores(before[mask], after[mask])["acc"]
        assert found == pytest.approx(expected, abs=1e-6)


# --- Halting


def is_over(*graphs, active=4, refined=1, **rule):
    """After graphs of so many communities and isolated clusters, from 40."""
    settings = FedCRef().plain(**rule)
    trend = module.begin(jnp.int32(40), jnp.int32(4))
    for number, (communities, isolated) in enumerate(graphs, start=1):
        trend = module.follow(
            *(settings, trend, jnp.int32(communities), jnp.int32(isolated)),
            # The fifth never answers, so that it is active for ever.
            (jnp.arange(5) < active).at[4].set(True),
            jnp.full(5, refined * number).at[4].set(0),
            jnp.arange(5) < 4,
        )
    return bool(module.is_over(settings, trend))


UP_AND_DOWN = [(10, 20), (12, 23), (10, 20), (12, 23)]


@pytest.mark.parametrize("stop_when_settled", [True, False])
@pytest.mark.parametrize(
    ("graphs", "options", "over"),
    [
        ([(10, 20), (11, 20), (10, 22)], {}, False),  # two changes
        ([(10, 20), (11, 20), (10, 22), (10, 20)], {}, True),  # three within a tenth
        ([(10, 20), (11, 20), (10, 22), (10, 25), (10, 25), (10, 25)], {}, False),
        ([(10, 20), (12, 20), (11, 20), (11, 20), (11, 20)], {}, True),  # 2 of 10, 3
        ([(0, 40), (0, 40), (0, 40)], {}, True),  # nothing ever: the first counts too
        ([(0, 40), (1, 40), (2, 40), (1, 40)], {}, False),  # 1 of 0 is a whole
        (UP_AND_DOWN, {}, False),
        (UP_AND_DOWN, {"tolerance": 0.2}, True),
        # Four refinements each.
        ([(3, 30), (9, 5)], {"refined": 2, "max_refinements": 4.0}, True),
        ([(3, 30), (9, 5)], {"refined": 2, "max_refinements": 5.0}, False),
        ([(3, 30)], {"active": 1}, False),
    ],
)
def test_hardly_any_change_thrice_or_enough_refinements_end_it(
    graphs, options, over, stop_when_settled
):
    assert is_over(*graphs, **options, stop_when_settled=stop_when_settled) == over


def test_it_ends_when_nobody_is_active_unless_told_otherwise():
    assert is_over((3, 30), active=0)
    assert not is_over((3, 30), active=0, stop_when_settled=False)
