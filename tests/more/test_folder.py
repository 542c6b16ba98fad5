import math
import sys

import numpy as np
import pytest

import tinymp as mp
from tinymp.data import DataLoader, ImageFolder, Subset, read_picture

pytest.importorskip("PIL")
from PIL import Image

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def noise(height, width, *channels):
    return np.random.default_rng(height * width).integers(0, 256, (height, width, *channels)).astype(np.uint8)


def smooth(height, width):
    """Colours that change slowly: scaling and JPEG hardly change them, and no two places are alike."""
    y, x = np.mgrid[:height, :width] + 0.5
    return np.stack([255 * x / width, 255 * y / height, 127 * (x / width + y / height)], 2).astype(np.uint8)


def save(path, array, **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **how)
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two classes, three pictures of each."""
    root = tmp_path_factory.mktemp("pictures")
    save(root / "zebra" / "b.jpg", noise(30, 40, 3))
    save(root / "zebra" / "a.PNG", noise(50, 20, 3))
    save(root / "zebra" / "deeper" / "c.png", noise(33, 33))
    for i in range(3):
        save(root / "ant" / f"{i}.jpeg", noise(40 + i, 60, 3))
    (root / "ant" / "notes.txt").write_text("not a picture")
    (root / "ant" / "._0.jpeg").write_text("what a Mac leaves")
    (root / ".cache").mkdir()
    (root / "README").write_text("not a class")
    return root


def colours(item):
    """An item's values as 0..255 again: (size, size, 3)."""
    values, _ = item
    assert values.dtype == np.float32
    assert values.flags.c_contiguous
    return 255 * (values.transpose(1, 2, 0).astype(float) * STD + MEAN)


# -------------------------------------------------------------------------------------------------------------- folders


def test_classes_and_samples_in_the_order_of_their_names(root):
    folder = ImageFolder(root)
    assert folder.classes == ["ant", "zebra"]
    assert folder.class_to_idx == {"ant": 0, "zebra": 1}
    names = ["ant/0.jpeg", "ant/1.jpeg", "ant/2.jpeg", "zebra/a.PNG", "zebra/b.jpg", "zebra/deeper/c.png"]
    assert folder.samples == [(str(root / name), int(name > "b")) for name in names]
    assert folder.targets == [0, 0, 0, 1, 1, 1]
    assert len(folder) == 6
    assert [folder[i][1] for i in range(6)] == folder.targets
    assert all(folder[i][0].shape == (3, 224, 224) for i in (0, 5))


def test_linked_folders(root, tmp_path):
    (tmp_path / "ants").symlink_to(root / "ant", target_is_directory=True)
    (tmp_path / "beetles" / "deeper").mkdir(parents=True)
    (tmp_path / "beetles" / "deeper" / "ants").symlink_to(root / "ant", target_is_directory=True)
    assert ImageFolder(tmp_path).targets == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("name", ["nowhere", "README"])
def test_a_root_that_is_no_folder(root, name):
    with pytest.raises(FileNotFoundError, match=rf"{name} (does not exist|is a file)$"):
        ImageFolder(root / name)


def test_a_root_without_classes(root, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"it holds nothing; put the pictures of each class into a folder"):
        ImageFolder(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"it holds c\.png; put"):
        ImageFolder(root / "zebra" / "deeper")


def test_an_empty_class(tmp_path):
    save(tmp_path / "cat" / "1.png", noise(8, 8))
    (tmp_path / "cow").mkdir()
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "notes.txt").write_text("")
    with pytest.raises(FileNotFoundError, match=r"pictures \(.bmp, .*\) of every class, .* none in .*cow, .*dog; add"):
        ImageFolder(tmp_path)


