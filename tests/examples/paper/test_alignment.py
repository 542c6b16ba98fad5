"""Bahdanau's and Luong's attention: against their formulas, masked, for all steps and for one."""

import numpy as np
import pytest

import tinymp as mp
from examples.paper.alignment import BahdanauAttention, LuongAttention, length_mask
from oracle import device_array, host, randn

B, T, S, Q, M, H = 3, 4, 5, 6, 7, 8
FP64 = mp.Policy("FP64", storage="float64")
LENGTHS = [5, 1, 3]
HIDDEN = np.array([[0, 1, 0, 0, 1], [1, 1, 1, 1, 0], [0, 0, 1, 0, 0]], bool)
MASKS = [None, np.arange(S) < np.array(LENGTHS)[:, None], ~HIDDEN]
KINDS = {
    "additive": lambda: BahdanauAttention(Q, M, H),
    "general": lambda: LuongAttention(Q, M),
}
EACH = pytest.mark.parametrize("kind", KINDS)


def build(kind, policy=FP64):
    m = policy.cast(KINDS[kind]())
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
@pytest.mark.parametrize("seen", MASKS, ids=["all", "lengths", "mask"])
def test_against_the_formula(kind, seen):
    m, q, memory = build(kind)
    context, weights = m(mp.tensor(q), mp.tensor(memory), None if seen is None else mp.tensor(seen))
    seen = np.ones((B, S), bool) if seen is None else seen
    expected = oracle(m, q, memory, seen)
    np.testing.assert_allclose(context.numpy(), expected[0], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(weights.numpy(), expected[1], rtol=1e-10, atol=1e-12)
    assert (weights.numpy()[~np.broadcast_to(seen[:, None], weights.shape)] == 0).all()


@EACH
def test_mixed(kind):
    """FP16 in and out; what a mask hides may be so large that its score is infinite in FP16."""
    m, q, memory = build(kind, mp.MIXED)
    q, memory = q.astype("float16"), memory.astype("float16")
    expected = oracle(m, q.astype(float), memory.astype(float), np.arange(S) < np.array(LENGTHS)[:, None])
    memory[1, 1:, 0], memory[2, 3:, 0] = 60000, -60000
    q, memory = (mp.tensor(x, requires_grad=True) for x in (q, memory))
    context, weights = m(q, memory, length_mask("test", LENGTHS, S, B, "cpu"))
    for y, e in zip((context, weights), expected):
        assert y.dtype == "float16"
        # scores of up to 20 are rounded to 2^-7, which changes weights by less than 1 %
        np.testing.assert_allclose(y.numpy(), e, atol=0.01 * np.abs(e).max())
    (context.sum() + weights.sum()).backward()
    for leaf in (q, memory, *m.parameters()):
        assert leaf.grad.dtype == "float16"
        assert np.isfinite(host(leaf.grad)).all()


@EACH
def test_where_all_is_hidden_context_and_gradients_are_zero(kind):
    m, q, memory = build(kind)
    q, memory, mask = mp.tensor(q, requires_grad=True), mp.tensor(memory, requires_grad=True), ~HIDDEN
    mask[1] = False
    context, weights = m(q, memory, mask=mp.tensor(mask))
    (context.sum() + (weights * weights).sum()).backward()
    for x in (context.numpy(), weights.numpy(), host(q.grad), host(memory.grad)):
        assert (x[1] == 0).all()
        assert (x[0] != 0).any()
        assert np.isfinite(x).all()
