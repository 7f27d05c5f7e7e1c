"""Images in folders and streams, by Pillow, and resizing.

Resizing makes images square by Pillow's bilinear filter. A new pixel averages over all
pixels that it covers (antialiasing). Height and width are scaled separately and nothing
is cropped, as in the evaluation of Contrastive Clustering (Li et al., 2021).
"""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fcjax.data.dataset import Content, Options, counted, decoding

# --- Resizing


def check(size: int | None) -> None:
    """Raises ValueError unless the size is at least 1, or None for none."""
    if size is not None and size < 1:
        raise ValueError(f"resize must be at least 1, got {size}")


def resized(images: np.ndarray, size: int) -> np.ndarray:
    """Returns images [P, H, W, C] as [P, size, size, C]: uint8, rounded to nearest, if
    they are uint8, else float32. Only one image at a time is copied besides.
    """
    if images.shape[1:3] == (size, size):
        return images
    result = np.empty((len(images), size, size, images.shape[3]), images.dtype)
    for number, image in enumerate(images):
        result[number] = square(image, size)
    return result


def square(image: np.ndarray, size: int) -> np.ndarray:
    """Returns one image [H, W, C] as [size, size, C], see `resized`."""
    from PIL import Image

    def bilinear(pixels):
        target = Image.Resampling.BILINEAR
        return np.asarray(Image.fromarray(pixels).resize((size, size), target))

    # Pillow would take the last of two or four channels for opacity.
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
_NAMES_SHOWN = 5


class Tree(NamedTuple):
    """The images of a folder, in the order in which they are read."""

    files: list[Path]
    depth: int
    """Folders between the folder, or the split, and an image: 0, 1 or 2."""
    has_clients: bool
    """Whether the outer ones of these folders are clients."""
    notes: list[str]


def read_images(folder: Path, options: Options) -> Content:
    """Reads all images of a folder in natural order, 2 before 10, class by class.

    Args:
      folder: of images, of CLASS/, of CLIENT/CLASS/, or of train/, test/ and so on that
        hold one of these, see `SPLITS`.
      options: of `files.read`.

    Returns:
      images [P, H, W, C] with C = 1 if all of them are grey, else 3: uint8, or
      float32 in [0, 1] for images of 16 bits; the names [P] of the classes, or None
      without classes; a line on each conversion; and the names [P] of the clients, or
      None.

    Raises:
      ValueError: there are no images or no such split, some splits have classes and
        others have none, or an image is damaged, too large or, without `resize`, of
        another size.
    """
    tree = image_files(
        folder, split=options.split, client_folders=options.client_folders
    )
    if not tree.files:
        raise ValueError(
            "holds no images; accepted are png, jpg, bmp, gif, tif, webp, ppm and "
            "pgm, in it, in one folder per class or in CLIENT/CLASS/, and the four IDX "
            "files"
        )
    names = [str(file.relative_to(folder)) for file in tree.files]
    streams = [partial(file.open, "rb") for file in tree.files]
    images, converted = decoded(names, streams, options.resize)
    inner = np.array([file.parent.name for file in tree.files])
    outer = np.array([file.parent.parent.name for file in tree.files])
    clients = (outer if tree.depth == 2 else inner) if tree.has_clients else None
    has_classes = tree.depth == 2 or (tree.depth == 1 and not tree.has_clients)
    labels = inner if options.labelled and has_classes else None
    return Content(images, labels, tree.notes + converted, clients)


def image_files(
    folder: Path, *, split: str = "all", client_folders: bool = False
) -> Tree:
    """Lists the images that `read_images` reads; see there."""
    inside = [path for path in sorted(folder.iterdir(), key=_natural) if _shown(path)]
    subfolders = [path for path in inside if path.is_dir()]
    kinds = [SPLITS.get(sub.name.lower()) for sub in subfolders]
    has_images = any(map(_is_image, set(inside) - set(subfolders)))
    if client_folders or has_images or not kinds or None in kinds:
        if split != "all":
            raise ValueError("has no folders train and test: split must be all")
        return _tree(folder, client_folders)
    chosen = [
        sub
        for kind in dict.fromkeys(SPLITS.values())
        for sub, own in zip(subfolders, kinds, strict=True)
        if own == kind and split in ("all", kind)
    ]
    if not chosen:
        there = ", ".join(sub.name for sub in subfolders)
        raise ValueError(f"has no split {split}, its folders: {there}")
    trees = [tree for sub in chosen if (tree := _tree(sub, False)).files]
    names = ", ".join(sub.name for sub in chosen)
    if len({(tree.depth, tree.has_clients) for tree in trees}) > 1:
        raise ValueError(
            f"has folders {names} that are not alike, such as classes in one alone; "
            "choose one by `split`"
        )
    note = f"folder {names} is a split"
    if len(chosen) > 1:
        note = f"folders {names} are splits" + ", all used" * (split == "all")
    files = [file for tree in trees for file in tree.files]
    notes = [note, *(note for tree in trees for note in tree.notes)]
    first = trees[0] if trees else Tree([], 0, False, [])
    return first._replace(files=files, notes=notes)


