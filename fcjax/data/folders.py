"""Images from a folder, whose subfolders are their classes, or clients with those."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fcjax.data.conversion import counted
from fcjax.data.resizing import square

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_SUFFIXES += (".ppm", ".pgm")


def read_images(
    folder: Path, labelled: bool, resize: int | None = None
) -> tuple[np.ndarray, np.ndarray | None, list[str], np.ndarray | None]:
    """Returns all images in natural order, 2 before 10, class by class.

    Args:
      folder: of the images, of their subfolders, or of the clients' folders of those.
      labelled: whether the subfolders are classes.
      resize: H and W of all images; None takes those that they have.

    Returns:
      images [P, H, W, C] uint8, with C = 1 where all of them are grey, else 3; the
      names [P] of their subfolders, or None where there are none or not `labelled`;
      a line on each conversion; and the names [P] of the clients' folders, if there
      are any.

    Raises:
      ValueError: there are no images, or one is damaged, has more than 8 bits a channel
        or, without `resize`, another size.
    """
    files, notes = image_files(folder)
    if not files:
        raise ValueError(
            "holds no images; accepted are png, jpg, bmp, gif, tif, webp, ppm and "
            "pgm, in it, in one folder a class or in CLIENT/CLASS/, and the four IDX "
            "files"
        )
    paths = [file.relative_to(folder) for file in files]
    streams = [partial(file.open, "rb") for file in files]
    images, converted = decoded(list(map(str, paths)), streams, resize)
    depth = len(paths[0].parts) - 1
    classes = np.array([path.parent.name for path in paths])
    clients = np.array([path.parts[0] for path in paths])
    labels = classes if labelled and depth else None
    return images, labels, notes + converted, clients if depth == 2 else None


def image_files(folder: Path) -> tuple[list[Path], list[str]]:
    """Returns the images that `read_images` reads, in its order, and lines on those
    and other entries that it skips."""
    subfolders, files, skipped = _listing(folder)
    inside = list(map(_listing, subfolders))
    if not files and not any(images for _, images, _ in inside):
        # Clients that have folders of classes.
        skipped += sum(others for _, _, others in inside)
        inside = [_listing(sub) for subs, _, _ in inside for sub in subs]
    held = [images for _, images, _ in inside if images]
    skipped += len(inside) - len(held)
    skipped += sum(len(subs) + others for subs, _, others in inside)
    notes = []
    if held:
        if files:
            notes.append(f"{counted(len(files), 'image')} beside the folders skipped")
        files = [file for images in held for file in images]
    if skipped:
        notes.append(f"entries skipped, hidden or no images: {skipped}")
    return files, notes


def _listing(folder: Path) -> tuple[list[Path], list[Path], int]:
    """Returns subfolders and images in natural order, and how much else there is."""
    subfolders, images, others = [], [], 0
    with os.scandir(folder) as entries:
        for entry in entries:
            shown = not entry.name.startswith(".")
            if shown and entry.is_dir():
                subfolders.append(Path(entry.path))
            elif shown and entry.name.lower().endswith(_SUFFIXES):
                images.append(Path(entry.path))
            else:
                others += 1
    return sorted(subfolders, key=_natural), sorted(images, key=_natural), others


def _natural(path: Path) -> tuple[list[str | int], str]:
    parts = re.split(r"(\d+)", path.name)
    return [int(p) if p.isdecimal() else p for p in parts], path.name


def decoded(
    names: Sequence[str],
    streams: Sequence[Callable[[], BinaryIO]],
    resize: int | None,
) -> tuple[np.ndarray, list[str]]:
    """Returns images [P, H, W, C] and a line on each conversion, see `read_images`.

    Args:
      names: what each of them is called in an error.
      streams: what opens each of them.
      resize: as in `read_images`.

    Raises:
      ValueError: as `read_images`.
    """
    # Headers first: whether all are grey decides what every image becomes.
    modes, animated, size = [], 0, None
    for name, stream in zip(names, streams, strict=True):
        with _opened(name, stream) as image:
            modes.append(image.mode)
            animated += getattr(image, "is_animated", False)
            own = image.size
        if resize is None and own != (size := size or own):
            raise ValueError(
                f"has images of mixed sizes, {names[0]} of {size[0]}x{size[1]} and "
                f"{name} of {own[0]}x{own[1]} (width x height); all must have one "
                "size, which `resize` gives them"
            )
        if modes[-1].startswith(("I", "F")):
            raise ValueError(
                f"has {name} of mode {modes[-1]}; accepted are 8 bits a channel"
            )
    target, channels = ("L", 1) if set(modes) <= {"1", "L"} else ("RGB", 3)
    width, height = (resize, resize) if resize else size or (0, 0)
    images = np.empty((len(names), height, width, channels), np.uint8)
    for row, (name, stream) in enumerate(zip(names, streams, strict=True)):
        with _opened(name, stream) as image:
            # Pillow warns where a palette with transparency loses it in one step.
            if "transparency" in image.info:
                image = image.convert("RGBA")
            pixels = np.atleast_3d(np.asarray(image.convert(target)))
            images[row] = pixels if resize is None else square(pixels, resize)
    notes, others = [], sorted(set(modes) - {target})
    if others:
        number = counted(len(modes) - modes.count(target), "image")
        notes.append(f"{number} of mode {', '.join(others)} converted to {target}")
    if animated:
        notes.append(f"first frame taken of {counted(animated, 'animated image')}")
    return images, notes


@contextlib.contextmanager
def _opened(name: str, stream: Callable[[], BinaryIO]) -> Iterator[Any]:
    from PIL import Image

    with stream() as content:
        try:
            with Image.open(content) as image:
                yield image
        # A damaged image surfaces as almost any exception type.
        except Exception as error:
            raise ValueError(f"has the damaged image {name}") from error
