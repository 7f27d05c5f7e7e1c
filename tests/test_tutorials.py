"""The commands of every tutorial, run in order in an empty folder as a reader would."""

import os
import subprocess

import pytest

from tests.test_docs import ROOT, blocks

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.nightly
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_commands_of_a_tutorial_run(page, tmp_path):
    for name in ("experiments", "tests", "conftest.py", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    script = "\n".join(["set -euo pipefail", *blocks(page, "bash")])
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, check=True)
