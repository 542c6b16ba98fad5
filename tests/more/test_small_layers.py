"""Dropout of channels, LazyLinear, lists and dicts of parameters, padding and upsampling, against PyTorch."""

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, optim

torch = pytest.importorskip("torch")
rng = np.random.default_rng(0)
IMAGES = rng.standard_normal((2, 3, 4, 5)).astype("float32")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("kind", "shape", "channels"),
    [
        ("1d", (40, 50, 3), 2),
        ("1d", (2000, 3), 1),
        ("2d", (40, 50, 3, 2), 2),
        ("2d", (40, 50, 3), 2),
        ("2d", (40, 50), 2),
    ],
)
def test_whole_channels_are_dropped(dtype, kind, shape, channels):
    mp.manual_seed(0)
    x = mp.tensor(rng.uniform(1, 2, shape), dtype=dtype, requires_grad=True)
    y = getattr(nn, f"Dropout{kind}")(0.25)(x)
    kept = y.numpy().reshape(*shape[:channels], -1) != 0
    assert (kept.all(-1) == kept.any(-1)).all()
    assert abs(kept.mean() - 0.75) < 5 * (0.75 * 0.25 / 2000) ** 0.5  # five standard deviations of 2000 channels
    scaled = np.where(y.numpy() != 0, x.numpy().astype("float32") * np.float32(4 / 3), 0)
    assert np.array_equal(y.numpy(), scaled.astype(dtype))
    y.sum().backward()
    assert np.array_equal(x.grad.numpy(), np.where(y.numpy() != 0, np.float32(4 / 3), 0).astype(dtype))
    assert getattr(nn, f"Dropout{kind}")(0.25).eval()(x) is x


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        ("ConstantPad2d", ((1, 2, 0, 3), -1.5), {}),
        ("ConstantPad2d", (1, 2.0), {}),
        ("UpsamplingNearest2d", ((6, 7),), {}),
        ("UpsamplingNearest2d", (), {"scale_factor": 2}),
        ("UpsamplingBilinear2d", ((6, 7),), {}),
        ("UpsamplingBilinear2d", (), {"scale_factor": 2}),
    ],
)
def test_padding_and_upsampling(name, arguments, options):
    expected = getattr(torch.nn, name)(*arguments, **options)(torch.tensor(IMAGES)).numpy()
    y = getattr(nn, name)(*arguments, **options)(mp.tensor(IMAGES)).numpy()
    # bilinear: two interpolations, each two products, a sum and a weight, rounded in both programs
    assert np.allclose(y, expected, rtol=0, atol=16 * np.finfo("float32").eps * abs(IMAGES).max())


@pytest.mark.parametrize("bias", [False, True])
def test_a_lazy_layer_learns_its_width(bias):
    """An optimizer and a policy that came before the first input have the right parameters."""
    model = nn.Sequential(nn.LazyLinear(4, bias), nn.Linear(4, 1))
    mp.MIXED.cast(model)
    optimizer = optim.Adam(model.parameters(), 0.1)
    assert "LazyLinear(4" in repr(model)
    model(mp.ones(2, 3, dtype="float16")).float().sum().backward()
    layer = model[0]
    assert type(layer) is nn.Linear and layer.in_features == 3 and layer.weight.shape == (4, 3)
    assert layer.weight.dtype == mp.float16 and layer.weight.master.dtype == mp.float32
    assert 0 < abs(layer.weight.numpy()).max() <= 3**-0.5
    before = layer.weight.master.copy()
    optimizer.step()
    assert (layer.weight.master != before).any()
    assert list(model.state_dict()) == list(
        torch.nn.Sequential(torch.nn.Linear(3, 4, bias), torch.nn.Linear(4, 1)).state_dict()
    )


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
    assert len(ours.each) == 4 and len(ours.each[1:3]) == 2 and ours.each[1:3][0] is ours.each[1]
    assert list(ours.named) == ["a", "b"] and "b" in ours.named and ours.named["a"].requires_grad
    with pytest.raises(TypeError, match=r"ParameterList: expected `parameters.0.` to be a Parameter, got int"):
        nn.ParameterList([1])
    with pytest.raises(IndexError, match=r"list index out of range"):
        ours.each[4]
