"""Files made to do harm: nothing is executed, memory is bounded, names are text."""

import gzip
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
from PIL import Image

from experiments import spherical
from fcjax.data import arrays, images, load
from fcjax.results.store import example_names
from fcjax.sweep import experiment, train
from fcjax.sweep.plan import Task
from tests.runs.test_report import Read

HUGE = 10**12
SMALL = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)


def npy(shape, dtype="|u1", values=bytes(8)):
    """An `.npy` file by hand, whose header may say anything."""
    stored = io.BytesIO()
    header = {"shape": shape, "fortran_order": False, "descr": dtype}
    np.lib.format.write_array_header_1_0(stored, header)
    return stored.getvalue() + values


def npz(**members):
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return stored.getvalue()


def safetensors(header, length=None):
    content = json.dumps(header).encode()
    return struct.pack("<Q", length or len(content)) + content + bytes(8)


def png(width, height):
    """A PNG whose header says this size, without the pixels."""
    stored = io.BytesIO()
    Image.new("L", (1, 1)).save(stored, "png")
    content = bytearray(stored.getvalue())
    head = b"IHDR" + struct.pack(">II", width, height) + bytes(content[24:29])
    content[12:33] = head + struct.pack(">I", zipfile.crc32(head))
    return bytes(content)


# --- Programs


class Harm:
    """A pickle that writes the file `harmed`."""

    def __init__(self, folder):
        self.place = str(folder / "harmed")

    def __reduce__(self):
        return (open, (self.place, "w"))


@pytest.mark.parametrize("name", ["a.pkl", "a.pt", "a.joblib", "data_batch_1", "a.npy"])
def test_pickles_are_not_loaded(name, tmp_path):
    (tmp_path / name).write_bytes(pickle.dumps(Harm(tmp_path)))
    with pytest.raises(ValueError, match=r"pickle|not an \.npy file"):
        load(tmp_path / name)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("array", ["x", "y", "client"])
def test_pickles_in_arrays_are_not_loaded(array, tmp_path):
    harm = np.array([Harm(tmp_path)] * 3, object)
    np.save(tmp_path / "a.npy", harm)
    np.savez(tmp_path / "a.npz", **{"x": SMALL, array: harm})
    for name in ("a.npy", "a.npz"):
        with pytest.raises(ValueError, match="may hold a pickle"):
            load(tmp_path / name)
    assert not (tmp_path / "harmed").exists()


def test_postscript_as_png_runs_no_ghostscript(tmp_path, monkeypatch):
    Image.new("L", (4, 4)).save(tmp_path / "a.eps")
    (tmp_path / "a.eps").rename(tmp_path / "a.png")
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(ValueError, match=r"damaged image a\.png \(cannot identify"):
        load(tmp_path)


# --- Sizes


def h5(name, fill):
    def write(folder):
        with h5py.File(folder / name, "w") as file:
            fill(file)
        return (folder / name).read_bytes()

    return write


def sparse(file):
    obs = file.create_group("obs")
    obs.attrs["_index"], obs["cell"] = "cell", ["a", "b"]
    matrix = file.create_group("X")
    matrix.attrs.update({"encoding-type": "csr_matrix", "shape": (10**6, 10**6)})
    for part in ("data", "indices", "indptr"):
        matrix[part] = [0]


def mat(folder):
    scipy.io.savemat(folder / "some.mat", {"fea": np.ones((2, 3))})
    content = (folder / "some.mat").read_bytes()
    sizes = struct.pack("<2i", 2, 3)
    return content.replace(sizes, struct.pack("<2i", 10**6, 10**6))


