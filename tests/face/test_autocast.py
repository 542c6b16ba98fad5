"""torch.autocast through the face: which dtype each op's result has, and what programs do in it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import tinymp as mp
import tinymp.torch as torch
from tinymp.torch import nn
from tinymp.torch.nn import functional

pytestmark = pytest.mark.cpu

MEASURED = json.loads((Path(__file__).parent / "autocast.json").read_text(encoding="utf-8"))
# How each operation is called, where it is not torch.NAME(x) or F.NAME(x); x, y: (3, 4), image: (2, 4, 6, 6)
CALLS = """
    prod: torch.prod(x, -1) | cumsum: torch.cumsum(x, -1) | cumprod: torch.cumprod(x, -1)
    logsumexp: torch.logsumexp(x, -1) | softmax: torch.softmax(x, -1) | log_softmax: torch.log_softmax(x, -1)
    max: torch.max(x, 1)[0] | min: torch.min(x, 1)[0] | amax: torch.amax(x, 1) | sort: torch.sort(x)[0]
    topk: torch.topk(x, 2)[0] | pow: x ** 2 | pow.scalar_base: 2.0 ** x | pow3: x.pow(3) | mul: x * y
    add 16+32: half + single | mul 16*32: half * single | div: x / y | cat 16,32: torch.cat([half, single])
    stack 16,32: torch.stack([half, single]) | where 16,32: torch.where(half > 0, half, single)
    addcmul: torch.addcmul(x, y, y) | cdist: torch.cdist(x, y) | matmul: x @ y.T
    einsum: torch.einsum('ij,kj->ik', x, y) | bmm: torch.bmm(x[None], y.T[None]) | F.linear: F.linear(x, y)
    F.conv2d: F.conv2d(image, image) | F.layer_norm: F.layer_norm(x, (4,)) | F.group_norm: F.group_norm(image, 2)
    F.batch_norm: F.batch_norm(x, None, None, training=True) | F.rms_norm: F.rms_norm(x, (4,))
    F.cross_entropy: F.cross_entropy(x, classes) | F.nll_loss: F.nll_loss(x, classes) | F.mse_loss: F.mse_loss(x, y)
    F.l1_loss: F.l1_loss(x, y) | F.smooth_l1_loss: F.smooth_l1_loss(x, y) | F.huber_loss: F.huber_loss(x, y)
    F.kl_div: F.kl_div(x, y) | F.bce: F.binary_cross_entropy(x, y)
    F.bce_with_logits: F.binary_cross_entropy_with_logits(x, y) | F.cosine_similarity: F.cosine_similarity(x, y)
    F.cosine_embedding_loss: F.cosine_embedding_loss(x, y, classes * 0 + 1)
    F.hinge: F.hinge_embedding_loss(x, (y > 0.5) * 2 - 1) | F.max_pool2d: F.max_pool2d(image, 2)
    F.avg_pool2d: F.avg_pool2d(image, 2) | F.interpolate bilinear: F.interpolate(image, scale_factor=2, mode='bilinear')
    F.embedding: F.embedding(classes, x)
    F.scaled_dot_product_attention: F.scaled_dot_product_attention(x[None], y[None], y[None])
    lstm_cell: cell(x, (x, x))[0] | lstm: lstm(x[None])[0] | masked_fill: x.masked_fill(x > 0.5, -1e9)
    clamp: x.clamp(0, 1) | lerp: torch.lerp(x, y, 0.5) | F.prelu: F.prelu(x, y[0, :1])
    F.ctc_loss: F.ctc_loss(torch.log_softmax(image[0], -1)[:, :2], classes[1:, None], (4, 4), (1, 1))
