"""An LSTM and a GRU: whole layers against the definitions on a CPU, and their traced steps against their own.

In FP16 a value that T steps computed may have gone through k T other roundings than the definition's: each is worth
u_s = 2^13 u_w of a magnitude of 1 or so, and enters as so many terms of a sum. See test_recurrent.py for k.
"""

import numpy as np
import pytest

import tinymp as mp
from gpu.both_ways import check_both_ways, launches, on_device
from oracle import STORAGE, WORK, randn
from tinymp import fast_path, ops
from tinymp.ops import lstm_layer

pytestmark = pytest.mark.usefixtures("gpu")

T, B, D = 4, 3, 5
PACKED = 12  # how much one step of the op stores, forward and backward
LENGTHS = [2, 4, 1]


def lstm_inputs(h, p=None, t=T, b=B, scale=0.5):
    """x, W_ih, W_hh, b_ih, b_hh, h, c (, W_hr), in float64."""
    n = p or h
    shapes = [(4 * h, D), (4 * h, n), (4 * h,), (4 * h,), (b, n), (b, h)] + ([(p, h)] if p else [])
    return [randn(t, b, D), *[scale * randn(*s, seed=i + 3) for i, s in enumerate(shapes)]]


def joined(results, used=(0, 1, 2)):
    """One tensor of those results that are used: all get their gradients at once."""
    return ops.cat([y.reshape(-1) for i, y in enumerate(results) if i in used])


def lstm(used=(0, 1, 2), **options):
    def op(x, w_ih, w_hh, b_ih, b_hh, h, c, w_hr=None):
        return joined(lstm_layer(x, (h, c), w_ih, w_hh, b_ih, b_hh, w_hr, **options), used)

    return op


def hold(op, *inputs, t=T):
    longest = t * B * (4 * max(x.shape[-1] for x in inputs) + 8)
    for dtype in ("float16", "float32"):
        length = longest + PACKED * t * STORAGE[dtype] / WORK[dtype] / 2  # check_both_ways doubles it
        bounds = {"length": length, "magnitude": 1.0, "inherited": PACKED * t, "grad_length": longest}
        check_both_ways(op, *inputs, dtypes=(dtype,), mixed=dtype == "float16", **bounds)


def gru(x, w_ih, w_hh, b_ih, b_hh, h, **options):
    return ops.cat([y.reshape(-1) for y in ops.gru_layer(x, h, w_ih, w_hh, b_ih, b_hh, **options)])


def gru_inputs(h):
    x, w_ih, w_hh, b_ih, b_hh, state, _ = lstm_inputs(h)
    return x, w_ih[: 3 * h], w_hh[: 3 * h], b_ih[: 3 * h], b_hh[: 3 * h], state


WAYS = [{"lengths": lengths, "reverse": reverse} for lengths in (None, LENGTHS) for reverse in (False, True)]
ROWS = [(lstm(**way), lstm_inputs(6)) for way in WAYS] + [(lstm(**WAYS[-1]), lstm_inputs(h)) for h in (1, 9)]
ROWS += [(lstm(**way), lstm_inputs(6, p)) for way, p in ((WAYS[0], 2), (WAYS[3], 3))]  # with a projection
ROWS += [(lstm([i]), lstm_inputs(6)) for i in range(3)]  # a gradient from one of the results


@pytest.mark.parametrize(("op", "inputs"), ROWS)
def test_lstm(op, inputs):
    hold(op, *inputs)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_gru(way):
    hold(lambda *v: gru(*v, **way), *gru_inputs(6))


@pytest.mark.parametrize("given", [["bias_ih"], ["bias_hh"], []])
def test_without_biases_and_states(given):
    x, w_ih, w_hh, bias, *_ = lstm_inputs(6)
    op = lambda x, w, u, *b: joined(lstm_layer(x, None, w, u, **dict(zip(given, b))))  # noqa: E731
    hold(op, x, w_ih, w_hh, *[bias for _ in given])


def test_the_sum_of_two_biases_is_not_rounded():
    """1024 - 0.25 is no FP16 number, and 1024 - 0.25 - 1023 is one."""
    shapes = {(1, 1, 1): 1.0, (4, 1): -1023.0}
    inputs = [*[np.full(*shape) for shape in shapes.items()], np.zeros((4, 1)), np.full(4, 1024.0), np.full(4, -0.25)]
    check_both_ways(lambda x, *w: lstm_layer(x, None, *w)[0], *inputs, dtypes=("float16",), gradient=False)


def test_arrays_that_lie_otherwise():
    """Batch first, and a gradient between two pairs."""
    hold(lambda x, *v: lstm()(x.transpose(0, 1), *v), randn(B, T, D), *lstm_inputs(6)[1:])
    hold(lambda *v: (lambda y: ops.cat([y[:1], y]))(lstm()(*v)), *lstm_inputs(6))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("layer", "gates", "most"), [(lstm_layer, 4, 2), (ops.gru_layer, 3, 3)])
def test_a_step_is_few_launches(layer, gates, most, dtype, gpu):
    if launches() is None:
        pytest.skip("a GPU keeps no list")

    def count(t):
        arrays = [v if i == 0 else v[: gates * 6] for i, v in enumerate(lstm_inputs(6, t=t)[:5])]
        x, *weights = [mp.Tensor(on_device(v.astype(dtype)), requires_grad=True) for v in arrays]
        before = len(launches()) + len(gpu.xp.foreign)
        y = layer(x, None, *weights)[0]
        y.backward(y.array)
        return len(launches()) + len(gpu.xp.foreign) - before

    assert count(5) - count(4) == most  # products are not counted


@pytest.mark.parametrize(
    ("dtype", "h", "special"),
    [("float16", 16, True), ("float32", 1, True), ("float32", 6, False), ("float64", 6, True)],
)
@pytest.mark.parametrize(("layer", "inputs"), [(lstm(), lstm_inputs), (gru, gru_inputs)], ids=["lstm", "gru"])
def test_steps_have_the_bits_of_their_definition(layer, inputs, dtype, h, special):
    """On the device, operation by operation; with infinite products, which saturate gates, and a nan in one unit."""
    arrays = [v.astype(dtype) for v in inputs(h)]
    if special:
        arrays[0][0, 0] = [np.inf, 100, -100, np.nan, 0]
        arrays[0][1, 1] = -np.inf

    def run():
        tensors = [mp.Tensor(on_device(v), requires_grad=True) for v in arrays]
        y = layer(*tensors)
        y.backward(y.array)
        return [y.numpy(), *(t.grad.numpy() for t in tensors)]

    traced = run()
    fast_path.off.update({"map", "map_into"})
    try:
        one_by_one = run()
    finally:
        fast_path.off.difference_update({"map", "map_into"})
    for one, other in zip(traced, one_by_one, strict=True):
        np.testing.assert_array_equal(one, other)
