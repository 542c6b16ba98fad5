"""LSTM on a CPU against its definition, in both directions: a value and a gradient are rounded alike."""

import numpy as np
import pytest

import tinymp as mp
from oracle import STORAGE, WORK, host, randn
from tinymp import fast_path, ops
from tinymp.ops import lstm_layer

pytestmark = pytest.mark.cpu
T, B, D, H, P = 4, 3, 5, 6, 2
PACKED = 12  # how much one step stores, forward and backward: each may be rounded to the neighbour


def lstm(x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr=None, **options):
    return lstm_layer(x, (h, c), w_ih, w_hh, b_ih, b_hh, w_hr, **options)


SHAPES = {
    "lstm": (lstm, [(T, B, D), (B, H), (B, H), (4 * H, D), (4 * H, H), (4 * H,), (4 * H,)]),
    "lstm, projected": (lstm, [(T, B, D), (B, P), (B, H), (4 * H, D), (4 * H, P), (4 * H,), (4 * H,), (P, H)]),
}


def results(monkeypatch, off, op, arrays, dtype, options):
    monkeypatch.setattr(fast_path, "off", off)
    tensors = [mp.tensor(a.astype(dtype), requires_grad=True) for a in arrays]
    y = ops.cat([r.reshape(-1) for r in op(*tensors, **options)])
    y.backward(randn(*y.shape, seed=9).astype(dtype))
    return [y.numpy(), *[host(t.grad) for t in tensors]]


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"lengths": [2, 4, 1]}], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_in_both_directions(monkeypatch, name, options):
    op, shapes = SHAPES[name]
    arrays = [0.5 * randn(*shape, seed=i) for i, shape in enumerate(shapes)]
    for dtype in ("float64", "float32", "float16"):
        expected = results(monkeypatch, {"forward", "backward"}, op, arrays, dtype, options)
        for off in (set(), {"forward"}, {"backward"}):
            for e, got in zip(expected, results(monkeypatch, off, op, arrays, dtype, options), strict=True):
                size, terms = abs(e.astype("f8")).max(), T * B * 4 * H  # no sum is longer
                bound = (2 * terms * WORK[dtype] + PACKED * T * STORAGE[dtype]) * size
                np.testing.assert_allclose(got.astype("f8"), e.astype("f8"), rtol=0, atol=bound)
