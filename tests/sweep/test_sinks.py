import importlib
import json
import math
import struct
import sys

import pytest

from fcjax.sweep import sinks

RUNS = {f"p=0.25,seed={seed}": {"p": 0.25, "seed": seed} for seed in range(2)}
FIRST, SECOND = RUNS
ONE_RUN = {FIRST: RUNS[FIRST]}
CONFIG = {"method": "ccfc", "rounds": [1, 2], "limit": None}


def log_rounds(names, folder, steps, *, runs=RUNS, error=None, offset=0.0, **options):
    """Logs rounds of runs, and then fails, if with an error."""
    with sinks.open_logs(names, folder, runs, CONFIG, **options) as logs:
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


def test_tensorboard_reads_it_so_too(tmp_path):
    package = "tensorboard.backend.event_processing.event_accumulator"
    reader = pytest.importorskip(package)
    for offset, steps in ((0, [1, 2, 3, 4]), (0.25, [3, 4, 5]), (0.5, [5, 6])):
        log_rounds(("tensorboard",), tmp_path, steps, offset=offset)
    read = reader.EventAccumulator(str(tmp_path / "tensorboard" / FIRST))
    read.Reload()
    shown = [(event.step, event.value) for event in read.Scalars("loss")]
    assert shown == board(tmp_path, FIRST)["loss"]


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


def session(folder, id_="*"):
    """The run record, the logged rounds and the exit code of a session."""
    (path,) = folder.glob(f"wandb/offline-run-*/run-{id_}.wandb")
    run, rounds, code = None, [], None
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run" and run is None:
            run = record.run
        elif kind == "history":
            items = [(x.key or x.nested_key[0], x) for x in record.history.item]
            row = {name: json.loads(x.value_json) for name, x in items}
            rounds.append({name: row[name] for name in ("_step", "loss")})
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
    log_rounds(("wandb", "tensorboard"), out, [5, 6])
    wandb.teardown()
    ids = [(out / "wandb" / f"{run}.id").read_text() for run in RUNS]
    assert len(set(ids)) == 2
    for number, (id_, name) in enumerate(zip(ids, RUNS, strict=True)):
        run, rounds, code = session(out, id_)
        assert (run.project, run.run_group, run.display_name) == ("fcjax", "out", name)
        assert run.tags == name.split(",")
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        assert config.items() >= CONFIG.items()
        assert rounds == [{"_step": i, "loss": i + float(number)} for i in (5, 6)]
        assert code == 0
    assert board(out, FIRST)["loss"] == [(5, 5.0), (6, 6.0)]


def test_a_resumed_run_is_the_same_run_of_wandb_and_fails_with_its_session(
    tmp_path, wandb
):
    def begin(**options):
        log_rounds(("wandb",), tmp_path, [1], runs=ONE_RUN, offset=math.nan, **options)

    ids = []
    for _ in "ab":
        begin()
        wandb.teardown()
        ids.append((tmp_path / "wandb" / f"{FIRST}.id").read_text())
    assert ids[0] == ids[1]
    with pytest.raises(RuntimeError):
        begin(resume=False, error=RuntimeError)
    wandb.teardown()
    other = (tmp_path / "wandb" / f"{FIRST}.id").read_text()
    assert other != ids[0]
    _, (row,), code = session(tmp_path, other)
    assert row["_step"] == code == 1
    assert math.isnan(row["loss"])
