"""The installed command."""

import re
import subprocess
import sys
from dataclasses import fields

import pytest

from fcjax.cli.errors import flag_of
from fcjax.data.source import Source
from fcjax.data.split import Split
from fcjax.methods import SCRIPTS
from fcjax.privacy import Privacy
from fcjax.sweep.options import Options
from fcjax.sweep.processes import Processes


def test_every_script_and_tool_is_listed_with_what_it_does(fcjax):
    listing, _ = fcjax()
    names = "ccfc fedmcc sda-fdc fdsc fedcref baselines reproduce collect keep"
    for name in f"{names} predict draw probe privacy export partition".split():
        assert f"  {name} " in listing
    # Neighbours that scripts import are no commands.
    assert "  encoders " not in listing
    assert "  several " not in listing


@pytest.mark.parametrize("name", ["sda-fdc", "sda_fdc"])
def test_help_says_what_a_flag_is_and_its_default(fcjax, name):
    printed, code = fcjax(name, "--help")
    assert code in (None, 0)
    shown = " ".join(printed.replace("│", " ").split())
    assert "usage: fcjax sda-fdc" in shown
    for flag in ("sda-fdc-disjoint", "--generator-learning-rate", "--joint-rounds"):
        assert flag in shown
    assert "(default: the number of the client's examples)" in shown
    assert "--out PATH Results folder. (default: runs/METHOD-DATASET-HASH)" in shown
    assert '"default" chooses them from the data, "paper" uses those of' in shown


@pytest.mark.parametrize("name", [*SCRIPTS])
def test_help_has_every_flag_once_and_the_methods_own_ones_first(fcjax, name):
    printed, _ = fcjax(name, "--help")
    flags = re.findall(r"^[│ ] (--[a-z][a-z-]*)", printed, re.MULTILINE)
    methods = SCRIPTS[name].methods
    own = {flag_of(x.name) for method in methods for x in fields(method)}
    own |= {"--methods"} if len(methods) > 1 else set()
    others = [
        x.name
        for part in (Source, Split, Privacy, Options, Processes)
        for x in fields(part)
    ]
    others = {flag_of(x) for x in others if x != "natural"}  # is none
    assert flags[0] == "--config"
    assert {*flags[1 : 1 + len(own)]} == own
    assert {*flags[1 + len(own) :]} == others
    assert len(flags) == 1 + len(own) + len(others)


def test_unknown_commands_and_flags_name_the_nearest(fcjax):
    told, code = fcjax("ccfd")
    assert (code, "did you mean ccfc?" in told) == (2, True)
    told, code = fcjax("ccfc", "--client", "3")
    assert (code, told.count("\n")) == (2, 1)
    assert "--clients" in told


def test_results_lie_where_it_was_called(tmp_path):
    """In a process of its own, which another folder is the place of."""
    flags = ("--methods", "km", "--preset", "smoke", "--no-plot", "--out", "here")
    subprocess.run(
        [sys.executable, "-m", "fcjax", "baselines", *flags], cwd=tmp_path, check=True
    )
    assert (tmp_path / "here" / "km" / "results.csv").exists()
