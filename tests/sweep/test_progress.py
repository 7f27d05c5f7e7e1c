import io
import math
import sys

import pytest
from rich.console import Console

from fcjax.sweep.progress import Progress, Timing, duration, line, seconds_left

SCORES = {"loss": -0.8123, "nmi": 0.431}


@pytest.fixture
def clock():
    """Tells the time it was set to."""

    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    return Clock()


def terminal(width=100):
    file = io.StringIO()
    return Console(force_terminal=True, file=file, width=width, color_system=None)


def lines(console):
    return console.file.getvalue().splitlines()


# --- what is told


def test_a_line():
    label = "pretrain round 12/100, runs 1 to 4 of 15"
    expected = f"{label}: loss -0.812, nmi 0.431"
    assert line(label, SCORES, 170.0) == f"{expected}, about 3 min left"
    assert line(label, SCORES, None) == expected
    assert line(label, {}, None) == label
    assert line("a", {"loss": math.nan, "b": -math.inf}, None) == "a: loss nan, b -inf"


def test_a_duration():
    told = {0.2: "0 s", 40.4: "40 s", 59.4: "59 s", 59.6: "1 min", 170.0: "3 min"}
    told |= {3569.0: "59 min", 3571.0: "1 h 0 min", 7800.0: "2 h 10 min"}
    told |= {180000.0: "50 h 0 min"}
    assert {seconds: duration(seconds) for seconds in told} == told


def test_time_left():
    compiling, other = Timing(60.0, 4, True), Timing(8.0, 4, False)
    second = [Timing(30.0, 2, True), Timing(4.0, 2, False)]
    # Rounds that compile are left out: 8 + 8 + 4 s for 4 + 4 + 2 run-rounds.
    assert seconds_left([compiling, other, other, *second], 5) == 10.0
    # But of stages of one round.
    assert seconds_left([compiling, Timing(8.0, 4, True), second[1]], 6) == 12.0
    # Before a round tells it, and at the end.
    for timings, left in (([], 5), ([compiling], 5), ([compiling, other], 0)):
        assert seconds_left(timings, left) is None


# --- elsewhere than on a terminal


def test_a_line_every_five_seconds_and_at_the_end_of_a_stage(clock):
    """Of 100 rounds 90 were done before, which costs no time."""
    console = Console(file=io.StringIO(), force_terminal=False)
    with Progress(100, console=console, clock=clock) as progress:
        progress.skip(90)
        for number, now in enumerate([3.0, 4.9, 5.0, 9.9, 10.0, 11.0, 15.9], start=1):
            clock.now = now
            progress.show(f"round {number}", 1, {}, last=number == 6)
    # The line of the end counts: the next is due five seconds after it. 7 s for the
    # four rounds from 3.0 to 10.0, 8 s for the five to 11.0.
    expected = [
        "round 3: about 7 s left",
        "round 5: about 9 s left",
        "round 6: about 6 s left",
    ]
    assert lines(console) == expected


def test_stages_that_end_early_are_expected_to_do_so_again(clock):
    """Three runs have at most ten rounds each, and the first run ends after four. The
    estimate shrinks the rounds of later runs, but not those of the current run."""
    console = Console(file=io.StringIO(), force_terminal=False)
    with Progress(30, console=console, clock=clock) as progress:
        for number, now in enumerate([10.0, 20.0, 30.0, 40.0, 50.0, 60.0], start=1):
            clock.now = now
            if number == 4:
                progress.skip(6, early=True)
            rest = {5: 9, 6: 8}.get(number, 0)
            progress.show(f"round {number}", 1, {}, last=number == 4, rest=rest)
    told = lines(console)
    assert told[3] == "round 4: about 1 min left"  # 20 x 4 / 10 rounds of 10 s
    assert told[5] == "round 6: about 2 min left"  # 8 + 10 x 6 / 12 rounds


def test_lines_arrive_at_once_and_are_never_wrapped(clock):
    class File(io.StringIO):
        flushed = ""

        def flush(self):
            self.flushed = self.getvalue()

    file, label = File(), "train [1] round 1/2, " * 4
    with Progress(8, console=Console(file=file, width=40), clock=clock) as progress:
        progress.show(label, 4, SCORES, last=True)
        assert file.flushed == f"{label}: loss -0.812, nmi 0.431\n"


# --- on a terminal


def test_the_bar(clock):
    console = terminal()
    with Progress(8, console=console, clock=clock) as progress:
        progress.skip(2)
        for now in (30.0, 31.0):
            clock.now = now
            progress.show("train [1] round 2/4", 2, {"loss": math.nan})
    last = lines(console)[-2]  # before the cursor is shown again
    assert "75%" in last
    assert "train [1] round 2/4: loss nan, about 1 s left" in last
    assert last.count("━") == 15  # three quarters of 20


def test_the_bar_wraps_on_a_narrow_terminal(clock):
    console, label = terminal(width=60), "pretrain round 12/100, runs 1 to 4 of 15"
    with Progress(8, console=console, clock=clock) as progress:
        progress.show(label, 8, SCORES, last=True)
    text = " ".join(console.file.getvalue().rsplit("%", 1)[1].split())
    for word in line(label, SCORES, None).split():
        assert word in text


def test_other_lines_come_out_whole_above_the_bar(capsys, monkeypatch, clock):
    """On standard output, which is a terminal."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    told = "resuming from checkpoint /runs/[abc]/" + "01-000010/" * 9
    before = sys.stdout
    with Progress(2, clock=clock) as progress:
        progress.show("round 1", 1, {}, last=True)
        print(told)
        progress.show("round 2", 1, {}, last=True)
        print("no newline [b]", end="", flush=True)
    assert sys.stdout is before
    out = capsys.readouterr().out
    assert f"\x1b[2K{told}\n" in out
    assert "no newline [b]\n" in out
    assert "100%" in out


def test_the_terminal_is_given_back_after_an_error(clock):
    console, before = terminal(), sys.stdout

    def interrupted():
        with Progress(2, console=console, clock=clock):
            assert sys.stdout is not before
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sys.stdout is before
    assert console.file.getvalue().endswith("\x1b[?25h")  # shows the cursor
