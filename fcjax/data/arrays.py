"""Arrays in files: NumPy, MATLAB, HDF5, AnnData, safetensors and LEAF.

No reader runs a program from a file: pickles are refused. The size of an array is
checked with its header, before the array is read.
"""

import contextlib
import dataclasses
import gzip
import io
import json
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fcjax.data.dataset import Content, decoding, printable
from fcjax.data.federation import host_memory, readable
from fcjax.data.source import Source

# --- Limits

MOST_EXPANSION, LEAST_LIMIT = 100, 2**30
"""A file expands to at most `MOST_EXPANSION` times its size or to `LEAST_LIMIT` bytes,
whichever is larger, and never to more than the free memory."""
PICKLE = (
    "may hold a pickle, and a pickle can run any program, so fcjax does not read it; "
    "save the arrays with np.savez or safetensors. CIFAR-10 is also available as "
    "cifar10 of TFDS and as hf:PATH"
)


def expansion_limit(path: Path) -> int:
    """Returns the largest number of bytes that a compressed file may expand to.

    Args:
      path: the path of the file.

    Returns:
      The smaller of the free memory and 100 times the file size, where 100 times the
      file size counts as at least 1 GiB.
    """
    size = path.stat().st_size
    return min(host_memory(), max(LEAST_LIMIT, MOST_EXPANSION * size))


def check_size(path: Path, num_bytes: int) -> None:
    """Checks that the content of a file is not far larger than the file.

    Args:
      path: the path of the file.
      num_bytes: the size of the content in bytes.

    Raises:
      ValueError: the size is above `expansion_limit`.
    """
    if num_bytes > (limit := expansion_limit(path)):
        raise ValueError(
            f"expands to at least {readable(num_bytes)}, but the limit is "
            f"{readable(limit)}: the free memory, or {MOST_EXPANSION} times the file "
            "size and at least 1 GiB; if this size is correct, save the file without "
            "compression"
        )


def read_unpacked(path: Path) -> bytes:
    """Returns the content of a file, decompressed if it is gzip.

    Args:
      path: the path of the file.

    Returns:
      The bytes.

    Raises:
      ValueError: the gzip data is damaged, or it expands to more than
        `expansion_limit`.
    """
    content = path.read_bytes()
    # Test the content and not the name, because browsers may decompress a .gz file
    # without renaming it.
    if content[:2] != b"\x1f\x8b":
        return content
    chunks, size, limit = [], 0, expansion_limit(path)
    with (
        decoding(f"is damaged: {path.name} cannot be decompressed"),
        gzip.GzipFile(fileobj=io.BytesIO(content)) as stream,
    ):
        while size <= limit and (chunk := stream.read(2**20)):
            chunks.append(chunk)
            size += len(chunk)
    check_size(path, size)
    return b"".join(chunks)


def refuse_pickle(path: Path, source: Source) -> Content:
    """Refuses a file that may hold a pickle, because a pickle can run any program.

    Args:
      path: the path of the file.
      source: the settings.

    Returns:
      Nothing.

    Raises:
      ValueError: always.
    """
    raise ValueError(PICKLE)


# --- Arrays with names

EXAMPLES = ("x", "X", "data", "images", "features", "embeddings")
LABELS = ("y", "labels", "label", "targets", "target")
CLIENTS = ("client", "clients", "client_id", "site", "sites", "user", "users")
"""Names that arrays of examples, labels and clients usually have."""
SPLITS = ("train", "val", "test")
"""Prefixes and suffixes of arrays that are split, in the order of the examples."""
NAMES_SHOWN = 10

Header = tuple[tuple[int, ...], np.dtype]


