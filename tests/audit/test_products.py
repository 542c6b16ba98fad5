"""Matrix products: the sizes are known, and so are their operations and what Tensor Cores would take of them."""

import json

import numpy as np
import pytest

import tinymp as mp
from audit.sample import rehearse
from examples import cnn
from tinymp import nn, ops
from tinymp.audit.products import Products
from tinymp.fast.cpu import conv


def listen(model, *inputs, backward=True, policy=mp.MIXED):
    products = Products()
    model = policy.cast(model)
    inputs = [policy.cast(mp.tensor(x, requires_grad=x.dtype.kind == "f")) for x in inputs]
    with mp.audit(products), mp.use(policy):
        y = model(*inputs)
        if backward:
            y = y[0] if isinstance(y, tuple) else y
            y.backward(mp.backend.of(y.array).xp.ones_like(y.array))
    return products


def sizes(products, phase):
    return sorted((p.batch, p.m, p.n, p.k, p.calls) for p in products.rows if p.phase == phase)


def ones(*shape):
    return np.ones(shape, np.float32)


def test_linear():
    products = listen(nn.Linear(5, 7), ones(3, 5))
    (forward,) = [p for p in products.rows if p.phase == "forward"]
    assert (forward.batch, forward.m, forward.n, forward.k, forward.calls) == (1, 3, 7, 5, 1)
    assert forward.axes == {"m": "rows", "n": "outputs", "k": "inputs"}
    assert (forward.module, forward.op, forward.dtype, forward.accumulate) == ("model", "linear", "float16", "float32")
    assert forward.caller.startswith("test_products.py:")
    assert forward.where.startswith("ops/dot.py:")
    assert sizes(products, "backward") == [(1, 3, 5, 7, 1), (1, 7, 5, 3, 1)]  # dx = dy W, dW = dy^T x
    axes = [p.axes for p in products.rows if p.phase == "backward"]
    assert {"m": "rows", "n": "inputs", "k": "outputs"} in axes
    assert {"m": "outputs", "n": "inputs", "k": "rows"} in axes


@pytest.mark.parametrize(("block", "groups"), [(1 << 24, 1), (1500, 2)])
def test_conv2d(block, groups, monkeypatch):
    """Whole, however many blocks of columns there are."""
    monkeypatch.setattr(conv, "BLOCK", block)  # of a CPU's fast path, which makes products of blocks
    monkeypatch.setattr(conv, "CACHED", block)
    layer = nn.Conv2d(4, 6, (3, 2), stride=2, padding=1, groups=groups, bias=False)
    products = listen(layer, ones(5, 4, 9, 8))
    o, c, positions = 6 // groups, 4 // groups * 6, 5 * 5 * 5  # of images (9, 8): 5 x 5 windows
    assert sizes(products, "forward") == [(groups, o, positions, c, 1)]
    assert sizes(products, "backward") == sorted([(groups, c, positions, o, 1), (groups, c, o, positions, 1)])
    (forward,) = [p for p in products.rows if p.phase == "forward"]
    assert forward.lengths == {"m": o, "k": 4 // groups}  # the channels, whatever the batch (NVG 2.2)
    assert forward.axes == {"m": "outputs", "n": "rows", "k": "inputs"}
    assert forward.flops == 2 * 5 * 6 * 25 * 4 // groups * 6


@pytest.mark.cpu  # where a step's product is W h; on a GPU it is h W
def test_lstm():
    """One product with all inputs, and one with the state per step."""
    products = listen(nn.LSTM(6, 10), ones(7, 3, 6))
    assert sizes(products, "forward") == [(1, 21, 40, 6, 1), (1, 40, 3, 10, 7)]
    by_size = {(p.m, p.n, p.k): p.axes for p in products.rows if p.phase == "forward"}
    assert by_size[21, 40, 6] == {"m": "rows", "n": "outputs", "k": "inputs"}
    assert by_size[40, 3, 10] == {"m": "outputs", "n": "rows", "k": "inputs"}
    expected = [(1, 10, 3, 40, 7), (1, 21, 6, 40, 1), (1, 40, 6, 21, 1), (1, 40, 10, 21, 1)]
    assert sizes(products, "backward") == expected
    assert {p.dtype for p in products.rows} == {"float16"}  # though operands come widened


@pytest.mark.parametrize(("left", "right"), [((2, 3, 4, 8), (3, 8, 16)), ((4, 8), (2, 3, 8, 16))])
def test_batched_matmul(left, right):
    products = Products()
    with mp.audit(products):
        ops.matmul(mp.tensor(ones(*left)), mp.tensor(ones(*right)))
    (one,) = products.rows
    assert (one.batch, one.m, one.n, one.k, one.dtype, one.axes) == (6, 4, 16, 8, "float32", {})


def test_padding_of_a_convolution_is_of_its_channels():
    assert all(p.eligible for p in listen(nn.Conv2d(16, 32, 3), ones(1, 16, 9, 7)).rows)  # NVG 2.2 asks no batch
    (bad,) = listen(nn.Conv2d(2, 16, 2), ones(8, 2, 6, 6), backward=False).rows
    assert (bad.k, bad.misaligned, bad.padding_cost) == (8, ["k"], 3)


def test_the_cnn():
    """96 % of its operations: all but the first convolution's, of one channel, and the 10 classes'."""
    products = rehearse(lambda: cnn.network(1, 28, 28, 10), (64, 1, 28, 28), Products())
    flops = {"conv1": 2 * (2 * 32 * 9 * 64 * 784), "conv2": 3 * (2 * 64 * 288 * 64 * 196)}  # no gradient of the images
    flops |= {"fc1": 3 * 2 * 64 * 3136 * 128, "fc2": 3 * 2 * 64 * 128 * 10}
    assert sum(p.flops for p in products.rows) == sum(flops.values())
    share = (flops["conv2"] + flops["fc1"]) / sum(flops.values())
    assert products.tensor_core_share == pytest.approx(share)
    assert str(products).startswith(f"{share:.1%} of the operations") and json.dumps(products.as_dict())
    assert {p.module for p in products.rows if not p.eligible} == {"model.0", "model.11"}


def test_picture():
    """A bar for each product, the largest on top; those misaligned have another colour and say what is."""
    from matplotlib.figure import Figure

    products = listen(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 10)), ones(8, 8), backward=False)
    axes = Figure().add_subplot()
    products.draw(axes)
    first, second = axes.containers[0]
    assert (first.get_width(), second.get_width()) == pytest.approx((1000 / 18, 800 / 18))
    assert first.get_facecolor() != second.get_facecolor()
    assert [text.get_text() for text in axes.texts] == ["outputs: 10", ""]
