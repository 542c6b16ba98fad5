"""torch.autocast through the face: which dtype each op's result has, and what programs do in it."""

import json
from pathlib import Path

import pytest

import tinymp as mp
import tinymp.torch as torch
from tinymp.torch import nn
from tinymp.torch.nn import functional

pytestmark = pytest.mark.cpu

MEASURED = json.loads((Path(__file__).parent / "autocast.json").read_text(encoding="utf-8"))
# How each operation is called, where it is not torch.NAME(x) or F.NAME(x); x, y: (3, 4), image: (2, 4, 6, 6)
CALLS = {
    **{name: f"torch.{name}(x, -1)" for name in ("prod", "cumsum", "cumprod", "logsumexp", "softmax", "log_softmax")},
    "max": "torch.max(x, 1)[0]",
    "min": "torch.min(x, 1)[0]",
    "amax": "torch.amax(x, 1)",
    "sort": "torch.sort(x)[0]",
    "topk": "torch.topk(x, 2)[0]",
    "pow": "x ** 2",
    "pow.scalar_base": "2.0 ** x",
    "pow3": "x.pow(3)",
    "mul": "x * y",
    "add 16+32": "half + single",
    "mul 16*32": "half * single",
    "div": "x / y",
    "cat 16,32": "torch.cat([half, single])",
    "stack 16,32": "torch.stack([half, single])",
    "where 16,32": "torch.where(half > 0, half, single)",
    "addcmul": "torch.addcmul(x, y, y)",
    "cdist": "torch.cdist(x, y)",
    "matmul": "x @ y.T",
    "einsum": "torch.einsum('ij,kj->ik', x, y)",
    "bmm": "torch.bmm(x[None], y.T[None])",
    "F.linear": "F.linear(x, y)",
    "F.conv2d": "F.conv2d(image, image)",
    "F.layer_norm": "F.layer_norm(x, (4,))",
    "F.group_norm": "F.group_norm(image, 2)",
    "F.batch_norm": "F.batch_norm(x, None, None, training=True)",
    "F.rms_norm": "F.rms_norm(x, (4,))",
    "F.cross_entropy": "F.cross_entropy(x, classes)",
    "F.nll_loss": "F.nll_loss(x, classes)",
    **{f"F.{name}": f"F.{name}(x, y)" for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div")},
    "F.bce": "F.binary_cross_entropy(x, y)",
    "F.bce_with_logits": "F.binary_cross_entropy_with_logits(x, y)",
    "F.cosine_similarity": "F.cosine_similarity(x, y)",
    "F.cosine_embedding_loss": "F.cosine_embedding_loss(x, y, classes * 0 + 1)",
    "F.hinge": "F.hinge_embedding_loss(x, (y > 0.5) * 2 - 1)",
    "F.max_pool2d": "F.max_pool2d(image, 2)",
    "F.avg_pool2d": "F.avg_pool2d(image, 2)",
    "F.interpolate bilinear": "F.interpolate(image, scale_factor=2, mode='bilinear')",
    "F.embedding": "F.embedding(classes, x)",
    "F.scaled_dot_product_attention": "F.scaled_dot_product_attention(x[None], y[None], y[None])",
    "lstm_cell": "cell(x, (x, x))[0]",
    "lstm": "lstm(x[None])[0]",
    "masked_fill": "x.masked_fill(x > 0.5, -1e9)",
    "clamp": "x.clamp(0, 1)",
    "lerp": "torch.lerp(x, y, 0.5)",
    "F.prelu": "F.prelu(x, y[0, :1])",
    "F.ctc_loss": "F.ctc_loss(torch.log_softmax(image[0], -1)[:, :2], classes[1:, None], (4, 4), (1, 1))",
    "rms by hand": None,  # below
}
# Not in tinymp
ABSENT = ("erfinv", "dist", "F.softmin", "F.pdist", "renorm", "F.poisson_nll_loss")


@pytest.fixture(scope="module")
def prepared():
    return torch.amp.prepare(nn.Linear(1, 1))


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("name", [name for name in MEASURED if CALLS.get(name, name)])
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
    if name in ABSENT:
        with torch.autocast("cuda"), pytest.raises(AttributeError):
            eval(call, given)
    elif expected.startswith("RuntimeError"):
        with torch.autocast("cuda"), pytest.raises((RuntimeError, ValueError)):
            eval(call, given)
    else:
        with torch.autocast("cuda"):
            assert eval(call, given).dtype == expected