@pytest.mark.parametrize(
    ("how", "error", "match"),
    [
        ({"size": 0}, ValueError, "`size` to be positive, got 0"),
        ({"size": 22.4}, TypeError, "`size` to be an integer"),
        ({"train": "test"}, TypeError, "`train` to be True or False"),
        ({"seed": -1}, ValueError, "`seed` to be at least 0"),
        ({"scale": 0.5}, TypeError, r"`scale` to be two numbers \(least, most\), got 0.5"),
        ({"scale": (0, 1)}, ValueError, r"`scale` to be in \[0, 1\], got 0"),
        ({"scale": (0.5, 1.5)}, ValueError, r"`scale` to be in \[0, 1\], got 1.5"),
        ({"scale": (0.5, 0.2)}, ValueError, r"`scale` to be \(least, most\), got \(0.5, 0.2\)"),
        ({"ratio": (-1, 1)}, ValueError, "`ratio` to be above 0"),
        ({"ratio": (1, math.inf)}, ValueError, "`ratio` to be at least 0 and finite"),
        ({"ratio": (1, 2, 3)}, TypeError, "`ratio` to be two numbers"),
        ({"ratio": ("1", 2)}, TypeError, "`ratio` to be a number"),
    ],
)
def test_refused_arguments(root, how, error, match):
    with pytest.raises(error, match=f"^ImageFolder: expected {match}"):
        ImageFolder(root, **how)


def test_refused_numbers(root):
    folder = ImageFolder(root, 8)
    np.testing.assert_array_equal(folder[-1][0], folder[5][0])
    for i in (6, -7):
        with pytest.raises(IndexError, match=rf"index in \[-6, 5\] for 6 pictures, got {i}"):
            folder[i]
    with pytest.raises(TypeError, match=r"an integer as index, got 1\.0"):
        folder[1.0]


# ---------------------------------------------------------------------------------------------------------------- crops


@pytest.mark.parametrize(("height", "width"), [(64, 64), (64, 80), (80, 65)])
def test_the_middle(tmp_path, height, width):
    """7/8 of the shorter side in the middle, as when that is scaled to 64 and 56 x 56 of it are cut out."""
    array = noise(height, width, 3)
    save(tmp_path / "a" / "a.png", array)
    side = min(width, height) * 7 / 8
    left, upper = (width - side) / 2, (height - side) / 2
    expected = np.asarray(Image.fromarray(array).resize((56, 56), 2, (left, upper, left + side, upper + side)))
    if side == 56:
        np.testing.assert_array_equal(expected, array[int(upper) :, int(left) :][:56, :56])
    np.testing.assert_allclose(colours(ImageFolder(tmp_path, 56, train=False)[0]), expected, atol=1e-4)


def by_hand(array, random, size, scale, ratio):
    """torchvision's RandomResizedCrop and RandomHorizontalFlip as loops over plain numbers, and the box."""
    height, width = array.shape[:2]
    for _ in range(10):
        area = height * width * random.uniform(*scale)
        aspect = math.exp(random.uniform(*np.log(ratio)))
        w, h = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left, upper = random.integers(0, width - w + 1), random.integers(0, height - h + 1)
            break
    else:
        w, h = width, height
        if width / height < ratio[0]:
            h = round(width / ratio[0])
        elif width / height > ratio[1]:
            w = round(height * ratio[1])
        left, upper = (width - w) // 2, (height - h) // 2
    cut = Image.fromarray(np.ascontiguousarray(array[upper : upper + h, left : left + w]))
    scaled = np.asarray(cut.resize((size, size), 2))
    mirrored = random.random() < 0.5
    return scaled[:, ::-1] if mirrored else scaled, (left, upper, w, h, mirrored)


