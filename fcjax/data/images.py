"""Folders of image files, and resizing.

Images of any size made square, by Pillow's bilinear filter.

Where it shrinks, a new pixel averages over all that it covers (antialiasing). Height
and width are scaled each on its own and nothing is cropped, as in the evaluation of
Contrastive Clustering (Li et al., 2021).
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fcjax.data.dataset import counted

# --- Resizing


def check(size: int | None) -> None:
    """Raises ValueError unless the size is at least 1, or None for none."""
    if size is not None and size < 1:
        raise ValueError(f"resize must be at least 1, got {size}")


def resized(images: np.ndarray, size: int) -> np.ndarray:
    """Returns images [P, H, W, C] as [P, size, size, C]: uint8, rounded to nearest, if
    they are uint8, else float32. Beside the two arrays one image at a time is held."""
    if images.shape[1:3] == (size, size):
        return images
    result = np.empty((len(images), size, size, images.shape[3]), images.dtype)
    for row, image in enumerate(images):
        result[row] = square(image, size)
    return result


def square(image: np.ndarray, size: int) -> np.ndarray:
    """Returns one image [H, W, C] as [size, size, C], see `resized`."""
    from PIL import Image

    def bilinear(pixels):
        target = Image.Resampling.BILINEAR
        return np.asarray(Image.fromarray(pixels).resize((size, size), target))

    # Of two or four channels together Pillow would take the last for opacity.
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
"""From names of folders, in lower case, to the splits that they mean, in the order in
which splits are read."""
_NAMES_TOLD = 5


class Tree(NamedTuple):
    """The images of a folder, in the order in which they are read."""

    files: list[Path]
    depth: int
    """Folders between the folder, or the split, and an image: 0, 1 or 2."""
    has_clients: bool
    """Whether the outer ones of these folders are clients."""
    notes: list[str]


def read_images(
    folder: Path,
    labelled: bool,
    resize: int | None = None,
    *,
    split: str = "all",
    client_folders: bool = False,
) -> tuple[np.ndarray, np.ndarray | None, list[str], np.ndarray | None]:
    """Reads all images of a folder in natural order, 2 before 10, class by class.

    Args:
      folder: of images, of CLASS/, of CLIENT/CLASS/, or of train/, test/ and so on that
        hold one of these, see `SPLITS`.
      labelled: whether the folders that hold the images are classes.
      resize: H and W of all images; None takes those that they have.
      split: "train", "validation" or "test" reads that split alone.
      client_folders: whether the outer folders are clients, whatever they are called.

    Returns:
      images [P, H, W, C] with C = 1 where all of them are grey, else 3: uint8, or
      float32 in [0, 1] for images of 16 bits; the names [P] of the classes, or None
      where there are none or not `labelled`; a line on each conversion; and the names
      [P] of the clients, or None.

    Raises:
      ValueError: there are no images or no such split, some splits have classes and
        others have none, or an image is damaged, too large or, without `resize`, of
        another size.
    """
    tree = image_files(folder, split=split, client_folders=client_folders)
    if not tree.files:
        raise ValueError(
            "holds no images; accepted are png, jpg, bmp, gif, tif, webp, ppm and "
            "pgm, in it, in one folder per class or in CLIENT/CLASS/, and the four IDX "
            "files"
        )
    names = [str(file.relative_to(folder)) for file in tree.files]
    streams = [partial(file.open, "rb") for file in tree.files]
    images, converted = decoded(names, streams, resize)
    parents = np.array([file.parent.name for file in tree.files])
    outer = np.array([file.parent.parent.name for file in tree.files])
    labels = clients = None
    if tree.has_clients:
        clients = outer if tree.depth == 2 else parents
    are_clients = tree.has_clients and tree.depth == 1
    if labelled and tree.depth and not are_clients:
        labels = parents
    return images, labels, tree.notes + converted, clients


def image_files(
    folder: Path, *, split: str = "all", client_folders: bool = False
) -> Tree:
    """Finds the images that `read_images` reads; see there."""
    subfolders, files, _ = _listing(folder)
    kinds = {
        sub: SPLITS[sub.name.lower()]
        for sub in subfolders
        if sub.name.lower() in SPLITS
    }
    if client_folders or files or not kinds or len(kinds) < len(subfolders):
        if split != "all":
            raise ValueError("has no folders train and test: split must be all")
        return _tree(folder, client_folders)
    order = list(SPLITS.values())
    ordered = sorted(kinds, key=lambda sub: order.index(kinds[sub]))
    chosen = [sub for sub in ordered if split in ("all", kinds[sub])]
    names = ", ".join(sub.name for sub in chosen)
    if not chosen:
        there = ", ".join(sub.name for sub in subfolders)
        raise ValueError(f"has no split {split}, its folders: {there}")
    each = [tree for sub in chosen if (tree := _tree(sub, False)).files]
    if len({(tree.depth, tree.has_clients) for tree in each}) > 1:
        raise ValueError(
            f"has folders {names} that are not alike, such as classes in one alone; "
            "choose one by `split`"
        )
    told = (
        f"folders {names} are splits"
        if len(chosen) > 1
        else f"folder {names} is a split"
    )
    told += ", all used" * (split == "all" and len(chosen) > 1)
    notes = [told, *(note for tree in each for note in tree.notes)]
    first = each[0] if each else Tree([], 0, False, [])
    return first._replace(files=[f for tree in each for f in tree.files], notes=notes)


def _tree(folder: Path, client_folders: bool) -> Tree:
    """The images of a folder without splits."""
    subfolders, files, skipped = _listing(folder)
    inside, outer = list(map(_listing, subfolders)), []
    if not files and not any(images for _, images, _ in inside):
        outer = [
            sub for sub, (subs, _, _) in zip(subfolders, inside, strict=True) if subs
        ]
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
    depth = 2 if outer else int(bool(held))
    classes = [images[0].parent.name for images in held]
    if client_folders and not depth:
        raise ValueError("holds no folders that `client_folders` could take as clients")
    has_clients = depth > 0 and (
        client_folders or (depth == 2 and len(set(classes)) < len(classes))
    )
    named = outer or [images[0].parent for images in held]
    told = ", ".join(sub.name for sub in named[:_NAMES_TOLD])
    told += ", ..." * (len(named) > _NAMES_TOLD)
    if has_clients:
        notes.append(f"clients are the {len(named)} folders {told}")
    elif outer:
        notes.append(
            f"folders {told} hold no class in common and are no clients; "
            "`client_folders` makes them clients"
        )
    return Tree(files, depth, has_clients, notes)


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
      ValueError: as `read_images`, or images of 16 and of 8 bits are mixed.
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
    target, channels = ("L", 1) if set(modes) <= {"1", "L"} else ("RGB", 3)
    is_deep = any(mode.startswith(("I", "F")) for mode in modes)
    if is_deep and (others := [m for m in modes if not m.startswith(("I", "F"))]):
        raise ValueError(
            f"has images of mode {others[0]} beside images of 16 bits or more; all "
            "must have as many bits"
        )
    if is_deep:  # Pillow would cut 16 bits to 8.
        target, channels = "F", 1
    width, height = (resize, resize) if resize else size or (0, 0)
    kind = np.float32 if is_deep else np.uint8
    images = np.empty((len(names), height, width, channels), kind)
    for row, (name, stream) in enumerate(zip(names, streams, strict=True)):
        with _opened(name, stream) as image:
            # Pillow warns where a palette with transparency loses it in one step.
            if "transparency" in image.info:
                image = image.convert("RGBA")
            image = image if is_deep else image.convert(target)
            pixels = np.atleast_3d(np.asarray(image)).astype(kind)
            images[row] = pixels if resize is None else square(pixels, resize)
    notes, others = [], sorted(set(modes) - {target})
    if is_deep:
        low, high = images.min(), images.max()
        images = (images - low) / max(high - low, np.float32(1e-30))
        notes.append(f"image values {low:g} to {high:g} scaled to [0, 1]")
    elif others:
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
        except Image.DecompressionBombError as error:
            pixels, limit = re.findall(r"\d+", str(error))[:2]
            raise ValueError(
                f"has the image {name} of {int(pixels):,} pixels; the limit is "
                f"{int(limit):,} pixels"
            ) from error
        # A damaged image surfaces as almost any exception type.
        except Exception as error:
            raise ValueError(f"has the damaged image {name}") from error
