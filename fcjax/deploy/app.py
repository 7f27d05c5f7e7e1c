"""The Flower app of a run: a folder with the plan and two small programs.

pyproject.toml     what `flwr run` reads: the programs and the options of a run
plan.toml          the plan of the federation, see `fcjax.deploy.parties.Plan`
client_app.py      the program of a site
server_app.py      the program of the server
README.md          the commands

The federation gives the results folder of the server the configuration of the simulated
run, so that both can be compared.
"""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fcjax import __version__
from fcjax.data.source import Source, short_name
from fcjax.data.sources import Loaded, load_source
from fcjax.deploy.parties import Plan, Program
from fcjax.methods import SCRIPTS
from fcjax.methods.base import single_values
from fcjax.results.run import Run
from fcjax.results.store import write_whole
from fcjax.sweep.experiment import Experiment, prepare
from fcjax.sweep.plan import Task

CLIENT = '''"""The program of a site."""

from pathlib import Path

from fcjax.deploy.flower import client_app

app = client_app(Path(__file__).with_name("plan.toml"))
'''
SERVER = '''"""The program of the server."""

from pathlib import Path

from fcjax.deploy.flower import server_app

app = server_app(Path(__file__).with_name("plan.toml"))
'''
PROJECT = """# A Flower app that fcjax {version} wrote.

[project]
name = "{name}"
version = "1.0.0"
description = "{title}"
license = "Apache-2.0"
dependencies = ["fcjax[flower]=={version}"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fcjax"

[tool.flwr.app.components]
serverapp = "app.server_app:app"
clientapp = "app.client_app:app"

# The options of a run: flwr run . --run-config "out='results'"
[tool.flwr.app.config]
# The results folder on the machine of the server.
out = "{out}"
# The smallest number of sites that a step needs. It waits for all sites, but goes on
# with this number after the timeout.
at-least = {clients}
# Seconds to wait for the sites in a step.
timeout = 3600
# Seconds to wait for the sites at the beginning.
wait = 600
"""
README = """# {title}

A Flower app for {clients} sites. The guide is docs/guides/federation.md of fcjax.

On the server, with SUPERLINK from Flower's config.toml:

    flwr run . SUPERLINK --stream

Every site starts its SuperNode with its number and its data:

    flower-supernode --superlink HOST:PORT --root-certificates ca.crt \\
      --auth-supernode-private-key site0 \\
      --node-config 'site=0 data="/data/scans.npz" out="/data/federation"'
"""


FOR_SITES = ("image_shape", "resize", "scale_columns", "label_column")
FOR_SITES += ("drop_columns", "one_hot", "missing", "keep_index")
FOR_SITES += ("array", "label_array")
"""The settings of the data that the sites share."""


class App(NamedTuple):
    """The content of plan.toml."""

    plan: Plan
    config: dict[str, Any]
    """The configuration of the results folder."""
    point: dict[str, float | int]
    """The values of the run by name of the axis."""
    source: dict[str, Any]
    """How the sites read their data: settings of `fcjax.data.Source`."""


def app_of(experiment: Experiment) -> App:
    """Returns the app of an experiment with one run.

    Args:
        experiment: the experiment. It need not have been run.

    Returns:
        The app.

    Raises:
        ValueError: the experiment has several runs, or its method cannot be deployed.
    """
    task, batches = experiment.task, experiment.batches
    count = sum(len(batch.points) for batch in batches)
    if count != 1:
        raise ValueError(
            f"a federation is one run, but there are {count}; give one value of each "
            "setting, and one seed"
        )
    batch, folder = batches[0], experiment.folder
    point, method = batch.points[0], type(task.method)
    if batch.num_clients < 2:
        raise ValueError("a federation needs at least 2 clients")
    if batch.method.sees_all or batch.method.scope != "global":
        reason = "its server needs the examples of all clients"
        if not batch.method.sees_all:
            reason = "its clients have no common model"
        raise ValueError(f"{batch.method.name} cannot be deployed, because {reason}")
    if task.privacy.epsilon:
        raise ValueError(
            "`epsilon` cannot be deployed, because all sites know the seed of the noise"
        )
    examples = experiment.dataset.examples
    plan = Plan(
        method=f"{method.__module__}:{method.__qualname__}",
        clients=batch.num_clients,
        clusters=batch.num_clusters,
        shape=examples.shape[1:],
        settings={
            name: float(point[name]) if name in batch.traced else value
            for name, value in single_values(
                {**batch.method.settings, **{k: point[k] for k in batch.traced}}
            ).items()
        },
        traced=tuple(batch.traced),
        data=short_name(task.source.dataset),
        seed=int(point["seed"]),
        precision=task.options.precision or "highest",
        evaluate_every=task.options.evaluate_every or batch.method.evaluate_every,
        last_evaluated=1 if task.options.evaluate_every else 10,
        images=examples.dtype == np.uint8,
    )
    try:
        for kind in plan.kinds():
            Program(plan, batch.padded_size).cut(kind)
    except ValueError as error:
        raise ValueError(
            f"{batch.method.name} cannot be deployed, because {error}"
        ) from None
    source = {name: getattr(task.source, name) for name in FOR_SITES}
    return App(plan, folder.config, dict(point), source)


