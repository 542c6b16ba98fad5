"""weight_norm and spectral_norm against PyTorch: names, values, gradients, and in mixed precision."""

import copy

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, optim

torch = pytest.importorskip("torch")
rng = np.random.default_rng(0)
LAYERS = {  # and the shape of an input
    "Linear": (lambda nn: nn.Linear(4, 3), (5, 4)),
    "ConvTranspose2d": (lambda nn: nn.ConvTranspose2d(2, 3, 3), (1, 2, 4, 4)),
}


def pair(layer, how, parametrized, options):
    """The layer in PyTorch and here, with the same parts."""
    theirs, ours = (LAYERS[layer][0](home) for home in (torch.nn, nn))
    getattr(torch.nn.utils.parametrizations if parametrized else torch.nn.utils, how)(theirs, **options)
    assert getattr(nn, how)(ours, parametrized=parametrized, **options) is ours
    ours.load_state_dict({name: x.numpy() for name, x in theirs.state_dict().items()})
    return theirs, ours


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("parametrized", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("weight_norm", {}),
        ("weight_norm", {"dim": None}),
        ("spectral_norm", {"dim": 1, "n_power_iterations": 2}),
    ],
)
def test_as_in_pytorch(how, options, layer, parametrized):
    """Three forwards in training (each with its power iteration), one in evaluation; then without the norm."""
    theirs, ours = pair(layer, how, parametrized, options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    copy.deepcopy(ours)
    x = rng.standard_normal(LAYERS[layer][1]).astype("float32")
    for training in (True, True, True, False):
        theirs.train(training), ours.train(training)
        expected, y = theirs(torch.tensor(x)), ours(mp.tensor(x))
        # a hundred products, norms and quotients of numbers near 1, each rounded in both
        np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), rtol=0, atol=256 * 2.0**-24)
        dy = rng.standard_normal(y.shape).astype("float32")
        theirs.zero_grad(), ours.zero_grad()
        expected.backward(torch.tensor(dy)), y.backward(mp.tensor(dy))
        for (name, p), (own, q) in zip(theirs.named_parameters(), ours.named_parameters(), strict=True):
            assert own == name
            np.testing.assert_allclose(q.grad.numpy(), p.grad.numpy(), rtol=0, atol=1024 * 2.0**-24)
    if parametrized:
        with pytest.raises(ValueError, match=f"remove_{how}: expected a module with a {how} of 'weight'"):
            getattr(nn, f"remove_{how}")(ours)
        return
    getattr(nn, f"remove_{how}")(ours), getattr(torch.nn.utils, f"remove_{how}")(theirs)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    np.testing.assert_allclose(ours(mp.tensor(x)).numpy(), theirs(torch.tensor(x)).detach().numpy(), atol=2.0**-16)


@pytest.mark.parametrize("how", ["weight_norm", "spectral_norm"])
def test_parts_stay_fp32_in_mixed_precision(how):
    """The weight is their value in FP32, rounded once; steps train them."""
    layer = mp.MIXED.cast(getattr(nn, how)(nn.Linear(8, 4)))
    parts = {name: p for name, p in layer.named_parameters() if name != "bias"}
    assert {p.dtype.name for p in parts.values()} == {"float32"}
    before = {name: p.numpy().astype("float64") for name, p in parts.items()}
    layer(mp.tensor(rng.standard_normal((2, 8)).astype("float16"))).float().sum().backward()
    if how == "weight_norm":
        v = before["weight_v"]
        exact = before["weight_g"] * v / np.sqrt((v * v).sum(1, keepdims=True))
    else:
        exact = (w := before["weight_orig"]) / (layer.weight_u.numpy().astype("float64") @ w @ layer.weight_v.numpy())
    assert layer.weight.dtype == "float16"
    np.testing.assert_allclose(layer.weight.numpy(), exact, rtol=2.0**-11 + 2.0**-20)
    optim.SGD(layer.parameters(), 0.5).step()
    assert all((p.numpy() != before[name]).any() for name, p in parts.items())
