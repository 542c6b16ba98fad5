"""PyTorch's face: its namespaces, the names that Tensor gets, what calls may say that changes no result."""

import importlib.util
import pickle
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


def test_imported_alone_it_changes_nothing_before_it_is_named():
    code = "import tinymp, sys; print('tinymp.torch' in sys.modules, hasattr(tinymp.Tensor, 'view_as'))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == ["False"] * 2


def test_devices():
    cpu, gpu = torch.device("cpu"), torch.device("cuda:0")
    assert (cpu.type, cpu.index, str(cpu), cpu == "cpu") == ("cpu", None, "cpu", True)
    assert (gpu.type, gpu.index, str(gpu), gpu == torch.device("cuda")) == ("cuda", 0, "cuda:0", True)
    assert pickle.loads(pickle.dumps(gpu)) == gpu
    assert torch.zeros(2, device=cpu).device.type == "cpu"
    assert torch.ones(2).to(cpu, torch.float64, non_blocking=True).dtype == torch.float64
    with cpu:
        assert torch.ones(2).device == cpu
    with pytest.raises(ValueError, match="one GPU"):
        torch.device("cuda:1")


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
