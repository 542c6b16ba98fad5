"""Luong's attention: against its formula, masked, in FP64 and in mixed precision."""

import numpy as np
import pytest

import tinymp as mp
from examples.paper.nmt import LuongAttention
from oracle import device_array, host, randn
from tinymp import nn

B, T, S, H = 3, 4, 5, 7
FP64 = mp.Policy("FP64", storage="float64")
HIDDEN = np.array([[0, 1, 0, 0, 1], [1, 1, 1, 1, 0], [0, 0, 1, 0, 0]], bool)
MASKS = [np.ones((B, S), bool), np.arange(S) < np.array([5, 1, 3])[:, None], ~HIDDEN]


def build(policy=FP64):
    m = policy.cast(LuongAttention(H))
    m.proj.weight.write(device_array(randn(H, H, seed=0).astype(m.proj.weight.master.dtype)))
    return m, randn(B, T, H, seed=8), randn(B, S, H, seed=9)


def oracle(m, q, memory, seen):
    """(context, weights); seen: (B, S)."""
    scores = (q @ host(m.proj.weight.array).astype(float).T) @ memory.swapaxes(1, 2)
    e = np.where(seen[:, None], np.exp(scores - scores.max(2, keepdims=True)), 0)
    weights = e / e.sum(2, keepdims=True)
    return weights @ memory, weights


@pytest.mark.parametrize("seen", MASKS, ids=["all", "lengths", "mask"])
def test_against_the_formula(seen):
    m, q, memory = build()
    context, weights = m(mp.tensor(q), mp.tensor(memory), mp.tensor(seen))
    expected = oracle(m, q, memory, seen)
    np.testing.assert_allclose(context.numpy(), expected[0], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(weights.numpy(), expected[1], rtol=1e-10, atol=1e-12)
    assert (weights.numpy()[~np.broadcast_to(seen[:, None], weights.shape)] == 0).all()


def test_gradients():
    """Of the weight, query and memory, against central differences along one direction in all of them."""
    m, q, memory = build()
    q, memory = nn.Parameter(mp.tensor(q)), nn.Parameter(mp.tensor(memory))
    d_context, d_weights = mp.tensor(randn(B, T, H, seed=1)), mp.tensor(randn(B, T, S, seed=2))

    def value():
        context, weights = m(q, memory, mp.tensor(MASKS[1]))
        return (context * d_context).sum() + (weights * d_weights).sum()

    value().backward()
    leaves = [*m.parameters(), q, memory]
    directions = [randn(*p.shape, seed=i + 9) for i, p in enumerate(leaves)]
    got = sum(float((host(p.grad) * v).sum()) for p, v in zip(leaves, directions))
    start, h, values = [host(p.array).copy() for p in leaves], 2.0**-17, []
    for sign in (1, -1):
        for p, w, v in zip(leaves, start, directions):
            p.write(device_array(w + sign * h * v))
        values.append(value().item())
    np.testing.assert_allclose(got, (values[0] - values[1]) / (2 * h), rtol=1e-6)


def test_mixed():
    """FP16 in and out; what a mask hides may be so large that its score is infinite in FP16."""
    m, q, memory = build(mp.MIXED)
    q, memory = q.astype("float16"), memory.astype("float16")
    expected = oracle(m, q.astype(float), memory.astype(float), MASKS[1])
    memory[1, 1:, 0], memory[2, 3:, 0] = 60000, -60000
    q, memory = (mp.tensor(x, requires_grad=True) for x in (q, memory))
    context, weights = m(q, memory, mp.tensor(MASKS[1]))
    for y, e in zip((context, weights), expected):
        assert y.dtype == "float16"
        # scores of up to 20 are rounded to 2^-7, which changes weights by less than 1 %
        np.testing.assert_allclose(y.numpy(), e, atol=0.01 * np.abs(e).max())
    (context.sum() + weights.sum()).backward()
    for leaf in (q, memory, *m.parameters()):
        assert leaf.grad.dtype == "float16"
        assert np.isfinite(host(leaf.grad)).all()


def test_where_all_is_hidden_context_and_gradients_are_zero():
    m, q, memory = build()
    q, memory, mask = mp.tensor(q, requires_grad=True), mp.tensor(memory, requires_grad=True), ~HIDDEN
    mask[1] = False
    context, weights = m(q, memory, mp.tensor(mask))
    (context.sum() + (weights * weights).sum()).backward()
    for x in (context.numpy(), weights.numpy(), host(q.grad), host(memory.grad)):
        assert (x[1] == 0).all()
        assert (x[0] != 0).any()
        assert np.isfinite(x).all()