class Arrays(NamedTuple):
    """The arrays of a file, which are read one by one."""

    names: Sequence[str]
    """The names of the arrays."""
    header: Callable[[str], Header]
    """Returns the shape and the type of an array, without its values."""
    read: Callable[[str], np.ndarray]
    """Returns the values of an array."""

    def listed(self) -> str:
        """Returns the first names and shapes as text."""
        shown = []
        for name in self.names[:NAMES_SHOWN]:
            with contextlib.suppress(ValueError):  # Other kinds of data have no shape.
                name = f"{name} {self.header(name)[0]}"
            shown.append(name)
        more = [f"... {len(self.names)} in all"] * (len(self.names) > NAMES_SHOWN)
        return ", ".join([*shown, *more]) or "none"

    def choose(
        self, setting: str, source: Source, usual: Sequence[str]
    ) -> dict[str, str]:
        """Returns the array of a setting, or the arrays of its splits.

        Args:
          setting: `array`, `label_array` or `client_array`.
          source: the settings.
          usual: the accepted names if the setting is None.

        Returns:
          The name of the array by split; the split is "" for an array without splits.
          Without an array of a usual name, the result is empty.

        Raises:
          ValueError: the array does not exist, or several arrays have usual names.
        """
        given = getattr(source, setting)
        found = []
        for name in usual if given is None else [given]:
            parts = {
                split: candidate
                for split in SPLITS
                for candidate in (f"{split}_{name}", f"{name}_{split}")
                if candidate in self.names
            }
            if name in self.names:
                parts = {"": name}
            found += [parts] if parts else []
        if len(found) > 1:
            both = " and ".join(next(iter(parts.values())) for parts in found)
            raise ValueError(f"has both arrays {both}; choose one with `{setting}`")
        if not found and given is not None:
            raise ValueError(
                f"has no array {given} (`{setting}`); its arrays are {self.listed()}"
            )
        parts = found[0] if found else {}
        if source.split == "all" or not parts:
            return parts
        if source.split not in parts:
            splits = ", ".join(filter(None, parts)) or "none, so `split` must be all"
            raise ValueError(f"has no split {source.split}; its splits are {splits}")
        return {source.split: parts[source.split]}

    def content(self, path: Path, source: Source) -> Content:
        """Reads the examples, labels and clients.

        Args:
          path: the path of the file, whose size limits the size of the arrays.
          source: the settings.

        Returns:
          The content.

        Raises:
          ValueError: an array is missing, damaged, too large or of Python objects.
        """
        values = self.choose("array", source, EXAMPLES)
        if not values:
            raise ValueError(
                f"has no array {', '.join(EXAMPLES[:-1])} or {EXAMPLES[-1]}; its "
                f"arrays are {self.listed()}; choose one with `array`"
            )
        labels = self.choose("label_array", source, LABELS) if source.labels else {}
        clients = self.choose("client_array", source, CLIENTS)
        for setting, parts in (("label_array", labels), ("client_array", clients)):
            if parts and list(parts) != list(values):
                raise ValueError(
                    f"has the arrays {', '.join(values.values())}, which do not match "
                    f"{', '.join(parts.values())}; choose others with `{setting}`"
                )
        chosen = [*values.values(), *labels.values(), *clients.values()]
        num_bytes = 0
        for name in chosen:
            shape, dtype = self.header(name)
            if dtype.hasobject:
                raise ValueError(f"has an array {name} of Python objects; it {PICKLE}")
            num_bytes += math.prod(shape) * dtype.itemsize
        check_size(path, num_bytes)
        notes = []
        if len(values) > 1:
            notes.append(f"arrays {', '.join(values.values())} joined in this order")
        if clients:
            notes.append(f"clients read from {', '.join(clients.values())}")
        others = [name for name in self.names if name not in chosen]
        if source.labels and not labels and others:
            notes.append(
                "no array has a usual name of labels; `label_array` can name one of "
                f"{', '.join(others[:NAMES_SHOWN])}"
            )
        return Content(
            self._joined(values),
            self._joined(labels) if labels else None,
            notes,
            self._joined(clients) if clients else None,
        )

    def _joined(self, parts: dict[str, str]) -> np.ndarray:
        """Returns the arrays of all splits as one array."""
        arrays = [self.read(name) for name in parts.values()]
        if len(arrays) == 1:
            return arrays[0]
        with decoding(f"has arrays {', '.join(parts.values())} of different shapes"):
            return np.concatenate(arrays)


# --- NumPy and MATLAB


def _header(stream: Any) -> Header:
    """Returns the shape and the type of an `.npy` file."""
    numpy_format = np.lib.format
    readers = {
        (1, 0): numpy_format.read_array_header_1_0,
        (2, 0): numpy_format.read_array_header_2_0,
    }
    shape, _, dtype = readers[numpy_format.read_magic(stream)](stream)
    return shape, dtype


