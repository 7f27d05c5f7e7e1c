"""Shards of a grid become one results folder, or are refused and change nothing."""

import numpy as np
import pytest

from fcjax.cli import tools
from fcjax.engine import Position
from fcjax.results import shards
from fcjax.results.store import Folder, read
from tests.sweep.drifting import rows, run, vectors, without_times

CONFIG = {"method": "ccfc", "latent_size": 8, "limit": None, "swept": ["p", "seed"]}
A, B, C = ({"p": 0.5, "seed": 0}, {"p": 0.5, "seed": 1}, {"p": 0.0, "seed": 0})


def write(folder, points, *, nmi=0.25, seconds=1.0, cluster=0, model="", config=CONFIG):
    """What a session leaves of finished runs, two rounds each, in its order."""
    results = Folder(folder, config, points, resume=True)
    results.begin()
    for number in (1, 2):
        rows = [{"stage": "train", **p, "loss": nmi, "nmi": nmi} for p in points]
        results.add_history(Position(0, number), rows)
    if model:
        (folder / "models").mkdir()
        for point in points:
            results.model_path(point).write_text(model)
    clients = np.array([0, 1, 1, -1])
    found = [np.array([cluster] * 3 + [p["seed"]]) for p in points]
    found = [{"client": clients, "cluster": each} for each in found]
    results.add_assignments(points, found)
    row = {"method": "ccfc", "nmi": nmi, "seconds": seconds, "compile_seconds": 2.0}
    results.add_rows([{**point, **row} for point in points])
    return folder


def begin(folder, points=(A,)):
    """What a session leaves whose first run has not ended."""
    results = Folder(folder, CONFIG, points, resume=True)
    results.begin()
    unlike = {"stage": "train", "loss": 9.0, "nmi": 0.0}
    results.add_history(Position(0, 1), [{**unlike, **point} for point in points])


@pytest.fixture
def grid(tmp_path):
    """Run A and C in the first of two shards, B in the second."""
    grid = tmp_path / "grid"
    write(grid / "shard-0-of-2", [A, C], nmi=0.25, cluster=3, model="the first's")
    write(grid / "shard-1-of-2", [B], nmi=0.75, cluster=4, model="the second's")
    return grid


def merge(grid):
    results = shards.merge(shards.find([grid]), grid)
    found = read(grid)
    assert runs(results.rows) == runs(found.rows)
    return found


def contents(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def runs(rows):
    return [(float(row["p"]), int(row["seed"])) for row in rows]


def column(rows, name):
    return [float(row[name]) for row in rows]


# --- what is merged


def test_all_of_every_run_is_there_sorted_and_merging_again_changes_nothing(grid):
    assert shards.missing(shards.find([grid])) == []
    found = merge(grid)
    assert runs(found.rows) == [(0.0, 0), (0.5, 0), (0.5, 1)]
    assert column(found.rows, "nmi") == [0.25, 0.25, 0.75]
    assert found.config == CONFIG
    for point, nmi, cluster, model in (
        (A, 0.25, 3, "the first's"),
        (B, 0.75, 4, "the second's"),
        (C, 0.25, 3, "the first's"),
    ):
        rounds = found.of_runs(found.rounds, [point])
        assert column(rounds, "round") == [1, 2]
        assert column(rounds, "loss") == [nmi, nmi]
        held = found.assignments(**point)
        assert held["client"].tolist() == [0, 1, 1, -1]
        assert held["cluster"].tolist() == [cluster, cluster, cluster, point["seed"]]
        assert found.model_path(point).read_text() == model
    assert len(found.rounds) == 6
    assert len(list((grid / "models").iterdir())) == 3
    before = contents(grid)
    merge(grid)
    assert contents(grid) == before


def test_a_shard_that_ends_later_is_added(tmp_path):
    grid = tmp_path / "grid"
    write(grid / "shard-0-of-2", [A])
    begin(grid / "shard-1-of-2", [B])
    begin(grid, [A, B])  # a session of the whole grid, or a merge, killed there earlier
    assert runs(merge(grid).rows) == [(0.5, 0)]
    write(grid / "shard-1-of-2", [B], nmi=0.75)
    found = merge(grid)
    assert runs(found.rows) == [(0.5, 0), (0.5, 1)]
    assert sorted(column(found.rounds, "loss")) == [0.25] * 2 + [0.75] * 2


def test_a_run_that_is_there_twice_may_have_taken_another_time(tmp_path):
    """And results folders need not be shards."""
    one = write(tmp_path / "one", [A], seconds=1.0)
    other = write(tmp_path / "other", [A, B], seconds=5.0)
    shards.merge([one, other], tmp_path / "out")
    found = read(tmp_path / "out")
    assert runs(found.rows) == [(0.5, 0), (0.5, 1)]
    assert column(found.rows, "seconds") == [1.0, 5.0]
    assert len(found.rounds) == 4
    assert found.assignments(**A).shape == (4, 2)


# --- what is refused


@pytest.mark.parametrize(
    ("points", "options", "told"),
    [
        ([C, B], {"nmi": 0.5}, ["different scores for the run", "p 0.5", "seed 1"]),
        (
            [C],
            {"config": {**CONFIG, "latent_size": 16, "limit": 120}},
            ["(latent_size, limit differ)"],
        ),
    ],
)
def test_folders_that_do_not_go_together_are_refused_and_named(
    tmp_path, points, options, told
):
    one = write(tmp_path / "one", [A, B])
    other = write(tmp_path / "other", points, **options)
    with pytest.raises(ValueError, match="different") as error:
        shards.merge([one, other], tmp_path / "out")
    for words in (*told, str(one), str(other)):
        assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_what_is_refused_changes_nothing(tmp_path):
    out = write(tmp_path / "out", [A], config={**CONFIG, "latent_size": 16})
    begin(tmp_path / "shard-0-of-1")
    one, before = write(tmp_path / "one", [B]), contents(tmp_path)
    with pytest.raises(ValueError, match=r"\(latent_size: 16 there, 8 here\)"):
        shards.merge([one], out)
    with pytest.raises(ValueError, match="none of these folders has a finished run"):
        shards.merge(shards.find([tmp_path]), tmp_path)
    assert contents(tmp_path) == before


# --- what is found


def test_what_is_missing_is_named_a_line_each(tmp_path):
    grid = tmp_path / "grid"
    write(grid / "shard-0-of-4", [A])
    begin(grid / "shard-2-of-4", [B])
    assert shards.missing(shards.find([grid])) == [
        f"{grid}/shard-2-of-4 has no finished run yet",
        f"{grid}/shard-1-of-4 is missing",
        f"{grid}/shard-3-of-4 is missing",
    ]


def test_find_takes_shards_and_results_once_each(grid):
    one, other = grid / "shard-0-of-2", grid / "shard-1-of-2"
    assert shards.find([grid]) == shards.find([grid, one]) == [one, other]
    shards.merge([one, other], grid)
    assert shards.find([grid]) == [grid, one, other]


def test_two_commands_and_collect_leave_the_results_of_one(tmp_path):
    """Four runs: two calls of two in one command, one call of two in each of two."""
    data, out = vectors(tmp_path), tmp_path / "two"
    grid = {"p": (0.0, 1.0), "seed": (0, 1), "runs_per_call": 2}
    one = run(tmp_path / "one", data, **grid)
    for index in range(2):
        run(out, data, **grid, shard=f"{index}/2")
    tools.Collect((out,), plot=False)()
    whole, merged = rows(one / "results.csv"), rows(out / "results.csv")
    assert without_times(merged) == without_times(whole)
    assert (out / "table.md").read_bytes() == (one / "table.md").read_bytes()
