"""mp.from_torch: PyTorch's models, converted, against themselves: forward, gradients and statistics, in both modes."""

import copy
import math
import pickle

import numpy as np
import pytest

import ported
import tinymp as mp

pytestmark = [pytest.mark.peer, pytest.mark.cpu]
torch = pytest.importorskip("torch")
tnn, F = torch.nn, pytest.importorskip("torch.nn.functional")


def agree(theirs, *inputs):
    """Forward, gradients of inputs and parameters, and buffers, in training and in evaluation."""
    ours = mp.from_torch(theirs)
    assert [*ours.state_dict()] == [*theirs.state_dict()]
    for training in (True, False):
        theirs.train(training)
        ours.train(training)
        xs = [torch.tensor(x, requires_grad=x.dtype == np.float32) for x in inputs]
        ys = [mp.tensor(x, requires_grad=x.dtype == np.float32) for x in inputs]
        expected, got = theirs(*xs), ours(*ys)
        while isinstance(expected, tuple):
            expected, got = expected[0], got[0]
        close(got, expected)
        theirs.zero_grad()
        ours.zero_grad()
        if expected.requires_grad:
            weights = np.cos(np.arange(expected.numel(), dtype="float32")).reshape(expected.shape)
            (expected * torch.tensor(weights)).sum().backward()
            (got * mp.tensor(weights)).sum().backward()
        for x, y in zip(xs, ys, strict=True):
            if x.grad is not None:
                close(y.grad, x.grad)
        for (name, p), (other, q) in zip(theirs.named_parameters(), ours.named_parameters(), strict=True):
            assert name == other and p.requires_grad == q.requires_grad
            if p.grad is not None:
                close(q.grad, p.grad)
        for name, b in theirs.state_dict().items():
            close(ours.state_dict()[name], b)
    return ours


def close(got, expected):
    expected = expected.detach().numpy()
    scale = max(1.0, np.abs(expected[np.isfinite(expected)]).max(initial=0))
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5, atol=1e-5 * scale)


def rand(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


IMAGE, ROWS, FRAMES = (2, 4, 8, 8), (3, 6), (5, 2, 6)
LAYERS = [
    (tnn.Linear(6, 4), ROWS),
    (tnn.BatchNorm2d(4, momentum=0.3), IMAGE),
    (tnn.InstanceNorm2d(4, affine=True), IMAGE),
    (tnn.AvgPool2d(2, ceil_mode=True, count_include_pad=False), IMAGE),
    (tnn.LSTM(6, 5, 2, bidirectional=True), FRAMES),
    (tnn.LSTM(6, 5, proj_size=3, batch_first=True), FRAMES),
    (tnn.GRU(6, 5, bias=False), FRAMES),
    (tnn.TransformerEncoder(tnn.TransformerEncoderLayer(6, 2, 8, 0.0), 2, tnn.LayerNorm(6), False), FRAMES),
]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=[type(one).__name__ for one, _ in LAYERS])
def test_layers(layer, shape):
    agree(copy.deepcopy(layer), rand(*shape))


def test_layers_of_several_inputs():
    agree(tnn.Embedding(10, 4, padding_idx=2), np.array([[1, 2], [9, 0]]))
    agree(tnn.MultiheadAttention(6, 2, bias=False, kdim=3, vdim=5), rand(5, 2, 6), rand(4, 2, 3), rand(4, 2, 5))
    agree(tnn.TransformerDecoder(tnn.TransformerDecoderLayer(6, 2, 8, 0.0), 1), rand(5, 2, 6), rand(4, 2, 6))


class Language(tnn.Module):
    """Tied weights, a buffer, a parameter of its own, a constant, shapes, and another forward in training."""

    def __init__(self):
        super().__init__()
        self.embedding = tnn.Embedding(11, 6)
        self.out = tnn.Linear(6, 11, bias=False)
        self.out.weight = self.embedding.weight
        self.frozen = tnn.Linear(6, 6).requires_grad_(False)
        self.position = tnn.Parameter(torch.randn(7, 6))
        self.register_buffer("mask", torch.triu(torch.full((7, 7), -math.inf), 1), persistent=False)
        self.table = torch.arange(6.0)

    def forward(self, x, scale=2.0):
        b, t = x.size(0), x.shape[1]
        h = self.embedding(x) * scale + self.position[:t]
        weights = torch.softmax(h @ h.transpose(-2, -1) / math.sqrt(6) + self.mask[:t, :t], dim=-1)
        h = torch.cat([weights @ h, self.frozen(h)], dim=-1).view(b, t, 2, -1).mean(2) + self.table
        h = F.dropout(h, 0.0, training=self.training)
        if self.training:
            h = h * 3
        return self.out(h), h


def test_a_resnet_with_a_forward_of_its_own(monkeypatch):
    """The ResNet of the programs: blocks, `+=`, functions."""
    monkeypatch.syspath_prepend(ported.FOLDER)
    scope = {}
    exec((ported.FOLDER / "resnet.py").read_text().partition("\ndevice =")[0], scope)
    theirs = scope["ResNet"]()
    ours = agree(theirs, rand(2, 3, 16, 16))
    assert "BasicBlock" in repr(ours)
    x = mp.tensor(rand(2, 3, 16, 16))
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        np.testing.assert_array_equal(other(x).numpy(), ours(x).numpy())


def test_ties_buffers_constants_and_both_forwards():
    torch.manual_seed(0)
    ours = agree(Language(), np.array([[1, 2, 3, 10], [0, 4, 5, 1]]))
    assert ours.out.weight is ours.embedding.weight
    assert "mask" not in ours.state_dict()
    x = mp.tensor([[1, 2]])
    assert not np.array_equal(ours(x, 3.0)[0].numpy(), ours(x)[0].numpy())
    np.testing.assert_array_equal(ours(x, scale=2.0)[0].numpy(), ours(x)[0].numpy())


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: tnn.Linear(2, 2).double(), r"expected `weight` in FP32, .* write module\.float\(\)"),
        (lambda: tnn.Sequential(tnn.ReLU(), tnn.Conv3d(1, 1, 1)), r"cannot convert `1` \(torch.*Conv3d\): .*Conv3d"),
        (lambda: tnn.utils.parametrizations.weight_norm(tnn.Linear(2, 2)), "it has hooks or parametrizations"),
    ],
)
def test_refused(made, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mp.from_torch(made())
