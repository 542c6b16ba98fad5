"""LSTM, GRU and their cells: PyTorch's constructors, state and meaning, on top of the ops."""

import copy
import inspect
import itertools

import numpy as np
import pytest

import tinymp as mp
from oracle import host, randn
from tinymp import nn, ops, optim
from tinymp.nn import GRU, LSTM, GRUCell, LSTMCell
from tinymp.ops import gru_cell, lstm_cell
from watching import watch

T, B, D, H = 5, 4, 3, 6
FP64 = mp.Policy("FP64", storage="float64")


def tensor(*shape, seed=0, dtype="float64"):
    return mp.tensor(randn(*shape, seed=seed).astype(dtype), requires_grad=True)


def by_cells(m, x, states, lengths):
    """What a batch-second layer stack must compute, one cell, sequence and step at a time: output, last states."""
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


def test_projected_states_have_two_sizes():
    m = FP64.cast(LSTM(D, H, 2, bidirectional=True, proj_size=2))
    y, (h, c) = m(tensor(T, B, D))
    assert (y.shape, h.shape, c.shape) == ((T, B, 4), (4, B, 2), (4, B, H))
    again, _ = m(tensor(T, B, D), (ops.zeros(4, B, 2, dtype="float64"), ops.zeros(4, B, H, dtype="float64")))
    np.testing.assert_array_equal(y.numpy(), again.numpy())
    np.testing.assert_array_equal(h[2].numpy(), y[-1, :, :2].numpy())
    np.testing.assert_array_equal(h[3].numpy(), y[0, :, 2:].numpy())


