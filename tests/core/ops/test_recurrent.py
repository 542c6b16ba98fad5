"""LSTM and GRU layers as one op, held to their mathematics, and to the loop of cells that defines them.

Tolerances beyond those of oracle.py: a value that T steps computed went through at most k T roundings to storage, each
worth u_s of values whose magnitude is m; with weights this small a step does not enlarge the error of the one before.
k counts what one step stores: the products with x, 4 gates, the state, the output (and as many gradients).
"""

import numpy as np
import pytest

import tinymp as mp
from oracle import STORAGE, WORK, assert_close, check, gradients, host, randn
from tinymp import ops
from tinymp.ops import lstm_layer

T, B, D, H, P = 5, 4, 3, 6, 2
LENGTHS = [3, 5, 1, 3]


def sigma(z):
    return 1 / (1 + np.exp(-z))


def run_alone(step, x, states, lengths, reverse, size):
    """Each sequence by itself, step by step: outputs (T, B, size), zero in the padding, and the states at the end."""
    y, last = np.zeros((*x.shape[:2], size)), [np.array(s) for s in states]
    for b, n in enumerate(lengths or [len(x)] * x.shape[1]):
        now = [s[b] for s in states]
        for t in range(n)[::-1] if reverse else range(n):
            now = step(x[t, b], *now)
            y[t, b] = now[0]
        for s, value in zip(last, now):
            s[b] = value
    return np.concatenate([v.ravel() for v in (y, *last)])


def lstm_oracle(x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr=None, *, lengths, reverse):
    def step(x, h, c):
        i, f, g, o = np.split(w_ih @ x + b_ih + w_hh @ h + b_hh, 4)
        c = sigma(f) * c + sigma(i) * np.tanh(g)
        h = sigma(o) * np.tanh(c)
        return (h if w_hr is None else w_hr @ h), c

    return run_alone(step, x, (h, c), lengths, reverse, h.shape[1])


def joined(*tensors):
    return ops.cat([t.reshape(-1) for t in tensors])


def lstm(**options):
    def op(x, h, c, *weights):
        return joined(*lstm_layer(x, (h, c), *weights, **options))

    return op


def lstm_inputs(t=T, b=B, d=D, h=H, p=None, scale=0.5):
    """x, h, c, W_ih, W_hh, b_ih, b_hh (, W_hr), in float64."""
    n = p or h
    shapes = [(4 * h, d), (4 * h, n), (4 * h,), (4 * h,)] + ([(p, h)] if p else [])
    weights = [scale * randn(*s, seed=i + 3) for i, s in enumerate(shapes)]
    return [randn(t, b, d), 0.5 * randn(b, n, seed=1), randn(b, h, seed=2), *weights]


WAYS = [{"lengths": lengths, "reverse": reverse} for lengths in (None, LENGTHS) for reverse in (False, True)]
PACKED = 12  # how much one step of the op stores, forward and backward


def run(op, inputs, dtype):
    """The result of op and the gradients of its inputs, as float64, for inputs rounded to FP16 in any dtype."""
    tensors = [mp.tensor(x.astype("float16").astype(dtype), requires_grad=True) for x in inputs]
    y = op(*tensors)
    assert y.dtype == dtype
    dy = randn(*y.shape, seed=9).astype("float16").astype(dtype)
    return [v.astype("float64") for v in (host(y.array), *gradients(op, tensors, dy))]


def assert_rounded(got, exact, roundings, dtype, length):
    """got within that many roundings of the largest value of exact, and FP32 sums of that length."""
    for i, (g, e) in enumerate(zip(got, exact, strict=True)):
        bound = (roundings * STORAGE[dtype] + length * WORK[dtype]) * np.abs(e).max()
        assert_close(g, e, bound, f"{dtype} {'gradient of input ' * (i > 0)}{i - 1 if i else 'result'}")


def hold(op, oracle, inputs):
    """op against the oracle in FP64 and FP32; in FP16 against itself in FP64."""
    length = T * B * (D + 4 * H + P + 8)
    check(op, oracle, *inputs, dtypes=("float64", "float32"), length=length, magnitude=2.0, inherited=PACKED * T)
    assert_rounded(run(op, inputs, "float16"), run(op, inputs, "float64"), PACKED * T, "float16", length)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("p", [None, P])
def test_lstm(p, way):
    hold(lstm(**way), lambda *inputs: lstm_oracle(*inputs, **way), lstm_inputs(p=p))


def tensors(inputs, dtype="float32", requires_grad=True):
    return [mp.tensor(x.astype(dtype), requires_grad=requires_grad) for x in inputs]


@pytest.mark.parametrize("reverse", [False, True])
def test_padding_is_neither_read_nor_trained(reverse):
    """NaN in the padding reaches nothing; outputs and gradients there are zero."""
    inputs = lstm_inputs()
    padding = np.arange(T)[:, None] >= np.array(LENGTHS)  # T, B
    inputs[0][padding] = np.nan
    ts = tensors(inputs)
    y, *last = lstm_layer(ts[0], ts[1:3], *ts[3:], lengths=LENGTHS, reverse=reverse)
    joined(y, *last).sum().backward()
    assert not y.numpy()[padding].any() and not host(ts[0].grad)[padding].any()
    for value in (y.numpy(), *[s.numpy() for s in last], *[host(t.grad) for t in ts]):
        assert np.isfinite(value).all()
    assert host(ts[0].grad)[~padding].all()
