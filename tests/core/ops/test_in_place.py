"""What backward reads may not change behind its back: an argument or a result of an op that is changed in place after
forward makes backward raise, or does not matter to it. Held for every op that has a backward, and every tensor of it.
"""

import importlib
import pkgutil
from functools import partial

import numpy as np
import pytest

import tinymp as mp
from oracle import host, randn, rng
from tinymp import nn, ops, optim
from tinymp.autograd import Op
from tinymp.ops.loss import Elementwise, Labelled, Loss
from tinymp.ops.more.convert import Move
from tinymp.ops.more.loss import Weighing, Weighted
from tinymp.ops.recurrent import Recurrent
from tinymp.ops.unary import OPS, Unary
from tinymp.tensor import Tensor

ABSTRACT = {Op, Loss, Labelled, Elementwise, Unary, Recurrent, Weighing, Weighted}


def integers(*shape, below=3, seed=7):
    return rng(seed).integers(0, below, shape)


def masks(*shape):
    return rng(8).integers(0, 2, shape).astype(bool)


X = randn(3, 4)
POSITIVE = np.abs(X) + 0.5
PROBABILITY = 1 / (1 + np.exp(-X))
IMAGE = randn(2, 2, 4, 4)
REGIONS = np.array([[0, 0, 0, 2, 2]], "float32")
SMALL = randn(2, 2, 3, 3, seed=3)
SEQUENCE, STATE = randn(3, 2, 4), randn(2, 3, seed=1)  # T, B, D and B, H


def _dropped(x, dropout=ops.dropout):
    mp.manual_seed(0)
    return dropout(x, 0.5)


HOOKED = nn.Tanh()
HOOKED.register_full_backward_hook(lambda module, grad_input, grad_output: None)


