"""Losses: FP32 out of FP16 in, PyTorch's reductions, weights and edges."""

import numpy as np
import pytest

import tinymp as mp
from oracle import check, distinct, host, randn, rng
from tinymp import ops

REDUCTIONS = ["none", "mean", "sum"]
SHAPES = [(5,), (4, 3), (2, 3, 4), (2, 5, 2, 3)]
DTYPES = "float16", "float32", "float64"


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


def labels(shape, seed=3):
    axis = min(1, len(shape) - 1)
    return np.asarray(rng(seed).integers(0, shape[axis], shape[:axis] + shape[axis + 1 :]))


def loss_and_gradient(op, *arrays, dy=1.0, **options):
    """The loss of arrays and the gradient of the first; other floating arrays are constants."""
    x, *others = (mp.tensor(a) for a in arrays)
    y = op(x.requires_grad_(), *others, **options)
    y.backward(np.full(y.shape, dy, y.dtype))
    return y.numpy(), host(x.grad)


# ------------------------------------------------------------------------------------------------------ over classes


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


def check_rows(op, oracle, x, target, reduction, **options):
    """A row has a sum of C terms below 2 max |x| + ln C times a weight of at most 2; "sum" and "mean" add the rows."""
    rows, classes = x.size // x.shape[min(1, x.ndim - 1)], x.shape[min(1, x.ndim - 1)]
    check(
        op,
        oracle,
        x,
        target,
        length=classes + rows,
        magnitude=lambda x, t: (rows if reduction == "sum" else 1) * 2 * (2 * x.max() + np.log(classes)),
        grad_length=2 * classes + 2 * np.abs(x).max() + 8,  # the error of exp grows with its argument
        result="float32",
        **options,
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("soft", [False, True])
def test_cross_entropy(shape, weighted, smoothing, reduction, soft):
    w = factors(shape[min(1, len(shape) - 1)]) if weighted else None
    target = probabilities(*shape, seed=4) if soft else labels(shape)

    def op(x, t):
        return ops.cross_entropy(x, t, beside(x, w), reduction=reduction, label_smoothing=smoothing)

    def oracle(x, t):
        return over_classes(log_softmax(x), t, w, reduction, smoothing)

    check_rows(op, oracle, 2 * randn(*shape), target, reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("smoothing", "ignore_index"), [(0.0, -100), (0.0, 2), (0.5, -100), (0.5, 2)])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64"])
def test_cross_entropy_ignores(smoothing, ignore_index, reduction, dtype):
    target = np.array([[0, 2, 1, 2], [2, 0, 0, 1]])
    target[target == 2] = ignore_index if dtype != "uint8" else 2
    w = factors(3)
    options = {"reduction": reduction, "ignore_index": ignore_index}

    def op(x, t):
        return ops.cross_entropy(x, t, beside(x, w), label_smoothing=smoothing, **options)

    def oracle(x, t):
        return over_classes(log_softmax(x), t, w, smoothing=smoothing, **options)

    check_rows(op, oracle, randn(2, 3, 4), target.astype(dtype), reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ignore_index", [-100, 0])
def test_nll_loss(shape, weighted, reduction, ignore_index):
    w = factors(shape[min(1, len(shape) - 1)]) if weighted else None
    options = {"reduction": reduction, "ignore_index": ignore_index}
    if (labels(shape) == ignore_index).all():
        options["ignore_index"] = -100

    def op(x, t):
        return ops.nll_loss(x, t, beside(x, w), **options)

    check_rows(op, lambda x, t: over_classes(x, t, w, **options), randn(*shape), labels(shape), reduction)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("soft", [False, True])
def test_extreme_logits(dtype, soft):
    """Two equal logits of 65504 share the row to the last digit, and a class of -inf has no part in it."""
    x = np.array([[65504, 65504, -65504], [0, -np.inf, 0]], dtype)
    if soft:  # 0 * -inf is nan, as in PyTorch
        x[1, 1] = -65504
    target = np.eye(3, dtype=dtype)[[0, 2]] if soft else np.array([0, 2])
    loss, dx = loss_and_gradient(ops.cross_entropy, x, target, reduction="none")
    np.testing.assert_array_max_ulp(loss, np.full(2, np.log(2), loss.dtype), 1)
    np.testing.assert_array_equal(dx, np.array([[-0.5, 0.5, 0], [0.5, 0, -0.5]], dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_inf_and_nan_are_not_hidden(dtype):
    x = np.array([[-np.inf, 0, 0], [np.inf, 0, 0], [np.nan, 0, 0], [-np.inf] * 3], dtype)
    loss, dx = loss_and_gradient(ops.cross_entropy, x, np.zeros(4, int), reduction="none")
    np.testing.assert_array_equal(loss, [np.inf, np.nan, np.nan, np.nan])
    assert np.isnan(dx[1:]).any(1).all()


@pytest.mark.parametrize("op", [ops.cross_entropy, ops.nll_loss])
def test_ignored_rows_count_nothing_whatever_they_hold(op):
    x, target = np.array([[0, 1], [-np.inf, 0], [np.nan, np.inf]], "float16"), np.array([1, -100, -100])
    alone, dx = loss_and_gradient(op, x[:1], target[:1])
    for reduction, expected in (("none", [alone, 0, 0]), ("sum", alone), ("mean", alone)):
        loss, gradient = loss_and_gradient(op, x, target, reduction=reduction)
        np.testing.assert_array_equal(loss, expected)
        np.testing.assert_array_equal(gradient, [*dx, [0, 0], [0, 0]])


@pytest.mark.parametrize("op", [ops.cross_entropy, ops.nll_loss])
def test_all_ignored(op):
    """As in PyTorch: the mean of nothing is nan, but the gradient is 0."""
    x, target = np.ones((2, 3), "float16"), np.full(2, -100)
    for reduction, expected in (("mean", np.nan), ("sum", 0)):
        loss, dx = loss_and_gradient(op, x, target, reduction=reduction)
        np.testing.assert_array_equal(loss, np.float32(expected))
        np.testing.assert_array_equal(dx, np.zeros_like(x))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_saves_the_stored_logits_and_statistics_of_rows(smoothing):
    x = mp.tensor(np.ones((4, 50), "float16"), requires_grad=True)
    loss = ops.cross_entropy(x, mp.tensor([0, 1, 2, 3]), label_smoothing=smoothing)
    assert loss.grad_fn.saved[0] is x.array
    assert sum(a.nbytes for a in loss.grad_fn.saved[1:] if a is not None) <= 4 * (8 + 1)  # which label, if any
    *rows, divisor = loss.grad_fn.statistics
    assert all(a.shape == (4, 1) and a.dtype == "float32" for a in rows) and divisor.shape == ()


def arrays_of(op):
    """The arrays that an op holds, wherever it holds them."""
    values = [*vars(op).values(), *(op.saved or ()), *op.statistics]
    return [a for a in values if hasattr(a, "nbytes")]


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: ops.cross_entropy(x, mp.tensor([0, 1, 2, 3]), mp.ones(5)),
        lambda x: ops.nll_loss(x, mp.tensor([0, 1, 2, 3]), mp.ones(5)),
        lambda x: ops.cross_entropy(x, mp.ones(4, 5)),
        lambda x: ops.mse_loss(x, mp.ones(4, 5), weight=mp.ones(4, 5)),
        lambda x: ops.ctc_loss(x.unsqueeze(1), mp.tensor([[1, 2]]), [4], [2]),
    ],
)
def test_backward_frees_all_that_a_loss_kept(loss):
    y = loss(mp.ones(4, 5).requires_grad_())
    assert arrays_of(y.grad_fn)
    y.backward()
    assert not arrays_of(y.grad_fn)


@pytest.mark.parametrize("soft", [False, True])
def test_any_memory_order(soft):
    """Activations of convolutions lie as C, H, W, N in memory."""
    x = randn(2, 3, 4, 5).astype("float16")
    target = probabilities(2, 3, 4, 5).astype("float16") if soft else labels(x.shape)
    moved = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0)
    results = [loss_and_gradient(ops.cross_entropy, a, target) for a in (x, moved)]
    for a, b in zip(*results):
        np.testing.assert_allclose(a, b, rtol=2.0**-10)  # the same up to the order of the sums


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
def test_one_class_leaves_nothing_to_learn(dtype, smoothing):
    loss, dx = loss_and_gradient(
        ops.cross_entropy, randn(3, 1).astype(dtype), np.zeros(3, int), label_smoothing=smoothing
    )
    assert loss == 0
    np.testing.assert_allclose(dx, 0, atol=2.0**-23)


# ----------------------------------------------------------------------------------------------------- over elements

WIDTH = 25 / 32  # no difference of the `distinct` values below: they are multiples of 1/16
PAIRS = {  # op, its options, f(x - t), what its mean divides by when there are weights
    "mse": (ops.mse_loss, {}, np.square, "weights"),
    "l1": (ops.l1_loss, {}, abs, "weights"),
    "huber": (ops.huber_loss, {"delta": WIDTH}, lambda d: huber(d), "elements"),
    "smooth l1": (ops.smooth_l1_loss, {"beta": WIDTH}, lambda d: huber(d) / WIDTH, None),
    "smooth l1 of width 0": (ops.smooth_l1_loss, {"beta": 0}, abs, None),
}


def huber(d):
    return np.where(abs(d) <= WIDTH, d**2 / 2, WIDTH * (abs(d) - WIDTH / 2))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 4)])
