import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import metrics
from fcjax.algorithms.fedcref import agreement, refine


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


@pytest.mark.parametrize("renumber", [False, True])
def test_refined_clusters_are_those_of_the_algorithm(renumber):
    rng = np.random.default_rng(0)
    options = {"num_clusters": 4, "renumber_leftovers": renumber}
    run = jax.jit(jax.vmap(lambda *args: refine(*args, **options)))
    errors = rng.random((40, 50, 9)).astype("f4")
    models = rng.random((40, 9)) < 0.7
    models[:, 0] = True
    num_local = rng.integers(1, 5, 40)
    mask = rng.random((40, 50)) < 0.8
    clusters, selected = run(*map(jnp.asarray, (errors, models, mask, num_local)))
    for i in range(40):
        own = mask[i]
        expected, chosen = by_algorithm(
            errors[i][own], models[i], num_local[i], renumber=renumber
        )
        np.testing.assert_array_equal(np.asarray(clusters)[i][own], expected)
        chosen = chosen + [-1] * (4 - len(chosen))
        np.testing.assert_array_equal(selected[i], chosen)


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
    found = refine(
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
        found = agreement(*map(jnp.asarray, (before, after, mask)), num_clusters=5)
        expected = metrics.scores(before[mask], after[mask])["acc"]
        assert found == pytest.approx(expected, abs=1e-6)
