"""The idx files in which MNIST and its relatives come.

The format (Y. LeCun, "The MNIST database of handwritten digits", section "File formats"): two zero bytes, one byte
for the element type, one for the number of dimensions, each dimension as a big-endian 32-bit number, the elements.
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ...arguments import file as given_path
from ...arguments import name_all

CHUNK = 1 << 20  # bytes: a header that promises too much costs no memory
_ELEMENTS = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: str | os.PathLike) -> np.ndarray:
    """The array in an idx file, plain or gzipped (recognised by its first bytes, not by its name).

    FileNotFoundError if there is no such file; ValueError, with the file's name and what was expected, if it is
    empty, cut short, too long, or not an idx file at all.
    """
    path = given_path("read_idx", "path", path)
    if not path.is_file():
        what = "is a folder; see load_idx_folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"read_idx: expected an idx file, but {path} {what}")
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
    with gzip.open(path) if zipped else path.open("rb") as file:
        try:
            return _array(path, file)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            size = path.stat().st_size
            raise ValueError(f"read_idx: {path} is a damaged gzip file of {size} bytes: {error}") from error


def _array(path: Path, file: Any) -> np.ndarray:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _ELEMENTS or magic[3] == 0:
        raise ValueError(
            f"read_idx: expected {path} to begin with 4 bytes of an idx file: 0, 0, an element type "
            f"({', '.join(f'0x{code:02x}' for code in _ELEMENTS)}) and a number of dimensions; got {magic!r}"
            f"{'' if magic else ' (the file is empty)'}"
        )
    dtype, sizes = np.dtype(_ELEMENTS[magic[2]]), file.read(4 * magic[3])
    header = 4 + 4 * magic[3]
    if 4 + len(sizes) < header:
        raise ValueError(f"read_idx: expected {path} to have a header of {header} bytes, got {4 + len(sizes)} in all")
    shape = tuple([int.from_bytes(sizes[i : i + 4], "big") for i in range(0, len(sizes), 4)])
    expected, content = math.prod(shape) * dtype.itemsize, bytearray()
    while more := file.read(min(CHUNK, expected + 1 - len(content))):  # no more than promised, and one to see the end
        content += more
    if len(content) != expected:
        problem, got = ("cut short", header + len(content)) if len(content) < expected else ("too long", "more")
        raise ValueError(
            f"read_idx: {path} is {problem}: expected {header + expected} bytes for its shape {shape} of {dtype.name}, "
            f"got {got}"
        )
    return np.array(np.frombuffer(content, dtype).reshape(shape), dtype.newbyteorder("="))  # rounds: never, bytes alone


def load_idx_folder(folder: str | os.PathLike) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(train_images, train_labels, test_images, test_labels) from the four files of MNIST or a set like it.

    Images are uint8 (N, 28, 28), labels uint8 (N,) in 0..9. The files have their usual names: train- and t10k-, then
    images-idx3-ubyte and labels-idx1-ubyte (or images.idx3-ubyte, ...), each plain or with .gz.

    FileNotFoundError names the missing ones; ValueError those that do not hold what their names promise.
    """
    folder = given_path("load_idx_folder", "folder", folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"load_idx_folder: expected a folder, but {folder} {'is a file' if folder.exists() else 'does not exist'}"
        )
    stems = [f"{part}-{kind}" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    paths = {stem: _find(folder, stem) for stem in stems}
    missing = [f"{stem}-ubyte" for stem, path in paths.items() if path is None]
    if missing:
        _raise_missing(folder, missing)
    train_images, train_labels, test_images, test_labels = [_read(path) for path in paths.values() if path]
    for part, images, labels in (("train", train_images, train_labels), ("t10k", test_images, test_labels)):
        if len(images) != len(labels):
            raise ValueError(
                f"load_idx_folder: expected as many labels as images, got {len(labels)} labels and {len(images)} "
                f"images in the {part}- files of {folder}: they are not of one set"
            )
    if len(train_images) < len(test_images):
        raise ValueError(
            f"load_idx_folder: got {len(train_images)} images in the train- files of {folder} and {len(test_images)} "
            "in the t10k- files: expected at least as many for training; are they swapped?"
        )
    return train_images, train_labels, test_images, test_labels


def _find(folder: Path, stem: str) -> Path | None:
    names = [stem + "-ubyte", stem.replace("-idx", ".idx") + "-ubyte"]
    return next((p for name in names for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def _raise_missing(folder: Path, missing: list[str]) -> None:
    found = sorted(p.name for p in folder.iterdir())
    listed = ", ".join(found[:8]) + (", ..." if len(found) > 8 else "") if found else "nothing"
    below = next((p.parent for level in ("*", "*/*") for p in sorted(folder.glob(f"{level}/train-images*"))), None)
    raise FileNotFoundError(
        f"load_idx_folder: expected {', '.join(missing)} (or with .idx for -idx, and each plain or with .gz) in "
        f"{folder}, which holds {listed}{f'; did you mean {below}?' if below else ''}"
    )


def _read(path: Path) -> np.ndarray:
    """The images or labels in `path`, if they are what its name says."""
    array, images = read_idx(path), "images" in path.name
    fits = array.ndim == 3 and array.shape[1:] == (28, 28) if images else array.ndim == 1
    if not fits or array.dtype != np.uint8 or not len(array):
        swapped = "; are images and labels swapped?" if array.ndim == (1 if images else 3) else ""
        raise ValueError(
            f"load_idx_folder: expected {path} to hold uint8 {'images (N, 28, 28)' if images else 'labels (N,)'} with "
            f"N > 0, got {array.dtype} {array.shape}{swapped}"
        )
    if not images and array.max() > 9:
        raise ValueError(
            f"load_idx_folder: expected the labels in {path} to be 0..9, got {array.max()} at {array.argmax()}"
        )
    return array


name_all(globals())
