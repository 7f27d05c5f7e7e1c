"""The installed command."""

import re
import subprocess
import sys
from dataclasses import fields

import pytest

from experiments import ccfc
from fcjax import __main__ as command
from fcjax.sweep import flags


@pytest.fixture
def fcjax(monkeypatch, capsys):
    """In this process: what it prints, and how it ends."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fcjax", *words])
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setitem(sys.modules, "__main__", command)
        try:
            code = command.main()
        except SystemExit as ended:
            code = ended.code
        printed, said = capsys.readouterr()
        return printed or said, code

    return call


def test_every_script_and_tool_is_listed_with_what_it_does(fcjax):
    listing, _ = fcjax()
    names = "ccfc fedmcc sda-fdc fdsc fedcref baselines reproduce collect keep"
    for name in f"{names} predict draw probe export".split():
        assert f"  {name} " in listing
    # Neighbours that scripts import are no commands.
    assert "  encoders " not in listing
    assert "  several " not in listing


@pytest.mark.parametrize("name", ["sda-fdc", "sda_fdc"])
def test_help_says_what_stands_for_a_flag(fcjax, name):
    printed, code = fcjax(name, "--help", "own")
    assert code is None
    shown = " ".join(printed.replace("│", " ").split())
    assert f"usage: fcjax {name}" in shown
    for flag in ("sda-fdc-disjoint", "--generator-learning-rate", "--joint-rounds"):
        assert flag in shown
    assert "(default: as many as it holds)" in shown


@pytest.mark.parametrize(
    "name",
    [
        "ccfc",
        "fedmcc",
        "sda-fdc",
        "fdsc",
        "fedcref",
        "orchestra",
        "baselines",
        "spherical",
    ],
)
def test_help_is_a_screen_that_begins_with_the_methods_own_flags(
    fcjax, name, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "100")
    printed, _ = fcjax(name, "--help")
    lines = printed.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 100
    own = sum(line.startswith("  --") for line in lines)
    first = next(i for i, line in enumerate(lines) if line.startswith("  --"))
    assert first <= 5
    assert all(line.startswith("  --") for line in lines[first : first + own])
    # Behind them a heading for each group, which names all of its flags.
    groups = " ".join(" ".join(lines[first + own :]).split())
    for name, group in flags.GROUPS.items():
        assert f" {name} {group.__doc__.splitlines()[0]}" in groups
    assert {*re.findall(r"--[a-z-]+", groups)} >= {
        "--" + field.name.replace("_", "-")
        for field in fields(flags.Common)
        if field.name != "natural"  # is none
    }


def test_help_of_a_group_says_all_of_its_flags_and_no_others(fcjax):
    printed, _ = fcjax("ccfc", "--help", "output")
    named = re.findall(r"^  (--\S+)", printed, re.MULTILINE)
    assert named == [
        *("--out", "--[no-]resume", "--checkpoint-interval", "--[no-]plot", "--log")
    ]
    everything, _ = fcjax("ccfc", "--help", "all")
    count = len(re.findall(r"^  --", everything, re.MULTILINE))
    assert count == len(fields(ccfc.Args)) - 1  # natural is none
    # What is said of a field stands above it or below it.
    shown = " ".join(everything.split())
    assert "--out PATH Results folder. (default: runs/METHOD-DATASET-HASH)" in shown
    assert "smoke: a minute; default: chosen from the data; paper:" in shown


def test_results_lie_where_it_was_called(tmp_path):
    """In a process of its own, which another folder is the place of."""
    flags = ("--methods", "km", "--preset", "smoke", "--no-plot", "--out", "here")
    subprocess.run(
        [sys.executable, "-m", "fcjax", "baselines", *flags], cwd=tmp_path, check=True
    )
    assert (tmp_path / "here" / "km" / "results.csv").exists()
