"""Losses: FP32 out of FP16 in, PyTorch's reductions and edges; with weights and smoothing, which are in ops/more."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, host, randn, rng
from tinymp import ops

REDUCTIONS = ["none", "mean", "sum"]
DTYPES = "float16", "float32", "float64"
CROSS, LOGITS, BCE = ops.cross_entropy, ops.binary_cross_entropy_with_logits, "binary_cross_entropy"


def reduced(loss, how, divisor=None):
    if how == "none":
        return loss
    return loss.sum() / (1 if how == "sum" else loss.size if divisor is None else divisor)


def beside(x, w):
    """w as a Tensor of x's dtype, or None. All weights below are exact in FP16."""
    return None if w is None else mp.tensor(np.asarray(w, x.dtype))


def factors(*shape):
    """Weights in [1/4, 2], exact in FP16."""
    return rng(7).integers(1, 9, shape) / 4


def probabilities(*shape, seed=0):
    return rng(seed).uniform(0.1, 0.9, shape)


def loss_and_gradient(op, *arrays, dy=1.0, **options):
    """The loss of arrays and the gradient of the first; other floating arrays are constants."""
    x, *others = (mp.tensor(a) for a in arrays)
    y = (getattr(ops, op) if isinstance(op, str) else op)(x.requires_grad_(), *others, **options)
    y.backward(np.full(y.shape, dy, y.dtype))
    return y.numpy(), host(x.grad)


def over_classes(y, target, weight, reduction, smoothing=0.0, ignore_index=-100):
    """-sum_c w_c ((1 - s) target_c + s/C) y_c per row, for labels or probabilities and log-probabilities y."""
    y = np.moveaxis(y, min(1, y.ndim - 1), -1)
    classes = y.shape[-1]
    w = np.ones(classes) if weight is None else weight
    if target.dtype == np.float64:
        q, kept, divisor = np.moveaxis(target, min(1, target.ndim - 1), -1), 1, y.size / classes
    else:
        kept = target != ignore_index
        t = np.where(kept, target, 0)
        q, divisor = np.eye(classes)[t], (kept * w[t]).sum()
    rows = kept * -(w * ((1 - smoothing) * q + smoothing / classes) * y).sum(-1)
    return reduced(rows, reduction, divisor)


def log_softmax(x):
    return x - np.log(np.exp(x).sum(min(1, x.ndim - 1), keepdims=True))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("weighted", "smoothing"), [(False, 0.0), (False, 0.25), (True, 0.0), (True, 1.0)])
@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 5, 2, 3)])
@pytest.mark.parametrize("kind", ["labels", "some ignored", "probabilities", "nll_loss"])
def test_over_classes(kind, shape, weighted, smoothing, reduction):
    """A row has a sum of C terms below 2 max |x| + ln C times a weight of at most 2; "sum" and "mean" add the rows."""
    axis = min(1, len(shape) - 1)
    classes, x = shape[axis], 2 * randn(*shape)
    rows, w = x.size // classes, factors(classes) if weighted else None
    target = np.asarray(rng(3).integers(0, classes, shape[:axis] + shape[axis + 1 :]))
    ignored = int(target.flat[-1]) if kind == "some ignored" and rows > 1 else -100
    options = {"reduction": reduction, "ignore_index": ignored}
    smooth = {"label_smoothing": smoothing} if kind != "nll_loss" else {}
    f = CROSS if smooth else ops.nll_loss

    def oracle(x, t):
        return over_classes(log_softmax(x) if smooth else x, t, w, smoothing=smoothing * bool(smooth), **options)

    check(
        lambda x, t: f(x, t, beside(x, w), **options, **smooth),
        oracle,
        x,
        probabilities(*shape, seed=4) if kind == "probabilities" else target,
        length=classes + rows,
        magnitude=lambda x, t: (rows if reduction == "sum" else 1) * 2 * (2 * x.max() + np.log(classes)),
        grad_length=2 * classes + 2 * np.abs(x).max() + 8,  # the error of exp grows with its argument
        result="float32",
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("soft", [False, True])
def test_extreme_logits(dtype, soft):
    """Two equal logits of 65504 share the row to the last digit, and a class of -inf has no part in it."""
    x = np.array([[65504, 65504, -65504], [0, -np.inf, 0]], dtype)
    if soft:  # 0 * -inf is nan, as in PyTorch
        x[1, 1] = -65504
    target = np.eye(3, dtype=dtype)[[0, 2]] if soft else np.array([0, 2])
    loss, dx = loss_and_gradient(CROSS, x, target, reduction="none")
    np.testing.assert_array_max_ulp(loss, np.full(2, np.log(2), loss.dtype), 1)
    np.testing.assert_array_equal(dx, np.array([[-0.5, 0.5, 0], [0.5, 0, -0.5]], dtype))


@pytest.mark.parametrize("op", [CROSS, "nll_loss"])
def test_ignored_rows_count_nothing_whatever_they_hold(op):
    """As in PyTorch: the mean of nothing is nan, but its gradient is 0."""
    x, target = np.array([[0, 1], [-np.inf, 0], [np.nan, np.inf]], "float16"), np.array([1, -100, -100])
    alone, dx = loss_and_gradient(op, x[:1], target[:1])
    for reduction, expected, nothing in (("none", [alone, 0, 0], [0, 0]), ("sum", alone, 0), ("mean", alone, np.nan)):
        loss, gradient = loss_and_gradient(op, x, target, reduction=reduction)
        np.testing.assert_array_equal(loss, expected)
        np.testing.assert_array_equal(gradient, [*dx, [0, 0], [0, 0]])
        loss, gradient = loss_and_gradient(op, x[1:], target[1:], reduction=reduction)
        np.testing.assert_array_equal(loss, nothing)
        assert not gradient.any()


WIDTH = 25 / 32  # no difference of the `distinct` values below: they are multiples of 1/16
PAIRS = {  # op, its options, f(x - t), what its mean divides by when there are weights
    "mse_loss": ({}, np.square, "weights"),
    "l1_loss": ({}, abs, "weights"),
    "huber_loss": ({"delta": WIDTH}, lambda d: huber(d), "elements"),
    "smooth_l1_loss": ({"beta": WIDTH}, lambda d: huber(d) / WIDTH, None),
}


def huber(d):
    return np.where(abs(d) <= WIDTH, d**2 / 2, WIDTH * (abs(d) - WIDTH / 2))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(), (2, 3, 4)])
