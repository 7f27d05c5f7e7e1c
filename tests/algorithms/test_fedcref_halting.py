import jax.numpy as jnp
import pytest

from fcjax.algorithms import fedcref
from fcjax.methods import FedCRef


def is_over(*graphs, active=4, refined=1, **rule):
    """After graphs of so many communities and isolated clusters, from 40."""
    settings = FedCRef().plain(**rule)
    trend = fedcref.begin(jnp.int32(40), jnp.int32(4))
    for number, (communities, isolated) in enumerate(graphs, start=1):
        trend = fedcref.follow(
            *(settings, trend, jnp.int32(communities), jnp.int32(isolated)),
            # The fifth never answers, so that it is active for ever.
            (jnp.arange(5) < active).at[4].set(True),
            jnp.full(5, refined * number).at[4].set(0),
            jnp.arange(5) < 4,
        )
    return bool(fedcref.is_over(settings, trend))


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
