"""What the tests of the command line share."""

import sys

import pytest

from fcjax.cli import commands


@pytest.fixture
def fcjax(monkeypatch, capsys):
    """In this process: what it prints, and how it ends."""

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
