"""The Transformer's layers: against PyTorch's with the same weights, with every mask and option."""

import numpy as np
import pytest

import tinymp as mp
from oracle import host, randn
from tinymp import nn

B, L, S, E, HEADS = 2, 4, 5, 8, 2
FP64 = mp.Policy("FP64", storage="float64")
CAUSAL = np.triu(np.ones((L, L), bool), 1)
PADDING = np.array([[0, 0, 0, 1], [0, 1, 0, 0]], bool)
MEMORY_PADDING = np.array([[0, 0, 1, 0, 1], [0, 1, 0, 0, 0]], bool)
OPTIONS = [
    {},
    {"norm_first": True, "activation": "gelu", "batch_first": True},
    {"bias": False, "norm_first": True, "layer_norm_eps": 1e-3},
]
ENCODER_MASKS = [{"mask": CAUSAL, "src_key_padding_mask": PADDING}, {"mask": CAUSAL, "is_causal": True}]
DECODER_MASKS = [
    {"tgt_mask": CAUSAL, "tgt_is_causal": True, "memory_key_padding_mask": MEMORY_PADDING},
    {"tgt_mask": CAUSAL, "tgt_key_padding_mask": PADDING, "memory_mask": randn(L, S) > 1},
]


def encoder(home, options):
    layer = home.TransformerEncoderLayer(E, HEADS, 16, 0.0, **options)
    norm = home.LayerNorm(E) if options else None
    return home.TransformerEncoder(layer, 2, norm, **({} if home is nn else {"enable_nested_tensor": False}))


def decoder(home, options):
    layer = home.TransformerDecoderLayer(E, HEADS, 16, 0.0, **options)
    return home.TransformerDecoder(layer, 2, home.LayerNorm(E) if options else None)


def start(model):
    """Other weights in every layer, and no bias of 0."""
    model = FP64.cast(model)
    for i, p in enumerate(model.parameters()):
        with mp.no_grad():
            p.copy_(randn(*p.shape, seed=i) * 0.5)
    return model


def sequence(length, options, seed):
    x = randn(length, B, E, seed=seed)
    return x.swapaxes(0, 1).copy() if options.get("batch_first") else x


@pytest.mark.peer
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("build", "masks"),
    [(encoder, m) for m in ENCODER_MASKS] + [(decoder, m) for m in DECODER_MASKS],
    ids=lambda x: x.__name__ if callable(x) else "+".join(x) or "none",
)
def test_pytorchs_outputs_and_gradients(build, options, masks):
    torch = pytest.importorskip("torch")
    own, peer = start(build(nn, options)), build(torch.nn, options).double()
    state = own.state_dict()
    assert list(state) == list(peer.state_dict())
    peer.load_state_dict({k: torch.tensor(v) for k, v in state.items()})
    own.load_state_dict(peer.state_dict())
    inputs = [sequence(L, options, 50), sequence(S, options, 51)][: 1 if build is encoder else 2]
    x = [mp.tensor(v, requires_grad=True) for v in inputs]
    y = own(*x, **{k: v if isinstance(v, bool) else mp.tensor(v) for k, v in masks.items()})
    xs = [torch.tensor(v, requires_grad=True) for v in inputs]
    expected = peer(*xs, **{k: v if isinstance(v, bool) else torch.tensor(v) for k, v in masks.items()})
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-10)
    dy = randn(*y.shape, seed=7)
    (y * mp.tensor(dy)).sum().backward()
    (expected * torch.tensor(dy)).sum().backward()
    got = [host(p.grad) for p in (*x, *own.parameters())]
    wanted = [p.grad.numpy() for p in (*xs, *peer.parameters())]
    for g, e in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g, e, rtol=1e-9, atol=1e-9 * np.abs(e).max())