@pytest.mark.parametrize(
    ("shape", "scale", "ratio"),
    [
        ((40, 60, 3), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((60, 10, 3), (0.9, 1.0), (3 / 4, 4 / 3)),  # no part of 90 % has that shape: the middle
        ((10, 60, 3), (0.9, 1.0), (3 / 4, 4 / 3)),
        ((40, 40, 3), (0.3, 0.4), (1, 1)),
    ],
)
def test_random_parts(tmp_path, shape, scale, ratio):
    array, seen = noise(*shape), []
    save(tmp_path / "a" / "a.png", array)
    save(tmp_path / "a" / "b.png", array)
    folder = ImageFolder(tmp_path, 16, seed=5, scale=scale, ratio=ratio)
    for epoch in range(30):
        random = np.random.default_rng((5, epoch, 1))
        expected, box = by_hand(array, random, 16, scale, ratio)
        seen.append(box)
        # Pillow's bilinear filter sees the pixels beyond a box, which a cut picture does not have: not at its edges
        got = colours(folder.in_epoch(epoch)[1])
        np.testing.assert_allclose(got[3:-3, 3:-3], expected[3:-3, 3:-3], atol=1.001)
    _, _, widths, heights, mirrored = map(np.array, zip(*seen))
    assert 5 <= mirrored.sum() <= 25
    if scale[0] == 0.9:
        assert len({box[:4] for box in seen}) == 1
        assert (widths[0], heights[0]) == ((10, 13) if shape[0] == 60 else (13, 10))
    else:
        shares, aspects = widths * heights / (shape[0] * shape[1]), widths / heights
        assert scale[0] * 0.9 < shares.min() < shares.max() <= scale[1] * 1.1
        assert ratio[0] * 0.9 < aspects.min() <= aspects.max() < ratio[1] * 1.1
        assert len({box[:4] for box in seen}) >= 28


def test_random_parts_depend_on_seed_epoch_and_number_alone(root):
    one, same, other = (ImageFolder(root, 8, seed=seed) for seed in (1, 1, 2))
    items = [one.in_epoch(e)[i][0].tobytes() for e in range(3) for i in range(6)]
    backwards = [same.in_epoch(e)[i][0].tobytes() for e in (2, 1, 0) for i in reversed(range(6))]
    assert items == backwards[::-1]
    assert len({*items, *(other[i][0].tobytes() for i in range(6))}) == 24
    np.testing.assert_array_equal(one[0][0], one.in_epoch(0)[0][0])


def test_a_thin_picture(tmp_path):
    save(tmp_path / "a" / "a.png", noise(100, 1, 3))
    for how in ({"train": False}, {"ratio": (3, 4)}, {}):
        assert ImageFolder(tmp_path, 4, **how)[0][0].shape == (3, 4, 4)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("large", [False, True])
def test_photographs_are_upright_and_large_ones_are_decoded_smaller(tmp_path, orientation, large, monkeypatch):
    """The crop of a JPEG is that of the upright picture, whether all its pixels are computed or every eighth."""
    upright = smooth(*((600, 901) if large else (30, 45)))
    # how the camera must have stored it: the inverse of what the orientation asks for
    turns = [upright, upright[:, ::-1], upright[::-1, ::-1], upright[::-1], np.swapaxes(upright, 0, 1)]
    turns += [np.rot90(upright, 1), np.swapaxes(upright[::-1, ::-1], 0, 1), np.rot90(upright, -1)]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path / "photo.jpg", np.ascontiguousarray(turns[orientation - 1]), quality=95, exif=exif)
    decoded = []
    resize = Image.Image.resize
    monkeypatch.setattr(Image.Image, "resize", lambda im, *how: decoded.append(max(im.size)) or resize(im, *how))
    h, w = upright.shape[:2]

    def crop(width, height):
        assert (width, height) == (w, h)
        return w / 5, 0, w / 5 + h / 2, h / 2  # 300 x 300 pixels of a large one, for 15 x 15

    got = np.asarray(read_picture(path, 15, crop)).astype(int)
    assert decoded == [113 if large else 45]  # an eighth: 38 pixels for 15
    expected = Image.fromarray(upright).resize((15, 15), 2, crop(w, h))
    assert np.abs(got - np.asarray(expected)).max() <= 6


# ------------------------------------------------------------------------------------------------------- with a loader


def batches(loader):
    return [(x.array.tobytes(), y.tolist()) for x, y in loader]


def test_batches_are_the_same_for_every_number_of_threads(root):
    def epochs(**how):
        loader = DataLoader(Subset(ImageFolder(root, 12), [4, 0, 1, 5, 3]), 2, shuffle=True, seed=3, **how)
        return [batches(loader) for _ in range(3)]

    expected = epochs(prefetch=0)
    for num_workers in (0, 1, 4):
        for prefetch in (0, 3):
            assert epochs(num_workers=num_workers, prefetch=prefetch) == expected
    labels = [[y for _, ys in epoch for y in ys] for epoch in expected]
    assert all(sum(epoch) == 3 for epoch in labels)
    assert len({x for epoch in expected for x, _ in epoch}) == 9


