"""Bahdanau's and Luong's attention: against their formulas, masked, and in mixed precision."""

import numpy as np
import pytest

import tinymp as mp
from examples.paper.alignment import BahdanauAttention, LuongAttention, length_mask
from oracle import device_array, host, randn

B, T, S, Q, M, H = 3, 4, 5, 6, 7, 8
FP64 = mp.Policy("FP64", storage="float64")
LENGTHS = [5, 1, 3]
SEEN = np.arange(S) < np.array(LENGTHS)[:, None]
EACH = pytest.mark.parametrize("make", [lambda: BahdanauAttention(Q, M, H), lambda: LuongAttention(Q, M)])


def build(make, policy=FP64):
    m = policy.cast(make())
    for i, p in enumerate(m.parameters()):
        p.write(device_array(randn(*p.shape, seed=i).astype(p.master.dtype)))
    return m, randn(B, T, Q, seed=8), randn(B, S, M, seed=9)


def oracle(m, q, memory, seen):
    """(context, weights); seen: (B, S)."""
    p = {name: host(x.array).astype(float) for name, x in m.named_parameters()}
    if isinstance(m, BahdanauAttention):
        u = q @ p["query_proj.weight"].T
        scores = np.tanh(u[:, :, None] + (memory @ p["memory_proj.weight"].T)[:, None]) @ p["weight"]
    else:
        scores = (q @ p["proj.weight"].T) @ memory.swapaxes(1, 2)
    e = np.where(seen[:, None], np.exp(scores - scores.max(2, keepdims=True)), 0)
    weights = e / e.sum(2, keepdims=True)
    return weights @ memory, weights


@EACH
@pytest.mark.parametrize("seen", [None, SEEN])
def test_against_the_formula(make, seen):
    m, q, memory = build(make)
    found = m(mp.tensor(q), mp.tensor(memory), None if seen is None else mp.tensor(seen))
    for y, expected in zip(found, oracle(m, q, memory, np.ones((B, S), bool) if seen is None else seen)):
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-10, atol=1e-12)


@EACH
def test_mixed(make):
    """FP16 in and out; what a mask hides may be so large that its score is infinite in FP16."""
    m, q, memory = build(make, mp.MIXED)
    q, memory = q.astype("float16"), memory.astype("float16")
    expected = oracle(m, q.astype(float), memory.astype(float), SEEN)
    memory[1, 1:, 0], memory[2, 3:, 0] = 60000, -60000
    q, memory = (mp.tensor(x, requires_grad=True) for x in (q, memory))
    context, weights = m(q, memory, length_mask("test", LENGTHS, S, B, "cpu"))
    for y, e in zip((context, weights), expected):
        assert y.dtype == "float16"
        # scores of up to 20 are rounded to 2^-7, which changes weights by less than 1 %
        np.testing.assert_allclose(y.numpy(), e, atol=0.01 * np.abs(e).max())
    (context.sum() + weights.sum()).backward()
    for leaf in (q, memory, *m.parameters()):
        assert leaf.grad.dtype == "float16" and np.isfinite(host(leaf.grad)).all()
