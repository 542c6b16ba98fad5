"""scaled_dot_product_attention: masks, rows that see nothing, FP16's range; and kl_div."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, host, randn
from tinymp import ops

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
    """In FP16 the scores are stored, of magnitude below 8, and so are the weights: e^x has the relative error that x
    has as an absolute one, and backward reads both.
    """
    check(op, expected, *inputs, length=64, roundings=2, magnitude=4.0, dtypes=("float64", "float32"), grad_length=400)
    half = [np.asarray(x).astype("float16") if np.asarray(x).dtype == np.float64 else x for x in inputs]
    y = op(*map(mp.tensor, half))
    wide = [x.astype("float64") if x.dtype == np.float16 else x for x in half]
    assert y.dtype == "float16"
    np.testing.assert_allclose(y.numpy().astype("float64"), expected(*wide), atol=2 * 8 * 2.0**-11 * 4)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_attention(shapes):
    inputs = [randn(*s, seed=i) for i, s in enumerate(shapes)]
    held(attention, oracle, *inputs)
    held(lambda *x: attention(*x, scale=0.3), lambda *x: oracle(*x, scale=0.3), *inputs)
    causal = np.tril(np.ones((L, S), bool))
    held(lambda *x: attention(*x, is_causal=True), lambda *x: oracle(*x, mask=causal), *inputs)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_masks(shapes):
    inputs = [randn(*s, seed=i) for i, s in enumerate(shapes)]
    held(lambda q, k, v: attention(q, k, v, mp.tensor(SEEN)), lambda *x: oracle(*x, mask=SEEN), *inputs)
    held(attention, oracle, *inputs, randn(L, S, seed=9))
    added = np.where(SEEN, randn(L, S, seed=8), -np.inf).astype("float32")
    for dtype in ("float16", "float32"):
        x = [mp.tensor(i.astype(dtype)) for i in inputs]
        y = attention(*x, mp.tensor(added.astype(dtype))).numpy()
        np.testing.assert_allclose(y, oracle(*inputs, mask=added), atol=0.05 if dtype == "float16" else 1e-5)


@pytest.mark.parametrize("mask", [SEEN, np.where(SEEN, 0, -np.inf).astype("float32")], ids=["bool", "added"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rows_that_see_nothing_give_zero_and_no_nan(dtype, mask):
    q, k, v = (mp.tensor(randn(*s, seed=i).astype(dtype), requires_grad=True) for i, s in enumerate(SHAPES[0]))
    y = attention(q, k, v, mp.tensor(mask))
    assert not y.numpy()[..., 1, :].any()
    y.sum().backward()
    assert not host(q.grad)[..., 1, :].any()
    assert all(np.isfinite(host(x.grad)).all() for x in (q, k, v))


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


def test_dropout_acts_on_the_weights():
    mp.manual_seed(0)
    q, v = mp.tensor(np.zeros((4000, 2), "float32")), mp.tensor(np.ones((1, 1), "float32"))
    y = attention(q, mp.tensor(np.zeros((1, 2), "float32")), v, dropout_p=0.25).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 6 * np.sqrt(0.25 * 0.75 / 4000)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: attention(x, x[:, :2], x), ValueError, "scaled_dot_product_attention: expected query"),
        (lambda x: attention(x, x, x, x, is_causal=True), ValueError, "expected either attn_mask or is_causal"),
        (lambda x: attention(x, x, x, x.long()), TypeError, "`attn_mask` to be bool or floating, got int64"),
        (lambda x: attention(x, x, x, enable_gqa=True), TypeError, "`enable_gqa` is not supported"),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(mp.tensor(randn(3, 3)))
