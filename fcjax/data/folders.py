"""Images from a folder, whose subfolders are their classes."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fcjax.data.conversion import counted
from fcjax.data.resizing import square

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_SUFFIXES += (".ppm", ".pgm")


def read_images(
    folder: Path, labelled: bool, resize: int | None = None
) -> tuple[np.ndarray, np.ndarray | None, list[str]]:
    """Returns all images in natural order, 2 before 10, class by class.

    Args:
      folder: of the images, or of their subfolders.
      labelled: whether the subfolders are classes.
      resize: H and W of all images; None takes those that they have.

    Returns:
      images [P, H, W, C] uint8, with C = 1 where all of them are grey, else 3; the
      names [P] of their subfolders, or None where there are none or not `labelled`;
      and a line on each conversion.

    Raises:
      ValueError: there are no images, or one is damaged, has more than 8 bits a channel
        or, without `resize`, another size.
    """
    files, notes = image_files(folder)
    if not files:
        raise ValueError(
            "holds no images; accepted are png, jpg, bmp, gif, tif, webp, ppm and "
            "pgm, in it or in one folder a class, and the four IDX files"
        )
    images, converted = _decoded(files, folder, resize)
    in_folders = files[0].parent != folder
    names = np.array([file.parent.name for file in files])
    return images, names if labelled and in_folders else None, notes + converted


def image_files(folder: Path) -> tuple[list[Path], list[str]]:
    """Returns the images that `read_images` reads, in its order, and lines on those
    and other entries that it skips."""
    subfolders, files, skipped = _listing(folder)
    inside = {sub.name: _listing(sub) for sub in subfolders}
    held = {name: images for name, (_, images, _) in inside.items() if images}
    skipped += len(inside) - len(held)
    skipped += sum(len(subs) + others for subs, _, others in inside.values())
    notes = []
    if held:
        if files:
            notes.append(f"{counted(len(files), 'image')} beside the folders skipped")
        files = [file for images in held.values() for file in images]
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


def _decoded(
    files: list[Path], folder: Path, resize: int | None
) -> tuple[np.ndarray, list[str]]:
    # Headers first: whether all are grey decides what every image becomes.
    modes, animated, size = [], 0, None
    for file in files:
        with _opened(file, folder) as image:
            modes.append(image.mode)
            animated += getattr(image, "is_animated", False)
            own = image.size
        first, name = files[0].relative_to(folder), file.relative_to(folder)
        if resize is None and own != (size := size or own):
            raise ValueError(
                f"has images of mixed sizes, {first} of {size[0]}x{size[1]} and {name} "
                f"of {own[0]}x{own[1]} (width x height); all must have one size, which "
                "--resize gives them"
            )
        if modes[-1].startswith(("I", "F")):
            raise ValueError(
                f"has {name} of mode {modes[-1]}; accepted are 8 bits a channel"
            )
    target, channels = ("L", 1) if set(modes) <= {"1", "L"} else ("RGB", 3)
    width, height = (resize, resize) if resize else size or (0, 0)
    images = np.empty((len(files), height, width, channels), np.uint8)
    for row, file in enumerate(files):
        with _opened(file, folder) as image:
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
def _opened(file: Path, folder: Path) -> Iterator[Any]:
    from PIL import Image

    with file.open("rb") as stream:
        try:
            with Image.open(stream) as image:
                yield image
        # A damaged image surfaces as almost any exception type.
        except Exception as error:
            told = file.relative_to(folder)
            raise ValueError(f"has the damaged image {told}") from error
