"""arithmetic and margin: values, gradients, one rounding; against float64 and PyTorch."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, host, randn
from tinymp import ops

torch = pytest.importorskip("torch")
A, B = distinct(4, 6, step=0.3), distinct(4, 6, seed=1, step=0.3)
POSITIVE = 0.5 + np.abs(B)

CASES = {
    "remainder": (ops.remainder, np.remainder, A, POSITIVE),
    "fmod": (ops.fmod, np.fmod, A, POSITIVE),
    "floor_divide": (ops.floor_divide, np.floor_divide, A, POSITIVE),
    "atan2": (ops.atan2, np.arctan2, A, B),
    "lerp": (ops.lerp, lambda a, b, w: a + w * (b - a), A, B, POSITIVE),
    "lerp by a number": (lambda a, b: ops.lerp(a, b, 0.3), lambda a, b: a + 0.3 * (b - a), A, B),
    "addcmul": (lambda *x: ops.addcmul(*x, value=0.5), lambda x, a, b: x + 0.5 * a * b, A, B, POSITIVE),
    "addcdiv": (lambda *x: ops.addcdiv(*x, value=0.5), lambda x, a, b: x + 0.5 * a / b, A, B, POSITIVE),
    "dot": (ops.dot, np.dot, A[0], B[0]),
    "mv": (ops.mv, np.dot, A, B[0]),
    "outer": (ops.outer, np.outer, A[0], B[1]),
    "addmm": (lambda *x: ops.addmm(*x, beta=0.5, alpha=2), lambda x, a, b: 0.5 * x + 2 * a @ b, A[0, :4], A, B.T),
    "diff": (ops.diff, np.diff, A),
    "diff not at all": (lambda x, y: ops.diff(x, 0, 0, y), lambda x, y: np.diff(x, 0, 0) + 0 * y.sum(), A, B[:1]),
    "diff along the first axis, with neighbours": (
        lambda x, before: ops.diff(x, 1, 0, before, before[:1]),
        lambda x, before: np.diff(x, 1, 0, before, before[:1]),
        *(A, B),
    ),
    "pairwise_distance": (ops.pairwise_distance, lambda a, b: np.sqrt(((a - b + 1e-6) ** 2).sum(-1)), A, B),
    "cdist": (ops.cdist, lambda a, b: np.sqrt(((a[:, None] - b) ** 2).sum(-1)), A, B),
    "cosine_similarity": (
        ops.cosine_similarity,
        lambda a, b: (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1)),
        *(A, B),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_in_every_dtype(name):
    op, oracle, *inputs = CASES[name]
    size = max(np.abs(x).max() for x in inputs)
    # sums of 6 products, or of 4 along a broadcast axis; the terms of a sum may cancel
    check(op, oracle, *inputs, length=24, grad_length=96, magnitude=8 * size**2)


def test_integers():
    a, b = np.array([7, -7, 7, -7]), np.array([3, 3, -3, -3])
    for name in ("remainder", "fmod", "floor_divide"):
        y, expected = (
            getattr(ops, name)(mp.tensor(a), mp.tensor(b)),
            getattr(torch, name)(torch.tensor(a), torch.tensor(b)),
        )
        assert y.tolist() == expected.tolist() and y.dtype == "int64"
    assert ops.remainder(mp.tensor([5.5, -5.5]), 2).tolist() == [1.5, 0.5]
    # where x / y has more digits than FP32: by x - floor(x / y) y, as CuPy has it, the first would be 0
    assert ops.remainder(mp.tensor([1e10, -1e10, 3.0, -0.0]), mp.tensor([3.0, 3, float("inf"), 2])).tolist() == [
        1,
        2,
        3,
        0,
    ]
    assert ops.atan2(mp.tensor([1]), mp.tensor([0])).dtype == "float32"


def test_atan2_at_0():
    x, y = (mp.zeros(1, requires_grad=True) for _ in range(2))
    ops.atan2(y, x).sum().backward()
    assert x.grad.tolist() == y.grad.tolist() == [0]


def test_addmm_does_not_read_what_counts_nothing():
    """With beta = 0, as for torch.addmm, also where input is nan."""
    x, a = mp.tensor(np.array([np.nan])), mp.tensor(A)
    assert ops.addmm(x, a, mp.tensor(B.T), beta=0).tolist() == (A @ B.T).tolist()


LOSSES = {
    "margin_ranking_loss": lambda o, x, t: o.margin_ranking_loss(x[0], x[1], t, 0.3),
    "hinge_embedding_loss": lambda o, x, t: o.hinge_embedding_loss(x[0], t, 0.8, reduction="sum"),
    "soft_margin_loss": lambda o, x, t: o.soft_margin_loss(x[0], t),
    "cosine_embedding_loss": lambda o, x, t: o.cosine_embedding_loss(x[0], x[1], t[:, 0], 0.1),
    "triplet_margin_loss": lambda o, x, t: o.triplet_margin_loss(*x, swap=True, reduction="none"),
    "gaussian_nll_loss": lambda o, x, t: o.gaussian_nll_loss(x[0], x[1], x[2], True),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_losses_as_in_pytorch(name, dtype):
    values = [randn(5, 4, seed=i).astype(dtype) for i in range(3)]
    values[2] = (np.abs(values[2]) + 0.5).astype(dtype)  # a variance
    signs = np.where(randn(5, 4, seed=9) > 0, 1, -1)
    xs = [mp.tensor(v, requires_grad=True) for v in values]
    ts = [torch.tensor(v.astype("float64"), requires_grad=True) for v in values]
    y = LOSSES[name](ops, xs, mp.tensor(signs))
    expected = LOSSES[name](torch.nn.functional, ts, torch.tensor(signs))
    wide = "float64" if dtype == "float64" else "float32"
    assert y.dtype == wide
    unit = np.finfo(wide).eps
    np.testing.assert_allclose(
        host(y), expected.detach().numpy(), rtol=64 * unit, atol=64 * unit + 1e-12
    )  # PyTorch adds 1e-12 to a cosine's squares
    y.sum().backward()
    expected.sum().backward()
    for x, t in zip(xs, ts):
        if t.grad is not None:  # a gradient in FP16 is rounded where branches meet, too
            stored = 2 * np.finfo(dtype).eps
            size = np.abs(t.grad.numpy()).max()
            np.testing.assert_allclose(
                host(x.grad), t.grad.numpy(), rtol=stored, atol=(64 * unit + stored / 8) * size + 1e-12
            )