"""
CALLS = dict(row.strip().split(": ", 1) for row in re.split(r" \| |\n", CALLS.strip()))
ABSENT = ("dist", "F.softmin", "F.pdist", "renorm", "F.poisson_nll_loss", "rms by hand")  # of tinymp; the last: below


@pytest.fixture(scope="module")
def prepared():
    return torch.amp.prepare(nn.Linear(1, 1))


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("name", [name for name in MEASURED if name not in ABSENT])
def test_results_have_the_dtypes_that_pytorch_has(name, dtype, prepared):
    """autocast.json: results under torch.autocast("cuda", dtype=torch.half) in PyTorch 2.11 on an NVIDIA H200, for FP16
    and for FP32 arguments, measured on 27 November 2026.
    """
    expected = MEASURED[name][dtype]
    call = CALLS.get(name, f"{name}(x)" if name.startswith("F.") else f"torch.{name}(x)")
    torch.manual_seed(0)
    wanted = getattr(mp, {"fp16": "float16", "fp32": "float32"}[dtype])
    x, y, image = (torch.rand(*shape).to(wanted) for shape in ((3, 4), (3, 4), (4, 4, 6, 6)))
    given = globals() | {"F": functional, "half": x.half(), "single": y.float(), "classes": torch.tensor([0, 1, 2])}
    given |= {"x": x, "y": y, "image": image, "cell": nn.LSTMCell(4, 4), "lstm": nn.LSTM(4, 4)}
    if expected.startswith("RuntimeError"):
        with torch.autocast("cuda"), pytest.raises((RuntimeError, ValueError)):
            eval(call, given)
    else:
        with torch.autocast("cuda"):
            assert eval(call, given).dtype == expected


# What programs do within autocast -> the dtype that PyTorch's own promotion gives them
MEETINGS = """
    half - single | torch.maximum(half, single) | torch.atan2(half, single) | half * single[0, 0] | half[0, 0] * single
    half[0, 0] + single[0, 0] | torch.addcmul(half, single, single) | torch.where(half > 0, half, single[0, 0])
    half == single | torch.cat([half, single, half]) | torch.logical_and(half, single) | half.masked_fill(single > 0, 1)
"""


@pytest.mark.parametrize("call", [call.strip() for line in MEETINGS.strip().split("\n") for call in line.split("|")])
def test_where_dtypes_meet_the_result_is_that_of_pytorch(call, prepared):
    theirs = pytest.importorskip("torch")
    x = np.linspace(-1, 1, 6, dtype="float32").reshape(2, 3)
    expected = eval(call, {"torch": theirs, "half": theirs.tensor(x).half(), "single": theirs.tensor(x + 0.1)})
    with torch.autocast("cuda"):
        found = eval(call, {"torch": torch, "half": torch.tensor(x).half(), "single": torch.tensor(x + 0.1)})
    assert str(found.dtype) == str(expected.dtype).removeprefix("torch.")
    assert np.allclose(found.numpy(), expected.numpy(), rtol=1e-3)


PROGRAM = """
nn, F = torch.nn, torch.nn.functional

class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm, self.last = nn.Embedding(5, 8), Norm(), nn.LayerNorm(8)
        self.q, self.k, self.v, self.out = [nn.Linear(8, 8) for _ in range(4)]
        self.scale = nn.Parameter(torch.tensor(2.65))
        self.register_buffer("freq", 1.0 / 10000 ** (torch.arange(0, 8, 2).float() / 8), persistent=False)

    def rotated(self, x):
        angle = torch.outer(torch.arange(x.shape[1]).type_as(self.freq) * 1000, self.freq)
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.cat([even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos()], dim=-1)

    def forward(self, x):
        h = self.table(x) * 400
        n = self.norm(h)
        mask = torch.zeros(6, 6).masked_fill(torch.triu(torch.ones(6, 6), diagonal=1) == 1, float("-inf"))
        scores = self.rotated(self.q(n)) @ self.rotated(self.k(n)).transpose(-2, -1) + mask
        h = h + F.softmax(scores, dim=-1) @ self.v(n)
        with torch.autocast(device, enabled=False):
            h = self.out(self.last(h.float()))
        return F.normalize(h, dim=-1) * self.scale.exp() + torch.exp(0.1 * h)

torch.manual_seed(0)
net = Net()
for i, (name, p) in enumerate(net.named_parameters()):
    if p.ndim > 1:
        p.data = torch.tensor(draw(i, p.shape)) * 0.3
    elif "bias" in name:
        p.data = torch.zeros(8)
