import json
import math
import struct
import sys

import pytest

from fcjax.grid import sinks

RUNS = {
    "p=0.25,seed=0": {"p": 0.25, "seed": 0},
    "p=0.25,seed=1": {"p": 0.25, "seed": 1},
}
FIRST, SECOND = RUNS
ONE_RUN = {FIRST: RUNS[FIRST]}
CONFIG = {"method": "ccfc", "rounds": [1, 2], "limit": None}


def test_nothing_is_written_without_sinks(tmp_path):
    with sinks.open_logs((), tmp_path, RUNS, CONFIG) as logs:
        assert len(logs) == 2
        for log in logs:
            log(1, {"loss": 0.5})
    assert list(tmp_path.iterdir()) == []


# --- sinks that are not installed


@pytest.mark.parametrize(
    ("sink", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")]
)
@pytest.mark.parametrize("folder", [False, True])
def test_a_sink_that_is_not_installed(monkeypatch, tmp_path, sink, package, folder):
    if folder:  # of the name of the package, which Python takes for one
        (tmp_path / package).mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, package, raising=False)
    told = rf'^{package} is not installed: pip install "fcjax\[{sink}\]"$'
    with pytest.raises(ValueError, match=told):
        sinks.check([sink])


def test_no_sink_is_always_installed():
    sinks.check(())


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


def log_rounds(folder, steps, offset=0.0, **options):
    with sinks.open_logs(("tensorboard",), folder, RUNS, CONFIG, **options) as logs:
        for step in steps:
            for run, log in enumerate(logs):
                log(step, {"loss": step + run + offset, "nmi": "" if step % 2 else 0.5})


def test_tensorboard_holds_what_was_logged(tmp_path):
    log_rounds(tmp_path, [1, 2, 3])
    assert board(tmp_path, FIRST) == {
        "loss": [(1, 1.0), (2, 2.0), (3, 3.0)],
        "nmi": [(2, 0.5)],
    }
    assert board(tmp_path, SECOND)["loss"] == [(1, 2.0), (2, 3.0), (3, 4.0)]


def test_a_resumed_run_shows_every_step_once(tmp_path):
    log_rounds(tmp_path, [1, 2, 3, 4])
    log_rounds(tmp_path, [3, 4, 5], offset=0.25)  # the checkpoint was behind
    log_rounds(tmp_path, [5, 6], offset=0.5)
    assert board(tmp_path, FIRST) == {
        "loss": [(1, 1.0), (2, 2.0), (3, 3.25), (4, 4.25), (5, 5.5), (6, 6.5)],
        "nmi": [(2, 0.5), (4, 0.5), (6, 0.5)],
    }
    read_by_tensorboard = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator(str(tmp_path / "tensorboard" / FIRST))
    read_by_tensorboard.Reload()
    events = read_by_tensorboard.Scalars("loss")
    assert [e.step for e in events] == [1, 2, 3, 4, 5, 6]
    assert [e.value for e in events] == [1.0, 2.0, 3.25, 4.25, 5.5, 6.5]


def test_without_resume_the_old_steps_are_gone(tmp_path):
    log_rounds(tmp_path, [1, 2, 3])
    log_rounds(tmp_path, [1], resume=False)
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


def test_an_interrupted_session_keeps_what_it_logged(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        interrupted("tensorboard", tmp_path, KeyboardInterrupt)
    assert board(tmp_path, FIRST) == {"loss": [(1, 1.5)]}


def interrupted(sink, folder, error):
    with sinks.open_logs((sink,), folder, ONE_RUN, CONFIG) as logs:
        logs[0](1, {"loss": 1.5})
        raise error


# --- wandb


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    wandb = pytest.importorskip("wandb")
    for name in ("CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    yield wandb
    # What was logged is on disk once wandb's own process has ended: tests that read it
    # end it themselves.
    wandb.teardown()


def records(path):
    """The records of a .wandb file, a LevelDB log: blocks of 32 KiB that hold chunks
    with a checksum, a length and what part of a record they are."""
    from wandb.proto import wandb_internal_pb2

    data, start, record = path.read_bytes(), 7, b""
    while start < len(data):
        if 32768 - start % 32768 < 7:
            start += 32768 - start % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, start + 4)
        record += data[start + 7 : start + 7 + length]
        start += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def session(path):
    """The run record, the logged rounds and the exit code of a .wandb file."""
    run, rounds, code = None, [], None
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run" and run is None:
            run = record.run
        elif kind == "history":
            row = {
                item.key or item.nested_key[0]: json.loads(item.value_json)
                for item in record.history.item
            }
            rounds.append({k: v for k, v in row.items() if k in ("_step", "loss")})
        elif kind == "exit":
            code = record.exit.exit_code
    return run, rounds, code


def test_wandb_without_a_key(tmp_path, wandb, monkeypatch):
    sinks.check(("wandb",))  # offline it needs none
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=r"^wandb: No API key configured"):
        sinks.check(("wandb",))


def test_wandb_holds_what_was_logged(tmp_path, wandb):
    out = tmp_path / "out"
    with sinks.open_logs(("wandb", "tensorboard"), out, RUNS, CONFIG) as logs:
        for step in (5, 6):
            for run, log in enumerate(logs):
                log(step, {"loss": step + run, "nmi": ""})
    wandb.teardown()
    ids = [(out / "wandb" / f"{run}.id").read_text() for run in RUNS]
    assert len(set(ids)) == 2
    for number, (id_, name) in enumerate(zip(ids, RUNS, strict=True)):
        (path,) = out.glob(f"wandb/offline-run-*/run-{id_}.wandb")
        run, rounds, code = session(path)
        assert (run.project, run.run_group, run.display_name) == ("fcjax", "out", name)
        assert run.tags == name.split(",")
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        assert config.items() >= CONFIG.items()
        assert rounds == [
            {"_step": 5, "loss": 5.0 + number},
            {"_step": 6, "loss": 6.0 + number},
        ]
        assert code == 0
    assert board(out, FIRST) == {"loss": [(5, 5.0), (6, 6.0)]}


def test_a_resumed_run_is_the_same_run_of_wandb(tmp_path, wandb):
    def begin(**options):
        with sinks.open_logs(("wandb",), tmp_path, ONE_RUN, {}, **options) as logs:
            logs[0](1, {"loss": math.nan})
        wandb.teardown()
        return (tmp_path / "wandb" / f"{FIRST}.id").read_text()

    first = begin()
    assert begin() == first
    assert begin(resume=False) != first
    for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb"):
        (row,) = session(path)[1]
        assert row["_step"] == 1
        assert math.isnan(row["loss"])


def test_a_session_that_fails_has_failed_in_wandb(tmp_path, wandb):
    with pytest.raises(RuntimeError):
        interrupted("wandb", tmp_path, RuntimeError)
    wandb.teardown()
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    _, rounds, code = session(path)
    assert rounds == [{"_step": 1, "loss": 1.5}]
    assert code == 1
