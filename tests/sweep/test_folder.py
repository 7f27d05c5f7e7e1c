import csv
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fcjax.engine import Position
from fcjax.results import store
from fcjax.results.store import Folder, parse_where

CONFIG = {"method": "ccfc", "clients": 10, "swept": ["p", "seed"], "limit": None}
OTHER = {**CONFIG, "clients": 5}
A, B, C = ({"p": 0.5, "seed": 0}, {"p": 0.5, "seed": 1}, {"p": 0.0, "seed": 0})


def open_results(folder, points, *, resume=True, config=CONFIG):
    return Folder(folder / "out", config, points, resume=resume)


def add_rounds(results, points, *positions, value=0.0, **more):
    """Adds rounds: of a stage, or numbers of the first stage."""
    for position in positions:
        stage, number = position if isinstance(position, tuple) else (0, position)
        rows = [
            {"stage": "train", **p, "loss": value + p["seed"], **more} for p in points
        ]
        results.add_history(Position(stage, number), rows)


def killed_after(folder, points, *positions, **more):
    """What a session leaves that was killed after these rounds."""
    results = open_results(folder, points)
    results.begin()
    add_rounds(results, results.pending, *positions, **more)
    return results


def save_assignments(results, points, *, cluster):
    found = {"client": np.array([-1, 0, 1, 2]), "cluster": np.full(4, cluster)}
    results.add_assignments(points, [found] * len(points))


def save(results, points, *, nmi=0.25, cluster=0):
    """What a session writes of runs that have ended, in its order."""
    save_assignments(results, points, cluster=cluster)
    results.add_rows([{"method": "ccfc", **p, "nmi": nmi} for p in points])


def finish(results, *, num_rounds=2, **options):
    """What a session writes of the pending runs."""
    results.begin()
    points = results.pending
    add_rounds(results, points, *range(1, num_rounds + 1))
    save(results, points, **options)
    return results


