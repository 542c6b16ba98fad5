"""MultiheadAttention: against PyTorch's, with masks and options."""

import numpy as np
import pytest

import tinymp as mp
from oracle import host, randn
from tinymp import nn

torch = pytest.importorskip("torch")
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


def theirs(m, options):
    peer = torch.nn.MultiheadAttention(E, HEADS, **options).double()
    peer.load_state_dict({name: torch.tensor(w) for name, w in m.state_dict().items()})
    return peer


def inputs(kdim=E, vdim=E):
    return [randn(*s, seed=i + 50) for i, s in enumerate([(B, L, E), (B, S, kdim), (B, S, vdim)])]


MASKS = [
    {},
    {"key_padding_mask": PADDING},
    {"attn_mask": PER_HEAD},
    {"attn_mask": CAUSAL, "key_padding_mask": PADDING},
    {"attn_mask": randn(L, S), "key_padding_mask": PADDING},
]
OPTIONS = [{}, {"bias": False}, {"add_bias_kv": True, "add_zero_attn": True}, {"kdim": 3, "vdim": 6}]


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("masks", MASKS, ids=str)
def test_it_is_pytorchs(options, masks):
    m, x = build(**options), [t.swapaxes(0, 1) for t in inputs(options.get("kdim", E), options.get("vdim", E))]
    expected, each = theirs(m, options)(*map(torch.tensor, x), **{k: torch.tensor(v) for k, v in masks.items()})
    given = [mp.tensor(t) for t in x], {k: mp.tensor(v) for k, v in masks.items()}
    y, weights = m(*given[0], **given[1])
    for output in (y, m(*given[0], **given[1], need_weights=False)[0]):
        np.testing.assert_allclose(output.numpy(), expected.detach().numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(weights.numpy(), each.detach().numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("same", [1, 2])
def test_inputs_that_are_one_tensor(same):
    """A query that is the key, with a value of its own or without."""
    m, (x, *_), v = build(batch_first=True), inputs(), randn(B, L, E, seed=60)
    given = mp.tensor(x)
    y = m(given, given, given if same == 1 else mp.tensor(v))[0]
    expected = theirs(m, {"batch_first": True})(*map(torch.tensor, (x, x, x if same == 1 else v)))[0]
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), rtol=1e-10)


@pytest.mark.parametrize("masked", [True, False])
def test_mixed(masked):
    m = mp.MIXED.cast(nn.MultiheadAttention(E, HEADS, dropout=0.1))
    x = [mp.tensor(t.astype("float16")) for t in inputs()]
    y, weights = m(*[t.transpose(0, 1) for t in x], key_padding_mask=mp.tensor(PADDING) if masked else None)
    (y.sum() + weights.sum()).backward()
    assert {y.dtype.name, weights.dtype.name, *(p.grad.dtype.name for p in m.parameters())} == {"float16"}
    assert all(np.isfinite(host(p.grad)).all() for p in m.parameters())