BOMBS = [
    ("a.npy", npy((HUGE,)), "is damaged or not an .npy file"),
    ("a.npy", npy((2**62, 2**62)), "is damaged or not an .npy file"),
    ("a.npz", npz(x=npy((HUGE,))), "expands to at least 931.3 GiB"),
    ("a.npz", npz(x=npy((-1, 4))), "array x that is damaged"),
    ("a.npz", npz(x=npy((2,)), y=npy((HUGE,))), "expands to at least"),
    ("a.npz", npz(x=npy((2**20, 2**6))), "array x that is damaged"),
    ("a.idx", bytes([0, 0, 8, 3]) + b"\xff" * 12 + bytes(9), "but its header says"),
    ("a.idx", bytes([0, 0, 8, 200]) + b"\0\0\0\1" * 200 + bytes(1), "dimension"),
    ("a.safetensors", safetensors({}, length=2**62), "not a .safetensors file"),
    (
        "a.safetensors",
        safetensors({"x": {"dtype": "U8", "shape": [HUGE], "data_offsets": [0, 8]}}),
        "not a .safetensors file",
    ),
    ("a.h5", h5("some", lambda f: f.create_dataset("x", (HUGE,))), "expands to at"),
    ("a.h5ad", h5("some", sparse), "expands to at least 7.3 TiB"),
    ("a.mat", mat, "expands to at least 7.3 TiB"),
    ("a.json", b"[" * 10**6, "is damaged or not a .json file"),
]


# The bytes of an .npz contain the time, which may differ between the workers of a run.
@pytest.mark.parametrize(
    ("name", "content", "message"), BOMBS, ids=[str(i) for i in range(len(BOMBS))]
)
def test_headers_that_promise_too_much(name, content, message, tmp_path):
    content = content(tmp_path) if callable(content) else content
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"^dataset .*") as caught:
        load(tmp_path / name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


LIMITED = """
import resource, sys
from fcjax.data import arrays, load
arrays.LEAST_LIMIT = 2**24
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, used + 2**26))
for path in sys.argv[1:]:
    try:
        load(path)
    except ValueError as error:
        print(error)
"""


def test_compressed_files_stop_at_the_limit(tmp_path):
    """128 MiB from files of less than 1 MiB, with 64 MiB of memory to load them."""
    zeros = bytes(2**27)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(zeros, 6))
    (tmp_path / "a-ubyte.gz").write_bytes(gzip.compress(zeros, 6))
    (tmp_path / "a.npz").write_bytes(npz(x=npy((2**14, 2**13), values=zeros)))
    paths = [str(tmp_path / name) for name in ("a.csv.gz", "a-ubyte.gz", "a.npz")]
    found = subprocess.run(
        [sys.executable, "-c", LIMITED, *paths],
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )
    lines = found.stdout.splitlines()
    assert len(lines) == 3
    for path, line in zip(paths, lines, strict=True):
        assert line.startswith(f"dataset {path} expands to at least")


def test_the_limit_is_a_multiple_of_the_file_or_the_free_memory(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((100, 1000), np.uint8))
    size = path.stat().st_size
    monkeypatch.setattr(arrays, "LEAST_LIMIT", 0)
    monkeypatch.setattr(arrays, "host_memory", lambda: 10**6)
    assert arrays.expansion_limit(path) == 100 * size
    monkeypatch.setattr(arrays, "host_memory", lambda: 50)
    with pytest.raises(ValueError, match=r"97\.7 KiB, but the limit is 50 B"):
        load(path)