# name: (a function of tensors, their values); floating ones require a gradient, except those after `CONSTANT`
CONSTANT = object()
CASES = {
    **{name: (getattr(ops, name), X) for name in (
        "abs", "exp", "square", "neg", "relu", "leaky_relu", "sigmoid", "tanh", "hardtanh", "elu", "gelu", "silu",
        "softplus", "logsigmoid", "hardswish", "mish", "sin", "cos", "sign", "sum", "mean", "var", "amin", "norm",
    )},
    **{name: (getattr(ops, name), POSITIVE) for name in ("log", "sqrt", "rsqrt", "reciprocal")},
    **{name: (getattr(ops, name), POSITIVE) for name in ("log1p", "log2", "log10")},
    **{name: (getattr(ops, name), X / 8) for name in (
        "acos", "asin", "atan", "ceil", "celu", "cosh", "erf", "erfinv", "expm1", "floor", "hardsigmoid", "round",
        "selu", "sinh", "softsign", "tan", "trunc",
    )},
    **{name: (getattr(ops, name), X, POSITIVE) for name in ("add", "sub", "mul", "div", "maximum", "minimum")},
    **{name: (partial(getattr(ops, name), dim=1), X)
       for name in ("softmax", "log_softmax", "logsumexp", "cumsum", "max", "min", "amax", "std")},
    "pow": (ops.pow, POSITIVE, X),
    "div, rounded": (lambda a, b: ops.div(a, b, rounding_mode="floor"), X, POSITIVE),
    **{f"norm, p = {p}": (partial(ops.norm, p=p, dim=1), X) for p in (0, 1, 3, float("inf"))},
    "tanh gelu": (lambda x: ops.gelu(x, "tanh"), X),
    "mul by a constant": (ops.mul, X, CONSTANT, POSITIVE),
    "clamp": (ops.clamp, X, np.array(-0.5), POSITIVE),
    "where": (ops.where, masks(3, 4), X, X + 1),
    "masked_fill": (lambda x, m: ops.masked_fill(x, m, 2.0), X, masks(3, 4)),
    "reshape": (lambda x: ops.reshape(x, 2, 6), X),
    "permute": (lambda x: ops.permute(x, 1, 0), X),
    "expand": (lambda x: ops.expand(x, 2, 3, 4), X),
    "cat": (lambda a, b: ops.cat([a, b]), X, X + 1),
    "stack": (lambda a, b: ops.stack([a, b]), X, X + 1),
    "split": (lambda x: ops.split(x, 2, 1), X),
    "diagonal": (lambda x: ops.diagonal(x, 1), X),
    "threshold": (lambda x: ops.threshold(x, 0.1, 2.0), X),
    "flip": (lambda x: ops.flip(x, 0), X),
    "pad": (lambda x: ops.pad(x, (1, 2)), X),
    "pad by reflection": (lambda x: ops.pad(x, (1, 2), mode="reflect"), X),
    "a slice": (lambda x: x[1:, ::2], X),
    "an array of indices": (lambda x, i: x[i], X, integers(5)),
    "a mask": (lambda x, m: x[m], X, masks(3, 4)),
    "gather": (lambda x, i: ops.gather(x, 1, i), X, integers(3, 4)),
    "gather, small integers": (lambda x, i: ops.gather(x, 1, i), X, integers(3, 4).astype(np.int8)),
    "scatter": (lambda x, i, src: ops.scatter(x, 1, i, src), X, np.array([[0, 2], [1, 3], [3, 0]]), X[:, :2] + 1),
    "index_add": (lambda x, i, src: ops.index_add(x, 0, i, src), X, integers(5), randn(5, 4, seed=2)),
    "index_put": (lambda x, v: ops.index_put(x, (slice(None), [3, 0]), v), X, X[:, :2] + 1),
    "index_put, a mask": (lambda x, m, v: ops.index_put(x, m, v), X, masks(3, 4), X[0, :1]),
    "index_select": (lambda x, i: ops.index_select(x, 0, i), X, integers(5)),
    "embedding": (ops.embedding, integers(2, 5), X),
    "matmul": (ops.matmul, X, X.T + 1),
    "linear": (ops.linear, X, randn(5, 4, seed=2), randn(5, seed=3)),
    "conv2d": (ops.conv2d, IMAGE, SMALL, randn(2)),
    "conv_transpose2d": (ops.conv_transpose2d, IMAGE, SMALL, randn(2)),
    "unfold": (lambda x: ops.unfold(x, 2), IMAGE),
    "unfold, then square": (lambda x: ops.square(ops.unfold(x, 1)), IMAGE),
    "reshape, then square": (lambda x: ops.square(x.reshape(-1).reshape(2, 6)[1:]), X),
    "max_pool2d": (lambda x: ops.max_pool2d(x, 2), IMAGE),
    "max_pool2d, overlapping": (lambda x: ops.max_pool2d(x, 3, 1), IMAGE),
    "avg_pool2d": (lambda x: ops.avg_pool2d(x, 2), IMAGE),
    "adaptive_avg_pool2d": (lambda x: ops.adaptive_avg_pool2d(x, 3), IMAGE),
    "nearest": (lambda x: ops.interpolate(x, scale_factor=2), IMAGE),
    "bilinear": (lambda x: ops.interpolate(x, scale_factor=2, mode="bilinear"), IMAGE),
    "batch_norm": (lambda x, w, b: ops.batch_norm(x, None, None, w, b, training=True), IMAGE, randn(2), randn(2)),
    "batch_norm with statistics": (
        lambda x, w, b, mean, var: ops.batch_norm(x, mean, var, w, b), IMAGE, randn(2), randn(2), CONSTANT, randn(2),
        np.abs(randn(2))),
    "layer_norm": (lambda x, w, b: ops.layer_norm(x, 4, w, b), X, randn(4), randn(4)),
    "group_norm": (lambda x, w, b: ops.group_norm(x, 2, w, b), IMAGE, randn(2), randn(2)),
    "rms_norm": (lambda x, w: ops.rms_norm(x, 4, w), X, randn(4)),
    "local_response_norm": (lambda x: ops.local_response_norm(x, 2), IMAGE),
    "normalize": (ops.normalize, X),
    "dropout": (_dropped, X),
    **{name: (getattr(ops, name), X, POSITIVE) for name in ("remainder", "floor_divide", "fmod", "atan2")},
    "cross_entropy": (ops.cross_entropy, X, integers(3), CONSTANT, np.abs(randn(4))),
    "cross_entropy, small labels": (ops.cross_entropy, X, integers(3).astype(np.int8)),
    "cross_entropy, smooth": (lambda x, t: ops.cross_entropy(x, t, label_smoothing=0.1), X, integers(3)),
    "cross_entropy with probabilities": (ops.cross_entropy, X, CONSTANT, PROBABILITY, np.abs(randn(4))),
    "nll_loss": (ops.nll_loss, X, integers(3), CONSTANT, np.abs(randn(4))),
    "attention": (ops.scaled_dot_product_attention, randn(2, 3, 4), randn(2, 5, 4), randn(2, 5, 3)),
    "ctc_loss": (ops.ctc_loss, randn(4, 2, 3), np.array([[1, 2], [2, 1]]), np.array([4, 3]), np.array([2, 1])),
    "mse_loss": (ops.mse_loss, X, CONSTANT, X + 1),
    "mse_loss, both": (ops.mse_loss, X, X + 1),
    "logits": (ops.binary_cross_entropy_with_logits, X, CONSTANT, PROBABILITY),
    "weighted mse_loss": (lambda x, t, w: ops.mse_loss(x, t, weight=w), X, X + 1, CONSTANT, POSITIVE),
    "l1_loss": (ops.l1_loss, X, X + 1),
    "smooth_l1_loss": (ops.smooth_l1_loss, X, X + 1),
    "huber_loss": (ops.huber_loss, X, X + 1),
    "binary_cross_entropy": (ops.binary_cross_entropy, PROBABILITY, PROBABILITY[::-1].copy()),
    "binary_cross_entropy_with_logits": (
        lambda x, t, w, p: ops.binary_cross_entropy_with_logits(x, t, w, pos_weight=p), X, PROBABILITY, CONSTANT,
        POSITIVE, POSITIVE[0]),
    "lstm": (lambda *given: ops.lstm_layer(given[0], given[1:3], *given[3:]), SEQUENCE, STATE, STATE + 1,
             randn(12, 4), randn(12, 3), randn(12), randn(12)),
    "lstm with lengths": (lambda *given: ops.lstm_layer(given[0], given[1:3], *given[3:], lengths=[1, 3]),
                          SEQUENCE, STATE, STATE + 1, randn(12, 4), randn(12, 3), randn(12), randn(12)),
    "lstm with projection": (lambda *given: ops.lstm_layer(given[0], given[1:3], *given[3:], reverse=True),
                             SEQUENCE, STATE[:, :2], STATE, randn(12, 4), randn(12, 2), randn(12), randn(12),
                             randn(2, 3)),
    "gru": (ops.gru_layer, SEQUENCE, STATE, randn(9, 4), randn(9, 3), randn(9), randn(9)),
    "to": (lambda x: x.double(), X),
    "clone": (lambda x: x.clone(), X),
    "a module with a backward hook": (lambda x: HOOKED(x), X),
    "scale": (lambda x: optim.StaticLossScaler(8.0).scale(x.float().sum()), X),
}  # fmt: skip


