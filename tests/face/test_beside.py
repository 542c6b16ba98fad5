"""Gradients, hooks, averages of weights and schedules: programs that end as in PyTorch."""

import copy
import warnings

import pytest

import tinymp.torch as face
from beside import compare

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peer, pytest.mark.cpu]

# Programs of m, a linear layer of 4 to 2; x (3, 4), which requires a gradient; dy (3, 2); seen, an empty list
PROGRAMS = {
    "forward hooks see and replace": """
with m.register_forward_pre_hook(lambda mod, args: seen.append(len(args))):
    a = m(x)
first = m.register_forward_pre_hook(lambda mod, args: (args[0] * 2,))
second = m.register_forward_pre_hook(lambda mod, args: args[0] + 1)
b = m(x)
first.remove(), second.remove(), second.remove()
with m.register_forward_hook(lambda mod, args, output: output * 3):
    c = m(x)
found = a, b, c, m(x), seen""",
    "order and keyword arguments": """
class Scale(nn.Module):
    def forward(self, x, *, by=1.0):
        return x * by
m = Scale()
m.register_forward_hook(lambda mod, args, output: seen.append("last"))
m.register_forward_hook(lambda mod, args, kwargs, output: seen.append(kwargs), prepend=True, with_kwargs=True)
m.register_forward_pre_hook(lambda mod, args, kwargs: (args, {"by": kwargs["by"] + 1}), with_kwargs=True)
found = m(x, by=2.0), str(seen)""",
    "a backward hook sees both gradients": """
with m.register_full_backward_hook(lambda mod, i, o: seen.extend([mod is m, len(i), i[0], o[0]])):
    m(x).backward(dy)
found = x.grad, m.weight.grad, *seen""",
    "it replaces the gradient of the input alone": """
m.register_full_backward_hook(lambda mod, i, o: (i[0] * 2,))
m.register_full_backward_hook(lambda mod, i, o: (i[0] + 1,))
m(x).backward(dy)
found = x.grad, m.weight.grad""",
    "a backward hook of several inputs and outputs": """
class Both(nn.Module):
    def forward(self, x, y, n):
        return x * y, y * n, "text"
m, y = Both(), x.detach().requires_grad_()
m.register_full_backward_hook(lambda mod, i, o: seen.extend([*i, o[0]]))
(m(x, y, 5)[0] * 7).sum().backward()  # the other one is not used
found = x.grad, y.grad, *seen""",
    "a copy has the same hooks and its own handles": """
handle = m.register_forward_hook(lambda mod, args, output: seen.append(mod is m))
other = copy.deepcopy(m)
handle.remove()
m(x), other(x)
found = seen, list(m.state_dict())""",
    "averages of weights": """
net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
start(net)
plain, ema = (swa.AveragedModel(net, avg_fn=fn) for fn in (None, swa.get_ema_avg_fn(0.9)))
for k in range(9):
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.cos(torch.arange(p.numel()).float() + k).reshape(p.shape) * 0.1)
    plain.update_parameters(net), ema.update_parameters(net)
for average in (plain, ema):
    swa.update_bn([x.detach() + i for i in range(5)], average.eval())
found = *plain.parameters(), *ema.parameters(), *plain.buffers(), *ema.buffers(), ema.module[1].momentum""",
    "gradients in one flat buffer, clipped": """
flat = torch.zeros(10)
m.weight.grad, m.bias.grad = flat[:8].view(2, 4), flat[8:]
for _ in range(3):
    flat.zero_()
    m(x).pow(2).sum().backward()
    nn.utils.clip_grad_norm_(m.parameters(), 2.0)
    with torch.no_grad():
        m.weight -= 0.1 * flat[:8].view(2, 4)
    seen.append(flat.clone())
found = seen, m.weight, m.bias.grad""",
    "a leaf that is frozen between forward and backward": """
y = m(x).sum()
m.weight.requires_grad_(False)
y.backward()
found = m.weight.grad, m.bias.grad, x.grad""",
    "a frozen parameter that has a gradient is updated": """
o = torch.optim.SGD(m.parameters(), lr=0.1)
m(x).sum().backward()
m.weight.requires_grad_(False)
o.step()
m.bias.requires_grad_(False).grad = torch.ones(2)
o.step()
found = m.weight, m.bias""",
    "a rate set by the program under SequentialLR": """
s = torch.optim.lr_scheduler
for inner in (lambda o: s.ExponentialLR(o, 0.9), lambda o: s.CosineAnnealingLR(o, 10, 1e-3), lambda o: s.StepLR(o, 2)):
    for n, at in ((2, 3), (3, 1)):
        o = torch.optim.SGD(m.parameters(), lr=0.1)
        schedule = s.SequentialLR(o, [s.LinearLR(o, 0.1, total_iters=n), inner(o)], [n])
        for i in range(7):
            if i == at: o.param_groups[0]["lr"] *= 0.1
            o.step(), schedule.step()
            seen.append(o.param_groups[0]["lr"])
found = seen""",
    "the state of a schedule has its options": """
class Rate:
    def __init__(self, k): self.k = k
    def __call__(self, t): return 1 / (1 + self.k * t)
s = torch.optim.lr_scheduler
cases = [(lambda o, k: s.StepLR(o, 1, k), 0.5, 0.1), (lambda o, k: s.CosineAnnealingLR(o, k), 10, 20)]
cases += [(lambda o, k: s.LambdaLR(o, Rate(k)), 0, 4), (lambda o, k: s.OneCycleLR(o, 0.5, k), 10, 20)]
cases += [(lambda o, k: s.SequentialLR(o, [s.LinearLR(o, k), s.ExponentialLR(o, k)], [2]), 0.9, 0.1)]
for make, was, now in cases:
    (old, a), (new, b) = [(o, make(o, k)) for o, k in
                          ((torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.8), k) for k in (was, now))]
    for _ in range(4):
        old.step(), a.step()
    new.load_state_dict(old.state_dict()), b.load_state_dict(copy.deepcopy(a.state_dict()))
    for _ in range(2):
        new.step(), b.step()
        seen.append(new.param_groups[0]["lr"])
found = seen""",
    "a group that is added under a schedule": """
s = torch.optim.lr_scheduler
for make in (lambda o: s.StepLR(o, 1), lambda o: s.ExponentialLR(o, 0.5), lambda o: s.ReduceLROnPlateau(o, patience=0)):
    o = torch.optim.SGD([m.weight], lr=0.1)
    schedule = make(o)
    for i in range(4):
        if i == 2: o.add_param_group({"params": [m.bias], "lr": 0.3})
        o.step()
        schedule.step(*[1.0] * isinstance(schedule, s.ReduceLROnPlateau))
    seen += [group["lr"] for group in o.param_groups]
found = seen""",
    "integers and a number of one element": """
byte, one = torch.tensor([200, 7], dtype=torch.uint8), torch.tensor(100)
short = byte.to(torch.int16)
found = byte + one, byte - 1, one * short, torch.maximum(short, one), short.sum(dtype=torch.int32), one + byte[0]
found += (short.cumsum(0, dtype=torch.int32),)
found = [y.numpy() for y in found], (byte.bool() + one).dtype is torch.int64""",
    "parts deleted": """
net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2), nn.Tanh())
start(net)
del net[-1], net[1]
parts, named = nn.ModuleList([nn.ReLU(), nn.Linear(1, 1), nn.Tanh()]), nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
del parts[1:], named["a"]
found = net(x), list(net.state_dict()), len(parts), list(named)""",
    "rates of an average beside another schedule": """
for options in ({}, {"anneal_epochs": 3, "anneal_strategy": "linear"}):
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    first = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    last = swa.SWALR(optimizer, swa_lr=0.05, **options)
    for epoch in range(12):
        optimizer.step()
        (first if epoch < 4 else last).step()
        seen.append(optimizer.param_groups[0]["lr"])
found = seen""",
}
# These read x and w, three numbers each
GRADIENTS = {
    "None for a Tensor that requires a gradient": """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask): return x * mask
    @staticmethod
    def backward(ctx, g):
        seen.append(ctx.needs_input_grad)
        return g * 3, None
F.apply(x * 2, w * 1).sum().backward()
F.apply(x * 2, w.detach()).sum().backward()
found = x.grad, w.grad, seen""",
    "a result that is marked": """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y, i = x.sort(0)
        z = x * 5
        ctx.mark_non_differentiable(i, z)
        return y * 2, i, z
    @staticmethod
    def backward(ctx, g, gi, gz):
        return g * 3 + gz
y, i, z = F.apply(x)
y.sum().backward()
found = x.grad, y.requires_grad, z.requires_grad, z.is_leaf, i""",
    "setup_context": """
class F(torch.autograd.Function):
    @staticmethod
    def forward(x, n): return x ** n
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)
        ctx.n = inputs[1]
    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * ctx.n * y / x, None
F.apply(x, 3).sum().backward()
found = x.grad""",
    "gradients of outputs that share an op": """
h = x.exp()
found = torch.autograd.grad([h.sum(), (h * h).sum(), w.sum()], [x, w]), x.grad, w.grad""",
    "backward of several": """
h = x.exp()
torch.autograd.backward([h.sum(), (h * w).sum(), w], [None, torch.tensor(2.0), x.detach()])
torch.autograd.backward((x * x).sum())
found = x.grad, w.grad""",
    "the graph is retained": """
y = (x * w).sum()
torch.autograd.backward(y, retain_graph=True)
torch.autograd.backward([y, y * 2])
found = x.grad, w.grad""",
}
# A metric and options of ReduceLROnPlateau: each is followed twice, the second time from saved states
PLATEAUS = [
    ([3, 2, 2, 2, 2], {"patience": 1}),
    ([1, 1, 1, 1, 1], {"cooldown": 1}),
    ([1, 2, 2, 3], {"mode": "max"}),
    ([10, 9.5, 9.1, 8], {"threshold": 0.1}),
    ([10, 9.5, 9.1, 8], {"threshold": 0.4, "threshold_mode": "abs"}),
    ([1, 1, 1], {"min_lr": 0.3}),
    ([1, 1], {"eps": 0.6}),
    ([1, float("nan"), float("nan")], {"patience": 1}),
]
PLATEAU = """
for resumed in (False, True):
    optimizer = torch.optim.SGD(m.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
    for metric in metrics:
        if resumed:
            state, schedule = schedule.state_dict(), torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
            schedule.load_state_dict(state)
        schedule.step(metric)
        seen.append(optimizer.param_groups[0]["lr"])
found = seen"""
CYCLES = [
    "s.OneCycleLR(o, 0.5, total_steps=20, three_phase=True)",
    "s.SequentialLR(o, [s.LinearLR(o, total_iters=5), s.OneCycleLR(o, 0.5, total_steps=15)], [5])",
    "s.SequentialLR(o, [s.OneCycleLR(o, 0.5, total_steps=10), s.LinearLR(o)], [9])",
]
CYCLE = """
s = torch.optim.lr_scheduler
for o in (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.8), torch.optim.Adam(m.parameters(), lr=0.1)):
    schedule = {}
    for _ in range(18):
        o.step()
        schedule.step()
        group = o.param_groups[0]
        seen.append([group["lr"], group["momentum"] if "momentum" in group else group["betas"][0]])
found = seen"""


