import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import evaluation
from fcjax.algorithms.fedcref_refinement import agreement, refine


def by_algorithm(errors, models, num_local):
    """Algorithm 2, as it is printed."""
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
    for k in left:
        clusters[k] = int(np.argmin(errors[k, selected]))
    return clusters, selected


def test_refined_clusters_are_those_of_the_algorithm():
    rng = np.random.default_rng(0)
    run = jax.jit(jax.vmap(refine_4, in_axes=(0, 0, 0, 0)))
    errors = rng.random((40, 50, 9)).astype("f4")
    models = rng.random((40, 9)) < 0.7
    models[:, 0] = True
    num_local = rng.integers(1, 5, 40)
    mask = rng.random((40, 50)) < 0.8
    clusters, selected = run(*map(jnp.asarray, (errors, models, mask, num_local)))
    for i in range(40):
        own = mask[i]
        expected, chosen = by_algorithm(errors[i][own], models[i], num_local[i])
        np.testing.assert_array_equal(np.asarray(clusters)[i][own], expected)
        chosen = chosen + [-1] * (4 - len(chosen))
        np.testing.assert_array_equal(selected[i], chosen)


def refine_4(errors, models, mask, num_local):
    return refine(errors, models, mask, num_local, num_clusters=4)


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


def test_by_hand_a_leftover_goes_to_the_nearest_selected_model():
    clusters, selected = refine(
        *(BY_HAND, jnp.ones(3, bool), jnp.ones(6, bool), jnp.int32(2)), num_clusters=3
    )
    np.testing.assert_array_equal(clusters, [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(selected, [0, 1, -1])


def test_by_hand_the_codes_leftovers_are_numbered_by_their_own_vote():
    # Among the selected models 0 and 1 the only leftover elects model 1 first, whose
    # number is then 0: it joins the cluster of model 0.
    clusters, selected = refine(
        *(BY_HAND, jnp.ones(3, bool), jnp.ones(6, bool), jnp.int32(2)),
        num_clusters=3,
        renumber_leftovers=True,
    )
    np.testing.assert_array_equal(clusters, [0, 0, 0, 1, 1, 0])
    np.testing.assert_array_equal(selected, [0, 1, -1])


def test_clusters_stay_empty_where_one_model_is_best_of_all():
    errors = jnp.broadcast_to(jnp.array([0.5, 0.1, 0.9])[None], (8, 3))
    clusters, selected = refine(
        *(errors, jnp.ones(3, bool), jnp.ones(8, bool), jnp.int32(3)), num_clusters=3
    )
    np.testing.assert_array_equal(clusters, np.zeros(8))
    np.testing.assert_array_equal(selected, [1, -1, -1])


@pytest.mark.parametrize("renumber", [False, True])
def test_a_model_without_numbers_is_never_selected(renumber):
    errors = BY_HAND.at[:, 0].set(jnp.nan)
    clusters, selected = refine(
        *(errors, jnp.ones(3, bool), jnp.ones(6, bool), jnp.int32(3)),
        num_clusters=3,
        renumber_leftovers=renumber,
    )
    assert set(np.asarray(selected).tolist()) == {1, 2, -1}
    assert (clusters >= 0).all()


def test_agreement_is_the_accuracy_of_the_best_match():
    rng = np.random.default_rng(1)
    for _ in range(10):
        before, after = rng.integers(0, 4, (2, 60))
        after = np.where(rng.random(60) < 0.6, (before + 1) % 4, after)
        mask = rng.random(60) < 0.7
        found = agreement(*map(jnp.asarray, (before, after, mask)), num_clusters=5)
        expected = evaluation.scores(before[mask], after[mask])["acc"]
        assert found == pytest.approx(expected, abs=1e-6)


def test_agreement_of_the_papers_example_is_whole():
    before, after = jnp.array([0, 0, 1, 1, 2]), jnp.array([2, 2, 1, 1, 0])
    assert agreement(before, after, jnp.ones(5, bool), num_clusters=3) == 1