@pytest.mark.parametrize("name", PAIRS)
def test_losses_of_a_difference(name, shape, weighted, reduction):
    op, options, f, divides = PAIRS[name]
    w = factors(*shape) if weighted and divides else None
    both = distinct(2, *shape)  # no difference is 0

    def loss(x, t):
        weight = {} if w is None else {"weight": beside(x, w)}  # smooth_l1_loss has none
        return op(x, t, reduction=reduction, **options, **weight)

    def oracle(x, t):
        y = f(x - t) if w is None else w * f(x - t)
        return reduced(y, reduction, np.sum(w) if w is not None and divides == "weights" else None)

    check(loss, oracle, both[0], both[1], length=24 + 6, result="float32")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weight", [None, (), (4,), (3, 1), (3, 4)])
@pytest.mark.parametrize("pos_weight", [None, (4,)])
def test_binary_cross_entropy_with_logits(weight, pos_weight, reduction):
    w = None if weight is None else factors(*weight)
    p = None if pos_weight is None else 2 * factors(*pos_weight)

    def op(x, t):
        return ops.binary_cross_entropy_with_logits(x, t, beside(x, w), reduction=reduction, pos_weight=beside(x, p))

    def oracle(x, t):
        y = (1 if p is None else p) * t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x)
        return reduced(y if w is None else w * y, reduction)

    check(op, oracle, 3 * randn(3, 4), probabilities(3, 4), length=12 + 8, result="float32")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weight", [None, (4,), (3, 4)])
