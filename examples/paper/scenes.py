"""Scenes in which to find things: real digits or garments, tinted and scaled, on photographs, with exact boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tinymp.data import Dataset

from .. import datasets

# Of the photographs that scikit-image brings: what a detector is tested on, it has not seen.
PHOTOGRAPHS = {
    True: ("astronaut.png", "chelsea.png", "motorcycle_left.png", "grass.png", "brick.png", "coins.png"),
    False: ("coffee.png", "rocket.jpg", "gravel.png", "camera.png"),
}
SMALLEST, LARGEST = 20, 56  # pixels along the side of the square that a digit comes in
MEAN, STD = 0.45, 0.25


class Scenes(Dataset):
    """Item i: an image, float32 (3, size, size) of about unit variance, and {"boxes": (n, 4), "labels": (n,)}.

    1 to `most` objects of 10 classes, whose labels count from 1, for 0 is the background. Boxes are float32, in pixels,
    just around what was painted. Item i depends on the seed and i alone. train: which photographs and digits to use.
    """

    def __init__(
        self, count: int, seed: int, *, train: bool, data: str = "mnist", size: int = 128, most: int = 4
    ) -> None:
        from PIL import Image

        train_x, train_y, test_x, test_y = datasets.named(data)
        objects, labels = (train_x, train_y) if train else (test_x, test_y)
        low = objects.min()
        self.objects = ((objects[:, 0] - low) * (255 / (objects.max() - low))).astype(np.uint8)
        self.labels = labels + 1
        for i in np.flatnonzero(self.objects.max((1, 2)) == 0):
            raise ValueError(f"scenes: expected images that show something, got image {i} without a bright pixel")
        self.photographs = []
        for name in PHOTOGRAPHS[train]:  # in scikit-image's package, which is not imported
            with Image.open(datasets.brought("scenes: the photographs", "scikit-image", f"data/{name}")) as file:
                self.photographs.append(file.convert("RGB"))
        self.count, self.seed, self.train, self.size, self.most = count, seed, train, size, most

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        canvas, target = self.painted(index)
        image = (canvas.transpose(2, 0, 1) / 255 - MEAN) / STD
        return image.astype(np.float32), target

    def painted(self, index: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The scene as float64 (size, size, 3) in 0..255, to look at, and its target."""
        rng = np.random.default_rng((self.seed, self.train, index))
        canvas = self._background(rng)
        boxes: list[np.ndarray] = []
        labels = []
        for _ in range(rng.integers(1, self.most + 1)):
            i = rng.integers(len(self.objects))
            for _ in range(10):  # tries to find a free place
                shades, box = self._placed(self.objects[i], rng)
                if all(_apart(box, other) for other in boxes):
                    self._paint(canvas, shades, box, rng)
                    boxes.append(box)
                    labels.append(self.labels[i])
                    break
        return canvas, {"boxes": np.array(boxes, np.float32).reshape(-1, 4), "labels": np.array(labels, np.int64)}

    def _background(self, rng: np.random.Generator) -> np.ndarray:
        """A random part of a photograph, between the size of a scene and all of its height, darker or brighter."""
        from PIL.Image import Resampling

        photograph = self.photographs[rng.integers(len(self.photographs))]
        side = rng.integers(self.size, min(photograph.size) + 1)
        left, top = (rng.integers(n - side + 1) for n in photograph.size)
        part = photograph.resize((self.size, self.size), Resampling.BILINEAR, (left, top, left + side, top + side))
        return np.asarray(part) * rng.uniform(0.5, 1.0)

    def _placed(self, image: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The image scaled and cut to what is to be seen of it, shades in 0..1, and its box in the scene."""
        from PIL import Image

        side = int(rng.integers(SMALLEST, min(LARGEST, self.size) + 1))
        shades = np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR)) / 255
        rows, columns = (np.flatnonzero((shades > min(0.25, shades.max() / 2)).any(axis)) for axis in (1, 0))
        shades = shades[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        top, left = (rng.integers(self.size - n + 1) for n in shades.shape)
        return shades, np.array([left, top, left + shades.shape[1], top + shades.shape[0]])

    @staticmethod
    def _paint(canvas: np.ndarray, shades: np.ndarray, box: np.ndarray, rng: np.random.Generator) -> None:
        """In a colour that is far from the mean of what it covers."""
        left, top, right, bottom = box
        there = canvas[top:bottom, left:right]
        colour = max(rng.uniform(0, 255, (8, 3)), key=lambda c: float(np.abs(c - there.mean((0, 1))).sum()))
        cover = np.clip(2 * shades, 0, 1)[..., None]
        there[...] = (1 - cover) * there + cover * colour * (0.5 + 0.5 * shades[..., None])


def batch(items: list[tuple]) -> tuple[np.ndarray, list[dict[str, np.ndarray]]]:
    """For the loader: images stacked; targets, of which each has as many boxes as it has, in a list."""
    return np.stack([image for image, _ in items]), [target for _, target in items]


def _apart(a: np.ndarray, b: np.ndarray) -> bool:
    """True if two boxes do not overlap."""
    return bool(a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1])