def run(case, dtype):
    """The case's arguments, its results, and the inputs of the final op, which saves nothing."""
    function, *values = CASES[case]
    arguments, constant = [], False
    for v in values:
        if v is CONSTANT:
            constant = True
            continue
        v = v.astype(dtype) if v.dtype == np.float64 else v
        arguments.append(mp.tensor(v, requires_grad=v.dtype.kind == "f" and not constant))
    results = function(*arguments)
    results = list(results) if isinstance(results, tuple) else [results]
    wanted = [y.reshape(-1) for y in results if y.requires_grad]
    return arguments, results, ops.cat(wanted)


def backward(arguments, y):
    y.backward(np.resize([1.0, -2.0, 0.5], y.shape).astype(y.dtype))
    return [host(x.grad) for x in arguments if x.requires_grad]


def other_values(x):
    """Valid values of x's kind that differ from x's."""
    a = host(x.array)
    if a.dtype == bool:
        return ~a
    if a.dtype.kind in "iu":
        return np.where(a == 0, a.max(), a - 1) if a.max() else a + 1
    return a * -0.5 - 1


ALIASES = {
    "constructor": lambda x: Tensor(x),
    "view of a view": lambda x: x.detach().unsqueeze(0)[0],
}


@pytest.mark.parametrize("case", CASES)
def test_a_change_in_place_raises_or_does_not_matter(case):
    dtype = "float16"
    arguments, results, y = run(case, dtype)
    expected, n = backward(arguments, y), len(arguments)
    for i in range(n + len(results)):
        for alias in ALIASES:
            arguments, results, y = run(case, dtype)
            changed = (arguments + results)[i]
            if 0 in changed.array.strides:  # a result of `expand`, which NumPy makes read-only
                continue
            with mp.no_grad():
                ALIASES[alias](changed).copy_(other_values(changed))
            what = f"{alias} of {'argument' if i < n else 'result'} {i if i < n else i - n}"
            try:
                got = backward(arguments, y)
            except RuntimeError as error:
                if "a tensor that backward needs was changed in place after the forward pass" not in str(error):
                    raise
                continue
            for g, e in zip(got, expected, strict=True):
                np.testing.assert_array_equal(g, e, err_msg=f"a change through {what} went unnoticed")


