"""A federation of real processes on this machine, with TLS and authenticated nodes."""

import dataclasses
import io
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

import fcjax
from fcjax.data.dataset import scaled
from fcjax.deploy import app, flower
from fcjax.deploy.outcome import Tally
from fcjax.methods import ExactKMeans, KFed
from fcjax.sweep.experiment import prepare
from fcjax.sweep.plan import Task

SITES = 3
AUTHORITY = """[req]
distinguished_name = name
prompt = no
[name]
CN = authority
[ca]
basicConstraints = critical, CA:TRUE
subjectKeyIdentifier = hash
[server]
basicConstraints = CA:FALSE
subjectAltName = DNS:localhost, IP:127.0.0.1
"""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Loopback:
    """Flower's processes on this machine; the folder has keys, logs and results."""

    def __init__(self, folder: Path):
        self.folder, self.port = folder, free_port()
        self.address = f"127.0.0.1:{self.port}"
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = '
            f'"{self.address}"\nroot-certificates = "{folder / "ca.crt"}"\n'
        )
        self.environment = os.environ | {
            "PATH": programs,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        }
        self.started = []
        (folder / "openssl.cnf").write_text(AUTHORITY)
        key = "-newkey rsa:2048 -nodes"
        for name in ("ca", "other"):
            self.do(
                f"openssl req -x509 {key} -days 2 -config openssl.cnf -extensions ca "
                f"-keyout {name}.key -out {name}.crt"
            )
        self.do(
            f"openssl req {key} -subj /CN=localhost -keyout server.key -out server.csr"
        )
        self.do(
            "openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial "
            "-days 2 -extfile openssl.cnf -extensions server -out server.crt"
        )
        for name in (*range(SITES + 1), "stranger"):
            self.do(f"ssh-keygen -q -t ecdsa -b 384 -N  -f site{name}", empty="-N")

    def do(self, command, empty=None, timeout=200):
        """Runs a command; returns its output."""
        words = command.split()
        if empty:
            words.insert(words.index(empty) + 1, "")
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def start(self, name, *words):
        """Starts a process in the background, with a log."""
        log = self.folder / f"{name}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.started.append(process)
        return process, log

    def start_node(self, name, config, *, authority="ca.crt"):
        return self.start(
            f"node{name}-{authority}",
            *("flower-supernode", "--superlink", self.address),
            *("--root-certificates", authority, "--max-retries", "1"),
            *("--auth-supernode-private-key", f"site{name}"),
            *("--port", str(free_port()), "--node-config", config),
        )

    def stop(self):
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait()


def wait_for(log, text, seconds=60):
    end = time.monotonic() + seconds
    while text not in log.read_text():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.2)


@pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("ssh-keygen")),
    reason="needs openssl and ssh-keygen",
)
@pytest.mark.parametrize(
    ("method", "secure"),
    [
        (KFed(), False),
        pytest.param(ExactKMeans(num_rounds=2), True, marks=pytest.mark.nightly),
    ],
)
def test_three_sites_with_tls_have_the_result_of_the_simulation(
    method, secure, tmp_path
):
    task = Task(method).replace(
        dataset="digits", limit=120, clients=(SITES,), p=(0.25,)
    )
    experiment = prepare(task, in_memory=True)
    content = app.app_of(experiment)
    content = content._replace(plan=dataclasses.replace(content.plan, secure=secure))
    app.write(content, tmp_path / "federation")
    rows = experiment.batches[0].partitions[0].clients
    dataset = experiment.dataset
    assert dataset.labels is not None
    for site, of_site in enumerate(rows):
        x, y = dataset.examples[of_site], dataset.labels[of_site]
        np.savez(tmp_path / f"data{site}.npz", x=x, y=y)
    np.savez(tmp_path / "data3.npz", x=np.zeros((9, 8, 9, 1), np.uint8))

    here = Loopback(tmp_path)
    try:
        _, log = here.start(
            "superlink",
            *("flower-superlink", "--port", str(here.port), "--enable-supernode-auth"),
            *("--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt"),
            *("--ssl-keyfile", "server.key"),
            "--disable-runtime-dependency-installation",
        )
        wait_for(log, "Uvicorn running")
        for site in range(SITES + 1):
            here.do(f"flwr supernode register site{site}.pub here")
        configs = [
            f'site={site % SITES} data="{tmp_path}/data{site}.npz" '
            f'out="{tmp_path}/out{site}"'
            for site in range(SITES + 1)
        ]
        # The last node has other data, and says that it is site 0.
        nodes = [here.start_node(site, config) for site, config in enumerate(configs)]
        stranger, stranger_log = here.start_node("stranger", configs[0])
        misled, misled_log = here.start_node(0, configs[0], authority="other.crt")
        for _, log in nodes:
            wait_for(log, "SuperNode ID")
        output = here.do(
            f"flwr run federation here --stream --run-config out='{tmp_path}/results'",
            timeout=900,
        )
        assert stranger.wait(60) != 0
        assert (
            "activate" in stranger_log.read_text() or "305" in stranger_log.read_text()
        )
        assert misled.wait(60) != 0
        assert "SuperNode ID" not in misled_log.read_text()
    finally:
        here.stop()

    assert "the plan needs examples of shape (8, 8, 1)" in output
    assert "results: " in output, output
    simulated = fcjax.run(method, dataset, split=fcjax.Split(clients=SITES, p=0.25))[0]
    result = fcjax.open(tmp_path / "results")[0]
    for name, weights in simulated.model.weights.items():
        found, error = result.model.weights[name], 1e-5 if secure else 0
        np.testing.assert_allclose(found, weights, rtol=0, atol=error)
    for site, of_site in enumerate(rows):
        table = pd.read_csv(tmp_path / f"out{site}" / "assignments.csv")
        np.testing.assert_array_equal(table["cluster"], simulated.labels_[of_site])
    for name in ("acc", "nmi", "ari", "samples", "rounds"):
        assert result.row[name] == simulated.row[name]
    assert result.row["status"] == "ok"


