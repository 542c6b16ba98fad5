"""Layers of nn/more beside PyTorch's: constructors, states, values; dropout, lazy layers, lists, initialisers."""

import inspect
import math

import numpy as np
import pytest

import tinymp as mp
from layers_of import moments_are, weight
from oracle import randn
from tinymp import nn, optim
from tinymp.nn import init

torch = pytest.importorskip("torch")
SHARED = [name for name in dir(nn) if isinstance(getattr(nn, name), type) and hasattr(torch.nn, name)]
X = randn(6, 4)
CLASSES, BITS, WEIGHT = np.array([0, 3, 1, 1, 2, 0]), (randn(6, 4, seed=2) > 0) * 1.0, np.array([0.5, 1.0, 2.0, 3.0])


def test_constructors_are_pytorchs():
    """Arguments by position are its first ones, those by keyword alone are some of the others."""
    assert len(SHARED) > 80
    for name in SHARED:
        ours, theirs = (inspect.signature(getattr(home, name)).parameters for home in (nn, torch.nn))
        given = [k for k, p in ours.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        named = {k for k, p in ours.items() if p.kind is p.KEYWORD_ONLY} - {"normalisation"}
        if "args" not in theirs:
            assert given == list(theirs)[: len(given)] and named <= theirs.keys(), name


# Layers with options that PyTorch's ModuleInfo does not try, and the shapes of their inputs
LAYERS = """
Conv1d(4, 2, 3, 2, 1, 1, 2) (2,4,9) | ConvTranspose1d(4, 2, 3, 2, 1, 1, 2, True, 1) (2,4,7) | PReLU(4, 0.1) (2,4,3)
GroupNorm(2, 4, bias=False) (2,4,3) | RMSNorm((4, 5)) (3,4,5) | LayerNorm((4, 5), 1e-3, True, False) (3,4,5)
InstanceNorm1d(3, affine=True, track_running_stats=True) (2,3,8) | LocalResponseNorm(3, 0.1, 0.5, 2.0) (2,4,6,6)
AdaptiveMaxPool2d((2, None)) (2,4,6,6) | ReflectionPad2d((1, 2, 0, 3)) (2,4,6,6) | ReplicationPad1d((3, 0)) (2,4,9)
MaxPool1d(3, 2, 1, 1, False, True) (2,4,9) | AvgPool1d(3, 2, 1, False, False) (2,4,9)
UpsamplingNearest2d(scale_factor=2) (2,4,6,6) | UpsamplingBilinear2d((6, 7)) (2,3,4,5)
Unflatten(-2, (3, -1)) (2,4,6,6) | ConstantPad2d(1, 2.0) (2,4,6,6)
Upsample(None, 2, "bilinear", True) (2,4,6,6) | GELU("tanh") (3,4) | Softplus(2.0, 1.0) (3,4)
"""


@pytest.mark.parametrize("row", [row.strip() for line in LAYERS.strip().split("\n") for row in line.split(" | ")])
def test_layers_are_pytorchs_and_mixed_ones_work_on_fp16(row):
    text, _, shape = row.rpartition(" ")
    ours, theirs = (eval(f"space.{text}", {"space": space}) for space in (nn, torch.nn))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({name: w.numpy() for name, w in theirs.state_dict().items()})
    x = randn(*eval(shape)).astype("float32")
    expected = theirs(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(ours(mp.tensor(x)).detach().numpy(), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(mp.from_torch(theirs)(mp.tensor(x)).numpy(), ours(mp.tensor(x)).numpy())
    y = mp.MIXED.cast(ours)(mp.tensor(x).half())
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=2.0**-7, atol=2.0**-7)
    assert y.dtype == "float16"
    if list(ours.parameters()):
        y.sum().backward()
        assert all(p.grad.dtype == p.dtype for p in ours.parameters())


LOSSES = [
    ("CrossEntropyLoss(w, ignore_index=1, reduction='sum', label_smoothing=0.1)", X, CLASSES),
    ("NLLLoss(w, ignore_index=3, reduction='none')", X, CLASSES),
    ("SmoothL1Loss(beta=0.5)", X, BITS),
    ("HuberLoss('sum', 0.5)", X, BITS),
    ("BCEWithLogitsLoss(w, reduction='none', pos_weight=w)", X, BITS),
    ("BCELoss(w)", abs(np.tanh(X)), BITS),
]


@pytest.mark.parametrize(("text", "x", "target"), LOSSES)
def test_losses_are_pytorchs_and_stay_fp32(text, x, target):
    found = []
    for space, make in ((nn, mp.tensor), (torch.nn, torch.tensor)):
        loss = eval(f"space.{text}", {"space": space, "w": make(WEIGHT.astype("f4"))})
        given = [make(v if v.dtype.kind == "i" else v.astype("f4")) for v in (x, target)]
        found.append(loss(*given).numpy())
        if space is nn:
            assert mp.MIXED.cast(loss)(given[0].half(), given[1]).dtype == "float32"
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "shape", "channels"), [("1d", (40, 50, 3), 2), ("1d", (2000, 3), 1), ("2d", (40, 50, 3, 2), 2)]
)
def test_whole_channels_are_dropped(kind, shape, channels):
    mp.manual_seed(0)
    layer, x = (
        getattr(nn, f"Dropout{kind}")(0.25),
        mp.tensor(1 + abs(randn(*shape)), dtype="float16", requires_grad=True),
    )
    y = layer(x)
    kept = y.numpy().reshape(*shape[:channels], -1) != 0
    assert (kept.all(-1) == kept.any(-1)).all()
    assert abs(kept.mean() - 0.75) < 5 * (0.75 * 0.25 / 2000) ** 0.5  # five standard deviations of 2000 channels
    scaled = np.where(y.numpy() != 0, x.numpy().astype("float32") * np.float32(4 / 3), 0)
    assert np.array_equal(y.numpy(), scaled.astype("float16"))
    y.sum().backward()
    assert np.array_equal(x.grad.numpy(), np.where(y.numpy() != 0, np.float32(4 / 3), 0).astype("float16"))
    assert layer.eval()(x) is x