@pytest.mark.parametrize("name", PAIRS)
def test_losses_of_a_difference(name, shape, weighted, reduction):
    options, f, divides = PAIRS[name]
    w = factors(*shape) if weighted and divides else None
    both = distinct(2, *shape)  # no difference is 0

    def loss(x, t):
        weight = {} if w is None else {"weight": beside(x, w)}  # smooth_l1_loss has none
        return getattr(ops, name)(x, t, reduction=reduction, **options, **weight)

    def oracle(x, t):
        y = f(x - t) if w is None else w * f(x - t)
        return reduced(y, reduction, np.sum(w) if w is not None and divides == "weights" else None)

    check(loss, oracle, both[0], both[1], length=24 + 6, result="float32")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("weight", "pos_weight"), [(None, None), ((4,), None), ((3, 1), (4,)), (None, (4,))])
def test_binary_cross_entropy(weight, pos_weight, reduction):
    w = None if weight is None else factors(*weight)
    p = None if pos_weight is None else 2 * factors(*pos_weight)

    def weighed(y):
        return reduced(y if w is None else w * y, reduction)

    def of_logits(x, t):
        return weighed((1 if p is None else p) * t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x))

    def op(x, t):
        return LOGITS(x, t, beside(x, w), reduction=reduction, pos_weight=beside(x, p))

    check(op, of_logits, 3 * randn(3, 4), probabilities(3, 4), length=12 + 8, result="float32")
    if p is None:
        check(
            lambda x, t: ops.binary_cross_entropy(x, t, beside(x, w), reduction=reduction),
            lambda x, t: weighed(-t * np.log(x) - (1 - t) * np.log(1 - x)),
            probabilities(3, 4),
            probabilities(3, 4, seed=1),
            length=12 + 8,
            result="float32",
        )


BIG = 65504
EDGES = [  # at a kink of f, and where FP16 would overflow; the logarithm of a probability stops at -100
    (ops.mse_loss, [0, BIG, -np.inf], [0] * 3, [0, BIG**2, np.inf], [0, 2 * BIG, -np.inf]),
    ("l1_loss", [0, -0.0, BIG], [0] * 3, [0, 0, BIG], [0, 0, 1]),
    ("smooth_l1_loss", [0, 1, -1, np.inf], [0] * 4, [0, 0.5, 0.5, np.inf], [0, 1, -1, 1]),
    ("huber_loss", [0, 1, -1, np.inf], [0] * 4, [0, 0.5, 0.5, np.inf], [0, 1, -1, 1]),
    (BCE, [0, 0, 1, 1], [0, 1, 1, 0], [0, 100, 0, 100], [0, -1e12, 0, 1e12]),
    (LOGITS, [BIG, BIG, -BIG, -BIG, 0], [1, 0, 1, 0, 1], [0, BIG, BIG, 0, np.log(2)], [0, 1, -1, 0, -0.5]),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "x", "t", "loss", "slope"), EDGES)
def test_edges(op, x, t, loss, slope, dtype):
    y, dx = loss_and_gradient(op, np.array(x, dtype), np.array(t, dtype), reduction="none")
    np.testing.assert_allclose(y, np.array(loss, y.dtype), rtol=1e-6)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(dx, np.array(slope).astype(dtype), rtol=1e-6)
    if op != BCE:
        y, _ = loss_and_gradient(op, np.array([np.nan], dtype), np.zeros(1, dtype))
        assert np.isnan(y)


def test_a_loss_accumulates_in_fp32_under_every_policy():
    """10 000 terms of 0.1: an FP16 sum would stall at 256."""
    x, t = mp.tensor(np.full(10_000, 0.5, "float16")), mp.tensor(np.zeros(10_000, "float16"))
    logits, label = mp.tensor(np.zeros((4, 10_000), "float16")), mp.tensor(np.zeros(4, "int64"))
    for policy in mp.POLICIES.values():
        with mp.use(policy):
            assert ops.mse_loss(x, t, reduction="sum").item() == pytest.approx(2500, rel=1e-6)
            assert ops.cross_entropy(logits, label).item() == pytest.approx(np.log(10_000), rel=1e-6)


@pytest.mark.parametrize("scale", [2.0**-10, 2.0**20])
def test_the_loss_scale_is_multiplied_in_before_the_rounding(scale):
    """The scale itself may be beyond FP16; only what it makes of the gradient counts."""
    x, t = np.zeros((512, 2), "float16"), np.zeros(512, "int64")
    _, dx = loss_and_gradient(CROSS, x, t, dy=scale)
    np.testing.assert_array_equal(dx[0], np.array([-scale / 1024, scale / 1024]).astype("float16"))
