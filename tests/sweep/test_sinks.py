import importlib
import math
import struct
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from fcjax.sweep import sinks

RUNS = {f"p=0.25,seed={seed}": {"p": 0.25, "seed": seed} for seed in range(2)}
FIRST, SECOND = RUNS
CONFIG = {"method": "ccfc", "rounds": [1, 2], "limit": None}


def log_rounds(names, folder, steps, *, error=None, offset=0.0, **options):
    """Logs rounds of runs, and then fails, if with an error."""
    with sinks.open_logs(names, folder, RUNS, CONFIG, **options) as logs:
        for step in steps:
            for run, log in enumerate(logs):
                log(step, {"loss": step + run + offset, "nmi": "" if step % 2 else 0.5})
        if error is not None:
            raise error


def test_nothing_is_written_without_sinks(tmp_path):
    sinks.check(())
    log_rounds((), tmp_path, [1])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sink", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")]
)
def test_a_sink_that_is_not_installed(monkeypatch, tmp_path, sink, package):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, package, raising=False)
    told = rf"^{package} is not installed: pip install {package}$"
    with pytest.raises(ValueError, match=told):
        sinks.check([sink])
    (tmp_path / package).mkdir()  # which Python takes for one
    importlib.invalidate_caches()
    with pytest.raises(ValueError, match=told):
        sinks.check([sink])


# --- tensorboard


def framed(data):
    """The records of a TFRecord file: length, its checksum, the record, its checksum"""
    start = 0
    while start < len(data):
        (length,) = struct.unpack_from("<Q", data, start)
        yield data[start + 12 : start + 12 + length]
        start += 16 + length


def board(folder, run):
    """{tag: [(step, value), ...]} as TensorBoard shows a run."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    shown = {}
    for path in sorted((folder / "tensorboard" / run).iterdir()):
        for record in framed(path.read_bytes()):
            event = event_pb2.Event.FromString(record)
            if event.session_log.status == event_pb2.SessionLog.START:
                for tag, points in shown.items():
                    shown[tag] = [p for p in points if p[0] < event.step]
            for value in event.summary.value:
                points = shown.setdefault(value.tag, [])
                points.append((event.step, value.simple_value))
    return shown


def test_a_resumed_run_shows_every_step_once(tmp_path):
    names = ("tensorboard",)
    log_rounds(names, tmp_path, [1, 2, 3, 4])
    assert board(tmp_path, SECOND)["loss"] == [(i, i + 1.0) for i in (1, 2, 3, 4)]
    log_rounds(names, tmp_path, [3, 4, 5], offset=0.25)  # the checkpoint was behind
    log_rounds(names, tmp_path, [5, 6], offset=0.5)
    assert board(tmp_path, FIRST) == {
        "loss": [(1, 1.0), (2, 2.0), (3, 3.25), (4, 4.25), (5, 5.5), (6, 6.5)],
        "nmi": [(2, 0.5), (4, 0.5), (6, 0.5)],
    }
    with pytest.raises(KeyboardInterrupt):  # which keeps what was logged
        log_rounds(names, tmp_path, [1], resume=False, error=KeyboardInterrupt)
    assert board(tmp_path, FIRST) == {"loss": [(1, 1.0)]}


def test_values_that_are_missing_or_not_finite(tmp_path, caplog):
    values = {"a": None, "b": "", "c": math.nan, "d": -math.inf, "e": 2}
    with sinks.open_logs(("tensorboard",), tmp_path, RUNS, CONFIG) as logs:
        logs[0](7, values)
    shown = board(tmp_path, FIRST)
    assert set(shown) == {"c", "d", "e"}
    assert math.isnan(shown["c"][0][1])
    assert shown["d"] == [(7, -math.inf)]
    assert shown["e"] == [(7, 2.0)]
    assert not caplog.records


# --- wandb


@pytest.fixture
def wandb(monkeypatch):
    """The package as far as it is used; `runs` are what was begun by it."""

    class Live(SimpleNamespace):
        def log(self, values, *, step):
            self.rounds.append((step, values["loss"]))

        def finish(self, *, exit_code):
            self.code = exit_code

    def init(**options):
        runs.append(Live(**options, step=2, rounds=[]))
        return runs[-1]

    runs: list[Live] = []
    package = ModuleType("wandb")
    package.__dict__.update(init=init, Settings=dict, Error=RuntimeError, runs=runs)
    package.__spec__ = ModuleSpec("wandb", None, origin="wandb.py")
    monkeypatch.setitem(sys.modules, "wandb", package)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return package


def test_wandb_without_a_key(wandb, monkeypatch):
    def login():
        raise wandb.Error("No API key configured")

    wandb.login = login
    monkeypatch.setenv("WANDB_MODE", "offline")
    sinks.check(("wandb",))  # offline it needs none
    monkeypatch.delenv("WANDB_MODE")
    with pytest.raises(ValueError, match=r"^wandb: No API key configured"):
        sinks.check(("wandb",))


def test_wandb_is_given_every_round_once_and_how_the_session_ended(tmp_path, wandb):
    out = tmp_path / "out"
    log_rounds(("wandb", "tensorboard"), out, [1, 2, 3])
    for number, (live, name) in enumerate(zip(wandb.runs, RUNS, strict=True)):
        assert (live.project, live.group, live.name) == ("fcjax", "out", name)
        assert live.tags == name.split(",")
        assert live.config == {**CONFIG, **RUNS[name]}
        assert live.id == (out / "wandb" / f"{name}.id").read_text()
        # wandb has step 1 of an earlier session.
        assert live.rounds == [(i, i + float(number)) for i in (2, 3)]
        assert live.code == 0
    assert board(out, FIRST)["loss"] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    log_rounds(("wandb",), out, [4])
    with pytest.raises(RuntimeError):
        log_rounds(("wandb",), out, [1], resume=False, error=RuntimeError)
    first, _, resumed, _, anew, _ = wandb.runs
    assert first.id == resumed.id != anew.id
    assert anew.code == 1
