"""Shards of a grid become one results folder, or are refused and change nothing."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fcjax.checkpoints import Position
from fcjax.results import Results
from fcjax.runs import shards
from fcjax.runs.finished import Finished

COLLECT = Path(__file__).parents[2] / "experiments" / "collect.py"
CONFIG = {"method": "ccfc", "latent_size": 8, "limit": None, "swept": ["p", "seed"]}
A, B, C = ({"p": 0.5, "seed": 0}, {"p": 0.5, "seed": 1}, {"p": 0.0, "seed": 0})


def write(folder, points, *, nmi=0.25, seconds=1.0, cluster=0, model="", config=CONFIG):
    """What a session leaves of finished runs, two rounds each, in its order."""
    results = Results(folder, config, points, resume=True)
    results.begin()
    for number in (1, 2):
        rows = [{"stage": "train", **p, "loss": nmi, "nmi": nmi} for p in points]
        results.add_history(Position(0, number), rows)
    for point in points if model else ():
        path = results.model_path(point)
        path.parent.mkdir(exist_ok=True)
        path.write_text(model)
    clusters = np.array([[cluster, cluster, cluster, p["seed"]] for p in points])
    results.add_assignments(points, np.array([[0, 1, 1, -1]] * len(points)), clusters)
    row = {"method": "ccfc", "nmi": nmi, "seconds": seconds, "compile_seconds": 2.0}
    results.add_rows([{**point, **row} for point in points])
    return folder


def begin(folder, points=(A,)):
    """What a session leaves whose first run has not ended."""
    results = Results(folder, CONFIG, points, resume=True)
    results.begin()
    rows = [{"stage": "train", **p, "loss": 9.0, "nmi": 0.0} for p in points]
    results.add_history(Position(0, 1), rows)
    return folder


@pytest.fixture
def grid(tmp_path):
    """Run A and C in the first of two shards, B in the second."""
    grid = tmp_path / "grid"
    write(grid / "shard-0-of-2", [A, C], nmi=0.25, cluster=3, model="the first's")
    write(grid / "shard-1-of-2", [B], nmi=0.75, cluster=4, model="the second's")
    return grid


def contents(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def runs(rows):
    return [(float(row["p"]), int(row["seed"])) for row in rows]


# --- what is merged


def test_all_runs_are_there_and_sorted(grid):
    merged = shards.merge(shards.find([grid]), grid)
    assert runs(merged.rows) == [(0.0, 0), (0.5, 0), (0.5, 1)]
    found = Finished(grid)
    assert runs(found.rows) == [(0.0, 0), (0.5, 0), (0.5, 1)]
    assert [float(row["nmi"]) for row in found.rows] == [0.25, 0.25, 0.75]
    assert found.config == CONFIG


def test_history_assignments_and_models_of_every_run_are_there(grid):
    merged = shards.merge(shards.find([grid]), grid)
    found = Finished(grid)
    for point, nmi, cluster, model in (
        (A, 0.25, 3, "the first's"),
        (B, 0.75, 4, "the second's"),
        (C, 0.25, 3, "the first's"),
    ):
        rounds = found.of_runs(found.history, [point])
        assert [int(row["round"]) for row in rounds] == [1, 2]
        assert [float(row["loss"]) for row in rounds] == [nmi, nmi]
        clients, clusters = found.assignments(point)
        assert clients.tolist() == [0, 1, 1, -1]
        assert clusters.tolist() == [cluster, cluster, cluster, point["seed"]]
        assert merged.model_path(point).read_text() == model
    assert len(found.history) == 6
    assert len(list((grid / "models").iterdir())) == 3


def test_merging_twice_changes_nothing(grid):
    shards.merge(shards.find([grid]), grid)
    before = contents(grid)
    again = shards.merge(shards.find([grid]), grid)
    assert contents(grid) == before
    assert runs(again.rows) == [(0.0, 0), (0.5, 0), (0.5, 1)]


def test_a_shard_that_ends_later_is_added(tmp_path):
    grid = tmp_path / "grid"
    write(grid / "shard-0-of-2", [A])
    begin(grid / "shard-1-of-2", [B])
    shards.merge(shards.find([grid]), grid)
    assert runs(Finished(grid).rows) == [(0.5, 0)]
    write(grid / "shard-1-of-2", [B], nmi=0.75)
    shards.merge(shards.find([grid]), grid)
    found = Finished(grid)
    assert runs(found.rows) == [(0.5, 0), (0.5, 1)]
    assert [int(row["round"]) for row in found.history] == [1, 2, 1, 2]
    assert [float(row["loss"]) for row in found.history] == [0.25, 0.25, 0.75, 0.75]


def test_rounds_of_a_run_that_was_stopped_in_the_target_give_way(grid):
    """A session of the whole grid, or a merge, was killed there earlier."""
    begin(grid, [A, B])
    shards.merge(shards.find([grid]), grid)
    found = Finished(grid)
    assert len(found.history) == 6
    assert 9.0 not in [float(row["loss"]) for row in found.history]


def test_results_folders_need_not_be_shards(tmp_path):
    one, other = write(tmp_path / "one", [A]), write(tmp_path / "other", [B, C])
    shards.merge([one, other], tmp_path / "out")
    assert runs(Finished(tmp_path / "out").rows) == [(0.0, 0), (0.5, 0), (0.5, 1)]


# --- the same run twice


def test_a_run_that_is_there_twice_may_have_taken_another_time(tmp_path):
    one = write(tmp_path / "one", [A], seconds=1.0)
    other = write(tmp_path / "other", [A, B], seconds=5.0)
    shards.merge([one, other], tmp_path / "out")
    found = Finished(tmp_path / "out")
    assert runs(found.rows) == [(0.5, 0), (0.5, 1)]
    assert [float(row["seconds"]) for row in found.rows] == [1.0, 5.0]
    assert len(found.history) == 4
    assert found.assignments(A)[1].shape == (4,)


def test_a_run_of_two_different_scores_is_refused(tmp_path):
    one = write(tmp_path / "one", [A, B], nmi=0.25)
    other = write(tmp_path / "other", [C, B], nmi=0.5)
    with pytest.raises(ValueError, match="with different scores") as error:
        shards.merge([one, other], tmp_path / "out")
    message = str(error.value)
    assert "seed 1" in message
    assert "p 0.5" in message
    assert str(one) in message
    assert str(other) in message
    assert "\n" not in message
    assert not (tmp_path / "out").exists()


# --- other configurations


def test_shards_of_other_configurations_are_refused_with_what_differs(tmp_path):
    changed = {**CONFIG, "latent_size": 16, "limit": 120}
    one = write(tmp_path / "one", [A])
    other = write(tmp_path / "other", [B], config=changed)
    with pytest.raises(ValueError, match=r"\(latent_size, limit differ\)") as error:
        shards.merge([one, other], tmp_path / "out")
    assert str(one) in str(error.value)
    assert str(other) in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_target_of_another_configuration_is_refused_and_stays(tmp_path):
    out = write(tmp_path / "out", [A], config={**CONFIG, "latent_size": 16})
    before = contents(out)
    with pytest.raises(ValueError, match=r"\(latent_size differ\)"):
        shards.merge([write(tmp_path / "one", [B])], out)
    assert contents(out) == before


# --- what is not there


def test_what_is_missing_is_named_a_line_each(tmp_path):
    grid = tmp_path / "grid"
    write(grid / "shard-0-of-4", [A])
    begin(grid / "shard-2-of-4", [B])
    folders = shards.find([grid])
    assert shards.missing(folders) == [
        f"{grid}/shard-2-of-4 has no finished run yet",
        f"{grid}/shard-1-of-4 is not there",
        f"{grid}/shard-3-of-4 is not there",
    ]
    shards.merge(folders, grid)
    assert runs(Finished(grid).rows) == [(0.5, 0)]


def test_nothing_is_missing_of_a_whole_grid(grid):
    assert shards.missing(shards.find([grid])) == []


def test_shards_without_any_finished_run_are_refused(tmp_path):
    grid = tmp_path / "grid"
    begin(grid / "shard-0-of-1")
    with pytest.raises(ValueError, match="none of these folders holds a finished run"):
        shards.merge(shards.find([grid]), grid)
    assert [path.name for path in grid.iterdir()] == ["shard-0-of-1"]


def test_find_takes_shards_and_results_once_each(grid):
    one, other = grid / "shard-0-of-2", grid / "shard-1-of-2"
    assert shards.find([grid]) == shards.find([grid, one]) == [one, other]
    shards.merge([one, other], grid)
    assert shards.find([grid]) == [grid, one, other]


def test_a_folder_of_neither_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds neither results nor shards") as error:
        shards.find([tmp_path])
    assert str(tmp_path) in str(error.value)


# --- the script


def collect(*arguments):
    command = [sys.executable, str(COLLECT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_script_says_what_it_does():
    done = collect("--help")
    assert done.returncode == 0
    assert "Merges shards of one grid" in done.stdout


def test_the_script_answers_a_wrong_folder_with_one_line(tmp_path):
    done = collect(tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        f"collect.py: error: {tmp_path} holds neither results nor shards of a grid\n"
    )
    assert list(tmp_path.iterdir()) == []