def test_an_epoch_after_a_resumption(root):
    mp.manual_seed(7)
    loader = DataLoader(ImageFolder(root, 12), 2, shuffle=True, num_workers=2)
    batches(loader)
    state, epoch = mp.get_rng_state(), loader.epoch
    expected = [batches(loader), batches(loader)]
    assert epoch == 1
    again = DataLoader(ImageFolder(root, 12), 2, shuffle=True)
    mp.set_rng_state(state)
    again.epoch = epoch
    assert [batches(again), batches(again)] == expected


def test_loops_in_two_epochs_at_once(root):
    loader = DataLoader(ImageFolder(root, 12), 2, num_workers=2)
    first, second = batches(loader), batches(loader)
    loader.epoch = 0
    both = [[(x.array.tobytes(), y.tolist()) for x, y in pair] for pair in zip(loader, loader)]
    assert both == [list(pair) for pair in zip(first, second)]
    assert first != second


# -------------------------------------------------------------------------------------------- pictures that are refused


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("damage", ["cut", "text", "empty", "gone"])
def test_a_picture_that_cannot_be_read(tmp_path, damage, num_workers):
    for i in range(4):
        save(tmp_path / "class" / f"{i}.jpg", noise(40, 40, 3))
    folder = ImageFolder(tmp_path, 8)
    victim = tmp_path / "class" / "2.jpg"
    if damage == "gone":
        victim.unlink()
    else:
        whole = victim.read_bytes()
        victim.write_bytes({"cut": whole[: len(whole) // 2], "text": b"not a picture", "empty": b""}[damage])
    error = FileNotFoundError if damage == "gone" else ValueError
    with pytest.raises(error, match=r"2\.jpg cannot be read as a picture: ") as caught:
        batches(DataLoader(folder, 4, num_workers=num_workers))
    assert "item 2 of the ImageFolder" in str([*getattr(caught.value, "__notes__", []), caught.value])


@pytest.mark.parametrize(("dtype", "suffix"), [(np.uint16, "png"), (np.float32, "tiff"), (np.int32, "tif")])
def test_more_than_8_bits_per_colour(tmp_path, dtype, suffix):
    save(tmp_path / "deep" / f"a.{suffix}", noise(9, 9).astype(dtype))
    with pytest.raises(ValueError, match=rf"a\.{suffix} .* 8 bits per colour, got Pillow's mode [IF].*; convert it"):
        ImageFolder(tmp_path, 8)[0]


@pytest.mark.filterwarnings("ignore:Image size")  # Pillow's warning, which few programs turn into an error
@pytest.mark.parametrize("limit", [1000, 400])  # Pillow itself refuses what has more than twice as many pixels
@pytest.mark.parametrize("how", [{}, {"size": 8, "crop": lambda width, height: (0, 0, width, height)}])
def test_a_decompression_bomb(tmp_path, limit, how, monkeypatch):
    path = save(tmp_path / "bomb.png", noise(40, 40))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(ValueError, match=r"bomb\.png .*pixels.* set PIL\.Image\.MAX_IMAGE_PIXELS higher"):
        read_picture(path, **how)
    for enough in (1600, None):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", enough)
        read_picture(path, **how)


def test_a_bomb_that_pillow_warns_of_as_an_error(tmp_path, monkeypatch):
    path = save(tmp_path / "bomb.png", noise(40, 40))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(ValueError, match=r"bomb\.png .* set PIL\.Image\.MAX_IMAGE_PIXELS higher"):
        read_picture(path)


def test_pillow_is_asked_for(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    for call in (lambda: ImageFolder(root), lambda: read_picture("a.png")):
        with pytest.raises(ModuleNotFoundError, match=r"pip install pillow$"):
            call()