def read_npy(path: Path, source: Source) -> Content:
    """Maps the array of an `.npy` file into memory; the examples have no labels.

    Args:
      path: the path of the file.
      source: the settings; `labels` is used.

    Returns:
      The values, which are read from the file when they are used.

    Raises:
      ValueError: the file is damaged or holds Python objects.
    """
    fault = "is damaged or not an .npy file"
    with path.open("rb") as stream, decoding(fault):
        _, dtype = _header(stream)
    if dtype.hasobject:
        raise ValueError(PICKLE)
    with decoding(fault):
        values = np.asarray(np.lib.format.open_memmap(path, mode="r"))
    notes = ["no labels, because an .npy file has one array"] if source.labels else []
    return Content(values, notes=notes)


def read_npz(path: Path, source: Source) -> Content:
    """Reads the arrays of an `.npz` file, see `Arrays`.

    Args:
      path: the path of the file.
      source: the settings.

    Returns:
      The values, and the labels and clients if the file has them.

    Raises:
      ValueError: the file is damaged, or `Arrays.content` refuses its arrays.
    """
    with path.open("rb") as stream:
        with decoding("is damaged or not an .npz file"):
            archive = zipfile.ZipFile(stream)
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}

        @contextlib.contextmanager
        def opened(name: str) -> Iterator[Any]:
            with (
                decoding(f"has an array {name} that is damaged or not numeric"),
                archive.open(members[name]) as member,
            ):
                yield member

        def header(name: str) -> Header:
            with opened(name) as member:
                return _header(member)

        def read(name: str) -> np.ndarray:
            with opened(name) as member:
                return np.lib.format.read_array(member, allow_pickle=False)

        return Arrays(list(members), header, read).content(path, source)


def read_mat(path: Path, source: Source) -> Content:
    """Reads the arrays `fea` [P, F] and `gnd` of a MATLAB file up to version 7.

    Rows of s x s values with s >= 8 are read as images stored column by column.

    Args:
      path: the path of the file.
      source: the settings; `labels` and `image_shape` are used.

    Returns:
      The values, and the labels if the file has `gnd`. A note tells if rows were read
      as images.

    Raises:
      ValueError: the file is damaged, or has no array `fea`.
    """
    import scipy.io

    used, stored = ("fea", "gnd"), io.BytesIO(path.read_bytes())
    fault = "is damaged or not a .mat file"
    with decoding(fault):
        shapes = {name: shape for name, shape, _ in scipy.io.whosmat(stored)}
    check_size(path, sum(8 * math.prod(shapes.get(name, (0,))) for name in used))
    if "fea" not in shapes:
        names = ", ".join(f"{k} {v}" for k, v in list(shapes.items())[:NAMES_SHOWN])
        raise ValueError(f"has no array fea; its arrays are {names or 'none'}")
    with decoding(fault):
        # Without mat_dtype, a double array of 0 and 1 becomes uint8 and means 0 to 255.
        arrays = scipy.io.loadmat(stored, mat_dtype=True, variable_names=used)
    values, labels = np.asarray(arrays["fea"]), None
    if source.labels and "gnd" in arrays:
        labels = np.asarray(arrays["gnd"])
        if labels.shape == (1, len(values)):  # as SciPy writes a vector
            labels = labels[0]
    side = math.isqrt(values.shape[1]) if values.ndim == 2 else 0
    if source.image_shape or side < 8 or side**2 != values.shape[1]:
        return Content(values, labels)
    note = f"rows read as {side}x{side} images stored column by column"
    values = values.reshape(-1, side, side).transpose(0, 2, 1)
    return Content(values, labels, [note])


# --- HDF5


