"""tests/nightly.txt names tests that exist."""

from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_each_line_names_a_test():
    for line in (ROOT / "tests/nightly.txt").read_text().splitlines():
        if not line.startswith("#"):
            file, name = line.split("[")[0].split("::")
            name = name.split(".")[-1]
            text = (ROOT / file).read_text()
            assert f"def {name}(" in text or f"class {name}(" in text, line