def test_binary_cross_entropy(weight, reduction):
    w = None if weight is None else factors(*weight)

    def oracle(x, t):
        y = -t * np.log(x) - (1 - t) * np.log(1 - x)
        return reduced(y if w is None else w * y, reduction)

    def op(x, t):
        return ops.binary_cross_entropy(x, t, beside(x, w), reduction=reduction)

    check(op, oracle, probabilities(3, 4), probabilities(3, 4, seed=1), length=12 + 8, result="float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("op", "d", "loss", "slope"),
    [
        (ops.l1_loss, [0, -0.0, 65504], [0, 0, 65504], [0, 0, 1]),
        (ops.mse_loss, [0, 65504, -np.inf], [0, 65504.0**2, np.inf], [0, 131008, -np.inf]),
        (ops.smooth_l1_loss, [0, 1, -1, np.inf], [0, 0.5, 0.5, np.inf], [0, 1, -1, 1]),
        (ops.huber_loss, [0, 1, -1, np.inf], [0, 0.5, 0.5, np.inf], [0, 1, -1, 1]),
    ],
)
def test_edges_of_a_difference(op, d, loss, slope, dtype):
    """At a kink of f, and where FP16 would overflow."""
    d = np.array(d, dtype)
    y, dx = loss_and_gradient(op, d, np.zeros_like(d), reduction="none")
    np.testing.assert_array_equal(y, np.array(loss, y.dtype))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(dx, np.array(slope).astype(dtype))
    assert np.isnan(op(mp.tensor(np.array([np.nan], dtype)), mp.tensor(np.zeros(1, dtype))).array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_binary_cross_entropy_at_0_and_1(dtype):
    """The logarithm stops at -100; the slope at 1 / 1e-12, beyond FP16."""
    x, t = np.array([0, 0, 1, 1], dtype), np.array([0, 1, 1, 0], dtype)
    loss, dx = loss_and_gradient(ops.binary_cross_entropy, x, t, reduction="none")
    np.testing.assert_array_equal(loss, [0, 100, 0, 100])
    limit = np.inf if dtype == "float16" else 1e12
    np.testing.assert_allclose(dx, [0, -limit, 0, limit], rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_binary_cross_entropy_with_extreme_logits(dtype):
    x, t = np.array([65504, 65504, -65504, -65504, 0], dtype), np.array([1, 0, 1, 0, 1], dtype)
    loss, dx = loss_and_gradient(ops.binary_cross_entropy_with_logits, x, t, reduction="none")
    np.testing.assert_allclose(loss, [0, 65504, 65504, 0, np.log(2)], rtol=1e-6)
    np.testing.assert_array_equal(dx, np.array([0, 1, -1, 0, -0.5], dtype))


# ---------------------------------------------------------------------------------------------------------- precision


def test_a_loss_accumulates_in_fp32_under_every_policy():
    """10 000 terms of 0.1: an FP16 sum would stall at 256."""
    x, t = mp.tensor(np.full(10_000, 0.1, "float16")), mp.tensor(np.zeros(10_000, "float16"))
    logits, label = mp.tensor(np.zeros((4, 10_000), "float16")), mp.tensor(np.zeros(4, "int64"))
    for policy in mp.POLICIES.values():
        with mp.use(policy):
            assert ops.l1_loss(x, t, reduction="sum").item() == pytest.approx(10_000 * float(np.float16(0.1)), rel=1e-6)
            assert ops.cross_entropy(logits, label).item() == pytest.approx(np.log(10_000), rel=1e-6)


@pytest.mark.parametrize("scale", [2.0**-10, 2.0**20])
def test_the_loss_scale_is_multiplied_in_before_the_rounding(scale):
    """The scale itself may be beyond FP16; only what it makes of the gradient counts."""
    x, t = np.zeros((512, 2), "float16"), np.zeros(512, "int64")
    _, dx = loss_and_gradient(ops.cross_entropy, x, t, dy=scale)
    np.testing.assert_array_equal(dx[0], np.array([-scale / 1024, scale / 1024]).astype("float16"))


@pytest.mark.parametrize(
    ("op", "shape"),
    [(ops.mse_loss, (2, 3)), (ops.cross_entropy, (3,)), (ops.binary_cross_entropy_with_logits, (2, 3))],
)
def test_targets_and_weights_may_stay_fp32_beside_fp16(op, shape):
    """The same loss as on FP16 targets; each gradient has its own dtype."""
    x = randn(2, 3).astype("float16")
    results = []
    for dtype in ("float16", "float32"):
        leaves = [mp.tensor(x, requires_grad=True), mp.tensor(np.full((2, 3), 0.25, dtype), requires_grad=True)]
        loss = op(*leaves, weight=mp.tensor(np.full(shape, 0.5, dtype)))
        loss.backward()
        assert [a.grad.dtype for a in leaves] == ["float16", dtype]
        results.append((loss.numpy(), *(host(a.grad).astype("float16") for a in leaves)))
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_empty_batch(reduction):
    for op, target in ((ops.cross_entropy, np.zeros(0, int)), (ops.mse_loss, np.zeros((0, 3), "float16"))):
        loss, dx = loss_and_gradient(op, np.zeros((0, 3), "float16"), target, reduction=reduction)
        assert loss.sum() == 0
        assert dx.shape == (0, 3)


# ------------------------------------------------------------------------------------------------------------ refused

X = mp.tensor(np.full((2, 3), 0.5, "float16"))
WIDE = X.float()
LABELS = mp.tensor([0, 2])
PAIR = [
    ops.mse_loss,
    ops.l1_loss,
    ops.smooth_l1_loss,
    ops.huber_loss,
    ops.binary_cross_entropy,
    ops.binary_cross_entropy_with_logits,
]
NOTHING = 'at least one element for reduction="mean", got input of shape'


def half(*shape):
    return mp.tensor(np.ones(shape, "float16"))


def test_nll_loss_takes_no_probabilities():
    with pytest.raises(TypeError, match=r"nll_loss: expected `target` to hold class indices \(integers\), got float16"):
        ops.nll_loss(X, X)


@pytest.mark.parametrize("op", PAIR)
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f: f(X, half(2, 1)), ValueError, r"input \(losses do not broadcast.*got \(2, 1\)"),
        (lambda f: f(X, 0.5), TypeError, "expected a Tensor for `target`, got float"),
        (lambda f: f(X, LABELS), TypeError, "expected `target` to be floating, got int64"),
        (lambda f: f(WIDE, X), TypeError, "of one dtype, got `input` is float32, `target` is float16"),
        (lambda f: f(X.double(), WIDE), TypeError, "of one dtype, got `input` is float64, `target` is float32"),
        (lambda f: f(X, X, reduction=None), ValueError, "one of 'none', 'mean', 'sum', got None"),
        (lambda f: f(X[:0], X[:0]), ValueError, NOTHING),
    ],
)
def test_refused_over_elements(op, call, error, message):
    with pytest.raises(error, match=f"^{op.__name__}: .*{message}"):
        call(op)


