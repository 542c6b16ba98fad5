"""Forty small programs: thirty in which something by hand loses what an op keeps, and ten in which nothing does.

A program is lines of code on FP16 tensors: x, y (16, 32), labels t (0 or 1) and `at` (class numbers). "#" marks the
lines that have to be named.
"""

import numpy as np
import pytest

import tinymp as mp
from tinymp import nn, ops, optim
from tinymp.audit.patterns import RULES

pytestmark = pytest.mark.cpu

FAULTS = [  # the op to write instead, how large x and y are, the program
    ("softmax", 30, "ops.exp(x) / ops.exp(x).sum(1, keepdim=True)  #"),
    ("softmax", 30, "e = x.exp()  #\np = e / e.sum(-1, keepdim=True)  #"),
    ("softmax", 30, "e = torch.exp(x / 0.5)  #\nz = e.sum(1).unsqueeze(1)  #\np = e * (1 / z)  #"),
    ("logsumexp", 30, "torch.log(torch.exp(x).sum(dim=1))  #"),
    ("log_softmax", 30, "p = ops.softmax(x, 1)  #\nl = ops.log(p + 1e-8)  #"),
    ("log_softmax", 30, "x - ops.log(ops.exp(x).sum(1, keepdim=True))  #"),
    ("cross_entropy", 30, "p = torch.softmax(x, 1)  #\nloss = -torch.log(p[at, at]).mean()  #"),
    ("cross_entropy", 30, "l = ops.log(ops.softmax(x, 1))  #\n-(t * l).sum(1).mean()  #"),
    ("cross_entropy", 30, "l = ops.log(ops.softmax(x, 1))  #\nops.nll_loss(l, at)  #"),
    ("cross_entropy", 30, "-ops.log(ops.softmax(x, 1).gather(1, at.unsqueeze(1))).sum() / 16  #"),
    ("sigmoid", 30, "1 / (1 + (-x).exp())  #"),
    ("softplus", 30, "torch.log(1 + torch.exp(x))  #"),
    (
        "binary_cross_entropy_with_logits",
        30,
        "p = x.sigmoid()  #\n-(t * torch.log(p) + (1 - t) * torch.log(1 - p)).mean()  #",
    ),
    ("binary_cross_entropy_with_logits", 30, "ops.binary_cross_entropy(ops.sigmoid(x), t)  #"),
    (
        "binary_cross_entropy_with_logits",
        30,
        "p = 1 / (1 + torch.exp(-x))  #\nq = 1 - p  #\n(-t * p.log() - (1 - t) * q.log()).sum() / 512  #",
    ),
    ("mse_loss", 300, "((x - y) ** 2).mean()  #"),
    ("mse_loss", 300, "torch.pow(x - y, 2).sum(1).mean().float()  #"),
    ("mse_loss", 300, "d = x - y  #\nloss = (d * d).sum() / d.numel()  #"),
    ("mse_loss", 1e-4, "torch.mean((x - y).square())  #"),
    ("mse_loss", 300, "d = x - y  #\nloss = ops.einsum('bd,bd->', d, d) / 512  #"),
    ("norm", 300, "ops.sqrt(ops.pow(x, 2).sum(1))  #"),
    ("normalize", 300, "x / (x * x).sum(1, keepdim=True).sqrt()  #"),
    ("rms_norm", 300, "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)  #"),
    ("rms_norm", 1e-4, "m = (x * x).sum(-1, keepdim=True) / 32  #\nx / ops.sqrt(m)  #"),
    (
        "layer_norm",
        300,
        "m = x.mean(1, keepdim=True)  #\nv = ((x - m) ** 2).mean(1, keepdim=True)  #\n(x - m) / ops.sqrt(v + 1e-5)  #",
    ),
    (
        "batch_norm",
        300,
        "m = x.mean(0)  #\nv = (x - m).square().mean(0)  #\nz = (x - m) * (v + 1e-5).rsqrt()  #",
    ),
    ("var", 1, "x = x + 100\nm = x.mean(0)  #\nv = (x * x).mean(0) - m * m  #"),
    ("cosine_similarity", 300, "c = (x * y).sum(1) / (x.norm(dim=1) * y.norm(dim=1))  #"),
    (
        "cosine_similarity",
        300,
        "dot = ops.einsum('bd,bd->b', x, y)  #\nc = dot / ops.sqrt((x ** 2).sum(1) * (y ** 2).sum(1))  #",
    ),
    ("scaled_dot_product_attention", 100, "s = x @ y.transpose(0, 1) / 32**0.5  #\nz = ops.softmax(s, -1) @ y  #"),
]
SOUND = [
    (30, "ops.softmax(x, 1)"),
    (30, "e = torch.exp(x - x.amax(1, keepdim=True))\np = e / e.sum(1, keepdim=True)"),  # as the op does it
    (1, "e = x.exp()\np = e / e.sum(1, keepdim=True)"),  # small enough
    (30, "ops.cross_entropy(x, at)\nops.log_softmax(x, 1)"),
    (30, "e = x.float().exp()\np = e / e.sum(1, keepdim=True)"),  # widened before
    (300, "ops.mse_loss(x, y)\n((x.float() - y.float()) ** 2).mean()"),
    (1, "((x - y) ** 2).mean()\nops.dot(x[0], x[0]) / 32\nx / (x * x).sum(1, keepdim=True).sqrt()"),
    (300, "nn.RMSNorm(32)(x)\nops.layer_norm(x, (32,))\nops.rms_norm(x, (32,))\nops.normalize(x)"),
    (300, "ops.cosine_similarity(x, y)\nx.std(1)\nx.norm(dim=1)"),
    (1, "ops.softmax(x @ y.transpose(0, 1) / 32**0.5, -1) @ y\n1 / (1 + ops.exp(-x))\n(x + y) * (x - y)"),
]


