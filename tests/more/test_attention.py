"""MultiheadAttention: against its formula, with every mask, layout and option."""

import numpy as np
import pytest

import tinymp as mp
from oracle import host, randn
from tinymp import nn

B, L, S, E, HEADS = 2, 4, 5, 8, 2
FP64 = mp.Policy("FP64", storage="float64")
PADDING = np.array([[0, 0, 1, 0, 1], [0, 1, 0, 0, 0]], bool)
CAUSAL = np.triu(np.ones((L, S), bool), 2)
PER_HEAD = np.arange(B * HEADS * L * S).reshape(B * HEADS, L, S) % 3 == 1


def build(**options):
    m = FP64.cast(nn.MultiheadAttention(E, HEADS, **options))
    for i, p in enumerate(m.parameters()):
        p.write(mp.tensor(randn(*p.shape, seed=i) * 0.5).array)
    return m


def oracle(m, q, k, v, added):
    """(output, weights per head) of q (B, L, E), k and v (B, S, ...); added: broadcasts to (B, HEADS, L, S)."""
    p = {name: host(x.array) for name, x in m.named_parameters()}
    ws = np.split(p["in_proj_weight"], 3) if "in_proj_weight" in p else [p[f"{n}_proj_weight"] for n in "qkv"]
    bs = np.split(p["in_proj_bias"], 3) if "in_proj_bias" in p else [0, 0, 0]
    q, k, v = (x @ w.T + b for x, w, b in zip((q, k, v), ws, bs))
    keys, more = k.shape[1], [(p["bias_k"], p["bias_v"])] if "bias_k" in p else []
    more += [(np.zeros((1, 1, E)),) * 2] * m.add_zero_attn
    for more_k, more_v in more:
        k, v = (np.concatenate([x, np.tile(y, (len(x), 1, 1))], 1) for x, y in ((k, more_k), (v, more_v)))
    added = np.concatenate([added + np.zeros((B, HEADS, L, keys)), np.zeros((B, HEADS, L, len(more)))], 3)
    q, k, v = (x.reshape(B, -1, HEADS, E // HEADS).swapaxes(1, 2) for x in (q, k, v))
    e = np.exp(q @ k.swapaxes(2, 3) / np.sqrt(E // HEADS) + added)
    weights = e / e.sum(-1, keepdims=True)
    y = (weights @ v).swapaxes(1, 2).reshape(B, L, E)
    return y @ p["out_proj.weight"].T + p.get("out_proj.bias", 0), weights


def minus_infinity(mask):
    return np.where(mask, -np.inf, 0.0)


def inputs(kdim=E, vdim=E):
    return [randn(*s, seed=i + 50) for i, s in enumerate([(B, L, E), (B, S, kdim), (B, S, vdim)])]


MASKS = [
    ({}, 0.0),
    ({"key_padding_mask": PADDING}, minus_infinity(PADDING)[:, None, None]),
    ({"attn_mask": PER_HEAD}, minus_infinity(PER_HEAD.reshape(B, HEADS, L, S))),
    ({"attn_mask": CAUSAL, "key_padding_mask": PADDING},
     minus_infinity(CAUSAL) + minus_infinity(PADDING)[:, None, None]),
    ({"attn_mask": randn(L, S), "key_padding_mask": PADDING}, randn(L, S) + minus_infinity(PADDING)[:, None, None]),
]  # fmt: skip
OPTIONS = [{}, {"bias": False}, {"add_bias_kv": True, "add_zero_attn": True}, {"kdim": 3, "vdim": 6}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("masks", "added"), MASKS)
def test_against_the_formula(options, masks, added):
    m, x = build(**options), inputs(options.get("kdim", E), options.get("vdim", E))
    given = {k: v if isinstance(v, bool) else mp.tensor(v) for k, v in masks.items()}
    x, arrays = [mp.tensor(t.swapaxes(0, 1)) for t in x], x
    y, weights = m(*x, **given)
    expected, each = oracle(m, *arrays, added)
    for output in (y, m(*x, **given, need_weights=False)[0]):
        np.testing.assert_allclose(output.numpy().swapaxes(0, 1), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(weights.numpy(), each.mean(1), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("same", [1, 2])
def test_inputs_that_are_one_tensor(same):
    """A query that is the key, with a value of its own or without."""
    m, (x, *_), v = build(batch_first=True), inputs(), randn(B, L, E, seed=60)
    given = mp.tensor(x)
    y = m(given, given, given if same == 1 else mp.tensor(v))[0]
    np.testing.assert_allclose(y.numpy(), oracle(m, x, x, x if same == 1 else v, 0.0)[0], rtol=1e-10)


@pytest.mark.parametrize("masked", [True, False])
def test_mixed(masked):
    m = mp.MIXED.cast(nn.MultiheadAttention(E, HEADS, dropout=0.1))
    x = [mp.tensor(t.astype("float16")) for t in inputs()]
    y, weights = m(*[t.transpose(0, 1) for t in x], key_padding_mask=mp.tensor(PADDING) if masked else None)
    (y.sum() + weights.sum()).backward()
    assert {y.dtype.name, weights.dtype.name, *(p.grad.dtype.name for p in m.parameters())} == {"float16"}
    assert all(np.isfinite(host(p.grad)).all() for p in m.parameters())
