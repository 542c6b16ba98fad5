"""MultiheadAttention: against its formula, with every mask, layout and option."""

import numpy as np
import pytest

import tinymp as mp
from oracle import host, randn
from tinymp import nn, ops

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
    ({"attn_mask": CAUSAL}, minus_infinity(CAUSAL)),
    ({"attn_mask": CAUSAL, "is_causal": True}, minus_infinity(CAUSAL)),
    ({"attn_mask": PER_HEAD}, minus_infinity(PER_HEAD.reshape(B, HEADS, L, S))),
    ({"attn_mask": randn(L, S)}, randn(L, S)),
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


def test_a_causal_hint():
    """PyTorch's: without weights the mask is not looked at, where nothing else masks."""
    m, x = build(), mp.tensor(randn(L, B, E))
    later = mp.tensor(np.triu(np.ones((L, L), bool), 1))
    expected = m(x, x, x, attn_mask=later)[0].numpy()
    for masks in ({}, {"is_causal": True}, {"is_causal": True, "key_padding_mask": ops.zeros(B, L) > 0}):
        y, _ = m(x, x, x, need_weights=False, attn_mask=later, **masks)
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-12, atol=1e-14)
    y, _ = m(x, x, x, need_weights=False, attn_mask=~later & later, is_causal=True)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-12, atol=1e-14)


def test_a_value_of_its_own_beside_a_query_that_is_the_key():
    m, (x, *_), v = build(batch_first=True), inputs(), randn(B, L, E, seed=60)
    given = mp.tensor(x)
    np.testing.assert_allclose(m(given, given, mp.tensor(v))[0].numpy(), oracle(m, x, x, v, 0.0)[0], rtol=1e-10)


def test_layouts_and_weights():
    m, x = build(), inputs()
    m.batch_first = True
    expected, each = oracle(m, *x, 0.0)
    y, weights = m(*map(mp.tensor, x), average_attn_weights=False)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-10)
    np.testing.assert_allclose(weights.numpy(), each, rtol=1e-10)
    assert m(*map(mp.tensor, x), need_weights=False)[1] is None
    m.batch_first = False
    y, weights = m(*[mp.tensor(t[0]) for t in x], key_padding_mask=mp.tensor(np.zeros(S, bool)))
    np.testing.assert_allclose(y.numpy(), expected[0], rtol=1e-10)
    np.testing.assert_allclose(weights.numpy(), each[0].mean(0), rtol=1e-10)


def test_gradients_reach_every_parameter():
    """Against central differences, along one direction in all parameters."""
    m, x = build(add_bias_kv=True), [mp.tensor(t.swapaxes(0, 1)) for t in inputs()]
    dy = mp.tensor(randn(L, B, E, seed=7))
    (m(*x)[0] * dy).sum().backward()
    parameters = list(m.parameters())
    directions = [randn(*p.shape, seed=i + 9) for i, p in enumerate(parameters)]
    got = sum(float((host(p.grad) * v).sum()) for p, v in zip(parameters, directions))
    start, h, values = [host(p.array).copy() for p in parameters], 2.0**-17, []
    for sign in (1, -1):
        for p, w, v in zip(parameters, start, directions):
            p.write(mp.tensor(w + sign * h * v).array)
        values.append((m(*x)[0] * dy).sum().item())
    np.testing.assert_allclose(got, (values[0] - values[1]) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize("masked", [True, False])
def test_mixed(masked):
    m = mp.MIXED.cast(nn.MultiheadAttention(E, HEADS, dropout=0.1))
    x = [mp.tensor(t.astype("float16")) for t in inputs()]
    y, weights = m(*[t.transpose(0, 1) for t in x], key_padding_mask=mp.tensor(PADDING) if masked else None)
    (y.sum() + weights.sum()).backward()
    assert {y.dtype.name, weights.dtype.name, *(p.grad.dtype.name for p in m.parameters())} == {"float16"}
    assert all(np.isfinite(host(p.grad)).all() for p in m.parameters())


def test_dropout_follows_training():
    m, q = nn.MultiheadAttention(E, HEADS, dropout=0.5), mp.tensor(randn(L, B, E).astype("float32"))
    mp.manual_seed(0)
    assert (m(q, q, q)[1] == 0).any().item()
    assert not (m.eval()(q, q, q)[1] == 0).any().item()
