"""Images in folders and streams, read with Pillow, and resizing of images.

Resizing makes images square with Pillow's bilinear filter. A new pixel is the mean of
all pixels that it covers (antialiasing). Height and width are scaled separately, and
nothing is cropped, as in the evaluation of Contrastive Clustering (Li et al., 2021).
"""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fcjax.data.dataset import Content, counted, decoding, printable
from fcjax.data.federation import host_memory, readable
from fcjax.data.source import Source

# --- Resizing


def resize_images(images: np.ndarray, size: int) -> np.ndarray:
    """Resizes images to squares, one image at a time to save memory.

    Args:
      images: [P, H, W, C] images.
      size: height and width of the result in pixels.

    Returns:
      [P, size, size, C] images: uint8, rounded to the nearest, for uint8 images, else
      float32.
    """
    if images.shape[1:3] == (size, size):
        return images
    result = np.empty((len(images), size, size, images.shape[3]), images.dtype)
    for number, image in enumerate(images):
        result[number] = resize_image(image, size)
    return result


def resize_image(image: np.ndarray, size: int) -> np.ndarray:
    """Resizes one image to a square, see `resize_images`.

    Args:
      image: [H, W, C] values; C is 3 for colour images.
      size: the side length of the result in pixels.

    Returns:
      The image [size, size, C].
    """
    from PIL import Image

    def bilinear(pixels):
        target = Image.Resampling.BILINEAR
        return np.asarray(Image.fromarray(pixels).resize((size, size), target))

    # Pillow would take the last of two or four channels as opacity.
    if image.dtype == np.uint8 and image.shape[2] == 3:
        return bilinear(image)
    return np.stack([bilinear(plane) for plane in np.moveaxis(image, 2, 0)], axis=2)


# --- Folders

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_SUFFIXES += (".ppm", ".pgm")


SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""The split that a folder name means, in lower case. Splits are read in this order."""
_NAMES_SHOWN = 5


class Tree(NamedTuple):
    """The images of a folder, in the order in which they are read."""

    files: list[Path]
    """The paths of the images."""
    depth: int
    """The number of folders between the folder (or the folder of a split) and an image:
    0, 1 or 2."""
    has_clients: bool
    """Whether the outer folders are clients."""
    notes: list[str]
    """One line per decision about the folders."""


def read_images(folder: Path, source: Source) -> Content:
    """Reads all images of a folder in natural order (2 before 10), class by class.

    Args:
      folder: a folder of images, of CLASS/ folders, or of CLIENT/CLASS/ folders; or a
        folder of train/, test/ and similar folders with one of these structures, see
        `SPLITS`.
      source: the settings.

    Returns:
      Images [P, H, W, C] with C = 1 if most of them are grey, else 3: uint8, or
      float32 in [0, 1] for images of 16 bits or of floats. Labels [P] are the names of
      the classes, or None without class folders. Clients [P] are the names of the
      clients, or None. Notes have one line per conversion.

    Raises:
      ValueError: there are no images or no such split, some splits have classes and
        others have none, a link leads out of the folder, or an image is damaged, too
        large or, without `resize`, of another size.
    """
    tree = image_files(folder, split=source.split, client_folders=source.client_folders)
    if not tree.files:
        raise ValueError(
            "has no images; accepted are png, jpg, bmp, gif, tif, webp, ppm and pgm "
            "files in the folder itself, in one folder per class or in CLIENT/CLASS/, "
            "and the four IDX files; convert other formats, such as DICOM, to png or "
            "tif of 16 bits"
        )
    _check_links(folder, tree.files)
    names = [printable(str(file.relative_to(folder))) for file in tree.files]
    streams = [partial(file.open, "rb") for file in tree.files]
    images, conversions = decode_images(names, streams, source.resize)
    inner = np.array([file.parent.name for file in tree.files])
    outer = np.array([file.parent.parent.name for file in tree.files])
    clients = (outer if tree.depth == 2 else inner) if tree.has_clients else None
    has_classes = tree.depth == 2 or (tree.depth == 1 and not tree.has_clients)
    labels = inner if source.labels and has_classes else None
    return Content(images, labels, tree.notes + conversions, clients, np.array(names))


def image_files(
    folder: Path, *, split: str = "all", client_folders: bool = False
) -> Tree:
    """Lists the images of a folder in the order in which `read_images` reads them.

    Args:
      folder: the folder; `read_images` explains its structure.
      split: `all`, `train`, `validation` or `test`.
      client_folders: whether the outer folders are clients, whatever their names are.

    Returns:
      The images.

    Raises:
      ValueError: there is no such split, or the splits have different structures.
    """
    paths = sorted(folder.iterdir(), key=_natural)
    visible = [path for path in paths if _is_visible(path)]
    subfolders = [path for path in visible if path.is_dir()]
    splits = [SPLITS.get(sub.name.lower()) for sub in subfolders]
    has_images = any(map(_is_image, set(visible) - set(subfolders)))
    if client_folders or has_images or not splits or None in splits:
        if split != "all":
            raise ValueError("has no folders train and test, so `split` must be all")
        return _tree(folder, client_folders)
    selected = [
        sub
        for kind in dict.fromkeys(SPLITS.values())
        for sub, split_of_sub in zip(subfolders, splits, strict=True)
        if split_of_sub == kind and split in ("all", kind)
    ]
    if not selected:
        available = ", ".join(sub.name for sub in subfolders)
        raise ValueError(f"has no split {split}; its folders are {available}")
    trees = [tree for sub in selected if (tree := _tree(sub, False)).files]
    names = ", ".join(sub.name for sub in selected)
    if len({(tree.depth, tree.has_clients) for tree in trees}) > 1:
        raise ValueError(
            f"has folders {names} with different structures, for example classes in "
            "only one of them; select one with `split`"
        )
    note = f"folder {names} read as a split"
    if len(selected) > 1:
        note = f"folders {names} read as splits" + ", all used" * (split == "all")
    files = [file for tree in trees for file in tree.files]
    notes = [note, *(note for tree in trees for note in tree.notes)]
    first = trees[0] if trees else Tree([], 0, False, [])
    return first._replace(files=files, notes=notes)


def _tree(folder: Path, client_folders: bool) -> Tree:
    """Returns the images of a folder without splits.

    They are the images in the subfolders; else those in the folder itself; else those
    two folders deep.
    """
    files = [
        [path for path in folder.glob(pattern) if not path.is_dir()]
        for pattern in ("*", "*/*", "*/*/*")
    ]
    visible = [
        [path for path in paths if all(map(_is_visible, (path, *path.parents[:depth])))]
        for depth, paths in enumerate(files)
    ]
    images = [sorted(filter(_is_image, paths), key=_natural) for paths in visible]
    depth = next((depth for depth in (1, 0, 2) if images[depth]), 0)
    selected, notes = images[depth], []
    num_images = sum(_is_image(path) for paths in files for path in paths)
    if num_hidden := num_images - sum(map(len, images)):
        notes.append(
            f"{counted(num_hidden, 'image')} ignored, because the name of the file or "
            "of its folder begins with a dot"
        )
    if skipped := sorted({path for paths in visible for path in paths} - {*selected}):
        names = ", ".join(path.name for path in skipped[:3])
        names += ", ..." if len(skipped) > 3 else ""
        notes.append(
            f"{counted(len(skipped), 'file')} skipped: not an image, or in a folder "
            f"that is not read ({names})"
        )
    if depth == 0:
        if client_folders:
            raise ValueError(
                "has no subfolders with images, but `client_folders` requires one "
                "folder per client"
            )
        return Tree(selected, 0, False, notes)
    inner = [path.parent for path in selected]
    outer = list(dict.fromkeys(path.parents[depth - 1] for path in selected))
    classes = [path.name for path in dict.fromkeys(inner)]
    shares_class = depth == 2 and len(set(classes)) < len(classes)
    names = ", ".join(path.name for path in outer[:_NAMES_SHOWN])
    names += ", ..." * (len(outer) > _NAMES_SHOWN)
    if client_folders or shares_class:
        notes.append(f"clients are the {len(outer)} folders {names}")
    elif depth == 2:
        notes.append(
            f"folders {names} are not clients, because they have no class in common; "
            "`client_folders` makes them clients"
        )
    return Tree(selected, depth, client_folders or shares_class, notes)


def _check_links(folder: Path, files: Sequence[Path]) -> None:
    """Checks that no image is a link to a place outside of the folder.

    A folder of unknown origin could otherwise show other files of this computer in a
    report.
    """
    root = folder.resolve()
    depth = len(folder.parts)
    inner = {
        part
        for file in files
        for part in (file, *file.parents)
        if len(part.parts) > depth
    }
    for path in sorted(inner):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise ValueError(
                f"has the link {path.relative_to(folder)} to a place outside of the "
                "folder; copy the images into the folder"
            )


def _is_visible(path: Path) -> bool:
    """Returns whether a path is not hidden by a dot."""
    return not path.name.startswith(".")


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES


def _natural(path: Path) -> list[tuple[list[str | int], str]]:
    """Returns a sorting key that puts 2 before 10, for paths of the same depth."""
    return [
        ([int(x) if x.isdecimal() else x for x in re.split(r"(\d+)", part)], part)
        for part in path.parts
    ]


# --- Decoding

_GREY = ("1", "L", "LA")
"""Pillow's modes of grey images of at most 8 bits."""
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Accepted formats of Pillow. Pillow would run other programs for some formats."""


def decode_images(
    names: Sequence[str],
    streams: Sequence[Callable[[], BinaryIO]],
    resize: int | None,
) -> tuple[np.ndarray, list[str]]:
    """Decodes images and converts them to one array.

    Args:
      names: the names of the images, for error messages.
      streams: functions that open the images.
      resize: height and width of all images in pixels; None keeps the size.

    Returns:
      Images [P, H, W, C], see `read_images`, and one line per conversion.

    Raises:
      ValueError: an image is damaged, too large or, without `resize`, of another size;
        or images of 16 bits and of 8 bits are mixed.
    """
    # All headers are read first, because the type of the array depends on all images.
    modes, sizes, num_animated, size = Counter[str](), set(), 0, None
    for name, stream in zip(names, streams, strict=True):
        with _opened(name, stream) as image:
            modes[image.mode] += 1
            num_animated += getattr(image, "is_animated", False)
            shape = image.size
        sizes.add(shape)
        if resize is None and shape != (size := size or shape):
            raise ValueError(
                f"has images of mixed sizes, {names[0]} of {size[0]}x{size[1]} and "
                f"{name} of {shape[0]}x{shape[1]} (width x height); all images must "
                "have the same size, so use `resize`"
            )
    deep = {mode for mode in modes if mode.startswith(("I", "F"))}
    if deep and (shallow := set(modes) - deep):
        raise ValueError(
            f"has images of mode {min(shallow)} and images of 16 bits or more; all "
            "images must have the same number of bits"
        )
    num_grey = sum(modes[mode] for mode in _GREY)
    target = "L" if 2 * num_grey > modes.total() else "RGB"
    width, height = (resize, resize) if resize else size or (0, 0)
    channels = 3 if target == "RGB" and not deep else 1
    shape, dtype = (len(names), height, width, channels), np.float32 if deep else "u1"
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if num_bytes > (free := host_memory()):
        raise ValueError(
            f"has images of {readable(num_bytes)} in all, but the free memory is "
            f"{readable(free)}; use a smaller `resize`"
        )
    images = np.empty(shape, dtype)
    for number, (name, stream) in enumerate(zip(names, streams, strict=True)):
        with _opened(name, stream) as image:
            # Pillow warns if one step converts a palette with transparency to RGB.
            if "transparency" in image.info:
                image = image.convert("RGBA")
            # The conversion would truncate 16 bits to 8.
            image = image if deep else image.convert(target)
            pixels = np.atleast_3d(np.asarray(image)).astype(images.dtype)
            images[number] = pixels if resize is None else resize_image(pixels, resize)
    notes, other_modes = [], sorted(set(modes) - {target})
    if deep:
        low, high = images.min(), images.max()
        if np.isfinite([low, high]).all():  # Other values are refused later.
            images -= low
            images /= max(high - low, np.float32(1e-30))
            notes.append(f"image values {low:g} to {high:g} scaled to [0, 1]")
    elif other_modes:
        number = counted(modes.total() - modes[target], "image")
        reason = ""
        if 0 < num_grey < modes.total():
            reason = f", because {num_grey} of {modes.total()} images are grey"
        notes.append(
            f"{number} of mode {', '.join(other_modes)} converted to {target}{reason}"
        )
    if len(sizes) > 1:
        (low, *_, high) = sorted(sizes, key=math.prod)
        notes.append(
            f"images of {len(sizes)} sizes, {low[0]}x{low[1]} to {high[0]}x{high[1]} "
            "pixels (width x height), become squares without cropping"
        )
    if num_animated:
        notes.append(f"first frame used of {counted(num_animated, 'animated image')}")
    return images, notes


@contextlib.contextmanager
def _opened(name: str, stream: Callable[[], BinaryIO]) -> Iterator[Any]:
    """Opens an image; a damaged image or one with too many pixels raises ValueError."""
    from PIL import Image

    with (
        stream() as content,
        decoding(f"has the damaged image {name}"),
        Image.open(content, formats=_FORMATS) as image,
    ):
        yield image
