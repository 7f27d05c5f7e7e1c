"""MATLAB files, read by a process of its own: a damaged one may end what reads it.

This file is that process's program, too; there it imports nothing of fcjax.
"""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np

OLD_FORMAT = 3
"""The exit status where the file is one that SciPy does not read."""
KINDS = "biufcSU"
"""Of arrays that are sent: those of numbers and of text, and no Python objects."""


def read_mat(path: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the arrays `fea` and `gnd` of a file, those of cells and the like as
    Python objects without a value, and the names of all it has.

    Raises:
        ValueError: it is damaged, or of MATLAB 7.3.
    """
    # -P: beside this file lie others that are called as libraries are.
    program, content = [sys.executable, "-P", __file__], path.read_bytes()
    found = subprocess.run(program, input=content, capture_output=True, check=False)
    if found.returncode == OLD_FORMAT:
        raise ValueError(
            "is a MATLAB 7.3 (HDF5) file, which is not read; save it with -v7"
        )
    if found.returncode != 0:
        raise ValueError("is damaged or no .mat file")
    arrays = dict(np.load(io.BytesIO(found.stdout)))
    names = arrays.pop("").tolist()
    for name in {"fea", "gnd"} & set(names) - set(arrays):
        arrays[name] = np.empty((2, 1), object)
    return arrays, names


def main() -> None:
    """Writes what is read on standard output, as an .npz whose array of no name holds
    the names."""
    import scipy.io

    try:
        content = io.BytesIO(sys.stdin.buffer.read())
        # Without mat_dtype a double array of 0 and 1 comes as uint8, so as 0..255.
        arrays = scipy.io.loadmat(content, mat_dtype=True)
    except NotImplementedError:
        sys.exit(OLD_FORMAT)
    names = [name for name in arrays if not name.startswith("__")]
    wanted = {name: np.asarray(arrays[name]) for name in {"fea", "gnd"} & set(names)}
    kept = {name: x for name, x in wanted.items() if x.dtype.kind in KINDS}
    sent = io.BytesIO()
    np.savez(sent, **{"": np.array(names, str)}, **kept)  # pyright: ignore
    sys.stdout.buffer.write(sent.getbuffer())


if __name__ == "__main__":
    main()
