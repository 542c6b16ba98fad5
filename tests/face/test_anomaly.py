"""torch.autograd.set_detect_anomaly: backward raises where PyTorch's does."""

import gc

import pytest

import tinymp.torch
from tinymp.events import here

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peer, pytest.mark.cpu]

CASES = {  # the function of x, which PyTorch's op -> tinymp's; None: no NaN in backward
    "sqrt": (lambda x: (x * 0).sqrt().sum(), ("MulBackward", "mul")),  # inf * 0
    "log": (lambda x: (x * 0).log().sum() * 0, ("LogBackward", "log")),  # 0 / 0
    "an infinity": (lambda x: (x - 1).sqrt().sum(), None),
    "finite": (lambda x: (x * x).sum(), None),
}


@pytest.fixture(autouse=True)
def _nobody_listens_afterwards():
    yield
    torch.autograd.set_detect_anomaly(False)
    gc.collect()
    assert not here.observers


def raised(module, make):
    x = module.ones(3, requires_grad=True)
    try:
        make(x).backward()
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected")
@pytest.mark.parametrize(("make", "op"), CASES.values(), ids=CASES)
def test_it_raises_at_the_op_at_which_pytorch_does(make, op):
    for on in (True, False):
        for module, name in zip((torch, tinymp.torch), op or ("", "")):
            module.autograd.set_detect_anomaly(on)
            error = raised(module, make)
            assert (name in error and "nan" in error) if on and op else error == ""


@pytest.mark.parametrize("context", ["detect_anomaly", "set_detect_anomaly"])
def test_as_a_context_it_ends_and_it_nests(context):
    make = CASES["sqrt"][0]
    detect = getattr(tinymp.torch.autograd, context)
    with detect():
        with tinymp.torch.autograd.set_detect_anomaly(False):
            assert raised(tinymp.torch, make) == ""
        with detect():
            assert "`input`" in raised(tinymp.torch, make)
        assert raised(tinymp.torch, make)
    assert raised(tinymp.torch, make) == ""