def app_of_run(run: Run) -> App:
    """Returns the app of a finished run.

    Args:
        run: the run, of a command or of `fcjax.run`.

    Returns:
        The app.

    Raises:
        ValueError: the run cannot be deployed, or its method is not one of fcjax.
    """
    command, folder = run.folder.command, run.folder
    names = {
        method.name: method for script in SCRIPTS.values() for method in script.methods
    }
    if not command or command["method"] not in names:
        raise ValueError(
            f"the method of {folder.directory} is not one of fcjax; use "
            "fcjax.deploy.app.app_of"
        )
    flags = {**command["flags"], "dataset": folder.config["dataset"]}
    flags |= {name: (value,) for name, value in run.params.items()}
    flags.pop("natural", None)  # `Split.resolve` sets it, and counts the clients
    task = Task.of(names[command["method"]], **flags)
    source = dataclasses.replace(task.source, data_dir=folder.source().data_dir)
    task = dataclasses.replace(task, source=source)

    def load(source: Source) -> Loaded:
        if folder.dataset is None:
            return load_source(source)
        return folder.dataset, folder.dataset.examples[:0]

    return app_of(prepare(task, load, in_memory=True))


def next_steps(app: App, folder: Path) -> list[str]:
    """Returns what to do with an app, as lines.

    Args:
        app: the app.
        folder: its folder.

    Returns:
        The lines.
    """
    plan = app.plan
    program = Program(plan, 2 * plan.clusters)
    lines = [
        f"Flower app of {plan.method_class.name} for {plan.clients} sites: {folder}"
    ]
    for index, stage in enumerate(program.stages):
        parts = program.cut(("round", index))
        up, down = (
            sum(parts.bytes_of(numbers) for numbers in each)
            for each in zip(*((x.up, x.down) for x in parts.phases), strict=True)
        )
        lines.append(
            f"a round of {stage.name}: a site downloads {down:,} bytes and uploads "
            f"{up:,} bytes (up to {stage.num_rounds} rounds)"
        )
    return [*lines, f"open next: {folder / 'README.md'}"]


def write(app: App, folder: Path) -> None:
    """Writes the Flower app.

    Args:
        app: the content of plan.toml.
        folder: the folder of the app. It may exist.
    """
    plan, version = app.plan, __version__
    method = plan.method_class.name
    values = {
        "version": version,
        "name": f"{method}-federation",
        "title": f"{method} at {plan.clients} sites",
        "clients": plan.clients,
        "out": f"runs/{method}-federation",
    }
    inner = folder / "app"
    inner.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "pyproject.toml", PROJECT.format(**values))
    write_whole(folder / "README.md", README.format(**values))
    write_whole(inner / "__init__.py", f'"""{values["title"]}."""\n')
    write_whole(inner / "client_app.py", CLIENT)
    write_whole(inner / "server_app.py", SERVER)
    write_whole(inner / "plan.toml", to_toml(app))


def to_toml(app: App) -> str:
    """Returns the text of plan.toml.

    Args:
        app: the content.

    Returns:
        The text.
    """
    plan = dataclasses.asdict(app.plan)
    settings = plan.pop("settings")
    sections = {
        "plan": ("What all parties agree on. The app brings it to the sites.", plan),
        "settings": (f"The settings of {app.plan.method_class.name}.", settings),
        "source": ("How a site reads its data.", app.source),
        "config": ("The configuration of the results folder.", app.config),
        "point": ("The values that name the run in its results folder.", app.point),
    }
    lines = [f"# The plan of a federation, written by fcjax {__version__}."]
    for name, (comment, values) in sections.items():
        lines += ["", f"# {comment}", f"[{name}]"]
        # Each of these values is the same in JSON and in TOML. TOML has no null.
        lines += [
            f"{key} = {json.dumps(value)}"
            for key, value in values.items()
            if value is not None
        ]
    return "\n".join(lines) + "\n"


def read(path: Path) -> App:
    """Reads plan.toml.

    Args:
        path: the file.

    Returns:
        The content.

    Raises:
        ValueError: the file is not a plan of this version.
    """
    try:
        content = tomllib.loads(path.read_text())
        plan = {
            **content["plan"],
            "shape": tuple(content["plan"]["shape"]),
            "traced": tuple(content["plan"]["traced"]),
        }
        names = {
            x.name for x in dataclasses.fields(Plan(**plan, settings={}).method_class)
        }
        settings = dict.fromkeys(names) | {
            name: tuple(x) if isinstance(x, list) else x
            for name, x in content["settings"].items()
        }
        settings.pop("preset", None)
        return App(
            Plan(**plan, settings=settings),
            {"swept": [], **content["config"]},
            content["point"],
            content["source"],
        )
    except (KeyError, TypeError, ValueError, ImportError, AttributeError) as error:
        raise ValueError(
            f"{path} is not a plan of fcjax {__version__}: {error}"
        ) from None
