"""PyTorch's face: its namespaces, the names that Tensor gets, what calls may say that changes no result."""

import importlib.util
import subprocess
import sys

import pytest

import tinymp.torch as torch

pytestmark = pytest.mark.cpu
MODULES = """
    torch torch.nn torch.nn.functional torch.nn.init torch.nn.utils torch.nn.utils.rnn torch.optim torch.autograd
    torch.optim.lr_scheduler torch.utils torch.utils.data torch.cuda torch.backends
"""
OWN = """
    annotations accepted methods space types convert traced states install module Any ClassVar fill names backend char
    enable_grad Tensor from_pytorch DTYPES different SimpleNamespace tensorboard clip_grad_norm prepare
"""


@pytest.mark.parametrize("title", MODULES.split())
def test_names_are_pytorchs(title):
    theirs = importlib.import_module(title) if importlib.util.find_spec("torch") else pytest.skip("needs PyTorch")
    ours = importlib.import_module(f"tinymp.{title}")
    public = {name for name in dir(ours) if not name.startswith("_")}
    assert all(hasattr(ours, name) for name in public)
    old = {n[:-1] for n in dir(sys.modules["torch"].nn.init) if n.endswith("_")}
    assert not [n for n in public - old - {*OWN.split()} if not hasattr(theirs, n)]


def test_import_all():
    names: dict = {}
    for title in (
        "torch",
        "torch.nn",
        "torch.optim",
        "torch.optim.lr_scheduler",
        "torch.nn.functional",
        "torch.utils.data",
    ):
        exec(f"from tinymp.{title} import *", names)
    assert {"DataLoader", "Linear", "relu", "SGD", "StepLR", "float32", "zeros", "optim"} <= names.keys()
    assert not {"Any", "fill", "backend", "annotations"} & names.keys()


def test_imported_alone_it_changes_nothing_before_it_is_named():
    code = "import tinymp, sys; print('tinymp.torch' in sys.modules, hasattr(tinymp.Tensor, 'view_as'))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == ["False"] * 2


def test_a_generator_draws_its_own_numbers():
    a, b = (torch.randn(3, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert a.tolist() == b.tolist()
    torch.manual_seed(0)
    plain = torch.randn(3)
    torch.manual_seed(0)
    torch.randn(3, generator=torch.Generator())
    one, other = torch.Generator().manual_seed(5), torch.Generator()
    with one, other, one:
        assert torch.randn(3).tolist() == a.tolist()
    assert torch.randn(3).tolist() == plain.tolist()
