"""LSTM, GRU and their cells: PyTorch's constructors, state and meaning, on top of the ops."""

import numpy as np
import pytest

import tinymp as mp
from oracle import host, randn
from tinymp import ops
from tinymp.nn import GRU, LSTM
from tinymp.ops import gru_cell, lstm_cell
from watching import watch

T, B, D, H = 5, 4, 3, 6
FP64 = mp.Policy("FP64", storage="float64")


def tensor(*shape, seed=0, dtype="float64"):
    return mp.tensor(randn(*shape, seed=seed).astype(dtype), requires_grad=True)


def by_cells(m, x, states, lengths):
    """Expected output and last states of a batch-second layer stack, one cell, sequence and step at a time."""
    weights, last = dict(m.named_parameters()), []
    for layer in range(m.num_layers):
        outputs = []
        for suffix in ("", "_reverse")[: 1 + m.bidirectional]:
            w = [weights.get(f"{part}_l{layer}{suffix}") for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            rows, ends = [], []
            for b, n in enumerate(lengths):
                now, ys = [s[len(last), b : b + 1] for s in states], [None] * n
                for t in range(n)[::-1] if suffix else range(n):
                    step = x[t, b : b + 1]
                    now = [gru_cell(step, *now, *w)] if len(now) == 1 else lstm_cell(step, tuple(now), *w)
                    ys[t] = now[0]
                rows.append(ops.cat([*ys, *[ops.zeros(1, H, dtype=x.dtype)] * (T - n)]))
                ends.append(now)
            outputs.append(ops.stack(rows, 1))
            last.append([ops.cat(list(state)) for state in zip(*ends, strict=True)])
        x = ops.cat(outputs, 2)
    return x, [ops.stack(list(state)) for state in zip(*last, strict=True)]


@pytest.mark.parametrize("lengths", [None, [3, 5, 1, 4]])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("layers", "bias"), [(1, True), (3, True), (2, False)])
@pytest.mark.parametrize("layer", [LSTM, GRU])
def test_a_stack_of_layers_is_its_cells(layer, layers, bias, bidirectional, lengths):
    m = FP64.cast(layer(D, H, layers, bias, bidirectional=bidirectional))
    count = layers * (1 + bidirectional)
    states = [tensor(count, B, H, seed=i) for i in range(2 if layer is LSTM else 1)]
    x, results = tensor(T, B, D, seed=3), []
    for run in (
        lambda: m(x, tuple(states) if layer is LSTM else states[0], lengths),
        lambda: by_cells(m, x, states, lengths or [T] * B),
    ):
        y, last = run()
        last = [last] if isinstance(last, mp.Tensor) else list(last)
        assert y.shape == (T, B, H * (1 + bidirectional))
        assert [s.shape for s in last] == [(count, B, H)] * len(states)
        parts = [y, *last]
        ops.cat([(p * mp.tensor(randn(*p.shape, seed=i))).reshape(-1) for i, p in enumerate(parts)]).sum().backward()
        leaves = [x, *states, *m.parameters()]
        results.append([p.numpy() for p in parts] + [host(leaf.grad) for leaf in leaves])
        for leaf in leaves:
            leaf.zero_grad()
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


def test_dropout_acts_between_layers_in_training():
    mp.manual_seed(0)
    m = LSTM(D, 50, 2, dropout=0.5)
    x = mp.tensor(randn(40, 8, D).astype("float32"))
    seen = []

    def see(phase, op, inputs, outputs):
        if op.name == "dropout":
            seen.append((inputs[0].shape, (host(outputs[0]) == 0).mean()))

    with watch(see):
        y, _ = m(x)
        m.eval()
        z, _ = m(x)
    ((shape, dropped),) = seen
    assert shape == (40, 8, 50)
    assert abs(dropped - 0.5) < 5 * 0.5 / np.sqrt(40 * 8 * 50)
    assert (y.numpy() != z.numpy()).all()
    assert y.numpy().all()
    plain = LSTM(D, 50, 2)
    plain.load_state_dict(m.state_dict())
    np.testing.assert_array_equal(plain(x)[0].numpy(), z.numpy())