@pytest.mark.parametrize("op", [op for op in PAIR if op is not ops.huber_loss])
@pytest.mark.parametrize("name", ["size_average", "reduce"])
def test_deprecated_arguments_are_refused(op, name):
    with pytest.raises(TypeError, match=f"^{op.__name__}.*argument .{name}."):
        op(X, X, **{name: False})


@pytest.mark.cpu  # a GPU finds values out of range later, and does not tell which: tests/core/backend/test_gpu.py
@pytest.mark.parametrize("value", [-0.5, 1.5, np.nan, np.inf])
@pytest.mark.parametrize("name", ["input", "target"])
def test_binary_cross_entropy_refuses_what_is_no_probability(name, value):
    bad = mp.tensor(np.array([[0.5, 0.5, 0.5], [0.5, value, 0.5]], "float16"))
    with pytest.raises(ValueError, match=rf"every value of `{name}` in \[0, 1\], got {value} at index \(1, 1\)"):
        ops.binary_cross_entropy(**{"input": X, "target": X, name: bad})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("p", "t"), [(p, t) for p in (0, 1, 0.5) for t in (0, 1, 0.5)])
def test_bce_of_certain_probabilities_has_the_gradient_that_pytorch_has_in_fp32(p, t, dtype):
    """1e12 at 0 and 1: FP16 holds it as an infinity, and is not given another number. (PyTorch's own FP16 has NaN where
    the gradient is 0.)
    """
    torch = pytest.importorskip("torch")
    x, e = mp.tensor(np.array([p], dtype), requires_grad=True), torch.tensor([float(p)], requires_grad=True)
    ops.binary_cross_entropy(x, mp.tensor(np.array([t], dtype))).backward()
    torch.nn.functional.binary_cross_entropy(e, torch.tensor([float(t)])).backward()
    with np.errstate(over="ignore"):
        assert x.grad.item() == e.grad.numpy().astype(dtype).item()
