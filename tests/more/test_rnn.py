"""RNN and RNNCell: against the recurrence, in every layout, and with sequences of any length."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, host, randn
from tinymp import nn

T, B, D, H = 5, 3, 4, 6
FP64 = mp.Policy("FP64", storage="float64")
F = {"tanh": np.tanh, "relu": lambda z: np.maximum(z, 0)}


def oracle(m, x, h, lengths):
    """(output, last states) of x (T, B, D) and h (layers * directions, B, H), one sequence and step at a time."""
    p, last = {name: host(w.array) for name, w in m.named_parameters()}, []
    for layer in range(m.num_layers):
        out = np.zeros((T, B, H * (1 + m.bidirectional)))
        for d, suffix in enumerate(("", "_reverse")[: 1 + m.bidirectional]):
            w, u = p[f"weight_ih_l{layer}{suffix}"], p[f"weight_hh_l{layer}{suffix}"]
            b = p.get(f"bias_ih_l{layer}{suffix}", 0) + p.get(f"bias_hh_l{layer}{suffix}", 0)
            ends = []
            for i, n in enumerate(lengths):
                now = h[len(last), i]
                for t in range(n)[::-1] if d else range(n):
                    now = F[m.nonlinearity](x[t, i] @ w.T + now @ u.T + b)
                    out[t, i, d * H : (d + 1) * H] = now
                ends.append(now)
            last.append(np.stack(ends))
        x = out
    return x, np.stack(last)


@pytest.mark.parametrize(("layers", "bidirectional", "lengths"), [(1, False, None), (2, True, [3, 5, 1])])
@pytest.mark.parametrize(("nonlinearity", "bias"), [("tanh", True), ("relu", False)])
def test_against_the_recurrence(nonlinearity, bias, layers, bidirectional, lengths):
    m = FP64.cast(nn.RNN(D, H, layers, nonlinearity, bias, bidirectional=bidirectional))
    x, h = randn(T, B, D), randn(layers * (1 + bidirectional), B, H, seed=1)
    expected, last = oracle(m, x, h, lengths or [T] * B)
    y, h_n = m(mp.tensor(x), mp.tensor(h), lengths)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(h_n.numpy(), last, rtol=1e-10, atol=1e-13)
    for i in range(2):
        check(
            lambda x, h, i=i: m(x, h, lengths)[i],
            lambda x, h, i=i: oracle(m, x, h, lengths or [T] * B)[i],
            x,
            h,
            dtypes=("float64",),
        )


@pytest.mark.parametrize("fill", [np.nan, np.inf])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layer", ["RNN", "LSTM", "GRU"])
def test_padding_is_not_read(layer, bidirectional, fill):
    """Outputs, states and all gradients are those of PyTorch's packed sequences, whatever lies in the padding."""
    torch, lengths = pytest.importorskip("torch"), [3, 5, 1]
    rnn = torch.nn.utils.rnn
    m = FP64.cast(getattr(nn, layer)(D, H, 2, bidirectional=bidirectional))
    peer = getattr(torch.nn, layer)(D, H, 2, bidirectional=bidirectional).double()
    peer.load_state_dict({name: torch.tensor(w) for name, w in m.state_dict().items()})
    x = randn(T, B, D)
    x[np.arange(T)[:, None] >= lengths] = fill
    own, theirs = mp.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, last = m(own, lengths=lengths)
    packed, ends = peer(rnn.pack_padded_sequence(theirs, lengths, enforce_sorted=False))
    states = (last, ends) if layer == "LSTM" else ((last,), (ends,))
    pairs = [(y, rnn.pad_packed_sequence(packed)[0]), *zip(*states, strict=True)]
    sum((a * a).sum() for a, _ in pairs).backward()
    sum((b * b).sum() for _, b in pairs).backward()
    pairs += [(own.grad, theirs.grad), *((p.grad, q.grad) for p, q in zip(m.parameters(), peer.parameters()))]
    for a, b in pairs:
        np.testing.assert_allclose(host(a), b.detach().numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("nonlinearity", "bias"), [("tanh", True), ("relu", False)])
def test_cell(nonlinearity, bias):
    m = FP64.cast(nn.RNNCell(D, H, bias, nonlinearity))
    p = {name: host(w.array) for name, w in m.named_parameters()}

    def step(x, h):
        b = p.get("bias_ih", 0) + p.get("bias_hh", 0)
        return F[nonlinearity](x @ p["weight_ih"].T + h @ p["weight_hh"].T + b)

    check(m, step, randn(B, D), randn(B, H, seed=1), dtypes=("float64",))
    np.testing.assert_allclose(m(mp.tensor(randn(D))).numpy(), step(randn(D), np.zeros(H)), rtol=1e-10)
