"""`fcjax NAME`: the methods, the tools for finished runs, and, in a checkout, the
programs that reproduce tables and measure speed.

`fcjax ccfc --p 0.25` is `python experiments/ccfc.py --p 0.25`.
"""

import ast
import difflib
import inspect
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from fcjax.cli.arguments import about, parse
from fcjax.cli.errors import end, exit_on_error
from fcjax.cli.main import main as run_method
from fcjax.cli.tools import TOOLS
from fcjax.methods import SCRIPTS

CHECKOUT = Path(__file__).parents[2]
FIT = """usage: fcjax fit NAME --on DEVICES FLAGS

Estimates time and memory of a grid on absent devices, such as v5e:4x4 or h100:8:
`fcjax fit ccfc --on v5e:4x4 --seed 0:16`. FLAGS are those of `fcjax NAME --help`."""


def main() -> None:
    """Runs the command that the first argument names, or lists all."""
    name, *words = sys.argv[1:] or ["--help"]
    checkout = {}
    if (CHECKOUT / "pyproject.toml").exists():
        checkout |= programs(CHECKOUT / "experiments")
        checkout |= programs(CHECKOUT / "experiments" / "benchmarks")
    if name in ("-h", "--help"):
        print(listing(checkout))
        return
    if name == "fit":
        if words[:1] in (["-h"], ["--help"]):
            print(FIT)
            return
        flags = {word.partition("=")[0] for word in words[1:]}
        if not flags & {"--on", "-h", "--help"}:
            end("fit takes a method's name and its flags, one of them --on")
        name, *words = words
    name = name.replace("_", "-")
    sys.argv = [f"fcjax {name}", *words]
    if name in SCRIPTS:
        run_method(SCRIPTS[name], words)
    elif name in TOOLS:
        with exit_on_error():
            parse(TOOLS[name], words)()
    elif name in checkout:
        sys.path.insert(0, str(CHECKOUT))
        # Not by runpy, which would put the path in place of the command's name.
        spec = spec_from_file_location("__main__", checkout[name])
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["__main__"] = module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        near = difflib.get_close_matches(name, [*SCRIPTS, *TOOLS, *checkout], n=1)
        hint = f"did you mean {near[0]}?" if near else "`fcjax --help` lists them"
        end(f"there is no command {name}: {hint}")


def programs(folder: Path) -> dict[str, Path]:
    """Returns the files of a checkout's folder that can be run, by command."""
    found = {path.stem.replace("_", "-"): path for path in sorted(folder.glob("*.py"))}
    return {
        name: path
        for name, path in found.items()
        if name not in SCRIPTS and 'if __name__ == "__main__"' in path.read_text()
    }


def listing(checkout: Mapping[str, Path]) -> str:
    """Returns all commands in groups, one line each."""
    tools = {name: inspect.getdoc(tool) or "" for name, tool in TOOLS.items()}
    files = {
        name: ast.get_docstring(ast.parse(path.read_text())) or ""
        for name, path in checkout.items()
    }
    groups = {
        "run a method": {name: about(script) for name, script in SCRIPTS.items()},
        "look at finished runs": tools,
        "plan": {"fit": "What a grid takes on devices that are not here."},
        "reproduce and benchmark, in a checkout": files,
    }
    width = max(len(name) for group in groups.values() for name in group)
    lines = ["usage: fcjax NAME FLAGS", "", "`fcjax NAME --help` shows a name's flags."]
    for title, group in groups.items():
        lines += ["", f"{title}:"] if group else []
        for name, text in group.items():
            first = " ".join(text.split("\n\n")[0].split())
            lines.append(f"  {name:{width}}  {first}")
    return "\n".join(lines)
