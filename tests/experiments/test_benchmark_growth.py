import csv
import subprocess
import sys
from pathlib import Path

import benchmark_growth as growth
import pytest
from benchmark_growth import STUDIES, Args, Point

SCRIPT = Path(__file__).parents[2] / "experiments" / "benchmark_growth.py"


def test_rows_by_hand():
    """Ten clients take two seconds; thirty then ought to take six, and take nine."""
    points = {
        10: Point([1.0, 2.0, 4.0], 7.0, 2**30),
        30: Point([9.0, 8.0, 12.0], 8.0, 2**31),
    }
    first, second = growth.rows_of(STUDIES["clients-each"], points)
    assert (first["s a round"], first["ideal"], first["of ideal"]) == (2, 2, 1)
    assert (second["s a round"], second["ideal"], second["of ideal"]) == (9, 6, 1.5)
    assert (second["min"], second["max"], second["peak GiB"]) == (8, 12, 2)


def test_of_shared_examples_the_ideal_is_flat():
    points = {value: Point([value / 10], 1.0, 1) for value in (10, 100)}
    rows = growth.rows_of(STUDIES["clients"], points)
    assert [row["ideal"] for row in rows] == [1, 1]
    axes = growth.figure(STUDIES["clients"], rows).axes[0]
    ideal = next(line for line in axes.lines if line.get_label() == "ideal")
    assert list(ideal.get_xdata()) == [10, 100]
    assert list(ideal.get_ydata()) == [1, 1]
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_operations_of_an_embedding_by_hand():
    """Dense layers 256 to D, D to D, D to 16, 16 to D, each forward and twice back."""
    weights = (256 * 64 + 64 * 64 + 2 * 16 * 64) - (256 * 32 + 32 * 32 + 2 * 16 * 32)
    assert growth.operations(64) - growth.operations(32) == 2 * 3 * weights


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "which study"),
        (["runs", "--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["runs", "--values", "0"], "--values must be at least 1, got 0"),
    ],
)
def test_bad_input_is_one_line(flags, message):
    with pytest.raises(ValueError, match=message) as error:
        growth.main(growth.tyro.cli(Args, args=flags))
    assert "\n" not in str(error.value)


def test_a_failing_command_says_what_it_printed():
    with pytest.raises(
        RuntimeError, match=r"ccfc\.py --clients 0: .*at least 1, got 0"
    ):
        growth.commands.run("ccfc", ["--clients", "0"])


def test_script(tmp_path):
    command = [sys.executable, SCRIPT, "rows-each", "--values", "2", "--rounds", "2"]
    result = subprocess.run(
        [*command, "--out", tmp_path], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-2].startswith("| 2 | ")
    assert (tmp_path / "rows-each.png").stat().st_size > 10_000
    with (tmp_path / "rows-each.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert 0 < float(row["min"]) <= float(row["s a round"]) <= float(row["max"])
    assert float(row["compile s"]) > 0
    assert 0.1 < float(row["peak GiB"]) < 20
