"""scaled_dot_product_attention: masks, rows that see nothing, FP16's range, what it keeps."""

import numpy as np
import pytest

import tinymp as mp
from exact_attention import exact
from oracle import check, host, randn
from tinymp import ops
from tinymp.backend import cpu

L, S, E, V = 4, 5, 8, 6
SHAPES = [((2, 3, L, E), (2, 3, S, E), (2, 3, S, V)), ((L, E), (S, E), (S, V)), ((2, L, E), (1, S, E), (1, S, V))]
SEEN = np.array([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 1, 0]], bool)
attention = ops.scaled_dot_product_attention


def oracle(q, k, v, mask=None, scale=None):
    scores = q @ np.swapaxes(k, -1, -2) * (E**-0.5 if scale is None else scale)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    top = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total, total, 1) @ v


def held(op, expected, *inputs):
    check(op, expected, *inputs, length=64, roundings=2, magnitude=4.0, dtypes=("float64", "float32"), grad_length=400)


def half(q, k, v, mask=None, **options):
    """In FP16, forward and backward, within the bound of exact_attention.py."""
    lead = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    arrays = [np.broadcast_to(x, (*lead, *x.shape[-2:])).astype("float16") for x in (q, k, v)]
    tensors = [mp.tensor(x, requires_grad=True) for x in arrays]
    y = attention(*tensors, None if mask is None else mp.tensor(mask), **options)
    dy = randn(*y.shape, seed=7).astype("float16")
    y.backward(dy)
    mask = np.tril(np.ones((L, S), bool)) if options.get("is_causal") else mask
    expected = exact("float16", *arrays, dy, mask, options.get("scale"))
    for name, x in zip(("y", "dq", "dk", "dv"), (y.array, *[t.grad_array for t in tensors])):
        assert x.dtype == "float16"
        expected[name].check(host(x), name)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_options_and_masks(shapes):
    inputs = [randn(*s, seed=i) for i, s in enumerate(shapes)]
    causal = np.tril(np.ones((L, S), bool))
    held(attention, oracle, *inputs)
    held(lambda *x: attention(*x, scale=0.3), lambda *x: oracle(*x, scale=0.3), *inputs)
    held(lambda *x: attention(*x, is_causal=True), lambda *x: oracle(*x, mask=causal), *inputs)
    held(lambda q, k, v: attention(q, k, v, mp.tensor(SEEN)), lambda *x: oracle(*x, mask=SEEN), *inputs)
    held(attention, oracle, *inputs, randn(L, S, seed=9))
    for options in ({}, {"scale": 0.3}, {"is_causal": True}):
        half(*inputs, **options)
    for mask in (SEEN, np.where(SEEN, randn(L, S, seed=8), -np.inf).astype("float16")):
        half(*inputs, mask)


def test_axes_that_are_broadcast():
    inputs = [randn(*s, seed=i) for i, s in enumerate([(2, 3, L, E), (S, E), (2, 1, S, V)])]
    for more in ([], [randn(1, S, seed=5)], [randn(2, 1, 1, S, seed=5)]):
        held(attention, oracle, *inputs, *more)


def test_nothing_as_large_as_the_scores_is_kept():
    q, k = (mp.tensor(randn(2, n, E).astype("float16"), requires_grad=True) for n in (40, 50))
    op = attention(q, k, k, is_causal=True).grad_fn
    kept = [x for x in (*op.saved, *op.statistics) if x is not None]
    assert max(x.size for x in kept) == k.numel()


def test_scores_stay_in_range_and_masks_do_not_overflow():
    """q k^T is up to 10^6 before it is scaled; a mask of -1e9 is FP32 beside FP16."""
    q = mp.tensor(np.full((1, 256), 60.0, "float16"), requires_grad=True)
    k = mp.tensor(np.stack([np.full(256, 60.0), np.full(256, 59.0)]).astype("float16"))
    v = mp.tensor(np.array([[1.0], [2.0]], "float16"))
    assert attention(q, k, v).tolist() == [[1]]
    y = attention(q, k, v, mp.tensor(np.array([[-1e9, 0.0]], "float32")))
    assert y.dtype == "float16" and y.tolist() == [[2]]
    y.sum().backward()
    assert np.isfinite(host(q.grad)).all()


@pytest.mark.cpu
def test_dropout_against_the_formula(monkeypatch):
    """The mask is drawn before anything is computed, and the backward pass uses the same mask."""
    kept = np.random.default_rng(3).random((2, 3, L, S)) < 0.75
    monkeypatch.setattr(cpu, "uniform", lambda shape: np.where(kept, 0.3, 0.2).reshape(shape))

    def expected(q, k, v, mask):
        e = np.exp(q @ np.swapaxes(k, -1, -2) * E**-0.5 + mask)
        return e / e.sum(-1, keepdims=True) * kept / 0.75 @ v

    inputs = [randn(*s, seed=i) for i, s in enumerate(SHAPES[0])]
    held(lambda *x: attention(*x, dropout_p=0.25), expected, *inputs, randn(L, S, seed=9))
    arrays = [x.astype("float16") for x in (*inputs, randn(2, 3, L, V, seed=8))]
    tensors = [mp.tensor(x, requires_grad=True) for x in arrays[:3]]
    y = attention(*tensors, dropout_p=0.25)
    y.backward(arrays[3])
    exactly = exact("float16", *arrays, kept=kept, dropout_p=0.25)
    for name, x in zip(("y", "dq", "dk", "dv"), (y.array, *[t.grad_array for t in tensors])):
        exactly[name].check(host(x), name)
