"""Photographs in one folder per class, as ImageNet comes, cut out as AlexNet's successors cut them out."""

from __future__ import annotations

import copy
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from tinymp.data import Dataset

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
MEAN, STD = np.array([0.485, 0.456, 0.406], "f4"), np.array([0.229, 0.224, 0.225], "f4")  # of ImageNet's colours
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # bounds of a random part: share of the picture, width / height


class Photographs(Dataset):
    """The pictures in `root`, which has one folder per class; item i is (float32 (3, size, size), the class's number).

    train: a random part of each picture, mirrored in half of the cases, as torchvision's RandomResizedCrop and
    RandomHorizontalFlip; else the middle, as if the shorter side had been scaled to size * 256 / 224. The random part
    depends on seed, epoch and the item's number alone. Colours are normalised by ImageNet's MEAN and STD. Pillow reads
    the pictures; several threads may load items at once.

    FileNotFoundError for a folder without classes, or a class without pictures. Items raise ValueError that names the
    picture.
    """

    def __init__(self, root: str | os.PathLike, size: int = 224, train: bool = True, seed: int = 0) -> None:
        self.size, self.train, self.seed, self.epoch = size, train, seed, 0
        folders = sorted(path for path in Path(root).glob("[!.]*") if path.is_dir())
        found = [sorted(p for p in folder.rglob("[!.]*") if p.suffix.lower() in SUFFIXES) for folder in folders]
        if not all(found) or not folders:
            where = ", ".join(str(folder) for folder, some in zip(folders, found) if not some) or root
            raise FileNotFoundError(f"expected a folder of pictures per class in {root}, but found none in {where}")
        self.classes = [folder.name for folder in folders]
        self.samples = [(path, label) for label, some in enumerate(found) for path in some]

    def in_epoch(self, epoch: int) -> Photographs:
        """The same pictures with the random parts of this epoch: a copy, so that loops in other epochs may go on."""
        other = copy.copy(self)
        other.epoch = epoch
        return other

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        from PIL import Image, ImageOps

        path, label = self.samples[index]
        random = np.random.default_rng((self.seed, self.epoch, index))
        try:
            with Image.open(path) as file:
                picture = ImageOps.exif_transpose(file).convert("RGB")
        except Exception as error:  # a damaged file makes Pillow raise whatever its decoder runs into
            raise ValueError(f"{path} cannot be read as a picture: {error}") from error
        box = random_box(random, *picture.size) if self.train else middle_box(self.size, *picture.size)
        pixels = np.asarray(picture.resize((self.size, self.size), Image.Resampling.BILINEAR, box))
        pixels = pixels[:, ::-1] if self.train and random.random() < 0.5 else pixels
        return np.ascontiguousarray(((pixels / np.float32(255) - MEAN) / STD).transpose(2, 0, 1)), label


def random_box(random: np.random.Generator, width: int, height: int) -> tuple[Any, ...]:
    """left, upper, right and lower of a part; after ten tries that do not fit, of the largest in the middle (Szegedy et
    al., 2015, "Going deeper with convolutions", section 6).
    """
    for _ in range(10):
        area, aspect = width * height * random.uniform(*AREA), math.exp(random.uniform(*np.log(RATIO)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, upper = int(random.integers(width - w + 1)), int(random.integers(height - h + 1))
            return left, upper, left + w, upper + h
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    left, upper = (width - w) // 2, (height - h) // 2
    return left, upper, left + w, upper + h


def middle_box(size: int, width: int, height: int) -> tuple[Any, ...]:
    side = min(width, height) * size / round(size * 256 / 224)
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side
