"""MultiheadAttention and the Transformer's layers beside PyTorch's, in FP64: outputs, weights, gradients, masks."""

import numpy as np
import pytest

import tinymp as mp
from oracle import host, randn
from tinymp import nn

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:Support for mismatched")
B, L, S, E, HEADS = 2, 4, 5, 8, 2
FP64 = mp.Policy("FP64", storage="float64")
CAUSAL, LATER = np.triu(np.ones((L, L), bool), 1), np.triu(np.ones((L, S), bool), 2)
PADDING = np.array([[0, 0, 0, 1], [0, 1, 0, 0]], bool)
MEMORY_PADDING = np.array([[0, 0, 1, 0, 1], [0, 1, 0, 0, 0]], bool)
PER_HEAD = np.arange(B * HEADS * L * S).reshape(B * HEADS, L, S) % 3 == 1


def encoder(home, **options):
    layer = home.TransformerEncoderLayer(E, HEADS, 16, 0.0, **options)
    return home.TransformerEncoder(layer, 2, home.LayerNorm(E) if options else None)


def decoder(home, **options):
    layer = home.TransformerDecoderLayer(E, HEADS, 16, 0.0, **options)
    return home.TransformerDecoder(layer, 2, home.LayerNorm(E) if options else None)


def attention(home, **options):
    return home.MultiheadAttention(E, HEADS, **options)


def made(build, **options):
    """The same layer here and in PyTorch, with other weights in every part, and no bias of 0."""
    own, peer = FP64.cast(build(nn, **options)), build(torch.nn, **options).double()
    for i, p in enumerate(own.parameters()):
        p.write(randn(*p.shape, seed=i) * 0.5)
    assert list(own.state_dict()) == list(peer.state_dict())
    peer.load_state_dict({name: torch.tensor(w) for name, w in own.state_dict().items()})
    return own, peer


def beside(own, peer, inputs, masks):
    """Each output, and the gradients of their sum of squares; the layers' outputs."""
    results = []
    for layer, make in ((own, mp.tensor), (peer, torch.tensor)):
        xs = [make(v, requires_grad=True) for v in inputs]
        outputs = layer(*xs, **{k: v if isinstance(v, bool) else make(v) for k, v in masks.items()})
        outputs = [y for y in (outputs if isinstance(outputs, tuple) else (outputs,)) if y is not None]
        sum((y * y).sum() for y in outputs).backward()
        results.append([*outputs, *(p.grad for p in (*xs, *layer.parameters()))])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-9)


LAYERS = [{}, {"norm_first": True, "activation": "gelu", "batch_first": True}, {"bias": False, "norm_first": True}]
MASKS = [
    (encoder, {"mask": CAUSAL, "src_key_padding_mask": PADDING}),
    (encoder, {"mask": CAUSAL, "is_causal": True}),
    (decoder, {"tgt_mask": CAUSAL, "tgt_is_causal": True, "memory_key_padding_mask": MEMORY_PADDING}),
    (decoder, {"tgt_mask": CAUSAL, "tgt_key_padding_mask": PADDING, "memory_mask": randn(L, S) > 1}),
]


@pytest.mark.parametrize("options", LAYERS, ids=str)
@pytest.mark.parametrize(("build", "masks"), MASKS)
def test_layers_of_a_transformer(build, options, masks):
    inputs = [randn(n, B, E, seed=n) for n in (L, S)][: 1 + (build is decoder)]
    if options.get("batch_first"):
        inputs = [x.swapaxes(0, 1).copy() for x in inputs]
    beside(*made(build, **options), inputs, masks)


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}, {"kdim": 3, "vdim": 6}], ids=str)
@pytest.mark.parametrize(
    "masks",
    [
        {"need_weights": False},
        {"key_padding_mask": MEMORY_PADDING, "average_attn_weights": False},
        {"attn_mask": PER_HEAD},
        {"attn_mask": LATER, "key_padding_mask": MEMORY_PADDING},
        {"attn_mask": randn(L, S), "key_padding_mask": MEMORY_PADDING, "need_weights": False},
    ],
)
def test_attention(options, masks):
    shapes = (L, B, E), (S, B, options.get("kdim", E)), (S, B, options.get("vdim", E))
    beside(*made(attention, **options), [randn(*s, seed=i + 50) for i, s in enumerate(shapes)], masks)


@pytest.mark.parametrize("same", [1, 2])
def test_inputs_that_are_one_tensor(same):
    """A query that is the key, with a value of its own or without."""
    (own, peer), x, v = made(attention), randn(L, B, E), randn(L, B, E, seed=60)
    found = []
    for layer, make in ((own, mp.tensor), (peer, torch.tensor)):
        given = make(x)
        found.append(layer(given, given, given if same == 1 else make(v))[0].detach().numpy())
    np.testing.assert_allclose(*found, rtol=1e-10)


@pytest.mark.parametrize("masked", [True, False])
def test_mixed(masked):
    m = mp.MIXED.cast(nn.MultiheadAttention(E, HEADS, dropout=0.1))
    x = [mp.tensor(randn(n, B, E, seed=n).astype("float16")) for n in (L, S, S)]
    y, weights = m(*x, key_padding_mask=mp.tensor(MEMORY_PADDING) if masked else None)
    (y.sum() + weights.sum()).backward()
    assert {y.dtype.name, weights.dtype.name, *(p.grad.dtype.name for p in m.parameters())} == {"float16"}
    assert all(np.isfinite(host(p.grad)).all() for p in m.parameters())
