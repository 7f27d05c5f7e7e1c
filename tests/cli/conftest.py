"""Fixtures of the tests of the command line."""

import sys

import pytest

from fcjax.cli import commands


@pytest.fixture
def fcjax(monkeypatch, capsys):
    """Returns a function that runs a command here: its output and exit status."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fcjax", *words])
        monkeypatch.setattr(sys, "path", [*sys.path])
        try:
            code = commands.main()
        except SystemExit as ended:
            code = ended.code
        printed, said = capsys.readouterr()
        return printed or said, code

    return call
