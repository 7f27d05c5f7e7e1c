"""How far a grid is: one live bar on a terminal, now and then a line elsewhere."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, SupportsFloat

from rich import progress
from rich.console import Console
from rich.table import Column


class Timing(NamedTuple):
    """What one round of a call took."""

    seconds: float
    run_rounds: int  # one for each run of the call
    is_first: bool  # of a stage in its call: compiling is in it


class Progress:
    """Shows a grid's rounds while its `with` block lasts.

    Args:
        total: run-rounds of the grid: runs times rounds, over all calls.
        console: where to show; standard output by default.
        clock: seconds since any moment.
        shown: False shows nothing.
    """

    def __init__(
        self,
        total: int,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        shown: bool = True,
    ):
        # What others print passes through the live bar: neither wrapped nor marked up.
        console = console or Console(soft_wrap=True, markup=False, highlight=False)
        self._console = console
        self._clock = clock
        self._total = self._left = total
        self._timings: list[Timing] = []
        self._is_first = True
        self._is_shown = shown
        is_live = shown and console.is_interactive
        self._bar = _bar(console, total) if is_live else None
        self._interval = 5.0 if self._bar is None else 0.1

    def __enter__(self) -> "Progress":
        self._ended = self._shown = self._clock()
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def skip(self, count: int) -> None:
        """Counts run-rounds that take no time: done in an earlier session, or left out
        by a stage that ended early.
        """
        self._left -= count

    def show(
        self,
        label: str,
        count: int,
        metrics: Mapping[str, SupportsFloat],
        *,
        last: bool = False,
    ) -> None:
        """Counts a round that has just ended, and shows it unless one was just shown.

        Args:
            label: what ended: "pretrain round 12/100, runs 1 to 4 of 15".
            count: its run-rounds.
            metrics: what is shown of it, by name.
            last: of its stage in its call: it is always shown, and the round that
                follows compiles.
        """
        now = self._clock()
        self._timings.append(Timing(now - self._ended, count, self._is_first))
        self._ended, self._is_first = now, last
        self._left -= count
        is_due = last or now - self._shown >= self._interval
        if not (self._is_shown and is_due):
            return
        self._shown = now
        text = line(label, metrics, seconds_left(self._timings, self._left))
        if self._bar is None:
            print(text, file=self._console.file, flush=True)
        else:
            (task,) = self._bar.task_ids
            done = self._total - self._left
            self._bar.update(task, completed=done, description=text, refresh=True)


class StdoutHandler(logging.Handler):
    """Prints the lines of the logger `fcjax`.

    Args:
        form: the line that is printed for a line.
    """

    def __init__(self, form: Callable[[str], str] = str):
        super().__init__()
        self._form = form

    def emit(self, record: logging.LogRecord) -> None:
        # Standard output may be another one by now, such as that of a live bar.
        line = self._form(record.getMessage())
        if record.levelno >= logging.WARNING:
            line = f"warning: {line}"
        print(line, flush=True)


@contextmanager
def log_to_stdout(form: Callable[[str], str] = str) -> Iterator[None]:
    """Prints the lines of the logger `fcjax` inside of a `with` block. Other handlers
    of this logger stay; those of the root logger do not repeat the lines.
    """
    log, handler = logging.getLogger("fcjax"), StdoutHandler(form)
    outer = [x for x in log.handlers if isinstance(x, StdoutHandler)]
    before = log.level, log.propagate
    for other in outer:
        log.removeHandler(other)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        for other in outer:
            log.addHandler(other)
        log.setLevel(before[0])
        log.propagate = before[1]


def line(
    label: str, metrics: Mapping[str, SupportsFloat], seconds: float | None
) -> str:
    """Returns what is told of a round; without a time left where `seconds` is None."""
    parts = [f"{name} {float(value):.3f}" for name, value in metrics.items()]
    if seconds is not None:
        parts.append(f"{duration(seconds)} left")
    return ": ".join([label, ", ".join(parts)] if parts else [label])


def seconds_left(timings: Sequence[Timing], left: int) -> float | None:
    """Returns what `left` run-rounds take, None if that is unknown or nothing is left.

    Rounds that compile count only where there are no others, as in stages of one round;
    the very first, which compiles what later calls find compiled, never does.
    """
    counted = [t for t in timings if not t.is_first] or timings[1:]
    if not counted or left <= 0:
        return None
    rate = sum(t.seconds for t in counted) / sum(t.run_rounds for t in counted)
    return left * rate


def duration(seconds: float) -> str:
    """Returns "40 s", "3 min" or "2 h 10 min"."""
    if round(seconds) < 60:
        return f"{round(seconds)} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _bar(console: Console, total: int) -> progress.Progress:
    bar = progress.Progress(
        progress.BarColumn(20),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn(
            "{task.description}", markup=False, table_column=Column(ratio=1)
        ),
        console=console,
        # Errors that go to a file stay out of the terminal.
        redirect_stderr=sys.stderr.isatty(),
    )
    bar.add_task("compiling", total=total)
    return bar