# --- Messages


@pytest.mark.parametrize(
    ("records", "line"),
    [
        ({}, "a message is malformed"),
        ({"request": ConfigRecord({"problem": "no data"})}, "no data"),
    ],
)
def test_malformed_messages_and_problems_become_lines(records, line):
    with pytest.raises(ValueError, match=line):
        flower.parts_of(RecordDict(records))


def test_a_pickle_in_a_message_is_not_opened():
    stream = io.BytesIO()
    np.save(stream, np.array([print], object), allow_pickle=True)
    record = ArrayRecord([np.zeros(2)])
    (array,) = record.values()
    array.data = stream.getvalue()
    with pytest.raises(ValueError, match=r"a message is malformed: .*allow_pickle"):
        flower.parts_of(RecordDict({"request": ConfigRecord({}), "arrays": record}))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"counts": np.array([1])}, "its sums have shapes"),
        ({"classes": np.zeros((2, 20_000), int)}, "its sums have shapes"),
        ({"counts": np.array([-1, 4])}, "are not whole numbers from 0"),
        ({"classes": np.full((2, 1), 0.5)}, "are not whole numbers from 0"),
        ({"embeddings": np.full((2, 3), np.inf)}, "its sums are not finite"),
    ],
)
def test_sums_of_a_site_that_cannot_be_are_refused(change, line):
    tally = Tally(np.array([1, 2]), np.ones((2, 3)), np.zeros((2, 0), int))
    tally.check(2, 3)
    with pytest.raises(ValueError, match=line):
        tally._replace(**change).check(2, 3)


# --- Scaling of columns


@pytest.mark.parametrize("scale", ["minmax", "standard", "none"])
def test_statistics_of_sites_give_the_scaling_of_all_examples(scale):
    x = np.random.default_rng(0).normal(5, [1, 3, 0], size=(50, 3))
    each = [flower.statistics(part, scale) for part in np.split(x, [10, 35])]
    found = flower.merged(each, 3)
    _, _, expected = scaled(x, scale)
    np.testing.assert_allclose(found.low, expected.low, rtol=1e-12)
    np.testing.assert_allclose(found.span, expected.span, rtol=1e-12)


def test_statistics_that_are_not_finite_are_refused():
    task = Task.of(KFed, dataset="digits", limit=60, clients=(2,), p=(0.0,))
    content = app.app_of(prepare(task, in_memory=True))
    plan = dataclasses.replace(content.plan, shape=(2,), images=False)
    content = content._replace(plan=plan)
    good = [np.zeros(2), np.ones(2)]
    flower.check_statistics(good, content)
    with pytest.raises(ValueError, match="are not finite"):
        flower.check_statistics([np.full(2, np.nan), np.ones(2)], content)
    with pytest.raises(ValueError, match="a message has 1 arrays of 2"):
        flower.check_statistics(good[:1], content)


def test_a_site_without_data_says_what_is_missing():
    content = app.App(None, {}, {}, {})  # pyright: ignore[reportArgumentType]
    context = Context(1, 1, {"site": 0}, RecordDict(), {})
    with pytest.raises(ValueError, match="lacks its number or its data"):
        flower.LocalSite(content, context)


def test_the_text_of_an_unexpected_error_stays_at_the_site(capsys):
    def fail():
        raise KeyError("patient 17")

    with pytest.raises(ValueError, match=r"^it failed with KeyError; its log says why"):
        flower.parts_of(flower.content_or_problem(fail))
    assert "patient 17" in capsys.readouterr().err


def test_a_site_that_cannot_write_its_folder_says_so_when_it_joins(tmp_path):
    task = Task.of(KFed, dataset="digits", limit=60, clients=(2,), p=(0.0,))
    content = app.app_of(prepare(task, in_memory=True))
    np.savez(tmp_path / "data.npz", x=np.ones((9, 8, 8, 1), np.uint8))
    (tmp_path / "site0").write_text("a key")
    config = {"site": 0, "data": f"{tmp_path}/data.npz", "out": f"{tmp_path}/site0"}
    context = Context(1, 1, config, RecordDict(), {})
    site = flower.LocalSite(content, context)
    with pytest.raises(ValueError, match="site 0 cannot write to its folder `out`"):
        site.join()