net = getattr(torch.amp, "prepare", lambda net: net)(net) if on else net
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
scaler, losses = torch.amp.GradScaler(device, init_scale=256.0, enabled=on), []
x = torch.tensor([[0, 1, 2, 3, 4, 0], [4, 4, 3, 2, 0, 1]])
for _ in range(10):
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.float16, enabled=on):
        y = net(x)
    loss = ((y - F.one_hot(x, 8).float()) ** 2).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
"""


def test_a_program_with_its_own_norm_buffers_masks_and_an_fp32_region_trains_as_in_pytorch():
    theirs = pytest.importorskip("torch")
    draw = lambda i, shape: np.random.default_rng(i).standard_normal(tuple(shape)).astype("float32")  # noqa: E731
    ran = []
    for module, device, on in ((torch, "cuda", True), (theirs, "cpu", False)):
        ran.append({"torch": module, "device": device, "on": on, "draw": draw})
        exec(PROGRAM, ran[-1])
    found, expected = (np.array(program["losses"]) for program in ran)
    assert expected[-1] < 0.6 * expected[0] and np.allclose(found, expected, rtol=2e-4)
    assert ran[0]["scaler"].get_scale() == 256 and ran[0]["net"].freq.dtype == mp.float32
    gradients = {p.grad.dtype for p in ran[0]["net"].parameters()}
    assert gradients == {mp.float16, mp.float32}  # FP32: of the layer norm


def test_rms_by_hand_is_what_pytorch_measures(prepared):
    dtype, values = MEASURED["rms by hand"]
    x = torch.full((1, 64), 800.0).half().requires_grad_()
    with torch.autocast("cuda"):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    assert f"torch.{y.dtype}" == dtype and np.allclose(y[0, :3].detach().numpy(), values, rtol=1e-6)
    y.sum().backward()
    assert x.grad.dtype == mp.float16 and np.isfinite(x.grad.numpy()).all()


def test_prepare_leaves_buffers_and_autocast_reads_the_masters_of_weights_outside_of_products():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.scale = nn.Linear(2, 2), nn.Linear(2, 2), nn.Parameter(torch.tensor([0.1]))
            self.register_buffer("huge", torch.tensor([1e9]))

    net = torch.amp.prepare(Net())
    assert net.huge.dtype == mp.float32 and net.huge.item() == 1e9
    x = torch.ones(1, 2)
    with torch.autocast("cuda"):
        assert net.scale.float().item() == np.float32(0.1) and (net.scale * x).dtype == mp.float32
        assert net.first(x).dtype == mp.float16 and net.first.weight.dtype == mp.float16
        with torch.autocast("cuda", enabled=False):
            y = net.second(net.first(x).float())
            with torch.autocast("cuda"):
                assert net.second(y).dtype == mp.float16
    expected = x.numpy()
    for layer in (net.first, net.second):
        expected = expected @ layer.weight.master.T + layer.bias.master
    assert y.dtype == mp.float32 and np.allclose(y.detach().numpy(), expected, rtol=1e-6)
    with torch.no_grad():
        net.second.weight.fill_(1.0)
    with pytest.raises(RuntimeError, match="changed in place"):
        y.sum().backward()


def test_outside_of_autocast_a_prepared_model_stores_fp16_as_its_policy_does_and_meets_fp32():
    net, x = torch.amp.prepare(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))), torch.ones(1, 4)
    seen = []
    net[0].register_forward_hook(lambda m, args, y: seen.append(y.dtype))
    net[1].register_forward_pre_hook(lambda m, args: args[0] + torch.arange(4).float() / 3)
    y = net(x)
    assert seen == [mp.float16] and y.dtype == mp.float32
    with torch.autocast("cuda"):
        assert np.allclose(net(x).detach().numpy(), y.detach().numpy(), rtol=2e-3, atol=1e-3)


def test_a_result_of_autocast_meets_fp32_behind_it_and_in_place_keeps_its_dtype(prepared):
    x = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cuda"):
        y = x @ x
        y.mul_(torch.full((2, 2), 3.0))
    assert y.dtype == mp.float16 and (y - torch.ones(2, 2)).dtype == mp.float32
    with pytest.raises(TypeError, match="expected tensors of one dtype"):
        y.detach() - torch.ones(2, 2)
