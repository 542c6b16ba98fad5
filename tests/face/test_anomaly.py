"""torch.autograd.set_detect_anomaly: backward raises where PyTorch's does."""

import pytest

import tinymp.torch

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peer, pytest.mark.cpu]

OPS = {"sqrt": ("MulBackward", "mul"), "log": ("LogBackward", "log")}  # inf * 0; 0 / 0: where each names it
MAKE = {
    "sqrt": lambda x: (x * 0).sqrt().sum(),
    "log": lambda x: (x * 0).log().sum() * 0,
    "an infinity": lambda x: (x - 1).sqrt().sum(),
    "finite": lambda x: (x * x).sum(),
}


def raised(module, name):
    try:
        MAKE[name](module.ones(3, requires_grad=True)).backward()
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected")
@pytest.mark.parametrize("name", MAKE)
def test_it_raises_at_the_op_at_which_pytorch_does(name):
    for module, op in zip((torch, tinymp.torch), OPS.get(name, ("", ""))):
        for on in (True, False):
            module.autograd.set_detect_anomaly(on)
            error = raised(module, name)
            assert (op in error and "nan" in error) if on and op else error == ""
