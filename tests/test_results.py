import csv
import json

import numpy as np
import pytest

from fcjax.checkpoints import Position
from fcjax.results import Results

CONFIG = {"method": "ccfc", "clients": 10, "swept": ["p", "seed"], "limit": None}
A, B, C = ({"p": 0.5, "seed": 0}, {"p": 0.5, "seed": 1}, {"p": 0.0, "seed": 0})


def open_results(folder, points, *, resume=True, config=CONFIG):
    return Results(folder / "out", config, points, resume=resume)


def history_rows(points, value=0.0, **more):
    return [{"stage": "train", **p, "loss": value + p["seed"], **more} for p in points]


def result_rows(points, nmi=0.25):
    return [{"method": "ccfc", **p, "nmi": nmi} for p in points]


def finish(results, *, num_rounds=2, nmi=0.25, cluster=0):
    """What a session writes of the pending runs, in its order."""
    results.begin()
    points = results.pending
    for number in range(1, num_rounds + 1):
        results.add_history(Position(0, number), history_rows(points))
    save_assignments(results, cluster=cluster)
    results.add_rows(result_rows(points, nmi))
    return results


def save_assignments(results, *, cluster=0):
    shape = (len(results.pending), 4)
    clients = np.arange(8).reshape(2, 4)[[0] * shape[0]] - 1
    results.add_assignments(results.pending, clients, np.full(shape, cluster))


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


def runs(rows):
    return [(float(row["p"]), int(row["seed"])) for row in rows]


def load(folder):
    with np.load(folder / "out" / "assignments.npz") as file:
        return dict(file)


def files(folder):
    return sorted(path.name for path in (folder / "out").iterdir())


# --- opening


def test_opening_writes_nothing(tmp_path):
    results = open_results(tmp_path, [A, B])
    assert results.pending == [A, B]
    assert results.rows == results.history == results.asked(results.rows) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("resume", [True, False])
def test_opening_finished_results_changes_nothing(tmp_path, resume):
    finish(open_results(tmp_path, [A, B]))
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    open_results(tmp_path, [A, B, C], resume=resume)
    after = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    assert after == before


def test_a_session_leaves_its_files_and_no_temporary_ones(tmp_path):
    finish(open_results(tmp_path, [A, B]))
    names = ["assignments.npz", "config.json", "history.csv", "results.csv"]
    assert files(tmp_path) == names


def test_config_is_readable(tmp_path):
    open_results(tmp_path, [A]).begin()
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == CONFIG


def test_another_configuration_is_refused_with_what_differs(tmp_path):
    finish(open_results(tmp_path, [A]))
    other = {**CONFIG, "clients": 5, "method": "fedavg"}
    with pytest.raises(ValueError, match="--out") as error:
        open_results(tmp_path, [A], config=other)
    message = str(error.value)
    assert str(tmp_path / "out") in message
    assert "(clients, method differ)" in message
    assert "--no-resume" in message
    assert "\n" not in message


def test_a_configuration_with_a_further_name_is_refused_by_that_name(tmp_path):
    finish(open_results(tmp_path, [A]))
    with pytest.raises(ValueError, match="split"):
        open_results(tmp_path, [A], config={**CONFIG, "split": None})


