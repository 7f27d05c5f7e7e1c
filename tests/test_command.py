"""The installed command, in processes of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def fcjax(*args, cwd, **options):
    command = [sys.executable, "-m", "fcjax", *args]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, **options)


def test_every_script_and_tool_is_listed_with_what_it_does(tmp_path):
    listing = fcjax(cwd=tmp_path, check=True).stdout
    for name in ("ccfc", "fedmcc", "sda-fdc", "fdsc", "fedcref", "baselines"):
        assert f"  {name} " in listing
    for name in ("reproduce", "collect", "predict", "draw", "probe", "export"):
        assert f"  {name} " in listing
    # Neighbours that scripts import are no commands.
    assert "encoders" not in listing
    assert "several" not in listing


@pytest.mark.parametrize("name", ["sda-fdc", "sda_fdc"])
def test_a_script_runs_from_anywhere(tmp_path, name):
    done = fcjax(name, "--help", cwd=tmp_path, check=True)
    assert f"usage: fcjax {name}" in done.stdout
    assert "--joint-rounds" in done.stdout


def test_results_lie_where_it_was_called(tmp_path):
    flags = ("--methods", "km", "--preset", "smoke", "--no-plot", "--out", "here")
    fcjax("baselines", *flags, cwd=tmp_path, check=True)
    assert (tmp_path / "here" / "km" / "results.csv").exists()


def test_an_unknown_name_gets_the_nearest(tmp_path):
    done = fcjax("cfcc", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "fcjax has no command cfcc: did you mean ccfc?\n"