def read(folder, name):
    with (folder / "out" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def rounds(rows, point):
    """(stage, round) of the rows of one run, in order."""
    return [
        (int(row["stage_index"]), int(row["round"]))
        for row in rows
        if float(row["p"]) == point["p"] and int(row["seed"]) == point["seed"]
    ]


def numbers(folder, *points):
    """The rounds of runs in history.csv that have one stage."""
    rows = read(folder, "history.csv")
    return [[number for _, number in rounds(rows, point)] for point in points]


def column(rows, name):
    return [float(row[name]) for row in rows]


def runs(rows):
    return [(float(row["p"]), int(row["seed"])) for row in rows]


def load(folder):
    with np.load(folder / "out" / "assignments.npz") as file:
        return dict(file)


def contents(folder):
    return {p.name: p.read_bytes() for p in (folder / "out").iterdir()}


# --- opening


def test_opening_writes_nothing(tmp_path):
    results = open_results(tmp_path, [A, B])
    assert results.pending == [A, B]
    assert results.rows == results.rounds == results.requested(results.rows) == []
    assert list(tmp_path.iterdir()) == []
    finish(results)
    before = contents(tmp_path)
    names = {"assignments.npz", "config.json", "history.csv", "results.csv"}
    assert set(before) == names  # no temporary ones
    assert json.loads(before["config.json"]) == CONFIG
    for resume in (True, False):
        open_results(tmp_path, [A, B, C], resume=resume)
        assert contents(tmp_path) == before


def test_another_configuration_is_refused_with_what_differs(tmp_path):
    finish(open_results(tmp_path, [A]))
    told = r"^--out \S+/out .*clients: 10 there, 5 here; split: None there, 1 here.*$"
    with pytest.raises(ValueError, match=told):
        open_results(tmp_path, [A], config={**OTHER, "split": 1})
    # Without one nobody knows whose rows they are.
    (tmp_path / "out" / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json"):
        open_results(tmp_path, [A])


def test_a_write_that_fails_leaves_the_table_of_before(tmp_path):
    results = finish(open_results(tmp_path, [A]))
    before = contents(tmp_path)
    broken = {**B, "method": "\ud800"}  # half a character, which no file takes
    add_history = partial(results.add_history, Position(0, 1))
    for add in (results.add_rows, add_history, results.add_rounds):
        with pytest.raises(UnicodeEncodeError):
            add([broken])
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before


# --- finished runs


def test_a_grid_is_extended_by_what_is_missing(tmp_path):
    finish(open_results(tmp_path, [A, B]), nmi=0.75)
    more = open_results(tmp_path, [A, B, C])
    assert more.pending == [C]
    finish(more, nmi=0.5, num_rounds=3)
    assert runs(more.requested(more.rows)) == [(0.0, 0), (0.5, 0), (0.5, 1)]
    rows = read(tmp_path, "results.csv")
    assert runs(rows) == [(0.0, 0), (0.5, 0), (0.5, 1)]
    assert column(rows, "nmi") == [0.5, 0.75, 0.75]
    assert numbers(tmp_path, A, B, C) == [[1, 2], [1, 2], [1, 2, 3]]
    # Only the runs asked for are shown.
    one = open_results(tmp_path, [B])
    assert runs(one.requested(one.rows)) == [(0.5, 1)]


def test_runs_are_sorted_and_found_again_by_number_whatever_it_looks_like(tmp_path):
    values, seeds = (0.1, 1 / 3, 1e-7, 1e22), (10, 9, 100)
    points = [{"p": p, "seed": seed} for p in values for seed in seeds]
    finish(open_results(tmp_path, points))
    expected = [(p, seed) for p in sorted(values) for seed in sorted(seeds)]
    assert runs(read(tmp_path, "results.csv")) == expected
    again = open_results(tmp_path, points)
    assert again.pending == []
    assert [len(rows) for rows in again.history_of(points)] == [2] * len(points)


# --- history


def test_history_is_on_disk_after_every_round(tmp_path):
    results = open_results(tmp_path, [A, B])
    results.begin()
    for number in (1, 2, 3):
        add_rounds(results, [A, B], number, value=number)
        assert numbers(tmp_path, A, B) == [[*range(1, number + 1)]] * 2
    assert column(read(tmp_path, "history.csv"), "loss") == [1, 2, 2, 3, 3, 4]


@pytest.mark.parametrize(
    ("before", "position", "kept"),
    [
        # Killed after (1, 2), the checkpoint at (0, 10): (1, 1) comes again.
        ([*range(1, 11), (1, 1), (1, 2)], (1, 1), 10),
        # Compared as numbers: as text 10 would come before 2.
        (range(1, 12), (0, 10), 9),
    ],
)
def test_history_after_the_resume_position_is_dropped(tmp_path, before, position, kept):
    killed_after(tmp_path, [A, B], *before, value=10.0)
    resumed = open_results(tmp_path, [A, B])
    resumed.begin()
    assert len(rounds(resumed.rounds, A)) == len(before)
    following = (position[0], position[1] + 1)
    add_rounds(resumed, [A, B], position, value=20.0)
    expected = [*[(0, number) for number in range(1, kept + 1)], position]
    assert rounds(read(tmp_path, "history.csv"), A) == expected
    add_rounds(resumed, [A, B], following, value=30.0)
    rows = read(tmp_path, "history.csv")
    assert rounds(rows, A) == rounds(rows, B) == [*expected, following]
    assert column(resumed.history_of([A])[0], "loss") == [10] * kept + [20, 30]


@pytest.mark.parametrize("keep", [0, 4, -1])
def test_a_last_line_that_was_cut_short_is_dropped(tmp_path, keep):
    """Killed while round 3 of B was written: rounds 1 and 2 and A's 3 are whole. What
    another grid writes next must not go on in the broken line."""
    killed_after(tmp_path, [A, B], 1, 2, 3, value=10.25)
    path = tmp_path / "out" / "history.csv"
    *lines, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines) + last[:keep])

    finish(open_results(tmp_path, [C]))
    assert numbers(tmp_path, A, C) == [[1, 2, 3], [1, 2]]
    killed_after(tmp_path, [A, B], 3, value=20.0)
    assert numbers(tmp_path, A, B, C) == [[1, 2, 3], [1, 2, 3], [1, 2]]
    loss = column(read(tmp_path, "history.csv"), "loss")
    assert loss == [10.25, 11.25, 10.25, 11.25, 0, 0, 20, 21]


