"""The command `fcjax NAME`: methods, tools for finished runs, and other programs.

`fcjax ccfc --p 0.25` is the same as `python experiments/ccfc.py --p 0.25`. The programs
that reproduce tables and measure speed are available in a checkout of the repository.
"""

import ast
import difflib
import inspect
import shutil
import sys
import textwrap
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from fcjax.cli.arguments import about, parse
from fcjax.cli.errors import exit_on_error, exit_with_error
from fcjax.cli.main import main as run_method
from fcjax.cli.partition import ExportPartitions
from fcjax.cli.tools import TOOLS
from fcjax.methods import SCRIPTS

CHECKOUT = Path(__file__).parents[2]
FIT_HELP = """usage: fcjax fit NAME --on DEVICES [FLAGS]

Estimates the time and the memory of a grid on devices that this machine does not
have. Nothing is trained.

NAME      a method, see `fcjax --help`
DEVICES   for example v5e:4x4 or h100:8
FLAGS     the flags of the method, see `fcjax NAME --help`

Example: fcjax fit ccfc --on v5e:4x4 --seed 0:16"""


DEPLOY_HELP = """usage: fcjax deploy NAME --to FOLDER [FLAGS]
       fcjax deploy RUN --to FOLDER [--where NAME=VALUE ...]

Writes a Flower app, with which several machines run a method on their own data
(docs/guides/federation.md). Nothing is trained.

NAME      a method, see `fcjax --help`
RUN       the results folder of a finished run, whose settings the app gets
FLAGS     the flags of the method, see `fcjax NAME --help`

Example: fcjax deploy runs/trial --to federation
         fcjax deploy ccfc --dataset digits --clients 3 --seed 0 --to federation"""


PLANNING = {"partition": ExportPartitions}
"""The commands that need no run and train nothing, by command name."""


def main() -> None:
    """Runs the command that the first argument names, or lists all commands."""
    name, *args = sys.argv[1:] or ["--help"]
    checkout = {}
    if (CHECKOUT / "pyproject.toml").exists():
        checkout |= programs(CHECKOUT / "experiments")
        checkout |= programs(CHECKOUT / "experiments" / "benchmarks")
    if name in ("-h", "--help"):
        print(listing(checkout))
        return
    if name == "fit":
        if args[:1] in (["-h"], ["--help"]):
            print(FIT_HELP)
            return
        flags = {arg.partition("=")[0] for arg in args[1:]}
        if not flags & {"--on", "-h", "--help"}:
            exit_with_error(
                "fit needs a method and --on DEVICES, for example: fcjax fit ccfc --on "
                "h100:8"
            )
        name, *args = args
    if name == "deploy":
        if args[:1] in ([], ["-h"], ["--help"]):
            print(DEPLOY_HELP)
            return
        if not {arg.partition("=")[0] for arg in args} & {"--to", "-h", "--help"}:
            exit_with_error(
                "deploy needs a method or a run, and --to FOLDER, for example: fcjax "
                "deploy runs/trial --to federation"
            )
        if args[0].replace("_", "-") in SCRIPTS:
            name, *args = args
    typed, name = name, name.replace("_", "-")
    sys.argv = [f"fcjax {name}", *args]
    if name in SCRIPTS:
        run_method(SCRIPTS[name], args)
    elif name in TOOLS | PLANNING:
        with exit_on_error():
            parse((TOOLS | PLANNING)[name], args)()
    elif name in checkout:
        sys.path.insert(0, str(CHECKOUT))
        # `runpy` would replace the name of the command in `sys.argv` by a path.
        spec = spec_from_file_location("__main__", checkout[name])
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["__main__"] = module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        near = difflib.get_close_matches(
            name, [*SCRIPTS, *TOOLS, *PLANNING, *checkout], n=1
        )
        hint = (
            f"did you mean {near[0]}?" if near else "`fcjax --help` lists all commands"
        )
        sys.argv = ["fcjax"]
        exit_with_error(f"unknown command '{typed}'; {hint}")


def programs(folder: Path) -> dict[str, Path]:
    """Returns the programs in a folder of the checkout, by command name.

    Args:
        folder: folder of Python files.

    Returns:
        The paths of the files that can be executed and train no method, by command
        name.
    """
    paths = {path.stem.replace("_", "-"): path for path in sorted(folder.glob("*.py"))}
    return {
        name: path
        for name, path in paths.items()
        if name not in SCRIPTS and 'if __name__ == "__main__"' in path.read_text()
    }


def listing(checkout: Mapping[str, Path]) -> str:
    """Returns the help text of `fcjax`: all commands in groups, with a summary each.

    Args:
        checkout: programs of the checkout by command name; empty without a checkout.

    Returns:
        The help text, at most 100 characters wide.
    """
    tools, planning = (
        {name: inspect.getdoc(tool) or "" for name, tool in group.items()}
        for group in (TOOLS, PLANNING)
    )
    files = {
        name: ast.get_docstring(ast.parse(path.read_text())) or ""
        for name, path in checkout.items()
    }
    groups = {
        "Train a method": {name: about(script) for name, script in SCRIPTS.items()},
        "Look at finished runs": tools,
        "Plan": {
            "fit": "Estimates time and memory on devices that are not here.",
            **planning,
        },
        "Several machines": {"deploy": DEPLOY_HELP.split("\n\n")[1]},
        "Reproduce and benchmark (in a checkout of the repository)": files,
    }
    names = max(len(name) for group in groups.values() for name in group)
    width = min(shutil.get_terminal_size().columns, 100)
    lines = [
        "usage: fcjax NAME [FLAGS]",
        "",
        "`fcjax NAME --help` lists the flags of a command. Example:",
        "  fcjax baselines --methods km k-fed --p 0 1 --seed 0:3",
    ]
    for title, group in groups.items():
        lines += ["", f"{title}:"] if group else []
        for name, text in group.items():
            lines += textwrap.wrap(
                " ".join(text.split("\n\n")[0].split()),
                width,
                initial_indent=f"  {name:{names}}  ",
                subsequent_indent=" " * (names + 4),
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines)