def _tree(folder: Path, client_folders: bool) -> Tree:
    """The images of a folder without splits: those in its subfolders if there are any,
    else those in the folder itself, else those two folders deep.
    """
    files = [
        [path for path in folder.glob(pattern) if not path.is_dir()]
        for pattern in ("*", "*/*", "*/*/*")
    ]
    shown = [
        [path for path in paths if all(map(_shown, (path, *path.parents[:depth])))]
        for depth, paths in enumerate(files)
    ]
    images = [sorted(filter(_is_image, paths), key=_natural) for paths in shown]
    depth = next((depth for depth in (1, 0, 2) if images[depth]), 0)
    chosen, notes = images[depth], []
    if skipped := sum(map(len, shown)) - len(chosen):
        notes.append(f"{counted(skipped, 'file')} skipped: no images, or elsewhere")
    if depth == 0:
        if client_folders:
            raise ValueError(
                "holds no folders that `client_folders` could take as clients"
            )
        return Tree(chosen, 0, False, notes)
    holders = [path.parent for path in chosen]
    outer = list(dict.fromkeys(path.parents[depth - 1] for path in chosen))
    classes = [path.name for path in dict.fromkeys(holders)]
    shares_class = depth == 2 and len(set(classes)) < len(classes)
    names = ", ".join(path.name for path in outer[:_NAMES_SHOWN])
    names += ", ..." * (len(outer) > _NAMES_SHOWN)
    if client_folders or shares_class:
        notes.append(f"clients are the {len(outer)} folders {names}")
    elif depth == 2:
        notes.append(
            f"folders {names} hold no class in common and are no clients; "
            "`client_folders` makes them clients"
        )
    return Tree(chosen, depth, client_folders or shares_class, notes)


def _shown(path: Path) -> bool:
    return not path.name.startswith(".")


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in _SUFFIXES


def _natural(path: Path) -> list[tuple[list[str | int], str]]:
    """A sorting key of paths of one depth that puts 2 before 10."""
    return [
        ([int(x) if x.isdecimal() else x for x in re.split(r"(\d+)", part)], part)
        for part in path.parts
    ]


# --- Decoding


def decoded(
    names: Sequence[str],
    streams: Sequence[Callable[[], BinaryIO]],
    resize: int | None,
) -> tuple[np.ndarray, list[str]]:
    """Returns images [P, H, W, C] and a line on each conversion, see `read_images`.

    Args:
      names: of the images, for errors.
      streams: functions that open the images.
      resize: height and width of all images; None keeps the size.

    Raises:
      ValueError: as `read_images`, or images of 16 and of 8 bits are mixed.
    """
    # Headers first: whether all are grey decides what every image becomes.
    modes, num_animated, size = Counter[str](), 0, None
    for name, stream in zip(names, streams, strict=True):
        with _opened(name, stream) as image:
            modes[image.mode] += 1
            num_animated += getattr(image, "is_animated", False)
            shape = image.size
        if resize is None and shape != (size := size or shape):
            raise ValueError(
                f"has images of mixed sizes, {names[0]} of {size[0]}x{size[1]} and "
                f"{name} of {shape[0]}x{shape[1]} (width x height); all must have one "
                "size, which `resize` gives them"
            )
    deep = {mode for mode in modes if mode.startswith(("I", "F"))}
    if deep and (others := set(modes) - deep):
        raise ValueError(
            f"has images of mode {min(others)} beside images of 16 bits or more; all "
            "must have as many bits"
        )
    target = "L" if set(modes) <= {"1", "L"} else "RGB"
    width, height = (resize, resize) if resize else size or (0, 0)
    images = np.empty(
        (len(names), height, width, 3 if target == "RGB" and not deep else 1),
        np.float32 if deep else np.uint8,
    )
    for number, (name, stream) in enumerate(zip(names, streams, strict=True)):
        with _opened(name, stream) as image:
            # Pillow warns where a palette with transparency loses it in one step.
            if "transparency" in image.info:
                image = image.convert("RGBA")
            image = image if deep else image.convert(target)  # which cuts 16 bits to 8
            pixels = np.atleast_3d(np.asarray(image)).astype(images.dtype)
            images[number] = pixels if resize is None else square(pixels, resize)
    notes, others = [], sorted(set(modes) - {target})
    if deep:
        low, high = images.min(), images.max()
        images = (images - low) / max(high - low, np.float32(1e-30))
        notes.append(f"image values {low:g} to {high:g} scaled to [0, 1]")
    elif others:
        number = counted(modes.total() - modes[target], "image")
        notes.append(f"{number} of mode {', '.join(others)} converted to {target}")
    if num_animated:
        notes.append(f"first frame taken of {counted(num_animated, 'animated image')}")
    return images, notes


@contextlib.contextmanager
def _opened(name: str, stream: Callable[[], BinaryIO]) -> Iterator[Any]:
    """Opens an image; one with too many pixels raises, as a damaged one does."""
    from PIL import Image

    with (
        stream() as content,
        decoding(f"has the damaged image {name}"),
        Image.open(content) as image,
    ):
        yield image