def test_a_later_stage_may_have_other_metrics(tmp_path):
    """Its column is added; cells of rounds that do not have it are empty."""
    results = killed_after(tmp_path, [A], 1, spread=0.5)
    add_rounds(results, [A], 2, spread=0.25)
    add_rounds(results, [A], (1, 1), up_network=8)
    add_rounds(results, [A], (1, 2), up_network=9)
    rows = read(tmp_path, "history.csv")
    assert rounds(rows, A) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [row["spread"] for row in rows] == ["0.5", "0.25", "", ""]
    assert [row["up_network"] for row in rows] == ["", "", "8", "9"]
    # So may the first new round of a resumed grid.
    resumed = open_results(tmp_path, [A])
    add_rounds(resumed, [A], (1, 2), further=1)
    add_rounds(resumed, [A], (1, 3), further=2)
    rows = read(tmp_path, "history.csv")
    assert [row["further"] for row in rows] == ["", "", "", "1", "2"]


# --- assignments


def test_killed_between_assignments_and_results(tmp_path):
    """The runs are pending still; once they finish, each is there once, beside those
    of before. A checkpoint after the last round needs no history: no round comes again.
    """
    finish(open_results(tmp_path, [A]), num_rounds=1, cluster=3)
    killed = killed_after(tmp_path, [A, B, C], 1)
    save_assignments(killed, killed.pending, cluster=4)

    again = open_results(tmp_path, [A, B, C])
    again.begin()
    assert again.pending == killed.pending
    assert rounds(again.history_of([B])[0], B) == [(0, 1)]
    save(again, again.pending, cluster=5)
    assert numbers(tmp_path, A, B, C) == [[1]] * 3
    assert open_results(tmp_path, [A, B, C]).pending == []
    assert {name: x.tolist() for name, x in load(tmp_path).items()} == {
        "example": [0, 1, 2, 3],
        "p": [0.5, 0.5, 0.0],
        "seed": [0, 1, 0],
        "client": [[-1, 0, 1, 2]] * 3,
        "cluster": [[3] * 4, [5] * 4, [5] * 4],
    }


# --- writing over


def test_no_resume_leaves_nothing_of_the_old_configuration_even_when_killed(tmp_path):
    """Else a resumed session takes the other configuration's runs for its own, or goes
    on from its state."""
    results = finish(open_results(tmp_path, [A, B]), cluster=3)
    (results.begin_runs([A]) / "00-000001").mkdir(parents=True)
    derived = [tmp_path / "out" / name for name in ("figures", "consensus")]
    for folder in derived:
        folder.mkdir()
    over = open_results(tmp_path, [B], resume=False, config=OTHER)
    assert over.pending == [B]
    over.begin()
    assert not any(path.exists() for path in derived)
    assert json.loads(contents(tmp_path)["config.json"]) == OTHER
    resumed = open_results(tmp_path, [A, B], config=OTHER)
    assert resumed.pending == [A, B]
    assert resumed.rounds == []
    assert not resumed.begin_runs([A]).exists()
    finish(over, nmi=0.5, cluster=4, num_rounds=1)
    assert column(read(tmp_path, "results.csv"), "nmi") == [0.5]
    assert numbers(tmp_path, A, B) == [[], [1]]
    assert load(tmp_path)["cluster"].tolist() == [[4] * 4]


# --- calls


def test_checkpoints_belong_to_the_runs_of_a_call(tmp_path):
    results = open_results(tmp_path, [A, B])
    both = results.begin_runs([A, B])
    assert both.parent == tmp_path / "out" / "checkpoints"
    assert both == open_results(tmp_path, [A, B, C]).begin_runs([A, B])
    # The state of a call is stacked in the order of its runs.
    assert len({both, results.begin_runs([A]), results.begin_runs([B, A])}) == 3
    # A call drops what other calls saved.
    (both / "00-000003").mkdir(parents=True)
    assert results.begin_runs([A, B]) == both
    assert both.exists()
    results.begin_runs([B])
    assert not both.exists()


