import jax.numpy as jnp
import pytest

from fcjax.algorithms import fedcref_halting


def after(*graphs, active=4, refined=1, tolerance=0.1):
    """The trend after graphs of so many communities and isolated clusters, from 40."""
    trend = fedcref_halting.begin(jnp.int32(40), jnp.int32(4))
    for number, (communities, isolated) in enumerate(graphs, start=1):
        trend = fedcref_halting.follow(
            *(trend, jnp.int32(communities), jnp.int32(isolated)),
            # The fifth never answers, so that it is active for ever.
            (jnp.arange(5) < active).at[4].set(True),
            jnp.full(5, refined * number).at[4].set(0),
            jnp.arange(5) < 4,
            tolerance=tolerance,
        )
    return trend


def is_over(trend, most=float("inf"), *, stop_when_settled=True):
    over = fedcref_halting.is_over(
        trend, stop_when_settled=stop_when_settled, max_refinements=most
    )
    return bool(over)


@pytest.mark.parametrize(
    ("graphs", "over"),
    [
        ([(10, 20), (11, 20), (10, 22)], False),  # two changes
        ([(10, 20), (11, 20), (10, 22), (10, 20)], True),  # three within a tenth
        ([(10, 20), (11, 20), (10, 22), (10, 25), (10, 25), (10, 25)], False),
        ([(10, 20), (12, 20), (11, 20), (11, 20), (11, 20)], True),  # 2 of 10, then 3
        ([(0, 40), (0, 40), (0, 40)], True),  # nothing ever: the first counts too
        ([(0, 40), (1, 40), (2, 40), (1, 40)], False),  # 1 of 0 is a whole
    ],
)
def test_three_iterations_of_hardly_any_change_end_it(graphs, over):
    assert is_over(after(*graphs)) == over


def test_a_larger_tolerance_ends_it_sooner():
    graphs = [(10, 20), (12, 23), (10, 20), (12, 23)]
    assert not is_over(after(*graphs))
    assert is_over(after(*graphs, tolerance=0.2))


def test_it_ends_when_nobody_is_active_or_all_have_refined_enough():
    assert is_over(after((3, 30), active=0))
    assert not is_over(after((3, 30), active=1))
    assert not is_over(after((3, 30), active=0), stop_when_settled=False)
    trend = after((3, 30), (9, 5), refined=2)  # four each
    assert is_over(trend, most=4.0)
    assert not is_over(trend, most=5.0)


def test_settled_or_not_the_other_rules_end_it():
    steady = after(*[(3, 30)] * 4, active=0)
    assert is_over(steady, stop_when_settled=False)
    assert is_over(after((3, 30), refined=2), most=2.0, stop_when_settled=False)