def test_results_without_a_configuration_are_refused(tmp_path):
    """Nobody knows whose rows they are."""
    finish(open_results(tmp_path, [A]))
    (tmp_path / "out" / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json"):
        open_results(tmp_path, [A])


# --- finished runs


def test_finished_runs_are_reused(tmp_path):
    finish(open_results(tmp_path, [A, B]), nmi=0.75)
    again = open_results(tmp_path, [B, A])
    assert again.pending == []
    assert runs(again.asked(again.rows)) == [(0.5, 0), (0.5, 1)]
    assert [float(row["nmi"]) for row in again.asked(again.rows)] == [0.75, 0.75]


def test_a_grid_is_extended_by_what_is_missing(tmp_path):
    finish(open_results(tmp_path, [A, B]), nmi=0.75)
    more = open_results(tmp_path, [A, B, C])
    assert more.pending == [C]
    finish(more, nmi=0.5, num_rounds=3)
    assert runs(more.asked(more.rows)) == [(0.0, 0), (0.5, 0), (0.5, 1)]
    rows = read(tmp_path, "results.csv")
    assert runs(rows) == [(0.0, 0), (0.5, 0), (0.5, 1)]
    assert [float(row["nmi"]) for row in rows] == [0.5, 0.75, 0.75]
    history = read(tmp_path, "history.csv")
    assert rounds(history, A) == rounds(history, B) == [(0, 1), (0, 2)]
    assert rounds(history, C) == [(0, 1), (0, 2), (0, 3)]


def test_only_the_runs_asked_for_are_shown(tmp_path):
    finish(open_results(tmp_path, [A, B, C]))
    one = open_results(tmp_path, [B])
    assert runs(one.asked(one.rows)) == [(0.5, 1)]


def test_rows_are_sorted_by_number_not_by_text(tmp_path):
    points = [{"p": 0.5, "seed": seed} for seed in (10, 9, 100)]
    finish(open_results(tmp_path, points))
    expected = [(0.5, 9), (0.5, 10), (0.5, 100)]
    assert runs(read(tmp_path, "results.csv")) == expected


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-3, 1e-7, 1e22])
def test_a_run_is_found_again_whatever_its_number_looks_like(tmp_path, value):
    point = {"p": value, "seed": 0}
    finish(open_results(tmp_path, [point]))
    again = open_results(tmp_path, [point])
    assert again.pending == []
    assert [len(rows) for rows in again.history_of([point])] == [2]


# --- history


def test_history_is_on_disk_after_every_round(tmp_path):
    results = open_results(tmp_path, [A, B])
    results.begin()
    for number in (1, 2, 3):
        results.add_history(Position(0, number), history_rows([A, B], number))
        rows = read(tmp_path, "history.csv")
        assert rounds(rows, A) == rounds(rows, B) == [(0, n + 1) for n in range(number)]
    assert [float(row["loss"]) for row in rows] == [1, 2, 2, 3, 3, 4]
    assert rounds(results.history_of([B])[0], B) == [(0, 1), (0, 2), (0, 3)]
    assert [row["loss"] for row in results.history_of([B])[0]] == [2, 3, 4]


def test_history_after_the_resume_position_is_dropped(tmp_path):
    """Killed after (1, 2), the checkpoint at (0, 2): (1, 1) comes again."""
    killed = open_results(tmp_path, [A, B])
    killed.begin()
    for position in [(0, 1), (0, 2), (1, 1), (1, 2)]:
        killed.add_history(Position(*position), history_rows([A, B], 10.0))
    resumed = open_results(tmp_path, [A, B])
    resumed.begin()
    assert rounds(resumed.history, A) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    resumed.add_history(Position(1, 1), history_rows([A, B], 20.0))
    assert rounds(read(tmp_path, "history.csv"), A) == [(0, 1), (0, 2), (1, 1)]
    resumed.add_history(Position(1, 2), history_rows([A, B], 30.0))
    rows = read(tmp_path, "history.csv")
    expected = [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert rounds(rows, A) == rounds(rows, B) == expected
    assert [float(row["loss"]) for row in resumed.history_of([A])[0]] == [
        10,
        10,
        20,
        30,
    ]


def test_positions_are_compared_as_numbers(tmp_path):
    killed = open_results(tmp_path, [A])
    killed.begin()
    for number in range(1, 12):
        killed.add_history(Position(0, number), history_rows([A]))
    resumed = open_results(tmp_path, [A])
    resumed.add_history(Position(0, 10), history_rows([A]))
    assert rounds(read(tmp_path, "history.csv"), A) == [(0, n) for n in range(1, 11)]


def test_a_run_that_starts_anew_loses_its_history_and_no_other(tmp_path):
    finish(open_results(tmp_path, [A]))
    killed = open_results(tmp_path, [A, B])
    killed.add_history(Position(0, 1), history_rows([B]))
    killed.add_history(Position(0, 2), history_rows([B]))
    resumed = open_results(tmp_path, [A, B])
    resumed.add_history(Position(0, 1), history_rows([B]))
    rows = read(tmp_path, "history.csv")
    assert rounds(rows, A) == [(0, 1), (0, 2)]
    assert rounds(rows, B) == [(0, 1)]


@pytest.mark.parametrize("keep", [0, 1, 4, 14, -1])
def test_a_last_line_that_was_cut_short_is_dropped(tmp_path, keep):
    """Killed while round 3 of B was written: rounds 1 and 2 and A's 3 are whole."""
    killed = open_results(tmp_path, [A, B])
    killed.begin()
    for number in (1, 2, 3):
        killed.add_history(Position(0, number), history_rows([A, B], 10.25))
    path = tmp_path / "out" / "history.csv"
    *lines, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines) + last[:keep])

    resumed = open_results(tmp_path, [A, B])
    resumed.begin()
    resumed.add_history(Position(0, 3), history_rows([A, B], 20.0))
    rows = read(tmp_path, "history.csv")
    assert rounds(rows, A) == rounds(rows, B) == [(0, 1), (0, 2), (0, 3)]
    values = [float(row["loss"]) for row in rows]
    assert values == [10.25, 11.25, 10.25, 11.25, 20, 21]


