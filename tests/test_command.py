"""The installed command."""

import subprocess
import sys

import pytest

from fcjax import __main__ as command


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
        return capsys.readouterr().out, code

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
    printed, code = fcjax(name, "--help")
    assert code == 0
    shown = " ".join(printed.replace("│", " ").split())
    assert f"usage: fcjax {name}" in shown
    for flag in ("sda-fdc-disjoint", "--generator-learning-rate", "--joint-rounds"):
        assert flag in shown
    assert "(default: as many as it holds)" in shown


def test_fit_is_a_script_for_devices_that_are_not_here(fcjax):
    words = "fcjax fit takes a script's name and its flags, one of them --on"
    assert fcjax("fit", "ccfc")[1] == fcjax("fit")[1] == words
    line = (
        "--on must be one of v5e, v5p, v6e and a shape, as v5e:2x2, or one of a100, "
        "h100, h200 and a number, as h100:8, got "
    )
    for topology in ("v9:2x2", "h100:two", "h100"):
        code = fcjax("fit", "ccfc", f"--on={topology}", "--preset=smoke")[1]
        assert code == f"fcjax ccfc: error: {line}{topology}"


def test_an_unknown_name_gets_the_nearest(fcjax):
    assert fcjax("cfcc")[1] == "fcjax has no command cfcc: did you mean ccfc?"


def test_results_lie_where_it_was_called(tmp_path):
    """In a process of its own, which another folder is the place of."""
    flags = ("--methods", "km", "--preset", "smoke", "--no-plot", "--out", "here")
    subprocess.run(
        [sys.executable, "-m", "fcjax", "baselines", *flags], cwd=tmp_path, check=True
    )
    assert (tmp_path / "here" / "km" / "results.csv").exists()
