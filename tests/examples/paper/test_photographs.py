import math

import numpy as np
import pytest

from examples.paper.photographs import AREA, RATIO, Photographs
from tinymp.data import DataLoader, Subset

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
    folder = Photographs(root)
    assert folder.classes == ["ant", "zebra"]
    names = ["ant/0.jpeg", "ant/1.jpeg", "ant/2.jpeg", "zebra/a.PNG", "zebra/b.jpg", "zebra/deeper/c.png"]
    assert folder.samples == [(root / name, int(name > "b")) for name in names]
    assert len(folder) == 6
    assert all(folder[i][0].shape == (3, 224, 224) for i in (0, 5))


def test_folders_without_pictures(root, tmp_path):
    (tmp_path / "cow").mkdir()
    save(tmp_path / "cat" / "1.png", noise(8, 8))
    for folder, where in ((root / "nowhere", "nowhere"), (root / "zebra" / "deeper", "deeper"), (tmp_path, "cow")):
        with pytest.raises(FileNotFoundError, match=f"expected a folder of pictures per class .* none in .*{where}$"):
            Photographs(folder)


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
    np.testing.assert_allclose(colours(Photographs(tmp_path, 56, train=False)[0]), expected, atol=1e-4)


def by_hand(array, random, size):
    """torchvision's RandomResizedCrop and RandomHorizontalFlip as loops over plain numbers, and the box."""
    height, width = array.shape[:2]
    for _ in range(10):
        area = height * width * random.uniform(*AREA)
        aspect = math.exp(random.uniform(*np.log(RATIO)))
        w, h = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left, upper = random.integers(0, width - w + 1), random.integers(0, height - h + 1)
            break
    else:
        w, h = width, height
        if width / height < RATIO[0]:
            h = round(width / RATIO[0])
        elif width / height > RATIO[1]:
            w = round(height * RATIO[1])
        left, upper = (width - w) // 2, (height - h) // 2
    cut = Image.fromarray(np.ascontiguousarray(array[upper : upper + h, left : left + w]))
    scaled = np.asarray(cut.resize((size, size), 2))
    mirrored = random.random() < 0.5
    return scaled[:, ::-1] if mirrored else scaled, (left, upper, w, h, mirrored)


@pytest.mark.parametrize("shape", [(40, 60, 3), (90, 6, 3), (6, 90, 3)])  # of some shapes few parts fit: the middle
def test_random_parts(tmp_path, shape):
    array, seen = noise(*shape), []
    save(tmp_path / "a" / "a.png", array)
    save(tmp_path / "a" / "b.png", array)
    folder = Photographs(tmp_path, 16, seed=5)
    for epoch in range(30):
        expected, box = by_hand(array, np.random.default_rng((5, epoch, 1)), 16)
        seen.append(box)
        # Pillow's bilinear filter sees the pixels beyond a box, which a cut picture does not have: not at its edges
        got = colours(folder.in_epoch(epoch)[1])
        np.testing.assert_allclose(got[3:-3, 3:-3], expected[3:-3, 3:-3], atol=1.001)
    assert 5 <= sum(box[-1] for box in seen) <= 25
    assert len(set(seen)) >= 2


def test_random_parts_depend_on_seed_epoch_and_number_alone(root):
    one, same, other = (Photographs(root, 8, seed=seed) for seed in (1, 1, 2))
    items = [one.in_epoch(e)[i][0].tobytes() for e in range(3) for i in range(6)]
    backwards = [same.in_epoch(e)[i][0].tobytes() for e in (2, 1, 0) for i in reversed(range(6))]
    assert items == backwards[::-1]
    assert len({*items, *(other[i][0].tobytes() for i in range(6))}) == 24
    np.testing.assert_array_equal(one[0][0], one.in_epoch(0)[0][0])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_upright(tmp_path, orientation):
    upright = smooth(48, 48)
    # how the camera must have stored it: the inverse of what the orientation asks for
    turns = [upright, upright[:, ::-1], upright[::-1, ::-1], upright[::-1], np.swapaxes(upright, 0, 1)]
    turns += [np.rot90(upright, 1), np.swapaxes(upright[::-1, ::-1], 0, 1), np.rot90(upright, -1)]
    exif = Image.Exif()
    exif[0x0112] = orientation
    save(tmp_path / "a" / "1.jpg", np.ascontiguousarray(turns[orientation - 1]), quality=95, exif=exif)
    expected = Image.fromarray(upright).resize((15, 15), 2, (2.8, 2.8, 45.2, 45.2))
    assert np.abs(colours(Photographs(tmp_path, 15, train=False)[0]) - np.asarray(expected)).max() <= 12


# ------------------------------------------------------------------------------------------------------- with a loader


def batches(loader):
    return [(x.array.tobytes(), y.tolist()) for x, y in loader]


def test_batches_are_the_same_for_every_number_of_threads(root):
    def epochs(**how):
        loader = DataLoader(Subset(Photographs(root, 12), [4, 0, 1, 5, 3]), 2, shuffle=True, seed=3, **how)
        return [batches(loader) for _ in range(3)]

    expected = epochs(prefetch=0)
    for num_workers in (0, 1, 4):
        for prefetch in (0, 3):
            assert epochs(num_workers=num_workers, prefetch=prefetch) == expected
    labels = [[y for _, ys in epoch for y in ys] for epoch in expected]
    assert all(sum(epoch) == 3 for epoch in labels)
    assert len({x for epoch in expected for x, _ in epoch}) == 9


# -------------------------------------------------------------------------------------------- pictures that are refused


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("damage", ["cut", "text", "empty", "gone"])
def test_a_picture_that_cannot_be_read(tmp_path, damage, num_workers):
    for i in range(4):
        save(tmp_path / "class" / f"{i}.jpg", noise(40, 40, 3))
    folder = Photographs(tmp_path, 8)
    victim = tmp_path / "class" / "2.jpg"
    if damage == "gone":
        victim.unlink()
    else:
        whole = victim.read_bytes()
        victim.write_bytes({"cut": whole[: len(whole) // 2], "text": b"not a picture", "empty": b""}[damage])
    with pytest.raises(ValueError, match=r"2\.jpg cannot be read as a picture: ") as caught:
        batches(DataLoader(folder, 4, num_workers=num_workers))
    assert "item 2 of the Photographs" in str([*getattr(caught.value, "__notes__", []), caught.value])
