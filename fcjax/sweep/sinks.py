"""Where a run's rounds are logged besides its results folder.

TensorBoard (through tensorboardX) and Weights & Biases, each an extra of this package.
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

Log = Callable[[int, Mapping[str, SupportsFloat | Literal[""] | None]], None]
"""Takes a step, the rounds done over all stages, and its values by name; those that are
"" or None are left out."""

_Write = Callable[[int, dict[str, float]], None]


def check(names: Sequence[Sink]) -> None:
    """Raises ValueError if one of the sinks is not installed or not logged in to; asks
    for wandb's key where it can.
    """
    packages = {"tensorboard": "tensorboardX", "wandb": "wandb"}
    for name in names:
        spec = find_spec(packages[name])
        # Without an origin it is a folder of that name, such as wandb makes.
        if spec is None or spec.origin is None:
            raise ValueError(
                f"{packages[name]} is not installed: pip install {packages[name]}"
            )
    # wandb would ask once the first run begins; offline it warns that it cannot tell.
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
    """Opens the sinks of the runs of a call while its `with` block lasts.

    Args:
        names: the sinks, maybe none, which `check` has found.
        directory: the results folder, which also takes tensorboard/ and wandb/.
        runs: by name, "p=0.25,seed=0", their swept values.
        config: what they share, JSON-like.
        resume: go on with what an earlier session logged of them; otherwise start anew.

    Yields:
        The log of every run, which writes to all the sinks.
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
                    # A killed session may have come further than its checkpoint.
                    purge_step=step,
                    flush_secs=1,
                    # Files are otherwise named by the second, and written over.
                    filename_suffix=f".{len(list(folder.glob('*'))):04d}",
                )
            )
        # One event a round; and add_scalar warns of every NaN.
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

    # Kept beside the run, so that results written over or made elsewhere by the same
    # flags are another run.
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
        # It would keep what the session prints once for every run.
        settings=wandb.Settings(console="off", quiet=True),
    )

    def finish(error, *_):
        live.finish(exit_code=0 if error is None else 1)

    stack.push(finish)  # the run as a context would print the traceback

    def write(step, values):
        # wandb takes no step twice, and warns of each: these are the same rounds again.
        if step >= live.step:
            live.log(values, step=step)

    return write
