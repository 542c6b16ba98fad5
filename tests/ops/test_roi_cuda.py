"""The CUDA twins of RoI pooling and RoI align against their definitions."""

import numpy as np
import pytest

import tinymp as mp
from oracle import distinct, randn, rng
from tinymp import ops
from tinymp.ops.roi import RoIAlign, RoIPool
from twins import check_twin, on_device

pytestmark = pytest.mark.usefixtures("gpu")

ALIGN = {"roi_align_forward", "roi_align_backward"}
POOL = {"roi_pool_forward", "roi_pool_backward"}


def regions(n, images, seed=0):
    """Boxes in and around an image of 20 x 28 pixels: FP32 numbers of which nothing is exact."""
    corners = rng(seed).uniform(-6, 24, (n, 4))
    corners[:, 2:] = corners[:, :2] + abs(corners[:, 2:]) * rng(seed + 1).integers(0, 2, (n, 1))  # some have no area
    return np.concatenate([rng(seed + 2).integers(0, images, (n, 1)), corners], 1).astype("float32")


def there(x, rois):
    return mp.backend.get(x.device).asarray(rois)


@pytest.mark.parametrize("chwn", [False, True])
@pytest.mark.parametrize(
    ("shape", "size", "ratio", "aligned"),
    [((2, 9, 5, 7), (3, 2), -1, False), ((3, 3, 5, 7), (2, 4), 2, True), ((1, 1, 1, 1), 1, -1, True)],
)
def test_roi_align(shape, size, ratio, aligned, chwn):
    rois = regions(12, shape[0])
    check_twin(
        lambda x: ops.roi_align(x, there(x, rois), size, 0.27, ratio, aligned),
        randn(*shape),
        kernels=ALIGN,
        length=16 * 35,  # a sample is off by 2^-20, as numbers up to 8 are, and with it the weight of each of 35 places
        grad_length=16 * 12 * 8,  # and of the cells of 12 regions
        chwn=chwn,
    )


@pytest.mark.parametrize("chwn", [False, True])
@pytest.mark.parametrize(("shape", "size"), [((2, 9, 5, 7), (3, 2)), ((3, 3, 5, 7), (6, 9)), ((1, 1, 1, 1), 1)])
def test_roi_pool(shape, size, chwn):
    rois = regions(12, shape[0])
    check_twin(
        lambda x: ops.roi_pool(x, there(x, rois), size, 0.27),
        distinct(*shape),
        kernels=POOL,
        length=12 * 54,
        chwn=chwn,
    )


def test_roi_pool_with_ties_infinities_and_nan():
    """Values and gradients, bit for bit, over small integers, both zeros, infinities and nan."""
    values = np.array([-np.inf, -1, -0.0, 0.0, 1, 1, np.inf, np.nan])
    x = values[rng().integers(0, len(values), (2, 3, 6, 7))]
    rois = regions(9, 2)
    for dtype in ("float16", "float32"):
        found = []
        for a in (x.astype(dtype), on_device(x.astype(dtype))):
            t = mp.Tensor(a, requires_grad=True)
            y = ops.roi_pool(t, there(t, rois), 3, 0.27)
            y.backward(np.ones(y.shape, dtype))
            found.append((y.numpy(), mp.backend.to_cpu(t.grad)))
        for host, device in zip(*found):
            np.testing.assert_array_equal(device, host)


def test_no_regions(gpu):
    for op in (ops.roi_align, ops.roi_pool):
        x = mp.Tensor(on_device(np.ones((2, 3, 4, 4), "float16")), requires_grad=True)
        y = op(x, [there(x, np.zeros((0, 4), "float32"))] * 2, 2)
        y.backward(y.array)
        assert y.shape == (0, 3, 2, 2) and not mp.backend.to_cpu(x.grad).any()


BAD = [(place, value) for place in (0, 1, 4) for value in (np.nan, np.inf, 1e30)]


def bad(place, value):
    rois = np.array([[0, 0, 0, 2, 2]] * 2, "float32")
    rois[1, place] = value
    return rois


@pytest.mark.parametrize(("place", "value"), BAD)
def test_kernels_do_not_trust_boxes(place, value):
    """What will be reported later is a region of zeros until then."""
    for op, options in ((RoIAlign, {"ratio": -1, "aligned": False}), (RoIPool, {})):
        x = mp.Tensor(on_device(np.ones((1, 2, 4, 4), "float16")), requires_grad=True)
        y = op.apply(x, rois=there(x, bad(place, value)), size=(2, 2), scale=1.0, **options)
        y.backward(on_device(np.ones(y.shape, "float16")))
        assert not y.numpy()[1].any()
        assert mp.backend.to_cpu(x.grad).sum() == 8  # the first region's


@pytest.mark.parametrize("op", [ops.roi_align, ops.roi_pool])
@pytest.mark.parametrize(("place", "value"), BAD)
def test_bad_boxes_are_reported(op, place, value):
    def call():
        x = mp.Tensor(on_device(np.ones((1, 2, 4, 4), "float16")))
        op(x, there(x, bad(place, value)), 2)
        mp.backend.synchronize()

    with pytest.raises(
        ValueError, match=rf"{op.__name__}: expected .*`boxes` .*\(seen on the GPU in an earlier call\)"
    ):
        call()
