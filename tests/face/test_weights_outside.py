"""Programs use weights outside of forward and backward as PyTorch's do: in FP32, on the masters.

Each program is as public code writes it, shortened. It runs with PyTorch, whose weights are FP32, and through the face,
whose model is prepared; what it returns must agree far below FP16's half unit in the last place, 2^-11, and every
working copy must be its master's rounding.
"""

import copy
import math
import re
import textwrap

import numpy as np
import pytest

import tinymp as mp
import tinymp.torch as face
from oracle import host

torch = pytest.importorskip("torch")


def trained(torch, net, step=0.02):
    """The model after "an update", the same in both."""
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.add_(torch.sin(torch.arange(p.numel()).float() + i).reshape(p.shape) * step)
    return net


# Each program has a title, with the repositories that write it so. `found` holds the results, and `update()` is the
# model after an update
PROGRAMS = """
exponential average as a dict of clones (EMA of many repositories)
    shadow = {name: p.data.clone() for name, p in net.named_parameters()}
    for _ in range(50):
        for name, p in update().named_parameters():
            shadow[name] = (1.0 - 0.999) * p.data + 0.999 * shadow[name]
    found = shadow.values()
shadow.sub_((1 - d) * (shadow - p)) (Stable Diffusion's LitEma, torch_ema)
    found = [p.clone().detach() for p in net.parameters()]
    for _ in range(50):
        for s, p in zip(found, update().parameters()):
            with torch.no_grad(): s.sub_(0.0001 * (s - p))
the averaged model as a deep copy (timm's ModelEmaV2, MoCo's momentum encoder)
    for _ in range(50):
        for a, p in zip(average.parameters(), update().parameters()):
            a.data = a.data * 0.999 + p.data * (1.0 - 0.999)
    found = average.parameters()
the average over state dicts, in place (YOLO's ModelEMA)
    for _ in range(20):
        now = update().state_dict()
        for k, v in average.state_dict().items():
            with torch.no_grad():
                v *= 0.99
                v += (1 - 0.99) * now[k].detach()
    found = average.parameters()
lerp_ towards the weights (BYOL, StyleGAN's generator average)
    for _ in range(20):
        for a, p in zip(average.parameters(), update().parameters()):
            with torch.no_grad(): a.lerp_(p, 0.001)
    found = average.parameters()
p_ema.copy_(p.lerp(p_ema, beta)) (StyleGAN2)
    for _ in range(20):
        for a, p in zip(average.parameters(), update().parameters()):
            with torch.no_grad(): a.copy_(p.lerp(a, 0.999))
    found = average.parameters()
torch.optim.swa_utils
    average = torch.optim.swa_utils.AveragedModel(net)
    for _ in range(10): average.update_parameters(update())
    found = average.parameters()
Polyak updates of a target network (DDPG, SAC)
    for _ in range(20):
        for a, p in zip(average.parameters(), update().parameters()):
            a.data.copy_(a.data * (1.0 - 0.005) + p.data * 0.005)
    found = average.parameters()
Wasserstein GAN: weights are clamped
    for p in net.parameters(): p.data.clamp_(-0.0501, 0.0501)
    found = net.parameters()
penalties in the loss: their values, of each weight and of all as one vector
    flat = torch.cat([p.view(-1) for p in net.parameters()])
    norms = torch.stack([p.norm() for p in net.parameters()])
    found = sum((p**2).sum() for p in net.parameters()), flat.abs().sum(), norms
power iteration by hand (SNGAN)
    u = torch.ones(w.shape[0]) / math.sqrt(w.shape[0])
    with torch.no_grad():
        for _ in range(5):
            v = torch.mv(w.view(w.shape[0], -1).t(), u)
            v = v / v.norm()
            u = torch.mv(w.view(w.shape[0], -1), v)
            u = u / u.norm()
        sigma = torch.dot(u, torch.mv(w.view(w.shape[0], -1), v))
        w.div_(sigma)
    found = sigma, w
rows replaced, columns scaled, a view written into
    with torch.no_grad():
        w[0] = 0.1
        w[1:3].mul_(1.0003)
        w.view(-1)[-3:].add_(1e-9)
        w.t()[1].sub_(0.0001)
        w[:, 2:4] = w[:, 2:4] * 0.3
    found = w, w[2], w.t()[1]
the smallest weights set to zero by a mask (lottery tickets)
    for p in net.parameters(): p.data.mul_((p.abs() > p.abs().mean()).float())
    found = net.parameters()
constants, and numbers that FP16 does not have
    with torch.no_grad():
        net[0].bias.fill_(0.1)
        w.fill_(1e-9)
        net[2].bias.data = torch.full_like(net[2].bias, 0.3)
    found = net.parameters()
the best weights kept and given back
    best, first = {k: v.clone() for k, v in net.state_dict().items()}, copy.deepcopy(net.state_dict())
    kept = {k: v.detach().cpu() for k, v in update(0.02).state_dict().items()}
    assert any((kept[k] != best[k]).any() for k in best)
    net.load_state_dict(best)
    net.load_state_dict(first)
    found = net.parameters()
the line between two sets of weights (loss landscapes, model soups)
    a, b = average.state_dict(), update(0.02).state_dict()
    net.load_state_dict({k: 0.3 * a[k] + (1 - 0.3) * b[k] for k in a})
    found = net.parameters()
an optimizer of one's own on p.grad
    buffers = [torch.zeros_like(p) for p in net.parameters()]
    for _ in range(3):
        sum((p * p).sum() for p in net.parameters()).backward()
        for p, m in zip(net.parameters(), buffers):
            with torch.no_grad():
                m.mul_(0.9).add_(p.detach() * 2.0)  # the exact gradient
                p -= 1e-4 * m
                p.grad = None
    found = *net.parameters(), *buffers
statistics as they are logged
    v = average[0].weight
    update(1e-4)
    change = (v.data - w.data).norm() / w.data.norm()
    found = change, w.mean(), w.std(), w.min(), w.max(), (w - v).abs().max(), F.cosine_similarity(w, v)
weights saved by hand
    saved = [np.array(p.detach().cpu().numpy()) for p in net.parameters()]
    found = [torch.from_numpy(a) for a in saved] + [torch.tensor(p.tolist()) for p in net.parameters()]
rows and elements by lists, masks and sorting (pruning, codebooks)
    with torch.no_grad():
        found = [w[[3, 0, 5]], w[w > 0.05], w.sort(1)[0], w.topk(2)[0], w.index_select(1, torch.tensor([2, 1]))]
        found += [w.gather(1, w.argsort(1)), w.data[torch.tensor([1, 1])], w.flip(0), w[[1, 2], [3, 4]], w[None, [1]]]
        w[[0, 2]] *= 0.3
        w[3:].copy_(w[[5, 7, 6, 4, 3]])
        net[2].weight.data = net[2].weight.data[[2, 0, 1]]
    found += [w, net[2].weight.float()]
an average that a forward pass updates (MoCo's own momentum encoder)
    class MoCo(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k = net, average
        def forward(self, x):
            with torch.no_grad():
                for a, b in zip(self.q.parameters(), self.k.parameters()):
                    b.data = b.data * 0.999 + a.data * (1.0 - 0.999)
                a = self.k[0].weight
                a.copy_(a.detach().float().clamp(-0.29, 0.29))
                a.data[1].mul_(1.0003).sub_(self.q[0].weight.data[2] * 1e-4)
            return self.q(x) + self.k(x)
    for _ in range(50):
        update()
        MoCo()(torch.ones(1, 6))
    found = average.parameters()
all weights as one vector and back (MAML, natural gradients)
    flat = torch.nn.utils.parameters_to_vector(net.parameters())
    torch.nn.utils.vector_to_parameters(flat * 1.0003, net.parameters())
    found = flat, *net.parameters()
"""


