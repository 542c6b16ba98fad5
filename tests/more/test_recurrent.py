"""Recurrent layers on packed sequences, and with lengths: outputs, states and all gradients are PyTorch's, in FP64."""

import numpy as np
import pytest

import tinymp as mp
from oracle import randn
from tinymp import nn

torch = pytest.importorskip("torch")
FP64 = mp.Policy("FP64", storage="float64")


def alike(kind, *args, **options):
    """A layer of each, with the same weights."""
    theirs, ours = getattr(torch.nn, kind)(*args, **options).double(), FP64.cast(getattr(nn, kind)(*args, **options))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({name: w.numpy() for name, w in theirs.state_dict().items()})
    return ours, theirs


def same(pairs, ours, theirs, x, t):
    """Results, which are (own, PyTorch's), and the gradients of the sum of their squares."""
    sum((a * a).sum() for a, _ in pairs).backward()
    sum((b * b).sum() for _, b in pairs).backward()
    pairs += [(x.grad, t.grad), *((p.grad, q.grad) for p, q in zip(ours.parameters(), theirs.parameters()))]
    for a, b in pairs:
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-12)


def states(h):
    return h if isinstance(h, tuple) else (h,)


@pytest.mark.parametrize("fill", [np.nan, np.inf])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layer", ["RNN", "LSTM", "GRU"])
def test_padding_is_not_read(layer, bidirectional, fill):
    """With lengths they are those of packed sequences, whatever lies in the padding."""
    rnn, lengths, x = torch.nn.utils.rnn, [3, 5, 1], randn(5, 3, 4)
    ours, theirs = alike(layer, 4, 6, 2, bidirectional=bidirectional)
    x[np.arange(5)[:, None] >= lengths] = fill
    own, t = mp.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, last = ours(own, lengths=lengths)
    packed, ends = theirs(rnn.pack_padded_sequence(t, lengths, enforce_sorted=False))
    same([(y, rnn.pad_packed_sequence(packed)[0]), *zip(states(last), states(ends))], ours, theirs, own, t)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    ("lengths", "ordered", "batch_first"), [([3, 5, 1, 5], False, False), ([5, 4, 4, 2], True, True)]
)
def test_packed_sequences(kind, batch_first, lengths, ordered):
    options = {"nonlinearity": "relu"} if kind == "RNN" else {}
    ours, theirs = alike(kind, 3, 4, 2, bidirectional=True, batch_first=batch_first, **options)
    x, h = randn(*((4, 5, 3) if batch_first else (5, 4, 3))), randn(2, 4, 4, 4, seed=1)[: 1 + (kind == "LSTM")]
    found = []
    for make, utils, layer in ((mp.tensor, nn, ours), (torch.tensor, torch.nn.utils.rnn, theirs)):
        given = make(x, requires_grad=True)
        packed = utils.pack_padded_sequence(given, lengths, batch_first, ordered)
        y, last = layer(packed, tuple(map(make, h)) if kind == "LSTM" else make(h[0]))
        padded, counts = utils.pad_packed_sequence(y, batch_first, -1.0, 7)
        assert counts.tolist() == lengths
        found.append([given, padded, y.data, packed.data, *states(last)])
    (own, *results), (t, *expected) = found
    same(list(zip(results, expected, strict=True)), ours, theirs, own, t)
