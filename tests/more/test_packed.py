"""Packed sequences, Transformer and parameter vectors, against PyTorch in FP64."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn

torch = pytest.importorskip("torch")
FP64 = mp.Policy("FP64", storage="float64")
rng = np.random.default_rng(0)


def alike(kind, *args, **options):
    """A layer of each, with the same weights."""
    theirs, ours = getattr(torch.nn, kind)(*args, **options).double(), getattr(nn, kind)(*args, **options)
    assert list(FP64.cast(ours).state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({name: w.numpy() for name, w in theirs.state_dict().items()})
    return ours, theirs


def close(a, b):
    return np.allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    ("lengths", "ordered", "batch_first"), [([3, 5, 1, 5], False, False), ([5, 4, 4, 2], True, True)]
)
def test_packed_sequences_are_those_of_pytorch(kind, batch_first, lengths, ordered):
    rnn = torch.nn.utils.rnn
    ours, theirs = alike(kind, 3, 4, 2, bidirectional=True, batch_first=batch_first)
    x, states = rng.standard_normal((4, 5, 3) if batch_first else (5, 4, 3)), rng.standard_normal((2, 4, 4, 4))
    a, b = mp.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    p = nn.pack_padded_sequence(a, lengths, batch_first, ordered)
    q = rnn.pack_padded_sequence(b, lengths, batch_first, ordered)
    assert all((u is None and v is None) or close(u, v) for u, v in zip(p, q))
    two = kind == "LSTM"
    y, h = ours(p, tuple(map(mp.tensor, states)) if two else mp.tensor(states[0]))
    z, g = theirs(q, tuple(map(torch.tensor, states)) if two else torch.tensor(states[0]))
    h, g = (h, g) if two else ([h], [g])
    assert close(y.data, z.data) and all(map(close, h, g))
    (y, n), (z, m) = (
        f(s, batch_first, -1.0, 7) for f, s in ((nn.pad_packed_sequence, y), (rnn.pad_packed_sequence, z))
    )
    assert close(y, z) and close(n, m)
    w = rng.standard_normal(y.shape)
    ((y * mp.tensor(w)).sum() + sum((s * s).sum() for s in h)).backward()
    ((z * torch.tensor(w)).sum() + sum((s * s).sum() for s in g)).backward()
    assert close(a.grad, b.grad)
    assert all(close(u.grad, v.grad) for u, v in zip(ours.parameters(), theirs.parameters()))
