"""Copies, pickles and decorated generators keep what PyTorch's keep, row by row; where they differ on purpose,
docs/pytorch.md says so.
"""

import copy
import pickle

import pytest

import tinymp.torch as face

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

# Programs of w (a leaf), x (2, 2), p (a parameter) and m (linear, batch norm, linear)
SAME = {
    "leaf": "y = copy.deepcopy(w); r = y.requires_grad, y.is_leaf, type(y).__name__",
    "leaf grad": "(w*2).sum().backward(); y = copy.deepcopy(w); r = y.grad, y.grad is not w.grad",
    "detached": "y = copy.deepcopy((w*2).detach()); r = y",
    "copy leaf": "y = copy.copy(w); y.data.add_(1); r = w, y.requires_grad",
    "param": "y = copy.deepcopy(p); r = type(y).__name__, y.requires_grad, y",
    "param frozen": "p.requires_grad_(False); y = copy.deepcopy(p); r = y.requires_grad",
    "param grad": "(p*2).sum().backward(); y = copy.deepcopy(p); r = y.grad",
    "param grad pickle": "(p*2).sum().backward(); y = pickle.loads(pickle.dumps(p)); r = y.grad",
    "param copy": "y = copy.copy(p); r = type(y).__name__",
    "views pickle": "a, b = pickle.loads(pickle.dumps([x, x[0]])); a.add_(1); r = b",
    "same twice": "a, b = copy.deepcopy([x, x]); r = a is b",
    "same twice pickle": "a, b = pickle.loads(pickle.dumps([x, x])); r = a is b",
    "strides": "y = copy.deepcopy(x.t()); r = y.stride(), y",
    "strides pickle": "y = pickle.loads(pickle.dumps(x.t())); r = y.stride(), y",
    "module training": "m.eval(); y = copy.deepcopy(m); r = y.training, y[1].training",
    "module grad": """
m(x).sum().backward()
y = copy.deepcopy(m)
r = [q.grad is not None for q in y.parameters()]""",
    "module grad pickle": """
m(x).sum().backward()
y = pickle.loads(pickle.dumps(m))
r = [q.grad is not None for q in y.parameters()]""",
    "module tied": "m[0].weight = m[2].weight; y = copy.deepcopy(m); r = y[0].weight is y[2].weight",
    "module tied pickle": """
m[0].weight = m[2].weight
y = pickle.loads(pickle.dumps(m))
r = y[0].weight is y[2].weight""",
    "module hook": """
seen=[]
m.register_forward_hook(lambda *a: seen.append(1))
y = copy.deepcopy(m)
y(x)
r = len(seen)""",
    "module prehook": """
seen=[]
m[0].register_forward_pre_hook(lambda *a: seen.append(1))
y = copy.deepcopy(m)
y(x)
r = len(seen)""",
    "module attr": "m.note = [1]; y = copy.deepcopy(m); y.note.append(2); r = m.note",
    "module buffer": """
m.register_buffer('b', torch.ones(2))
y = copy.deepcopy(m)
y.b.add_(1)
r = m.b, y.b""",
    "module nonpersistent": """
m.register_buffer('b', torch.ones(2), persistent=False)
y = copy.deepcopy(m)
r = list(y.state_dict())""",
    "module requires": """
m[0].requires_grad_(False)
y = copy.deepcopy(m)
r = [q.requires_grad for q in y.parameters()]""",
    "module shallow": "y = copy.copy(m); r = y[0] is m[0], y[0].weight is m[0].weight",
    "module bn": """
m(x)
k = m[1].running_mean.clone()
y = copy.deepcopy(m)
m(x + 1)
r = (y[1].running_mean == k).all(), y[1].num_batches_tracked""",
    "module bn pickle": """
m(x)
k = m[1].running_mean.clone()
y = pickle.loads(pickle.dumps(m))
m(x + 1)
r = (y[1].running_mean == k).all()""",
    "state dict": """
y = copy.deepcopy(m.state_dict())
m[0].weight.data.zero_()
r = y['0.weight'].sum() != 0""",
    "optimizer": """
o = torch.optim.Adam([p], lr=.1)
(p*2).sum().backward()
o.step()
y = copy.deepcopy(o)
y.step()
r = p, y.param_groups[0]['params'][0]""",
    "optimizer pickle": """
o = torch.optim.SGD([p], lr=.1, momentum=.9)
(p*2).sum().backward()
o.step()
y = pickle.loads(pickle.dumps(o))
q = y.param_groups[0]['params'][0]
r = q, q.grad, len(y.state)""",
    "model and optimizer": """
o = torch.optim.SGD(m.parameters(), lr=.1)
n, y = copy.deepcopy((m, o))
n(x).sum().backward()
y.step()
r = n[0].weight is y.param_groups[0]['params'][0], (n[0].weight != m[0].weight).any()""",
    "scaler": """
s = torch.amp.GradScaler('cpu', init_scale=4.0)
y = copy.deepcopy(s)
r = y.get_scale()""",
    "dtype": "y = copy.deepcopy(x.half()); r = str(y.dtype).replace('torch.','')",
    "gradient": "(w*2).sum().backward(); y = copy.deepcopy(w.grad); y.add_(1); r = y, w.grad",
    "generator": """
g = torch.Generator()
g.manual_seed(3)
a = torch.rand(2, generator=g)
s = g.get_state()
b = torch.rand(2, generator=g)
g.set_state(s)
c = torch.rand(2, generator=g)
r = (b == c).all()""",
    "generator copy": """
g = torch.Generator()
g.manual_seed(3)
k = copy.deepcopy(g)
r = (torch.rand(2, generator=g) == torch.rand(2, generator=k)).all()""",
    "generator pickle": """
g = torch.Generator()
g.manual_seed(3)
torch.rand(1, generator=g)
k = pickle.loads(pickle.dumps(g))
r = (torch.rand(2, generator=g) == torch.rand(2, generator=k)).all()""",
    "generator seed": "g = torch.Generator().manual_seed(3); r = g.initial_seed()",
    "no grad function": """
@torch.no_grad()
def f(): return torch.is_grad_enabled()
r = f(), torch.is_grad_enabled()""",
    "no grad generator": """
@torch.no_grad()
def f():
  for _ in range(2): yield torch.is_grad_enabled()
r = [(v, torch.is_grad_enabled()) for v in f()]""",
    "no grad bare": """
@torch.no_grad
def f(): return torch.is_grad_enabled()
r = f()""",
    "enable grad bare": """
@torch.enable_grad
def f(): return torch.is_grad_enabled()
with torch.no_grad(): r = f()""",
    "enable generator": """
@torch.enable_grad()
def f():
  for _ in range(2): yield torch.is_grad_enabled()
with torch.no_grad(): r = [(v, torch.is_grad_enabled()) for v in f()]""",
    "inference generator": """
@torch.inference_mode()
def f():
  for _ in range(2): yield torch.is_grad_enabled()
r = [(v, torch.is_grad_enabled()) for v in f()]""",
    "inference generator bare": """
@torch.inference_mode
def f():
  for _ in range(2): yield torch.is_grad_enabled()
r = [(v, torch.is_grad_enabled()) for v in f()]""",
    "set grad generator": """
@torch.set_grad_enabled(False)
def f():
  for _ in range(2): yield torch.is_grad_enabled()
r = [(v, torch.is_grad_enabled()) for v in f()]""",
    "set grad function": """
@torch.set_grad_enabled(False)
def f(): return torch.is_grad_enabled()
r = f(), torch.is_grad_enabled()""",
    "autocast function": """
@torch.autocast('cpu', enabled=False)
def f(): return 3
r = f()""",
    "with in generator": """
def f():
  with torch.no_grad():
    yield torch.is_grad_enabled()
    yield torch.is_grad_enabled()
r = [(v, torch.is_grad_enabled()) for v in f()]""",
    "abandoned generator": """
def f():
  with torch.no_grad():
    yield 1
    yield 2
g = f(); next(g); del g
r = torch.is_grad_enabled()""",
    "nested set": """
with torch.set_grad_enabled(False):
  with torch.set_grad_enabled(True): a = torch.is_grad_enabled()
  b = torch.is_grad_enabled()
r = a, b, torch.is_grad_enabled()""",
    "exception": """
try:
  with torch.no_grad(): 1/0
except ZeroDivisionError: pass
r = torch.is_grad_enabled()""",
    "module method": """
class M(nn.Module):
  @torch.no_grad()
  def f(self, x): return (x * p).requires_grad
r = M().f(x)""",
    "classmethod doc": """
@torch.no_grad()
def f():
  'doc'
r = f.__name__, f.__doc__""",
}
# The same, and how they end here
DIFFERENT = {
    "leaf grad pickle": (
        """
(w*2).sum().backward()
y = pickle.loads(pickle.dumps(w))
r = y.grad, y.requires_grad""",
        [[2.0, 2.0], True],
    ),
    "result": (
        "y = copy.deepcopy(w*2); r = y.requires_grad",
        "TypeError: mul: its result cannot be copied or pickled; write x.detach().clone()",
    ),
    "result pickle": (
        "y = pickle.loads(pickle.dumps(w*2)); r = y.requires_grad, y.is_leaf",
        "TypeError: mul: its result cannot be copied or pickled; write x.detach().clone()",
    ),
    "result copy": (
        "h = w*2; y = copy.copy(h); r = y.requires_grad, y.is_leaf",
        "TypeError: mul: its result cannot be copied or pickled; write x.detach().clone()",
    ),
    "views deepcopy": ("a, b = copy.deepcopy([x, x[0]]); a.add_(1); r = b", [1.0, 2.0]),
    "attribute": (
        "x.note = 3; y = copy.deepcopy(x); r = y.note",
        "AttributeError: 'Tensor' object has no attribute 'note'",
    ),
    "set reused": (
        """
c = torch.no_grad()
with c:
  with c: pass
  a = torch.is_grad_enabled()
r = a, torch.is_grad_enabled()""",
        [False, True],
    ),
}


