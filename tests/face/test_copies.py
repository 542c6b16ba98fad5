"""Copies, pickles and decorated generators keep what PyTorch's keep, program by program."""

import copy
import pickle

import pytest

import tinymp.torch as face
from beside import compare

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

# Programs of w (a leaf), x (2, 2), p (a parameter) and m (linear, batch norm, linear); `again` copies or pickles
COPIES = """
(w * 2).sum().backward(); y = copy.deepcopy(w); r = y.requires_grad, y.is_leaf, type(y).__name__, y.grad
y = copy.copy(w); y.data.add_(1); r = w, y.requires_grad
p.requires_grad_(False); y = again(p); r = y.requires_grad, type(y).__name__, y
(p * 2).sum().backward(); y = again(p); r = y.grad
a, b = pickle.loads(pickle.dumps([x, x[0]])); a.add_(1); r = b
a, b = again([x, x]); r = a is b
y = again(x.t()); r = y.stride(), y
m.eval(); y = again(m); r = y.training, y[1].training
m(x).sum().backward(); y = again(m); r = [q.grad is not None for q in y.parameters()]
m[0].weight = m[2].weight; y = again(m); r = y[0].weight is y[2].weight
m[0].requires_grad_(False); y = again(m); r = [q.requires_grad for q in y.parameters()]
m.register_buffer("b", torch.ones(2), persistent=False); y = again(m); y.b.add_(1); r = m.b, y.b, list(y.state_dict())
m(x); k = m[1].running_mean.clone(); y = again(m); m(x + 1); r = (y[1].running_mean == k).all()
seen = []; m.register_forward_hook(lambda *a: seen.append(1)); y = copy.deepcopy(m); y(x); r = len(seen)
m.note = [1]; y = copy.deepcopy(m); y.note.append(2); r = m.note
y = copy.copy(m); r = y[0] is m[0], y[0].weight is m[0].weight
y = copy.deepcopy(m.state_dict()); m[0].weight.data.zero_(); r = y["0.weight"].sum() != 0
y = copy.deepcopy(torch.amp.GradScaler("cpu", init_scale=4.0)); r = y.get_scale()
y = again(x.half()); r = str(y.dtype).replace("torch.", "")
""".strip().splitlines()
OPTIMIZERS = [
    """
g = torch.Generator().manual_seed(3)
k, s = again(g), g.get_state()
a, b = (torch.rand(2, generator=one) for one in (g, k))
g.set_state(s)
r = a - b, a - torch.rand(2, generator=g), g.initial_seed()""",
    """
o = torch.optim.SGD([p], lr=.1, momentum=.9)
(p * 2).sum().backward()
o.step()
y = again(o)
y.step()
q = y.param_groups[0]['params'][0]
r = p, q, q.grad, len(y.state)""",
    """
o = torch.optim.SGD(m.parameters(), lr=.1)
n, y = again((m, o))
n(x).sum().backward()
y.step()
r = n[0].weight is y.param_groups[0]['params'][0], (n[0].weight != m[0].weight).any()""",
]
MODES = ["no_grad()", "no_grad", "enable_grad()", "inference_mode()", "inference_mode", "set_grad_enabled(False)"]
DECORATED = """
@torch.MODE
def f():
    'doc'
    return torch.is_grad_enabled()
@torch.MODE
def g():
    for _ in range(2): yield torch.is_grad_enabled()
with torch.set_grad_enabled('enable' not in 'MODE'):
    r = f(), f.__doc__, [(v, torch.is_grad_enabled()) for v in g()], torch.is_grad_enabled()"""


def ended(module, program, again=copy.deepcopy):
    module.manual_seed(0)
    nn = module.nn
    names = {
        "torch": module, "nn": nn, "copy": copy, "pickle": pickle, "w": module.tensor([1.0, 2.0], requires_grad=True),
        "x": module.tensor([[1.0, 2.0], [3.0, 5.0]]), "p": nn.Parameter(module.tensor([1.0, 2.0])),
        "m": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)), "again": again,
    }  # fmt: skip
    try:
        exec(program, names)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        module.set_grad_enabled(True)
    return names["r"]


@pytest.mark.parametrize("program", [*COPIES, *OPTIMIZERS, *(DECORATED.replace("MODE", m) for m in MODES)])
def test_it_is_as_in_pytorch(program):
    for again in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)))[: 1 + ("again" in program)]:
        expected = ended(torch, program, again)
        assert "Error" not in str(expected)
        compare(expected, ended(face, program, again))