class _H5(NamedTuple):
    """An open HDF5 file."""

    path: Path
    objects: dict[str, Any]
    """Groups and data sets by path, without links to other places or files."""

    def is_kind(self, name: str, kind: str) -> bool:
        """Returns whether AnnData's name for this kind of element has a word."""
        return kind in str(self.objects[name].attrs.get("encoding-type", ""))

    def is_dataset(self, name: str) -> bool:
        """Returns whether the object of this path is an array."""
        return getattr(self.objects[name], "shape", None) is not None

    def header(self, name: str) -> Header:
        """Returns the shape and the type of an array or of an element of AnnData."""
        import h5py

        with decoding(f"has an array {name} that cannot be read"):
            if self.is_dataset(name):
                dataset = self.objects[name]
                is_text = h5py.check_string_dtype(dataset.dtype)
                return dataset.shape, np.dtype("S16") if is_text else dataset.dtype
            if self.is_kind(name, "matrix"):
                shape = tuple(map(int, self.objects[name].attrs["shape"]))
                return shape, self.objects[f"{name}/data"].dtype
            kind = "codes" if self.is_kind(name, "categorical") else "values"
            return self.header(f"{name}/{kind}")

    def read(self, name: str) -> np.ndarray:
        """Returns an array or an element of AnnData: sparse, categorical or masked."""
        with decoding(f"has an array {name} that cannot be read"):
            if self.is_dataset(name):
                return self._values(name)
            if self.is_kind(name, "matrix"):
                return self._dense(name)
            if self.is_kind(name, "categorical"):
                codes = self._values(f"{name}/codes")
                categories = self._values(f"{name}/categories")
                missing = codes < 0
                values = categories[np.where(missing, 0, codes)]
            else:
                values, missing = (
                    self._values(f"{name}/{x}") for x in ("values", "mask")
                )
            return (
                np.where(missing, "", values.astype(str)) if missing.any() else values
            )

    def _values(self, name: str) -> np.ndarray:
        """Returns the values of a data set."""
        import h5py

        dataset, (shape, dtype) = self.objects[name], self.header(name)
        check_size(self.path, math.prod(shape) * dtype.itemsize)
        if dataset.external or dataset.is_virtual:
            raise ValueError("its values are in other files")
        if h5py.check_string_dtype(dataset.dtype):
            return np.array(dataset.asstr()[()].tolist(), str)
        return np.asarray(dataset[()])

    def _dense(self, name: str) -> np.ndarray:
        """Returns a sparse matrix as a dense array."""
        import scipy.sparse

        shape, _ = self.header(name)
        parts = [self._values(f"{name}/{x}") for x in ("data", "indices", "indptr")]
        is_csr = self.is_kind(name, "csr")
        kind = scipy.sparse.csr_matrix if is_csr else scipy.sparse.csc_matrix
        matrix = kind(tuple(parts), shape=shape)
        # SciPy would write to any address that a wrong index names.
        matrix.check_format(full_check=True)
        return matrix.toarray()


@contextlib.contextmanager
def _h5(path: Path) -> Iterator[_H5]:
    """Opens an HDF5 file; links to other files are not followed."""
    try:
        import h5py
    except ImportError as error:
        raise ValueError(
            "requires a package that is not installed; run: pip install h5py"
        ) from error
    objects: dict[str, Any] = {}
    with path.open("rb") as stream:
        with decoding("is damaged or not an HDF5 file"):
            file = h5py.File(stream, "r")
            # A name that is not valid text has the type bytes.
            file.visititems(lambda name, found: objects.update({str(name): found}))
        with file:
            yield _H5(path, objects)


def read_h5(path: Path, source: Source) -> Content:
    """Reads the data sets of an HDF5 file, see `Arrays`.

    Args:
      path: the path of the file.
      source: the settings. The names of arrays are paths in the file.

    Returns:
      The values, and the labels and clients if the file has them.

    Raises:
      ValueError: the file is damaged, the package h5py is not installed, or
        `Arrays.content` refuses its arrays.
    """
    with _h5(path) as file:
        names = [name for name in file.objects if file.is_dataset(name)]
        return Arrays(names, file.header, file.read).content(path, source)


