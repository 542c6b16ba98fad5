"""RowConv: against the sum that it is, in every layout, and with sequences of any length."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, host, randn
from tinymp import nn

T, B, D = 5, 3, 4


def oracle(x, w, lengths):
    """One sequence, step and neighbour at a time."""
    y = np.zeros_like(x)
    for i, n in enumerate(lengths):
        for t in range(n):
            for j in range(min(w.shape[1], n - t)):
                y[t, i] += w[:, j] * x[t + j, i]
    return y


@pytest.mark.parametrize("lengths", [None, [3, 5, 1]])
@pytest.mark.parametrize("context", [1, 3, 7])
def test_against_the_sum(context, lengths):
    """Values and gradients of input and weight; also a context longer than the sequences."""
    m = nn.RowConv(D, context)

    def layer(x, w):
        vars(m)["weight"] = w
        return m(x, lengths)

    x, w = randn(T, B, D), randn(D, context, seed=1)
    check(
        layer,
        lambda x, w: oracle(x, w, lengths or [T] * B),
        x,
        w,
        length=context,
        magnitude=context * np.abs(x).max() * np.abs(w).max(),
        grad_length=T * B * np.abs(x).max() * np.abs(w).max(),
    )


def test_layouts():
    m, x = nn.RowConv(D, 3), randn(T, B, D).astype("float32")
    expected = oracle(x, host(m.weight.array), [T] * B)
    np.testing.assert_allclose(m(mp.tensor(x[:, 0])).numpy(), expected[:, 0], atol=1e-6)
    first = nn.RowConv(D, 3, batch_first=True)
    first.load_state_dict(m.state_dict())
    y = first(mp.tensor(x.swapaxes(0, 1)), [5, 5, 2]).numpy().swapaxes(0, 1)
    np.testing.assert_allclose(y, oracle(x, host(m.weight.array), [5, 5, 2]), atol=1e-6)
    assert first.extra_repr() == "4, 3, batch_first=True"
    assert m.extra_repr() == "4, 3"


def test_what_lies_beyond_the_end_may_be_anything():
    m, x = mp.MIXED.cast(nn.RowConv(D, 3)), randn(T, B, D).astype("float16")
    expected = m(mp.tensor(x), [3, 5, 1]).numpy()
    x[3:, 0], x[1:, 2] = np.nan, np.inf
    np.testing.assert_array_equal(m(mp.tensor(x), [3, 5, 1]).numpy(), expected)
    assert not expected[3:, 0].any()


def test_start():
    """Uniform on [-1/2, 1/2) for a context of four."""
    w = host(nn.RowConv(1000, 4).weight.array)
    assert 0.49 < np.abs(w).max() <= 0.5
    assert abs(w.mean()) < 0.02


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: nn.RowConv(0, 3), ValueError, "`hidden_size` to be at least 1, got 0"),
        (lambda x: nn.RowConv(4, 2.5), TypeError, "`context` to be an integer"),
        (lambda x: nn.RowConv(4, 3, batch_first=1), TypeError, "`batch_first` to be True or False, got 1"),
        (lambda x: nn.RowConv(5, 3)(x), ValueError, r"hidden_size == 5, got input of shape \(5, 3, 4\)"),
        (lambda x: nn.RowConv(4, 3)(x[0, 0]), ValueError, r"to be \(T, B, D\), .* got shape \(4,\)"),
        (lambda x: nn.RowConv(4, 3)(x[0], [5]), ValueError, "a batch .* for `lengths`"),
        (lambda x: nn.RowConv(4, 3)(x, [5, 6, 1]), ValueError, r"`lengths` in \[1, 5\], .* got 6 for sequence 1"),
        (lambda x: nn.RowConv(4, 3)(x[:0]), ValueError, "at least one step"),
        (lambda x: nn.RowConv(4, 3)(None), TypeError, "a Tensor for `input`, got NoneType"),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error, match=f"^RowConv: .*{message}"):
        call(mp.tensor(np.zeros((T, B, D), "float32")))