def ended(module, program, **names):
    def begin(m):
        with module.no_grad():
            for i, p in enumerate(m.parameters()):
                p.copy_(module.cos(module.arange(p.numel()).float() + i).reshape(p.shape))
        return m

    names = {
        "torch": module, "nn": module.nn, "swa": module.optim.swa_utils, "copy": copy, "seen": [], "start": begin,
        "m": begin(module.nn.Linear(4, 2)), "dy": module.cos(module.arange(6).float()).reshape(3, 2),
        "x": module.cos(module.arange(12).float()).reshape(3, 4).requires_grad_(),
    } | names  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, about the order of steps and its own SequentialLR
        exec(program, names)
    return names["found"]


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_ends_as_in_pytorch(program):
    compare(ended(torch, program), ended(face, program))


@pytest.mark.parametrize("program", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_end_as_in_pytorch(program):
    given = [
        {name: module.tensor(x).requires_grad_() for name, x in (("x", [0.5, -1.0, 2.0]), ("w", [3.0, 4.0, -5.0]))}
        for module in (torch, face)
    ]
    compare(ended(torch, program, **given[0]), ended(face, program, **given[1]))


@pytest.mark.parametrize(("metrics", "options"), PLATEAUS)
def test_plateaus(metrics, options):
    names = {"metrics": metrics, "options": {"patience": 0, "factor": 0.5} | options}
    compare(ended(torch, PLATEAU, **names), ended(face, PLATEAU, **names))


@pytest.mark.parametrize("make", CYCLES)
def test_cycles_move_rates_and_momenta(make):
    compare(*(ended(module, CYCLE.replace("{}", make)) for module in (torch, face)))