def read_h5ad(path: Path, source: Source) -> Content:
    """Reads an AnnData file: a matrix of cells, with columns of `obs`.

    Args:
      path: the path of the file.
      source: the settings. `array` is `X` (the default) or a path such as `obsm/X_pca`.
        `label_array` and `client_array` are columns of `obs`.

    Returns:
      The values, the labels and clients if they are given, and the names of the cells.

    Raises:
      ValueError: the file is damaged, the package h5py is not installed, or
        `Arrays.content` refuses its arrays.
    """

    def column(name: str | None) -> str | None:
        return name and f"obs/{name.removeprefix('obs/')}"

    with _h5(path) as file:
        index = (
            file.objects["obs"].attrs.get("_index") if "obs" in file.objects else None
        )
        if index is None:
            raise ValueError(
                "has no group obs with an index; write it with AnnData 0.7 or later"
            )
        parents = ("obs", "obsm", "layers")
        names = [
            name
            for name in file.objects
            if name != f"obs/{index}"
            and (name == "X" or (name.count("/") == 1 and name.startswith(parents)))
        ]
        source = dataclasses.replace(
            source,
            array=source.array or "X",
            label_array=column(source.label_array),
            client_array=column(source.client_array),
        )
        content = Arrays(names, file.header, file.read).content(path, source)
        cells = file.read(f"obs/{index}")
        if len(cells) != len(content.values):
            raise ValueError(
                f"has {len(content.values)} examples but {len(cells)} rows of obs"
            )
        return content._replace(names=np.array(list(map(printable, map(str, cells)))))


# --- safetensors

_TYPES = {
    "BOOL": "?",
    **{f"{k}{8 * n}": f"{k.lower()}{n}" for k in "IU" for n in (1, 2, 4, 8)},
}
_TYPES |= {"F16": "f2", "F32": "f4", "F64": "f8"}


def read_safetensors(path: Path, source: Source) -> Content:
    """Reads the tensors of a `.safetensors` file, see `Arrays`.

    Args:
      path: the path of the file.
      source: the settings.

    Returns:
      The values, and the labels and clients if the file has them.

    Raises:
      ValueError: the file is damaged, or `Arrays.content` refuses its arrays.
    """
    from safetensors import safe_open

    with decoding("is damaged or not a .safetensors file"):
        opened = safe_open(path, framework="np")
    with opened as file:

        def header(name: str) -> Header:
            stored = file.get_slice(name)
            if (kind := stored.get_dtype()) not in _TYPES:
                raise ValueError(
                    f"has an array {name} of type {kind}; accepted are "
                    f"{', '.join(_TYPES)}"
                )
            return tuple(stored.get_shape()), np.dtype(_TYPES[kind])

        names = sorted(file.keys())
        return Arrays(names, header, file.get_tensor).content(path, source)


# --- LEAF


def read_leaf(path: Path, source: Source) -> Content:
    """Reads a `.json` file of LEAF, whose users are the clients.

    Args:
      path: the path of the file.
      source: the settings; `labels` is used.

    Returns:
      The rows of all users in the order of `users`, their labels and their clients.

    Raises:
      ValueError: the file is damaged or not of LEAF, or its examples are text.
    """

    def arrays(part: dict[str, Any]) -> dict[str, Any]:
        # Arrays need less memory than lists, so each user is converted when it is read.
        return {
            key: np.array(value)
            if key in ("x", "y") and isinstance(value, list)
            else value
            for key, value in part.items()
        }

    with decoding("is damaged or not a .json file"):
        content = json.loads(path.read_bytes(), object_hook=arrays)
    is_leaf = isinstance(content, dict) and {"users", "user_data"} <= set(content)
    if not is_leaf or not content["users"]:
        raise ValueError(
            "is not a file of LEAF; accepted is an object with users, num_samples and "
            "user_data"
        )
    with decoding("is damaged: each user needs user_data with x and y"):
        users = list(map(str, content["users"]))
        parts = [content["user_data"][user] for user in users]
        values, labels = ([part[key] for part in parts] for key in ("x", "y"))
        sizes = list(map(len, values))
        wrong = [u for u, n, y in zip(users, sizes, labels, strict=True) if len(y) != n]
    for user, rows in zip(users, values, strict=True):
        if rows.dtype.kind in "US":
            raise ValueError(
                f"has text in x of the user {user}; accepted are numbers, so convert "
                "each text to a vector first"
            )
    if wrong:
        raise ValueError(
            f"has different numbers of x and y for the user {wrong[0]}; one label per "
            "example is required"
        )
    with decoding("has users with examples of different shapes"):
        joined = np.concatenate([x for x in values if len(x)])
        classes = np.concatenate([y for y in labels if len(y)])
    return Content(
        joined,
        classes if source.labels else None,
        [f"clients are the users of the file, {len(users)} in all"],
        np.repeat(users, sizes),
    )