def test_a_lazy_layer_learns_its_width():
    """An optimizer and a policy that came before the first input have the right parameters."""
    model = mp.MIXED.cast(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1)))
    optimizer = optim.Adam(model.parameters(), 0.1)
    model(mp.ones(2, 3, dtype="float16")).float().sum().backward()
    layer = model[0]
    assert type(layer) is nn.Linear and layer.in_features == 3 and layer.weight.shape == (4, 3)
    assert layer.weight.dtype == mp.float16 and 0 < abs(layer.weight.master).max() <= 3**-0.5
    before = layer.weight.master.copy()
    optimizer.step()
    assert (layer.weight.master != before).any()


def test_lists_and_dicts_of_parameters():
    ours, theirs = nn.Module(), torch.nn.Module()
    for m, lib, make in ((ours, nn, mp.tensor), (theirs, torch.nn, torch.tensor)):
        m.each = lib.ParameterList([lib.Parameter(make([1.0])), make([2.0])])
        m.each.append(make([3.0, 4.0])).extend([make([5.0])])
        m.each[-1] = lib.Parameter(make([6.0]))
        m.named = lib.ParameterDict({"a": make([7.0])})
        m.named["b"] = lib.Parameter(make([8.0]))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(np.array_equal(a, b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values()))
    assert len(ours.each) == 4 and ours.each[1:3][0] is ours.each[1] and list(ours.named) == ["a", "b"]
    with pytest.raises(TypeError, match=r"ParameterList: expected `parameters.0.` to be a Parameter, got int"):
        nn.ParameterList([1])


# ---- initialisers ----


def moments_of_uniform(r):
    return 0.0, r / math.sqrt(3), r


# name: how to fill, then mean, standard deviation and bound of the distribution
DISTRIBUTIONS = {
    "xavier_uniform": (lambda p: init.xavier_uniform_(p, 2.0), *moments_of_uniform(2 * math.sqrt(6 / 2400))),
    "xavier_normal": (lambda p: init.xavier_normal_(p), 0.0, math.sqrt(2 / 2400), math.inf),
    "kaiming_uniform": (lambda p: init.kaiming_uniform_(p), *moments_of_uniform(math.sqrt(6 / 800))),
    "kaiming_default": (lambda p: init.kaiming_uniform_(p, a=math.sqrt(5)), *moments_of_uniform(math.sqrt(1 / 800))),
    "kaiming_normal": (lambda p: init.kaiming_normal_(p, 0, "fan_out", "relu"), 0.0, math.sqrt(2 / 1600), math.inf),
    # a standard normal cut at +-2 has the variance 1 - 4 phi(2) / (Phi(2) - Phi(-2))
    "trunc_normal": (lambda p: init.trunc_normal_(p, std=0.5, a=-1, b=1), 0.0, 0.5 * math.sqrt(0.7737413), 1.0),
    # beyond 6: the mean excess is phi(6) / (1 - Phi(6)) - 6 = 0.158371, the variance 1 - m (m - 6) with m = 6.158371
    "trunc_normal_tail": (lambda p: init.trunc_normal_(p, a=6, b=100), 6.158371, math.sqrt(0.024690), math.inf),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_moments_and_bounds(name):
    moments_are(*DISTRIBUTIONS[name], "float32")


@pytest.mark.parametrize("shape", [(6, 4), (3, 2, 2, 2), (0, 3)])
def test_orthogonal(shape):
    w = init.orthogonal_(weight(*shape, dtype="float64"), gain=2).numpy().reshape(shape[0], math.prod(shape[1:]))
    gram = w @ w.T if shape[0] <= w.shape[1] else w.T @ w
    np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-13)