def test_images_that_are_too_large(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(png(60000, 60000))
    with pytest.raises(ValueError, match=r"damaged image a\.png .*3600000000 pixels"):
        load(tmp_path)
    (tmp_path / "a.png").write_bytes(png(5000, 5000))
    monkeypatch.setattr(images, "host_memory", lambda: 2**20)
    with pytest.raises(ValueError, match=r"23\.8 MiB in all, but the free memory is"):
        load(tmp_path)


# --- Other files


def test_links_out_of_a_folder_are_refused(tmp_path):
    folder, secret = tmp_path / "own", tmp_path / "secret"
    for place in (folder / "cat", folder / "dog", secret):
        place.mkdir(parents=True)
        Image.fromarray(SMALL[0]).save(place / "1.png")
    (folder / "dog" / "2.png").symlink_to("../cat/1.png")
    (tmp_path / "link").symlink_to(folder)
    assert load(tmp_path / "link").labels.tolist() == [0, 1, 1]
    (folder / "cat" / "2.png").symlink_to(secret / "1.png")
    with pytest.raises(ValueError, match=r"has the link cat/2\.png to a place outside"):
        load(folder)
    (folder / "cat" / "2.png").unlink()
    (folder / "bird").symlink_to(secret)
    with pytest.raises(ValueError, match="has the link bird to a place outside"):
        load(folder)


def test_hdf5_does_not_read_other_files(tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = SMALL
    (tmp_path / "secret.bin").write_bytes(bytes(12))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = h5py.ExternalLink("secret.h5", "x")
    with pytest.raises(ValueError, match="its arrays are none"):
        load(tmp_path / "a.h5")
    outside = [(str(tmp_path / "secret.bin"), 0, 12)]
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("x", (3, 2, 2), "u1", external=outside)
    with pytest.raises(ValueError, match="its values are in other files"):
        load(tmp_path / "b.h5")
    layout = h5py.VirtualLayout((3, 2, 2), "u1")
    layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "x", (3, 2, 2))
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    with pytest.raises(ValueError, match="its values are in other files"):
        load(tmp_path / "c.h5")


# --- Names

ODD = ["<script>alert(1)", 'a"onmouseover="x', "two\nlines\x1b[2J", "$(touch x)"]
ODD += [
    "x..%2f..%2fy",
    "'; DROP",
    "{{ 7 * 7 }}",
    "$x$ ^_",
    "<img src=x onerror=alert(3)>",
]


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """A folder of images, in which the folder, classes and files have odd names."""
    folder = tmp_path_factory.mktemp("place") / '<img src="x" onerror="alert(2)">'
    rng = np.random.default_rng(0)
    for name in ODD:
        (folder / name).mkdir(parents=True)
        for place in (
            folder / name / f"{name}.png",
            folder / name / os.fsdecode(b"\xff.png"),
        ):
            Image.fromarray(rng.integers(0, 255, (8, 8), np.uint8)).save(place, "png")
    return folder


def test_names_stay_text_in_the_report(odd, tmp_path, capsys):
    before = set(odd.parent.rglob("*"))
    flags = {"clients": (2,), "p": (0.0,), "clusters": (2,), "plot": True}
    out = tmp_path / "out"
    task = Task.of(spherical.Spherical, out=out, dataset=str(odd), **flags)
    train.execute(experiment.prepare(task))
    assert "\x1b" not in capsys.readouterr().out
    assert set(odd.parent.rglob("*")) == before
    assert list(tmp_path.iterdir()) == [out]
    report = Attributes(out / "report.html")
    assert not report.tags & {"script", "iframe", "object", "embed"}
    assert not [name for name in report.attributes if name.startswith("on")]
    assert all(x.startswith("data:image/png;base64,") for x in report.sources)
    assert len(load(odd).examples) == 2 * len(ODD)
    titles = [title for sheet in report.sheets.values() for title in sheet]
    assert sorted(titles) == sorted(example_names(load(odd)))
    assert '<img src="x" onerror="alert(2)">' in report.text


class Attributes(Read):
    """The report with the names of all attributes."""

    def __init__(self, path: Path):
        self.attributes = set()
        super().__init__(path)

    def handle_starttag(self, tag, attrs):
        self.attributes |= {name for name, _ in attrs}
        super().handle_starttag(tag, attrs)


def test_notes_and_errors_have_no_control_characters(odd, tmp_path):
    found = load(odd)
    assert all(x.isprintable() for x in [*found.notes, *found.names])
    np.savez(tmp_path / "a.npz", **{"\x1b[31m": SMALL})
    with pytest.raises(ValueError, match=r"no array \\x1b\[2J") as caught:
        load(tmp_path / "a.npz", array="\x1b[2J")
    assert str(caught.value).isprintable()