@pytest.mark.parametrize("layer", [LSTM, GRU])
def test_layouts(layer):
    """batch_first moves an axis; without a batch there is one sequence and no axis for it, in the states neither."""
    m = FP64.cast(layer(D, H, 2, bidirectional=True))
    first = FP64.cast(layer(D, H, 2, batch_first=True, bidirectional=True))
    first.load_state_dict(m.state_dict())
    x = tensor(T, B, D)
    hx = tuple(tensor(4, B, H, seed=i) for i in (1, 2))
    one = lambda states: states if layer is LSTM else states[0]  # noqa: E731
    y, last = m(x, one(hx), [3, 5, 1, 4])
    z, same = first(x.transpose(0, 1), one(hx), [3, 5, 1, 4])
    np.testing.assert_array_equal(y.numpy(), z.transpose(0, 1).numpy())
    for a, b in zip(last if layer is LSTM else [last], same if layer is LSTM else [same], strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    alone, end = m(x[:, 1], one(tuple(s[:, 1] for s in hx)))
    np.testing.assert_allclose(alone.numpy(), y[:, 1].numpy(), rtol=1e-12)
    for a, b in zip(end if layer is LSTM else [end], last if layer is LSTM else [last], strict=True):
        np.testing.assert_allclose(a.numpy(), b[:, 1].numpy(), rtol=1e-12)


@pytest.mark.parametrize("policy", [mp.FP32, mp.MIXED])
@pytest.mark.parametrize("layer", [LSTM, GRU])
def test_storage_is_the_policys(layer, policy):
    m = policy.cast(layer(D, H, 2, bidirectional=True))
    y, last = m(policy.cast(mp.tensor(randn(T, B, D).astype("float32"))))
    y.sum().backward()
    assert {x.dtype for x in (y, *(last if layer is LSTM else [last]))} == {policy.storage}
    assert all(p.grad.dtype == policy.storage for p in m.parameters())
    assert all(p.master.dtype == "float32" for p in m.parameters())


@pytest.mark.parametrize(("cell", "states"), [(LSTMCell, 2), (GRUCell, 1)])
def test_cells(cell, states):
    m = FP64.cast(cell(D, H))
    weights = [m.weight_ih, m.weight_hh, m.bias_ih, m.bias_hh]
    x, hx = tensor(B, D), tuple(tensor(B, H, seed=i) for i in range(states))
    expected = lstm_cell(x, hx, *weights) if states == 2 else [gru_cell(x, *hx, *weights)]
    results = [m(x, hx if states == 2 else hx[0])]
    results.append(m(x[1], tuple(s[1] for s in hx) if states == 2 else hx[0][1]))
    for i, e in enumerate(expected):
        found = [r[i] if states == 2 else r for r in results]
        np.testing.assert_array_equal(found[0].numpy(), e.numpy())
        np.testing.assert_allclose(found[1].numpy(), e[1].numpy(), rtol=1e-12)
    zeros = tuple(ops.zeros(B, H, dtype="float64") for _ in range(states))
    start, same = m(x), m(x, zeros if states == 2 else zeros[0])
    for a, b in zip(start if states == 2 else [start], same if states == 2 else [same], strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert cell(D, H, bias=False).state_dict().keys() == {"weight_ih", "weight_hh"}


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


def test_truncated_backpropagation_carries_the_state_and_stops_the_gradient():
    m, x = FP64.cast(LSTM(D, H, 2)), tensor(2 * T, B, D)
    whole, _ = m(x.detach())
    y, (h, c) = m(x[:T])
    z, _ = m(x[T:], (h.detach(), c.detach()))
    np.testing.assert_allclose(z.numpy(), whole[T:].numpy(), rtol=1e-12)
    z.sum().backward()
    assert not host(x.grad)[:T].any()
    assert host(x.grad)[T:].all()
    y.sum().backward()  # the first part's graph is its own
    assert host(x.grad)[:T].all()


@pytest.mark.parametrize("layer", [LSTM, GRU])
def test_it_learns_in_mixed_precision(layer):
    """To tell whether the first of 8 inputs was positive: the gradient has to come back through all steps."""
    mp.manual_seed(0)
    x = randn(8, 64, 1).astype("float32")
    labels = mp.tensor((x[0, :, 0] > 0).astype(int))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = layer(1, 16), nn.Linear(16, 2)

        def forward(self, x):
            return self.out(self.rnn(x)[0][-1])

    model = mp.MIXED.cast(Model())
    optimizer, scaler = optim.Adam(model.parameters(), lr=0.02), optim.StaticLossScaler(128.0)
    inputs = mp.MIXED.cast(mp.tensor(x))
    with mp.use(mp.MIXED):
        for _ in range(160):
            loss = ops.cross_entropy(model(inputs), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert loss.item() < 0.2


# PyTorch's constructor arguments in order; ~ marks those that are refused
SIGNATURES = {
    LSTM: "input_size hidden_size num_layers bias batch_first dropout bidirectional proj_size",
    GRU: "input_size hidden_size num_layers bias batch_first dropout bidirectional",
    LSTMCell: "input_size hidden_size bias",
    GRUCell: "input_size hidden_size bias",
}


@pytest.mark.parametrize("layer", SIGNATURES)
def test_constructors_are_pytorchs(layer):
    assert list(inspect.signature(layer).parameters) == SIGNATURES[layer].split()
    for refused in ("device", "dtype"):
        with pytest.raises(TypeError, match=f"{layer.__name__}.*argument .{refused}."):
            layer(3, 4, **{refused: "float32"})


def test_state_is_pytorchs():
    """Names, order and shapes of torch.nn.LSTM(3, 6, 2, bidirectional=True, proj_size=2) and others, written out."""
    parts = {"weight_ih": (24, 3), "weight_hh": (24, 2), "bias_ih": (24,), "bias_hh": (24,), "weight_hr": (2, 6)}
    expected = {}
    for layer, suffix in itertools.product((0, 1), ("", "_reverse")):
        expected |= {f"{p}_l{layer}{suffix}": s for p, s in (parts | {"weight_ih": (24, (3, 4)[layer])}).items()}
    state = LSTM(D, H, 2, bidirectional=True, proj_size=2).state_dict()
    assert list(state) == list(expected)
    assert {name: a.shape for name, a in state.items()} == expected
    state = GRU(D, H, 1, bias=False).state_dict()
    assert {name: a.shape for name, a in state.items()} == {"weight_ih_l0": (18, 3), "weight_hh_l0": (18, 6)}
    state = GRUCell(D, H).state_dict()
    assert {name: a.shape for name, a in state.items()} == {
        "weight_ih": (18, 3), "weight_hh": (18, 6), "bias_ih": (18,), "bias_hh": (18,)
    }  # fmt: skip


@pytest.mark.parametrize("build", [lambda: LSTM(30, 100), lambda: GRU(30, 100), lambda: LSTMCell(30, 100)])
def test_all_weights_start_uniform(build):
    mp.manual_seed(0)
    for p in build().parameters():
        values = p.numpy()
        assert 0.09 < np.abs(values).max() < 0.1
        assert abs(values.std() * np.sqrt(3) - 0.1) < 0.1 * 5 / np.sqrt(values.size)


def test_it_can_be_copied():
    m = mp.MIXED.cast(LSTM(D, H, 2))
    other, x = copy.deepcopy(m), mp.tensor(randn(T, B, D).astype("float16"))
    np.testing.assert_array_equal(m(x)[0].numpy(), other(x)[0].numpy())


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (lambda: LSTM(3, 6), "LSTM(3, 6)  weight_ih_l0 (24, 3) float32"),
        (lambda: LSTM(3, 6, 2, False, True, 0.5, True, 2),
         "LSTM(3, 6, num_layers=2, bias=False, batch_first=True, dropout=0.5, bidirectional=True, proj_size=2)"),
        (lambda: GRUCell(3, 6, bias=False), "GRUCell(3, 6, bias=False)"),
    ],
)  # fmt: skip
def test_repr(layer, text):
    assert repr(layer()).startswith(text)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", [LSTM, GRU, nn.RNN, LSTMCell, GRUCell, nn.RNNCell])
def test_a_first_state_of_zeros_may_be_in_another_dtype(kind, dtype):
    layer, cell = mp.MIXED.cast(kind(3, 6)), issubclass(kind, (LSTMCell, GRUCell, nn.RNNCell))
    x = mp.randn(*[4, 2, 3][cell:]).half()
    zeros = ops.zeros(*[1, 2, 6][cell:], dtype=dtype)

    def run(h):
        y = layer(x, (h, h) if "LSTM" in kind.__name__ else h)
        return (y if isinstance(y, mp.Tensor) else y[0]).numpy()

    assert np.array_equal(run(zeros), run(zeros.half()))
    for wrong in (zeros + 1, zeros.clone().requires_grad_()):  # a value, and a gradient, that would be lost
        with pytest.raises(TypeError, match="expected tensors of one dtype"):
            run(wrong)
