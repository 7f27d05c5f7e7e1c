"""Logs the rounds of runs to TensorBoard and Weights & Biases.

TensorBoard needs the package tensorboardX, Weights & Biases the package wandb.
"""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, SupportsFloat

Sink = Literal["tensorboard", "wandb"]
"""The name of a logging service."""

Log = Callable[[int, Mapping[str, SupportsFloat | Literal[""] | None]], None]
"""(step, values by name) -> None. The step is the number of rounds over all stages.
Values "" and None are left out."""

_Write = Callable[[int, dict[str, float]], None]


def check(names: Sequence[Sink]) -> None:
    """Checks that the logging services are installed, and logs in to wandb.

    Args:
        names: the logging services.

    Raises:
        ValueError: a package is not installed, or wandb has no login.
    """
    packages = {"tensorboard": "tensorboardX", "wandb": "wandb"}
    for name in names:
        spec = find_spec(packages[name])
        # A spec without an origin is a folder of this name, such as wandb's log folder.
        if spec is None or spec.origin is None:
            raise ValueError(
                f"{packages[name]} is not installed: pip install {packages[name]}"
            )
    # Otherwise wandb asks for a login when the first run begins. Offline it needs none.
    if "wandb" in names and os.environ.get("WANDB_MODE", "online") == "online":
        import wandb  # pyright: ignore[reportMissingImports]

        try:
            wandb.login()
        except wandb.Error as error:
            raise ValueError(f"wandb: {error}") from error


@contextmanager
def open_logs(
    names: Sequence[Sink],
    directory: Path,
    runs: Mapping[str, Mapping[str, float | int]],
    config: Mapping[str, Any],
    *,
    resume: bool = True,
) -> Iterator[list[Log]]:
    """Opens the logging services for the runs of a call inside of a `with` block.

    Args:
        names: the logging services, which `check` has accepted; may be empty.
        directory: the results folder, in which tensorboard/ and wandb/ are created.
        runs: the swept values of each run by its name, such as "p=0.25,seed=0".
        config: the settings that all runs share, JSON-like.
        resume: whether to continue the logs of an earlier session.

    Yields:
        list[Log]: the log of each run, which writes to all services.
    """
    with ExitStack() as stack:
        yield [
            _log(
                [
                    _tensorboard(stack, directory, run, resume)
                    if name == "tensorboard"
                    else _wandb(stack, directory, run, resume, {**config, **values})
                    for name in names
                ]
            )
            for run, values in runs.items()
        ]


def _log(writers: Sequence[_Write]) -> Log:
    def log(step, values):
        known = {k: float(v) for k, v in values.items() if v is not None and v != ""}
        for write in writers:
            write(step, known)

    return log


def _tensorboard(stack: ExitStack, directory: Path, run: str, resume: bool) -> _Write:
    from tensorboardX import SummaryWriter
    from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

    folder = directory / "tensorboard" / run
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    writer = None

    def write(step, values):
        nonlocal writer
        if writer is None:
            writer = stack.enter_context(
                SummaryWriter(
                    str(folder),
                    # A killed session may have logged rounds after its last checkpoint.
                    purge_step=step,
                    flush_secs=1,
                    # By default two files of the same second have the same name.
                    filename_suffix=f".{len(list(folder.glob('*'))):04d}",
                )
            )
        # One event per round. `add_scalar` would also warn of every NaN.
        scalars = [Summary.Value(tag=k, simple_value=v) for k, v in values.items()]
        writer.file_writer.add_summary(Summary(value=scalars), step)  # pyright: ignore[reportOptionalMemberAccess]

    return write


def _wandb(
    stack: ExitStack,
    directory: Path,
    run: str,
    resume: bool,
    config: dict[str, Any],
) -> _Write:
    import wandb  # pyright: ignore[reportMissingImports]

    # The id is stored in the results folder. Overwritten results, and results of the
    # same flags in another folder, are therefore another run of wandb.
    path = directory / "wandb" / f"{run}.id"
    if not resume or not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(secrets.token_hex(4))
    live = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "fcjax"),
        group=directory.resolve().name,
        name=run,
        tags=run.split(","),
        config=config,
        dir=str(directory),
        id=path.read_text(),
        resume="allow",
        reinit="create_new",
        # Otherwise wandb stores the printed lines of the session for every run.
        settings=wandb.Settings(console="off", quiet=True),
    )

    def finish(error, *_):
        live.finish(exit_code=0 if error is None else 1)

    stack.push(finish)  # as a context manager, the run would print the traceback

    def write(step, values):
        # Repeated rounds after a resume: wandb warns of a step that it already has.
        if step >= live.step:
            live.log(values, step=step)

    return write