@pytest.mark.parametrize("case", CASES)
def test_backward_leaves_what_it_reads(case):
    """A second backward over a retained graph gives the gradients of the first; the one passed stays as it was."""
    dtype = "float32"
    arguments, _, y = run(case, dtype)
    dy = np.resize([1.0, -2.0, 0.5], y.shape).astype(y.dtype)
    passed, found = mp.tensor(dy), []
    for _ in range(2):
        for x in arguments:
            x.zero_grad()
        y.backward(passed, retain_graph=True)
        found.append([host(x.grad) for x in arguments if x.requires_grad])
    np.testing.assert_array_equal(passed.numpy(), dy)
    for first, second in zip(*found, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.cpu
@pytest.mark.parametrize(
    "case", ["exp", "sqrt", "sigmoid", "tanh", "relu", "softmax", "amax", "std", "lstm", "gru"]
)  # log_softmax reads its input again, not its result
def test_a_saved_result_that_changes_raises(case):
    _, results, y = run(case, "float32")
    results[0].detach()[0] = 7.0
    with pytest.raises(RuntimeError, match=f"{case}: a tensor that backward needs was changed in place"):
        y.backward(np.ones(y.shape, "float32"))


def test_every_op_with_a_backward_has_a_case():
    names = [m.name for m in pkgutil.walk_packages(mp.__path__, "tinymp.") if not m.name.endswith("__main__")]
    modules = [importlib.import_module(name) for name in names]
    found = {
        value
        for module in modules
        # what needs several processes: tests/parallel; the op of a program's own Function: tests/face
        if not module.__name__.startswith(("tinymp.parallel", "tinymp.ops.more.autograd"))
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Op) and value.backward is not Op.backward
    } | set(OPS.values())
    seen = set()
    for case in CASES:
        *_, y = run(case, "float32")
        ops_of = [y.grad_fn]
        while ops_of:
            op = ops_of.pop()
            seen.add(type(op))
            ops_of += [edge[0] for edge in op.edges if isinstance(edge, tuple)]
    assert found - ABSTRACT - {Move} == seen  # there is nowhere to move to without a GPU