def audited(size, code):
    rng = np.random.default_rng(1)

    def draw():
        x = mp.tensor((size * rng.standard_normal((16, 32))).astype("f2"))
        x.requires_grad = True
        return x

    names = {"ops": ops, "torch": pytest.importorskip("tinymp.torch"), "nn": nn, "x": draw(), "y": draw()}
    names |= {"t": mp.tensor((rng.random((16, 32)) > 0.5).astype("f2")), "at": mp.tensor(np.arange(16))}
    with mp.audit() as a:
        exec(compile(code, "program.py", "exec"), names)
    return a


@pytest.mark.parametrize(("op", "size", "code"), FAULTS)
def test_what_is_written_by_hand_is_named(op, size, code):
    a = audited(size, code)
    (one,) = [advice for advice in a.advise() if advice.rule == "written_by_hand"]
    lines = [i for i, line in enumerate(code.splitlines(), 1) if line.endswith("#")]
    where = f"program.py:{lines[0]}" + f" to {lines[-1]}" * (len(lines) > 1)
    assert (one.text.split()[1], one.where) == (f"ops.{op}", where)
    (found,) = a.patterns.as_dict()
    hand, with_op = found["by_hand"], found["with_op"]
    assert hand["infinite"] > with_op["infinite"] or hand["wrong"] > with_op["wrong"]
    assert with_op["infinite"] == with_op["wrong"] == 0
    assert one.why.startswith(f"{hand['wrong']:,} of {hand['results']:,} results (")
    assert f"On the way {hand['infinite']:,} of {hand['rounded']:,} numbers became infinite" in one.why
    assert one.why.endswith(".float() afterwards brings nothing back")
    assert a.advise()[0] == one and not [x for x in a.advise()[1:] if x.rule in ("overflows", "underflows")]


@pytest.mark.parametrize(("size", "code"), SOUND)
def test_nothing_is_said_of_what_is_sound(size, code):
    a = audited(size, code)
    assert a.patterns.as_dict() == [] and not [x for x in a.advise() if x.rule == "written_by_hand"]


def test_the_table_has_what_is_sound_as_well():
    text = str(audited(30, f"{SOUND[1][1]}\n{FAULTS[0][2]}").patterns).splitlines()
    assert len(text) == 4 and text[2].split()[:2] == ["softmax", "exp(x)"]
    assert str(audited(30, SOUND[0][1]).patterns) == f"none of {len(RULES)} patterns was found"


def test_an_fp16_loss_is_refused_with_what_to_do():
    with pytest.raises(TypeError, match=r"got float16; use ops.mse_loss, .* what FP16 has lost stays lost"):
        optim.StaticLossScaler(8.0).scale(mp.zeros(()).half())
