"""`fcjax NAME FLAGS`: the scripts of experiments/ and the tools for finished runs, from
anywhere.

`fcjax ccfc --p 0.25` is `python experiments/ccfc.py --p 0.25`, `fcjax draw RUN` is
`python -m fcjax.runs.draw RUN`, and `fcjax fit ccfc --on v5e:4x4` that script for
devices that are not here.
"""

import ast
import difflib
import sys
from pathlib import Path
from types import ModuleType

from fcjax.sweep.ending import end

HERE = Path(__file__).parent
INSTALLED = HERE / "scripts"
"""Where a wheel has experiments/; in a checkout it lies beside the package."""
FIT = """usage: fcjax fit NAME --on DEVICES FLAGS

What the grid of a script takes on devices that are not here, v5e:4x4 or h100:8:
`fcjax fit ccfc --on v5e:4x4 --seed 0:16`. FLAGS are those of `fcjax NAME --help`."""


def main() -> None:
    """Runs the command that the first argument names, or lists all."""
    root = INSTALLED if INSTALLED.is_dir() else HERE.parent
    scripts = root / "experiments"
    commands = programs(scripts) | programs(HERE / "runs")
    commands |= programs(scripts / "benchmarks")  # not in a wheel
    name, *flags = sys.argv[1:] or ["--help"]
    if name == "fit":
        if flags[:1] in (["-h"], ["--help"]):
            print(FIT)
            return
        asked = {flag.partition("=")[0] for flag in flags[1:]}
        if not asked & {"--on", "-h", "--help"}:
            end("fit takes a script's name and its flags, one of them --on")
        name, *flags = flags
    if name in ("-h", "--help"):
        print(listing(commands))
        return
    path = commands.get(name.replace("_", "-"))
    if path is None:
        near = difflib.get_close_matches(name, commands, n=1)
        hint = f"did you mean {near[0]}?" if near else "`fcjax --help` lists them"
        end(f"there is no command {name}: {hint}")
    # Scripts import `experiments`, which lies in no site-packages.
    sys.path.insert(0, str(root))
    # With `runpy` the name in its usage would be the path.
    sys.argv = [f"fcjax {name}", *flags]
    script = sys.modules["__main__"] = ModuleType("__main__")
    script.__file__ = str(path)
    exec(compile(path.read_text(), path, "exec"), script.__dict__)


def programs(folder: Path) -> dict[str, Path]:
    """Returns the files of a folder that can be run, by the names of their commands."""
    return {
        path.stem.replace("_", "-"): path
        for path in sorted(folder.glob("*.py"))
        if 'if __name__ == "__main__"' in path.read_text()
    }


def listing(commands: dict[str, Path]) -> str:
    """Returns how to call, and a line on each command: the first of its file."""
    lines = ["usage: fcjax NAME FLAGS", "", "`fcjax NAME --help` shows a name's flags."]
    width = max(map(len, commands))
    for name, path in commands.items():
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        about = " ".join(text.split("\n\n")[0].split())
        lines.append(f"  {name:{width}}  {about}")
    lines.append(
        f"  {'fit':{width}}  What a script's grid takes on devices not here: "
        "`fcjax fit ccfc --on v5e:4x4 FLAGS`."
    )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