def run(torch, program, prepare):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(torch.cos(torch.arange(p.numel()).float() * (i + 1)).reshape(p.shape) * 0.3)
    net = prepare(net)
    names = {"torch": torch, "F": torch.nn.functional, "copy": copy, "math": math, "np": np, "net": net}
    names |= {"w": net[0].weight, "average": copy.deepcopy(net), "update": lambda x=1e-3: trained(torch, net, x)}
    exec(textwrap.dedent(program), names)
    return net, list(names["found"])


@pytest.mark.parametrize(
    "program", re.split(r"^\S.*\n", PROGRAMS, flags=re.M)[1:], ids=re.findall(r"^\S.*", PROGRAMS, re.M)
)
def test_programs_do_to_masters_what_pytorchs_do_to_weights(program):
    net, got = run(face, program, face.amp.prepare)
    _, expected = run(torch, program, lambda net: net)
    for x, y in zip(got, expected, strict=True):
        np.testing.assert_allclose(x.detach().numpy(), y.detach().numpy(), rtol=2e-6, atol=1e-7)
    for p in net.parameters():
        assert p.dtype == "float16" and p.master.dtype == "float32"
        np.testing.assert_array_equal(host(p.array), host(p.master).astype("float16"))
        assert not p.array.flags.writeable


# ---- the contract, row by row ----


