"""Changing an argument or a result of an op in place after forward makes backward raise, unless backward does not read
it. Tested for every op of the core that has a backward.
"""

import importlib
import pkgutil

import numpy as np
import pytest

import tinymp as mp
from oracle import host, randn, rng
from tinymp import ops, optim
from tinymp.autograd import Op
from tinymp.tensor import Tensor


def integers(*shape, below=3, seed=7):
    return rng(seed).integers(0, below, shape)


X = randn(3, 4)
POSITIVE = np.abs(X) + 0.5
PROBABILITY = 1 / (1 + np.exp(-X))
IMAGE, SMALL = randn(2, 2, 4, 4), randn(2, 2, 3, 3, seed=3)
LSTM = randn(3, 2, 4), randn(2, 3, seed=1), randn(2, 3, seed=2), randn(12, 4), randn(12, 3), randn(12), randn(12)
BATCH_NORM = randn(2), randn(2)


def _dropped(x):
    mp.manual_seed(0)
    return ops.dropout(x, 0.5)


# name: (a function of tensors, their values); floating ones require a gradient, except those after `CONSTANT`
CONSTANT = object()
CASES = {
    **{name: (getattr(ops, name), X) for name in (
        "abs", "exp", "square", "relu", "leaky_relu", "sigmoid", "tanh", "sin", "cos", "sum", "mean", "var")},
    **{name: (getattr(ops, name), POSITIVE) for name in ("log", "sqrt", "rsqrt", "reciprocal")},
    **{name: (getattr(ops, name), X, POSITIVE) for name in ("add", "sub", "mul", "div", "pow")},
    "softmax": (lambda x: ops.softmax(x, 1), X),
    "neg": (lambda x: -x, X),
    "mul by a constant": (ops.mul, X, CONSTANT, POSITIVE),
    "reshape, then square": (lambda x: ops.square(x.reshape(-1).reshape(2, 6)[1:]), X),
    "stack": (lambda a, b: ops.stack([a, b]), X, X + 1),
    "transpose": (lambda x: x.transpose(0, 1), X),
    "a slice": (lambda x: x[1:, ::2], X),
    "an array of indices": (lambda x, i: x[i], X, integers(5)),
    "a mask": (lambda x, m: x[m], X, integers(3, 4, below=2).astype(bool)),
    "embedding": (ops.embedding, integers(2, 5), X),
    "matmul": (ops.matmul, X, X.T + 1),
    "linear": (ops.linear, X, randn(5, 4, seed=2), randn(5, seed=3)),
    "conv2d": (ops.conv2d, IMAGE, SMALL, randn(2)),
    "conv2d 1 x 1": (ops.conv2d, IMAGE, SMALL[:, :, :1, :1], randn(2)),
    "conv_transpose2d": (ops.conv_transpose2d, IMAGE, SMALL, randn(2)),
    "max_pool2d": (lambda x: ops.max_pool2d(x, 2), IMAGE),
    "batch_norm": (lambda x, w, b: ops.batch_norm(x, None, None, w, b, training=True), IMAGE, *BATCH_NORM),
    "batch_norm with statistics": (
        lambda x, w, b, mean, var: ops.batch_norm(x, mean, var, w, b), IMAGE, *BATCH_NORM, CONSTANT, randn(2),
        np.abs(randn(2))),
    "dropout": (_dropped, X),
    "cross_entropy": (ops.cross_entropy, X, integers(3)),
    "cross_entropy, small labels": (ops.cross_entropy, X, integers(3).astype(np.int8)),
    "mse_loss": (ops.mse_loss, X, CONSTANT, X + 1),
    "binary_cross_entropy_with_logits": (ops.binary_cross_entropy_with_logits, X, CONSTANT, PROBABILITY),
    "lstm": (lambda *given: ops.lstm_layer(given[0], given[1:3], *given[3:]), *LSTM),
    "to": (lambda x: x.double(), X),
    "clone": (lambda x: x.clone(), X),
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
    wide = [y.double().reshape(-1).sum() for y in results if y.requires_grad]
    return arguments, results, sum(wide[1:], wide[0])


def backward(arguments, y):
    y.backward()
    return [host(x.grad) for x in arguments if x.requires_grad]


def other_values(x):
    """Valid values of x's kind that differ from x's."""
    a = host(x.array)
    if a.dtype == bool:
        return ~a
    if a.dtype.kind in "iu":
        return np.where(a == 0, a.max(), a - 1) if a.max() else a + 1
    return a * -0.5 - 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", CASES)
def test_a_change_in_place_raises_or_does_not_matter(case, dtype):
    arguments, results, y = run(case, dtype)
    expected, n = backward(arguments, y), len(arguments)
    for i in range(n + len(results)):
        for alias in (Tensor, lambda x: x.detach().unsqueeze(0)[0]):
            arguments, results, y = run(case, dtype)
            changed = (arguments + results)[i]
            with mp.no_grad():
                alias(changed).copy_(other_values(changed))
            try:
                got = backward(arguments, y)
            except RuntimeError as error:
                if "a tensor that backward needs was changed in place after the forward pass" not in str(error):
                    raise
                continue
            for g, e in zip(got, expected, strict=True):
                np.testing.assert_array_equal(g, e, err_msg=f"a change of tensor {i} went unnoticed")


@pytest.mark.parametrize("case", CASES)
def test_backward_leaves_what_it_reads(case):
    """A second backward over a retained graph gives the gradients of the first."""
    arguments, _, y = run(case, "float32")
    found = []
    for _ in range(2):
        for x in arguments:
            x.zero_grad()
        y.backward(retain_graph=True)
        found.append([host(x.grad) for x in arguments if x.requires_grad])
    np.testing.assert_equal(*found)


def test_every_op_of_the_core_with_a_backward_has_a_case():
    modules = [m.name for m in pkgutil.walk_packages(ops.__path__, "tinymp.ops.") if ".more" not in m.name]
    found = {
        value
        for name in modules
        for value in vars(importlib.import_module(name)).values()
        if isinstance(value, type) and issubclass(value, Op) and value.backward is not Op.backward
    }
    seen = set()
    for case in CASES:
        *_, y = run(case, "float32")
        waiting = [y.grad_fn]
        while waiting:
            op = waiting.pop()
            seen.add(type(op))
            waiting += [edge[0] for edge in op.edges if isinstance(edge, tuple)]
    above = {base for op in found for base in op.__mro__[1:]}  # of which others are made
    assert not {op for op in found - seen - above if not op.__module__.startswith("tinymp.ops.more")}