def _plain(v):
    if isinstance(v, (list, tuple)):
        return [_plain(one) for one in v]
    return v.detach().reshape(-1).tolist() if hasattr(v, "detach") else v


def ended(module, program):
    module.manual_seed(0)
    nn = module.nn
    names = {
        "torch": module, "nn": nn, "copy": copy, "pickle": pickle, "w": module.tensor([1.0, 2.0], requires_grad=True),
        "x": module.tensor([[1.0, 2.0], [3.0, 5.0]]), "p": nn.Parameter(module.tensor([1.0, 2.0])),
        "m": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)),
    }  # fmt: skip
    try:
        exec(program, names)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        module.set_grad_enabled(True)
    return _plain(names["r"])


@pytest.mark.parametrize("name", SAME)
def test_it_is_as_in_pytorch(name):
    expected = ended(torch, SAME[name])
    assert "Error" not in str(expected)
    assert str(_rounded(ended(face, SAME[name]))) == str(_rounded(expected))


def _rounded(x):
    if isinstance(x, list):
        return [_rounded(one) for one in x]
    return round(x, 5) if isinstance(x, float) else x


@pytest.mark.parametrize("name", DIFFERENT)
def test_it_differs_on_purpose(name):
    program, expected = DIFFERENT[name]
    assert ended(face, program) == expected != ended(torch, program)