def test_a_cut_short_line_of_a_grid_that_is_not_asked_for_again(tmp_path):
    """The next append must not continue the broken line."""
    killed = open_results(tmp_path, [A, B])
    killed.begin()
    killed.add_history(Position(0, 1), history_rows([A, B]))
    path = tmp_path / "out" / "history.csv"
    path.write_text(path.read_text()[:-6])
    finish(open_results(tmp_path, [C]))
    rows = read(tmp_path, "history.csv")
    assert rounds(rows, C) == [(0, 1), (0, 2)]
    assert rounds(rows, A) == [(0, 1)]
    assert all(None not in row and None not in row.values() for row in rows)


def test_a_later_stage_may_have_other_metrics(tmp_path):
    """Its column is added; cells of rounds that do not have it are empty."""
    results = open_results(tmp_path, [A])
    results.begin()
    results.add_history(Position(0, 1), history_rows([A], spread=0.5))
    results.add_history(Position(0, 2), history_rows([A], spread=0.25))
    bare = [
        {name: row[name] for name in ("stage", "p", "seed", "loss")}
        for row in history_rows([A])
    ]
    results.add_history(Position(1, 1), [{**row, "up_network": 8} for row in bare])
    results.add_history(Position(1, 2), [{**row, "up_network": 9} for row in bare])
    rows = read(tmp_path, "history.csv")
    assert rounds(rows, A) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [row["spread"] for row in rows] == ["0.5", "0.25", "", ""]
    assert [row["up_network"] for row in rows] == ["", "", "8", "9"]


def test_a_resumed_grid_may_meet_a_further_metric(tmp_path):
    """Rows of the file lack the column that the first new round brings."""
    killed = open_results(tmp_path, [A])
    killed.begin()
    killed.add_history(Position(0, 1), history_rows([A]))
    resumed = open_results(tmp_path, [A])
    resumed.add_history(Position(1, 1), history_rows([A], spread=0.5))
    resumed.add_history(Position(1, 2), history_rows([A], spread=0.25))
    rows = read(tmp_path, "history.csv")
    assert [row["spread"] for row in rows] == ["", "0.5", "0.25"]


# --- assignments


def test_assignments_hold_every_run_and_example(tmp_path):
    finish(open_results(tmp_path, [A, B]), cluster=3)
    arrays = load(tmp_path)
    assert sorted(arrays) == ["client", "cluster", "example", "p", "seed"]
    np.testing.assert_array_equal(arrays["example"], [0, 1, 2, 3])
    np.testing.assert_array_equal(arrays["p"], [0.5, 0.5])
    np.testing.assert_array_equal(arrays["seed"], [0, 1])
    np.testing.assert_array_equal(arrays["client"], [[-1, 0, 1, 2]] * 2)
    np.testing.assert_array_equal(arrays["cluster"], np.full((2, 4), 3))


