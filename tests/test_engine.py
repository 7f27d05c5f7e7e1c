"""Where the keys of a run come from, and what is compiled for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import engine
from fcjax.algorithms.rounds import all_rounds
from fcjax.types import FederatedClustering, Federation, Grid, Stage, State
from tests.methods import METHODS
from tests.test_contract import grid

FEDERATION = Federation(
    pool=jnp.zeros((1, 1)),
    indices=jnp.zeros((1, 1, 1), int),
    mask=jnp.ones((1, 1, 1), bool),
    present=jnp.ones((1, 1, 1), bool),
    local_clusters=jnp.ones((1, 1), int),
)


def draws(*stages):
    """What a method that draws a number at every step has drawn: first of all, and in
    the two rounds of each stage."""

    def drawing(name):
        def round(key, state, federation):
            return state, {"drawn": jax.random.uniform(key)}

        return all_rounds(name, round, 2)

    method = FederatedClustering(
        init=lambda key, federation: State(jax.random.uniform(key)),
        stages=tuple(map(drawing, stages)),
        embed=lambda state, federation: jnp.zeros((1, 1, 1)),
        assign=lambda state, federation: jnp.zeros((1, 1), int),
    )
    keys = jax.vmap(jax.random.key)(jnp.array([7]))
    found: dict[str, list[float]] = {name: [] for name in stages}
    first = engine.run(
        lambda hyper: method,
        Grid(jnp.zeros(1), keys, FEDERATION),
        on_round=lambda round: found[round.stage.name].append(
            float(round.metrics["drawn"][0])
        ),
    )
    return float(first.server[0]), found


def test_methods_that_share_a_stage_share_its_draws_and_the_first_state():
    """An ablation that leaves out a stage, or has one more, is paired."""
    first, long = draws("before", "pretrain", "cluster")
    other_first, short = draws("pretrain", "cluster")
    assert first == other_first
    assert long["pretrain"] == short["pretrain"]
    assert long["cluster"] == short["cluster"]
    drawn = [first, *np.concatenate(list(long.values()))]
    assert len(set(drawn)) == 7  # no two draws have one key


@pytest.mark.parametrize(
    ("after", "line"),
    [
        (
            jnp.zeros((3, 2)),
            r"changed state.server\['x'\] from shape \(2,\) to \(3, 2\)",
        ),
        (None, r"need the same arrays, but only one has state.server\['x'\]"),
    ],
)
def test_a_round_that_changes_the_shapes_of_the_state_is_named(after, line):
    """Otherwise the error would come from `assign`, which did not cause it."""
    method = FederatedClustering(
        init=lambda key, federation: State({"x": jnp.zeros(2)}),
        stages=(
            all_rounds(
                "cluster",
                lambda key, state, federation: (State({"x": after}), {"loss": 0.0}),
                2,
            ),
        ),
        embed=lambda state, federation: jnp.zeros((1, 1, 1)),
        assign=lambda state, federation: jnp.zeros((1, 1), int),
    )
    keys = jax.vmap(jax.random.key)(jnp.array([7]))
    with pytest.raises(ValueError, match=f"^stage cluster: .*{line}"):
        engine.run(lambda hyper: method, Grid(jnp.zeros(1), keys, FEDERATION))


def test_what_a_grid_runs_is_lowered_from_its_shapes():
    """A round on the memory of the state that it is given."""
    runs = grid()
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), runs.federations
    )
    program = engine.Program(METHODS["ccfc"], devices=jax.local_devices()[:1])
    found = {
        part.name: part.trace().lower().compile().memory_analysis()
        for part in program.parts(runs._replace(federations=shapes))
    }
    rounds = ["pretrain begin", "pretrain", "cluster begin", "cluster"]
    assert list(found) == ["init", *rounds, "assign", "embed"]
    for name, memory in found.items():
        assert memory.argument_size_in_bytes > 0
        assert (memory.alias_size_in_bytes > 0) == (name in ("pretrain", "cluster"))


@pytest.mark.parametrize(
    ("hyper", "told"),
    [
        ({"a": jnp.zeros(2), "b": jnp.zeros(3)}, r"hyper\['b'\] of 3"),
        ({"a": 1.0}, r"hyper\['a'\] of none"),
        ({"a": jnp.zeros(1)}, "keys of 2, federations of 2"),
    ],
)
def test_parts_of_a_grid_of_different_numbers_of_runs_are_refused(hyper, told):
    keys = jax.vmap(jax.random.key)(jnp.arange(2))
    twice = jax.tree.map(lambda x: jnp.concatenate([x] * 2), FEDERATION[1:])
    two = Federation(FEDERATION.pool, *twice)
    with pytest.raises(
        ValueError, match=rf"must have the same number of runs, got .*{told}"
    ):
        engine.run(lambda hyper: None, Grid(hyper, keys, two))


def test_a_stage_ends_by_what_it_says_itself():
    """Also one that has the rounds of another."""

    def round(key, state, federation):
        return State(state.server + 1), {}

    def until(name, number):
        def go_on(key, state, federation):
            return state

        return Stage(name, go_on, round, 9, lambda state: state.server >= number)

    method = FederatedClustering(
        init=lambda key, federation: State(jnp.float32(0)),
        stages=(until("first", 2), until("second", 5)),
        embed=lambda state, federation: jnp.zeros((1, 1, 1)),
        assign=lambda state, federation: jnp.zeros((1, 1), int),
    )
    keys = jax.vmap(jax.random.key)(jnp.array([7]))
    found = engine.run(lambda hyper: method, Grid(jnp.zeros(1), keys, FEDERATION))
    assert float(found.server[0]) == 5


def test_stages_of_one_round_function_share_its_program():
    """But not their keys, nor how many rounds they have."""
    traced = []

    def round(key, state, federation):
        traced.append(None)
        return state, {"drawn": jax.random.uniform(key)}

    method = FederatedClustering(
        init=lambda key, federation: State(jnp.float32(0)),
        stages=(all_rounds("first", round, 1), all_rounds("second", round, 2)),
        embed=lambda state, federation: jnp.zeros((1, 1, 1)),
        assign=lambda state, federation: jnp.zeros((1, 1), int),
    )
    keys, found = jax.vmap(jax.random.key)(jnp.array([7])), []
    program = engine.Program(lambda hyper: method)
    program.run(
        Grid(jnp.zeros(1), keys, FEDERATION),
        on_round=lambda round: found.append(
            (round.stage.name, float(round.metrics["drawn"][0]))
        ),
    )
    assert len(traced) == 1
    names, drawn = zip(*found, strict=True)
    assert names == ("first", "second", "second")
    assert len(set(drawn)) == 3
    parts = program.parts(Grid(jnp.zeros(1), keys, FEDERATION))
    assert {part.name: part.times for part in parts}["first, second"] == 3