def test_a_model_is_named_by_all_that_is_swept(tmp_path):
    """Two runs of one p and seed do not share a file."""
    points = [{"p": 0.25, "weight": w, "seed": 3} for w in (0.1, 0.01)]
    config = {**CONFIG, "swept": [*points[0]]}
    results = open_results(tmp_path, points, config=config)
    one, other = map(results.model_path, points)
    assert one != other
    assert one.name.startswith("p=0.25,seed=3,")
    assert one == results.model_path({"p": 0.25, "weight": 1e-1, "seed": 3.0})


# --- two commands in one folder


def test_a_second_command_is_refused_until_the_first_ends_or_is_killed(tmp_path):
    script = """if True:
        import json, pathlib, sys, time
        from fcjax.results.store import Folder
        folder = Folder(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), [])
        with folder.locked():
            print("in", flush=True)
            time.sleep(600)
    """
    ours = open_results(tmp_path, [A])
    command = [sys.executable, "-c", script, ours.directory, json.dumps(CONFIG)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as first:
        assert first.stdout.readline() == "in\n"
        told = pytest.raises(ValueError, match="in use by another command")
        with told as error, ours.locked():
            pass
        assert "\n" not in str(error.value)
        first.kill()
    with ours.locked(), ours.locked():  # a command may come twice into its own folder
        finish(ours)


def test_a_command_that_was_overtaken_is_to_start_again(tmp_path):
    ours = open_results(tmp_path, [A, B])
    finish(open_results(tmp_path, [A]))
    with pytest.raises(ValueError, match="start this command again"), ours.locked():
        pass


# --- reading


@pytest.mark.parametrize("name", ["results.csv", "history.csv", "assignments.npz"])
def test_what_is_damaged_is_named_before_anything_is_run(tmp_path, name):
    finish(open_results(tmp_path, [A]))
    (tmp_path / "out" / name).write_bytes(b"\xff\xfe damaged")
    with pytest.raises(ValueError, match=rf"out/{name} (is damaged|cannot be read)"):
        open_results(tmp_path, [A, B])


def test_a_folder_without_runs_or_of_before_is_refused_in_a_line(tmp_path):
    for config, rows, told in (
        (None, "", "config.json is missing"),
        ({"method": "ccfc"}, "p,seed\n0.5,0\n", "of an earlier fcjax"),
        (CONFIG, "", "holds no finished run yet"),
    ):
        if config:
            (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "results.csv").write_text(rows)
        with pytest.raises(ValueError, match=told) as error:
            store.read(tmp_path)
        assert "\n" not in str(error.value)


def test_cells_come_back_and_the_runs_of_a_setting_are_found(tmp_path):
    """NaN is no empty cell, a number no text, and an integer with gaps no float."""
    odd = {"status": "ok", "iteration": 3, "loss": float("nan")}
    points = [{**A, **dict.fromkeys(odd)}, {**B, **odd}]
    results = open_results(tmp_path, [A, B])
    results.begin()
    for point, cluster in zip(points, (3, 4), strict=True):
        save_assignments(results, [point], cluster=cluster)
        results.add_rows([point])
    run = store.read(tmp_path / "out")
    assert repr(run.rows) == repr(points)
    assert run.assignments(seed=1)["cluster"].tolist() == [4] * 4
    assert run.assignments(p="0.5", seed=0)["client"].tolist() == [-1, 0, 1, 2]
    for where, told in (
        ({"seed": 2}, "has seed=2: seed is 0, 1"),
        ({"q": 1}, "takes p=VALUE seed=VALUE, got 'q=1'"),
        ({"p": "half"}, "got 'p=half'"),
    ):
        with pytest.raises(ValueError, match=told):
            run.point(**where)
    with pytest.raises(ValueError, match="--where takes each name once"):
        parse_where(["p=0", "p=0.5"])
    with pytest.raises(ValueError, match="no model that all its clients share"):
        run.model(seed=0)