def test_assignments_of_an_extended_grid_are_merged(tmp_path):
    finish(open_results(tmp_path, [A, B]), cluster=3)
    finish(open_results(tmp_path, [A, B, C]), cluster=5)
    arrays = load(tmp_path)
    found = dict(
        zip(
            zip(arrays["p"].tolist(), arrays["seed"].tolist(), strict=True),
            arrays["cluster"].tolist(),
            strict=True,
        )
    )
    assert found == {(0.5, 0): [3] * 4, (0.5, 1): [3] * 4, (0.0, 0): [5] * 4}
    assert arrays["client"].shape == (3, 4)
    np.testing.assert_array_equal(arrays["example"], [0, 1, 2, 3])


@pytest.mark.parametrize("already", [[], [A]])
def test_killed_between_assignments_and_results(tmp_path, already):
    """The runs are pending still; once they finish, each is there once."""
    if already:
        finish(open_results(tmp_path, already), cluster=3)
    killed = open_results(tmp_path, [A, B, C])
    killed.begin()
    killed.add_history(Position(0, 1), history_rows(killed.pending))
    save_assignments(killed, cluster=4)

    again = open_results(tmp_path, [A, B, C])
    assert again.pending == killed.pending
    save_assignments(again, cluster=5)
    again.add_rows(result_rows(again.pending))
    arrays = load(tmp_path)
    pairs = list(zip(arrays["p"].tolist(), arrays["seed"].tolist(), strict=True))
    assert sorted(pairs) == [(0.0, 0), (0.5, 0), (0.5, 1)]
    expected = [3 if {"p": p, "seed": s} in already else 5 for p, s in pairs]
    assert arrays["cluster"][:, 0].tolist() == expected


def test_a_checkpoint_after_the_last_round_needs_no_history(tmp_path):
    """Killed between the last round and the results: no round comes again."""
    killed = open_results(tmp_path, [A])
    killed.begin()
    killed.add_history(Position(0, 1), history_rows([A]))
    again = open_results(tmp_path, [A])
    again.begin()
    assert rounds(again.history_of([A])[0], A) == [(0, 1)]
    save_assignments(again)
    again.add_rows(result_rows([A]))
    assert rounds(read(tmp_path, "history.csv"), A) == [(0, 1)]
    assert open_results(tmp_path, [A]).pending == []


# --- writing over


def test_no_resume_writes_over_all_of_it(tmp_path):
    finish(open_results(tmp_path, [A, B]), nmi=0.25, cluster=3)
    other = {**CONFIG, "clients": 5}
    over = open_results(tmp_path, [A], resume=False, config=other)
    assert over.pending == [A]
    finish(over, nmi=0.5, cluster=4, num_rounds=1)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == other
    rows = read(tmp_path, "results.csv")
    assert [float(row["nmi"]) for row in rows] == [0.5]
    history = read(tmp_path, "history.csv")
    assert rounds(history, A) == [(0, 1)]
    assert rounds(history, B) == []
    assert load(tmp_path)["cluster"].tolist() == [[4] * 4]


def test_no_resume_that_is_killed_leaves_no_rows_of_the_old_configuration(tmp_path):
    """Else a resumed session takes the other configuration's runs for its own."""
    finish(open_results(tmp_path, [A, B]), cluster=3)
    other = {**CONFIG, "clients": 5}
    open_results(tmp_path, [A, B], resume=False, config=other).begin()
    resumed = open_results(tmp_path, [A, B], config=other)
    assert resumed.pending == [A, B]
    assert resumed.history == []
    finish(open_results(tmp_path, [A], config=other), cluster=4)
    assert load(tmp_path)["cluster"].tolist() == [[4] * 4]


