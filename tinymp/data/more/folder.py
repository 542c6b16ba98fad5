"""ImageFolder: photographs in one folder per class, as ImageNet comes."""

from __future__ import annotations

import copy
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...arguments import count, file, flag, integer, name_all, number, whole
from ...dtypes import float32
from ...precision import to_dtype
from ..dataset import Dataset
from .picture import PICTURES, Box, pillow, read_picture

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])  # of ImageNet's colours, in 0..1
FACTOR = to_dtype(1 / (255 * STD), float32).reshape(3, 1, 1)
OFFSET = to_dtype(MEAN / STD, float32).reshape(3, 1, 1)


class ImageFolder(Dataset):
    """The pictures in `root`, which has one folder per class; item i is (float32 (3, size, size), the class's number).

    root    its folders, in the order of their names, are the classes 0, 1, ...; pictures may lie in folders below.
            Names that begin with a dot are left out
    size    height and width of the items, in pixels
    train   True: a random part of each picture, mirrored in half of the cases: 8 to 100 % of its area, its width 3/4
            to 4/3 of its height; after ten tries that do not fit, the largest part in the middle (Szegedy et al., 2015,
            "Going deeper with convolutions", section 6; torchvision's RandomResizedCrop and RandomHorizontalFlip).
            False: the middle, as if the shorter side had been scaled to size * 256 / 224
    seed    with the epoch and the item's number, all that the random part depends on: not the order of loading, nor
            the number of threads. The items of this object are those of epoch 0, `in_epoch(e)` has those of epoch e;
            a DataLoader asks for them by itself
    scale, ratio    the bounds of the random part's area (as a share of the picture's) and of its width / height

    Colours are normalised: (colour / 255 - MEAN) / STD, with ImageNet's values. Pillow reads the pictures (see
    `read_picture`); several threads may load items at once. Attributes are torchvision's: classes, class_to_idx,
    samples, targets.

    FileNotFoundError for a folder that is not there, has no classes, or a class without pictures. Items raise
    ValueError or FileNotFoundError that names the picture.
    """

    def __init__(
        self,
        root: str | os.PathLike,
        size: int = 224,
        train: bool = True,
        *,
        seed: int = 0,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
    ) -> None:
        pillow()  # without it, complain here
        self.size, self.train = count("ImageFolder", "size", size), flag("ImageFolder", "train", train)
        self.seed, self.epoch = whole("ImageFolder", "seed", seed), 0
        self.scale, self.ratio = _bounds("scale", scale, 1.0), _bounds("ratio", ratio)
        self.root = file("ImageFolder", "root", root)
        self.classes = _classes(self.root)
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}
        found = [_pictures(self.root / name) for name in self.classes]
        if empty := [name for name, pictures in zip(self.classes, found) if not pictures]:
            raise FileNotFoundError(
                f"ImageFolder: expected pictures ({', '.join(sorted(PICTURES))}) of every class, but found none in "
                f"{', '.join(str(self.root / name) for name in empty)}; add some, or remove the folder"
            )
        self.samples = [(path, label) for label, pictures in enumerate(found) for path in pictures]
        self.targets = [label for _, label in self.samples]

    def in_epoch(self, epoch: int) -> ImageFolder:
        """The same pictures with the random parts of this epoch: a copy, so that loops in other epochs may go on."""
        other = copy.copy(self)
        other.epoch = whole("ImageFolder", "epoch", epoch)
        return other

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: Any) -> tuple[np.ndarray, int]:
        if (i := integer(index)) is None:
            raise TypeError(f"ImageFolder: expected an integer as index, got {index!r}")
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"ImageFolder: expected an index in [{-n}, {n - 1}] for {n} pictures, got {i}")
        path, label = self.samples[i]
        if self.train:
            random = np.random.default_rng((self.seed, self.epoch, i % n))
            picture = read_picture(path, self.size, partial(_random_box, random, self.scale, self.ratio))
            mirrored = random.random() < 0.5
        else:
            picture, mirrored = read_picture(path, self.size, partial(_middle_box, self.size)), False
        pixels = np.asarray(picture)[:, :: -1 if mirrored else 1].transpose(2, 0, 1)
        colours = np.multiply(pixels, FACTOR, order="C")  # in memory as in shape, or each batch would copy it slowly
        colours -= OFFSET
        return colours, label


def _random_box(
    random: np.random.Generator, scale: tuple[float, float], ratio: tuple[float, float], width: int, height: int
) -> Box:
    for _ in range(10):
        area = width * height * random.uniform(*scale)
        aspect = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, upper = int(random.integers(width - w + 1)), int(random.integers(height - h + 1))
            return left, upper, left + w, upper + h
    w, h = min(width, round(height * ratio[1])), min(height, round(width / ratio[0]))
    left, upper = (width - w) // 2, (height - h) // 2
    return left, upper, left + w, upper + h


def _middle_box(size: int, width: int, height: int) -> Box:
    side = min(width, height) * size / round(size * 256 / 224)
    left, upper = (width - side) / 2, (height - side) / 2
    return left, upper, left + side, upper + side


def _classes(root: Path) -> list[str]:
    if not root.is_dir():
        problem = "is a file" if root.exists() else "does not exist"
        raise FileNotFoundError(f"ImageFolder: expected a folder with one folder per class, but {root} {problem}")
    names = sorted(entry.name for entry in os.scandir(root) if not entry.name.startswith("."))
    classes = [name for name in names if (root / name).is_dir()]
    if not classes:
        listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "nothing"
        raise FileNotFoundError(
            f"ImageFolder: expected {root} to have one folder per class, but it holds {listed}; put the pictures of "
            "each class into a folder that has the class's name"
        )
    return classes


def _pictures(folder: Path) -> list[str]:
    found = []
    for path, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        visible = sorted(name for name in files if not name.startswith("."))
        found += [os.path.join(path, name) for name in visible if os.path.splitext(name)[1].lower() in PICTURES]
    return found


def _bounds(name: str, value: Any, most: float = math.inf) -> tuple[float, float]:
    try:
        low, high = value
    except (TypeError, ValueError):
        raise TypeError(f"ImageFolder: expected `{name}` to be two numbers (least, most), got {value!r}") from None
    low, high = number("ImageFolder", name, low, 0, most, above=True), number("ImageFolder", name, high, 0, most)
    if low > high:
        raise ValueError(f"ImageFolder: expected `{name}` to be (least, most), got {value!r}")
    return low, high


name_all(globals())