def weight():
    return mp.MIXED.cast(mp.nn.Parameter(np.array([[0.1, 1e-9], [3.0, -0.7]], "float32")))


class Reads(mp.nn.Module):
    """The dtype in which its forward reads a weight."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self):
        return (self.p * 2).dtype, self.p[0].dtype, (self.p[0] + 1).dtype


@pytest.mark.parametrize("recorded", [True, False])
def test_the_dtype_that_is_read(recorded):
    """The rows of the table in docs/policies.md."""
    p, half, single = weight(), mp.tensor(np.ones((2, 2), "float16")), mp.tensor(np.ones((2, 2), "float32"))
    with mp.enable_grad() if recorded else mp.no_grad():
        assert Reads(p)() == ("float16",) * 3
        assert (p * 2).dtype == (p.T @ p).dtype == p.sum().dtype == p.clone().dtype == p.float().dtype == "float32"
        assert (p * single).dtype == (single @ p.T).dtype == "float32"
        assert (p * half).dtype == (half @ p.T).dtype == p.half().dtype == "float16"
        assert (p[0] + 1).dtype == (p.reshape(4)[1:] * 1).dtype == (p.T * 1).dtype == "float32"
        assert mp.ops.zeros_like(p).dtype == mp.ops.randn_like(p).dtype == "float32"
        rows = mp.ops.embedding(mp.tensor([0, 1]), p)
        assert (rows * 1).dtype == "float16"  # a lookup begins a forward pass
    assert p.numpy().dtype == np.asarray(p).dtype == mp.tensor(p).dtype == "float32"
    assert p.tolist()[0][1] == np.float32(1e-9) and p[0, 1].item() == np.float32(1e-9)
    assert p.dtype == p.array.dtype == "float16" and p.master.dtype == "float32"
    for read_only in (p.numpy(), p.detach().numpy(), p[0].numpy(), np.asarray(p.T)):
        with pytest.raises(ValueError, match="read-only"):
            read_only.fill(3)
    bare = mp.NO_MASTER.cast(weight())
    assert (bare * 2).dtype == bare.numpy().dtype == "float16"


def test_gradients_of_what_is_read_as_the_master():
    """They reach the leaf, rounded once, and add up with those of the forward pass."""
    p = weight()
    (p**2).sum().backward()
    np.testing.assert_array_equal(p.grad.numpy(), (2 * p.master).astype("float16"))
    p.zero_grad()
    loss = mp.ops.linear(mp.tensor(np.ones((1, 2), "float16")), p).float().sum() + (p.T.reshape(4) * 0.5).sum()
    loss.backward()
    np.testing.assert_array_equal(p.grad.numpy(), np.full((2, 2), 1.5))
    y = (p * p).sum()
    with mp.no_grad():
        p.view(4)[0] = 2.0
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


def test_what_a_forward_pass_reads_of_data_alone_is_the_master():
    """A part that requires a gradient is read as the copy, like the weight, and its gradient arrives."""

    class Model(mp.nn.Module):
        def __init__(self):
            super().__init__()
            self.p = weight()
            self.row = self.p[1]

        def forward(self, x):
            d = self.p.data
            assert (d * 2).master.dtype == "float32" and (d * 2).dtype == "float16"  # weights again
            assert d.float().dtype == (d.float() * d.float()).dtype == mp.ops.mse_loss(d, d * 2).dtype == "float32"
            assert (x * d).dtype == (d + self.p).dtype == (d @ x).dtype == "float16" and (d > 0).dtype == "bool"
            assert d[0, 1].item() == np.float32(1e-9) and (d[[0]].T * 4).master[1, 0] == np.float32(4e-9)
            assert (self.row * 2).dtype == "float16"
            return (self.row * self.row).sum()

    model = Model()
    with mp.use(mp.MIXED):
        model(mp.tensor(np.ones((2, 2), "float16"))).backward()
    np.testing.assert_array_equal(model.p.grad.numpy(), np.float16([[0, 0], [6, -1.4]]))


def test_a_gradient_is_read_and_changed_in_fp32():
    p = weight()
    p.grad = mp.tensor(np.array([[2.0**-24, 1.0], [3.0, 65504.0]], "float16"))
    assert (p.grad * 1024).dtype == p.grad.norm().dtype == "float32"
    held = p.grad
    p.grad.div_(2.0**15)
    assert held is p.grad and p.grad.dtype == "float32"
    expected = [[2.0**-39, 2.0**-15], [3 * 2.0**-15, 65504 * 2.0**-15]]
    np.testing.assert_array_equal(p.grad.numpy(), np.array(expected, "f4"))
    p.grad = mp.tensor(np.ones((2, 2), "float16"))
    p.grad.zero_()
    assert p.grad.dtype == "float16" and not p.grad.any()  # zeros are exact
    p.grad.copy_(mp.tensor(np.ones((2, 2), "float16")))
    p.grad.data.mul_(1e-8)
    np.testing.assert_array_equal(p.grad.numpy(), np.full((2, 2), 1e-8, "f4"))


def first_to_1e_8(g):
    g[0, 0] = 1e-8


@pytest.mark.parametrize(
    "change",
    [
        first_to_1e_8,
        lambda g: first_to_1e_8(g.detach()),
        lambda g: first_to_1e_8(g.T),
        lambda g: g[0][:1].mul_(1e-8),
        lambda g: g.view(-1)[0].copy_(1e-8),
        lambda g: g.split(1)[0].unbind(1)[0].mul_(1e-8),
    ],
)
def test_a_part_of_a_gradient_is_read_and_changed_in_fp32(change):
    p = weight()
    p.grad = mp.tensor(np.ones((2, 2), "float16"))
    held = p.grad
    assert ((held[0] * 1e-8).tolist(), held[[1]].norm().dtype) == ([np.float32(1e-8)] * 2, "float32")
    assert held.dtype == "float16"  # who looks changes nothing
    change(held)
    assert held is p.grad and p.grad.dtype == "float32"
    np.testing.assert_array_equal(p.grad.numpy(), np.float32([[1e-8, 1], [1, 1]]))
    p.grad = mp.tensor(np.ones((2, 2), "float16"))
    held, p.grad = p.grad, None
    change(held)  # it is nobody's
    assert p.grad is None


def test_what_was_taken_before_a_cast_is_no_weight_of_the_model_any_more():
    """As after PyTorch's half(): a write into it would reach the master and not the copy."""
    layer = mp.nn.Linear(2, 2)
    data, array = layer.weight.data, layer.weight.numpy()
    mp.MIXED.cast(layer)
    data.zero_()
    array.fill(1)
    np.testing.assert_array_equal(layer.weight.array, layer.weight.master.astype("float16"))
    assert layer.weight.master.all() and not (layer.weight.master == 1).any()