def test_no_resume_removes_the_checkpoints_of_all_other_grids(tmp_path):
    """A grid of other runs must not go on from the old configuration's state."""
    killed = open_results(tmp_path, [A])
    killed.begin()
    (killed.begin_call([A]) / "00-000001").mkdir(parents=True)
    other = {**CONFIG, "clients": 5}
    finish(open_results(tmp_path, [B], resume=False, config=other))
    resumed = open_results(tmp_path, [A, B], config=other)
    assert resumed.pending == [A]
    assert not resumed.begin_call([A]).exists()


# --- calls


def test_checkpoints_belong_to_the_runs_of_a_call(tmp_path):
    results = open_results(tmp_path, [A, B])
    both = results.begin_call([A, B])
    assert both.parent == tmp_path / "out" / "checkpoints"
    assert both == open_results(tmp_path, [A, B, C]).begin_call([A, B])
    assert both != results.begin_call([A])
    # The state of a call is stacked in the order of its runs.
    assert both != results.begin_call([B, A])


def test_a_call_drops_what_other_calls_saved(tmp_path):
    results = open_results(tmp_path, [A, B])
    first = results.begin_call([A])
    (first / "00-000003").mkdir(parents=True)
    assert results.begin_call([A]) == first
    assert first.exists()
    results.begin_call([B])
    assert not first.exists()


def test_calls_follow_each_other(tmp_path):
    """A is finished when B is killed: A stays, B begins where its checkpoint was."""
    results = open_results(tmp_path, [A, B])
    results.begin()
    for number in (1, 2):
        results.add_history(Position(0, number), history_rows([A]))
    results.add_assignments([A], np.zeros((1, 4), int), np.full((1, 4), 3))
    results.add_rows(result_rows([A]))
    for number in (1, 2, 3):
        results.add_history(Position(0, number), history_rows([B]))

    again = open_results(tmp_path, [A, B])
    assert again.pending == [B]
    assert not again.is_pending(A)
    again.begin()
    again.add_history(Position(0, 2), history_rows([B], value=10.0))
    rows = read(tmp_path, "history.csv")
    assert rounds(rows, A) == rounds(rows, B) == [(0, 1), (0, 2)]
    assert [float(row["loss"]) for row in again.history_of([B, A])[0]] == [1, 11]
    again.add_assignments([B], np.zeros((1, 4), int), np.full((1, 4), 5))
    again.add_rows(result_rows([B]))
    assert load(tmp_path)["cluster"][:, 0].tolist() == [3, 5]
    assert again.pending == []


def test_history_has_no_gap_after_another_grid_of_the_same_runs(tmp_path):
    """A and B stop at round 3, then A alone at round 1, then both go on from 3."""
    both = open_results(tmp_path, [A, B])
    both.begin()
    (both.begin_call([A, B]) / "00-000003").mkdir(parents=True)
    for number in (1, 2, 3):
        both.add_history(Position(0, number), history_rows([A, B]))
    alone = open_results(tmp_path, [A])
    alone.begin()
    alone.begin_call([A])
    alone.add_history(Position(0, 1), history_rows([A]))
    again = open_results(tmp_path, [A, B])
    again.begin()
    first = 4 if again.begin_call([A, B]).exists() else 1
    for number in range(first, 5):
        again.add_history(Position(0, number), history_rows([A, B]))
    rows = read(tmp_path, "history.csv")
    assert rounds(rows, A) == [(0, n) for n in (1, 2, 3, 4)]


def test_a_model_is_named_by_all_that_is_swept(tmp_path):
    """Two runs of one p and seed do not share a file."""
    points = [{"p": 0.25, "weight": w, "seed": 3} for w in (0.1, 0.01)]
    results = open_results(tmp_path, points)
    one, other = map(results.model_path, points)
    assert one != other
    assert one.name.startswith("p=0.25,seed=3,")
    assert one == results.model_path({"p": 0.25, "weight": 1e-1, "seed": 3.0})
