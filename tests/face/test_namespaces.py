"""PyTorch's face: its namespaces, the names that Tensor gets, what calls may say that changes no result."""

import importlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

import tinymp as mp
import tinymp.torch as torch
import tinymp.torch.nn as nn
import tinymp.torch.nn.functional as F
from tinymp.torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.cpu
MODULES = ["torch"]
MODULES += ["torch.nn", "torch.nn.functional", "torch.nn.init", "torch.nn.utils", "torch.nn.utils.rnn", "torch.optim"]
MODULES += [
    "torch.optim.lr_scheduler",
    "torch.autograd",
    "torch.utils",
    "torch.utils.data",
    "torch.cuda",
    "torch.backends",
]


@pytest.mark.parametrize("title", MODULES)
def test_a_module_of_the_face_has_the_names_that_it_lists(title):
    module = importlib.import_module(f"tinymp.{title}")
    for name in dir(module):
        assert hasattr(module, name), f"{title}.{name}"


def test_names_are_pytorchs():
    peer = pytest.importorskip("torch")
    for title in MODULES:
        theirs = importlib.import_module(title)
        ours = importlib.import_module(f"tinymp.{title}")
        public = {name for name in dir(ours) if not name.startswith("_")}
        public -= {
            "annotations",
            "accepted",
            "methods",
            "space",
            "types",
            "convert",
            "traced",
            "states",
            "install",
            "module",
        }
        old = {n[:-1] for n in dir(peer.nn.init) if n.endswith("_")} | {"clip_grad_norm", "prepare"}
        own = {
            "Any",
            "ClassVar",
            "fill",
            "names",
            "backend",
            "char",
            "enable_grad",
            "Tensor",
            "from_pytorch",
            "DTYPES",
            "different",
            "SimpleNamespace",
            "tensorboard",  # there once it is imported
        }
        wrong = [n for n in public - old - own if not hasattr(theirs, n)]
        assert not wrong, title


def test_imported_alone_it_changes_nothing_before_it_is_named():
    code = "import tinymp, sys; print('tinymp.torch' in sys.modules, hasattr(tinymp.Tensor, 'view_as'))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split() == ["False"] * 2


def test_devices():
    cpu, gpu = torch.device("cpu"), torch.device("cuda:0")
    assert (cpu.type, cpu.index, str(cpu), f"{cpu}", cpu == "cpu") == ("cpu", None, "cpu", "cpu", True)
    assert (gpu.type, gpu.index, str(gpu), gpu == torch.device("cuda")) == ("cuda", 0, "cuda:0", True)
    assert pickle.loads(pickle.dumps(gpu)) == gpu
    assert torch.zeros(2, device=cpu).device.type == "cpu"
    assert torch.ones(2).to(cpu, torch.float64, non_blocking=True).dtype == torch.float64
    with cpu:
        assert torch.ones(2).device == cpu
    with pytest.raises(ValueError, match="one GPU"):
        torch.device("cuda:1")
    with pytest.raises(ValueError, match="expected 'cpu'"):
        torch.device("tpu")


CHANGES_NOTHING = {
    "axis": (lambda x: x.sum(axis=1, keepdims=True), lambda x: x.sum(1, keepdim=True)),
    "dtype of sum": (lambda x: x.sum(dtype=torch.float64), lambda x: x.double().sum()),
    "size_average": (
        lambda x: F.mse_loss(x, x * 2, size_average=False),
        lambda x: F.mse_loss(x, x * 2, reduction="sum"),
    ),
    "reduce": (lambda x: nn.MSELoss(reduce=False)(x, x * 2), lambda x: nn.MSELoss(reduction="none")(x, x * 2)),
    "memory_format": (lambda x: x.contiguous(memory_format=torch.channels_last), lambda x: x),
    "to a tensor": (lambda x: x.to(torch.ones(1).double()), lambda x: x.double()),
}


@pytest.mark.parametrize("how", CHANGES_NOTHING)
def test_what_changes_no_result_is_accepted(how):
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    ours, plain = (f(x) for f in CHANGES_NOTHING[how])
    assert ours.dtype == plain.dtype
    np.testing.assert_array_equal(ours.numpy(), plain.numpy())


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: nn.Linear(2, 3, inplace=True), "inplace"),
        (lambda x: F.relu(x, 3), "relu"),
        (lambda x: x.sum(axis=0, dim=0), "axis"),
        (lambda x: mp.ops.scatter(x, 0, x.long(), x, reduce="add"), "scatter"),
    ],
)
def test_other_wrong_arguments_are_refused(call, error):
    with pytest.raises(TypeError, match=error):
        call(torch.ones(2, 2))


def test_tensor_classes_make_tensors_and_tell_them():
    assert torch.Tensor(2, 3).shape == (2, 3)
    assert torch.LongTensor([1, 2]).dtype == torch.long
    assert torch.FloatTensor(np.arange(3)).dtype == torch.float32
    x = torch.zeros(2)
    assert isinstance(x, torch.Tensor)
    assert isinstance(x, torch.FloatTensor)
    assert not isinstance(x, torch.LongTensor)
    assert (x.type(), x.type(torch.LongTensor).dtype, x.type("torch.DoubleTensor").dtype) == (
        "torch.FloatTensor",
        torch.long,
        torch.double,
    )
    with pytest.raises(TypeError, match="lengths of axes"):
        torch.Tensor(2, "x")


def test_in_place_outside_the_graph_alone():
    x = torch.zeros(2, 2)
    assert x.fill_(3).add_(1).pow_(2).tolist() == [[16, 16], [16, 16]]
    x[x > 2] = 1.0
    assert x.sum() == 4
    assert 0 <= x.uniform_(0, 1).min() <= x.max() <= 1
    w = torch.ones(2, requires_grad=True)
    w.data.fill_(2)
    assert w.tolist() == [2, 2]
    for change in (lambda: w.fill_(0), lambda: w.normal_(), lambda: w.exp_(), lambda: (w * 1).fill_(0)):
        with pytest.raises(RuntimeError, match="part of a graph"):
            change()


def test_gradients_of_the_first_order():
    w = torch.ones(3, requires_grad=True)
    (g,) = torch.autograd.grad((w * w).sum(), w)
    assert g.tolist() == [2, 2, 2]
    assert w.grad is None
    with pytest.raises(NotImplementedError, match="second derivatives"):
        torch.autograd.grad((w * w).sum(), w, create_graph=True)
    with pytest.raises(RuntimeError, match="allow_unused"):
        torch.autograd.grad((w * w).sum(), [w, torch.ones(1, requires_grad=True)])


def test_grad_modes():
    w = torch.ones(1, requires_grad=True)
    with torch.set_grad_enabled(False):
        assert not (w * 2).requires_grad
    assert (w * 2).requires_grad
    torch.set_grad_enabled(False)
    assert not (w * 2).requires_grad
    torch.set_grad_enabled(True)
    assert torch.inference_mode()(lambda: w * 2)().requires_grad is False


def test_a_program():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(inplace=True), nn.Linear(16, 2)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, foreach=False)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5)
    x = torch.randn(64, 4)
    loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), 16, shuffle=True, pin_memory=True)
    losses = []
    for _ in range(10):
        for data, target in loader:
            data, target = data.to(device, non_blocking=True), target.to(device)
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(net(data), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        schedule.step()
    assert losses[-1] < 0.7 * losses[0]


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
