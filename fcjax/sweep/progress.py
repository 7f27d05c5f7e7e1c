"""Progress of a grid: a live bar on a terminal, otherwise a line every few seconds."""

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
    """The wall time of one round of a call."""

    seconds: float
    run_rounds: int
    """Rounds times runs: one round of a call with four runs has four."""
    is_first: bool
    """Whether it is the first round of its stage in the call, which also compiles."""


class Progress:
    """Shows the rounds of a grid inside of a `with` block.

    Args:
        total: run-rounds of the grid: the number of runs times their rounds.
        console: where the progress is shown; standard output by default.
        clock: returns seconds since a fixed moment.
        enabled: False shows nothing.
    """

    def __init__(
        self,
        total: int,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        enabled: bool = True,
    ):
        # Lines of other code pass through the live bar. They are neither wrapped nor
        # read as markup.
        console = console or Console(soft_wrap=True, markup=False, highlight=False)
        self._console = console
        self._clock = clock
        self._total = self._left = total
        self._timings: list[Timing] = []
        self._early = 0
        self._is_first = True
        self._is_enabled = enabled
        is_live = enabled and console.is_interactive
        self._bar = _bar(console, total) if is_live else None
        self._interval = 5.0 if self._bar is None else 0.1

    def __enter__(self) -> "Progress":
        self._last_end = self._last_line = self._clock()
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def skip(self, count: int, *, early: bool = False) -> None:
        """Counts run-rounds that take no time.

        Args:
            count: the number of run-rounds.
            early: whether their stage ended early. The estimate expects the same share
                of later calls. Otherwise an earlier session has done the rounds.
        """
        self._left -= count
        self._early += count if early else 0

    def show(
        self,
        label: str,
        count: int,
        metrics: Mapping[str, SupportsFloat],
        *,
        last: bool = False,
        rest: int = 0,
    ) -> None:
        """Counts a round that has just ended, and shows a line if one is due.

        Args:
            label: the round and the runs: "pretrain round 12/100, runs 1 to 4 of 15".
            count: the number of run-rounds.
            metrics: the values to show, by name.
            last: whether it is the last round of a stage in a call. It is always shown,
                and the next round compiles.
            rest: the number of run-rounds that are left in this call.
        """
        now = self._clock()
        self._timings.append(Timing(now - self._last_end, count, self._is_first))
        self._last_end, self._is_first = now, last
        self._left -= count
        is_due = last or now - self._last_line >= self._interval
        if not (self._is_enabled and is_due):
            return
        self._last_line = now
        done = sum(timing.run_rounds for timing in self._timings)
        later = (self._left - rest) * done / (done + self._early)
        text = line(label, metrics, seconds_left(self._timings, rest + later))
        if self._bar is None:
            print(text, file=self._console.file, flush=True)
        else:
            (task,) = self._bar.task_ids
            done = self._total - self._left
            self._bar.update(task, completed=done, description=text, refresh=True)


class StdoutHandler(logging.Handler):
    """Prints log records on standard output, warnings with the prefix "warning: ".

    Args:
        form: changes the text of a record before it is printed.
    """

    def __init__(self, form: Callable[[str], str] = str):
        super().__init__()
        self._form = form

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one log record.

        Args:
            record: the record.
        """
        line = self._form(record.getMessage())
        if record.levelno >= logging.WARNING:
            line = f"warning: {line}"
        # `print` looks up standard output at every call: a live bar replaces it.
        print(line, flush=True)


@contextmanager
def log_to_stdout(form: Callable[[str], str] = str) -> Iterator[None]:
    """Prints the messages of the logger `fcjax` inside of a `with` block.

    Other handlers of this logger stay. The root logger does not repeat the messages.

    Args:
        form: changes the text of a message before it is printed.

    Yields:
        None: while the messages are printed.
    """
    log, handler = logging.getLogger("fcjax"), StdoutHandler(form)
    outer_handlers = [x for x in log.handlers if isinstance(x, StdoutHandler)]
    before = log.level, log.propagate
    for outer in outer_handlers:
        log.removeHandler(outer)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        for outer in outer_handlers:
            log.addHandler(outer)
        log.setLevel(before[0])
        log.propagate = before[1]


def line(
    label: str, metrics: Mapping[str, SupportsFloat], seconds: float | None
) -> str:
    """Returns the progress line of a round.

    Args:
        label: the round and the runs.
        metrics: the values to show, by name.
        seconds: the estimated time left; None leaves the time out.

    Returns:
        "LABEL: NAME VALUE, ..., TIME left".
    """
    parts = [f"{name} {float(value):.3f}" for name, value in metrics.items()]
    if seconds is not None:
        parts.append(f"about {duration(seconds)} left")
    return ": ".join([label, ", ".join(parts)] if parts else [label])


def seconds_left(timings: Sequence[Timing], left: int | float) -> float | None:
    """Estimates the seconds that the remaining run-rounds take.

    Rounds that compile are left out of the estimate, unless all rounds compile, as in
    stages of one round. The very first round is always left out: it compiles programs
    that later calls reuse.

    Args:
        timings: the rounds of this session.
        left: the number of remaining run-rounds.

    Returns:
        Seconds; None if no estimate is possible or nothing is left.
    """
    counted = [t for t in timings if not t.is_first] or timings[1:]
    if not counted or left <= 0:
        return None
    rate = sum(t.seconds for t in counted) / sum(t.run_rounds for t in counted)
    return left * rate


def duration(seconds: float) -> str:
    """Returns a time as text: "40 s", "3 min" or "2 h 10 min".

    Args:
        seconds: the time in seconds.

    Returns:
        The time, rounded to seconds below one minute and to minutes otherwise.
    """
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
        # If standard error is a file, its lines stay out of the terminal.
        redirect_stderr=sys.stderr.isatty(),
    )
    bar.add_task("compiling", total=total)
    return bar
