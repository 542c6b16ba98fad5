"""Pictures in files, read by Pillow: upright, 8 bits per colour, and errors that name the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ...arguments import file as given_path
from ...arguments import function, name_all, whole

PICTURES = {".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
DEEP = ("I", "F")  # Pillow's modes of more than 8 bits per value: what is white there, nobody says
ORIENTATION = 0x0112  # the Exif tag; with 5 to 8, width and height are exchanged
Box = tuple[float, float, float, float]


def read_picture(path: str | os.PathLike, size: int = 0, crop: Callable[[int, int], Box] | None = None) -> Any:
    """The picture in a file as a Pillow image, turned upright (phones note which side is up).

    crop: a function of the picture's width and height that gives the box (left, upper, right, lower; in pixels) to cut
    out and to scale to size x size in RGB, bilinear and with every pixel of the box counted. Of a large JPEG only every
    second, fourth or eighth pixel is computed, as long as the box keeps twice the pixels that it needs.

    FileNotFoundError or ValueError names a file that is not there, not a picture, cut short, of more than 8 bits per
    colour, or has more pixels than Pillow trusts (PIL.Image.MAX_IMAGE_PIXELS: it may be a decompression bomb).
    """
    Image, ImageOps = pillow()
    path, size = given_path("read_picture", "path", path), whole("read_picture", "size", size)
    if crop is not None:
        function("read_picture", "crop", crop)
    try:
        with Image.open(path) as file:
            width, height = file.size
            if Image.MAX_IMAGE_PIXELS is not None and width * height > Image.MAX_IMAGE_PIXELS:  # Pillow only warns
                raise Image.DecompressionBombError(f"{width} x {height} pixels exceed PIL.Image.MAX_IMAGE_PIXELS")
            if file.mode.startswith(DEEP):
                raise ValueError(f"expected 8 bits per colour, got Pillow's mode {file.mode}; convert it")
            if crop is None:
                return ImageOps.exif_transpose(file)
            if file.getexif().get(ORIENTATION) in (5, 6, 7, 8):
                width, height = height, width
            box = crop(width, height)
            spare = min(box[2] - box[0], box[3] - box[1]) / (2 * size)
            full = file.size[0]
            _, drafted = file.draft(None, [int(n / max(spare, 1)) for n in file.size]) or (None, (0, 0, full))
            ImageOps.exif_transpose(file, in_place=True)
            picture = file if file.mode == "RGB" else file.convert("RGB")
            box = tuple([edge * drafted[2] / full for edge in box])
            return picture.resize((size, size), Image.Resampling.BILINEAR, box)
    except Exception as error:  # a damaged file makes Pillow raise whatever its decoder runs into
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else ValueError
        bomb = isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning))
        remedy = "; if you trust it, set PIL.Image.MAX_IMAGE_PIXELS higher" if bomb else ""
        raise kind(f"read_picture: {path} cannot be read as a picture: {error}{remedy}") from error


def pillow() -> tuple[Any, Any]:
    """PIL.Image, ready for all formats, and PIL.ImageOps."""
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError:
        raise ModuleNotFoundError("pictures are read by Pillow, which is not installed: pip install pillow") from None
    Image.init()  # otherwise it looks for the rarer formats when it meets one: two threads at once would miss it
    return Image, ImageOps


name_all(globals())
